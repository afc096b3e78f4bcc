"""A store that somebody is writing while it is scanned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

import pystore
from tests.spark.conftest import put

pytestmark = pytest.mark.spark


def test_a_store_that_grows_under_the_scan_gives_whole_prefixes(load, store_path, small):
    with pystore.open(store_path, **small) as store:
        put(store, "t", 0, 500)
        stop = threading.Event()
        counts: list[int] = []

        def write() -> None:
            at = 500
            while not stop.is_set():
                if at < 20_000 * (1 + len(counts)):  # or a slow scan would never catch up
                    put(store, "t", 0, 50, first=at)
                    at += 50
                stop.wait(0.001)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            while len(counts) < 4 or counts[-1] == counts[0]:
                rows = load(store_path, maxRecordsPerPartition=3000).select("queueOffset", "body")
                got = sorted((r.queueOffset, bytes(r.body).decode()) for r in rows.collect())
                assert got == [(i, f"t-0-{i}") for i in range(len(got))]
                counts.append(len(got))
        finally:
            stop.set()
            thread.join()
    assert counts == sorted(counts)
    assert counts[0] >= 500


def test_workers_that_live_on_see_what_came_later(load, store_path, small):
    with pystore.open(store_path, **small) as store:
        for total in (10, 20, 30):
            put(store, "t", 0, 10, first=total - 10)
            store.put(f"new-{total}", b"", queue=0)
            store.flush()
            assert load(store_path, topic="t").count() == total
            assert load(store_path, topic=f"new-{total}").count() == 1


LIMITED = """
import json, resource, sys
from spark_ext import batch, options, plan, schema
o = options.parse_read(json.loads(sys.argv[1]), streaming=False)
parts = plan.plan(o)
layout = schema.ColumnLayout(("queueOffset", "body"), (False, False), "json")
rows = sum(b.num_rows for b in batch.read_part(parts[0], layout, o))
used = next(x for x in open("/proc/self/status") if x.startswith("VmSize")).split()[1]
resource.setrlimit(resource.RLIMIT_AS, (int(used) * 1024 + (256 << 20),) * 2)
print(len(parts), rows + sum(b.num_rows for p in parts[1:] for b in batch.read_part(p, layout, o)))
"""


def test_workers_with_little_address_space_let_segments_go(store_path):
    with pystore.open(store_path, mappedFileSizeCommitLog=32 << 20) as store:
        for _ in range(180):
            store.put("t", b"\0" * (3 << 20), queue=0)
    given = json.dumps({"path": str(store_path), "maxBytesPerPartition": "32m"})
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, given],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["18", "180"], done.stderr


SETTLED = """
import gc, socket
from spark_ext import stores
server = socket.create_server(("127.0.0.1", 0))
here = socket.create_connection(server.getsockname())
there, _ = server.accept()
delay = lambda: here.getsockopt(socket.IPPROTO_TCP, stores._TCP_DELACK_MAX_US)
try:
    before = delay()
except OSError:
    before = None
stores.settle_worker()
frozen = gc.get_freeze_count()
more = [[] for _ in range(1000)]
stores.settle_worker()
print(frozen > 1000, gc.get_freeze_count() <= frozen, before is None or delay() < before)
"""


def test_a_worker_is_settled_once(tmp_path):
    """What is loaded is frozen, and its connections acknowledge soon where the kernel can."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SETTLED],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "True", "True"]


def test_a_store_that_was_replaced_is_read_as_it_is_now(make, tmp_path):
    """Another store at the same path, as when a copy is put back: workers and drivers live on."""
    from spark_ext.stores import close_reader, open_reader

    path, other = make({"t": [3]}), make({"u": [5]}, tmp_path / "other")
    held = open_reader(str(path))
    assert held.topics() == ["t"] and open_reader(str(path)) is held
    path.rename(tmp_path / "aside")
    other.rename(path)
    assert open_reader(str(path)).topics() == ["u"]
    close_reader(str(path))
