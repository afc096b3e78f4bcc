"""Lite topics at a slave: it hands nothing out, and knows what a master has to know."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from pairs import master_of, slave_of, until_alike
from popping import records
from test_acting import ACTS, ask, put_at, until_acts
from waiting import until

from broker import Broker, NameServer
from broker.hot.ordered import OrderedBatch
from broker.services import duty_table
from broker.services.groups import Groups
from broker.services.lite import kept, lite_topics, registry
from broker.services.lite.lite_topics import LiteTopics
from broker.services.topics import Topics
from broker.wire import mqjson
from broker.wire.codes import RequestCode as Code
from broker.wire.command import Command
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
        replication = slave.services.replication
        assert replication is not None

        def take_over() -> None:
            assert slave.run(replication.take_all()) == []

        take_over()
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
            take_over()
            slave.run(_sweep(of_slave))
        assert slave.run(_queues(slave)) == queues

        subscribe(master, "COMPLETE_REMOVE")
        until_kept(of_master)
        take_over()
        assert (of_slave.registry.totals().clients, slave.run(_queues(slave))) == (0, [])
        assert ask(master, Code.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == 0
        take_over()
        assert (of_master.lights.count, of_slave.lights.count) == (0, 0)


async def _sweep(lite: LiteTopics) -> None:
    async for client in lite.registry.walk():
        lite._sweep(client)


async def _queues(broker: Broker) -> list[str]:
    assert broker.services.lite is not None
    some = [each async for each in broker.services.lite.registry.queues("g", "c")]
    return sorted(names_in(b"".join(some)))


def test_a_slave_has_topics_and_groups_as_soon_as_its_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover before the next round of its job would lose the kind of the topic, and which one
    the group reads."""
    every = duty_table._every
    monkeypatch.setattr(duty_table, "_every", lambda s: every(3600 if s == 3 else s))
    with (
        NameServer.in_thread(listenPort=0, bindAddress="127.0.0.1") as names,
        master_of(tmp_path / "m", f"127.0.0.1:{names.port}") as master,
        slave_of(tmp_path / "s", f"127.0.0.1:{names.port}") as slave,
    ):
        of_master, topics, groups = master.services.replication, *_tables(slave)
        assert of_master is not None and of_master.notices is not None
        until(lambda: of_master.notices._asked, "the first round")
        for n in range(5):
            master.create_topic(f"orders{n}", 3, message_type="LITE")
            master.create_group(f"g{n}", lite_of=f"orders{n}")
            until(lambda n=n: f"g{n}" in {each.name for each in groups.all()}, "the group")
            until(lambda n=n: f"orders{n}" in topics, "the topic")
            assert (topics.get(f"orders{n}"), groups.get(f"g{n}")) == (
                master.services.topics.get(f"orders{n}"), master.services.groups.get(f"g{n}")
            )  # fmt: skip


def _tables(broker: Broker) -> tuple[Topics, Groups]:
    return broker.services.topics, broker.services.groups


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
    found: list[Command] = []
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
            assert master.services.lite is not None
            until_kept(master.services.lite)
            replication = slave.services.replication
            assert replication is not None and slave.run(replication.take_all()) == []
        until_acts(slave)
        until(lambda: (answer := pop(slave)).code != 14 and found.append(answer) is None, "a pop")
        assert [body for _, body, *_ in records(found[0].body)] == [b"a"], found[0]
