"""Whose turn it is: a budget of time for everything that the connections of one event loop ask.

What is read is served at once while the turn has time left. What comes after that waits in the line
of its connection. In each of the next turns, the lines are asked one after the other, those that
were not asked before first, and each goes on for a slice. So a connection waits for what others ask
of one turn or two, whatever they ask, and in whatever number. All ports of a loop share its turns:
remoting, gRPC, name server, proxy.

A coroutine that serves a request is cut where it waits: each of its steps is served as a request
is. What takes long between two waits is for its author to cut (broker/processors/turns.py). Within
the core, a step ends after CORE_NS, too (csrc/remoting/conn.c).
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from time import monotonic
from typing import Any, ParamSpec, TypeVar, cast

from broker.loop.per_loop import PerLoop

__all__ = ["CORE_NS", "Line", "Pieces", "Turns", "alone"]

#: Seconds of what is read in one turn; of the steps of coroutines in one turn; of one line, when
#: others wait.
TURN_S, STEPS_S, SLICE_S = 0.004, 0.004, 0.001
#: Of work on the loop, before it lets others have their turn.
PIECE_S = 0.002
#: Of one step of the core.
CORE_NS = 1_000_000
#: Bytes that a connection may still read when the turn's time is used up.
_PAGE = 4096
#: Steps that are let go on at once, in the hope that there is time for them.
_LET_GO = 16

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: Of the connection whose request is served.
_line: ContextVar[Line | None] = ContextVar("line", default=None)


class Turns(PerLoop):
    """The turns of one loop. Everything happens on its thread.

    The time is that between enter() and leave(), of what is read, and of steps. Nothing tells when
    a turn of the loop begins: the budget counts from one pass over the lines to the next, and a
    pass comes as soon as it is used up."""

    __slots__ = (
        "_due",
        "_lines",
        "_new",
        "_passing",
        "_read",
        "_since",
        "_stepped",
        "_until",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        #: Seconds used since the last pass.
        self._read = self._stepped = 0.0
        #: When the work under way began; 0: there is none. And when it has to end.
        self._since = self._until = 0.0
        self._due = False
        self._new: deque[Line] = deque()
        self._lines: deque[Line] = deque()
        #: The line that goes on just now.
        self._passing: Line | None = None

    # ---- the time ----

    def enter(self, since: float = 0.0) -> bool:
        """Begins to serve what was read; `since` says when the read began, if it was of much.
        Returns True when leave() must follow, and False when it is part of other work, which is
        measured already."""
        if self._since:
            return False
        self._since = since or monotonic()
        self._until = self._since + TURN_S - self._read
        return True

    def room(self, room: memoryview) -> memoryview:
        """Returns as much of a read buffer as may be filled now: a page when the turn's time is
        used up."""
        return room if self._read < TURN_S else room[:_PAGE]

    def leave(self) -> None:
        self._read += monotonic() - self._since
        self._since = 0.0
        if self._read >= TURN_S:
            self._soon()

    @property
    def over(self) -> bool:
        """Returns whether the work under way is to end: what is left of it waits in its line."""
        return monotonic() >= self._until

    def _enter_step(self) -> bool:
        if self._since:
            return False
        self._since = now = monotonic()
        self._until = now + TURN_S
        return True

    def _leave_step(self) -> None:
        self._stepped += monotonic() - self._since
        self._since = 0.0
        if self._stepped >= STEPS_S:
            self._soon()

    # ---- the lines ----

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._pass)

    def _put(self, line: Line) -> None:
        (self._lines if line is self._passing else self._new).append(line)
        self._soon()

    def _pass(self) -> None:
        """Runs a new turn: each line that waits continues, until the time is over."""
        self._due = False
        self._read = self._stepped = 0.0
        new, lines = self._new, self._lines
        end, let_go = monotonic() + TURN_S, 0
        try:
            for _ in range(len(new) + len(lines)):
                now = monotonic()
                if now >= end or let_go >= _LET_GO:
                    break
                self._passing = line = (new or lines).popleft()
                self._since, self._until = now, min(end, now + SLICE_S)
                let_go += line._go_on(let_go)
                self._read += monotonic() - now
        finally:
            self._passing, self._since = None, 0.0
            if new or lines:
                self._soon()


class Line:
    """What waits for a turn, of one connection."""

    __slots__ = (
        "_alone_count", "_asked", "_hold", "_lock", "_queued", "_read", "_room", "_steps", "turns",
    )  # fmt: skip

    def __init__(
        self,
        turns: Turns,
        read: Callable[[], None],
        room: Callable[[], Awaitable[None]] | None = None,
        hold: Callable[[bool], None] | None = None,
    ) -> None:
        """Makes turns. read: serves what was read, until Turns.over. room: waits until what was
        written to the connection is read. hold: is called with whether nothing more is to be begun
        for now."""
        self.turns = turns
        self._read = read
        self._room = room if room is not None else _no_room
        self._hold = hold if hold is not None else _no_hold
        self._asked = self._queued = False
        self._steps: list[asyncio.Future[bool]] = []  # a deque takes ten times the memory
        self._lock: asyncio.Lock | None = None
        #: Requests of alone(), in progress and waiting.
        self._alone_count = 0

    @property
    def waits(self) -> bool:
        """Returns whether something that was read waits."""
        return self._asked

    def wait(self) -> None:
        """Has read() called in one of the next turns."""
        self._asked = True
        self._put()

    def _put(self) -> None:
        if not self._queued:
            self._queued = True
            self.turns._put(self)

    def _go_on(self, before: int) -> int:
        """Continues. What was begun comes before what was not, since it holds more. `before` counts
        the steps that continued in this turn; returns how many more did."""
        self._queued = False
        count = 0
        while self._steps and before + count < _LET_GO:
            step = self._steps.pop(0)
            if not step.done():
                step.set_result(before + count == 0)  # one may go on whatever time there is
                count += 1
        if count == 0 and self._asked:
            self._asked = False
            self._read()
        if self._steps or self._asked:
            self._put()
        return count

    # ---- coroutines ----

    def start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Starts the coroutine as a task, each of whose steps has its turn."""
        task = self.turns._loop.create_task(self._run(work))
        task.add_done_callback(lambda done: work.close())  # it may not even have begun
        return task

    async def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        _line.set(self)
        return cast(_T, await _Steps(self, work))

    def _next_step(self) -> Generator[Any, Any, None]:
        turns, steps = self.turns, self._steps
        if not steps and turns._stepped < STEPS_S:
            return
        first = False
        while True:
            step: asyncio.Future[bool] = turns._loop.create_future()
            steps.insert(0 if first else len(steps), step)
            self._put()
            if (yield from step.__await__()) or turns._stepped < STEPS_S:
                return
            first = True

    async def _alone(self, work: Callable[[], Awaitable[_T]]) -> _T:
        if self._lock is None:
            self._lock = asyncio.Lock()
        self._alone_count += 1
        if self._alone_count > 1:
            self._hold(True)
        try:
            async with self._lock:
                await self._room()
                return await work()
        finally:
            self._alone_count -= 1
            if self._alone_count <= 1:
                self._hold(False)

    def close(self) -> None:
        """Ends the line of a connection that is closed. Tasks that outlive it may still know it."""
        self._asked = False
        self._read, self._hold, self._room = _nothing, _no_hold, _no_room


def _nothing() -> None:
    pass


def _no_hold(on: bool) -> None:
    pass


async def _no_room() -> None:
    pass


class _Steps:
    def __init__(self, line: Line, work: Coroutine[Any, Any, Any]) -> None:
        self._line, self._work = line, work

    def __await__(self) -> Generator[Any, Any, Any]:
        line, turns, running = self._line, self._line.turns, self._work.__await__()
        step: Callable[[Any], Any] = running.send
        given: Any = None
        while True:
            try:
                yield from line._next_step()
            except BaseException as thrown:  # noqa: BLE001 - it is the coroutine's to deal with
                step, given = running.throw, thrown
            entered = turns._enter_step()
            try:
                waits_for = step(given)
            except StopIteration as done:
                return done.value
            finally:
                # An exception refers to this frame, which must not refer to it once both are over:
                # what is put aside (broker/cli/collecting.py) would keep all that they hold.
                given = None
                if entered:
                    turns._leave_step()
            try:
                step, given = running.send, (yield waits_for)
            except BaseException as thrown:  # noqa: BLE001 - as above
                step, given = running.throw, thrown


class Pieces:
    """Divides work on the loop: ``await pieces.next()`` between two pieces lets other work have its
    turn once this one took piece_s (None: PIECE_S). rest_s: nothing is done for so long then, of
    what is not urgent: network threads need the core and the processor, too, which no turn gives
    them."""

    def __init__(self, piece_s: float | None = None, rest_s: float = 0.0) -> None:
        self._piece_s = PIECE_S if piece_s is None else piece_s
        self._rest_s, self._began = rest_s, monotonic()

    async def next(self) -> None:
        if monotonic() - self._began >= self._piece_s:
            await asyncio.sleep(self._rest_s)
            self._began = monotonic()


def alone(handler: Callable[_P, Coroutine[Any, Any, _T]]) -> Callable[_P, Coroutine[Any, Any, _T]]:
    """Wraps a handler that holds much while it works: one such request at a time is in progress for
    each connection, and none while the connection's answers are not read."""

    @functools.wraps(handler)
    async def waits(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        line = _line.get()
        if line is None:
            return await handler(*args, **kwargs)
        mine = _line.set(None)  # what it calls is part of it
        try:
            return await line._alone(lambda: handler(*args, **kwargs))
        finally:
            _line.reset(mine)

    return waits
