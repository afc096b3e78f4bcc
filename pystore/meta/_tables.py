"""The tables of the metadata as typed objects: topics and groups, offsets, delay offsets.

Each change is one transaction of :class:`pystore.meta._rows.MetaStore`.
"""

from __future__ import annotations

import contextlib
import heapq
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Generic, TypeVar

from pystore.errors import BadArgument
from pystore.format.names import REVIVE_GROUP
from pystore.format.offset_blocks import offset_rows
from pystore.meta import _database, configfiles
from pystore.meta._rows import MetaStore
from pystore.meta.configfiles import (
    AT,
    INT32,
    INT64,
    ConsumerOffset,
    SubscriptionGroup,
    TopicConfig,
)

_Row = TypeVar("_Row", TopicConfig, SubscriptionGroup)


class Table(Generic[_Row]):
    """Topics or groups by name. A change is one transaction, unless within Metadata.batch()."""

    __slots__ = ("_meta", "_name")

    def __init__(self, meta: MetaStore, name: str) -> None:
        self._meta = meta
        self._name = name

    def _rows(self) -> dict[str, _Row]:
        rows: dict[str, _Row] = self._meta._rows(self._name)
        return rows

    def list(self) -> Sequence[_Row]:
        """Returns all of them, sorted by name."""
        with self._meta._lock:
            rows = self._rows()
            return [rows[name] for name in sorted(rows)]

    def names(self) -> Sequence[str]:
        return sorted(self._rows())

    def get(self, name: str) -> _Row | None:
        return self._rows().get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._rows()

    def __len__(self) -> int:
        return len(self._rows())

    def check(self, row: _Row) -> None:
        """Checks whether put() would take it. Raises: BadArgument."""
        _check_name(row.name, self._name)
        try:
            configfiles.check_row(row)
        except ValueError as bad:
            raise BadArgument(str(bad)) from None

    def put(self, row: _Row) -> None:
        """Adds or replaces one. Raises: BadArgument, ReadOnly, StoreClosed, DiskFull."""
        self.check(row)
        meta = self._meta
        with meta._write() as txn:
            if self._rows().get(row.name) == row:
                return
            value = _database.compact(_database.ROWS[self._name][2](row))
            txn.put(_database.row_key(row.name), value, db=meta._dbs[self._name])
            self._rows()[row.name] = row
            meta._bump(self._name, txn)

    def delete(self, name: str) -> bool:
        """Deletes one, and says whether there was one. Raises: ReadOnly, StoreClosed."""
        meta = self._meta
        with meta._write() as txn:
            if self._rows().pop(name, None) is None:
                return False
            txn.delete(_database.row_key(name), db=meta._dbs[self._name])
            meta._bump(self._name, txn)
            return True


_TOPIC_FIRST = attrgetter("topic", "group", "queue")


class Offsets:
    """The next offset of each (group, topic, queue)."""

    __slots__ = ("_meta",)

    def __init__(self, meta: MetaStore) -> None:
        self._meta = meta

    def commit(
        self, group: str, topic: str, queue: int, offset: int, *, reset: bool = False
    ) -> bool:
        """Sets an offset, and says whether it moved. It never goes back, unless reset says so.

        Raises: BadArgument, ReadOnly, StoreClosed, DiskFull."""
        _check_name(group, "groups")
        _check_name(topic, "topics")
        check_number("queue", queue, 0, INT32[1])
        check_number("offset", offset, 0, INT64[1])
        meta, pair = self._meta, f"{topic}{AT}{group}"
        with meta._exclusive():
            old = meta._rows("offsets").at(pair, queue)
            if old == offset or (old is not None and offset < old and not reset):
                return False
            with meta._write() as txn:
                meta._rows("offsets").put({pair: {queue: offset}})
                meta._bump("offsets", txn, meta._settings["consumerOffsetUpdateVersionStep"])
            return True

    def set_many(self, pairs: Mapping[tuple[str, str], Mapping[int, int]]) -> None:
        """Sets offsets by queue of each group and topic, also backwards. Names that no file could
        hold are passed over.

        Raises: BadArgument for a number out of range, ReadOnly, StoreClosed, DiskFull."""
        meta = self._meta
        with meta._exclusive(), meta._write() as txn:
            named = {}
            for (group, topic), queues in pairs.items():
                _check_numbers("queue", queues, 0, INT32[1])
                _check_numbers("offset", queues.values(), 0, INT64[1])
                with contextlib.suppress(BadArgument):
                    _check_name(group, "groups")
                    _check_name(topic, "topics")
                    if queues:
                        named[f"{topic}{AT}{group}"] = queues
            moved = meta._rows("offsets").put(named)
            if moved:
                step = meta._settings["consumerOffsetUpdateVersionStep"]
                meta._bump("offsets", txn, step, moved)

    def get(self, group: str, topic: str, queue: int) -> int | None:
        """Returns the next offset to consume, or None when the group never committed there."""
        queues: dict[int, int] = self._meta._rows("offsets").get(f"{topic}{AT}{group}", {})
        return queues.get(queue)

    def all(self, group: str | None = None, topic: str | None = None) -> Sequence[ConsumerOffset]:
        """Returns all offsets, or those of a group or topic, in the order of topic, group and
        queue."""
        found = []
        with self._meta._lock:
            for pair, queues in self._of(group, topic):
                of_topic, _, of_group = pair.partition(AT)
                if group in (None, of_group) and topic in (None, of_topic):
                    for queue, offset in queues.items():
                        found.append(ConsumerOffset(of_group, of_topic, queue, offset))
        return sorted(found, key=_TOPIC_FIRST)

    def _of(self, group: str | None, topic: str | None) -> Iterable[tuple[str, Mapping[int, int]]]:
        """Returns the pairs among which those of a group or topic are."""
        rows = self._meta._rows("offsets")
        pair = f"{topic}{AT}{group}"
        return rows.items() if None in (group, topic) else [(pair, rows.get(pair, {}))]

    def blocks(self) -> Iterator[bytes]:
        """Yields a writer's offsets, in no order, as blocks that the core reads
        (csrc/format/offsetblock.h). None changes meanwhile. Raises: StoreClosed, RecordDamaged,
        StoreIOError, OutOfMemory."""
        blocks: Iterator[bytes] = self._meta._rows("offsets").blocks()
        return blocks

    def pairs(self) -> int:
        """Returns how many pairs of group and topic have some."""
        with self._meta._lock:
            return len(self._meta._rows("offsets"))

    def first(self, count: int) -> tuple[list[ConsumerOffset], int]:
        """Returns the first ones of all(), and how many there are: a table shows a thousand of
        millions."""
        with self._meta._lock:
            rows = self._meta._rows("offsets")
            # Topic before group: nothing in a name comes before the zero.
            pairs = heapq.nsmallest(
                count, (pair.replace(AT, "\0", 1) for pair, queues in rows.items() if queues)
            )
            found = [
                ConsumerOffset(group, topic, queue, offset)
                for topic, _, group in (pair.partition("\0") for pair in pairs)
                for queue, offset in sorted(rows[f"{topic}{AT}{group}"].items())
            ]
            return found[:count], sum(len(queues) for _, queues in rows.items())

    def beyond(
        self,
        ends: Mapping[tuple[str, int], int],
        suspects: Callable[[bytes], bytes] = lambda blocks: blocks,
    ) -> list[tuple[ConsumerOffset, int]]:
        """Returns the offsets past the ends of their queues, in the order of all(), each with the
        highest that it may be. ends: the next offset of each topic and queue, 0 of those it lacks.
        suspects: drops from blocks what may stay, and what `ends` need not be asked for.
        REVIVE_GROUP keeps the last record that is done, so -1 there says that none may be kept."""
        found = []
        for blocks in self.blocks():
            for group, topic, queue, offset in offset_rows(suspects(blocks)):
                allowed = ends.get((topic, queue), 0) - (1 if group == REVIVE_GROUP else 0)
                if offset > allowed:
                    found.append((ConsumerOffset(group, topic, queue, offset), allowed))
        return sorted(found, key=lambda row: _TOPIC_FIRST(row[0]))

    def set_back(self, group: str, topic: str, queue: int, allowed: int) -> None:
        """Sets an offset to what beyond() says; one that may not be kept goes. Raises: BadArgument,
        ReadOnly, StoreClosed, DiskFull."""
        if allowed >= 0:
            self.commit(group, topic, queue, allowed, reset=True)
            return
        meta, pair = self._meta, f"{topic}{AT}{group}"
        with meta._write() as txn:
            if meta._rows("offsets").remove(pair, queue):
                meta._bump("offsets", txn)

    def delete(self, group: str | None = None, topic: str | None = None) -> int:
        """Removes the offsets of a group, of a topic, or of both together; returns how many queues.

        Raises: BadArgument when neither is given, ReadOnly, StoreClosed.
        """
        if group is None and topic is None:
            raise BadArgument("give the group or the topic whose offsets to delete")
        with self._meta._lock:  # nothing comes between the two
            pairs = [
                pair
                for pair, _ in self._of(group, topic)
                if group in (None, pair.partition(AT)[2]) and topic in (None, pair.partition(AT)[0])
            ]
            return self._remove(pairs)

    def delete_pairs(self, pairs: Iterable[tuple[str, str]]) -> int:
        """Removes the offsets of each of these groups in a topic; returns how many queues. Raises:
        ReadOnly, StoreClosed."""
        return self._remove(f"{topic}{AT}{group}" for group, topic in pairs)

    def _remove(self, pairs: Iterable[str]) -> int:
        meta = self._meta
        with meta._write() as txn:
            count: int = meta._rows("offsets").remove_pairs(pairs)
            if count:
                meta._bump("offsets", txn)
        return count


class DelayOffsets:
    """The next offset of each delay level, in SCHEDULE_TOPIC_XXXX queue level-1."""

    __slots__ = ("_meta",)

    def __init__(self, meta: MetaStore) -> None:
        self._meta = meta

    def commit(self, level: int, offset: int, *, reset: bool = False) -> bool:
        """Sets an offset, and says whether it moved. It never goes back, unless reset says so.

        Raises: BadArgument, ReadOnly, StoreClosed, DiskFull."""
        check_number("level", level, 1, INT32[1])
        check_number("offset", offset, 0, INT64[1])
        meta = self._meta
        with meta._exclusive():
            old = meta._rows("delays").get(level)
            if old == offset or (old is not None and offset < old and not reset):
                return False
            with meta._write() as txn:
                value = struct.pack(">q", offset)
                txn.put(struct.pack(">i", level), value, db=meta._dbs["delays"])
                meta._rows("delays")[level] = offset
                meta._bump("delays", txn, meta._settings["delayOffsetUpdateVersionStep"])
            return True

    def get(self, level: int) -> int | None:
        """Returns the next offset, or None when the level was never delivered from."""
        offset: int | None = self._meta._rows("delays").get(level)
        return offset

    def all(self) -> dict[int, int]:
        """Returns the offset of each level."""
        with self._meta._lock:
            return dict(sorted(self._meta._rows("delays").items()))


def _check_name(name: str, table: str) -> None:
    what = "topic" if table == "topics" else "group"
    if not isinstance(name, str) or not name:
        raise BadArgument(f"{name!r} is not a valid {what} name")
    if AT in name or not name.isprintable() or len(name.encode("utf-8", "replace")) > 255:
        raise BadArgument(f"{name!r:.300} is not a valid {what} name: up to 255 bytes, no '@'")


def check_number(what: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadArgument(f"{what} = {value!r} is not between {low} and {high}")


def _check_numbers(what: str, values: Collection[int], low: int, high: int) -> None:
    for value in (min(values, default=low), max(values, default=low)):
        check_number(what, value, low, high)
