"""A listening port, and what its connections ask (docs/internals/wire.md#connections)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping

from broker.hot.core import Core
from broker.loop.lifetime import Stopping
from broker.loop.watchdog import Watchdog
from broker.metrics.rpc import RpcTimes
from broker.remoting.connection import Connection, Endpoint, Limits
from broker.remoting.links import NetThreads
from broker.remoting.tls import TlsSettings
from broker.wire.codes import ResponseCode
from broker.wire.command import Command
from broker.wire.framer import FramerFactory
from broker.wire.handlers import Handler, Handlers, Peer, address_text

__all__ = ["RemotingServer", "listening_socket"]

DRAIN_STEP_S = 0.01

Told = Callable[[Connection], None]


class RemotingServer(Stopping):
    """A listening port and its connections: ``await start()``, ``await stop()``, or async with.

    `host` and `port` are where it listens; port 0 takes a free one, which ``port`` then says.
    `sock` is bound already and takes their place. `framer` makes the framer of each connection;
    None gives every request to the handlers. `on_connect` and `on_close` are called on the loop
    with each connection (a Peer); on_connect comes once its first bytes are understood. `watchdog`
    calls the handlers. `core` serves connections on network threads of these `numbers` (links.py),
    but for what `delegated` names (PS_DELEGATE_); without one the handlers serve everything.
    `times` measures what the handlers answer."""

    def __init__(
        self,
        handlers: Handlers,
        *,
        host: str = "0.0.0.0",
        port: int = 0,
        sock: socket.socket | None = None,
        framer: FramerFactory | None = None,
        tls: TlsSettings | None = None,
        limits: Limits | None = None,
        backlog: int = 1024,
        on_connect: Told | None = None,
        on_close: Told | None = None,
        watchdog: Watchdog | None = None,
        core: Core | None = None,
        numbers: range = range(1, 2),
        delegated: int = 0,
        times: RpcTimes | None = None,
    ) -> None:
        self.host = host
        self._port = port
        self._sock = sock
        self.limits = limits if limits is not None else Limits()
        self._tls = tls if tls is not None else TlsSettings()
        self._backlog = backlog
        self._shared = Endpoint(
            handlers, self.limits, framer, on_connect, on_close, watchdog, times=times
        )
        #: Of connections over the limit, which gets SYSTEM_BUSY for everything.
        self._over = Endpoint(_Busy(), Limits(frame_max=self.limits.frame_max), None)
        self._core = core
        self._numbers, self._delegated = numbers, delegated
        self._net: NetThreads | None = None
        self._listening: socket.socket | None = None

    @property
    def port(self) -> int:
        """Returns the port it listens on."""
        return self._port

    @property
    def connections(self) -> frozenset[Connection]:
        return frozenset(self._shared.connections)

    @property
    def connection_count(self) -> int:
        """Returns how many connections are open, those that have not said anything among them."""
        return len(self._shared.connections) if self._net is None else self._net.count

    @property
    def thread_count(self) -> int:
        """Returns how many network threads serve it."""
        return len(self._numbers) if self._net is not None and self._core is not None else 0

    @property
    def thread_reads(self) -> int:
        """Returns how often these have read from a connection."""
        return self._net.reads if self._net is not None else 0

    async def start(self) -> None:
        """Listens. Raises: OSError when it cannot listen on the address."""
        assert self._net is None
        if self._sock is None:
            # Given a host, the loop would look it up in threads of libuv's, which a forked child
            # cannot end.
            self._sock = await asyncio.to_thread(listening_socket, self.host, self._port)
        sock, self._sock = self._sock, None
        self._port = sock.getsockname()[1]
        sock.listen(self._backlog)
        self._net = NetThreads(
            self._core,
            self._numbers,
            sock,
            self._shared,
            self._over,
            self._tls,
            self._delegated,
        )
        self._listening = sock

    @property
    def serving(self) -> bool:
        """Returns whether it accepts connections."""
        return self._net is not None

    def accept(self) -> Connection:
        """Returns our end of a connection within the process."""
        return Connection(self._shared)

    async def stop(self, drain_s: float = 3.0) -> None:
        """Accepts nothing more, answers the requests in progress for at most drain_s, then closes.

        Meanwhile clients that know it are sent elsewhere: see Connection.drain. It ends only when
        none of them has asked for a moment."""
        net, self._net = self._net, None
        if net is None or self._listening is None:
            return
        net.deafen()
        self._listening.close()
        loop = asyncio.get_running_loop()
        end = loop.time() + drain_s
        for connection in self._every():
            connection.drain()
        turned_away = -1
        while loop.time() < end and (
            any(c.in_work for c in self._every())
            or (self._every() and turned_away != self._shared.turned_away)
        ):
            turned_away = self._shared.turned_away
            await asyncio.sleep(DRAIN_STEP_S)
        for connection in self._every():
            connection.close()
        while loop.time() < end and self._every():
            await asyncio.sleep(DRAIN_STEP_S)
        for connection in self._every():
            connection.kill()
        for _ in range(3):  # the loop tells each connection of its end in its next turns
            await asyncio.sleep(0)
        net.stop()
        for shared in (self._shared, self._over):
            shared.wheel.close()

    def _every(self) -> list[Connection]:
        return [*self._shared.connections, *self._over.connections]


def listening_socket(host: str, port: int) -> socket.socket:
    """Returns a socket bound to the address. `host` is an address or a name; port 0 takes a free
    one.

    Raises: OSError that names the address."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM,
                                   flags=socket.AI_PASSIVE)  # fmt: skip
        family, _, _, _, address = sorted(found)[0]  # IPv4 where there is a choice
        made = socket.socket(family, socket.SOCK_STREAM)
    except OSError as failed:
        raise _cannot_listen(host, port, failed) from failed
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.setblocking(False)
    except OSError as failed:
        made.close()
        raise _cannot_listen(host, port, failed) from failed
    return made


def _cannot_listen(host: str, port: int, failed: OSError) -> OSError:
    where = address_text((host, port))
    return OSError(failed.errno, f"cannot listen on {where}: {failed.strerror or failed}")


class _Busy(Mapping[int, Handler]):
    """The handlers of a server that has too many connections: any code is answered alike."""

    def __getitem__(self, code: int) -> Handler:
        return _busy

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _busy(peer: Peer, command: Command) -> None:
    if not command.is_oneway:
        peer.send(
            command.reply(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]the server has too many connections")
        )
    peer.close()
