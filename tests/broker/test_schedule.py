"""Delay levels: when messages come, in which order, how often, and as what."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from contextlib import asynccontextmanager

import pytest
from faulty import faulty
from loops import until
from storeview import message_facts
from waiting import settled_async

import pystore
from broker.hot.core import Core
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.services.schedule import Schedule
from pystore.store import hosting

TOPIC = "SCHEDULE_TOPIC_XXXX"
HOUR_MS = 3_600_000
#: What a delivered message has from the one that waited.
FACTS = (
    "topic",
    "queue",
    "magic",
    "size",
    "flag",
    "sys_flag",
    "born_ts",
    "born_host",
    "reconsume",
    "prepared_offset",
    "body_crc",
    "props",
)
SMALL = {
    "mappedFileSizeCommitLog": 256 << 10,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 64,
    "maxIndexNum": 256,
    "messageDelayLevel": "1s 5s 1h",
}


class Clock:
    """The clock of due times, ahead of the store's by as much as a test says."""

    def __init__(self):
        self.ahead = 0

    def __call__(self):
        return time.time_ns() // 1_000_000 + self.ahead


class Scheduled:
    """A store with a schedule over it, on the running loop."""

    def __init__(self, store):
        self.store = store
        self.core = Core(store, cluster="DefaultCluster")
        self.core.attach(asyncio.get_running_loop())
        self.clock = Clock()
        self.schedule = Schedule(store, self.core, now_ms=self.clock)

    def later(self, ahead_ms):
        """Sets the clock forward (or back) and lets the schedule look at it."""
        self.clock.ahead = ahead_ms
        self.core.on_levels(range(1, 19))

    def bodies(self, topic="T", queue=0):
        batch = self.store.read(topic, queue, 0, max_messages=10_000)
        return [bytes(message.body) for message in batch]

    @asynccontextmanager
    async def started(self):
        self.schedule.start_levels()
        self.schedule.start_timers()
        try:
            yield self
        finally:
            await self.schedule.stop_levels()
            self.core.close()


@contextlib.asynccontextmanager
async def on_schedule(path, store=None, **settings):
    with store or pystore.open(path, **SMALL | settings) as opened:
        scheduled = Scheduled(opened)
        async with scheduled.started():
            yield scheduled


def put(s, body, level, queue=0, topic="T"):
    return s.store.put(topic, body, queue=queue, delay_level=level)


async def test_a_message_comes_when_it_is_due_and_not_before(store_path):
    async with on_schedule(store_path) as s:
        put(s, b"soon", 1)
        put(s, b"later", 3)
        await until(s.bodies)
        (message,) = s.store.read("T", 0, 0)
        (waited,) = s.store.read(TOPIC, 0, 0)
        assert message.store_timestamp - waited.store_timestamp >= 1000
        assert s.bodies() == [b"soon"]


async def test_a_level_keeps_its_order_and_delivers_once(store_path):
    async with on_schedule(store_path, messageDelayLevel="1h 2h 3h") as s:
        for i in range(3000):
            put(s, b"%d" % i, 3 if i % 2 else 1)
        assert not s.bodies()
        s.later(3 * HOUR_MS)
        await until(lambda: s.schedule.delivered == 3000)
        numbers = [int(body) for body in s.bodies()]
        assert sorted(numbers) == list(range(3000))
        for odd in (0, 1):
            ours = [n for n in numbers if n % 2 == odd]
            assert ours == sorted(ours)
        s.later(6 * HOUR_MS)
        await asyncio.sleep(0.05)
        assert len(s.bodies()) == 3000 and s.schedule.skipped == 0


async def test_nothing_is_early_however_the_levels_mix(store_path):
    async with on_schedule(store_path, messageDelayLevel="1h 5h 20h") as s:
        for i in range(30):
            put(s, b"%d" % (i % 3 + 1), i % 3 + 1, queue=i % 2)

        def came():
            return {body.decode() for queue in (0, 1) for body in s.bodies(queue=queue)}

        for hours, levels in ((0, ""), (0.5, ""), (1.5, "1"), (5.5, "12"), (20.5, "123")):
            s.later(int(hours * HOUR_MS))
            await until(lambda levels=levels: came() >= set(levels))
            await asyncio.sleep(0.02)
            assert came() == set(levels)


async def test_what_lies_further_ahead_than_its_level_is_due_now(store_path):
    """Upstream's correctDeliverTimestamp: a clock that was set back delays nobody twice."""
    async with on_schedule(store_path) as s:
        put(s, b"x", 3)
        s.later(-1)
        await asyncio.sleep(0.02)
        s.later(-60_000)
        await until(lambda: s.bodies() == [b"x"])


async def test_a_shorter_table_of_levels_counts_from_the_next_start(store_path):
    levels = {"messageDelayLevel": "1s 5h 20h"}
    async with on_schedule(store_path, **levels) as s:
        put(s, b"x", 3)
        put(s, b"last", 2)
    async with on_schedule(store_path, **levels) as s:
        assert not s.bodies()
        s.later(6 * HOUR_MS)
        await until(lambda: s.bodies() == [b"last"])
    # The unit says twenty hours, the level one second by now: it is due.
    async with on_schedule(store_path, messageDelayLevel="1s 1s 1s") as s:
        await until(lambda: s.bodies() == [b"last", b"x"])


async def test_records_without_a_destination_are_passed_over(store_path):
    async with on_schedule(store_path) as s:
        put(s, b"first", 1)
        for properties in (
            {"DELAY": "1"},
            {"DELAY": "1", "REAL_TOPIC": "T"},
            {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "x"},
            {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "-1"},
            {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "99999999999999999999"},
            {"DELAY": "1", "REAL_TOPIC": "no/topic", "REAL_QID": "0"},
            {"DELAY": "1", "REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"},
        ):
            s.store.put(TOPIC, b"lost", queue=0, properties=properties)
        put(s, b"last", 1)
        s.later(1100)
        await until(lambda: s.bodies() == [b"first", b"last"])
        assert (s.schedule.delivered, s.schedule.skipped) == (2, 7)


async def test_the_progress_is_kept_only_as_far_as_the_log_is_on_the_disk(store_path):
    slow = {"flushIntervalCommitLog": 60_000, "flushCommitLogThoroughInterval": 60_000}
    async with on_schedule(store_path, **slow) as s:
        for i in range(10):
            put(s, b"%d" % i, 1)
        s.store.flush()
        s.later(1100)
        await until(lambda: s.schedule.delivered == 10)
        s.schedule.persist()
        assert s.store.info().log_flushed < s.store.info().log_max
        assert not s.store.metadata.delay_offsets.get(1)
        s.store.flush()
        s.schedule.persist()
        assert s.store.metadata.delay_offsets.get(1) == 10
        assert s.schedule.progress()[1] == (10, 10)
        put(s, b"ten", 1)
    async with on_schedule(store_path) as s:
        await until(lambda: s.schedule.delivered == 1)
        await asyncio.sleep(0.02)
        assert s.bodies() == [b"%d" % i for i in range(10)] + [b"ten"]


class FullStore(pystore.Store):
    """A store whose disk has no room while the test says so."""

    def __init__(self, path):
        self.table = faulty.ps_io_faulty_new()
        super().__init__(path, **SMALL)

    def _io(self):
        return self.table

    def full(self, full):
        faulty.ps_io_faulty_set(self.table, 1 << 7 if full else 0, 1 if full else 0, 28, full)


async def test_a_put_that_fails_is_tried_again(store_path):
    store = FullStore(store_path)
    async with on_schedule(store_path, store) as s:
        for i in range(40):
            put(s, b"%02d" % i * 10_000, 1)
        s.store.flush()
        store.full(True)
        try:
            s.later(1100)
            await asyncio.sleep(0.5)
            assert s.schedule.delivered < 40
        finally:
            store.full(False)
        await until(lambda: s.schedule.delivered == 40)
        s.later(2100)
        await asyncio.sleep(0.02)
        assert s.bodies() == [b"%02d" % i * 10_000 for i in range(40)]


async def test_what_waits_costs_nothing(store_path, monkeypatch):
    async with on_schedule(store_path) as s:
        for _ in range(10_000):
            put(s, b"x", 3)
        calls, deliver = 0, hosting.deliver_due

        def counted(*args, **options):
            nonlocal calls
            calls += 1
            return deliver(*args, **options)

        monkeypatch.setattr(hosting, "deliver_due", counted)
        await settled_async(lambda: calls, turns=200)
        before, used, begun = calls, time.thread_time(), time.monotonic()
        await asyncio.sleep(1)
        passed = time.monotonic() - begun
        assert calls - before <= 3 * passed and time.thread_time() - used < 0.1 * passed


async def test_delivered_messages_are_those_that_apache_delivers(golden, golden_records):
    """Delivers all delayed messages of a golden store once more, beside Apache's own."""
    path = golden("normal-exit")

    def facts(line):
        return {name: line[name] for name in FACTS}

    lines = [line for line in golden_records("normal-exit") if line["at"] == "msg"]
    before = {line["phy"] for line in lines}
    delayed = [line for line in lines if "DELAY" in line["props"]]
    keys = {line["props"].get("UNIQ_KEY") for line in delayed if line["topic"] == TOPIC}
    wanted = {
        line["props"]["UNIQ_KEY"]: line
        for line in delayed
        if line["topic"] != TOPIC and line["props"].get("UNIQ_KEY") in keys
    }
    with pystore.open(path) as store:
        for level in range(1, 19):
            store.metadata.delay_offsets.commit(level, 0, reset=True)
        s = Scheduled(store)
        s.clock.ahead = 7_200_000
        async with s.started():
            ends = {q.queue: q.max_offset for q in store.queues(TOPIC)}
            await until(lambda: s.schedule.delivered + s.schedule.skipped == sum(ends.values()))
            assert s.schedule.skipped == 0
        ours = [message_facts(m) for m in store.messages() if m.physical_offset not in before]
        found = {line["props"]["UNIQ_KEY"]: line for line in ours}
        compared = 0
        for key, line in wanted.items():
            if key in found and found[key]["topic"] == line["topic"]:
                assert facts(found[key]) == facts(line)
                compared += 1
        assert compared >= 9


@pytest.mark.parametrize("again", [False, True])
async def test_what_waits_for_a_deleted_topic_goes_nowhere(store_path, again, caplog, monkeypatch):
    """However its topic is made again meanwhile, and after a restart. One put since comes."""
    async with on_schedule(store_path, messageDelayLevel="1h") as s:
        put(s, b"old", 1)
        put(s, b"other", 1, topic="U")
        s.store.metadata.ensure_topic("T")
        s.store.delete_topic("T")  # without a message of its own
        if again:
            put(s, b"new", 1)
    caplog.set_level(logging.WARNING, "broker.schedule")
    fresh = RateLimitedLogger(SafeLogger("broker.schedule"))
    monkeypatch.setattr("broker.services.schedule._quiet", fresh)
    async with on_schedule(store_path, messageDelayLevel="1h") as s:
        s.later(2 * HOUR_MS)
        await until(lambda: s.schedule.delivered == 1 + again)
        assert (s.bodies(), s.bodies("U")) == ([b"new"] if again else [], [b"other"])
        assert s.schedule.skipped == 1 and "Delay level 1: passed over 1 mess" in caplog.text
    with pystore.open(store_path) as store:
        assert ("T" in store.topics()) is again


def test_an_open_without_metadata_makes_no_row_of_a_deleted_topic(store_path):
    with pystore.open(store_path, **SMALL) as store:
        store.put("T", b"x", queue=0, delay_level=3)
        store.put("U", b"x", queue=0, delay_level=3)
        store.metadata.ensure_topic("T")
        store.delete_topic("T")
    shutil.rmtree(store_path / "meta")
    shutil.rmtree(store_path / "config")
    with pystore.open(store_path, **SMALL) as store:
        assert "U" in store.metadata.topics and "T" not in store.metadata.topics
