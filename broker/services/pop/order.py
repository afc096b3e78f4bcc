"""Ordered consumption on the disk: which batch of a queue is out, and what of it is acknowledged
(docs/internals/pop.md#order; upstream ConsumerOrderInfoManager). The table is the core's, which
writes the text of the file and the journal; both are read here.

config/consumerOrderInfo.json is upstream's; members that it omits are null there. What changed
since it was saved is in a journal of ours.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from broker.hot.core import Core
from broker.hot.ordered import OrderedBatch, OrderedBatches, QueuePlace
from broker.loop.safe_log import SafeLogger
from broker.services.pop.journal import read_change, read_journal
from broker.wire.jsonbody import LONG, OBJECT, TEXT, JsonMember, Shape, listed
from pystore import files
from pystore.errors import BadArgument

__all__ = ["OrderFile", "OrderTable"]

log = SafeLogger("broker.pop")

_FILE = Shape(table=OBJECT)
_BATCH = Shape(
    popTime=JsonMember(LONG, 0), i=JsonMember(LONG, 0), l=JsonMember(LONG, 0), o=listed(LONG, 64),
    oc=OBJECT, ot=OBJECT, cm=JsonMember(LONG, 0), a=TEXT,
)  # fmt: skip
_KEPT_MS = 24 * 3_600_000
_MASK = (1 << 64) - 1
_INT_MAX = (1 << 31) - 1


def _batch_of(value: Any) -> OrderedBatch:
    """Makes a batch of a row. Raises: ValueError."""
    said = _BATCH(value)
    distances = said["o"]
    offsets = tuple(distances[:1]) + tuple(distances[0] + each for each in distances[1:])
    if not offsets or list(offsets) != sorted(set(offsets)) or offsets[0] < 0:
        raise ValueError("its offsets do not ascend")
    times, visible_ms = _numbers(said["oc"], _INT_MAX), _numbers(said["ot"], _MASK >> 1)
    return OrderedBatch(
        said["a"], said["popTime"], said["i"], offsets, times, visible_ms, said["cm"] & _MASK,
        said["l"],
    )  # fmt: skip


def _numbers(table: dict[Any, Any] | None, most: int) -> dict[int, int]:
    return {int(key): min(max(int(value), 0), most) for key, value in (table or {}).items()}


def _taken(place: QueuePlace, value: Any) -> OrderedBatch | None:
    try:
        return _batch_of(value)
    except (ValueError, TypeError, IndexError) as bad:
        log.warning("A batch of %s@%s is popped again: %s", place[0], place[1], bad)
        return None


def _batches(raw: bytes) -> Iterator[tuple[QueuePlace, OrderedBatch]]:
    """Yields those of a file, or of what another broker has told. Raises: ValueError."""
    table = (_FILE.loads(raw)["table"] or {}) if raw else {}
    for name, queues in table.items():
        topic, _, group = str(name).partition("@")
        for queue, value in queues.items() if isinstance(queues, dict) else ():
            place = topic, group, int(queue) if str(queue).isdigit() else -1
            batch = _taken(place, value) if place[2] >= 0 else None
            if batch is not None:
                yield place, batch


@dataclass(slots=True)
class OrderFile:
    """What the file and the journal beside it say. `next` is where groups continue by the journal;
    `raw` is the content of the file, and `lines` are those of the journal that count after it."""

    batches: dict[QueuePlace, OrderedBatch] = field(default_factory=dict)
    next: dict[QueuePlace, int] = field(default_factory=dict)
    raw: bytes = b""
    lines: bytes = b""

    @classmethod
    def read(cls, path: Path) -> OrderFile:
        """Reads the file. A file that cannot be read counts as none: its batches come once more."""
        out = cls()
        try:
            out.raw = files.read_file(path) or b""
        except OSError as bad:
            log.warning("Ordered batches cannot be read: %s", bad)
        if out.raw:
            out._take_file(path)
        changes, out.lines = read_journal(_journal_of(path), out.raw)
        for said in changes:
            out._change(said)
        return out

    def _change(self, said: Mapping[str, Any]) -> QueuePlace:
        place = said["topic"] or "", said["group"] or "", said["queue"]
        self.batches.pop(place, None)
        self.next.pop(place, None)
        if said["batch"] is not None:
            self._take(place, said["batch"])
            self.next[place] = said["next"] or 0
        return place

    def _take_file(self, path: Path) -> None:
        try:
            self.batches |= _batches(self.raw)
        except ValueError as bad:
            log.warning("Batches of ordered groups are popped again: %s: %s", path, bad)

    def _take(self, place: QueuePlace, value: Any) -> None:
        batch = _taken(place, value)
        if batch is not None:
            self.batches[place] = batch


def _journal_of(path: Path) -> Path:
    return path.with_suffix(".journal")


class OrderTable:
    """The batches that are out, and their file. A change is noted at once; it is in the file about
    a second later, after the offsets."""

    def __init__(self, core: Core, path: Path, file_mode: int) -> None:
        self._path, self._file_mode = path, file_mode
        self.batches = OrderedBatches(core)
        self._saved = 0
        self._has_journal = False

    @property
    def changed(self) -> bool:
        """Returns whether there is something to save."""
        failed = self.batches.journal_failed()
        if failed:
            log.warning(
                "A crash now would repeat messages of ordered groups: %s: %s",
                _journal_of(self._path), os.strerror(failed),
            )  # fmt: skip
        return self.batches.changes != self._saved

    def text(self) -> bytes:
        """Returns what is out, as the file has it. Raises: OutOfMemory."""
        return self.batches.text(saving=False)

    def take_over(self, text: bytes) -> None:
        """Has, at a slave, what the master has, as text() wrote it. Raises: ValueError,
        StoreError."""
        found, here = dict(_batches(text)), dict(_batches(self.text()))
        for topic, group, queue in here.keys() - found.keys():
            self.batches.forget(topic, group, queue)
        for place, batch in found.items():
            if here.get(place) != batch:
                self.batches.put(place, batch, note=True)

    def take_back(self, text: bytes) -> None:
        """Has, at a master, what a slave did in its place, as text() wrote it there: batches that
        it popped, and what was acknowledged of those of this broker. Raises: ValueError,
        StoreError."""
        here = dict(_batches(self.text()))
        for place, batch in _batches(text):
            mine = here.get(place)
            if mine is not None and mine.pop_ms == batch.pop_ms and mine.offsets == batch.offsets:
                self.batches.put(place, replace(batch, acked=batch.acked | mine.acked), note=True)
            elif mine is None or batch.used_ms > mine.used_ms:
                self.batches.put(place, batch, note=True)

    def replay(
        self, lines: Iterable[bytes], end_of: Callable[[str, int], int]
    ) -> dict[QueuePlace, int]:
        """Has what a master has noted in the log, the earliest first; returns where groups continue
        by it. end_of: as load() has it. Raises: StoreError."""
        found, changed = OrderFile(), set[QueuePlace]()
        for line in lines:
            try:
                changed.add(found._change(read_change(line)))
            except ValueError as bad:
                log.warning("A change of ordered batches is passed over: %s", bad)
        for place in changed:
            batch = found.batches.get(place)
            if batch is not None and batch.offsets[-1] < end_of(place[0], place[2]):
                self.batches.put(place, batch, note=True)
            else:
                self.batches.forget(place[0], place[1], place[2])
        return found.next

    def expire(self, now_ms: int) -> None:
        """Forgets those that nobody has popped for a day."""
        self.batches.expire(now_ms - _KEPT_MS)

    def load(self, end_of: Callable[[str, int], int]) -> dict[QueuePlace, int]:
        """Returns where groups continue, by what was noted after the file was saved. end_of: the
        end of a topic's queue: the power may have taken the messages of a batch with it. Raises:
        StoreError."""
        found = OrderFile.read(self._path)
        for place, batch in found.batches.items():
            topic, group, queue = place
            end = end_of(topic, queue)
            if batch.offsets[-1] >= end:
                log.warning(
                    "A batch of %s@%s, queue %d, offsets %d to %d, is not taken: the queue ends"
                    " at %d", topic, group, queue, batch.offsets[0], batch.offsets[-1], end,
                )  # fmt: skip
                continue
            try:
                self.batches.put(place, batch)
            except BadArgument as bad:
                log.warning("A batch of %s@%s is popped again: %s", topic, group, bad)
        self._saved = -1 if found.lines else self.batches.changes
        with files.named_errors(self._path.parent):
            files.make_folders(self._path.parent, self._file_mode)
        self.batches.begin_journal(_journal_of(self._path), zlib.crc32(found.raw), found.lines)
        self._has_journal = True
        return found.next

    async def save(self, first: Callable[[], Awaitable[None]]) -> None:
        """Saves the file. `first` brings offsets to the disk, which the file must not be ahead of:
        the present ones, and so after its content is taken. Raises: OSError, StoreError."""
        if self.changed:
            changes, data = self.batches.changes, self.batches.text(saving=True)
            await first()
            await asyncio.to_thread(self._write, data)
            self.batches.begin_journal(_journal_of(self._path), zlib.crc32(data))
            self._saved = changes

    def save_now(self) -> None:
        """Saves at the very end, when nothing else runs. Raises: OSError, StoreError."""
        if self.changed:
            changes, data = self.batches.changes, self.batches.text(saving=True)
            self._write(data)
            self._saved = changes
        if self._has_journal:
            self.batches.end_journal()
            _journal_of(self._path).unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        files.make_folders(self._path.parent, self._file_mode)
        files.replace_file(self._path, data, keep_old=True, mode=self._file_mode)
