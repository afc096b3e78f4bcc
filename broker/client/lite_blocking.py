"""LiteConsumer for programs without an event loop: the twin of the asyncio one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

from broker.client.blocking import MessageReceiver, twin_of
from broker.client.lite_consumer import AsyncLiteConsumer
from broker.client.lite_member import LiteOptions, LiteSettings
from broker.client.message import ReceivedMessage
from broker.client.options import ClientSettings
from broker.client.producer import refuse_unknown

__all__ = ["LiteConsumer"]


class LiteConsumer(MessageReceiver):
    """Receives the messages of lite topics, each in order, for programs without an event loop.
    ``AsyncLiteConsumer`` is its twin.

    handler: called in one of ``concurrency`` threads. on_taken_over is called on the clients' own
    event loop, and must not wait. group, topic, namesrv, options: as of AsyncLiteConsumer.

    >>> from broker import LiteConsumer
    >>> def follow(session):
    ...     with LiteConsumer("agents", "sessions") as consumer:  # at NAMESRV_ADDR
    ...         consumer.subscribe(session)
    ...         for message in consumer:
    ...             print(message.lite_topic, message.body)
    """

    _twin: AsyncLiteConsumer

    def __init__(
        self,
        group: str,
        topic: str,
        namesrv: str | Sequence[str] | None = None,
        *,
        handler: Callable[[ReceivedMessage], object] | None = None,
        **options: Unpack[LiteOptions],
    ) -> None:
        """Raises: Misuse, InvalidMessage (an illegal group or topic)."""
        call = self._take_handler(handler)
        refuse_unknown(type(self).__name__, options, ClientSettings, LiteSettings)
        self._begin(AsyncLiteConsumer(group, topic, namesrv, handler=call, **options))

    @property
    def lite_topics(self) -> frozenset[str]:
        """The lite topics that are subscribed to, without those that another client took over."""
        return self._twin.lite_topics

    subscribe = twin_of(AsyncLiteConsumer.subscribe)
    unsubscribe = twin_of(AsyncLiteConsumer.unsubscribe)
    nack = twin_of(AsyncLiteConsumer.nack)
    reject = twin_of(AsyncLiteConsumer.reject)
