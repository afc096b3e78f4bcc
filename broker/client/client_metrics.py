"""Metrics of a client in the registry of its program, for clients with ``metrics=registry`` (the
extra ``prometheus``). Names and labels are those of broker/metrics/table.py.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from broker.client.errors import Misuse
from broker.client.message import Message, ReceivedMessage
from broker.client.options import MetricsRegistry
from broker.client.send_wrapping import Method
from broker.metrics.table import BY_NAME

__all__ = ["ClientMetrics"]


class _Families:
    """The metrics of all clients that share a registry, which takes each name once."""

    def __init__(self, registry: MetricsRegistry) -> None:
        """Raises: Misuse without the extra, ValueError when a name is taken."""
        try:
            from prometheus_client import Counter, Histogram
        except ImportError:
            raise Misuse(
                "metrics= needs prometheus_client; install it: pip install"
                " 'rocketmq-pystore[prometheus]'"
            ) from None

        def made(kind: Callable[..., Any], name: str, **more: Any) -> Any:
            row = BY_NAME[f"pystore_client_{name}"]
            return kind(row.name, row.meaning, row.labels, registry=registry, **more)

        bounds = BY_NAME["pystore_client_send_seconds"].bounds
        self.sends = made(Counter, "sends_total")
        self.send_seconds = made(Histogram, "send_seconds", buckets=bounds)
        self.handled = made(Counter, "handled_total")
        self.handle_seconds = made(Histogram, "handle_seconds", buckets=bounds)


_families: weakref.WeakKeyDictionary[Any, _Families] = weakref.WeakKeyDictionary()


class ClientMetrics:
    """The metrics of one client."""

    def __init__(self, registry: MetricsRegistry, group: str) -> None:
        """Raises: Misuse for what is not a registry, or without the extra ``prometheus``."""
        if not callable(getattr(registry, "register", None)):
            raise Misuse(f"metrics is {registry!r}; pass a CollectorRegistry of prometheus_client")
        self._group = group
        found = _families.get(registry)
        if found is None:
            found = _families[registry] = _Families(registry)
        self._all = found

    # ---- producers ----

    def awaited(self, method: Method) -> Method:
        async def counted(message: Any, *args: Any, **options: Any) -> Any:
            with self._sending(getattr(message, "topic", "")):
                return await method(message, *args, **options)

        return counted

    def batched(self, method: Method) -> Method:
        async def counted(messages: Sequence[Message], **options: Any) -> Any:
            topic = getattr(messages[0], "topic", "") if messages else ""
            with self._sending(topic, len(messages)):
                return await method(messages, **options)

        return counted

    def submitted(self, method: Method) -> Method:
        async def counted(message: Any, **options: Any) -> Any:
            began, topic = perf_counter(), getattr(message, "topic", "")
            try:
                future = await method(message, **options)
            except BaseException:
                self._sent(topic, 1, "failed", began)
                raise

            def settle(done: asyncio.Future[Any]) -> None:
                good = not done.cancelled() and done.exception() is None
                self._sent(topic, 1, "ok" if good else "failed", began)

            future.add_done_callback(settle)
            return future

        return counted

    @contextmanager
    def _sending(self, topic: str, count: int = 1) -> Iterator[None]:
        began = perf_counter()
        try:
            yield
        except BaseException:
            self._sent(topic, count, "failed", began)
            raise
        self._sent(topic, count, "ok", began)

    def _sent(self, topic: str, count: int, status: str, began: float) -> None:
        self._all.sends.labels(self._group, topic, status).inc(count)
        self._all.send_seconds.labels(self._group, topic).observe(perf_counter() - began)

    # ---- consumers ----

    def around(
        self, handler: Callable[[ReceivedMessage], Awaitable[object]]
    ) -> Callable[[ReceivedMessage], Awaitable[object]]:
        """Returns the handler, counted and timed."""

        async def counted(message: ReceivedMessage) -> object:
            began, result = perf_counter(), "retry"
            try:
                found = await handler(message)
                result = "ok"
                return found
            finally:
                self._all.handled.labels(self._group, message.topic, result).inc()
                times = self._all.handle_seconds.labels(self._group, message.topic)
                times.observe(perf_counter() - began)

        return counted
