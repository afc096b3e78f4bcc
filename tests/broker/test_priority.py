"""Messages with priorities (docs/internals/pop.md#priorities); what a running 5.5.0 did stands in
its first test."""

from __future__ import annotations

import asyncio

import pytest
from popping import popping, records
from waiting import until_async

from broker import InvalidMessage, Message, Producer
from broker.client.sending import properties_of
from broker.wire import mqjson
from broker.wire.codes import RequestCode as Code
from pystore.format.properties import PRIORITY, parse_properties
from pystore.meta.configfiles import TopicConfig

QUEUES = 8


def make_topic(p, kind="PRIORITY", queues=QUEUES):
    changes = f"+message.type={kind}"
    p.broker.services.topics.update(TopicConfig("T", queues, queues), changes)


async def send(p, priority, body=None, **properties):
    text = str(priority)
    answer = await p.send((body or text).encode(), **{PRIORITY: text}, **properties)
    assert answer.code == 0
    return int(answer.ext["queueId"])


async def popped(p, **more):
    return [body.decode() for _, body, *_ in records((await p.pop(**more)).body)]


async def test_the_largest_priorities_come_first_and_each_level_in_order(store_path):
    """Sent and received as by `reference lite prio` at 5.5.0."""
    async with popping(store_path) as p:
        make_topic(p)
        queues = [await send(p, each) for each in (0, 7, 3, 9, 1, 100, 2, 6, 5, 4)]
        assert queues == [0, 7, 3, 7, 1, 7, 2, 6, 5, 4]
        got = [await popped(p, most=2) for _ in range(5)]
        assert got == [["7", "9"], ["100", "6"], ["5", "4"], ["3", "2"], ["1", "0"]]


@pytest.mark.parametrize("kind", ["NORMAL", "FIFO", "PRIORITY"])
async def test_a_priority_chooses_the_queue_whatever_the_type_of_the_topic(store_path, kind):
    async with popping(store_path) as p:
        make_topic(p, kind, queues=4)
        assert await send(p, 1) == 1
        assert [body for _, body, *_ in records((await p.pop(queue=1)).body)] == [b"1"]


@pytest.mark.parametrize("text", ["-1", "x", "", "2147483648", "1.0"])
async def test_what_is_no_priority_goes_to_the_queue_that_was_asked_for(store_path, text):
    async with popping(store_path) as p:
        make_topic(p)
        assert await send(p, text, "body") == 0


@pytest.mark.parametrize(
    "other", [{"__SHARDINGKEY": "k"}, {"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}]
)
async def test_a_message_of_another_type_loses_its_priority(store_path, other):
    async with popping(store_path) as p:
        make_topic(p)
        assert await send(p, 5, "body", **other) == 0
        ((_, _, properties, *_),) = records((await p.pop(poll=20_000)).body)
        assert PRIORITY not in properties


async def test_smaller_priorities_come_first_where_a_setting_says_so(store_path):
    async with popping(store_path, priorityOrderAsc=False) as p:
        make_topic(p)
        for each in (3, 1, 2):
            await send(p, each)
        assert await popped(p) == ["1", "2", "3"]


async def test_a_group_goes_by_priority_as_often_as_its_factor_says(store_path):
    """Without priorities a walk begins anywhere, so that the highest level is not always first."""
    async with popping(store_path) as p:
        make_topic(p)
        body = {"groupName": "g", "attributes": {"+priority.factor": "0"}}
        answer = await p.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, mqjson.dumps(body))
        assert answer.code == 0
        for each in range(QUEUES):
            for _ in range(16):
                await send(p, each)
        firsts = {(await popped(p, most=1))[0] for _ in range(60)}
        assert len(firsts) > 1


@pytest.mark.parametrize("value", ["101", "-1", "many"])
async def test_a_factor_out_of_range_is_refused(store_path, value):
    async with popping(store_path) as p:
        body = {"groupName": "g", "attributes": {"+priority.factor": value}}
        answer = await p.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, mqjson.dumps(body))
        assert answer.code == 1 and "range(0, 100)" in answer.remark


async def wait_for_what_comes_back(p):
    """One of level 5 was handed out and comes back beside two that wait."""
    make_topic(p)
    await send(p, 5, "back5")
    await p.pop(invisible=20_000)
    for each in (7, 1):
        await send(p, each)
    p.shift(21_000)
    await until_async(lambda: p.pop_service.revive.revived == 1)


async def test_what_comes_back_comes_after_all_that_waits(store_path):
    async with popping(store_path) as p:
        await wait_for_what_comes_back(p)
        assert await popped(p) == ["7", "1", "back5"]


async def test_what_comes_back_takes_its_turn_where_a_setting_says_so(store_path):
    async with popping(store_path, priorityRetriesInTurn=True) as p:
        await wait_for_what_comes_back(p)
        assert await popped(p) == ["7", "back5", "1"]


async def test_a_message_that_waits_gains_levels_where_a_setting_says_so(store_path):
    """Level 0 overtakes level 1, which came at least nine steps later."""
    async with popping(store_path, priorityAgeingMs=1) as p:
        make_topic(p)
        await send(p, 0, "old")
        await asyncio.sleep(0.01)
        await send(p, 1, "new")
        assert await popped(p) == ["old", "new"]


def test_a_message_says_its_priority_in_a_property():
    assert (
        parse_properties(properties_of(Message("T", b"x", priority=7), "k").encode())[PRIORITY]
        == "7"
    )


@pytest.mark.parametrize(
    ("priority", "more", "why"),
    [
        (-1, {}, "not from 0"),
        (2**31, {}, "not from 0"),
        ("7", {}, "a whole number"),
        (1, {"delay_level": 3}, "waits for a time"),
        (1, {"deliver_at_ms": 1}, "waits for a time"),
    ],
)
def test_a_priority_that_brokers_would_pass_over_is_refused(priority, more, why):
    with pytest.raises(InvalidMessage, match=why):
        properties_of(Message("T", b"x", priority=priority, **more), "k")


def test_a_priority_in_a_batch_is_refused(names):
    with Producer("p", names) as producer, pytest.raises(InvalidMessage, match="send it alone"):
        producer.send_batch([Message("T", b"x", priority=1), Message("T", b"y")])
