"""The broker at its name servers: registered, kept so, and taken out
(docs/internals/wire.md#registration).

One connection a name server stays open: closing it takes the broker out of all routes at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from broker.access.recipients import without_scope
from broker.access.signature import Credentials, sign
from broker.loop.lifetime import end_tasks
from broker.loop.reasons import reason_of
from broker.loop.safe_log import SafeLogger
from broker.loop.turns import Pieces
from broker.services.config import Config
from broker.services.setting_forms import servers_of
from broker.services.topics import READ, WRITE, Topics
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command
from broker.wire.handlers import Peer, address_text
from broker.wire.jsonbody import INT, OBJECT, TEXT, JsonMember, Shape, listed, required
from broker.wire.mqjson import JsonText
from pystore.meta.configfiles import DataVersion, TopicConfig, version_to_json

__all__ = ["Dial", "Registration"]

log = SafeLogger(__name__)

_T = TypeVar("_T")

#: Bytes of an answer that is not strict JSON, as name servers of 4.9 write it; reading it is slow.
_LAX_MAX = 256 << 10
#: Opens a connection to ``host:port``. Raises: OSError, TimeoutError.
Dial = Callable[[str], Awaitable[Peer]]

#: A name server that does not answer is asked again after so many seconds.
_RETRY_S = 1.0
_RETRY_MAX_S = 30.0
_UNREGISTER_S = 3.0
#: Topics whose JSON is put together on the loop.
_AT_ONCE = 500

#: KVTable: the ordered topics of the cluster.
_KV_TABLE = Shape(table=OBJECT)
#: ClusterInfo: the brokers of each name.
_CLUSTER = Shape(brokerAddrTable=OBJECT)
#: The brokers of one name.
_MEMBERS = Shape(brokerMemberGroup=OBJECT)
#: TopicRouteData, as far as queues are divided and brokers named by it.
_ROUTE = Shape(
    queueDatas=listed(
        Shape(
            brokerName=required(TEXT), perm=JsonMember(INT, 0), readQueueNums=JsonMember(INT, 0),
            writeQueueNums=JsonMember(INT, 0),
        )
    ),
    brokerDatas=listed(Shape(brokerName=required(TEXT), brokerAddrs=OBJECT)),
    topicQueueMappingByBroker=OBJECT,
)  # fmt: skip


@dataclass(slots=True)
class _Server:
    """A name server. `due` is the monotonic time of the next full registration, `pause` the time
    until the next try after a failure, and `registered` whether it knows us by this connection."""

    address: str
    peer: Peer | None = None
    due: float = 0.0
    pause: float = _RETRY_S
    registered: bool = False
    failing: bool = False


async def _beside(topics: int, work: Callable[[], _T]) -> _T:
    """Returns what `work` returns; it runs in a thread if it is about many topics. A few are
    registered at once, since a client may ask for the route of the topic that its first send has
    made."""
    return work() if topics <= _AT_ONCE else await asyncio.to_thread(work)


def _addresses(row: object) -> dict[int, str]:
    """Reads the addresses of a name server's answer. Raises: ValueError."""
    found = row.get("brokerAddrs") if isinstance(row, dict) else None
    return {int(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


class Registration:
    """Keeps every name server informed. `address` is the ``host:port`` that clients must reach."""

    def __init__(
        self,
        settings: Config,
        topics: Topics,
        address: str,
        dial: Dial,
        credentials: Credentials | None = None,
    ) -> None:
        """Takes what is registered. credentials: what its requests are signed with."""
        self._credentials = credentials
        self._settings = settings
        self._topics = topics
        self._address = address
        self._dial = dial
        self._servers = [_Server(each) for each in servers_of(settings["namesrvAddr"])]
        self._pending: dict[str, TopicConfig] = {}
        self._all = False
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        #: Nothing is registered just now.
        self.rests = False
        #: Of a broker under a controller; 0: there is none.
        self.epoch = 0
        self._last_beat = 0.0
        #: Set before a stop that another registration follows at once, by the same connections.
        self.stays = False
        #: Where slaves connect to; 0: nowhere.
        self.ha_port = 0
        #: What is registered of static topics, by name, of these; on any thread.
        self.mappings: Callable[[Iterable[str]], Mapping[str, Any]] = lambda names: {}
        #: Told the fields of each answer: where a slave's master is.
        self.on_answer: Callable[[Mapping[str, str]], None] = lambda fields: None

    @property
    def ha_address(self) -> str:
        """``host:port`` that slaves connect to."""
        host = self._settings["brokerIP2"] or self._settings["brokerIP1"]
        return address_text((host.strip("[]"), self.ha_port))

    def again(self) -> None:
        """Registers at once, to learn what has changed at the name servers."""
        for server in self._servers:
            server.due = 0.0
        self._wake()

    async def members(self) -> dict[int, str]:
        """Asks for the brokers of this one's name by their ids, as the name servers that answer
        know them: who is known to one of them is there. Raises: OSError, when none answers."""
        problem = "no name server is set"
        found: dict[int, str] = {}
        answered = False
        asked = [self._members_known_to(server) for server in self._servers]
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, dict):
                found |= answer
                answered = True
            elif isinstance(answer, OSError | TimeoutError | ValueError):
                problem = str(answer or type(answer).__name__)
            else:
                raise answer
        if not answered:
            raise OSError(problem)
        return found

    async def _members_known_to(self, server: _Server) -> dict[int, str]:
        if server.peer is None or server.peer.closed:
            server.registered = False
            server.peer = await self._dial(server.address)
        try:
            return await self._members_at(server.peer)
        except TimeoutError:
            if self.rests:  # a network that was cut may have lost this connection
                server.peer.close()
            raise

    async def _members_at(self, server: Peer) -> dict[int, str]:
        name, cluster = self._settings["brokerName"], self._settings["brokerClusterName"]
        ext = {"brokerName": name, "clusterName": cluster}
        command = self._signed(server, Command(RequestCode.GET_BROKER_MEMBER_GROUP, ext))
        answer = await server.request(command, _UNREGISTER_S)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # 4.9
            command = self._signed(server, Command(RequestCode.GET_BROKER_CLUSTER_INFO))
            answer = await server.request(command, _UNREGISTER_S)
            if answer.code == ResponseCode.SUCCESS:
                row = (_CLUSTER.loads(answer.body, _LAX_MAX)["brokerAddrTable"] or {}).get(name)
                return _addresses(row)
        if answer.code != ResponseCode.SUCCESS:
            raise OSError(f"a name server answered {answer.code} {answer.remark}")
        return _addresses(_MEMBERS.loads(answer.body, _LAX_MAX)["brokerMemberGroup"])

    @property
    def servers(self) -> Sequence[str]:
        return [each.address for each in self._servers]

    def states(self) -> list[tuple[str, bool]]:
        """Returns each name server, and whether it has registered us."""
        return [(each.address, each.registered) for each in self._servers]

    def use(self, addresses: Iterable[str]) -> None:
        """Uses these name servers from now on, and leaves those that are not named any more."""
        wanted = list(dict.fromkeys(addresses))
        for server in [s for s in self._servers if s.address not in wanted]:
            self._servers.remove(server)
            if server.peer is not None:
                server.peer.close()
        known = {server.address for server in self._servers}
        self._servers += [_Server(each) for each in wanted if each not in known]

    # ---- what it does by itself ----

    async def start(self) -> None:
        """Registers for the first time, or again after a stop; a name server that is not there yet
        is tried again later."""
        self._stopped = False
        await self._register_full(self._servers)
        soon = time.monotonic() + 10.0  # upstream's second one, for whoever missed the first
        for server in self._servers:
            server.due = min(server.due, soon)

    async def stop(self) -> None:
        """Takes the broker out of every route, unless it stays."""
        self._stopped = True
        await end_tasks(self._task)
        if self.stays:
            return
        await asyncio.gather(*(self._leave(s) for s in self._servers if s.registered))
        for server in self._servers:
            server.registered = False
            if server.peer is not None:
                server.peer.close()

    async def _leave(self, server: _Server) -> None:
        command = Command(RequestCode.UNREGISTER_BROKER, self._identity())
        with contextlib.suppress(OSError, TimeoutError):
            assert server.peer is not None
            await server.peer.request(self._signed(server.peer, command), _UNREGISTER_S)

    def tick(self) -> None:
        """Runs every second, as a job of the duty."""
        if self.rests:
            return
        now = time.monotonic()
        for server in self._servers:
            if server.registered and (server.peer is None or server.peer.closed):
                server.registered = False  # it restarted, or the network broke
                server.due = now
        if any(server.due <= now for server in self._servers):
            self._wake()
        pause = self._settings["brokerHeartbeatInterval"] / 1000
        if self._settings["enableSlaveActingMaster"] and now - self._last_beat >= pause:
            self._last_beat = now
            self._beat()

    def _beat(self) -> None:
        """Sends BROKER_HEARTBEAT, for clusters whose members watch each other by it."""
        for server in self._servers:
            if server.registered and server.peer is not None:
                beat = Command(RequestCode.BROKER_HEARTBEAT, self._identity())
                server.peer.send(self._signed(server.peer, beat))

    # ---- topics that changed ----

    def changed(self, configs: Sequence[TopicConfig]) -> None:
        """Notifies the name servers soon: of these topics, or of all when one was deleted."""
        for config in configs:
            self._pending[config.name] = config
        self._all = self._all or not configs
        self._wake()

    async def settled(self, timeout: float = 3.0) -> None:
        """Waits until the name servers know of the changes made so far, or `timeout` seconds."""
        task = self._task
        if task is not None and not task.done():
            await asyncio.wait({task}, timeout=timeout)

    def _wake(self) -> None:
        running = self._task is not None and not self._task.done()
        if self._stopped or self.rests or not self._servers or running:
            return
        try:
            self._task = asyncio.get_running_loop().create_task(self._work())
        except RuntimeError:  # before the loop runs; start() registers everything
            return

    async def _work(self) -> None:
        while not self._stopped:
            now = time.monotonic()
            pending, self._pending = self._pending, {}
            everything, self._all = self._all, False
            due = [s for s in self._servers if s.due <= now or (everything and s.registered)]
            others = [s for s in self._servers if s.registered and s not in due]
            if due:
                await self._register_full(due)
            if pending and others:
                await self._register_some(others, list(pending.values()))
            if not self._pending and not self._all:
                return

    # ---- requests ----

    def _signed(self, server: Peer, command: Command) -> Command:
        """Signs a request for this name server alone: whoever is one must not ask brokers with
        it."""
        if self._credentials is not None:
            sign(command, self._credentials, without_scope(server.address))
        return command

    def _identity(self) -> dict[str, str]:
        return {
            "brokerAddr": self._address,
            "brokerId": str(self._settings["brokerId"]),
            "brokerName": self._settings["brokerName"],
            "clusterName": self._settings["brokerClusterName"],
        }

    async def _table(self, configs: Sequence[TopicConfig]) -> JsonText:
        """Returns topicConfigTable. Tens of thousands of topics take long to write, and few of them
        change from one registration to the next: each is written once."""
        allowed = self._settings["brokerPermission"] & (READ | WRITE)
        made, pieces = [], Pieces()
        for config in configs:
            await pieces.next()
            text = self._topics.text(config)
            if allowed != READ | WRITE:
                shown = replace(config, perm=config.perm & (allowed | 1))
                text = JsonText.of_plain(self._topics.to_json(shown))
            made.append((config.name, text))
        return await _beside(len(made), lambda: JsonText.table(made))

    async def _command(self, configs: Sequence[TopicConfig]) -> Command:
        """Returns a REGISTER_BROKER request with these topics."""
        settings = self._settings
        no_version = version_to_json(DataVersion(0, 0, time.time_ns() // 1_000_000))
        wrapper = {
            "dataVersion": self._version(),
            "mappingDataVersion": no_version,
            "topicConfigTable": await self._table(configs),
            "topicQueueMappingDetailMap": {},
        }
        names = [config.name for config in configs]

        def encoded() -> bytes:
            told = wrapper | {"topicQueueMappingInfoMap": self.mappings(names)}
            return mqjson.dumps({"filterServerList": [], "topicConfigSerializeWrapper": told})

        body = await _beside(len(configs), encoded)
        ext = self._identity() | {
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
            "compressed": "false",
            "enableActingMaster": str(settings["enableSlaveActingMaster"]).lower(),
            # A registration must have one that a slave can read. Nobody listens on port 0.
            "haServerAddr": self.ha_address,
        }
        if settings["enableSlaveActingMaster"]:
            ext["heartbeatTimeoutMillis"] = str(settings["brokerNotActiveTimeoutMillis"])
        return Command(RequestCode.REGISTER_BROKER, ext, body)

    async def _register_full(self, servers: Sequence[_Server]) -> None:
        await asyncio.gather(*(self._register_at(server) for server in servers))

    async def _register_at(self, server: _Server) -> None:
        """Registers everything, unless the server says that nothing changed and forceRegister is
        off."""
        pause = min(max(self._settings["registerNameServerPeriod"], 10_000), 60_000) / 1000
        if server.registered and not self._settings["forceRegister"]:
            answer = await self._ask(server, self._version_query())
            if answer is not None and answer.ext.get("changed") == "false":
                server.due = time.monotonic() + pause
                return
        answer = await self._ask(server, await self._command(self._topics.all()))
        if answer is None:
            server.due = time.monotonic() + server.pause
            server.pause = min(server.pause * 2, _RETRY_MAX_S)
            return
        server.registered = True
        server.due, server.pause = time.monotonic() + pause, _RETRY_S
        self.on_answer(answer.ext)
        if answer.body:
            self._take_order_topics(answer.body)

    def _version(self) -> dict[str, Any]:
        """Returns the data version of the topics. A name server ignores registrations of an older
        epoch (upstream: setStateMachineVersion)."""
        return version_to_json(replace(self._topics.version, state_version=self.epoch))

    def _version_query(self) -> Command:
        body = mqjson.dumps(self._version())
        return Command(RequestCode.QUERY_DATA_VERSION, self._identity(), body)

    async def _register_some(
        self, servers: Sequence[_Server], configs: Sequence[TopicConfig]
    ) -> None:
        command = await self._command(configs)

        async def one(server: _Server) -> None:
            answer = await self._ask(server, replace(command, ext=dict(command.ext)))
            if answer is None:  # it lost us meanwhile, and wants everything
                await self._register_at(server)

        await asyncio.gather(*(one(server) for server in servers))

    async def _ask(self, server: _Server, command: Command) -> Command | None:
        """Returns the answer, or None without one or for an error, which is logged once until a
        request succeeds again."""
        timeout = self._settings["registerBrokerTimeoutMills"] / 1000
        problem: object
        try:
            if server.peer is None or server.peer.closed:
                server.registered = False
                server.peer = await self._dial(server.address)
            answer = await server.peer.request(self._signed(server.peer, command), timeout)
        except (OSError, TimeoutError, ValueError) as failed:  # ValueError: of its address
            problem = reason_of(failed)
        else:
            if answer.code == ResponseCode.SUCCESS:
                if server.failing:
                    log.info("Name server %s answers again", server.address)
                server.failing = False
                return answer
            problem = f"code {answer.code}: {answer.remark}"
        if not server.failing:
            log.warning("Name server %s did not register this broker: %s", server.address, problem)
        server.failing = True
        return None

    def _take_order_topics(self, body: Any) -> None:
        """Learns which topics are ordered from the cluster's configuration."""
        with contextlib.suppress(ValueError):
            table = _KV_TABLE.loads(body, _LAX_MAX)["table"]
            if table is not None:
                self._topics.set_order(frozenset(map(str, table)))

    # ---- what others register ----

    async def route(self, topic: str) -> dict[str, Any] | None:
        """Returns a topic's route at a name server: queueDatas, brokerDatas, and the mappings of a
        static one. None: no server answers."""
        for server in self._servers:
            if server.peer is None or server.peer.closed:
                continue
            ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
            command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
            with contextlib.suppress(OSError, TimeoutError, ValueError):
                answer = await server.peer.request(self._signed(server.peer, command), 3.0)
                if answer.code == ResponseCode.SUCCESS:
                    return _ROUTE.loads(answer.body, _LAX_MAX)
        return None
