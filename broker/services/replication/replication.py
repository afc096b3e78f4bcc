"""What a broker does for replication: a master lets slaves follow its log, a slave follows its
master and takes over what tools make there (docs/replication.md). One duty of the broker."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping

from broker.access.addresses import OWN_HOST, Pattern, address_of
from broker.access.signature import Credentials
from broker.remoting.client import RemotingClient
from broker.services.broker_asker import BrokerAsker, patterns_of
from broker.services.config import Config
from broker.services.groups import Groups
from broker.services.lite.lite_topics import LiteTopics
from broker.services.offsets import ConsumerOffsets
from broker.services.policy_access import PolicyAccess
from broker.services.pop.modes import RequestModes
from broker.services.pop.order import OrderTable
from broker.services.registration import Registration
from broker.services.replication.elected_role import ElectedRole
from broker.services.replication.epochs import Epoch, EpochFile
from broker.services.replication.log_comparer import LogComparer
from broker.services.replication.master import HaMaster
from broker.services.replication.notices import ChangeNotices
from broker.services.replication.slave import HaSlave, MasterKnown
from broker.services.replication.synchronize import Synchronizer
from broker.services.static_topics.table import MappingTable
from broker.services.topics import Topics
from broker.wire.codes import ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Peer
from pystore import Store
from pystore.errors import BadArgument
from pystore.files import named_errors
from pystore.native import lib
from pystore.settings import Settings

__all__ = ["Replication", "is_slave", "replicates"]

#: How long the master has for an answer.
_ASK_S = 3.0
#: After a round a slave rests for so many times as long as that took, unless its job is due.
_RESTS = 9


def is_slave(settings: Settings | Config) -> bool:
    return bool(settings["brokerRole"] == "SLAVE")


def replicates(settings: Settings) -> bool:
    """Says whether slaves may follow this broker. Upstream's opens the port always: here a setting
    has to say so, since whoever reaches it reads all there is."""
    asked = {"brokerRole", "haListenPort"} & settings.explicit
    return bool(asked) and not is_slave(settings)


class Replication:
    """master: the end that slaves follow; slave: the end that follows. One of them, or none."""

    def __init__(
        self,
        store: Store,
        config: Config,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        registration: Registration,
        client: RemotingClient,
        credentials: Credentials | None,
        sock: socket.socket | None,
        guarded: bool,
        modes: RequestModes | None = None,
        policies: PolicyAccess | None = None,
        order: OrderTable | None = None,
        elected: ElectedRole | None = None,
        mappings: MappingTable | None = None,
        lite: LiteTopics | None = None,
    ) -> None:
        """Takes its part of replication. sock: bound, for slaves; None: slaves have none.
        credentials: what a slave asks its master is signed with them. guarded: access control is
        on. modes, policies, order, mappings, lite: of a slave, for what its master has. elected: of
        a broker under a controller. Raises: BadArgument, StoreError."""
        self._store, self._elected = store, elected
        self._epochs = _epochs_of(store, elected)
        self._registration = registration
        self._asker = BrokerAsker(client, credentials, config["trustedBrokers"])
        self._known = MasterKnown()
        if elected is not None and elected.record is not None:
            self.use_master(elected.record.address, elected.record.ha_address)
        self._trusted = _trusted(config, guarded)
        self._waits = config["brokerRole"] == "SYNC_MASTER"
        self.master: HaMaster | None = None
        self.notices: ChangeNotices | None = None
        if sock is not None:
            number = elected.number if elected is not None else None
            self._comparer = LogComparer(store, registration.members, self.request, number)
            self.master = HaMaster(
                store, config, sock, self.trusts, self._comparer, elected, self._epochs
            )
            self.notices = ChangeNotices(topics, groups)
        self.slave: HaSlave | None = None
        self._synchronizing: asyncio.Task[None] | None = None
        #: Of a slave: something has changed since the last round began, and when the next one may.
        self._is_behind, self._rests_until = False, 0.0
        self._soon: asyncio.TimerHandle | None = None
        #: This broker follows nobody any more.
        self._over = asyncio.Event()
        #: Whether a slave keeps what it did itself just now: how far consumers and deliveries are.
        self.is_held: Callable[[], bool] = lambda: False
        if is_slave(config):
            self.slave = HaSlave(
                store, config, self._known, self._ask, elected, self._epochs, self._ha_address
            )
            self.slave.before_following = self._take_made
            self.slave.on_followed = self.synchronize
            self._synchronizer = Synchronizer(
                self._ask_while_following, store, topics, groups, offsets
            )
            self._synchronizer.modes, self._synchronizer.policies = modes, policies
            self._synchronizer.order, self._synchronizer.mappings = order, mappings
            self._synchronizer.lite = lite
            registration.on_answer = self._learn

    def trusts(self, host: str) -> bool:
        """Says whether a broker at this host may follow this one, or say that it is its master."""
        found = address_of(host)
        return any(each.matches(found) for each in self._trusted)

    # ---- the duty ----

    def start(self) -> None:
        """Begins to follow the master. Who serves slaves does so from before the first client until
        after the last one (broker/startup.py)."""
        if self.slave is not None:
            self.slave.start()

    async def stop(self) -> None:
        self._over.set()
        if self.notices is not None:
            self.notices.stop()
        if self._soon is not None:
            self._soon.cancel()
        if self.slave is not None:
            await self.slave.stop()
        if self._synchronizing is not None:  # what was answered is taken over, whole
            await asyncio.wait({self._synchronizing}, timeout=_ASK_S)
            self._synchronizing.cancel()

    def look(self) -> None:
        """Looks after master and slaves: a job, every second."""
        if self.master is not None:
            self.master.look()
        if self.slave is not None:
            self.slave.look()
            if not self._known.ha:
                self._registration.again()

    def synchronize(self) -> None:
        """Takes what the master has beside its log: a job of slaves, every few seconds; and at
        once, when a master is followed. Topics, groups and offsets are those of a log: a slave that
        refuses a master's takes none of it."""
        slave = self.slave
        if slave is not None and slave.followed and not self._is_synchronizing:
            self._synchronizing = asyncio.get_running_loop().create_task(self._take_once())

    @property
    def _is_synchronizing(self) -> bool:
        return self._synchronizing is not None and not self._synchronizing.done()

    async def _take_once(self) -> None:
        clock, self._is_behind = asyncio.get_running_loop().time, False
        began = clock()
        await self._synchronizer.once(made_only=self.is_held())
        self._rests_until = clock() + _RESTS * (clock() - began)
        if self._is_behind:
            self._synchronize_soon()

    async def _take_made(self) -> None:
        """Takes what tools have made at the master. That counts on this slave from the stream's
        first bytes on, and from this question on tells it what is made (notices.py): there is
        nothing in between that both of them miss. What fails is logged, and asked for again."""
        await self._synchronizer.once(made_only=True)

    async def hear_of_change(self, peer: Peer, command: Command) -> Command:
        """Takes what the master that is followed says of topics and groups that have changed
        (notices.py). Raises: Refused, ValueError, StoreError."""

        def may() -> bool:
            followed = self.slave.followed if self.slave is not None else ""
            return self._asker.is_asked_over(followed, peer)

        if command.flag_of("again") and may() and not self._is_behind:
            self._is_behind = True
            if not self._is_synchronizing:
                self._synchronize_soon()
        if not await self._synchronizer.take_changed(bytes(command.body), may):
            raise Refused(ResponseCode.SYSTEM_ERROR, "this broker does not follow yours now")
        return command.reply()

    def _synchronize_soon(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
        if not self._over.is_set():
            loop = asyncio.get_running_loop()
            self._soon = loop.call_at(self._rests_until, self.synchronize)

    async def told(self) -> None:
        """Waits, at a synchronous master, until those slaves of ours that are in sync have the
        topics and groups of now; for a few seconds at most."""
        if self.master is not None and self.notices is not None and self._waits:
            await self.notices.told(self.master.hosts_in_sync())

    # ---- the master of a slave ----

    def _learn(self, answer: Mapping[str, str]) -> None:
        """Learns where the name server says that the master is; one that is gone may come back
        there."""
        address, ha = answer.get("masterAddr") or "", answer.get("haServerAddr") or ""
        if not address:
            return
        known = self._known
        # It may know the master of before, and a controller that says where slaves connect is
        # asked.
        if self._elected is not None and (address != known.address or not known.is_told):
            return
        known.address, known.ha, known.is_told = address, ha, True

    @property
    def master_address(self) -> str:
        """The main port of the master that a slave follows; empty: it knows none."""
        return self._known.address

    def use_master(self, address: str, ha: str) -> None:
        """Follows this one from the next connection on. address: of its main port; ha: of its port
        for slaves."""
        self._known.address, self._known.ha, self._known.is_told = address, ha, not ha

    def follow(self, address: str, ha: str) -> None:
        """Follows, under a controller, this master from now on; without `ha`, a name server says
        where it takes slaves. Nothing of the one before is taken any more."""
        if self.slave is not None:
            self.use_master(address, ha)
            self.slave.again()
            self._registration.again()

    def last_epoch(self) -> int:
        """Returns the last one that this log has something of; -1: none."""
        return self._epochs.epochs[-1].epoch if self._epochs.epochs else -1

    def confirmed(self) -> int:
        """Returns the end of what readers see."""
        return int(lib.ps_confirmed(self._store.c_handle()))

    @property
    def epochs(self) -> list[Epoch]:
        return list(self._epochs.epochs)

    async def take_all(self) -> list[str]:
        """Takes over what tools make at the master, once. Returns what failed."""
        return await self._synchronizer.once()

    async def _ha_address(self) -> str:
        """Returns where the master takes slaves. What a name server says of it counts unless the
        master has to prove who it is, and says it itself. Raises: OSError, TimeoutError,
        ValueError."""
        known = self._known
        if not (known.is_told and known.address):
            return known.ha
        return await self._asker.ha_address(known.address, _ASK_S) or known.ha

    async def _ask(self, command: Command) -> Command:
        """Asks the master. Raises: OSError, TimeoutError, ValueError."""
        return await self.request(self._known.address, command)

    async def _ask_followed(self, command: Command) -> Command:
        """Asks the master whose log is taken, which may be another one than name servers say by
        now. Raises: OSError, TimeoutError, ValueError."""
        if self.slave is None or not self.slave.followed:
            raise OSError("no master's log is being copied at the moment")
        return await self.request(self.slave.followed, command)

    def take_proof(self, host: str, at: int, record: bytes, ext: Mapping[str, str]) -> None:
        """Takes a slave's proof of what it has (log_comparer.py)."""
        if self.master is not None:
            self._comparer.take_proof(host, at, record, ext)

    async def _ask_while_following(self, command: Command) -> Command:
        """Asks as long as the master is followed: who follows it no more, and may be the next one,
        does not wait for it. Raises: OSError, TimeoutError, ValueError."""
        asked = asyncio.ensure_future(self._ask_followed(command))
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({asked, over}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise OSError("this broker no longer follows it")
            return asked.result()
        finally:
            asked.cancel()
            over.cancel()

    async def request(self, address: str, command: Command) -> Command:
        """Sends a request to the master. Raises: OSError, TimeoutError, ValueError."""
        return await self._asker.request(address, command, _ASK_S)


def _epochs_of(store: Store, elected: ElectedRole | None) -> EpochFile:
    """Reads the epochs of the log; a master begins its own. Raises: StoreError."""
    path, mode = store.path / "epochFileCheckpoint", store.settings.file_mode
    if elected is None:
        return EpochFile(path, mode, [])
    try:
        end = store.info().log_max
        with named_errors(path, "cannot read or write the epochs"):
            found = EpochFile.load(path, mode, end)
            if elected.is_master:
                found.begin(elected.epoch, end)
    except ValueError as damaged:
        raise BadArgument(f"{path}: {damaged}") from None
    return found


def _trusted(config: Config, guarded: bool) -> list[Pattern]:
    """Reads the hosts that are trusted. Raises: BadArgument."""
    given = config["trustedSlaves"] or (OWN_HOST if guarded else "*")
    return patterns_of("trustedSlaves", given)
