"""Progress that was kept without its log: a broker starts, says what it sets back, and delivers
every new message (docs/recovery.md#progress)."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

from transacting import COMMIT, HALF, OP, transacting
from waiting import until_async

import pystore
from broker.broker import Broker
from broker.startup import _follow_or_lead
from pystore.native import lib

GROUP = "CID_RMQ_SYS_TRANS"


def offsets_file(path, rows):
    """consumerOffset.json of another broker: by topic@group, offsets of queues."""
    folder = path / "config"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "consumerOffset.json").write_text(json.dumps({"offsetTable": rows}))


async def committed(t):
    producer = await t.producer()
    half = await producer.half(key="one")
    assert (await producer.end(half, COMMIT)).code == 0
    await until_async(lambda: t.texts("orders") == [b"hello"])


async def test_broker_starts_with_progress_of_transactions_and_no_half_queue(
    tmp_path, small, caplog
):
    offsets_file(tmp_path / "s", {f"{HALF}@{GROUP}": {"0": 3}, f"{OP}@{GROUP}": {"0": 2}})
    async with transacting(tmp_path / "s", small) as t:
        await committed(t)
    assert f"group {GROUP} stood past the end of {HALF}: set back queue 0 from 3 to 0" in (
        caplog.text
    )


async def test_broker_starts_with_open_transactions_whose_log_is_gone(tmp_path, small):
    async with transacting(tmp_path / "s", small) as t:
        producer = await t.producer()
        half = await producer.half(key="done")
        await producer.end(half, COMMIT)
        await producer.half(key="open")
    for name in ("commitlog", "consumequeue"):
        shutil.rmtree(tmp_path / "s" / name)
    async with transacting(tmp_path / "s", small) as t:
        await committed(t)


async def test_negative_offsets_of_java_are_none(tmp_path, small, caplog):
    """Its broker stores what a client commits, and answers that there is no offset."""
    offsets_file(tmp_path / "s", {"T@g": {"0": -1, "1": 0, "2": -(2**63)}})
    async with Broker(tmp_path / "s", listenPort=0, **small) as broker:
        offsets = broker.services.offsets
        assert [offsets.get("g", "T", queue) for queue in range(3)] == [None, 0, None]
    assert "2 consumer offsets count as none" in caplog.text


async def test_first_delayed_message_is_delivered_with_progress_ahead_of_its_level(
    tmp_path, small, caplog
):
    folder = tmp_path / "s" / "config"
    folder.mkdir(parents=True)
    (folder / "delayOffset.json").write_text('{"offsetTable":{1:5}}')
    async with Broker(tmp_path / "s", listenPort=0, **small) as broker:
        broker.store.put("T", b"late", queue=0, delay_level=1)
        broker.services.schedule.shift_clock(60_000)
        broker.services.schedule._got_messages([1])
        await until_async(lambda: broker.store.range("T", 0) == (0, 1))
    assert "delay level 1 stood past the end of its queue: set back from 5 to 0" in caplog.text


async def test_first_delayed_message_is_delivered_after_its_log_was_removed(tmp_path, small):
    for text in (b"one", b"two"):
        async with Broker(tmp_path / "s", listenPort=0, **small) as broker:
            broker.store.put("T", text, queue=0, delay_level=1)
            broker.services.schedule.shift_clock(60_000)
            broker.services.schedule._got_messages([1])
            await until_async(lambda: broker.store.range("T", 0) == (0, 1))
            assert [bytes(m.body) for m in broker.store.read("T", 0, 0)] == [text]
        for name in ("commitlog", "consumequeue"):
            shutil.rmtree(tmp_path / "s" / name)


def test_store_that_followed_sets_back_its_masters_progress_when_it_leads(tmp_path, small):
    with pystore.open(tmp_path / "s", **small) as store:
        store.put("T", b"x", queue=0)
        metadata = store.metadata
        lib.ps_follow_begin(store.c_handle())
        metadata.offsets.commit("g", "T", 0, 9)  # as a master's offsets come
        metadata.delay_offsets.commit(1, 9)
        _follow_or_lead(SimpleNamespace(settings=store.settings, elected=None), store)
        assert metadata.offsets.get("g", "T", 0) == 1
        assert metadata.delay_offsets.get(1) == 0
