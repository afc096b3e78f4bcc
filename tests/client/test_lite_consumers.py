"""Consumers of lite topics, at a broker in this process; tests/interop/test_lite_client_java.py has
their claims at a broker of either make, and takes longer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count

import pytest
from waiting import BOUND_S

from broker import Broker, Message
from broker.testing import SETTINGS
from pystore.meta.configfiles import SubscriptionGroup

TOPIC = "sessions"
_numbers = count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("lite")
    with Broker(folder, **{**SETTINGS, "listenPort": 0, "drain_s": 0.2}) as made:
        made.create_topic(TOPIC, message_type="LITE")
        yield made


@pytest.fixture
def name() -> str:
    """A lite topic that nothing was sent to."""
    return f"session-{next(_numbers)}"


def group_of(broker: Broker, **attributes: str) -> str:
    """A new group, bound to the parent."""
    name = f"agents-{next(_numbers)}"
    said = {"+lite.bind.topic": TOPIC} | {f"+lite.sub.{k}": v for k, v in attributes.items()}

    async def make() -> None:
        broker.services.groups.update(SubscriptionGroup(name, attributes=said))

    broker.run(make())
    return name


def send(broker: Broker, name: str, *bodies: bytes) -> None:
    with broker.producer("supervisor") as producer:
        for body in bodies:
            producer.send(Message(TOPIC, body, lite_topic=name))


def test_each_lite_topic_has_its_order(broker: Broker, name: str) -> None:
    """And none but those that are subscribed to come."""
    send(broker, f"{name}-other", b"x")
    with broker.lite_consumer(group_of(broker), TOPIC) as consumer:
        consumer.subscribe(name)
        send(broker, name, *(b"%d" % n for n in range(5)))
        found = []
        for message in consumer:
            found.append((message.lite_topic, message.body))
            if len(found) == 5:
                break
        assert consumer.lite_topics == {name}
    assert found == [(name, b"%d" % n) for n in range(5)]


async def test_what_is_not_done_when_a_consumer_closes_goes_to_others(
    broker: Broker, name: str
) -> None:
    group = group_of(broker)
    send(broker, name, b"0", b"1")
    seen = []
    for _ in range(2):
        async with broker.async_lite_consumer(group, TOPIC) as consumer:
            await consumer.subscribe(name)
            async with asyncio.timeout(BOUND_S):
                async for message in consumer:
                    seen.append(message.body)
                    break
    assert seen == [b"0", b"0"]


async def test_the_last_to_subscribe_to_an_exclusive_lite_topic_has_it(
    broker: Broker, name: str
) -> None:
    group, lost = group_of(broker, model="Exclusive"), asyncio.Queue[str]()
    first = broker.async_lite_consumer(group, TOPIC, on_taken_over=lost.put_nowait)
    async with first, broker.async_lite_consumer(group, TOPIC) as second:
        await first.subscribe(name)
        await second.subscribe(name)
        async with asyncio.timeout(BOUND_S):
            assert await lost.get() == name
            assert first.lite_topics == frozenset()
            send(broker, name, b"0")
            async for message in second:
                assert message.body == b"0"
                break


async def test_whoever_leaves_messages_to_come_again_gets_them_and_the_others(
    broker: Broker, name: str
) -> None:
    """More than it has room for, none of them done when it comes first."""
    bodies = {b"%d" % n for n in range(8)}
    send(broker, name, *sorted(bodies))
    left, done = set(), set()
    options = {"buffer_messages": 4, "invisible_s": 1.0, "handler_timeout_s": 0.3}
    async with broker.async_lite_consumer(group_of(broker), TOPIC, **options) as consumer:
        await consumer.subscribe(name)
        async with asyncio.timeout(BOUND_S):
            while done != bodies:
                for message in await consumer.poll(0.1):
                    if message.body in left:
                        consumer.ack(message)
                        done.add(message.body)
                    left.add(message.body)
