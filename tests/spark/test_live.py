"""A store that somebody is writing while it is scanned."""

from __future__ import annotations

import threading

import pytest

import pystore
from tests.spark.conftest import put

pytestmark = pytest.mark.spark


def test_a_store_that_grows_under_the_scan_gives_whole_prefixes(load, store_path, small):
    with pystore.open(store_path, **small) as store:
        put(store, "t", 0, 500)
        stop = threading.Event()

        def write() -> None:
            at = 500
            while not stop.is_set():
                put(store, "t", 0, 50, first=at)
                at += 50
                stop.wait(0.001)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            counts = []
            for _ in range(4):
                rows = load(store_path, maxRecordsPerPartition=3000).select("queueOffset", "body")
                got = sorted((r.queueOffset, bytes(r.body).decode()) for r in rows.collect())
                assert got == [(i, f"t-0-{i}") for i in range(len(got))]
                counts.append(len(got))
        finally:
            stop.set()
            thread.join()
    assert counts == sorted(counts)
    assert counts[0] >= 500
    assert counts[-1] > counts[0]


def test_workers_that_live_on_see_what_came_later(load, store_path, small):
    with pystore.open(store_path, **small) as store:
        for total in (10, 20, 30):
            put(store, "t", 0, 10, first=total - 10)
            store.put(f"new-{total}", b"", queue=0)
            store.flush()
            assert load(store_path, topic="t").count() == total
            assert load(store_path, topic=f"new-{total}").count() == 1
