"""Histories of clients of three brokers, through faults: Porcupine finds an order of all operations
that one log a queue could have given. ``PS_SEED`` repeats a run; `make chaos-ha` runs for ten
minutes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import run


def history_of(
    folder: Path, controller: str, seconds: float, plan: str, seed: int, tier: str = "none"
) -> None:
    checker = run.program()
    if checker is None:
        pytest.skip("Go, or Porcupine as its module, is missing")
    if why := run.may_run(controller):
        pytest.skip(why)
    out, wrong = run.one(folder, checker, controller, seconds, seed, 4, plan, tier=tier)
    assert not wrong, "\n".join([*wrong, *out.get("told", [])])
    assert out["history"]["acknowledged"] > 0
    assert sum(out["faults"].values()) > 0
    assert tier == "none" or out["history"]["of the tier"] > 0


@pytest.mark.slow
def test_a_master_under_etcd_is_killed(tmp_path: Path, seed: int) -> None:
    history_of(tmp_path, "etcd", 3.0, "kill", seed)


@pytest.mark.long
@pytest.mark.parametrize("controller", ["etcd", pytest.param("apache", marks=pytest.mark.java)])
def test_faults_of_all_kinds(tmp_path: Path, controller: str, seed: int) -> None:
    history_of(tmp_path, controller, 60.0, "random", seed)


@pytest.mark.long
@pytest.mark.parametrize("tier", ["folder", "s3"])
def test_what_is_old_is_read_out_of_a_cold_tier(tmp_path: Path, tier: str, seed: int) -> None:
    history_of(tmp_path, "etcd", 60.0, "random", seed, tier)


@pytest.mark.long
@pytest.mark.parametrize("controller", ["etcd", pytest.param("apache", marks=pytest.mark.java)])
def test_without_a_majority_of_the_controller_what_is_safe_is_served_and_it_heals(
    tmp_path: Path, controller: str, seed: int
) -> None:
    history_of(tmp_path, controller, 0.0, "controller", seed)
