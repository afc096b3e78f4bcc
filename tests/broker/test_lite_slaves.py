"""Lite topics at a slave: it hands nothing out, and knows what a master has to know."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from etcd_server import PROGRAM, etcd
from pairs import master_of, slave_of, until_alike
from popping import records
from test_acting import ACTS, ask, put_at, until_acts
from test_failover_etcd import in_sync, is_master, member
from waiting import BOUND_S, until

from broker import Broker, Message, NameServer
from broker.hot.ordered import OrderedBatch
from broker.services import duty_table
from broker.services.lite import kept, lite_topics, registry
from broker.services.lite.lite_topics import LiteTopics
from broker.services.replication import notices
from broker.services.replication.synchronize import Synchronizer
from broker.wire import mqjson
from broker.wire.codes import RequestCode as Code
from broker.wire.command import Command, Refused
from pystore.cli import main
from pystore.store.light_queues import names_in

QUEUE = "%LMQ%$orders$n"


def subscribe(broker: Broker, action: str, *names: str) -> None:
    row = {"action": action, "clientId": "c", "group": "g", "topic": "orders",
           "liteTopicSet": names}  # fmt: skip
    body = mqjson.dumps({"subscriptionSet": [row]})
    assert ask(broker, Code.LITE_SUBSCRIPTION_CTL, {}, body).code == 0


def pop(broker: Broker) -> Command:
    ext = {"clientId": "c", "consumerGroup": "g", "topic": "orders", "maxMsgNum": "32",
           "invisibleTime": "3600000", "pollTime": "0"}  # fmt: skip
    return ask(broker, Code.POP_LITE_MESSAGE, ext)


def ack(broker: Broker, offset: int, pop_ms: str) -> int:
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "offset": str(offset),
           "liteTopic": "n", "extraInfo": f"0 {pop_ms} 3600000 999 0 b 0 {offset}"}  # fmt: skip
    return ask(broker, Code.ACK_MESSAGE, ext).code


def out(broker: Broker) -> OrderedBatch | None:
    async def get() -> OrderedBatch | None:
        assert broker.services.pop is not None
        return broker.services.pop.order.batches.get((QUEUE, "g", 0))

    return broker.run(get())


def until_kept(lite: LiteTopics) -> None:
    """Until a slave that asks is told of the subscriptions that there are now."""
    until(lambda: lite.registry.totals().changes == lite._saved, "subscriptions that are kept")


def take_over(slave: Broker) -> None:
    """Until the slave has all that its master has."""
    replication = slave.services.replication
    assert replication is not None
    until(lambda: slave.run(replication.take_all()) == [], "what its master has")


def until_taken(master: Broker, slave: Broker) -> None:
    """Until the slave has all, the subscriptions that there are now among it."""
    assert master.services.lite is not None
    until_kept(master.services.lite)
    take_over(slave)


def first_served_pop(broker: Broker) -> Command:
    """Returns the answer to the first pop that is not refused as one at a slave."""
    found: list[Command] = []
    until(lambda: (answer := pop(broker)).code != 14 and found.append(answer) is None, "a pop")
    return found[0]


def pieces_told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes pieces of the file of subscriptions small, and returns where those begin that a slave
    is told."""
    monkeypatch.setattr(registry, "_NAMES_BYTES", 256)
    monkeypatch.setattr(kept, "_PIECE_BYTES", 100)
    piece, begins = kept.KeptSubscriptions.piece, list[int]()

    def noted(file: kept.KeptSubscriptions, begin: int, most: int = 0) -> tuple[bytes, int]:
        begins.append(begin)
        return piece(file, begin, most)

    monkeypatch.setattr(kept.KeptSubscriptions, "piece", noted)
    return begins


def test_a_slave_has_lite_topics_as_its_master_and_hands_nothing_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lite_topics, "_SWEEP_S", 3600)
    begins = pieces_told(monkeypatch)
    others = [f"other{n:02}" for n in range(40)]
    queues = [QUEUE, *(f"%LMQ%$orders${name}" for name in others)]
    with (
        NameServer.in_thread(listenPort=0, bindAddress="127.0.0.1") as names,
        master_of(tmp_path / "m", f"127.0.0.1:{names.port}") as master,
        slave_of(tmp_path / "s", f"127.0.0.1:{names.port}") as slave,
    ):
        master.create_topic("orders", message_type="LITE")
        master.create_group("g", lite_of="orders")
        for key in "abc":
            put_at(master, key, __LITE_TOPIC="n")
        subscribe(master, "COMPLETE_ADD", "n", *others)
        popped = pop(master)
        assert ack(master, 0, popped.ext["popTime"]) == 0
        until_alike(master, slave)
        lites = [each.services.lite for each in (master, slave)]
        assert lites[0] is not None and lites[1] is not None
        of_master, of_slave = lites[0], lites[1]
        until_kept(of_master)
        take_over(slave)
        assert len({begin for begin in begins if begin}) > 2  # it was told by the piece
        assert slave.services.offsets.get("g", QUEUE, 0) == 1
        batch = out(slave)
        assert batch is not None and batch == out(master)
        assert slave.run(_queues(slave)) == queues
        assert (pop(slave).code, ack(slave, 1, popped.ext["popTime"])) == (14, 14)

        # Its master alone hears of a client: that one is forgotten there, and not here.
        later_s = time.monotonic() + 2 * lite_topics._CLIENT_S
        with monkeypatch.context() as later:
            later.setattr(lite_topics, "time", SimpleNamespace(monotonic=lambda: later_s))
            take_over(slave)
            slave.run(_sweep(of_slave))
        assert slave.run(_queues(slave)) == queues

        subscribe(master, "COMPLETE_REMOVE")
        until_kept(of_master)
        take_over(slave)
        assert (of_slave.registry.totals().clients, slave.run(_queues(slave))) == (0, [])
        assert ask(master, Code.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == 0
        take_over(slave)
        assert (of_master.lights.count, of_slave.lights.count) == (0, 0)


async def _sweep(lite: LiteTopics) -> None:
    async for client in lite.registry.walk():
        lite._sweep(client)


async def _queues(broker: Broker) -> list[str]:
    assert broker.services.lite is not None
    some = [each async for each in broker.services.lite.registry.queues("g", "c")]
    return sorted(names_in(b"".join(some)))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Broker]]:
    """A synchronous master, and its slave, which is in sync, and does not ask by itself once it
    follows."""
    every, folder = duty_table._every, tmp_path_factory.mktemp("pair")
    with (
        pytest.MonkeyPatch.context() as patch,
        NameServer.in_thread(listenPort=0, bindAddress="127.0.0.1") as names,
    ):
        patch.setattr(duty_table, "_every", lambda s: every(3600 if s == 3 else s))
        with (
            master_of(folder / "m", f"127.0.0.1:{names.port}", "SYNC_MASTER") as master,
            slave_of(folder / "s", f"127.0.0.1:{names.port}") as slave,
        ):
            of_master = master.services.replication
            assert of_master is not None and of_master.notices is not None
            told, port = of_master.notices, of_master.master
            assert port is not None

            async def is_followed() -> bool:
                return bool(told._last and port.hosts_in_sync())

            until(lambda: master.run(is_followed()), "a slave in sync that has asked")
            yield master, slave


def make_topic(master: Broker, name: str) -> Command:
    ext = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "3",
           "perm": "6", "attributes": "+message.type=LITE"}  # fmt: skip
    return ask(master, Code.UPDATE_AND_CREATE_TOPIC, ext)


def synchronizer_of(slave: Broker) -> Synchronizer:
    assert slave.services.replication is not None
    return slave.services.replication._synchronizer


def test_who_makes_a_topic_or_a_group_is_answered_once_the_slave_has_it(
    pair: tuple[Broker, Broker],
) -> None:
    """A failover would lose the kind of the topic, and which one the group reads."""
    master, slave = pair
    assert make_topic(master, "kept").code == 0
    assert slave.services.topics.get("kept") == master.services.topics.get("kept") is not None
    bound = mqjson.dumps({"groupName": "of_kept", "attributes": {"+lite.bind.topic": "kept"}})
    assert ask(master, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, bound).code == 0
    assert slave.services.groups.get("of_kept") == master.services.groups.get("of_kept") is not None
    kept = slave.store.metadata
    assert kept.topics.get("kept") is not None and kept.groups.get("of_kept") is not None


def test_the_answer_to_who_makes_a_topic_waits_for_a_slave_that_is_slow(
    pair: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = pair
    monkeypatch.setattr(notices, "_ANSWERS_S", BOUND_S)
    takes = synchronizer_of(slave)._round
    slave.run(takes.acquire())
    with ThreadPoolExecutor(1) as beside:
        answer = beside.submit(make_topic, master, "slow")
        until(lambda: "slow" in master.services.topics, "the topic at its master")
        for _ in range(5):  # others are served meanwhile
            assert ask(master, Code.GET_TOPIC_CONFIG, {"topic": "slow"}).code == 0
        assert not answer.done() and "slow" not in slave.services.topics

        async def go_on() -> None:
            takes.release()

        slave.run(go_on())
        assert answer.result(BOUND_S).code == 0
    assert "slow" in slave.services.topics


def test_what_a_late_request_of_the_master_undid_is_taken_again(
    pair: tuple[Broker, Broker],
) -> None:
    master, slave = pair
    assert make_topic(master, "undone").code == 0
    synchronizer = synchronizer_of(slave)

    async def undo() -> None:
        await synchronizer.once()
        old = {"topicConfigTable": {"undone": {"topicName": "undone", "readQueueNums": 1}}}
        assert await synchronizer.take_changed(mqjson.dumps(old), lambda: True)
        assert slave.services.topics.get("undone") != master.services.topics.get("undone")
        assert await synchronizer.once() == []

    slave.run(undo())
    assert slave.services.topics.get("undone") == master.services.topics.get("undone")


def test_many_changes_are_told_in_a_few_requests(
    pair: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = pair
    monkeypatch.setattr(notices, "_ROWS_MAX", 40)
    synchronizer, told = synchronizer_of(slave), list[int]()
    take = synchronizer.take_changed

    async def noted(body: bytes, may: Callable[[], bool]) -> bool:
        told.append(len(mqjson.loads(body)["topicConfigTable"]))
        return await take(body, may)

    monkeypatch.setattr(synchronizer, "take_changed", noted)
    rows = [
        {"topicName": f"t{n}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        for n in range(100)
    ]
    body = mqjson.dumps({"topicConfigList": rows})
    assert ask(master, Code.UPDATE_AND_CREATE_TOPIC_LIST, {}, body).code == 0
    assert all(f"t{n}" in slave.services.topics for n in range(100))
    assert sum(told) >= 100 and max(told) <= 40 and len(told) < 20


def test_a_deletion_reaches_a_slave_before_it_next_asks_by_itself(
    pair: tuple[Broker, Broker],
) -> None:
    master, slave = pair
    assert make_topic(master, "gone").code == 0
    assert "gone" in slave.services.topics
    assert ask(master, Code.DELETE_TOPIC_IN_BROKER, {"topic": "gone"}).code == 0
    until(lambda: "gone" not in slave.services.topics, "the deletion")


def test_a_slave_that_keeps_what_it_did_as_a_master_takes_what_tools_make(
    pair: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in sync as the master returns, before that has asked what was done in its place."""
    master, slave = pair
    monkeypatch.setattr(slave.services.replication, "is_held", lambda: True)
    assert make_topic(master, "meanwhile").code == 0
    assert "meanwhile" in slave.services.topics


def test_a_slave_hears_of_changes_before_the_master_counts_on_it(
    pair: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No topic is made for good that it neither asked for nor was told of."""
    master, slave = pair
    replication = slave.services.replication
    assert replication is not None and replication.slave is not None
    follower, begins = replication.slave, replication.slave._hand_over
    waits, goes_on = threading.Event(), asyncio.Event()

    async def begin(sock: socket.socket) -> None:
        waits.set()
        await goes_on.wait()
        await begins(sock)

    async def do(work: Callable[[], None]) -> None:
        work()

    monkeypatch.setattr(follower, "_hand_over", begin)
    slave.run(do(follower.again))
    assert waits.wait(BOUND_S)
    assert make_topic(master, "before").code == 0
    until(lambda: "before" in slave.services.topics, "the topic")
    assert not follower.follows
    slave.run(do(goes_on.set))
    until(lambda: follower.follows, "the stream")


def test_nobody_is_believed_but_the_master_that_is_followed(pair: tuple[Broker, Broker]) -> None:
    replication = pair[1].services.replication
    assert replication is not None
    body = mqjson.dumps({"topicConfigTable": {"x": {"topicName": "x"}}})

    async def tell() -> None:
        stranger: Any = SimpleNamespace(address=("127.0.0.1", 1), closed=False)
        command = Command(Code.GET_ALL_TOPIC_CONFIG, {"pystore": "1"}, body)
        with pytest.raises(Refused):
            await replication.hear_of_change(stranger, command)

    pair[1].run(tell())
    assert "x" not in pair[1].services.topics


def test_a_topic_that_the_log_alone_knows_is_lite_if_its_messages_are(tmp_path: Path) -> None:
    """Of a master that is gone a slave may have the log alone, and goes on from it."""
    with Broker(tmp_path / "m", listenPort=0) as master:
        master.create_topic("orders", message_type="LITE")
        master.create_topic("plain")
        put_at(master, "a", __LITE_TOPIC="n")
        with master.producer() as producer:
            producer.send(Message("plain", b"p"))
    for each in ("config", "meta", "lightqueue"):
        shutil.rmtree(tmp_path / "m" / each)
    with Broker(tmp_path / "m", listenPort=0) as master:
        kinds = {
            name: master.services.topics.found(name).attributes.get("message.type")
            for name in ("orders", "plain")
        }
        assert kinds == {"orders": "LITE", "plain": None}
        master.create_group("g", lite_of="orders")
        subscribe(master, "COMPLETE_ADD", "n")
        until(lambda: (found := pop(master)).code == 0 and b"a" in found.body, "the message")


def test_a_master_that_is_cut_off_hands_nothing_out(tmp_path: Path) -> None:
    with Broker(tmp_path / "m", listenPort=0) as master:
        master.create_topic("orders", message_type="LITE")
        master.create_group("g", lite_of="orders")
        put_at(master, "a", __LITE_TOPIC="n")
        subscribe(master, "COMPLETE_ADD", "n")
        popped = pop(master)
        assert popped.code == 0  # the core knows the group

        async def cut_off() -> None:
            master.services.core.lead_until(0.0)

        master.run(cut_off())
        assert (pop(master).code, ack(master, 0, popped.ext["popTime"])) == (14, 14)


def test_a_slave_that_acts_hands_out_at_once_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first pop that is not refused has it: no client says first what it subscribes to, and
    nobody looks for what was left."""
    monkeypatch.setattr(lite_topics, "_SWEEP_S", 3600)
    with (
        NameServer.in_thread(
            listenPort=0, bindAddress="127.0.0.1", supportActingMaster=True,
            notifyMinBrokerIdChanged=True,
        ) as names,
        slave_of(tmp_path / "s", f"127.0.0.1:{names.port}", **ACTS) as slave,
    ):  # fmt: skip
        with master_of(tmp_path / "m", f"127.0.0.1:{names.port}", **ACTS) as master:
            master.create_topic("orders", message_type="LITE")
            master.create_group("g", lite_of="orders")
            subscribe(master, "COMPLETE_ADD", "n")
            put_at(master, "a", __LITE_TOPIC="n")
            until_alike(master, slave)
            until_taken(master, slave)
        until_acts(slave)
        found = first_served_pop(slave)
        assert [body for _, body, *_ in records(found.body)] == [b"a"], found


@pytest.mark.long
@pytest.mark.skipif(PROGRAM is None, reason="etcd is not installed (etcd-server)")
def test_an_elected_master_hands_out_at_once_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, of a controller: the first pop that is served has all that waits."""
    monkeypatch.setattr(lite_topics, "_SWEEP_S", 3600)
    many = [f"n{n}" for n in range(20)]
    with (
        NameServer.in_thread(listenPort=0, bindAddress="127.0.0.1") as server,
        etcd(tmp_path / "etcd") as at,
        member(tmp_path / "b", f"127.0.0.1:{server.port}", at) as later,
    ):
        until(lambda: is_master(later), "the first master")
        with member(tmp_path / "a", f"127.0.0.1:{server.port}", at) as former:
            until(lambda: in_sync(later) == 2, "both in sync")
            assert main(["ha", "move", at.address, "b", "2"]) == 0
            until(lambda: is_master(former) and in_sync(former) == 2, "the move")
            former.create_topic("orders", message_type="LITE")
            former.create_group("g", lite_of="orders")
            subscribe(former, "COMPLETE_ADD", *many)
            for name in many:
                put_at(former, name, __LITE_TOPIC=name)
            until_alike(former, later)
            until_taken(former, later)
        until(lambda: is_master(later), "the next master")
        bodies = (body.decode() for _, body, *_ in records(first_served_pop(later).body))
        assert sorted(bodies) == sorted(many)
