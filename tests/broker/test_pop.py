"""POP: messages are handed out with a check point, acknowledged one by one, and come back
(docs/internals/pop.md)."""

from __future__ import annotations

import asyncio
import gc
import os
import tarfile
import time
import warnings
from pathlib import Path

import pytest
from popping import popping, records
from snapshots import snapshot
from waiting import BOUND_S, until_async

import pystore
from broker.processors.admin_groups import GroupProcessor
from broker.processors.admin_topics import TopicProcessor
from broker.processors.assignment import shared
from broker.processors.needs import NeedsOfPolicies
from broker.services.pop.modes import Mode
from broker.services.pop.records import ReviveLog, _named_by
from broker.wire import mqjson
from broker.wire.codes import RequestCode as Code
from broker.wire.command import Command, Refused
from broker.wire.mqjson import MessageQueue


async def test_acknowledged_messages_are_gone_and_others_come_back(store_path):
    async with popping(store_path) as p:
        p.make_topic()
        p.put("a", "b", "c")
        answer = await p.pop(invisible=30_000)
        assert (answer.code, answer.remark) == (0, "FOUND")
        assert answer.ext["startOffsetInfo"] == "0 0 0"
        assert answer.ext["msgOffsetInfo"] == "0 0 0,1,2"
        found = p.handles_of(answer)
        assert [body for _, _, body in found] == [b"a", b"b", b"c"]
        assert (await p.ack(found[1][0])).code == 0
        empty = await p.pop()
        assert (empty.code, empty.remark) == (210, "NO_MESSAGE_IN_QUEUE")
        waiting = p.pop(poll=60_000, invisible=50_000)
        p.shift(30_100)
        again = await waiting
        assert again.ext["msgOffsetInfo"] == "1 0 0,1"
        got = [(body, topic, times) for _, body, _, topic, times in records(again.body)]
        assert got == [(b"a", "T", 1), (b"c", "T", 1)]
        for handle, topic, _ in p.handles_of(again):
            assert (await p.ack(handle, topic)).code == 0
        p.shift(100_000)
        assert (await p.pop()).code == 210
        assert len(p.pop_service.points) == 0 and not p.pop_service.in_flight("T", "g", 0)


async def test_a_restart_forgets_nothing(store_path):
    async with popping(store_path) as p:
        p.make_topic()
        p.put("a", "b", "c", "d")
        found = await p.handles(most=3, invisible=1_200_000)
        await p.ack(found[0][0])
    async with popping(store_path) as p:
        assert [ck.open for ck in p.pop_service.points] == [2]
        assert (await p.ack(found[2][0])).code == 0
        rest = await p.handles(invisible=1_200_000)
        assert [body for _, _, body in rest] == [b"d"]
        await p.ack(rest[0][0])
        p.shift(1_260_000)
        back = await p.handles(poll=10_000)
        assert [body for _, _, body in back] == [b"b"]


async def test_a_crash_between_a_pop_and_the_saving_of_offsets_hands_nothing_out_twice(store_path):
    """The offsets of the last seconds are lost with the process; the log has the check points."""
    async with popping(store_path, flushConsumerOffsetInterval=3_600_000) as p:
        p.make_topic()
        p.put("a", "b", "c")
        found = await p.handles(most=2, invisible=1_200_000)
        await p.ack(found[0][0])
        p.broker.store.flush()
        copy = store_path.with_name("crashed")
        snapshot(store_path, copy)
    async with popping(copy) as p:
        assert p.broker.services.offsets.get("g", "T", 0) == 2
        rest = await p.handles(invisible=3_600_000)
        assert [body for _, _, body in rest] == [b"c"]
        assert (await p.ack(found[1][0])).code == 0
        p.shift(1_800_000)
        assert (await p.pop()).code == 210


def copy_up_to(store_path, copy, message):
    """A copy of a store of one segment, killed right after it put this message."""
    snapshot(store_path, copy)
    with open(copy / "commitlog" / f"{0:020}", "r+b") as log:
        size, end = log.seek(0, os.SEEK_END), message.physical_offset + message.size
        log.seek(end)
        log.write(bytes(size - end))


@pytest.mark.parametrize("cut", ["after the copies", "after one copy"])
async def test_a_crash_between_a_copy_and_its_mark_brings_nothing_back_twice(store_path, cut):
    """The copies lie in the retry topic, and nothing says that the check point is done."""
    copy = store_path.with_name("crashed")
    async with popping(store_path) as p:
        p.make_topic()
        p.put("a", "b", "c")
        found = await p.handles(invisible=1500)
        await p.ack(found[1][0])
        await until_async(lambda: p.pop_service.revive.revived == 2)
        p.broker.store.flush()
        copies = p.broker.store.read("%RETRY%g_T", 0, 0)
        copy_up_to(store_path, copy, copies[-1 if cut == "after the copies" else 0])
    async with popping(copy, popFromRetryProbability=100) as p:
        found = []
        while len(found) < 2:
            found += await p.handles(poll=10_000, invisible=60_000)
        assert [body for *_, body in found] == [b"a", b"c"]
        assert p.broker.store.range("%RETRY%g_T", 0)[1] == 2
        for handle, topic, _ in found:
            await p.ack(handle, topic)
        assert len(p.pop_service.points) == 0


@pytest.mark.parametrize("what", ["topic", "group"])
async def test_nothing_of_a_deleted_name_comes_back_after_a_restart(store_path, what):
    """The name is used again before the invisible time of the old messages is over."""
    async with popping(store_path) as p:
        p.make_topic()
        p.put("a", "b", "c")
        found = await p.handles(invisible=1_200_000)
        await p.ack(found[1][0])
        if what == "topic":
            assert (await p.ask(Code.DELETE_TOPIC_IN_BROKER, topic="T")).code == 0
            p.make_topic()
            p.put("new", "new", "new")
        else:
            answer = await p.ask(Code.DELETE_SUBSCRIPTIONGROUP, groupName="g", cleanOffset="false")
            assert answer.code == 0
            assert (await p.pop()).code == 210
        assert len(p.pop_service.points) == 0
        p.broker.store.flush()
        snapshot(store_path, store_path.with_name("crashed"))
    async with popping(store_path.with_name("crashed")) as p:
        assert len(p.pop_service.points) == 0
        p.shift(1_800_000)
        bodies = [body for _, _, body in await p.handles()]
        assert bodies == ([b"new"] * 3 if what == "topic" else [])


async def test_a_deleted_group_made_again_gets_no_acknowledged_retry(store_path):
    """Its retry topics stay, and so do its offsets there; all others go, after a restart too."""
    async with popping(store_path) as p:
        p.make_topic()
        p.put("a", "b")
        await p.handles(invisible=1_200_000)
        p.shift(1_800_000)
        await until_async(lambda: p.broker.store.range("%RETRY%g_T", 0)[1] == 2)
        for handle, topic, _ in await p.handles():
            await p.ack(handle, topic)
        p.broker.services.offsets.commit("g", "%RETRY%g", 0, 0)
        asked = {"groupName": "g", "cleanOffset": "true"}
        assert (await p.ask(Code.DELETE_SUBSCRIPTIONGROUP, **asked)).code == 0
        left = {row.topic for row in p.broker.store.metadata.offsets.all("g")}
        assert left == p.broker.services.offsets.topics_of("g") == {"%RETRY%g", "%RETRY%g_T"}
    async with popping(store_path, popFromRetryProbability=100) as p:
        found = {topic for _, topic, _ in await p.handles()}
        assert "%RETRY%g_T" not in found


async def test_a_delete_is_finished_although_who_asked_for_it_is_gone(store_path):
    """The connections close before the handlers' work has begun, and the broker stops."""
    async with popping(store_path) as p:
        p.make_topic()
        p.put("a", "b")
        await p.handles(invisible=1_200_000)
        end, services = p.broker.store.info().log_max, p.broker.services
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            handler = GroupProcessor(services).handlers()[Code.DELETE_SUBSCRIPTIONGROUP]
            fields = {"groupName": "g", "cleanOffset": "true"}
            handler(None, Command(Code.DELETE_SUBSCRIPTIONGROUP, fields)).close()
            handler = TopicProcessor(services).handlers()[Code.DELETE_TOPIC_IN_BROKER]
            handler(None, Command(Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).close()
            gc.collect()
        await until_async(lambda: p.broker.store.info().log_max > end, "the acknowledgements")
        assert len(p.pop_service.points) == 0
    with pystore.Store(store_path) as store:
        assert {row.topic for row in store.metadata.offsets.all("g")} <= {"%RETRY%g"}
        assert "T" not in {q.topic for q in store.queues()} | set(store.metadata.topics.names())


def put_check_point(store, broker, start, born_host):
    """A record as upstream writes it, with a time that is over."""
    said = {
        "bm": 0, "bn": broker, "c": "g", "d": [0], "it": 1000, "n": 1, "pt": 1_700_000_000_000,
        "q": 0, "ro": 0, "so": start, "t": "T",
    }  # fmt: skip
    store.put(
        "rmq_sys_REVIVE_LOG_DefaultCluster", mqjson.dumps(said), "ck",
        queue=0, born_host=born_host,
    )  # fmt: skip


async def test_check_points_of_another_brokers_messages_bring_nothing_back_here(store_path):
    """A Java slave that acted for broker-x put its own into the log of a Java broker, which ours
    takes over. What a broker of another name wrote itself is that of this one, renamed."""
    async with popping(store_path) as p:
        p.make_topic()
        p.put("foreign", "own")
        for handle, *_ in await p.handles(invisible=600_000):
            await p.ack(handle)
    with pystore.Store(store_path) as store:
        put_check_point(store, "broker-x", 0, "10.0.0.9:4321")
        put_check_point(store, "broker-before", 1, None)
    async with popping(store_path) as p:
        found = await p.handles(poll=60_000)
        assert [body for _, _, body in found] == [b"own"]
        assert p.pop_service.revive.revived == 1


async def test_a_rollback_has_nothing_to_do(store_path):
    async with popping(store_path) as p:
        assert (await p.ask(Code.POP_ROLLBACK)).code == 0


async def test_a_crash_before_a_new_group_is_written_loses_none_of_its_messages(store_path):
    async with popping(store_path, flushConsumerOffsetInterval=3_600_000) as p:
        p.make_topic()
        p.put("a")
        await p.broker.services.topics.settled()
        p.broker.services.groups._soon = lambda: None
        await p.handles(invisible=1_200_000)
        p.broker.store.flush()
        snapshot(store_path, store_path.with_name("crashed"))
    async with popping(store_path.with_name("crashed")) as p:
        p.shift(1_260_000)
        assert [body for _, _, body in await p.handles(poll=10_000)] == [b"a"]


async def test_a_reset_is_not_undone_by_a_crash(store_path):
    async with popping(store_path) as p:
        p.make_topic()
        p.put("a", "b", "c")
        await p.handles(invisible=1_200_000)
        offsets = p.broker.services.offsets
        offsets.reset("g", "T", 0, 1)
        await offsets.persist()
        assert p.broker.store.metadata.offsets_mark() > 0
        snapshot(store_path, store_path.with_name("crashed"))
    async with popping(store_path.with_name("crashed")) as p:
        assert [body for _, _, body in await p.handles()] == [b"b", b"c"]


async def test_an_invisible_time_is_changed_for_one_message(store_path):
    async with popping(store_path) as p:
        p.make_topic()
        p.put("a", "b")
        found = await p.handles(invisible=600_000)
        changed = await p.change(found[0][0], 2_400_000)
        assert (changed.code, changed.remark) == (0, "not set any response code")
        assert changed.ext["invisibleTime"] == "2400000"
        new = found[0][0]._replace(
            start=0, pop_ms=int(changed.ext["popTime"]), invisible_ms=2_400_000,
            revive_queue=int(changed.ext["reviveQid"]),
        )  # fmt: skip
        assert (await p.ack(found[0][0])).code == 0  # the old handle does nothing
        assert (await p.change(found[0][0], 1000)).code == 208
        p.shift(606_000)
        assert [body for _, _, body in await p.handles(poll=10_000)] == [b"b"]
        assert (await p.ack(new)).code == 0
        p.shift(3_660_000)
        assert [body for _, _, body in await p.handles(poll=10_000)] == [b"b"]


async def test_batches_are_acknowledged_at_once(store_path):
    async with popping(store_path) as p:
        p.make_topic()
        p.put("a", "b", "c", "d")
        handle = (await p.handles(invisible=600_000))[0][0]
        one = {
            "c": "g", "t": "T", "r": "0", "so": handle.start, "q": 0, "it": 600_000,
            "rq": handle.revive_queue, "pt": handle.pop_ms, "b": "Cg==",
        }  # fmt: skip
        gone = one | {"t": "nobody"}
        body = mqjson.dumps({"acks": [gone, one], "brokerName": "DEFAULT_BROKER"})
        assert (await p.ask(Code.BATCH_ACK_MESSAGE, body)).code == 0
        p.shift(606_000)
        assert [body for _, _, body in await p.handles(poll=10_000)] == [b"a", b"c"]
        for empty in (b"", b"{}", b'{"acks":[]}'):
            answer = await p.ask(Code.BATCH_ACK_MESSAGE, empty)
            assert (answer.code, answer.remark) == (208, None)
        wild = mqjson.dumps({"acks": [one | {"b": "/" * 40_000}]})
        assert (await p.ask(Code.BATCH_ACK_MESSAGE, wild)).code == 13


async def test_ordered_groups_get_one_batch_at_a_time(store_path):
    """As a 5.3.3 broker answered the same requests."""
    async with popping(store_path) as p:
        p.make_topic()
        p.put(*"012345")
        one = {"order": "true", "queue": 0, "most": 3, "invisible": 8_000}
        first = await p.pop(**one, attemptId="1")
        assert first.ext["orderCountInfo"] == "0 0 0" and first.ext["reviveQid"] == "999"
        blocked = await p.pop(**one, attemptId="2")
        assert (blocked.code, blocked.ext["orderCountInfo"]) == (210, "")
        again = await p.pop(**one, attemptId="1")
        assert again.ext["msgOffsetInfo"] == "0 0 0,1,2"
        assert again.ext["orderCountInfo"] == "0 0 0"
        handles = [handle for handle, _, _ in p.handles_of(again)]
        assert (await p.ack(handles[1])).code == (await p.ack(handles[0])).code == 0
        assert p.broker.services.offsets.get("g", "T", 0) == 2
        unknown = await p.ack(handles[2]._replace(offset=5))
        assert unknown.code == 13 and "next:-1" in unknown.remark
        changed = await p.change(handles[2], 3_000)
        assert changed.ext["popTime"] == again.ext["popTime"]
        assert 3_000 <= int(changed.ext["invisibleTime"]) < 8_000
        waiting = asyncio.ensure_future(p.pop(**one, attemptId="3", poll=30_000))
        await until_async(lambda: p.pop_service.waiting() == 1)
        p.shift(3_100)
        p.pop_service.points.wake("T", "g")
        third = await waiting
        assert third.ext["startOffsetInfo"] == "0 0 2"
        assert third.ext["msgOffsetInfo"] == "0 0 2,3,4"
        assert third.ext["orderCountInfo"] == "0 qo0%2 1;0 0 0"
        waiting = asyncio.ensure_future(p.pop(**one, poll=30_000))
        await until_async(lambda: p.pop_service.waiting() == 1)
        for handle, _, _ in p.handles_of(third):
            await p.ack(handle)
        assert (await waiting).ext["msgOffsetInfo"] == "0 0 5"
        assert b'"T@g":{0:{' in p.pop_service.order.text()


async def test_news_of_an_ordered_group_come_with_an_acknowledgement(store_path):
    async with popping(store_path) as p:
        p.make_topic()
        p.put("a", "b")
        found = await p.handles(order="true", most=1)
        place = {"consumerGroup": "g", "topic": "T", "queueId": -1, "bornTime": 0}
        notice = asyncio.ensure_future(
            p.ask(Code.NOTIFICATION, **place, pollTime=60_000, order="true")
        )
        await until_async(lambda: p.pop_service.points.waiting(looks=True) == 1)
        assert (await p.ack(found[0][0])).code == 0
        assert (await notice).ext == {"hasMsg": "true", "pollingFull": "false"}


async def test_an_ordered_batch_outlives_a_restart(store_path):
    async with popping(store_path) as p:
        p.make_topic()
        p.put(*"0123")
        found = await p.handles(order="true", most=3, attemptId="1")
        await p.ack(found[1][0])
    async with popping(store_path) as p:
        assert (await p.pop(order="true")).code == 210
        for handle, _, _ in found:
            await p.ack(handle)
        assert [body for _, _, body in await p.handles(order="true")] == [b"3"]


async def _never(first):
    pass


async def test_a_crash_forgets_no_ordered_batch_and_no_acknowledgement_of_it(store_path):
    """The process is gone before the state was saved to its file."""
    async with popping(store_path, flushConsumerOffsetInterval=3_600_000) as p:
        p.pop_service.order.save = _never
        p.make_topic()
        p.put(*"01234")
        for handle, _, _ in await p.handles(order="true", most=2):
            await p.ack(handle)
        # Longer than a busy machine takes for two starts and a copy.
        found = await p.handles(order="true", most=3, invisible=2_000_000)
        await p.ack(found[0][0])
        await p.ack(found[2][0])
        p.broker.store.flush()
        copy = store_path.with_name("crashed")
        snapshot(store_path, copy)
        with open(copy / "config" / "consumerOrderInfo.journal", "ab") as journal:
            journal.write(b'{"topic":"T","gro')  # the last line was not written whole
    async with popping(store_path.with_name("crashed")) as p:
        assert p.broker.services.offsets.get("g", "T", 0) == 3
        assert (await p.pop(order="true")).code == 210
        await p.pop_service.save_order()
        p.shift(2_001_000)
        again = await p.handles(order="true")
        assert [body for _, _, body in again] == [b"3", b"4"]
        path = store_path.with_name("crashed") / "config"
        # Apache's broker saves the file and knows nothing of the journal.
        saved = path / "consumerOrderInfo.json"
        saved.write_bytes(b'{"table":{}}')
        assert p.pop_service.order.changed
        snapshot(path.parent, store_path.with_name("upstream"))
    async with popping(store_path.with_name("upstream")) as p:
        assert [body for _, _, body in await p.handles(order="true")] == [b"3", b"4"]


async def test_whoever_waits_is_woken_by_a_message_it_wants(store_path):
    async with popping(store_path) as p:
        p.make_topic(queues=3)
        blue = asyncio.ensure_future(p.pop(poll=60_000, exp="blue"))
        await until_async(lambda: p.pop_service.waiting() == 1)
        red = asyncio.ensure_future(p.pop(poll=60_000, exp="red || green", queue=1, group="h"))
        notice = asyncio.ensure_future(
            p.ask(
                Code.NOTIFICATION,
                consumerGroup="other",
                topic="T",
                queueId=-1,
                pollTime=60_000,
                bornTime=0,
                order="false",
            )
        )
        await until_async(lambda: p.pop_service.waiting() == 2)
        await until_async(lambda: p.pop_service.points.waiting(looks=True) == 1)
        for queue, group, count in ((-1, "g", 1), (1, "g", 0), (1, "h", 1), (-1, "h", 0)):
            info = await p.ask(Code.POLLING_INFO, queueId=queue, topic="T", consumerGroup=group)
            assert info.ext == {"pollingNum": str(count)}
        p.put("x", queue=1, tags="red")
        assert (await red).ext["msgOffsetInfo"] == "0 1 0"
        assert (await notice).ext == {"hasMsg": "true", "pollingFull": "false"}
        assert not blue.done()
        p.put("y", queue=2, tags="blue")
        assert [r[1] for r in records((await blue).body)] == [b"y"]


async def test_waiting_is_bounded_and_ends_in_time(store_path):
    bounds = {"popPollingSize": 2, "popPollingMapSize": 2, "maxPopPollingSize": 3}
    async with popping(store_path, **bounds) as p:
        p.make_topic(queues=2)
        held = [asyncio.ensure_future(p.pop(poll=60_000, queue=0)) for _ in range(2)]
        await until_async(lambda: p.pop_service.waiting() == 2)
        full = await p.pop(poll=60_000, queue=0)
        assert (full.code, full.ext["restNum"]) == (209, "0")
        held.append(asyncio.ensure_future(p.pop(poll=60_000, queue=1)))
        await until_async(lambda: p.pop_service.waiting() == 3)
        assert (await p.pop(poll=60_000, queue=-1)).code == 209
        assert (await p.pop(poll=100, queue=-1, group="late")).code == 209
        p.broker.services.core.notify_all()
        for each in held:
            assert (await each).code == 210
        assert p.pop_service.waiting() == 0
        assert (await p.pop(poll=100)).code == 210
        gone = await p.pop(poll=1000, bornTime=1)
        assert gone.code == 210 and "timeout too much" in gone.remark
        numbers = ("popTime", "invisibleTime", "reviveQid", "restNum")
        assert gone.ext == dict.fromkeys(numbers, "0")


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"topic": "none"}, 17),
        ({"most": 33}, 29),
        ({"most": 0}, 29),
        ({"most": -5}, 29),
        ({"most": 1 << 40}, 29),
        ({"queue": 9}, 29),
        ({"queue": -(1 << 31) - 1}, 29),
        ({"invisible": 0}, 29),
        ({"invisible": -1}, 29),
        ({"invisible": 1 << 62}, 29),
        ({"exp": "a = = 1", "expType": "SQL92"}, 23),
        ({"expType": "XML"}, 23),
        ({"group": "g" * 250}, 29),
        ({"group": "a b"}, 29),
        ({"most": "many"}, 1),
        ({"pollTime": "-9223372036854775808", "bornTime": 0}, 210),
    ],
)
async def test_what_cannot_be_popped_is_refused_with_all_numbers(store_path, asked, code):
    async with popping(store_path) as p:
        p.make_topic()
        answer = await p.pop(**asked)
        assert answer.code == code and answer.remark
        assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= answer.ext.keys()


async def test_forged_and_stale_handles_do_nothing(store_path):
    async with popping(store_path) as p:
        p.make_topic()
        p.make_topic("U")
        p.put("a", "b")
        p.put("u", topic="U")
        (one, _, _), (two, _, _) = await p.handles(invisible=10_000)
        for wrong in (
            one._replace(start=1), one._replace(pop_ms=one.pop_ms + 1),
            one._replace(revive_queue=999),
        ):  # fmt: skip
            assert (await p.ack(wrong)).code == 0
        assert (await p.ack(one, group="other")).code == 0
        assert (await p.ack(one, topic="U")).code == 0
        assert (await p.ack(one._replace(offset=99))).code == 208
        assert (await p.ack(one._replace(queue=7))).code == 13
        assert (await p.ack(one, topic="none")).code == 17
        for text in ("", "1 2 3", "x" * 100_000, "0 0 0 0 0 b 0 -1"):
            bad = await p.ask(
                Code.ACK_MESSAGE, consumerGroup="g", topic="T", queueId=0, offset=0,
                extraInfo=text,
            )  # fmt: skip
            assert bad.code in (1, 13) and bad.remark
        for wrong_ms in (-1, 1 << 62):
            assert (await p.change(two, wrong_ms)).code == 29
        assert [ck.open for ck in p.pop_service.points] == [2]
        p.shift(10_100)
        assert [body for _, _, body in await p.handles(poll=10_000)] == [b"a", b"b"]


async def test_queues_without_messages_cost_no_offset(store_path):
    """Of a group that begins with the first message of each, wherever it stands then."""
    async with popping(store_path) as p:
        p.make_topic(queues=1000)
        for queue in (3, 700):
            p.broker.services.store.put("T", b"m", queue=queue)
        assert (await p.pop(most=32, queue=-1, initMode=0)).code == 0
        offsets = sorted(row[2:] for row in p.broker.services.offsets.all("g", "T"))
        assert offsets == [(3, 1), (700, 1)]
        p.broker.services.store.put("T", b"later", queue=5)
        later = await p.pop(most=32, queue=-1, initMode=0)
        assert [each[1] for each in records(later.body)] == [b"later"]


async def test_consumer_offsets_of_a_broker_are_limited(store_path, caplog):
    """By a refusal that names the setting; groups that are there go on, and the log says it."""
    async with popping(store_path, maxOffsetsPerBroker=1024) as p:
        p.make_topic(queues=1000)
        p.broker.services.groups.found("late")
        p.broker.services.store.put("T", b"m", queue=999)
        assert (await p.pop(queue=-1, initMode=1)).code == 0
        refused = await p.pop(queue=-1, initMode=1, group="late")
        assert refused.code == 1 and "maxOffsetsPerBroker" in refused.remark
        commit = {"code": Code.UPDATE_CONSUMER_OFFSET, "topic": "T", "commitOffset": 1}
        for queue in range(30):
            answer = await p.ask(**commit, consumerGroup="late", queueId=queue)
        assert answer.code == 1 and "maxOffsetsPerBroker" in answer.remark
        assert (await p.ask(**commit, consumerGroup="g", queueId=999)).code == 0
        await p.broker.services.offsets.persist()
        assert "there was no room for another consumer offset" in caplog.text


@pytest.mark.parametrize("added", [" 4312", " 0 4312", " x", " "])
async def test_what_a_proxy_adds_to_a_handle_is_passed_over(store_path, added):
    """Apache's proxy in cluster mode acknowledges with nine fields."""
    async with popping(store_path) as p:
        p.make_topic()
        p.put("a", "b")
        (one, _, _), (two, _, _) = await p.handles()
        for code, handle, more in (
            (Code.ACK_MESSAGE, one, {}),
            (Code.CHANGE_MESSAGE_INVISIBLETIME, two, {"invisibleTime": 30_000}),
        ):
            answer = await p.ask(
                code, consumerGroup="g", topic="T", queueId=0, offset=handle.offset,
                extraInfo=handle.text + added, **more,
            )  # fmt: skip
            assert answer.code == 0, answer.remark
        assert p.pop_service.in_flight("T", "g", 0) == 1
        p.shift(30_100)
        assert [body for _, _, body in await p.handles(poll=10_000)] == [b"b"]


async def test_two_consumers_share_a_queue_and_nothing_is_handed_out_twice(store_path):
    async with popping(store_path) as p:
        p.make_topic(queues=2)
        for queue in (0, 1):
            p.put(*(f"{queue}-{n}" for n in range(100)), queue=queue)

        async def consume(seen):
            while found := await p.handles(most=7, invisible=60_000):
                for handle, topic, body in found:
                    seen.append(body)
                    await p.ack(handle, topic)

        seen: list[list[bytes]] = [[], [], []]
        await asyncio.gather(*map(consume, seen))
        bodies = [body for each in seen for body in each]
        assert len(bodies) == len(set(bodies)) == 200
        assert not p.pop_service.in_flight("T", "g", 0)
        p.pop_service.tick()


@pytest.mark.parametrize("v2", [False, True])
async def test_names_of_retry_topics(store_path, v2):
    named = {"enableRetryTopicV2": v2, "popFromRetryProbability": 100}
    async with popping(store_path, **named, retrieveMessageFromPopRetryTopicV1=not v2) as p:
        p.make_topic()
        p.put("a", tags="x", keys="k")
        await p.handles(invisible=10_000, exp="x")
        p.shift(10_100)
        back = await p.pop(poll=10_000, exp="x", invisible=5_000)
        kind, sign = ("2", "+") if v2 else ("1", "_")
        assert back.ext["startOffsetInfo"] == f"{kind} 0 0"
        ((_, _, said, topic, times),) = records(back.body)
        ((handle, name, _),) = p.handles_of(back)
        assert (topic, times, name) == ("T", 1, f"%RETRY%g{sign}T")
        assert said["POP_CK"] == handle.text and said["TAGS"] == "x"
        assert said["1ST_POP_TIME"].isdigit() and said["KEYS"] == "k"
        stored = p.broker.store.read(name, 0, 0)[0]
        assert "POP_CK" not in stored.properties
        p.shift(5_100)
        again = await p.pop(poll=10_000, exp="x")
        assert again.ext["msgOffsetInfo"] == f"{kind} 0 1"
        ((_, _, more, _, times),) = records(again.body)
        assert times == 2 and more["1ST_POP_TIME"] == said["1ST_POP_TIME"]
        for topic in ("T", "%RETRY%g+T", "%RETRY%g_T"):
            await p.ask(Code.DELETE_TOPIC_IN_BROKER, topic=topic)
        assert not list(p.pop_service.points)


async def test_what_came_back_by_the_second_name_is_there_once_its_setting_is_off(store_path):
    """Apache's broker looks no more at its topic then."""
    async with popping(store_path, enableRetryTopicV2=True) as p:
        p.make_topic()
        p.put("a")
        await p.handles(invisible=1_000)
        p.shift(1_100)
        await until_async(lambda: p.broker.store.range("%RETRY%g+T", 0)[1] == 1)
    async with popping(store_path) as p:
        ((handle, topic, body),) = await p.handles()
        assert (topic, body) == ("%RETRY%g+T", b"a")
        assert (await p.ack(handle, topic)).code == 0
        assert not list(p.pop_service.points)


async def test_messages_come_back_to_no_group_whose_names_together_are_the_same(store_path):
    """The first kind of name is that of group a_b and topic c, of a and b_c, and of group a_b_c."""
    async with popping(store_path) as p:
        for topic, group in (("c", "a_b"), ("b_c", "a")):
            p.make_topic(topic)
            p.broker.services.groups.find(group)
            p.put(f"of {group}", topic=topic)
        for topic, group in (("c", "a_b"), ("b_c", "a")):
            await p.handles(topic=topic, group=group, invisible=1_000)
        p.shift(1_100)
        for topic, group in (("c", "a_b"), ("b_c", "a")):
            ((_, name, body),) = await p.handles(topic=topic, group=group, poll=10_000)
            assert (name, body) == (f"%RETRY%{group}+{topic}", f"of {group}".encode())
        assert "%RETRY%a_b_c" not in p.broker.services.topics


async def test_pops_may_be_bound_by_what_is_in_flight(store_path):
    bound = {"enablePopMessageThreshold": True, "popInflightMessageThreshold": 2}
    async with popping(store_path, **bound) as p:
        p.make_topic()
        p.put(*"0123456")
        found = await p.handles(most=3)
        over = await p.pop(most=3)
        assert (over.code, over.ext["restNum"]) == (210, "4")
        stats = await p.ask(Code.GET_CONSUME_STATS, consumerGroup="g", topic="T")
        (row,) = mqjson.loads(stats.body)["offsetTable"].values()
        assert (row["consumerOffset"], row["pullOffset"], row["brokerOffset"]) == (0, 3, 7)
        await p.ack(found[0][0])
        assert len(await p.handles(most=3)) == 3


async def test_assignment_of_groups_that_pop(store_path):
    async with popping(store_path) as p:
        p.make_topic()
        given = {"topic": "T", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0}
        answer = await p.ask(Code.SET_MESSAGE_REQUEST_MODE, mqjson.dumps(given))
        assert answer.code == 0
        table = await p.ask(Code.GET_ALL_MESSAGE_REQUEST_MODE)
        assert mqjson.loads(table.body) == {"messageRequestModeMap": {"T": {"g": given}}}
        queues = [MessageQueue("T", "b", i) for i in range(8)]
        whole = [MessageQueue("T", "b", -1)]
        assert shared(queues, ["1", "2", "3"], "2", "AVG", 0) == whole
        assert shared(queues, ["1", "2", "3"], "2", "AVG", 2) == whole
        four = ["1", "2", "3", "4"]
        assert [q.queue for q in shared(queues, four, "4", "AVG", 1)] == [6, 7, 0, 1]
        assert [q.queue for q in shared(queues[:2], four, "4", "AVG", 1)] == [1]
        assert shared(queues, four, "5", "AVG", 1) == []
    async with popping(store_path) as p:
        assert p.pop_service.modes.get("T", "g") == Mode("POP", 0)


async def test_the_revive_topic_is_the_brokers_own(store_path):
    async with popping(store_path) as p:
        assert (await p.send(b"{}", topic="rmq_sys_REVIVE_LOG_DefaultCluster")).code == 16


async def test_progress_of_the_revive_topic_stops_at_the_first_open_check_point(store_path):
    async with popping(store_path, reviveQueueNum=1) as p:
        p.make_topic()
        p.put("a", "b")
        name, store = p.pop_service.log.topic, p.broker.store
        first = (await p.handles(most=1, invisible=20_000))[0][0]
        await p.handles(most=1, invisible=90_000)
        p.shift(19_500)
        await until_async(lambda: store.range(name, 0)[1] == 1)
        p.pop_service.tick()
        done = p.pop_service.revive.done
        assert done(0) == 0 and first.start == 0
        p.shift(600)
        await until_async(lambda: p.pop_service.revive.revived == 1)
        await until_async(lambda: store.range(name, 0)[1] == 2)
        p.pop_service.tick()
        assert done(0) == 2


async def test_progress_reads_no_acknowledgements(store_path, monkeypatch):
    """There are up to 32 for each check point, and it holds the loop as long as it reads."""
    async with popping(store_path, reviveQueueNum=1, reviveInterval=3_600_000) as p:
        p.make_topic()
        p.put("a", "b", "c", "d")
        log, store = p.pop_service.log, p.broker.store
        found = await p.handles(invisible=20_000)
        for handle, *_ in found[:3]:
            await p.ack(handle)
        p.shift(20_500)
        await until_async(lambda: store.range(log.topic, 0)[1] == 5)
        await until_async(lambda: p.pop_service.revive.revived == 1)
        await p.handles(invisible=90_000)
        p.shift(110_000)
        await until_async(lambda: store.range(log.topic, 0)[1] == 6)
        looked, usual = [], _named_by
        monkeypatch.setattr(
            "broker.services.pop.records._named_by", lambda m: looked.append(m) or usual(m)
        )
        p.pop_service.tick()
        assert [each.tags for each in looked] == ["ck", "ck"]
        assert [usual(each) for each in looked] == [log.checkpoint_of(each).key for each in looked]
        assert p.pop_service.revive.done(0) == 5


async def test_pop_takes_over_a_store_that_apaches_broker_left(store_path):
    """tests/golden: killed with check points and acknowledgements open; m4, m5, n1 and m2 are
    to come back, the others are done."""
    golden = Path(__file__).resolve().parents[1] / "golden" / "killed-pop.tar.xz"
    with tarfile.open(golden) as packed:
        packed.extractall(store_path.parent, filter="data")
    sizes = {
        "mappedFileSizeCommitLog": 4 << 20, "mappedFileSizeConsumeQueue": 6000,
        "maxHashSlotNum": 512, "maxIndexNum": 1024, "brokerName": "broker-a",
    }  # fmt: skip
    async with popping(store_path.parent / "store", **sizes) as p:
        found = []
        while len(found) < 4:
            answer = await p.pop(topic="pop_raw", group="pop_g", poll=60_000)
            assert answer.code == 0
            found += [(r[1], r[4]) for r in records(answer.body)]
        assert sorted(found) == [(b"m2", 1), (b"m4", 1), (b"m5", 1), (b"n1", 1)]
        assert (await p.pop(topic="pop_raw", group="pop_g")).code == 210


async def test_synced_answers_wait_for_the_disk(store_path):
    async with popping(store_path, flushDiskType="SYNC_FLUSH") as p:
        p.make_topic()
        p.put("a", "b")
        (one, _, _), (two, _, _) = await p.handles(invisible=600_000)
        flushed = p.broker.store.info().log_flushed
        assert flushed > 0
        assert (await p.ack(one)).code == 0
        assert p.broker.store.info().log_flushed > flushed
        assert (await p.change(two, 20_000)).code == 0


async def test_thousands_may_wait_and_one_message_wakes_one_of_each_group(store_path):
    async with popping(store_path) as p:
        p.make_topic()
        held = {
            (group, n): asyncio.ensure_future(p.pop(poll=90_000, group=f"g{group}"))
            for group in range(4)
            for n in range(250)
        }
        await until_async(lambda: p.pop_service.waiting() == 1000)
        p.put("x")
        done = lambda: [key for key, each in held.items() if each.done()]  # noqa: E731
        await until_async(lambda: len(done()) == 4)
        assert {group for group, _ in done()} == set(range(4))
        p.broker.services.core.notify_all()
        await asyncio.gather(*held.values())
        assert p.pop_service.waiting() == 0


def test_what_pops_and_acknowledgements_need(store_path):
    """A retry topic needs the group and the topic whose messages it brings back."""
    needs = NeedsOfPolicies("C", lambda offset, half: None)

    def of(code, body=b"", **ext):
        return {str(need) for need in needs(Command(code, ext, body=body)).needs}

    both = {"Sub on Group:g", "Sub on Topic:T"}
    for code in (Code.POP_MESSAGE, Code.PEEK_MESSAGE, Code.NOTIFICATION, Code.ACK_MESSAGE):
        assert of(code, consumerGroup="g", topic="T") == both
    for name in ("%RETRY%g_T", "%RETRY%g+T"):
        assert of(Code.ACK_MESSAGE, consumerGroup="g", topic=name) == both
        assert of(Code.CHANGE_MESSAGE_INVISIBLETIME, consumerGroup="g", topic=name) == both
    other = of(Code.ACK_MESSAGE, consumerGroup="g", topic="%RETRY%victim_T")
    assert other == {"Sub on Group:g", "Sub on Group:victim_T"}
    body = b'{"acks":[{"c":"g","t":"T"},{"c":"h","t":"U"}]}'
    asked = of(Code.BATCH_ACK_MESSAGE, body, consumerGroup="g", topic="T")
    assert asked == both | {"Sub on Group:h", "Sub on Topic:U"}


async def test_check_points_are_found_among_many_timers(store_path, monkeypatch):
    """In parts, and although many are due in the same millisecond."""
    monkeypatch.setattr("pystore.store.timers._PAGE", 16)
    due = str(time.time_ns() // 1_000_000 + 3_600_000)
    async with popping(store_path) as p:
        p.make_topic()
        for n in range(30):
            p.broker.store.put("T", f"{n}", properties={"TIMER_DELIVER_MS": due}, queue=0)
        p.put(*"abcdef")
        for _ in range(6):
            await p.handles(most=1, invisible=3_600_000)
    async with popping(store_path) as p:
        assert sum(ck.open for ck in p.pop_service.points) == 6


async def test_filters_that_pass_over_much_end_their_turn_and_go_on(store_path, monkeypatch):
    """SQL over a backlog: what is wanted comes, however little a turn may look at."""
    monkeypatch.setattr("broker.services.pop.pop.WORK_MAX", 1)
    monkeypatch.setattr("broker.services.pop.pop._FILTERING_MS", -1)
    async with popping(store_path) as p:
        p.make_topic()
        for n in range(200):
            p.broker.store.put("T", f"{n}", properties={"n": str(n)}, queue=0)
        found = await p.pop(poll=60_000, exp="n = 190 OR n = 199", expType="SQL92")
        assert found.ext["msgOffsetInfo"] == "0 0 190"
        found = await p.pop(poll=60_000, exp="n = 199", expType="SQL92")
        assert found.ext["msgOffsetInfo"] == "0 0 199"


async def beat(p, group="g", topic="T"):
    """The heartbeat of a consumer."""
    said = {
        "clientID": "c", "producerDataSet": [], "consumerDataSet": [{
            "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
            "subscriptionDataSet": [{
                "topic": topic, "subString": "*", "subVersion": 1, "expressionType": "TAG",
                "tagsSet": [], "codeSet": [], "classFilterMode": False,
            }],
        }],
    }  # fmt: skip
    assert (await p.ask(Code.HEART_BEAT, body=mqjson.dumps(said))).code == 0


async def test_metrics_say_what_a_group_has_still_to_do(store_path):
    async with popping(store_path) as p:
        p.make_topic(queues=2)
        await beat(p)
        p.put(*"abcde")
        await p.handles(most=2, invisible=60_000)
        p.shift(60_100)
        await until_async(lambda: p.pop_service.revive.revived == 2)
        await p.handles(queue=0, most=3)
        answer = await p.ask(Code.GET_BROKER_RUNTIME_INFO, metrics="pop")
        said = mqjson.loads(answer.body)["table"]
        flight = {key: n for key, n in said.items() if "inflight" in key or "ready" in key}
        assert sum(n for key, n in flight.items() if "inflight" in key) == 3
        assert sum(n for key, n in flight.items() if "ready" in key) == 2
        label = 'consumer_group="g",is_retry="{}",is_system="false",topic="T"'
        lag = [
            said[f"rocketmq_consumer_lag_messages{{{label.format(retry)}}}"]
            for retry in ("false", "true")
        ]
        assert sum(lag) == 5 and lag[1] == 2
        label = 'consumer_group="g",put_status="PUT_OK",topic="T"'
        assert said[f"rocketmq_pop_revive_retry_messages_total{{{label}}}"] == 2
        assert said['rocketmq_pop_revive_lag_milliseconds{queue_id="0"}'] >= 0
        assert said["rocketmq_pop_checkpoint_buffer_size"] >= 1


async def test_an_acknowledgement_waits_for_the_disk_in_the_core(store_path, monkeypatch):
    async with popping(store_path, flushDiskType="SYNC_FLUSH") as p:
        p.make_topic()
        p.put("a", "b")
        found = await p.handles()
        monkeypatch.delattr(p.pop_service.acks.__class__, "ack")  # Python is not asked
        for handle, _, _ in found:
            assert (await p.ack(handle)).code == 0
            assert p.broker.store.info().log_flushed >= p.pop_service.log.end
        assert (await p.ack(found[0][0])).code == 0  # a repeat
        assert not len(p.pop_service.points)


@pytest.mark.parametrize("stopped", ["cleanly", "then put into", "damaged"])
async def test_a_start_after_a_clean_stop_reads_no_records(store_path, monkeypatch, stopped):
    """Unless the log went on since: then it is asked, as after a crash, and says the same."""
    kept = store_path / "config" / "popCheckPoints.json"
    asked = []
    find = ReviveLog.find
    monkeypatch.setattr(ReviveLog, "find", lambda *given: (asked.append(1), find(*given))[1])
    async with popping(store_path) as p:
        p.make_topic()
        p.put(*"abcdef")
        found = await p.handles(most=3)
        await p.ack(found[1][0])
        await p.handles(most=2, invisible=70_000)
        before = sorted(p.pop_service.points)
    asked.clear()
    if stopped == "then put into":
        with pystore.open(store_path, mappedFileSizeCommitLog=1 << 20) as store:
            store.put("T", "g")
    elif stopped == "damaged":
        kept.write_bytes(kept.read_bytes()[:-9])
    async with popping(store_path) as p:
        assert sorted(p.pop_service.points) == before
        assert p.pop_service.in_flight("T", "g", 0) == 4 and not kept.exists()
    assert bool(asked) is (stopped != "cleanly")


async def test_what_comes_back_again_and_again_keeps_where_it_was_born(store_path):
    async with popping(store_path) as p:
        p.make_topic()
        assert (await p.send(b"a")).code == 0
        born = p.broker.store.read("T", 0, 0)[0].born_host
        for times in range(3):
            found = []
            while not found:
                got = await p.pop(poll=10_000, invisible=1)
                found = records(got.body)
            assert [(each[1], each[4]) for each in found] == [(b"a", times)]
        (retry,) = [name for name in p.broker.store.topics() if name.startswith("%RETRY%g")]
        copies = p.broker.store.read(retry, 0, 0)
        assert {each.born_host for each in copies} == {born}


async def test_what_cannot_come_back_yet_holds_up_nothing_else(store_path):
    """Its retry topic would be a queue too many."""
    async with popping(store_path) as p:
        topics = p.broker.services.topics
        built_in = topics.built_in

        def refuses(name):
            if name == "%RETRY%g_T":
                raise Refused(1, "too many queues")
            return built_in(name)

        topics.built_in = refuses
        p.make_topic()
        p.make_topic("U")
        p.put("a")
        p.put("b", topic="U")
        for topic in ("T", "U"):
            assert len(await p.handles(topic=topic, invisible=1000)) == 1
        p.shift(1_100)
        assert [body for *_, body in await p.handles(topic="U", poll=600_000)] == [b"b"]
        topics.built_in = built_in
        p.shift(2_000)
        assert [body for *_, body in await p.handles(poll=600_000)] == [b"a"]


async def test_whoever_waits_gets_what_comes_back_once_it_is_on_the_disk(store_path):
    async with popping(store_path, flushDiskType="SYNC_FLUSH") as p:
        p.make_topic()
        await asyncio.to_thread(p.put, "a")
        assert len(await p.handles()) == 1
        waiting = asyncio.ensure_future(p.pop(poll=600_000, timeout=BOUND_S))
        await until_async(lambda: p.pop_service.waiting() == 1)
        p.shift(61_000)
        assert [record[1] for record in records((await waiting).body)] == [b"a"]


async def test_a_pop_that_waits_gets_messages_of_a_queue_that_the_topic_has_got_since(store_path):
    """As after `updateTopic -r`, and where a static topic comes back to a broker."""
    async with popping(store_path) as p:
        p.make_topic(queues=1)
        waits = asyncio.ensure_future(p.pop(poll=1 << 29))
        await until_async(lambda: p.pop_service.points.waiting())
        p.make_topic(queues=2)
        p.put(b"new", queue=1)
        assert [body for _, body, *_ in records((await waits).body)] == [b"new"]
