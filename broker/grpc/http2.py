"""The calls of one connection: they become tasks, and what these reply goes back. They come from
csrc/net, which owns the connection (links.py).

A client that does not read is not read from. A call whose replies wait to be sent pauses; one that
its client has given up, or whose time is over, is cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from broker.loop.turns import Line, Turns

__all__ = ["INTERNAL", "MUCH", "Address", "CallsOfConnection", "Serving", "Stream"]

Address = tuple[str, int]
#: Kinds of events, statuses of gRPC, and bytes of replies that wait: csrc/http2/http2.h.
_CALL, _MESSAGE, _END, _RESET, _DRAINED, _ASK = 1, 2, 3, 4, 5, 6
_CANCELLED, _DEADLINE_EXCEEDED, INTERNAL, _UNAVAILABLE = 1, 4, 13, 14
MUCH = 256 << 10
#: Events that are taken together: what tickets stand for is served once for all of them.
_TOGETHER = 64
#: Clients that mean for ever say so in years.
_DEADLINE_MAX_S = 86400.0 * 30


class Stream:
    """One call in progress. metadata: by lower-case name. deadline: monotonic seconds."""

    __slots__ = (
        "_arrived", "_connection", "_drained", "_end", "_queue", "deadline", "id", "metadata",
        "task", "timer",
    )  # fmt: skip

    def __init__(
        self,
        connection: CallsOfConnection,
        id: int,
        metadata: dict[str, str],
        deadline: float | None,
    ) -> None:
        self._connection = connection
        self.id = id
        self.metadata = metadata
        self.deadline = deadline
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None
        self._arrived: asyncio.Future[None] | None = None
        self._queue: deque[bytes] | None = None
        self._end = False

    @property
    def address(self) -> Address:
        return self._connection.address

    def hold(self, more: int) -> None:
        """Counts bytes that wait for the client here among those of its connection."""
        self._connection.hold(more)

    # ---- replies ----

    async def write(self, data: bytes) -> None:
        """Writes one of several replies. Returns once the next one may come."""
        waiting = self._connection.send(self.id, data, False)
        if waiting < MUCH:
            return
        self._drained = asyncio.get_running_loop().create_future()
        try:
            await self._drained
        finally:
            self._drained = None

    def reply(self, data: bytes) -> None:
        """Writes the only reply."""
        self._connection.send(self.id, data, True)

    def finish(self, status: int = 0, text: str | None = None) -> None:
        self._connection.finish(self.id, status, text)

    def drained(self) -> None:
        _wake(self._drained)

    # ---- requests of a stream ----

    def arrived(self, data: bytes | None) -> None:
        """Takes what has come. data: None at the end of all."""
        if data is None:
            self._end = True
        else:
            if self._queue is None:
                self._queue = deque()
            self._queue.append(data)
        _wake(self._arrived)

    async def requests(self) -> AsyncIterator[bytes]:
        """Yields the requests. Each counts as served when the next one is asked for."""
        while True:
            while self._queue:
                data = self._queue.popleft()
                yield data
                self._connection.taken(self.id, len(data))
            if self._end:
                return
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


#: Serves a call: its stream, which method, its request (empty: they come one by one), and what a
#: network thread has popped for it, else None.
Serve = Callable[[Stream, int, bytes, Any], Coroutine[Any, Any, None]]


#: Whether a long request of this method, address, metadata and deadline may come: None, or the
#: reply that refuses it.
Admit = Callable[[int, Address, dict[str, str], float | None], Coroutine[Any, Any, bytes | None]]
#: Whether this metadata proves who the client is.
Proves = Callable[[Address, dict[str, str]], bool]


class Serving(NamedTuple):
    """What calls are served by. serve: must finish each stream."""

    serve: Serve
    admit: Admit
    proves: Proves


class Calls(Protocol):
    """The session of a connection, as the calls need it."""

    def events(self, most: int, /) -> list[tuple[Any, ...]]:
        """Returns what has happened next, so many at most: kind (of csrc/http2/http2.h), stream,
        request; of a call, and of one that asks to be admitted, also method, metadata (not to be
        changed) and the seconds that the client waits (-1: for ever)."""

    def send(self, stream: int, reply: bytes, last: bool, /) -> int:
        """Sends a reply. Returns how many bytes of the call wait to be sent; -1: it is over."""

    def finish(self, stream: int, status: int, text: str | None, /) -> None:
        """Ends a call with a status of gRPC."""

    def admit(self, stream: int, /) -> None:
        """Lets a long request come."""

    def taken(self, stream: int, size: int, /) -> None:
        """Notes that one request of so many bytes was served."""

    def go_away(self) -> None:
        """Tells the client to begin no more calls here."""

    def hold(self, more: int, /) -> None:
        """Counts so many bytes more that the connection holds."""


class CallsOfConnection:
    """The calls of a connection, whoever reads and writes it."""

    def __init__(self, session: Calls, address: Address, serving: Serving) -> None:
        self.address = address
        self._calls = session
        self._serving = serving
        #: Of the last call.
        self._metadata: dict[str, str] = {}
        self._known = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, Stream] = {}
        self._turns = Turns.of(self._loop)
        self._line = Line(self._turns, self._turn)
        #: What has happened, and waits for a turn.
        self._events: deque[tuple[Any, ...]] = deque()

    @property
    def known(self) -> bool:
        """Access control lets the client of the last call in. Looked at when memory is short."""
        if not self._known and self._metadata:
            self._known = self._serving.proves(self.address, self._metadata)
        return self._known

    @property
    def calls(self) -> int:
        """The number of calls in progress."""
        return len(self._streams)

    def close(self) -> None:
        """Closes the connection; what was written is still sent."""
        if self._transport is not None:
            self._transport.close()

    def leave(self) -> None:
        """Tells the client to begin no more calls."""
        self._calls.go_away()

    def give_up(self) -> None:
        """Ends the calls in progress."""
        for stream in list(self._streams.values()):
            self.finish(stream.id, _UNAVAILABLE, "the server is stopping")
            self._drop(stream)

    def _lost(self) -> None:
        """Ends the calls, since the connection has ended."""
        self._transport = None
        self._line.close()
        self._events.clear()
        for stream in list(self._streams.values()):
            self._drop(stream)

    def _served(self, metadata: dict[str, str]) -> None:
        """Notes that a call was served, or begins to be."""

    def _turn(self) -> None:
        """Goes on with what waits in the line."""
        raise NotImplementedError

    # ---- calls ----

    def _handle(self) -> None:
        """Handles what has happened; what the turn has no time for waits, and nothing is read
        before."""
        events, turns = self._events, self._turns
        over = False
        while not over:
            if not events:
                events.extend(self._calls.events(_TOGETHER))
                if not events:
                    return
            while events and not over:
                self._happened(events.popleft())
                over = turns.over
        self._wait()

    def _happened(self, event: tuple[Any, ...]) -> None:
        kind, number, data, *rest = event
        if kind == _CALL:
            method, metadata, timeout_s, *found = rest
            self._begin(number, data or b"", method, metadata, timeout_s, *found)
            return
        if kind == _ASK:
            method, metadata, timeout_s = rest
            self._line.start(self._ask(number, method, metadata, timeout_s))
            return
        stream = self._streams.get(number)
        if stream is None:
            return
        if kind == _MESSAGE:
            stream.arrived(data or b"")
        elif kind == _END:
            stream.arrived(None)
        elif kind == _DRAINED:
            stream.drained()
        elif kind == _RESET:
            self._drop(stream)

    def _wait(self) -> None:
        self._line.wait()
        if self._transport is not None:
            self._transport.pause_reading()

    async def _ask(
        self, number: int, method: int, metadata: dict[str, str], timeout_s: float
    ) -> None:
        """Lets a long request come, or answers it before its bytes are read."""
        deadline = time.monotonic() + timeout_s if 0 <= timeout_s < _DEADLINE_MAX_S else None
        refusal = await self._serving.admit(method, self.address, metadata, deadline)
        if refusal is None:
            self._calls.admit(number)
        else:
            self.send(number, refusal, True)

    def _begin(
        self, number: int, data: bytes, method: int, metadata: dict[str, str], timeout_s: float,
        found: Any = None,
    ) -> None:  # fmt: skip
        self._metadata = metadata
        deadline = time.monotonic() + timeout_s if 0 <= timeout_s < _DEADLINE_MAX_S else None
        stream = self._streams[number] = Stream(self, number, metadata, deadline)
        if deadline is not None:
            stream.timer = self._loop.call_later(timeout_s, self._expire, stream)
        serve = self._serving.serve(stream, method, data, found)
        stream.task = task = self._line.start(serve)
        task.add_done_callback(lambda done: self._done(stream, done))

    def _done(self, stream: Stream, task: asyncio.Task[None]) -> None:
        stream.task = None  # one that was cancelled refers to the frames that refer to the stream
        if stream.timer is not None:
            stream.timer.cancel()
        self._streams.pop(stream.id, None)
        self._served(stream.metadata)
        if task.cancelled():
            self.finish(stream.id, _CANCELLED, None)
        elif task.exception() is not None:
            self.finish(stream.id, INTERNAL, str(task.exception()))

    def _drop(self, stream: Stream) -> None:
        if stream.task is not None:
            stream.task.cancel()

    def _expire(self, stream: Stream) -> None:
        self.finish(stream.id, _DEADLINE_EXCEEDED, "the call's deadline is over")
        self._drop(stream)

    # ---- what streams ask for ----

    def send(self, number: int, data: bytes, last: bool) -> int:
        stream = self._streams.get(number) if last else None
        if stream is not None:  # before its client can call again
            self._served(stream.metadata)
        return self._calls.send(number, data, last)

    def finish(self, number: int, status: int, text: str | None) -> None:
        self._calls.finish(number, status, text)

    def taken(self, number: int, size: int) -> None:
        self._calls.taken(number, size)

    def hold(self, more: int) -> None:
        self._calls.hold(more)
