"""RocketMQ 5's official Python client consumes from our service."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
import threading
import time
from unittest import mock

import pytest
from consuming import SMALL

from broker.broker import Broker
from pystore.meta.configfiles import SubscriptionGroup, TopicConfig

pytest.importorskip("rocketmq")
#: Where the client writes its log; it asks when it is imported.
HOME = tempfile.TemporaryDirectory()
with mock.patch.dict(os.environ, HOME=HOME.name):
    from rocketmq import (
        ClientConfiguration,
        ConsumeResult,
        Credentials,
        FilterExpression,
        MessageListener,
        PushConsumer,
        SimpleConsumer,
    )

#: Seconds that only a hang takes.
BOUND_S = 120.0


@pytest.fixture
def served(store_path):
    """A broker with a thread of its own, as the official client's loop runs in another."""
    conf = store_path.with_name("rmq-proxy.json")
    conf.write_text(json.dumps({"grpcClientConsumerMinLongPollingTimeoutMillis": 500}))
    with Broker(
        store_path, listenPort=0, brokerIP1="127.0.0.1", grpc_port=0, proxy_conf=conf,
        drain_s=0.5, **SMALL,
    ) as broker:  # fmt: skip
        yield broker


def on_loop(broker, work):
    """What a test does to the broker, on the broker's loop."""

    async def call():
        return work()

    return asyncio.run_coroutine_threadsafe(call(), broker.loop).result(BOUND_S)


def make(broker, topic, kind, group, *, fifo=False, tries=16):
    def change():
        services = broker.services
        services.topics.update(TopicConfig(topic, 1, 1), f"+message.type={kind}")
        services.groups.update(
            SubscriptionGroup(group, consume_message_orderly=fifo, retry_max_times=tries)
        )

    on_loop(broker, change)


def put(broker, topic, *bodies, **properties):
    def change():
        for n, body in enumerate(bodies):
            given = {"UNIQ_KEY": f"{body}-{n}"} | properties
            broker.store.put(topic, body, properties=given, queue=0)

    on_loop(broker, change)


def until(condition, say=lambda: ""):
    end = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < end, say()
        time.sleep(0.05)


@contextlib.contextmanager
def running(client):
    client.startup()
    try:
        yield client
    finally:
        client.shutdown()


def configuration(broker):
    return ClientConfiguration(broker.grpc_address, Credentials())


class Listener(MessageListener):
    """Fails each body as often as `failing` says, and takes it then."""

    def __init__(self, **failing):
        self.failing, self.seen, self.lock = failing, [], threading.Lock()

    def consume(self, message):
        with self.lock:
            body = message.body.decode()
            self.seen.append((body, message.delivery_attempt))
            left = self.failing.get(body, 0)
            self.failing[body] = left - 1
        return ConsumeResult.FAILURE if left > 0 else ConsumeResult.SUCCESS


def test_a_simple_consumer_receives_acknowledges_and_extends(served):
    make(served, "T", "NORMAL", "g")
    consumer = SimpleConsumer(
        configuration(served), "g", {"T": FilterExpression("a || b")}, await_duration=1
    )
    with running(consumer):
        put(served, "T", "1", TAGS="a", KEYS="k1 k2", colour="red")
        put(served, "T", "2", TAGS="other")
        put(served, "T", "3", TAGS="b")
        found = []
        until(lambda: found.extend(consumer.receive(32, 10)) or len(found) == 2)
        first, second = found
        assert (first.body, first.tag, sorted(first.keys)) == (b"1", "a", ["k1", "k2"])
        assert dict(first.properties) == {"colour": "red"} and not first.corrupted
        assert first.message_id == "1-0" and first.delivery_attempt == 1
        consumer.ack(first)
        consumer.change_invisible_duration(second, 1)
        again = []
        until(lambda: again.extend(consumer.receive(32, 10)) or again)
        assert [(m.body, m.delivery_attempt) for m in again] == [(b"3", 2)]
        consumer.ack(again[0])
        assert consumer.receive(32, 10) == []
        points = served.services.pop.points
        until(lambda: len(points) == 0)


def test_a_push_consumer_takes_each_message_and_failed_ones_again(served):
    make(served, "T", "NORMAL", "g", tries=1)
    listener = Listener(once=1, always=9)
    subscription = {"T": FilterExpression()}
    with running(PushConsumer(configuration(served), "g", listener, subscription)):
        put(served, "T", "fine", "once", "always")
        dead = served.store
        until(lambda: dead.range("%DLQ%g", 0)[1] == 1, lambda: listener.seen)
        until(lambda: len(listener.seen) == 5)
    assert sorted(listener.seen) == [
        ("always", 1), ("always", 2), ("fine", 1), ("once", 1), ("once", 2),
    ]  # fmt: skip
    (letter,) = served.store.read("%DLQ%g", 0, 0)
    assert bytes(letter.body) == b"always"


def test_an_ordered_push_consumer_goes_on_after_the_dead_letter(served):
    make(served, "F", "FIFO", "ordered", fifo=True, tries=1)
    listener = Listener(**{"1": 9})
    subscription = {"F": FilterExpression()}
    put(served, "F", "0", "1", "2", __SHARDINGKEY="one")
    with running(PushConsumer(configuration(served), "ordered", listener, subscription)):
        until(lambda: "2" in dict(listener.seen), lambda: listener.seen)
        until(lambda: served.services.offsets.get("ordered", "F", 0) == 3)
    assert [body for body, _ in listener.seen] == ["0", "1", "1", "2"]
    (letter,) = served.store.read("%DLQ%ordered", 0, 0)
    assert bytes(letter.body) == b"1"
