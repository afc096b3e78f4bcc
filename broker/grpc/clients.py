"""Clients of the service: their settings, heartbeats, and what the broker asks them (Telemetry,
Heartbeat, NotifyClientTermination).

A client is registered at the broker as one of the remoting protocol is, with the broker's own
tables: tools see it there, and checks of transactions find it. Its producer group is each topic
that it publishes.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from broker.access.needs import AccessAction
from broker.grpc.access import credentials_of
from broker.grpc.brokers import LINK, BrokerLink, Brokers
from broker.grpc.calls import Call, Handlers
from broker.grpc.checks import check_binding, group_of, quota_of, topic_of
from broker.grpc.messages import millis, set_millis
from broker.grpc.outbox import Outbox
from broker.grpc.schema import pb
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Code, Problem, ok
from broker.wire import mqjson
from broker.wire.codes import RequestCode
from broker.wire.command import Command
from broker.wire.handlers import Peer

__all__ = ["Client", "ClientMethods", "GrpcClients", "check_user", "retry_ms"]

#: Clients of lite topics. Apache's proxy 5.5.0 serves the first alone.
_LITE_TYPES = (pb.ClientType.LITE_PUSH_CONSUMER, pb.ClientType.LITE_SIMPLE_CONSUMER)

#: Those that ask when they want to.
_ACTIVE_TYPES = (pb.ClientType.SIMPLE_CONSUMER, pb.ClientType.LITE_SIMPLE_CONSUMER)
#: LanguageCode by the name in x-mq-language; any other is OTHER.
_LANGUAGES = {
    "JAVA": 0, "CPP": 1, "DOTNET": 2, "DOT_NET": 2, "PYTHON": 3, "DELPHI": 4, "ERLANG": 5,
    "RUBY": 6, "OTHER": 7, "HTTP": 8, "GO": 9, "GOLANG": 9, "PHP": 10, "OMS": 11, "RUST": 12,
    "NODE_JS": 13,
}  # fmt: skip
_OTHER = 7
#: Milliseconds between attempts of a consumer, from the first retry on, as upstream sends them.
_RETRIES_MS = tuple(
    seconds * 1000
    for seconds in (
        1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
    )
)  # fmt: skip
#: A tool's question is answered by the client within this time.
_NONCE_S = 5.0
#: Brokers of a cluster are told of a client within this time.
_SETTLED_S = 5.0
#: Subscriptions of one client, and topics of one producer.
_TOPICS_MAX = 1024
#: Bytes of the settings that a client sends. Those of Apache's clients have a few hundred, and what
#: filters and topics add.
_SETTINGS_MAX = 256 << 10
#: Bytes, roughly: of a client, and of a topic beside its names and its filter. What is kept of all
#: clients' settings may take so many.
_CLIENT, _TOPIC = 2000, 400
SIZE_MAX = 128 << 20


def retry_ms(attempts: int) -> int:
    """Returns when a message comes again to a consumer that has had it so often before."""
    return _RETRIES_MS[min(attempts, len(_RETRIES_MS) - 1)]


class Client:
    """One client, as it last showed itself. settings: pb.Settings, merged with ours."""

    def __init__(
        self, client_id: str, call: Call, link: BrokerLink, settings: Any, commands: Outbox
    ) -> None:
        self.client_id = client_id
        self.call = call
        self.use(link)
        self.settings = settings
        #: Bytes that it takes, roughly.
        self.size = _CLIENT + int(settings.ByteSize()) + _TOPIC * len(self.topics)
        #: Of its latest stream.
        self.commands = commands
        #: Tools' questions that wait for the client's answer, by nonce.
        self.asked: dict[str, asyncio.Future[Any]] = {}

    def use(self, link: BrokerLink) -> None:
        """Takes the connection on which the broker asks this client."""
        self.link = link
        link.client = self

    @property
    def is_producer(self) -> bool:
        return bool(self.settings.HasField("publishing"))

    @property
    def is_lite(self) -> bool:
        """Says whether it consumes lite topics."""
        return self.settings.client_type in _LITE_TYPES

    @property
    def topics(self) -> list[str]:
        """Those that it publishes or consumes."""
        settings = self.settings
        if self.is_producer:
            return [each.name for each in settings.publishing.topics]
        return [each.topic.name for each in settings.subscription.subscriptions]

    @property
    def group(self) -> str:
        """That it consumes as; empty for a producer."""
        return str(self.settings.subscription.group.name)

    def tell(self, command: Any) -> None:
        """Sends pb.TelemetryCommand, on the client's latest stream."""
        self.commands.tell(command)

    async def ask(self, command: Any, nonce: str) -> Any:
        """Returns the client's answer to a command of this nonce. Raises: TimeoutError."""
        future = self.asked[nonce] = asyncio.get_running_loop().create_future()
        try:
            self.tell(command)
            async with asyncio.timeout(_NONCE_S):
                return await future
        finally:
            self.asked.pop(nonce, None)

    def answered(self, command: Any, answer: Any) -> None:
        future = self.asked.get(answer.nonce)
        if future is not None and not future.done():
            future.set_result(command)


class GrpcClients:
    """The clients that have sent settings, by client id."""

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}
        #: Bytes of all clients, roughly.
        self.size = 0
        self._arriving: dict[str, asyncio.Future[None]] = {}
        #: Told of each that takes its leave.
        self.dropped: Callable[[Client], None] = lambda client: None
        #: Told of one of lite topics that does so, or whose stream breaks: others are to have them.
        self.left: Callable[[Client], None] = lambda client: None
        #: Told when a client has other settings than before, or none any more.
        self.changed: Callable[[], None] = lambda: None

    def arrives(self, client_id: str) -> None:
        """Notes that its stream is open: settings will come."""
        if client_id not in self._clients and client_id not in self._arriving:
            self._arriving[client_id] = asyncio.get_running_loop().create_future()

    def arrived(self, client_id: str) -> None:
        """Notes that its settings are known, or its stream has ended."""
        future = self._arriving.pop(client_id, None)
        if future is not None and not future.done():
            future.set_result(None)

    async def settled(self, client_id: str) -> Client | None:
        """Returns what get() does, once settings under way have come: some clients do not wait for
        the answer to them."""
        future = self._arriving.get(client_id)
        if future is not None:
            await asyncio.wait([future], timeout=_SETTLED_S)
        return self.get(client_id)

    def __len__(self) -> int:
        return len(self._clients)

    def get(self, client_id: str) -> Client | None:
        return self._clients.get(client_id)

    def check_room(self, client: Client) -> None:
        """Checks that its settings fit. Raises: Problem when its settings are too much beside those
        of all others."""
        old = self._clients.get(client.client_id)
        more = client.size - (old.size if old is not None else 0)
        if more > 0 and self.size + more > SIZE_MAX:
            raise Problem(
                Code.TOO_MANY_REQUESTS,
                f"the settings of all clients together take {SIZE_MAX >> 20} MB: come again later",
            )

    def put(self, client: Client) -> None:
        old = self._clients.get(client.client_id)
        self.size += client.size - (old.size if old is not None else 0)
        self._clients[client.client_id] = client
        self.changed()
        self.arrived(client.client_id)

    def drop(self, client_id: str) -> None:
        if (client := self._clients.pop(client_id, None)) is not None:
            self.size -= client.size
            self.changed()
            self.dropped(client)
            if client.is_lite:
                self.left(client)

    def lost(self, client_id: str, commands: Outbox) -> None:
        """Notes that a stream broke, perhaps on a connection that others use, too."""
        client = self._clients.get(client_id)
        if client is not None and client.commands is commands and client.is_lite:
            self.left(client)

    def of(self, peer: Peer) -> Client | None:
        """Returns the client whose connection to the broker this is, once its settings are
        answered: it expects nothing before that."""
        link = peer.state.get(LINK)
        client = link.client if link is not None else None
        is_here = isinstance(client, Client) and self.get(client.client_id) is client
        return client if is_here else None


class ClientMethods:
    def __init__(
        self, broker: Brokers, clients: GrpcClients, settings: ProxySettings,
        arrived: Callable[[Call, Client], Awaitable[None]],
    ) -> None:  # fmt: skip
        """Takes the brokers. arrived: told of a client of lite topics that has settled."""
        self._broker = broker
        self._clients = clients
        self._settings = settings
        self._arrived = arrived
        #: Commands for each stream that is open.
        self._streams: set[Outbox] = set()

    def handlers(self) -> Handlers:
        return {
            "Telemetry": self.telemetry,
            "Heartbeat": self.heartbeat,
            "NotifyClientTermination": self.terminate,
        }

    # ---- Telemetry ----

    async def telemetry(self, call: Call, incoming: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Serves the stream of one client: its settings and answers come, our settings and commands
        go."""
        client_id = call.client_id
        out = Outbox(call.hold)
        self._streams.add(out)
        self._clients.arrives(client_id)
        reader = asyncio.ensure_future(self._read(call, client_id, incoming, out))
        broke = True
        try:
            while (command := await out.take()) is not None:
                yield command
            broke = False
        finally:
            if broke:
                self._clients.lost(client_id, out)
            out.close()
            self._streams.discard(out)
            self._clients.arrived(client_id)
            reader.cancel()

    def leave(self) -> None:
        """Sends every client elsewhere, and ends its stream once it has read that: a server that
        stops need not wait for them."""
        for out in self._streams:
            command = pb.ReconnectEndpointsCommand(nonce=secrets.token_hex(16))
            out.tell(pb.TelemetryCommand(status=ok(), reconnect_endpoints_command=command))
            out.end()

    async def _read(
        self, call: Call, client_id: str, incoming: AsyncIterator[Any], out: Outbox
    ) -> None:
        try:
            async for command in incoming:
                kind = command.WhichOneof("command")
                if kind == "settings":
                    await out.reply(await self._settle(call, client_id, command.settings, out))
                client = self._clients.get(client_id)
                if client is not None and kind in ("thread_stack_trace", "verify_message_result"):
                    client.answered(command, getattr(command, kind))
        except Exception as failed:  # noqa: BLE001 - ends the stream, which reports it
            out.end(failed)
        else:
            out.end()

    async def _settle(self, call: Call, client_id: str, given: Any, out: Outbox) -> Any:
        """Registers a client with these settings: the answer to them. Raises: Problem."""
        kind = given.WhichOneof("pub_sub")
        if kind is None:
            raise Problem(Code.BAD_REQUEST, "settings are neither of a producer nor of a consumer")
        if given.ByteSize() > _SETTINGS_MAX:
            raise Problem(
                Code.BAD_REQUEST,
                f"settings of {given.ByteSize()} bytes, {_SETTINGS_MAX} are allowed",
            )
        await self._check_owner(call)
        made = pb.Settings()
        made.CopyFrom(given)
        made.metric.SetInParent()
        made.metric.Clear()
        if kind == "publishing":
            await self._merge_producer(call, made)
        else:
            await self._merge_consumer(call, made)
        client = Client(client_id, call, self._broker.link(call), _kept(made), out)
        self._clients.check_room(client)
        old = self._clients.get(client_id)
        if old is not None:
            client.asked = old.asked
        await self._register(client, call)
        self._clients.put(client)
        if client.is_lite:
            await self._arrived(call, client)
        return pb.TelemetryCommand(status=ok(), settings=made)

    async def _merge_producer(self, call: Call, made: Any) -> None:
        own = self._settings
        if len(made.publishing.topics) > _TOPICS_MAX:
            raise Problem(Code.BAD_REQUEST, f"a producer has at most {_TOPICS_MAX} topics")
        for each in made.publishing.topics:
            await self._broker.check_topic(call, topic_of(each), AccessAction.PUB)
        made.publishing.max_body_size = own.body_max
        made.publishing.validate_message_type = own.check_type
        policy = made.backoff_policy
        policy.max_attempts = own.producer_attempts
        policy.ClearField("strategy")
        set_millis(policy.exponential_backoff.initial, own.producer_backoff_ms)
        set_millis(policy.exponential_backoff.max, own.producer_backoff_max_ms)
        policy.exponential_backoff.multiplier = own.producer_backoff_multiplier

    async def _merge_consumer(self, call: Call, made: Any) -> None:
        own, subscription = self._settings, made.subscription
        if len(subscription.subscriptions) > _TOPICS_MAX:
            raise Problem(Code.BAD_REQUEST, f"a consumer has at most {_TOPICS_MAX} subscriptions")
        name = group_of(subscription.group)
        for each in subscription.subscriptions:
            topic_of(each.topic)
        await self._broker.check(call, _beat(call.client_id, [], [_consumer(made)]))
        topics = [each.topic.name for each in subscription.subscriptions]
        config = await self._broker.group(name, topics)
        is_lite = made.client_type in _LITE_TYPES
        check_binding(name, config, topics, is_lite=is_lite)
        if is_lite and config is not None:
            subscription.lite_subscription_quota = quota_of(config)
            subscription.max_lite_topic_size = own.lite_max
        subscription.fifo = config is not None and config.consume_message_orderly
        subscription.receive_batch_size = own.receive_batch
        # As upstream: what a client of a group that nobody knows yet asks for is left to it.
        if config is not None or not millis(subscription.long_polling_timeout):
            set_millis(subscription.long_polling_timeout, own.poll_max_ms)
        policy = made.backoff_policy
        policy.max_attempts = (config.retry_max_times if config is not None else 16) + 1
        policy.ClearField("strategy")
        for ms in _RETRIES_MS:
            set_millis(policy.customized_backoff.next.add(), ms)

    # ---- registration at the broker ----

    async def _register(self, client: Client, call: Call) -> None:
        """Registers a client. call: that has it registered, now or again. Raises: Problem."""
        producers: list[dict[str, Any]] = []
        consumers: list[dict[str, Any]] = []
        if client.is_producer:
            producers = [{"groupName": topic} for topic in client.topics]
        else:
            consumers = [_consumer(client.settings)]
        command = _beat(client.client_id, producers, consumers)
        command.language = _LANGUAGES.get(client.call.language.upper(), _OTHER)
        if not client.link.open:
            client.use(self._broker.link(call))
        await self._broker.tell(call, client.link, command, client.topics)

    # ---- Heartbeat, NotifyClientTermination ----

    async def heartbeat(self, call: Call, request: Any) -> Any:
        client = await self._known(call)
        if not client.is_producer and request.HasField("group"):
            group_of(request.group)
        await self._register(client, call)
        return pb.HeartbeatResponse(status=ok())

    async def _check_owner(self, call: Call) -> None:
        """Checks who owns a client id: it is the user's that came with it first. Raises:
        Problem."""
        await self._broker.check(call, _beat(call.client_id, [], []))
        client = self._clients.get(call.client_id)
        if client is not None:
            check_user(client, call)

    async def _known(self, call: Call) -> Client:
        await self._check_owner(call)
        client = self._clients.get(call.client_id)
        if client is None:
            raise Problem(
                Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client"
            )
        return client

    async def terminate(self, call: Call, request: Any) -> Any:
        client = await self._known(call)
        groups = client.topics if client.is_producer else [client.group]
        field = "producerGroup" if client.is_producer else "consumerGroup"
        for group in groups:
            ext = {"clientID": client.client_id, field: group}
            command = Command(RequestCode.UNREGISTER_CLIENT, ext)
            if client.link.open:
                await self._broker.tell(call, client.link, command, client.topics)
        self._clients.drop(client.client_id)
        return pb.NotifyClientTerminationResponse(status=ok())


def _beat(
    client_id: str, producers: list[dict[str, Any]], consumers: list[dict[str, Any]]
) -> Command:
    """Returns the heartbeat of a client with these groups."""
    body = {
        "clientID": client_id, "heartbeatFingerprint": 0, "withoutSub": False,
        "producerDataSet": producers, "consumerDataSet": consumers,
    }  # fmt: skip
    return Command(RequestCode.HEART_BEAT, {}, mqjson.dumps(body))


def _kept(settings: Any) -> Any:
    """Returns what is looked at later."""
    kept = pb.Settings()
    kept.CopyFrom(settings)
    for name in ("access_point", "user_agent", "metric"):
        kept.ClearField(name)
    kept.DiscardUnknownFields()
    return kept


def check_user(client: Client, call: Call) -> None:
    """Checks that the one who calls is the user whose client this is. Raises: Problem."""
    if _user_of(client.call) != _user_of(call):
        raise Problem(
            Code.UNAUTHORIZED,
            f"the client id {call.client_id:.100} is another user's: use one of your own",
        )


def _user_of(call: Call) -> str:
    """Returns who calls, once that was checked; empty: nobody is named."""
    given = credentials_of(call.metadata)
    return given[0] if given is not None else ""


def _consumer(settings: Any) -> dict[str, Any]:
    passive = settings.client_type not in _ACTIVE_TYPES
    return {
        "groupName": str(settings.subscription.group.name),
        "consumeType": "CONSUME_PASSIVELY" if passive else "CONSUME_ACTIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "unitMode": False,
        "subscriptionDataSet": [
            {
                "topic": each.topic.name,
                "subString": each.expression.expression or "*",
                "expressionType": ("SQL92" if each.expression.type == pb.FilterType.SQL else "TAG"),
                "subVersion": time.time_ns() // 1_000_000,
            }
            for each in settings.subscription.subscriptions
        ],
    }
