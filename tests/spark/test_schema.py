"""Projections: Spark takes a batch only when its schema equals the frame's in every respect."""

from __future__ import annotations

import pytest

import pystore
from spark_ext.schema import COLUMNS
from tests.spark.conftest import said

pytestmark = pytest.mark.spark


@pytest.fixture
def path(make, small):
    path = make({"t": [5]})
    with pystore.open(path, **small) as store:
        store.put("t", b"x", tags="a", keys="k", properties={"p": "1"}, queue=0)
    return path


def ddl(name: str, nullable: bool) -> str:
    kind, may_be_null = COLUMNS[name]
    return f"{name} {kind}{'' if nullable or may_be_null else ' NOT NULL'}"


def test_each_column_alone(load, path):
    """NOT NULL where that can be; all of them may be null in the next test."""
    frames = [load(path, ddl(name, False)) for name in COLUMNS]
    frames.append(load(path, "properties string NOT NULL"))
    both = frames[0].selectExpr("1 AS one")  # one query, since each costs its planning
    for frame in frames[1:]:
        both = both.unionAll(frame.selectExpr(f"IF({frame.columns[0]} IS NULL, 2, 1) AS one"))
    assert both.count() == 6 * len(frames)


def test_all_columns_in_any_order(load, path):
    names = sorted(COLUMNS, reverse=True)
    frame = load(path, ", ".join(ddl(n, True) for n in names))
    assert frame.columns == names
    assert frame.count() == 6
    assert [r.queueOffset for r in frame.collect()] == list(range(6))


def test_columns_by_option(load, path):
    frame = load(path, columns="tags, queueOffset")
    assert [f"{f.name} {f.dataType.simpleString()} {f.nullable}" for f in frame.schema] == [
        "tags string True",
        "queueOffset bigint False",
    ]
    assert frame.collect()[-1].tags == "a"


def test_the_same_without_a_single_row(load, path):
    for name in COLUMNS:
        frame = load(path, ddl(name, True), startingOffsets='{"t":{"0":6}}')
        assert frame.schema[0].name == name
    assert frame.collect() == []


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("queueOffse long", "unknown column 'queueOffse'; did you mean 'queueOffset'?"),
        ("queueOffset int", "column 'queueOffset' is bigint, not int; cast it after loading"),
        ("body string", "column 'body' is binary, not string"),
        ("storeTimestamp timestamp_ntz", "column 'storeTimestamp' is timestamp, not timestamp_ntz"),
        ("tags string NOT NULL", "column 'tags' can be null: leave NOT NULL out"),
        ("properties map<string,int>", "is map<string,string> or string, not map<string,int>"),
    ],
)
def test_what_a_column_cannot_be(load, path, schema, why):
    with pytest.raises(Exception) as failure:
        load(path, schema).collect()
    assert why in said(failure)
