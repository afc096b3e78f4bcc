"""Misuse, ends and restarts: named errors with the way out, nothing lost, and nothing left."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

import pytest
from loops import run, until
from ports import free_port
from waiting import BOUND_S
from waiting import until as wait_until

from broker import AsyncConsumer, AsyncProducer, Broker, Consumer, Message, Producer
from broker.client import (
    AlreadyClosed,
    Forked,
    HandlerStuck,
    Misuse,
    NoRoute,
    NotStarted,
    SendFailed,
    Unreachable,
    WrongLoop,
)
from broker.client.inflight import Slots


def test_use_before_the_start_and_after_the_end(server, name):
    async def scenario():
        producer = AsyncProducer("p", server.namesrv)
        with pytest.raises(NotStarted, match="inside 'with'"):
            await producer.send(Message("t", b"x"))
        await producer.start()
        with pytest.raises(Misuse, match="started already"):
            await producer.start()
        await producer.close()
        await producer.close()
        with pytest.raises(AlreadyClosed, match="make a new one"):
            await producer.send(Message("t", b"x"))
        consumer = AsyncConsumer("g", "t", namesrv=server.namesrv)
        with pytest.raises(NotStarted):
            await consumer.poll()
        with pytest.raises(Misuse, match="with a handler"):
            async with AsyncConsumer(name("g"), namesrv=server.namesrv) as idle:
                await idle.run()

    run(scenario())
    producer = Producer("p", server.namesrv)
    with pytest.raises(NotStarted):
        producer.send(Message("t", b"x"))
    with producer:
        pass
    with pytest.raises(AlreadyClosed):
        producer.send(Message("t", b"x"))


async def test_a_send_that_nobody_resumes_leaves_no_slot_behind():
    """It waited for one, and its coroutine was closed: whoever waits next gets it."""
    slots = Slots(1)
    await slots.acquire()
    abandoned, given = slots.acquire(), slots.acquire()
    abandoned.send(None)
    given.send(None)
    abandoned.close()
    slots.release()
    given.close()
    assert slots.taken == 0
    await asyncio.wait_for(slots.all_free(), BOUND_S)


def test_a_handler_that_ends_its_own_way_does_not_end_the_consumer(server, name):
    """It is told to exit, or something that it waits for was cancelled: its message comes again,
    and as many others as there are workers are handled after it."""
    topic = name("topic")
    bodies = {b"%d" % n for n in range(6)}
    with Producer("p", server.namesrv) as producer:
        producer.send_batch([Message(topic, b"exit")] * 4 + [Message(topic, b) for b in bodies])
    seen = set()

    def exits(message):
        if message.body == b"exit":
            raise SystemExit(3)
        seen.add(message.body)

    options = {"namesrv": server.namesrv, "start": "first", "concurrency": 2}
    with Consumer(name("threads"), topic, handler=exits, **options):
        wait_until(lambda: seen == bodies)
    seen.clear()

    async def cancelled(message):
        if message.body == b"exit":
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        seen.add(message.body)

    async def scenario():
        async with AsyncConsumer(name("tasks"), topic, handler=cancelled, **options):
            await until(lambda: seen == bodies)
        seen.clear()
        plain = lambda message: seen.add(message.body)  # noqa: E731
        async with AsyncConsumer(name("plain"), topic, handler=plain, **options):
            await until(lambda: seen == bodies | {b"exit"})

    run(scenario())


def test_a_broker_in_the_place_of_a_name_server_is_named(tmp_path, small):
    with (
        Broker(tmp_path / "store", listenPort=0, **small) as broker,
        Producer("p", broker.address) as producer,
        pytest.raises(Unreachable, match="a broker, not a name server"),
    ):
        producer.send(Message("t", b"x"))


def test_another_event_loop_is_refused(server, name):
    made = []

    async def first():
        made.append(await AsyncProducer("p", server.namesrv).start())
        await made[0].send(Message(name("t"), b"x"))

    async def second():
        with pytest.raises(WrongLoop, match="one for each loop"):
            await made[0].send(Message("t", b"x"))

    async def both():
        await first()
        await asyncio.to_thread(asyncio.run, second())
        await made[0].close()

    run(both())


@pytest.mark.parametrize("kind", [AsyncProducer, AsyncConsumer])
def test_a_client_is_closed_where_it_was_started(server, kind):
    """Elsewhere it would wait for what never happens there."""
    made = kind("g", namesrv=server.namesrv)

    async def start():
        await made.start()

    async def close():
        with pytest.raises(WrongLoop, match="one for each loop"):
            await made.close()

    async def both():
        await start()
        await asyncio.to_thread(asyncio.run, close())
        await made.close()

    run(both())
    made = kind("g", namesrv=server.namesrv)
    asyncio.run(start())  # which nobody closes, and now nobody can
    with pytest.raises(WrongLoop, match="which is closed"):
        asyncio.run(made.close())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_told(server, name):
    with Producer("p", server.namesrv) as producer:
        producer.send(Message(name("t"), b"x"))
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            said = b"nothing"
            try:
                producer.send(Message("t", b"x"))
            except Forked as forked:
                said = str(forked).encode()
            finally:
                os.write(writer, said)
                os._exit(0)
        os.waitpid(pid, 0)
        assert b"make a new one after the fork" in os.read(reader, 1000)
        os.close(reader)
        os.close(writer)


def test_nobody_there_is_said_with_what_to_check():
    said = pytest.raises(Unreachable, match="check namesrv")
    with Producer("p", "127.0.0.1:1") as producer, said:
        producer.send(Message("t", b"x"))
    with pytest.raises(Unreachable, match="no name server answers"):
        Consumer("g", "t", namesrv="127.0.0.1:1").start()


def test_a_topic_that_is_not_there_ends_the_start(server, name):
    with pytest.raises(NoRoute), Consumer("g", name("nowhere"), namesrv=server.namesrv):
        pass


async def test_a_handler_that_never_returns_is_named_at_the_end(server, name):
    topic = name("topic")
    async with AsyncProducer("p", server.namesrv) as producer:
        await producer.send(Message(topic, b"x"))
    began = asyncio.Event()

    async def handle(message):
        began.set()
        await asyncio.Event().wait()

    consumer = AsyncConsumer(
        name("g"), topic, namesrv=server.namesrv, start="first", handler=handle,
        stop_timeout_s=0.1,
    )  # fmt: skip
    with pytest.raises(HandlerStuck, match="Give handlers a timeout"):
        async with consumer:
            await began.wait()


async def test_a_stop_waits_for_handlers_and_commits(server, name):
    topic, group = name("topic"), name("group")
    async with AsyncProducer("p", server.namesrv) as producer:
        await producer.send(Message(topic, b"x"))
    began = asyncio.Event()

    async def handle(message):
        began.set()
        await asyncio.sleep(0.2)

    options = {"namesrv": server.namesrv, "start": "first"}
    async with AsyncConsumer(group, topic, handler=handle, **options):
        await began.wait()
    async with AsyncConsumer(group, topic, **options) as consumer:
        assert await consumer.poll(0.5) == []


async def test_a_loop_over_a_consumer_ends_with_its_close(server, name):
    topic = name("topic")
    async with AsyncProducer("p", server.namesrv) as producer:
        await producer.send(Message(topic, b"x"))
    consumer = AsyncConsumer(name("g"), topic, namesrv=server.namesrv, start="first")
    async with consumer:
        asyncio.get_running_loop().call_later(0.3, lambda: asyncio.ensure_future(consumer.close()))
        assert [m.body async for m in consumer] == [b"x"]


def test_many_clients_leave_no_socket_and_no_task(tmp_path):
    def files():
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    async def scenario():
        settings = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 6000}
        async with Broker(
            tmp_path / "s", listenPort=0, with_namesrv=True, drain_s=0.1, **settings
        ) as broker:
            tasks, sockets = 20, 1000
            for turn in range(40):
                async with AsyncProducer("p", broker.namesrv_address) as producer:
                    await producer.send(Message("t", b"x"))
                async with AsyncConsumer("g", "t", namesrv=broker.namesrv_address) as consumer:
                    await consumer.poll(0.0)
                if turn in (4, 39):
                    # Those that end are still there for a turn of the loop or two, and the broker's
                    # side of a connection until it has seen its end.
                    await until(lambda most=tasks: len(asyncio.all_tasks()) <= most)
                    await until(lambda most=sockets: files() <= most)
                    tasks, sockets = max(2, len(asyncio.all_tasks())), files() + 2

    run(scenario())


async def test_a_broker_that_comes_back_is_found_again(tmp_path):
    """Nothing acknowledged is lost, and both sides go on by themselves."""
    settings = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 6000}
    names = Broker(tmp_path / "n", listenPort=0, with_namesrv=True, drain_s=0.1, **settings)
    async with names:
        options = {"namesrvAddr": names.namesrv_address, "brokerName": "b", "drain_s": 0.1}
        options |= settings
        port = free_port()
        broker = Broker(tmp_path / "s", listenPort=port, brokerClusterName="x", **options)
        await broker.start()
        sent, seen = set(), set()

        async def handle(message):
            seen.add(message.body)

        async def sending(producer):
            number = 0
            while not stop.is_set():
                body = b"%d" % number
                try:
                    await producer.send(Message("t", body))
                    sent.add(body)
                except (SendFailed, Unreachable, NoRoute):
                    await asyncio.sleep(0.05)
                number += 1
                await asyncio.sleep(0.002)

        stop = asyncio.Event()
        namesrv = names.namesrv_address
        async with AsyncProducer("p", namesrv, route_poll_s=0.5) as producer:
            await producer.send(Message("t", b"first"))
            task = asyncio.create_task(sending(producer))
            async with AsyncConsumer(
                "g", "t", namesrv=namesrv, start="first", handler=handle, rebalance_s=0.5
            ):
                await until(lambda: len(seen) > 20)
                await broker.stop()
                await asyncio.sleep(0.3)
                broker = Broker(tmp_path / "s", listenPort=port, brokerClusterName="x", **options)
                await broker.start()
                known = len(seen)
                await until(lambda: len(seen) > known + 20)
                stop.set()
                await task
                async with asyncio.timeout(BOUND_S):
                    await until(lambda: sent <= seen)
        await broker.stop()


class Interrupted:
    """A future whose result comes together with Ctrl-C."""

    def __init__(self, future):
        self._future = future
        self.cancel = future.cancel

    def result(self):
        self._future.result()
        raise KeyboardInterrupt


@pytest.mark.parametrize("way", ["poll", "iterate", "batches"])
def test_ctrl_c_between_the_loop_and_the_thread_loses_no_message(tmp_path, small, way):
    """What had left the loop comes next, once, and in order."""
    take = {
        "poll": lambda consumer: [m.body for m in consumer.poll(BOUND_S, max_messages=2)],
        "iterate": lambda consumer: [next(iter(consumer)).body],
        "batches": lambda consumer: [m.body for m in next(consumer.batches(2))],
    }[way]
    with Broker(tmp_path / "store", listenPort=0, drain_s=0.0, **small) as broker:
        broker.create_topic("orders", queues=1)
        with broker.producer() as producer:
            producer.send_batch([Message("orders", b"%d" % n) for n in range(3)])
        with broker.consumer("g", "orders", start="first") as consumer:
            thread = consumer._runner.live()
            with pytest.MonkeyPatch.context() as patch:
                submit = thread.submit
                patch.setattr(thread, "submit", lambda work: Interrupted(submit(work)))
                with pytest.raises(KeyboardInterrupt):
                    take(consumer)
            assert take(consumer)[0] == b"0"
