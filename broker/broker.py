"""A broker: the composition root. The same object in a server process, in a test and in a user's.

async with Broker("/data/store", listenPort=0, with_namesrv=True) as broker: ...

with Broker("/data/store") as broker:  # a loop and a thread of its own
    print(broker.address)
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import pystore
from broker.access.addresses import Pattern, address_of, parse_pattern
from broker.access.guard import host_of
from broker.grpc import what_is_missing
from broker.processors import all_handlers
from broker.processors.bodies import beside
from broker.processors.needs import NeedsOfPlain, NeedsOfPolicies, topic_of
from broker.processors.pull import waited
from broker.remoting.budget import Budget
from broker.remoting.client import RemotingClient
from broker.remoting.codes import RequestCode
from broker.remoting.connection import Connection, Limits
from broker.remoting.dedup import Dedup
from broker.remoting.framer import FramerFactory
from broker.remoting.handlers import Handler
from broker.remoting.hot import Core
from broker.remoting.memory import join
from broker.remoting.safe_log import SafeLogger
from broker.remoting.server import RemotingServer, listening_socket
from broker.remoting.thread import LoopThread
from broker.remoting.tls import TlsSettings
from broker.remoting.watchdog import Watchdog
from broker.services.access import Access, inner_credentials
from broker.services.clients import Clients
from broker.services.config import Config, served
from broker.services.context import Services
from broker.services.groups import Groups
from broker.services.hooks import ConsumeMessageHook, SendMessageHook
from broker.services.housekeeping import Housekeeping
from broker.services.locks import Locks
from broker.services.offsets import ConsumerOffsets
from broker.services.pop import Pop
from broker.services.registration import Registration
from broker.services.schedule import Schedule
from broker.services.statistics import Statistics
from broker.services.topics import Topics
from broker.services.transaction import Transactions
from pystore import Store
from pystore.configfiles import TopicConfig
from pystore.errors import BadArgument
from pystore.setting_types import SettingValues
from pystore.settings import RETENTION, Settings, load
from pystore.timers import Timers, TimersProgress, save_timers

if TYPE_CHECKING:
    # A server process starts without what it may never use.
    from broker.client.blocking import Consumer, Producer
    from broker.client.consumer import AsyncConsumer
    from broker.client.member import ConsumerOptions
    from broker.client.message import ReceivedMessage
    from broker.client.options import ClientOptions
    from broker.client.producer import AsyncProducer, ProducerOptions
    from broker.client.routes import Route
    from broker.grpc.local import LocalBroker
    from broker.grpc.service import GrpcService
    from broker.namesrv.server import NameServer

__all__ = ["Broker"]

log = SafeLogger(__name__)

_T = TypeVar("_T")
_Client = TypeVar("_Client", "Producer", "Consumer")

#: Old clients send to listenPort - 2 and pull from listenPort.
_VIP = 2
#: Between two lines about a start that takes long.
_PROGRESS_S = 5.0
#: Records of timers; fewer are read again in a moment.
_SAVED_AT_ONCE = 100_000
_NOT_ON_VIP = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


class Broker:
    """One broker over one store.

    path_or_conf: folder of the store, or a broker.conf that names it (storePathRootDir; default
    ~/store as upstream). settings: under upstream's names, over those of the file. listenPort=0
    takes a free port, which is then the one written into records. with_namesrv: a name server in
    the same process, on namesrv_port (0: a free one), besides those of namesrvAddr. tls: of the
    broker's ports, and of what it asks name servers; None: plain text, and TLS with a certificate
    that nobody has signed. now_ms: the clock of transactions and their checks; tests set it.
    grpc_port: of the service for RocketMQ 5's gRPC clients, 0: a free one; None: there is none,
    unless proxy_conf is given: its settings, an rmq-proxy.json.

    ``async with`` uses the running loop; a plain ``with`` starts a thread with a loop of its own.
    Once started: address, store, services.

    >>> from broker import Broker, Message
    >>> with Broker("store", listenPort=0) as broker:
    ...     with broker.producer() as producer:
    ...         result = producer.send(Message("greetings", b"hello"))
    ...     with broker.consumer("reader", "greetings", start="first") as consumer:
    ...         next(iter(consumer)).body
    b'hello'
    """

    def __init__(
        self,
        path_or_conf: str | os.PathLike[str] | None = None,
        *,
        conf: str | os.PathLike[str] | None = None,
        with_namesrv: bool = False,
        namesrv_port: int = 0,
        drain_s: float = 3.0,
        tls: TlsSettings | None = None,
        now_ms: Callable[[], int] | None = None,
        grpc_port: int | None = None,
        proxy_conf: str | os.PathLike[str] | None = None,
        **settings: Unpack[SettingValues],
    ) -> None:
        """Raises: BadArgument for unknown settings."""
        path = Path(path_or_conf) if path_or_conf is not None else None
        if path is not None and path.is_file() and conf is None:
            conf, path = path, None
        self._conf = conf
        self._given: dict[str, object] = dict(settings)
        self.settings: Settings = served(load(conf, self._given))
        if "bindAddress" not in self.settings.explicit:
            self._given["bindAddress"] = _bind_address(self.settings["brokerIP1"])
            self.settings = self.settings.replaced(bindAddress=self._given["bindAddress"])
        self.path = path or self.settings.root or Path.home() / "store"
        self._with_namesrv = with_namesrv
        self._namesrv_port = namesrv_port
        self._drain_s = drain_s
        self._tls = tls
        # As upstream: useTLS of the file, else tls.enable, else whether the server enforces it.
        use = self.settings["useTLS"] if "useTLS" in self.settings.explicit else None
        self._client_tls = (tls if tls is not None else TlsSettings()).client_context(use)
        self._now_ms = now_ms
        self._grpc_port = grpc_port
        self._proxy_conf = proxy_conf
        #: Of every code, without access control; and what a connection may take.
        self._handlers: Mapping[int, Handler] = {}
        self._limits = Limits()
        self._send_hooks: list[SendMessageHook] = []
        self._consume_hooks: list[ConsumeMessageHook] = []
        self.namesrv: NameServer | None = None
        self._thread: LoopThread | None = None
        self._undo = contextlib.AsyncExitStack()
        self._services: Services | None = None
        #: The event loop it serves on, while it is started.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._core: Core | None = None
        self._server_of_clients: RemotingServer | None = None
        #: Clients for threads that run on our loop.
        self._beside_us: weakref.WeakSet[Producer | Consumer] = weakref.WeakSet()
        self._port = 0
        #: The service for RocketMQ 5's clients, while it is on.
        self.grpc: GrpcService[LocalBroker] | None = None

    # ---- what it is ----

    @property
    def services(self) -> Services:
        """To be used on the broker's loop. Raises: RuntimeError before the start."""
        if self._services is None:
            raise RuntimeError(
                "the broker is not running; use it inside 'with', or await its start() first"
            )
        return self._services

    @property
    def store(self) -> Store:
        return self.services.store

    @property
    def port(self) -> int:
        return self._port

    @property
    def address(self) -> str:
        """``host:port`` that clients reach it at."""
        return self._at(self._port)

    @property
    def grpc_port(self) -> int:
        """The port of the gRPC service; 0: it is off."""
        return self.grpc.port if self.grpc is not None else 0

    @property
    def grpc_address(self) -> str:
        """``host:port`` for RocketMQ 5's gRPC clients; empty: the service is off."""
        return self._at(self.grpc_port) if self.grpc_port else ""

    def _at(self, port: int) -> str:
        host = self.settings["brokerIP1"]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def namesrv_address(self) -> str:
        """Name servers to give to clients, with ; between them."""
        return str(self.settings["namesrvAddr"] or "")

    # ---- starting ----

    async def start(self) -> None:
        """Raises: OSError for a port that is taken, RuntimeError when it runs already, and whatever
        opening the store raises."""
        self._check_stopped()
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    def _check_stopped(self) -> None:
        """Else a second start would fail half way, and end the first."""
        if self.loop is not None:
            raise RuntimeError(
                f"the broker of {self.path} is running already; stop it first, or make another one"
            )

    async def _start(self) -> None:
        self.loop = asyncio.get_running_loop()
        undo = self._undo
        if self._with_namesrv:
            await self._start_namesrv()
        main, vip = self._listen()
        self._port = main.getsockname()[1]
        self._given["listenPort"] = self._port
        self.settings = self.settings.replaced(listenPort=self._port)
        # Opening may have to recover; the loop is not only ours.
        store = await asyncio.to_thread(self._open)
        undo.push_async_callback(asyncio.to_thread, store.close)
        core = self._core = self._make_core(store)
        undo.callback(core.close)
        services = self._services = self._make_services(store, core)
        services.groups.start()
        services.topics.start()
        services.offsets.start()
        undo.callback(services.offsets.persist_now)
        undo.callback(services.topics.write_now)
        undo.callback(services.groups.write_now)
        undo.push_async_callback(services.groups.settled)
        undo.push_async_callback(services.topics.settled)
        timers = await self._open_timers(store)
        services.pop = pop = Pop(
            store, core, services.settings, services.topics, services.groups, services.offsets
        )
        undo.callback(pop.save_now)
        await pop.start(timers)
        services.access = await self._control_access(core)
        services.transactions = transactions = Transactions(
            store, core, services.settings, services.clients, services.topics, now_ms=self._now_ms
        )
        access = services.access
        if access is not None and access.is_on:
            transactions.may_ask = lambda channel, topic: access.may_publish(
                channel.user, host_of(channel.peer), topic
            )
        await transactions.start()
        undo.push_async_callback(transactions.stop)
        services.once = await self._remember(core)
        servers = self._servers(services, core, main, vip)
        self._server_of_clients = servers[0]
        for server in servers:
            await server.start()
            undo.push_async_callback(server.stop, self._drain_s)
        await self._serve_grpc(services, core)
        # What ends first: routes, then what waits; then connections, as pushed above.
        undo.callback(pop.stop)
        undo.callback(core.notify_all)
        undo.push_async_callback(services.registration.stop)
        await services.registration.start()
        services.schedule = schedule = Schedule(
            store, core, timers=timers, max_tps=self.settings["deliveryMaxTps"]
        )
        schedule.start()
        undo.callback(schedule.stop)
        pop.run(schedule)
        keeper = Housekeeping(services)
        keeper.start()
        keeper.save(
            "delay offsets",
            schedule.persist_later,
            lambda: self.settings["flushDelayOffsetInterval"] / 1000,
        )
        keeper.save(
            "timers",
            schedule.save_timers,
            lambda: self.settings["timerFlushIntervalMs"] / 1000,
            changed=schedule.timers_changed,
        )
        keeper.add(schedule.roll_timers, lambda: 600.0)
        keeper.add(schedule.sample_timers, lambda: 1.0)
        keeper.add(transactions.tick, lambda: 1.0)
        keeper.add(pop.tick, lambda: self.settings["reviveInterval"] / 1000)
        keeper.save(
            "batches of ordered groups",
            pop.save_order,
            lambda: 1.0,
            changed=lambda: pop.order.changed,
        )
        undo.push_async_callback(keeper.stop)
        log.info("Broker %s is ready at %s", services.broker_name, self.address)

    async def _serve_grpc(self, services: Services, core: Core) -> None:
        """Raises: BadArgument for settings that cannot be used, or without the extra ``grpc``."""
        if self._grpc_port is None and self._proxy_conf is None:
            return
        try:
            from broker.grpc.local import LocalBroker
            from broker.grpc.service import GrpcService
            from broker.grpc.settings import ProxySettings
        except ImportError as missing:
            raise BadArgument(what_is_missing(missing)) from missing
        conf = ProxySettings()
        if self._proxy_conf is not None:
            conf = await asyncio.to_thread(ProxySettings.read, Path(self._proxy_conf))
        port = conf.port if self._grpc_port is None else self._grpc_port
        sock = listening_socket(self.settings["bindAddress"], port)
        self._undo.callback(sock.close)
        local = partial(
            LocalBroker, services, self._handlers,
            framer=core.framer_let_in, limits=self._limits, closed=services.clients.departed,
        )  # fmt: skip
        tls = self._tls if self._tls is not None else TlsSettings()
        service = GrpcService(local, conf, sock, limits=self._limits, tls=tls)
        self._undo.push_async_callback(service.stop, self._drain_s)
        await service.start()
        self.grpc = service

    async def _control_access(self, core: Core) -> Access:
        """Before anybody is served. Raises: StoreError for rules that cannot be read."""
        conf = Path(self._conf) if self._conf is not None else None
        access = Access(self.settings, conf, self.path)
        if not access.is_on:
            self._warn_of_open_door()
        self._undo.push_async_callback(access.stop)
        await access.start()
        if access.is_on:
            core.guard(_first_frame_max(self.settings))
            # A pull that waits was let in by the rules of before: its client asks again.
            access.changed += [core.revoke, core.notify_all]
        return access

    @property
    def _enforces_tls(self) -> bool:
        return self._tls is not None and self._tls.mode == "enforcing"

    def _warn_of_open_door(self) -> None:
        """A broker that anybody can reach lets everybody do everything."""
        found = address_of(self.settings["bindAddress"])
        if self._enforces_tls or (found is not None and found.is_loopback):
            return
        log.warning(
            "Listening on %s without access control or TLS: whoever reaches it may read, write and"
            " delete everything. Change it with\n  pystore broker --secure\nor listen on this host"
            " only:\n  bindAddress=127.0.0.1",
            self.settings["bindAddress"],
        )

    async def _remember(self, core: Core) -> Dedup | None:
        """What repeats are known by, when it is asked for. Reads the end of the log: topics and
        open transactions are known by then, and nobody sends yet."""
        window = self.settings["idempotentProduceWindow"]
        if not window:
            return None
        once = Dedup(core, window, self.settings["idempotentProduceKey"])
        await asyncio.to_thread(once.build)
        log.info("Deduplication window holds %d messages", once.state().remembered)
        return once

    async def _open_timers(self, store: Store) -> Timers | None:
        """The timers that wait, unless they are off. A crash may have left some log to read."""
        if not self.settings["timerWheelEnable"]:
            return None
        began = told = time.monotonic()

        def tell(so_far: TimersProgress) -> None:
            nonlocal told
            if time.monotonic() - told >= _PROGRESS_S:
                told = time.monotonic()
                log.info("Finding timers: %d of %d records, %d of %d bytes of the log", *so_far)

        timers = await asyncio.to_thread(Timers, store, tell)
        self._undo.callback(timers.close)
        if timers.recovered > _SAVED_AT_ONCE:  # so that a crash now does not read all of it again
            await asyncio.to_thread(self._save_timers, store, timers)
        log.info("%d timers wait, found in %.1f s", timers.count(), time.monotonic() - began)
        return timers

    @staticmethod
    def _save_timers(store: Store, timers: Timers) -> None:
        state, _ = timers.capture()
        store.flush()
        save_timers(store, state)

    def _open(self) -> Store:
        return pystore.open(self.path, self._conf, **self._given)  # type: ignore[arg-type]

    async def _start_namesrv(self) -> None:
        from broker.namesrv.server import NameServer

        made = NameServer(
            None,
            None,
            self._tls,
            listenPort=self._namesrv_port,
            bindAddress=self.settings["bindAddress"],
        )
        await made.start()
        self._undo.push_async_callback(made.stop, 0.5)
        self.namesrv = made
        host = self.settings["brokerIP1"]
        own = f"[{host}]:{made.port}" if ":" in host else f"{host}:{made.port}"
        others = [a for a in (self.settings["namesrvAddr"] or "").split(";") if a and a != own]
        self._given["namesrvAddr"] = ";".join([own, *others])
        self.settings = self.settings.replaced(namesrvAddr=self._given["namesrvAddr"])

    def _listen(self) -> tuple[socket.socket, socket.socket | None]:
        """The sockets are bound first: the store writes the port into every record."""
        host, port = self.settings["bindAddress"], int(self.settings["listenPort"])
        main = listening_socket(host, port)
        self._undo.callback(main.close)
        if port <= _VIP:
            return main, None
        try:
            vip = listening_socket(host, port - _VIP)
        except OSError as failed:
            log.warning("Cannot listen on port %d for old clients: %s", port - _VIP, failed)
            return main, None
        self._undo.callback(vip.close)
        return main, vip

    def _make_core(self, store: Store) -> Core:
        settings = self.settings
        core = Core(
            store,
            cluster=settings["brokerClusterName"],
            broker=settings["brokerName"],
            region=settings["regionId"],
            trace_on=settings["traceOn"],
            long_polling=settings["longPollingEnable"],
            short_polling_ms=settings["shortPollingTimeMills"],
            parked_max=settings["maxHeldPulls"],
        )
        loop = asyncio.get_running_loop()
        Budget.of(loop).limit = settings["maxUnfinishedBytes"]
        core.attach(loop)
        return core

    def _make_services(self, store: Store, core: Core) -> Services:
        config = Config(self.settings, Path(self._conf) if self._conf is not None else None)
        groups = Groups(config, store.metadata)
        topics = Topics(config, store.metadata, core)
        clients = Clients(groups, core, expire_s=config["channelExpiredTimeout"] / 1000)
        client = RemotingClient(tls=self._client_tls)
        self._undo.push_async_callback(client.close)
        registration = Registration(
            config, topics, self.address, client.connection, inner_credentials(self.settings)
        )
        made = Services(
            store=store,
            settings=config,
            core=core,
            topics=topics,
            groups=groups,
            offsets=ConsumerOffsets(store, core),
            clients=clients,
            locks=Locks(),
            statistics=Statistics(core, config["brokerClusterName"]),
            registration=registration,
            address=self.address,
            watchdog=Watchdog(config["loopHeldWarnMillis"]),
        )
        for send_hook in self._send_hooks:
            self._hook_sends(made, send_hook)
        for consume_hook in self._consume_hooks:
            self._hook_pulls(made, core, consume_hook)
        clients.may_notify = lambda group: bool(config["notifyConsumerIdsChangedEnable"])
        clients.filters = lambda: bool(config["enablePropertyFilter"])
        groups.changed = clients.republish
        topics.changed = registration.changed
        config.changed.append(self._settings_changed)
        return made

    def _settings_changed(self, names: frozenset[str]) -> None:
        services = self.services
        if "brokerPermission" in names:
            services.topics.rights_changed()
        if names & RETENTION:
            services.store.retain(services.settings.current)
        if "enablePropertyFilter" in names:
            for group in list(services.clients.consumers):
                services.clients.republish(group)
        if "namesrvAddr" in names:
            services.registration.use((services.settings["namesrvAddr"] or "").split(";"))

    def _servers(
        self, services: Services, core: Core, main: socket.socket, vip: socket.socket | None
    ) -> list[RemotingServer]:
        access = services.access
        assert access is not None
        handlers = all_handlers(services)
        self._handlers = beside(handlers)
        if access.is_on:
            topic_at = partial(topic_of, services.store)
            policies = NeedsOfPolicies(services.cluster, topic_at)
            guard = services.guard = access.guard(NeedsOfPlain(topic_at), policies, core.grant)
            handlers = guard.before(handlers)
        handlers = beside(handlers)
        sending = {code: each for code, each in handlers.items() if code not in _NOT_ON_VIP}
        proxies = _proxies(self.settings)
        limits = self._limits = Limits(
            idle_s=self.settings["serverChannelMaxIdleTimeSeconds"],
            connections_max=self.settings["maxConnections"],
            proxies=lambda host: any(p.matches(address_of(host)) for p in proxies),
        )
        made = [self._server(handlers, main, limits, services, core.framer)]
        if vip is not None:
            made.append(self._server(sending, vip, limits, services, core.framer_without_pulls))
        return made

    def _server(
        self,
        handlers: Mapping[int, Handler],
        sock: socket.socket,
        limits: Limits,
        services: Services,
        framer: FramerFactory,
    ) -> RemotingServer:
        def closed(connection: Connection) -> None:
            services.clients.departed(connection)

        return RemotingServer(
            handlers,
            sock=sock,
            framer=framer,
            tls=self._tls,
            limits=limits,
            watchdog=services.watchdog,
            on_close=closed,
        )

    # ---- stopping ----

    async def stop(self) -> None:
        """Leaves the routes, answers the requests in progress, writes everything out. A second call
        does nothing. Raises: what closing the store raises."""
        undo, self._undo = self._undo, contextlib.AsyncExitStack()
        try:
            await undo.aclose()
        finally:
            self._services = self._core = self.loop = self._server_of_clients = self.grpc = None

    # ---- hooks ----

    def add_send_hook(self, hook: SendMessageHook) -> None:
        """Before the start, or on the broker's loop. Sends then all go through Python."""
        self._send_hooks.append(hook)
        if self._services is not None:
            self._hook_sends(self._services, hook)

    def add_consume_hook(self, hook: ConsumeMessageHook) -> None:
        """Before the start, or on the broker's loop. Pulls then all go through Python."""
        self._consume_hooks.append(hook)
        if self._services is not None and self._core is not None:
            self._hook_pulls(self._services, self._core, hook)

    @staticmethod
    def _hook_sends(services: Services, hook: SendMessageHook) -> None:
        services.send_hooks.add(hook)
        services.core.hand_on_sends()

    @staticmethod
    def _hook_pulls(services: Services, core: Core, hook: ConsumeMessageHook) -> None:
        services.consume_hooks.add(hook)
        core.watch_pulls(partial(waited, services))

    # ---- life, with a loop and without ----

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs a coroutine on the loop of a broker started by ``with``, and waits for it."""
        if self._thread is None:
            raise RuntimeError("the broker runs on the caller's event loop: use await")
        return self._thread.run(work)

    # ---- clients in this process ----

    def producer(
        self, group: str = "DEFAULT_PRODUCER", **options: Unpack[ProducerOptions]
    ) -> Producer:
        """A producer of this broker, without a socket between; options as of Producer."""
        from broker.client.blocking import Producer

        self._reach(options)
        return self._beside(Producer(group, self.namesrv_address or None, **options))

    def consumer(
        self,
        group: str,
        topics: str | Iterable[str] | Mapping[str, str] = (),
        *,
        handler: Callable[[ReceivedMessage], object] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer:
        """A consumer of this broker, without a socket between; options as of Consumer."""
        from broker.client.blocking import Consumer

        self._reach(options)
        names = self.namesrv_address or None
        return self._beside(Consumer(group, topics, namesrv=names, handler=handler, **options))

    def async_producer(
        self, group: str = "DEFAULT_PRODUCER", **options: Unpack[ProducerOptions]
    ) -> AsyncProducer:
        """As producer(), for any event loop; on another one than the broker's through a socket."""
        from broker.client.producer import AsyncProducer

        self._reach(options)
        return AsyncProducer(group, self.namesrv_address or None, **options)

    def async_consumer(
        self,
        group: str,
        topics: str | Iterable[str] | Mapping[str, str] = (),
        *,
        handler: Callable[[ReceivedMessage], Awaitable[object]] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> AsyncConsumer:
        """As consumer(), for any event loop; on another one than the broker's through a socket."""
        from broker.client.consumer import AsyncConsumer

        self._reach(options)
        names = self.namesrv_address or None
        return AsyncConsumer(group, topics, namesrv=names, handler=handler, **options)

    def _beside(self, client: _Client) -> _Client:
        """A client for threads runs on the loop of a broker that was started by ``with``, which
        closes it at the latest with itself."""
        if self._thread is not None:
            client.runner.use(self._thread)
            self._beside_us.add(client)
        return client

    def _join(self, address: str, make: Callable[[], Connection]) -> Connection | None:
        """A connection of a client on our loop to our main port."""
        server = self._server_of_clients
        if server is None or address != self.address or asyncio.get_running_loop() is not self.loop:
            return None
        protocol = server.accept() if server.serving else None
        if not isinstance(protocol, Connection):
            return None
        made = make()
        join(made, protocol, (self.settings["brokerIP1"].strip("[]"), self._port))
        return made

    def _reach(self, options: ClientOptions) -> None:
        """A broker without a name server tells its routes itself, and so does one whose own name
        server takes TLS only from a client that does not speak it."""
        from broker.client.in_process import RouteFinder

        _ = self.services  # Raises: RuntimeError before the start
        if not options.get("tls"):  # whoever wants to see ciphers gets a socket
            options.setdefault("connector", self._join)
        deaf = self.namesrv is not None and self._enforces_tls and not options.get("tls")
        if deaf or not self.namesrv_address:
            options.setdefault("find_route", RouteFinder(lambda: self.loop, self._route_of))

    def _route_of(self, topic: str) -> Route | None:
        """On the broker's loop."""
        from broker.client.routes import route_of_queues

        services = self._services
        config = services.topics.get(topic) if services is not None else None
        if services is None or config is None:
            return None
        return route_of_queues(
            topic, services.broker_name, self.address, services.settings["brokerClusterName"],
            config.perm, config.read_queue_nums, config.write_queue_nums,
        )  # fmt: skip

    def create_topic(self, name: str, queues: int = 4, message_type: str | None = None) -> None:
        """Makes a topic before anybody sends to it, or changes how many queues it has.
        message_type: what RocketMQ 5's clients may send there: NORMAL, FIFO, DELAY, TRANSACTION;
        None: as it is, NORMAL for a new one. With ``async with``, call it on the broker's loop.
        With ``with``, the name servers know of the change when it returns.
        Raises: Refused for an illegal name or type."""

        def create() -> None:
            changes = f"+message.type={message_type}" if message_type is not None else ""
            self.services.topics.update(TopicConfig(name, queues, queues), changes)

        if self._thread is None or self._thread.is_own():
            create()
        else:

            async def create_and_announce() -> None:
                create()
                await self.services.registration.settled()

            self._thread.run(create_and_announce())

    def __enter__(self) -> Self:
        self._check_stopped()
        self._thread = LoopThread("pystore-broker")
        try:
            self._thread.run(self.start())
        except BaseException:
            self._thread.stop()
            self._thread = None
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if not thread.here:
            return  # a child that was forked within the block leaves it; the broker is its parent's
        try:
            self._close_clients()
            thread.run(self.stop())
        finally:
            thread.stop()

    def _close_clients(self) -> None:
        from broker.client.errors import ClientError

        for client in list(self._beside_us):
            with contextlib.suppress(ClientError):
                client.close()


def _proxies(settings: Settings) -> list[Pattern]:
    """Raises: BadArgument."""
    try:
        return [parse_pattern(text) for text in settings["trustedProxies"].split(";")]
    except ValueError as bad:
        raise BadArgument(f"trustedProxies: {bad}", settings.source("trustedProxies")) from None


def _first_frame_max(settings: Settings) -> int:
    """Bytes of a frame before the first request of a connection was let in."""
    given: int = settings["maxFirstFrameBytes"]
    return given or settings["maxMessageSize"] + (1 << 20)


def _bind_address(told: str) -> str:
    """Where to listen by default: on loopback when clients are given such an address, else on every
    interface."""
    try:
        return told if ipaddress.ip_address(told.strip("[]")).is_loopback else "0.0.0.0"
    except ValueError:  # a name
        return "127.0.0.1" if told == "localhost" else "0.0.0.0"
