"""Receiving: loops, handlers, lite pull, broadcasting, filters, retries, groups that change."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from loops import until
from waiting import BOUND_S, settled_async

from broker import (
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    Message,
    Producer,
    RetryLater,
    Sql,
)
from broker.client import BrokerRefused, Misuse, NoRoute
from broker.wire.codes import RequestCode


async def send(server, topic, *bodies, **fields):
    """The results."""
    async with AsyncProducer("producers", server.namesrv) as producer:
        return [await producer.send(Message(topic, body, **fields)) for body in bodies]


async def take(consumer, count):
    """The next messages, acknowledged."""
    found = []
    async with asyncio.timeout(BOUND_S):
        while len(found) < count:
            found += (got := await consumer.poll(1.0))
            consumer.ack(*got)
    return found


def consumer_of(server, group, *topics, start="first", **options):
    return AsyncConsumer(group, *topics, namesrv=server.namesrv, start=start, **options)


async def dead_letter(server, name, group):
    """The first one of a group, once there is one."""
    async with consumer_of(server, name("undertaker")) as reader:
        while True:
            try:
                await reader.assign(await reader.queues(f"%DLQ%{group}"))
                break
            except NoRoute:
                await asyncio.sleep(0.05)
        return (await take(reader, 1))[0]


def numbers(count):
    return [b"%d" % n for n in range(count)]


# ---- loops and offsets ----


async def test_a_group_goes_on_where_it_stopped(server, name):
    topic, group = name("topic"), name("group")
    await send(server, topic, *numbers(10))
    async with consumer_of(server, group, topic) as consumer:
        first = await take(consumer, 10)
    await send(server, topic, b"later")
    async with consumer_of(server, group, topic) as consumer:
        (second,) = await take(consumer, 1)
    assert sorted(m.body for m in first) == sorted(numbers(10))
    assert second.body == b"later"


async def test_what_is_not_done_comes_again(server, name):
    """A loop that is left in the middle of a message has not done it."""
    topic, group = name("topic"), name("group")
    (result,) = await send(server, topic, b"first")
    async with AsyncProducer("p", server.namesrv) as producer:
        await producer.send(Message(topic, b"second"), queue=result.queue)
    async with consumer_of(server, group, topic) as consumer:
        with pytest.raises(ZeroDivisionError):
            async for message in consumer:
                if message.body == b"second":
                    raise ZeroDivisionError
    async with consumer_of(server, group, topic) as consumer:
        (again,) = await take(consumer, 1)
    assert again.body == b"second"


def test_the_blocking_twin_iterates(server, name):
    topic, group = name("topic"), name("group")
    with Producer("p", server.namesrv) as producer:
        producer.send_batch([Message(topic, body) for body in numbers(200)])
    with Consumer(group, topic, namesrv=server.namesrv, start="first") as consumer:
        found = [message.body for _, message in zip(range(200), consumer, strict=False)]
        consumer.commit()
    assert sorted(found) == sorted(numbers(200))
    with Consumer(group, topic, namesrv=server.namesrv, start="first") as consumer:
        left = consumer.poll(0.3)
        # The last message was not followed by the question for another one.
        assert [m.body for m in left] in ([], [found[-1]])


async def test_batches_bring_all_that_waits(server, name):
    topic = name("topic")
    async with AsyncProducer("p", server.namesrv) as producer:
        await producer.send_batch([Message(topic, body) for body in numbers(500)])
    found = []
    async with consumer_of(server, name("group"), topic) as consumer:
        async for batch in consumer.batches():
            found += [m.body for m in batch]
            if len(found) == 500:
                break
    assert sorted(found) == sorted(numbers(500))


async def test_where_a_new_group_begins(server, name):
    topic = name("topic")
    await send(server, topic, b"old")
    await asyncio.sleep(0.05)
    between_ms = time.time_ns() // 1_000_000
    await asyncio.sleep(0.05)
    await send(server, topic, b"new")
    found = {}
    for start in ("first", between_ms):
        async with consumer_of(server, name(f"group-{start}"), start=start) as consumer:
            queues = await consumer.queues(topic)
            await consumer.assign(queues)
            found[start] = {m.body for m in await take(consumer, 2 if start == "first" else 1)}
    assert found == {"first": {b"old", b"new"}, between_ms: {b"new"}}


async def grown(server, topic, queues):
    """The topic has so many queues from now on, and the last of them a message."""
    async with AsyncAdmin(server.namesrv) as admin:
        await admin.create_topic(topic, queues=queues)
    async with AsyncProducer("producers", server.namesrv, route_poll_s=0.05) as producer:
        async with asyncio.timeout(BOUND_S):
            while len(there := await producer.queues(topic)) < queues:
                await asyncio.sleep(0.05)
        await producer.send(Message(topic, b"in the new one"), queue=max(there))


async def test_a_queue_that_comes_later_is_read_from_its_beginning(server, name):
    """By a group that started at the end, whether a member was there or none."""
    topic, group = name("topic"), name("group")
    await send(server, topic, b"old")
    async with consumer_of(server, group, topic, start="last", route_poll_s=0.1) as consumer:
        assert await consumer.poll(0.1) == []
        await grown(server, topic, 9)
        assert [m.body for m in await take(consumer, 1)] == [b"in the new one"]
    await grown(server, topic, 10)
    async with consumer_of(server, group, topic, start="last") as consumer:
        assert [m.body for m in await take(consumer, 1)] == [b"in the new one"]
    async with consumer_of(server, name("newcomer"), topic, start="last") as consumer:
        assert await consumer.poll(0.5) == [], "the end is where a new group begins"


# ---- filters ----


async def test_only_wanted_tags_come(server, name):
    topic = name("topic")
    for tag in ("AaAa", "BBBB", "c"):  # the first two have one hash
        await send(server, topic, tag.encode(), tags=tag)
    async with consumer_of(server, name("group"), {topic: "AaAa || c"}) as consumer:
        assert {m.body for m in await take(consumer, 2)} == {b"AaAa", b"c"}


async def test_sql_selects_by_properties(server, name):
    topic = name("topic")
    await send(server, topic, b"small", properties={"total": "5"})
    await send(server, topic, b"large", properties={"total": "50"})
    async with consumer_of(server, name("group"), {topic: Sql("total > 10")}) as consumer:
        assert [m.body for m in await take(consumer, 1)] == [b"large"]
    with pytest.raises(BrokerRefused) as refused:
        async with consumer_of(server, name("group"), {topic: Sql("total >")}):
            pass
    assert refused.value.code == 23


# ---- handlers, retries, dead letters ----


async def test_a_handler_gets_every_message(server, name):
    topic = name("topic")
    await send(server, topic, *numbers(50))
    seen, most = set(), [0, 0]

    async def handle(message):
        most[0] += 1
        most[1] = max(most)
        await asyncio.sleep(0.001)
        seen.add(message.body)
        most[0] -= 1

    async with consumer_of(server, name("g"), topic, handler=handle, concurrency=3):
        await until(lambda: len(seen) == 50)
    assert most[1] == 3


async def test_a_failed_message_comes_again_and_then_is_a_dead_letter(server, name):
    topic, group = name("topic"), name("group")
    await send(server, topic, b"bad", keys="order-17")
    seen = []

    async def handle(message):
        seen.append((message.attempt, message.topic, message.keys, message.body))
        raise ValueError("it cannot be read")

    async with consumer_of(server, group, topic, handler=handle, max_retries=1):
        await until(lambda: len(seen) == 2)
        letter = await dead_letter(server, name, group)
    assert seen == [(n, topic, ["order-17"], b"bad") for n in (1, 2)]
    assert (letter.body, letter.attempt) == (b"bad", 3)


async def test_nack_gives_a_message_to_the_group_again(server, name):
    topic, group = name("topic"), name("group")
    (sent,) = await send(server, topic, b"once more")
    async with consumer_of(server, group, topic) as consumer:
        (first,) = await consumer.poll(BOUND_S)
        await consumer.nack(first, delay_level=1)
        (again,) = await take(consumer, 1)
        assert (again.attempt, again.topic) == (2, topic)
        assert first.message_id == again.message_id == sent.message_id
        assert consumer.position(first.queue) == first.queue_offset + 1


def test_a_handler_in_threads_may_ask_for_another_time(server, name):
    topic, seen = name("topic"), []

    def handle(message):
        seen.append((message.attempt, threading.current_thread().name[:16]))
        if message.attempt == 1:
            raise RetryLater(1)

    with Producer("p", server.namesrv) as producer:
        producer.send(Message(topic, b"x"))
    with Consumer(name("g"), topic, namesrv=server.namesrv, start="first", handler=handle):
        end = time.monotonic() + BOUND_S
        while len(seen) < 2 and time.monotonic() < end:
            time.sleep(0.01)
    assert seen == [(1, "rocketmq-handler"), (2, "rocketmq-handler")]


async def test_an_orderly_handler_keeps_each_queues_order(server, name):
    topic = name("topic")
    async with AsyncProducer("p", server.namesrv) as producer:
        for n in range(40):
            await producer.send(Message(topic, b"%d" % n), key=f"k{n % 4}")
    seen, failed = {}, []

    async def handle(message):
        if message.body in (b"5", b"8") and message.body not in failed:
            failed.append(message.body)
            raise ValueError
        await asyncio.sleep(0.001)
        seen.setdefault(message.queue, []).append(message.queue_offset)

    async with consumer_of(server, name("g"), topic, handler=handle, orderly=True):
        await until(lambda: sum(map(len, seen.values())) == 40)
    assert len(failed) == 2
    for offsets in seen.values():
        assert offsets == list(range(len(offsets)))


@pytest.mark.parametrize("closes", [False, True])
async def test_an_orderly_message_under_way_as_its_queue_goes_comes_once(server, name, closes):
    """Whoever takes the queue over begins after it, also if its member closes meanwhile."""
    topic, group, seen = name("topic"), name("group"), []
    begun, may_end = asyncio.Event(), asyncio.Event()
    async with AsyncProducer("p", server.namesrv) as producer:
        sent = [await producer.send(Message(topic, body), key="k") for body in numbers(3)]

    async def slow(message):
        seen.append(message.body)
        begun.set()
        await may_end.wait()

    async def handle(message):
        seen.append(message.body)

    def all_or_none(queues, clients, own):
        return queues if len(clients) == 1 else ()

    one = consumer_of(server, group, topic, handler=slow, orderly=True, strategy=all_or_none)
    async with one:
        await begun.wait()
        options = {"orderly": True, "strategy": lambda queues, *_: queues}
        async with consumer_of(server, group, topic, handler=handle, **options):
            await until(lambda: sent[0].queue not in one._member._pullers)  # it is on its way
            ending = asyncio.create_task(one.close() if closes else asyncio.sleep(0))
            await asyncio.sleep(0.05)
            may_end.set()
            await ending
            await until(lambda: len(seen) >= 3)
    assert seen == numbers(3)


async def test_a_member_that_closes_while_queues_are_divided_gives_their_locks_back(server, name):
    """Others would wait for a minute."""
    topic, group, asked = name("topic"), name("group"), asyncio.Event()
    await send(server, topic, b"x")

    async def never(queue):
        asked.set()
        await asyncio.Event().wait()

    one = consumer_of(server, group, topic, handler=print, orderly=True)
    one._member.start_offset = never
    starting = asyncio.create_task(one.start())
    await asked.wait()
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    async with consumer_of(server, group) as other:
        queues = set(await other.queues(topic))
        assert await other._member._rebalancer._lock(queues) == queues


async def test_an_orderly_message_counts_attempts_and_is_a_dead_letter_after_the_last(
    server, name, monkeypatch
):
    monkeypatch.setattr("broker.client.handling.ORDERLY_PAUSE_S", 0.01)
    topic, group, seen = name("topic"), name("group"), []
    await send(server, topic, b"bad")

    async def handle(message):
        seen.append(message.attempt)
        raise RetryLater

    options = {"handler": handle, "orderly": True, "max_retries": 2}
    async with consumer_of(server, group, topic, **options):
        letter = await dead_letter(server, name, group)
    assert seen == [1, 2, 3]
    assert (letter.body, letter.attempt) == (b"bad", 4)


async def test_attempts_count_while_no_broker_takes_a_message_back(server, name, monkeypatch):
    monkeypatch.setattr("broker.client.handling.AGAIN_S", 0.01)
    topic, seen = name("topic"), []
    async with AsyncProducer("p", server.namesrv) as producer:  # no room for where it came from
        await producer.send(Message(topic, b"x", properties={"much": "y" * 32_600}))

    async def handle(message):
        seen.append(message.attempt)
        if message.attempt < 3:
            raise RetryLater

    async with consumer_of(server, name("g"), topic, handler=handle):
        await until(lambda: len(seen) == 3)
    assert seen == [1, 2, 3]


async def test_a_handler_that_never_returns_does_not_hold_the_queue(server, name):
    topic = name("topic")
    await send(server, topic, b"x")
    seen = []

    async def handle(message):
        seen.append(message.attempt)
        if message.attempt == 1:
            await asyncio.Event().wait()

    async with consumer_of(server, name("g"), topic, handler=handle, handler_timeout_s=0.3):
        await until(lambda: seen == [1, 2])


# ---- lite pull ----


async def test_assigned_queues_are_sought_and_committed_by_hand(server, name):
    topic, group = name("topic"), name("group")
    (result,) = await send(server, topic, b"0")
    queue = result.queue
    async with AsyncProducer("p", server.namesrv) as producer:
        for n in range(1, 6):
            await producer.send(Message(topic, b"%d" % n), queue=queue)
    async with consumer_of(server, group, auto_commit_s=0) as consumer:
        await consumer.assign([queue])
        assert consumer.assignment == {queue}
        assert [m.body for m in await take(consumer, 6)] == numbers(6)
        assert await consumer.committed(queue) is None
        await consumer.seek(queue, 4)
        assert [m.body for m in await take(consumer, 2)] == [b"4", b"5"]
        await consumer.seek(queue, 2)
        (await take(consumer, 1))
        await consumer.seek(queue, 3)
        await consumer.commit()
        assert await consumer.committed(queue) == 3
        assert (await consumer.min_offset(queue), await consumer.max_offset(queue)) == (0, 6)
        with pytest.raises(Misuse, match="exclude"):
            await consumer.subscribe(topic)
        with pytest.raises(Misuse, match="seek"):
            await consumer.nack((await consumer.poll(BOUND_S))[0])
        with pytest.raises(Misuse, match="not assigned"):
            consumer.position(queue._replace(queue=99))


def slow_commits(consumer, monkeypatch):
    """What the broker is told, queue and offset, and what it waits for."""
    told, goes_on, request = [], asyncio.Event(), consumer._member.network.request

    async def slow(address, code, fields, *rest, **more):
        if code == RequestCode.UPDATE_CONSUMER_OFFSET:
            told.append((fields["queueId"], fields["commitOffset"]))
            await goes_on.wait()
        return await request(address, code, fields, *rest, **more)

    monkeypatch.setattr(consumer._member.network, "request", slow)
    return told, goes_on


async def test_commits_of_a_queue_follow_each_other(server, name, monkeypatch):
    """Apache's broker serves one connection by many threads: the older of two could come last."""
    (result,) = await send(server, name("topic"), b"0")
    async with consumer_of(server, name("group"), auto_commit_s=0) as consumer:
        told, goes_on = slow_commits(consumer, monkeypatch)
        await consumer.assign([result.queue])
        older = asyncio.create_task(consumer.commit())
        await until(lambda: told)
        await take(consumer, 1)
        newer = asyncio.create_task(consumer.commit())
        assert await settled_async(lambda: len(told)) == 1
        goes_on.set()
        await asyncio.gather(older, newer)
        assert [offset for _, offset in told] == [0, 1]
        assert await consumer.committed(result.queue) == 1


async def test_the_first_commit_of_a_topic_goes_alone(server, name, monkeypatch):
    """Of two first ones at once Apache's broker may keep one, and the other queue comes again."""
    topic, group = name("topic"), name("group")
    await send(server, topic, b"0")
    async with consumer_of(server, group, auto_commit_s=0) as consumer:
        told, goes_on = slow_commits(consumer, monkeypatch)
        queues = await consumer.queues(topic)
        await consumer.assign(queues)
        committing = asyncio.create_task(consumer.commit())
        await until(lambda: told)
        assert await settled_async(lambda: len(told)) == 1
        goes_on.set()
        await committing
        assert sorted(queue for queue, _ in told) == sorted(each.queue for each in queues)


async def test_paused_queues_bring_nothing_until_they_are_resumed(server, name):
    topic = name("topic")
    (result,) = await send(server, topic, b"before")
    async with consumer_of(server, name("g"), poll_wait_s=0.2) as consumer:
        await consumer.assign([result.queue])
        await take(consumer, 1)
        consumer.pause()
        async with AsyncProducer("p", server.namesrv) as producer:
            await producer.send(Message(topic, b"after"), queue=result.queue)
        assert await consumer.poll(0.5) == []
        consumer.resume()
        assert [m.body for m in await take(consumer, 1)] == [b"after"]


async def test_the_buffer_of_a_queue_is_bounded(server, name):
    topic = name("topic")
    async with AsyncProducer("p", server.namesrv, create_queues=1) as producer:
        await producer.send_batch([Message(topic, body) for body in numbers(300)])
    async with consumer_of(server, name("g"), topic, buffer_messages=50, pull_batch=10) as consumer:
        await until(lambda: len(consumer._member.ready) >= 50)
        await asyncio.sleep(0.1)
        assert len(consumer._member.ready) < 60
        assert len(await take(consumer, 300)) == 300


# ---- members ----


async def test_members_divide_the_queues_and_take_over(server, name):
    topic, group = name("topic"), name("group")
    await send(server, topic, b"x")
    told = []
    options = {
        "on_assigned": lambda queues: told.append(("assigned", len(queues))),
        "on_revoked": lambda queues: told.append(("revoked", len(queues))),
    }

    def mine(consumer):
        return {q for q in consumer.assignment if q.topic == topic}

    async with consumer_of(server, group, topic, **options) as one:
        await until(lambda: len(mine(one)) == 4)
        async with consumer_of(server, group, topic) as two:
            await until(lambda: len(mine(one)) == 2 and len(mine(two)) == 2)
            assert not mine(one) & mine(two)
        await until(lambda: len(mine(one)) == 4)
    assert ("assigned", 4) in told
    assert ("revoked", 2) in told


async def test_nothing_is_lost_when_members_come_and_go(server, name):
    topic, group = name("topic"), name("group")
    await send(server, topic, b"x")
    seen = set()

    async def handle(message):
        await asyncio.sleep(0.0005)
        seen.add(message.body)

    async def sending():
        async with AsyncProducer("p", server.namesrv) as producer:
            for n in range(400):
                await producer.send(Message(topic, b"%d" % n))

    task = asyncio.create_task(sending())
    async with consumer_of(server, group, topic, handler=handle):
        for _ in range(2):
            async with consumer_of(server, group, topic, handler=handle):
                await asyncio.sleep(0.3)
        await task
        await until(lambda: len(seen) == 401)


async def test_broadcasting_reaches_everybody_and_remembers_in_a_file(server, name, tmp_path):
    topic, group = name("topic"), name("group")
    await send(server, topic, *numbers(8))
    for member in ("a", "b"):
        folder = str(tmp_path / member)
        options = {"broadcast": True, "offsets_folder": folder}
        async with consumer_of(server, group, topic, **options) as consumer:
            found = await take(consumer, 8)
            with pytest.raises(Misuse, match="broadcasting"):
                await consumer.nack(found[0])
        assert sorted(m.body for m in found) == numbers(8)
        async with consumer_of(server, group, topic, **options) as consumer:
            assert await consumer.poll(0.5) == []
        assert (
            (tmp_path / member / group / "offsets.json")
            .read_text()
            .startswith('{"offsetTable":{{"brokerName":')
        )


async def test_a_topic_may_be_added_and_given_up(server, name):
    one, two, group = name("one"), name("two"), name("group")
    await send(server, one, b"1")
    await send(server, two, b"2")
    async with consumer_of(server, group, one) as consumer:
        assert [m.body for m in await take(consumer, 1)] == [b"1"]
        await consumer.subscribe(two)
        assert [m.body for m in await take(consumer, 1)] == [b"2"]
        await consumer.unsubscribe(one)
        assert {q.topic for q in consumer.assignment} <= {two, f"%RETRY%{group}"}


async def test_another_expression_counts_for_queues_that_are_held(server, name):
    """The pulls that wait at the broker still have the old one."""
    topic = name("topic")
    async with AsyncProducer("p", server.namesrv) as producer:
        await producer.send(Message(topic, b"0", tags="a"))
        async with AsyncConsumer(
            name("g"), {topic: "a || b"}, namesrv=server.namesrv, start="first"
        ) as consumer:
            assert [m.body for m in await consumer.poll(BOUND_S)] == [b"0"]
            await consumer.subscribe(topic, "a")
            for n in range(20):
                await producer.send(Message(topic, b"%d" % n, tags="b"))
            await producer.send(Message(topic, b"last", tags="a"))
            assert [m.body for m in await consumer.poll(BOUND_S)] == [b"last"]
