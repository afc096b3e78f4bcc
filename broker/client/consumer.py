"""The consumer of asyncio programs; ``consumer_member.py`` does its work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self, Unpack

from broker.client.checks import check_count, check_messages
from broker.client.consumer_member import ConsumerMember
from broker.client.errors import Misuse
from broker.client.member import ConsumerOptions, ConsumerSettings
from broker.client.message import MessageQueue, ReceivedMessage
from broker.client.options import INT_MAX, ClientSettings
from broker.client.producer import refuse_unknown, settings_of
from broker.client.receiving import AsyncMessageReceiver
from broker.wire.codes import RequestCode

__all__ = ["AsyncConsumer", "ConsumerOptions", "ConsumerSettings"]


class AsyncConsumer(AsyncMessageReceiver):
    """Receives messages, for programs with an event loop. ``Consumer`` is its twin without.

    group: its members divide the queues, and share how far they are. topics: one, several, or a
    mapping to expressions (tags as ``"a || b"``, ``Sql(...)``); none: use assign(). handler: called
    with each message, one that is not a coroutine function holds the loop meanwhile; without one,
    iterate or poll.

    >>> import asyncio
    >>> from broker import AsyncConsumer, AsyncProducer, Message
    >>> async def main():
    ...     async with AsyncProducer("orders-api") as producer:  # at NAMESRV_ADDR
    ...         await producer.send(Message("fruit", b"12 apples"))
    ...     async with AsyncConsumer("billing", "fruit", start="first") as consumer:
    ...         async for message in consumer:
    ...             return message.body
    >>> asyncio.run(main())
    b'12 apples'
    """

    def __init__(
        self,
        group: str,
        topics: str | Iterable[str] | Mapping[str, str] = (),
        namesrv: str | Sequence[str] | None = None,
        *,
        handler: Callable[[ReceivedMessage], object] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """Raises: Misuse, InvalidMessage (an illegal group)."""
        refuse_unknown(type(self).__name__, options, ClientSettings, ConsumerSettings)
        client = settings_of(ClientSettings, options)
        settings = settings_of(ConsumerSettings, options)
        self._member: ConsumerMember = ConsumerMember(
            group, topics, namesrv, client, settings, handler
        )

    # ---- life ----

    async def start(self) -> Self:
        """Registers with the brokers and divides the queues; ``async with`` does it.

        Raises: Unreachable, NoRoute for a topic that nobody serves, BrokerRefused for an SQL
        expression that a broker does not take, Misuse.
        """
        await self._member.start()
        return self

    async def close(self) -> None:
        """Stops pulling, lets handlers finish, commits, leaves the group. Harmless when repeated.

        Raises: HandlerStuck when a handler is still running after stop_timeout_s; WrongLoop on
        another event loop than that of start(), Forked.
        """
        await self._member.close()

    # ---- what is subscribed to ----

    async def subscribe(self, topic: str, expression: str = "*") -> None:
        """Adds a topic, or changes what is wanted of it. Raises: as start()."""
        await self._member.subscribe(topic, expression)

    async def unsubscribe(self, topic: str) -> None:
        """Leaves a topic: its queues go to other members. Raises: Misuse, BrokerRefused."""
        await self._member.unsubscribe(topic)

    async def assign(self, queues: Iterable[MessageQueue] | Mapping[MessageQueue, int]) -> None:
        """Takes these queues and no others, whoever else reads them (lite pull). A mapping says at
        which offset each begins; else it is what the group has committed, or as `start` says.

        Raises: Misuse when topics are subscribed to, Unreachable, BrokerRefused.
        """
        self._member.network.check()
        self._member.pulled_only("assign()")
        await self._member.assign(queues)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Returns the queues of a topic that can be read. Raises: NoRoute, Unreachable, Misuse,
        InvalidMessage for an invalid name."""
        self._member.network.check()
        return await self._member.queues(topic)

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that are ours now."""
        return frozenset(self._member.progress)

    # ---- offsets ----

    async def committed(self, queue: MessageQueue) -> int | None:
        """Returns the offset that the group has committed, or None before its first commit. Raises:
        ClientError."""
        return await self._member.committed(queue)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Returns the offset of the oldest message that is left. Raises: ClientError."""
        return await self._member.offset(RequestCode.GET_MIN_OFFSET, queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Returns the offset that the next message will get. Raises: ClientError."""
        return await self._member.offset(RequestCode.GET_MAX_OFFSET, queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Returns the offset of the first message stored at that time or later. Raises:
        ClientError."""
        return await self._member.offset_at(queue, timestamp_ms)

    def position(self, queue: MessageQueue) -> int:
        """Returns the offset of the next message that is not done. Raises: Misuse."""
        return self._member.ours(queue).commit_offset

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continues a queue at an offset; messages of it that wait are dropped. Raises: Misuse."""
        await self._member.seek(queue, offset)

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Brings no more of these queues, all by default, until resume(). What was pulled before
        still comes. Raises: Misuse."""
        self._member.pulled_only("pause()")
        for progress in self._member.all_of_ours(queues):
            progress.paused = True

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Ends a pause. Raises: Misuse."""
        self._member.pulled_only("resume()")
        for progress in self._member.all_of_ours(queues):
            progress.paused = False
            if progress.wake is not None:
                progress.wake()

    async def commit(self) -> None:
        """Commits what is done now, and waits until the brokers know. Raises: ClientError."""
        self._member.network.check()
        await self._member.commit()

    # ---- what comes again ----

    async def nack(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Has the message delivered again, as upstream's sendMessageBack, to any member of the
        group. delay_level: 0 is 10 s the first time and more each time, -1 makes it a dead letter
        at once.

        Raises: Misuse in broadcasting and after assign(), where nothing comes again; ClientError.
        """
        self._member.network.check()
        check_messages("nack()", [message])
        check_count("delay_level", delay_level, -1, INT_MAX)
        await self._member.nack(message, delay_level)

    async def extend(self, message: ReceivedMessage, invisible_s: float) -> None:
        """Keeps a popped message ours for so long from now on, as upstream's
        changeInvisibleDuration.

        Raises: Misuse for a message that is done or was pulled; BrokerRefused when it has gone back
        to the group already; ClientError.
        """
        self._member.network.check()
        if self._member.popping is None:
            raise Misuse('extend() is for consumers with mode="pop"')
        await self._member.popping.extend(message, invisible_s)
