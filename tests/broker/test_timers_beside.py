"""Timers beside what else a broker does: halves, batches, levels, retries, embedded puts, a limited
rate, a full disk, a clock that jumps, recalls that race with deliveries."""

from __future__ import annotations

import asyncio
import shutil
import struct
import time

import pytest
from faulty import faulty
from snapshots import snapshot
from test_timers import HOUR_MS, SMALL, arrived, timed, until
from waiting import BOUND_S

import pystore
from broker.wire.codes import RequestCode
from pystore.errors import TimerIllegal
from pystore.format.names import TIMER_TOPIC
from pystore.format.properties import encode_properties
from pystore.metadata import TopicConfig
from pystore.store.timers import Timers, save_timers

MANY = {"mappedFileSizeCommitLog": 4 << 20}


def ahead(store, count, step_ms=1, topic="T", start_ms=HOUR_MS):
    """Puts timers an hour ahead; the first one's time."""
    now = time.time_ns() // 1_000_000 + start_ms
    for i in range(count):
        properties = {"TIMER_DELIVER_MS": str(now + i * step_ms), "UNIQ_KEY": f"A{i}"}
        store.put_message(topic, b"%d" % i, properties=properties)
    return now


# ---- transactions ----


async def half(t, **properties):
    answer = await t.send(properties | {"TRAN_MSG": "true", "PGROUP": "g"}, sys_flag=4)
    assert answer.code == 0, answer.remark
    return answer


async def ends(t, answer, how, from_check=False):
    place = int(answer.ext["msgId"][-16:], 16)
    return await t.ask(
        RequestCode.END_TRANSACTION, producerGroup="g", commitLogOffset=str(place), msgId="x",
        tranStateTableOffset=answer.ext["queueOffset"], commitOrRollback=str(how),
        fromTransactionCheck=str(from_check).lower(),
    )  # fmt: skip


@pytest.mark.parametrize("from_check", [False, True])
async def test_the_commit_starts_the_timer_of_a_half(store_path, from_check):
    async with timed(store_path) as t:
        one = await half(t, TIMER_DELAY_MS="60000")
        two = await half(t, TIMER_DELAY_MS="60000")
        t.schedule.shift_clock(HOUR_MS)
        t.schedule.look_at_timers()
        assert t.schedule.timers.timers.count() == 0
        assert (await ends(t, two, 12)).code == 0
        assert (await ends(t, one, 8, from_check)).code == 0
        await until(lambda: t.schedule.timers.timers.count() == 1)
        assert not t.arrived()
        t.schedule.shift_clock(HOUR_MS + 61_000)
        await until(t.arrived)
        (message,) = t.arrived()
        assert message.properties["TIMER_DELAY_MS"] == "60000"


# ---- other kinds of messages ----


def batch_of(*properties):
    items = []
    for each in properties:
        raw = encode_properties(each)
        rest = struct.pack(">iiii", 0, 0, 0, 1) + b"x" + struct.pack(">h", len(raw)) + raw
        items.append(struct.pack(">i", len(rest) + 4) + rest)
    return b"".join(items)


@pytest.mark.parametrize(
    ("second", "code"),
    [
        ({"TIMER_DELAY_MS": "1000"}, 13),
        ({"TIMER_DELIVER_MS": "9999999999999"}, 13),
        ({"TIMER_DELAY_SEC": "x"}, 13),
        ({"TIMER_DELIVER_MS": "1000"}, 0),
        ({"TIMER_DELAY_MS": "1000", "TIMER_OUT_MS": "5"}, 0),
    ],
)
async def test_a_batch_with_a_timer_in_it_is_refused_whole(store_path, second, code):
    """A time that has passed makes an ordinary message, in a batch as alone."""
    async with timed(store_path) as t:
        body = batch_of({"UNIQ_KEY": "1"}, {"UNIQ_KEY": "2"} | second)
        answer = await t.send({}, body=body, code=RequestCode.SEND_BATCH_MESSAGE)
        assert answer.code == code, answer.remark
        assert len(t.arrived()) == (0 if code else 2)
        assert not t.arrived(TIMER_TOPIC)


async def test_a_batch_that_asks_for_a_time_as_a_whole_is_refused(store_path):
    async with timed(store_path) as t:
        body = batch_of({"UNIQ_KEY": "1"}, {"UNIQ_KEY": "2"})
        for code in (RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2):
            given = {"TIMER_DELAY_SEC": "60"}
            answer = await t.send(given, body=body, code=code, batch=True)
            assert (answer.code, answer.remark.endswith("a batch cannot be delayed")) == (13, True)
        assert not t.arrived()


async def test_timers_of_an_ordered_topic_come_in_order_of_time(store_path):
    """A sharding key chooses the queue, at the client; messages that wait hold up no others there,
    and equal times come in order of arrival."""
    async with timed(store_path) as t:
        fifo = TopicConfig("T", 4, 4, order=True)
        t.broker.services.topics.update(fifo, "+message.type=FIFO")
        at = t.now() + HOUR_MS
        for name, late in (("a", 2), ("b", 1), ("c", 2), ("now", None), ("d", 1)):
            time_asked = {} if late is None else {"TIMER_DELIVER_MS": str(at + late)}
            answer = await t.send({"__SHARDINGKEY": "s"} | time_asked, body=name.encode())
            assert answer.code == 0
        assert [bytes(m.body) for m in t.arrived()] == [b"now"]
        t.schedule.shift_clock(HOUR_MS + 1000)
        await until(lambda: len(t.arrived()) == 5)
        assert [bytes(m.body) for m in t.arrived()] == [b"now", b"b", b"d", b"a", b"c"]
        assert {m.queue for m in t.arrived()} == {1}
        assert {m.properties["__SHARDINGKEY"] for m in t.arrived()} == {"s"}


async def test_a_level_counts_before_a_time(store_path):
    async with timed(store_path) as t:
        answer = await t.send({"DELAY": "1", "TIMER_DELAY_SEC": "60"})
        assert answer.code == 0 and "recallHandle" not in answer.ext
        assert t.schedule.timers.timers.count() == 0
        t.schedule.shift_clock(2000)
        await until(t.arrived)
        assert "TIMER_DELAY_SEC" not in t.arrived()[0].properties


async def test_a_retry_topic_takes_a_time_and_gives_no_handle(store_path):
    async with timed(store_path) as t:
        answer = await t.send({"TIMER_DELAY_SEC": "60"}, topic="%RETRY%g")
        assert answer.code == 0 and "recallHandle" not in answer.ext
        t.schedule.shift_clock(61_000)
        await until(lambda: t.arrived("%RETRY%g"))


NUMBERS = ("+5000", "0005000", "5000")
NO_NUMBERS = (" 5000", "5000 ", "5 000", "5_000", "0x10", "+", "-", "1e3", "٥", "5000.0")


@pytest.mark.parametrize("text", NUMBERS)
async def test_numbers_are_those_of_java(store_path, text):
    async with timed(store_path) as t:
        assert (await t.send({"TIMER_DELAY_MS": text})).code == 0
        assert t.schedule.timers.timers.count() == 1 or not t.arrived()
        t.schedule.shift_clock(6000)
        await until(t.arrived)


async def test_what_is_no_number_is_refused(store_path):
    async with timed(store_path) as t:
        for text in NO_NUMBERS:
            assert (await t.send({"TIMER_DELAY_MS": text})).code == 13, text
        for text in ("-1", "-9223372036854775808", "+0", "-0"):
            assert (await t.send({"TIMER_DELAY_MS": text})).code == 0, text
        assert len(t.arrived()) == 4


def test_many_at_once_refuse_timers_and_take_what_is_past(store_path):
    with pystore.open(store_path, **SMALL) as store:
        late = {"TIMER_DELIVER_MS": "1000"}
        for column in ([{}, {"TIMER_DELAY_SEC": "5"}], {"TIMER_DELAY_SEC": "5"}):
            with pytest.raises(TimerIllegal, match="put it alone"):
                store.put_many("T", [b"a", b"b"], properties=column)
        with pytest.raises(TimerIllegal, match="not a number"):
            store.put_many("T", [b"a"], properties=[{"TIMER_DELAY_SEC": "x"}])
        with pytest.raises(TimerIllegal), store.batch("T", size=10) as batch:
            batch.put(b"a", properties={"TIMER_DELAY_SEC": "5"})
        assert not arrived(store)
        store.put_many("T", [b"a"], properties=[late])
        store.put_many("T", [b"b"], properties=[{"TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": "1"}])
        assert len(arrived(store)) == 2


def test_what_lies_beyond_the_horizon_now_is_rolled_and_delivered_once(store_path):
    """The horizon is asked at sends: those of a Java folder, or of a wider one, go on waiting."""
    year = 365 * 86_400
    with pystore.open(store_path, timerMaxDelaySec=2 * year, **SMALL) as store:
        ahead(store, 3, start_ms=year * 1000)
    with pystore.open(store_path, **SMALL) as store:
        timers = Timers(store)
        now = time.time_ns() // 1_000_000
        assert timers.roll(now + 1000) == 3
        assert timers.run(now_ms=now).pending == 3
        rolled = [store.message(each.physical).properties for each in timers.each()]
        assert [said["TIMER_ROLL_TIMES"] for said in rolled] == ["1", "1", "1"]
        timers.run(now_ms=now + 2 * year * 1000)
        assert [bytes(m.body) for m in arrived(store)] == [b"0", b"1", b"2"]
        timers.close()


# ---- catching up ----


async def test_catching_up_keeps_to_the_rate(store_path):
    """A round's worth at once, then so many a second."""
    with pystore.open(store_path, **SMALL | MANY) as store:
        ahead(store, 700)
    async with timed(store_path, deliveryMaxTps=100, **MANY) as t:
        t.schedule.shift_clock(2 * HOUR_MS)
        began = time.monotonic()
        while (done := t.schedule.timers.metrics.delivered) < 700:
            # Counted before the clock was read, so it can only be more generous.
            assert done <= 512 + 100 * (time.monotonic() - began) + 100
            await asyncio.sleep(0.02)
        assert time.monotonic() - began >= (700 - 512 - 100) / 100
        assert len({bytes(m.body) for m in t.arrived()}) == 700


class FullStore(pystore.Store):
    """A store whose disk has no room while the test says so."""

    def _io(self):
        self.table = faulty.ps_io_faulty_new()
        return self.table

    def full(self, full):
        faulty.ps_io_faulty_set(self.table, 1 << 7 if full else 0, 1 if full else 0, 28, full)


def test_a_full_disk_pauses_delivery_and_loses_nothing(store_path):
    body = b"x" * 50_000
    with FullStore(store_path, mappedFileSizeCommitLog=1 << 20) as store:
        now = time.time_ns() // 1_000_000
        for i in range(60):
            properties = {"TIMER_DELIVER_MS": str(now + 60_000 + i), "UNIQ_KEY": f"F{i}"}
            store.put_message("T", body, properties=properties)
        store.flush()
        timers = Timers(store)
        store.full(True)
        done, failed = 0, 0
        for _ in range(200):
            try:
                done += timers.run(now_ms=now + HOUR_MS).delivered
            except pystore.errors.StoreError as error:
                done += error.round.delivered
                failed += 1
        assert failed > 0 and done < 60
        store.full(False)
        ends = time.monotonic() + BOUND_S
        while done < 60 and time.monotonic() < ends:
            try:
                done += timers.run(now_ms=now + HOUR_MS).delivered
            except pystore.errors.StoreError as error:
                done += error.round.delivered
                time.sleep(0.02)
        keys = [m.properties["UNIQ_KEY"] for m in arrived(store)]
        assert keys == [f"F{i}" for i in range(60)]
        timers.close()


# ---- attacks ----


async def test_a_clock_that_jumps_while_timers_are_due(store_path, rng):
    with pystore.open(store_path, **SMALL | MANY) as store:
        ahead(store, 2000, step_ms=20, start_ms=60_000)
    async with timed(store_path, **MANY) as t:
        for _ in range(60):
            t.schedule.shift_clock(rng.randrange(-HOUR_MS, HOUR_MS // 10))
            await asyncio.sleep(0)
            await t.send({"TIMER_DELAY_MS": str(rng.randrange(1, 100_000))}, topic="new")
        t.schedule.shift_clock(3 * HOUR_MS)
        await until(lambda: len(t.arrived("new")) == 60 and not t.schedule.timers.timers.count())
        bodies = [int(bytes(m.body)) for m in t.arrived()]
        assert bodies == list(range(2000))


async def test_a_recall_that_races_with_the_delivery(store_path):
    """Recalled, or delivered; never both, never neither."""
    async with timed(store_path) as t:
        handles = []
        for i in range(40):
            answer = await t.send({"TIMER_DELAY_MS": str(60_000 + i)})
            handles.append(answer.ext["recallHandle"])

        async def one(i):
            return (await t.recall(handles[i])).code

        asking = [asyncio.create_task(one(i)) for i in range(20)]
        t.schedule.shift_clock(60_030)
        asking += [asyncio.create_task(one(i)) for i in range(20, 40)]
        codes = await asyncio.gather(*asking)
        t.schedule.shift_clock(HOUR_MS)
        await until(lambda: not t.schedule.timers.timers.count())
        came = {m.properties["UNIQ_KEY"] for m in t.arrived()}
        for i, code in enumerate(codes):
            assert (code == 604) == (f"K{i + 1:04}" in came), (i, code)


async def test_a_folder_copied_while_it_is_open_is_found_again(store_path, tmp_path):
    """As a snapshot of the file system: state, runs and log of one moment, or the log of a later
    one."""
    copy = tmp_path / "copy"
    async with timed(store_path) as t:
        for i in range(50):
            await t.send({"TIMER_DELAY_MS": str(60_000 + i)})
        t.schedule.shift_clock(60_020)
        await until(t.arrived)
        await t.schedule.save_timers()
        snapshot(t.broker.store.path, copy)
    async with timed(copy) as t:
        t.schedule.shift_clock(HOUR_MS)
        await until(lambda: len(t.arrived()) == 50)
        assert len({m.properties["UNIQ_KEY"] for m in t.arrived()}) == 50


async def test_a_client_writes_nothing_into_the_timers_topic(store_path):
    async with timed(store_path) as t:
        answer = await t.send({"TIMER_OUT_MS": "5", "REAL_TOPIC": "T"}, topic=TIMER_TOPIC)
        assert answer.code != 0


def test_what_was_delivered_before_two_kills_is_not_delivered_again(store_path, tmp_path):
    """The second life finds what the first delivered and nobody saved, saves its state before it
    delivers anything itself, and is killed: the third one reads the log from that state on."""
    lives = [store_path, tmp_path / "second", tmp_path / "third"]
    with pystore.open(store_path, **SMALL) as store:
        first = ahead(store, 20)
        timers = Timers(store)
        assert timers.run(now_ms=first + 9).delivered == 10
        shutil.copytree(store.path, lives[1], ignore=shutil.ignore_patterns("lock"))
        timers.close()
    with pystore.open(lives[1], **SMALL) as store:
        timers = Timers(store)
        assert timers.count() == 10
        state, end = timers.capture()
        store.wait_flushed(end)
        save_timers(store, state)
        shutil.copytree(store.path, lives[2], ignore=shutil.ignore_patterns("lock"))
        timers.close()
    with pystore.open(lives[2], **SMALL) as store:
        timers = Timers(store)
        assert timers.count() == 10
        assert timers.run(now_ms=first + HOUR_MS).delivered == 10
        timers.close()
        assert [int(bytes(m.body)) for m in arrived(store)] == list(range(20))
