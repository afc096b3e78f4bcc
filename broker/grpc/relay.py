"""Clients of the remoting protocol, before the brokers of a cluster: routes name the proxy as every
broker's address, so whatever a client asks a broker comes here and is relayed, unchanged, to the
broker that the request names. What brokers ask a client goes the other way.

Each client has connections of its own to the brokers that it uses. A broker sees it there as if it
had come by itself: it divides queues, checks transactions and notifies without the proxy knowing of
groups, and signatures stay valid. On a new connection the client's last heartbeat goes first.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

from broker.access.authorizer import host_of
from broker.grpc.brokers import BROKER, LINK, REQUEST_S
from broker.grpc.cluster import ClusterBrokers, told
from broker.grpc.messages import Kind
from broker.grpc.sending import check_type
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Code, Problem
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.processors.bodies import (
    CLIENT_CONFIG,
    QUERY_ASSIGNMENT,
    QUEUES_OF_CLIENT,
    LongBody,
    heartbeat,
    read,
)
from broker.remoting.certificates import Certificates
from broker.remoting.connection import Connection, Limits
from broker.remoting.server import RemotingServer
from broker.remoting.tls import TlsSettings
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import ONEWAY, Command, Refused
from broker.wire.handlers import Handler, Peer, address_text
from pystore.errors import BadArgument
from pystore.files.javaproperties import parse_java_properties
from pystore.format.names import DLQ_PREFIX, RETRY_PREFIX, TEMPLATE_TOPIC
from pystore.format.properties import PRIORITY, parse_properties

__all__ = ["Relay"]

quiet = RateLimitedLogger(SafeLogger("broker.grpc"))

#: Time for a client to answer what a broker asks it: longer than any broker waits.
_CLIENT_S = 15.0
#: The longest that a request may ask to be held at a broker.
_HELD_MAX_MS = 10 * 60_000
#: Brokers of one client: a request may name anything.
_NAMES_MAX = 4096
#: Bytes, roughly, of a group or a topic in a heartbeat, beside its text. What all clients say of
#: themselves may take so many.
_ENTRY, SIZE_MAX = 200, 128 << 20
#: In the state of a connection to a broker: it has heard of the client.
_BEATEN = "beaten"
#: The group that every Java client has, whether it sends or not.
_INNER_GROUP = "CLIENT_INNER_PRODUCER"
_DELAYS = ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")

#: Bytes of a change of settings that are looked at.
_CONFIG_MAX = 16 << 10
#: Requests that name their broker, by the field that does, and for how long it may hold them.
_NAMED: dict[int, tuple[str, str | None]] = {
    RequestCode.SEND_MESSAGE: ("bname", None),
    RequestCode.SEND_MESSAGE_V2: ("n", None),
    RequestCode.SEND_BATCH_MESSAGE: ("n", None),
    RequestCode.SEND_REPLY_MESSAGE: ("bname", None),
    RequestCode.SEND_REPLY_MESSAGE_V2: ("n", None),
    RequestCode.CONSUMER_SEND_MSG_BACK: ("bname", None),
    RequestCode.END_TRANSACTION: ("bname", None),
    RequestCode.RECALL_MESSAGE: ("bname", None),
    RequestCode.PULL_MESSAGE: ("bname", "suspendTimeoutMillis"),
    RequestCode.LITE_PULL_MESSAGE: ("bname", "suspendTimeoutMillis"),
    RequestCode.POP_MESSAGE: ("bname", "pollTime"),
    RequestCode.NOTIFICATION: ("bname", "pollTime"),
    RequestCode.POLLING_INFO: ("bname", None),
    RequestCode.ACK_MESSAGE: ("bname", None),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ("bname", None),
    RequestCode.UPDATE_CONSUMER_OFFSET: ("bname", None),
    RequestCode.QUERY_CONSUMER_OFFSET: ("bname", None),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: ("bname", None),
    RequestCode.GET_MAX_OFFSET: ("bname", None),
    RequestCode.GET_MIN_OFFSET: ("bname", None),
    RequestCode.GET_EARLIEST_MSG_STORETIME: ("bname", None),
}
#: Requests that name a record of their broker's log, by the field that does.
_PLACES: dict[int, str] = {
    RequestCode.CONSUMER_SEND_MSG_BACK: "offset", RequestCode.END_TRANSACTION: "commitLogOffset",
}  # fmt: skip
#: What a send calls its topic and its properties.
_SENDS: dict[int, tuple[str, str]] = {
    RequestCode.SEND_MESSAGE: ("topic", "properties"),
    RequestCode.SEND_MESSAGE_V2: ("b", "i"),
    RequestCode.SEND_BATCH_MESSAGE: ("b", "i"),
}
#: What brokers ask clients.
_ASKED = (
    RequestCode.CHECK_TRANSACTION_STATE, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
)  # fmt: skip
#: The remoting protocol's word for a status; for others SYSTEM_ERROR, after which clients try
#: another broker.
_OF_STATUS = {
    Code.TOPIC_NOT_FOUND: ResponseCode.TOPIC_NOT_EXIST,
    Code.TOO_MANY_REQUESTS: ResponseCode.SYSTEM_BUSY,
    Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE: ResponseCode.MESSAGE_ILLEGAL,
}


class _Client:
    """A client's connection to the proxy, and its way to the brokers."""

    def __init__(self, peer: Peer, brokers: ClusterBrokers) -> None:
        self.peer = peer
        #: Its last heartbeat.
        self.beat: Command | None = None
        #: Topics of each of its groups, as the heartbeat says.
        self.topics: dict[str, tuple[str, ...]] = {}
        #: Brokers that it has been told of, or has named: they hear its heartbeats.
        self.names: set[str] = set()
        #: Those that have heard one.
        self.beaten: set[str] = set()
        self._brokers = brokers
        self._beating = asyncio.Lock()
        self._link = brokers.join((peer.address, ""), dict.fromkeys(_ASKED, self._asked))
        self.close = self._link.close
        #: Bytes, roughly, of what its heartbeat says.
        self.size = 0

    def know(self, names: Iterable[str]) -> None:
        for name in names:
            if len(self.names) < _NAMES_MAX:
                self.names.add(name)

    async def ask(self, broker: str, command: Command, timeout_s: float = REQUEST_S) -> Command:
        """Returns the broker's answer, as the answer to this command. Raises: Problem."""
        address = await self._brokers.address(broker, command.code)
        self.know((broker,))
        own = replace(command, raw=None, value=None)
        work = self._exchange(broker, address, own, timeout_s)
        answer = await self._brokers.asked_of(broker, work, timeout_s)
        return replace(answer, opaque=command.opaque)

    async def _exchange(
        self, broker: str, address: str, command: Command, timeout_s: float
    ) -> Command:
        """Asks a broker. Raises: TimeoutError, ConnectionError, ValueError; Problem."""
        connection = await self._link.connection(broker, address, timeout_s)
        if command.code == RequestCode.HEART_BEAT:
            connection.state[_BEATEN] = True
            self.beaten.add(broker)
        elif self.beat is not None and _BEATEN not in connection.state:
            await self._introduce(broker, connection, timeout_s)
        if connection.busy:
            raise Problem(
                Code.TOO_MANY_REQUESTS, f"[PROXY]the broker {broker} does not read its requests"
            )
        if command.flag & ONEWAY:
            connection.send(command)
            return command.reply()
        return await self._link.ask(broker, address, command, timeout_s)

    async def _introduce(self, broker: str, connection: Connection, timeout_s: float) -> None:
        """Introduces the client to a broker that it has not talked to, or not since the connection
        was lost."""
        async with self._beating:
            if self.beat is not None and _BEATEN not in connection.state:
                await connection.request(replace(self.beat), timeout_s)
                connection.state[_BEATEN] = True
                self.beaten.add(broker)

    # ---- what brokers ask ----

    def _asked(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command] | None:
        own = replace(command, raw=None, ext=dict(command.ext))
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            # Brokers of 4.x do not say who they are. The client's decision has to name them.
            own.ext.setdefault("bname", peer.state[BROKER])
        if command.flag & ONEWAY:
            if not self.peer.busy:
                self.peer.send(own)
            return None
        return self._answered(command, own)

    async def _answered(self, command: Command, own: Command) -> Command:
        try:
            answer = await self.peer.request(own, _CLIENT_S)
        except (TimeoutError, ConnectionError) as failed:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"the client did not answer: {failed}"
            ) from None
        return replace(answer, opaque=command.opaque)


class Relay:
    """The port for clients of the remoting protocol. sock: bound."""

    def __init__(
        self,
        brokers: ClusterBrokers,
        settings: ProxySettings,
        sock: socket.socket,
        *,
        limits: Limits,
        tls: TlsSettings,
        certificates: Certificates,
    ) -> None:
        self.port: int = sock.getsockname()[1]
        self._brokers = brokers
        self._settings = settings
        self._certificates = certificates
        self._clients: set[_Client] = set()
        #: Bytes, roughly, of what all clients say of themselves.
        self.size = 0
        handlers = self.handlers()
        if brokers.access.is_on:
            handlers = {code: _worded(self._guarded(each)) for code, each in handlers.items()}
        self._server = RemotingServer(
            handlers, sock=sock, tls=tls, limits=limits, on_close=self._closed
        )

    @property
    def connection_count(self) -> int:
        return self._server.connection_count

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, drain_s: float) -> None:
        """Answers requests in progress for drain_s at most, then closes everything."""
        await self._server.stop(drain_s)

    def handlers(self) -> dict[int, Handler]:
        made: dict[int, Any] = dict.fromkeys(_NAMED, self._named)
        made |= {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.LOCK_BATCH_MQ: self._queues,
            RequestCode.UNLOCK_BATCH_MQ: self._queues,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._of_group,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._of_group,
            RequestCode.QUERY_ASSIGNMENT: self._of_topic,
            RequestCode.CHECK_CLIENT_CONFIG: self._of_topic,
            RequestCode.UPDATE_BROKER_CONFIG: self._configure,
        }
        return {code: _worded(handler) for code, handler in made.items()}

    def _guarded(self, handler: Any) -> Any:
        async def checked(peer: Peer, command: Command) -> Command:
            broker, place = command.ext.get("bname"), _PLACES.get(command.code)
            look = None
            if broker and place is not None:  # without a broker, nobody is asked
                look = partial(self._brokers.topic_at, broker, command.ext.get(place, ""))
            await self._brokers.access.check_remoting(command, host_of(peer), look)
            answer: Command = await handler(peer, command)
            return answer

        return checked

    def _client(self, peer: Peer) -> _Client:
        found: _Client | None = peer.state.get(LINK)
        if found is None:
            found = peer.state[LINK] = _Client(peer, self._brokers)
            self._clients.add(found)
        return found

    def _closed(self, connection: Connection) -> None:
        client: _Client | None = connection.state.pop(LINK, None)
        if client is not None:
            self._drop(client)

    def _drop(self, client: _Client) -> None:
        self._clients.discard(client)
        self._grow(client, 0)
        client.close()

    def _grow(self, client: _Client, size: int) -> None:
        """Counts what a client says of itself. When all together say too much, the one that says
        most is closed. Raises: Refused when that is this one."""
        more, client.size = size - client.size, size
        self.size += more
        if more <= 0 or self.size <= SIZE_MAX:
            return
        most = max(self._clients, key=lambda each: each.size)
        quiet.warning(
            "too many groups",
            "Closed %s: heartbeats of all clients take more than %d MB, its own %d MB",
            most.peer.address, SIZE_MAX >> 20, most.size >> 20,
        )  # fmt: skip
        most.peer.close()
        self._drop(most)
        if most is client:
            raise Refused(ResponseCode.SYSTEM_BUSY, "heartbeats of this client name too much")

    async def _configure(self, peer: Peer, command: Command) -> Command:
        """Reads the proxy's certificate again; nothing else of it can be changed by a request."""
        try:
            given = parse_java_properties(bytes(command.body[:_CONFIG_MAX]).decode())
            changes = {name: text for name, (_, text) in given.items()}
            await self._certificates.change(changes)
        except BadArgument as bad:
            raise Refused(ResponseCode.SYSTEM_ERROR, bad.text) from None
        except ValueError as bad:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {bad}") from None
        if changes:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"{min(changes):.60} is not changed by a request: write it to the proxy's file",
            )
        return command.reply()

    # ---- requests to one broker ----

    async def _named(self, peer: Peer, command: Command) -> Command:
        name, held = _NAMED[command.code]
        broker = command.ext.get(name)
        if not broker:
            raise Refused(ResponseCode.VERSION_NOT_SUPPORTED, "Request doesn't have field bname")
        if self._settings.check_type:
            await self._check_type(command)
        held_ms = command.number(held, 0) if held is not None else 0
        timeout_s = REQUEST_S + min(max(held_ms, 0), _HELD_MAX_MS) / 1000
        return await self._client(peer).ask(broker, command, timeout_s)

    async def _check_type(self, command: Command) -> None:
        """Checks the type of a message. Raises: Problem for a message that the topic does not take,
        as for one over gRPC."""
        if command.code == RequestCode.RECALL_MESSAGE:
            topic, kind = command.text("topic"), int(Kind.DELAY)
        elif command.code in _SENDS:
            topic, properties = (command.ext.get(name, "") for name in _SENDS[command.code])
            given = parse_properties(properties.encode("utf-8", "surrogatepass"))
            if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or "TRANSFER_FLAG" in given:
                return  # the flag is that of tools that move messages
            kind = _kind_of(given)
        else:
            return
        places = await self._brokers.places(topic)
        check_type(places[0].config if places else None, kind)

    async def _queues(self, peer: Peer, command: Command) -> Command:
        """Locks and unlocks: all queues of a request are at one broker."""
        queues = read(command, QUEUES_OF_CLIENT)["mqSet"]
        if not queues:
            return command.reply(body=command.body, remark="MessageQueue set is empty")
        return await self._client(peer).ask(queues[0].broker, command)

    # ---- requests that any broker of a topic can answer ----

    async def _of_group(self, peer: Peer, command: Command) -> Command:
        group = command.text("consumerGroup")
        client = self._client(peer)
        return await self._first(
            client, command, client.topics.get(group) or (RETRY_PREFIX + group,)
        )

    async def _of_topic(self, peer: Peer, command: Command) -> Command:
        if command.code == RequestCode.QUERY_ASSIGNMENT:
            topic = read(command, QUERY_ASSIGNMENT)["topic"]
        else:
            wanted = read(command, CLIENT_CONFIG)["subscriptionData"]
            if wanted is None:
                return command.reply()  # as a broker, which has nothing to check
            topic = wanted["topic"]
        return await self._first(self._client(peer), command, (topic,))

    async def _first(self, client: _Client, command: Command, topics: Iterable[str]) -> Command:
        """Returns the first answer that one of the topics' brokers gives."""
        names = await self._brokers.brokers_of(topics)
        problem = Problem(Code.TOPIC_NOT_FOUND, f"no broker has {', '.join(topics):.200}")
        for name in sorted(names, key=lambda name: (not self._brokers.is_available(name), name)):
            try:
                return await client.ask(name, command)
            except Problem as failed:
                problem = failed
        raise problem

    # ---- clients ----

    async def _heartbeat(self, peer: Peer, command: Command) -> Command:
        body = heartbeat(command)
        client = self._client(peer)
        said = sum(1 + len(each["subscriptionDataSet"]) for each in body["consumerDataSet"])
        self._grow(client, len(command.body) + said * _ENTRY)
        client.topics = {
            item["groupName"]: tuple(each["topic"] for each in item["subscriptionDataSet"])
            for item in body["consumerDataSet"]
        }
        topics = {topic for each in client.topics.values() for topic in each}
        if any(each["groupName"] != _INNER_GROUP for each in body["producerDataSet"]):
            topics.add(
                TEMPLATE_TOPIC
            )  # its topics are not said, and it shall be asked before it sends
        client.know(await self._brokers.brokers_of(sorted(topics)))
        client.beat = replace(command, raw=None, value=None)
        await self._all(client, command, client.names)
        return command.reply()

    async def _unregister(self, peer: Peer, command: Command) -> Command:
        client = self._client(peer)
        client.beat = None
        client.topics = {}
        self._grow(client, 0)
        await self._all(client, command, client.beaten)
        return command.reply()

    async def _all(self, client: _Client, command: Command, names: Iterable[str]) -> None:
        """Tells all these brokers. Raises: as told(); Refused when one refuses."""
        for answer in await told(client.ask(name, command) for name in sorted(names)):
            if answer.code != ResponseCode.SUCCESS:
                raise Refused(answer.code, answer.remark or "")

    # ---- routes ----

    async def _route(self, peer: Peer, command: Command) -> Command:
        topic = command.text("topic")
        answer, route = await self._brokers.told_route(topic)
        if answer.code != ResponseCode.SUCCESS:
            return command.reply(answer.code, answer.remark)
        here = self._address(peer)
        datas = []
        for data in route.get("brokerDatas") or ():
            self._client(peer).know((str(data["brokerName"]),))
            datas.append({**data, "brokerAddrs": dict.fromkeys(data["brokerAddrs"], here)})
        route["brokerDatas"], route["filterServerTable"] = datas, {}
        return command.reply(body=mqjson.dumps(route))

    def _address(self, peer: Peer) -> str:
        """Returns where this client reaches the proxy: where it came to, unless settings say."""
        host = self._settings.remoting_host or self._settings.host
        if not host:
            host = cast(Connection, peer).local[0]
        return address_text((host.strip("[]"), self.port))


def _worded(handler: Any) -> Handler:
    """Returns the handler, its problems in the remoting protocol's words."""

    async def handle(peer: Peer, command: Command) -> Command | None:
        try:
            try:
                answer: Command = await handler(peer, command)
            except LongBody as body:
                await asyncio.to_thread(body.read)
                answer = await handler(peer, command)
        except Problem as problem:
            code = _OF_STATUS.get(problem.code, ResponseCode.SYSTEM_ERROR)
            raise Refused(code, problem.text) from None
        return answer

    return handle


def _kind_of(properties: Mapping[str, str]) -> int:
    """Returns the message type that a message's properties make, in upstream's order."""
    if properties.get("TRAN_MSG", "").lower() == "true":
        return int(Kind.TRANSACTION)
    if any(properties.get(name) for name in _DELAYS):
        return int(Kind.DELAY)
    if properties.get("__SHARDINGKEY"):
        return int(Kind.FIFO)
    return int(Kind.PRIORITY if PRIORITY in properties else Kind.NORMAL)
