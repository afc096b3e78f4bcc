"""The administrator's client, against every make of broker (tests/client/conftest.py)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting import BOUND_S, until

from broker import (
    Admin,
    AsyncAdmin,
    Broker,
    BrokerRefused,
    Consumer,
    Credentials,
    InvalidMessage,
    Message,
    Misuse,
    NoRoute,
    Producer,
)
from broker.client.admin import REDRIVEN_FROM, AccessRight, AccessUser
from broker.client.admin.traces import steps_in
from broker.client.errors import Unreachable

if TYPE_CHECKING:  # at run time, conftest is that of another folder
    from conftest import Server

Name = Callable[[str], str]


@pytest.fixture
def admin(server: Server) -> Iterator[Admin]:
    with Admin(server.namesrv) as made:
        yield made


def sent(server: Server, topic: str, count: int, **more: str) -> list[str]:
    """The ids of so many new messages."""
    with Producer("admin-tests", server.namesrv) as producer:
        return [
            producer.send(Message(topic, b"%d" % n, keys=f"{topic}-k{n}", **more)).message_id
            for n in range(count)
        ]


def consumed(server: Server, group: str, topic: str, count: int) -> list[bytes]:
    """So many messages, committed."""
    found: list[bytes] = []
    with Consumer(group, topic, namesrv=server.namesrv, start="first") as consumer:
        deadline = time.monotonic() + BOUND_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count}"
            batch = consumer.poll(1.0)
            found += [message.body for message in batch]
            consumer.ack(*batch)
        consumer.commit()
    return found


# ---- topics and groups ----


def test_names_and_permissions_that_no_broker_takes_are_refused_here(admin: Admin) -> None:
    with pytest.raises(InvalidMessage, match="topic"):
        admin.create_topic("a b")
    with pytest.raises(Misuse, match="permission"):
        admin.create_topic("ab", perm="rq")
    with pytest.raises(Misuse, match="queues"):
        admin.create_topic("ab", queues=0)
    with pytest.raises(InvalidMessage, match="group"):
        admin.create_group("")


def test_connected_clients_are_named(admin: Admin, server: Server, name: Name) -> None:
    topic, group = name("topic"), name("group")
    sent(server, topic, 1)
    assert admin.members(group) is None
    with (
        Producer(group, server.namesrv) as producer,
        Consumer(group, {topic: "a || b"}, namesrv=server.namesrv) as consumer,
    ):
        producer.send(Message(topic, b"x"))
        found = until(lambda: admin.members(group), "the consumer")
        assert [each.id for each in found.clients] == [consumer.client_id]
        assert found.subscriptions[topic] == "a || b"
        assert found.model == "CLUSTERING"
        until(lambda: admin.producers(group), "the producer")
        assert [each.id for each in admin.producers(group)] == [producer.client_id]


def test_the_administrator_is_nobodys_client(admin: Admin, server: Server, name: Name) -> None:
    """Brokers hear of no group of its own, whatever it reads."""
    topic = name("topic")
    sent(server, topic, 1)
    until(lambda: len(list(admin.messages(topic))) == 1, "the message")
    assert admin.members("TOOLS_CONSUMER") is None
    assert not admin.producers("CLIENT_INNER_PRODUCER")


# ---- offsets ----


def test_lag_is_what_is_not_consumed(admin: Admin, server: Server, name: Name) -> None:
    topic, group = name("topic"), name("group")
    sent(server, topic, 10)
    assert len(consumed(server, group, topic, 10)) == 10
    sent(server, topic, 7)

    def behind() -> int:
        return sum(each.behind for each in admin.lag(group, topic))

    until(lambda: behind() == 7, "a lag of seven")
    assert group in admin.groups_of(topic)
    everybody = [
        each for each in admin.all_lags() if (each.group, each.queue.topic) == (group, topic)
    ]
    assert sum(each.behind for each in everybody) == 7


def _count(admin: Admin, topic: str) -> int:
    return sum(1 for _ in admin.messages(topic))


# ---- messages ----


def test_messages_are_found_by_id_key_and_time(admin: Admin, server: Server, name: Name) -> None:
    topic = name("topic")
    ids = sent(server, topic, 3)
    time.sleep(0.01)
    moment = time.time_ns() // 1_000_000
    sent(server, topic, 2)
    until(lambda: _count(admin, topic) == 5, "all messages")
    (by_key,) = until(lambda: admin.messages_by_key(topic, f"{topic}-k2"), "the index")[:1]
    assert by_key.body == b"2"
    by_id = until(lambda: admin.message(ids[1], topic), "the index")
    assert by_id.body == b"1"
    by_place = admin.message(by_id.offset_message_id)
    assert by_place.message_id == ids[1]
    # However one is found, it says where it lies.
    queues = {message.message_id: message.queue for message in admin.messages(topic)}
    assert {message.queue.broker for message in (by_key, by_id, by_place)} != {""}
    for message in (by_key, by_id, by_place):
        assert message.queue == queues[message.message_id]
    assert sorted(m.body for m in admin.messages(topic, begin_ms=moment)) == [b"0", b"1"]
    assert sorted(m.body for m in admin.messages(topic, end_ms=moment - 1)) == [b"0", b"1", b"2"]
    assert admin.message("no-such-id", topic) is None
    with pytest.raises(Misuse, match="topic"):
        admin.message("no-such-id")


def test_a_traced_message_shows_its_way(admin: Admin, server: Server, name: Name) -> None:
    topic, group = name("topic"), name("group")
    with Producer("tracers", server.namesrv, trace=True) as producer:
        id_ = producer.send(Message(topic, b"12 apples")).message_id
        producer.send(Message(topic, b"others"))
    handled: list[str] = []
    with Consumer(
        group, topic, namesrv=server.namesrv, start="first", trace=True,
        handler=lambda message: handled.append(message.message_id),
    ):  # fmt: skip
        until(lambda: id_ in handled, "the message")
    steps = until(lambda: _whole_way(admin, id_), "all steps")
    assert [(each.kind, each.ok) for each in steps] == [
        ("sent", True), ("begun", True), ("done", True),
    ]  # fmt: skip
    assert [each.group for each in steps] == ["tracers", group, group]
    assert admin.trace("no-such-id") == []


def _whole_way(admin: Admin, id_: str):
    steps = admin.trace(id_)
    return steps if len(steps) == 3 else None


@pytest.mark.parametrize(
    "record", [b"Pub", b"Pub\x01x\x01", b"SubAfter\x01\x02\x02", b"\xff\x00", b"SubBefore\x01" * 3]
)
def test_malformed_records_of_a_trace_are_passed_over(record: bytes) -> None:
    good = "\x01".join(["SubBefore", "7", "r", "g", "q", "id", "2", "keys"]).encode()
    (step,) = steps_in(record + b"\x02" + good + b"\x02", "id")
    assert (step.kind, step.when_ms, step.group, step.attempt) == ("begun", 7, "g", 3)


# ---- brokers ----


def test_one_broker_answers_without_a_name_server(admin: Admin, server: Server, name: Name) -> None:
    topic, group = name("topic"), name("group")
    (place,) = admin.cluster()
    ids = sent(server, topic, 4)
    with Admin(broker=place.address) as alone:
        assert alone.cluster() == [place]
        assert alone.topic(topic).messages == 4
        assert topic in alone.topic_names()
        assert len(list(alone.messages(topic))) == 4
        assert until(lambda: alone.message(ids[0], topic), "the index").body == b"0"
        alone.create_group(group)
        alone.reset_offsets(group, topic, "first")
        until(lambda: sum(e.behind for e in alone.lag(group, topic)) == 4, "the lag")
        with pytest.raises(NoRoute, match="absent"):
            alone.topic("absent")
        queue = alone.topic(topic).queues[0].queue
        with pytest.raises(NoRoute, match="queue"):
            alone.seek(group, queue._replace(queue=99), 0)


def test_what_cannot_be_asked_is_named() -> None:
    with pytest.raises(Misuse, match="not both"):
        Admin("127.0.0.1:9876", broker="127.0.0.1:10911")
    with pytest.raises(Misuse, match="for example"):
        Admin(broker="nowhere")
    with Admin("127.0.0.1:1") as admin, pytest.raises(Unreachable, match="name server"):
        admin.cluster()
    with Admin("127.0.0.1:1") as admin, pytest.raises(Misuse, match="which broker"):
        admin.broker()
    with pytest.raises(Misuse, match="no option"):
        Admin("127.0.0.1:1", brokers="x")


def test_the_twin_of_asyncio_answers_alike(server: Server, admin: Admin) -> None:
    async def asked() -> list[str]:
        async with AsyncAdmin(server.namesrv) as twin:
            return await twin.topic_names()

    assert asyncio.run(asked()) == admin.topic_names()


# ---- dead letters ----


def died(server: Server, group: str, topic: str, count: int) -> None:
    """So many dead letters of a group."""
    sent(server, topic, count, tags="paid")
    with Consumer(group, topic, namesrv=server.namesrv, start="first") as consumer:
        left = count
        while left:
            for message in consumer.poll(1.0):
                consumer.nack(message, -1)
                left -= 1


async def no_table_of_all_groups(admin: AsyncAdmin) -> dict[str, object]:
    raise AssertionError("brokers may have tens of thousands of groups")


def test_dead_letters_come_again_once(
    admin: Admin, server: Server, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group = name("topic"), name("group")
    died(server, group, topic, 5)
    letters = until(lambda: _letters(admin, group, 5), "five dead letters")
    monkeypatch.setattr(AsyncAdmin, "group_table", no_table_of_all_groups)
    planned = admin.redrive(group, dry_run=True)
    assert (planned.seen, planned.chosen, planned.sent, planned.already) == (5, 5, 0, 0)
    told: list[str] = []
    report = admin.redrive(group, told=lambda letter, outcome: told.append(outcome))
    assert (report.sent, report.already) == (5, 0)
    assert report.target == f"%RETRY%{group}"
    assert told == ["sent"] * 5
    with Consumer(group, topic, namesrv=server.namesrv) as consumer:
        found = []
        deadline = time.monotonic() + BOUND_S
        while len(found) < 5 and time.monotonic() < deadline:
            batch = consumer.poll(1.0)
            consumer.ack(*batch)
            found += batch
        assert sorted(m.body for m in found) == [b"%d" % n for n in range(5)]
        assert {m.message_id for m in found} == {m.message_id for m in letters}
        assert {m.topic for m in found} == {topic}
        assert {m.attempt for m in found} == {1}, "with all retries of the group before it"
        assert {m.properties[REDRIVEN_FROM] for m in found} == {
            m.offset_message_id for m in letters
        }
    again = until(lambda: _already(admin, group, 5), "that the index shows them")
    assert (again.sent, again.already) == (0, 5)


def _letters(admin: Admin, group: str, count: int):
    found = list(admin.dead_letters(group))
    return found if len(found) == count else None


def _already(admin: Admin, group: str, count: int):
    planned = admin.redrive(group, dry_run=True)
    return admin.redrive(group) if planned.already == count else None


def test_a_filter_a_bound_and_the_topic_itself(admin: Admin, server: Server, name: Name) -> None:
    topic, group = name("topic"), name("group")
    died(server, group, topic, 4)
    until(lambda: _letters(admin, group, 4), "four dead letters")
    chosen = admin.redrive(group, to="topic", wanted=lambda m: m.body == b"2")
    assert (chosen.seen, chosen.chosen, chosen.sent) == (4, 1, 1)
    until(lambda: _count(admin, topic) == 5, "the fifth message of the topic")
    (copy,) = [m for m in admin.messages(topic) if REDRIVEN_FROM in m.properties]
    assert (copy.body, copy.tags) == (b"2", "paid")
    assert "RETRY_TOPIC" not in copy.properties
    bounded = admin.redrive(group, most=2)
    assert bounded.sent == 2
    rest = until(lambda: _rest(admin, group), "that the index shows two")
    assert (rest.sent, rest.already) == (2, 2)
    with pytest.raises(Misuse, match="no broker has the group"):
        admin.redrive(name("other"))
    planned = admin.redrive(group, dry_run=True, again=True, most=2)
    assert (planned.planned, planned.chosen) == (2, 2)


def _rest(admin: Admin, group: str):
    return admin.redrive(group) if admin.redrive(group, dry_run=True).already == 2 else None


def test_rate_is_a_bound_on_what_is_sent(admin: Admin, server: Server, name: Name) -> None:
    """Judged by the pauses that it asks for, not by the clock."""
    from broker.client.admin import deadletters

    topic, group = name("topic"), name("group")
    died(server, group, topic, 3)
    until(lambda: _letters(admin, group, 3), "three dead letters")
    pauses: list[float] = []

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return 0.0

    class Sleeping:
        gather = staticmethod(asyncio.gather)

        @staticmethod
        async def sleep(seconds: float) -> None:
            pauses.append(seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deadletters, "time", Clock)
        patch.setattr(deadletters, "asyncio", Sleeping)
        admin.redrive(group, rate=50)
    assert pauses == [pytest.approx(3 / 50)]


_REDRIVE = """
import sys
from broker import Admin
with Admin(sys.argv[1]) as admin:
    admin.redrive(sys.argv[2], told=lambda letter, outcome: print(outcome, flush=True))
"""


def killed_redrive(server: Server, group: str, after: int) -> None:
    """A redrive of a process that is killed when it has told of so many letters."""
    words = [sys.executable, "-c", _REDRIVE, server.namesrv, group]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        for _ in range(after):
            assert driver.stdout.readline() == b"sent\n"
        driver.kill()


def check_killed_in_the_middle(admin: Admin, server: Server, name: Name, count: int) -> None:
    """Each arrives at least once, and what the first run had sent is named, not sent again."""
    topic, group = name("topic"), name("group")
    died(server, group, topic, count)
    until(lambda: _letters(admin, group, count), "all dead letters")
    killed_redrive(server, group, count // 2)
    outcomes: Counter[str] = Counter()
    named: set[str] = set()

    def told(letter, outcome: str) -> None:
        outcomes[outcome] += 1
        if outcome == "already":
            named.add(letter.offset_message_id)

    report = admin.redrive(group, told=told)
    assert report.sent + report.already == count
    assert report.already >= count // 2
    arrived = until(lambda: _arrived(admin, group, count), "all of them in the retry topic")
    twice = {origin for origin, times in arrived.items() if times > 1}
    assert not twice & named
    assert len(named) == report.already


def _arrived(admin: Admin, group: str, count: int) -> Counter[str] | None:
    """How often each was redriven, once all have come; queues follow the log after a moment."""
    found = Counter(
        m.properties[REDRIVEN_FROM]
        for m in admin.messages(f"%RETRY%{group}")
        if REDRIVEN_FROM in m.properties
    )
    return found if len(found) >= count else None


def test_a_redrive_killed_in_the_middle_is_run_again(
    admin: Admin, server: Server, name: Name
) -> None:
    if server.make == "in-process":
        pytest.skip("another process has no way to a broker in this one but the same socket")
    check_killed_in_the_middle(admin, server, name, 300)


@pytest.mark.long
def test_a_hundred_thousand_dead_letters(admin: Admin, server: Server, name: Name) -> None:
    if server.make == "in-process":
        pytest.skip("the same broker as `ours`")
    check_killed_in_the_middle(admin, server, name, 100_000)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Broker]:
    with Broker(
        tmp_path / "store", listenPort=0, authenticationEnabled=True, authorizationEnabled=True,
        initAuthenticationUser='{"username":"root","password":"rootrootroot"}', drain_s=0.1,
    ) as made:  # fmt: skip
        yield made


def test_access_refused_is_named(guarded: Broker) -> None:
    with Admin(broker=guarded.address) as stranger, pytest.raises(BrokerRefused) as refused:
        stranger.topics()
    assert refused.value.denied
    with Admin(broker=guarded.address, credentials=Credentials("root", "rootrootroot")) as root:
        assert root.topics()


def test_users_and_rights_are_kept_by_the_broker(guarded: Broker) -> None:
    with Admin(broker=guarded.address, credentials=Credentials("root", "rootrootroot")) as root:
        root.create_user("shop", "shop-secret")
        assert root.users() == [AccessUser("root", True, True), AccessUser("shop", False, True)]
        right = AccessRight("shop", "Topic:orders", ("Pub", "Get"), sources=("127.0.0.1",))
        root.grant(right)
        root.grant(AccessRight("shop", "Topic:payments", ("All",), allow=False))
        found = root.rights("shop")
        assert [(each.resource, each.allow) for each in found] == [
            ("Topic:orders", True), ("Topic:payments", False),
        ]  # fmt: skip
        assert set(found[0].actions) == {"Pub", "Get"} and found[0].sources == ("127.0.0.1",)
        us = Credentials("shop", "shop-secret")
        with Admin(broker=guarded.address, credentials=us) as shop, pytest.raises(BrokerRefused):
            shop.users()
        root.change_password("shop", "another-secret")
        root.revoke("shop", "Topic:payments")
        assert [each.resource for each in root.rights()] == ["Topic:orders"]
        root.delete_user("shop")
        assert [each.name for each in root.users()] == ["root"]
        with pytest.raises(Misuse, match="no action"):
            root.grant(AccessRight("shop", "Topic:orders", ()))


def test_a_broker_without_users_says_so(admin: Admin) -> None:
    with pytest.raises(BrokerRefused):
        admin.users()
