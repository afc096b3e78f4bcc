"""Spans of OpenTelemetry, for clients with ``spans=True`` (the extra ``otel``).

Names and attributes are those of its conventions for messaging. The context of a send travels in
the properties of its message (traceparent, tracestate), where the agents of Java look for it, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from broker.client.errors import Misuse
from broker.client.message import Message, ReceivedMessage, SendResult
from broker.client.options import ClientSettings
from broker.client.send_wrapping import Method

__all__ = ["Spans"]

_PREFIX = "messaging."
_ROCKETMQ = "messaging.rocketmq."


class Spans:
    """The spans of one client. Raises: Misuse when OpenTelemetry is not installed."""

    def __init__(self, settings: ClientSettings, group: str, client_id: str) -> None:
        try:
            # By full names: other distributions share the first part, which hides them from mypy.
            import opentelemetry.propagate as propagate
            import opentelemetry.trace as trace
        except ImportError:
            raise Misuse(
                "spans=True needs OpenTelemetry; install it: pip install 'rocketmq-pystore[otel]'"
            ) from None
        self._trace, self._propagate = trace, propagate
        self._tracer = trace.get_tracer("rocketmq-pystore")
        self._group = group
        self._common = {
            _PREFIX + "system": "rocketmq",
            _PREFIX + "client.id": client_id,
            _ROCKETMQ + "namespace": settings.namespace,
        }

    # ---- producers ----

    def awaited(self, method: Method) -> Method:
        async def traced(message: Any, *args: Any, **options: Any) -> Any:
            if not isinstance(message, Message):
                return await method(message, *args, **options)
            with self._sending(message) as span:
                result = await method(self._marked(message, span), *args, **options)
                self._tell(span, getattr(result, "send_result", result))
                return result

        return traced

    def submitted(self, method: Method) -> Method:
        async def traced(message: Any, **options: Any) -> Any:
            if not isinstance(message, Message):
                return await method(message, **options)
            scope = contextlib.ExitStack()
            span = scope.enter_context(self._sending(message, current=False))
            with scope:  # until somebody else ends it
                future = await method(self._marked(message, span), **options)
                rest = scope.pop_all()

            def settle(done: asyncio.Future[SendResult]) -> None:
                with contextlib.suppress(BaseException), rest:
                    self._tell(span, done.result())

            future.add_done_callback(settle)
            return future

        return traced

    def batched(self, method: Method) -> Method:
        async def traced(messages: Sequence[Message], **options: Any) -> Any:
            if not all(isinstance(message, Message) for message in messages):
                return await method(messages, **options)
            made, links = [], []
            for message in messages:
                with self._sending(message, "create", current=False) as span:
                    made.append(self._marked(message, span))
                    links.append(self._trace.Link(span.get_span_context()))
            topics = {message.topic for message in messages}
            topic = topics.pop() if len(topics) == 1 else ""
            kind = self._trace.SpanKind.CLIENT
            facts = {_PREFIX + "batch.message_count": len(made)}
            with self._span("send", topic, kind, facts, links=links):
                return await method(made, **options)

        return traced

    def _sending(
        self, message: Message, operation: str = "send", current: bool = True
    ) -> contextlib.AbstractContextManager[Any]:
        kind = self._trace.SpanKind.PRODUCER
        facts = {
            _PREFIX + "message.body.size": len(message.body or b""),
            _ROCKETMQ + "message.tag": message.tags,
            _ROCKETMQ + "message.keys": message.keys.split()
            if isinstance(message.keys, str) else list(message.keys or ()),
            _ROCKETMQ + "message.delay_time_level": message.delay_level or None,
            _ROCKETMQ + "message.delivery_timestamp": message.deliver_at_ms,
        }  # fmt: skip
        return self._span(operation, message.topic, kind, facts, current=current)

    def _marked(self, message: Message, span: Any) -> Message:
        """Returns the message with the span's context among its properties."""
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier, self._trace.set_span_in_context(span))
        return dataclasses.replace(message, properties={**message.properties, **carrier})

    def _tell(self, span: Any, result: object) -> None:
        if isinstance(result, SendResult):
            span.set_attribute(_PREFIX + "message.id", result.message_id)
            span.set_attribute(_PREFIX + "destination.partition.id", str(result.queue.queue))

    # ---- consumers ----

    def around(
        self, handler: Callable[[ReceivedMessage], Awaitable[object]]
    ) -> Callable[[ReceivedMessage], Awaitable[object]]:
        """Returns the handler, in a span that continues the one of the send and is linked to it."""

        async def traced(message: ReceivedMessage) -> object:
            sent = self._propagate.extract(message.properties)
            origin = self._trace.get_current_span(sent).get_span_context()
            links = [self._trace.Link(origin)] if origin.is_valid else []
            kind = self._trace.SpanKind.CONSUMER
            facts = {
                _PREFIX + "consumer.group.name": self._group,
                _PREFIX + "message.id": message.message_id,
                _PREFIX + "destination.partition.id": str(message.queue.queue),
                _ROCKETMQ + "message.tag": message.tags,
                _ROCKETMQ + "message.keys": message.keys,
            }
            with self._span("process", message.topic, kind, facts, links=links, context=sent):
                return await handler(message)

        return traced

    # ---- both ----

    @contextlib.contextmanager
    def _span(
        self, operation: str, topic: str, kind: Any, facts: dict[str, Any],
        *, current: bool = True, **more: Any,
    ) -> Iterator[Any]:  # fmt: skip
        """Opens a span while the block runs; an exception of it is recorded. current: spans that
        are made meanwhile belong to it."""
        known = {name: value for name, value in facts.items() if value not in (None, "", [])}
        attributes = self._common | known | {
            _PREFIX + "operation.name": operation, _PREFIX + "operation.type": operation,
            _PREFIX + "destination.name": topic,
        }  # fmt: skip
        span = self._tracer.start_span(
            f"{operation} {topic}".strip(), kind=kind, attributes=attributes, **more
        )
        scope = self._trace.use_span(span, record_exception=False, set_status_on_exception=False)
        try:
            with scope if current else contextlib.nullcontext():
                yield span
        except BaseException as error:
            span.set_attribute("error.type", type(error).__qualname__)
            span.record_exception(error)
            span.set_status(self._trace.StatusCode.ERROR, str(error))
            raise
        finally:
            span.end()
