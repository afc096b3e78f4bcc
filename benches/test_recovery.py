"""Opening: after a crash, with every record checked and every queue rebuilt; after a clean exit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import pystore
from benches.harness import SCALE, TOPIC, Row, bodies, flat, fresh

GIB = 1 << 30
#: Bytes of log in the store that was closed cleanly; PS_BENCH_OPEN_GB makes it smaller.
OPEN_BYTES = int(float(os.environ.get("PS_BENCH_OPEN_GB", 10 * SCALE)) * GIB)


def fill(path: Path, size: int, total: int) -> None:
    column = flat(bodies(max(100, (16 << 20) // size), size))
    with pystore.open(path) as store:
        while store.info().log_max < total:
            store.put_many(TOPIC, column)


def into_cache(path: Path) -> None:
    for file in sorted((path / "commitlog").iterdir()):
        with file.open("rb", buffering=0) as f:
            while f.read(16 << 20):
                pass


@pytest.mark.parametrize("size", [128, 1024])
def test_abnormal(measure: Any, size: int) -> None:
    """No checkpoint and an abort file: the whole log is read, summed, and dispatched again."""
    path = fresh("crashed")
    fill(path, size, int(1.5 * SCALE * GIB))
    into_cache(path)
    rates, records = [], []

    def one_round() -> None:
        (path / "abort").touch()
        (path / "checkpoint").unlink()
        with pystore.open(path) as store:
            report = store.report
        assert report.mode is pystore.RecoveryMode.ABNORMAL
        assert report.scanned_from == report.log_min
        rates.append(report.scanned_bytes / report.seconds)
        records.append(report.records / report.seconds)

    measure.benchmark.pedantic(one_round, rounds=3, warmup_rounds=1)
    payload = f"{size} B bodies, {int(1.5 * SCALE * 1024):,} MiB"
    mode = "abort file, no checkpoint, page cache, CRC checked, queues rebuilt"
    measure.add(Row("recovery, log", payload, mode, "B/s", rates[1:], target=1.5e9))
    measure.add(Row("recovery, records", payload, mode, "/s", records[1:]))


def test_clean_open(measure: Any) -> None:
    """Ten segments really written, 1,000 queues: opened, and closed outside the clock."""
    path = fresh("clean")
    column = flat(bodies(1000, 4096))
    with pystore.open(path) as store:
        while store.info().log_max < OPEN_BYTES:
            for i in range(250):
                store.put_many(f"{TOPIC}-{i}", column, queues=[k % 4 for k in range(1000)])
    held: list[pystore.Store] = []
    with pystore.open(path) as store:
        files, queues = store.info().log_files, store.info().queues

    def work() -> None:
        held.append(pystore.open(path))

    benchmark = measure.benchmark
    benchmark.pedantic(work, teardown=lambda: held.pop().close(), rounds=5, warmup_rounds=1)
    times = list(benchmark.stats.stats.data)
    payload = f"{files} segments of 1 GiB, written in full with 4 KiB bodies, {queues:,} queues"
    measure.add(Row("open", payload, "after a clean exit", "s", times, target=0.3, smaller=True))
