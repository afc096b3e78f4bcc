"""``pystore tail``: the last messages of a topic, and those to come."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated

import typer

from pystore.cli._records import message_lines, message_record
from pystore.cli._session import Session
from pystore.cli._values import parse_time
from pystore.errors import BadArgument, NotFound
from pystore.format.names import LIGHT_PREFIX
from pystore.store._messages import Message
from pystore.store._reading import Reader

__all__ = ["run"]

_LAST = 10
_BATCH = 256
_PAUSE_S = 0.2  # between two looks at a store that somebody else writes to
_EVERY = 1 << 62


def run(
    s: Session,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to show.")],
    queue: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Only this queue; default: all queues.")
    ] = None,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            help="latest, earliest, a queue offset, or a time (ISO 8601, or 13 digits of ms).",
        ),
    ] = "latest",
    count: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--count",
            min=0,
            help="With --from latest: show this many messages first [10]; else stop after.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new messages; stop with Ctrl-C.")
    ] = False,
    tags: Annotated[str | None, typer.Option(help="Only these tags: 'A || B'.")] = None,
    sql: Annotated[
        str | None, typer.Option(help='Only messages matching this SQL92 filter: "a > 3".')
    ] = None,
    lite: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this lite topic of the topic.")
    ] = None,
) -> int | None:
    """Show the last messages of a topic, oldest first; with --follow also new ones.

    Takes no lock and writes nothing: the store may belong to a live broker. Ctrl-C ends --follow
    with exit code 0; without --follow the exit code is 130.

    It follows a store that another process writes to, and new queues of the topic, too. A
    number of --from with fewer than 13 digits is a queue offset, with more a time in ms.

    \b
    Examples:
      pystore tail STORE orders
      pystore tail STORE orders --queue 3 --from 0 -n 100
      pystore tail STORE orders --from 2026-11-21T05:00:00Z --tags "paid || sent" --json
      pystore tail STORE orders --sql "amount > 3 AND region = 'EU'"
      pystore tail STORE orders --follow
      pystore tail STORE chats --lite session-42 --from earliest
    """
    with s.reader() as reader:
        try:
            if lite is not None:
                if queue is not None or tags is not None or sql is not None:
                    raise BadArgument("--lite goes with neither --queue nor --tags nor --sql")
                name = f"{LIGHT_PREFIX}${topic}${lite}"
                # A Java broker has a folder for each, as for every queue.
                if reader.lights.range(name) is not None or not reader.queues(name):
                    return _LiteTail(s, reader, name).run(from_, count, follow)
                topic = name
            return _Tail(s, reader, topic, queue, tags, sql).run(from_, count, follow)
        except KeyboardInterrupt:
            if follow:
                return 0
            raise


def _show(s: Session, message: Message) -> None:
    record = message_record(message) if s.out.json else {}
    s.damaged |= "body_error" in record
    s.out.record(record, lambda: message_lines(message))


@dataclass
class _LiteTail:
    """One run over a light queue."""

    _s: Session
    _reader: Reader
    _name: str

    def run(self, from_: str, count: int | None, follow: bool) -> int:
        ends = self._reader.lights.range(self._name)
        if ends is None and not follow:
            raise NotFound(f"there is no light queue {self._name}", str(self._reader.path))
        low, high = ends or (0, 0)
        limit = _EVERY
        if from_ == "latest":
            at = max(low, high - (_LAST if count is None else count))
        else:
            limit = _EVERY if count is None else count
            at = low if from_ == "earliest" else self._start(from_, low, high)
        shown = 0
        while shown < limit:
            rows = self._reader.lights.read(self._name, at, min(64, limit - shown))
            for row in rows:
                if row.raw:  # of one that is damaged nothing is left to show
                    _show(self._s, self._reader.message(row.physical_offset))
                    shown += 1
                at = row.offset + 1
            if rows:
                continue
            if not follow:
                break
            self._s.out.flush()
            time.sleep(_PAUSE_S)
            self._reader.refresh()
        return 0 if shown or follow else 1

    def _start(self, from_: str, low: int, high: int) -> int:
        """Returns the offset that --from says, or the first that was stored at its time or
        later."""
        if from_.isdigit() and len(from_) < 13:
            return max(low, int(from_))
        moment = parse_time(from_, "--from")
        while low < high:
            middle = (low + high) // 2
            rows = self._reader.lights.read(self._name, middle, 1)
            if rows and rows[0].store_timestamp < moment:
                low = rows[0].offset + 1
            else:
                high = middle
        return low


@dataclass
class _Tail:
    """One run: knows where each queue is, and how many messages were shown."""

    _s: Session
    _reader: Reader
    _topic: str
    _queue: int | None
    _tags: str | None
    _sql: str | None
    _next: dict[int, int] = field(default_factory=dict)
    _shown: int = 0

    def run(self, from_: str, count: int | None, follow: bool) -> int:
        ranges = self._ranges()
        if not ranges:
            missing = self._reader._missing(self._topic, self._queue)
            if not follow:
                raise missing
            self._s.out.note(f"{missing.text}; waiting for it")
        limit = _EVERY
        if from_ == "latest":
            self._show_last(ranges, _LAST if count is None else count)
        else:
            limit = _EVERY if count is None else count
            self._next = {q: self._start(from_, q, *ends) for q, ends in ranges.items()}
            self._drain(limit)
        while follow and self._shown < limit:
            self._s.out.flush()
            self._reader.refresh()
            for queue, (low, _) in self._ranges().items():
                self._next.setdefault(queue, low)  # a queue that was made meanwhile
            if not self._drain(limit):
                time.sleep(_PAUSE_S)
        return 0 if self._shown or follow else 1

    def _ranges(self) -> dict[int, tuple[int, int]]:
        return {
            q.queue: (q.min_offset, q.max_offset)
            for q in self._reader.queues(self._topic)
            if self._queue in (None, q.queue)
        }

    def _start(self, from_: str, queue: int, low: int, high: int) -> int:
        if from_ == "earliest":
            return low
        if from_.isdigit() and len(from_) < 13:
            return max(low, int(from_))
        moment = parse_time(from_, "--from")
        at = self._reader.offset_at(self._topic, queue, moment)
        # The lookup stays within the queue: after the last message it names that one.
        last = self._reader.read(self._topic, queue, at, max_messages=1)
        return high if len(last) and last[0].store_timestamp < moment else at

    def _iterate(self, queue: int, at: int, end: int) -> Iterator[Message]:
        """Yields messages of a queue and remembers where it is as they are taken."""
        while at < end:
            batch = self._reader.read(
                self._topic,
                queue,
                at,
                max_messages=min(_BATCH, end - at),
                tags=self._tags,
                sql=self._sql,
            )
            for message in batch:
                if message.queue_offset >= end:
                    break
                self._next[queue] = message.queue_offset + 1
                yield message
            if batch.next_offset <= at:
                break
            at = batch.next_offset
            self._next[queue] = at

    def _drain(self, limit: int) -> int:
        """Shows what there is now, in the order in which it was stored; returns the number of
        messages."""
        ends = self._ranges()
        queues = [
            self._iterate(queue, max(at, ends[queue][0]), ends[queue][1])
            for queue, at in list(self._next.items())
            if queue in ends
        ]
        before = self._shown
        if self._shown < limit:
            for message in heapq.merge(*queues, key=attrgetter("physical_offset")):
                self._show(message)
                if self._shown >= limit:
                    break
        return self._shown - before

    def _show_last(self, ranges: dict[int, tuple[int, int]], count: int) -> None:
        """Shows the last so many over all queues: of each queue the last, then the last of
        these."""
        last: list[Message] = []
        for queue, (low, high) in ranges.items():
            if count:
                last.extend(self._last_of(queue, low, high, count))
            self._next[queue] = high
        last.sort(key=attrgetter("physical_offset"))
        for message in last[-count:] if count else ():
            self._show(message)

    def _last_of(self, queue: int, low: int, high: int, count: int) -> deque[Message]:
        """Returns the last matching ones; the window grows while a filter leaves too many out."""
        window = count
        while True:
            start = max(low, high - window)
            found = deque(self._iterate(queue, start, high), maxlen=count)
            if len(found) == count or start == low:
                return found
            window *= 4

    def _show(self, message: Message) -> None:
        _show(self._s, message)
        self._shown += 1
