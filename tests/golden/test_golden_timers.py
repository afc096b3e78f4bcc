"""A store that the Java broker left with timers pending: every one comes here, and none twice."""

from __future__ import annotations

import json
import lzma
import shutil
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from storeview import everything

import pystore
from pystore.store.timers import Timers

HERE = Path(__file__).parent


def lines(name):
    with lzma.open(HERE / f"timer.{name}.jsonl.xz", "rt", encoding="utf-8") as text:
        return [json.loads(line) for line in text]


@pytest.fixture
def folder(tmp_path):
    with tarfile.open(HERE / "timer.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    (made,) = tmp_path.iterdir()
    shutil.rmtree(made / "timerlog")
    (made / "timerwheel").unlink(missing_ok=True)
    return made


def arrived(store):
    return [
        m for m in everything(store)
        if not m.topic.startswith(("rmq_", "RMQ_", "SCHEDULE"))
        and "TIMER_DEQUEUE_MS" in m.properties
    ]  # fmt: skip


def test_every_pending_timer_of_a_java_folder_comes_once(folder):
    pending = [row for row in lines("expected") if row["at"] == "pending"]
    recalled = {row["uniq"] for row in pending if row["recalled"]}
    wanted = {row["uniq"]: row for row in pending if not row["recalled"]}
    with pystore.open(folder) as store:
        before = Counter(m.properties["UNIQ_KEY"] for m in arrived(store))
        timers = Timers(store)
        found = list(timers.waiting())
        assert len(found) == len(wanted)
        while timers.run(now_ms=found[-1].due_ms).more:
            pass
        timers.close()
        after = Counter(m.properties["UNIQ_KEY"] for m in arrived(store)) - before
        assert after == Counter(wanted.keys())
        assert not recalled & set(after)
    for timer in found:
        row = next(r for r in pending if timer.out_ms == r["out_ms"])
        assert row["out_ms"] < timer.due_ms <= row["out_ms"] + 1000
