"""The open check points of the C core (csrc/pop/popcheckpoint.h) as Python sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from broker.hot.core import Core, CoreErrors, any_named, named, text_at
from pystore.errors import StoreError
from pystore.native import ffi, lib

__all__ = [
    "ANYWHERE", "BATCH_MAX", "LEAD_MS", "MARGIN_MS", "NAME_MAX", "CheckPoint", "CheckPoints",
    "CorePopRules", "Key", "ReviveOutcome",
]  # fmt: skip

#: Messages of one batch, as upstream limits them.
BATCH_MAX: int = lib.PS_CHECK_POINT_MAX
#: The answer to a pop that waits leaves so long before its client gives up.
MARGIN_MS: int = lib.PS_POP_MARGIN_MS
#: A check point's record is in the revive topic so long before its messages come back.
LEAD_MS: int = lib.PS_POP_LEAD_MS
#: Bytes of a topic's or a group's name.
NAME_MAX = 255
#: All places of a topic at which requests wait.
ANYWHERE = -2

_ROWS = 1024


class Key(NamedTuple):
    """Names a delivery: that of a batch of `queue` that began at `start`."""

    topic: str
    group: str
    queue: int
    start: int
    pop_ms: int


class CorePopRules(NamedTuple):
    """The rules by which the core serves pops, as ps_pop_rules of csrc/pop/popcheckpoint.h explains
    them. None stands for no bound in `in_flight_max`, and for no queue in `young_bytes`."""

    on: bool
    revive_queues: int
    retry_v1: bool
    retry_percent: int
    ranked_retry_percent: int
    lowest_first: bool
    retries_ranked: bool
    age_ms: int
    retry_as_stored: bool
    name_max: int
    invisible_max_ms: int
    in_flight_max: int | None
    open_max: int
    bytes_max: int
    young_bytes: int | None
    filter_work: int
    filter_ms: int
    at_place_max: int
    waiting_max: int
    places_max: int


class ReviveOutcome(NamedTuple):
    """What became of messages that came back: how many copies were put, how many messages were gone
    or may not come back, and how many check points ended. `end` is that of the last copy in the
    log. `damaged` has queue and offset of the last message whose record is damaged. `failed` says
    why some could not be brought back now."""

    copies: int
    gone: int
    ended: int
    end: int
    damaged: tuple[int, int] | None
    failed: StoreError | None


@dataclass(slots=True, order=True)
class CheckPoint:
    """One batch of one queue. `offsets` are those of its messages, ascending; bit i of `acked` is
    for offsets[i]. `due_ms` is when what is not acknowledged comes back, which is later than the
    invisible time only after a copy could not be written."""

    topic: str
    group: str
    queue: int
    start: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    offsets: tuple[int, ...]
    acked: int = 0
    due_ms: int = -1

    def __post_init__(self) -> None:
        if self.due_ms < 0:
            self.due_ms = self.pop_ms + self.invisible_ms

    @property
    def key(self) -> Key:
        return Key(self.topic, self.group, self.queue, self.start, self.pop_ms)

    @property
    def open(self) -> int:
        """Returns how many of its messages are not acknowledged."""
        return len(self.offsets) - self.acked.bit_count()

    def open_offsets(self) -> list[int]:
        return [each for i, each in enumerate(self.offsets) if not self.acked >> i & 1]


class CheckPoints(CoreErrors):
    """The open check points, by key and by the time when they end: a table of the core, which
    removes what is acknowledged by itself. It lives on the event loop."""

    def __init__(self, core: Core, revive_topic: str) -> None:
        """Raises: OutOfMemory, BadArgument."""
        super().__init__()
        self._core = core
        self._key = ffi.new("ps_check_point_key *")
        self._row = ffi.new("ps_check_point_row *")
        self._offsets = ffi.new("int64_t[]", BATCH_MAX)
        self._end = ffi.new("int64_t *")
        self._revived = ffi.new("ps_revived *")
        self._check(lib.ps_core_pop_set(core.handle, *named(revive_topic), self._error))

    def serve_pops(self, rules: CorePopRules) -> None:
        """Serves pops from now on. Raises: BadArgument, OutOfMemory."""
        made = ffi.new("ps_pop_rules *", [-1 if rule is None else rule for rule in rules])
        self._check(lib.ps_core_pop_rules(self._core.handle, made, self._error))

    # ---- popping ----

    def pop(
        self, topic: str, group: str, queue: int, *, most: int, invisible_ms: int, from_min: bool,
        filter_by: str | None, sql: bool, order: bool, attempt: str | None, wait_ms: int,
        number: int,
    ) -> tuple[Any, int] | None:  # fmt: skip
        """Returns the ``ps_pop_found`` of one walk, and when what it took ends if that is before
        all others (ms), else 0; its batches belong to the caller. None means that nothing was
        found, and that it waits for up to `wait_ms`: then Core.on_popped is called with this
        `number`. Below 0 it does not wait. It filters by tags or by SQL92. Raises:
        ExpressionIllegal, and what putting a check point raises."""
        ask, keep = _ask(topic, group, queue, filter_by, attempt)
        ask.ordered = order
        ask.most, ask.invisible_ms, ask.from_min, ask.sql = most, invisible_ms, from_min, sql
        found, due_ms = ffi.new("ps_pop_found *"), ffi.new("int64_t *")
        core = self._core
        done = self._check(
            lib.ps_conn_pop_wait(core.own, ask, wait_ms, number, found, due_ms, self._error)
        )
        del keep
        return (found, due_ms[0]) if done else None

    def leave(self, number: int) -> None:
        """Ends a wait, if there is one with this number."""
        if self._core.handle is not None:
            lib.ps_conn_pop_leave(self._core.own, number)

    def wake(self, topic: str, group: str) -> None:
        """Lets those try who wait for messages of the topic in this group: some came back."""
        lib.ps_core_pop_wake(self._core.handle, *named(group), *named(topic))

    def waiting(
        self, topic: str = "", group: str | None = None, queue: int = ANYWHERE, *,
        looks: bool = False,
    ) -> int:  # fmt: skip
        """Returns how many requests wait at this place; `queue` -1 stands for any queue of the
        topic, ANYWHERE for all its places. Without a group it counts all. Those that only ask
        whether there are messages are counted by themselves, with `looks`."""
        return int(
            lib.ps_core_pop_waiting(
                self._core.handle, looks, *any_named(group), *named(topic), queue
            )
        )

    # ---- as C has them ----

    @staticmethod
    def _fill_key(raw: Any, key: Key) -> object:
        """Fills a key; the result must live as long as `raw` is used."""
        names = ffi.from_buffer(key.topic.encode()), ffi.from_buffer(key.group.encode())
        raw.topic, raw.group = names
        raw.topic_len, raw.group_len = len(names[0]), len(names[1])
        raw.queue_id, raw.start, raw.pop_ms = key.queue, key.start, key.pop_ms
        return names

    def _fill(self, ck: CheckPoint) -> object:
        raw = self._row
        raw.revive_queue, raw.invisible_ms, raw.due_ms = ck.revive_queue, ck.invisible_ms, ck.due_ms
        raw.acked, raw.count = ck.acked, len(ck.offsets)
        raw.offsets[0 : raw.count] = ck.offsets
        return self._fill_key(raw.key, ck.key)

    def _fill_offsets(self, offsets: Sequence[int]) -> int:
        count = len(offsets)
        if count > len(self._offsets):
            self._offsets = ffi.new("int64_t[]", count)
        self._offsets[0:count] = offsets
        return count

    # ---- records ----

    def aside(self, fd: int) -> None:
        """Has records written to this file from now on, a line each, and not to the log; below 0 to
        the log again."""
        lib.ps_core_pop_journal(self._core.handle, fd)

    @property
    def end(self) -> int:
        """Returns the end, in the log, of the last record that was put; 0 means that there was
        none."""
        return int(lib.ps_core_pop_end(self._core.handle))

    def open(self, ck: CheckPoint) -> int:
        """Puts the record of a check point, which is open from now on, and returns the record's
        end; 0 means that there is one with this key. Raises: what putting raises; it is not open
        then."""
        keep = self._fill(ck)
        code = self._check(
            lib.ps_core_check_point_open(self._core.handle, self._row, self._end, self._error)
        )
        del keep
        return 0 if code else int(self._end[0])

    def put_ack(self, ck: CheckPoint, offsets: Sequence[int]) -> int:
        """Puts the record that acknowledges these, and returns its end. Raises: what putting
        raises."""
        keep, count = self._fill(ck), self._fill_offsets(offsets)
        self._check(
            lib.ps_core_check_point_put_ack(
                self._core.handle, self._row, self._offsets, count, self._end, self._error
            )
        )
        del keep
        return int(self._end[0])

    # ---- the table ----

    def __len__(self) -> int:
        return int(lib.ps_core_check_point_count(self._core.handle))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, Key) and self.get(key) is not None

    def __iter__(self) -> Iterator[CheckPoint]:
        """Yields those that were open when it began."""
        found: list[CheckPoint] = []
        at, rows = ffi.new("int64_t *"), ffi.new("ps_check_point_row[]", _ROWS)
        while at[0] >= 0:
            count = lib.ps_core_check_point_list(self._core.handle, at, rows, _ROWS)
            found += [_point(rows[i]) for i in range(count)]
        return iter(found)

    def get(self, key: Key) -> CheckPoint | None:
        keep = self._fill_key(self._key[0], key)
        found = lib.ps_core_check_point_find(self._core.handle, self._key, self._row)
        del keep
        return _point(self._row) if found else None

    def add(self, ck: CheckPoint) -> bool:
        """Adds a check point and returns whether it is new. Raises: OutOfMemory, BadArgument."""
        keep = self._fill(ck)
        code = self._check(lib.ps_core_check_point_add(self._core.handle, self._row, self._error))
        del keep
        return not code

    def acknowledge(self, ck: CheckPoint, offsets: Sequence[int]) -> list[int]:
        """Acknowledges without a record, and returns those that were open; the check point ends
        with its last one."""
        keep, count = self._fill_key(self._key[0], ck.key), self._fill_offsets(offsets)
        bits = lib.ps_core_check_point_end(self._core.handle, self._key, self._offsets, count)
        del keep
        ck.acked |= bits
        return [each for i, each in enumerate(ck.offsets) if bits >> i & 1]

    def ack(self, key: Key, offsets: Sequence[int]) -> int:
        """Acknowledges those of these offsets that are open, in the log and here. Returns the end
        of the record, or 0 when none was open. Raises: what putting raises; nothing counts then."""
        keep, count = self._fill_key(self._key[0], key), self._fill_offsets(offsets)
        self._check(
            lib.ps_core_check_point_ack(
                self._core.handle, self._key, self._offsets, count, self._end, self._error
            )
        )
        del keep
        return int(self._end[0])

    def postpone(self, ck: CheckPoint, due_ms: int) -> None:
        """Postpones one that could not be brought back now."""
        ck.due_ms = due_ms
        keep = self._fill_key(self._key[0], ck.key)
        lib.ps_core_check_point_postpone(self._core.handle, self._key, due_ms)
        del keep

    def revive(
        self, topic: str, group: str, target: str | None, *, now_ms: int, again_ms: int,
        turn_ns: int,
    ) -> ReviveOutcome:  # fmt: skip
        """Brings back the messages of the check points of this topic and group that are due, as
        long as they are due before all others, through `target`; None means that nothing of them
        may come back. It ends after `turn_ns`. What cannot be brought back now is due again at
        `again_ms`."""
        names = topic.encode(), group.encode(), (target or "").encode()
        raw = [ffi.from_buffer(name) for name in names]
        ask = ffi.new(
            "ps_revive_ask *",
            {
                "topic": raw[0], "topic_len": len(names[0]), "group": raw[1],
                "group_len": len(names[1]), "target": raw[2], "target_len": len(names[2]),
                "now_ms": now_ms, "again_ms": again_ms, "turn_ns": turn_ns,
            },
        )  # fmt: skip
        out, failed = self._revived, None
        try:
            self._check(lib.ps_core_revive(self._core.handle, ask, out, self._error))
        except StoreError as error:
            failed = error
        at = (out.damaged_queue, out.damaged_offset) if out.damaged_queue >= 0 else None
        return ReviveOutcome(out.copies, out.gone, out.ended, out.end, at, failed)

    def next_due(self) -> CheckPoint | None:
        """Returns the one that ends first."""
        found = lib.ps_core_check_point_next(self._core.handle, self._row)
        return _point(self._row) if found else None

    @property
    def due_ms(self) -> int:
        """Returns when that is; -1 means that none is open."""
        return int(lib.ps_core_check_point_due(self._core.handle))

    def is_any_stored(self, revive_queue: int, now_ms: int) -> bool:
        """Returns whether the record of an open one may be in this revive queue by now."""
        return bool(lib.ps_core_check_point_stored(self._core.handle, revive_queue, now_ms))

    def in_flight(self, topic: str, group: str, queue: int) -> int:
        """Returns how many messages were popped and are neither acknowledged nor back."""
        handle = self._core.handle
        return int(lib.ps_core_check_point_in_flight(handle, *named(group), *named(topic), queue))


def _ask(
    topic: str, group: str, queue: int, filter_by: str | None, attempt: str | None
) -> tuple[Any, object]:
    """Returns a ``ps_pop_ask *`` with these, and what must live as long as it is used."""
    names = topic.encode(), group.encode(), (filter_by or "").encode(), (attempt or "").encode()
    raw = [ffi.from_buffer(name) for name in names]
    ask = ffi.new(
        "ps_pop_ask *",
        {
            "topic": raw[0], "topic_len": len(names[0]), "group": raw[1],
            "group_len": len(names[1]), "filter": raw[2] if filter_by else ffi.NULL,
            "filter_len": len(names[2]), "queue_id": queue,
            "attempt": raw[3] if attempt else ffi.NULL, "attempt_len": len(names[3]),
        },
    )  # fmt: skip
    return ask, raw


def _point(raw: Any) -> CheckPoint:
    said = raw.key
    return CheckPoint(
        text_at(said.topic, said.topic_len), text_at(said.group, said.group_len), said.queue_id,
        said.start, said.pop_ms, raw.invisible_ms, raw.revive_queue,
        tuple(ffi.unpack(raw.offsets, raw.count)), raw.acked, raw.due_ms,
    )  # fmt: skip
