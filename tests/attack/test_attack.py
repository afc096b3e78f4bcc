"""A slice of `make attack`: the process lives, within its memory, and its log stays short. How long
the loop is held is for the campaign to say: a busy machine makes any number of that."""

from __future__ import annotations

import random

import pytest

from tests.attack.__main__ import LOG_BYTES, PEAK_MB, run
from tests.attack.attacks import ATTACKS


@pytest.mark.parametrize("name", ["large_frames", "half_calls", "strangers", "slow_readers"])
def test_an_attack_ends_no_broker_and_fills_nothing(name: str) -> None:
    seed = random.randrange(1 << 31)
    (row,) = run([name], "broker", True, seed)
    assert row["broken"] != "the process died", seed
    assert row["peak_mb"] <= PEAK_MB, seed
    assert row["log"] <= LOG_BYTES, seed


@pytest.mark.long
@pytest.mark.parametrize("access", [False, True])
@pytest.mark.parametrize("at", ["broker", "proxy"])
@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_ends_nobody_and_fills_nothing(name: str, at: str, access: bool) -> None:
    (row,) = run([name], at, access, 1)
    assert row["broken"] != "the process died"
    assert row["peak_mb"] <= PEAK_MB
    assert row["log"] <= LOG_BYTES
