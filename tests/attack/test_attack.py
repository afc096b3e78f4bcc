"""A slice of `make attack`: the process lives, within its memory, and its log stays short. How long
the loop is held is for the campaign to say: a busy machine makes any number of that."""

from __future__ import annotations

import pytest

from tests.attack.__main__ import ALL, LOG_BYTES, PEAK_MB, meet, run, tier
from tests.attack.met import WHATS
from tests.attack.tiers import STRANGE


@pytest.mark.parametrize("name", ["large_frames", "slow_readers"])
def test_an_attack_ends_no_broker_and_fills_nothing(name: str, seed: int) -> None:
    (row,) = run([name], "broker", True, seed)
    assert row["broken"] != "the process died", seed
    assert row["peak_mb"] <= PEAK_MB, seed
    assert row["log"] <= LOG_BYTES, seed


@pytest.mark.long
@pytest.mark.parametrize("access", [False, True])
@pytest.mark.parametrize("at", ["broker", "proxy"])
@pytest.mark.parametrize("name", ALL)
def test_every_attack_ends_nobody_and_fills_nothing(name: str, at: str, access: bool) -> None:
    (row,) = run([name], at, access, 1)
    assert row["broken"] != "the process died"
    assert row["peak_mb"] <= PEAK_MB
    assert row["log"] <= LOG_BYTES


@pytest.mark.parametrize(
    "what", [each if each == "under_controller" else pytest.param(each, marks=pytest.mark.long)
             for each in WHATS],
)  # fmt: skip
def test_a_stranger_at_the_name_server_ends_nobody(what: str, seed: int) -> None:
    """And everybody that he names is he."""
    row = meet(what, seed, 1.0)
    assert "the process died" not in row["broken"], (seed, row["text"])
    assert "a traceback" not in row["broken"], (seed, row["text"])
    assert row["peak_mb"] <= PEAK_MB and row["log"] <= LOG_BYTES, seed


@pytest.mark.long
@pytest.mark.parametrize("what", STRANGE)
def test_a_stranger_in_a_cold_tier_is_named(what: str, seed: int) -> None:
    row = tier(what, seed, 4)
    assert not row["broken"], (seed, row.get("text", ""))
