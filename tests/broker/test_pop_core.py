"""What the core pops by itself, and the records that it puts."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from popping import popping, records
from storeview import everything

from broker.hot import ordered
from broker.wire.codes import RequestCode as Code
from broker.wire.codes import ResponseCode
from pystore.errors import OutOfMemory, StoreIOError
from pystore.meta.configfiles import SubscriptionGroup

TIMERS = "rmq_sys_wheel_timer"


def records_of(p):
    """What was put for timers."""
    timers = everything(p.broker.store, TIMERS)
    return [(dict(message.properties), bytes(message.body)) for message in timers]


async def test_an_acknowledgement_that_cannot_be_meant_is_refused_by_name(store_path):
    """And nothing counts."""
    async with popping(store_path) as p:
        p.make_topic()
        p.put("a")
        ((handle, topic, _),) = await p.handles()
        for wrong, says in (
            ({"queueId": 7}, "queueId[7] is illegal"),
            ({"offset": 99}, "offset is illegal"),
            ({"offset": "x"}, "offset"),
            ({"topic": "nobodys"}, "nobodys"),
            ({"extraInfo": "1 2 3"}, "3 fields"),
            ({"extraInfo": handle.text.replace(" ", "  ")}, "handle"),
        ):
            fields = {
                "consumerGroup": "g", "topic": topic, "queueId": handle.queue,
                "offset": handle.offset, "extraInfo": handle.text,
            }  # fmt: skip
            answer = await p.ask(Code.ACK_MESSAGE, **fields | wrong)
            assert answer.code != 0 and says in answer.remark, (wrong, answer.remark)
            assert p.pop_service.in_flight("T", "g", 0) == 1
        assert (await p.ack(handle, topic)).code == 0
        assert p.pop_service.in_flight("T", "g", 0) == 0


def count_checks(p):
    """Groups of the requests that Python looks at, from now on."""
    groups, checks = p.broker.services.groups, []
    found = groups.found

    def counted(group):
        checks.append(group)
        return found(group)

    groups.found = counted
    return checks


def subscribe(p, group="g"):
    """The core pops for groups that are subscribed."""
    p.broker.services.core.publish_subscription(group, "T", tags=None, sub_version=1, own=True)


@asynccontextmanager
async def popped_by_core(store_path):
    """A topic that the group has been at, and what Python is asked for."""
    async with popping(store_path) as p:
        p.make_topic()
        await p.pop()
        subscribe(p)
        yield p, count_checks(p)


async def test_the_core_pops_what_came_back_under_the_name_of_its_topic(store_path):
    """With its handle, by which it is acknowledged, and the rest of the topic beside it."""
    async with popped_by_core(store_path) as (p, checks):
        p.put("a", "b", "c")
        assert [body for *_, body in await p.handles(most=1)] == [b"a"]
        p.shift(61_000)
        came = []
        while len(came) < 3:
            answer = await p.pop(most=1)
            for (handle, name, _), record in zip(
                p.handles_of(answer), records(answer.body), strict=True
            ):
                _, body, said, topic, times = record
                came.append((body, handle.retry, topic, times))
                assert said.get("POP_CK") == (handle.text if handle.retry != "0" else None)
                assert (await p.ack(handle, name)).code == 0
            await asyncio.sleep(0.01)
        assert sorted(came) == [(b"a", "1", "T", 1), (b"b", "0", "T", 0), (b"c", "0", "T", 0)]
        assert len(p.pop_service.points) == 0
        assert not checks


async def test_the_core_pops_what_a_filter_takes(store_path):
    """Tags at once; SQL92 once the broker has checked the expression."""
    async with popped_by_core(store_path) as (p, checks):
        for n in range(6):
            said = {"TAGS": "ab"[n % 2], "n": str(n)}
            p.broker.store.put("T", f"{n}", properties=said, queue=0)
        got = await p.pop(most=2, exp="a || c")
        assert [each[1] for each in records(got.body)] == [b"0", b"2"] and not checks
        for n, expected in (4, b"4"), (5, b"5"):
            sql = {"expType": "SQL92", "exp": f"n >= 4 AND n <= {n}"}
            got = await p.pop(most=1, **sql)
            assert [each[1] for each in records(got.body)] == [expected]
            assert len(checks) == n - 3
        p.broker.store.put("T", "7", properties={"n": "5"}, queue=0)
        got = await p.pop(**sql)
        assert [each[1] for each in records(got.body)] == [b"7"] and len(checks) == 2


async def test_the_core_pops_for_whoever_sends_no_heartbeats_until_its_group_may_not(store_path):
    """As a proxy pops for its clients: Python looks at the first request alone."""
    async with popping(store_path) as p:
        p.make_topic()
        await p.pop()
        checks = count_checks(p)
        p.put("a", "b")
        got = await p.pop(exp="*")
        assert [each[1] for each in records(got.body)] == [b"a", b"b"] and not checks
        p.broker.services.groups.update(SubscriptionGroup("g", consume_enable=False))
        assert (await p.pop()).code == ResponseCode.NO_PERMISSION


async def test_the_core_pops_on_a_first_visit(store_path):
    """From the first message, and of a queue that is not young from the last one."""
    settings = {"initPopOffsetByCheckMsgInMem": "false"}
    async with popping(store_path, **settings) as p:
        p.make_topic()
        p.put(*"abc")
        checks = count_checks(p)
        for group, mode, expected in ("g", 0, [b"a", b"b", b"c"]), ("h", 1, [b"c"]):
            subscribe(p, group)
            got = await p.pop(group=group, initMode=mode)
            assert [each[1] for each in records(got.body)] == expected
        assert not checks


async def test_a_pop_of_a_syncing_broker_is_answered_after_its_check_point_is_on_the_disk(
    store_path,
):
    async with popping(store_path, flushDiskType="SYNC_FLUSH") as p:
        p.make_topic()
        subscribe(p)
        await asyncio.to_thread(p.put, "a")
        checks = count_checks(p)
        got = await p.pop()
        assert [each[1] for each in records(got.body)] == [b"a"] and not checks
        assert p.broker.store.info().log_flushed >= p.pop_service.log.end > 0


async def test_what_the_core_popped_comes_back_by_itself(store_path):
    async with popped_by_core(store_path) as (p, checks):
        p.put("a")
        assert [body for *_, body in await p.handles(invisible=1)] == [b"a"]
        assert not checks
        answer = await p.pop(poll=60_000)
        assert [record[1] for record in records(answer.body)] == [b"a"]


async def test_records_are_what_apaches_broker_writes(store_path):
    """Their bodies, member by member, and what makes timers of them."""
    broker = "broker-a"
    async with popping(store_path, brokerName=broker) as p:
        p.make_topic()
        p.put("a", "b", "c", "d")
        found = await p.handles(most=3, invisible=20_000)
        handle = found[0][0]
        pop_ms, turn = handle.pop_ms, handle.revive_queue
        for which in (1,), (0, 2):
            p.pop_service.acks.ack("T", "g", handle, which)
        named = {"bn": broker, "c": "g"}
        where = {"pt": pop_ms, "q": 0, "so": 0, "t": "T"}
        ck = {
            "bm": 0, **named, "d": [0, 1, 2], "it": 20_000, "n": 3, "pt": pop_ms, "q": 0,
            "reviveTime": pop_ms + 20_000, "ro": 0, "so": 0, "t": "T",
        }  # fmt: skip
        bodies = [ck, {"ao": 1, **named, **where}, {"ao": -1, "aol": [0, 2], **named, **where}]
        got = records_of(p)
        assert [body for _, body in got] == [
            json.dumps(each, separators=(",", ":")).encode() for each in bodies
        ]
        end = f"@g@{pop_ms}@{broker}@"
        said = [
            (each["TAGS"], each["UNIQ_KEY"], int(each["TIMER_DELIVER_MS"]) - pop_ms)
            for each, _ in got
        ]
        assert said == [
            ("ck", f"T@0@0{end}ck", 19_000),
            ("ack", f"T@0@1{end}ack", 20_000),
            ("bAck", f"T@0@-1{end}ack", 20_000),
        ]
        assert {(each["REAL_TOPIC"], each["REAL_QID"]) for each, _ in got} == {
            (p.pop_service.log.topic, str(turn))
        }
        assert len(p.pop_service.points) == 0


async def test_what_a_call_has_waited_for_that_is_gone_is_visible_a_second_later(store_path):
    """Its network thread hands it to Python."""
    async with popping(store_path) as p:
        p.make_topic()
        await p.pop()  # the group is made
        p.put("a", "b")
        found, _ = p.pop_service.points.pop(
            "T", "g", -1, most=2, invisible_ms=60_000, from_min=True, filter_by=None, sql=False,
            order=False, attempt=None, wait_ms=-1, number=0,
        )  # fmt: skip
        p.broker.services.core.on_popped(0, "g", "T", found)
        assert [each.invisible_ms for each in p.pop_service.points] == [1000, 1000]
        p.shift(1_100)
        got = await p.pop(poll=60_000)
        assert sorted(record[1] for record in records(got.body)) == [b"a", b"b"]


def test_too_little_memory_is_not_told_in_the_words_of_an_earlier_error(monkeypatch):
    """The text of ordered batches fails without words of its own."""
    batches = ordered.OrderedBatches(SimpleNamespace(handle=None))
    batches._error.code = StoreIOError.code
    short = SimpleNamespace(ps_core_order_text=lambda *given: OutOfMemory.code)
    monkeypatch.setattr(ordered, "lib", short)
    with pytest.raises(OutOfMemory, match="ordered groups"):
        batches.text(saving=True)
