"""Pulls of lite topics and of light queues by name (11): outcomes as of other pulls."""

from __future__ import annotations

import asyncio

import pytest
from liting import PARENT, lite_broker
from popping import records
from waiting import until_async

from broker.wire.codes import RequestCode as Code
from broker.wire.codes import ResponseCode

QUEUE = "%LMQ%$L$a"
NOT_FOUND, AGAIN, MOVED = (
    ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED
)  # fmt: skip


async def pull(lt, offset=0, **more):
    """A pull that brings its own subscription, as tools ask."""
    given = {
        "consumerGroup": "plain", "topic": PARENT, "liteTopic": "a", "queueId": 0,
        "queueOffset": offset, "maxMsgNums": 8, "sysFlag": 4, "commitOffset": 0,
        "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
    } | more  # fmt: skip
    if given["liteTopic"] is None:
        del given["liteTopic"]
    return await lt.p.ask(Code.PULL_MESSAGE, **given)


def bodies(answer):
    return [body.decode() for _, body, *_ in records(answer.body)]


@pytest.mark.parametrize("by_name", [False, True])
async def test_a_pull_reads_a_lite_topic_as_at_apache(store_path, by_name):
    async with lite_broker(store_path) as lt:
        await lt.send("a", *"01234")
        await until_async(lambda: lt.lite.lights.range(QUEUE) == (0, 5))
        place = {"topic": QUEUE, "liteTopic": None} if by_name else {}
        answer = await pull(lt, 1, maxMsgNums=2, **place)
        assert (answer.code, answer.remark, bodies(answer)) == (0, "FOUND", ["1", "2"])
        assert answer.ext == {
            "groupSysFlag": "0", "maxOffset": "5", "minOffset": "0", "nextBeginOffset": "3",
            "suggestWhichBrokerId": "0", "topicSysFlag": "0",
        }  # fmt: skip


async def test_a_pull_that_finds_nothing_says_why(store_path):
    async with lite_broker(store_path, enablePropertyFilter=True) as lt:
        await lt.send("a", *"01", TAGS="x")
        await until_async(lambda: lt.lite.lights.range(QUEUE) == (0, 2))
        for offset, more, code, remark, after in (
            (2, {}, NOT_FOUND, "OFFSET_OVERFLOW_ONE", "2"),
            (9, {}, MOVED, "OFFSET_OVERFLOW_BADLY", "2"),
            (-1, {}, MOVED, "OFFSET_TOO_SMALL", "0"),
            (0, {"liteTopic": "none"}, NOT_FOUND, "NO_MATCHED_LOGIC_QUEUE", "0"),
            (3, {"liteTopic": "none"}, MOVED, "NO_MATCHED_LOGIC_QUEUE", "0"),
            (0, {"subscription": "y || z"}, AGAIN, "NO_MATCHED_MESSAGE", "2"),
            (0, {"subscription": "TAGS = 'y'", "expressionType": "SQL92"}, AGAIN,
             "NO_MATCHED_MESSAGE", "2"),
        ):  # fmt: skip
            answer = await pull(lt, offset, **more)
            found = answer.code, answer.remark, answer.ext["nextBeginOffset"]
            assert found == (code, remark, after)
        for more in (
            {"subscription": "x"}, {"subscription": "TAGS = 'x'", "expressionType": "SQL92"},
        ):  # fmt: skip
            assert bodies(await pull(lt, **more)) == ["0", "1"]
        for more, code in (
            ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
            ({"queueId": 1}, ResponseCode.INVALID_PARAMETER),
            ({"sysFlag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        ):
            assert (await pull(lt, **more)).code == code


async def test_a_pull_waits_for_a_message(store_path):
    async with lite_broker(store_path) as lt:
        seen = []

        class Hook:
            name = "seen"

            def before(self, context):
                pass

            def after(self, context):
                seen.append((context.topic, context.count, context.success))

        lt.p.broker.services.consume_hooks.add(Hook())
        waits = asyncio.ensure_future(pull(lt, sysFlag=6, suspendTimeoutMillis=120_000))
        await lt.send("b", "other")
        await lt.send("a", "0")
        assert bodies(await waits) == ["0"]
        await until_async(lambda: seen)  # it hears of an answer that is on its way already
        assert seen == [(PARENT, 1, True)]


async def test_a_pull_commits_in_the_lite_topic(store_path):
    """Upstream commits in the parent's queue, whose messages the group then skips."""
    async with lite_broker(store_path) as lt:
        await lt.send("a", *"012")
        await pull(lt, 2, sysFlag=5, commitOffset=2)
        offsets = lt.p.broker.services.offsets
        assert (offsets.get("plain", QUEUE, 0), offsets.get("plain", PARENT, 0)) == (2, None)
