"""Where a queue begins of which a group that starts "last" has committed nothing.

At its end, if the group is new to the topic. But a topic grows, and its group has been there: what
was put into a queue before its members saw it would be passed over, and nobody would know.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Protocol

from broker.client.errors import ClientError
from broker.client.message import MessageQueue
from broker.wire.codes import RequestCode

__all__ = ["Beginnings"]

#: How far a broker's clock may be behind ours. So much older may messages be that come with a queue
#: which is not new: that of a broker which was away.
_CLOCKS_MS = 60_000
#: Queues of which the group's offset is asked for at once.
_AT_ONCE = 32


class OffsetSource(Protocol):
    """What is asked of a consumer."""

    async def committed(self, queue: MessageQueue) -> int | None:
        """Returns the offset that the group has committed. Raises: ClientError."""

    async def offset(self, code: int, queue: MessageQueue) -> int:
        """Returns the offset that the broker answers to a request. Raises: ClientError."""

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Returns that of the first message stored then or later. Raises: ClientError."""


class Beginnings:
    """Where the queues of one member begin."""

    def __init__(self, member: OffsetSource) -> None:
        self._member = member
        #: The queues of each topic when they were divided first, and when that was.
        self._seen: dict[str, tuple[frozenset[MessageQueue], int]] = {}
        #: Whether the group had been in a topic before that.
        self._was_there: dict[str, bool] = {}
        self._asking = asyncio.Lock()

    def divided(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Notes the queues of a topic that are divided."""
        if queues and topic not in self._seen:
            self._seen[topic] = frozenset(queues), time.time_ns() // 1_000_000

    async def last(self, queue: MessageQueue) -> int:
        """Returns the end of a queue, or where what nobody has seen begins. Raises: ClientError."""
        member = self._member
        seen, since_ms = self._seen.get(queue.topic, (frozenset((queue,)), 0))
        if queue not in seen:
            return await member.offset_at(queue, since_ms - _CLOCKS_MS)
        if await self._has_been_there(queue.topic, seen):
            committed = await member.committed(queue)  # by another member, meanwhile
            if committed is not None:
                return committed
            low = await member.offset(RequestCode.GET_MIN_OFFSET, queue)
            if low == 0:  # of an old queue, something has been deleted
                return low
        return await member.offset(RequestCode.GET_MAX_OFFSET, queue)

    async def _has_been_there(self, topic: str, queues: Collection[MessageQueue]) -> bool:
        """Says whether the group had an offset in the topic when it was divided first. A broker
        that does not answer has none, until it does."""
        async with self._asking:
            if topic in self._was_there:
                return self._was_there[topic]
            rest, whole = sorted(queues), True
            while rest:
                part, rest = rest[:_AT_ONCE], rest[_AT_ONCE:]
                found = await asyncio.gather(
                    *(self._member.committed(queue) for queue in part), return_exceptions=True
                )
                for each in found:
                    if isinstance(each, int):
                        self._was_there[topic] = True
                        return True
                    if isinstance(each, BaseException):
                        if not isinstance(each, ClientError):
                            raise each
                        whole = False
            if whole:
                self._was_there[topic] = False
            return False
