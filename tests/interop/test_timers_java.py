"""Timers of ours taken over by Apache's broker: it delivers every one that is left, and none twice;
then ours goes on again."""

from __future__ import annotations

import time
from collections import Counter

import launch
import pytest
from storeview import everything
from waiting import until

import pystore
from pystore import Reader
from pystore.store.timer_files import write_timer_files
from pystore.store.timers import Timers, save_timers

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.long]

SIZES = {"mappedFileSizeCommitLog": 4 << 20, "mappedFileSizeConsumeQueue": 6000}
SOON, LATER, DAYS = range(10), range(10, 50), range(50, 60)


def test_java_delivers_the_rest_and_then_we_do(reference, tmp_path):
    folder = tmp_path / "peer"
    store_path = folder / "store"

    def arrived():
        with Reader(store_path) as reader:
            return Counter(int(bytes(m.body)) for m in everything(reader, "orders"))

    def put(store, i, due_ms):
        properties = {"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": f"{i:032X}"}
        store.put("orders", b"%d" % i, properties=properties, queue=0)

    with pystore.open(store_path, **SIZES) as store:
        timers = Timers(store)
        now = time.time_ns() // 1_000_000
        for i in SOON:
            put(store, i, now + 50)
        for i in LATER:
            put(store, i, now + 20_000 + 100 * i)
        for i in DAYS:
            put(store, i, now + 86_400_000 + i)
        recalled = timers.find("orders", f"{LATER[0]:032X}", out_of(now + 20_000 + 100 * LATER[0]))
        properties = {
            "TIMER_DEL_UNIQKEY": f"orders+{LATER[0]:032X}",
            "TIMER_DELIVER_MS": str(recalled.due_ms),
        }
        store.put("orders", b"0", properties=properties, queue=0)
        until(lambda: timers.run() and timers.count() == 49, "those due soon are there")
        last = timers.run()
        save_timers(store, timers.capture()[0])
        waiting = list(timers.waiting())
        assert len(waiting) == 49
        write_timer_files(store.path, waiting, last.offset, time.time_ns() // 1_000_000, 100 << 20)
        timers.close()
    left = set(LATER) - {LATER[0]}
    with launch.name_server("ours", tmp_path / "names") as names:
        peer = launch.MAKES["java"](folder, launch.SETTINGS | SIZES, "5.3.3", names)
        peer.broker_server.start()
        try:
            peer.wait_ready()
            until(lambda: set(arrived()) >= left, "Java has delivered them")
        finally:
            peer.stop()
    assert arrived() == Counter([*SOON, *left])
    with pystore.open(store_path, **SIZES) as store:
        timers = Timers(store)
        assert timers.count() == len(DAYS)
        while timers.run(now_ms=now + 2 * 86_400_000).more:
            pass
        timers.close()
    assert arrived() == Counter([*SOON, *left, *DAYS])


def out_of(due_ms):
    return due_ms - 1000 if due_ms % 1000 == 0 else due_ms - due_ms % 1000
