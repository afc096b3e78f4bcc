"""What sees every send of a producer: spans (telemetry.py) and metrics (client_metrics.py) put
themselves around its methods, so that other producers are not slower by it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

__all__ = ["SendObserver", "wrap_sends"]

#: Methods of a producer that send one message and wait for the outcome.
_AWAITED = ("send", "send_oneway", "request", "begin")

Method = Callable[..., Awaitable[Any]]


class SendObserver(Protocol):
    """Makes of a producer's method one that does the same and is seen."""

    def awaited(self, method: Method) -> Method:
        """Wraps one that sends a message and waits for the outcome."""

    def submitted(self, method: Method) -> Method:
        """Wraps one that gives a future of the outcome."""

    def batched(self, method: Method) -> Method:
        """Wraps one that sends several messages together."""


def wrap_sends(producer: Any, observer: SendObserver) -> None:
    """Has the observer see every send of this producer from now on."""
    for name in _AWAITED:
        if hasattr(producer, name):
            setattr(producer, name, observer.awaited(getattr(producer, name)))
    producer.submit = observer.submitted(producer.submit)
    producer.send_batch = observer.batched(producer.send_batch)
