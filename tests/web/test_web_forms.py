"""What visitors of a running cluster send, create and look up: each change is asked about first,
and done once it was."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import Visitor, visiting_server
from waiting import until

from broker import Admin, Broker, Consumer, Message, Producer
from broker.client.admin import AccessRight
from broker.client.admin.facts import QueueEnds
from broker.client.credentials import Credentials
from broker.client.message import MessageQueue
from broker.web.cluster_server import ClusterServer
from broker.web.records import RecordView
from broker.web.topic_search import _CHUNK, BYTES_MAX, LOOKED_MAX, MessageFilter, newest

EVIL = "<script>document.title='owned'</script>\u202e\x1b"
SMALL: dict[str, Any] = {
    "mappedFileSizeCommitLog": 16 << 20, "mappedFileSizeConsumeQueue": 6000, "drain_s": 0.1,
    "brokerName": "broker-a", "traceTopicEnable": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("forms") / "store"
    with Broker(folder, listenPort=0, with_namesrv=True, **SMALL) as made:
        with Admin(made.namesrv_address) as admin:
            admin.create_topic("orders", queues=4)
        yield made


@pytest.fixture(scope="module")
def page(broker: Broker) -> Iterator[Visitor]:
    make = lambda: ClusterServer(broker.namesrv_address, "127.0.0.1", 0, write=True)  # noqa: E731
    with visiting_server(make) as made:
        yield made


def said(page: Visitor, path: str, **form: object) -> str:
    """What the answer to a form says."""
    return " ".join(page.post(path, token=page.server.form_token, **form).text.split())


def test_a_page_says_that_it_changes_things(page: Visitor, broker: Broker) -> None:
    assert "write mode" in page.get("/").text
    with visiting_server(lambda: ClusterServer(broker.namesrv_address, "127.0.0.1", 0)) as one:
        assert "read-only" in one.get("/").text and "write mode" not in one.get("/").text


def test_a_test_message_is_sent_after_a_look(page: Visitor, broker: Broker) -> None:
    form = {"topic": "orders", "body": "12 \u00e4pfel\r\n", "tags": "paid", "keys": "order-1"}
    before = sum(len(queue) for queue in broker.store.queues("orders"))
    assert "Write mode. A message with a body of 10 letters" in said(page, "/send", **form)
    assert sum(len(queue) for queue in broker.store.queues("orders")) == before
    assert "Stored: queue" in said(page, "/send", do="send", **form)
    until(lambda: broker.store.query("orders", "order-1"), "the message")
    (message,) = broker.store.query("orders", "order-1")
    assert (bytes(message.body).decode(), message.tags) == (form["body"], "paid")


@pytest.mark.parametrize(
    "wrong", [{"topic": "absent"}, {"topic": EVIL}, {"body": "x" * 40_000}, {"body": ""},
              {"tags": "t" * 2000}], ids=lambda wrong: next(iter(wrong)),
)  # fmt: skip
def test_a_message_that_nobody_may_send_is_refused(
    page: Visitor, broker: Broker, wrong: dict[str, str]
) -> None:
    before = [len(queue) for queue in broker.store.queues("orders")]
    form = {"topic": "orders", "body": "x", "token": page.server.form_token, "do": "send"} | wrong
    answer = page.post("/send", **form)
    assert answer.status in (400, 404, 413, 502) and "<script" not in answer.body.decode()
    assert [len(queue) for queue in broker.store.queues("orders")] == before


def test_a_topic_is_created_and_changed_after_a_look(page: Visitor, broker: Broker) -> None:
    form = {"name": "new", "queues": "3", "perm": "rw", "type": "FIFO"}
    assert "Write mode. The topic new will have 3 queues" in said(page, "/topic-form", **form)
    with Admin(broker.namesrv_address) as admin:
        assert "new" not in admin.topic_names()
        assert "Done at 1 broker." in said(page, "/topic-form", do="make", **form)
        until(lambda: "new" in admin.topic_names(), "the topic")
        (config,) = admin.topic("new").configs.values()
        assert (config.write_queue_nums, config.attributes["message.type"]) == (3, "FIFO")
        given = page.get("/topic-form", name="new").body.decode()
        assert 'value="3"' in given and "<option selected>FIFO" in given
        said(page, "/topic-form", do="make", **(form | {"queues": "5", "there": "yes"}))
        assert next(iter(admin.topic("new").configs.values())).write_queue_nums == 5


def test_a_group_is_created_and_changed_after_a_look(page: Visitor, broker: Broker) -> None:
    form = {"name": "shipping", "retries": "3", "retry_queues": "1", "enabled": "yes"}
    assert "Write mode. The group shipping" in said(page, "/group-form", **form)
    with Admin(broker.namesrv_address) as admin:
        assert "shipping" not in {each.name for each in admin.groups()}
        assert "Done at 1 broker." in said(page, "/group-form", do="make", **form)
        (group,) = [each for each in admin.groups() if each.name == "shipping"]
        assert (group.retry_max_times, group.consume_broadcast_enable) == (3, False)
    assert 'value="3"' in page.get("/group-form", name="shipping").body.decode()
    assert "shipping" in page.get("/groups", q="shipping").text


@pytest.mark.parametrize("path", ["/topic-form", "/group-form"])
@pytest.mark.parametrize(
    "wrong", [{"name": EVIL}, {"name": ""}, {"queues": "0", "retry_queues": "-1"},
              {"queues": "many", "retries": "many"}, {"perm": "q", "retries": "-2"},
              {"queues": "1" * 30, "retries": "1" * 30}], ids=str,
)  # fmt: skip
def test_nothing_is_made_of_a_form_that_makes_no_sense(
    page: Visitor, broker: Broker, path: str, wrong: dict[str, str]
) -> None:
    form = {"name": "never", "queues": "3", "perm": "rw", "type": "", "retries": "3",
            "retry_queues": "1", "do": "make", "token": page.server.form_token}  # fmt: skip
    answer = page.post(path, **(form | wrong))
    assert answer.status == 400 and "<script" not in answer.body.decode(), answer.text
    with Admin(broker.namesrv_address) as admin:
        assert "never" not in {*admin.topic_names(), *(each.name for each in admin.groups())}


def test_clients_that_are_connected_are_shown(page: Visitor, broker: Broker) -> None:
    names = broker.namesrv_address
    with Admin(names) as admin:
        admin.create_group("reading")
    with (
        Producer("shop", names) as producer,
        Consumer("reading", "orders", namesrv=names, start="first") as consumer,
    ):
        producer.send(Message("orders", b"1"))
        consumer.poll(1)
        with Admin(names) as admin:
            until(lambda: "shop" in admin.all_producers(), "that the producer is heard")
            until(lambda: admin.members("reading"), "that the consumer is heard")
        page.server.facts.configs.forget()  # type: ignore[attr-defined]
        rows = page.get("/clients").rows()
        assert any(row[:1] == ["shop"] and len(row) == 4 for row in rows)
        assert any(row[0] == "reading" and "orders" in row[4] for row in rows if len(row) == 5)
        assert not [row for row in page.get("/clients", q="reading").rows() if row[:1] == ["shop"]]


def test_the_way_of_a_message_is_shown(page: Visitor, broker: Broker) -> None:
    with Producer("traced", broker.namesrv_address, trace=True) as producer:
        id_ = producer.send(Message("orders", b"traced")).message_id
    until(lambda: any(row[:1] == ["sent"] for row in page.get("/trace", id=id_).rows()), "a step")
    row = next(row for row in page.get("/trace", id=id_).rows() if row)
    assert row[2] == "traced" and row[5] == "well"


def test_the_way_of_a_transaction_that_java_traced_is_shown(page: Visitor, broker: Broker) -> None:
    """Records of Apache's client 5.3.3, of a message whose first delivery failed."""
    sent = "|1795941131{}|DefaultRegion|txmakers|orders|JAVA|tag|tx-1|127.0.0.1:10911|2|"
    records = [
        "Pub" + sent.format(584) + "251|1|7F00000100002A9F0000000000000861|true#",
        "EndTransaction" + sent.format(847) + "JAVA|COMMIT_MESSAGE|false#",
        "SubBefore|1795941133480|DefaultRegion|readers|7F05|JAVA|0|tx-1#",
        "SubAfter|7F05|JAVA|0|false|tx-1|4|1795941133480|readers#",
        "SubBefore|1795941153532|DefaultRegion|readers|7F10|JAVA|1|tx-1#",
        "SubAfter|7F10|JAVA|0|true|tx-1|0|1795941153532|readers#",
    ]
    body = "".join(records).replace("|", "\x01").replace("#", "\x02").encode()
    with Producer("tracers", broker.namesrv_address) as producer:
        producer.send(Message("RMQ_SYS_TRACE_TOPIC", body, keys="JAVA"))
    until(lambda: len(page.get("/trace", id="JAVA").rows()) > 6, "the steps")
    shown = [row for row in page.get("/trace", id="JAVA").rows() if len(row) == 7]
    assert [(row[0], row[2], row[5], row[6]) for row in shown] == [
        ("sent", "txmakers", "well", "-"), ("committed", "txmakers", "well", "-"),
        ("a consumer has it", "readers", "well", "1"), ("consumed", "readers", "failed", "-"),
        ("a consumer has it", "readers", "well", "2"), ("consumed", "readers", "well", "-"),
    ]  # fmt: skip


def test_what_a_broker_says_of_itself(page: Visitor, broker: Broker) -> None:
    place = {"address": f"127.0.0.1:{broker.port}", "kind": "figures"}
    shown = page.get("/broker", q="getMessageSizeTotal", **place)
    assert [row[0] for row in shown.rows() if row] == ["getMessageSizeTotal"]
    assert "Out today" in shown.text


def test_users_and_rights_are_changed_after_a_look(tmp_path: Path) -> None:
    """As the credentials allow: a reader's change is refused, and nothing has changed."""
    root = Credentials("root", "rootrootroot")
    users = {
        "authenticationEnabled": True, "authorizationEnabled": True,
        "initAuthenticationUser": '{"username":"root","password":"rootrootroot"}',
    }  # fmt: skip
    with Broker(tmp_path / "store", listenPort=0, **users, **SMALL) as made:
        address = f"127.0.0.1:{made.port}"
        make = lambda: ClusterServer(address, "127.0.0.1", 0, root, write=True)  # noqa: E731
        with visiting_server(make) as one, Admin(broker=address, credentials=root) as admin:
            user = {"what": "create", "user": "reader", "password": "readerreader"}
            assert "Write mode. This will create the user." in said(one, "/users", **user)
            assert [each.name for each in admin.users()] == ["root"]
            assert "It is done" in said(one, "/users", do="change", **user)
            assert [each.name for each in admin.users()] == ["reader", "root"]
            right = {"what": "grant", "user": "reader", "resource": "Topic:orders",
                     "actions": "Get, List"}  # fmt: skip
            said(one, "/users", do="change", **right)
            (given,) = admin.rights("reader")
            assert given == AccessRight("reader", "Topic:orders", ("Get", "List"))
            shown = [row[:3] for row in one.get("/users").rows()]
            assert ["reader", "Topic:orders", "Get, List"] in shown
            evil = one.post("/users", token=one.server.form_token, what="grant", user=EVIL,
                            resource=EVIL, actions=EVIL)  # fmt: skip
            assert evil.status in (200, 400) and "<script" not in evil.body.decode()
            said(one, "/users", do="change", what="revoke", user="reader", resource="Topic:orders")
            assert not admin.rights("reader")
            said(one, "/users", do="change", what="delete", user="reader")
            assert [each.name for each in admin.users()] == ["root"]


class View:
    """As much of a message as the search looks at."""

    tags = "other"

    def __init__(self, offset: int, ms: int, size: int = 1) -> None:
        facts = {"store_ms": ms, "queue_offset": offset, "physical_offset": offset}
        self.head = type("Head", (), facts)
        self.size = size


@pytest.mark.parametrize(
    ("size", "bound"), [(1, LOOKED_MAX), (1 << 20, (BYTES_MAX >> 20) + 1)],
    ids=["messages", "bytes"],
)  # fmt: skip
async def test_a_search_that_finds_nothing_ends_at_its_bounds(size: int, bound: int) -> None:
    """It says so, and has read few more than it looked at."""
    asked = 0

    async def read(queue: MessageQueue, offset: int, most: int) -> list[RecordView]:
        nonlocal asked
        asked += most
        places = range(offset, offset + most)
        return [View(each, each, size) for each in places]  # type: ignore[misc]

    queue, wanted = (
        QueueEnds(MessageQueue("t", "a", 0), 0, 5000, 5000),
        MessageFilter.of({"tag": "t"}),
    )
    found = await newest([queue], read, wanted, 20)
    assert not found.rows and not found.whole
    assert found.looked == bound and asked < bound + 64
    assert size == 1 or asked <= bound + _CHUNK  # of large ones


async def test_the_newest_of_many_queues_are_found(seed: int) -> None:
    """Of any queues: the same as of all messages together, sorted."""
    chance = random.Random(seed)

    for _ in range(50):
        times = [
            sorted(chance.sample(range(10_000), chance.randrange(60)))
            for _ in range(chance.randrange(1, 40))
        ]

        async def read(
            queue: MessageQueue, offset: int, most: int, times: list[list[int]] = times
        ) -> list[RecordView]:
            part = times[queue.queue][offset : offset + most]
            return [View(offset + n, ms) for n, ms in enumerate(part)]  # type: ignore[misc]

        queues = [
            QueueEnds(MessageQueue("t", "a", number), 0, len(of), max(of, default=0))
            for number, of in enumerate(times)
        ]
        found = await newest(queues, read, MessageFilter(), 20)
        shown = [view.head.store_ms for _, view in found.rows]
        assert shown == sorted((ms for of in times for ms in of), reverse=True)[:20], seed
