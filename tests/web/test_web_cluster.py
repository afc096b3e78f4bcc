"""The pages of a running broker: what they show agrees with it, and what they may change."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pages import Visitor, visiting_server
from waiting import BOUND_S, until

from broker import Admin, Broker, Consumer, LiteConsumer, Message, Producer
from broker.client.admin import AccessRight, BrokerFacts, BrokerPlace
from broker.client.admin.facts import tier_figures
from broker.client.credentials import Credentials
from broker.client.errors import BrokerRefused, NoRoute
from broker.client.rates import Look
from broker.web import cached, cluster_facts, cluster_overview
from broker.web.cluster_actions import is_secret
from broker.web.cluster_facts import ClusterFacts
from broker.web.cluster_overview import byte_rate
from broker.web.cluster_server import ClusterServer
from broker.web.drawing import plot_of
from broker.wire.codes import RequestCode
from broker.wire.command import Command
from pystore.cli import main

EVIL = "<script>document.title='owned'</script>\u202e\x1b"
SMALL: dict[str, Any] = {
    "mappedFileSizeCommitLog": 16 << 20, "mappedFileSizeConsumeQueue": 6000, "drain_s": 0.1,
    "brokerName": "broker-a",
}  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Forty messages of a topic; a group has taken them, and given up six."""
    folder = tmp_path_factory.mktemp("web") / "store"
    tier = {"tieredStoreFilePath": str(folder.with_name("cold"))}
    with Broker(folder, listenPort=0, with_namesrv=True, **SMALL, **tier) as made:
        names = made.namesrv_address
        with Admin(names) as admin:
            admin.create_topic("orders", queues=2)
            admin.create_group("billing")
        with Producer("shop", names) as producer:
            for number in range(40):
                producer.send(Message("orders", b"%d apples" % number, keys=f"order-{number}"))
            producer.send(Message("evil", EVIL.encode(), keys="evil", tags="x"))
        with Consumer("billing", "orders", namesrv=names, start="first") as consumer:
            dead = seen = 0
            while seen < 40:
                for message in consumer.poll(30):
                    seen += 1
                    if dead < 6:
                        dead += 1
                        consumer.nack(message, -1)
                    else:
                        consumer.ack(message)
            consumer.commit()
        until(lambda: made.store.range("%DLQ%billing", 0)[1] == 6)
        yield made


@pytest.fixture(scope="module")
def reading(broker: Broker) -> Iterator[Visitor]:
    with visiting_server(lambda: ClusterServer(broker.namesrv_address, "127.0.0.1", 0)) as made:
        yield made


@pytest.fixture(scope="module")
def writing(broker: Broker) -> Iterator[Visitor]:
    make = lambda: ClusterServer(broker.namesrv_address, "127.0.0.1", 0, write=True)  # noqa: E731
    with visiting_server(make) as made:
        yield made


def test_the_cluster_and_its_brokers(reading: Visitor, broker: Broker) -> None:
    row = next(row for row in reading.get("/").rows() if row[:1] == ["broker-a"])
    assert row[1] == "master"
    assert row[2].endswith(f":{broker.port}")


def test_a_broker_shows_its_tier(reading: Visitor, broker: Broker) -> None:
    page = reading.get(f"/broker?address={broker.address}&kind=figures").body.decode()
    assert re.search(r"<dt>Not in it</dt><dd>[0-9.]+ (B|[KMG]iB)</dd>", page)
    said = {"tieredBehindBytes": "9" * 5000, "tieredBehindSeconds": "inf", "tieredProblem": EVIL}
    assert tier_figures(said) == (0, 0, 0, EVIL)


def test_the_overview_has_totals_and_findings(reading: Visitor, broker: Broker) -> None:
    """The doctor is asked in the background, and what it found stands there with its command."""
    first = reading.get("/")
    assert first.status == 200 and "Dead letters" in first.text
    pattern = r"<dt>(?:<a[^>]*>)?([^<]*)(?:</a>)?</dt><dd>([^<]*)</dd>"
    totals = dict(re.findall(pattern, counted(reading, "/").body.decode()))
    assert totals["Dead letters"] == "6" and totals["Open transactions"] == "0"
    until(lambda: "billing has 6 dead letters" in reading.get("/").text, "what the doctor finds")
    assert "pystore admin dlq list billing" in reading.get("/").text


def test_no_visitor_waits_for_the_doctor(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take as long as it likes."""

    async def never(*given: object, **named: object) -> tuple[str, list[Any]]:
        await asyncio.Event().wait()
        raise AssertionError("nobody wakes it")

    monkeypatch.setattr(cluster_overview, "examine_network", never)
    with visiting_server(lambda: ClusterServer(broker.namesrv_address, "127.0.0.1", 0)) as one:
        assert "The doctor is looking" in one.get("/").text


def look_of(when: float, *brokers: tuple[str, int]) -> Look:
    facts = [
        BrokerFacts(where, "", 0, 1.0, 2.0, 0, 0, 0.0, 0, 0, 0, {"putMessageSizeTotal": str(size)})
        for where, size in brokers
    ]
    return Look(when, facts)


async def test_masters_are_asked_beside_each_other() -> None:
    """Each answers when the other one was asked, too; one that fails is a problem, and no end."""
    asked: set[str] = set()
    all_asked = asyncio.Event()

    class Cluster:
        group_table = all_lags = all_producers = None

        async def cluster(self) -> list[BrokerPlace]:
            return [BrokerPlace("c", name, 0, name) for name in ("a", "b", "silent")]

        async def broker(self, address: str) -> BrokerFacts:
            asked.add(address)
            if len(asked) == 3:
                all_asked.set()
            await all_asked.wait()
            if address == "silent":
                raise NoRoute("it does not answer", address)
            return look_of(0.0, (address, 1)).brokers[0]

    cluster: Any = Cluster()
    look = await asyncio.wait_for(ClusterFacts(cluster, cluster).brokers.get(), BOUND_S)
    assert [each.address for each in look.brokers] == ["a", "b"]
    assert look.problems == ["it does not answer"]


def test_bytes_a_second_are_counted_between_two_looks() -> None:
    """A broker that started meanwhile counts from its start; one that is new, from the next
    look on."""
    before = look_of(10.0, ("a", 1000), ("b", 5000))
    entry = "putMessageSizeTotal"
    assert byte_rate(None, before, entry) == 0.0
    now = look_of(20.0, ("a", 2000), ("b", 500), ("c", 9999))
    assert byte_rate(before, now, entry) == 150.0


def test_bytes_out_are_the_sum_of_what_groups_got(broker: Broker) -> None:
    """Brokers of ours say it, so that the overview can draw it."""

    def agree() -> int:
        with Admin(broker=f"127.0.0.1:{broker.port}") as admin:
            total = int(admin.broker().entries["getMessageSizeTotal"])
        counters = broker.services.statistics.current()
        each = [value for (name, _), value in counters.items() if name == "GROUP_GET_SIZE"]
        return total if total == sum(each) else 0

    assert until(agree, "the sum") > 40 * len(b"0 apples")


def counted(one: Visitor, path: str, **query: Any) -> Any:
    """A page, when what it counts is counted."""
    pages: list[Any] = []

    def is_counted() -> bool:
        pages.append(one.get(path, **query))
        return "Refresh" not in pages[-1].headers

    until(is_counted, "what the page counts")
    return pages[-1]


def test_topics_and_their_queues(reading: Visitor, broker: Broker) -> None:
    assert ["orders", "messages", "2", "40"] in counted(reading, "/topics", q="ORD").rows()
    rows = reading.get("/topic", name="orders").rows()
    for queue in (0, 1):
        low, high = broker.store.range("orders", queue)
        assert [f"broker-a {queue}", str(low), str(high), str(high - low), ""] in rows
    assert reading.get("/topic", name="absent").status == 404


def test_a_topic_shows_its_lite_topics(reading: Visitor, broker: Broker) -> None:
    with Admin(broker.namesrv_address) as admin:
        admin.create_topic(
            "sessions", attributes={"message.type": "LITE", "lite.topic.expiration": "60"}
        )
        admin.create_group("agents", attributes={"lite.bind.topic": "sessions"})
        with (
            Producer("supervisor", broker.namesrv_address) as producer,
            LiteConsumer("agents", "sessions", namesrv=broker.namesrv_address) as consumer,
        ):
            for body in (b"1", b"2"):
                producer.send(Message("sessions", body, lite_topic="s1"))
            consumer.subscribe("s1")
            until(lambda: consumer.poll(1.0), "a message")
            page = reading.get("/topic?name=sessions&lite=s1")
            assert "60 minutes after the last message" in page.text
            assert ["agents", "2", "1"] in page.rows()
            assert any(
                row[1:4] == ["0", "2", "2"] and row[4].startswith("agents ") for row in page.rows()
            )
    assert "nobody" in reading.get("/topic?name=sessions&lite=none").text


def test_groups_with_what_waits_for_them(reading: Visitor, broker: Broker) -> None:
    with Producer("shop", broker.namesrv_address) as producer:
        producer.send(Message("lagging", b"1"))
        producer.send(Message("lagging", b"2"))
    with Admin(broker.namesrv_address) as admin:
        admin.create_group("slow")
        admin.reset_offsets("slow", "lagging", "first")

    def behind() -> bool:
        return ["slow", "1", "2", "", "0"] in reading.get("/groups", q="slow").rows()

    until(behind)
    rows = counted(reading, "/group", name="slow").rows()
    assert sum(int(row[4]) for row in rows if len(row) == 6) == 2
    assert "Nobody consumes for it now" in reading.get("/group", name="slow").text


def test_messages_by_offset_key_id_and_time(reading: Visitor, broker: Broker) -> None:
    message = broker.store.query("orders", "order-7")[0]
    place = {
        "topic": "orders", "broker": "broker-a", "queue": message.queue,
        "offset": message.queue_offset,
    }  # fmt: skip
    link = "/message?" + "&amp;".join(f"{name}={value}" for name, value in place.items())
    listed = reading.get("/topic", **({"name": "orders"} | place | {"topic": ""}))
    for page in (
        listed, reading.get("/find", topic="orders", key="order-7"),
        reading.get("/find", topic="orders", key=message.message_id),
        reading.get("/find", id=message.offset_message_id),
    ):  # fmt: skip
        assert link in page.body.decode()
    by_time = reading.get("/find", topic="orders", time=message.store_timestamp).body.decode()
    assert f"broker=broker-a&amp;queue={message.queue}" in by_time
    page = reading.get("/message", **place)
    assert "7 apples" in page.text
    fields = {row[3]: row for row in page.rows() if len(row) == 7}
    assert fields["physicalOffset"][4] == str(message.physical_offset)
    assert reading.get("/body", **place).body == b"7 apples"
    assert reading.get("/record", **place).body == bytes(message.record)


def test_nobody_is_asked_whom_a_visitor_names(reading: Visitor) -> None:
    """An id names an address; only those of the cluster are asked."""
    answer = reading.get("/find", id="7F000001" + "00000001" + "0" * 16)
    assert answer.status == 400 and "not of this cluster" in answer.text
    place = {"topic": "orders", "broker": "127.0.0.1:1", "queue": 0, "offset": 0}
    assert reading.get("/message", **place).status == 400


def test_hostile_messages_stay_text(reading: Visitor, broker: Broker) -> None:
    queue = next(q.queue for q in broker.store.queues("evil") if len(q))
    place = {"broker": "broker-a", "queue": queue, "offset": 0}
    for page in (
        reading.get("/topic", name="evil", **place), reading.get("/find", topic="evil", key="evil"),
        reading.get("/message", topic="evil", **place), reading.get("/topic", name=EVIL),
        reading.get("/group", name=EVIL), reading.get("/find", topic=EVIL, key=EVIL),
        reading.get("/message", topic=EVIL, **place), reading.get("/topics", q=EVIL),
        reading.get("/topic", name="evil", tag=EVIL, text=EVIL), reading.get("/clients", q=EVIL),
        reading.get("/topic", name="evil", sql=EVIL), reading.get("/trace", id=EVIL),
        reading.get("/topic", name="evil", text="script"),
    ):  # fmt: skip
        text = page.body.decode()
        assert "<script" not in text
        assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", text)


# ---- dead letters ----


def test_without_write_nothing_is_sent(reading: Visitor, broker: Broker) -> None:
    before = broker.store.range("%RETRY%billing", 0)
    page = reading.get("/dead")
    assert ["billing", "6", "see them"] in page.rows()
    assert reading.get("/redrive", group="billing").status == 400
    form = {"token": reading.server.form_token, "group": "billing", "to": "retry", "do": "send"}
    assert reading.post("/redrive", **form).status == 405
    assert broker.store.range("%RETRY%billing", 0) == before


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"},
                                     {"Sec-Fetch-Site": "same-site"}, {}])  # fmt: skip
def test_no_redrive_without_the_token(
    writing: Visitor, broker: Broker, headers: dict[str, str]
) -> None:
    form = {"group": "billing", "to": "retry", "do": "send", "token": "x" if not headers else
            writing.server.form_token}  # fmt: skip
    before = broker.store.range("%RETRY%billing", 0)
    assert writing.post("/redrive", headers, **form).status == 403
    assert broker.store.range("%RETRY%billing", 0) == before


def test_dead_letters_are_redriven_once(writing: Visitor, broker: Broker) -> None:
    form = {"token": writing.server.form_token, "group": "billing", "to": "retry"}
    assert "form" in writing.get("/redrive", group="billing").body.decode()
    assert "6 would be sent" in writing.post("/redrive", do="look", **form).text
    assert broker.store.range("%RETRY%billing", 0)[1] == 0
    key = broker.store.read("%DLQ%billing", 0, 0)[0].keys[0]
    assert "1 sent, 0 were sent before" in writing.post("/redrive", do="send", key=key, **form).text
    until(lambda: len(broker.store.query("%RETRY%billing", key)) == 1)
    assert "5 sent, 1 were sent before" in writing.post("/redrive", do="send", **form).text
    assert broker.store.range("%RETRY%billing", 0)[1] == 6
    assert writing.post("/redrive", do="send", **(form | {"to": "other"})).status == 400


# ---- offsets and settings ----


CHANGES = ("/reset", "/setting", "/send", "/topic-form", "/group-form", "/users")


@pytest.mark.parametrize("path", [path for path in CHANGES if path != "/users"])
def test_without_write_nothing_is_changed(reading: Visitor, broker: Broker, path: str) -> None:
    form = {"token": reading.server.form_token, "group": "billing", "topic": "orders",
            "to": "first", "do": "move", "address": f"127.0.0.1:{broker.port}",
            "name": "fileReservedTime", "value": "7"}  # fmt: skip
    assert reading.get(path, **form).status == 400
    assert reading.post(path, **form).status == 405
    assert reading.get("/users").status == 200 and reading.post("/users", **form).status == 405


@pytest.mark.parametrize("path", CHANGES)
def test_no_change_without_the_token(writing: Visitor, broker: Broker, path: str) -> None:
    form = {"group": "moving", "topic": "orders", "to": "first", "do": "move",
            "address": f"127.0.0.1:{broker.port}", "name": "fileReservedTime",
            "value": "7"}  # fmt: skip
    assert writing.post(path, token="x", **form).status == 403
    away = {"Origin": "http://evil.example"}
    assert writing.post(path, away, token=writing.server.form_token, **form).status == 403
    with Admin(broker=f"127.0.0.1:{broker.port}") as admin:
        assert admin.configuration()["fileReservedTime"] != "7"


def test_a_group_is_moved_after_a_look(writing: Visitor, broker: Broker) -> None:
    with Admin(broker.namesrv_address) as admin:
        admin.create_group("moving")
        admin.reset_offsets("moving", "orders", "last")
        ends = {lag.queue.queue: lag.end for lag in admin.lag("moving", "orders")}
        form = {"token": writing.server.form_token, "group": "moving", "topic": "orders",
                "to": "first"}  # fmt: skip
        # The list of groups may be of some seconds ago, when another test looked at it.
        until(lambda: "would be moved" in writing.post("/reset", do="look", **form).text)
        looked = writing.post("/reset", do="look", **form)
        assert ["broker-a", "1", str(ends[1]), "0"] in looked.rows()
        assert all(lag.behind == 0 for lag in admin.lag("moving", "orders"))
        assert "1 queue was moved" in writing.post("/reset", do="move", queue=1, **form).text
        assert {lag.queue.queue: lag.committed for lag in admin.lag("moving", "orders")} == {
            0: ends[0], 1: 0,
        }  # fmt: skip
    rows = counted(writing, "/groups", q="moving").rows()
    assert ["moving", "1", str(ends[1]), "", "0"] in rows, "the list is of before the change"


@pytest.mark.parametrize(
    "wrong", [{"group": "absent"}, {"to": "elsewhere"}, {"to": "time"}, {"queue": "-1"},
              {"to": "time", "time": "soon"}, {"topic": "absent"}, {"group": EVIL}],
    ids=str,
)  # fmt: skip
def test_a_form_that_makes_no_sense_moves_nothing(
    writing: Visitor, broker: Broker, wrong: dict[str, str]
) -> None:
    form = {"token": writing.server.form_token, "group": "billing", "topic": "orders",
            "to": "first", "do": "move"} | wrong  # fmt: skip
    with Admin(broker.namesrv_address) as admin:
        before = admin.lag("billing")
        answer = writing.post("/reset", **form)
        assert answer.status in (400, 404) and "<script" not in answer.body.decode()
        assert admin.lag("billing") == before


def test_a_setting_is_changed_and_read_again(writing: Visitor, broker: Broker) -> None:
    place = {"address": f"127.0.0.1:{broker.port}", "name": "fileReservedTime"}
    form = {"token": writing.server.form_token, **place}
    assert ["fileReservedTime", "72", "change"] in writing.get(
        "/broker", q="reserv", **place
    ).rows()
    assert "It is 72" in " ".join(writing.get("/setting", **place).text.split())
    asked = " ".join(writing.post("/setting", value="71", **form).text.split())
    assert "Write mode. broker-a will have 71 instead of 72" in asked
    form["do"] = "change"
    assert "has taken 71" in " ".join(writing.post("/setting", value="71", **form).text.split())
    with Admin(broker=place["address"]) as admin:
        assert admin.configuration()["fileReservedTime"] == "71"
    assert writing.post("/setting", value="soon", **form).status == 502
    assert writing.post("/setting", value="x", **(form | {"name": EVIL})).status == 400
    other = form | {"address": "127.0.0.1:1"}
    assert writing.post("/setting", value="71", **other).status == 400


@pytest.mark.parametrize(
    ("name", "hidden"),
    [("initAuthenticationUser", True), ("innerClientAuthenticationCredentials", True),
     ("tlsKeyPassword", True), ("aclAccessKey", True), ("brokerName", False)],
)  # fmt: skip
def test_values_that_are_secrets_are_on_no_page(name: str, hidden: bool) -> None:
    assert is_secret(name) == hidden


# ---- rates ----


def test_rates_are_watched_while_somebody_looks(
    reading: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_facts, "_STEP_S", 0.01)
    first = reading.get("/rates")
    assert first.headers["Refresh"] == "2"

    def drawn() -> bool:
        page = reading.get("/rates", still=1)
        assert "Refresh" not in page.headers
        assert b"CID_RMQ_SYS_TRANS" not in page.body
        return page.body.count(b"<polyline") == 2 and b"," in page.body.split(b'points="')[1][:40]

    until(drawn)


def test_a_plot_ends_at_a_round_number() -> None:
    plot = plot_of([0.0, 1.0, 2.0], {"came": [0.0, 3.0, 7.0], "went": [0.0, 0.0, 0.0]})
    assert (plot.top, plot.seconds) == (10, 2.0)
    assert plot.lines[0].points == "0.0,170.0 500.0,122.0 1000.0,58.0"
    assert plot_of([0.0, 1.0], {"came": [0.0, 700_000.0]}, binary=True).top == 1 << 20
    assert plot.lines[0].last == 7.0
    assert plot_of([], {"came": []}).lines[0].points == ""


# ---- whom it asks ----


def test_a_broker_without_name_server_is_shown(broker: Broker) -> None:
    with visiting_server(lambda: ClusterServer(f"127.0.0.1:{broker.port}", "127.0.0.1", 0)) as one:
        assert "broker-a" in one.get("/").text
        assert ["orders", "messages", "2", "40"] in counted(one, "/topics").rows()
        assert "apples" in one.get("/topic", name="orders").text


def test_a_broker_with_access_control_is_asked_with_the_same_credentials(tmp_path: Path) -> None:
    """Visitors sign in with the user and the secret that the requests are signed with."""
    users = {
        "authenticationEnabled": True, "authorizationEnabled": True,
        "initAuthenticationUser": '{"username":"root","password":"rootrootroot"}',
    }  # fmt: skip
    known = Credentials("root", "rootrootroot")
    with Broker(tmp_path / "store", listenPort=0, **users, **SMALL) as made:
        address = f"127.0.0.1:{made.port}"
        with visiting_server(lambda: ClusterServer(address, "127.0.0.1", 0, known)) as one:
            one.token = None
            assert one.get("/topics").status == 403
            answer = one.post("/sign-in", user="root", secret="rootrootroot")
            cookie = {"Cookie": answer.headers["Set-Cookie"].partition(";")[0]}
            assert "TBW102" in one.get("/topics", headers=cookie, kind="system").text
        with pytest.raises(BrokerRefused):
            visiting_server(lambda: ClusterServer(address, "127.0.0.1", 0)).__enter__()


def test_a_form_changes_nothing_that_the_credentials_do_not_allow(tmp_path: Path) -> None:
    """With --write and the right token: the broker refuses, the page says so, and nothing has
    changed."""
    root, reader = Credentials("root", "rootrootroot"), Credentials("reader", "readerreader")
    users = {
        "authenticationEnabled": True, "authorizationEnabled": True,
        "initAuthenticationUser": '{"username":"root","password":"rootrootroot"}',
    }  # fmt: skip
    with Broker(tmp_path / "store", listenPort=0, **users, **SMALL) as made:
        address = f"127.0.0.1:{made.port}"
        make = lambda: ClusterServer(address, "127.0.0.1", 0, reader, write=True)  # noqa: E731
        with Admin(broker=address, credentials=root) as admin:
            admin.create_topic("orders", queues=1)
            admin.create_group("billing")
            made.store.put("orders", b"x", queue=0)
            admin.reset_offsets("billing", "orders", "last")
            admin.create_user("reader", "readerreader")
            for resource in ("Cluster:*", "Topic:*", "Group:*"):
                admin.grant(AccessRight("reader", resource, ("Get", "List")))
            before = admin.configuration()["fileReservedTime"], admin.lag("billing", "orders")
            with visiting_server(make) as one:
                form = {"token": one.server.form_token, "group": "billing", "topic": "orders",
                        "to": "first", "do": "move", "address": address,
                        "name": "fileReservedTime", "value": "7"}  # fmt: skip
                setting = form | {"do": "change"}
                one.token = None
                answer = one.post("/sign-in", user="reader", secret="readerreader")
                cookie = {"Cookie": answer.headers["Set-Cookie"].partition(";")[0]}
                for path in ("/reset", "/setting"):
                    assert one.get(path, headers=cookie, **form).status == 200
                    refused = one.post(path, cookie, **(setting if path == "/setting" else form))
                    assert refused.status == 502 and "reader" in refused.text, refused.text
            assert before == (
                admin.configuration()["fileReservedTime"], admin.lag("billing", "orders")
            )  # fmt: skip


#: What draws the overview's lines asks for, whenever it is its time.
BESIDE = {RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_BROKER_CLUSTER_INFO}


def requests_of(reading: Visitor, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The codes that its pages ask brokers and name servers for, from now on."""
    asked: list[int] = []
    facts = reading.server.facts  # type: ignore[attr-defined]
    for network in (facts.admin.network, facts.walker.network):
        monkeypatch.setattr(network, "exchange", partial(_counted, asked, network.exchange))
    return asked


def _counted(asked: list[int], ask: Any, address: str, command: Command, timeout: float) -> Any:
    asked.append(command.code)
    return ask(address, command, timeout)


def test_lists_are_kept_for_some_seconds(reading: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: the second page asks for no names. Live rates may be asked for meanwhile."""
    asked, names = requests_of(reading, monkeypatch), RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
    monkeypatch.setattr(cached, "_FRESH_S", -1.0)
    reading.get("/topics")
    until(lambda: asked.count(names), "a list that is renewed")
    before = asked.count(names)
    monkeypatch.setattr(cached, "_FRESH_S", 1e9)
    assert reading.get("/topics", page=2).status == 200
    assert asked.count(names) == before


def test_the_list_of_topics_asks_for_what_it_shows(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, of the first visitor: the names, and the queues of the topics of one page. What a
    broker has of all of them may take a second to write."""
    make = lambda: ClusterServer(broker.namesrv_address, "127.0.0.1", 0)  # noqa: E731
    with visiting_server(make) as one:
        asked = requests_of(one, monkeypatch)
        assert ["orders", "messages", "2", "40"] in counted(one, "/topics", q="orders").rows()
        assert set(asked) - BESIDE == {
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            RequestCode.GET_TOPIC_STATS_INFO,
        }


async def test_a_list_that_cannot_be_renewed_is_shown_as_it_was(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For a while, and nothing is written of it to the terminal."""
    monkeypatch.setattr(cached, "_FRESH_S", 0.0)
    answers: list[int | Exception] = [1, NoRoute("it is gone", "x"), 2]

    async def ask() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    kept = cached.CachedAnswer(ask)
    assert [await kept.get() for _ in range(2)] == [1, 1]
    await asyncio.sleep(0)  # the question fails
    assert await kept.get() == 1
    await asyncio.sleep(0)
    assert await kept.get() == 2
    await kept.close()
    gc.collect()
    assert not caplog.records


def test_a_page_asks_for_its_own_topic_or_group(
    reading: Visitor, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: no list of all topics or groups, which may be tens of thousands."""
    assert reading.get("/group", name="billing").status == 200
    asked = requests_of(reading, monkeypatch)
    monkeypatch.setattr(cached, "_FRESH_S", 1e9)
    assert reading.get("/topic", name="evil").status == 200
    of_all = {RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG}
    own = [code for code in asked if code not in BESIDE]
    assert not of_all & set(own) and len(own) <= 8, own
    asked.clear()
    assert reading.get("/group", name="billing").status == 200
    own = [code for code in asked if code not in BESIDE]
    assert not of_all & set(own) and len(own) <= 2, own


def test_pages_of_one_thing_ask_nothing_of_all_groups(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a visitor who is the first: with ten thousand queues that answer costs a second."""
    make = lambda: ClusterServer(broker.namesrv_address, "127.0.0.1", 0)  # noqa: E731
    with visiting_server(make) as one:
        asked = requests_of(one, monkeypatch)
        for path in ("/topic?name=evil", "/group?name=billing"):
            assert one.get(path).status == 200
        assert asked and RequestCode.GET_BROKER_CONSUME_STATS not in asked


def test_no_page_waits_until_all_groups_are_counted(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ten thousand queues that question takes a broker a second. Here its answer is held back:
    the page has the names, and all other pages are served."""
    make = lambda: ClusterServer(broker.namesrv_address, "127.0.0.1", 0)  # noqa: E731
    with Admin(broker.namesrv_address) as admin:
        admin.create_group("counted")
    with visiting_server(make) as one:
        facts, answered = one.server.facts, threading.Event()  # type: ignore[attr-defined]
        ask = facts.walker.all_lags

        async def held() -> Any:
            while not answered.is_set():
                await asyncio.sleep(0.01)
            return await ask()

        monkeypatch.setattr(facts.lags, "_ask", held)
        page = one.get("/groups", q="counted")
        assert page.headers["Refresh"] and "is being counted" in page.text
        assert ["counted", "-", "-", "", "0"] in page.rows()
        for path in ("/", "/topics", "/group?name=billing", "/topic?name=evil"):
            assert one.get(path).status == 200
        answered.set()
        until(lambda: "Refresh" not in one.get("/groups").headers, "the count")
        assert ["counted", "0", "0", "", "0"] in counted(one, "/groups", q="counted").rows()


@pytest.mark.parametrize(
    ("path", "before"),
    [("/topic?name=orders", ["billing", "-", ""]), ("/group?name=billing", ["Topics"])],
)  # fmt: skip
def test_a_page_of_one_thing_does_not_wait_for_its_lags(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, path: str, before: list[str]
) -> None:
    """A topic with thousands of queues, a group with thousands of topics: here the answer is held
    back, and the page comes again by itself until it is there."""
    make = lambda: ClusterServer(broker.namesrv_address, "127.0.0.1", 0)  # noqa: E731
    with visiting_server(make) as one:
        facts, answered = one.server.facts, threading.Event()  # type: ignore[attr-defined]
        ask = facts.walker.lag

        async def held(*names: str) -> Any:
            while not answered.is_set():
                await asyncio.sleep(0.01)
            return await ask(*names)

        monkeypatch.setattr(facts.walker, "lag", held)
        page = one.get(path)
        assert page.status == 200 and page.headers["Refresh"] and "is being counted" in page.text
        assert before in page.rows() or before[0] in page.text
        answered.set()
        page = counted(one, path)
        assert "is being counted" not in page.text and "billing" in page.text


@pytest.mark.parametrize(
    ("words", "code"), [(["127.0.0.1:1"], 6), (["127.0.0.1:1", "--set", "brokerName=x"], 2)]
)
def test_nobody_there_ends_the_start(words: list[str], code: int) -> None:
    assert main(["web", *words]) == code


def test_a_folder_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert main(["web", str(tmp_path), "--write"]) == 2
