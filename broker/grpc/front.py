"""The port of the service. The first bytes of a connection tell TLS from plain text, after a PROXY
header if there is one; then it speaks HTTP/2 (http2.py). Where a network thread accepts (links.py),
it keeps those that begin with HTTP/2 or TLS, and the others come here; those that began with a
PROXY header go back once it is read.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

from broker.grpc.http2 import Address, CallsOfConnection, Http2Connection
from broker.grpc.links import GrpcThread
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.remoting.handed import peek
from broker.remoting.opening import ProxyHeader, begins_tls, context_of, proxied, source_of
from broker.remoting.tls import TlsSettings
from broker.wire.codec import BadFrame

__all__ = ["Front"]

_quiet = RateLimitedLogger(SafeLogger("broker.grpc"))

#: Seconds for the first bytes of a connection, its TLS handshake included.
_OPENING_S = 10.0
#: What tells HTTP/2 from anything else, after a PROXY header.
_HTTP2 = b"PRI"
#: Connections that are accepted before the loop does something else: each begins a task.
_ACCEPTED = 16

#: Makes the protocol of a client at this address; the future is set when it is closed.
Speak = Callable[[Address, asyncio.Future[None]], Http2Connection]
#: Starts the network thread that accepts; it hands over what it does not serve.
StartThread = Callable[[Callable[[socket.socket], None]], GrpcThread]


class Front:
    """sock: bound. speak: for each connection. trusts: whether a PROXY header of a peer at this
    address is believed. gone: told of each client whose connection is closed. start_thread: None:
    the loop serves all connections."""

    def __init__(
        self,
        sock: socket.socket,
        speak: Speak,
        tls: TlsSettings,
        connections_max: int,
        trusts: Callable[[str], bool],
        gone: Callable[[Address], None],
        start_thread: StartThread | None = None,
    ) -> None:
        self._sock = sock
        self._speak = speak
        self._tls = tls
        self._max = connections_max
        self._trusts = trusts
        self._gone = gone
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._start_thread = start_thread
        self._thread: GrpcThread | None = None
        self._on_the_loop: set[Http2Connection] = set()

    @property
    def connections(self) -> list[CallsOfConnection]:
        return [*self._on_the_loop, *(self._thread.connections if self._thread is not None else ())]

    @property
    def on_the_loop(self) -> list[Http2Connection]:
        """Those of them that the loop reads."""
        return list(self._on_the_loop)

    @property
    def calls(self) -> int:
        """Calls in progress."""
        waiting = self._thread.waiting if self._thread is not None else 0
        return waiting + sum(each.calls for each in self.connections)

    def start(self) -> None:
        """Starts to accept. Raises: OutOfMemory, StoreIOError."""
        self._sock.setblocking(False)
        self._sock.listen(1024)
        if self._start_thread is not None:
            self._thread = self._start_thread(self._take_over)
        else:
            self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def refuse(self) -> None:
        """Accepts nothing more."""
        if self._accepting is not None:
            self._accepting.cancel()
        if self._thread is not None:
            self._thread.deafen()

    async def stop(self) -> None:
        """Accepts nothing more, and closes what is open."""
        tasks = [*self._tasks]
        if self._accepting is not None:
            tasks.append(self._accepting)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._thread is not None:
            self._thread.stop()
        self._sock.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            for _ in range(_ACCEPTED):
                try:
                    sock, address = await loop.sock_accept(self._sock)
                except OSError as failed:
                    _quiet.warning("accept", "Cannot accept a gRPC connection: %s", failed)
                    await asyncio.sleep(1.0)
                    continue
                self._begin(sock, address)
            await asyncio.sleep(0)

    def _take_over(self, sock: socket.socket) -> None:
        """Takes a connection that the network thread does not serve."""
        try:
            address = sock.getpeername()
        except OSError:  # it was reset meanwhile
            sock.close()
            return
        self._begin(sock, address)

    def _begin(self, sock: socket.socket, address: tuple[Any, ...]) -> None:
        count = len(self._tasks) + (self._thread.count if self._thread is not None else 0)
        if count >= self._max:
            _quiet.warning(
                "too many connections", "%d gRPC connections are open; new ones are refused", count
            )
            sock.close()
            return
        serve = self._serve(sock, (str(address[0]), int(address[1])))
        task = asyncio.get_running_loop().create_task(serve)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        self._leave_room()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._leave_room()

    def _leave_room(self) -> None:
        if self._thread is not None:
            self._thread.leave_room(len(self._tasks))

    # ---- one connection ----

    async def _serve(self, sock: socket.socket, address: Address) -> None:
        """Ends with the connection."""
        try:
            with sock:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                async with asyncio.timeout(_OPENING_S):
                    found = await self._opened(sock, address)
                if found is not None:
                    await self._converse(sock, *found)
        except (OSError, TimeoutError, BadFrame, ssl.SSLError) as failed:
            _quiet.warning(
                type(failed), "Closed the gRPC connection of %s: %s", address[0],
                failed or "handshake timed out",
            )  # fmt: skip

    async def _opened(
        self, sock: socket.socket, address: Address
    ) -> tuple[Address, ssl.SSLContext | None] | None:
        """Returns whom a connection speaks for, and its TLS if there is any; None: it was closed,
        or is the network thread's."""
        found = await peek(sock, proxied)
        if found is None:
            return None
        address = source_of(found, address, self._trusts)
        if found.size:
            sock.recv(found.size)
        first = await peek(sock, _first_of)
        if first is None:
            return None
        tls = begins_tls(first[0], self._tls)
        if await self._is_given_back(sock, found, None if tls else first):
            return None
        if not tls:
            return address, None
        return address, await asyncio.to_thread(self._tls_context)  # it may have to be made

    async def _is_given_back(
        self, sock: socket.socket, header: ProxyHeader, first: bytes | None
    ) -> bool:
        """Gives a connection whose header was taken to the network thread, if that serves it.
        first: None: TLS follows."""
        thread = self._thread
        if thread is None or not header.size:
            return False
        if not (await thread.speaks_tls() if first is None else first == _HTTP2):
            return False
        thread.take_back(sock, header.source)
        return True

    def _tls_context(self) -> ssl.SSLContext:
        made = context_of(self._tls)
        made.set_alpn_protocols(["h2"])
        return made

    async def _converse(
        self, sock: socket.socket, address: Address, context: ssl.SSLContext | None
    ) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        connection = self._speak(address, ended)
        self._on_the_loop.add(connection)
        try:
            async with asyncio.timeout(_OPENING_S):
                own = socket.socket(fileno=sock.detach())
                try:
                    await loop.connect_accepted_socket(lambda: connection, own, ssl=context)
                except BaseException:
                    own.close()
                    connection.connection_lost(None)  # uvloop tells it nothing
                    raise
            await ended
        finally:
            self._on_the_loop.discard(connection)
            connection.close()
            self._gone(address)


def _first_of(data: bytes) -> bytes | None:
    """Returns what tells what a connection speaks; None: there is more to come."""
    return data[: len(_HTTP2)] if len(data) >= len(_HTTP2) or data[:1] != _HTTP2[:1] else None
