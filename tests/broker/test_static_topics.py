"""Static topics (docs/internals/static-topics.md): what 5.3.3 answered to the same requests stands
in tests/golden/static-5.3.3.json.xz."""

from __future__ import annotations

import asyncio
import json
import lzma
import re
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from popping import SMALL, records
from waiting import BOUND_S, until_async

from broker import AsyncAdmin, AsyncConsumer, AsyncProducer, Message, NameServer
from broker.access.signature import Credentials, sign
from broker.broker import Broker
from broker.client import BadAnswer, Misuse, SendFailed
from broker.client.admin.static_plan import StaticTopicFacts, enlarged, remapped, rounded_up
from broker.remoting.client import RemotingClient
from broker.services.static_topics import table
from broker.services.static_topics.table import NAME, MappingTable, Unfit
from broker.wire import mqjson
from broker.wire.codes import RequestCode as Code
from broker.wire.codes import ResponseCode
from broker.wire.command import Command
from broker.wire.static_topics import QueuePart, TopicMapping, leaders_of, parse_mapping
from pystore.errors import RecordDamaged
from pystore.files import javajson
from pystore.format.properties import encode_properties
from pystore.meta.configfiles import version_from_json

TOPIC = "st"
ACCESS = {
    "authenticationEnabled": True, "authorizationEnabled": True,
    "initAuthenticationUser": '{"username":"admin","password":"admin-of-both"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"between-brokers"}',
}  # fmt: skip


class Pair:
    """Two brokers of one cluster, a and b, and a raw client."""

    def __init__(self, brokers, client, names):
        self.brokers, self.client, self.names = brokers, client, names
        self.credentials = None

    async def ask(self, broker, code, body=b"", timeout=BOUND_S, **ext):
        named = {name: str(value) for name, value in ({"topic": TOPIC} | ext).items()}
        command = Command(code, named, body=body)
        if self.credentials is not None:
            sign(command, self.credentials)
        return await self.client.request(self.brokers[broker].address, command, timeout=timeout)

    async def map(self, broker, queues, *, epoch, physical=2, total=1, **more):
        mapping = TopicMapping(TOPIC, total, broker, epoch, queues)
        body = json.dumps(mapping.as_json()).encode()
        return await self.ask(
            broker, Code.UPDATE_AND_CREATE_STATIC_TOPIC, body, readQueueNums=physical,
            writeQueueNums=physical, perm=6, topicFilterType="SINGLE_TAG", **more
        )  # fmt: skip

    async def send(self, broker, count=1, queue=0):
        answers = []
        for n in range(count):
            properties = encode_properties({"UNIQ_KEY": f"{broker}{n}{time.time_ns()}"}).decode()
            ext = {
                "a": "p", "b": TOPIC, "c": "TBW102", "d": 4, "e": queue, "f": 0, "g": 1, "h": 0,
                "i": properties, "j": 0, "k": "false", "m": "false",
            }  # fmt: skip
            answers.append(await self.ask(broker, Code.SEND_MESSAGE_V2, b"%d" % n, **ext))
        return answers

    async def pull(self, broker, offset, queue=0, wait_ms=0, **more):
        ext = {
            "consumerGroup": "g", "queueId": queue, "queueOffset": offset, "maxMsgNums": 32,
            "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": wait_ms, "subscription": "*",
            "subVersion": 0, "expressionType": "TAG",
        } | more  # fmt: skip
        return await self.ask(broker, Code.PULL_MESSAGE, **ext)

    async def remapped(self, sent=5):
        """The logical queue 0: five messages at queue 1 of a, then b's queue 0 from 10000 on."""
        first = QueuePart(0, 1, "a", 0)
        assert (await self.map("a", {0: (first,)}, epoch=1)).code == 0
        answers = await self.send("a", sent)
        undecided = (first, QueuePart(1, 0, "b", -1))
        for broker in ("b", "a"):
            assert (await self.map(broker, {0: undecided}, epoch=2)).code == 0
        decided = (first, QueuePart(1, 0, "b", 10_000))
        assert (await self.map("b", {0: decided}, epoch=2)).code == 0
        return answers


@asynccontextmanager
async def pair(folder, **settings):
    async with NameServer(listenPort=0, bindAddress="127.0.0.1") as server:
        names = f"127.0.0.1:{server.port}"
        client = RemotingClient()
        given = {
            "namesrvAddr": names, "listenPort": 0, "brokerIP1": "127.0.0.1", **SMALL, **settings,
        }  # fmt: skip
        async with (
            Broker(folder / "a", brokerName="a", **given) as a,
            Broker(folder / "b", brokerName="b", **given) as b,
        ):
            try:
                yield Pair({"a": a, "b": b}, client, names)
            finally:
                await client.close()


def numbers(answer, *names):
    return [int(answer.ext[name]) for name in names]


async def test_sends_are_answered_with_the_place_in_the_logical_queue(tmp_path):
    async with pair(tmp_path) as p:
        answers = await p.remapped()
        answers += await p.send("b", 2)
        assert [numbers(each, "queueId", "queueOffset") for each in answers] == [
            *([0, n] for n in range(5)), [0, 10_000], [0, 10_001],
        ]  # fmt: skip
        assert p.brokers["a"].store.range(TOPIC, 1) == (0, 5)
        assert p.brokers["b"].store.range(TOPIC, 0) == (0, 2)


async def test_a_send_before_the_offset_is_decided_is_answered_with_none(tmp_path):
    async with pair(tmp_path) as p:
        parts = (QueuePart(0, 0, "a", 0), QueuePart(1, 1, "b", -1))
        assert (await p.map("b", {0: parts}, epoch=2)).code == 0
        (answer,) = await p.send("b")
        assert numbers(answer, "queueId", "queueOffset") == [0, -1]


async def test_a_send_to_any_queue_goes_to_one_that_is_led_here(tmp_path):
    async with pair(tmp_path) as p:
        queues = {n: (QueuePart(0, n, "a", 0), QueuePart(1, n, "b", 100)) for n in (0, 1)}
        queues[7] = (QueuePart(0, 2, "a", 0),)
        assert (await p.map("a", queues, epoch=1, physical=3, total=8)).code == 0
        answers = await p.send("a", 3, queue=-1)
        assert [numbers(each, "queueId", "queueOffset") for each in answers] == [
            [7, 0], [7, 1], [7, 2],
        ]  # fmt: skip


async def test_pulls_go_from_one_part_to_the_next(tmp_path):
    """As 5.3.3 answered: the part of another broker, its end, the part that is led here."""
    async with pair(tmp_path) as p:
        await p.remapped()
        await p.send("b", 3)
        fields = ("nextBeginOffset", "minOffset", "maxOffset", "offsetDelta")
        found = await p.pull("b", 0)
        assert (found.code, numbers(found, *fields)) == (0, [5, 0, 10_000, 0])
        assert len(records(found.body)) == 5
        end = await p.pull("b", 5, wait_ms=20_000)
        assert end.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert numbers(end, *fields) == [10_000, 10_000, 10_000, 10_000]
        found = await p.pull("b", 10_000)
        assert (found.code, numbers(found, *fields)) == (0, [10_003, 10_000, 10_003, 10_000])
        assert [offset for offset, *_ in records(found.body)] == [0, 1, 2]  # the client adds
        beyond = await p.pull("b", 10_009)
        assert beyond.code == ResponseCode.PULL_OFFSET_MOVED
        assert numbers(beyond, *fields) == [10_003, 10_000, 10_003, 10_000]


async def test_a_pull_waits_at_the_end_of_the_queue(tmp_path):
    async with pair(tmp_path) as p:
        await p.remapped()
        core = p.brokers["b"].services.core
        waiting = asyncio.create_task(p.pull("b", 10_000, wait_ms=20_000))
        await until_async(lambda: core.totals().held == 1, "a held pull")
        await p.send("b")
        answer = await waiting
        assert (answer.code, numbers(answer, "nextBeginOffset")) == (0, [10_001])


async def test_offsets_of_queues_are_logical(tmp_path):
    async with pair(tmp_path) as p:
        await p.remapped()
        before_b = time.time_ns() // 1_000_000
        await until_async(lambda: time.time_ns() // 1_000_000 > before_b, "a clock")
        await p.send("b", 2)
        ends = [
            int((await p.ask("b", code, queueId=0)).ext["offset"])
            for code in (Code.GET_MIN_OFFSET, Code.GET_MAX_OFFSET)
        ]
        assert ends == [0, 10_002]
        earliest = await p.ask("b", Code.GET_EARLIEST_MSG_STORETIME, queueId=0)
        assert 0 < int(earliest.ext["timestamp"]) <= before_b
        found = []
        for at, kind in ((1, "LOWER"), (before_b + 1, "LOWER"), (1 << 50, "LOWER"),
                         (before_b, "UPPER"), (1 << 50, "UPPER")):  # fmt: skip
            answer = await p.ask(
                "b", Code.SEARCH_OFFSET_BY_TIMESTAMP, queueId=0, timestamp=at, boundaryType=kind
            )
            found.append(int(answer.ext["offset"]))
        assert found == [0, 10_000, 10_002, 4, 10_001]


async def test_committed_offsets_lie_with_the_parts(tmp_path):
    async with pair(tmp_path) as p:
        await p.remapped()
        for each in p.brokers.values():
            each.services.groups.find("g")
        found = []
        for offset in (None, 3, 10_000):
            if offset is not None:
                ext = {"consumerGroup": "g", "queueId": 0, "commitOffset": offset}
                assert (await p.ask("b", Code.UPDATE_CONSUMER_OFFSET, **ext)).code == 0
            answer = await p.ask("b", Code.QUERY_CONSUMER_OFFSET, consumerGroup="g", queueId=0)
            found.append((answer.code, answer.ext.get("offset")))
        assert found == [(ResponseCode.QUERY_NOT_FOUND, None), (0, "3"), (0, "10000")]
        assert p.brokers["a"].services.offsets.get("g", TOPIC, 1) == 3
        assert p.brokers["b"].services.offsets.get("g", TOPIC, 0) == 0


async def test_a_pull_commits_the_logical_offset_where_it_lies(tmp_path):
    """Upstream commits the number as it is at the queue of the part."""
    async with pair(tmp_path) as p:
        await p.remapped()
        for each in p.brokers.values():
            each.services.groups.find("g")
        await p.send("b", 2)
        await p.pull("b", 10_001, commitOffset=10_001, sysFlag=7)
        assert p.brokers["b"].services.offsets.get("g", TOPIC, 0) == 1


async def test_who_does_not_lead_a_queue_refuses_with_501(tmp_path):
    async with pair(tmp_path) as p:
        await p.remapped(sent=0)
        ext = {"queueId": 0, "consumerGroup": "g", "timestamp": 1, "queueOffset": 0,
               "maxMsgNums": 1, "sysFlag": 0, "commitOffset": 0}  # fmt: skip
        for code in (
            Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET, Code.SEARCH_OFFSET_BY_TIMESTAMP,
            Code.GET_EARLIEST_MSG_STORETIME, Code.QUERY_CONSUMER_OFFSET, Code.PULL_MESSAGE,
            Code.UPDATE_CONSUMER_OFFSET,
        ):  # fmt: skip
            answer = await p.ask("a", code, **ext)
            assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE
            # What a broker asks that has translated it means the queues of this one.
            assert (await p.ask("a", code, **ext, lo="false")).code != answer.code
        (answer,) = await p.send("a")
        assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE


async def test_a_part_whose_broker_is_away_is_refused_by_name(tmp_path):
    async with pair(tmp_path, forwardTimeout=500) as p:
        parts = (QueuePart(0, 0, "gone", 0), QueuePart(1, 0, "b", 100))
        assert (await p.map("b", {0: parts}, epoch=1)).code == 0
        answer = await p.pull("b", 0)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "gone" in answer.remark


async def test_a_reader_needs_rights_where_the_queue_is_led_and_nowhere_else(tmp_path):
    """Of a part at another broker the leader asks in its own name."""
    async with pair(tmp_path, **ACCESS) as p:
        p.credentials = Credentials("admin", "admin-of-both")
        await p.remapped()
        user = {"username": "u", "password": "secret", "userType": "Normal"}
        assert (await p.ask("b", Code.AUTH_CREATE_USER, json.dumps(user).encode(), username="u")
                ).code == 0  # fmt: skip
        p.credentials = Credentials("u", "secret")
        assert (await p.pull("b", 0)).code == ResponseCode.NO_PERMISSION
        p.credentials = Credentials("admin", "admin-of-both")
        entries = [
            {"resource": each, "actions": ["Sub"], "decision": "Allow"}
            for each in (f"Topic:{TOPIC}", "Group:g")
        ]
        rules = {"subject": "User:u", "policies": [{"policyType": "Custom", "entries": entries}]}
        made = await p.ask("b", Code.AUTH_CREATE_ACL, json.dumps(rules).encode(), subject="User:u")
        assert made.code == 0, made.remark
        p.credentials = Credentials("u", "secret")
        found = await p.pull("b", 0)
        assert (found.code, len(records(found.body))) == (0, 5)
        assert (await p.pull("a", 0, queue=1, lo="false")).code == ResponseCode.NO_PERMISSION


async def test_a_mapping_is_there_after_a_restart(tmp_path):
    async with pair(tmp_path) as p:
        await p.remapped()
    async with pair(tmp_path) as p:
        assert (await p.ask("b", Code.GET_MAX_OFFSET, queueId=0)).ext["offset"] == "10000"


async def test_a_slave_translates_as_its_master(tmp_path):
    """Upstream's slaves take no mappings, and serve a logical number as that of their own queue."""
    async with pair(tmp_path, brokerRole="ASYNC_MASTER") as p:
        given = {"namesrvAddr": p.names, "listenPort": 0, "brokerIP1": "127.0.0.1", **SMALL}
        async with Broker(
            tmp_path / "s", brokerName="a", brokerRole="SLAVE", brokerId=1, slaveReadEnable=True,
            **given,
        ) as slave:  # fmt: skip
            queues = {7: (QueuePart(0, 1, "a", 300),)}
            assert (await p.map("a", queues, epoch=1, total=8)).code == 0
            await p.send("a", 2, queue=7)
            p.brokers["s"] = slave
            await until_async(
                lambda: TOPIC in slave.services.static.table
                and slave.store.range(TOPIC, 1) == (0, 2), "what the master has",
            )  # fmt: skip
            await until_async(lambda: TOPIC in slave.services.topics, "the master's topic")
            found = await p.pull("s", 300, queue=7)
            assert (found.code, numbers(found, "nextBeginOffset", "offsetDelta")) == (0, [302, 300])
    saved = javajson.loads((tmp_path / "s" / "config" / NAME).read_bytes())
    assert list(saved["topicQueueMappingInfoMap"]) == [TOPIC]


async def test_mappings_that_do_not_follow_are_refused(tmp_path):
    async with pair(tmp_path) as p:
        await p.remapped(sent=0)
        first, second = QueuePart(0, 1, "a", 0), QueuePart(1, 0, "b", 10_000)
        refused = [
            await p.map("b", {0: (first, second)}, epoch=1),
            await p.map("b", {0: (first, second._replace(broker="a"))}, epoch=2),
            await p.map("b", {}, epoch=2),
            await p.map("b", {0: (first, second._replace(logical=20_000))}, epoch=3),
            await p.map("b", {0: (second, first)}, epoch=3),
            await p.map("b", {0: (first, second)}, epoch=3, physical=5000),
            await p.ask("b", Code.UPDATE_AND_CREATE_STATIC_TOPIC, b"{", readQueueNums=1,
                        writeQueueNums=1, perm=6),
        ]  # fmt: skip
        assert [each.code for each in refused] == [1, 1, 1, 1, 29, 29, 29]
        assert (await p.ask("b", Code.GET_MAX_OFFSET, queueId=0)).ext["offset"] == "10000"
        # Force puts whatever it is.
        forced = await p.map("b", {0: (first, second)}, epoch=1, force="true")
        assert forced.code == 0


def test_a_broker_keeps_so_many_parts_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "PARTS_MAX", 3)
    kept = MappingTable(tmp_path, 0o644, "a")
    first = {n: (QueuePart(0, n, "a", 0),) for n in range(3)}
    kept.put(kept.following(TopicMapping(TOPIC, 3, "a", 1, first), force=False))
    with pytest.raises(Unfit, match="3 parts"):
        kept.following(TopicMapping("other", 1, "a", 1, {0: first[0]}), force=True)


async def test_name_servers_learn_who_leads(tmp_path):
    async with pair(tmp_path) as p:
        await p.remapped(sent=0)
        asked = Command(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
        route = json.loads((await p.client.request(p.names, asked)).body)
        assert leaders_of(route["topicQueueMappingByBroker"].values()) == {
            ("__syslo__global__", 0): "b"
        }


async def test_the_clean_up_takes_empty_and_passed_on_parts_away(tmp_path):
    """cleanExpiredCQ does at once what a broker does at the hours of deleteWhen."""
    async with pair(tmp_path) as p:
        await p.remapped(sent=0)
        third = QueuePart(2, 1, "a", 20_000)
        parts = (QueuePart(0, 1, "a", 0), QueuePart(1, 0, "b", 10_000))
        await p.send("b", 2)
        for _ in range(2):
            assert (await p.ask("b", Code.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
        kept = p.brokers["b"].services.static.table
        assert kept.get(TOPIC).queues == {0: parts[1:]}
        # Its other part, which is led, stays, however empty it is.
        assert (await p.map("a", {0: (*parts, third)}, epoch=3)).code == 0
        assert (await p.ask("a", Code.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
        assert p.brokers["a"].services.static.table.get(TOPIC).queues == {0: (parts[1], third)}


async def test_deleting_a_static_topic_deletes_its_mapping(tmp_path):
    async with pair(tmp_path) as p:
        await p.remapped()
        assert (await p.ask("b", Code.DELETE_TOPIC_IN_BROKER)).code == 0
        assert TOPIC not in p.brokers["b"].services.static.table
        saved = javajson.loads((tmp_path / "b" / "config" / NAME).read_bytes())
        assert saved["topicQueueMappingInfoMap"] == {}


def test_a_mapping_file_that_cannot_be_read_ends_the_start(tmp_path):
    (tmp_path / NAME).write_bytes(b'{"topicQueueMappingInfoMap":{"st":{"bname":5}}')
    with pytest.raises(RecordDamaged, match="static topics"):
        MappingTable(tmp_path, 0o644, "a").load()


# ---- our own clients ----


async def test_our_clients_follow_a_topic_from_broker_to_broker(tmp_path):
    """Sent at a, at b and at a again; consumed in order, from where the group was."""
    async with pair(tmp_path) as p:
        options = {"namesrv": p.names}
        seen: dict[tuple[int, int], bytes] = {}  # the last one of a consumer comes again

        async def consume(count):
            async with AsyncConsumer("g", TOPIC, start="first", **options) as consumer:
                async for message in consumer:
                    seen[message.queue.queue, message.queue_offset] = message.body
                    if len(seen) == count:
                        return

        async with AsyncAdmin(p.names) as admin, AsyncProducer("p", **options) as producer:
            await admin.create_static_topic(TOPIC, queues=2, brokers=["a"])
            at = []
            for number, broker in enumerate("aba"):
                if number:
                    made = await admin.remap_static_topic(TOPIC, brokers=[broker])
                    assert set(made.moved.values()) == {broker}
                sent = [await producer.send(Message(TOPIC, b"%d" % n)) for n in range(4)]
                at += [(each.queue.queue, each.queue_offset) for each in sent]
                if number == 1:
                    await asyncio.wait_for(consume(8), BOUND_S)
            await asyncio.wait_for(consume(12), BOUND_S)
        assert sorted(at) == sorted(seen)
        for queue in (0, 1):
            offsets = [offset for number, offset in seen if number == queue]
            assert offsets == sorted(offsets)
            assert {offset // 10_000 for offset in offsets} == {0, 1, 2}


async def test_a_consumer_that_pops_follows_a_topic_from_broker_to_broker(tmp_path):
    """Its pops go on at the brokers that led the queues before, which still have messages."""
    async with (
        pair(tmp_path) as p,
        AsyncAdmin(p.names) as admin,
        AsyncProducer("p", namesrv=p.names) as producer,
    ):
        await admin.create_static_topic(TOPIC, queues=2, brokers=["a"])
        seen: set[bytes] = set()

        async def consume():
            async with AsyncConsumer(
                "g", TOPIC, mode="pop", start="first", namesrv=p.names, route_poll_s=0.1
            ) as consumer:
                async for message in consumer:
                    seen.add(message.body)

        consuming = asyncio.ensure_future(consume())
        try:
            sent: set[bytes] = set()
            for number, broker in enumerate("abab"):
                if number:
                    made = await admin.remap_static_topic(TOPIC, brokers=[broker])
                    assert set(made.moved.values()) == {broker}
                for n in range(8):
                    body = b"%d-%d" % (number, n)
                    sent.add(body)
                    await producer.send(Message(TOPIC, body))
                if number != 1:  # those of b are still there when a leads again
                    await until_async(lambda: consuming.done() or sent <= seen)
            assert seen == sent
        finally:
            consuming.cancel()
            await asyncio.wait({consuming})


async def test_a_send_that_failed_names_the_broker_that_leads_the_queue(tmp_path):
    """That broker is avoided for a while, and not all that lead queues of the topic."""
    async with (
        pair(tmp_path) as p,
        AsyncAdmin(p.names) as admin,
        AsyncProducer("p", namesrv=p.names, route_poll_s=3600) as producer,
    ):
        made = await admin.create_static_topic(TOPIC, queues=2)
        (led_by_b,) = made.mappings["b"].led()
        (queue,) = [each for each in await producer.queues(TOPIC) if each.queue == led_by_b]
        await p.brokers["b"].stop()
        with pytest.raises(SendFailed) as failed:
            await producer.send(Message(TOPIC, b"1"), queue=queue)
        assert [attempt.broker for attempt in failed.value.attempts] == ["b"]
        for _ in range(4):
            assert (await producer.send(Message(TOPIC, b"2"))).queue != queue


@pytest.mark.parametrize("sent", [5, 0])
async def test_a_remapping_that_ended_half_way_is_ended(tmp_path, sent):
    """The clean-up leaves the old part until then, even if it is empty: the new one begins after
    it."""
    async with pair(tmp_path) as p:
        first = QueuePart(0, 1, "a", 0)
        assert (await p.map("a", {0: (first,)}, epoch=1)).code == 0
        await p.send("a", sent)
        half = (first, QueuePart(1, 0, "b", -1))
        for broker in ("b", "a"):
            assert (await p.map(broker, {0: half}, epoch=2)).code == 0
            assert (await p.ask(broker, Code.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
        async with AsyncAdmin(p.names) as admin:
            made = await admin.remap_static_topic(TOPIC, brokers=["b"])
            assert (made.queues, made.moved) == ({0: (first, half[1]._replace(logical=10_000))}, {})


async def test_a_remapping_names_what_it_cannot_decide(tmp_path):
    async with pair(tmp_path) as p, AsyncAdmin(p.names) as admin:
        alone = {0: (QueuePart(1, 0, "b", -1),)}
        for broker, queues in (("a", {}), ("b", alone)):
            assert (await p.map(broker, queues, epoch=1)).code == 0
        with pytest.raises(Misuse, match="queue 0 of st has one part"):
            await admin.remap_static_topic(TOPIC, brokers=["a"])
        kept = p.brokers["b"].services.static.table
        kept.put(replace(kept.get(TOPIC), broker="c"))
        with pytest.raises(BadAnswer, match="broker c"):
            await admin.remap_static_topic(TOPIC, brokers=["a"])


def test_queues_are_divided_and_few_of_them_move():
    def led(facts):
        return Counter(parts[-1].broker for parts in facts.queues.values())

    brokers = ["a", "b", "c"]
    none = StaticTopicFacts("t", {}, {})
    made = enlarged(none, 6, ["a", "b"], brokers, 1)
    assert led(made) == {"a": 3, "b": 3}
    assert made.mappings["c"].queues == {}
    more = enlarged(made, 8, ["a", "b"], brokers, 2)
    assert led(more) == {"a": 4, "b": 4}
    moved = remapped(more, brokers, brokers, 3)
    assert sorted(led(moved).values()) == [2, 3, 3]
    assert set(moved.moved.values()) == {"c"}
    assert [rounded_up(each) for each in (0, 4_999, 5_000, 12_000)] == [
        10_000, 10_000, 20_000, 20_000,
    ]  # fmt: skip


# ---- what 5.3.3 wrote and answered ----


@pytest.fixture(scope="module")
def golden():
    path = Path(__file__).parents[1] / "golden" / "static-5.3.3.json.xz"
    return json.loads(lzma.decompress(path.read_bytes()))


@pytest.mark.parametrize("stage", ["created", "remapped"])
@pytest.mark.parametrize("broker", ["a", "b"])
def test_java_s_file_is_read_and_written_with_the_same_members(tmp_path, golden, stage, broker):
    """But for the quotes around numbers, which every version reads."""
    java = golden[stage][f"file-{broker}"].encode()
    (tmp_path / NAME).write_bytes(java)
    kept = MappingTable(tmp_path, 0o644, f"broker-{broker}")
    kept.load()
    kept.put(kept.get(TOPIC))
    version = javajson.loads(java)["dataVersion"]
    kept.version = version_from_json(version)
    asyncio.run(kept.settled())
    ours = (tmp_path / NAME).read_bytes()
    assert b"".join(ours.split()) == b"".join(re.sub(rb"(\d+):\[", rb'"\1":[', java).split())


@pytest.mark.parametrize("stage", ["created", "remapped"])
def test_what_is_registered_is_what_java_s_brokers_register(golden, stage):
    route = json.loads(golden[stage]["route-std"]["body"])
    for name, info in route["topicQueueMappingByBroker"].items():
        said = javajson.loads(golden[stage][f"config-{name[-1]}"]["body"].encode())
        mapping = parse_mapping(said["mappingDetail"])
        assert mqjson.dumps(mapping.info()) == json.dumps(info, separators=(",", ":")).encode()
