"""Timers: to the millisecond, recallable, found again after a stop (docs/internals/timers.md)."""

from __future__ import annotations

import base64
import contextlib
import json
import time

import pytest
from storeview import everything
from waiting import until_async as until

from broker.broker import Broker
from broker.remoting.client import RemotingClient
from broker.wire.codes import RequestCode
from broker.wire.command import Command
from pystore import Store
from pystore.format.names import TIMER_TOPIC
from pystore.format.properties import encode_properties
from pystore.store.timers import RecallHandle

SMALL = {"mappedFileSizeCommitLog": 1 << 20, "recallMessageEnable": True}
HOUR_MS = 3_600_000


class Timed:
    """A broker, and what a raw client is told."""

    def __init__(self, broker, client):
        self.broker, self.client = broker, client
        self.schedule = broker.services.schedule
        self.born = 0

    async def send(
        self, properties, topic="T", body=b"x", code=RequestCode.SEND_MESSAGE_V2, sys_flag=0,
        batch=False,
    ):  # fmt: skip
        self.born += 1
        batch = batch or code == RequestCode.SEND_BATCH_MESSAGE
        given = {"UNIQ_KEY": f"K{self.born:04}"} | properties
        ext = {
            "a": "g", "b": topic, "c": "TBW102", "d": "4", "e": "1", "f": str(sys_flag),
            "g": str(time.time_ns() // 1_000_000), "h": "0", "i": encode_properties(given).decode(),
            "j": "0", "k": "false", "m": str(batch).lower(),
        }  # fmt: skip
        return await self.client.request(self.broker.address, Command(code, ext, body=body))

    async def ask(self, code, **ext):
        return await self.client.request(self.broker.address, Command(code, ext))

    async def recall(self, handle, topic="T"):
        return await self.ask(RequestCode.RECALL_MESSAGE, topic=topic, recallHandle=handle)

    def arrived(self, topic="T"):
        return arrived(self.broker.store, topic)

    def now(self):
        return self.schedule.now_ms()


def arrived(store, topic="T"):
    return sorted(everything(store, topic), key=lambda m: m.physical_offset)


@contextlib.asynccontextmanager
async def timed(path, **settings):
    opened = Broker(path, listenPort=0, **(SMALL | settings))
    async with opened as broker, RemotingClient() as client:
        yield Timed(broker, client)


@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"])
async def test_delivered_at_its_millisecond_with_upstreams_properties(store_path, name):
    async with timed(store_path) as t:
        now = t.now()
        value = {"TIMER_DELIVER_MS": now + 1000, "TIMER_DELAY_MS": 1000, "TIMER_DELAY_SEC": 1}
        answer = await t.send({name: str(value[name]), "TAGS": "a"})
        assert answer.code == 0 and answer.ext["queueId"] == "1"
        (record,) = arrived(t.broker.store, TIMER_TOPIC)
        said = record.properties
        out_ms = int(said["TIMER_OUT_MS"])
        assert out_ms % 1000 == 0 and (said["REAL_TOPIC"], said["REAL_QID"]) == ("T", "1")
        handle = RecallHandle("T", t.broker.services.broker_name, out_ms, "K0001")
        assert RecallHandle.parse(answer.ext["recallHandle"]) == handle
        assert answer.ext["recallHandle"] == handle.text
        assert not t.arrived()
        await until(t.arrived)
        (message,) = t.arrived()
        due = now + 1000
        assert message.store_timestamp >= due and message.queue == 1
        kept = message.properties
        assert {n: kept[n] for n in said} == said
        assert int(kept["TIMER_DEQUEUE_MS"]) >= due and kept["TIMER_ENQUEUE_MS"].endswith("000")


async def test_waits_for_the_clock_however_it_is_set(store_path):
    async with timed(store_path) as t:
        start = t.now()
        for minutes in (30, 90, 26 * 60):
            await t.send({"TIMER_DELIVER_MS": str(start + minutes * 60_000)})
        await until(lambda: t.schedule.timers.last.pending == 3)
        for hours, count in ((-24, 0), (0, 0), (1, 1), (-1, 1), (2, 2), (25, 2), (-24, 2), (27, 3)):
            t.schedule.shift_clock(hours * HOUR_MS)
            await until(lambda: len(t.arrived()) == count)  # noqa: B023
            t.schedule.look_at_timers()
            assert len(t.arrived()) == count
        assert t.schedule.timers.last.pending == 0


async def test_one_that_is_asked_for_after_the_clock_was_set_back_comes_by_the_new_clock(
    store_path,
):
    async with timed(store_path) as t:
        t.schedule.shift_clock(10 * HOUR_MS)
        await t.send({"TIMER_DELAY_MS": "60000"})
        t.schedule.shift_clock(11 * HOUR_MS)
        await until(t.arrived)
        t.schedule.shift_clock(0)
        await t.send({"TIMER_DELAY_MS": "60000"})
        await until(lambda: t.schedule.timers.last.pending == 1)
        t.schedule.shift_clock(HOUR_MS)
        await until(lambda: len(t.arrived()) == 2)


async def test_in_order_of_time_then_of_arrival(store_path):
    async with timed(store_path) as t:
        at = t.now() + HOUR_MS
        for i, late in enumerate([5, 3, 3, 9, 1, 3, 5]):
            await t.send({"TIMER_DELIVER_MS": str(at + late)}, body=b"%d%d" % (late, i))
        t.schedule.shift_clock(HOUR_MS + 60_000)
        await until(lambda: len(t.arrived()) == 7)
        bodies = [bytes(m.body) for m in t.arrived()]
        assert bodies == [b"14", b"31", b"32", b"35", b"50", b"56", b"93"]


REFUSED = (
    "timer message illegal, the delay time should not be bigger than the max delay 259200000ms"
)


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"TIMER_DELAY_SEC": "x"}, 13),
        ({"TIMER_DELAY_MS": "1.5"}, 13),
        ({"TIMER_DELAY_MS": " 5"}, 13),
        ({"TIMER_DELIVER_MS": "99999999999999999999"}, 13),
        ({"TIMER_DELIVER_MS": str((1 << 63) - 1)}, 13),
        ({"TIMER_DELAY_SEC": str((1 << 63) - 1)}, 13),
        ({"TIMER_DELAY_SEC": "259201"}, 13),
        ({"TIMER_DELIVER_MS": "1000", "TIMER_DEL_UNIQKEY": "T+K"}, 13),
        ({"TIMER_DELAY_SEC": "-5"}, 0),
        ({"TIMER_DELIVER_MS": "1"}, 0),
        ({"TIMER_DELAY_MS": "0"}, 0),
        ({"TIMER_DELAY_SEC": "60", "TIMER_OUT_MS": "5"}, 0),
    ],
)
async def test_odd_times_are_answered_as_upstream_does(store_path, properties, code):
    async with timed(store_path) as t:
        answer = await t.send(properties)
        assert answer.code == code
        assert "recallHandle" not in answer.ext
        assert len(t.arrived()) == (code == 0)
        assert code == 0 or (answer.remark or "").startswith(REFUSED)


async def test_switched_off_they_are_refused(store_path):
    async with timed(store_path, timerWheelEnable=False) as t:
        answer = await t.send({"TIMER_DELAY_MS": "1000"})
        assert answer.code == 1
        assert answer.remark == "accurate timer message is not enabled, timerWheelEnable is false"


async def test_recalled_ones_do_not_come(store_path):
    async with timed(store_path) as t:
        handles = []
        for _ in range(4):
            answer = await t.send({"TIMER_DELAY_MS": "60000"})
            handles.append(answer.ext["recallHandle"])
        done = await t.recall(handles[0])
        assert (done.code, done.ext["msgId"]) == (0, "K0001")
        # by a message, in both forms of the key
        out = RecallHandle.parse(handles[1]).out_ms
        for key in ("T+K0002", "K0003"):
            await t.send({"TIMER_DEL_UNIQKEY": key, "TIMER_DELIVER_MS": str(out + 1)})
        await until(lambda: t.schedule.timers.metrics.recalled == 3)
        assert (await t.recall(handles[0])).code == 604
        t.schedule.shift_clock(HOUR_MS)
        await until(t.arrived)
        assert [m.properties["UNIQ_KEY"] for m in t.arrived()] == ["K0004"]
        late = await t.recall(handles[3])
        assert (late.code, late.remark) == (604, "recall failed, timestamp invalid")


async def test_a_handle_that_is_not_of_this_message_is_refused(store_path):

    def handle_of(good, time_text):
        raw = f"v1 T {good.broker} {time_text} {good.key}"
        return base64.urlsafe_b64encode(raw.encode()).decode()

    async with timed(store_path) as t:
        handle = (await t.send({"TIMER_DELAY_MS": "60000"})).ext["recallHandle"]
        await t.send({}, topic="other")
        good = RecallHandle.parse(handle)
        far = good._replace(out_ms=good.out_ms + 9 * 86_400_000)

        def made(text):
            return base64.urlsafe_b64encode(text.encode()).decode()

        cases = {
            "": "recall handle is invalid",
            "***": "recall handle is invalid",
            made("v2 T b 1 K"): "recall handle is invalid",
            made("v1 T b 1"): "recall handle is invalid",
            good._replace(topic="other").text: "recall failed, topic not match",
            good._replace(broker="b").text: "recall failed, broker service not available",
            far.text: "recall failed, timestamp invalid",
            handle_of(good, "abc"): "recall failed, timestamp invalid",
            good._replace(key="nobody").text: "recall failed, no such message waits: it was"
            " delivered or recalled before",
        }  # fmt: skip
        for text, remark in cases.items():
            answer = await t.recall(text)
            assert (answer.code, answer.remark) == (604, remark)
        assert (await t.recall(handle, topic="unknown")).code == 17
        assert (await t.recall(handle, topic="other")).remark == "recall failed, topic not match"
        assert (await t.recall(handle)).code == 0


async def test_recall_is_off_unless_it_is_switched_on(store_path):
    async with timed(store_path, recallMessageEnable=False) as t:
        answer = await t.recall("x")
        assert (answer.code, answer.remark) == (16, "recall failed, operation is forbidden")


async def test_found_again_after_a_stop(store_path):
    async with timed(store_path) as t:
        for i in range(300):
            await t.send({"TIMER_DELAY_MS": str(60_000 + 1000 * (i % 7))}, body=b"%d" % i)
        await t.recall((await t.send({"TIMER_DELAY_MS": "61000"})).ext["recallHandle"])
        t.schedule.shift_clock(62_500)
        await until(lambda: t.arrived())
        delivered = len(t.arrived())
    async with timed(store_path) as t:
        assert 0 < delivered <= len(t.arrived()) <= 300
        t.schedule.shift_clock(HOUR_MS)
        await until(lambda: len(t.arrived()) == 300)
        assert len({bytes(m.body) for m in t.arrived()}) == 300


async def test_the_pending_set_is_found_again_from_the_log_alone(store_path):
    async with timed(store_path) as t:
        for i in range(200):
            await t.send({"TIMER_DELAY_MS": str(60_000 + 1000 * (i % 5))})
        t.schedule.shift_clock(62_000)
        await until(lambda: len(t.arrived()) >= 80)
    for file in (store_path / "timers").iterdir():
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    async with timed(store_path) as t:
        t.schedule.shift_clock(HOUR_MS)
        await until(
            lambda: t.schedule.timers.last is not None and not t.schedule.timers.last.pending
        )
        keys = [m.properties["UNIQ_KEY"] for m in t.arrived()]
        assert len(keys) == len(set(keys)) == 200


def of_topic(t, topic="T"):
    (tally,) = [each for each in t.schedule.timers.timers.tallies() if each.topic == topic]
    return tally


async def test_metrics_under_upstreams_names(store_path):
    async with timed(store_path) as t:
        for seconds in (3, 30, 30, 4000, 100_000):
            await t.send({"TIMER_DELAY_SEC": str(seconds)})
        last = await t.send({"TIMER_DELAY_SEC": "50"}, topic="U")
        await t.recall(last.ext["recallHandle"], topic="U")
        t.schedule.shift_clock(5000)
        await until(lambda: len(t.arrived()) == 1)
        answer = await t.ask(RequestCode.GET_BROKER_RUNTIME_INFO, metrics="timers")
        said = json.loads(answer.body)["table"]
        assert said["rocketmq_timer_pending"] == said['rocketmq_timing_messages{topic="T"}'] == 4
        assert said['rocketmq_timing_messages{topic="U"}'] == 0
        assert said['rocketmq_timer_enqueue_total{topic="T"}'] == 5
        assert said['rocketmq_timer_dequeue_total{topic="T"}'] == 1
        assert said["rocketmq_timer_recalled_total"] == 1
        assert said['rocketmq_timer_message_snapshot{timer_bound_s="60"}'] == 2
        name = "rocketmq_delay_message_latency_seconds_bucket"
        buckets = [
            said[f'{name}{{topic="T",le="{le}"}}'] for le in ("60.0", "3600.0", "43200.0", "+Inf")
        ]
        assert buckets == [3, 3, 4, 5]
        assert said["rocketmq_timer_dequeue_lag"] == said["rocketmq_timer_enqueue_lag"] == 0
        table = json.loads((await t.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
        assert (table["timerCongestNum"], table["timerReadBehind"]) == ("4", "0")
        by_topic = json.loads((await t.ask(RequestCode.GET_TIMER_METRICS)).body)["timingCount"]
        assert {name: row["count"] for name, row in by_topic.items()} == {"T": 4, "U": 0}
        assert (await t.ask(RequestCode.GET_BROKER_RUNTIME_INFO, metrics="x")).code == 1


async def test_what_waits_for_a_topic_is_counted_again_after_a_start(store_path):
    """In runs and in the heap, recalled and delivered in between."""
    with Store(store_path, **SMALL) as store:
        now = time.time_ns() // 1_000_000
        for i in range(20_000):
            at = str(now + HOUR_MS + i % 7000 * 100)
            store.put_message(
                "T" if i % 4 else "U", b"", properties={"TIMER_DELIVER_MS": at, "UNIQ_KEY": f"{i}"}
            )
    async with timed(store_path, mappedFileSizeCommitLog=8 << 20) as t:
        await until(lambda: t.schedule.timers.last and t.schedule.timers.last.pending == 20_000)
        assert (of_topic(t).waiting, of_topic(t, "U").waiting) == (15_000, 5_000)
    async with timed(store_path, mappedFileSizeCommitLog=8 << 20) as t:
        t.schedule.shift_clock(HOUR_MS + 1000)
        await until(lambda: t.arrived("U"))
        left = t.schedule.timers.timers.count()
        assert of_topic(t).waiting + of_topic(t, "U").waiting == left < 20_000
        assert of_topic(t).delivered == len(t.arrived())
        assert of_topic(t, "U").waiting == 5_000 - len(t.arrived("U"))


@pytest.mark.parametrize("again", [False, True])
async def test_timers_of_a_deleted_topic_go_nowhere(store_path, again):
    """They are not put again either, and wait no longer for it once they are due."""
    async with timed(store_path) as t:
        for topic in ("T", "U"):
            await t.send({"TIMER_DELIVER_MS": str(t.now() + HOUR_MS)}, topic=topic, body=b"old")
        assert (await t.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")).code == 0
        if again:
            await t.send({"TIMER_DELIVER_MS": str(t.now() + HOUR_MS)}, body=b"new")
        await until(lambda: t.schedule.timers.last.pending == 2 + again)
    async with timed(store_path) as t:
        t.schedule.shift_clock(2 * HOUR_MS)
        await until(lambda: t.arrived("U") and len(t.arrived("T")) == again)
        await until(lambda: t.schedule.timers.last.pending == 0)
        assert [bytes(m.body) for m in t.arrived()] == [b"new"] * again
        assert t.schedule.timers.metrics.skipped == 1
        assert of_topic(t).waiting == 0
    with Store(store_path) as store:
        assert ("T" in store.topics()) is again


async def test_timers_of_a_deleted_topic_are_not_put_again(store_path):
    async with timed(store_path) as t:
        for topic in ("T", "U"):
            await t.send({"TIMER_DELIVER_MS": str(t.now() + HOUR_MS)}, topic=topic)
        assert (await t.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")).code == 0
        timers = t.schedule.timers.timers
        assert timers.roll(t.now() + HOUR_MS, most=1) + timers.roll(t.now() + HOUR_MS) == 2
        t.schedule.look_at_timers()
        await until(lambda: t.schedule.timers.last.pending == 1)
        assert [m.properties["REAL_TOPIC"] for m in arrived(t.broker.store, TIMER_TOPIC)] == [
            "T", "U", "U",
        ]  # fmt: skip
