"""Sends to a broker in the same process, which need no bytes between: the same messages, waits,
refusals and hand-overs as through a socket."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest
from held import Disk
from loops import run, until
from waiting import BOUND_S

from broker import Broker, Credentials, Message, SendStatus
from broker.client import AlreadyClosed, ClientError, SendFailed
from broker.client.errors import InvalidMessage
from broker.client.faults import FaultTable
from broker.remoting.loopback import _End
from pystore import TopicConfig

BOSS = Credentials("boss", "boss-secret")
ACCESS = {
    "authenticationEnabled": True, "authorizationEnabled": True,
    "initAuthenticationUser": '{"username":"boss","password":"boss-secret"}',
}  # fmt: skip


@pytest.fixture
def settings(small):
    return small | {"listenPort": 0, "drain_s": 0.0}


@contextlib.asynccontextmanager
async def broker_and_producer(tmp_path, settings, **options):
    """Both on one loop, and one message sent: from now on the connection is there."""
    async with Broker(tmp_path / "store", **settings) as broker:
        broker.create_topic("orders", queues=1)
        async with broker.async_producer(**options) as producer:
            await producer.send(Message("orders", b"first"))
            yield broker, producer


@pytest.fixture
def written(monkeypatch):
    """Bytes that any connection within the process writes."""
    # A send that was slow beside other work would have the broker avoided, and bytes written.
    monkeypatch.setattr(FaultTable, "avoided", False)
    sizes = []
    write = _End.write

    def counted(self, data):
        sizes.append(len(data))
        write(self, data)

    monkeypatch.setattr(_End, "write", counted)
    return sizes


async def received(broker, topic, count):
    found = []
    async with broker.async_consumer(f"all-{topic}", topic, start="first") as consumer:
        while len(found) < count:
            batch = await consumer.poll(max_messages=count - len(found))
            consumer.ack(*batch)  # a queue waits while too many are not acknowledged
            found += batch
    return found


async def test_no_bytes_pass_between(tmp_path, settings, written):
    async with broker_and_producer(tmp_path, settings) as (_, producer):
        written.clear()
        plain = await producer.send(Message("orders", b"1", tags="a", keys="k"))
        other = await producer.send(Message("orders", b"2" * 9000, properties={"n": "v"}))
        batch = await producer.send_batch([Message("orders", b"3")] * 3)
        later = await (await producer.submit(Message("orders", b"4")))
        assert [r.queue_offset for r in (plain, other, *batch, later)] == list(range(1, 7))
        assert written == []
        await producer.send(Message("orders", random.Random(7).randbytes(300_000)))
        assert written != []  # it does not fit into the room that connections share


async def test_messages_are_stored_as_through_a_socket(tmp_path, settings, seed):
    dice = random.Random(seed)
    messages = [
        Message(
            "orders", dice.randbytes(dice.choice((1, 50, 5000))),
            tags=dice.choice((None, "a", "é")), keys=dice.choice(((), "k", ("k", "l"))),
            flag=dice.choice((0, 7, -7)),
            properties=dice.choice(({}, {}, {"colour": "grün"})),
            wait_stored=dice.random() < 0.8,
        )
        for _ in range(200)
    ]  # fmt: skip

    async def stored(path, **options):
        async with broker_and_producer(path, settings, **options) as (broker, producer):
            results = [await producer.send(message) for message in messages]
            found = (await received(broker, "orders", 201))[1:]
            assert [m.message_id for m in found] == [r.message_id for r in results]
            assert [m.offset_message_id for m in found] == [r.offset_message_id for r in results]
            assert [r.transaction_id for r in results] == [r.message_id for r in results]
            return [
                (m.body, m.flag, m.head.sys_flag, m.properties | {"UNIQ_KEY": ""}, m.queue_offset)
                for m in found
            ]

    inside = await stored(tmp_path / "inside")
    assert inside == await stored(tmp_path / "socket", connector=None)


async def test_a_send_waits_for_the_disk(tmp_path, settings, monkeypatch):
    disk = Disk(monkeypatch)
    async with broker_and_producer(
        tmp_path, settings | {"flushDiskType": "SYNC_FLUSH"}
    ) as (broker, producer):  # fmt: skip
        kinds = [Message("orders", b"x"), Message("orders", b"x", properties={"a": "b"})]
        with disk.held(broker):
            sends = [asyncio.create_task(producer.send(message)) for message in kinds]
            sends += [await producer.submit(message) for message in kinds]
            assert (
                await producer.send(Message("orders", b"x", wait_stored=False))
            ).status is SendStatus.SEND_OK
            assert not any(each.done() for each in sends)
        results = await asyncio.gather(*sends)
        assert {r.status for r in results} == {SendStatus.SEND_OK}
        assert len(await received(broker, "orders", 6)) == 6


async def test_hooks_see_every_send(tmp_path, settings):
    seen = []

    class Hook:
        name = "seen"

        def before(self, context):
            seen.append(("before", context.topic))

        def after(self, context):
            seen.append(("after", context.topic))

    async with broker_and_producer(tmp_path, settings) as (broker, producer):
        broker.add_send_hook(Hook())
        for number in range(1, 4):
            result = await producer.send(Message("orders", b"x"))
            assert result.queue_offset == number
            assert len(seen) == 2 * number


async def test_access_control_decides_every_send(tmp_path, settings):
    async with broker_and_producer(
        tmp_path, settings | ACCESS, credentials=BOSS, retries=0
    ) as (broker, producer):  # fmt: skip
        core = broker.services.core
        await producer.send(Message("orders", b"x"))  # the first was granted
        before = core.let_in
        await producer.send(Message("orders", b"x"))
        assert core.let_in == before + 1
        policies = broker.services.access.policies
        boss = policies.rules.users["boss"]
        await policies.update_user("boss", {"password": "another-one"}, boss)
        with pytest.raises(SendFailed, match="signature"):
            await producer.send(Message("orders", b"x"))


async def test_a_topic_that_changes_is_noticed(tmp_path, settings):
    async with broker_and_producer(tmp_path, settings, retries=0) as (broker, producer):
        broker.services.topics.update(TopicConfig("orders", 1, 1, perm=4))
        with pytest.raises(SendFailed, match="16"):
            await producer.send(Message("orders", b"x"))
        broker.services.topics.update(TopicConfig("orders", 1, 1))
        assert (await producer.send(Message("orders", b"x"))).queue_offset == 1


async def test_a_pull_that_waits_has_the_message(tmp_path, settings):
    async with (
        broker_and_producer(tmp_path, settings) as (broker, producer),
        broker.async_consumer("g", "orders", start="first") as consumer,
    ):
        messages = aiter(consumer)
        assert (await anext(messages)).body == b"first"
        for number in range(5):
            await until(lambda: broker.services.core.totals().held > 0)
            sent = await producer.send(Message("orders", b"%d" % number))
            assert (await anext(messages)).message_id == sent.message_id


async def test_a_handler_of_the_broker_may_send(tmp_path, settings):
    """From within a consumer's handler, and while the broker itself reads."""
    async with broker_and_producer(tmp_path, settings) as (broker, producer):
        broker.create_topic("copies", queues=1)
        await producer.send(Message("copies", b"first"))

        async def copy(message):
            await producer.send(Message("copies", message.body))

        async with broker.async_consumer("g", "orders", start="first", handler=copy):
            for number in range(20):
                await producer.send(Message("orders", b"%d" % number))
            assert len(await received(broker, "copies", 22)) == 22


async def test_order_is_kept_where_some_need_bytes(tmp_path, settings):
    """A large message goes through the connection; what is sent after it must not overtake it."""
    async with broker_and_producer(tmp_path, settings, compress_over=0) as (broker, producer):
        large, small = b"x" * 300_000, b"y"
        for body in (large, small, small, large, small):
            await producer.submit(Message("orders", body))
        await producer.flush()
        bodies = [m.body for m in await received(broker, "orders", 6)][1:]
        assert bodies == [large, small, small, large, small]


def test_others_have_their_turn(tmp_path, settings):
    """A loop of sends that are all done at once gives the event loop back now and then."""

    async def scenario():
        async with broker_and_producer(tmp_path, settings) as (_, producer):
            for send in (producer.send, producer.submit):
                turns = 0

                async def count():
                    nonlocal turns
                    while True:
                        turns += 1
                        await asyncio.sleep(0)

                task = asyncio.create_task(count())
                for _ in range(1000):
                    await send(Message("orders", b"x"))
                task.cancel()
                assert turns >= 10

    run(scenario())


async def test_a_broker_that_ended_is_a_named_error(tmp_path, settings):
    broker = Broker(tmp_path / "store", **settings)
    await broker.start()
    broker.create_topic("orders", queues=1)
    async with broker.async_producer(retries=0, send_timeout_s=BOUND_S) as producer:
        for _ in range(3):
            await producer.send(Message("orders", b"x"))
        await broker.stop()
        for _ in range(3):
            with pytest.raises(ClientError):
                await producer.send(Message("orders", b"x"))
            with pytest.raises(ClientError):
                await (await producer.submit(Message("orders", b"x")))
    with pytest.raises(AlreadyClosed):
        await producer.send(Message("orders", b"x"))


async def test_a_broker_that_drains_is_left(tmp_path, settings):
    """It answers with GO_AWAY; what was acknowledged is there when it starts again."""
    results, stopped = [], False
    broker = Broker(tmp_path / "store", **settings | {"drain_s": 5.0})
    await broker.start()
    broker.create_topic("orders", queues=1)
    async with broker.async_producer(retries=0, send_timeout_s=1) as producer:

        async def work():
            while not stopped:
                with contextlib.suppress(ClientError):
                    results.append(await producer.send(Message("orders", b"x")))

        task = asyncio.create_task(work())
        await until(lambda: len(results) > 100)
        await broker.stop()
        stopped = True
        await task
    async with Broker(tmp_path / "store", **settings) as again:
        found = await received(again, "orders", len(results))
        assert {r.message_id for r in results} <= {m.message_id for m in found}


@pytest.mark.parametrize(
    "message",
    [
        None, "text", Message("orders", b""), Message("orders", "text"), Message("orders", None),
        Message("or ders", b"x"), Message("", b"x"), Message(None, b"x"), Message(["orders"], b"x"),
        Message(5, b"x"), Message("SCHEDULE_TOPIC_XXXX", b"x"), Message("orders", b"x", tags=5),
        Message("orders", b"x", tags="a\x01b"), Message("orders", b"x", keys=[5]),
        Message("orders", b"x", keys="a\x02"), Message("orders", b"x", flag=1 << 31),
        Message("orders", b"x", flag="7"), Message("orders", b"x", properties={"UNIQ_KEY": "1"}),
        Message("orders", b"x", properties={"": "1"}), Message("orders", b"x", properties=[1]),
        Message("orders", b"x", properties={"a": "x" * 40_000}),
        Message("orders", b"x", delay_level=-1), Message("orders", b"x", delay_level="3"),
        Message("orders", b"x", deliver_at_ms="now"), Message("orders", b"x", delay=5),
        Message("orders", b"x" * (5 << 20)), Message("orders", b"x", tags="t" * 33_000),
    ],
    ids=repr,
)  # fmt: skip
async def test_what_no_broker_takes_is_refused_by_name(tmp_path, settings, message):
    async with broker_and_producer(tmp_path, settings) as (_, producer):
        for send in (producer.send, producer.submit):
            with pytest.raises(InvalidMessage):
                await send(message)
        assert producer._sender.slots.taken == 0
        assert (await producer.send(Message("orders", b"x"))).queue_offset == 1
