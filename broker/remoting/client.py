"""Asks servers: one connection an address, made when it is needed and again after it went."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable

from broker.loop.lifetime import Closing
from broker.remoting.connection import Connection, Endpoint, Limits
from broker.remoting.server import Told
from broker.remoting.tls import reason_of
from broker.wire.codes import ResponseCode
from broker.wire.command import ONEWAY, Command
from broker.wire.framer import FramerFactory
from broker.wire.handlers import Handlers

__all__ = ["Connector", "RemotingClient", "parse_address"]

#: Connects what its second argument makes to an address without a socket; None: it cannot.
Connector = Callable[[str, Callable[[], Connection]], Connection | None]

#: Less than the servers' 120 s: a request must not meet a connection that is being closed.
IDLE_S = 100.0


def parse_address(address: str) -> tuple[str, int]:
    """Returns host and port of ``host:port`` or ``[v6]:port``. Raises: ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"'{address}' is not host:port")
    return host.strip("[]"), int(port)


class RemotingClient(Closing):
    """Sends requests to any number of servers. Requests of theirs go to ``handlers``.

    `tls` is a context of broker.remoting.tls.client_context; None speaks plain text. `connect_s`
    limits the time in which a connection comes about, its handshake included. `connector` is asked
    before a socket is made."""

    def __init__(
        self,
        handlers: Handlers | None = None,
        *,
        framer: FramerFactory | None = None,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        connect_s: float = 3.0,
        on_connect: Told | None = None,
        on_close: Told | None = None,
        connector: Connector | None = None,
    ) -> None:
        self._shared = Endpoint(
            handlers if handlers is not None else {},
            limits if limits is not None else Limits(idle_s=IDLE_S),
            framer,
            on_connect,
            on_close,
            ours=True,
        )
        self._tls = tls
        self._connector = connector
        self._connect_s = connect_s
        self._made: dict[str, Connection] = {}
        self._making: dict[str, asyncio.Task[Connection]] = {}
        self._closed = False

    async def request(self, address: str, command: Command, timeout: float = 3.0) -> Command:
        """Returns the answer of the server at ``host:port``, to which it connects if need be.

        A connection on which nothing came while a request timed out is closed: the server may have
        vanished silently, and the next request must not wait for it again.

        Raises: TimeoutError, ConnectionError, ValueError for a malformed address."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        connection = await self.connection(address, timeout)
        return await self.request_on(connection, command, max(0.0, end - loop.time()))

    async def request_on(
        self, connection: Connection, command: Command, timeout: float = 3.0
    ) -> Command:
        """Does the same over a connection that is there already. Raises: TimeoutError,
        ConnectionError."""
        reads = connection.reads
        try:
            return await connection.request(command, timeout)
        except TimeoutError:
            if connection.reads == reads:
                connection.abort("no response", f"request {command.code}")
            raise

    async def exchange(self, address: str, command: Command, timeout: float = 3.0) -> Command:
        """Does the same as request(), over another connection where the server is about to close
        this one."""
        answer = await self.request(address, command, timeout)
        if answer.code == ResponseCode.GO_AWAY:
            self.forget(address)
            answer = await self.request(address, command, timeout)
        return answer

    async def oneway(self, address: str, command: Command, timeout: float = 3.0) -> None:
        """Sends a request that nobody answers. Raises: as request()."""
        command.flag |= ONEWAY
        (await self.connection(address, timeout)).send(command)

    async def connection(self, address: str, timeout: float = 3.0) -> Connection:
        """Returns the connection to an address, made if there is none. Raises: as request()."""
        found = self._made.get(address)
        if found is not None and found.open:
            return found
        if self._closed:
            raise ConnectionError("the client is closed")
        task = self._making.get(address)
        if task is None:
            host, port = parse_address(address)
            task = asyncio.get_running_loop().create_task(self._connect(address, host, port))
            self._making[address] = task
            task.add_done_callback(lambda done: self._connected(address, done))
        # Others may wait for the same connection: one that gives up must not end it for them.
        done, _ = await asyncio.wait({task}, timeout=timeout)
        if not done:
            raise TimeoutError(f"{address} did not accept a connection within {timeout:g} s")
        if task.cancelled():
            raise ConnectionError("the client is closed")
        return task.result()

    def ready(self, address: str) -> Connection | None:
        """Returns the connection to an address if there is one that can be written to now."""
        found = self.connected(address)
        return found if found is not None and not found.busy else None

    def connected(self, address: str) -> Connection | None:
        """Returns the connection to an address if there is one."""
        found = self._made.get(address)
        return found if found is not None and found.open else None

    def forget(self, address: str) -> None:
        """Makes the next request open a new connection. Requests under way are still answered."""
        self._made.pop(address, None)

    def _connected(self, address: str, done: asyncio.Task[Connection]) -> None:
        self._making.pop(address, None)
        if not done.cancelled() and done.exception() is None:
            self._made[address] = done.result()

    async def _connect(self, address: str, host: str, port: int) -> Connection:
        if self._connector is not None:
            near = self._connector(address, lambda: Connection(self._shared))
            if near is not None:
                return near
        made = Connection(self._shared)
        try:
            await self._open(made, host, port)
        except TimeoutError:
            raise TimeoutError(
                f"{address} did not accept a connection within {self._connect_s:g} s"
            ) from None
        except ssl.SSLError as failed:
            raise ConnectionError(f"no TLS with {address}: {reason_of(failed)}") from None
        except ConnectionError as failed:
            refused = isinstance(failed, ConnectionRefusedError)  # nobody listens there
            kind = ConnectionRefusedError if refused else ConnectionError
            raise kind(f"no connection to {address}: {failed}") from failed
        except OSError as failed:  # names that nobody knows, networks that cannot be reached
            raise ConnectionError(f"no connection to {address}: {failed}") from failed
        return made

    async def _open(self, made: Connection, host: str, port: int) -> None:
        try:
            async with asyncio.timeout(self._connect_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: made, host, port, ssl=self._tls
                )
        except BaseException:
            made.cut()
            raise

    async def close(self) -> None:
        self._closed = True
        for task in list(self._making.values()):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        for connection in list(self._shared.connections):
            connection.close()
        for _ in range(100):
            if not self._shared.connections:
                break
            await asyncio.sleep(0.01)
        for connection in list(self._shared.connections):
            connection.kill()
        await asyncio.sleep(0)
        self._shared.wheel.close()
        self._made.clear()
