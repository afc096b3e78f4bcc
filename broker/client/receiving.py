"""What every consumer of asyncio programs has: messages one by one, in lists, acknowledged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import groupby
from operator import attrgetter
from typing import Protocol, Self

from broker.client.checks import check_count, check_messages, check_seconds
from broker.client.errors import Misuse
from broker.client.handling import Handling
from broker.client.member import ConsumerSettings
from broker.client.message import ReceivedMessage
from broker.client.network import Network
from broker.client.ready import ReadyMessages
from broker.loop.lifetime import Closing

__all__ = ["AsyncMessageReceiver", "ReceivingMember"]


class ReceivingMember(Protocol):
    """What receiving needs of a consumer."""

    group: str
    settings: ConsumerSettings
    network: Network
    ready: ReadyMessages
    handling: Handling | None

    @property
    def client_id(self) -> str: ...

    async def closed(self) -> None:
        """Waits until close() has ended."""

    def check_iterable(self) -> None:
        """Checks that messages may be asked for. Raises: NotStarted, Misuse."""


class AsyncMessageReceiver(Closing):
    """A consumer, as far as messages come out of it. ``MessageReceiver`` is its twin."""

    _member: ReceivingMember

    async def start(self) -> Self:
        """Begins to receive; ``async with`` does it."""
        raise NotImplementedError

    @property
    def group(self) -> str:
        """The group, with the namespace."""
        return self._member.group

    @property
    def client_id(self) -> str:
        """How brokers and tools show this client."""
        return self._member.client_id

    async def __aenter__(self) -> Self:
        return await self.start()

    async def run(self) -> None:
        """Waits until close() is called elsewhere, while the handler works. Raises: Misuse without
        a handler."""
        self._member.network.check()
        if self._member.handling is None:
            raise Misuse("run() is for a consumer with a handler; iterate over this one")
        await self._member.closed()

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Returns an iterator over message after message. Asking for the next says that the one
        before is done; a loop that is left by an exception leaves its message to be delivered
        again. Ends with close()."""
        self._member.check_iterable()
        return self._each()

    async def _each(self) -> AsyncIterator[ReceivedMessage]:
        ready = self._member.ready
        while True:
            message = ready.take()
            if message is None:
                if not await ready.wait():
                    return
                continue
            yield message
            self.ack(message)

    async def batches(self, max_messages: int = 1024) -> AsyncIterator[list[ReceivedMessage]]:
        """Yields lists of all messages that wait. Asking for the next says that the one before is
        done."""
        self._member.check_iterable()
        check_count("max_messages", max_messages, 1)
        ready = self._member.ready
        while await ready.wait():
            batch = ready.take_many(max_messages)
            if batch:
                yield batch
                self.ack(*batch)

    async def poll(self, timeout_s: float = 5.0, max_messages: int = 1024) -> list[ReceivedMessage]:
        """Returns all messages that wait, or an empty list after the timeout. They are done once
        ack() says so; a queue of which ``buffer_messages`` are not hands out no more. Raises:
        Misuse, also before the consumer has a topic."""
        self._member.check_iterable()
        check_count("max_messages", max_messages, 1)
        check_seconds("timeout_s", timeout_s)
        if not await self._member.ready.wait(timeout_s):
            return []
        return self._member.ready.take_many(max_messages)

    def ack(self, *messages: ReceivedMessage) -> None:
        """Says that messages are done: their offsets are committed with the next commit. Raises:
        Misuse."""
        check_messages("ack()", messages)
        for progress, of_one in groupby(messages, attrgetter("progress")):
            progress.done(*[message.queue_offset for message in of_one])
