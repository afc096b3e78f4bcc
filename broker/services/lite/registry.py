"""Who subscribes to which lite topics, and the events that wait for each client: tables of the core
(csrc/lite/lite.h), which serves pops and acknowledgements by them, as Python sees them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from broker.hot.core import Core, CoreErrors, any_named, named, text_at
from broker.loop.turns import Pieces
from broker.services.lite.names import lined_up
from pystore.native import ffi, lib
from pystore.store.light_queues import names_in

__all__ = ["LiteClient", "LiteGroupLag", "LiteRegistry", "LiteTotals"]

_ROWS = 256
#: Of names of light queues, that one call gives.
_NAMES_BYTES = 64 << 10
#: Time of what is not known.
_NEVER = (1 << 63) - 1
#: Pairs for which there is room at once.
_PAIRS_MAX = 1 << 24
#: Names of an old set that one call drops.
_TOGETHER = 4096


@dataclass(frozen=True, slots=True)
class LiteClient:
    """A client of a group as it is now. `queues` counts the light queues it subscribes to, `events`
    those in which there is something for it, `polls` its pops that wait. `wild`: it reads all lite
    topics of `parent`. `updated` is when it last said what it subscribes to, monotonic, and
    `accessed_ms` its last pop; -1 stands for none. `overflowed`: an event found no room, and all of
    its queues are to be looked at again."""

    group: str
    client_id: str
    parent: str
    queues: int
    events: int
    polls: int
    wild: bool
    overflowed: bool
    version: int
    updated: float
    accessed_ms: int


@dataclass(frozen=True, slots=True)
class LiteTotals:
    """What there is in all: `pairs` of client and lite topic; `leaving`, pairs of clients that have
    left, which are freed bit by bit and count as none; how often who subscribes to what has
    changed; `events`, and pops, that wait; clients with an event that found no room, and
    with events."""

    pairs: int
    leaving: int
    changes: int
    clients: int
    events: int
    polls: int
    overflowed: int
    eventful: int


@dataclass(frozen=True, slots=True)
class LiteGroupLag:
    """Messages after the offsets of a group in lite topics of `parent`, and how many of these have
    some; `read`: of how many lite topics it has read anything. Others count as caught up, as
    upstream has it."""

    group: str
    parent: str
    messages: int
    queues: int
    read: int


def _lag_of(row: Any) -> LiteGroupLag:
    return LiteGroupLag(
        text_at(row.group, row.group_len), text_at(row.parent, row.parent_len), row.messages,
        row.queues, row.read,
    )  # fmt: skip


def _client_of(row: Any) -> LiteClient:
    who = row.who
    return LiteClient(
        text_at(who.group, who.group_len), text_at(who.id, who.id_len),
        text_at(row.parent, row.parent_len), row.queues, row.events, row.polls, bool(row.wild),
        bool(row.overflowed), row.version, row.updated_ms / 1000, row.accessed_ms,
    )  # fmt: skip


class LiteRegistry(CoreErrors):
    """Clients by group and id. It lives on the event loop."""

    def __init__(self, core: Core) -> None:
        super().__init__()
        self._core = core
        self._row = ffi.new("ps_lite_row *")
        #: Of the one who asks the core for the names of a client.
        self._naming = asyncio.Lock()

    def _ask(self, function: Callable[..., int], group: str, client_id: str, *more: object) -> int:
        """Asks the core about a client. Its names live until the core has answered."""
        names = group.encode(), client_id.encode()
        given = ffi.from_buffer(names[0]), ffi.from_buffer(names[1])
        who = ffi.new("ps_lite_who *", (*given, len(names[0]), len(names[1])))
        return function(self._core.handle, who, *more)

    def plain_sends(self, topic: str) -> int:
        """Returns how many messages were sent to a topic of type LITE without a lite topic."""
        return int(lib.ps_core_plain_sends(self._core.handle, *named(topic)))

    def begin(self) -> None:
        """Serves pops from now on. Raises: OutOfMemory."""
        self._check(lib.ps_lite_begin(self._core.handle, self._error))

    def expect(self, pairs: int) -> None:
        """Makes room for about so many pairs of client and light queue."""
        lib.ps_lite_expect(self._core.handle, min(pairs, _PAIRS_MAX))

    def end(self) -> None:
        """Makes no more events, and answers those who wait."""
        if self._core.handle is not None:
            lib.ps_lite_end(self._core.handle)

    # ---- clients ----

    def get(self, group: str, client_id: str) -> LiteClient | None:
        found = self._ask(lib.ps_lite_get, group, client_id, self._row)
        return _client_of(self._row) if found else None

    async def walk(self) -> AsyncIterator[LiteClient]:
        """Yields the clients that are there now, while others have their turns; some of them may
        have left by then."""
        rows, before, turns = ffi.new("ps_lite_row[]", _ROWS), self.totals().clients, Pieces()
        while count := lib.ps_lite_list(self._core.handle, before, rows, _ROWS):
            for client in [_client_of(rows[i]) for i in range(count)]:
                await turns.next()
                yield client
            before -= count

    def has_wild(self, group: str) -> bool:
        """Returns whether clients of a group read all lite topics."""
        return bool(lib.ps_lite_wild_clients(self._core.handle, *named(group)))

    def join(self, group: str, client_id: str, parent: str, room: int) -> None:
        """Makes a client, or notes that it is still there. room: limits the events of each client
        of the group. Raises: OutOfMemory."""
        self._check(
            self._ask(lib.ps_lite_join, group, client_id, *named(parent), room, self._error)
        )

    def set_version(self, group: str, client_id: str, version: int) -> None:
        self._ask(lib.ps_lite_set_version, group, client_id, version)

    def leave(self, group: str, client_id: str) -> None:
        """Forgets a client, answers its pops, and gives its events to others."""
        self._ask(lib.ps_lite_leave, group, client_id)

    # ---- subscriptions ----

    def add(self, group: str, client_id: str, queues: Iterable[str]) -> int:
        """Subscribes a client to light queues, and returns how many of them are new. What they have
        is an event. Raises: OutOfMemory, BadArgument for a client that has not joined."""
        names = lined_up(queues)
        return self._check(
            self._ask(lib.ps_lite_add, group, client_id, names, len(names), self._error)
        )

    def add_below(self, group: str, client_id: str, parent: str, names: bytes, begin: int) -> int:
        """Subscribes a client to lite topics of a topic, whose names lined_up() has made: to some
        of them, from a place on. Returns where the next call begins. Raises: OutOfMemory,
        BadArgument."""
        at, topic = ffi.new("int32_t *", begin), parent.encode()
        self._check(
            self._ask(
                lib.ps_lite_add_below, group, client_id, topic, len(topic), names, len(names), at,
                self._error,
            )
        )  # fmt: skip
        return int(at[0])

    def begin_set(self, group: str, client_id: str) -> None:
        """Begins a new set of a client: those that add() has from now on stay after end_set()."""
        self._ask(lib.ps_lite_begin_set, group, client_id)

    def end_set(self, group: str, client_id: str) -> bool:
        """Unsubscribes a client from what is not of its new set, some of it a call. Returns whether
        there may be more."""
        return self._ask(lib.ps_lite_end_set, group, client_id, _TOGETHER) == _TOGETHER

    def add_wild(self, group: str, client_id: str) -> bool:
        """Has a client read all lite topics of its topic; False: it does."""
        return bool(self._ask(lib.ps_lite_add_wild, group, client_id))

    def remove(self, group: str, client_id: str, queue: str) -> bool:
        """Unsubscribes, and drops the event; False: the client did not have it."""
        return bool(self._ask(lib.ps_lite_remove, group, client_id, *named(queue)))

    async def queues(self, group: str, client_id: str) -> AsyncGenerator[bytes, None]:
        """Yields the light queues that a client subscribes to, some at a time, for names_in(),
        while others have their turns: each that it has all the while, at least once."""
        begin, turns, room = 1, Pieces(), ffi.new("uint8_t[]", _NAMES_BYTES)
        async with self._naming:
            while size := self._ask(lib.ps_lite_names, group, client_id, begin, room, _NAMES_BYTES):
                yield bytes(ffi.buffer(room, size))
                begin = 0
                await turns.next()

    def events(self, group: str, client_id: str) -> list[str]:
        """Returns those in which there is something for it, in order of their coming."""
        size = self._ask(lib.ps_lite_event_names, group, client_id, ffi.NULL, 0)
        room = ffi.new("uint8_t[]", size or 1)
        self._ask(lib.ps_lite_event_names, group, client_id, room, size)
        return names_in(bytes(ffi.buffer(room, size)))

    def subscribers(self, queue: str, group: str | None = None) -> list[LiteClient]:
        """Returns the clients that subscribe to a light queue, of one group or of all; those that
        read all lite topics are not among them."""
        count = _ROWS
        while True:
            rows = ffi.new("ps_lite_row[]", count)
            found = lib.ps_lite_subscribers(
                self._core.handle, *named(queue), *any_named(group), rows, count
            )
            if found < count:
                return [_client_of(rows[i]) for i in range(found)]
            count *= 4

    def totals(self) -> LiteTotals:
        found = ffi.new("ps_lite_totals *")
        lib.ps_lite_counts(self._core.handle, found)
        return LiteTotals(
            found.pairs,
            found.leaving,
            found.changes,
            found.clients,
            found.events,
            found.polls,
            found.overflowed,
            found.eventful,
        )

    def lags(self) -> list[LiteGroupLag]:
        """Returns how far each group that is bound to a topic is behind in its lite topics."""
        count = 0
        while True:
            rows, room = ffi.new("ps_lag_row[]", count), count
            count = lib.ps_lag_list(self._core.handle, rows, room)
            if count <= room:
                return [_lag_of(rows[i]) for i in range(count)]

    def lag(self, group: str) -> LiteGroupLag | None:
        """Returns how far a group is behind; None: it is not bound."""
        row = ffi.new("ps_lag_row *")
        return _lag_of(row) if lib.ps_lag_get(self._core.handle, *named(group), row) else None

    async def oldest_ms(self, group: str, turns: Pieces) -> int | None:
        """Returns when the oldest message was stored, ms, that a group has not read; None: it has
        read all of them, or their times are not known. Raises: OutOfMemory."""
        at = ffi.new("int32_t *")
        while True:
            found = self._check(
                lib.ps_lag_oldest(self._core.handle, *named(group), at, self._error)
            )
            if at[0] < 0:
                return None if found == _NEVER else found
            await turns.next()

    async def furthest(self, group: str, most: int) -> AsyncIterator[tuple[str, int]]:
        """Yields the light queues in which a group has the most messages to read, and how many, in
        descending order, as it is now; others have their turns meanwhile. Raises: OutOfMemory."""
        rows, turns = ffi.new("ps_lag_queue[]", most), Pieces()
        count = self._check(
            lib.ps_lag_top(self._core.handle, *named(group), rows, most, self._error)
        )
        for i in range(count):
            await turns.next()
            yield text_at(rows[i].name, rows[i].len), rows[i].messages

    # ---- events ----

    def give(self, group: str, queue: str) -> None:
        """Makes an event of a queue for a client of the group that waits, else for one with room;
        whoever has it already keeps it."""
        lib.ps_lite_give(self._core.handle, *named(group), *named(queue))

    def settle(self, group: str, queue: str) -> None:
        """Makes an event once a group may go on, after an acknowledgement or another invisible
        time."""
        lib.ps_lite_settle(self._core.handle, *named(group), *named(queue))

    def dispatch(self, group: str, client_id: str) -> None:
        """Has the pops of a client look at all of its queues again, those too whose batch is
        out."""
        self._ask(lib.ps_lite_dispatch, group, client_id)

    def hand_over(self, group: str, client_id: str) -> None:
        """Gives the events of a client that does not poll to others, where there are any."""
        self._ask(lib.ps_lite_hand_over, group, client_id)

    def delete(self, queue: str, groups: Iterable[str], before_ms: int) -> bool:
        """Deletes a light queue, its events, and the offsets and batches of these groups in it,
        unless something was put to it since before_ms (0: whatever was). Returns whether it is
        gone. Raises: StoreError."""
        raw, names = queue.encode(), lined_up(groups)
        return bool(
            self._check(
                lib.ps_lite_delete(
                    self._core.handle, raw, len(raw), names, len(names), before_ms, self._error
                )
            )
        )

    def look(self) -> bool:
        """Looks at once for what has come back, after the clock was shifted, and for what was put.
        False: there is more of that."""
        return bool(lib.ps_lite_look_now(self._core.handle))
