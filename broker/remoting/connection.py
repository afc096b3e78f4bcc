"""One connection, accepted or made: commands in, answers out. It is the Peer of the processors.

What it reads goes into the framer. All answers to one read are written at once. Limits of a
connection:

- A peer that does not read its answers is not read from, until it does (``write_high``).
- No more than ``in_work_max`` of its requests are in progress, and no more are queued; once their
  bodies take ``ASKED_MAX``, nothing more is read before some are answered.
- What it asks is served while the loop's turn has time, and waits in its line then (turns.py).
- What cannot be written is bounded by ``unsent_max``; beyond it the connection is closed.
- One that is not used for ``idle_s`` is closed.

Requests of ours that wait for their answers are in outstanding.py. What holds the connection up
stays here: each release serves the backlog, writes what came of it, and only then reads on, and any
of these may hold it up again or close it. A class of its own for it would be called back for every
step, and would hold the backlog, the tasks and ``_closing`` that serving and closing need as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol, cast

from broker.loop.idle import IdleWheel
from broker.loop.log_lines import served_request
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.loop.turns import Line, Turns
from broker.loop.watchdog import Watchdog
from broker.metrics.rpc import RpcTimes
from broker.wire import codec
from broker.wire.answer_limits import check_answer
from broker.wire.codec import BadFrame
from broker.wire.codes import ResponseCode
from broker.wire.command import ONEWAY, RESPONSE, Command, Refused
from broker.wire.decision import AskedSend, PutDecision, PutOutcome
from broker.wire.framer import (
    FRAMES_ENOUGH,
    READ_MAX,
    Framer,
    FramerFactory,
    Parts,
    SendWaiter,
    plain_framers,
)
from broker.wire.handlers import Handler, Handlers, address_text
from broker.wire.outstanding import EitherWaiter, Outstanding, Waiter

__all__ = ["Connection", "Endpoint", "Limits", "Parts"]

#: What holds a connection up: bits of Connection._held. It does not read its answers; it has enough
#: in progress; enough of its requests are queued; one of them waits until another is done (alone()
#: in turns.py); more was read before what it waits with had its turn.
WRITES, WORK, FULL, ALONE, TURN = 1, 2, 4, 8, 16
#: Then its requests wait. Its answers do not: a request in progress may wait for them.
BUSY = WRITES | WORK | ALONE
#: Then nothing is read.
PAUSED = WRITES | FULL | TURN
#: Bytes of a body from which on it is counted; of those that wait or are in progress.
BODY_MIN, ASKED_MAX = 1024, 4 << 20
#: Characters of a refusal's remark: it may quote what was asked, which may be long.
REMARK_MAX = 4096
#: MQVersion of the first that knows GO_AWAY: V5_3_1 does not (NettyRemotingAbstract).
GO_AWAY_VERSION = 476
#: The addresses of this host that are so everywhere.
OWN_HOST = (4, 0x7F00_0001, 0x7F00_0001), (6, 1, 1)

_quiet = RateLimitedLogger(SafeLogger("broker.remoting"))


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection, and one server, may take."""

    frame_max: int = codec.FRAME_MAX
    #: serverChannelMaxIdleTimeSeconds; 0: connections are never closed for being idle.
    idle_s: float = 120.0
    #: writeBufferHighWaterMark, writeBufferLowWaterMark: bytes that wait to be written.
    write_high: int = 1 << 20
    write_low: int = 256 << 10
    unsent_max: int = 64 << 20
    in_work_max: int = 8192
    connections_max: int = 65536
    #: Peers that may say in a PROXY header whom they speak for: IP version, first and last address.
    proxies: tuple[tuple[int, int, int], ...] = OWN_HOST
    #: Time for a PROXY header and what follows it, and for a TLS handshake.
    opening_s: float = 10.0
    #: Time that a connection we close may take to read what was written to it.
    linger_s: float = 5.0


class Endpoint:
    """What the connections of one server, or of one client, have in common."""

    def __init__(
        self,
        handlers: Handlers,
        limits: Limits,
        framer: FramerFactory | None,
        on_connect: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        watchdog: Watchdog | None = None,
        *,
        times: RpcTimes | None = None,
        ours: bool = False,
    ) -> None:
        self.handlers = handlers
        self.watchdog = watchdog
        #: How long requests take; None: nobody asks.
        self.times = times
        self.limits = limits
        self.framer = framer if framer is not None else plain_framers(limits.frame_max)
        self.on_connect = on_connect
        self.on_close = on_close
        #: We make these connections; others make those of a server.
        self.ours = ours
        self.connections: set[Connection] = set()
        self.wheel = IdleWheel(limits.idle_s)
        #: To read into where there is no memory for more.
        self.scratch = memoryview(bytearray(64 << 10))
        #: One of the connections works on what it has read.
        self.reading = False
        #: Requests that were answered with GO_AWAY.
        self.turned_away = 0


class Near(Protocol):
    """A server on the same loop, for what needs no bytes (csrc/remoting/inprocess.h)."""

    def direct(self) -> tuple[int, int] | None:
        """Returns what ps_conn_send takes now: the addresses of the connection and of the step.
        None means that a send would overtake something, or would find the server in the middle of
        its work."""

    def sent(self, answered: bool) -> None:
        """Follows each call that has done something; `answered` says that it has the answer
        already."""


class Connection(asyncio.BufferedProtocol):
    """One connection. It satisfies Peer (handlers.py), and all of it happens on the loop that it
    was made on."""

    #: There may be tens of thousands, most of them idle.
    __slots__ = (
        "_asked", "_asks", "_backlog", "_closing", "_failed", "_flush_due", "_framer",
        "_gathering", "_handlers", "_held", "_holds", "_leaving", "_line", "_loop",
        "_outstanding", "_parts_bytes", "_shared", "_stopped", "_tasks", "_transport", "_turns",
        "_unread", "address", "closed", "local", "near", "parts", "reads", "seen",
        "state",
    )  # fmt: skip

    def __init__(self, shared: Endpoint, framer: FramerFactory | None = None) -> None:
        """Makes a connection. framer: None stands for that of `shared`."""
        self.address: tuple[str, int] = ("", 0)
        #: Our own end of it.
        self.local: tuple[str, int] = ("", 0)
        self.closed = False
        #: The other end is on the same loop (loopback.py), and serves sends without bytes between.
        self.near: Near | None = None
        self.state: dict[str, Any] = {}
        self.seen = 0
        #: How often bytes were read: who waits in vain can tell whether the peer is silent.
        self.reads = 0
        self._shared = shared
        self._handlers = shared.handlers
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._framer: Framer = (framer or shared.framer)(self)
        #: What flush() writes.
        self.parts: Parts = []
        self._parts_bytes = 0
        self._gathering = False
        self._flush_due = False
        self._held = 0
        self._leaving = False
        self._stopped = False
        #: No deque and no set: empty ones take up to ten times the memory.
        self._backlog: list[Command] = []
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._outstanding = Outstanding()
        self._closing = False
        #: Part of a frame is kept.
        self._holds = False
        #: Bytes of requests that are not answered.
        self._asks = 0
        #: When the read under way began, if it is of much.
        self._asked = 0.0
        #: Why no room could be given for what was read last.
        self._failed: Exception | None = None
        self._turns = turns = Turns.of(self._loop)
        self._line = Line(turns, self._turn, self._room_to_write, self._hold_alone)
        #: Who waits until the peer has read what was written.
        self._unread: list[asyncio.Future[None]] = []

    # ---- the loop calls these ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's classes, but have their methods.
        self._transport = transport = cast(asyncio.Transport, transport)
        limits = self._shared.limits
        transport.set_write_buffer_limits(high=limits.write_high, low=limits.write_low)
        self.address = _pair(transport.get_extra_info("peername"))
        if not self.address[0]:  # it was reset before we could look at it
            transport.abort()
        self.local = _pair(transport.get_extra_info("sockname"))
        self._shared.connections.add(self)
        if self._shared.ours:
            self._shared.wheel.add(self)
        if self._shared.on_connect is not None:
            self._shared.on_connect(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self.closed:  # cut() was first
            return
        self.closed = self._closing = True
        if self._shared.ours:
            self._shared.wheel.remove(self)
        self._shared.connections.discard(self)
        for task in self._tasks:
            task.cancel()
        self._line.close()
        self._outstanding.end(ConnectionResetError(f"the connection to {self} is closed"))
        self._backlog.clear()
        self.parts.clear()
        self._framer.close()
        self._holds = False
        if self._shared.on_close is not None:
            self._shared.on_close(self)

    def eof_received(self) -> bool:
        """Closes: a peer that only closed its half gets no answers, as with upstream's servers."""
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns room to read into. It must not raise anything nor close this connection, since
        libuv reads after it."""
        try:
            room = self._framer.buffer(sizehint)
            if not self._holds:
                return room
            # The rest of a long frame: hundreds of connections that each bring megabytes are a
            # tenth of a second of copying.
            self._asked = monotonic()
            return self._turns.room(room[:READ_MAX])
        except Exception as error:  # noqa: BLE001 - there may be no memory for one peer's bytes
            self._failed = error
            return self._shared.scratch

    def hold(self, size: int) -> None:
        """Notes how many bytes are kept for a frame whose end is still to come."""
        self._holds = size > 0

    def count(self, more: int) -> None:
        """Counts bytes more of requests that wait or are in progress, for whoever bounds those of
        all connections: see LinkConnection."""

    def _weigh(self, command: Command, sign: int = 1) -> bool:
        """Counts a request that waits or is in progress, or with -1 one that no longer does.
        Returns whether its body is counted."""
        size = len(command.body)
        if size < BODY_MIN:
            return False
        self._asks += sign * size
        self.count(sign * size)
        if self._asks >= ASKED_MAX:
            self._hold(FULL)
        return True

    def buffer_updated(self, nbytes: int) -> None:
        self.seen = self._shared.wheel.now
        self.reads += 1
        shared, turns = self._shared, self._turns
        asked, self._asked = self._asked, 0.0
        entered = turns.enter(asked if nbytes else 0.0)
        shared.reading = True
        try:
            self._take(nbytes)
        finally:
            shared.reading = False
            if entered:
                turns.leave()

    def direct(self) -> tuple[int, int] | None:
        """Does the server's part of Near.direct."""
        if (
            self._closing or self._held & PAUSED or self._shared.reading or self._line.waits
        ):  # fmt: skip
            return None
        self.touch()
        return self._framer.direct()

    def sent_directly(self, answered: bool) -> None:
        """Does the server's part of Near.sent."""
        if self._framer.sent_directly(answered):
            self.buffer_updated(0)

    def touch(self) -> None:
        """Notes that it is in use."""
        self.seen = self._shared.wheel.now

    def _take(self, count: int) -> None:
        """Takes `count` bytes; 0 asks for what was held back."""
        try:
            if self._failed is not None:
                raise self._failed
            self._read(count)
        except BadFrame as bad:
            self.abort("malformed frame", str(bad))
        except Exception as error:  # noqa: BLE001 - one peer's bytes must not end the server
            _quiet.error(type(error), error, "Reading from %s failed", self)
            self.abort("read error", str(error))

    def _read(self, count: int) -> None:
        """Reads so many bytes from the framer's room; with 0 it continues with what it has held
        back. Raises: BadFrame."""
        framer, turns, line = self._framer, self._turns, self._line
        over, waits = turns.over, line.waits
        if over or waits:
            if waits or self._holds:
                self._hold(TURN)
            self._serve(framer.keep(count))
            self.flush()
            line.wait()
            return
        while True:
            commands = framer.received(count)
            if commands:
                self._serve(commands)
            if len(commands) < FRAMES_ENOUGH:  # otherwise the answers to the next go with these
                self.flush()
            if not framer.more or self.paused or line.waits or not self.open:
                break
            if turns.over:
                line.wait()
                break
            count = 0
        self.flush()

    def _turn(self) -> None:
        """Continues with what waits in the line."""
        held = self._held & TURN
        self._held &= ~TURN
        shared = self._shared
        shared.reading = True
        try:
            self._go_on()
        finally:
            shared.reading = False
        if held and self._line.waits:
            self._held |= TURN
        self._steer()

    def pause_writing(self) -> None:
        self._hold(WRITES)

    def resume_writing(self) -> None:
        entered = self._turns.enter()
        try:
            self._release(WRITES)
        finally:
            if entered:
                self._turns.leave()
        unread, self._unread = self._unread, []
        for future in unread:
            if not future.done():
                future.set_result(None)

    async def _room_to_write(self) -> None:
        while self._held & WRITES and not self._closing:
            future: asyncio.Future[None] = self._loop.create_future()
            self._unread.append(future)
            await future

    def _hold_alone(self, on: bool) -> None:
        if on:
            self._held |= ALONE
        elif self._held & ALONE:
            self._held &= ~ALONE
            self._line.wait()

    # ---- what is read ----

    def took(self, commands: Sequence[Command]) -> None:
        """Serves what a network thread has read and the core does not serve (links.py)."""
        self.reads += 1
        self.touch()
        entered = self._turns.enter()
        self._shared.reading = True
        try:
            self._serve(commands)
            self.flush()
        finally:
            self._shared.reading = False
            if entered:
                self._turns.leave()

    def _serve(self, commands: Sequence[Command]) -> None:
        self._gathering = True
        try:
            for command in commands:
                if command.flag & RESPONSE:  # a request in progress may wait for it
                    self._outstanding.settle(command)
                elif self._held & BUSY or self._backlog or self._closing or self._turns.over:
                    self._backlog.append(command)
                    self._weigh(command)
                else:
                    self._dispatch(command)
        finally:
            self._gathering = False
        if self._backlog:
            if len(self._backlog) >= self._shared.limits.in_work_max:
                self._hold(FULL)
            if not self._held & BUSY and not self._closing:
                self._line.wait()

    def _dispatch(self, command: Command) -> None:
        if self._leaving and self._turned_away(command):
            return
        handler = self._handlers.get(command.code)
        if handler is None:
            self._answer(command, unsupported(command))
            return
        served = served_request.set((self.address, command.opaque, command.code))
        try:
            self._call(handler, command)
        finally:
            served_request.reset(served)

    def _call(self, handler: Handler, command: Command) -> None:
        watchdog = self._shared.watchdog
        try:
            if watchdog is None:
                answer = handler(self, command)
            else:
                answer = watchdog.call(handler, self, command)
        except Exception as error:  # noqa: BLE001 - reported to the caller
            self._answer(command, self._refusal(command, error))
            return
        if answer is None:
            return
        if isinstance(answer, Command):
            self._answer(command, answer)
        else:
            self._start(command, answer)

    def _answer(self, request: Command, answer: Command) -> None:
        if request.flag & ONEWAY:
            if self._shared.times is not None:
                self._shared.times.answered(request.code, answer.code, request.came, oneway=True)
            return
        try:
            self.send(answer)
        except Exception as error:  # noqa: BLE001 - an answer that has no encoding
            self.send(self._refusal(request, error))

    def _refusal(self, request: Command, error: Exception) -> Command:
        if isinstance(error, Refused):
            return request.reply(error.code, error.remark[:REMARK_MAX])
        kind = (request.code, type(error))
        _quiet.error(kind, error, "Request %d from %s failed", request.code, self)
        remark = f"{type(error).__name__}: {error}"[:REMARK_MAX]
        return request.reply(ResponseCode.SYSTEM_ERROR, remark)

    def _start(self, command: Command, work: Awaitable[Command | None]) -> None:
        task = self._line.start(self._work(command, work))
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        if self._weigh(command):
            task.add_done_callback(lambda done: self._lighten(command))
        close = getattr(work, "close", None)
        if close is not None:
            task.add_done_callback(lambda done: close())  # it may not even have begun
        if len(self._tasks) >= self._shared.limits.in_work_max:
            self._hold(WORK)

    async def _work(self, command: Command, work: Awaitable[Command | None]) -> None:
        try:
            answer = await work
        except Exception as error:  # noqa: BLE001 - reported to the caller
            answer = self._refusal(command, error)
        if answer is not None:
            self._answer(command, answer)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if self._held & WORK and len(self._tasks) < self._shared.limits.in_work_max:
            self._release(WORK)

    def _lighten(self, command: Command) -> None:
        self._weigh(command, -1)
        if self._held & FULL and self._has_room and not self._closing:
            self._release(FULL)

    @property
    def _has_room(self) -> bool:
        return len(self._backlog) < self._shared.limits.in_work_max and self._asks < ASKED_MAX

    # ---- reading is held back while the peer does not read, or has enough in progress ----

    def _hold(self, why: int) -> None:
        self._held |= why
        self._steer()

    def _steer(self) -> None:
        """Reads, or stops reading."""
        transport = self._transport
        if transport is None or transport.is_closing() or self.paused == self._stopped:
            return
        self._stopped = self.paused
        if self._stopped:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _release(self, why: int) -> None:
        self._held &= ~why
        if self._line.waits:
            self._steer()
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Serves what has waited, as far as nothing holds it up and the turn has time."""
        backlog, turns = self._backlog, self._turns
        self._gathering = True
        try:
            while backlog and not self._held & BUSY and not self._closing and not turns.over:
                command = backlog.pop(0)
                self._weigh(command, -1)
                self._dispatch(command)
        finally:
            self._gathering = False
        self.flush()
        if self._held & FULL and self._has_room:
            self._held &= ~FULL
        if backlog and not self._held & BUSY and not self._closing:
            self._line.wait()
        elif not self.paused and not self._closing:
            self._take(0)
        self._steer()

    def drain(self) -> None:
        """Lets requests in progress be answered; in_work says when they are. A peer that asks for
        more and understands GO_AWAY gets that; others are served until the connection is closed."""
        self._leaving = True
        self._framer.delegate()

    def _turned_away(self, command: Command) -> bool:
        if command.version < GO_AWAY_VERSION or command.flag & ONEWAY:
            return False
        self._shared.turned_away += 1
        self._answer(command, command.reply(ResponseCode.GO_AWAY, "please go away"))
        return True

    @property
    def busy(self) -> bool:
        """Returns whether the peer does not read what was written to it, so that more would only
        wait."""
        return bool(self._held & WRITES)

    @property
    def open(self) -> bool:
        """Returns whether it is neither closed nor about to be."""
        transport = self._transport
        return not self._closing and transport is not None and not transport.is_closing()

    @property
    def reading(self) -> bool:
        """Returns whether this connection, or another one of the same server, works on what it has
        read."""
        return self._shared.reading

    @property
    def paused(self) -> bool:
        """Returns whether nothing is to be read for the moment."""
        return bool(self._held & PAUSED)

    @property
    def in_work(self) -> int:
        """Returns how many requests of the peer are not answered yet."""
        return len(self._tasks) + len(self._backlog) + self._framer.more

    # ---- what is written ----

    def send(self, command: Command) -> None:
        """Writes a frame: an answer, or a request that nobody waits for. It is dropped once
        closed."""
        if self._closing:
            return
        if not command.flag & RESPONSE and not command.opaque:
            command.opaque = self._outstanding.next_opaque()
        if command.asked >= 0 and self._shared.times is not None:
            self._shared.times.answered(command.asked, command.code, command.came)
        self.push(codec.encode(command))

    def push(self, frames: bytes) -> None:
        """Writes frames that are encoded already. They are dropped once closed."""
        if self._closing:
            return
        self.parts.append(frames)
        self._parts_bytes += len(frames)
        self._flush_some()

    def _flush_some(self) -> None:
        """Flushes at once what is much already, so that whoever writes it says whether it is read;
        else after what is read together."""
        if self._parts_bytes >= self._shared.limits.write_high:
            self.flush()
        elif not self._gathering:
            self._flush_soon()

    def _flush_soon(self) -> None:
        """Flushes at the next turn of the loop: answers of many tasks go out with one write."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Writes what was sent and what the framer has answered."""
        self._flush_due = False
        parts, transport = self.parts, self._transport
        if not parts or self._closing or transport is None:
            return
        self.parts, self._parts_bytes = [], 0
        self.seen = self._shared.wheel.now
        if transport.is_closing():
            return
        if len(parts) == 1:
            transport.write(parts[0])
        else:
            transport.writelines(parts)
        if self._held & WRITES:
            self.bound_unread(transport.get_write_buffer_size())

    def bound_unread(self, unsent: int) -> None:
        """Closes a connection whose peer leaves too much unread: see LinkConnection."""
        if unsent > self._shared.limits.unsent_max:
            self.abort("not read by its peer", f"{unsent} bytes")

    # ---- requests of ours ----

    async def request(self, command: Command, timeout: float) -> Command:
        """Sends a request of ours, whose opaque is set here, and waits for the answer.

        Raises: TimeoutError, ConnectionError."""
        if self._closing:
            raise ConnectionResetError(f"the connection to {self} is closed")
        future: asyncio.Future[Command] = self._loop.create_future()
        opaque = self._outstanding.add(command, future)
        timer = self._loop.call_later(timeout, self._late, opaque, command.code, timeout)
        try:
            self.send(command)
            answer = await future
        finally:
            timer.cancel()
            self._outstanding.forget(opaque)
        check_answer(command.code, answer)
        return answer

    def begin(self, command: Command, waiter: Waiter) -> int:
        """Sends a request of ours; `waiter` gets the answer, or the end of the connection. Its time
        is not limited. Returns its opaque. Raises: ConnectionError, BadFrame."""
        if self._closing:
            raise ConnectionResetError(f"the connection to {self} is closed")
        opaque = self._outstanding.add(command, waiter)
        try:
            self.push(codec.encode(command))
        except BaseException:
            self._outstanding.forget(opaque)
            raise
        return opaque

    def forget(self, opaque: int) -> None:
        """Forgets a request: nobody waits for its answer any more."""
        self._outstanding.forget(opaque)

    def begin_send(self, waiter: EitherWaiter, frame_of: Callable[[int], bytes]) -> None:
        """Does the same as begin() for a frame that is encoded elsewhere: frame_of(opaque) is
        called at once."""
        if self._closing:
            raise ConnectionResetError(f"the connection to {self} is closed")
        opaque = self._outstanding.add_send(waiter)
        try:
            frame = frame_of(opaque)
        except BaseException:
            self._outstanding.forget(opaque)
            raise
        self.push(frame)

    def next_opaque(self) -> int:
        """Returns the opaque of a send that goes to `near`."""
        return self._outstanding.next_opaque()

    def await_send(self, opaque: int, waiter: EitherWaiter) -> None:
        """Waits for the later answer of a send that `near` has taken."""
        self._outstanding.sends[opaque] = waiter

    def take_send(self, opaque: int) -> SendWaiter | None:
        return self._outstanding.sends.pop(opaque, None)

    def _late(self, opaque: int, code: int, timeout: float) -> None:
        self._outstanding.fail(
            opaque, TimeoutError(f"{self} did not answer the request {code} within {timeout:g} s")
        )

    def serve_raw(self, command: Command) -> bool:
        """Gives a request back to the core, which now may serve it, and returns whether it did."""
        before = len(self.parts)
        if self._closing or not self._framer.serve_raw(command):
            return False
        self._parts_bytes += sum(map(len, self.parts[before:]))
        self._flush_some()
        return True

    def keep_heartbeat(self, opaque: int, says_changed: bool) -> None:
        self._framer.keep_heartbeat(opaque, says_changed)

    def forget_heartbeat(self) -> None:
        self._framer.forget_heartbeat()

    @property
    def heartbeat_at(self) -> float:
        return self._framer.heartbeat_at

    def know(self) -> None:
        self._framer.know()

    def read_send(self, command: Command) -> AskedSend:
        return self._framer.read_send(command)

    def decide(self, command: Command, decision: PutDecision) -> PutOutcome | None:
        return None if self._closing else self._framer.decide(command, decision)

    # ---- the end ----

    def close(self) -> None:
        """Writes what was sent, then closes; a peer that does not read it is not waited for."""
        if self._closing or self._transport is None:
            return
        self.flush()
        self._closing = True
        self._backlog.clear()
        transport = self._transport
        if transport.get_write_buffer_size():
            self._loop.call_later(self._shared.limits.linger_s, transport.abort)
        transport.close()

    def abort(self, why: str, detail: str = "") -> None:
        """Closes at once; `why` is logged, once a minute for each kind."""
        if self._closing or self._transport is None:
            return
        self._closing = True
        self.log_end(why, detail)
        self._transport.abort()

    def log_end(self, why: str, detail: str = "") -> None:
        """Logs the end. `why` contains nothing that the peer chose, see RateLimitedLogger."""
        _quiet.warning(why, "Closed %s: %s%s", self, why, f" ({detail})" if detail else "")

    def log_idle(self) -> None:
        _quiet.info("idle", "Closed %s: idle", self)

    def kill(self) -> None:
        """Closes at once, although close() may be under way."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def cut(self) -> None:
        """Ends a connection whose opening failed. uvloop closes the socket of an opening that is
        cancelled, and does not tell."""
        self.kill()
        if self._transport is not None:
            self.connection_lost(None)

    def idle(self) -> None:
        """Closes the connection for the wheel: nothing was read or written for idle_s."""
        if not self._closing and self._transport is not None:
            self._closing = True
            self.log_idle()
            self._transport.abort()

    def __str__(self) -> str:
        return address_text(self.address)


def unsupported(command: Command) -> Command:
    return command.reply(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported"
    )


def _pair(name: Any) -> tuple[str, int]:
    """Returns an address as the system names it; sockets that are not internet sockets have
    none."""
    if isinstance(name, tuple) and len(name) >= 2:
        return str(name[0]), int(name[1])
    return "", 0
