"""Reading a backlog: views, Message objects, Arrow."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

import pystore
from benches.harness import TOPIC, bodies, flat, fresh, scaled

SIZE = 128
PAYLOAD = f"{SIZE} B bodies"
AT_ONCE = 512
COUNT = scaled(2_000_000)


@pytest.fixture(scope="module")
def backlog() -> Iterator[pystore.Reader]:
    """Two million messages in one queue, in the page cache."""
    path = fresh("backlog")
    column = flat(bodies(100_000, SIZE))
    with pystore.open(path) as store:
        for _ in range(max(1, COUNT // 100_000)):
            store.put_many(TOPIC, column, queue=0)
    with pystore.Reader(path) as reader:
        yield reader


def held_by(reader: pystore.Reader) -> int:
    return reader.range(TOPIC, 0)[1]


def batches(reader: pystore.Reader) -> Iterator[pystore.Batch]:
    at, end = 0, held_by(reader)
    while at < end:
        batch = reader.read(TOPIC, 0, at, max_messages=AT_ONCE)
        yield batch
        at = batch.next_offset


def test_raw_bodies(measure: Any, backlog: pystore.Reader) -> None:
    """Each body as a view on the log."""

    def work() -> int:
        return sum(len(batch.raw_bodies()) for batch in batches(backlog))

    assert work() == held_by(backlog)
    measure(
        work,
        held_by(backlog),
        bench="read, batch.raw_bodies()",
        payload=PAYLOAD,
        mode=f"page cache, {AT_ONCE:,} a call",
        target=5e6,
    )


def test_messages(measure: Any, backlog: pystore.Reader) -> None:
    """Each message as an object; nothing of it is decoded."""

    def work() -> int:
        n = 0
        for batch in batches(backlog):
            for _ in batch:
                n += 1
        return n

    assert work() == held_by(backlog)
    measure(
        work,
        held_by(backlog),
        bench="read, Message objects",
        payload=PAYLOAD,
        mode=f"page cache, {AT_ONCE:,} a call",
        target=5e6,
    )


def test_message_bodies(measure: Any, backlog: pystore.Reader) -> None:
    """Each message as an object, and its body."""

    def work() -> None:
        for batch in batches(backlog):
            for message in batch:
                message.body  # noqa: B018  the attribute is what is measured

    measure(
        work,
        held_by(backlog),
        bench="read, Message objects and body",
        payload=PAYLOAD,
        mode=f"page cache, {AT_ONCE:,} a call",
        rounds=3,
    )


@pytest.mark.parametrize(
    ("columns", "target"),
    [(["body"], 25e6), (["queueOffset", "storeTimestamp", "body"], None), (None, None)],
    ids=["body", "three", "default"],
)
def test_arrow(
    measure: Any, backlog: pystore.Reader, columns: list[str] | None, target: float | None
) -> None:
    """The queue as an Arrow stream, read to its end by pyarrow on one thread."""
    pa = pytest.importorskip("pyarrow")
    options = {} if columns is None else {"columns": columns}

    def work() -> int:
        stream = backlog.arrow(TOPIC, 0, **options)
        return sum(len(part) for part in pa.RecordBatchReader.from_stream(stream))

    assert work() == held_by(backlog)
    gc.collect()
    measure(
        work,
        held_by(backlog),
        bench="Arrow stream",
        payload=PAYLOAD,
        mode=f"page cache, columns {', '.join(columns) if columns else 'by default'}",
        unit=" rows/s",
        target=target,
    )
