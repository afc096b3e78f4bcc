"""mode="pop": brokers hand messages out, and each is acknowledged by itself."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from waiting import BOUND_S, until, until_async

from broker.broker import Broker
from broker.client.errors import BrokerRefused, Misuse, Unreachable
from broker.client.handling import RetryLater
from broker.client.message import Message
from pystore.meta.configfiles import TopicConfig

SMALL = {"listenPort": 0, "mappedFileSizeCommitLog": 1 << 20}


@contextlib.asynccontextmanager
async def popping(path):
    async with asyncio.timeout(BOUND_S), Broker(path, **SMALL) as broker:
        broker.services.topics.update(TopicConfig("T", 4, 4))
        async with broker.async_producer("p") as producer:
            yield broker, producer


def consumer_of(broker, **options):
    return broker.async_consumer("g", "T", mode="pop", start="first", **options)


def shift(broker, ms):
    broker.services.schedule.shift_clock(ms)
    broker.services.pop.look()


async def test_two_members_share_every_queue_and_nothing_is_divided(store_path):
    async with popping(store_path) as (broker, producer):
        for n in range(60):
            await producer.send(Message("T", f"{n}".encode(), tags="a"))
        seen = [[], []]
        async with consumer_of(broker) as one, consumer_of(broker) as two:

            async def drain(consumer, found):
                async for message in consumer:
                    found.append(message.body)

            tasks = [
                asyncio.ensure_future(drain(*each)) for each in zip((one, two), seen, strict=True)
            ]
            await until_async(lambda: len(seen[0]) + len(seen[1]) == 60)
            assert one.assignment == two.assignment == frozenset()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await until_async(lambda: len(broker.services.pop.points) <= 2)
        assert sorted(seen[0] + seen[1]) == sorted(f"{n}".encode() for n in range(60))


async def test_a_pop_that_goes_on_failing_is_logged_once_a_minute(store_path, monkeypatch, caplog):
    """A broker may be away for hours."""
    monkeypatch.setattr("broker.client.popping.BACKOFF_S", (0.001, 0.001))
    tries = []

    async def pop(topic, broker):
        tries.append(topic)
        raise Unreachable("away")

    async with popping(store_path) as (broker, _):
        consumer = broker.async_consumer("away", "T", mode="pop")
        consumer._member.popping._pop = pop
        async with consumer:
            await until_async(lambda: len(tries) >= 5)
    assert [each.levelname for each in caplog.records if "cannot pop" in each.msg] == ["WARNING"]


async def test_what_is_not_acknowledged_comes_again_and_extend_keeps_it(store_path):
    async with popping(store_path) as (broker, producer):
        await producer.send(Message("T", b"kept"))
        await producer.send(Message("T", b"left"))
        async with consumer_of(broker, invisible_s=30, poll_wait_s=2) as consumer:
            found = {}
            while len(found) < 2:
                found |= {m.body: m for m in await consumer.poll()}
            await consumer.extend(found[b"kept"], 100)
            shift(broker, 31_000)
            again = []
            while not again:
                again = await consumer.poll()
            assert [(m.body, m.attempt, m.topic) for m in again] == [(b"left", 2, "T")]
            with pytest.raises(BrokerRefused):
                await consumer.extend(found[b"left"], 100)
            consumer.ack(found[b"kept"], again[0])
            await until_async(lambda: not len(broker.services.pop.points))
            with pytest.raises(Misuse):
                await consumer.extend(again[0], 100)


async def test_whoever_leaves_messages_to_come_again_gets_the_others(store_path):
    """More than one pop brings, none of them acknowledged; and each of them again."""
    async with popping(store_path) as (broker, producer):
        for n in range(80):
            await producer.send(Message("T", b"%d" % n))
        found, again = set(), set()
        async with consumer_of(broker, invisible_s=0.3) as consumer:
            while len(again) < 80:
                for message in await consumer.poll(0.1):
                    (again if message.body in found else found).add(message.body)
                    if message.body in again:
                        consumer.ack(message)
        assert len(found) == 80


async def test_a_handler_that_fails_gets_the_message_again_after_its_delay(store_path):
    async with popping(store_path) as (broker, producer):
        attempts = []

        async def handle(message):
            attempts.append(message.attempt)
            if message.attempt == 1:
                raise RetryLater(4)

        async with consumer_of(broker, handler=handle, poll_wait_s=2):
            await producer.send(Message("T", b"x"))
            points = broker.services.pop.points
            await until_async(lambda: [ck.invisible_ms for ck in points] == [30_000])
            shift(broker, 31_000)
            await until_async(lambda: attempts == [1, 2] and not len(points))


async def test_a_message_that_came_too_often_is_a_dead_letter(store_path):
    async with popping(store_path) as (broker, producer):

        async def handle(message):
            raise RetryLater

        async with consumer_of(broker, handler=handle, max_retries=0):
            await producer.send(Message("T", b"x"))
            store = broker.store
            await until_async(lambda: store.range("%DLQ%g", 0)[1] == 1)
            await until_async(lambda: not len(broker.services.pop.points))


@pytest.mark.parametrize(
    "wrong",
    [
        {"broadcast": True},
        {"orderly": True},
        {"start": 5},
        {"invisible_s": 0},
        {"mode": "push"},
    ],
)
def test_what_pop_cannot_do_is_said_at_once(wrong):
    from broker.client.consumer import AsyncConsumer

    with pytest.raises(Misuse):
        AsyncConsumer("g", "T", namesrv="127.0.0.1:1", **({"mode": "pop"} | wrong))


def test_the_twin_for_threads(store_path):
    with Broker(store_path, **SMALL) as broker:
        with broker.producer("p") as producer:
            producer.send(Message("T", b"1"))
            with broker.consumer("g", "T", mode="pop", start="first") as consumer:
                (message,) = until(lambda: consumer.poll(timeout_s=1))
                consumer.extend(message, 60)
                with pytest.raises(Misuse):
                    consumer.pause()
                consumer.ack(message)
        until(lambda: not len(broker.services.pop.points))
