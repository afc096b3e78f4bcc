"""A tier that is written to for long costs as much a day as at first (`make year-cold`)."""

from __future__ import annotations

import json

import pytest

from benches.tier_year import FEW, FIGURES, Year, figures_of, simulate, simulate_many
from pystore.cold import tier

PUTS = 30


@pytest.fixture(scope="module")
def year() -> Year:
    """Two days in which either of two topics has as many turns as in nine months. Of very many
    queues no manifest stays in memory: here of none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tier, "_KEPT_BYTES", 1)
        return simulate(2, 2, PUTS)


def test_no_hour_has_more_puts_than_the_setting_says(year: Year):
    assert PUTS // 2 < year.most_in_an_hour <= PUTS


def test_manifests_do_not_grow_with_what_they_name(year: Year):
    first, second = (
        sum(day.counts.bytes_put[kind] for kind in ("manifest", "page")) for day in year.days
    )
    assert second < 1.5 * first
    assert year.largest_manifest < 10_000


def test_looks_fetch_what_is_new_alone(year: Year):
    second = year.days[1].counts
    pages = sum(day.counts.puts["page"] for day in year.days)
    # Each turn takes its manifest, and once a day the collector takes all, with their pages.
    assert second.gets <= second.puts["manifest"] + year.topics + pages


def test_the_figures_of_the_manual_are_those_of_the_simulation():
    """Of its first day; `make year-cold ARGS=--write` makes them again."""
    said = json.loads(FIGURES.read_bytes())["year"]["days"][0]
    made = figures_of(simulate(FEW[0], 1, FEW[1]), FEW[1])["days"][0]
    for name in "puts", "lists", "objects":
        assert made[name] == pytest.approx(said[name], abs=2), name
    assert made["written"] == pytest.approx(said["written"], rel=0.05)


def test_a_restart_takes_each_manifest_once(year: Year):
    assert year.restart_gets <= year.topics


def test_a_query_by_key_takes_a_request_a_segment(year: Year):
    pages = sum(day.counts.puts["page"] for day in year.days)
    assert year.query_segments > 300
    assert year.query_gets < 1.1 * year.query_segments + pages


@pytest.mark.long
def test_a_broker_asks_as_much_whatever_others_there_are():
    alone = simulate(2, 1, PUTS)
    many = simulate_many(3, 2, 1, PUTS)
    for year in many.brokers:
        assert (year.restart_gets, year.query_gets) == (alone.restart_gets, alone.query_gets)
        for mine, theirs in zip(year.days, alone.days, strict=True):
            assert mine.objects == theirs.objects
            assert mine.counts.puts == theirs.counts.puts
            for name in "lists", "gets":
                assert getattr(mine.counts, name) == getattr(theirs.counts, name)
    assert many.root_lists <= 4 * len(many.brokers)
