"""The port of the service. The first bytes of a connection tell TLS from plain text, after a PROXY
header if there is one; then everything goes on to the gRPC library, over a socket in a folder of
our own that nobody else can reach.

The library itself takes either TLS or plain text on a port. Each connection to it begins at a name
of its own, by which a call's client is found.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from broker.remoting.codec import BadFrame
from broker.remoting.opening import TLS_HANDSHAKE, V2_HEAD, V2_MAX, proxied
from broker.remoting.rate_limited_log import RateLimitedLogger
from broker.remoting.tls import TlsSettings
from pystore.errors import BadArgument

__all__ = ["Front"]

_quiet = RateLimitedLogger(logging.getLogger("broker.grpc"))

Address = tuple[str, int]
_T = TypeVar("_T")
#: Seconds for the first bytes of a connection, its TLS handshake included.
_OPENING_S = 10.0
_PAUSE_S = 0.01
_HIGH = 256 << 10


class Front:
    """sock: bound. inner: where the library listens. trusts: whether a PROXY header of a peer at
    this address is believed. gone: told of each client whose connection is closed."""

    def __init__(
        self,
        sock: socket.socket,
        inner: Path,
        tls: TlsSettings,
        connections_max: int,
        trusts: Callable[[str], bool],
        gone: Callable[[Address], None],
    ) -> None:
        self._sock = sock
        self._inner = inner
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self._max = connections_max
        self._trusts = trusts
        self._gone = gone
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._clients: dict[str, Address] = {}

    def address_of(self, peer: str) -> Address:
        """The client of a call, by what the library calls its peer."""
        return self._clients.get(peer.rpartition(":")[2], ("", 0))

    def start(self) -> None:
        self._sock.setblocking(False)
        self._sock.listen(1024)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def stop(self) -> None:
        """Accepts nothing more, and closes what is open."""
        tasks = [*self._tasks]
        if self._accepting is not None:
            tasks.append(self._accepting)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._sock.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(self._sock)
            except OSError as failed:
                _quiet.warning("accept", "Cannot accept a gRPC connection: %s", failed)
                await asyncio.sleep(1.0)
                continue
            if len(self._tasks) >= self._max:
                _quiet.warning(
                    "too many connections", "%d gRPC connections are open; new ones are refused",
                    len(self._tasks),
                )  # fmt: skip
                sock.close()
                continue
            task = loop.create_task(self._serve(sock, (str(address[0]), int(address[1]))))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

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
                    await self._relay(sock, *found)
        except (OSError, TimeoutError, BadFrame, ssl.SSLError) as failed:
            _quiet.warning(
                type(failed), "Closed the gRPC connection of %s: %s", address[0],
                failed or "handshake timed out",
            )  # fmt: skip

    async def _opened(
        self, sock: socket.socket, address: Address
    ) -> tuple[Address, ssl.SSLContext | None] | None:
        """Whom a connection speaks for, and its TLS if there is any; None: it was closed."""
        found = await self._peek(sock, proxied)
        if found is None:
            return None
        if found.size:
            if not self._trusts(address[0]):
                raise BadFrame("PROXY header refused: the peer is not in trustedProxies")
            sock.recv(found.size)
            address = found.source or address
        first = await self._peek(sock, lambda data: data[0])
        if first is None:
            return None
        if first == TLS_HANDSHAKE:
            if self._tls.mode == "disabled":
                raise BadFrame("TLS refused: tls.server.mode is disabled")
            if self._context is None:  # a certificate may have to be made
                self._context = await asyncio.to_thread(self._tls_context)
            return address, self._context
        if self._tls.mode == "enforcing":
            raise BadFrame("plain text refused: tls.server.mode is enforcing")
        return address, None

    def _tls_context(self) -> ssl.SSLContext:
        try:
            made = self._tls.server_context()
        except BadArgument as why:
            raise BadFrame(f"TLS refused: {why}") from None
        made.set_alpn_protocols(["h2"])
        return made

    @staticmethod
    async def _peek(sock: socket.socket, look: Callable[[bytes], _T | None]) -> _T | None:
        """What `look` says of the first bytes, which stay unread; it says None while it needs
        more. None: the connection was closed."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                data = sock.recv(V2_HEAD + V2_MAX, socket.MSG_PEEK)
            except BlockingIOError:
                await _readable(loop, sock)
                continue
            if not data:
                return None
            found = look(data)
            if found is not None:
                return found
            await asyncio.sleep(_PAUSE_S)  # what is there stays readable: nothing to wait for

    async def _relay(
        self, sock: socket.socket, address: Address, context: ssl.SSLContext | None
    ) -> None:
        loop = asyncio.get_running_loop()
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        inner.setblocking(False)
        inner.bind("")  # the system finds a name that nobody has
        name = inner.getsockname()[1:].decode("ascii")
        ended: asyncio.Future[None] = loop.create_future()
        near, far = _Half(ended), _Half(ended)
        near.other, far.other = far, near
        self._clients[name] = address
        try:
            try:
                await loop.sock_connect(inner, str(self._inner))
                await loop.create_unix_connection(lambda: far, sock=inner)
            except BaseException:
                inner.close()
                raise
            async with asyncio.timeout(_OPENING_S):
                own = socket.socket(fileno=sock.detach())
                try:
                    await loop.connect_accepted_socket(lambda: near, own, ssl=context)
                except BaseException:
                    own.close()
                    raise
            await ended
        finally:
            for half in (near, far):
                half.close()
            del self._clients[name]
            self._gone(address)


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


class _Half(asyncio.Protocol):
    """One end of a relayed connection: what it reads, the other end writes."""

    other: _Half

    def __init__(self, ended: asyncio.Future[None]) -> None:
        self._ended = ended
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's classes, but have their methods.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=_HIGH)
        for data in self._early:
            transport.write(data)
        self._early.clear()

    def data_received(self, data: bytes) -> None:
        self.other.write(data)

    def write(self, data: bytes) -> None:
        if self._transport is None:
            self._early.append(data)
        elif not self._transport.is_closing():  # uvloop's raises then, asyncio's does not
            self._transport.write(data)

    def pause_writing(self) -> None:
        self.other.pause(True)

    def resume_writing(self) -> None:
        self.other.pause(False)

    def pause(self, stop: bool) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if stop:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        with contextlib.suppress(asyncio.InvalidStateError):
            self._ended.set_result(None)
