"""Connections that csrc/net owns, as the event loop sees them.

A network thread accepts, reads and writes them, in plain text and by TLS, and has the core serve
what it can without Python. A port without a core has no thread: the loop turns it (Events). What
needs Python comes here as events: each connection of the thread has a :class:`Connection` of its
own, whose transport writes through the thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any, cast

from broker.hot.core import Core, HotFramer, PullOutcome, command_of
from broker.loop.budget import Budget
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.loop.turns import PIECE_S
from broker.remoting.connection import Connection, Endpoint, Parts
from broker.remoting.tls import TlsSettings
from broker.wire.codec import BadFrame
from broker.wire.command import Command
from broker.wire.framer import Link, PlainFramer
from broker.wire.handlers import address_text
from pystore.errors import BadArgument, StoreError, UsedAfterFork
from pystore.native import ffi, lib, raise_error

__all__ = [
    "Events",
    "LinkTransport",
    "NetThreads",
    "TlsOfThreads",
    "end_of_unopened",
    "limit_openings",
    "popped_of_event",
    "text_of_event",
]

#: Events that are taken at once.
_ROWS = 256
#: Bytes of frames of one connection that wait for the loop; then it is not read from.
_QUEUED_BYTES = 16 << 20

_NO_ROOM = memoryview(bytearray())
_FRAME = lib.PS_NET_FRAME

_quiet = RateLimitedLogger(SafeLogger("broker.remoting"))


class NetThreads:
    """The network threads of a port. Everything here happens on the event loop."""

    def __init__(
        self,
        core: Core | None,
        numbers: range,
        sock: socket.socket,
        shared: Endpoint,
        over: Endpoint,
        tls: TlsSettings,
        delegated: int = 0,
    ) -> None:
        """Starts threads of these numbers, which no other port of the core has; without a core
        there are none, whatever `numbers` says. `sock` listens; `over` is for connections that are
        too many, and `delegated` has the PS_DELEGATE_ bits of what the core does not serve.

        Raises: OutOfMemory, StoreIOError."""
        self.core, self.shared, self.over, self.delegated = core, shared, over, delegated
        self.tls = TlsOfThreads(tls)
        self.loop = asyncio.get_running_loop()
        self._stopped = False
        self._pid = os.getpid()
        self.budget = Budget.of(self.loop)
        #: The first accepts.
        self._threads: list[NetThread] = []
        try:
            for number in numbers if core is not None else range(1, 2):
                first = self._threads[0] if self._threads else None
                self._threads.append(NetThread(self, number, sock, first))
        except StoreError:
            self._end()
            raise
        self._first = self._threads[0].handle
        self.tls.start(self._first)
        #: The first port of a core answers what it holds.
        self._answers = core is not None and numbers[0] == 1
        if core is not None and self._answers:
            core.served_by(self)

    # ---- what the core asks for ----

    def look(self, everything: bool) -> None:
        """Answers the held pulls that have something to be answered with; with `everything` each of
        them is answered now. Raises: UsedAfterFork."""
        self._check_process()
        lib.ps_net_look(self._first, everything)

    def _check_process(self) -> None:
        """Checks that this is the process that made them: a child that was forked has none of the
        threads, and would wait for them for ever."""
        if os.getpid() != self._pid:
            raise UsedAfterFork(f"the network threads are those of the process {self._pid}")

    # ---- connections ----

    @property
    def count(self) -> int:
        """Returns the connections of the port, those that have not said anything and those within
        the process among them."""
        links = sum(len(each.links) for each in self._threads) - len(self.over.connections)
        return int(lib.ps_net_links(self._first)) + len(self.shared.connections) - links

    @property
    def reads(self) -> int:
        """Returns how often the threads have read from a connection."""
        return sum(int(lib.ps_net_turns(each.handle)) for each in self._threads)

    def refuse(self) -> Endpoint:
        """Returns the endpoint of one that is too many."""
        _quiet.warning(
            "too many connections", "%d connections are open; new ones are refused", self.count
        )
        return self.over

    # ---- the end ----

    def deafen(self) -> None:
        """Accepts no further connections. Raises: UsedAfterFork."""
        self._check_process()
        lib.ps_net_deafen(self._first)

    def stop(self) -> None:
        """Ends the threads and what connections are left. Raises: UsedAfterFork."""
        self._check_process()
        self._stopped = True
        self._end()

    def _end(self) -> None:
        self.tls.stop()
        for each in self._threads:
            each.stop()
        for each in self._threads:
            each.take_all()
        if self.core is not None and self._stopped and self._answers:
            self.core.served_by(None)
        for each in reversed(self._threads):
            each.free()


class NetThread:
    """One network thread and its connections. Everything here happens on the event loop."""

    def __init__(
        self, port: NetThreads, number: int, sock: socket.socket, first: NetThread | None
    ) -> None:
        """Starts the thread with this `number`, from 1 on. `first` accepts for it; None means that
        it does so itself, on `sock`.

        Raises: OutOfMemory, StoreIOError."""
        self._port, self._core, self._shared = port, port.core, port.shared
        self._loop = port.loop
        #: By the number that no other link has.
        self.links: dict[int, LinkConnection] = {}
        error = ffi.new("ps_error *")
        conf = _conf(number, port)
        limits = port.shared.limits
        self._proxies = limit_openings(conf, port.tls, limits.proxies, limits.opening_s)
        listens, accepts = (sock.fileno(), ffi.NULL) if first is None else (-1, first.handle)
        #: ps_net *; None after the end.
        core = port.core.handle if port.core is not None else ffi.NULL
        self.handle: Any = lib.ps_net_start(core, conf, listens, accepts, error)
        if self.handle == ffi.NULL:
            raise_error(error[0])
        self._does = {
            lib.PS_NET_OPENED: self._opened,
            lib.PS_NET_CLOSED: self._closed,
            lib.PS_NET_UNREAD: self._unread,
            lib.PS_NET_RESTING: self._resting,
            lib.PS_NET_UNOPENED: self._unopened,
            lib.PS_NET_TLS_WANTED: self._tls_wanted,
        }
        if port.core is not None:
            self._does |= _events_of_core(port.core)
        self._events = Events(self.handle, self._take)

    # ---- the end ----

    def stop(self) -> None:
        """Ends the thread; of all threads of a port the first one ends before the others."""
        self._events.stop()
        lib.ps_net_stop(self.handle)

    def take_all(self) -> None:
        """Takes the events that are left after stop()."""
        self._events.take_all()

    def free(self) -> None:
        """Frees it, after all threads of the port were stopped; the first one is freed last."""
        for connection in list(self.links.values()):
            connection.connection_lost(None)
        self.links.clear()
        handle, self.handle = self.handle, None
        lib.ps_net_free(handle)

    # ---- events ----

    def _take(self, rows: Iterator[Any]) -> None:
        frames: list[Command] = []
        last: LinkConnection | None = None
        for row in rows:
            kind, connection = row.kind, self.links.get(row.link_id)
            if frames and (kind != _FRAME or connection is not last):
                self._serve(last, frames)
                frames = []
            if kind == _FRAME:
                last = connection
                self._read(connection, row, frames)
            else:
                self._does[kind](connection, row)
        if frames:
            self._serve(last, frames)

    def _read(self, connection: LinkConnection | None, row: Any, frames: list[Command]) -> None:
        if connection is None:
            return
        try:
            frames.append(command_of(row))
        except BadFrame as bad:
            connection.abort("malformed frame", str(bad))

    def _serve(self, connection: LinkConnection | None, frames: Sequence[Command]) -> None:
        if connection is not None:
            connection.took(frames)

    def _opened(self, _: LinkConnection | None, row: Any) -> None:
        host, port, own, own_port = text_of_event(row).split(" ")
        shared = self._port.refuse() if row.number else self._shared
        made = LinkConnection(shared, row.link, self._core)
        transport = LinkTransport(
            row.link, (host, int(port)), (own, int(own_port)), made.pause_writing,
        )  # fmt: skip
        self.links[row.link_id] = made
        made.connection_made(transport)

    def _closed(self, connection: LinkConnection | None, row: Any) -> None:
        if connection is None:
            return
        del self.links[row.link_id]
        why, _, detail = text_of_event(row).partition(": ")
        if why == "idle":
            connection.log_idle()
        elif why:
            connection.log_end(why, detail)
        connection.connection_lost(None)

    def _unread(self, connection: LinkConnection | None, row: Any) -> None:
        if connection is None:
            return
        if row.value:
            connection.pause_writing()
        else:
            connection.resume_writing()

    def _resting(self, _: LinkConnection | None, row: Any) -> None:
        _quiet.warning("accept", "Cannot accept connections: %s", os.strerror(row.number))

    def _tls_wanted(self, _: LinkConnection | None, row: Any) -> None:
        self._port.tls.prepare()

    def _unopened(self, _: LinkConnection | None, row: Any) -> None:
        peer, why, detail = end_of_unopened(row)
        _quiet.warning(why, "Closed %s: %s%s", peer, why, f" ({detail})" if detail else "")


def _events_of_core(core: Core) -> dict[int, Callable[[LinkConnection | None, Any], None]]:
    """Returns what is done at events of the core itself."""

    def answers(_: LinkConnection | None, row: Any) -> None:
        core.push(row.value, bytes(ffi.buffer(row.data, row.len)))

    def pop_due(_: LinkConnection | None, row: Any) -> None:
        if core.on_pop_due is not None:
            core.on_pop_due(row.value)

    def pulled(connection: LinkConnection | None, row: Any) -> None:
        raw = row.pulled
        found = PullOutcome(raw.opaque, raw.code, raw.count, raw.bytes)
        core.tell_pulled(connection, row.value, found)

    return {
        lib.PS_NET_ANSWERS: answers,
        lib.PS_NET_WAITED: lambda _, row: core.tell_outcome(row.value, row.number),
        lib.PS_NET_POP_DUE: pop_due,
        lib.PS_NET_POPPED: lambda _, row: core.tell_popped(*popped_of_event(row)),
        lib.PS_NET_NEWS: lambda _, row: core.tell_news(),
        lib.PS_NET_PULLED: pulled,
    }


def end_of_unopened(row: Any) -> tuple[str, str, str]:
    """Returns the peer's address of a PS_NET_UNOPENED, the kind of its end, and its cause."""
    peer, why, detail, *_ = (text_of_event(row) + "\n").split("\n")
    host, _, port = peer.partition(" ")
    return address_text((host, port)), why, detail


def popped_of_event(row: Any) -> tuple[int, bytes, Any]:
    """Returns what Core.tell_popped() takes."""
    names = bytes(ffi.buffer(row.data, row.len))
    return 0 if row.number else row.value, names, row.call.found


def _conf(number: int, port: NetThreads) -> Any:
    limits = port.shared.limits
    made = ffi.new("ps_net_conf *")
    made.number = number
    made.links_max = limits.connections_max
    made.queued_max = limits.in_work_max
    made.queued_bytes = max(_QUEUED_BYTES, limits.frame_max)
    made.frame_max = limits.frame_max
    made.write_high, made.write_low = limits.write_high, limits.write_low
    made.unsent_max = limits.unsent_max
    made.budget, made.delegated = port.budget.handle, port.delegated
    made.idle_ms = int(limits.idle_s * 1000)
    made.linger_ms = int(limits.linger_s * 1000)
    return made


def limit_openings(
    conf: Any, tls: TlsOfThreads, proxies: Sequence[tuple[int, int, int]], opening_s: float
) -> Any:
    """Sets what a ``ps_net_conf *`` says of first bytes, and returns what must live as long as the
    threads. proxies: as Limits has them."""
    runs = ffi.new("ps_net_run[]", len(proxies))
    for run, (version, low, high) in zip(runs, proxies, strict=True):
        run.width = width = 4 if version == 4 else 16
        run.low[0:width], run.high[0:width] = low.to_bytes(width), high.to_bytes(width)
    conf.proxies, conf.proxies_len = runs, len(proxies)
    conf.opening_ms = int(opening_s * 1000)
    conf.tls_only = tls.is_enforced
    return runs


class TlsOfThreads:
    """What a port of network threads knows of TLS. A certificate of our own is made, beside the
    loop, when the first client asks for it, and clients wait for that."""

    def __init__(self, tls: TlsSettings) -> None:
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        #: What the threads use.
        self._spoken: Any = None
        self._first: Any = None
        self._making: asyncio.Task[None] | None = None
        #: Why there is none, as in a PS_NET_UNOPENED.
        self._refusal = "TLS refused: tls.server.mode is disabled"

    @property
    def is_enforced(self) -> bool:
        """Returns whether plain text is refused."""
        return self._tls.mode == "enforcing"

    def start(self, first: Any) -> None:
        """Starts, once, with the first thread of the port (``ps_net *``)."""
        self._first = first
        self._tls.listeners.append(self._made_anew)
        if self._is_disabled or self._tls.made is not None:
            self._speak()

    def _made_anew(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._speak)

    @property
    def _is_disabled(self) -> bool:
        return self._tls.mode == "disabled"

    def prepare(self) -> None:
        """Prepares the context, since a client waits for TLS."""
        self._making = asyncio.get_running_loop().create_task(self._make())

    async def _make(self) -> None:
        try:
            await asyncio.to_thread(self._tls.prepare)
        except BadArgument as missing:
            self._refusal = f"TLS refused\n{missing.text}"
        self._speak()

    def _speak(self) -> None:
        """Lets the threads speak TLS, or has them refuse it."""
        if self._first is None:
            return
        made = None if self._is_disabled else self._tls.made
        spoken = made if made is not None else ffi.NULL
        lib.ps_net_speak_tls(self._first, spoken, self._refusal.encode())
        self._spoken = spoken

    def stop(self) -> None:
        """Stops; to be called before the threads end."""
        if self._first is not None:
            self._tls.listeners.remove(self._made_anew)
        self._first = None


class Events:
    """The events of a network thread, taken on the running loop for as long as a piece of work may
    take: long frames are copied, and hundreds of connections may end at once. The rest waits. Of a
    port without a core, the sockets are read as well whenever events are asked for."""

    def __init__(self, handle: Any, take: Callable[[Iterator[Any]], None]) -> None:
        """Watches a thread. handle: a ``ps_net *``. take: looks at every ``ps_net_event`` that it
        is given."""
        self._handle, self._take = handle, take
        self._loop = asyncio.get_running_loop()
        self._stopped = self._due = False
        self._rows = ffi.new("ps_net_event[]", _ROWS)
        #: Events that were not looked at yet; their bytes stay until the next are asked for.
        self._waiting: deque[Any] = deque()
        #: How many there were when they were asked for last.
        self._count = 0
        self._loop.add_reader(lib.ps_net_event_fd(handle), self._ready)

    def stop(self) -> None:
        """Takes no more by itself."""
        self._stopped = True
        self._loop.remove_reader(lib.ps_net_event_fd(self._handle))

    def take_all(self) -> None:
        """Takes what is left once the thread has ended."""
        while self._take_some() or self._count:
            pass

    def _ready(self) -> None:
        if not self._due:  # one piece in a turn of the loop, however often the thread tells of more
            self._go_on()

    def _go_on(self) -> None:
        self._due = not self._stopped and self._take_some()
        if self._due:
            self._loop.call_soon(self._go_on)

    def _take_some(self) -> bool:
        """Returns whether there may be more."""
        if not self._waiting:
            self._count = lib.ps_net_events(self._handle, self._rows, _ROWS)
            self._waiting.extend(self._rows[0 : self._count])
        self._take(self._piece())
        return bool(self._waiting) or self._count == _ROWS

    def _piece(self) -> Iterator[Any]:
        until = monotonic() + PIECE_S
        while self._waiting and monotonic() < until:
            yield self._waiting.popleft()


def text_of_event(row: Any) -> str:
    """Returns the data of a ``ps_net_event`` as text."""
    return bytes(ffi.buffer(row.data, row.len)).decode() if row.len else ""


class LinkTransport(asyncio.Transport):
    """Writes through the network thread."""

    def __init__(
        self,
        link: Any,
        peer: tuple[str, int],
        local: tuple[str, int],
        paused: Callable[[], None] | None = None,
    ) -> None:
        """Takes a link. paused: called as soon as too much is unsent; an event says when there is
        room again."""
        super().__init__({"peername": peer, "sockname": local})
        self._link = link
        self._closing = False
        self._paused, self._high = paused, 0

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._link is not None:
            given = data if type(data) is bytes else ffi.from_buffer(data)
            unsent = lib.ps_link_write(self._link, given, len(data))
            if self._paused is not None and unsent > self._high:
                self._paused()

    def writelines(self, parts: Parts) -> None:  # type: ignore[override]
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return 0 if self._link is None else int(lib.ps_link_unsent(self._link))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Keeps the upper one; the thread has them already (ps_net_conf)."""
        self._high = high or 0

    def pause_reading(self) -> None:
        if self._link is not None:
            lib.ps_link_reading(self._link, False)

    def resume_reading(self) -> None:
        if self._link is not None:
            lib.ps_link_reading(self._link, True)

    def close(self) -> None:
        self._end(False)

    def abort(self) -> None:
        self._end(True)

    def _end(self, now: bool) -> None:
        self._closing = True
        if self._link is not None:
            lib.ps_link_close(self._link, now)

    def forget(self) -> None:
        """Notes that the connection has ended."""
        self._link, self._closing = None, True


class LinkFramer(HotFramer):
    """The Framer of a connection whose bytes the network thread reads."""

    __slots__ = ("_link",)

    def __init__(self, core: Core, connection: Link, link: Any) -> None:
        conn = lib.ps_link_conn(link)
        super().__init__(core, connection, int(lib.ps_conn_id(conn)))
        self._conn, self._link, self._part = conn, link, False
        core.know_framer(self._id, self)

    def received(self, count: int) -> Sequence[Command]:
        return ()

    def direct(self) -> tuple[int, int] | None:
        return None

    def close(self) -> None:
        self._conn = None
        self._core.forget_framer(self._id)
        link, self._link = self._link, None
        if link is not None:
            lib.ps_link_forget(link)


class FramedLink(PlainFramer):
    """The same without a core: every command is handed on."""

    __slots__ = ("_link",)

    def __init__(self, link: Any) -> None:
        super().__init__(_NO_ROOM)
        self._link = link

    def received(self, count: int) -> Sequence[Command]:
        return ()

    def know(self) -> None:
        if self._link is not None:
            lib.ps_link_know(self._link)

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            lib.ps_link_forget(link)


class LinkConnection(Connection):
    """A connection of the network thread, as processors see it."""

    __slots__ = ("_link",)

    def __init__(self, shared: Endpoint, link: Any, core: Core | None) -> None:
        #: None after its end.
        self._link = link
        super().__init__(
            shared,
            framer=lambda made: LinkFramer(core, made, link) if core else FramedLink(link),
        )

    def count(self, more: int) -> None:
        """Counts bytes more of its requests, over all of which csrc/net has one limit."""
        if self._link is not None:
            lib.ps_link_hold(self._link, more)

    def bound_unread(self, unsent: int) -> None:
        """Does nothing: csrc/net closes it."""

    def connection_lost(self, error: Exception | None) -> None:
        self._link = None
        cast(LinkTransport, self._transport).forget()
        super().connection_lost(error)
