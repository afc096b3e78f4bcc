"""A broker that has its last segment, and the rest in the cold tier, beside one that kept
everything: every question has the same answer."""

from __future__ import annotations

import random
import shutil
from contextlib import asynccontextmanager

import pytest
from popping import Popper, popping, records
from waiting import until_async

import pystore
from broker.metrics.page import Page
from broker.services.broker_metrics import add_tier
from broker.services.cold.handle import TierHandle
from broker.wire.codes import RequestCode as Code
from broker.wire.codes import ResponseCode
from broker.wire.mqjson import loads
from pystore.cold.failures import TierUnreachable
from pystore.cold.push import push
from pystore.cold.tier import new_tier
from pystore.meta.configfiles import SubscriptionGroup

NAME = "DEFAULT_BROKER"
TOPICS = ("orders", "payments")
COUNT = 2400
BUSY = ResponseCode.SYSTEM_BUSY


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store, the same with its older segments gone, and the tier that has them."""
    path = tmp_path_factory.mktemp("cold-reads")
    rng = random.Random(11)
    # A file of the index as large as it is by default would be copied whole by each test.
    sizes = {"mappedFileSizeCommitLog": 1 << 16, "maxHashSlotNum": 512, "maxIndexNum": 2048}
    with pystore.open(path / "whole", **sizes) as store:
        for number in range(COUNT):
            store.put(
                TOPICS[number % 2], b"%d-" % number + rng.randbytes(rng.randrange(300)),
                queue=number // 2 % 2, tags=rng.choice(["paid", "sent", "AaAa", "BBBB", None]),
                keys=f"k{number} of-{number % 50}", properties={"amount": str(number % 10)},
            )  # fmt: skip
    with pystore.Reader(path / "whole") as reader:
        push(reader, new_tier(path / "cold", "DefaultCluster", NAME), segment_bytes=16 << 10)
    shutil.copytree(path / "whole", path / "thin")
    with pystore.open(path / "thin") as store:
        store.clean(immediate=True)
        assert all(store.range(topic, queue)[0] > 300 for topic in TOPICS for queue in (0, 1))
    return path


@asynccontextmanager
async def twins(made, tmp_path, **settings):
    shutil.copytree(made / "whole", tmp_path / "whole")
    shutil.copytree(made / "thin", tmp_path / "thin")
    both = {"fileReservedTime": 10_000, "enablePropertyFilter": True}
    cold = {"tieredStoreFilePath": str(made / "cold")} | settings
    async with (
        popping(tmp_path / "whole", **both) as whole,
        popping(tmp_path / "thin", **both, **cold) as thin,
    ):
        for each in (whole, thin):
            for topic in TOPICS:
                each.make_topic(topic, 2)
            each.broker.services.groups.update(SubscriptionGroup("g"))
        await until_async(lambda: thin.broker.services.cold.reads.is_known, "the tier")
        yield whole, thin


async def pull(each: Popper, topic, queue, offset, **more):
    ext = {
        "consumerGroup": "g", "topic": topic, "queueId": queue, "queueOffset": offset,
        "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
        "subscription": "*", "subVersion": 0, "expressionType": "TAG",
    } | more  # fmt: skip
    return await each.ask(Code.PULL_MESSAGE, **ext)


async def pull_again(each: Popper, topic, queue, offset):
    """Pulls until the tier has answered in time, as a client that is told to ask again."""
    while (answer := await pull(each, topic, queue, offset)).code == BUSY:
        assert answer.ext["nextBeginOffset"] == str(offset)
    return answer


async def pull_to(each: Popper, end, *place, **more):
    """Pulls as long as what comes is before an offset: a read of the tier may end earlier."""
    answer = await pull(each, *place, **more)
    assert "minOffset" in answer.ext, (answer, place, more)
    found, at = records(answer.body), int(answer.ext["nextBeginOffset"])
    first = answer.code, answer.ext["minOffset"], answer.ext["maxOffset"]
    while at < end:
        answer = await pull(each, *place[:2], at, **more)
        found += records(answer.body)
        at = int(answer.ext["nextBeginOffset"])
    return first, found, at


def a_pull(rng):
    place = rng.choice(TOPICS), rng.randrange(2), rng.randrange(-2, COUNT // 4 + 3)
    more = rng.choice(
        [
            {}, {"subscription": "paid"}, {"subscription": "AaAa || sent"},
            {"subscription": "amount > 7", "expressionType": "SQL92"}, {"subscription": "none"},
            {"maxMsgNums": 1}, {"suspendTimeoutMillis": 100, "sysFlag": 6},
        ]
    )  # fmt: skip
    return place, more


async def test_pulls(made, tmp_path):
    rng = random.Random(5)
    async with twins(made, tmp_path) as (whole, thin):
        for _ in range(60):
            place, more = a_pull(rng)
            wanted = await pull_to(whole, -1, *place, **more)
            got = await pull_to(thin, wanted[2], *place, **more)
            assert got[1][: len(wanted[1])] == wanted[1], (place, more)
            assert got[0][1:] == wanted[0][1:]
            if not wanted[1] and not more:
                assert got == wanted, (place, more)
        page = Page({})
        add_tier(page, thin.broker.services)
        said = dict(line.rsplit(b" ", 1) for line in page.text().splitlines() if line[:1] != b"#")
        for name in b'hits_total{place="memory"}', b"misses_total", b'bytes{place="disk"}':
            assert float(said[b"pystore_tier_cache_" + name]) > 0


async def answer_of(each: Popper, code, **ext):
    answer = await each.ask(code, **ext)
    body = answer.body
    if code == Code.QUERY_MESSAGE:  # of one millisecond there is no order over queues
        body = sorted(records(body), key=lambda each: each[1])
    said = {
        name: value for name, value in answer.ext.items()
        if not name.startswith("indexLast")
    }  # fmt: skip
    return answer.code, answer.remark, said, body


async def test_offsets_times_and_keys(made, tmp_path):
    rng = random.Random(6)
    async with twins(made, tmp_path) as (whole, thin):
        every = whole.broker.store.read("orders", 0, 0, max_messages=999)
        stored = [m.store_timestamp for m in every]
        for _ in range(80):
            place = {"topic": rng.choice(TOPICS), "queueId": rng.randrange(2)}
            code, more = rng.choice(
                [
                    (Code.GET_MIN_OFFSET, {}), (Code.GET_MAX_OFFSET, {}),
                    (Code.GET_EARLIEST_MSG_STORETIME, {}),
                    (Code.SEARCH_OFFSET_BY_TIMESTAMP, {
                        "timestamp": rng.choice(stored) + rng.randrange(-1, 2),
                        "boundaryType": rng.choice(["LOWER", "UPPER"]),
                    }),
                    (Code.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": rng.choice([0, 1 << 50])}),
                    (Code.QUERY_MESSAGE, {
                        "key": rng.choice([f"k{rng.randrange(COUNT)}", f"of-{rng.randrange(60)}"]),
                        "maxNum": 64, "beginTimestamp": 0,
                        "endTimestamp": rng.choice([1 << 60, rng.choice(stored)]),
                    }),
                ]
            )  # fmt: skip
            got = await answer_of(thin, code, **place, **more)
            assert got == await answer_of(whole, code, **place, **more), (code, place, more)


async def table_of(each: Popper, code, **ext):
    answer = await each.ask(code, **ext)
    assert answer.code == 0, answer.remark
    return {name: value for name, value in loads(answer.body).items() if "Tps" not in name}


async def test_what_tools_see(made, tmp_path):
    async with twins(made, tmp_path) as (whole, thin):
        for each in (whole, thin):
            for queue, offset in enumerate((40, 599)):
                each.broker.services.offsets.commit("g", "orders", queue, offset)
        for code, ext in (
            (Code.GET_TOPIC_STATS_INFO, {"topic": "orders"}),
            (Code.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": "orders"}),
        ):
            assert await table_of(thin, code, **ext) == await table_of(whole, code, **ext)
        units = [
            await table_of(each, Code.QUERY_CONSUME_QUEUE, topic="orders", queueId=0, index=30,
                           count=5)
            for each in (thin, whole)
        ]  # fmt: skip
        for each in units:
            for unit in each["queueData"]:
                del unit["physicOffset"]
        assert units[0] == units[1]


async def test_a_message_of_the_tier_is_found_by_its_id_and_comes_back_for_a_retry(made, tmp_path):
    async with twins(made, tmp_path) as (_, thin):
        answer = await pull_again(thin, "orders", 0, 10)
        place = int.from_bytes(bytes(answer.body[28:36]), "big")
        found = await thin.ask(Code.VIEW_MESSAGE_BY_ID, offset=place)
        size = int.from_bytes(bytes(answer.body[:4]), "big")
        assert bytes(found.body) == bytes(answer.body[:size])
        thin.broker.services.cold.reads._publish_all()
        back = await thin.ask(
            Code.CONSUMER_SEND_MSG_BACK, group="g", offset=place, delayLevel=0,
            originTopic="orders", originMsgId="x", unitMode="false", maxReconsumeTimes=16,
        )  # fmt: skip
        assert back.code == 0, back.remark
        wrong = await thin.ask(Code.VIEW_MESSAGE_BY_ID, offset=place + 1)
        assert wrong.code == ResponseCode.SYSTEM_ERROR


async def pop_all(each: Popper, group, **more):
    """Everything, in the order of each queue; acknowledged as it comes."""
    found = []
    while len(found) < COUNT // 2:
        answer = await each.pop(topic="orders", group=group, poll=5000, **more)
        for handle, name, body in each.handles_of(answer, "orders", group):
            found.append((handle.queue, handle.offset, bytes(body)))
            assert (await each.ack(handle, name, group)).code == 0
    return sorted(found)


async def test_pops_take_each_message_of_the_tier_once(made, tmp_path):
    async with twins(made, tmp_path) as (whole, thin):
        assert await pop_all(thin, "poppers") == await pop_all(whole, "poppers")
        for queue in (0, 1):
            assert thin.pop_service.in_flight("orders", "poppers", queue) == 0


async def test_a_popped_message_of_the_tier_comes_back(made, tmp_path):
    async with twins(made, tmp_path) as (_, thin):
        handles = []
        while not handles:
            handles = await thin.handles(topic="orders", queue=0, most=2, poll=5000)
        (late, *_), (soon, *_) = handles
        assert (await thin.change(late, 600_000, "orders")).code == 0
        thin.shift(61_000)
        again = []
        while not again:
            again = await thin.handles(topic="orders", queue=0, most=1, poll=5000)
            again = [each for each in again if each[1].startswith("%RETRY%")]
        assert again[0][2] == handles[1][2]
        assert (await thin.ack(soon, "orders")).code in (0, ResponseCode.NO_MESSAGE)


def fails(*args, **more):
    raise TierUnreachable("the store is away", "s3://bucket")


async def test_nobody_jumps_over_a_tier_that_is_away(made, tmp_path):
    async with twins(made, tmp_path) as (_, thin):
        objects = thin.broker.services.cold.reads._lender.blocks._objects
        get, objects.get = objects.get, fails
        away = await pull(thin, "orders", 0, 5)
        assert (away.code, away.ext["nextBeginOffset"]) == (BUSY, "5")
        assert "the store is away" in away.remark
        searched = await thin.ask(
            Code.SEARCH_OFFSET_BY_TIMESTAMP, topic="orders", queueId=0, timestamp=1
        )
        assert (searched.code, "the store is away" in searched.remark) == (BUSY, True)
        low = thin.broker.store.range("orders", 0)[0]
        assert (await pull(thin, "orders", 0, low)).code == 0  # what is here does not wait
        objects.get = get
        assert (await pull_again(thin, "orders", 0, 5)).code == 0


async def test_a_tier_that_nobody_has_looked_at_hides_nothing(made, tmp_path, monkeypatch):
    """From the first moment on, and for as long as it cannot be reached."""
    shutil.copytree(made / "thin", tmp_path / "thin")
    monkeypatch.setattr(TierHandle, "_listed", fails)
    away = {"tieredStoreFilePath": str(made / "cold"), "fileReservedTime": 10_000}
    async with popping(tmp_path / "thin", **away) as thin:
        thin.make_topic("orders", 2)
        thin.broker.services.groups.update(SubscriptionGroup("g"))
        answer = await pull(thin, "orders", 0, 5)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (BUSY, "5")
        least = await thin.ask(Code.GET_MIN_OFFSET, topic="orders", queueId=0)
        assert least.code == BUSY
        assert (await thin.pop(topic="orders", group="p", queue=0)).code != 0


@pytest.mark.parametrize("level", ["NOT_IN_MEM", "FORCE", "DISABLE"])
async def test_levels(made, tmp_path, level):
    async with twins(made, tmp_path, tieredStorageLevel=level) as (whole, thin):
        _, high = whole.broker.store.range("orders", 0)
        first = thin.broker.store.range("orders", 0)[0]
        answer = await pull(thin, "orders", 0, 3)
        if level == "DISABLE":
            assert (answer.code, answer.ext["nextBeginOffset"]) == (21, str(first))
            return
        for offset in (3, first, high - 40):
            wanted = await pull_to(whole, -1, "orders", 0, offset)
            found = (await pull_to(thin, wanted[2], "orders", 0, offset))[1]
            assert found[: len(wanted[1])] == wanted[1]
