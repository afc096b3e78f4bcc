"""Sockets that a network thread has handed to the event loop because they may begin with a PROXY
header (docs/internals/wire.md#connections).

The loop takes the header and not a byte more, and the thread takes the connection back, with the
address that the header names. What a thread would not serve stays unread and becomes a connection
of the loop: Opening (opening.py) says what is wrong with it, as at a port without threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from broker.hot.core import host_bytes
from broker.remoting.opening import (
    V1,
    V2,
    V2_HEAD,
    V2_MAX,
    ProxyHeader,
    begins_tls,
    proxied,
    source_of,
)
from broker.remoting.tls import TlsSettings
from broker.wire.codec import BadFrame
from pystore.native import ffi, lib

__all__ = ["Headers", "give_back", "may_be_header", "peek"]

_T = TypeVar("_T")
_FIRST = frozenset((V1[0], V2[0]))
#: A header in full, and a byte of what follows.
_PEEKED = V2_HEAD + V2_MAX + 1


def may_be_header(first: int) -> bool:
    """Returns whether a PROXY header begins with this byte; -1 is none."""
    return first in _FIRST


async def peek(sock: socket.socket, look: Callable[[bytes], _T | None]) -> _T | None:
    """Returns what `look` says of the first bytes, which stay unread; it says None while it needs
    more. None means that the connection was closed. Raises: OSError."""
    loop = asyncio.get_running_loop()
    seen = 0
    try:
        while True:
            try:
                data = sock.recv(_PEEKED, socket.MSG_PEEK)
            except BlockingIOError:
                await _readable(loop, sock)
                continue
            if len(data) == seen:  # there was news, and it is the end
                return None
            found = look(data)
            if found is not None:
                return found
            seen = len(data)  # which stays unread, and must not count as news again
            _wake_at(sock, seen + 1)
            await _readable(loop, sock)
    finally:
        _wake_at(sock, 1)


def give_back(first: Any, sock: socket.socket, source: tuple[str, int] | None) -> None:
    """Gives the socket to a network thread of the port whose first is `first`; None stands for the
    peer's own address."""
    host = host_bytes(source) if source is not None else b""
    name = f"{source[0]} {source[1]}" if source is not None else ""
    given = ffi.from_buffer(host)
    lib.ps_net_take_back(first, sock.detach(), given, len(host), name.encode())


class Headers:
    """The connections of a port whose header is being read. Everything happens on the loop."""

    def __init__(
        self,
        seconds: float,
        trusts: Callable[[str], bool],
        tls: TlsSettings,
        speaks_tls: Callable[[], Awaitable[bool]],
        give_back: Callable[[socket.socket, tuple[str, int] | None], None],
        serve: Callable[[socket.socket, float], None],
    ) -> None:
        """Takes connections whose header is to be read. seconds: the time for the first bytes.
        trusts: returns whether a header of a peer at this address is believed. speaks_tls: returns
        whether the threads do, once that is known. give_back: takes a connection whose header was
        taken, and for whom it speaks. serve: takes one that the loop serves, and what is left of
        the time."""
        self._seconds, self._trusts, self._tls = seconds, trusts, tls
        self._speaks_tls, self._give_back, self._serve = speaks_tls, give_back, serve
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], socket.socket] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def read(self, sock: socket.socket) -> None:
        """Takes a connection whose first byte may be that of a header."""
        if self._closed:
            sock.close()
            return
        sock.setblocking(False)
        task = self._loop.create_task(self._settle(sock))
        self._tasks[task] = sock
        task.add_done_callback(self._settled)

    def close(self) -> None:
        """Closes those that have not said enough, and all that come later."""
        self._closed = True
        for task in self._tasks:
            task.cancel()

    def _settled(self, task: asyncio.Task[None]) -> None:
        sock = self._tasks.pop(task, None)
        if sock is not None:  # it was cancelled, maybe before it began
            sock.close()

    async def _settle(self, sock: socket.socket) -> None:
        end = self._loop.time() + self._seconds
        found = None
        # The loop's own connection finds the same end, and says why.
        with contextlib.suppress(BadFrame, OSError):  # a TimeoutError is one
            async with asyncio.timeout_at(end):
                found = await self._look(sock)
                if found is not None:
                    sock.recv(found.size)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.pop(task, None)  # from now on somebody else counts it
        if found is None:
            self._serve(sock, max(0.0, end - self._loop.time()))
        else:
            self._give_back(sock, found.source)

    async def _look(self, sock: socket.socket) -> ProxyHeader | None:
        """Returns the header of a connection that the threads serve; it stays unread. None leaves
        it to the loop. Raises: BadFrame, OSError."""
        found = await peek(sock, proxied)
        if found is None or not found.size:
            return None
        peer = sock.getpeername()
        source_of(found, (str(peer[0]), int(peer[1])), self._trusts)
        size = found.size
        first = await peek(sock, lambda data: data[size] if len(data) > size else None)
        if first is None:
            return None
        if begins_tls(first, self._tls):
            return found if await self._speaks_tls() else None
        return found if first == 0 else None


def _wake_at(sock: socket.socket, count: int) -> None:
    """Makes the socket readable from now on when it has so many unread bytes, or its end."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)


async def _readable(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    future: asyncio.Future[None] = loop.create_future()

    def told() -> None:
        if not future.done():
            future.set_result(None)

    loop.add_reader(sock, told)
    try:
        await future
    finally:
        loop.remove_reader(sock)
