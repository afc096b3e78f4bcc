"""A broker: the composition root. The same object in a server process, in a test and in a user's.

async with Broker("/data/store", listenPort=0, with_namesrv=True) as broker: ...

with Broker("/data/store") as broker:  # a loop and a thread of its own
    print(broker.address)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from broker.hot.core import Core
from broker.listeners import Listeners, listen, listen_for_slaves
from broker.loop.lifetime import Stopping
from broker.loop.passed_over import Reloaded, reload_settings, warn_of
from broker.loop.safe_log import SafeLogger
from broker.loop.thread import LoopThread
from broker.processors.pull import waited
from broker.remoting.connection import Connection
from broker.remoting.loopback import join
from broker.remoting.tls import TlsSettings
from broker.services.context import Services
from broker.services.delivered import close_levels
from broker.services.hooks import ConsumeMessageHook, SendMessageHook
from broker.services.replication.replication import is_slave
from broker.services.setting_forms import servers_of
from broker.start_checks import Ask, bind_address, on_this_machine, read_start
from broker.startup import Ground, Options, begins_after_tier, open_ground, open_services
from broker.wire.handlers import address_text
from pystore import Store
from pystore.configuration.problems import refuse
from pystore.errors import BadArgument
from pystore.meta.configfiles import SubscriptionGroup, TopicConfig
from pystore.setting_types import SettingValues
from pystore.settings import Settings
from pystore.store.arguments import named_arguments

if TYPE_CHECKING:
    # A server process starts without what it may never use.
    from broker.client.blocking import Consumer, Producer
    from broker.client.consumer import AsyncConsumer
    from broker.client.lite_blocking import LiteConsumer
    from broker.client.lite_consumer import AsyncLiteConsumer
    from broker.client.lite_member import LiteOptions
    from broker.client.member import ConsumerOptions
    from broker.client.message import ReceivedMessage
    from broker.client.options import ClientOptions
    from broker.client.producer import AsyncProducer, ProducerOptions
    from broker.client.routes import Route
    from broker.figures.broker import BrokerFigures
    from broker.grpc.local import LocalBroker
    from broker.grpc.service import GrpcService
    from broker.namesrv.server import NameServer
    from broker.services.clients import ConsumerGroup
    from broker.services.controlled.member import GroupMember
    from broker.services.replication.elected_role import ElectedRole

__all__ = ["Broker"]

log = SafeLogger(__name__)

#: Before another try to open the store again.
_REOPEN_S = 1.0

_T = TypeVar("_T")
_Client = TypeVar("_Client", "Producer", "Consumer", "LiteConsumer")


class Broker(Stopping):
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

    #: Groups that had members connected when the services of before ended.
    _members: Sequence[ConsumerGroup] = ()

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
        """Raises: BadArgument for settings that are refused, all at once."""
        path = Path(path_or_conf) if path_or_conf is not None else None
        if path is not None and path.is_file() and conf is None:
            conf, path = path, None
        given: dict[str, object] = dict(settings)
        known, self._problems = read_start(conf, given)
        refuse(self._problems)
        # As upstream: useTLS of the file, else tls.enable, else whether the server enforces it.
        use_tls = known["useTLS"] if "useTLS" in known.explicit else None
        self._options = Options(
            path=path or known.root or Path.home() / "store",
            conf=Path(conf) if conf is not None else None,
            given=given,
            settings=known,
            tls=tls,
            client_tls=(tls if tls is not None else TlsSettings()).client_context(use_tls),
            now_ms=now_ms,
            drain_s=drain_s,
            grpc_port=grpc_port,
            proxy_conf=Path(proxy_conf) if proxy_conf is not None else None,
        )
        if "bindAddress" not in known.explicit:
            self._options.set("bindAddress", bind_address(known))
        self._with_namesrv = with_namesrv
        self._anywhere = known["listenPort"] == 0
        self._namesrv_port = namesrv_port
        self._send_hooks: list[SendMessageHook] = []
        self._consume_hooks: list[ConsumeMessageHook] = []
        self.namesrv: NameServer | None = None
        self._thread: LoopThread | None = None
        #: Ends what a role needs, and what stays when the role changes.
        self._undo, self._undo_ground = contextlib.AsyncExitStack(), contextlib.AsyncExitStack()
        self._ground: Ground | None = None
        #: Bound: the main port and that of old clients.
        self._ports: list[socket.socket] = []
        #: The event loop it serves on, while it is started.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._services: Services | None = None
        self._listeners: Listeners | None = None
        self._reopening: asyncio.Task[None] | None = None
        #: Under a controller.
        self._member: GroupMember | None = None
        self._stops = self._is_ready = self._reads_again = False
        #: Held by who closes the store and opens it again.
        self._changing = asyncio.Lock()
        #: Clients for threads that run on our loop.
        self._beside_us: weakref.WeakSet[Producer | Consumer | LiteConsumer] = weakref.WeakSet()

    # ---- what it is ----

    @property
    def path(self) -> Path:
        """The folder of the store."""
        return self._options.path

    @property
    def settings(self) -> Settings:
        """Those that it started with, or will; services.settings has those of now."""
        return self._options.settings

    @property
    def services(self) -> Services:
        """The services, for use on the broker's loop. Raises: RuntimeError before the start."""
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
        return int(self.settings["listenPort"])

    @property
    def address(self) -> str:
        """``host:port`` that clients reach it at."""
        return self._at(self.port)

    @property
    def grpc(self) -> GrpcService[LocalBroker] | None:
        """The service for RocketMQ 5's clients, while it is on."""
        return self._listeners.grpc if self._listeners is not None else None

    @property
    def grpc_port(self) -> int:
        """The port of the gRPC service; 0: it is off."""
        return self.grpc.port if self.grpc is not None else 0

    @property
    def grpc_address(self) -> str:
        """``host:port`` for RocketMQ 5's gRPC clients; empty: the service is off."""
        return self._at(self.grpc_port) if self.grpc_port else ""

    @property
    def metrics(self) -> BrokerFigures | None:
        """What is counted, while metricsExporterType is not DISABLE."""
        return self._listeners.metrics if self._listeners is not None else None

    @property
    def metrics_port(self) -> int:
        """The port of the metrics, /health and /ready; 0: there is none."""
        endpoint = self._listeners.endpoint if self._listeners is not None else None
        return endpoint.port if endpoint is not None else 0

    def _at(self, port: int) -> str:
        return address_text((self.settings["brokerIP1"], port))

    @property
    def namesrv_address(self) -> str:
        """Name servers to give to clients, with ; between them."""
        return str(self.settings["namesrvAddr"] or "")

    # ---- starting ----

    async def start(self) -> None:
        """Starts the broker. Raises: OSError for a port that is taken, RuntimeError when it runs
        already, and whatever opening the store raises."""
        self._check_stopped()
        await asyncio.to_thread(self._check_machine)
        try:
            await self._start()
            if self._member is not None:
                self._member.start()
        except BaseException:
            await self.stop()
            raise

    def _check_stopped(self) -> None:
        """Refuses a second start, which would fail half way and end the first."""
        if self.loop is not None:
            raise RuntimeError(
                f"the broker of {self.path} is running already; stop it first, or make another one"
            )

    def _check_machine(self) -> None:
        """Checks what the settings ask of the machine. Raises: BadArgument for what the settings
        name and this machine does not have."""
        o = self._options
        ask = Ask(o.settings, o.conf, o.path, o.grpc_port, o.proxy_conf)
        found = list(on_this_machine(ask))
        refuse(found)
        warn_of(each for each in (*self._problems, *found) if not each.is_error)

    async def _start(self) -> None:
        self.loop = asyncio.get_running_loop()
        options, undo = self._options, self._undo_ground
        if self._with_namesrv:
            await self._start_namesrv()
        self._ports = listen(options.settings, undo)
        options.set("listenPort", self._ports[0].getsockname()[1])
        if options.settings["enableControllerMode"] and self._member is None:
            await self._join_controller()
        self._ground = await open_ground(options, undo)
        await self._serve(self._ground)

    async def _serve(self, ground: Ground) -> None:
        """Serves in the role that the options have."""
        options, undo = self._options, self._undo
        slaves = listen_for_slaves(options.settings, self._ports[0], undo, anywhere=self._anywhere)
        if slaves is not None:
            options.set("haListenPort", slaves.getsockname()[1])
        services = await open_services(options, ground, self.address, slaves, undo)
        self._services = services
        services.clients.expect(self._members)
        core, pop, duties = self._core, services.pop, services.duties
        assert pop is not None and duties is not None
        if services.replication is not None and services.replication.slave is not None:
            services.replication.slave.cut_back = self._cut_back
            if services.cold is not None:
                services.replication.slave.lacks = services.cold.lacks
                services.replication.slave.begin_again = self._begin_again
            # Before the first round of the member: the master may be killed before that.
            services.replication.slave.on_lost = self._member.lost if self._member else None
        services.member = self._member
        for send_hook in self._send_hooks:
            self._hook_sends(send_hook)
        for consume_hook in self._consume_hooks:
            self._hook_pulls(consume_hook)
        self._listeners = Listeners(options, services, core)
        # What connects between two roles waits at the port until the second one is there.
        await self._listeners.start([each.dup() for each in self._ports], undo)
        pop.serve()
        # What waits is answered before the connections end, and the duties end before that.
        undo.callback(pop.stop)
        undo.callback(core.notify_all)
        undo.push_async_callback(duties.stop)
        await self._take_back()
        await duties.start()
        self._is_ready = True
        log.info("Broker %s is ready at %s", services.broker_name, self.address)
        if self._reads_again:
            self.reload()

    async def _take_back(self) -> None:
        """Takes over, as a master, what a slave did in its place, and what it, or the master before
        it, delivered and did not write, before it delivers anything."""
        from broker.services.acting.taking_back import TakingBack

        services, settings = self.services, self.settings
        replication = services.replication
        if (
            replication is not None
            and replication.master is not None
            and settings["enableSlaveActingMaster"]
            and not settings["skipPreOnline"]
        ):
            await TakingBack(services, replication.request).run()
        if not is_slave(settings):
            await asyncio.to_thread(close_levels, services.store)

    async def _join_controller(self) -> None:
        """Joins the controller: under a controller a broker begins as a slave of nobody, with a
        number of its own. Raises: OSError, TimeoutError, BadArgument for a controller that refuses
        this broker."""
        from broker.join_controller import join_controller
        from broker.services.controlled.controller import ControllerRefused

        try:
            self._member = await join_controller(
                self._options, self.address, self._become, lambda: self._services
            )
        except (ValueError, ControllerRefused) as failed:
            source = self.settings.source("controllerAddr")
            raise BadArgument(f"the controller takes no such broker: {failed}", source) from None

    async def _become(self, elected: ElectedRole) -> None:
        """Serves in another role, over the same store and at the same ports. Of what the services
        of one role have in memory the next one has nothing but who consumed."""
        async with self._changing:
            self._options.take_role(elected)
            ground = None if begins_after_tier(self._options) else self._ground
            try:
                if not self._stops and ground is not None:
                    self.services.registration.stays = True
                    await self._end_services()
                    await self._serve(ground)
                    return
            except Exception:
                log.exception("The broker opens its store again, since it cannot change its role")
            await self._restart(lambda: None)

    async def _restart(self, between: Callable[[], None]) -> None:
        """Closes the store, and serves again at the same ports. between: called in a thread."""
        while not self._stops:
            try:
                await self._close()
                await asyncio.to_thread(between)
                await self._start()
                return
            except Exception:
                log.exception("The store is not opened again")
                await asyncio.sleep(_REOPEN_S)
        await self._close()

    @property
    def _core(self) -> Core:
        core = self.services.core
        assert isinstance(core, Core)
        return core

    async def _start_namesrv(self) -> None:
        from broker.namesrv.server import NameServer

        made = NameServer(
            None,
            None,
            self._options.tls,
            listenPort=self._namesrv_port,
            bindAddress=self.settings["bindAddress"],
        )
        await made.start()
        self._namesrv_port = made.port
        self._undo_ground.push_async_callback(made.stop, 0.5)
        self.namesrv = made
        own = self._at(made.port)
        others = [each for each in servers_of(self.settings["namesrvAddr"]) if each != own]
        self._options.set("namesrvAddr", ";".join([own, *others]))

    def reload(self) -> None:
        """Reads broker.conf again, on the broker's loop, the settings of gRPC, and the files of its
        certificate. What has changed there holds from now on; what only a start takes over is
        logged, and so is a file that cannot be used. Between two roles that waits for the second
        one."""
        self._reads_again = not self._is_ready
        if self._reads_again:
            return
        o = self._options
        assert self._listeners is not None
        self._listeners.certificates.read_again()
        if o.conf is not None or o.proxy_conf is None:
            reload_settings(o.conf, self._read_again)
        if o.proxy_conf is not None:
            reload_settings(o.proxy_conf, self._read_proxy_conf)

    def _read_again(self) -> Reloaded:
        made, problems = read_start(self._options.conf, self._options.given)
        refuse(problems)
        return problems, *self.services.settings.reload(made)

    def _read_proxy_conf(self) -> Reloaded:
        from broker.grpc.settings import LOCAL, ProxySettings

        assert self._options.proxy_conf is not None and self.grpc is not None
        made, problems = ProxySettings.look(self._options.proxy_conf, LOCAL)
        refuse(problems)
        return problems, *self.grpc.take(made)

    # ---- stopping ----

    async def stop(self) -> None:
        """Leaves the routes, answers the requests in progress, writes everything out. A second call
        does nothing. Raises: what closing the store raises."""
        self._stops = True
        try:
            if self._member is not None:
                await self._member.stop()
            if self._reopening is not None:
                await asyncio.wait({self._reopening})
            await self._close()
        finally:
            self._stops, self._reopening, self.loop, self._member = False, None, None, None
            self._members = ()

    async def _close(self) -> None:
        for each in self._ports:
            each.close()  # who connects now is not to wait for an answer
        try:
            await self._end_services()
        finally:
            undo, self._undo_ground = self._undo_ground, contextlib.AsyncExitStack()
            self._ground = None
            await undo.aclose()

    async def _end_services(self) -> None:
        undo, self._undo = self._undo, contextlib.AsyncExitStack()
        self._is_ready = False
        if self._services is not None:
            self._members = self._services.clients.members()
        try:
            await undo.aclose()
        finally:
            self._services = self._listeners = None

    def _cut_back(self, at: int) -> None:
        """Closes the store, ends its log at byte `at`, and serves again, at the same ports."""

        def cut(settings: Settings) -> None:
            from pystore.repair.tail import cut_back

            kept = cut_back(self.path, settings, at)
            log.warning("The log ends at %d now; what followed is in %s", at, kept)

        self._reopen(cut)

    def _begin_again(self) -> None:
        """Closes the store, empties it of what its log had, and serves again, at the same ports."""

        def empty(settings: Settings) -> None:
            from pystore.repair.tail import empty

            empty(self.path, settings)

        self._reopen(empty)

    def _reopen(self, between: Callable[[Settings], None]) -> None:
        """Closes the store and opens it again. between: called with its settings, in a thread."""
        if self._reopening is not None and not self._reopening.done():
            return
        asked = self.services

        async def reopen() -> None:
            async with self._changing:
                if self._services is asked:  # else it has another role by now
                    await self._restart(lambda: between(asked.store.settings))

        self._reopening = asyncio.get_running_loop().create_task(reopen())

    # ---- hooks ----

    def add_send_hook(self, hook: SendMessageHook) -> None:
        """Adds a hook, before the start or on the broker's loop. Sends then all go through
        Python."""
        self._send_hooks.append(hook)
        if self._services is not None:
            self._hook_sends(hook)

    def add_consume_hook(self, hook: ConsumeMessageHook) -> None:
        """Adds a hook, before the start or on the broker's loop. Pulls then all go through
        Python."""
        self._consume_hooks.append(hook)
        if self._services is not None:
            self._hook_pulls(hook)

    def _hook_sends(self, hook: SendMessageHook) -> None:
        self.services.send_hooks.add(hook)
        self.services.core.delegate_sends()

    def _hook_pulls(self, hook: ConsumeMessageHook) -> None:
        self.services.consume_hooks.add(hook)
        self._core.watch_pulls(partial(waited, self.services))

    # ---- life, with a loop and without ----

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs a coroutine on the loop of a broker started by ``with``, and waits for it."""
        if self._thread is None:
            raise RuntimeError("the broker runs on the caller's event loop: use await")
        return self._thread.run(work)

    # ---- clients in this process ----

    def producer(
        self, group: str = "DEFAULT_PRODUCER", **options: Unpack[ProducerOptions]
    ) -> Producer:
        """Returns a producer of this broker, without a socket between; options as of Producer."""
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
        """Returns a consumer of this broker, without a socket between; options as of Consumer."""
        from broker.client.blocking import Consumer

        self._reach(options)
        names = self.namesrv_address or None
        return self._beside(Consumer(group, topics, namesrv=names, handler=handler, **options))

    def lite_consumer(
        self, group: str, topic: str, *,
        handler: Callable[[ReceivedMessage], object] | None = None,
        **options: Unpack[LiteOptions],
    ) -> LiteConsumer:  # fmt: skip
        """Returns a consumer of lite topics of this broker, without a socket between; options as of
        LiteConsumer."""
        from broker.client.lite_blocking import LiteConsumer

        self._reach(options)
        names = self.namesrv_address or None
        return self._beside(LiteConsumer(group, topic, names, handler=handler, **options))

    def async_producer(
        self, group: str = "DEFAULT_PRODUCER", **options: Unpack[ProducerOptions]
    ) -> AsyncProducer:
        """Returns a producer as producer() does, for any event loop; on another one than the
        broker's through a socket."""
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
        """Returns a consumer as consumer() does, for any event loop; on another one than the
        broker's through a socket."""
        from broker.client.consumer import AsyncConsumer

        self._reach(options)
        names = self.namesrv_address or None
        return AsyncConsumer(group, topics, namesrv=names, handler=handler, **options)

    def async_lite_consumer(
        self, group: str, topic: str, *,
        handler: Callable[[ReceivedMessage], Awaitable[object]] | None = None,
        **options: Unpack[LiteOptions],
    ) -> AsyncLiteConsumer:  # fmt: skip
        """Returns a consumer as lite_consumer() does, for any event loop; on another one than the
        broker's through a socket."""
        from broker.client.lite_consumer import AsyncLiteConsumer

        self._reach(options)
        names = self.namesrv_address or None
        return AsyncLiteConsumer(group, topic, names, handler=handler, **options)

    def _beside(self, client: _Client) -> _Client:
        """Has a client for threads run on the loop of a broker that was started by ``with``, which
        closes it at the latest with itself."""
        if self._thread is not None:
            client._runner.use(self._thread)
            self._beside_us.add(client)
        return client

    def _join(self, address: str, make: Callable[[], Connection]) -> Connection | None:
        """Returns a connection of a client on our loop to our main port."""
        server = self._listeners.main if self._listeners is not None else None
        if server is None or address != self.address or asyncio.get_running_loop() is not self.loop:
            return None
        if not server.serving:
            return None
        made = make()
        join(made, server.accept(), (self.settings["brokerIP1"].strip("[]"), self.port))
        return made

    def _reach(self, options: ClientOptions) -> None:
        """Tells a client its routes: a broker without a name server does so itself, and so does one
        whose own name server takes TLS only from a client that does not speak it."""
        from broker.client.in_process import RouteFinder

        _ = self.services  # Raises: RuntimeError before the start
        if not options.get("tls"):  # whoever wants to see ciphers gets a socket
            options.setdefault("connector", self._join)
        deaf = self.namesrv is not None and self._options.enforces_tls and not options.get("tls")
        if deaf or not self.namesrv_address:
            options.setdefault("find_route", RouteFinder(lambda: self.loop, self._route_of))

    def _route_of(self, topic: str) -> Route | None:
        """Returns a route, on the broker's loop."""
        from broker.client.routes import route_of_queues

        services = self._services
        config = services.topics.get(topic) if services is not None else None
        if services is None or config is None:
            return None
        return route_of_queues(
            topic, services.broker_name, self.address, services.settings["brokerClusterName"],
            config.perm, config.read_queue_nums, config.write_queue_nums,
        )  # fmt: skip

    @named_arguments
    def create_topic(self, name: str, queues: int = 4, message_type: str | None = None) -> None:
        """Makes a topic before anybody sends to it, or changes how many queues it has.
        message_type: what RocketMQ 5's clients may send there: NORMAL, FIFO, DELAY, TRANSACTION,
        LITE, or PRIORITY, whose queues are the levels; None: as it is, NORMAL for a new one. With
        ``async with``, call it on the broker's loop. With ``with``, the name servers know of the
        change when it returns.
        Raises: Refused for an illegal name or type."""

        def create() -> None:
            changes = f"+message.type={message_type}" if message_type is not None else ""
            self.services.topics.update(TopicConfig(name, queues, queues), changes)

        self._change(create)

    def create_group(self, name: str, *, lite_of: str | None = None) -> None:
        """Makes a consumer group before anybody consumes for it. lite_of: the topic of type LITE
        whose lite topics it reads. Where to call it: as create_topic().
        Raises: Refused for an illegal name."""
        attributes = {} if lite_of is None else {"+lite.bind.topic": lite_of}
        self._change(
            lambda: self.services.groups.update(SubscriptionGroup(name, attributes=attributes))
        )

    def _change(self, create: Callable[[], object]) -> None:
        if self._thread is None or self._thread.is_own():
            create()
        else:

            async def create_and_announce() -> None:
                create()
                await self.services.registration.settled()
                if self.services.replication is not None:
                    await self.services.replication.told()

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
