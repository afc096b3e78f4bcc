"""Sending: every way, and what is refused before anything is sent."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime, timedelta

import pytest
from loops import run
from waiting import BOUND_S

from broker import (
    AsyncConsumer,
    AsyncProducer,
    Broker,
    Consumer,
    Message,
    Producer,
    SendStatus,
    TransactionProducer,
)
from broker.client import BrokerRefused, InvalidMessage, Misuse, NoRoute, SendFailed
from broker.client.sending import SendRules, prepare


async def fetch(server, topic, count, group="reader", **options):
    """The first messages of a topic, by an own group."""
    found = []
    async with AsyncConsumer(
        f"{group}-{topic}", topic, namesrv=server.namesrv, start="first", **options
    ) as consumer:
        async with asyncio.timeout(BOUND_S):
            async for message in consumer:
                found.append(message)
                if len(found) == count:
                    return found
    raise AssertionError("unreachable")


async def test_a_message_comes_out_as_it_went_in(server, name):
    topic = name("topic")
    async with AsyncProducer("producers", server.namesrv) as producer:
        sent = Message(
            topic,
            "Äpfel".encode(),
            "fruit",
            ["order-17", "customer-3"],
            {"region": "eu"},
            flag=5,
        )
        result = await producer.send(sent)
    (got,) = await fetch(server, topic, 1)
    assert result.status is SendStatus.SEND_OK
    assert got.message_id == result.message_id
    assert got.offset_message_id == result.offset_message_id
    assert (got.queue, got.queue_offset) == (result.queue, result.queue_offset)
    assert (got.topic, got.body, got.tags) == (topic, sent.body, "fruit")
    assert (got.keys, got.flag, got.attempt) == (sent.keys, 5, 1)
    assert got.properties["region"] == "eu"
    assert abs(got.born_timestamp - time.time() * 1000) < 60_000


def test_the_blocking_twin_sends_the_same(server, name):
    topic = name("topic")
    with Producer("producers", server.namesrv) as producer:
        first = producer.send(Message(topic, b"one"))
        later = producer.submit(Message(topic, b"two"), queue=first.queue)
        assert later.result(10).queue_offset == first.queue_offset + 1
        producer.send_oneway(Message(topic, b"three"), queue=first.queue)
        producer.send_batch([Message(topic, b"four"), Message(topic, b"five")])
        assert first.queue in producer.queues(topic)
    bodies = {m.body for m in run(fetch(server, topic, 5))}
    assert bodies == {b"one", b"two", b"three", b"four", b"five"}


async def test_many_in_flight_are_bounded(server, name):
    topic = name("topic")
    async with AsyncProducer("producers", server.namesrv, max_in_flight=4) as producer:
        await producer.send(Message(topic, b"first"))
        for number in range(100):
            await producer.submit(Message(topic, b"%d" % number))
            assert producer._sender.slots.taken <= 4
        await producer.flush()
        assert not producer._sender.slots.taken
    assert len(await fetch(server, topic, 101)) == 101


async def test_a_batch_is_cut_by_size_and_keeps_its_order(server, name):
    topic = name("topic")
    async with AsyncProducer("producers", server.namesrv, batch_max=1000) as producer:
        bodies = [b"%03d" % n for n in range(50)]
        results = await producer.send_batch([Message(topic, b, keys=b.decode()) for b in bodies])
        assert len({r.message_id for r in results}) == 50
        assert len({r.offset_message_id for r in results}) == 50
    found = {m.message_id: m for m in await fetch(server, topic, 50)}
    for body, result in zip(bodies, results, strict=True):
        got = found[result.message_id]
        assert (got.body, got.queue_offset) == (body, result.queue_offset)
        assert got.offset_message_id == result.offset_message_id


async def test_a_key_has_one_queue_and_an_order(server, name):
    topic = name("topic")
    async with AsyncProducer("producers", server.namesrv) as producer:
        results = [
            await producer.send(Message(topic, b"%d" % n), key=f"order-{n % 3}") for n in range(12)
        ]
    for key in range(3):
        mine = results[key::3]
        assert len({r.queue for r in mine}) == 1
        offsets = [r.queue_offset for r in mine]
        assert offsets == sorted(offsets)


@pytest.mark.parametrize("compression", ["zlib", "lz4", "zstd"])
async def test_large_bodies_are_compressed(server, name, compression):
    topic = name("topic")
    body = b"large " * 2000
    async with AsyncProducer("p", server.namesrv, compression=compression) as producer:
        await producer.send(Message(topic, body))
    (got,) = await fetch(server, topic, 1)
    assert got.body == body
    assert len(got.body_view) < len(body) / 10


async def test_a_delayed_message_comes_later(server, name):
    topic = name("topic")
    async with AsyncProducer("producers", server.namesrv) as producer:
        await producer.send(Message(topic, b"now"))
        began = time.monotonic()
        await producer.send(Message(topic, b"later", delay_level=1))
    found = await fetch(server, topic, 2)
    assert [m.body for m in found] == [b"now", b"later"]
    assert time.monotonic() - began >= 0.9


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (Message("", b"x"), "blank"),
        (Message("a b", b"x"), "other characters"),
        (Message("t" * 128, b"x"), "127"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), "belongs to the broker"),
        (Message("t", b""), "empty body"),
        (Message("t", "text"), "encode it"),
        (Message("t", b"x" * 101), "101 bytes, 100 are allowed"),
        (Message("t", b"x", properties={"KEYS": "a"}), "belongs to the protocol"),
        (Message("t", b"x", tags="a\x01b"), "0x01"),
        (Message("t", b"x", properties={"a": "b" * 40_000}), "32767"),
        (Message("t", b"x", properties={"a": 1}), "texts"),
        (Message("t", b"x", delay_level=-1), "negative"),
    ],
)
async def test_what_breaks_a_rule_is_refused_unsent(server, message, said):
    async with AsyncProducer("producers", server.namesrv, message_max=100) as producer:
        with pytest.raises(InvalidMessage, match=said):
            await producer.send(message)
        assert producer.network.known_route(message.topic) is None


async def test_a_batch_takes_no_delay(server):
    async with AsyncProducer("producers", server.namesrv) as producer:
        with pytest.raises(InvalidMessage, match="delay"):
            await producer.send_batch([Message("t", b"x", delay_level=1)])


@pytest.mark.parametrize(
    ("kind", "wrong", "near"),
    [
        (Producer, "send_timeout", "send_timeout_s"), (AsyncProducer, "retrys", "retries"),
        (TransactionProducer, "compres", "compression"), (Consumer, "concurency", "concurrency"),
        (AsyncConsumer, "startt", "start"), (Consumer, "zzz", None),
    ],
)  # fmt: skip
def test_an_unknown_option_is_of_the_class_that_was_named_and_the_nearest_is_said(
    kind, wrong, near
):
    given = {"check": bool} if kind is TransactionProducer else {}
    given |= {"topics": "t"} if kind in (Consumer, AsyncConsumer) else {}
    meant = f"; did you mean '{near}'?" if near else "; it has "
    said = f"{kind.__name__} has no option '{wrong}'{meant}"
    with pytest.raises(Misuse, match=f"^{re.escape(said)}"):
        kind("g", namesrv="127.0.0.1:1", **given, **{wrong: 1})


def test_unknown_options_and_bad_values_are_named():
    with pytest.raises(Misuse, match="no option 'retrys'"):
        AsyncProducer("p", "127.0.0.1:1", retrys=1)
    with pytest.raises(Misuse, match="no compression 'gzip'"):
        AsyncProducer("p", "127.0.0.1:1", compression="gzip")
    with pytest.raises(Misuse, match="not host:port"):
        AsyncProducer("p", "localhost")
    with pytest.raises(InvalidMessage, match="group"):
        AsyncProducer("a b", "127.0.0.1:1")


def test_no_name_server_is_said(monkeypatch):
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(Misuse, match="NAMESRV_ADDR"):
        AsyncProducer("p")


def test_the_environment_names_the_name_server(server, name, monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", f"127.0.0.1:9;{server.namesrv}")
    with Producer("producers") as producer:
        assert producer.send(Message(name("topic"), b"x")).queue_offset == 0


def test_a_topic_that_nobody_creates_has_no_route(server, name):
    with (
        Producer("p", server.namesrv, create_queues=0) as producer,
        pytest.raises(NoRoute, match="no broker serves"),
    ):
        producer.send(Message(name("topic"), b"x"))


def test_a_refusal_that_no_other_broker_cures_ends_at_once(server, name):
    topic = name("topic")
    with Producer("p", server.namesrv) as producer:
        queue = producer.send(Message(topic, b"x")).queue
        with pytest.raises(SendFailed, match="refused in one attempt and is not stored") as failed:
            producer.send(Message(topic, b"x"), queue=queue._replace(queue=99))
        assert failed.value.attempts[0].error.code in (29, 1)


async def test_namespaces_keep_applications_apart(server, name):
    topic = name("topic")
    async with AsyncProducer("p", server.namesrv, namespace="blue") as producer:
        await producer.send(Message(topic, b"x"))
    (got,) = await fetch(server, topic, 1, namespace="blue")
    assert (got.topic, got.queue.topic) == (topic, f"blue%{topic}")


def test_a_delay_is_a_timedelta_or_a_datetime_and_can_be_recalled(tmp_path):
    """To the millisecond; a recall takes the message back, once."""
    soon = datetime.now(UTC) + timedelta(seconds=1)
    with Broker(tmp_path / "s", listenPort=0, recallMessageEnable=True) as broker:
        with broker.producer() as producer:
            later = [
                producer.send(Message("t", b"%d" % i, delay=delay))
                for i, delay in enumerate((soon, timedelta(milliseconds=900), timedelta(hours=1)))
            ]
            plain = producer.send(Message("t", b"now"))
            producer.recall(later[2])
            with pytest.raises(BrokerRefused, match="no such message waits"):
                producer.recall(later[2])
            with pytest.raises(Misuse, match="no recall handle"):
                producer.recall(plain)
        with broker.consumer("g", "t", start="first") as consumer:
            found = {m.body: m for _, m in zip(range(3), consumer, strict=False)}
    assert set(found) == {b"now", b"0", b"1"}
    assert found[b"0"].store_timestamp >= int(soon.timestamp() * 1000)
    assert found[b"1"].store_timestamp >= found[b"1"].born_timestamp + 900


@pytest.mark.parametrize(
    "fields",
    [{"delay": 5}, {"delay": datetime(2030, 1, 1)},
     {"delay": timedelta(1), "delay_level": 1}, {"delay": timedelta(1), "deliver_at_ms": 1}],
    ids=repr,
)  # fmt: skip
def test_a_delay_that_is_none_is_named(fields):
    with pytest.raises(InvalidMessage, match="delay"):
        prepare(Message("t", b"x", **fields), SendRules("p"))
