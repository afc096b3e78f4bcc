"""`pystore web` of a broker of Apache's: every page, and every form that changes something."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "web"))

import launch
from pages import Visitor, visiting_server
from waiting import until

from broker import Admin, Consumer, Message, Producer
from broker.web.cluster_server import ClusterServer

pytestmark = [pytest.mark.java, pytest.mark.long]

COUNT, DEAD = 20, 3
ORDER = "orders"


@pytest.fixture(scope="module")
def java(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[launch.Peer]:
    """COUNT messages, DEAD of which a group has given up; the others are taken."""
    with launch.running("java", tmp_path_factory.mktemp("web")) as peer:
        with Admin(peer.namesrv) as admin:
            admin.create_topic(ORDER, queues=2)
            admin.create_group("billing")
        with Producer("shop", peer.namesrv) as producer:
            for number in range(COUNT):
                producer.send(Message(ORDER, b"%d apples" % number, keys=f"order-{number}"))
        with Consumer("billing", ORDER, namesrv=peer.namesrv, start="first") as consumer:
            seen = 0
            while seen < COUNT:
                for message in consumer.poll(30):
                    seen += 1
                    if seen <= DEAD:
                        consumer.nack(message, -1)
                    else:
                        consumer.ack(message)
            consumer.commit()
        yield peer


@pytest.fixture(scope="module")
def page(java: launch.Peer) -> Iterator[Visitor]:
    make = lambda: ClusterServer(java.namesrv, "127.0.0.1", 0, write=True)  # noqa: E731
    with visiting_server(make) as made:
        yield made


def test_cluster_topics_and_groups(page: Visitor, java: launch.Peer) -> None:
    assert ["broker-a", "master"] in [row[:2] for row in page.get("/").rows()]
    shown = [ORDER, "messages", "2", str(COUNT)]
    until(lambda: shown in page.get("/topics", q="ORD").rows(), "that they are counted")
    rows = page.get("/topic", name=ORDER).rows()
    queues = [row for row in rows if len(row) == 5 and row[0].startswith("broker-a")]
    assert sum(int(row[3]) for row in queues) == COUNT
    assert sum(len(row) == 7 for row in rows) == COUNT, "the newest of both queues"
    for path in ("/clients", "/users", "/doctor", "/trace?id=x"):
        assert page.get(path).status == 200, path
    assert "putTps" in page.get("/broker", address=java.broker, kind="figures", q="putTps").text
    until(lambda: any(row[0] == "billing" for row in page.get("/groups").rows() if row))
    assert page.get("/group", name="billing").status == 200
    assert page.get("/broker", address=java.broker).status == 200


def test_messages_by_key_id_and_time(page: Visitor, java: launch.Peer) -> None:
    with Admin(java.namesrv) as admin:
        (message,) = admin.messages_by_key(ORDER, "order-7")
    assert message.queue.broker == "broker-a"
    link = f"offset={message.queue_offset}"
    for found in (
        page.get("/find", topic=ORDER, key="order-7"),
        page.get("/find", topic=ORDER, key=message.message_id),
        page.get("/find", id=message.offset_message_id),
    ):
        assert link in found.body.decode()
    assert (
        "broker=broker-a"
        in page.get("/find", topic=ORDER, time=message.store_timestamp).body.decode()
    )
    place = {"topic": ORDER, "broker": "broker-a", "queue": message.queue.queue,
             "offset": message.queue_offset}  # fmt: skip
    assert "7 apples" in page.get("/message", **place).text
    assert page.get("/body", **place).body == b"7 apples"


def test_dead_letters_are_redriven_once(page: Visitor, java: launch.Peer) -> None:
    until(lambda: ["billing", str(DEAD)] in [row[:2] for row in page.get("/dead").rows()])
    form = {"token": page.server.form_token, "group": "billing", "to": "retry"}
    assert f"{DEAD} would be sent" in page.post("/redrive", do="look", **form).text
    assert f"{DEAD} sent, 0 were sent before" in page.post("/redrive", do="send", **form).text

    def again() -> bool:
        return f"0 sent, {DEAD} were sent before" in page.post("/redrive", do="send", **form).text

    until(again)


def test_a_group_is_moved_and_a_setting_changed(page: Visitor, java: launch.Peer) -> None:
    form = {"token": page.server.form_token, "group": "billing", "topic": ORDER, "to": "first"}
    assert "would be moved" in page.post("/reset", do="look", **form).text
    assert "2 queues were moved" in page.post("/reset", do="move", **form).text
    with Admin(java.namesrv) as admin:
        until(lambda: sum(lag.behind for lag in admin.lag("billing", ORDER)) == COUNT)
    setting = {"token": page.server.form_token, "address": java.broker, "name": "fileReservedTime",
               "do": "change"}  # fmt: skip
    said = " ".join(page.post("/setting", value="71", **setting).text.split())
    assert "has taken 71" in said, said
