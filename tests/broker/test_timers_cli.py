"""`pystore timers` on a store at rest and beside a running broker."""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial

import pytest
from loops import run
from test_timers import HOUR_MS, arrived, timed, until

from pystore import Reader, Store
from pystore.format.names import TIMER_TOPIC
from pystore.store.timers import Timers

YEAR = "timerMaxDelaySec=31536000"


@pytest.fixture
def timers(command):
    return partial(command, "timers")


@pytest.fixture
def store(store_path):
    """Three timers to orders, of an hour, two and three; one to others, of 30 hours."""

    async def put():
        async with timed(store_path) as t:
            for i, hours in enumerate((2, 1, 3)):
                delay = {"TIMER_DELAY_MS": str(hours * HOUR_MS), "KEYS": f"k{i}"}
                await t.send(delay, topic="orders", body=b"%d" % i)
            await t.send({"TIMER_DELAY_SEC": str(30 * 3600)}, topic="others")
            await t.send({}, topic="orders", body=b"now")
            await until(lambda: t.schedule.timers.last.pending == 4)

    run(put())
    return store_path


def rows(said):
    return [json.loads(line) for line in said[1].splitlines()]


def later(path, hours, topic="orders"):
    """What has come when a broker has run until so many hours from now."""

    async def wait():
        async with timed(path) as t:
            t.schedule.shift_clock(hours * HOUR_MS)
            await until(lambda: t.schedule.timers.last is not None)
            await until(lambda: not t.schedule.timers.timers.count(0, t.now()))
            return [bytes(m.body) for m in arrived(t.broker.store, topic)]

    return run(wait())


def test_list_in_order_of_time(store, timers):
    said = timers("ls", store, "--json")
    assert said[0] == 0
    assert [(r["topic"], r["keys"]) for r in rows(said)] == [
        ("orders", "k1"), ("orders", "k0"), ("orders", "k2"), ("others", None),
    ]  # fmt: skip
    assert 3500 < rows(said)[0]["in_s"] <= 3600
    assert len(timers("ls", store)[1].splitlines()) == 4
    assert [r["topic"] for r in rows(timers("ls", store, "--topic", "others", "--json"))] == [
        "others"
    ]
    assert len(rows(timers("ls", store, "--to", "+90m", "--json"))) == 1
    assert len(rows(timers("ls", store, "--from", "+90m", "--json"))) == 3
    assert len(rows(timers("ls", store, "--max", "2", "--json"))) == 2


def test_nothing_waits(store, timers):
    assert timers("ls", store, "--topic", "nobody")[0] == 1
    assert timers("ls", store, "--from", "soon")[0] == 2


def test_stats_with_a_histogram(store, timers):
    said = json.loads(timers("stats", store, "--json")[1])
    assert (said["timers"]["pending"], said["timers"]["overdue"]) == (4, 0)
    counts = {row["within"]: row["timers"] for row in said["due within"]}
    assert (counts["1 h"], counts["4 h"], counts["7 d"], sum(counts.values())) == (1, 2, 1, 4)
    assert {row["topic"]: row["pending"] for row in said["by topic"]} == {"orders": 3, "others": 1}
    assert "########" in timers("stats", store)[1]


def test_get_shows_properties_and_body(store, timers):
    code, out, _ = timers("get", store, 1)
    assert (code, "TIMER_DELAY_MS" in out, "k1" in out) == (0, True, True)
    code, _, err = timers("get", store, 77)
    assert (code, "no timer waits at 77" in err) == (1, True)
    assert timers("get", store, "no-handle")[0] == 2


def test_cancel_at_rest(store, timers):
    assert timers("cancel", store, 1, "--dry-run")[0] == 0
    assert len(rows(timers("ls", store, "--json"))) == 4
    assert timers("cancel", store, 1)[0] == 0
    assert len(rows(timers("ls", store, "--json"))) == 3
    assert timers("cancel", store, 1)[0] == 1
    assert later(store, 4) == [b"now", b"0", b"2"]


def test_cancel_of_one_that_is_overdue(store_path, timers):
    async def put():
        async with timed(store_path) as t:
            await t.send({"TIMER_DELAY_MS": "1100"}, topic="orders")

    run(put())
    with Reader(store_path) as reader:
        waiting = Timers(reader)
        (timer,) = waiting.waiting()
        waiting.close()
    while time.time() * 1000 <= timer.due_ms:
        time.sleep(0.01)
    assert timers("cancel", store_path, 0)[0] == 0
    assert later(store_path, 1) == []


@pytest.mark.parametrize("shift_ms", [30 * 60_000, 1])
def test_reschedule_at_rest_to_another_second_or_the_same(store, timers, shift_ms):
    before = rows(timers("ls", store, "--json"))
    due = before[1]["timer_out_ms"] + 500 + (shift_ms if shift_ms > 1 else 0)
    assert timers("reschedule", store, 0, due)[0] == 0
    after = rows(timers("ls", store, "--json"))
    assert [r["keys"] for r in after] == [r["keys"] for r in before]
    assert after[1]["due"] == due and after[1]["offset"] > 3
    assert later(store, 4) == [b"now", b"1", b"0", b"2"]


def test_reschedule_refuses_the_past_and_what_lies_beyond_the_horizon(store, timers):
    assert "has passed" in timers("reschedule", store, 0, "2020-01-01")[2]
    code, _, err = timers("reschedule", store, 0, "+100d")
    assert (code, "timerMaxDelaySec" in err) == (2, True)
    assert timers("reschedule", store, 0, "+100d", "--set", YEAR)[0] == 0
    assert rows(timers("ls", store, "--json"))[-1]["keys"] == "k0"


def test_without_a_unique_key_it_cannot_be_cancelled(store_path, timers):
    with Store(store_path, mappedFileSizeCommitLog=1 << 20) as made:
        made.put("orders", b"x", properties={"TIMER_DELAY_SEC": "60"})
    code, _, err = timers("cancel", store_path, 0)
    assert (code, "UNIQ_KEY" in err) == (2, True)


async def test_at_a_running_broker(store, timers):
    async with timed(store) as t:
        refused = await asyncio.to_thread(timers, "cancel", store, 1)
        assert (refused[0], "open" in refused[2]) == (4, True)
        at = ("--broker", t.broker.address)
        assert (await asyncio.to_thread(timers, "cancel", store, 1, *at))[0] == 0
        again = await asyncio.to_thread(timers, "cancel", store, 1, *at)
        assert (again[0], "no timer waits" in again[2]) == (1, True)
        moved = await asyncio.to_thread(timers, "reschedule", store, 0, "+5h", *at)
        assert moved[0] == 0, moved
        t.schedule.shift_clock(4 * HOUR_MS)
        await until(lambda: len(t.arrived("orders")) == 2)
        t.schedule.shift_clock(6 * HOUR_MS)
        await until(lambda: len(t.arrived("orders")) == 3)
        (_, k2, k0) = t.arrived("orders")
        assert [m.properties["KEYS"] for m in (k2, k0)] == ["k2", "k0"]
        assert TIMER_TOPIC in t.broker.store.topics()


async def test_a_recall_that_the_broker_does_not_allow_says_what_to_do(store, timers):
    async with timed(store, recallMessageEnable=False) as t:
        at = ("--broker", t.broker.address)
        code, _, err = await asyncio.to_thread(timers, "cancel", store, 1, *at)
    assert (code, "recallMessageEnable=true" in err) == (2, True)
