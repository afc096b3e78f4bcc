"""Timers: messages that wait in ``rmq_sys_wheel_timer`` until the time that they ask for.

The C core finds, orders and delivers them (csrc/store/timers.c). docs/internals/timers.md.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from pystore.errors import BadArgument, StoreError
from pystore.native import ffi, lib, raise_error

if TYPE_CHECKING:
    from pystore.store._reading import Base

__all__ = [
    "ASKING",
    "RecallHandle",
    "Timer",
    "TimerRound",
    "TimerTally",
    "Timers",
    "TimersProgress",
    "delete_mark",
    "save_timers",
    "slot_of",
]

#: Properties that ask for a time, in the order in which they count.
ASKING = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")

_FOREVER = (1 << 63) - 1
#: As Java's Long.parseLong reads it; 19 digits are the most that an i64 has.
_TIME = re.compile(r"[+]?0*[0-9]{1,19}", re.ASCII)
#: Timers that `Timers.each` asks for at once.
_PAGE = 4096


def slot_of(due_ms: int, precision_ms: int) -> int:
    """Returns TIMER_OUT_MS of a message that is due then, as csrc/format/timer.c sets it."""
    return due_ms - 1 - (due_ms - 1) % precision_ms


def delete_mark(topic: str, key: str, due_ms: int) -> dict[str, str]:
    """Returns the properties of the message that takes the timer of this topic and UNIQ_KEY
    away."""
    return {
        "TIMER_DEL_UNIQKEY": f"{topic}+{key}",
        "UNIQ_KEY": key,
        "TIMER_DELIVER_MS": str(due_ms),
    }


class TimerRound(NamedTuple):
    """What one round did.

    next_ms: when the first that waits is due, -1: none waits. offset: of the topic's queue, read up
    to here. skipped: without readable record or destination, or whose topic was deleted meanwhile.
    late_ms: the largest delay of a delivery against its time. end: physical, of the last one
    delivered, 0: none was. more: there is more to do now. waits: the disk is behind, so that it has
    to wait. next_is_pop: the first goes to a revive topic, where nobody waits for it.
    """

    next_ms: int
    offset: int
    delivered: int
    skipped: int
    recalled: int
    pending: int
    late_ms: int
    end: int
    more: bool
    waits: bool
    next_is_pop: bool


class Timer(NamedTuple):
    """One that waits. due_ms: when it is delivered. out_ms: its TIMER_OUT_MS. offset: in the queue
    of the timer topic. physical: of its record; -1: it cannot be read. size: of the record.
    topic_hash: Java's, of the topic that it is for."""

    due_ms: int
    out_ms: int
    offset: int
    physical: int
    size: int = 0
    topic_hash: int = 0


class TimersProgress(NamedTuple):
    """At a start. read: of so many records of the timer topic's queue that came after the saved
    state. searched: the log up to this physical offset, of log_end, for deliveries since."""

    read: int
    records: int
    searched: int
    log_end: int


class TimerTally(NamedTuple):
    """Timers of one topic. waiting: now. read, delivered: since the start. delays: of those read,
    how many asked for a time up to each bound of rocketmq_delay_message_latency ahead, and more.
    delay_ms: the sum of what they asked for."""

    topic: str
    waiting: int
    read: int
    delivered: int
    delays: tuple[int, ...]
    delay_ms: int


class RecallHandle(NamedTuple):
    """What a recall names: out_ms is TIMER_OUT_MS of the message, key its UNIQ_KEY."""

    topic: str
    broker: str
    out_ms: int
    key: str

    @property
    def text(self) -> str:
        raw = f"v1 {self.topic} {self.broker} {self.out_ms + 1} {self.key}"
        return base64.urlsafe_b64encode(raw.encode()).decode()

    @classmethod
    def parse(cls, text: str) -> RecallHandle:
        """Reads a recall handle. Raises: BadArgument for a malformed handle. out_ms is negative
        when only its time is not a number."""
        try:
            padded = text + "=" * (-len(text) % 4)
            parts = base64.b64decode(padded, altchars=b"-_", validate=True).decode().split(" ")
        except (binascii.Error, ValueError):
            parts = []
        if len(parts) < 5 or parts[0] != "v1":
            raise BadArgument("recall handle is invalid")
        out_ms = int(parts[3]) - 1 if _TIME.fullmatch(parts[3]) else -1
        return cls(parts[1], parts[2], out_ms, parts[4])


def _timers_of(rows: Any, count: int) -> list[Timer]:
    return [
        Timer(row.due_ms, row.out_ms, row.queue_offset, row.physical, row.size, row.topic_hash)
        for row in (rows[i] for i in range(count))
    ]


class Timers:
    """The timers of an open store; one object a store at a time."""

    def __init__(
        self, store: Base, on_progress: Callable[[TimersProgress], None] | None = None
    ) -> None:
        """Finds again what waits; a store that never saved it reads its log. on_progress is called
        now and then meanwhile. Raises: StoreError."""
        self._store = store
        self._error = ffi.new("ps_error *")
        handle = lib.ps_timers_open(store.c_handle(), self._error)
        if handle == ffi.NULL:
            raise_error(self._error)
        self._handle: Any = handle
        self._round = ffi.new("ps_timer_round *")
        #: Records of the queue that were read at the start, after the saved state.
        self.recovered = 0
        try:
            self._recover(on_progress)
        except BaseException:
            self.close()
            raise

    def _recover(self, on_progress: Callable[[TimersProgress], None] | None) -> int:
        raw = ffi.new("ps_timers_progress *")
        while more := lib.ps_timers_recover(self._handle, raw, self._error):
            if more < 0:
                raise_error(self._error)
            if on_progress is not None:
                on_progress(TimersProgress(raw.read, raw.records, raw.searched, raw.log_end))
        self.recovered = int(raw.read)
        return int(raw.searched)

    def read_on(self) -> int:
        """Reads what others have put since, deliveries of timers among it: of a store that follows
        another one. Returns up to where the log was read. Raises: StoreError."""
        lib.ps_timers_read_on(self._handle)
        return self._recover(None)

    def close(self) -> None:
        """Closes the set; a second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            lib.ps_timers_close(handle)

    def run(self, *, most: int = 512, now_ms: int = 0) -> TimerRound:
        """Reads new timers and delivers those that are due. now_ms: 0 for the clock.

        Raises: DiskFull and whatever else ``put`` raises; ``round`` of the exception has what was
        delivered before it.
        """
        raw = self._round
        rc = lib.ps_timers_run(self._handle, now_ms, most, raw, self._error)
        done = TimerRound(
            raw.next_ms, raw.next_offset, raw.delivered, raw.skipped, raw.recalled, raw.pending,
            raw.late_ms, raw.end, raw.more != 0, raw.waits != 0, raw.next_is_pop != 0,
        )  # fmt: skip
        if rc < 0:
            try:
                raise_error(self._error)
            except StoreError as failed:
                failed.round = done  # type: ignore[attr-defined]
                raise
        return done

    def count(self, from_ms: int = 0, to_ms: int = _FOREVER) -> int:
        """Counts the timers that are due after from_ms, up to to_ms."""
        return self._list(from_ms, to_ms, ffi.NULL, 0)

    def waiting(
        self, from_ms: int = 0, to_ms: int = _FOREVER, *, most: int = 1000
    ) -> Iterator[Timer]:
        """Returns those due after from_ms, up to to_ms, in order; at most so many."""
        rows = ffi.new("ps_timer_row[]", max(1, most))
        count = min(self._list(from_ms, to_ms, rows, most), most)
        yield from _timers_of(rows, count)

    def each(self, from_ms: int = 0, to_ms: int = _FOREVER) -> Iterator[Timer]:
        """Yields all of them due after from_ms, up to to_ms, in order, without holding all at
        once."""
        at, width = from_ms, 60_000
        while at < to_ms:
            end = min(to_ms, at + width)
            count = self.count(at, end)
            if count > _PAGE and end - at > 1:
                width = max(1, (end - at) // 64)
                continue
            yield from self.waiting(at, end, most=count)
            at = end
            if count < _PAGE // 16:
                width *= 4

    def of_pop(self) -> list[Timer]:
        """Returns those that go to a revive topic of POP, in order; the others are not read for
        it."""
        count = self._list(0, _FOREVER, ffi.NULL, 0, pop=True)
        rows = ffi.new("ps_timer_row[]", max(1, count))
        return _timers_of(rows, min(count, self._list(0, _FOREVER, rows, count, pop=True)))

    def _list(self, from_ms: int, to_ms: int, rows: Any, room: int, *, pop: bool = False) -> int:
        count = lib.ps_timers_list(self._handle, from_ms, to_ms, pop, rows, room, self._error)
        if count < 0:
            raise_error(self._error)
        return int(count)

    def tallies(self) -> list[TimerTally]:
        """Returns a tally of each topic that a timer went to."""
        room = lib.ps_timers_tallies(self._handle, ffi.NULL, 0)
        rows = ffi.new("ps_timer_tally[]", max(1, room))
        count = min(room, lib.ps_timers_tallies(self._handle, rows, room))
        return [
            TimerTally(
                ffi.string(row.topic).decode("utf-8", "replace"), row.waiting, row.read,
                row.delivered, tuple(row.delays), row.delay_ms,
            )
            for row in (rows[i] for i in range(count))
        ]  # fmt: skip

    def find(self, topic: str, key: str, out_ms: int) -> Timer | None:
        """Finds the timer with this real topic, UNIQ_KEY and TIMER_OUT_MS."""
        row, name, raw = ffi.new("ps_timer_row *"), topic.encode(), key.encode()
        found = lib.ps_timers_find(
            self._handle, name, len(name), raw, len(raw), out_ms, row, self._error
        )
        if found < 0:
            raise_error(self._error)
        if not found:
            return None
        return Timer(row.due_ms, row.out_ms, row.queue_offset, row.physical)

    def roll(self, before_ms: int, *, most: int = 4096) -> int:
        """Puts timers again whose record was stored before before_ms, so that they outlive
        retention, and drops those whose topic was deleted meanwhile: how many both are. Raises:
        DiskFull and whatever else ``put`` raises."""
        rolled = lib.ps_timers_roll(self._handle, before_ms, most, self._error)
        if rolled < 0:
            raise_error(self._error)
        return int(rolled)

    def capture(self) -> tuple[Any, int]:
        """Returns what survives a crash, for :func:`save_timers`, once the log is on the disk up to
        the offset that comes with it."""
        end = ffi.new("int64_t *")
        state = lib.ps_timers_capture(self._handle, end, self._error)
        if state == ffi.NULL:
            raise_error(self._error)
        return state, int(end[0])


def save_timers(store: Base, state: Any) -> None:
    """Writes it and syncs; in any thread, one at a time. Raises: DiskFull, StoreIOError."""
    error = ffi.new("ps_error *")
    if lib.ps_timers_save(store.c_handle(), state, error) < 0:
        raise_error(error)
