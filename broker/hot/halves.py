"""The open transactions of the C core (csrc/transactions/transaction.h) as Python sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from broker.hot.core import Core, CoreErrors, named
from pystore.errors import NotFound
from pystore.meta.pending import Decision, PendingHalf
from pystore.native import ffi, lib, raise_error

__all__ = [
    "LATENCY_BOUNDS_S", "OPEN_MAX", "TAKE_MAX", "Check", "DecisionRecord", "Halves", "NameCount",
    "Round", "State", "Tally",
]  # fmt: skip

#: Open halves that a core takes; some places are kept in hand.
OPEN_MAX: int = lib.PS_HALVES_MAX - 65536

#: Seconds: upstream's buckets of rocketmq_finish_message_latency (BrokerMetricsManager).
LATENCY_BOUNDS_S = (5, 60, 600, 3600, 43200, 86400)

_ROWS = 4096
#: Halves that have changed and are taken with one call.
TAKE_MAX = _ROWS
_ROUND_LOOK = 65536
_ROUND_BYTES = 256 << 10
_ROUND_RUNS = 256


class State(NamedTuple):
    """The state of transactions. `half_progress` and `op_progress` are those of CID_RMQ_SYS_TRANS.
    `ops_queued` are the bytes of ops that are not written yet, and `ops_since_ms` says since when
    (monotonic; 0 for none). `uncovered` is the log offset of the first final message whose op is
    queued, or -1. The others are sums since the start."""

    open: int
    half_next: int
    op_next: int
    half_progress: int
    op_progress: int
    ops_queued: int
    ops_since_ms: int
    uncovered: int
    halves: int
    commits: int
    rollbacks: int
    discards: int
    lost: int
    checks: int


class NameCount(NamedTuple):
    """A group or a topic, and how many open half messages it has."""

    name: str
    open: int


class Tally(NamedTuple):
    """Decisions of a topic's transactions since the start. `latency_s` is the sum, over its
    commits, of the seconds since the message was born; `latencies` counts commits by
    LATENCY_BOUNDS_S and beyond."""

    topic: str
    commits: int
    rollbacks: int
    latency_s: int
    latencies: tuple[int, ...]


class DecisionRecord(NamedTuple):
    """A decision; its record ends at `end`, which is -1 when it put none."""

    end: int
    size: int


class Check(NamedTuple):
    """Requests for one producer group about half messages of one topic, one after the other."""

    group: str
    topic: str
    number: int
    frames: bytes


class Round(NamedTuple):
    """A part of a round of checks; `spent` are the offsets of half messages to be discarded."""

    checks: Sequence[Check]
    spent: Sequence[int]


def _text(data: Any, size: int) -> str:
    return bytes(ffi.buffer(data, size)).decode("utf-8", "replace")


def _half(row: Any) -> PendingHalf:
    return PendingHalf(
        row.offset, row.physical, row.root, row.root_physical, row.store_ms, row.asked_ms,
        row.checks, row.immunity_s, _text(row.group, row.group_len),
        _text(row.topic, row.topic_len),
    )  # fmt: skip


class Halves(CoreErrors):
    """The open half messages. All of it happens on the thread of the core."""

    def __init__(self, core: Core) -> None:
        super().__init__()
        self._core = core
        self._row = ffi.new("ps_half_row *")
        self._put = ffi.new("ps_put_result *")
        self._state = ffi.new("ps_tx_state *")
        self._rows: Any = None
        self._round = ffi.new("ps_tx_round *")

    def configure(
        self, *, on: bool, op_bytes: int, timeout_ms: int, broker: str, now_ms: int = 0
    ) -> None:
        """Sets what is done here. `on` False hands every half message and every decision on to
        Python. now_ms: the clock that says whether a decision is late; 0 stands for the
        system's."""
        conf = ffi.new("ps_tx_conf *")
        name = ffi.new("char[]", broker.encode())
        conf.on, conf.op_bytes, conf.timeout_ms = on, op_bytes, timeout_ms
        conf.now_ms, conf.broker = now_ms, name
        self._check(lib.ps_core_tx_set(self._core.handle, conf, self._error))

    # ---- the table ----

    def add(self, half: PendingHalf, *, saved: bool = False) -> bool:
        """Adds a half message and returns whether it was not there yet. Raises: OutOfMemory when
        there is no room, BadArgument."""
        row = self._row
        group, topic = half.group.encode(), half.topic.encode()
        names = ffi.from_buffer(group), ffi.from_buffer(topic)
        row.offset, row.physical, row.root = half.offset, half.physical, half.root
        row.root_physical, row.store_ms, row.asked_ms = (
            half.root_physical, half.store_ms, half.asked_ms,
        )  # fmt: skip
        row.checks, row.immunity_s = half.checks, half.immunity_s
        row.group, row.group_len, row.topic, row.topic_len = (
            names[0], len(group), names[1], len(topic),
        )  # fmt: skip
        return not self._check(lib.ps_core_tx_add(self._core.handle, row, saved, self._error))

    def find(self, offset: int) -> PendingHalf | None:
        """Returns the open half message whose newest or first copy is at this log offset."""
        if not lib.ps_core_tx_find(self._core.handle, offset, self._row):
            return None
        return _half(self._row)

    def decided(self, offset: int) -> Decision:
        """Returns how a half message that is no longer open was decided."""
        return Decision(lib.ps_core_tx_decided(self._core.handle, offset))

    def all(self) -> Iterator[PendingHalf]:
        """Returns all of them, in no order."""
        at = ffi.new("int64_t *")
        rows = ffi.new("ps_half_row[]", _ROWS)
        while at[0] >= 0:
            count = lib.ps_core_tx_list(self._core.handle, at, rows, _ROWS)
            yield from [_half(rows[i]) for i in range(count)]

    def decide(self, offset: int, decision: Decision) -> DecisionRecord | None:
        """Carries out a decision; returns None when no such half message is open.

        Raises: what putting raises, and RecordDamaged or NotFound with an offset when the record of
        the half message cannot be read; it stays open then."""
        code = lib.ps_core_tx_decide(
            self._core.handle, offset, int(decision), self._put, self._error
        )
        if code < 0:
            try:
                raise_error(self._error[0], code)
            except NotFound as missing:
                if missing.offset is None or missing.offset < 0:
                    return None
                raise
        put = self._put
        placed = put.physical_offset >= 0
        return DecisionRecord(
            put.physical_offset + put.size if placed else -1, put.size if placed else 0
        )

    def settled(self, offset: int, decision: Decision, *, op: bool) -> bool:
        """Removes a half message that the log shows to be decided; with `op` it writes an op of
        it."""
        return bool(lib.ps_core_tx_settled(self._core.handle, offset, int(decision), op))

    # ---- ops and progress ----

    def op_seen(self, op_offset: int, largest_half: int) -> None:
        lib.ps_core_tx_op_seen(self._core.handle, op_offset, largest_half)

    def half_seen(self, next_offset: int) -> None:
        lib.ps_core_tx_half_seen(self._core.handle, next_offset)

    def write_ops(self) -> None:
        """Writes the queued ops. Raises: what putting raises; the ops stay queued then."""
        self._check(lib.ps_core_tx_write_ops(self._core.handle, self._error))

    def state(self) -> State:
        raw = self._state
        lib.ps_core_tx_get_state(self._core.handle, raw)
        return State(*(getattr(raw, name) for name in State._fields))

    # ---- checks ----

    def counts(self, *, topics: bool = False) -> list[NameCount]:
        """Returns the producer groups, or the topics, that have open half messages."""
        count = _ROWS
        while True:
            room, rows = count, ffi.new("ps_tx_count[]", count)
            count = lib.ps_core_tx_counts(self._core.handle, topics, rows, room)
            if count <= room:
                return [
                    NameCount(_text(rows[i].name, rows[i].len), rows[i].open) for i in range(count)
                ]

    def tallies(self) -> list[Tally]:
        """Returns the topics whose transactions were decided."""
        count = _ROWS
        while True:
            room, rows = count, ffi.new("ps_tx_tally[]", count)
            count = lib.ps_core_tx_tallies(self._core.handle, rows, room)
            if count <= room:
                return [
                    Tally(
                        _text(row.topic, row.topic_len), row.commits, row.rollbacks,
                        row.latency_s, tuple(row.latencies),
                    )
                    for row in rows[0:count]
                ]  # fmt: skip

    def live(self, group: str, live: bool) -> None:
        """Says whether a member of the group can be asked now."""
        lib.ps_core_tx_live(self._core.handle, *named(group), live)

    def heard(self, offset: int, heard: bool) -> None:
        """Says whether a member of its group may be asked about a half message."""
        lib.ps_core_tx_heard(self._core.handle, offset, heard)

    def begin_round(self, now_ms: int, start_ms: int, reserved_ms: int, check_max: int) -> None:
        # A dict leaves the members that it does not name as they were.
        self._round = ffi.new("ps_tx_round *")
        self._round[0] = {
            "now_ms": now_ms, "start_ms": start_ms, "reserved_ms": reserved_ms,
            "check_max": check_max, "look_max": _ROUND_LOOK, "bytes_max": _ROUND_BYTES,
        }  # fmt: skip

    def next_part(self) -> Round | None:
        """Returns the next part of the round that was begun, or None when it is over."""
        if self._round.at < 0:
            return None
        if self._rows is None:
            self._rows = ffi.new("ps_tx_check[]", _ROUND_RUNS), ffi.new("int64_t[]", _ROUND_RUNS)
        runs, spent = self._rows
        step, r = self._core._step, self._round
        self._check(
            lib.ps_core_tx_round(
                self._core.handle, r, runs, _ROUND_RUNS, spent, _ROUND_RUNS, step, self._error
            )
        )
        out = ffi.buffer(step.out, step.out_len) if step.out_len else b""
        checks = [
            Check(
                _text(runs[i].group, runs[i].group_len),
                _text(runs[i].topic, runs[i].topic_len),
                runs[i].count,
                bytes(out[runs[i].from_at : runs[i].to_at]),
            )
            for i in range(r.check_count)
        ]
        return Round(checks, [spent[i] for i in range(r.spent_count)])

    @property
    def round_sums(self) -> tuple[int, int]:
        """Returns how many checks were made in the round, and for how many half messages nobody was
        there to be asked."""
        return self._round.asked, self._round.unheard

    # ---- to the metadata ----

    def take_changed(self) -> list[PendingHalf]:
        """Returns open half messages that are new since the last call, and some of those that have
        changed: after a round that may be all, and the loop must not wait for them."""
        rows = ffi.new("ps_half_row[]", _ROWS)
        count = lib.ps_core_tx_take_changed(self._core.handle, rows, _ROWS)
        found = [_half(rows[i]) for i in range(count)]
        while True:
            count = lib.ps_core_tx_take_new(self._core.handle, rows, _ROWS)
            found += [_half(rows[i]) for i in range(count)]
            if count < _ROWS:
                return found

    def take_gone(self) -> list[int] | None:
        """Returns the offsets of those that were taken before and are no longer open. None means
        that some were forgotten: call untake, and write all of them again."""
        found: list[int] = []
        rows = ffi.new("int64_t[]", _ROWS)
        while True:
            count = lib.ps_core_tx_take_gone(self._core.handle, rows, _ROWS)
            if count < 0:
                return None
            found += [rows[i] for i in range(count)]
            if count < _ROWS:
                return found

    def untake(self) -> None:
        lib.ps_core_tx_untake(self._core.handle)
