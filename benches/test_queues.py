"""Opening a store of very many queues: listed and looked at, not mapped."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import pystore
from benches.harness import TOPIC, Row, fresh, scaled

#: Queues of a topic: ids go up to 65,535.
A_TOPIC = 50_000
#: What a process may spend on mappings here; the kernel allows 65,530.
MAPPINGS = 20_000
SIZES: dict[str, Any] = {"mappedFileSizeConsumeQueue": 1000, "mappedFileSizeCommitLog": 64 << 20}


def fill(path: Path, queues: int) -> None:
    with pystore.open(path, messageIndexEnable=False, **SIZES) as store:
        for i in range(queues):
            store.put(f"{TOPIC}-{i // A_TOPIC}", b"x" * 20, queue=i % A_TOPIC)


def mapped(path: Path) -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(str(path) in line for line in lines)


@pytest.mark.parametrize(("count", "target"), [(50_000, 2.0), (200_000, 6.0)])
def test_open(measure: Any, count: int, target: float) -> None:
    """One message in each queue; closed cleanly; opened for writing and by a reader."""
    queues = scaled(count)
    path = fresh("queues")
    fill(path, queues)
    times: dict[str, list[float]] = {"open": [], "reader": []}

    def one_round() -> None:
        for name, make in (("open", pystore.open), ("reader", pystore.Reader)):
            before = time.process_time()
            with make(path, messageIndexEnable=False) as store:
                times[name].append(time.process_time() - before)
                assert store.info().queues == queues
                assert mapped(path) <= MAPPINGS

    measure.benchmark.pedantic(one_round, rounds=3, warmup_rounds=1)
    for name, rounds in times.items():
        payload = f"{queues:,} queues of one message"
        mode = f"{name}, processor time, within {MAPPINGS:,} mappings"
        measure.add(Row("open, queues", payload, mode, "s", rounds[1:], target, smaller=True))
