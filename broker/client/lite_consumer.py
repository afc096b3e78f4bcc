"""The consumer of lite topics for asyncio programs; ``lite_member.py`` does its work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Self, Unpack

from broker.client.checks import check_messages, check_seconds
from broker.client.lite import OffsetOption
from broker.client.lite_member import LiteMember, LiteOptions, LiteSettings
from broker.client.message import ReceivedMessage
from broker.client.options import ClientSettings
from broker.client.producer import refuse_unknown, settings_of
from broker.client.receiving import AsyncMessageReceiver

__all__ = ["AsyncLiteConsumer"]


class AsyncLiteConsumer(AsyncMessageReceiver):
    """Receives the messages of lite topics, each in order, for programs with an event loop.
    ``LiteConsumer`` is its twin without.

    group: one whose attribute lite.bind.topic is `topic`. topic: the parent, of type LITE. handler:
    called with each message, and with one of a lite topic at a time; without one, iterate or poll.
    options: see LiteSettings.

    >>> import asyncio
    >>> from broker import AsyncLiteConsumer
    >>> async def follow(session):
    ...     async with AsyncLiteConsumer("agents", "sessions") as consumer:  # at NAMESRV_ADDR
    ...         await consumer.subscribe(session)
    ...         async for message in consumer:
    ...             print(message.lite_topic, message.body)
    """

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
        refuse_unknown(type(self).__name__, options, ClientSettings, LiteSettings)
        client = settings_of(ClientSettings, options)
        settings = settings_of(LiteSettings, options)
        self._member: LiteMember = LiteMember(group, topic, namesrv, client, settings, handler)

    async def start(self) -> Self:
        """Registers with the brokers and begins to ask; ``async with`` does it.

        Raises: Misuse when the topic is not of type LITE, or the group not bound to it, or a broker
        has no lite topics; NoRoute, Unreachable, BrokerRefused.
        """
        await self._member.start()
        return self

    async def close(self) -> None:
        """Unsubscribes, lets handlers finish, gives back what is not done. Harmless when repeated.

        Raises: HandlerStuck when a handler is still running after stop_timeout_s; WrongLoop on
        another event loop than that of start(), Forked.
        """
        await self._member.close()

    @property
    def lite_topics(self) -> frozenset[str]:
        """The lite topics that are subscribed to, without those that another client took over."""
        return frozenset(self._member.names)

    async def subscribe(
        self, lite_topics: str | Iterable[str], start: OffsetOption | None = None
    ) -> None:
        """Adds a lite topic, or several; they need not exist yet. start: where the group continues,
        by default where it is. In an exclusive group it takes them from the client that has them.

        Raises: LiteQuotaExceeded, Misuse, BrokerRefused, Unreachable, RequestTimeout.
        """
        await self._member.subscribe(lite_topics, start)

    async def unsubscribe(self, lite_topics: str | Iterable[str]) -> None:
        """Leaves a lite topic, or several: nothing of them comes any more, and what waits here goes
        back. Raises: Misuse for one that is not subscribed to, ClientError."""
        await self._member.unsubscribe(lite_topics)

    async def nack(self, message: ReceivedMessage, after_s: float | None = None) -> None:
        """Has the message come again after so long, and with it what was delivered after it of its
        lite topic. after_s: by default 10 s the first time, and more each time; a dead letter when
        it came too often.

        Raises: Misuse, ClientError: then it comes again when invisible_s is over.
        """
        self._member.network.check()
        check_messages("nack()", [message])
        if after_s is not None:
            check_seconds("after_s", after_s, more_than_0=True)
        await self._member.redeliver(message, after_s)

    async def reject(self, message: ReceivedMessage) -> None:
        """Makes the message a dead letter of the group at once. Raises: Misuse, ClientError."""
        self._member.network.check()
        check_messages("reject()", [message])
        await self._member.reject(message)
