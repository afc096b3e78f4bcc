"""SQL92 filters: the match alone, and reads and scans that use one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import pystore
from benches.harness import TOPIC, bodies, flat, fresh, scaled
from pystore.filter.sql92 import compiled
from pystore.format.properties import encode_properties
from pystore.native import ffi, lib

#: What a client sets, and what this consumer asks for: 162 bytes.
PROPERTIES = {
    "KEYS": "order-2026-000017",
    "UNIQ_KEY": "FD000000000000000000000000000002689B30946E0967AA27C50000",
    "CLUSTER": "DefaultCluster",
    "TAGS": "paid",
    "region": "EU",
    "amount": "17",
    "rate": "0.25",
    "WAIT": "true",
}
EXPRESSIONS = {
    "one comparison": "amount > 3",
    "two and text": "amount > 3 AND region = 'EU' AND rate < 0.5",
    "IN of a hundred": "region IN (" + ",".join(f"'R{i}'" for i in range(99)) + ",'EU')",
}
COUNT = scaled(1_000_000)


@pytest.fixture(scope="module")
def backlog() -> Iterator[pystore.Reader]:
    """A million messages with those properties in one queue, in the page cache."""
    path = fresh("filtered")
    column = flat(bodies(50_000, 128))
    with pystore.open(path) as store:
        for _ in range(max(1, COUNT // 50_000)):
            store.put_many(TOPIC, column, queue=0, properties=PROPERTIES)
    with pystore.Reader(path) as reader:
        yield reader


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_match(measure: Any, name: str) -> None:
    """One message after the other, its bytes in the processor's cache; Python's call is in it."""
    sql, raw = compiled(EXPRESSIONS[name]), encode_properties(PROPERTIES)
    count = scaled(500_000)
    match, size, held = lib.ps_sql92_match, len(raw), ffi.from_buffer(raw)
    assert match(sql, held, size) == 1

    def work() -> None:
        for _ in range(count):
            match(sql, held, size)

    measure(
        work,
        count,
        bench="SQL92 match, called from Python",
        payload=f"{size} B properties",
        mode=name,
        rounds=3,
    )


@pytest.mark.parametrize("sql", [None, "amount > 3", "amount > 30", EXPRESSIONS["two and text"]])
def test_scan(measure: Any, backlog: pystore.Reader, sql: str | None) -> None:
    """The queue as an Arrow stream of offsets: what the filter costs beside no filter."""
    pa = pytest.importorskip("pyarrow")
    count = backlog.range(TOPIC, 0)[1]

    def work() -> int:
        stream = backlog.arrow(TOPIC, 0, columns=["queueOffset", "storeTimestamp"], sql=sql)
        return sum(len(part) for part in pa.RecordBatchReader.from_stream(stream))

    assert work() == (0 if sql == "amount > 30" else count)
    measure(
        work,
        count,
        bench="Arrow stream with SQL92",
        payload="128 B bodies, 8 properties",
        mode=f"page cache, {sql or 'no filter'}",
        unit=" rows/s",
        rounds=3,
    )


def test_read(measure: Any, backlog: pystore.Reader) -> None:
    """Reads of 512 whose filter passes all."""
    end = backlog.range(TOPIC, 0)[1]

    def work() -> int:
        at = found = 0
        while at < end:
            batch = backlog.read(TOPIC, 0, at, max_messages=512, sql="amount > 3")
            found += len(batch)
            at = batch.next_offset
        return found

    assert work() == end
    measure(
        work,
        end,
        bench="read with SQL92",
        payload="128 B bodies, 8 properties",
        mode="page cache, 512 a call, amount > 3",
        rounds=3,
    )
