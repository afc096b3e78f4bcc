"""A proxy of ours, as processes of its own, before two brokers of ours: raw calls, the official
Python client, and consumers of the remoting protocol."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from caller import CODE, SETTINGS, Caller, message, on_loop, serving
from test_grpc_official import run
from waiting import BOUND_S, until

from broker import Admin, Broker, Consumer, Message, NameServer, Producer
from broker.client.options import ClientSettings
from broker.grpc.brokers import TopicPlace
from broker.grpc.cluster import ClusterBrokers, _masters, _read
from broker.grpc.proxy import Proxy as GrpcProxy
from broker.grpc.schema import pb
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Problem
from broker.loop.thread import LoopThread
from pystore.meta.configfiles import SubscriptionGroup, TopicConfig

CONSUMER = Path(__file__).with_name("official_consumer.py")
PYSTORE = Path(sys.executable).parent / "pystore"


class Proxy:
    """`pystore proxy`, on a free port."""

    def __init__(self, namesrv: str, *words: str) -> None:
        self.process = subprocess.Popen(
            [
                PYSTORE, "proxy", "-n", namesrv, "--grpc-port", "0", "--remoting-port", "0",
                "--json", *words,
            ],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline())
        self.grpc_address, self.remoting_address = said["grpc"], said["remoting"]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self) -> str:
        """What it wrote to its log."""
        self.process.terminate()
        return self.process.communicate(timeout=BOUND_S)[1]


@contextmanager
def proxy(namesrv: str, *words: str) -> Iterator[Proxy]:
    """A proxy that no call brings to log a traceback."""
    made = Proxy(namesrv, *words)
    try:
        yield made
    finally:
        log = made.stop()
    assert "Traceback" not in log, log


class Cluster:
    """Two brokers, and every topic of caller.TOPICS at both."""

    def __init__(self, folder: Path, undo: ExitStack) -> None:
        names = undo.enter_context(NameServer.in_thread(listenPort=0, kvConfigPath=""))
        self.namesrv, self.folder = names.address, folder
        self.brokers: list[Broker] = []
        self.ends: list[ExitStack] = []
        for name in ("broker-a", "broker-b"):
            end = undo.enter_context(ExitStack())
            broker = serving(
                folder / name, brokerName=name, namesrvAddr=self.namesrv, transactionTimeOut=1
            )
            self.brokers.append(end.enter_context(broker))
            self.ends.append(end)

    def taken(self, topic: str, count: int) -> list[Any]:
        """What a consumer of the remoting protocol gets, over the brokers' own ports."""
        with Consumer(
            f"readers-of-{topic}", topic, namesrv=self.namesrv, start="first"
        ) as consumer:
            messages = iter(consumer)
            return [next(messages) for _ in range(count)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as undo:
        yield Cluster(tmp_path, undo)


def names_of(route: Any) -> set[str]:
    return {each.broker.name for each in route.message_queues}


def route_of(caller: Caller, topic: str, *asked: tuple[str, int]) -> Any:
    endpoints = pb.Endpoints(
        scheme=pb.AddressScheme.DOMAIN_NAME,
        addresses=[pb.Address(host=host, port=port) for host, port in asked],
    )
    return caller("QueryRoute", topic=pb.Resource(name=topic), endpoints=endpoints)


def test_routes_name_all_brokers_at_the_address_that_was_asked(cluster: Cluster) -> None:
    with proxy(cluster.namesrv) as made, Caller(made.grpc_address) as caller:
        route = route_of(caller, "Fifo", ("one.example", 1), ("two.example", 2))
        assert names_of(route) == {"broker-a", "broker-b"}
        port = int(made.grpc_address.rpartition(":")[2])
        for queue in route.message_queues:
            at = [(each.host, each.port) for each in queue.broker.endpoints.addresses]
            assert at == [("one.example", port), ("two.example", port)]
            assert list(queue.accept_message_types) == [pb.MessageType.FIFO]
        assert route_of(caller, "Nowhere").status.code == CODE.TOPIC_NOT_FOUND


def test_messages_for_a_static_topic_go_to_its_logical_queues(cluster: Cluster) -> None:
    """By way of a proxy, and of a broker that leads some; remoting clients find them there."""
    with Admin(cluster.namesrv) as admin, proxy(cluster.namesrv) as made:
        admin.create_static_topic("Static", queues=2, brokers=["broker-a"])
        admin.remap_static_topic("Static", brokers=["broker-a", "broker-b"])
        for address in (made.grpc_address, *(each.grpc_address for each in cluster.brokers)):
            with Caller(address) as caller:
                sent = [caller("SendMessage", messages=[message("Static")]) for _ in range(2)]
                assert {each.status.code for each in sent} == {CODE.OK}
        found = cluster.taken("Static", 6)
        assert {each.queue.broker for each in found} == {"__syslo__global__"}
        with Caller(made.grpc_address) as caller:
            assert names_of(route_of(caller, "Static")) == {"broker-a", "broker-b"}


def test_settings_without_a_subscription_are_those_of_the_group(cluster: Cluster) -> None:
    """A client may tell the topics that it wants later."""
    for broker in cluster.brokers:
        group = SubscriptionGroup("ordered", consume_message_orderly=True, retry_max_times=2)
        on_loop(broker, partial(broker.services.groups.update, group))
    with proxy(cluster.namesrv) as made, Caller(made.grpc_address) as caller:
        settings = caller.telemetry().subscribe("ordered").settings
        assert settings.subscription.fifo and settings.backoff_policy.max_attempts == 3


def test_the_official_client_sends_messages_of_every_kind(cluster: Cluster, tmp_path: Path) -> None:
    """And a consumer of the remoting protocol reads them from the brokers."""
    pytest.importorskip("rocketmq")
    with proxy(cluster.namesrv) as made:
        said = {each["topic"]: each for each in run(made, tmp_path, "send")}
        assert sorted(said) == ["Delay", "Fifo", "Normal"]
        for topic, facts in said.items():
            (found,) = cluster.taken(topic, 1)
            assert found.message_id == facts["id"]
            assert found.body == f"body of {topic}".encode()
            assert found.properties["colour"] == "grün"


def test_the_official_simple_consumer_receives_from_every_broker(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Messages that a producer of the remoting protocol sent."""
    pytest.importorskip("rocketmq")
    with Producer("senders", namesrv=cluster.namesrv) as producer:
        sent = [producer.send(Message("Normal", b"%d" % n, tags="t")) for n in range(8)]
    assert {each.queue.broker for each in sent} == {"broker-a", "broker-b"}
    with proxy(cluster.namesrv) as made:
        found = run(made, tmp_path, "Normal", "8", program=CONSUMER)
    assert sorted(each["id"] for each in found) == sorted(each.message_id for each in sent)
    assert {each["tag"] for each in found} == {"t"}
    assert not any(map(unacknowledged, cluster.brokers))


def receive(caller: Caller, group: str, topic: str, broker: str = "") -> list[Any]:
    """Messages that were received, none when there are none."""
    replies = list(receiving(caller, group, topic, broker))
    assert replies[0].status.code in (CODE.OK, CODE.MESSAGE_NOT_FOUND), replies[0]
    return [each.message for each in replies if each.WhichOneof("content") == "message"]


def receiving(caller: Caller, group: str, topic: str, broker: str = "", poll_s: int = 5) -> Any:
    """A call, which can be cancelled."""
    return caller.begin(
        "ReceiveMessage",
        group=pb.Resource(name=group),
        message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), broker=pb.Broker(name=broker)),
        filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
        batch_size=32,
        invisible_duration=pb.Duration(seconds=30),
        long_polling_timeout=pb.Duration(seconds=poll_s),
    )


def ack(caller: Caller, group: str, topic: str, handle: str) -> Any:
    entry = pb.AckMessageEntry(message_id="m", receipt_handle=handle)
    return caller(
        "AckMessage", group=pb.Resource(name=group), topic=pb.Resource(name=topic), entries=[entry]
    )


def test_another_proxy_goes_on_for_one_that_was_killed(cluster: Cluster) -> None:
    """Receipt handles and transaction ids say all that is needed."""
    with proxy(cluster.namesrv) as first, proxy(cluster.namesrv) as second:
        topic = pb.Resource(name="Tx")
        with Caller(first.grpc_address) as caller:
            ids = {caller.send(message("Normal")).entries[0].message_id for _ in range(16)}
            half = caller.send(message("Tx", message_type=pb.MessageType.TRANSACTION)).entries[0]
            stream = caller.telemetry()
            stream.subscribe("g", "Normal")
            got = {}
            for name in ("broker-a", "broker-b"):
                for each in receive(caller, "g", "Normal", name):
                    system = each.system_properties
                    got[system.message_id] = system.receipt_handle
            assert set(got) == ids, "both brokers have some of 16 messages in turn"
            assert len({handle.split(" ")[5] for handle in got.values()}) == 2
            first.kill()
        with Caller(second.grpc_address) as caller:
            for handle in got.values():
                assert ack(caller, "g", "Normal", handle).status.code == CODE.OK
            ended = caller(
                "EndTransaction", topic=topic, message_id=half.message_id,
                transaction_id=half.transaction_id, resolution=pb.TransactionResolution.COMMIT,
            )  # fmt: skip
            assert ended.status.code == CODE.OK
        assert [each.message_id for each in cluster.taken("Tx", 1)] == [half.message_id]
        until(lambda: not any(map(unacknowledged, cluster.brokers)), "acknowledgements")


def unacknowledged(broker: Broker) -> int:
    pop = broker.services.pop
    assert pop is not None
    return len(pop.points)


def test_what_comes_for_a_client_that_gave_up_is_visible_a_second_later(cluster: Cluster) -> None:
    """The broker's answer is under way by then."""
    broker = cluster.brokers[0]
    pop = broker.services.pop
    assert pop is not None

    async def times() -> list[int]:
        return [each.invisible_ms for each in pop.points]

    with proxy(cluster.namesrv) as made, Caller(made.grpc_address) as caller:
        caller.telemetry().subscribe("g", "Normal")
        held = receiving(caller, "g", "Normal", "broker-a", poll_s=20)
        until(lambda: pop.waiting() == 1, "the request at the broker")
        held.cancel()
        route_of(caller, "Normal")  # the proxy has read that it is cancelled
        on_loop(broker, lambda: broker.store.put("Normal", b"a", properties={"UNIQ_KEY": "a"}))
        until(lambda: broker.run(times()) == [1000], "a message that is given back")
        (only,) = receive(caller, "g", "Normal", "broker-a")
        assert only.body == b"a"


def test_a_broker_that_is_down(cluster: Cluster) -> None:
    """Sends go to the other one, after at most one that fails; a handle of it gets a status."""
    with proxy(cluster.namesrv) as made, Caller(made.grpc_address) as caller:
        assert names_of(route_of(caller, "Normal")) == {"broker-a", "broker-b"}
        cluster.ends[1].close()
        codes = [caller.send(message("Normal")).status.code for _ in range(16)]
        assert sorted(codes)[:15] == [CODE.OK] * 15
        now = pb.Timestamp()
        now.GetCurrentTime()
        handle = f"0 {now.ToMilliseconds()} 60000 0 0 broker-b 0 0 0"
        for _ in range(2):
            answer = ack(caller, "g", "Normal", handle).entries[0].status
            assert answer.code == CODE.INTERNAL_SERVER_ERROR
            assert answer.message.startswith("the broker broker-b cannot be reached: ")
        handle = handle.replace("broker-b", "nobody")
        answer = ack(caller, "g", "Normal", handle).entries[0].status
        assert answer.code == CODE.INVALID_RECEIPT_HANDLE
        assert answer.message == "cannot find broker nobody"


@contextmanager
def unpolled(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[str, Caller]]:
    """A name server's address, and a caller of a proxy that does not look for routes by itself."""
    monkeypatch.setattr("broker.client.network.BACKOFF_S", (3600.0, 3600.0))
    thread = LoopThread("proxy")
    with ExitStack() as undo:
        names = undo.enter_context(NameServer.in_thread(listenPort=0, kvConfigPath=""))
        client = ClientSettings(route_poll_s=3600.0)
        made = GrpcProxy(names.address, grpc_port=0, remoting_port=0, client=client, drain_s=0.2)
        undo.callback(thread.stop)
        thread.run(made.start())
        undo.callback(lambda: thread.run(made.stop()))
        yield names.address, undo.enter_context(Caller(made.address))


def test_a_route_on_which_nobody_answers_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not only with the next poll: another broker has the topic by now."""
    with unpolled(monkeypatch) as (names, caller):
        with serving(tmp_path / "a", brokerName="broker-a", namesrvAddr=names):
            assert caller.send(message("Normal")).status.code == CODE.OK
        with serving(tmp_path / "b", brokerName="broker-b", namesrvAddr=names):
            until(lambda: caller.send(message("Normal")).status.code == CODE.OK, "the other broker")


def test_while_another_master_is_elected_clients_keep_their_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They look for routes every half minute; and once it is there, sends go to it."""

    def send(timeout: float = 300) -> int:
        return caller("SendMessage", timeout, messages=[message("Normal")]).status.code

    pair = {"brokerName": "a", "brokerIP1": "127.0.0.1"}
    with unpolled(monkeypatch) as (names, caller), ExitStack() as undo:
        with serving(tmp_path / "m", namesrvAddr=names, brokerRole="ASYNC_MASTER", **pair):
            slave = undo.enter_context(
                Broker(
                    tmp_path / "s", brokerRole="SLAVE", brokerId=1, listenPort=0,
                    namesrvAddr=names, **SETTINGS | pair,
                )
            )  # fmt: skip
            until(lambda: slave.services.topics.get("Normal") is not None, "the slave's topics")
            assert send() == CODE.OK
        until(lambda: send(timeout=1.0) == CODE.FORBIDDEN, "that the route has no master")
        permissions = {each.permission for each in route_of(caller, "Normal").message_queues}
        assert permissions == {pb.Permission.READ_WRITE}
        with serving(tmp_path / "m", namesrvAddr=names, brokerRole="ASYNC_MASTER", **pair):
            until(lambda: send() == CODE.OK, "the next master")


def test_a_send_waits_for_the_master_that_is_being_elected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many they are, one looks for it."""
    looks = []
    config = TopicConfig("t", 1, 1)

    async def places(topic: str) -> list[TopicPlace]:
        led = len(looks) == 3
        return [TopicPlace("a", config if led else replace(config, perm=4), (0 if led else 1,))]

    async def refresh(topic: str) -> None:
        looks.append(topic)

    async def send_all() -> list[Any]:
        brokers = ClusterBrokers(
            {}, servers=("127.0.0.1:1",), settings=ClientSettings(), conf=ProxySettings()
        )
        monkeypatch.setattr(brokers, "places", places)
        monkeypatch.setattr(brokers, "_refresh", refresh)
        return await asyncio.gather(*(brokers.writable("t", 3600.0) for _ in range(1000)))

    assert all(place.writes == 1 for (place,) in asyncio.run(send_all()))
    assert looks == ["t"] * 3


def test_name_servers_that_do_not_answer(tmp_path: Path) -> None:
    with proxy("127.0.0.1:1") as made, Caller(made.grpc_address) as caller:
        answer = caller("QueryRoute", topic=pb.Resource(name="Normal"))
        assert answer.status.code == CODE.INTERNAL_SERVER_ERROR
        assert "no name server answers" in answer.status.message


def test_credentials_of_the_proxy_sign_for_clients_that_have_them(tmp_path: Path) -> None:
    """A client with others is refused by the proxy, one without by the broker."""
    keys = tmp_path / "keys.yml"
    keys.write_text("accessKey: boss\nsecretKey: open-sesame\n")
    rules = {
        "authenticationEnabled": True,
        "initAuthenticationUser": json.dumps({"username": "boss", "password": "open-sesame"}),
        "innerClientAuthenticationCredentials": json.dumps(
            {"accessKey": "boss", "secretKey": "open-sesame"}
        ),
    }
    with (
        NameServer.in_thread(listenPort=0, kvConfigPath="") as names,
        serving(tmp_path / "store", namesrvAddr=names.address, **rules),
        proxy(names.address, "--credentials", str(keys)) as made,
    ):
        date = "20261122T110000Z"
        for secret, code in (
            ("open-sesame", CODE.OK), ("sesame", CODE.UNAUTHORIZED), (None, CODE.FORBIDDEN),
        ):  # fmt: skip
            headers: dict[str, str | None] = {"x-mq-date-time": date}
            if secret is not None:
                signed = hmac.new(secret.encode(), date.encode(), "sha1").hexdigest()
                headers["authorization"] = (
                    f"MQv2-HMAC-SHA1 Credential=boss, SignedHeaders=x-mq-date-time,"
                    f" Signature={signed}"
                )
            with Caller(made.grpc_address, headers) as caller:
                answer = caller.send(message("Normal"))
                status = answer.entries[0].status if answer.entries else answer.status
                assert status.code == code, (secret, answer)


@pytest.mark.parametrize(
    "conf, says",
    [
        ({"proxyMode": "LOCAL"}, "use CLUSTER"),
        ({"rocketMQClusterName": "Elsewhere"}, "no broker of the cluster Elsewhere"),
        ({"enableACL": True}, "enableACL"),
    ],
)
def test_settings_that_cannot_be_meant(
    cluster: Cluster, tmp_path: Path, conf: dict[str, Any], says: str
) -> None:
    path = tmp_path / "rmq-proxy.json"
    path.write_text(json.dumps(conf))
    ended = subprocess.run(
        [PYSTORE, "proxy", "-n", cluster.namesrv, "--proxy-conf", path, "--grpc-port", "0",
         "--remoting-port", "0"],
        capture_output=True, text=True, timeout=BOUND_S, env=dict(os.environ),
    )  # fmt: skip
    assert ended.returncode == 2 and says in ended.stderr, ended.stderr


@pytest.mark.parametrize(
    "table", ["x", [1], {"b": 1}, {"b": {"brokerAddrs": [1]}}, {"b": {"brokerAddrs": {"x": "y"}}}]
)
def test_a_name_servers_answer_of_another_shape_is_named(table: object) -> None:
    with pytest.raises(Problem, match="a malformed answer"):
        _read(lambda: list(_masters({"brokerAddrTable": table})))
