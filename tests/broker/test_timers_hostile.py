"""Timers before clients that mean harm, and before damaged files."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_timers import HOUR_MS, SMALL, arrived, timed, until
from test_timers_beside import ends, half
from test_timers_cli import timers as command  # noqa: F401
from waiting import BOUND_S

from pystore import Store
from pystore.format.names import TIMER_TOPIC
from pystore.store.timers import RecallHandle, Timers, delete_mark, save_timers

MANY = SMALL | {"mappedFileSizeCommitLog": 16 << 20}


def put(store, due_ms, key=None, body=b"x", **more):
    properties = {"TIMER_DELIVER_MS": str(due_ms)} | ({"UNIQ_KEY": key} if key else {}) | more
    store.put_message("T", body, properties=properties)


def in_an_hour():
    return time.time_ns() // 1_000_000 + HOUR_MS


def deliver_all(store, timers, now_ms):
    while timers.run(now_ms=now_ms).more:
        pass


# ---- properties ----


@pytest.mark.parametrize(
    ("properties", "waits"),
    [
        ({"TIMER_DELAY_SEC": "60", "TIMER_DELAY_MS": "1", "TIMER_DELIVER_MS": "1"}, True),
        ({"TIMER_DELAY_SEC": "-1", "TIMER_DELAY_MS": "60000", "TIMER_DELIVER_MS": "x"}, False),
        ({"TIMER_DELAY_MS": "60000", "TIMER_DELIVER_MS": "9" * 30}, True),
        ({"TIMER_DELAY_MS": str(-(1 << 63)), "TIMER_DELIVER_MS": str((1 << 63) - 1)}, False),
    ],
)
async def test_of_times_that_contradict_each_other_the_first_counts(store_path, properties, waits):
    async with timed(store_path) as t:
        answer = await t.send(properties)
        assert answer.code == 0 and ("recallHandle" in answer.ext) == waits
        assert len(t.arrived()) == (not waits)
        t.schedule.shift_clock(61_000)
        await until(t.arrived)
        kept = t.arrived()[0].properties
        assert {name: kept[name] for name in properties} == properties


async def test_a_client_does_not_say_that_its_message_repeats_another(store_path):
    """TIMER_ROLL_TIMES is the broker's: two messages with one key are two, and one that was sent
    after a recall is a new one."""
    async with timed(store_path) as t:
        at = str(t.now() + 60_000)
        for rolls in ("1", "x"):
            said = {"UNIQ_KEY": "K", "TIMER_DELIVER_MS": at, "TIMER_ROLL_TIMES": rolls}
            assert (await t.send(said)).code == 0
        gone = (await t.send({"UNIQ_KEY": "G", "TIMER_DELIVER_MS": at})).ext["recallHandle"]
        assert (await t.recall(gone)).code == 0
        said = {"UNIQ_KEY": "G", "TIMER_DELIVER_MS": at, "TIMER_ROLL_TIMES": "1"}
        assert (await t.send(said)).code == 0
        t.schedule.shift_clock(61_000)
        await until(lambda: not t.schedule.timers.timers.count())
        assert sorted(m.properties["UNIQ_KEY"] for m in t.arrived()) == ["G", "K", "K"]


def test_a_count_of_rolls_that_is_not_a_number_is_listed_as_none(store_path, command):  # noqa: F811
    with Store(store_path, **SMALL) as store:
        for i, rolls in enumerate(("x", "٣", "9" * 5000)):
            out_ms = str(in_an_hour() // 1000 * 1000)
            place = {"TIMER_OUT_MS": out_ms, "REAL_TOPIC": "T", "REAL_QID": "0"}
            said = {"UNIQ_KEY": f"K{i}", "TIMER_ROLL_TIMES": rolls}
            store.put_message(TIMER_TOPIC, b"x", properties=said | place, queue=0)
    code, out, _ = command("ls", store_path, "--json")
    assert code == 0 and [json.loads(line)["rolls"] for line in out.splitlines()] == [0, 0, 0]


@pytest.mark.parametrize("commits", [True, False])
async def test_a_delete_mark_in_a_transaction_counts_from_its_commit(store_path, commits):
    async with timed(store_path) as t:
        at = t.now() + 60_000
        await t.send({"UNIQ_KEY": "V", "TIMER_DELIVER_MS": str(at)})
        mark = delete_mark("T", "V", at) | {"UNIQ_KEY": "M"}
        answer = await half(t, **mark)
        assert t.schedule.timers.timers.find("T", "V", (at - 1) // 1000 * 1000)
        assert (await ends(t, answer, 8 if commits else 12)).code == 0
        t.schedule.shift_clock(61_000)
        await until(lambda: not t.schedule.timers.timers.count())
        assert len(t.arrived()) == (not commits)


# ---- recalls ----


def made(*words):
    return base64.urlsafe_b64encode(" ".join(words).encode()).decode()


async def test_forged_handles_are_refused_by_name(store_path):
    async with timed(store_path) as t:
        handle = (await t.send({"TIMER_DELAY_MS": "60000"})).ext["recallHandle"]
        good = RecallHandle.parse(handle)
        time_text = str(good.out_ms + 1)
        arabic = time_text.translate({48 + i: 0x660 + i for i in range(10)})
        for text in (
            arabic, f"{time_text[:4]}_{time_text[4:]}", f"{time_text}.0", f"-{time_text}",
            "9" * 5000, str((1 << 63) - 1), "1e18", "",
        ):  # fmt: skip
            answer = await t.recall(made("v1", "T", good.broker, text, good.key))
            assert (answer.code, answer.remark) == (604, "recall failed, timestamp invalid"), text
        for key in ("", "K0001\x01", "K0001\x02TAGS\x01x", "K" * 10_000, "K0001\n"):
            answer = await t.recall(made("v1", "T", good.broker, time_text, key))
            assert answer.code == 604, key
        for text in (handle[:-5], "A" * 100_000, "\ufffd", "=" * 50):
            assert (await t.recall(text)).code == 604
        assert (await t.recall(handle)).code == 0


async def test_one_message_is_recalled_once_however_often_it_is_asked_for(store_path):
    async with timed(store_path) as t:
        handle = (await t.send({"TIMER_DELAY_MS": "60000"})).ext["recallHandle"]
        codes = [(await asyncio.gather(*(t.recall(handle) for _ in range(100)))) for _ in range(10)]
        assert sorted(answer.code for row in codes for answer in row) == [0] + [604] * 999
        assert t.broker.store.range(TIMER_TOPIC, 0)[1] == 2  # the timer and one mark


def test_many_of_one_key_in_one_millisecond_are_recalled_and_delivered_once(store_path):
    """More than the candidates of one slot that are looked at together."""
    due, count = in_an_hour(), 1100
    with Store(store_path, **MANY) as store:
        for _ in range(count):
            put(store, due, "K")
        timers = Timers(store)
        for _ in range(2):
            store.put_message("T", b"0", properties=delete_mark("T", "K", due))
        while timers.run(now_ms=1).more:
            pass
        assert timers.count() == count - 2
        deliver_all(store, timers, due)
        timers.close()
        assert len(arrived(store)) == count - 2


@pytest.mark.parametrize("keys", [True, False], ids=["one key", "no key"])
def test_a_second_full_of_alike_ones_does_not_come_again_after_a_crash(store_path, keys):
    """The state is from before the delivery: the log tells which of them were delivered."""
    due, count = in_an_hour(), 1100
    with Store(store_path, **MANY) as store:
        for i in range(count):
            put(store, due, "K" if keys else None, b"%d" % i)
        timers = Timers(store)
        timers.run(now_ms=1)
        save_timers(store, timers.capture()[0])
        deliver_all(store, timers, due)
        timers.close()  # without saving
        timers = Timers(store)
        assert timers.count() == 0
        timers.close()
        assert len(arrived(store)) == count


# ---- damaged files ----


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0x40
    path.write_bytes(raw)


def fifo(path):
    path.unlink()
    os.mkfifo(path)


def folder(path):
    path.unlink()
    path.mkdir()


DAMAGE = {
    "zeroed": lambda p: p.write_bytes(bytes(p.stat().st_size)),
    "flipped": flip,
    "cut": lambda p: os.truncate(p, p.stat().st_size - 16),
    "empty": lambda p: os.truncate(p, 0),
    "longer": lambda p: p.write_bytes(p.read_bytes() + bytes(1 << 16)),
    "fifo": fifo,
    "folder": folder,
    "gone": lambda p: p.unlink(),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """9,000 wait, 100 were delivered, 10 recalled: a run file and a state."""
    path = tmp_path_factory.mktemp("timers") / "store"
    due = in_an_hour()
    with Store(path, **MANY) as store:
        for i in range(9110):
            put(store, due + i, f"K{i}", b"%d" % i)
        for i in range(200, 210):
            store.put_message("T", b"0", properties=delete_mark("T", f"K{i}", due + i))
        timers = Timers(store)
        while timers.run(now_ms=1).more:
            pass
        while timers.run(now_ms=due + 99).more:
            pass
        store.flush()
        save_timers(store, timers.capture()[0])
        timers.close()
    assert [p.name for p in (path / "timers").iterdir() if p.name != "state"]
    return path, due


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("what", ["state", "run"])
def test_a_damaged_index_is_made_again_from_the_log(saved, tmp_path, what, how):
    source, due = saved
    path = tmp_path / "store"
    shutil.copytree(source, path)
    files = [p for p in (path / "timers").iterdir() if (p.name == "state") == (what == "state")]
    DAMAGE[how](files[0])
    with Store(path, **MANY) as store:
        timers = Timers(store)
        assert timers.count() == 9000
        assert {row.topic: row.waiting for row in timers.tallies()} == {"T": 9000}
        deliver_all(store, timers, due + 20_000)
        timers.close()
        bodies = [int(bytes(m.body)) for m in arrived(store)]
        assert sorted(bodies) == [i for i in range(9110) if not 200 <= i < 210]


# ---- clocks, zones ----


def test_a_clock_that_stands_still_delivers_nothing_twice(store_path):
    due = in_an_hour()
    with Store(store_path, **SMALL) as store:
        for i in range(20):
            put(store, due + i, f"K{i}")
        timers = Timers(store)
        for _ in range(50):
            timers.run(now_ms=due + 9)
        assert len(arrived(store)) == 10
        put(store, due + 5, "L")  # for a time that the clock has passed
        timers.run(now_ms=due + 9)
        assert len(arrived(store)) == 11
        for _ in range(3):
            timers.run(now_ms=due - 24 * HOUR_MS)
        deliver_all(store, timers, due + 24 * HOUR_MS)
        timers.close()
        keys = [m.properties["UNIQ_KEY"] for m in arrived(store)]
        assert sorted(keys) == sorted([f"K{i}" for i in range(20)] + ["L"])


def test_times_are_shown_alike_in_every_zone_and_language(store_path):
    with Store(store_path, timerMaxDelaySec=10**9, **SMALL) as store:
        for due in (1_900_000_000_000, 1_900_000_000_999):
            put(store, due, f"K{due}")

    def said(**env):
        words = [Path(sys.executable).with_name("pystore"), "timers", "ls", store_path, "--json"]
        done = subprocess.run(words, env=os.environ | env, stdout=subprocess.PIPE, timeout=BOUND_S)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return [(row["due"], row["due_iso"]) for row in rows]

    wanted = [
        (1_900_000_000_000, "2030-03-17T17:46:40.000Z"),
        (1_900_000_000_999, "2030-03-17T17:46:40.999Z"),
    ]
    for zone, language in (("Asia/Kathmandu", "tr_TR.UTF-8"), ("nowhere/at all", "ar")):
        assert said(TZ=zone, LC_ALL=language) == wanted
