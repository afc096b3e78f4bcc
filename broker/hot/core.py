"""The C core of the broker (csrc/core and the rooms above it) as Python sees it.

:class:`Core` holds the tables that services publish and the pulls that wait; :class:`HotFramer`
reads one connection's bytes, lets the core answer what it can, and gives the rest to Python.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import struct
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from broker.loop.turns import CORE_NS
from broker.wire import codec
from broker.wire.codec import FRAME_MAX
from broker.wire.command import Command
from broker.wire.decision import AskedSend, PutDecision, PutOutcome, fill, read_asked, sent_of
from broker.wire.digests import digest_functions
from broker.wire.framer import Link
from broker.wire.handlers import Peer
from pystore import PutStatus, Store
from pystore.errors import FlushFailed, OutOfMemory, StoreClosed
from pystore.format.offset_blocks import OffsetRow, offset_pairs, offset_rows
from pystore.native import address_of, ffi, lib, raise_error

__all__ = [
    "WITHOUT_PULLS",
    "Core",
    "CoreErrors",
    "HotFramer",
    "PullOutcome",
    "Sample",
    "Statistic",
    "Times",
    "Totals",
    "any_named",
    "command_of",
    "host_bytes",
    "named",
    "text_at",
]

#: Requests that the core may serve by itself.
HOT_CODES = frozenset((10, 11, 310, 320, 361))
#: Those whose bytes Python keeps: the core serves them, or carries out what Python decided.
_KEPT_CODES = HOT_CODES | {324, 325, 200050, 200054, 200070}
#: What is handed on (PS_DELEGATE_) where pulls and pops are not served.
WITHOUT_PULLS = lib.PS_DELEGATE_PULLS | lib.PS_DELEGATE_POPS
#: POP_MESSAGE, NOTIFICATION, POP_LITE_MESSAGE.
_POPS = frozenset((200050, 200054, 200070))
#: By the outcome of a wait for the safe position.
_CODES_OF_WAITS = {0: 0, lib.PS_FLUSH_DISK_TIMEOUT: 10, lib.PS_FLUSH_SLAVE_TIMEOUT: 12}
_STATUS_OF_WAITS = {
    0: PutStatus.PUT_OK,
    lib.PS_FLUSH_DISK_TIMEOUT: PutStatus.FLUSH_DISK_TIMEOUT,
    lib.PS_FLUSH_SLAVE_TIMEOUT: PutStatus.FLUSH_SLAVE_TIMEOUT,
}
_SERVICE_NOT_AVAILABLE = 14
_ROWS = 1024
#: INT64_MAX: a time without an end.
_FOR_GOOD = (1 << 63) - 1
#: Seconds that answering held pulls takes before others have their turn.
_A_TURN_S = 0.01
#: ps_offset_row: two addresses, two lengths, queue, offset.
_OFFSET_ROW = struct.Struct("@PPiiiq")
_NAMES_OF_ROW, _MOVED_OF_ROW = itemgetter(0, 1, 2, 3), itemgetter(4, 5)
#: Bytes of many blocks of offsets.
_BLOCKS = 64 << 10

_buffer = ffi.buffer


class Statistic(NamedTuple):
    """Messages and bytes since the start: put into a topic or, with a group, got by that group."""

    topic: str
    group: str | None
    messages: int
    bytes: int


class MessageSums(NamedTuple):
    """Messages and bytes since the start: all that topics got, and all that groups were given."""

    puts: int
    put_bytes: int
    gets: int
    get_bytes: int


class Sample(NamedTuple):
    """All statistics at once. `number` counts the samples; `values` has messages and bytes of each
    counter, at its place; `sums` are those of all of them."""

    number: int
    values: array[int]
    sums: MessageSums


class PullOutcome(NamedTuple):
    """A pull that was answered: its opaque, the answer's code, messages and their bytes."""

    opaque: int
    code: int
    messages: int
    size: int


class Totals(NamedTuple):
    """Counts of requests since the start. `pulls` were served here, `found` and `misses` were
    answered with messages and without, and `held` are those held now."""

    put_failures: int
    pulls: int
    misses: int
    held: int
    found: int


class RpcRow(NamedTuple):
    """Requests with the same outcome. `held` means that they waited for messages; `buckets` are as
    those of rocketmq_rpc_latency_milliseconds, each by itself."""

    request: int
    response: int
    held: bool
    oneway: bool
    sum_ms: float
    buckets: tuple[int, ...]


class Times(NamedTuple):
    """Times of puts and reads. `puts` counts messages by how many ms their put took, from 0 to
    1000, then by whole seconds up to 10 and more; the longest put and the longest read are in
    ms; `put_ns` is how long all puts took."""

    puts: Sequence[int]
    put_max_ms: int
    get_max_ms: int
    put_ns: int


def _sums_in(sample: Any) -> MessageSums:
    return MessageSums(*(getattr(sample, name) for name in MessageSums._fields))


def named(name: str) -> tuple[bytes, int]:
    """Returns a name as the core takes it."""
    data = name.encode()
    return data, len(data)


def any_named(name: str | None) -> tuple[Any, int]:
    """Returns the same; None stands for all names."""
    return (ffi.NULL, 0) if name is None else named(name)


def text_at(data: Any, size: int) -> str:
    """Returns a text that the core has."""
    return bytes(ffi.buffer(data, size)).decode()


class Looks(Protocol):
    """A network thread, which answers held pulls."""

    def look(self, everything: bool) -> None:
        """Answers the held pulls that have something to be answered with; with `everything` each of
        them is answered now."""


def _new_core(store: Store, error: Any, **given: str | int) -> Any:
    """Makes a core; `given` are members of ps_core_conf. Raises: OutOfMemory, StoreIOError."""
    conf, texts = ffi.new("ps_core_conf *"), []
    for name, value in given.items():
        if isinstance(value, str):
            texts.append(ffi.new("char[]", value.encode()))
            setattr(conf, name, texts[-1])
        else:
            setattr(conf, name, value)
    made = lib.ps_core_new(store.c_handle(), conf, error)
    if made == ffi.NULL:
        raise_error(error[0])
    return made


class CoreErrors:
    """What calls the core and raises what it says."""

    def __init__(self) -> None:
        self._error: Any = ffi.new("ps_error *")

    def _check(self, code: int) -> int:
        if code < 0:
            raise_error(self._error[0], code)
        return code


class Core(CoreErrors):
    """Answers plain sends and pulls in C. Everything happens on the thread of the event loop."""

    _leads_until = math.inf

    def __init__(
        self,
        store: Store,
        *,
        cluster: str,
        broker: str = "",
        region: str = "DefaultRegion",
        trace_on: bool = True,
        frame_max: int = FRAME_MAX,
        long_polling: bool = True,
        short_polling_ms: int = 1000,
        parked_max: int = 100_000,
        offsets_max: int = 0,
        slave_reads: bool = False,
        slave: bool = False,
        seed: int = 0,
    ) -> None:
        """Makes the core. parked_max: limits the pulls that are held at once; more are answered at
        once. offsets_max: limits the consumer offsets that clients make; 0: any number. seed: that
        of the queues that it chooses; 0 takes the clock. Raises: OutOfMemory, StoreIOError."""
        super().__init__()
        self._store = store
        made = _new_core(
            store, self._error, cluster=cluster, region=region, broker=broker, trace_on=trace_on,
            frame_max=frame_max, long_polling=long_polling, short_polling_ms=short_polling_ms,
            parked_max=parked_max, offsets_max=offsets_max, slave_reads=slave_reads, slave=slave,
            seed=seed,
        )  # fmt: skip
        self.handle: Any = made
        lib.ps_core_turn(made, CORE_NS)
        self._step = ffi.new("ps_step *")
        room = ffi.new("uint8_t **")
        size = lib.ps_core_room(made, room)
        #: What connections read into that keep no part of a frame.
        self.room = memoryview(ffi.buffer(room[0], size))
        self._next_ms = ffi.new("int64_t *")
        self._connections: dict[int, HotFramer] = {}
        self._last_id = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: Looks | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        #: By the number of a wait: who is told its outcome.
        self._told: dict[int, Callable[[int], None]] = {}
        #: Told which watched delay levels got messages.
        self.on_levels: Callable[[Sequence[int]], None] | None = None
        #: Told when the watched queue of timers got messages.
        self.on_timers: Callable[[], None] | None = None
        #: Called with the time (ms) at which popped messages come back, if it is the next one.
        self.on_pop_due: Callable[[int], None] | None = None
        #: Told what a pop has waited for: as tell_popped() has it.
        self.on_popped: Callable[[int, str, str, Any], None] | None = None
        self._own: Any = None
        self._on_pull: Callable[[Peer, PullOutcome], None] | None = None
        self._pulled = ffi.new("ps_pulled *")
        self._send = ffi.new("ps_send *")
        self._decision = ffi.new("ps_decision *")
        self._sent = ffi.new("ps_sent *")
        self._counter = ffi.new("ps_counter *")
        #: What became of the pull that was given back last; None: it waits.
        self.last_pull: PullOutcome | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answers held pulls on this loop from now on."""
        self._loop = loop
        loop.add_reader(lib.ps_core_event_fd(self.handle), self.wake)

    def served_by(self, threads: Looks | None) -> None:
        """Has held pulls answered by a network thread from now on; None stands for the loop
        again."""
        assert self._loop is not None
        self._threads = threads
        if threads is None:
            self._loop.add_reader(lib.ps_core_event_fd(self.handle), self.wake)
            self.wake()
        else:
            self._loop.remove_reader(lib.ps_core_event_fd(self.handle))
            threads.look(False)

    def close(self) -> None:
        """Frees it, after every connection is gone. A second call does nothing."""
        handle, self.handle = self.handle, None
        if handle is None:
            return
        if self._loop is not None:
            self._loop.remove_reader(lib.ps_core_event_fd(handle))
        if self._timer is not None:
            self._timer.cancel()
        while self._told:
            self._told.popitem()[1](StoreClosed.code)
        for framer in list(self._connections.values()):
            framer.close()
        if self._own is not None:
            lib.ps_conn_free(self._own)
        lib.ps_core_free(handle)

    @property
    def own(self) -> Any:
        """Returns a ``ps_conn *`` for requests of Python itself. Raises: OutOfMemory."""
        if self._own is None:
            self._last_id += 1
            made = lib.ps_conn_new(self.handle, self._last_id, bytes(8), 8, self._error)
            if made == ffi.NULL:
                raise_error(self._error[0])
            self._own = made
        return self._own

    def framer(self, connection: Link, delegated: int = 0) -> HotFramer:
        """Returns what a connection of this broker reads through: see broker/wire/framer.py.
        `delegated` has the PS_DELEGATE_ bits of what comes up to Python unserved."""
        self._last_id += 1
        return HotFramer(self, connection, self._last_id, delegated)

    def framer_let_in(self, connection: Link) -> HotFramer:
        """Returns the same for a connection whose other end asks access control before each
        request."""
        self._last_id += 1
        return HotFramer(self, connection, self._last_id, let_in=True)

    # ---- what services publish ----

    def publish_topic(
        self,
        name: str,
        read_queues: int,
        write_queues: int,
        perm: int,
        *,
        hot: bool,
        once: bool = False,
        priority: bool = False,
        mapped: bool = False,
        lite: bool = False,
    ) -> None:
        """Publishes a topic. With `hot` sends to it are answered here; otherwise each comes up to
        Python. With `once` repeats of them are not stored, see broker/hot/dedup.py. With `priority`
        pops look at its queues by priority. One that is `mapped` is a static topic: pulls and
        commits come up to Python, but those with ``lo=false``. With `lite` it has lite topics."""
        flags = (
            (lib.PS_SEND_HOT if hot else 0)
            | (lib.PS_SEND_ONCE if once else 0)
            | (lib.PS_TOPIC_PRIORITY if priority else 0)
            | (lib.PS_TOPIC_MAPPED if mapped else 0)
            | (lib.PS_TOPIC_LITE if lite else 0)
        )
        self._check(
            lib.ps_core_topic(
                self.handle, *named(name), read_queues, write_queues, perm, flags, self._error
            )
        )
        lib.ps_core_pop_topic(self.handle, *named(name))

    def set_priority_factor(self, group: str, percent: int) -> None:
        """Says in how many of 100 pops a group goes by priority, in topics that have some. Raises:
        OutOfMemory."""
        self._check(lib.ps_core_pop_factor(self.handle, *named(group), percent, self._error))

    def bind_lite_group(self, group: str, parent: str) -> None:
        """Counts from now on how far a group is behind in the lite topics of a topic ("": of none).
        Raises: OutOfMemory."""
        self._check(lib.ps_lag_bind(self.handle, *named(group), *named(parent), self._error))

    def take_kinds(self, topic: str, kinds: Iterable[int]) -> None:
        """Lets plain messages of these kinds (gRPC's MessageType) go to a topic; that is forgotten
        when it is published again."""
        bits = sum(1 << kind for kind in set(kinds))
        lib.ps_core_takes(self.handle, *named(topic), bits)

    def withdraw_topic(self, name: str) -> None:
        lib.ps_core_forget_topic(self.handle, *named(name))

    def publish_subscription(
        self,
        group: str,
        topic: str,
        *,
        tags: Iterable[str] | None,
        sql: str | None = None,
        sub_version: int,
        own: bool,
        own_sql: bool = False,
        shared: bool = True,
    ) -> None:
        """Publishes what pulls of a group get of a topic; they are answered here from now on.

        `tags` None takes every message; `sql` is an SQL92 expression instead. With `own`, pulls
        that bring a subscription of type TAG are served, too, and with `own_sql` those of type
        SQL92; with `shared`, pulls without one are served by this one. Raises: ExpressionIllegal
        for malformed sql."""
        flags = (
            (lib.PS_SUB_OWN if own else 0)
            | (lib.PS_SUB_SQL if own_sql else 0)
            | (lib.PS_SUB_GROUP if shared else 0)
        )
        words = sorted(tags) if tags is not None else []
        joined = "".join(f"{word}\0" for word in words).encode()
        expression = sql.encode() if sql is not None else b""
        self._check(
            lib.ps_core_subscription(
                self.handle,
                *named(group),
                *named(topic),
                flags,
                joined,
                len(joined),
                len(words),
                expression if sql is not None else ffi.NULL,
                len(expression),
                sub_version,
                self._error,
            )
        )

    def withdraw_subscription(self, group: str, topic: str | None = None) -> None:
        """Withdraws a subscription. topic: None stands for all of the group."""
        name, size = named(group) if topic is None else named(topic)
        if topic is None:
            lib.ps_core_forget_group(self.handle, name, size)
        else:
            lib.ps_core_forget_subscription(self.handle, *named(group), name, size)

    # ---- consumer offsets ----

    def pulled_offset(self, group: str, topic: str, queue: int) -> int | None:
        """Returns where the group's last pull ended, or the committed offset when that is higher;
        None when there is neither."""
        found: int = lib.ps_core_pulled(self.handle, *named(group), *named(topic), queue)
        return found if found >= 0 else None

    def commit_offset(self, group: str, topic: str, queue: int, offset: int) -> bool:
        """Commits an offset and returns whether it was taken, which it is not while a reset is
        pending. Raises: BadArgument."""
        return not self._check(
            lib.ps_core_commit(
                self.handle, *named(group), *named(topic), queue, offset, self._error
            )
        )

    def load_offsets(self, blocks: Iterable[bytes], pairs: int) -> tuple[int, str]:
        """Commits the offsets of blocks (pystore/format/offset_blocks.py), which count as taken;
        they are of about so many pairs of group and topic. Returns how many were refused, as those
        that are negative are, and why the first was. Raises: OutOfMemory."""
        refused, why = 0, ""
        lib.ps_core_expect_offsets(self.handle, pairs)
        for some in blocks:
            count = lib.ps_core_load_offsets(self.handle, some, len(some), self._error)
            if self._check(count) and not refused:
                why = ffi.string(self._error.text).decode()
            refused += count
            self.pass_over_changed_offsets()
        return refused, why

    def reset_offset(self, group: str, topic: str, queue: int, target: int) -> None:
        """Commits `target` and sends the next pull there. Raises: BadArgument."""
        self._check(
            lib.ps_core_reset(self.handle, *named(group), *named(topic), queue, target, self._error)
        )

    def offset(self, group: str, topic: str, queue: int) -> int | None:
        """Returns the next offset to consume, or None when the group never committed there."""
        found: int = lib.ps_core_offset(self.handle, *named(group), *named(topic), queue)
        return None if found < 0 else found

    def offsets(self, group: str | None = None, topic: str | None = None) -> Iterator[OffsetRow]:
        """Returns all offsets, or those of a group or a topic, in no order. They are those of now,
        and are read as they are asked for, on any thread: tens of thousands take long."""
        return offset_rows(self._blocks(group, topic, 0))

    def consumed(
        self, group: str | None = None, topic: str | None = None, *, light: bool = True
    ) -> Iterator[tuple[str, str]]:
        """Returns each group with each topic of which it has offsets: all of them, or as
        offsets(). light: light queues, too, which may be a million."""
        return offset_pairs(self._blocks(group, topic, 1 if light else 2))

    def _blocks(self, group: str | None, topic: str | None, names_only: int) -> memoryview:
        names = *any_named(group), *any_named(topic)
        size = _BLOCKS
        while True:
            room, out = size, ffi.new("uint8_t[]", size)
            size = lib.ps_core_offsets_of(self.handle, *names, names_only, out, room)
            if size <= room:
                return memoryview(ffi.buffer(out, size))
            size += _BLOCKS  # others commit meanwhile

    @property
    def pairs(self) -> int:
        """Pairs of group and topic, with or without an offset."""
        return int(lib.ps_core_pair_count(self.handle))

    def take_changed_offsets(self, *, begin: bool) -> list[tuple[str, str, dict[int, int]]]:
        """Returns some of the offsets that moved since they were taken: group, topic, and queues
        with their offsets. An empty list ends the round, which one that begins has to come first
        of."""
        rows = ffi.new("ps_offset_row[]", _ROWS)
        count = lib.ps_core_take_offsets(self.handle, begin, rows, _ROWS)
        found, at = [], 0
        taken = _OFFSET_ROW.iter_unpack(ffi.buffer(rows, count * _OFFSET_ROW.size))
        for _, same in groupby(taken, _NAMES_OF_ROW):  # rows of one pair follow each other
            row, queues = rows[at], dict(map(_MOVED_OF_ROW, same))
            at += len(queues)
            group, topic = text_at(row.group, row.group_len), text_at(row.topic, row.topic_len)
            found.append((group, topic, queues))
        return found

    def pass_over_changed_offsets(self) -> None:
        """Counts what has moved so far as taken."""
        rows, begin = ffi.new("ps_offset_row[]", _ROWS), True
        while lib.ps_core_take_offsets(self.handle, begin, rows, _ROWS):
            begin = False

    def may_commit(self, group: str, topic: str, queue: int) -> bool:
        """Returns whether a client may commit there: it has an offset, or there is room for one."""
        return bool(lib.ps_core_may_commit(self.handle, *named(group), *named(topic), queue))

    def take_refused_offsets(self) -> int:
        """Returns how often there was no room for an offset, since the last call."""
        return int(lib.ps_core_offsets_refused(self.handle))

    def delete_offsets(self, group: str | None = None, topic: str | None = None) -> None:
        """Deletes the offsets of a group, of a topic, or of both together."""
        lib.ps_core_forget_offsets(self.handle, *any_named(group), *any_named(topic))

    # ---- statistics ----

    def sums(self) -> MessageSums:
        """Adds the counters of all topics and groups."""
        about = ffi.new("ps_sample *")
        lib.ps_core_sample(self.handle, ffi.NULL, 0, about)
        return _sums_in(about)

    def sample(self) -> Sample:
        values = array("q")
        about = ffi.new("ps_sample *")
        while True:
            room = len(values)
            count = lib.ps_core_sample(
                self.handle, ffi.from_buffer("int64_t[]", values), room, about
            )
            if count <= room:
                return Sample(about.number, values, _sums_in(about))
            values = array("q", bytes(8 * count))

    def counter(self, topic: str, group: str | None) -> tuple[int, int, int, int]:
        """Returns its place in samples (-1 for none yet), the number of the first sample that has
        it there, and its messages and bytes now."""
        found = self._counter
        lib.ps_core_counter(self.handle, *any_named(group), *named(topic), found)
        return found.slot, found.since, found.messages, found.bytes

    def statistics(self) -> list[Statistic]:
        count = _ROWS
        while True:
            room, rows = count, ffi.new("ps_stat_row[]", count)
            count = lib.ps_core_statistics(self.handle, rows, room)
            if count <= room:
                break
        return [
            Statistic(
                text_at(row.topic, row.topic_len),
                text_at(row.group, row.group_len) if row.group != ffi.NULL else None,
                row.messages,
                row.bytes,
            )
            for row in (rows[i] for i in range(count))
        ]

    def totals(self) -> Totals:
        raw = ffi.new("ps_core_totals *")
        lib.ps_core_get_totals(self.handle, raw)
        return Totals(*(getattr(raw, name) for name in Totals._fields))

    def times(self) -> Times:
        raw = ffi.new("ps_core_times *")
        lib.ps_core_get_times(self.handle, raw)
        return Times(ffi.unpack(raw.puts, lib.PS_TIMES), raw.put_max_ms, raw.get_max_ms, raw.put_ns)

    # ---- metrics ----

    def rpc_rows(self) -> list[RpcRow]:
        """Returns how long the requests took that were served here, by thread."""
        room = lib.ps_core_rpc_rows(self.handle, ffi.NULL, 0)
        rows = ffi.new("ps_rpc_row[]", room)
        count = min(room, lib.ps_core_rpc_rows(self.handle, rows, room))
        return [
            RpcRow(
                row.request, row.response, bool(row.how & lib.PS_RPC_HELD),
                bool(row.how & lib.PS_RPC_ONEWAY), row.sum_us / 1000, tuple(row.buckets),
            )
            for row in rows[0:count]
        ]  # fmt: skip

    def flows(self, labels: str, systems: str, most: int) -> tuple[memoryview, int]:
        """Returns the metrics of messages by topic and group as text, and how many series did not
        fit into `most` of a family. It may be called on any thread: it takes the lock for a copy
        alone, and nothing of it needs the interpreter. `labels` stand in every sample. systems:
        names of system topics, each ended by a line feed. Raises: OutOfMemory, StoreClosed."""
        handle = self.handle
        if handle is None:
            raise _closed()
        raw = lib.ps_core_flows(handle, most)
        if raw == ffi.NULL:
            raise OutOfMemory("no memory for the metrics of topics")
        owned, out = ffi.gc(raw, lib.ps_flows_free), ffi.new("char **")
        size = lib.ps_flows_text(owned, labels.encode(), systems.encode(), out)
        if size < 0:
            raise OutOfMemory("no memory for the metrics of topics")
        # Tens of megabytes with many topics: they are not copied, and go with the last view.
        text = ffi.gc(out[0], lambda _: owned) if size else ffi.new("char[1]")
        return memoryview(ffi.buffer(text, size)), int(lib.ps_flows_left_out(owned))

    def lock_times(self) -> tuple[int, int, float]:
        """Returns how often the lock was taken, how often somebody waited for it, and for how many
        seconds."""
        raw = ffi.new("ps_core_lock_times *")
        lib.ps_core_get_lock_times(self.handle, raw)
        return raw.takes, raw.waits, raw.waited_ns / 1e9

    @property
    def threads(self) -> Looks | None:
        """Returns the network threads that serve it, if there are any."""
        return self._threads

    # ---- held pulls ----

    def notify_all(self) -> None:
        """Answers every held pull now."""
        self._answer_held(True)

    def lead_until(self, until_s: float) -> None:
        """Sets until when, by the monotonic clock, the broker is the master for sure; at the
        beginning there is no end."""
        self._leads_until = until_s
        if self.handle is not None:
            until_ms = _FOR_GOOD if math.isinf(until_s) else int(until_s * 1000)
            lib.ps_core_leads_until(self.handle, until_ms)

    @property
    def leads(self) -> bool:
        """Returns whether it is the master now, so that no slave does what it does."""
        return time.monotonic() < self._leads_until

    def wake(self) -> None:
        """Ends the waits that are over, and answers the held pulls that have news or whose time is
        over."""
        self._answer_held(False)

    def _answer_held(self, everything: bool) -> None:
        if self.handle is None:
            return
        if self._threads is not None:
            self._threads.look(everything)
            return
        step, after = self._step, self._next_ms
        end, more = time.monotonic() + _A_TURN_S, False
        while lib.ps_core_next(self.handle, everything, step, after):
            # Whoever is told may use the step again.
            conn_id, wait, outcome = step.conn_id, step.wait, step.outcome
            if step.pop_due_ms and self.on_pop_due is not None:
                self.on_pop_due(step.pop_due_ms)
            if step.found:
                self._give(step)
            elif step.number:
                lib.ps_net_give(self.handle, step)  # a call of a network thread waits for it
            elif step.out_len:
                self.push(conn_id, _taken(step))
                if self._on_pull is not None and (pulled := self._take_pulled()) is not None:
                    self.tell_pulled(None, conn_id, pulled)
            self.tell_outcome(wait, outcome)
            everything = False
            if self._loop is not None and time.monotonic() > end:
                more = True  # after others had their turn
                break
        self.look_in(0 if more else after[0])
        self.tell_news()

    def tell_news(self) -> None:
        """Tells those who watch queues which of them got messages."""
        levels = lib.ps_core_take_level_news(self.handle)
        if levels and self.on_levels is not None:
            self.on_levels([bit + 1 for bit in range(levels.bit_length()) if levels >> bit & 1])
        if lib.ps_core_take_timer_news(self.handle) and self.on_timers is not None:
            self.on_timers()

    def _give(self, step: Any) -> None:
        """Gives what a pop has waited for to the thread of its call, or to Python."""
        gone = bool(step.conn_id >> 62)
        if not gone or not lib.ps_net_give(self.handle, step):
            names = bytes(_buffer(step.out, step.out_len))
            self.tell_popped(0 if gone else step.number, names, step.found)

    def tell_popped(self, number: int, names: bytes, found: Any) -> None:
        """Tells what a pop of Python's has waited for, by its number; 0 stands for a call of a
        network thread that is gone. names: the group and the topic, a line each. found: a
        ``ps_pop_found *`` that is no longer valid afterwards."""
        raw = ffi.new("ps_pop_found *")
        lib.ps_pop_found_take(found, raw)
        group, topic = names.decode().split("\n")
        if self.on_popped is not None:
            self.on_popped(number, group, topic, raw)

    def push(self, conn_id: int, answers: bytes) -> None:
        """Writes answers to a connection, if it is still there."""
        framer = self._connections.get(conn_id)
        if framer is not None:
            framer.push(answers)

    def tell_outcome(self, wait: int, outcome: int) -> None:
        """Ends the wait with this number; 0 stands for none."""
        told = self._told.pop(wait, None)
        if told is not None:
            told(outcome)

    def tell_pulled(self, connection: Peer | None, conn_id: int, pulled: PullOutcome) -> None:
        """Reports that a held pull was answered. connection: the one it came by; None stands for
        the one with this id."""
        framer = self._connections.get(conn_id)
        if connection is None and framer is not None:
            connection = framer._connection
        if self._on_pull is not None and connection is not None:
            self._on_pull(connection, pulled)

    def know_framer(self, conn_id: int, framer: HotFramer) -> None:
        self._connections[conn_id] = framer

    def forget_framer(self, conn_id: int) -> None:
        self._connections.pop(conn_id, None)

    def watch_pulls(self, on_pull: Callable[[Peer, PullOutcome], None]) -> None:
        """Hands every pull to Python from now on; on_pull is called with those that have waited."""
        self._on_pull = on_pull
        lib.ps_core_delegate(self.handle, lib.PS_DELEGATE_PULLS)

    def delegate_sends(self) -> None:
        """Makes Python decide every send from now on: there are hooks, or a test wants it so."""
        lib.ps_core_delegate(self.handle, lib.PS_DELEGATE_SENDS)

    def admit(self, *, sends_from_ms: int, lite_pulls: bool) -> None:
        """Hands sends to Python until `sends_from_ms` (milliseconds since 1970, 0 for no time), and
        requests of LITE_PULL_MESSAGE unless `lite_pulls`: Python refuses them."""
        lib.ps_core_admit(self.handle, sends_from_ms, lite_pulls)

    # ---- access control ----

    def check_access(self, first_frame_max: int = 0) -> None:
        """Serves only granted requests from now on; all others come up to Python. first_frame_max:
        limits the bytes of a frame on connections that are not known yet; 0 sets the same limit as
        on others. Raises: OutOfMemory."""
        lib.ps_core_limit_first(self.handle, first_frame_max)
        functions = digest_functions()
        if functions is None:
            lib.ps_core_delegate(self.handle, lib.PS_DELEGATE_ALL)
        else:
            self._check(lib.ps_core_check_access(self.handle, functions, self._error))

    def grant(
        self, address: tuple[str, int], code: int, key: str, secret: str, topic: str, group: str,
        binding: str = "",
    ) -> None:  # fmt: skip
        """Serves, until revoke(), whoever signs with the secret of `key` and asks from this address
        by `code` for topic and group. group: that of pulls, else empty. binding: that of requests
        that are signed for this broker alone, without its nonce, else empty."""
        host = host_bytes(address)[:-4]
        lib.ps_core_grant(
            self.handle, *named(key), *named(secret), host, len(host), code, *named(topic),
            *named(group), *named(binding),
        )  # fmt: skip

    def revoke(self) -> None:
        """Makes every request come up to Python again, where the present rules decide."""
        lib.ps_core_revoke(self.handle)

    @property
    def first_frames_refused(self) -> int:
        """Returns how many frames were too large for a connection that is not known yet."""
        return int(lib.ps_core_first_refused(self.handle))

    @property
    def let_in(self) -> int:
        """Returns how many requests were served by a grant."""
        return int(lib.ps_core_let_in(self.handle))

    def put_again(
        self, physical_offset: int, decision: PutDecision, *, more_tries: int = 0
    ) -> PutOutcome:
        """Puts a message of the log once more, as it was sent but for the decision; nobody is
        answered. Raises: NotFound when there is no record there, and what putting raises."""
        keep = fill(decision, self._decision)
        self._check(
            lib.ps_core_put_again(
                self.handle, physical_offset, more_tries, self._decision, self._sent, self._error
            )
        )
        del keep
        return sent_of(self._sent)

    def _take_pulled(self) -> PullOutcome | None:
        raw = self._pulled
        lib.ps_core_take_pulled(self.handle, raw)
        return PullOutcome(raw.opaque, raw.code, raw.count, raw.bytes) if raw.code >= 0 else None

    def watch_level(self, level: int, offset: int) -> bool:
        """Returns whether delay level `level` reaches beyond `offset`. If not, on_levels is called
        with it once it does."""
        return bool(self._check(lib.ps_core_watch_level(self.handle, level, offset, self._error)))

    def watch_timers(self, offset: int) -> bool:
        """Does the same for the queue of timers, and on_timers."""
        return bool(self._check(lib.ps_core_watch_timers(self.handle, offset, self._error)))

    def look_in(self, in_ms: int) -> None:
        """Answers what is to be answered within so many milliseconds, if not earlier; -1 stands for
        never."""
        loop = self._loop
        if loop is None:
            return
        if self._threads is not None:
            self._threads.look(False)
            return
        if in_ms == 0:
            loop.call_soon(self.wake)
            return
        at = loop.time() + in_ms / 1000 if in_ms > 0 else 0.0
        timer = self._timer
        if timer is not None:
            # One that comes too early only looks and sets the next.
            if at and self._timer_at <= at:
                return
            timer.cancel()
        self._timer = loop.call_at(at, self._overdue) if at else None
        self._timer_at = at

    def _overdue(self) -> None:
        self._timer = None
        self.wake()

    # ---- what waits for the safe position (csrc/log/safe.h) ----

    def must_wait(self, position: int) -> bool:
        """Returns whether an answer must wait that rests on records up to `position` of the log,
        the end of the last one; 0 stands for none."""
        return self._store.must_wait(position)

    async def safe(self, position: int) -> PutStatus:
        """Waits until the log is safe up to `position`: PUT_OK, FLUSH_DISK_TIMEOUT after
        syncFlushTimeout, FLUSH_SLAVE_TIMEOUT after slaveTimeout. Raises: FlushFailed, StoreClosed,
        OutOfMemory."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self.handle is None:
            raise _closed()
        step = self._step
        if lib.ps_core_wait(self.handle, position, step) < 0:
            raise OutOfMemory("no memory to wait for the disk")
        self._told[step.wait] = partial(_resolve, future)
        self.look_in(step.look_in_ms)
        outcome = await future
        if outcome == FlushFailed.code:
            self._store.wait_flushed(position, 0)  # raises, and says which sync failed and how
        if outcome < 0:
            raise _closed()
        return _STATUS_OF_WAITS[outcome]

    @property
    def waiting(self) -> int:
        """Returns how many waits are under way, of answers and of Python."""
        return int(lib.ps_core_waiting(self.handle))


def _resolve(future: asyncio.Future[int], outcome: int) -> None:
    if not future.done():
        future.set_result(outcome)


def _closed() -> StoreClosed:
    return StoreClosed("the broker was stopped while a request waited for the disk")


def _taken(step: Any) -> bytes:
    """Returns the answers of a step, as bytes that nobody changes any more."""
    return bytes(_buffer(step.out, step.out_len))


def host_bytes(address: tuple[str, int]) -> bytes:
    """Returns a host as it is on disk: the address, then the port as i32."""
    host, port = address
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        found = ipaddress.IPv4Address(0)
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return found.packed + port.to_bytes(4, "big")


class HotFramer:
    """The Framer (broker/wire/framer.py) of a connection to a broker."""

    __slots__ = (
        "_addresses",
        "_conn",
        "_connection",
        "_core",
        "_delegated",
        "_error",
        "_id",
        "_let_in",
        "_part",
        "_room",
        "_sent",
        "_step",
        "more",
    )

    def __init__(
        self, core: Core, connection: Link, number: int, delegated: int = 0, *, let_in: bool = False
    ) -> None:
        """Takes a connection. delegated: has the PS_DELEGATE_ bits of what comes up to Python
        unserved. let_in: means that access control was asked."""
        self._core = core
        self._connection = connection
        self._id = number
        self._delegated = delegated
        self._let_in = let_in
        self._conn: Any = None
        self._error = core._error
        self._step = core._step
        self._room = ffi.new("uint8_t **")
        #: Whole frames wait: answers are still to be written, or the time was over.
        self.more = False
        #: The step is one of ps_conn_send, which nobody has looked at.
        self._sent = False
        #: Of the connection and of the step.
        self._addresses: tuple[int, int] | None = None
        #: The next room is to be asked for; otherwise it is the one that all share.
        self._part = True

    def _open(self) -> Any:
        # Only now the address is known: a proxy's first bytes may have told it.
        host = host_bytes(self._connection.address)
        made = lib.ps_conn_new(self._core.handle, self._id, host, len(host), self._error)
        if made == ffi.NULL:
            raise_error(self._error[0])
        self._conn = made
        self._addresses = address_of(made), address_of(self._step)
        if self._delegated:
            lib.ps_conn_delegate(made, self._delegated)
        if self._let_in:
            lib.ps_conn_let_in(made)
        self._core.know_framer(self._id, self)
        return made

    def buffer(self, hint: int) -> memoryview:
        if not self._part:
            return self._core.room
        conn = self._conn or self._open()
        size = lib.ps_conn_room(conn, self._room, self._error)
        if size < 0:
            raise_error(self._error[0], size)
        self._connection.hold(lib.ps_conn_unfinished(conn))
        return memoryview(ffi.buffer(self._room[0], size))

    def received(self, count: int) -> Sequence[Command]:
        if self._sent:
            self._sent = False
            return self._stepped(0)
        if not count and not self.more:
            return ()
        step = self._step
        code = lib.ps_conn_received(self._conn, count, step, self._error)
        if code or step.rare:
            return self._stepped(code)
        if self._part:
            self._connection.hold(0)
        self._part = self.more = False
        if step.out_len:
            self._connection.parts.append(_taken(step))
        return ()

    def _stepped(self, code: int) -> Sequence[Command]:
        step = self._step
        # First of all, since waking others uses the same step again.
        if self._part and not step.part:
            self._connection.hold(0)
        self.more, self._part = bool(step.more), bool(step.part)
        commands = [command_of(step.frames[i]) for i in range(step.frame_count)]
        self._take(step)
        if code < 0:
            raise_error(self._error[0], code)
        return commands

    def keep(self, count: int) -> Sequence[Command]:
        if self._sent:
            self._sent = False
            return self._stepped(0)
        if not count:
            return ()
        code = lib.ps_conn_keep(self._conn, count, self._step, self._error)
        if code < 0:
            raise_error(self._error[0], code)
        self.more = self._part = True
        self._connection.hold(lib.ps_conn_unfinished(self._conn))
        return ()

    def direct(self) -> tuple[int, int] | None:
        if self._conn is None:
            self._open()
            self._part = False
        return None if self._part or self.more else self._addresses

    def sent_directly(self, answered: bool) -> bool:
        step = self._step
        if answered:
            if not step.rare:
                return False
            step.out_len = 0
        self._sent = True
        return True

    def _take(self, step: Any, after: Callable[[int], None] | None = None) -> None:
        """Takes what a step brought about, except its frames. The step is no longer valid after it.

        `after` is called with how the wait of its answers ended."""
        if step.out_len:
            self._connection.parts.append(_taken(step))
        core = self._core
        if step.wait and after is not None:
            core._told[step.wait] = after
        if step.pop_due_ms and core.on_pop_due is not None:
            core.on_pop_due(step.pop_due_ms)
        if step.news:
            core.wake()
        elif step.look_in_ms >= 0:
            core.look_in(step.look_in_ms)

    def serve_raw(self, command: Command) -> bool:
        raw = command.raw
        if raw is None or self._conn is None:
            return False
        core = self._core
        if core._on_pull is not None:
            core._take_pulled()  # of what was answered before
        if command.code in _POPS:
            served = lib.ps_conn_serve_pop(self._conn, raw, len(raw), self._step, self._error)
            if served < 0:
                raise_error(self._error[0], served)
        else:
            served = lib.ps_conn_serve(self._conn, raw, len(raw), self._step)
        if core._on_pull is not None:
            core.last_pull = core._take_pulled()
        self._take(self._step)
        return bool(served)

    @property
    def known(self) -> bool:
        return self._conn is not None and bool(lib.ps_conn_known(self._conn))

    def keep_heartbeat(self, opaque: int, says_changed: bool) -> None:
        if self._conn is not None:
            lib.ps_conn_keep_heartbeat(self._conn, opaque, says_changed)

    def forget_heartbeat(self) -> None:
        if self._conn is not None:
            lib.ps_conn_forget_heartbeat(self._conn)

    @property
    def heartbeat_at(self) -> float:
        return 0.0 if self._conn is None else lib.ps_conn_heartbeat_ms(self._conn) / 1000

    def know(self) -> None:
        if self._conn is not None:
            lib.ps_conn_know(self._conn)

    def read_send(self, command: Command) -> AskedSend:
        core, raw = self._core, command.raw
        assert raw is not None  # _command keeps it of every send
        code = lib.ps_conn_read_send(self._conn, raw, len(raw), core._send, self._error)
        if code < 0:
            raise_error(self._error[0], code)
        return read_asked(core._send)

    def decide(self, command: Command, decision: PutDecision) -> PutOutcome | None:
        if self._conn is None:
            return None
        core, raw, step = self._core, command.raw, self._step
        assert raw is not None
        keep = fill(decision, core._decision)
        code = lib.ps_conn_decide(
            self._conn, raw, len(raw), core._decision, core._sent, step, self._error
        )
        if code < 0:
            try:
                raise_error(self._error[0], code)
            finally:
                self._take(step)
        del keep
        sent, after = sent_of(core._sent), decision.after
        waits = step.wait != 0
        self._take(step, None if after is None else partial(_tell, after, sent))
        self._connection.flush()
        if after is not None and not waits:
            after(sent)
        return sent

    def delegate(self) -> None:
        if self._core.handle is not None:
            lib.ps_core_delegate(self._core.handle, lib.PS_DELEGATE_ALL)

    def push(self, answers: bytes) -> None:
        """Writes answers that come later: of held pulls, and of what waited for the safe
        position."""
        self._connection.parts.append(answers)
        self._connection.flush()

    def close(self) -> None:
        conn, self._conn, self._addresses = self._conn, None, None
        self._part = True  # the shared room may go with the core
        self._core.forget_framer(self._id)
        if conn is not None:
            lib.ps_conn_free(conn)


def _tell(after: Callable[[PutOutcome], None], sent: PutOutcome, outcome: int) -> None:
    """Tells who waits. outcome: of the wait; the answer's code says it, unless one was decided
    before."""
    code = _CODES_OF_WAITS.get(outcome, _SERVICE_NOT_AVAILABLE)
    after(sent._replace(code=sent.code or code))


def command_of(frame: Any) -> Command:
    """Returns the command of a frame that the core hands on. Raises: BadFrame."""
    raw = bytes(ffi.buffer(frame.data, frame.len))
    command = codec.decode(raw)
    if command.code in _KEPT_CODES:
        command.raw = raw
    return command
