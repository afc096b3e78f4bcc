"""What a handler of the user's is wrapped in: message trace, spans, metrics."""

from __future__ import annotations

from collections.abc import Callable

from broker.client.client_metrics import ClientMetrics
from broker.client.handling import HandlerFunction, awaitable
from broker.client.message import ReceivedMessage
from broker.client.network import Network
from broker.client.options import ClientSettings
from broker.client.telemetry import Spans
from broker.client.tracing import Tracer

__all__ = ["instrumented"]


def instrumented(
    handler: Callable[[ReceivedMessage], object] | None,
    client: ClientSettings,
    network: Network,
    group: str,
) -> tuple[HandlerFunction | None, Tracer | None]:
    """Returns a handler as a coroutine function, with what the settings want around it, and the
    tracer to start and flush. Raises: Misuse."""
    if handler is None:
        return None, None
    made, tracer = awaitable(handler), None
    if client.trace:
        tracer = Tracer(network, group, "CONSUME")
        made = tracer.around(made)
    if client.spans:
        made = Spans(client, group, network.client_id).around(made)
    if client.metrics is not None:
        made = ClientMetrics(client.metrics, group).around(made)
    return made, tracer
