"""What GET_BROKER_RUNTIME_INFO says about how long puts take."""

from __future__ import annotations

import asyncio

from fakes import FakeCore, send_command
from loops import Wire

from broker.broker import Broker
from broker.services.puttimes import PutTimes
from broker.wire import mqjson
from broker.wire.command import Command

EMPTY = (
    "[<=0ms]:0 [0~10ms]:0 [10~50ms]:0 [50~100ms]:0 [100~200ms]:0 [200~500ms]:0 [500ms~1s]:0"
    " [1~2s]:0 [2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:0 "
)


def took(core, seconds, messages=1):
    """As csrc/core/times.c counts."""
    ms = int(seconds * 1000)
    core.put_times[min(ms if ms <= 1000 else 1000 + ms // 1000, 1010)] += messages
    core.put_max_ms = max(core.put_max_ms, ms)


def test_ranges_are_upstreams():
    core = FakeCore()
    times = PutTimes(core)
    assert times.distribution() == EMPTY
    for ms in (0, 0.9, 1, 9, 10, 499, 500, 999, 1000, 1999, 2000, 4999, 5000, 9999, 10000, 1e8):
        took(core, ms / 1000 + 1e-7)
    assert times.distribution() == (
        "[<=0ms]:2 [0~10ms]:2 [10~50ms]:1 [50~100ms]:0 [100~200ms]:0 [200~500ms]:1 [500ms~1s]:2"
        " [1~2s]:2 [2~3s]:1 [3~4s]:0 [4~5s]:1 [5~10s]:2 [10s~]:2 "
    )
    assert times.put_max_ms == 100_000_000


def test_the_last_full_minute_is_told_of():
    core = FakeCore()
    times = PutTimes(core)
    times.sample(0.0)
    took(core, 0.02)
    times.sample(10.0)
    assert "[10~50ms]:1 " in times.distribution()  # the first minute as it goes
    times.sample(60.0)
    took(core, 0.3)
    assert "[200~500ms]:0 " in times.distribution()
    times.sample(120.0)
    assert "[10~50ms]:0 " in times.distribution() and "[200~500ms]:1 " in times.distribution()


def test_a_percentile_is_the_time_within_which_that_part_was_put():
    core = FakeCore()
    times = PutTimes(core)
    assert times.within_ms(0.99) == 0.0
    took(core, 0.0035, 990)
    took(core, 2.5, 10)
    assert (times.within_ms(0.99), times.within_ms(0.999)) == (3.0, 2000.0)


async def test_what_the_core_and_python_store_and_find_is_told_of(tmp_path, small):
    async with (
        Broker(tmp_path / "store", listenPort=0, **small) as broker,
        await Wire.to(broker.port) as wire,
    ):
        for _ in range(3):  # the first makes the topic, and so goes through Python
            assert (await wire.ask(send_command("orders"))).code == 0
        own = {"sysFlag": "4", "subscription": "*", "expressionType": "TAG", "queueId": "0"}
        asked = {"consumerGroup": "g", "topic": "orders", "maxMsgNums": "32"}
        for offset in ("0", "3", "3"):
            await wire.ask(Command(11, {**own, **asked, "queueOffset": offset}))
        await asyncio.sleep(0.01)
        table = mqjson.loads((await wire.ask(Command(28))).body)["table"]
        parts = table["putMessageDistributeTime"].split()
        counts = [int(part.partition("]:")[2]) for part in parts]
        assert sum(counts) == 3
        current = broker.services.statistics.current()
        found = {name: value for (name, _), value in current.items()}
        assert (found["FOUND"], found["MISS"]) == (1, 2)
        assert table["putMessageTimesTotal"] == "3"
        assert table["remainHowManyDataToFlush"].endswith("B")


async def test_sends_that_wait_for_the_disk_count_until_they_are_there(tmp_path, small):
    settings = small | {"flushDiskType": "SYNC_FLUSH"}
    async with (
        Broker(tmp_path / "store", listenPort=0, **settings) as broker,
        await Wire.to(broker.port) as wire,
    ):
        for _ in range(3):
            assert (await wire.ask(send_command("orders"))).code == 0
        assert sum(broker.services.core.times().puts) == 3
