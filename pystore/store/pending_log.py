"""Open transactions, as they are found in the log.

The rows of the metadata (pystore/meta/pending.py) are up to date as far as their mark says; what
has happened since is in the log, from the places of the mark on. Without a mark, or when the log is
not the one that it was made of, everything is found in the log: halves from the progress of
CID_RMQ_SYS_TRANS on, without those that ops name, without those that a final message names
(preparedTransactionOffset) whose op was lost with the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pystore.format.names import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from pystore.meta.pending import Decision, Mark, PendingHalf, immunity_of
from pystore.native import ffi, lib, raise_error
from pystore.store._messages import GetStatus, Message
from pystore.store._reading import Reader
from pystore.store._store import Store

__all__ = ["Pending", "copy_of", "find_pending", "half_of", "op_offsets", "settled"]

#: A final message whose op is missing is looked for within so many bytes from the end of the log.
_TAIL = 4 << 30
_FINALS = 4096


def op_offsets(body: bytes) -> list[int]:
    """Returns the half queue offsets that an op names: one number, or several with commas between
    them and after the last one; what is not a number is skipped."""
    return [int(part) for part in body.split(b",") if part.isdigit() and len(part) < 19]


def half_of(message: Message) -> PendingHalf | None:
    """Returns a record of the half topic as an open half; None when it says neither group nor
    topic."""
    properties = message.properties
    group, topic = properties.get("PGROUP", ""), properties.get("REAL_TOPIC", "")
    if not group or not topic or len(group.encode()) > 255 or len(topic.encode()) > 255:
        return None
    checks = properties.get("TRANSACTION_CHECK_TIMES", "")
    at, place = message.queue_offset, message.physical_offset
    return PendingHalf(
        at, place, at, place, message.store_timestamp, 0,
        min(int(checks), 65535) if checks.isascii() and checks.isdigit() else 0,
        immunity_of(properties.get("CHECK_IMMUNITY_TIME_IN_SECONDS")), group, topic,
    )  # fmt: skip


def copy_of(half: PendingHalf, properties: Mapping[str, str]) -> tuple[int | None, str | None]:
    """Returns which half this one is a copy of, that a Java broker put back: its offset, or the id
    that the first half with that id shares with it; (None, None) of a half that is not a copy.

    A copy that Java made for immunity's sake names the offset; one that it made for a check has
    only the same id.
    """
    named = properties.get("TRAN_PREPARED_QUEUE_OFFSET", "")
    if named.isascii() and named.isdigit() and len(named) < 19:
        return int(named), None
    return None, (properties.get("UNIQ_KEY") or None) if half.checks else None


@dataclass(slots=True)
class Pending:
    """What is open, and how far that is known. rows: by offset of the newest copy. spans: (op,
    largest half offset that it names) of ops from op_from on. owed: half offsets that are decided
    without an op that says so. decided: how, as far as it was seen. from_log: nothing was taken
    from the metadata. changed: rows differ from those of the metadata."""

    rows: dict[int, PendingHalf]
    half_next: int
    op_next: int
    op_from: int
    spans: list[tuple[int, int]]
    owed: list[int]
    decided: dict[int, Decision]
    log_from: int
    from_log: bool
    changed: bool


def _records(store: Store | Reader, topic: str, start: int) -> Iterator[Message]:
    """Yields the records of queue 0 of a topic from an offset on."""
    at = start
    while True:
        batch = store.read(topic, 0, at, max_messages=1024)
        yield from batch
        if batch.status is not GetStatus.FOUND and batch.next_offset <= at:
            return
        if batch.status in (
            GetStatus.NO_MATCHED_LOGIC_QUEUE,
            GetStatus.NO_MESSAGE_IN_QUEUE,
            GetStatus.OFFSET_OVERFLOW_ONE,
            GetStatus.OFFSET_OVERFLOW_BADLY,
        ):
            return
        at = batch.next_offset


class _Finder:
    def __init__(self, store: Store | Reader, mark: Mark | None, rows: list[PendingHalf]) -> None:
        self._store = store
        meta = store.metadata
        ranges = {q.topic: q for q in store.queues() if q.queue == 0}
        half, op = ranges.get(HALF_TOPIC), ranges.get(OP_TOPIC)
        self._half_end = half.max_offset if half is not None else 0
        self._op_end = op.max_offset if op is not None else 0
        known = mark if mark is not None and self._fits(mark) else None
        self.known = known
        if known is not None:
            half_from, op_from, op_read = known.half_next, known.op_from, known.op_next
        else:
            half_from = meta.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) or 0
            op_from = op_read = meta.offsets.get(TRANSACTION_GROUP, OP_TOPIC, 0) or 0
        # What lies beyond the ends is of a log that is gone.
        half_from, op_read = min(half_from, self._half_end), min(op_read, self._op_end)
        op_from = min(op_from, op_read)
        self._half_from = max(half_from, half.min_offset if half is not None else 0)
        self._op_read = max(op_read, op.min_offset if op is not None else 0)
        self.found = Pending(
            {row.offset: row for row in rows} if known is not None else {},
            self._half_end, self._op_end, op_from, [], [], {},
            store.info().log_max, known is None, False,
        )  # fmt: skip
        #: Newest copy's offset of a half that is known by its first one's.
        self._copies = {r.root: r.offset for r in self.found.rows.values() if r.root != r.offset}

    def _fits(self, mark: Mark) -> bool:
        """Says whether the log is still the one that the mark was made of."""
        ends = (
            (mark.log_end, self._store.info().log_max), (mark.half_next, self._half_end),
            (mark.op_next, self._op_end),
        )  # fmt: skip
        if any(seen > end for seen, end in ends):
            return False
        if mark.witness < 0:
            return True
        units = self._store.units(HALF_TOPIC, 0, mark.half_next - 1, 1)
        return len(units) == 0 or units[0][0] == mark.witness

    def run(self) -> Pending:
        for message in _records(self._store, HALF_TOPIC, self._half_from):
            self._half(message)
        named = self._ops()
        self._finals(named)
        return self.found

    # ---- halves ----

    def _half(self, message: Message) -> None:
        half = half_of(message)
        if half is None:
            return
        found = self.found
        found.changed = True
        first = self._first(half, message.properties)
        if first is not None:
            half = half._replace(
                root=first.root, root_physical=first.root_physical, store_ms=first.store_ms,
                checks=max(half.checks, first.checks), asked_ms=first.asked_ms,
            )  # fmt: skip
            found.rows.pop(first.offset, None)
            self._copies[half.root] = half.offset
        found.rows[half.offset] = half

    def _first(self, half: PendingHalf, properties: dict[str, str]) -> PendingHalf | None:
        """Returns the half that a Java broker put back as this one."""
        offset, key = copy_of(half, properties)
        if offset is None and key is not None:
            same = [m.queue_offset for m in self._store.query(HALF_TOPIC, key)]
            offset = min([*same, half.offset])
        return None if offset is None else self._open_or_stored(offset, half)

    def _open_or_stored(self, offset: int, copy: PendingHalf) -> PendingHalf | None:
        if offset >= copy.offset:
            return None
        row = self.found.rows.get(self._copies.get(offset, offset))
        if row is None:
            stored = self._store.read(HALF_TOPIC, 0, offset, max_messages=1)
            row = half_of(stored[0]) if len(stored) else None
            if row is None or row.offset != offset:
                row = copy._replace(offset=offset, root=offset, root_physical=-1)
        return row if row.group == copy.group else None

    # ---- ops ----

    def _settle(self, offset: int, decision: Decision) -> PendingHalf | None:
        found = self.found
        half = found.rows.pop(offset, None)
        if half is None and offset in self._copies:
            half = found.rows.pop(self._copies.pop(offset), None)
        if half is not None:
            found.changed = True
            found.decided[half.offset] = found.decided[half.root] = decision
        return half

    def _ops(self) -> set[int]:
        """Takes out what the ops name; returns it."""
        named: set[int] = set()
        settled: list[PendingHalf] = []
        if self.known is not None and self.known.op_from < self.known.op_next:
            # What these name is not read again; it lies below this.
            self.found.spans.append((self.known.op_from, self.known.half_next - 1))
        for message in _records(self._store, OP_TOPIC, self._first_op()):
            offsets = op_offsets(bytes(message.body))
            named.update(offsets)
            settled += filter(None, (self._settle(at, Decision.FINISHED) for at in offsets))
            if message.queue_offset >= self._op_read:
                self.found.spans.append((message.queue_offset, max(offsets, default=-1)))
        # Of a copy that was decided by its first one's op: Java would not know.
        self.found.owed += [half.offset for half in settled if half.offset not in named]
        return named

    def _first_op(self) -> int:
        """Returns where the first op of a half is: Java forgets the op of a half once it has put
        the half back, and asks again and again: for such copies the ops since their first are
        read."""
        copied = [r.store_ms for r in self.found.rows.values() if r.offset != r.root]
        if not copied or not self._op_end:
            return self._op_read
        return min(self._op_read, self._store.offset_at(OP_TOPIC, 0, min(copied)))

    # ---- final messages ----

    def _tail(self) -> int:
        """Returns where the search for final messages begins: at a record."""
        info = self._store.info()
        if self.known is not None:
            return max(self.known.log_from, info.log_min)
        if not self.found.rows:
            return info.log_max
        places = [(row.physical, row.root_physical) for row in self.found.rows.values()]
        first = min(place for pair in places for place in pair if place >= 0)
        size = info.commitlog_file_size
        return max(first, (info.log_max - _TAIL) // size * size, info.log_min)

    def _finals(self, named: set[int]) -> None:
        by_place = {}
        for row in self.found.rows.values():
            by_place[row.physical] = by_place[row.root_physical] = row.offset
        for place, decision in settled(self._store, self._tail()):
            offset = by_place.get(place)
            half = self._settle(offset, decision) if offset is not None else None
            if half is not None:
                self.found.owed += {half.offset, half.root}
            elif self.known is not None and place < self.known.log_end:
                # Known to be decided, yet perhaps before its op was written.
                owed = self._offset_at(place)
                if owed is not None and owed not in named:
                    self.found.owed.append(owed)

    def _offset_at(self, place: int) -> int | None:
        try:
            message = self._store.message(place)
        except Exception:  # noqa: BLE001 - a record that is gone needs no op
            return None
        return message.queue_offset if message.topic == HALF_TOPIC else None


def settled(store: Store | Reader, start: int) -> Iterator[tuple[int, Decision]]:
    """Yields (place of the half, decision) of the records that settle a half, from a place on."""
    error, at = ffi.new("ps_error *"), ffi.new("int64_t *", start)
    rows, end = ffi.new("ps_tx_outcome[]", _FINALS), store.info().log_max
    while True:
        count = lib.ps_log_outcomes(store.c_handle(), at, end, rows, _FINALS, error)
        if count < 0:
            raise_error(error[0], count)
        for i in range(count):
            yield rows[i].half, Decision(rows[i].decision)
        if at[0] >= end:
            return


def find_pending(store: Store | Reader, *, anew: bool = False) -> Pending:
    """Returns what is open in a store, be it opened for writing or for reading. anew: from the log
    alone.

    Raises: RecordDamaged, StoreClosed, StoreIOError.
    """
    mark, rows = (None, []) if anew else store.metadata.pending.load()
    return _Finder(store, mark, rows).run()
