"""The brokers of a cluster, ours or Apache's, asked over the network: what `pystore proxy` stands
before. Nothing is kept but what name servers and brokers can be asked again, so any other proxy
can take over.

Each gRPC client has connections of its own to the brokers that it uses, made when they are needed:
brokers see it there as a client of the remoting protocol, and what they ask it (checks of
transactions, questions of tools) comes to the right one. The proxy's own requests go over others.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from broker.access.needs import AccessAction
from broker.access.recipients import recipients_of
from broker.client.credentials import SigningHook
from broker.client.errors import BrokerRefused, ClientError, NoRoute, RequestTimeout
from broker.client.faults import FaultTable
from broker.client.lite import lite_place
from broker.client.message import ReceivedMessage
from broker.client.network import REFRESH_S, Network, request_of
from broker.client.options import ClientSettings
from broker.client.progress import QueueProgress
from broker.client.records import received
from broker.client.routes import Route, parse_route
from broker.grpc.access import ProxyAccess, credentials_of, has_signed
from broker.grpc.brokers import BROKER, LINK, REQUEST_S, BrokerLink, Key, Links, TopicPlace, refused
from broker.grpc.calls import Call
from broker.grpc.receipts import Receipt
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Code, Problem, of_response
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.processors.needs import TopicAt, meant_topic
from broker.remoting.client import RemotingClient
from broker.remoting.connection import Connection
from broker.services.broker_asker import BrokerAsker
from broker.services.groups import Groups
from broker.services.topics import READ, WRITE, Topics
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused, header_format
from broker.wire.handlers import Handlers
from broker.wire.mqjson import MessageQueue
from pystore.errors import BadArgument
from pystore.meta.configfiles import SubscriptionGroup, TopicConfig

__all__ = ["ClusterBrokers", "ClusterLink", "told"]

quiet = RateLimitedLogger(SafeLogger("broker.grpc"))

#: What brokers say of topics and groups is asked again after this time.
_KNOWN_S = 20.0
#: Their answer to such a question comes within this time.
_ASKED_S = 3.0
#: So long clients hear of the queues of a broker that has lost its master, as if it had one:
#: another is elected meanwhile, and they ask for routes only every half minute.
_LEADERLESS_S = 60.0
#: While sends wait for a master: the pause before the route is asked for again, and how long that
#: goes on; sends that come later start it again.
_LOOK_S, _ELECTION_S = 0.05, 10.0
#: Topics and groups that are remembered.
_KNOWN_MAX = 100_000
#: Requests that name a broker as a receipt handle does.
_OF_HANDLES = (
    RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.CONSUMER_SEND_MSG_BACK,
)  # fmt: skip
#: Brokers of 4.x do not know what types a topic takes.
_ANY_TYPE = {"message.type": "MIXED"}


class _CachedAnswer(NamedTuple):
    """What was said, and when (monotonic seconds)."""

    value: Any
    at: float


async def told(asks: Iterable[Coroutine[Any, Any, Command]]) -> list[Command]:
    """Returns the answers of all brokers that could be reached: the others hear of the client on
    the next connection. Raises: Problem when there are brokers and none can be reached."""
    found = await asyncio.gather(*asks, return_exceptions=True)
    answers = [each for each in found if isinstance(each, Command)]
    for each in found:
        if isinstance(each, Problem) and answers:
            quiet.info("not known", "A client is not known to every broker yet: %s", each)
        elif isinstance(each, BaseException):
            raise each
    return answers


class ClusterLink:
    """One client's connections to brokers. spawn: runs something until it ends."""

    def __init__(
        self,
        key: Key,
        remoting: RemotingClient,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.key = key
        self.client: object = None
        self.open = True
        self._remoting = remoting
        self._spawn = spawn

    async def connection(self, broker: str, address: str, timeout_s: float) -> Connection:
        """Returns the connection, which is made when there is none. Raises: TimeoutError,
        ConnectionError, ValueError."""
        made = await self._remoting.connection(address, timeout_s)
        made.state[LINK], made.state[BROKER] = self, broker
        return made

    async def ask(self, broker: str, address: str, command: Command, timeout_s: float) -> Command:
        """Asks a broker and returns its answer. Raises: TimeoutError, ConnectionError,
        ValueError."""
        await self.connection(broker, address, timeout_s)
        return await self._remoting.exchange(address, command, timeout_s)

    def close(self) -> None:
        self.open = False
        self._spawn(self._remoting.close())


class ClusterBrokers:
    """asked: serves what brokers ask clients. servers: name servers. settings: of the proxy's own
    requests; clients that sign with the same credentials have theirs signed by them, and so has
    every client that the proxy's own access control lets in."""

    host = ""

    def __init__(
        self,
        asked: Handlers,
        *,
        servers: Sequence[str],
        settings: ClientSettings,
        conf: ProxySettings,
    ) -> None:
        self._tls: ssl.SSLContext | None = settings.tls_context()
        self._credentials = settings.credentials
        self._signing = None
        if self._credentials is not None:
            self._signing = SigningHook(self._credentials, lambda at: recipients_of(at, None))
        self.network = Network(
            "the proxy", servers, settings, {}, self._beat, masters_only=True, binds=True
        )
        self.links = Links(lambda address, client_id: self.join((address, client_id), asked))
        self._faults = FaultTable()
        #: Of masters, by the broker's name.
        self._addresses: dict[str, str] = {}
        #: Their clusters, as far as they were asked for.
        self._clusters: dict[str, str] = {}
        self._cluster = conf.cluster
        self.access = ProxyAccess(conf, self._ask_any)
        #: Of users and policies; made at the start.
        self._asker: BrokerAsker | None = None
        self._trusted = conf.trusted
        #: Names of those that could not be reached there: they may be elsewhere by now.
        self._doubted: set[str] = set()
        self._places: dict[str, tuple[Route, Mapping[str, str], tuple[TopicPlace, ...]]] = {}
        #: Of topics and brokers: the place while there was a master.
        self._led: dict[tuple[str, str], TopicPlace] = {}
        #: Since when it has none.
        self._leaderless: dict[tuple[str, str], float] = {}
        #: Of topics whose sends wait for a master: who looks for it.
        self._elections: dict[str, asyncio.Task[None]] = {}
        self._types: dict[str, _CachedAnswer] = {}
        self._groups: dict[str, _CachedAnswer] = {}
        #: Routes whose addresses are known.
        self._learned: dict[str, Route] = {}
        #: When the routes of topics were asked for again.
        self._asked_again: dict[str, float] = {}
        self._looked = -REFRESH_S
        self._looking = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    # ---- life ----

    async def start(self, cluster: str = "") -> None:
        """Starts to look at the cluster. cluster: that must be there; empty: any. Raises:
        BadArgument, ClientError."""
        self.network.start()
        assert self.network.remoting is not None
        self._asker = BrokerAsker(
            self.network.remoting, self._credentials, self._trusted, takes_clear_passwords=True
        )
        if not cluster:
            return
        known = (await self._cluster_info()).get("clusterAddrTable") or {}
        if cluster not in known:
            raise BadArgument(
                f"no broker of the cluster {cluster:.80} is registered; the name server knows"
                f" {', '.join(sorted(known))[:200] or 'none'}: start its brokers first, or change"
                " rocketMQClusterName"
            )

    async def stop(self) -> None:
        """Stops, after the clients are gone."""
        self.close()
        for each in self._elections.values():
            each.cancel()
        if self._closing:
            await asyncio.wait(self._closing)
        await self.network.close()

    def _beat(self) -> bytes:
        """Returns the heartbeat of the proxy, which is nobody's producer or consumer: it only shows
        brokers that it is there."""
        own = {"clientID": self.network.client_id, "producerDataSet": [], "consumerDataSet": []}
        return mqjson.dumps(own)

    def link(self, call: Call) -> ClusterLink:
        return self.links.of(call)

    def join(self, key: Key, asked: Handlers) -> ClusterLink:
        """Makes the connections of a client's own. asked: serves what brokers ask it. Whoever calls
        closes them."""
        return ClusterLink(key, RemotingClient(asked, tls=self._tls), self._spawn)

    def gone(self, address: tuple[str, int]) -> list[str]:
        return self.links.gone(address)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    def close(self) -> None:
        self.links.close()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # ---- what brokers know ----

    async def everywhere(self, topic: str) -> Sequence[TopicPlace]:
        """Returns where a topic is; a broker that has lost its master a moment ago stands there as
        it was before."""
        places, now = await self.places(topic), time.monotonic()
        return [
            self._led.get((topic, each.broker), each)
            if now - self._leaderless.get((topic, each.broker), -_LEADERLESS_S) < _LEADERLESS_S
            else each
            for each in places
        ]

    async def writable(self, topic: str, wait_s: float) -> Sequence[TopicPlace]:
        places = await self.places(topic)
        if _may_be_written(places) or wait_s <= 0:
            return places
        looking = self._elections.get(topic)
        if looking is None:  # one looks for all sends that wait
            looking = self._elections[topic] = self._spawn(self._await_master(topic))
            looking.add_done_callback(lambda _: self._elections.pop(topic, None))
        await asyncio.wait({looking}, timeout=wait_s)
        return await self.places(topic)

    async def _await_master(self, topic: str) -> None:
        until = time.monotonic() + _ELECTION_S
        with contextlib.suppress(Problem):  # each send finds that out by itself
            while time.monotonic() < until and not _may_be_written(await self.places(topic)):
                await asyncio.sleep(_LOOK_S)
                await self._refresh(topic)

    async def places(self, topic: str) -> Sequence[TopicPlace]:
        route = await self.route(topic)
        if route is None:
            return ()
        attributes = await self._attributes(topic, route)
        known = self._places.get(topic)
        if known is not None and known[0] is route and known[1] is attributes:
            return known[2]
        made = tuple(_places(topic, route, attributes))
        _remember(self._places, topic, (route, attributes, made))
        for each in made:
            self._see_master(topic, each)
        return made

    def _see_master(self, topic: str, place: TopicPlace) -> None:
        key = topic, place.broker
        if 0 in place.ids:
            self._leaderless.pop(key, None)
            _remember(self._led, key, place)
        elif key not in self._leaderless:
            _remember(self._leaderless, key, time.monotonic())

    async def route(self, topic: str) -> Route | None:
        """Returns the route, None for a topic that no name server knows. Raises: Problem."""
        try:
            route = await self.network.route(topic)
        except NoRoute:
            return None
        except ClientError as failed:
            raise _problem(failed) from None
        if self._learned.get(topic) is not route:  # else others have said something newer since
            _remember(self._learned, topic, route)
            self._learn(route)
        has_all = all(0 in by_id for by_id in route.brokers.values())
        is_doubted = not self._doubted.isdisjoint(route.brokers)
        if not has_all or is_doubted or not any(map(self.is_available, route.brokers)):
            self._ask_again(topic)
        return route

    def _ask_again(self, topic: str) -> None:
        """Asks again for the route of a topic of which no broker answers, or one is not what it
        was: it may be older than the brokers are. This call does not wait for it."""
        now = time.monotonic()
        if now - self._asked_again.get(topic, -REFRESH_S) >= REFRESH_S:
            _remember(self._asked_again, topic, now)
            self._spawn(self._refresh(topic))

    async def _refresh(self, topic: str) -> None:
        with contextlib.suppress(ClientError):
            await self.network.route(topic, fresh=True)

    def _learn(self, route: Route) -> None:
        for name in route.brokers:
            if (address := route.address(name)) is not None:
                self._addresses[name] = address

    async def told_route(self, topic: str) -> tuple[Command, dict[str, Any]]:
        """Returns what a name server answers now, and the body of it. Raises: Problem."""
        fields = {"topic": topic, "acceptStandardJsonOnly": True}
        try:
            answer = await self.network.ask_servers(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        except ClientError as failed:
            raise _problem(failed) from None
        if answer.code != ResponseCode.SUCCESS:
            return answer, {}
        self._learn(_read(lambda: parse_route(answer.body, topic)))
        return answer, dict(mqjson.loads(answer.body))

    async def _attributes(self, topic: str, route: Route) -> Mapping[str, str]:
        """Returns the attributes of the topic, from the first broker that says it. Raises:
        Problem."""
        known = self._types.get(topic)
        if known is not None and time.monotonic() - known.at < _KNOWN_S:
            attributes: Mapping[str, str] = known.value
            return attributes
        answer = await self._first(
            route.brokers, RequestCode.GET_TOPIC_CONFIG, {"topic": topic}, self._own
        )
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            found: Mapping[str, str] = _ANY_TYPE
        elif answer.code == ResponseCode.SUCCESS:
            found = _read(lambda: Topics.from_json(mqjson.loads(answer.body)).attributes)
        else:
            raise Problem(of_response(answer.code), answer.remark or "")
        if known is not None and known.value == found:
            found = known.value
        _remember(self._types, topic, _CachedAnswer(found, time.monotonic()))
        return found

    async def group(self, name: str, topics: Sequence[str]) -> SubscriptionGroup | None:
        known = self._groups.get(name)
        if known is not None and time.monotonic() - known.at < _KNOWN_S:
            group: SubscriptionGroup | None = known.value
            return group
        route = None
        for topic in topics:
            route = await self.route(topic)
            if route is not None:
                break
        # A client may tell the topics that it wants later: any broker knows its group.
        brokers = route.brokers if route is not None else await self._brokers_of_cluster()
        if not brokers:
            return None
        fields = {"group": name}
        answer = await self._first(
            brokers, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, fields, self._own
        )
        group = None
        if answer.code == ResponseCode.SUCCESS:
            group = _read(lambda: Groups.from_json(mqjson.loads(answer.body)))
        _remember(self._groups, name, _CachedAnswer(group, time.monotonic()))
        return group

    async def _ask_any(self, code: int, fields: Mapping[str, object]) -> Command:
        """Returns what a broker of the cluster answers. Raises: Problem."""
        return await self._first(await self._brokers_of_cluster(), code, fields, self._believed)

    async def _brokers_of_cluster(self) -> list[str]:
        if not self._clusters:
            await self._look()
        wanted = self._cluster
        return [name for name, each in self._clusters.items() if not wanted or each == wanted]

    async def _first(
        self,
        names: Iterable[str],
        code: int,
        fields: Mapping[str, object],
        ask: Callable[[str, Command, float], Coroutine[Any, Any, Command]],
    ) -> Command:
        """Returns the first answer that one of the brokers gives. Raises: Problem."""
        problem = Problem(Code.INTERNAL_SERVER_ERROR, "no broker is known that could be asked")
        for name in sorted(names, key=lambda name: (not self.is_available(name), name)):
            try:
                return await ask(name, request_of(code, fields), _ASKED_S)
            except Problem as failed:
                problem = failed
        raise problem

    async def _believed(self, broker: str, command: Command, timeout_s: float) -> Command:
        """Returns what a broker answers that knows the proxy's secret. Raises: Problem."""
        address = await self.address(broker, command.code)
        assert self._asker is not None
        work = self._asker.request(address, _encodable(command), timeout_s)
        return await self.asked_of(broker, work, timeout_s)

    async def reader(self, topic: str, wanted: str) -> str:
        places = await self.places(topic)
        if not places:
            raise Problem(Code.TOPIC_NOT_FOUND, f"topic[{topic}] not exist")
        names = [each.broker for each in places if each.reads]
        if not names:
            raise Problem(Code.FORBIDDEN, "no readable queue")
        if wanted in names:
            return wanted
        return random.choice([each for each in names if self.is_available(each)] or names)

    def is_available(self, broker: str) -> bool:
        return self._faults.is_available(broker, time.monotonic())

    async def holds(self, topic: str, receipt: Receipt) -> bool:
        found = await self._messages_at(receipt.handle.broker, str(receipt.physical))
        return any(_is_at(each, topic, receipt) for each in found)

    async def topic_at(self, broker: str, offset: str) -> TopicAt:
        """Looks at the record at an offset of a broker's log. Raises: Problem."""
        found = await self._messages_at(broker, offset)
        if not found:
            return lambda _offset, _half: None
        stored, properties = found[0].stored_topic, found[0].properties
        return lambda _offset, half: meant_topic(stored, properties, half)

    async def _messages_at(self, broker: str, offset: str) -> list[ReceivedMessage]:
        """Returns what the record there holds, nothing if there is none. Raises: Problem."""
        command = request_of(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
        answer = await self.request_own(command, broker)
        if answer.code != ResponseCode.SUCCESS:
            return []
        try:
            return received(bytes(answer.body), QueueProgress(MessageQueue("", broker, 0), 0))
        except ValueError:
            return []

    # ---- requests ----

    async def request(
        self, call: Call, command: Command, broker: str, *, timeout_s: float = REQUEST_S
    ) -> Command:
        link = self.link(call)
        if self.access.is_on:
            await self.access.check(call, command)
        address = await self.address(broker, command.code)
        self._sign(call, address, command)
        left = call.remaining_s
        if left is not None:
            timeout_s = min(timeout_s, max(left, 0.0))
        return await self.asked_of(
            broker, link.ask(broker, address, _encodable(command), timeout_s), timeout_s
        )

    async def request_own(self, command: Command, broker: str) -> Command:
        return await self._own(broker, command, REQUEST_S)

    async def _own(self, broker: str, command: Command, timeout_s: float) -> Command:
        address = await self.address(broker, command.code)
        work = self.network.exchange(address, _encodable(command), timeout_s)
        return await self.asked_of(broker, work, timeout_s)

    async def asked_of(
        self, broker: str, work: Coroutine[Any, Any, Command], timeout_s: float
    ) -> Command:
        """Returns what a broker answers, and keeps in mind whether it does. Raises: Problem."""
        try:
            answer = await work
        except (TimeoutError, RequestTimeout):
            self._failed(broker)
            raise Problem(
                Code.PROXY_TIMEOUT, f"the broker {broker} did not answer within {timeout_s:g} s"
            ) from None
        except (ConnectionError, ValueError, ClientError) as failed:
            self._failed(broker)
            raise Problem(
                Code.INTERNAL_SERVER_ERROR, f"the broker {broker} cannot be reached: {failed}"
            ) from None
        self._faults.report(broker, 0.0, time.monotonic())
        if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            self._doubted.add(broker)  # a slave that acted as master until it was back
        return answer

    def _failed(self, broker: str) -> None:
        self._faults.report(broker, 0.0, time.monotonic(), failed=True)
        self._doubted.add(broker)

    async def tell(
        self, call: Call, link: BrokerLink, command: Command, topics: Sequence[str]
    ) -> None:
        """Tells brokers of a client; those that cannot be reached hear of the client with its next
        heartbeat. Raises: Problem when none can, or one refuses."""
        if self.access.is_on:
            await self.access.check(call, command)
        names = sorted(await self.brokers_of(topics))
        for answer in await told(self._tell_one(call, link, command, name) for name in names):
            if answer.code != ResponseCode.SUCCESS:
                raise refused(answer)

    async def brokers_of(self, topics: Iterable[str]) -> set[str]:
        """Returns the names of the brokers that have one of the topics. Raises: Problem."""
        names: set[str] = set()
        for topic in dict.fromkeys(topics):
            route = await self.route(topic)
            names |= set(route.brokers) if route is not None else set()
        return names

    async def _tell_one(self, call: Call, link: BrokerLink, command: Command, name: str) -> Command:
        assert isinstance(link, ClusterLink)
        own = Command(command.code, dict(command.ext), command.body, language=command.language)
        address = await self.address(name, own.code)
        self._sign(call, address, own)
        work = link.ask(name, address, _encodable(own), _ASKED_S)
        return await self.asked_of(name, work, _ASKED_S)

    async def address(self, broker: str, code: int) -> str:
        """Returns the address of a master. Raises: Problem for a broker that nobody knows."""
        found = self._addresses.get(broker)
        if found is None or broker in self._doubted:
            try:
                await self._look()
            except Problem:
                if found is None:
                    raise
            found = self._addresses.get(broker)
        if found is None:
            bad = code in _OF_HANDLES
            raise Problem(
                Code.INVALID_RECEIPT_HANDLE if bad else Code.BAD_REQUEST,
                f"cannot find broker {broker:.255}",
            )
        return found

    async def _look(self) -> None:
        """Asks where all brokers are, unless that was asked just now. Raises: Problem."""
        async with self._looking:
            if time.monotonic() - self._looked < REFRESH_S:
                return
            try:
                info = await self._cluster_info()
            except ClientError as failed:
                raise _problem(failed) from None
            found = _read(lambda: list(_masters(info)))
            self._looked = time.monotonic()
            self._doubted.clear()
            for name, cluster, address in found:
                self._addresses[name] = address
                self._clusters[name] = cluster

    async def _cluster_info(self) -> Mapping[str, Any]:
        """Asks for the brokers of the cluster. Raises: ClientError."""
        answer = await self.network.ask_servers(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        try:
            found = mqjson.loads(answer.body) if not answer.code else None
        except ValueError:
            found = None
        if not isinstance(found, Mapping):
            raise BrokerRefused(
                "the brokers of the cluster", answer.code, answer.remark, "a name server"
            )
        return found

    # ---- access control: the proxy's own, else brokers decide, for whom the proxy knows ----

    async def check(self, call: Call, command: Command) -> None:
        if self.access.is_on:
            await self.access.check(call, command)
        else:
            self._knows(call)

    async def check_topic(self, call: Call, topic: str, *actions: AccessAction) -> None:
        if self.access.is_on:
            await self.access.check_topic(call, topic, actions)
        else:
            self._knows(call)

    async def check_name(self, call: Call) -> None:
        if self.access.is_on:
            await self.access.check_name(call)
        else:
            self._knows(call)

    def is_known(self, call: Call) -> bool:
        if self.access.is_on:
            return self.access.is_known(call)
        try:
            return self._knows(call)
        except Problem:
            return False

    def _sign(self, call: Call, address: str, command: Command) -> None:
        if self._signing is not None and (self.access.is_on or self._knows(call)):
            self._signing.before_request(address, command)

    def _knows(self, call: Call) -> bool:
        """Says whether the client has proved that it has the proxy's own credentials. One that
        shows none asks brokers unsigned. Raises: Problem for one that shows others."""
        own, given = self._credentials, credentials_of(call.metadata)
        if own is None or given is None:
            return False
        key, date, signature = given
        if key == own.access_key and has_signed(own.secret_key, date, signature):
            return True
        raise Problem(
            Code.UNAUTHORIZED,
            f"the signature of {key:.80} is wrong, or the proxy does not have its credentials",
        )


def _is_at(message: ReceivedMessage, topic: str, receipt: Receipt) -> bool:
    """Says whether it is the message of a receipt."""
    handle = receipt.handle
    if not receipt.lite:
        place = message.stored_topic, message.head.queue, message.queue_offset
        return place == (topic, handle.queue, handle.offset)
    with contextlib.suppress(ValueError):
        found = lite_place(message.properties, topic, message.stored_topic)
        return found == (receipt.lite, handle.offset)
    return False


def _masters(info: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yields name, cluster and the master's address, or who is next to it, of each broker in a name
    server's answer."""
    for name, data in (info.get("brokerAddrTable") or {}).items():
        by_id = {int(n): str(at) for n, at in (data.get("brokerAddrs") or {}).items()}
        if by_id:
            yield name, str(data.get("cluster")), by_id[min(by_id)]


def _places(topic: str, route: Route, attributes: Mapping[str, str]) -> Iterable[TopicPlace]:
    reads = Counter(queue.broker for queue in route.held)
    writes = Counter(route.broker(queue) for queue in route.publish)
    for name in sorted(route.brokers):
        perm = (READ if reads[name] else 0) | (WRITE if writes[name] else 0)
        config = TopicConfig(topic, reads[name], writes[name], perm, attributes=attributes)
        led = [queue.queue for queue in route.publish if route.leaders.get(queue) == name]
        yield TopicPlace(
            name, config, tuple(sorted(route.brokers[name])),
            led=tuple(led) if route.leaders else None,
        )  # fmt: skip


def _may_be_written(places: Sequence[TopicPlace]) -> bool:
    """Says whether there is nothing to wait for: a master takes messages, or each broker has
    one."""
    return any(each.writes for each in places) or all(0 in each.ids for each in places)


def _encodable(command: Command) -> Command:
    command.serialize = header_format(command.code)
    return command


def _remember(table: dict[Any, Any], name: object, value: object) -> None:
    if len(table) >= _KNOWN_MAX:
        table.clear()
    table[name] = value


def _read(parse: Any) -> Any:
    """Reads an answer. Raises: Problem for what a broker said and nobody can read."""
    try:
        return parse()
    except (ValueError, Refused) as bad:
        text = bad.remark if isinstance(bad, Refused) else str(bad)
    except (AttributeError, KeyError, TypeError) as bad:
        text = f"it has another shape: {bad!r:.200}"
    raise Problem(Code.INTERNAL_SERVER_ERROR, f"a malformed answer of the broker: {text}")


def _problem(failed: ClientError) -> Problem:
    """Returns the problem of what a name server did not answer."""
    late = isinstance(failed, RequestTimeout)
    return Problem(Code.PROXY_TIMEOUT if late else Code.INTERNAL_SERVER_ERROR, str(failed))
