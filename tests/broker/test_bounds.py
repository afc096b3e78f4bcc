"""Nobody stops a broker from outside: each request costs it a bounded piece of work.

Work is counted, not timed: what is read, evaluated or made before others have their turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import zlib
from pathlib import Path

import pytest
from fakes import FakePeer, answer_of, beat, send_command, services
from loops import Wire

from broker import Broker, NameServer
from broker.namesrv import registration
from broker.processors import all_handlers
from broker.processors.bodies import GROUPS_MAX, HEARTBEAT, SUBSCRIPTIONS_MAX, beside
from broker.services.pop.modes import POP, Mode, RequestModes
from broker.wire.command import Command, Refused, texts
from pystore import BadArgument, DiskFull, SubscriptionGroup, TopicConfig
from pystore.filter.sql92 import compiled
from pystore.meta import _database
from pystore.native import ffi, lib

# ---- filters ----


def contains(count):
    return " OR ".join(f"a CONTAINS 'x{i}'" for i in range(count))


def pulled(offset, expression):
    ext = {
        "consumerGroup": "readers", "topic": "orders", "queueId": 0, "queueOffset": offset,
        "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
        "subscription": expression, "expressionType": "SQL92", "subVersion": 0,
    }  # fmt: skip
    return Command(11, texts(ext))


async def test_a_filter_that_one_message_could_keep_busy_is_refused(tmp_path, small):
    settings = small | {"enablePropertyFilter": True, "listenPort": 0}
    async with Broker(tmp_path / "s", **settings) as broker, await Wire.to(broker.port) as wire:
        assert (await wire.ask(send_command("orders"))).code == 0
        answer = await wire.ask(pulled(0, contains(1300)))
        assert (answer.code, "use fewer CONTAINS" in (answer.remark or "")) == (23, True), answer


async def test_filters_that_are_switched_off_are_off_for_whoever_sends_no_heartbeats(
    tmp_path, small
):
    """Its pulls were found right before, and need no Python since then."""
    settings = small | {"enablePropertyFilter": True, "listenPort": 0}
    async with Broker(tmp_path / "s", **settings) as broker, await Wire.to(broker.port) as wire:
        assert (await wire.ask(send_command("orders"))).code == 0
        assert [(await wire.ask(pulled(0, "a = 1"))).code for _ in range(2)] == [20, 20]
        broker.services.settings.update({"enablePropertyFilter": "false"})
        assert (await wire.ask(pulled(0, "a = 1"))).code == 1


async def test_a_turn_of_a_filter_is_bounded(tmp_path, small):
    """100 CONTAINS over messages of 16 KB: a few messages a turn, and the pull comes again."""
    expression, size, count = contains(100), 16 << 10, 60
    work = lib.ps_sql92_work(compiled(expression), size)
    a_turn = lib.PS_SQL92_WORK_MAX // work + 1
    settings = small | {"enablePropertyFilter": True, "listenPort": 0}
    async with Broker(tmp_path / "s", **settings) as broker, await Wire.to(broker.port) as wire:
        broker.create_topic("orders", 1)
        for _ in range(count):
            broker.store.put("orders", b"b", queue=0, properties={"a": "y" * size})
        offset = 0
        while offset < count:
            answer = await wire.ask(pulled(offset, expression))
            went = int(answer.ext["nextBeginOffset"]) - offset
            assert (answer.code, went <= a_turn) == (20, True)
            if went == 0:  # the turn of all filters is used up
                await asyncio.sleep(0.01)
            offset += went


def test_work_grows_with_searches_and_bytes():
    cheap, dear = compiled("a = 1"), compiled(contains(100))
    assert lib.ps_sql92_work(cheap, 1000) < 1200
    assert lib.ps_sql92_work(dear, 1000) > 100_000
    assert ffi.typeof("ps_read_options").fields


# ---- heartbeats ----


def _json(value):
    return json.dumps(value).encode()


@pytest.fixture
def asked(tmp_path, small):
    """asked(body): the answer to a heartbeat, and how often others had their turn before it."""
    with services(tmp_path / "store", small) as s:
        handlers = all_handlers(s)

        def ask(body, peer=None):
            command = Command(34, body=_json(body))
            command.value = HEARTBEAT.loads(command.body)  # long ones are read in a thread
            answer = handlers[34](peer or FakePeer(), command)
            turns = 0
            while asyncio.iscoroutine(answer):
                try:
                    answer.send(None)
                    turns += 1
                except StopIteration as done:
                    answer = done.value
            return answer, turns

        yield ask


def groups(count, topics=("orders",)):
    body = beat(topics=topics)
    (item,) = body["consumerDataSet"]
    body["consumerDataSet"] = [item | {"groupName": f"g{i}"} for i in range(count)]
    return body


def test_a_long_heartbeat_lets_others_have_their_turn(asked):
    answer, turns = asked(groups(300))
    assert (answer.code, turns >= 300 * 2 // 32 - 1) == (0, True)
    assert asked(groups(3))[1] == 0


def test_a_heartbeat_of_one_who_left_ends(asked):
    peer = FakePeer()
    peer.closed = True
    assert asked(groups(300), peer)[0] is None


@pytest.mark.parametrize(
    "body",
    [
        groups(GROUPS_MAX + 1),
        groups(1, [f"t{i}" for i in range(SUBSCRIPTIONS_MAX + 1)]),
        {"clientID": "c", "producerDataSet": [{"groupName": "p"}] * (GROUPS_MAX + 1)},
    ],
)
def test_a_heartbeat_of_more_is_refused(tmp_path, small, body):
    with services(tmp_path / "store", small) as s:
        answer = answer_of(beside(all_handlers(s))[34], FakePeer(), Command(34, body=_json(body)))
        assert "are allowed" in answer.remark


# ---- registrations ----


def part(text):
    return struct.pack(">i", len(text)) + text


def packed(count, tail=b""):
    rows = b"".join(part(b"t%d 8 8 6 SINGLE_TAG" % i) for i in range(count))
    body = part(b"{}") + struct.pack(">i", count) + rows + part(b"[]") + struct.pack(">i", 0)
    return zlib.compress(body + tail)


def registered(body):
    ext = {"clusterName": "c", "brokerName": "b", "brokerAddr": "127.0.0.1:1", "brokerId": 0,
           "haServerAddr": "127.0.0.1:0", "compressed": True}  # fmt: skip
    return Command(103, texts(ext), body)


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (packed(1, bytes(registration.UNPACKED_MAX)), "decompresses to too much"),
        (packed(registration.TOPICS_MAX + 1), "100000 are allowed"),
        (bytes(registration.BODY_MAX + 1), "bytes at most"),
    ],
)
async def test_a_registration_that_is_too_much_is_refused(body, remark):
    async with NameServer(listenPort=0) as names, await Wire.to(names.port) as wire:
        answer = await wire.ask(registered(body))
        assert (answer.code, remark in answer.remark) == (1, True), answer.remark


async def test_a_large_registration_is_read_beside_the_loop():
    async with NameServer(listenPort=0) as names, await Wire.to(names.port) as wire:
        assert (await wire.ask(registered(packed(20_000)))).code == 0
        assert len(names.routes.topics()) == 20_000


# ---- queues ----


def test_queues_of_a_topic_and_of_a_broker_are_limited(tmp_path, small):
    with services(tmp_path / "store", small) as s:
        s.settings.update({"maxQueuesPerTopic": "100"})
        for wanted in (TopicConfig("a", 101, 1), TopicConfig("a", 1, 101)):
            with pytest.raises(Exception, match="maxQueuesPerTopic"):
                s.topics.update(wanted)
        had = s.topics._queue_count
        s.settings.update({"maxQueuesPerBroker": str(had + 100)})
        assert s.topics.update(TopicConfig("a", 60, 60))
        with pytest.raises(Exception, match="maxQueuesPerBroker"):
            s.topics.update(TopicConfig("b", 41, 1))
        assert s.topics.update(TopicConfig("a", 59, 59))
        assert s.topics.update(TopicConfig("b", 41, 1))
        with pytest.raises(Exception, match="maxQueuesPerBroker"):
            s.topics.for_send("c", "TBW102", 4)
        s.topics.delete("b")
        assert s.topics.for_send("c", "TBW102", 4) is not None


def test_groups_of_a_broker_are_limited(tmp_path, small):
    """However they come to be; those of a master are taken by its slave."""
    with services(tmp_path / "store", small) as s:
        s.settings.update({"maxGroupsPerBroker": str(max(16, s.groups.count + 10))})
        number = 0
        while s.groups.find(f"asked-{number}") is not None:
            number += 1
        assert s.groups.count == s.settings["maxGroupsPerBroker"]
        for made in (s.groups.found, lambda name: s.groups.update(SubscriptionGroup(name))):
            with pytest.raises(Refused, match="maxGroupsPerBroker"):
                made("one-more")
        s.groups.update(SubscriptionGroup("asked-0", retry_max_times=3))
        s.groups.take(SubscriptionGroup("one-of-the-master"))
        assert s.groups.get("one-of-the-master") is not None


async def test_offsets_are_copied_for_no_group_that_there_may_not_be(tmp_path, small):
    more = {"listenPort": 0, "autoCreateSubscriptionGroup": False}
    async with (
        Broker(tmp_path / "s", **(small | more)) as broker,
        await Wire.to(broker.port) as wire,
    ):
        broker.services.offsets.commit("g", "TBW102", 0, 1)
        ext = {"srcGroup": "g", "destGroup": "made-up", "topic": "TBW102"}
        assert (await wire.ask(Command(314, ext))).code == 26
        assert broker.services.offsets.get("made-up", "TBW102", 0) is None


def test_what_is_forbidden_to_groups_is_limited(tmp_path, small, monkeypatch):
    monkeypatch.setattr("broker.services.groups._FORBIDDEN_MAX", 3)
    with services(tmp_path / "store", small) as s:
        for number in range(3):
            s.groups.forbid("g", f"t{number}", True)
        with pytest.raises(Refused, match="forbidden"):
            s.groups.forbid("g", "t3", True)
        s.groups.forbid("g", "t0", False)
        s.groups.forbid("h", "t3", True)
        s.groups.delete("g")
        s.groups.forbid("h", "t4", True)
        s.groups.forbid("h", "t5", True)
        assert s.groups.forbidden == {"h": dict.fromkeys(("t3", "t4", "t5"), 1)}


async def test_request_modes_are_limited_and_written_for_many_at_once(tmp_path, monkeypatch):
    """Each tool is answered when the disk has its mode; what waits for a write shares the next."""
    monkeypatch.setattr("broker.services.pop.modes._MODES_MAX", 100)
    path = tmp_path / "modes.json"
    modes, writes = RequestModes(path, 0o600), []
    monkeypatch.setattr(modes, "_write", lambda table: writes.append(len(table)))
    await asyncio.gather(*(modes.put(f"t{i}", "g", Mode(POP)) for i in range(100)))
    assert writes == [1, 100] or writes == [100]
    await modes.put("t0", "g", Mode(POP, 1))
    with pytest.raises(BadArgument, match="100 request modes"):
        await modes.put("t100", "g", Mode(POP))


def test_topics_without_queues_are_limited_too(tmp_path, small):
    with services(tmp_path / "store", small) as s:
        s.settings.update({"maxQueuesPerBroker": str(s.topics._queue_count + 10)})
        for number in range(10):
            assert s.topics.update(TopicConfig(f"empty-{number}", 0, 0))
        with pytest.raises(Exception, match="maxQueuesPerBroker"):
            s.topics.update(TopicConfig("empty-10", 0, 0))


async def test_two_topics_of_all_queue_ids_are_refused_from_outside(tmp_path, small):
    """Each as a topic; with that limit raised, the second one as too many for the broker."""
    async with (
        Broker(tmp_path / "s", **(small | {"listenPort": 0})) as broker,
        await Wire.to(broker.port) as wire,
    ):
        answer = await wire.ask(updated("a", 65535))
        assert (answer.code, "maxQueuesPerTopic" in answer.remark) == (29, True)
        broker.services.settings.update({"maxQueuesPerTopic": "65535"})
        assert (await wire.ask(updated("a", 65535))).code == 0
        answer = await wire.ask(updated("b", 65535))
        assert (answer.code, "maxQueuesPerBroker" in answer.remark) == (1, True)


async def test_topics_of_many_queues_stay_within_the_bound_on_mappings(tmp_path, small):
    """A send to each of 500 queues, then a pull of each, from the broker and after it opens."""
    settings = small | {"listenPort": 0, "mappedFilesMax": 64, "mappedFileSizeConsumeQueue": 1000}
    names = [(topic, queue) for topic in ("a", "b") for queue in range(250)]

    async def pulled_all(wire):
        for topic, queue in names:
            ext = {
                "consumerGroup": "readers", "topic": topic, "queueId": queue, "queueOffset": 0,
                "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
                "subscription": "*", "expressionType": "TAG", "subVersion": 0,
            }  # fmt: skip
            answer = await wire.ask(Command(11, texts(ext)))
            assert (answer.code, b"%s %d." % (topic.encode(), queue) in answer.body) == (0, True)
        lines = Path("/proc/self/maps").read_text().splitlines()
        assert sum(str(tmp_path) in line for line in lines) <= 64 + 16

    async with Broker(tmp_path / "s", **settings) as broker, await Wire.to(broker.port) as wire:
        for topic in ("a", "b"):
            assert (await wire.ask(updated(topic, 250))).code == 0
        for topic, queue in names:
            body = b"%s %d." % (topic.encode(), queue)
            assert (await wire.ask(send_command(topic, body, e=queue))).code == 0
        await pulled_all(wire)
    async with Broker(tmp_path / "s", **settings) as broker, await Wire.to(broker.port) as wire:
        await pulled_all(wire)


# ---- metadata that is full ----


def updated(name, queues=1):
    return Command(17, texts({"topic": name, "readQueueNums": queues, "writeQueueNums": queues,
                              "perm": 6, "attributes": ""}))  # fmt: skip


@pytest.mark.parametrize("grows", [True, False])
async def test_topics_are_answered_when_the_metadata_is_full(tmp_path, small, monkeypatch, grows):
    monkeypatch.setattr(_database, "MAP_SIZE", 256 << 10)
    monkeypatch.setattr(_database, "MAP_MAX", 16 << 20 if grows else 256 << 10)
    broker = Broker(tmp_path / "s", listenPort=0, **small)
    await broker.start()
    async with await Wire.to(broker.port) as wire:
        answers = []
        for i in range(300):
            answers.append(await wire.ask(updated(f"{i:03}" + "x" * 120)))
            if answers[-1].code:
                assert "the metadata is full" in answers[-1].remark
                break
    assert bool(answers[-1].code) == (not grows)
    with contextlib.nullcontext() if grows else pytest.raises(DiskFull):
        await broker.stop()
