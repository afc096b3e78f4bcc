"""A turn of the event loop has time for so much, whatever is asked, and in whatever number.

What counts is the processor time that the loop's own thread takes while a second connection waits
for an answer, so that others who use the machine do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import socket
import struct
import sys
import threading
import time

import pytest
import test_loop_held as worst_of
from loops import Wire, run, serving
from waiting import BOUND_S, until_async

from broker import Broker, NameServer
from broker.cli.collecting import put_aside
from broker.hot.core import Core
from broker.loop.thread import LoopThread
from broker.loop.turns import Line, Turns, alone
from broker.processors import all_handlers
from broker.remoting.client import RemotingClient
from broker.remoting.connection import Limits
from broker.services.config import Config
from broker.services.registration import Registration
from broker.services.topics import Topics
from broker.services.write_behind import KeptTexts
from broker.wire import codec
from broker.wire.answers import answer_framers
from broker.wire.command import Command
from broker.wire.framer import plain_framers
from pystore import Store, TopicConfig
from pystore.meta.configfiles import DataVersion
from pystore.settings import load

ECHO, SLOW, LARGE, STEPS = 9001, 9002, 9003, 9004
LIMIT_MS = 50
TRIES = 3


class Clock:
    """Stands still until a test moves it."""

    def __init__(self):
        self.now = 1.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("broker.loop.turns.monotonic", made)
    monkeypatch.setattr("broker.remoting.connection.monotonic", made)
    return made


def served(clock, order):
    """Handlers whose work takes a while of that clock."""

    def slow(peer, command):
        clock.now += 0.003
        order.append(command.ext["who"])
        return command.reply()

    async def steps(peer, command):
        for _ in range(3):
            clock.now += 0.003
            order.append(command.ext["who"])
            await asyncio.sleep(0)
        return command.reply()

    return {ECHO: lambda peer, command: command.reply(), SLOW: slow, STEPS: steps}


def asked(code, count, who):
    return b"".join(codec.encode(Command(code, {"who": who}, opaque=n)) for n in range(count))


async def answers(wire, count):
    return [(await wire.answer()).opaque for _ in range(count)]


@pytest.mark.parametrize("code", [SLOW, STEPS])
async def test_a_second_connection_is_served_between_the_requests_of_a_first(clock, code):
    order = []
    async with (
        serving(served(clock, order)) as server,
        await Wire.to(server.port) as hog,
        await Wire.to(server.port) as other,
    ):
        hog.write(asked(code, 100, "hog"))
        other.write(asked(code, 1, "other"))
        assert sorted(await answers(hog, 100)) == list(range(100))
        assert await answers(other, 1) == [0]
    assert order.count("hog") == (100 if code == SLOW else 300)
    assert order.index("other") < len(order) // 2


async def test_a_newcomer_does_not_wait_for_all_who_have_asked_much(clock):
    order = []
    async with serving(served(clock, order)) as server, contextlib.AsyncExitStack() as stack:
        hogs = [await stack.enter_async_context(await Wire.to(server.port)) for _ in range(20)]
        other = await stack.enter_async_context(await Wire.to(server.port))
        for hog in hogs:
            hog.write(asked(SLOW, 20, "hog"))
        await hogs[0].answer()
        before = len(order)
        other.write(asked(SLOW, 1, "other"))
        await other.answer()
        assert order.index("other") - before < 40


async def test_answers_keep_the_order_of_the_requests_whatever_waits(clock):
    """Frames wait in the framer, requests in the backlog, and more is read meanwhile."""
    async with serving(served(clock, [])) as server, await Wire.to(server.port) as wire:
        for at in range(0, 2000, 500):
            for n in range(at, at + 500):
                wire.write(Command(SLOW if n % 7 == 0 else ECHO, {"who": "me"}, opaque=n))
            await asyncio.sleep(0)
        assert await answers(wire, 2000) == list(range(2000))


async def test_reading_a_long_frame_takes_time_of_the_turn_and_waits_for_the_next(clock):
    """Of a connection that we have made: a network thread reads the others."""

    async def begin(reader, writer):
        writer.write(struct.pack(">iI", 4 << 20, 100) + bytes(100_000))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    async with server, RemotingClient() as client:
        port = server.sockets[0].getsockname()[1]
        one = await client.connection(f"127.0.0.1:{port}")
        await until_async(lambda: one._holds)
        assert len(one.get_buffer(65536)) > 4096
        clock.now += 0.01  # so long takes what the system reads there
        one.buffer_updated(1)
        assert (len(one.get_buffer(65536)), one.paused) == (4096, True)


@pytest.mark.parametrize("factory", [plain_framers, answer_framers])
def test_no_frame_is_lost_or_doubled_however_bytes_are_kept(factory, rng):
    class Nobody:
        def take_send(self, opaque):
            return None

        def hold(self, size):
            pass

    for _ in range(20):
        seed = rng.getrandbits(32)
        r = random.Random(seed)
        sizes = [r.choice((1, 50, 5000)) if r.random() < 0.9 else 200_000 for _ in range(100)]
        data = b"".join(
            codec.encode(Command(1, {"a": "x"}, bytes(size), opaque=n))
            for n, size in enumerate(sizes)
        )
        framer, at, found = factory()(Nobody()), 0, []
        while at < len(data) or framer.more:
            count = 0
            if at < len(data) and r.random() < 0.7:
                room = framer.buffer(1)
                count = min(len(room), len(data) - at, r.choice((1, 100, 5000, 1 << 18)))
                room[:count] = data[at : at + count]
                at += count
            take = framer.keep if r.random() < 0.3 else framer.received
            found += [command.opaque for command in take(count)]
        assert found == list(range(100)), f"seed {seed}"


def test_no_long_answer_is_made_while_others_are_unread():
    now = most = done = 0

    @alone
    async def large(peer, command):
        nonlocal now, most, done
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        done += 1
        return command.reply(body=bytes(1 << 20))

    async def work():
        limits = Limits(write_high=1 << 20, unsent_max=8 << 20)
        async with (
            serving({LARGE: large}, limits=limits) as server,
            await Wire.to(server.port, limit=1 << 16) as wire,
        ):
            wire.write(asked(LARGE, 100, "me"))
            for _ in range(200):
                await asyncio.sleep(0)
            unread = done
            assert len(await answers(wire, 100)) == 100
            return unread

    assert run(work()) < 60
    assert (most, done) == (1, 100)


def test_a_step_whose_task_is_cancelled_while_it_waits_is_not_waited_for(clock):
    async def work():
        turns = Turns.of(asyncio.get_running_loop())
        line = Line(turns, lambda: None)
        ended = []

        async def steps(name):
            try:
                for _ in range(5):
                    clock.now += 0.01
                    await asyncio.sleep(0)
            finally:
                ended.append(name)

        tasks = [line.start(steps(name)) for name in range(4)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.wait(tasks, timeout=BOUND_S)
        return [task.cancelled() for task in tasks], sorted(ended)

    cancelled, ended = run(work())
    assert cancelled == [False, False, True, False]
    assert ended in ([0, 1, 3], [0, 1, 2, 3])  # the third may not have begun


# ---- in processor time ----


def frame(sock):
    """Reads one frame; how many bytes it had."""
    head = b""
    while len(head) < 4:
        data = sock.recv(4 - len(head))
        if not data:
            raise ConnectionResetError
        head += data
    left = size = struct.unpack(">i", head)[0]
    while left:
        data = sock.recv(min(left, 1 << 20))
        if not data:
            raise ConnectionResetError
        left -= len(data)
    return size


@pytest.fixture
def quick_threads():
    """A client in a thread of the same process is let in soon: the loop's thread, which is what is
    measured, goes on until then."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    yield
    sys.setswitchinterval(before)


async def ident():
    return threading.get_ident()


def held(port, clock, data, count, ask, seconds):
    """How long, in ms of the loop's thread, a second connection waits at most while a first has
    asked so often in one write. seconds: of that thread; enough was seen then."""
    with (
        socket.create_connection(("127.0.0.1", port)) as hog,
        socket.create_connection(("127.0.0.1", port)) as other,
    ):
        for sock in (hog, other):
            sock.settimeout(BOUND_S)
        other.sendall(ask)
        frame(other)

        def read():
            with contextlib.suppress(OSError):
                for _ in range(count):
                    frame(hog)

        def write():
            with contextlib.suppress(OSError):
                hog.sendall(data * count)

        threads = [threading.Thread(target=each, daemon=True) for each in (read, write)]
        for thread in threads:
            thread.start()
        began, longest = time.clock_gettime(clock), 0.0
        for _ in range(400):
            before = time.clock_gettime(clock)
            other.sendall(ask)
            frame(other)
            now = time.clock_gettime(clock)
            longest = max(longest, (now - before) * 1000)
            if not threads[0].is_alive() or now - began > seconds:
                break
            time.sleep(0.001)
        hog.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
    return longest


def check(port, clock, asked_for, counts, ask, seconds=1.0):
    for name, command in asked_for:
        data = codec.encode(command)
        for count in counts:
            if len(data) * count > 32 << 20:
                continue
            found = [held(port, clock, data, count, ask, seconds)]
            while found[-1] > LIMIT_MS and len(found) < TRIES:
                found.append(held(port, clock, data, count, ask, seconds))
            slow = LIMIT_MS * worst_of.slowness() if found[-1] > LIMIT_MS else LIMIT_MS
            assert min(found) <= slow, f"{count} times {name}: others wait {found} ms"


#: Some of those that went through all groups or all queues at once.
FEW = (208, 300, 200050)
#: Of all queues, when there is nothing more.
POP = worst_of.TAKES | {"queueId": "-1", "bornTime": "0", "pollTime": "0"}


def cases_of(handlers, codes):
    cases = worst_of.worst()
    cases[200050] = [worst_of.of(POP), *([] if codes else cases[200050])]
    return [
        (f"request {code}, {at}", Command(code, ext, body))
        for code in codes or sorted(handlers)
        for at, (ext, body) in enumerate(cases.get(code) or [worst_of.of()])
        if not (len(body) > 1 << 20)
    ]


@contextlib.contextmanager
def wide(folder, messages):
    """A broker with many topics, a topic of many queues, and who has read it. messages: in how many
    of them."""
    with Broker(folder, listenPort=0, bindAddress="127.0.0.1") as broker:
        broker.run(worst_of.fill(broker, messages))
        gc.collect()
        gc.freeze()
        yield broker


def ask_broker():
    return codec.encode(Command(30, {"topic": "wide", "queueId": "0"}, opaque=7))


def test_nobody_waits_long_for_a_hundred_of_a_request(tmp_path, quick_threads):
    with wide(tmp_path, 8) as broker:
        clock = time.pthread_getcpuclockid(broker.run(ident()))
        requests = cases_of(all_handlers(broker.services), FEW)
        check(broker.port, clock, requests, (100,), ask_broker(), 0.1)


@pytest.mark.long
@pytest.mark.slow
def test_nobody_waits_long_for_any_request_in_any_number(tmp_path, quick_threads):
    with wide(tmp_path, worst_of.QUEUES) as broker:
        clock = time.pthread_getcpuclockid(broker.run(ident()))
        requests = cases_of(all_handlers(broker.services), ())
        check(broker.port, clock, requests, (1, 100, 1000), ask_broker())


@pytest.mark.long
@pytest.mark.slow
def test_nobody_waits_long_for_any_request_of_a_name_server(quick_threads):
    thread = LoopThread("names")

    async def start():
        names = NameServer(listenPort=0)
        await names.start()
        return names

    names = thread.run(start())
    try:
        clock = time.pthread_getcpuclockid(thread.run(ident()))
        body = worst_of.registration(worst_of.ROUTES)
        who = {"clusterName": "c", "brokerName": "b", "brokerAddr": "127.0.0.1:1", "brokerId": 0}
        requests = [
            ("request 103", Command(103, *worst_of.of(who, body, haServerAddr="127.0.0.1:2"))),
            *[(f"request {code}", Command(code, *worst_of.of(ext))) for code, ext in (
                (105, {"topic": "topic-00001"}), (205, who), (206, {}), (224, {"cluster": "c"}),
                (106, {}), (304, {}), (327, who), (311, {}), (318, {}), (319, {}),
            )],
        ]  # fmt: skip
        ask = codec.encode(Command(105, {"topic": "topic-00001"}, opaque=7))
        check(names.port, clock, requests, (1, 100, 1000), ask)
    finally:
        thread.run(names.stop())
        thread.stop()


# ---- many topics ----


def test_a_broker_of_many_topics_is_registered_in_pieces(monkeypatch):
    """The JSON of a topic is made once, and pieces of it let others have their turn."""
    now, made = [0.0], []
    monkeypatch.setattr("broker.loop.turns.monotonic", lambda: now[0])
    topics = [TopicConfig(f"topic-{i}", 1, 1) for i in range(400)]

    class Table(Topics):
        version = DataVersion(0, 1, 2)

        def __init__(self):
            self.rows = {each.name: each for each in topics}
            self._texts = KeptTexts(self.rows, self.to_json)

        def get(self, name):
            return self.rows[name]

        @staticmethod
        def to_json(config):
            now[0] += 0.001
            made.append(config.name)
            return {"topicName": config.name}

    async def work():
        table = Table()
        registration = Registration(Config(load(None)), table, "127.0.0.1:1", None)
        turns = 0

        async def others():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(others())
        first = await registration._command(topics)
        assert turns > 100
        table.rows["topic-399"] = TopicConfig("topic-399", 2, 2)
        second = await registration._command(list(table.rows.values()))
        beside.cancel()
        return first, second

    first, second = run(work())
    assert len(json.loads(first.body)["topicConfigSerializeWrapper"]["topicConfigTable"]) == 400
    assert (len(made), made[-1]) == (401, "topic-399")
    table = json.loads(second.body)["topicConfigSerializeWrapper"]["topicConfigTable"]
    assert list(table) == [topic.name for topic in topics]


def test_what_a_long_collection_finds_is_put_aside():
    """And what a short one finds is not: it may be garbage later."""
    now, longer = [0.0], [0.0]

    def clock():
        now[0] += longer[0]
        return now[0]

    end = put_aside(clock)
    try:
        kept = [[i] for i in range(1000)]
        gc.collect()
        before = gc.get_freeze_count()
        longer[0] = 0.01
        gc.collect()
        assert gc.get_freeze_count() - before > len(kept)
    finally:
        end()
    assert gc.get_freeze_count() == 0


def test_full_collections_come_often_until_the_broker_ends():
    """Each then sees little: it holds the loop for as long as it looks at what came since."""
    before = gc.get_threshold()
    end = put_aside()
    try:
        assert gc.get_threshold() == (*before[:2], 2)
    finally:
        end()
    assert gc.get_threshold() == before


def test_figures_are_told_without_a_look_at_the_topics(tmp_path, monkeypatch):
    """Request 28, which tools ask for each list of brokers."""

    def refused(*given):
        raise AssertionError("all topics were looked at")

    async def work():
        async with Broker(tmp_path, listenPort=0, bindAddress="127.0.0.1") as broker:
            for owner, name in ((Core, "statistics"), (Store, "queues")):
                monkeypatch.setattr(owner, name, refused)
            async with await Wire.to(broker.port) as wire:
                return (await wire.ask(Command(28))).code

    assert run(work()) == 0
