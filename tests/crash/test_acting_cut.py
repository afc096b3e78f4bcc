"""A master that lives and is cut off from its slave and its name server, or is stopped for a while
and goes on, with delays, timers, open transactions and pops: a slave acts meanwhile, clients reach
both, and each message comes once. Needs root, for networks of its own.

``PS_ACTING_CUTS`` rounds (3), ``PS_SEED`` repeats a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("cut_child.py")
ROUNDS = int(os.environ.get("PS_ACTING_CUTS", "3"))

pytestmark = pytest.mark.long


def test_each_comes_once_when_a_master_is_cut_off_or_stopped_and_goes_on(
    tmp_path: Path, seed: int
) -> None:
    made = "ip link add br0 type bridge && ip link set lo up"
    tried = subprocess.run(["unshare", "-n", "sh", "-c", made], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("no network namespace of its own here")
    words = ["unshare", "-n", sys.executable, str(CHILD), str(tmp_path), str(seed), str(ROUNDS)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-12_000:]
