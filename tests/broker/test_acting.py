"""A slave that acts as master while there is none: what is due goes to another broker, once, and
the master that returns takes it over."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pairs import SMALL, Link, master_of, slave_of, until_alike
from storeview import everything
from waiting import BOUND_S, until

from broker import Broker, Message, NameServer
from broker.remoting.client import RemotingClient
from broker.services.acting.escape_ledger import Doubt, EscapeLedger, Origin
from broker.services.acting.taking_back import TakingBack
from broker.services.duties import BrokerRole
from broker.wire.codes import RequestCode as Code
from broker.wire.command import Command
from pystore import Store
from pystore.format.names import HALF_TOPIC, SCHEDULE_TOPIC
from pystore.format.properties import encode_properties
from pystore.format.records import read_records

ACTS: dict[str, Any] = {
    "enableSlaveActingMaster": True, "enableRemoteEscape": True, "slaveReadEnable": True,
    "brokerNotActiveTimeoutMillis": 3_600_000,
}  # fmt: skip
HOURS_MS = 3 * 3_600_000
LAST_LEVEL = 18


@pytest.fixture
def names() -> Iterator[str]:
    with NameServer.in_thread(
        listenPort=0, bindAddress="127.0.0.1", supportActingMaster=True,
        notifyMinBrokerIdChanged=True,
    ) as server:  # fmt: skip
        yield f"127.0.0.1:{server.port}"


@contextlib.contextmanager
def other_of(folder: Path, names: str) -> Iterator[Broker]:
    """Another master of the cluster; nobody sends to it before it has topics."""
    small = SMALL | {"brokerName": "c"}
    with Broker(folder, namesrvAddr=names, **small) as broker:
        yield broker


def ask(broker: Broker, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
    async def request() -> Command:
        client = RemotingClient()
        try:
            return await client.request(broker.address, Command(code, ext, body), 60.0)
        finally:
            await client.close()

    return broker.run(request())


def half(broker: Broker, key: str) -> None:
    put_at(broker, key, "4", TRAN_MSG="true")


def put_at(broker: Broker, key: str, flag: str = "0", **properties: str) -> None:
    """At this broker, whatever name servers say."""
    said = {"PGROUP": "makers", "UNIQ_KEY": key, **properties}
    ext = {
        "a": "makers", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": flag, "g": "1",
        "h": "0", "i": encode_properties(said).decode(), "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    assert ask(broker, Code.SEND_MESSAGE_V2, ext, key.encode()).code == 0


def later(broker: Broker) -> None:
    """All that waits is due."""

    async def shift() -> None:
        broker.services.schedule.shift_clock(HOURS_MS)
        broker.services.pop.look()

    broker.run(shift())


def bodies(broker: Broker, topic: str = "orders") -> Counter[bytes]:
    return Counter(bytes(message.body) for message in everything(broker.store, topic))


def acts(broker: Broker) -> bool:
    return broker.services.duties.role is BrokerRole.ACTING


def until_acts(slave: Broker) -> None:
    """Looks at once, and not once a second."""

    async def look() -> None:
        slave.services.acting.hint()

    def is_on() -> bool:
        slave.run(look())
        return acts(slave)

    until(is_on, "the slave acts", pause_s=0.05)


def until_pops(slave: Broker) -> None:
    until_acts(slave)
    until(lambda: slave.services.acting.pops.is_on, "the slave serves pops")


def until_taken_over(slave: Broker, group: bool = False) -> None:
    """The slave has the topic, and with `group` the group, without waiting for its next turn."""

    async def take() -> None:
        await slave.services.replication.take_all()

    def is_there() -> bool:
        slave.run(take())
        services = slave.services
        return services.topics.get("orders") is not None and (
            not group or services.groups.get("g") is not None
        )

    until(is_there, "the topic and the group at the slave", pause_s=0.05)


def put_delayed(broker: Broker, count: int, what: bytes, **how: Any) -> Counter[bytes]:
    with broker.producer(send_timeout_s=BOUND_S) as producer:
        for number in range(count):
            producer.send(Message("orders", b"%s%d" % (what, number), **how))
    return Counter(b"%s%d" % (what, number) for number in range(count))


def timers_at(broker: Broker) -> int:
    return int(broker.services.schedule.now_ms() + HOURS_MS // 2)


def put_levels_and_timers(broker: Broker, count: int) -> Counter[bytes]:
    """So many of each; their bodies."""
    delayed = put_delayed(broker, count, b"delayed", delay_level=LAST_LEVEL)
    return delayed + put_delayed(broker, count, b"timed", deliver_at_ms=timers_at(broker))


@pytest.mark.long
def test_what_did_not_go_is_delivered_by_the_master_that_returns(
    names: str, tmp_path: Path
) -> None:
    """No other broker has the topic."""
    with slave_of(tmp_path / "s", names, **ACTS) as slave:
        with master_of(tmp_path / "m", names, **ACTS) as master:
            master.create_topic("orders", 4)
            wanted = put_levels_and_timers(master, 5)
            until_alike(master, slave)
        until_acts(slave)
        later(slave)
        with master_of(tmp_path / "m", names, **ACTS) as master:
            later(master)
            until(lambda: bodies(master) >= wanted, "what was due")
            assert bodies(master) == wanted


def deliver(master: Broker, count: int, level: int, before: Counter[bytes]) -> Counter[bytes]:
    """Sends so many and has them delivered, by a clock that is six seconds ahead. Returns what is
    there then."""
    master.create_topic("orders", 4)
    wanted = before + put_delayed(master, count, b"m", delay_level=level)

    async def shift() -> None:
        master.services.schedule.shift_clock(6000)
        master.services.schedule.start_levels()

    master.run(shift())
    until(lambda: bodies(master) >= wanted, "what is due")
    return bodies(master)


def test_a_master_that_was_killed_does_not_repeat_what_it_delivered(
    names: str, tmp_path: Path
) -> None:
    """No slave tells it: its own log does."""
    with master_of(tmp_path / "m", names) as master:
        wanted = deliver(master, 9, 2, Counter())
    with Store(tmp_path / "m") as store:  # a kill leaves the progress of before
        store.metadata.delay_offsets.commit(2, 4, reset=True)
        store.metadata.set_delays_known(False)
    with master_of(tmp_path / "m", names) as master:
        assert deliver(master, 1, 2, wanted) == wanted + Counter({b"m0": 1})


def test_a_slave_that_is_promoted_does_not_repeat_what_its_master_delivered(
    names: str, tmp_path: Path
) -> None:
    """The progress came too late to it."""
    with master_of(tmp_path / "m", names) as master, slave_of(tmp_path / "s", names) as slave:
        wanted = deliver(master, 9, 2, Counter())
        until_alike(master, slave)
        until_taken_over(slave)
    with Store(tmp_path / "s") as store:
        store.metadata.delay_offsets.commit(2, 4, reset=True)
    with master_of(tmp_path / "s", names) as master:
        assert deliver(master, 1, 2, wanted) == wanted + Counter({b"m0": 1})


def test_a_level_is_closed_beyond_what_the_master_delivered_between_two_absences(
    names: str, tmp_path: Path
) -> None:
    """The slave still knows of the first absence, and was killed in the second one."""
    with master_of(tmp_path / "m", names, **ACTS) as master:
        deliver(master, 5, 2, Counter())
        master.run(master.services.schedule.stop_levels())
        put_delayed(master, 4, b"later", delay_level=2)
        kept = master.store.metadata.delay_offsets
        kept.commit(2, 0, reset=True)
        replication = master.services.replication
        taking = TakingBack(master.services, replication.request)
        taking._close(Origin(SCHEDULE_TOPIC, "", 1, offset) for offset in (0, 1, 5, 6))
        assert kept.get(2) == 7


def test_a_transaction_that_nobody_decided_is_asked_about_elsewhere_and_no_more_here(
    names: str, tmp_path: Path
) -> None:
    """Also when the master goes again before the slave has what it closed."""
    with other_of(tmp_path / "c", names) as other, slave_of(tmp_path / "s", names, **ACTS) as slave:
        with master_of(tmp_path / "m", names, **ACTS) as master:
            master.create_topic("orders", 4)
            for number in range(4):
                half(master, f"h{number}")
            until_alike(master, slave)
        until_acts(slave)
        other.create_topic("orders", 2)
        later(slave)
        open_there = other.services.transactions.halves
        until(lambda: open_there.state().open == 4, "the halves at the other broker")
        with master_of(tmp_path / "m", names, **ACTS) as master:
            assert master.services.transactions.halves.state().open == 0
            assert open_there.state().halves == 4
        until_acts(slave)
        assert open_there.state().halves == 4


def pop_of(broker: Broker, most: int, *, order: bool = False) -> list[tuple[bytes, str]]:
    """Returns the messages, each with its handle."""
    ext = {
        "consumerGroup": "g", "topic": "orders", "queueId": "-1", "maxMsgNums": str(most),
        "invisibleTime": "600000", "pollTime": "0", "initMode": "0", "expType": "TAG",
        "bornTime": str(timers_at(broker)), "exp": "*", "order": str(order).lower(),
    }  # fmt: skip
    answer = ask(broker, Code.POP_MESSAGE, ext)
    assert answer.code in (0, 210), (answer.code, answer.remark)
    if answer.code == 210:
        return []
    body = bytes(answer.body)
    records = read_records(body)
    start = answer.ext["startOffsetInfo"].split(" ")[-1]
    said = (start, answer.ext["popTime"], answer.ext["invisibleTime"], answer.ext["reviveQid"])
    return [
        (
            body[row.body_start : row.body_end],
            " ".join([*said, "0", "b", "0", str(row.queue_offset)]),
        )
        for row in records
    ]


def settle_pop(broker: Broker, code: int, handle: str, **more: str) -> Command:
    ext = {
        "consumerGroup": "g", "topic": "orders", "queueId": "0", "extraInfo": handle,
        "offset": handle.rpartition(" ")[2], **more,
    }  # fmt: skip
    return ask(broker, code, ext)


def test_what_is_popped_and_acknowledged_at_the_slave_is_the_masters_when_it_returns(
    names: str, tmp_path: Path
) -> None:
    """Handles hold at whoever is there, and nothing is handed out twice."""
    with slave_of(tmp_path / "s", names, **ACTS) as slave:
        with master_of(tmp_path / "m", names, **ACTS) as master:
            master.create_topic("orders", 1)
            put_delayed(master, 8, b"m")
            at_master = pop_of(master, 2)
            until_alike(master, slave)
            until_taken_over(slave, group=True)
            assert settle_pop(slave, Code.ACK_MESSAGE, at_master[0][1]).code == 14
        until_pops(slave)
        assert settle_pop(slave, Code.ACK_MESSAGE, at_master[1][1]).code == 0
        at_slave = pop_of(slave, 4)
        assert settle_pop(slave, Code.ACK_MESSAGE, at_slave[0][1]).code == 0
        later = {"invisibleTime": "900000"}
        changed = settle_pop(slave, Code.CHANGE_MESSAGE_INVISIBLETIME, at_slave[1][1], **later)
        assert changed.code == 0, changed.remark
        with master_of(tmp_path / "m", names, **ACTS) as master:
            assert settle_pop(slave, Code.ACK_MESSAGE, at_slave[2][1]).code == 14
            points = master.services.pop.points
            assert sorted(o for ck in points for o in ck.open_offsets()) == [0, 3, 4, 5]
            bodies = [body for body, _ in at_master + at_slave + pop_of(master, 32)]
            assert sorted(bodies) == [b"m%d" % n for n in range(8)]
            for _, handle in (at_master[0], *at_slave[2:]):
                assert settle_pop(master, Code.ACK_MESSAGE, handle).code == 0
            assert sorted(o for ck in points for o in ck.open_offsets()) == [3, 6, 7]


@pytest.fixture
def apart(names: str, tmp_path: Path) -> Iterator[tuple[Broker, Broker, list[Link]]]:
    """A master and its slave, and the links by which the master reaches its name server and is
    followed."""
    with (
        Link(int(names.rpartition(":")[2])) as to_names,
        master_of(tmp_path / "m", to_names.address, **ACTS) as master,
        Link(master.services.registration.ha_port) as to_master,
        slave_of(tmp_path / "s", names, haMasterAddress=to_master.address, **ACTS) as slave,
    ):
        yield master, slave, [to_names, to_master]


def until_away(master: Broker) -> None:
    """The master has reached nobody for long."""
    mastership = master.services.mastership

    async def wait_long() -> None:
        mastership._sure_at -= ACTS["brokerNotActiveTimeoutMillis"]
        mastership.look()

    master.run(wait_long())
    until(lambda: master.services.duties.role is BrokerRole.CUT_OFF, "the master is away")


def until_leads(master: Broker) -> None:
    mastership = master.services.mastership

    async def look() -> None:
        mastership.look()

    def leads() -> bool:
        master.run(look())
        return master.services.duties.role is BrokerRole.MASTER and not mastership.is_away

    until(leads, "the master is back", pause_s=0.05)


def test_each_comes_once_when_the_master_is_cut_off_and_lives(
    apart: tuple[Broker, Broker, list[Link]], names: str, tmp_path: Path
) -> None:
    """Clients reach both; what is due is due at both."""
    master, slave, links = apart
    with other_of(tmp_path / "c", names) as other:
        master.create_topic("orders", 1)
        plain = put_delayed(master, 8, b"m")
        wanted = put_levels_and_timers(master, 10)
        for number in range(4):
            half(master, f"h{number}")
        at_master = pop_of(master, 2)
        until_alike(master, slave)
        until_taken_over(slave, group=True)
        for link in links:
            link.cut()
        until_pops(slave)
        until_away(master)
        assert settle_pop(master, Code.ACK_MESSAGE, at_master[0][1]).code == 14
        put_at(master, "after")
        after = Counter({b"after": 1})
        other.create_topic("orders", 1)
        at_slave = pop_of(slave, 3)
        for _, handle in (at_master[1], *at_slave):
            assert settle_pop(slave, Code.ACK_MESSAGE, handle).code == 0
        later(slave)
        later(master)
        open_there = other.services.transactions.halves
        until(lambda: bodies(other) >= wanted, "what was due at the other broker")
        until(lambda: open_there.state().open == 4, "the halves at the other broker")
        for link in links:
            link.mend()
        until_leads(master)
        put_at(master, "later", DELAY="1")
        after += Counter({b"later": 1})
        until(lambda: bodies(master) >= after, "a delay of after the return")
        assert not acts(slave)
        assert bodies(master) + bodies(other) == plain + wanted + after
        assert master.services.transactions.halves.state().open == 0
        retry = "%RETRY%g_orders"
        back = bodies(other, retry) + bodies(master, retry)
        assert back == Counter({at_master[0][0]: 1})
        handed_out = {body for body, _ in at_master + at_slave}
        assert handed_out.isdisjoint(body for body, _ in pop_of(master, 32) if body in plain)


@pytest.mark.long
def test_a_master_that_did_not_notice_is_told_by_the_slave_that_acted(
    apart: tuple[Broker, Broker, list[Link]], names: str, tmp_path: Path
) -> None:
    master, slave, links = apart
    with other_of(tmp_path / "c", names) as other:
        master.create_topic("orders", 1)
        wanted = put_levels_and_timers(master, 5)
        until_alike(master, slave)
        for link in links:
            link.cut()
        until_acts(slave)
        other.create_topic("orders", 1)
        later(slave)
        until(lambda: bodies(other) >= wanted, "what was due at the other broker")
        for link in links:
            link.mend()
        until(lambda: master.services.mastership.cut_offs == 1, "the master is told")
        until_leads(master)
        later(master)
        put_at(master, "later", DELAY="1")
        after = Counter({b"later": 1})
        until(lambda: bodies(master) >= after, "a delay of after the return")
        assert bodies(master) + bodies(other) == wanted + after


@pytest.mark.long
def test_what_was_popped_at_the_slave_outlives_it_and_comes_back_at_another_broker(
    names: str, tmp_path: Path
) -> None:
    """The slave is started again while it acts; the file is long, so that it is made short."""
    with other_of(tmp_path / "c", names) as other:
        with slave_of(tmp_path / "s", names, **ACTS) as slave:
            with master_of(tmp_path / "m", names, **ACTS) as master:
                master.create_topic("orders", 1)
                wanted = put_delayed(master, 9, b"m")
                until_alike(master, slave)
                until(lambda: slave.services.topics.get("orders") is not None, "the topic")
                pop_of(master, 1)
                until(lambda: slave.services.groups.get("g") is not None, "the group at the slave")
                until_alike(master, slave)
            until_pops(slave)
            slave.services.acting.pops._long = 1
            got = pop_of(slave, 2) + pop_of(slave, 2)
            for _, handle in got[:2]:
                assert settle_pop(slave, Code.ACK_MESSAGE, handle).code == 0
            before = Path(slave.path, "config", "poppedAside.1.journal")
            until(lambda: before.read_bytes().startswith(b"whole"), "the next file")
        with slave_of(tmp_path / "s", names, **ACTS) as slave:
            until_pops(slave)
            assert settle_pop(slave, Code.ACK_MESSAGE, got[2][1]).code == 0
            got += pop_of(slave, 3)
            assert [body for body, _ in got] == [b"m%d" % number for number in range(1, 8)]
            other.create_topic("orders", 2)
            later(slave)
            retry = "%RETRY%g_orders"
            back = Counter({b"m%d" % number: 1 for number in (0, 4, 5, 6, 7)})
            until(lambda: bodies(other, retry) >= back, "the copies at the other broker")
            with master_of(tmp_path / "m", names, **ACTS) as master:
                assert len(master.services.pop.points) == 0
                gone = Path(slave.path) / "config" / "escaped.jsonl"
                until(lambda: not gone.exists(), "that the slave forgets what is closed")
                assert [body for body, _ in pop_of(master, 32)] == [b"m8"]
                journal = slave.services.acting.pops
                until(lambda: not journal, "that the slave forgets what the master has")
            assert bodies(other, retry) == back
            assert len(wanted) == 9


@pytest.mark.long
def test_batches_of_ordered_groups_are_handed_over_both_ways(names: str, tmp_path: Path) -> None:
    with slave_of(tmp_path / "s", names, **ACTS) as slave:
        with master_of(tmp_path / "m", names, **ACTS) as master:
            master.create_topic("orders", 1)
            put_delayed(master, 6, b"m")
            first = pop_of(master, 2, order=True)
            place = ("orders", "g", 0)
            out = slave.services.pop.order.batches
            until(lambda: out.find(place) is not None, "the batch at the slave")
            until_alike(master, slave)
        until_pops(slave)
        assert pop_of(slave, 2, order=True) == []
        for _, handle in first:
            assert settle_pop(slave, Code.ACK_MESSAGE, handle).code == 0
        second = pop_of(slave, 2, order=True)
        assert settle_pop(slave, Code.ACK_MESSAGE, second[0][1]).code == 0
        with master_of(tmp_path / "m", names, **ACTS) as master:
            assert pop_of(master, 2, order=True) == []
            assert settle_pop(master, Code.ACK_MESSAGE, second[1][1]).code == 0
            third = pop_of(master, 2, order=True)
            assert [body for body, _ in third] == [b"m4", b"m5"]


@pytest.mark.long
def test_what_consumers_commit_at_the_slave_is_the_masters_when_it_returns(
    names: str, tmp_path: Path
) -> None:
    with slave_of(tmp_path / "s", names, **ACTS) as slave:
        with master_of(tmp_path / "m", names, **ACTS) as master:
            master.create_topic("orders", 1)
            put_delayed(master, 9, b"m")

            async def make_group() -> None:
                master.services.groups.find("g")

            master.run(make_group())
            until_alike(master, slave)
            until(lambda: slave.services.groups.get("g") is not None, "the group at the slave")
            until(lambda: slave.services.topics.get("orders") is not None, "the topic")
        until_acts(slave)
        commit = {
            "consumerGroup": "g", "topic": "orders", "queueId": "0", "commitOffset": "7",
        }  # fmt: skip
        answer = ask(slave, Code.UPDATE_CONSUMER_OFFSET, commit)
        assert answer.code == 0, answer.remark
        with master_of(tmp_path / "m", names, **ACTS) as master:
            assert master.services.offsets.get("g", "orders", 0) == 7


def test_a_slave_does_not_act_because_somebody_says_that_the_master_is_gone(
    names: str, tmp_path: Path
) -> None:
    with master_of(tmp_path / "m", names, **ACTS), slave_of(tmp_path / "s", names, **ACTS) as slave:
        until(lambda: slave.services.replication.slave.follows, "that it follows")
        gone = {"minBrokerId": "1", "minBrokerAddr": slave.address, "offlineBrokerAddr": "x:1"}
        for _ in range(5):
            ask(slave, Code.NOTIFY_MIN_BROKER_ID_CHANGE, gone)
            assert not acts(slave)


def test_a_stranger_does_not_make_a_slave_give_way(names: str, tmp_path: Path) -> None:
    with slave_of(tmp_path / "s", names, trustedSlaves="10.1.2.3", **ACTS) as slave:
        with master_of(tmp_path / "m", names, skipPreOnline=True, **ACTS):
            until(lambda: slave.services.registration.servers, "the slave")
        until_acts(slave)
        back = {"masterHaAddress": "127.0.0.1:1", "masterAddress": "127.0.0.1:2"}
        assert ask(slave, Code.EXCHANGE_BROKER_HA_INFO, back).code == 16
        assert acts(slave)


@pytest.mark.long
def test_a_master_waits_for_a_slave_that_is_not_registered_yet(names: str, tmp_path: Path) -> None:
    """The slave was stopped with what it knows."""
    with other_of(tmp_path / "c", names) as other:
        with slave_of(tmp_path / "s", names, **ACTS) as slave:
            with master_of(tmp_path / "m", names, **ACTS) as master:
                master.create_topic("orders", 4)
                half(master, "h")
                until_alike(master, slave)
            until_acts(slave)
            other.create_topic("orders", 2)
            later(slave)
            halves = other.services.transactions.halves
            until(lambda: halves.state().open == 1, "the half at the other broker")
        started: list[int] = []

        def start_master() -> None:
            with master_of(tmp_path / "m", names, totalReplicas=2, **ACTS) as master:
                started.append(master.services.transactions.halves.state().open)

        thread = threading.Thread(target=start_master)
        thread.start()
        with slave_of(tmp_path / "s", names, **ACTS):
            thread.join()
        assert started == [0]


def test_what_is_in_doubt_is_settled_before_the_master_is_told(
    names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the other broker had it, and before the answer came."""
    monkeypatch.setattr("broker.services.acting.bridge._INDEXED_S", 0)
    with other_of(tmp_path / "c", names) as other, slave_of(tmp_path / "s", names, **ACTS) as slave:
        with master_of(tmp_path / "m", names, **ACTS) as master:
            master.create_topic("orders", 4)
            for number in range(2):
                half(master, f"h{number}")
            until_alike(master, slave)
        until_acts(slave)
        other.create_topic("orders", 2)
        half(other, "h0")
        acting = slave.services.acting

        async def doubt() -> None:
            for number in range(2):
                said = Doubt(other.address, HALF_TOPIC, f"h{number}", 10**6)
                acting.ledger.sending(Origin(HALF_TOPIC, "", 0, number), said)

        slave.run(doubt())
        with master_of(tmp_path / "m", names, **ACTS) as master:
            still = [each.offset for each in master.services.transactions.halves.all()]
            assert still == [1]


@pytest.mark.long
def test_a_second_slave_does_not_send_what_the_first_has_sent(names: str, tmp_path: Path) -> None:
    """The first acts and goes, the second acts, the first comes back and acts, then the master."""
    two = {"brokerId": 2}
    with (
        other_of(tmp_path / "c", names) as other,
        slave_of(tmp_path / "s2", names, **ACTS | two) as last,
    ):
        with slave_of(tmp_path / "s1", names, **ACTS) as first:
            with master_of(tmp_path / "m", names, **ACTS) as master:
                master.create_topic("orders", 4)
                wanted = put_delayed(master, 6, b"delayed", delay_level=LAST_LEVEL)
                for number in range(3):
                    half(master, f"h{number}")
                until_alike(master, first)
                until_alike(master, last)
            until(lambda: acts(first), "the first slave acts")
            other.create_topic("orders", 2)
            later(first)
            halves = other.services.transactions.halves
            until(lambda: bodies(other) >= wanted, "the delays")
            until(lambda: halves.state().open == 3, "the halves")
        until(lambda: acts(last), "the second slave acts")
        later(last)
        until(lambda: len([*last.services.acting.ledger]) == 9, "that it knows what has gone")
        with slave_of(tmp_path / "s1", names, **ACTS) as first:
            until(lambda: acts(first) and not acts(last), "the first acts again")
            later(first)
            with master_of(tmp_path / "m", names, totalReplicas=3, **ACTS) as master:
                later(master)
                both = bodies(master) + put_delayed(master, 1, b"after", delay_level=1)
                until(lambda: bodies(master)[b"after0"] == 1, "a delay of after the return")
                assert bodies(master) + bodies(other) == wanted + both
                assert both == Counter({b"after0": 1})
                assert halves.state().halves == 3
                assert master.services.transactions.halves.state().open == 0


# ---- what has gone ----


def test_what_has_gone_is_known_after_a_kill_and_what_was_being_sent_is_in_doubt(
    tmp_path: Path,
) -> None:
    path = tmp_path / "escaped.jsonl"
    one, doubt = EscapeLedger(path, 0o640), Doubt("b:1", "T", "key", 5)
    for offset in (3, 1, 2, 9):
        one.sending(Origin("T", "", 0, offset), doubt)
        one.gone(Origin("T", "", 0, offset))
    one.sending(Origin("T", "", 0, 4), doubt)
    one.sending(Origin("T", "", 0, 5), doubt)
    one.close()
    path.write_bytes(path.read_bytes()[:-4])  # killed within the last line
    found = EscapeLedger(path, 0o640)
    found.load(lambda topic, queue: 9)
    assert [origin.offset for origin in found] == [1, 2, 3]  # 9 was cut off since
    assert found.doubtful == {Origin("T", "", 0, 4): doubt}
    found.gone(Origin("T", "", 0, 4))
    found.close()
    again = EscapeLedger(path, 0o640)
    again.load(lambda topic, queue: 9)
    assert [origin.offset for origin in again] == [1, 2, 3, 4]
    assert json.loads(path.read_bytes().splitlines()[-1]) == ["T", "", 0, 4]
