"""The name server as a whole: settings, tables, sockets, timers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from broker.access.addresses import runs_of
from broker.loop.lifetime import Stopping
from broker.loop.passed_over import reload_settings, warn_of
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.loop.thread import LoopThread
from broker.loop.turns import Pieces
from broker.loop.watchdog import Watchdog
from broker.metrics.endpoint import MetricsEndpoint
from broker.metrics.rpc import RpcTimes
from broker.namesrv.figures import NamesrvFigures
from broker.namesrv.kv import KvConfig
from broker.namesrv.processor import Processor
from broker.namesrv.routes import MinIdChange, Routes
from broker.namesrv.settings import NamesrvSettings
from broker.remoting.certificates import Certificates
from broker.remoting.client import RemotingClient
from broker.remoting.connection import Connection, Limits
from broker.remoting.server import RemotingServer, listening_socket
from broker.remoting.tls import TlsSettings
from broker.wire.codes import RequestCode
from broker.wire.command import Command

__all__ = ["NameServer"]

NOTIFY_S = 0.3
#: A request that holds the event loop longer is logged.
LOOP_HELD_MS = 50

quiet = RateLimitedLogger(SafeLogger("broker.namesrv"))


class NameServer(Stopping):
    """``async with NameServer(listenPort=0) as names: names.address``; in code without a loop
    ``with NameServer.in_thread(listenPort=0) as names``.

    conf: upstream's namesrv.conf. defaults: below it. settings: over it; all under upstream's names
    (settings.py). tls: in the place of the settings'. Raises: BadArgument, RecordDamaged for a
    kvConfig.json that cannot be read.

    >>> from broker import Broker, Message, NameServer, Producer
    >>> with NameServer.in_thread(listenPort=0, kvConfigPath="") as names:
    ...     with Broker("store-of-names", listenPort=0, namesrvAddr=names.address):
    ...         with Producer("orders-api", names.address) as producer:
    ...             producer.send(Message("orders", b"12 apples")).status.name
    'SEND_OK'
    """

    def __init__(
        self,
        conf: str | Path | None = None,
        defaults: Mapping[str, object] | None = None,
        tls: TlsSettings | None = None,
        /,
        **settings: object,
    ) -> None:
        self._conf = conf
        self.settings = NamesrvSettings(conf, settings, defaults)
        path = self.settings.text("kvConfigPath")
        self.kv = KvConfig(Path(path) if path else None)
        self.routes = Routes(lambda: time.monotonic_ns() // 1_000_000)
        self._processor: Processor | None = None
        self._tls = tls if tls is not None else self.settings.tls()
        self._certificates = Certificates(self._tls)
        self.watchdog = Watchdog(LOOP_HELD_MS)
        self._server: RemotingServer | None = None
        self._times = RpcTimes()
        self._figures: NamesrvFigures | None = None
        self._metrics: MetricsEndpoint | None = None
        self._client: RemotingClient | None = None
        self._scan: asyncio.TimerHandle | None = None
        self._telling: set[asyncio.Task[None]] = set()
        #: Connections that are closed, whose brokers are still in the tables.
        self._gone: deque[Connection] = deque()
        self._cleaning: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port it listens on, once started."""
        return self._server.port if self._server is not None else self.settings.number("listenPort")

    @property
    def address(self) -> str:
        """host:port for clients on this machine, or of the address it is bound to."""
        host = self.settings.text("bindAddress")
        return f"{'127.0.0.1' if host in ('0.0.0.0', '') else host}:{self.port}"

    async def start(self) -> None:
        """Opens the port. Raises: OSError when the port is taken."""
        number = self.settings.number
        warn_of(self.settings.problems)
        self._processor = Processor(
            self.settings, self.routes, self.kv, self._tell, self._certificates
        )
        self._server = RemotingServer(
            self._processor.handlers(),
            host=self.settings.text("bindAddress"),
            port=number("listenPort"),
            tls=self._tls,
            limits=Limits(
                idle_s=number("serverChannelMaxIdleTimeSeconds"),
                proxies=runs_of(self.settings.text("trustedProxies")),
            ),
            backlog=number("serverSocketBacklog"),
            on_close=self._closed,
            watchdog=self.watchdog,
            times=self._times,
        )
        try:
            await self._server.start()
        except BaseException:
            self._server = None
            raise
        self._client = RemotingClient(tls=self._tls.client_context())
        self._certificates.start()
        self._arm()
        await self._serve_metrics(self._server)

    async def _serve_metrics(self, server: RemotingServer) -> None:
        """Opens the port of metrics. Raises: OSError for a port that is taken."""
        if self.settings.text("metricsExporterType") == "DISABLE":
            return
        host = self.settings.text("metricsPromExporterHost") or self.settings.text("bindAddress")
        try:
            sock = listening_socket(host, self.settings.number("metricsPromExporterPort"))
        except OSError:
            await self.stop(0)
            raise
        self._figures = NamesrvFigures(self.routes, server, self.watchdog, self._times)
        self._figures.start()
        self._metrics = MetricsEndpoint(sock, self._figures)
        await self._metrics.start()

    @property
    def metrics_port(self) -> int:
        """The port of the metrics, /health and /ready; 0: there is none."""
        return self._metrics.port if self._metrics is not None else 0

    def reload(self) -> None:
        """Reads the files of its certificate again, and its settings, on its loop. What has changed
        there holds from now on; what only a start takes over is logged, and so is a file that
        cannot be used."""
        self._certificates.read_again()
        reload_settings(self._conf, self.settings.reload)
        if self._processor is not None:
            self._processor.apply_settings()

    async def stop(self, drain_s: float | None = None) -> None:
        """Answers requests in progress for drain_s at most (shutdownWaitTimeSeconds), then
        stops."""
        server, self._server = self._server, None
        if server is None:
            return
        if self._metrics is not None and self._figures is not None:
            self._figures.stop()
            await self._metrics.stop()
            self._metrics = None
        if self._scan is not None:
            self._scan.cancel()
        if drain_s is None:
            drain_s = self.settings.number("shutdownWaitTimeSeconds")
        await self._certificates.stop()
        await server.stop(drain_s)
        for task in [*self._telling, *([self._cleaning] if self._cleaning is not None else [])]:
            task.cancel()
        if self._client is not None:
            await self._client.close()

    @classmethod
    @contextmanager
    def in_thread(cls, conf: str | Path | None = None, **settings: object) -> Iterator[NameServer]:
        """Runs a name server on a loop of its own, for code that has none; it stops with the
        block."""
        made = cls(conf, None, **settings)
        loop = LoopThread("pystore-namesrv")
        try:
            loop.run(made.start())
            try:
                yield made
            finally:
                if loop.here:
                    loop.run(made.stop())
        finally:
            loop.stop()

    # ---- brokers that go ----

    def _closed(self, peer: Connection) -> None:
        """Drops the brokers of a connection. All brokers of a network that fails go at once, so
        others have their turn in between."""
        self._gone.append(peer)
        if self._server is not None:
            self._clean()

    def _clean(self) -> None:
        if self._cleaning is None or self._cleaning.done():
            self._cleaning = asyncio.get_running_loop().create_task(self._drop_gone())

    async def _drop_gone(self) -> None:
        pieces = Pieces()
        while self._gone or self.routes.drop_more():
            if self._gone:
                self._tell(self.routes.peer_closed(self._gone.popleft()))
            await pieces.next()

    def _arm(self) -> None:
        pause_ms = self.settings.number("scanNotActiveBrokerInterval")
        loop = asyncio.get_running_loop()
        self._scan = loop.call_later(max(pause_ms, 10) / 1000, self._expire)

    def _expire(self) -> None:
        changes, peers = self.routes.expire()
        for peer in peers:
            quiet.warning(
                "no heartbeat", "No heartbeat from the broker at %s: broker removed", peer
            )
            peer.close()
        self._tell(changes)
        self._clean()
        self._arm()

    def _tell(self, changes: list[MinIdChange]) -> None:
        """Tells brokers of another smallest id, without waiting for them."""
        if not changes or not self.settings.flag("notifyMinBrokerIdChanged"):
            return
        for change in changes:
            for address in change.notify:
                task = asyncio.get_running_loop().create_task(self._tell_one(address, change))
                self._telling.add(task)
                task.add_done_callback(self._telling.discard)

    async def _tell_one(self, address: str, change: MinIdChange) -> None:
        ext = {
            "minBrokerId": str(change.broker_id),
            "minBrokerAddr": change.address,
            "offlineBrokerAddr": change.offline,
            "haBrokerAddr": change.ha_address,
        }
        given = {name: text for name, text in ext.items() if text is not None}
        command = Command(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, given)
        if self._client is None:
            return
        try:
            await self._client.oneway(address, command, NOTIFY_S)
        except (OSError, TimeoutError, ValueError) as failed:
            quiet.warning(
                "notify",
                "Cannot notify %s that broker %d now has the lowest id: %s",
                address,
                change.broker_id,
                failed,
            )
