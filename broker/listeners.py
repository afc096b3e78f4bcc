"""What a broker serves: its ports, for remoting clients of today and of old, and for gRPC."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from broker.access.addresses import runs_of
from broker.figures.ports import PortFigures
from broker.grpc import what_is_missing
from broker.hot.core import WITHOUT_PULLS, Core
from broker.loop.budget import Budget
from broker.loop.safe_log import SafeLogger
from broker.metrics.endpoint import MetricsEndpoint
from broker.metrics.rpc import RpcTimes
from broker.processors import all_handlers
from broker.processors.bodies import beside
from broker.processors.needs import NeedsOfPlain, NeedsOfPolicies, topic_of
from broker.remoting.certificates import Certificates
from broker.remoting.connection import Connection, Limits
from broker.remoting.server import RemotingServer, listening_socket
from broker.remoting.tls import TlsSettings
from broker.services.context import Services
from broker.services.replication.replication import is_slave, replicates
from broker.startup import Options
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer
from pystore.errors import BadArgument
from pystore.settings import Settings

if TYPE_CHECKING:
    # A server process starts without what it may never use.
    from broker.figures.broker import BrokerFigures
    from broker.grpc.local import LocalBroker
    from broker.grpc.service import GrpcService

__all__ = ["Listeners", "listen"]

log = SafeLogger("broker.broker")

#: Old clients send to listenPort - 2 and pull from listenPort.
_VIP = 2
#: Its network thread among those that call the core (csrc/core/lock.h): after all others.
_VIP_THREAD = 17
_NOT_ON_VIP = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


def listen(settings: Settings, undo: AsyncExitStack) -> list[socket.socket]:
    """Binds the main port and, if it is free, that of old clients. They are bound before the store
    is opened, which writes the port into every record. Raises: OSError."""
    host, port = settings["bindAddress"], int(settings["listenPort"])
    main = listening_socket(host, port)
    undo.callback(main.close)
    if port <= _VIP:
        return [main]
    try:
        vip = listening_socket(host, port - _VIP)
    except OSError as failed:
        log.warning("Cannot listen on port %d for old clients: %s", port - _VIP, failed)
        return [main]
    undo.callback(vip.close)
    return [main, vip]


#: Network threads of a broker that was told nothing: its process has more to do.
THREADS = 1


def listen_for_slaves(
    settings: Settings, main: socket.socket, undo: AsyncExitStack, *, anywhere: bool
) -> socket.socket | None:
    """Binds the port that slaves follow this broker at; None: none may. Without haListenPort it is
    the one after the main port, or any free one: `anywhere`, as the main port. Raises: OSError."""
    if not replicates(settings):
        return None
    given = settings.source("haListenPort") != "default"
    port = int(settings["haListenPort"]) if given else 0
    if port == 0 and not anywhere:
        port = int(main.getsockname()[1]) + 1
    made = listening_socket(settings["bindAddress"], port)
    undo.callback(made.close)
    return made


def _own_addresses(services: Services) -> frozenset[str]:
    """Returns the addresses that requests may be signed for, beside the one that a client came
    to."""
    given = services.settings["ownAddresses"].split(";")
    return frozenset({services.address, *(each.strip() for each in given)} - {""})


class Listeners:
    """The servers of one broker. main: of clients. grpc: None: it is off."""

    def __init__(self, o: Options, services: Services, core: Core) -> None:
        """Raises: BadArgument."""
        self._o, self._services, self._core = o, services, core
        access = services.access
        assert access is not None
        handlers = all_handlers(services)
        #: Of every code, without access control.
        self._let_in = beside(handlers)
        if services.static is not None:
            services.static.queues.serve(self._let_in, core.framer_let_in)
        topic_at = partial(topic_of, services.store)
        authorizer = access.authorizer(
            NeedsOfPlain(services.cluster, topic_at), NeedsOfPolicies(services.cluster, topic_at),
            core.grant, partial(_own_addresses, services),
        )  # fmt: skip
        handlers = handlers | authorizer.before(access.guarded(handlers))
        if access.is_on:
            services.authorizer = authorizer
        if is_slave(o.settings):
            handlers = handlers | _refusals_of_slave(o.settings)
        self._handlers = beside(handlers)
        self._limits = Limits(
            idle_s=o.settings["serverChannelMaxIdleTimeSeconds"],
            connections_max=o.settings["maxConnections"],
            proxies=_proxies(o.settings),
        )
        self.figures = PortFigures(
            RpcTimes(), Budget.of(asyncio.get_running_loop()), o.settings["maxConnections"],
            grpc=lambda: self.grpc,
        )  # fmt: skip
        self.metrics: BrokerFigures | None = None
        self.endpoint: MetricsEndpoint | None = None
        self.main: RemotingServer | None = None
        self.grpc: GrpcService[LocalBroker] | None = None
        self._tls = o.tls if o.tls is not None else TlsSettings()
        self.certificates = services.certificates = Certificates(self._tls)

    async def start(self, ports: list[socket.socket], undo: AsyncExitStack) -> None:
        """Starts to serve. ports: as `listen` returns them; they are its own from now on. Raises:
        OSError, and BadArgument for settings of gRPC that cannot be used, or without the extra
        ``grpc``."""
        main, *others = ports
        for each in ports:
            undo.callback(each.close)
        if is_slave(self._o.settings) and not self._o.settings["slaveReadEnable"]:
            # The core would serve pulls: here they come to their handler, which refuses them.
            self.main = await self._serve(main, self._handlers, undo, WITHOUT_PULLS)
        else:
            self.main = await self._serve(main, self._handlers, undo)
        for vip in others:
            sending = {c: each for c, each in self._handlers.items() if c not in _NOT_ON_VIP}
            self.figures.servers["vip"] = await self._serve(
                vip, sending, undo, WITHOUT_PULLS, range(_VIP_THREAD, _VIP_THREAD + 1)
            )
        self.figures.servers["remoting"] = self.main
        self.certificates.start()
        undo.push_async_callback(self.certificates.stop)
        await self._serve_grpc(undo)
        await self._serve_metrics(undo)

    async def _serve_metrics(self, undo: AsyncExitStack) -> None:
        """Opens the port of metrics. Raises: OSError for a port that is taken, BadArgument."""
        settings = self._o.settings
        if settings["metricsExporterType"] == "DISABLE":
            return
        from broker.figures.broker import BrokerFigures

        try:
            figures = BrokerFigures(self._services, self._core, self.figures)
        except ValueError as bad:
            raise BadArgument(f"metricsLabel: {bad}", settings.source("metricsLabel")) from None
        figures.start()
        undo.push_async_callback(figures.stop)
        self.metrics = figures
        if settings["metricsExporterType"] != "PROM":
            self._export_metrics(figures, undo)
            return
        host = settings["metricsPromExporterHost"] or settings["brokerIP1"]
        sock = listening_socket(host, int(settings["metricsPromExporterPort"]))
        undo.callback(sock.close)
        made = MetricsEndpoint(sock, figures)
        undo.push_async_callback(made.stop)
        await made.start()
        self.endpoint = made

    def _export_metrics(self, figures: BrokerFigures, undo: AsyncExitStack) -> None:
        """Begins to export metrics. Raises: BadArgument without the extra ``otlp``."""
        from broker.figures.exporting import PeriodicExport, exporter_of

        found = exporter_of(self._o.settings)
        if found is not None:
            made = PeriodicExport(figures.page, *found)
            made.start()
            undo.push_async_callback(made.stop)

    async def _serve(
        self,
        sock: socket.socket,
        handlers: Mapping[int, Handler],
        undo: AsyncExitStack,
        delegated: int = 0,
        numbers: range | None = None,
    ) -> RemotingServer:
        """Starts a server. delegated: what the core does not serve (PS_DELEGATE_). numbers: of its
        threads, if they are not those of the main port."""
        services = self._services

        def closed(connection: Connection) -> None:
            services.clients.departed(connection)

        server = RemotingServer(
            handlers,
            sock=sock,
            framer=partial(self._core.framer, delegated=delegated),
            tls=self._tls,
            limits=self._limits,
            watchdog=services.watchdog,
            on_close=closed,
            core=self._core,
            delegated=delegated,
            numbers=numbers or range(1, _threads_of(self._o.settings) + 1),
            times=self.figures.times,
        )
        await server.start()
        undo.push_async_callback(server.stop, self._o.drain_s)
        return server

    async def _serve_grpc(self, undo: AsyncExitStack) -> None:
        o = self._o
        if o.grpc_port is None and o.proxy_conf is None:
            return
        try:
            from broker.grpc.local import LocalBroker
            from broker.grpc.service import GrpcService
            from broker.grpc.settings import ProxySettings
        except ImportError as missing:
            raise BadArgument(what_is_missing(missing)) from missing
        if o.proxy is None:
            o.proxy = ProxySettings()
            if o.proxy_conf is not None:
                o.proxy = await asyncio.to_thread(ProxySettings.read, o.proxy_conf)
        port = o.proxy.port if o.grpc_port is None else o.grpc_port
        sock = listening_socket(o.settings["bindAddress"], port)
        undo.callback(sock.close)
        services = self._services
        local = partial(
            LocalBroker, services, self._let_in,
            framer=self._core.framer_let_in, limits=self._limits, closed=services.clients.departed,
        )  # fmt: skip
        service = GrpcService(
            local, o.proxy, sock, limits=self._limits, tls=self._tls, core=self._core.handle
        )
        undo.push_async_callback(service.stop, o.drain_s)
        await service.start()
        self.grpc = service
        if o.grpc_port is not None:
            o.grpc_port = service.port  # which the next role has, too


def _threads_of(settings: Settings) -> int:
    name = "serverSelectorThreads"
    return THREADS if settings.source(name) == "default" else int(settings[name])


#: What tools change on a master alone; a slave takes it over.
_OF_MASTER = (
    RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
)  # fmt: skip


def _refusals_of_slave(settings: Settings) -> dict[int, Handler]:
    """Returns what a slave does not do (docs/replication.md): changes as 4.9 refuses them, pulls as
    5.3.3 without slaveReadEnable."""

    def change(peer: Peer, command: Command) -> Command:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            "Can't modify topic or subscription group from slave broker, please execute it from"
            " master broker.",
        )

    def pull(peer: Peer, command: Command) -> Command:
        raise Refused(
            ResponseCode.SYSTEM_BUSY,
            "[REJECTREQUEST]system busy, start flow control for a while: slaveReadEnable is false",
        )

    found: dict[int, Handler] = dict.fromkeys(_OF_MASTER, change)
    if not settings["slaveReadEnable"]:
        found |= dict.fromkeys(_NOT_ON_VIP, pull)
    return found


def _proxies(settings: Settings) -> tuple[tuple[int, int, int], ...]:
    """Reads the addresses of proxies. Raises: BadArgument."""
    try:
        return runs_of(settings["trustedProxies"])
    except ValueError as bad:
        raise BadArgument(f"trustedProxies: {bad}", settings.source("trustedProxies")) from None
