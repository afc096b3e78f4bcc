"""What a broker opens before it serves anybody: the store, the core over it and the services.

Everything is closed in the opposite order by the stack that is given along.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING

import pystore
from broker.access.addresses import address_of
from broker.access.authorizer import host_of
from broker.hot.core import Core
from broker.hot.dedup import Dedup
from broker.loop.budget import Budget
from broker.loop.log_lines import apply_levels
from broker.loop.safe_log import SafeLogger
from broker.loop.watchdog import Watchdog
from broker.remoting.client import RemotingClient
from broker.remoting.tls import TlsSettings
from broker.services.access import Access, inner_credentials
from broker.services.acting.acting import Acting
from broker.services.acting.mastership import Mastership
from broker.services.broker_asker import BrokerAsker
from broker.services.clients import Clients
from broker.services.config import Config, store_alone
from broker.services.context import Services
from broker.services.duties import BrokerRole, Duties
from broker.services.duty_table import duties_of
from broker.services.groups import Groups
from broker.services.lite.kept import KeptSubscriptions
from broker.services.lite.lite_topics import LiteTopics, is_lite
from broker.services.locks import Locks
from broker.services.offsets import ConsumerOffsets
from broker.services.pop import Pop
from broker.services.registration import Registration
from broker.services.replication.elected_role import ElectedRole
from broker.services.replication.master import WAITS
from broker.services.replication.replication import Replication, is_slave
from broker.services.schedule import Schedule
from broker.services.setting_forms import servers_of
from broker.services.static_topics.physical import PhysicalQueues
from broker.services.static_topics.static_topics import StaticTopics
from broker.services.static_topics.table import MappingTable
from broker.services.statistics import Statistics
from broker.services.topics import Topics
from broker.services.transaction import Transactions
from broker.wire.codes import RequestCode
from broker.wire.handlers import Handler
from pystore import Store
from pystore.errors import StoreError
from pystore.native import ffi, lib, raise_error
from pystore.settings import RETENTION, Settings
from pystore.store import hosting, reconcile
from pystore.store.timers import Timers, TimersProgress, save_timers

if TYPE_CHECKING:
    # A server process starts without what it may never use.
    from broker.grpc.settings import ProxySettings

__all__ = ["Ground", "Options", "begins_after_tier", "open_ground", "open_services"]

log = SafeLogger("broker.broker")

#: Between two lines about a start that takes long.
_PROGRESS_S = 5.0
#: Records of timers; fewer are read again in a moment.
_SAVED_AT_ONCE = 100_000


@dataclass(slots=True)
class Options:
    """What a broker was given (see Broker). given: settings over those of the file `conf`;
    settings: all of them. client_tls: of what it asks name servers."""

    path: Path
    conf: Path | None
    given: dict[str, object]
    settings: Settings
    tls: TlsSettings | None
    client_tls: SSLContext | None
    now_ms: Callable[[], int] | None
    drain_s: float
    grpc_port: int | None
    proxy_conf: Path | None
    #: What proxy_conf held when it was read, and what changed since.
    proxy: ProxySettings | None = None
    #: Under a controller: what this broker is just now.
    elected: ElectedRole | None = None

    def set(self, name: str, value: object) -> None:
        """Sets what is known only now."""
        self.given[name] = value
        self.settings = self.settings.replaced(**{name: value})

    def take_role(self, elected: ElectedRole) -> None:
        """Takes a role under a controller, whose numbers slaves have at name servers; the master
        has 0."""
        self.elected = elected
        self.set("brokerRole", "SYNC_MASTER" if elected.is_master else "SLAVE")
        self.set("brokerId", 0 if elected.is_master else elected.number)

    @property
    def enforces_tls(self) -> bool:
        return self.tls is not None and self.tls.mode == "enforcing"


@dataclass(frozen=True, slots=True)
class Ground:
    """What stays when the role of a broker changes. names: its connections to name servers."""

    store: Store
    names: RemotingClient


async def open_ground(o: Options, undo: AsyncExitStack) -> Ground:
    """Opens the store and what belongs to it. Raises: what opening the store raises."""
    # Opening may have to recover; the loop is not only ours.
    store = await asyncio.to_thread(_open_store, o)
    undo.push_async_callback(asyncio.to_thread, store.close)
    if o.settings["lightFilesAtStop"]:
        undo.push_async_callback(asyncio.to_thread, _leave_light_files, store)
    names = RemotingClient(tls=o.client_tls)
    undo.push_async_callback(names.close)
    return Ground(store, names)


async def open_services(
    o: Options, ground: Ground, address: str, slaves: socket.socket | None, undo: AsyncExitStack
) -> Services:
    """Opens all of it, and knows what is open in it: timers, check points, transactions. address:
    ``host:port`` that clients reach the broker at. slaves: bound, for those who follow. Raises:
    what reading the store raises."""
    store = ground.store
    await asyncio.to_thread(_follow_or_lead, o, store)
    core = _make_core(o.settings, store)
    undo.callback(core.close)
    services = _make_services(o, ground, core, address)
    services.static = _static_topics(o, services, undo)
    services.groups.start()
    services.topics.start()
    services.offsets.start()
    if is_slave(o.settings):
        services.offsets.known_to = store.metadata.offsets_mark()
    undo.callback(services.offsets.persist_now)
    undo.callback(services.topics.write_now)
    undo.callback(services.groups.write_now)
    undo.push_async_callback(services.groups.settled)
    undo.push_async_callback(services.topics.settled)
    undo.push_async_callback(services.finishing.stop)
    timers = await _open_timers(o.settings, store, undo)
    services.schedule = schedule = Schedule(
        store, core, timers=timers, max_tps=o.settings["deliveryMaxTps"]
    )
    services.pop = pop = Pop(
        store, core, services.settings, services.topics, services.groups, services.offsets, schedule
    )
    undo.callback(pop.save_now)
    # A slave knows no check points: whoever becomes the master finds them in the log.
    await pop.start(None if is_slave(o.settings) else timers)
    pop.order.batches.put_records(_has_heirs(o))
    services.lite = lite = await _lite_topics(services, pop)
    undo.push_async_callback(lite.stop)
    services.access = access = await _control_access(o, core, undo)
    services.replication = _replicate(o, services, access, slaves, undo)
    services.transactions = transactions = await _open_transactions(o, services, core, undo)
    services.once = await _remember(o.settings, core)
    _open_tier(o, services)
    services.acting = acting = _act(services)
    services.mastership = mastership = _keep_mastership(services, o)
    undo.callback(schedule.hand_over)
    role = BrokerRole.SLAVE if is_slave(o.settings) else BrokerRole.MASTER
    services.duties = duties = Duties(duties_of(services, acting, mastership), role)
    duties.on_role.append(transactions.change_role)
    return services


def _has_heirs(o: Options) -> bool:
    """Returns whether this is a master in whose place a slave may serve that has all that was
    acknowledged."""
    s = o.settings
    copied = s["brokerRole"] == "SYNC_MASTER" or s["inSyncReplicas"] > 1 or s["totalReplicas"] > 1
    return not is_slave(s) and (o.elected is not None or copied or s["enableSlaveActingMaster"])


def _static_topics(o: Options, s: Services, undo: AsyncExitStack) -> StaticTopics:
    """Reads the mappings of static topics, before topics are told to the core. Raises:
    RecordDamaged, BadArgument."""
    client = RemotingClient(tls=o.client_tls)
    undo.push_async_callback(client.close)
    asker = BrokerAsker(client, inner_credentials(o.settings), o.settings["trustedBrokers"])
    queues = PhysicalQueues(s.broker_name, s.registration.route, asker.request)
    undo.callback(queues.close)
    table = MappingTable(s.store.path / "config", s.store.settings.file_mode, s.broker_name)
    table.load()
    s.topics.is_static = table.__contains__
    s.registration.mappings = table.infos
    return StaticTopics(table, queues, s.registration.route, s.settings)


async def _lite_topics(s: Services, pop: Pop) -> LiteTopics:
    """Makes the part of lite topics; it serves once a topic has some. Raises: StoreError."""
    lite = LiteTopics(
        s.store.lights,
        s.settings,
        s.topics,
        s.groups,
        s.offsets,
        s.core,
        pop.order.batches,
        pop.now_ms,
        KeptSubscriptions(
            s.store.path / "config" / "liteSubscriptions.json", s.store.settings.file_mode
        ),
    )
    await lite.start()
    s.topics.before = lambda config: lite.begin() if is_lite(config.attributes) else None
    return lite


def _follow_or_lead(o: Options, store: Store) -> None:
    """Has the store take its master's log alone, or messages. Raises: StoreError."""
    handle = store.c_handle()
    if not is_slave(o.settings):
        error = ffi.new("ps_error *")
        followed = lib.ps_follow_end(handle, error)
        if followed < 0:
            raise_error(error[0], error.code)
        if followed:
            # Its master had no time to tell of some topics, and may be ahead of the log that came.
            reconcile.learn_topics(store, store.metadata)
            reconcile.set_back_progress(store, store.metadata)
        return
    lib.ps_follow_begin(handle)  # nothing here may put a record of its own
    if store.metadata.delays_known():  # its master's progress comes a little late
        store.metadata.set_delays_known(False)
    if o.elected is not None:  # nor show what no master has confirmed since
        lib.ps_want_copies(handle, True, o.settings["slaveTimeout"])
        lib.ps_hide_unconfirmed(handle)


def _leave_light_files(store: Store) -> None:
    from pystore.repair.light_files import write_light_files

    if not store.lights.is_on:
        return
    try:
        count = write_light_files(store)
    except (OSError, StoreError) as failed:
        log.warning("Java's files of light queues cannot be written: %s", failed)
    else:
        log.info("Java's files of %d light queues are written", count)


def _open_store(o: Options) -> Store:
    if o.settings["lightFilesAtStop"]:
        from pystore.repair.light_files import remove_light_files

        remove_light_files(o.path, o.settings.file_mode)
    begun = _begin_after_tier(o) if begins_after_tier(o) else {}
    store = pystore.open(o.path, o.conf, **o.given | store_alone())  # type: ignore[arg-type]
    hosting.retain(store, o.settings)  # changed by a request, it stands in no file
    for topic, queues in begun.items():
        store.metadata.ensure_topic(topic, queues - 1)
    if o.settings["tieredStoreFilePath"]:
        hosting.keep_beyond(store, 0)  # retention need not wait for the rest of the start
    return store


def begins_after_tier(o: Options) -> bool:
    """Says whether the store is to go on where its tier ends: that of a master, while it is empty.
    Under a controller, nobody has anything once such a broker is elected."""
    s = o.settings
    if not s["tieredStoreFilePath"] or is_slave(s):
        return False
    return not any(any(each.iterdir()) for each in s.commitlog_dirs(o.path) if each.is_dir())


def _begin_after_tier(o: Options) -> dict[str, int]:
    """Begins the log where the tier ends. Returns topics, each with how many queues it has. Raises:
    StoreError where the tier does not answer."""
    from pystore.cold.restore import begin_after
    from pystore.cold.tier import new_tier

    s = o.settings
    tier = new_tier(s["tieredStoreFilePath"], s["brokerClusterName"], s["brokerName"])
    begun = begin_after(tier, o.path, s)
    if begun:
        log.warning("The store is empty: the queues of %d topics go on after the tier", len(begun))
    return begun


def _make_core(settings: Settings, store: Store) -> Core:
    core = Core(
        store,
        cluster=settings["brokerClusterName"],
        broker=settings["brokerName"],
        region=settings["regionId"],
        trace_on=settings["traceOn"],
        long_polling=settings["longPollingEnable"],
        short_polling_ms=settings["shortPollingTimeMills"],
        parked_max=settings["maxHeldPulls"],
        offsets_max=settings["maxOffsetsPerBroker"],
        slave_reads=settings["slaveReadEnable"],
        slave=is_slave(settings),
    )
    loop = asyncio.get_running_loop()
    Budget.of(loop).limit = settings["maxUnfinishedBytes"]
    core.attach(loop)
    return core


def _make_services(o: Options, ground: Ground, core: Core, address: str) -> Services:
    store, config = ground.store, Config(o.settings, o.conf)
    groups = Groups(config, store.metadata, core)
    topics = Topics(config, store.metadata, core)
    clients = Clients(groups, core, expire_s=config["channelExpiredTimeout"] / 1000)
    registration = Registration(
        config, topics, address, ground.names.connection, inner_credentials(o.settings)
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
        address=address,
        watchdog=Watchdog(config["loopHeldWarnMillis"]),
    )
    registration.epoch = o.elected.epoch if o.elected is not None else 0
    clients.may_notify = lambda group: bool(config["notifyConsumerIdsChangedEnable"])
    clients.filters = lambda: bool(config["enablePropertyFilter"])
    groups.changed = clients.republish
    topics.changed = registration.changed
    config.changed.append(lambda names: _follow_settings(o, made, names))
    _admit(made)
    apply_levels(config["logLevels"])
    return made


def _admit(services: Services) -> None:
    """Tells the core what settings refuse, which it would serve."""
    config = services.settings
    services.core.admit(
        sends_from_ms=max(0, config["startAcceptSendRequestTimeStamp"]),
        lite_pulls=config["litePullMessageEnable"],
    )


def _follow_settings(o: Options, services: Services, names: frozenset[str]) -> None:
    for name in names:  # services of the next role begin with them
        o.settings = o.settings.replaced(**{name: services.settings[name]})
    _admit(services)
    if "logLevels" in names:
        apply_levels(services.settings["logLevels"])
    if "brokerPermission" in names:
        services.topics.rights_changed()
    if names & WAITS and services.replication is not None and services.replication.master:
        services.replication.master.settings_changed()
    if names & RETENTION:
        hosting.retain(services.store, services.settings.current)
    if "enableLmqQuota" in names:
        services.topics.publish_all()
    if "enablePropertyFilter" in names:
        services.clients.republish_all()
    if "deliveryMaxTps" in names and services.schedule is not None:
        services.schedule.max_tps = services.settings["deliveryMaxTps"]
    if "namesrvAddr" in names:
        services.registration.use(servers_of(services.settings["namesrvAddr"]))


async def _open_timers(settings: Settings, store: Store, undo: AsyncExitStack) -> Timers | None:
    """Opens the timers that wait, unless they are off. A crash may have left some log to read."""
    if not settings["timerWheelEnable"]:
        return None
    began = told = time.monotonic()

    def tell(so_far: TimersProgress) -> None:
        nonlocal told
        if time.monotonic() - told >= _PROGRESS_S:
            told = time.monotonic()
            log.info("Finding timers: %d of %d records, %d of %d bytes of the log", *so_far)

    timers = await asyncio.to_thread(Timers, store, tell)
    undo.callback(timers.close)
    if timers.recovered > _SAVED_AT_ONCE:  # so that a crash now does not read all of it again
        await asyncio.to_thread(_save_timers, store, timers)
    log.info("%d timers wait, found in %.1f s", timers.count(), time.monotonic() - began)
    return timers


def _save_timers(store: Store, timers: Timers) -> None:
    state, _ = timers.capture()
    store.flush()
    save_timers(store, state)


async def _control_access(o: Options, core: Core, undo: AsyncExitStack) -> Access:
    """Reads the rules, before anybody is served. Raises: StoreError for rules that cannot be
    read."""
    access = Access(o.settings, o.conf, o.path)
    if not access.is_on:
        _warn_of_open_door(o)
    undo.push_async_callback(access.stop)
    await access.start()
    if access.is_on:
        core.check_access(_first_frame_max(o.settings))
        # A pull that waits was let in by the rules of before: its client asks again.
        access.changed += [core.revoke, core.notify_all]
    return access


def _replicate(
    o: Options, services: Services, access: Access, slaves: socket.socket | None,
    undo: AsyncExitStack,
) -> Replication | None:  # fmt: skip
    """Makes the part of replication. Raises: BadArgument, StoreError."""
    if slaves is None and not is_slave(o.settings):
        return None
    of_master: dict[int, Handler] = {}
    client = RemotingClient(of_master, tls=o.client_tls)
    undo.push_async_callback(client.close)
    if slaves is not None:
        services.registration.ha_port = slaves.getsockname()[1]
    pop = services.pop
    made = Replication(
        services.store, services.settings, services.topics, services.groups, services.offsets,
        services.registration, client, inner_credentials(o.settings), slaves, access.is_on,
        pop.modes if pop is not None else None, access.policies,
        pop.order if pop is not None else None, o.elected,
        services.static.table if services.static is not None else None, services.lite,
    )  # fmt: skip
    of_master[RequestCode.GET_ALL_TOPIC_CONFIG] = made.hear_of_change
    if made.master is not None:
        made.master.start()
        undo.callback(made.master.stop)
    return made


def _open_tier(o: Options, services: Services) -> None:
    """Makes the part of the cold tier, where there is one; nothing is asked of it yet."""
    if not o.settings["tieredStoreFilePath"]:
        return
    from broker.services.cold.cold import Cold

    s = services
    s.cold = Cold(
        s.store, s.settings, s.topics, s.cluster, s.broker_name,
        o.elected.epoch if o.elected is not None else 0,
    )  # fmt: skip


def _act(services: Services) -> Acting | None:
    """Makes the part of acting for a master. Raises: OSError."""
    replication = services.replication
    slave = replication.slave if replication is not None else None
    if replication is None or slave is None or not services.settings["enableSlaveActingMaster"]:
        return None
    return Acting(services, slave, replication.request)


def _keep_mastership(services: Services, o: Options) -> Mastership | None:
    replication = services.replication
    master = replication.master if replication is not None else None
    if replication is None or master is None or o.elected is not None:
        return None
    if not services.settings["enableSlaveActingMaster"]:
        return None
    return Mastership(services, master, replication.request)


def _first_frame_max(settings: Settings) -> int:
    """Returns the bytes of a frame before the first request of a connection was let in."""
    given: int = settings["maxFirstFrameBytes"]
    return given or settings["maxMessageSize"] + (1 << 20)


def _warn_of_open_door(o: Options) -> None:
    """Warns of an open door: a broker that anybody can reach lets everybody do everything."""
    found = address_of(o.settings["bindAddress"])
    if o.enforces_tls or (found is not None and found.is_loopback):
        return
    log.warning(
        "Listening on %s without access control or TLS: whoever reaches it may read, write and"
        " delete everything. Change it with\n  pystore broker --secure\nor listen on this host"
        " only:\n  bindAddress=127.0.0.1",
        o.settings["bindAddress"],
    )


async def _open_transactions(
    o: Options, services: Services, core: Core, undo: AsyncExitStack
) -> Transactions:
    transactions = Transactions(
        services.store, core, services.settings, services.clients, services.topics, now_ms=o.now_ms
    )
    access = services.access
    if access is not None and access.is_on:
        transactions.may_ask = lambda channel, topic: access.may_publish(
            channel.user, host_of(channel.peer), topic
        )
    await transactions.start()
    if o.elected is None or o.elected.is_master:  # another one's transactions are in the log alone
        undo.push_async_callback(transactions.stop)
    return transactions


async def _remember(settings: Settings, core: Core) -> Dedup | None:
    """Reads what repeats are known by, when it is asked for. Reads the end of the log: topics and
    open transactions are known by then, and nobody sends yet."""
    window = settings["idempotentProduceWindow"]
    if not window:
        return None
    once = Dedup(core, window, settings["idempotentProduceKey"])
    await asyncio.to_thread(once.build)
    log.info("Deduplication window holds %d messages", once.state().remembered)
    return once
