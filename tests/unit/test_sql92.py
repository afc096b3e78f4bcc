"""SQL92 filters on reads, followers and Arrow streams; what they match is tests/java's business."""

from __future__ import annotations

import asyncio

import pytest
from waiting import until

import pystore
from pystore import ExpressionIllegal, GetStatus

REGIONS = ("EU", "US", "it's")


@pytest.fixture
def store(store_path, small):
    """Thirty messages in one queue: n from 0, region in turn, every fifth without either."""
    with pystore.open(store_path, **small) as store:
        for i in range(30):
            properties = {"n": str(i), "region": REGIONS[i % 3]} if i % 5 else None
            store.put("T", b"%d" % i, queue=0, properties=properties)
        yield store


def numbers(messages):
    return [int(bytes(m.body)) for m in messages]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("n > 20 AND region = 'EU'", [21, 24, 27]),
        ("n between 3 and 7", [3, 4, 6, 7]),
        ("region IN ('it''s')", [2, 8, 11, 14, 17, 23, 26, 29]),
        ("n IS NULL", [0, 5, 10, 15, 20, 25]),
        ("NOT (n > 2)", [1, 2]),
        ("region STARTSWITH 'it' AND n < 10", [2, 8]),
        ("n > 2.5 AND n <= 4.0", [3, 4]),
        ("n = 'x'", []),
        ("TRUE", list(range(30))),
    ],
)
def test_read(store, sql, expected):
    """read() yields what matches, in order; so do a Reader and both kinds of Arrow stream."""
    batch = store.read("T", 0, 0, max_messages=100, sql=sql)
    assert numbers(batch) == expected
    assert batch.next_offset == 30
    with pystore.Reader(store.path) as reader:
        assert numbers(reader.read("T", 0, 0, max_messages=100, sql=sql)) == expected
    pa = pytest.importorskip("pyarrow")
    for queue in (0, None):
        stream = store.arrow("T", queue, columns=["queueOffset"], sql=sql)
        for _ in range(2):
            table = pa.RecordBatchReader.from_stream(stream).read_all()
            assert table.column("queueOffset").to_pylist() == expected


def test_read_where_nothing_matches(store):
    """NO_MATCHED_MESSAGE, and on after what was looked at: as for tags."""
    batch = store.read("T", 0, 0, sql="n > 1000")
    assert (batch.status, batch.next_offset, len(batch)) == (
        GetStatus.NO_MATCHED_MESSAGE, 30, 0,
    )  # fmt: skip
    with_tags = store.read("T", 0, 0, tags="none")
    assert (with_tags.status, with_tags.next_offset) == (batch.status, batch.next_offset)
    assert store.read("T", 0, 30, sql="n > 1").status is GetStatus.OFFSET_OVERFLOW_ONE
    assert store.read("T", 9, 0, sql="n > 1").status is GetStatus.NO_MATCHED_LOGIC_QUEUE


def test_read_looks_at_as_many_units_as_with_tags(store_path, small):
    """A selective read passes over 800 units at most, and goes on at next_offset."""
    with pystore.open(store_path, **small) as store:
        store.put_many("T", [b"x"] * 2000, properties={"a": "1"}, queue=0)
        assert store.read("T", 0, 0, sql="a = 2").next_offset == 800
        assert store.read("T", 0, 0, tags="none").next_offset == 800


def test_read_without_a_filter_after_one_with(store):
    """The filter of a call is not that of the next."""
    assert len(store.read("T", 0, 0, sql="n = 1")) == 1
    assert len(store.read("T", 0, 0)) == 30
    assert len(store.log(max_messages=100)) == 30


def test_many_filters(store):
    """More filters than are kept compiled."""
    for i in range(300):
        assert len(store.read("T", 0, 0, sql=f"n = {i % 4 + 1}")) == 1


def test_follow(store):
    """follow() yields what matches and steps over the rest; follow_async() does the same."""
    until(lambda: store.range("T", 0)[1] == 30)
    assert numbers(store.follow("T", 0, 0, sql="n > 26", timeout=0.1)) == [27, 28, 29]

    async def run():
        found = store.follow_async("T", 0, 0, sql="n > 27", timeout=0.1)
        return [m async for m in found]

    assert numbers(asyncio.run(run())) == [28, 29]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("n >", "position 4: expected a property, a literal, NOT or '(', but the expression ends"),
        ("n > 'x'", "position 5: expected a number or a property"),
        ("region = 'grün' AND n > 0.0", "position 25: expected a decimal"),
        ("n LIKE 'x%'", "position 3: expected AND, OR or the end, not \"LIKE 'x%'\""),
        ("region = 'ü' b", "position 14: expected AND, OR or the end, not 'b'"),
        ("n = 007", "position 6: expected AND, OR or the end, not '07'"),
        ("n = 1" + " " * 65536, "65541 bytes, more than 65536"),
        ("(" * 129, "position 129: nested too deeply"),
    ],
)
def test_what_is_no_filter(store, sql, message):
    """The error names the place; what upstream would silently ignore is refused as well."""
    for call in (
        lambda: store.read("T", 0, 0, sql=sql),
        lambda: store.arrow("T", sql=sql),
        lambda: next(store.follow("T", 0, 0, sql=sql)),
    ):
        with pytest.raises(ExpressionIllegal) as caught:
            call()
        assert message in str(caught.value)
    assert issubclass(ExpressionIllegal, ValueError)


def test_not_with_tags(store):
    """Two filters of different kinds are refused, and so is malformed text."""
    with pytest.raises(pystore.BadArgument, match="either tags or sql"):
        store.read("T", 0, 0, tags="a", sql="n = 1")
    with pytest.raises(pystore.BadArgument, match="either tags or sql"):
        store.arrow("T", tags="a", sql="n = 1")
    with pytest.raises(pystore.BadArgument, match="not valid Unicode"):
        store.read("T", 0, 0, sql="n = '\ud800'")
