"""Which queue a message goes to, and which brokers to avoid for a while. No I/O.

A broker that answered slowly, or not at all, is avoided for a time that grows with its latency
(upstream's MQFaultStrategy, 5.x): the table below. When every broker is to be avoided, the queue is
chosen as if none were.
"""

from __future__ import annotations

import random
from collections.abc import Collection

from broker.client.routes import Route
from broker.wire.mqjson import MessageQueue

__all__ = ["SLOW_S", "FaultTable", "QueueChooser"]

#: (latency in ms from which on, ms to avoid the broker), the largest first.
AVOID_MS = (
    (15_000, 30_000), (5_000, 10_000), (3_000, 6_000), (1_800, 5_000), (550, 2_000), (0, 0),
)  # fmt: skip
#: Latency from which on a broker is avoided.
SLOW_S = AVOID_MS[-2][0] / 1000
#: What counts as the latency of a broker that could not be reached or refused.
UNREACHABLE_MS = 10_000


class FaultTable:
    """Says which brokers to avoid, and until when. Times are seconds of one clock, which the caller
    chooses."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def report(self, broker: str, latency_s: float, now: float, *, failed: bool = False) -> None:
        """Notes how long a request to the broker took, or that it failed."""
        if latency_s < SLOW_S and not failed:
            if self._until:
                self._until.pop(broker, None)
            return
        latency_ms = UNREACHABLE_MS if failed else latency_s * 1000
        avoid_ms = next(avoid for least, avoid in AVOID_MS if latency_ms >= least)
        self._until[broker] = now + avoid_ms / 1000

    def is_available(self, broker: str, now: float) -> bool:
        return self._until.get(broker, 0.0) <= now

    @property
    def avoided(self) -> bool:
        """Whether any broker is, or was lately, to be avoided."""
        return bool(self._until)


class QueueChooser:
    """Takes each queue in turn, from a random one on."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = random.randrange(1 << 16)

    def choose(
        self,
        route: Route,
        faults: FaultTable,
        now: float,
        failed: Collection[str] = (),
    ) -> MessageQueue:
        """Returns the queue for the next attempt. route: it has queues that take messages. failed:
        brokers that this message was already sent to in vain."""
        self._next = at = self._next + 1
        queues = route.publish
        count = len(queues)
        if not failed and not faults.avoided:
            return queues[at % count]
        for step in range(count):
            queue = queues[(at + step) % count]
            broker = route.broker(queue)
            if broker not in failed and faults.is_available(broker, now):
                return queue
        for step in range(count):
            queue = queues[(at + step) % count]
            if route.broker(queue) not in failed:
                return queue
        return queues[at % count]
