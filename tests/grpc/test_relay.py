"""Clients of the remoting protocol before a proxy of ours: relayed to two brokers of ours."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "interop"))

from caller import serving
from launch import ask
from test_grpc_cluster import Cluster, Proxy, proxy, unacknowledged
from waiting import BOUND_S, until

from broker import (
    Broker,
    Consumer,
    LocalState,
    Message,
    NameServer,
    Producer,
    TransactionProducer,
)
from broker.client.credentials import Credentials
from broker.client.errors import SendFailed
from broker.grpc.proxy import Proxy as Relaying
from broker.remoting.selfsigned import self_signed
from broker.remoting.tls import client_context
from broker.wire.codec import encode
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as undo:
        yield Cluster(tmp_path_factory.mktemp("cluster"), undo)


@pytest.fixture(scope="module")
def relay(cluster: Cluster) -> Iterator[Proxy]:
    with proxy(cluster.namesrv) as made:
        yield made


def bodies(consumer: Consumer, count: int) -> list[int]:
    """Of so many messages, all of them acknowledged."""
    found: list[int] = []

    def enough() -> bool:
        for message in consumer.poll(0.2):
            found.append(int(message.body))
            consumer.ack(message)
        return len(found) >= count

    until(enough, f"{count} messages")
    return sorted(found)


def members(broker: Broker, group: str) -> set[str]:
    fields = {"consumerGroup": group}
    code, _, body = ask(broker.address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields)
    return set(json.loads(body)["consumerIdList"]) if code == 0 else set()


def test_a_route_names_the_proxy_as_every_broker(cluster: Cluster, relay: Proxy) -> None:
    at = relay.remoting_address
    code, _, body = ask(at, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Normal"})
    assert code == 0
    told = {each["brokerName"]: each["brokerAddrs"] for each in json.loads(body)["brokerDatas"]}
    assert told == {"broker-a": {"0": at}, "broker-b": {"0": at}}
    _, _, own = ask(cluster.namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Normal"})
    assert json.loads(body)["queueDatas"] == json.loads(own)["queueDatas"]
    code, _, _ = ask(at, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Nowhere"})
    assert code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("mode", ["pull", "pop"])
def test_messages_of_every_broker_are_consumed_once(
    cluster: Cluster, relay: Proxy, mode: str
) -> None:
    """And never again, by a consumer of the same group that asks the brokers themselves."""
    options: dict[str, Any] = {"start": "first", "mode": mode}
    topic, group = f"of-{mode}", f"{mode}ing"
    for broker in cluster.brokers:
        broker.create_topic(topic)
    with (
        Producer("p", namesrv=relay.remoting_address) as producer,
        Consumer(group, topic, namesrv=relay.remoting_address, **options) as consumer,
    ):
        sent = [producer.send(Message(topic, b"%d" % n)) for n in range(32)]
        assert {each.queue.broker for each in sent} == {"broker-a", "broker-b"}
        assert bodies(consumer, 32) == list(range(32))
        for broker in cluster.brokers:
            assert len(members(broker, group)) == 1
    until(lambda: not any(map(unacknowledged, cluster.brokers)), "acknowledgements")
    assert not any(members(broker, group) for broker in cluster.brokers), "it has said goodbye"
    with Consumer(group, topic, namesrv=cluster.namesrv, **options) as consumer:
        assert consumer.poll(0.5) == [], "offsets are those of the group at the brokers"


def checked(broker: Broker) -> int:
    async def check() -> int:
        transactions = broker.services.transactions
        assert transactions is not None
        return (await transactions.check()).asked

    return int(broker.run(check()))


def test_a_broker_checks_a_transaction_of_a_client_behind_the_proxy(
    cluster: Cluster, relay: Proxy
) -> None:
    """And the decision finds its way back to the broker."""
    asked: list[str] = []

    def check(message: Any) -> LocalState:
        asked.append(message.message_id)
        return LocalState.COMMIT

    with TransactionProducer("tx", namesrv=relay.remoting_address, check=check) as producer:
        with producer.transaction(Message("Tx", b"1")) as tx:
            tx.leave_open()
        until(lambda: sum(map(checked, cluster.brokers)), "a check that was asked")
        (found,) = cluster.taken("Tx", 1)
    assert [found.message_id] == asked == [tx.transaction_id]


def test_requests_that_no_broker_gets(relay: Proxy) -> None:
    """They name no broker, one that nobody knows, or no type that the topic takes."""
    at = relay.remoting_address
    send = {
        "a": "p", "b": "Normal", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0",
        "i": "", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    code = RequestCode.SEND_MESSAGE_V2
    assert ask(at, code, send, b"x")[0] == ResponseCode.VERSION_NOT_SUPPORTED
    assert ask(at, code, {**send, "n": "nobody"}, b"x")[0] == ResponseCode.SYSTEM_ERROR
    delayed = {**send, "n": "broker-a", "i": "DELAY\x013\x02"}
    assert ask(at, code, delayed, b"x")[0] == ResponseCode.MESSAGE_ILLEGAL
    assert ask(at, code, {**delayed, "b": "Delay"}, b"x")[0] == ResponseCode.SUCCESS
    unknown = RequestCode.UPDATE_AND_CREATE_TOPIC
    assert ask(at, unknown, {})[0] == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_signatures_of_clients_reach_the_brokers(tmp_path: Path) -> None:
    """The proxy has no credentials: what a client signs is what the broker checks."""
    boss = {"accessKey": "boss", "secretKey": "open-sesame"}
    rules = {
        "authenticationEnabled": True,
        "initAuthenticationUser": json.dumps({"username": "boss", "password": "open-sesame"}),
        "innerClientAuthenticationCredentials": json.dumps(boss),
    }
    conf = tmp_path / "rmq-proxy.json"
    conf.write_text(json.dumps({"enableTopicMessageTypeCheck": False}))
    with (
        NameServer.in_thread(listenPort=0, kvConfigPath="") as names,
        serving(tmp_path / "store", namesrvAddr=names.address, **rules),
        proxy(names.address, "--proxy-conf", str(conf)) as made,
    ):
        at = made.remoting_address
        good, bad = Credentials("boss", "open-sesame"), Credentials("boss", "sesame")
        with (
            Producer("p", namesrv=at, credentials=good) as producer,
            Consumer("g", "Normal", namesrv=at, credentials=good, start="first") as consumer,
        ):
            producer.send(Message("Normal", b"1"))
            assert bodies(consumer, 1) == [1]
        for credentials in (bad, None):
            with (
                Producer("p", namesrv=at, credentials=credentials, retries=0) as producer,
                pytest.raises(SendFailed, match="code 16"),
            ):
                producer.send(Message("Normal", b"1"))


def test_tls_and_plain_text_on_one_port(cluster: Cluster, tmp_path: Path) -> None:
    cert, key = self_signed("localhost")
    (tmp_path / "cert").write_text(cert)
    (tmp_path / "key").write_text(key)
    settings = tmp_path / "tls.properties"
    settings.write_text(
        f"tls.server.certPath={tmp_path / 'cert'}\ntls.server.keyPath={tmp_path / 'key'}\n"
    )
    with proxy(cluster.namesrv, "--tls", str(settings)) as made:
        for tls in (False, client_context(str(tmp_path / "cert"))):
            with Producer("p", namesrv=made.remoting_address, tls=tls) as producer:
                assert producer.send(Message("Normal", b"1")).queue_offset >= 0


def test_a_client_that_is_gone_without_a_word(cluster: Cluster, relay: Proxy) -> None:
    """Brokers learn of it at once, as if it had been connected to them."""
    subscription = {"topic": "Normal", "subString": "*", "subVersion": 1}
    consumer = {
        "groupName": "gone", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [subscription],
    }  # fmt: skip
    body = {"clientID": "me", "consumerDataSet": [consumer], "producerDataSet": []}
    beat = Command(RequestCode.HEART_BEAT, body=json.dumps(body).encode(), opaque=1)
    host, _, port = relay.remoting_address.rpartition(":")
    with socket.create_connection((host, int(port)), BOUND_S) as wire:
        wire.sendall(encode(beat))
        assert wire.recv(4096)
        assert [members(broker, "gone") for broker in cluster.brokers] == [{"me"}, {"me"}]
    until(lambda: not any(members(broker, "gone") for broker in cluster.brokers), "its end")


def test_a_client_that_says_nothing_of_its_subscription_is_answered(relay: Proxy) -> None:
    for body in (b"{}", b'{"subscriptionData":null}'):
        code, *_ = ask(relay.remoting_address, RequestCode.CHECK_CLIENT_CONFIG, {}, body)
        assert code == ResponseCode.SUCCESS


def test_heartbeats_of_all_clients_take_so_much_memory(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who says most goes, and what it said is no longer counted."""
    monkeypatch.setattr("broker.grpc.relay.SIZE_MAX", 10_000)

    async def beat(client: Streams, groups: int) -> bytes:
        names = [{"groupName": f"g{i}"} for i in range(groups)]
        body = {"clientID": "me", "consumerDataSet": names, "producerDataSet": []}
        client[1].write(encode(Command(RequestCode.HEART_BEAT, body=json.dumps(body).encode())))
        return await client[0].read(4096)

    async def check() -> None:
        async with Relaying(
            cluster.namesrv, grpc_port=0, remoting_port=0, bind="127.0.0.1"
        ) as made:
            host, _, port = made.remoting_address.rpartition(":")
            clients = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
            large, small, last = clients
            assert await beat(large, 40)
            assert await beat(small, 10)
            assert await large[0].read(1) == b""
            assert await beat(small, 20)
            assert await beat(small, 60) == b""
            assert await beat(last, 40)
            for _, writer in clients:
                writer.close()

    asyncio.run(check())


def test_garbage_ends_the_connection(relay: Proxy) -> None:
    host, _, port = relay.remoting_address.rpartition(":")
    with socket.create_connection((host, int(port)), BOUND_S) as wire:
        wire.sendall(b"\x7f\xff\xff\xff garbage")
        assert wire.recv(1) == b""


def test_a_client_survives_the_restart_of_a_broker(tmp_path: Path) -> None:
    """The broker hears of it again before it is asked. A cluster of its own, for others would find
    theirs without that broker."""
    with ExitStack() as undo:
        cluster = Cluster(tmp_path, undo)
        relay = undo.enter_context(proxy(cluster.namesrv))
        restarted(cluster, relay)


def restarted(cluster: Cluster, relay: Proxy) -> None:
    for broker in cluster.brokers:
        broker.create_topic("Restart")
    settings = {"brokerName": "broker-b", "namesrvAddr": cluster.namesrv}
    port = cluster.brokers[1].port
    # How soon clients look for the broker again.
    options: dict[str, Any] = {"namesrv": relay.remoting_address, "route_poll_s": 0.2}
    folder = cluster.folder / "broker-b"
    with (
        Producer("p", **options) as producer,
        Consumer("restarts", "Restart", start="first", **options) as consumer,
    ):
        sent = [producer.send(Message("Restart", b"%d" % n)) for n in range(16)]
        assert bodies(consumer, 16) == list(range(16))
        consumer.commit()
        cluster.ends[1].close()
        with serving(folder, listenPort=port, **settings) as broker:
            until(lambda: members(broker, "restarts"), "the client to be known again")
            for number in range(16, 32):
                sent.append(producer.send(Message("Restart", b"%d" % number)))
            assert bodies(consumer, 16) == list(range(16, 32))
