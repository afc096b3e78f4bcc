"""Putting: the core alone, many at once from Python, and one call a message."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from typing import Any

import pytest

import pystore
from benches.harness import QUEUES, ROOT, SCRATCH, TOPIC, Row, bodies, flat, new_store, scaled

SIZE = 128
PAYLOAD = f"{SIZE} B bodies"
MODE = "ASYNC_FLUSH, 4 queues"


def test_c_append(measure: Any) -> None:
    """One C thread, the dispatcher beside it; and the memcpy that is the floor."""
    program = ROOT / "build" / "benches" / "append"
    subprocess.run(["make", "-s", str(program.relative_to(ROOT))], cwd=ROOT, check=True)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    # Many rounds: one whose memory the hypervisor has taken back meanwhile is several times slower.
    words = [str(program), str(SCRATCH), str(scaled(2_000_000)), str(SIZE), "9"]
    done = measure.benchmark.pedantic(
        subprocess.run, (words,), {"check": True, "stdout": subprocess.PIPE}, rounds=1
    )
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in done.stdout.splitlines():
        said = json.loads(line)
        if said["round"] > 1:  # the first touches memory for the first time
            rates[said["mode"], "to the last put"].append(said["per_s"])
            rates[said["mode"], "to the last queue unit"].append(said["dispatched_per_s"])
    names = {"put": "ps_put", "put_many": "ps_put_many_messages, 1,000", "floor": "memcpy, no CRC"}
    for (mode, until), rounds in rates.items():
        if mode == "floor" and until != "to the last put":
            continue
        target = None if mode == "floor" else 8e6
        what = MODE if mode == "floor" else f"{MODE}, {until}"
        measure.add(Row(f"C append, {names[mode]}", PAYLOAD, what, "/s", rounds, target))


@pytest.mark.parametrize("form", ["buffer and offsets", "Arrow array", "list of bytes"])
def test_put_many(measure: Any, form: str) -> None:
    """A million messages in calls of 100,000, until the last queue unit is written."""
    count, call = scaled(1_000_000), scaled(100_000)
    values = bodies(call, SIZE)
    column: Any = values
    if form == "buffer and offsets":
        column = flat(values)
    elif form == "Arrow array":
        pa = pytest.importorskip("pyarrow")
        column = pa.array(values, pa.binary())
    held: list[Any] = []

    def setup() -> tuple[tuple[pystore.Store], dict[str, Any]]:
        held.append(new_store("put-many"))
        return (held[-1].__enter__(),), {}

    def work(store: pystore.Store) -> None:
        for _ in range(count // call):
            store.put_many(TOPIC, column)
        store.refresh()

    measure(
        work,
        count // call * call,
        bench=f"put_many, {form}",
        payload=PAYLOAD,
        mode="ASYNC_FLUSH, 8 queues, to the last queue unit",
        target=3.6e6,
        setup=setup,
        teardown=lambda store: held.pop().__exit__(None, None, None),
    )


def test_put(measure: Any) -> None:
    """One call a message from one thread; the clock stops when the last call returns."""
    count = scaled(300_000)
    values = bodies(1000, SIZE)
    held: list[Any] = []

    def setup() -> tuple[tuple[pystore.Store], dict[str, Any]]:
        held.append(new_store("put"))
        return (held[-1].__enter__(),), {}

    def work(store: pystore.Store) -> None:
        put = store.put
        for i in range(count):
            put(TOPIC, values[i % 1000], queue=i % QUEUES)

    measure(
        work,
        count,
        bench="put, one call a message",
        payload=PAYLOAD,
        mode=f"{MODE}, one thread",
        target=0.9e6,
        setup=setup,
        teardown=lambda store: held.pop().__exit__(None, None, None),
    )


def test_put_with_properties(measure: Any) -> None:
    """The same with a tag and a key, which also costs an index entry."""
    count = scaled(200_000)
    values = bodies(1000, SIZE)
    held: list[Any] = []

    def setup() -> tuple[tuple[pystore.Store], dict[str, Any]]:
        held.append(new_store("put-keys"))
        return (held[-1].__enter__(),), {}

    def work(store: pystore.Store) -> None:
        put = store.put
        for i in range(count):
            put(TOPIC, values[i % 1000], tags="paid", keys="order-17", queue=i % QUEUES)

    measure(
        work,
        count,
        bench="put with tag and key",
        payload=PAYLOAD,
        mode=f"{MODE}, one thread",
        setup=setup,
        teardown=lambda store: held.pop().__exit__(None, None, None),
    )
