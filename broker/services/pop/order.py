"""Ordered consumption: which batch of a queue is out, and what of it is acknowledged
(docs/internals/pop.md#order; upstream ConsumerOrderInfoManager).

config/consumerOrderInfo.json is upstream's; members that it omits are null there. What changed
since it was saved is in a journal of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.loop.safe_log import SafeLogger
from broker.services.pop.journal import OrderJournal
from broker.wire import mqjson
from broker.wire.jsonbody import LONG, OBJECT, TEXT, JsonMember, Shape, listed
from pystore import files

__all__ = ["OrderTable", "OrderedBatch"]

log = SafeLogger("broker.pop")

_FILE = Shape(table=OBJECT)
_BATCH = Shape(
    popTime=JsonMember(LONG, 0), i=JsonMember(LONG, 0), l=JsonMember(LONG, 0), o=listed(LONG, 64),
    oc=OBJECT, ot=OBJECT, cm=JsonMember(LONG, 0), a=TEXT,
)  # fmt: skip
_KEPT_MS = 24 * 3_600_000
_MASK = (1 << 64) - 1


@dataclass(slots=True)
class OrderedBatch:
    """The batch of one queue. `offsets` are ascending. `times` says how often a message was popped
    before this. `visible_ms` is when one comes back that is not acknowledged, where that was
    changed. Bit i of `acked` is for offsets[i]. `used_ms` is when it was last popped."""

    attempt: str | None
    pop_ms: int
    invisible_ms: int
    offsets: tuple[int, ...]
    times: dict[int, int] = field(default_factory=dict)
    visible_ms: dict[int, int] = field(default_factory=dict)
    acked: int = 0
    used_ms: int = 0

    def is_open(self, i: int) -> bool:
        return not self.acked >> i & 1

    def returns_ms(self, offset: int) -> int:
        """Returns when a message is visible again unless it is acknowledged."""
        return self.visible_ms.get(offset, self.pop_ms + self.invisible_ms)

    def blocked_until(self, attempt: str | None, now_ms: int) -> int:
        """Returns when the next batch may be popped; 0 means now. The attempt that got this one
        gets it again."""
        if attempt is not None and attempt == self.attempt:
            return 0
        if not self.visible_ms:  # all come back together
            until = self.pop_ms + self.invisible_ms
            return until if until > now_ms and self._open_bits() else 0
        waits = [self.returns_ms(each) for i, each in enumerate(self.offsets) if self.is_open(i)]
        return max((until for until in waits if until > now_ms), default=0)

    def next_offset(self) -> int:
        """Returns the offset below which everything is acknowledged."""
        left = self._open_bits()
        return self.offsets[(left & -left).bit_length() - 1] if left else self.offsets[-1] + 1

    def _open_bits(self) -> int:
        return ~self.acked & (1 << len(self.offsets)) - 1

    def as_json(self) -> dict[str, Any]:
        first = self.offsets[0]
        distances = [first, *(each - first for each in self.offsets[1:])]
        signed = self.acked & _MASK
        return {
            "a": self.attempt, "cm": signed - (1 << 64) if signed >> 63 else signed,
            "i": self.invisible_ms, "l": self.used_ms, "o": distances,
            "oc": self.times, "ot": self.visible_ms or None, "popTime": self.pop_ms,
        }  # fmt: skip


def _batch_of(value: Any) -> OrderedBatch:
    """Raises: ValueError."""
    said = _BATCH(value)
    distances = said["o"]
    offsets = tuple(distances[:1]) + tuple(distances[0] + each for each in distances[1:])
    if not offsets or list(offsets) != sorted(set(offsets)) or offsets[0] < 0:
        raise ValueError("its offsets do not ascend")
    return OrderedBatch(
        said["a"], said["popTime"], said["i"], offsets, _numbers(said["oc"]),
        _numbers(said["ot"]), said["cm"] & _MASK, said["l"],
    )  # fmt: skip


def _numbers(table: dict[Any, Any] | None) -> dict[int, int]:
    return {int(key): int(value) for key, value in (table or {}).items()}


Queue = tuple[str, str, int]  # topic, group, queue


def _taken(place: Queue, value: Any) -> OrderedBatch | None:
    try:
        return _batch_of(value)
    except (ValueError, TypeError, IndexError) as bad:
        log.warning("A batch of %s@%s is popped again: %s", place[0], place[1], bad)
        return None


def _batches(raw: bytes) -> Iterator[tuple[Queue, OrderedBatch]]:
    """Yields those of a file, or of what another broker has told. Raises: ValueError."""
    table = (_FILE.loads(raw)["table"] or {}) if raw else {}
    for name, queues in table.items():
        topic, _, group = str(name).partition("@")
        for queue, value in queues.items() if isinstance(queues, dict) else ():
            place = topic, group, int(queue) if str(queue).isdigit() else -1
            batch = _taken(place, value) if place[2] >= 0 else None
            if batch is not None:
                yield place, batch


class OrderTable:
    """The batches that are out, by topic, group and queue. Changes count and are noted at once;
    they are in their file about a second later, after the offsets."""

    def __init__(self, path: Path, file_mode: int) -> None:
        self._path, self._file_mode = path, file_mode
        self._journal = OrderJournal(path.with_suffix(".journal"), file_mode)
        self._table: dict[Queue, OrderedBatch] = {}
        #: There is something to save.
        self.changed = False

    def get(self, place: Queue) -> OrderedBatch | None:
        return self._table.get(place)

    def places(self) -> list[Queue]:
        return list(self._table)

    def pop(
        self, place: Queue, attempt: str | None, pop_ms: int, invisible_ms: int,
        offsets: Sequence[int], now_ms: int,
    ) -> OrderedBatch:  # fmt: skip
        """Notes that a batch was popped: what is out of this queue from now on."""
        old = self._table.get(place)
        times: dict[int, int] = {}
        if old is not None and attempt is not None and attempt == old.attempt:
            times = old.times
        elif old is not None:
            again = set(old.offsets).intersection(offsets)
            times = {each: old.times.get(each, 0) + 1 for each in sorted(again)}
        made = OrderedBatch(attempt, pop_ms, invisible_ms, tuple(offsets), times, used_ms=now_ms)
        self._table[place] = made
        return made

    def note(self, place: Queue, next_offset: int) -> None:
        """Notes that a batch was popped or changed; its group continues at `next_offset`. From now
        on a crash of the process does not undo it."""
        self._note(place, next=next_offset, batch=self._table[place].as_json())

    def _note(self, place: Queue, **change: Any) -> None:
        self.changed = True
        self._journal.add(*place, **change)

    def forget(
        self, topic: str | None = None, group: str | None = None, queue: int | None = None
    ) -> None:
        """Forgets the batches of a topic, of a group, of a queue, or of what is given together."""
        wanted = topic, group, queue
        for place in list(self._table):
            if all(want in (None, have) for want, have in zip(wanted, place, strict=True)):
                self._forget(place)

    def take_over(self, text: bytes) -> None:
        """Has, at a slave, what the master has, as text() wrote it."""
        found = dict(_batches(text))
        for place in list(self._table):
            if place not in found:
                self._forget(place)
        for place, batch in found.items():
            if self._table.get(place) != batch:
                self._keep(place, batch)

    def take_back(self, text: bytes) -> None:
        """Has, at a master, what a slave did in its place, as text() wrote it there: batches that
        it popped, and what was acknowledged of those of this broker."""
        for place, batch in _batches(text):
            mine = self._table.get(place)
            if mine is not None and mine.pop_ms == batch.pop_ms and mine.offsets == batch.offsets:
                batch.acked |= mine.acked
                self._keep(place, batch)
            elif mine is None or batch.used_ms > mine.used_ms:
                self._keep(place, batch)

    def _keep(self, place: Queue, batch: OrderedBatch) -> None:
        self._table[place] = batch
        self.note(place, batch.next_offset())

    def _forget(self, place: Queue) -> None:
        del self._table[place]
        self._note(place)

    def expire(self, now_ms: int) -> None:
        """Forgets those that nobody has popped for a day."""
        for place, batch in list(self._table.items()):
            if now_ms - batch.used_ms > _KEPT_MS:
                self._forget(place)

    # ---- the file ----

    def load(self) -> dict[Queue, int]:
        """Returns where groups continue, by what was noted after the file was saved. A file that
        cannot be read counts as none: its batches come once more. Raises: OSError."""
        raw = None
        try:
            raw = files.read_file(self._path)
        except OSError as bad:
            log.warning("Ordered batches are not read: %s", bad)
        if raw is not None:
            self._read(raw)
        found: dict[Queue, int] = {}
        changes = self._journal.read(raw or b"")
        for said in changes:
            place = said["topic"] or "", said["group"] or "", said["queue"]
            self._table.pop(place, None)
            found.pop(place, None)
            if said["batch"] is not None:
                self._take(place, said["batch"])
                found[place] = said["next"] or 0
        self.changed = bool(changes)
        self._journal.begin(raw or b"")
        return found

    def _take(self, place: Queue, value: Any) -> None:
        batch = _taken(place, value)
        if batch is not None:
            self._table[place] = batch

    def _read(self, raw: bytes) -> None:
        try:
            self._table |= _batches(raw)
        except ValueError as bad:
            log.warning("Batches of ordered groups are popped again: %s: %s", self._path, bad)

    def text(self) -> bytes:
        table: dict[str, dict[int, Any]] = {}
        for (topic, group, queue), batch in self._table.items():
            table.setdefault(f"{topic}@{group}", {})[queue] = batch.as_json()
        queues = ",".join(
            f"{mqjson.dumps(name).decode()}:{_unquoted(rows)}" for name, rows in table.items()
        )
        return f'{{"table":{{{queues}}}}}'.encode()

    async def save(self, first: Callable[[], Awaitable[None]]) -> None:
        """Saves the file. `first` brings offsets to the disk, which the file must not be ahead of:
        the present ones, and so after its content is taken. Raises: OSError, StoreError."""
        if self.changed:
            self.changed = False
            data = self.text()
            self._journal.mark(data)
            try:
                await first()
                await asyncio.to_thread(self._write, data)
                self._journal.begin(data)
            except BaseException:
                self.changed = True
                raise

    def save_now(self) -> None:
        """Saves at the very end, when nothing else runs. Raises: OSError, StoreError."""
        if self.changed:
            self.changed = False
            data = self.text()
            self._journal.mark(data)
            self._write(data)
        self._journal.end()

    def _write(self, data: bytes) -> None:
        files.make_folders(self._path.parent, self._file_mode)
        files.replace_file(self._path, data, keep_old=True, mode=self._file_mode)


def _unquoted(table: dict[int, Any]) -> str:
    """Returns an object with its keys as bare numbers, as fastjson writes a map of them."""

    def text(value: Any) -> str:
        if isinstance(value, dict) and all(type(key) is int for key in value):
            return _unquoted(value)
        if isinstance(value, dict):
            members = [f'"{k}":{text(v)}' for k, v in value.items() if v is not None]
            return "{" + ",".join(members) + "}"
        return mqjson.dumps(value).decode()

    return "{" + ",".join(f"{key}:{text(value)}" for key, value in table.items()) + "}"
