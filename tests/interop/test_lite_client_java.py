"""Our clients send to lite topics and receive from them, at Apache RocketMQ 5.5.0 and at ours."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Iterator
from itertools import count

import launch
import pytest
from admin import Admin as MqAdmin
from waiting import BOUND_S

from broker import (
    Admin,
    AsyncLiteConsumer,
    AsyncProducer,
    LiteConsumer,
    LiteQuotaExceeded,
    Message,
    Misuse,
    OffsetOption,
    Producer,
    RetryLater,
)

pytestmark = pytest.mark.long

#: Lite topics of a broker of either make need these; small files, since each lite topic has one.
SETTINGS = {
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "mappedFileSizeConsumeQueue": 6000,
}
TOPIC = "sessions"
_numbers = count()


def group_of(peer: launch.Peer, **attributes: str) -> str:
    """A new group, bound to the parent; attributes with _ for the dots."""
    name = f"agents-{next(_numbers)}"
    said = {"lite.bind.topic": TOPIC} | {k.replace("_", "."): v for k, v in attributes.items()}
    with Admin(peer.namesrv) as admin:
        admin.create_group(name, attributes=said)
    return name


def topic_of(peer: launch.Peer, name: str, kind: str) -> None:
    with Admin(peer.namesrv) as admin:
        admin.create_topic(name, queues=4, attributes={"message.type": kind})
    launch.wait(
        "the topic", lambda: launch.ask(peer.namesrv, launch.ROUTE, {"topic": name})[0] == 0
    )


@pytest.fixture(
    scope="module", params=["ours", pytest.param("java", id="apache-5.5.0", marks=pytest.mark.java)]
)
def lite_peer(request, tmp_path_factory) -> Iterator[launch.Peer]:
    if request.param == "java":
        request.getfixturevalue("reference")
        os.environ.setdefault("HEAP", "384m")
    folder = tmp_path_factory.mktemp("lite")
    with launch.running(request.param, folder / "peer", SETTINGS, "5.5.0") as peer:
        topic_of(peer, TOPIC, "LITE")
        topic_of(peer, "plain", "NORMAL")
        yield peer


@pytest.fixture
def name() -> str:
    """A lite topic that nothing was sent to."""
    return f"session-{next(_numbers)}"


async def send(peer: launch.Peer, name: str, *bodies: bytes) -> None:
    async with AsyncProducer("supervisor", peer.namesrv) as producer:
        for body in bodies:
            await producer.send(Message(TOPIC, body, lite_topic=name))


async def bodies(consumer: AsyncLiteConsumer, wanted: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(BOUND_S):
        async for message in consumer:
            found.append(message.body)
            if len(found) == wanted:
                consumer.ack(message)
                break
    return found


async def test_each_lite_topic_has_its_order(lite_peer, name):
    other = f"{name}b"
    async with AsyncLiteConsumer(group_of(lite_peer), TOPIC, lite_peer.namesrv) as consumer:
        await consumer.subscribe([name, other])
        await send(lite_peer, name, b"1", b"2", b"3")
        await send(lite_peer, other, b"4", b"5")
        found: dict[str, list[bytes]] = {name: [], other: []}
        async with asyncio.timeout(BOUND_S):
            async for message in consumer:
                found[message.lite_topic].append(message.body)
                if sum(map(len, found.values())) == 5:
                    break
    assert found == {name: [b"1", b"2", b"3"], other: [b"4", b"5"]}


async def test_handlers_get_one_message_of_a_lite_topic_at_a_time(lite_peer, name):
    at_once, most, seen = 0, 0, []

    async def handle(message):
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.02)
        at_once -= 1
        seen.append(message.body)

    wanted = [b"%d" % n for n in range(8)]
    await send(lite_peer, name, *wanted)
    consumer = AsyncLiteConsumer(group_of(lite_peer), TOPIC, lite_peer.namesrv, handler=handle)
    async with consumer, asyncio.timeout(BOUND_S):
        await consumer.subscribe(name)
        while len(seen) < len(wanted):
            await asyncio.sleep(0.02)
    assert (seen, most) == (wanted, 1)


async def test_a_nack_brings_the_message_again_and_what_followed_it(lite_peer, name):
    await send(lite_peer, name, b"1", b"2", b"3")
    seen = []
    async with AsyncLiteConsumer(group_of(lite_peer), TOPIC, lite_peer.namesrv) as consumer:
        await consumer.subscribe(name)
        async with asyncio.timeout(BOUND_S):
            async for message in consumer:
                seen.append((message.body, message.attempt))
                if message.body == b"2" and message.attempt == 1:
                    await consumer.nack(message, 0.5)
                if message.body == b"3":
                    break
    assert seen == [(b"1", 1), (b"2", 1), (b"2", 2), (b"3", 1)]


async def test_a_message_that_fails_too_often_is_a_dead_letter_and_the_next_comes(lite_peer, name):
    group, seen = group_of(lite_peer), []

    async def handle(message):
        seen.append((message.body, message.attempt))
        if message.body == b"bad":
            raise RetryLater(-1 if message.attempt == 2 else 1)

    await send(lite_peer, name, b"bad", b"good")
    consumer = AsyncLiteConsumer(group, TOPIC, lite_peer.namesrv, handler=handle)
    async with consumer, asyncio.timeout(BOUND_S):
        await consumer.subscribe(name)
        while (b"good", 1) not in seen:
            await asyncio.sleep(0.02)
    assert seen == [(b"bad", 1), (b"bad", 2), (b"good", 1)]
    fields = {"topic": f"%DLQ%{group}", "queueId": "0"}
    assert launch.ask(lite_peer.broker, 30, fields)[1] == {"offset": "1"}


async def test_another_client_of_an_exclusive_group_takes_over_and_the_first_is_told(
    lite_peer, name
):
    group, lost = group_of(lite_peer, lite_sub_model="Exclusive"), asyncio.Queue()
    first = AsyncLiteConsumer(group, TOPIC, lite_peer.namesrv, on_taken_over=lost.put_nowait)
    second = AsyncLiteConsumer(group, TOPIC, lite_peer.namesrv)
    async with first, second:
        await first.subscribe(name)
        await second.subscribe(name)
        assert await asyncio.wait_for(lost.get(), BOUND_S) == name
        assert (first.lite_topics, second.lite_topics) == (frozenset(), {name})
        await send(lite_peer, name, b"1")
        assert await bodies(second, 1) == [b"1"]


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        (OffsetOption.MIN, [b"0", b"1", b"2", b"3", b"new"]),
        (OffsetOption.MAX, [b"new"]),
        (OffsetOption.of_offset(1), [b"1", b"2", b"3", b"new"]),
        # From where the group is, which is behind 3.
        (OffsetOption.of_tail_n(2), [b"2", b"3", b"new"]),
        (OffsetOption.LAST, [b"new"]),
        (OffsetOption.of_timestamp(1), [b"0", b"1", b"2", b"3", b"new"]),
    ],
    ids=repr,
)
async def test_a_subscription_says_where_the_group_continues(lite_peer, name, start, wanted):
    if lite_peer.make == "java" and start == OffsetOption.of_timestamp(1):
        wanted = [b"new"]  # Apache 5.5.0 takes a timestamp and does nothing
    await send(lite_peer, name, b"0", b"1", b"2", b"3")
    async with AsyncLiteConsumer(group_of(lite_peer), TOPIC, lite_peer.namesrv) as consumer:
        await consumer.subscribe(name)
        assert await bodies(consumer, 4) == [b"0", b"1", b"2", b"3"]
        await consumer.unsubscribe(name)
        await consumer._member._popping.acknowledged()
        await consumer.subscribe(name, start)
        await send(lite_peer, name, b"new")
        assert await bodies(consumer, len(wanted)) == wanted


async def test_nothing_comes_of_a_lite_topic_that_was_left(lite_peer, name):
    other = f"{name}b"
    async with AsyncLiteConsumer(group_of(lite_peer), TOPIC, lite_peer.namesrv) as consumer:
        await consumer.subscribe([name, other])
        await consumer.unsubscribe(name)
        await send(lite_peer, name, b"left")
        await send(lite_peer, other, b"kept")
        assert await bodies(consumer, 1) == [b"kept"]
        await consumer.subscribe(name)
        assert await bodies(consumer, 1) == [b"left"]


async def test_another_client_goes_on_where_the_one_that_closed_was(lite_peer, name):
    """At once: what the first had taken and not done is given back when it closes."""
    group = group_of(lite_peer)
    await send(lite_peer, name, b"1", b"2", b"3")
    async with AsyncLiteConsumer(group, TOPIC, lite_peer.namesrv, invisible_s=600) as consumer:
        await consumer.subscribe(name)
        assert await bodies(consumer, 1) == [b"1"]
    async with AsyncLiteConsumer(group, TOPIC, lite_peer.namesrv) as consumer:
        await consumer.subscribe(name)
        assert await bodies(consumer, 2) == [b"2", b"3"]


async def test_what_takes_long_stays_with_its_client(lite_peer, name):
    """Beyond invisible_s: nobody gets it a second time, as in Apache's proxy (D4)."""
    group, seen = group_of(lite_peer), []

    async def handle(message):
        seen.append(message.body)
        if message.body == b"slow":
            await asyncio.sleep(5)

    await send(lite_peer, name, b"slow", b"next")
    options = {"handler": handle, "invisible_s": 1.5}
    one = AsyncLiteConsumer(group, TOPIC, lite_peer.namesrv, **options)
    two = AsyncLiteConsumer(group, TOPIC, lite_peer.namesrv, **options)
    async with one, two, asyncio.timeout(BOUND_S):
        await one.subscribe(name)
        await two.subscribe(name)
        while b"next" not in seen:
            await asyncio.sleep(0.05)
    assert seen == [b"slow", b"next"]


async def test_quotas_are_named(lite_peer, name):
    group = group_of(lite_peer, lite_sub_client_quota="2")
    async with AsyncLiteConsumer(group, TOPIC, lite_peer.namesrv) as consumer:
        await consumer.subscribe([f"{name}a", f"{name}b"])
        with pytest.raises(LiteQuotaExceeded, match="2 that a client"):
            await consumer.subscribe(name)
        assert consumer.lite_topics == {f"{name}a", f"{name}b"}


async def test_a_group_or_topic_that_cannot_work_is_refused_at_the_start(lite_peer):
    for group, topic, why in (
        ("nobody", TOPIC, "bound to no topic"),
        (group_of(lite_peer), "plain", "not of type LITE"),
    ):
        with pytest.raises(Misuse, match=why):
            await AsyncLiteConsumer(group, topic, lite_peer.namesrv).start()


def test_the_twin_for_threads(lite_peer, name):
    with (
        LiteConsumer(group_of(lite_peer), TOPIC, lite_peer.namesrv) as consumer,
        Producer("supervisor", lite_peer.namesrv) as producer,
    ):
        consumer.subscribe(name)
        for body in (b"1", b"2"):
            producer.send(Message(TOPIC, body, lite_topic=name))
        seen = []
        for message in consumer:
            seen.append((message.lite_topic, message.body, message.attempt))
            if message.body == b"1" and message.attempt == 1:
                consumer.nack(message, 0.2)
            if message.body == b"2":
                break
    assert seen == [(name, b"1", 1), (name, b"1", 2), (name, b"2", 1)]


async def test_subscriptions_survive_the_brokers_death(lite_peer, name, caplog):
    """The broker forgets them; the client tells them as soon as it is back."""
    caplog.set_level(logging.CRITICAL, "broker.client")
    async with AsyncLiteConsumer(group_of(lite_peer), TOPIC, lite_peer.namesrv) as consumer:
        await consumer.subscribe(name)
        await send(lite_peer, name, b"before")
        assert await bodies(consumer, 1) == [b"before"]
        await consumer._member._popping.acknowledged()
        lite_peer.kill()
        lite_peer.restart()
        await asyncio.to_thread(lite_peer.wait_ready)
        await send(lite_peer, name, b"after")
        async with asyncio.timeout(BOUND_S):
            async for message in consumer:  # the other one, too, when its commit was not on disk
                if message.body == b"after":
                    break


async def test_mqadmin_shows_lite_topics(lite_peer, name, tmp_path, monkeypatch):
    """Its six sub-commands of 5.5.0, of a broker of either make."""
    monkeypatch.setenv("RMQ_VERSION", "5.5.0")
    group = group_of(lite_peer)
    await send(lite_peer, name, b"1", b"2", b"3")
    mqadmin = MqAdmin(lite_peer.namesrv, tmp_path)
    try:
        async with AsyncLiteConsumer(group, TOPIC, lite_peer.namesrv) as consumer:
            await consumer.subscribe(name)
            assert await bodies(consumer, 1) == [b"1"]
            of = ("-p", TOPIC, "-g", group)

            def said(verb, *words):
                return " ".join(mqadmin(verb, *words).split())

            broker = await asyncio.to_thread(
                said, "getBrokerLiteInfo", "-b", lite_peer.broker, "-d"
            )
            assert f'"{group}"' in broker and f'Topic Meta: {{"{TOPIC}":-1' in broker
            parent = await asyncio.to_thread(said, "getParentTopicInfo", "-p", TOPIC)
            assert group in parent and f"Parent Topic Info: [{TOPIC}]" in parent
            topic = await asyncio.to_thread(said, "getLiteTopicInfo", "-p", TOPIC, "-l", name, "-s")
            ends = re.search(r" 0 3 \d{4}-\S+ \S+ true 1 \[(\S+)@(\S+)\]", topic)
            assert ends is not None and ends[2] == group, topic
            client = await asyncio.to_thread(said, "getLiteClientInfo", *of, "-c", ends[1], "-s")
            assert f"[%LMQ%${TOPIC}${name}]" in client
            found = await asyncio.to_thread(said, "getLiteGroupInfo", *of, "-k", 5)
            assert re.search(rf"Total Lag Count: [23] .* 1 {name} [23] ", found), found
            one = await asyncio.to_thread(said, "getLiteGroupInfo", *of, "-l", name)
            assert re.search(r" 3 [01] [23] ", one), one
            assert "dispatched" in await asyncio.to_thread(said, "triggerLiteDispatch", *of)
    finally:
        mqadmin.close()
