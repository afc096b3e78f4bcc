"""The newest messages of a topic, over all of its queues: those that a visitor wants, as far as a
bound of work goes. No I/O but the reading that is passed in."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from broker.client.admin.facts import QueueEnds
from broker.client.message import MessageQueue
from broker.web.explaining import body_of
from broker.web.records import RecordView
from pystore.errors import BadArgument, NotFound
from pystore.filter.sql92 import check_work, compiled, matches

__all__ = ["MessageFilter", "Newest", "newest", "queue_of"]

#: What a visitor waits for at most: messages and bytes that are looked at, and seconds.
LOOKED_MAX, BYTES_MAX, SECONDS_MAX = 2000, 32 << 20, 2.0
#: Messages that are read of a queue at once: the first time, and by a filter from then on, as long
#: as they have no more bytes than this.
_CHUNK, _FILTERED, _CHUNK_BYTES = 8, 64, 1 << 20
#: Messages after which others have their turn.
_TURN = 50
_TEXT_MAX = 500

#: Reads a queue from an offset on: at most so many messages.
Read = Callable[[MessageQueue, int, int], Awaitable[list[RecordView]]]


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """tags: one of them; empty: any. sql: an SQL92 filter over properties. text: a part of the
    body, in capitals or not."""

    tags: frozenset[str] = frozenset()
    sql: Any = None
    text: bytes = b""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> MessageFilter:
        """Returns the search of the fields tag, sql and text of a form. Raises: BadArgument,
        ExpressionIllegal."""
        tag, sql, text = (query.get(name, "").strip() for name in ("tag", "sql", "text"))
        if max(map(len, (tag, sql, text))) > _TEXT_MAX:
            raise BadArgument(f"a filter is longer than {_TEXT_MAX} characters")
        made = compiled(sql) if sql else None
        if made is not None:
            check_work(made)
        tags = frozenset(each.strip() for each in tag.split("||") if each.strip())
        return cls(tags, made, text.lower().encode())

    @property
    def anything(self) -> bool:
        return not (self.tags or self.sql is not None or self.text)

    def fits(self, view: RecordView) -> bool:
        """Returns whether a message fits. The cheapest test comes first: bodies may have to be
        inflated."""
        if self.tags and view.tags not in self.tags:
            return False
        if self.sql is not None and not matches(self.sql, view.raw_properties):
            return False
        if not self.text:
            return True
        body, _ = body_of(bytes(view.record), view.head)
        return self.text in body.lower()


@dataclass(slots=True)
class Newest:
    """rows: with the name of the broker, the newest first. looked: messages that were looked at.
    whole: everything was looked at, or enough was found."""

    rows: list[tuple[str, RecordView]] = field(default_factory=list)
    looked: int = 0
    whole: bool = True


class _Cursor:
    """A queue that is read from its end back."""

    def __init__(self, queue: QueueEnds) -> None:
        self.queue = queue
        self.before = queue.max_offset
        self.read: list[RecordView] = []
        self._count = _CHUNK

    @property
    def left(self) -> bool:
        return bool(self.read) or self.before > self.queue.min_offset

    @property
    def newest(self) -> tuple[int, float]:
        """No message that is left is newer: its store time, and of one time its place in the
        log."""
        if not self.read:
            return self.queue.last_ms, math.inf
        head = self.read[-1].head
        return head.store_ms, head.physical_offset

    async def fill(self, read: Read, most: int) -> None:
        """Reads what lies before: at most so many messages, and few of large ones."""
        begin = max(self.queue.min_offset, self.before - min(self._count, most))
        found = await read(self.queue.queue, begin, self.before - begin)
        self.read = [view for view in found if begin <= view.head.queue_offset < self.before]
        self.before = begin
        if self.read:
            self.queue = replace(self.queue, last_ms=self.read[0].head.store_ms)
            mean = sum(view.size for view in self.read) // len(self.read)
            self._count = max(1, _CHUNK_BYTES // max(1, mean))


async def newest(
    queues: Iterable[QueueEnds], read: Read, wanted: MessageFilter, most: int
) -> Newest:
    """Returns the newest messages. queues: with the times of their last messages, of which a newer
    one is read first. most: rows that are wanted. Raises: what reading raises."""
    made, chunk = Newest(), _CHUNK if wanted.anything else _FILTERED
    end, size = time.monotonic() + SECONDS_MAX, 0
    cursors = [_Cursor(queue) for queue in queues if queue.count]
    # The newest messages lie in as many queues at most: those whose last ones are the newest.
    cursors.sort(key=lambda each: each.newest, reverse=True)
    first = cursors[:most]
    await asyncio.gather(*(each.fill(read, chunk) for each in first))
    while cursors and len(made.rows) < most:
        if made.looked >= LOOKED_MAX or size > BYTES_MAX or time.monotonic() > end:
            made.whole = False
            break
        cursor = max(cursors, key=lambda each: each.newest)
        if not cursor.read:
            if not cursor.left:
                cursors.remove(cursor)
                continue
            await cursor.fill(read, chunk)
            continue
        view = cursor.read.pop()
        made.looked += 1
        size += view.size
        if made.looked % _TURN == 0:
            await asyncio.sleep(0)
        if wanted.fits(view):
            made.rows.append((cursor.queue.queue.broker, view))
    return made


def queue_of(queues: Iterable[QueueEnds], broker: str, queue: int | None) -> QueueEnds | None:
    """Returns the queue that a visitor asks for; None: all of them. Raises: NotFound."""
    if queue is None:
        return None
    for each in queues:
        if queue == each.queue.queue and broker in ("", each.queue.broker):
            return each
    raise NotFound(f"the topic has no queue {queue}")
