"""Anonymous memory of a process that opens a store and uses it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import pystore
from benches.harness import ROOT, TOPIC, Row, bodies, flat, fresh, scaled

# Everything a small service does with a store, in a process that has imported nothing else.
PROGRAM = """
import json, sys
import pystore

def anonymous():
    with open("/proc/self/status") as status:
        return int(next(x for x in status if x.startswith("RssAnon")).split()[1]) * 1024

imported = anonymous()
with pystore.open(sys.argv[1]) as store:
    opened = anonymous()
    for i in range(20_000):
        store.put("bench", b"x" * 128, queue=i % 4, tags="paid", keys=f"order-{i}")
    for q in store.queues("bench"):
        at = 0
        while at < q.max_offset:
            batch = store.read("bench", q.queue, at, max_messages=1024)
            for message in batch:
                message.body, message.tags
            at = batch.next_offset
    assert store.query("bench", "order-17")
    used = anonymous()
heavy = [name for name in ("numpy", "pyarrow", "pandas") if name in sys.modules]
print(json.dumps({"imported": imported, "opened": opened, "used": used, "heavy": heavy}))
"""


@pytest.mark.parametrize("count", [0, 100_000, 3_000_000])
def test_memory(measure: Any, count: int) -> None:
    """RssAnon after open, and after 20,000 puts and a read of the whole store."""
    path = fresh("memory")
    column = flat(bodies(10_000, 128))
    messages = scaled(count) // 10_000 * 10_000 if count else 0
    with pystore.open(path) as store:
        for _ in range(messages // 10_000):
            store.put_many(TOPIC, column)
    words = [sys.executable, "-c", PROGRAM, str(path)]
    options = {"cwd": ROOT, "check": True, "stdout": subprocess.PIPE}
    done = measure.benchmark.pedantic(subprocess.run, (words,), options, rounds=1)
    said = json.loads(done.stdout)
    assert not said["heavy"]
    payload = f"{messages:,} messages of 128 B before"
    for name, mode in (("opened", "after open"), ("used", "after 20,000 puts and a full read")):
        measure.add(
            Row(
                "anonymous memory",
                payload,
                mode,
                "B",
                [said[name]],
                target=50e6,
                smaller=True,
                extra={"after import": said["imported"]},
            )
        )
