"""The doctor of consumer groups and transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from examining import examined, found, running
from waiting import until

from broker import Broker, LocalState, Message, TransactionProducer
from broker.client.admin import Admin
from broker.doctor import examine_network


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("groups") / "s") as made:
        yield made


def test_members_of_a_group_subscribe_differently(broker: Broker) -> None:
    broker.create_topic("quarrels")
    with (
        broker.consumer("quarrel", {"quarrels": "a"}),
        broker.consumer("quarrel", {"quarrels": "b"}),
    ):
        diagnosis = found(broker.address, "subscriptions-disagree")
        assert "quarrels a" in diagnosis.text and "quarrels b" in diagnosis.text
        assert "quarrel" in diagnosis.mend
    with broker.consumer("peace", {"quarrels": "a"}), broker.consumer("peace", {"quarrels": "a"}):
        until(lambda: "subscriptions-disagree" not in examined(broker.address), "peace")


def test_a_consumer_stands_still(broker: Broker) -> None:
    """It is connected, has begun, and does nothing more."""
    with broker.producer() as producer:
        producer.send(Message("slow", b"1"))
        with broker.consumer("sleepers", "slow", start="first") as consumer:
            consumer.ack(*until(lambda: consumer.poll(1.0), "the first message"))
            consumer.commit()
            for number in range(8):
                producer.send(Message("slow", b"%d" % number))
            found(broker.address, "consumer-stands-still", late_s=0)
            assert "consumer-stands-still" not in examined(broker.address, late_s=3600)


def test_nobody_consumes_for_a_group(tmp_path: Path) -> None:
    with running(tmp_path / "s") as broker, broker.producer() as producer:
        for number in range(8):
            producer.send(Message("left", b"%d" % number))
        with broker.consumer("gone", "left", start="first") as consumer:
            consumer.ack(*until(lambda: consumer.poll(1.0), "the first messages"))
            consumer.commit()
        for number in range(8):
            producer.send(Message("left", b"%d" % number))
        assert "gone" in found(broker.address, "nobody-consumes", late_s=0).mend


def test_dead_letters_are_a_note(broker: Broker) -> None:
    with broker.producer() as producer:
        producer.send(Message("bad", b"1"))
    with broker.consumer("buriers", "bad", start="first") as consumer:
        for message in until(lambda: consumer.poll(1.0), "the message"):
            consumer.nack(message, -1)
    diagnosis = found(broker.address, "dead-letters")
    assert diagnosis.severity.name == "INFO" and "buriers" in diagnosis.text


def test_nobody_answers_for_transactions(tmp_path: Path) -> None:
    with running(tmp_path / "s") as broker:
        with TransactionProducer(
            "vanished", broker.namesrv_address, check=lambda message: LocalState.UNKNOWN
        ) as producer:
            with producer.transaction(Message("orders", b"1")) as transaction:
                transaction.state = LocalState.UNKNOWN
            assert "transactions-unanswered" not in examined(broker.address, late_s=0)
        diagnosis = found(broker.address, "transactions-unanswered", late_s=0)
        assert "vanished" in diagnosis.text
        assert "transactions-unanswered" not in examined(broker.address, late_s=3600)


def test_lite_topics_that_nobody_reads_and_quotas_that_are_near(tmp_path: Path) -> None:
    limits = {"enableLmqQuota": True, "maxLmqConsumeQueueNum": 4, "maxLiteSubscriptionCount": 10}
    with running(tmp_path / "s", **limits) as broker, broker.producer() as producer:
        with Admin(broker=broker.address) as admin:
            for topic in ("read", "unread"):
                admin.create_topic(topic, attributes={"message.type": "LITE"})
            broker.create_group("readers", lite_of="read")
            broker.create_group("lost", lite_of="gone")
            for topic, name in (("read", "a"), ("read", "b"), ("read", "c"), ("unread", "a")):
                producer.send(Message(topic, b"1", lite_topic=name))
            assert "lite-topic-missing" not in examined(broker.address)
            producer.send_batch([Message("read", b"1"), Message("read", b"2")])
            producer.send(Message("read", b"3"))
            missing = found(broker.address, "lite-topic-missing").text
            assert missing.startswith("3 messages came to read without a lite topic")
            until(lambda: admin.lite_brokers()[0].topics == 4, "four lite topics")
        with broker.lite_consumer("readers", "read") as consumer:
            consumer.subscribe("a")
            assert until(lambda: consumer.poll(1.0), "the message")
            unbound = found(broker.address, "lite-group-unbound")
            assert "lost is bound to gone" in unbound.text and "gone" in unbound.mend
            assert "4 lite topics" in found(broker.address, "lite-quota-near").text
            _, all_of_them = asyncio.run(examine_network(broker.address, pause_s=0.0))
            unread = [each.text for each in all_of_them if each.check == "lite-topics-unread"]
            assert unread == [
                "no group has read anything of 2 lite topics of read, or more",
                "1 lite topics of unread, and no group is bound to it",
            ]
