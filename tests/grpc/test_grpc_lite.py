"""Lite topics over gRPC, at a broker's own port and at a proxy before it. How the official Java
client fares is in tests/interop/test_lite_grpc_java.py."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from caller import CODE, Caller, at, message, on_loop, serving
from ports import free_port
from test_grpc_official import run
from waiting import until

from broker import Broker, LiteQuotaExceeded, Message, NameServer
from broker.grpc.checks import check_binding
from broker.grpc.clients import GrpcClients
from broker.grpc.lite import LiteMethods
from broker.grpc.proxy import Proxy
from broker.grpc.receipts import Receipt
from broker.grpc.schema import pb
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Problem
from broker.loop.thread import LoopThread
from broker.services.groups import BIND_TOPIC
from broker.services.lite.lite_topics import LiteTopics
from broker.wire.codes import RequestCode
from pystore.format.javahash import bucket_of
from pystore.meta.configfiles import SubscriptionGroup

PARENT = "Lite"
ADD = pb.LiteSubscriptionAction.PARTIAL_ADD
TYPES = {"push": pb.ClientType.LITE_PUSH_CONSUMER, "simple": pb.ClientType.LITE_SIMPLE_CONSUMER}
CONF = {"grpcClientConsumerMinLongPollingTimeoutMillis": 100, "minInvisibleTimeMillsForRecv": 100,
        "maxLiteRenewNumPerChannel": 2}  # fmt: skip
OFFICIAL = Path(__file__).with_name("official_lite.py")
_numbers = itertools.count()


class Place:
    """Where clients ask, and the broker that answers in the end."""

    def __init__(self, broker: Broker, address: str) -> None:
        self.broker, self.grpc_address = broker, address

    @property
    def lite(self) -> LiteTopics:
        assert self.broker.services.lite is not None
        return self.broker.services.lite

    def group(self, tries: int = 16, **attributes: str) -> str:
        """A new group, bound to the parent; attributes with _ for the dots."""
        name = f"agents-{next(_numbers)}"
        said = {"+lite.bind.topic": PARENT}
        said |= {f"+lite.sub.{key.replace('_', '.')}": value for key, value in attributes.items()}
        made = SubscriptionGroup(name, retry_max_times=tries, attributes=said)
        on_loop(self.broker, partial(self.broker.services.groups.update, made))
        return name


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Place]]:
    folder = tmp_path_factory.mktemp("lite")
    conf = folder / "rmq-proxy.json"
    conf.write_text(json.dumps(CONF))
    thread = LoopThread("proxy")
    with ExitStack() as undo:
        undo.callback(thread.stop)
        names = undo.enter_context(NameServer.in_thread(listenPort=0, kvConfigPath=""))
        more = {"namesrvAddr": names.address, "proxy_conf": conf, "maxLiteSubscriptionCount": 400}
        more["autoCreateSubscriptionGroup"] = False
        broker = undo.enter_context(serving(folder / "store", **more))
        broker.create_topic(PARENT, 4, message_type="LITE")
        proxy = Proxy(names.address, conf=conf, grpc_port=0, remoting_port=0, drain_s=0.2)
        thread.run(proxy.start())
        undo.callback(lambda: thread.run(proxy.stop()))
        yield {"broker": Place(broker, broker.grpc_address), "proxy": Place(broker, proxy.address)}


@pytest.fixture
def place(request: Any, places: dict[str, Place]) -> Place:
    return places[getattr(request, "param", "broker")]


#: Of what both do, and by other requests.
BOTH = pytest.mark.parametrize("place", ["broker", "proxy"], indirect=True)


class Client(Caller):
    """A consumer of lite topics that has settled."""

    def __init__(
        self, place: Place, group: str, kind: str = "simple", topic: str = PARENT,
        client_id: str | None = None,
    ) -> None:  # fmt: skip
        # A connection of its own, which ends with it.
        alone = [("grpc.use_local_subchannel_pool", 1)]
        super().__init__(place.grpc_address, options=alone)
        if client_id is not None:
            self.headers["x-mq-client-id"] = client_id
        self.place = place
        self.kind, self.group, self.topic = kind, pb.Resource(name=group), pb.Resource(name=topic)
        entry = pb.SubscriptionEntry(topic=self.topic)
        entry.expression.expression = "*"
        self.commands = self.telemetry()
        self.settings = self.commands.settle(
            client_type=TYPES[kind],
            subscription=pb.Subscription(group=self.group, subscriptions=[entry]),
        ).settings

    def __enter__(self) -> Client:
        return self

    def put(self, name: str, *bodies: bytes) -> None:
        """Sends messages to a lite topic, and waits until they are there."""
        lights, queue = self.place.lite.lights, f"%LMQ%${PARENT}${name}"

        async def end() -> int:
            return (lights.range(queue) or (0, 0))[1]

        wanted = self.place.broker.run(end()) + len(bodies)
        assert self.send(*lite(name, *bodies)).status.code == CODE.OK
        until(lambda: self.place.broker.run(end()) == wanted, "messages in their lite topic")

    def sync(self, action: int, *names: str, **more: Any) -> Any:
        return self(
            "SyncLiteSubscription", action=action, topic=self.topic, group=self.group,
            lite_topic_set=names, **more,
        ).status  # fmt: skip

    def subscribe(self, *names: str, **more: Any) -> None:
        status = self.sync(ADD, *names, **more)
        assert status.code == CODE.OK, status

    def receive(self, poll_s: float = 20, batch: int = 32, **more: Any) -> tuple[Any, list[Any]]:
        """Status and messages."""
        asked: dict[str, Any] = {"long_polling_timeout": _duration(poll_s)}
        if self.kind == "push":
            asked["auto_renew"] = True
        else:
            asked["invisible_duration"] = _duration(60)
        replies = self.stream(
            "ReceiveMessage", group=self.group, message_queue=pb.MessageQueue(topic=self.topic),
            batch_size=batch, **(asked | more),
        )  # fmt: skip
        return replies[0].status, [each.message for each in replies[1:-1]]

    def take(self, **more: Any) -> list[Any]:
        status, messages = self.receive(**more)
        assert status.code == CODE.OK, status
        return messages

    def ack(self, *messages: Any) -> Any:
        entries = [
            pb.AckMessageEntry(
                receipt_handle=each.system_properties.receipt_handle,
                lite_topic=each.system_properties.lite_topic,
            )
            for each in messages
        ]
        return self("AckMessage", topic=self.topic, group=self.group, entries=entries).status

    def change(self, of: Any, seconds: float, **more: Any) -> Any:
        """As a client of schema 2.1.1: it does not name the lite topic."""
        return self(
            "ChangeInvisibleDuration", topic=self.topic, group=self.group,
            receipt_handle=of.system_properties.receipt_handle,
            invisible_duration=_duration(seconds), **more,
        )  # fmt: skip


def _duration(seconds: float) -> Any:
    made = pb.Duration()
    made.FromMilliseconds(int(seconds * 1000))
    return made


@pytest.fixture
def name() -> str:
    """A lite topic that nothing was sent to."""
    return f"session-{next(_numbers)}"


def lite(name: str, *bodies: bytes) -> list[Any]:
    kind = pb.MessageType.LITE
    return [message(PARENT, body, lite_topic=name, message_type=kind) for body in bodies]


def shown(messages: list[Any]) -> list[tuple[str, bytes, int]]:
    """Lite topic, body, attempt."""
    return [
        (each.system_properties.lite_topic, each.body, each.system_properties.delivery_attempt)
        for each in messages
    ]


@BOTH
@pytest.mark.parametrize("kind", TYPES)
def test_messages_come_in_the_order_of_their_lite_topic(place: Place, name: str, kind: str) -> None:
    """As LITE messages, at their offsets in it, of the parent's queue that its hash says."""
    with Client(place, place.group(), kind) as client:
        client.subscribe(name)
        client.put(name, b"0")
        got = client.take()
        client.put(name, b"1", b"2")
        assert client.receive(poll_s=0.1)[0].code == CODE.MESSAGE_NOT_FOUND  # the first is out
        assert client.ack(*got).code == CODE.OK
        got += client.take()
        assert client.ack(*got[1:]).code == CODE.OK
        assert shown(got) == [(name, b"0", 1), (name, b"1", 1), (name, b"2", 1)]
        of = [each.system_properties for each in got]
        assert [each.queue_offset for each in of] == [0, 1, 2]
        assert {each.queue_id for each in of} == {bucket_of(name, 4)}
        assert {each.message_type for each in of} == {pb.MessageType.LITE}
        assert [dict(each.user_properties) for each in got] == [{}] * 3
        assert client.receive(poll_s=0.1)[0].code == CODE.MESSAGE_NOT_FOUND


def test_further_messages_of_a_lite_topic_are_put_by_network_threads(
    place: Place, name: str, requests: list[int]
) -> None:
    with Client(place, place.group()) as client:
        client.put(name, b"0")
        requests.clear()
        client.put(name, b"1")
        assert RequestCode.SEND_MESSAGE_V2 not in requests
        client.subscribe(name)
        assert [each.body for each in client.take()] == [b"0", b"1"]


@pytest.mark.parametrize(
    ("name", "text"),
    [(" ", "lite topic cannot be the char sequence of whitespace"),
     ("x" * 65, "lite topic exceed the max size 64"),
     ("a$b", "lite topic can only contain alphanumeric characters, hyphens(-), and"
             " underscores(_)")],
)  # fmt: skip
def test_names_of_lite_topics_are_checked(place: Place, name: str, text: str) -> None:
    with Client(place, place.group()) as client:
        for status in (client.send(*lite(name, b"x")).status, client.sync(ADD, name)):
            assert (status.code, status.message) == (CODE.ILLEGAL_LITE_TOPIC, text)


@pytest.mark.parametrize(
    ("topic", "system", "kind"),
    [("Normal", {"lite_topic": "a"}, "LITE"), (PARENT, {}, "NORMAL"),
     (PARENT, {"lite_topic": "a", "message_group": "g"}, "FIFO"),
     (PARENT, {"lite_topic": "a", "priority": 1}, "PRIORITY"),
     (PARENT, {"lite_topic": "a", "delivery_timestamp": at(60)}, "DELAY")],
)  # fmt: skip
def test_a_lite_message_goes_to_a_topic_of_lite_topics_alone(
    place: Place, topic: str, system: dict[str, Any], kind: str
) -> None:
    with Caller(place.grpc_address) as caller:
        status = caller.send(message(topic, **system)).status
    assert status.code == CODE.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert status.message.endswith(f"but actual type is {kind}")


def test_a_group_of_lite_topics_is_told_its_limits(place: Place) -> None:
    group = place.group(client_quota="7")
    with Client(place, group) as client:
        of = client.settings.subscription
        assert (of.lite_subscription_quota, of.max_lite_topic_size) == (7, 64)
        route = client("QueryAssignment", topic=client.topic, group=client.group)
        assert [each.message_queue.id for each in route.assignments] == [-1]


@BOTH
@pytest.mark.parametrize(
    ("bound", "kind", "topic", "text"),
    [(True, "simple consumer", PARENT, "lite group must use LITE mode: {}"),
     (True, "push", "Normal", f"lite group {{}} is expected to bind topic {PARENT}, but actual is"
                              " Normal"),
     (False, "push", "Normal", "group not found: {}")],
)  # fmt: skip
def test_who_may_not_consume_as_a_group(
    place: Place, bound: bool, kind: str, topic: str, text: str
) -> None:
    group = place.group() if bound else f"absent-{next(_numbers)}"
    with pytest.raises(grpc.RpcError) as refused, Caller(place.grpc_address) as caller:
        if kind == "push":
            Client(place, group, kind, topic)
        else:
            caller.telemetry().subscribe(group, topic)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == text.format(group)


def test_every_subscription_of_a_group_is_to_its_topic() -> None:
    group = SubscriptionGroup("g", attributes={BIND_TOPIC: PARENT})
    with pytest.raises(Problem, match="but actual is Normal"):
        check_binding("g", group, [PARENT, "Normal"], is_lite=True)


def test_a_plain_group_does_not_consume_lite_topics(place: Place) -> None:
    group = f"plain-{next(_numbers)}"
    made = SubscriptionGroup(group)
    on_loop(place.broker, partial(place.broker.services.groups.update, made))
    with pytest.raises(grpc.RpcError) as refused:
        Client(place, group)
    assert refused.value.details() == f"regular group cannot use LITE mode: {group}"


@BOTH
def test_who_loses_an_exclusive_lite_topic_is_told(place: Place, name: str) -> None:
    group = place.group(model="Exclusive")
    with Client(place, group) as one, Client(place, group) as two:
        one.subscribe(name)
        two.subscribe(name)
        assert one.commands.read().notify_unsubscribe_lite_command.lite_topic == name
        two.put(name, b"x")
        assert shown(two.take()) == [(name, b"x", 1)]


@BOTH
def test_a_failed_message_comes_again_before_those_that_follow(place: Place, name: str) -> None:
    """D4: a client of schema 2.1.1 leaves out the lite topic, and Apache's broker does nothing.
    D19: what was acknowledged after it stays away."""
    with Client(place, place.group(), "push") as client:
        client.put(name, b"0", b"1")
        client.subscribe(name)
        first, second = client.take()
        assert client.ack(second).code == CODE.OK
        client.put(name, b"2")
        assert client.change(first, 0).status.code == CODE.OK
        assert shown(client.take(batch=2)) == [(name, b"0", 2), (name, b"2", 1)]


@BOTH
def test_a_batch_that_is_suspended_counts_as_not_delivered(place: Place, name: str) -> None:
    with Client(place, place.group()) as client:
        client.put(name, b"0", b"1")
        client.subscribe(name)
        first, _ = client.take()
        assert client.change(first, 0, suspend=True, lite_topic=name).status.code == CODE.OK
        assert shown(client.take()) == [(name, b"0", 1), (name, b"1", 1)]


@BOTH
@pytest.mark.parametrize("by", ["attempts", "client"])
def test_a_message_goes_to_the_dead_letters_and_its_lite_topic_on(
    place: Place, name: str, by: str
) -> None:
    """D5: after its attempts, though new ones came after it; or when the client says so."""
    group = place.group(tries=0)
    with Client(place, group) as client:
        client.put(name, b"0")
        client.subscribe(name)
        (only,) = client.take()
        client.put(name, b"1")
        if by == "attempts":
            client.change(only, 0)
        else:
            gone = client(
                "ForwardMessageToDeadLetterQueue", topic=client.topic, group=client.group,
                receipt_handle=only.system_properties.receipt_handle, lite_topic=name,
                message_id=only.system_properties.message_id,
            )  # fmt: skip
            assert gone.status.code == CODE.OK
        assert shown(client.take()) == [(name, b"1", 1)]
    (dead,) = place.broker.store.read(f"%DLQ%{group}", 0, 0)
    assert dead.body == b"0" and dead.properties["__LITE_TOPIC"] == name


@BOTH
def test_what_waited_for_a_client_that_leaves_goes_to_others(place: Place, name: str) -> None:
    group = place.group()
    with Client(place, group, "push") as one, Client(place, group, "push") as two:
        one.put(name, b"0")
        one.subscribe(name)
        assert shown(one.take()) == [(name, b"0", 1)]
        two.subscribe(name)
        assert one("NotifyClientTermination", group=one.group).status.code == CODE.OK
        assert shown(two.take()) == [(name, b"0", 2)]


def test_where_a_client_begins(place: Place) -> None:
    """D9 of the sheet's section 9: the last n, and from a time on."""
    options = {
        "first": ({"policy": 1}, 3), "new": ({"policy": 2}, 0), "two": ({"offset": 1}, 2),
        "tail": ({"tail_n": 2}, 2), "none": ({"tail_n": 0}, 0), "late": ({"timestamp": 1 << 42}, 0),
    }  # fmt: skip
    names = {key: f"{key}-{next(_numbers)}" for key in options}
    with Client(place, place.group()) as client:
        for each in names.values():
            client.put(each, b"0", b"1", b"2")
        for key, (option, _) in options.items():
            client.subscribe(names[key], offset_option=pb.OffsetOption(**option))
        wanted = {names[key]: count for key, (_, count) in options.items() if count}
        got: list[Any] = []
        while len(got) < sum(wanted.values()):
            got += client.take()
        found = [lite for lite, *_ in shown(got)]
        assert {each: found.count(each) for each in set(found)} == wanted
        status = client.sync(ADD, names["two"], offset_option=pb.OffsetOption(offset=-1))
        assert status.code == CODE.ILLEGAL_OFFSET


@BOTH
def test_quotas_are_told_by_their_codes(place: Place) -> None:
    with Client(place, place.group(client_quota="1")) as client:
        status = client.sync(ADD, *(f"q{n}" for n in range(302)))
        assert status.code == CODE.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        assert status.message == "lite subscription quota exceeded: 1"
    with Client(place, place.group()) as client:
        status = client.sync(ADD, *(f"q{n}" for n in range(401)))  # of the broker
        assert status.code == CODE.LITE_SUBSCRIPTION_QUOTA_EXCEEDED


def test_who_holds_too_many_messages_gets_no_more(place: Place, name: str) -> None:
    with Client(place, place.group(), "push") as client:
        client.put(name, b"0", b"1", b"2")
        client.subscribe(name)
        messages = client.take()
        status, none = client.receive(poll_s=0.1)
        assert (status.code, none) == (CODE.FORBIDDEN, [])
        assert status.message.endswith("too many unacked messages. Unacked count: 3")
        client.ack(*messages)
        assert client.receive(poll_s=0.1)[0].code == CODE.MESSAGE_NOT_FOUND


@BOTH
def test_a_wildcard_group_reads_every_lite_topic_at_once(place: Place, name: str) -> None:
    """Its clients name none; Apache's proxy has them wait for their first synchronization."""
    group = place.group(wildcard="true")
    with Client(place, group) as client:
        status = client.sync(ADD, name)
        assert status.code == CODE.INTERNAL_SERVER_ERROR
        assert "subscribe lite operation is not supported for this group" in status.message
        client.put(name, b"x")
        got: list[tuple[str, bytes, int]] = []
        while (name, b"x", 1) not in got:
            some = client.take()
            client.ack(*some)
            got += shown(some)


def test_the_official_python_clients_read_lite_topics(
    place: Place, name: str, tmp_path: Path
) -> None:
    """Of both kinds, the one that Apache's proxy does not serve among them."""
    pytest.importorskip("rocketmq", reason="needs rocketmq-python-client")
    for kind in TYPES:
        own = f"{kind}-{name}"
        said = run(place, tmp_path, kind, place.group(), PARENT, own, program=OFFICIAL)
        assert said == [{"lite": own, "body": f"{kind} {n}"} for n in range(3)]


def test_a_handle_says_which_lite_topic_it_is_of() -> None:
    text = "0 1 60000 999 0 broker-a 0 7 4711 $42"
    assert Receipt.parse(text).lite == "42" and Receipt.parse(text).physical == 4711
    assert Receipt.parse(text).text == text


@BOTH
@pytest.mark.parametrize("what", ["connection", "stream"])
def test_a_client_is_unsubscribed_when_it_breaks(place: Place, name: str, what: str) -> None:
    """The stream alone, on a connection that others use, too, is enough."""
    client = Client(place, place.group())
    client.subscribe(name)
    if what == "connection":
        client.channel.close()
    else:
        client.commands.break_off()

    async def known() -> bool:
        return place.lite.registry.get(client.group.name, client.client_id) is not None

    until(lambda: not place.broker.run(known()), "the client's end")


@BOTH
def test_a_handle_cannot_bury_another_message(place: Place, name: str) -> None:
    """Neither one of another lite topic, nor the record of another offset."""
    with Client(place, place.group()) as client:
        client.put(name, b"0", b"1")
        client.subscribe(name)
        mine, other = (Receipt.parse(m.system_properties.receipt_handle) for m in client.take())
        for wrong in (mine._replace(physical=other.physical), mine._replace(lite=f"{name}x")):
            gone = client(
                "ForwardMessageToDeadLetterQueue", topic=client.topic, group=client.group,
                receipt_handle=wrong.text, message_id="m",
            )  # fmt: skip
            assert gone.status.code == CODE.INVALID_RECEIPT_HANDLE


def test_a_broker_has_as_many_lite_topics_as_it_may(tmp_path: Path) -> None:
    """A further one is refused to clients of either wire; those that are there go on."""
    with serving(tmp_path / "store", enableLmqQuota=True, maxLmqConsumeQueueNum=1) as broker:
        broker.create_topic(PARENT, 1, message_type="LITE")
        place = Place(broker, broker.grpc_address)
        with Client(place, place.group()) as client:
            client.put("old", b"0")
            client.put("old", b"1")  # by a network thread, if it may
            refused = client.send(*lite("new", b"0")).status
            assert refused.code == CODE.LITE_TOPIC_QUOTA_EXCEEDED
            client.put("old", b"2")
        with broker.producer("p") as producer, pytest.raises(LiteQuotaExceeded):
            producer.send(Message(PARENT, b"0", lite_topic="new"))


def test_a_restart_keeps_who_subscribes_to_what(tmp_path: Path) -> None:
    """D17: clients of Apache's get nothing before they have sent their whole set again."""
    more = {"brokerIP1": "127.0.0.1", "grpc_port": free_port()}
    with ExitStack() as undo:
        with serving(tmp_path / "store", **more) as broker:
            broker.create_topic(PARENT, 1, message_type="LITE")
            place = Place(broker, broker.grpc_address)
            client = undo.enter_context(Client(place, place.group()))
            client.subscribe("a")
            client.put("a", b"0")
        with serving(tmp_path / "store", **more):
            again = Client(place, client.group.name, client_id=client.client_id)
            assert shown(undo.enter_context(again).take()) == [("a", b"0", 1)]


def test_requests_that_subscribe_are_counted() -> None:
    settings = ProxySettings(lite_rate=0)
    nobody: Any = None
    methods = LiteMethods(nobody, GrpcClients(), settings)
    with pytest.raises(Problem, match="Too many syncLiteSubscription requests"):
        methods._check_rate()
