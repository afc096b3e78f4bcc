"""The official C++ client and a broker: tests/cpp/client.py sends and takes by push.

Its heartbeats write enums as ordinals, and its JSON has members that Java's has not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import BOUND_S

from broker import Broker

pytestmark = [pytest.mark.slow]

PROGRAM = Path(__file__).resolve().parents[1] / "cpp" / "client.py"
#: The last one whose wheel brings librocketmq.so.
WANTED = "rocketmq==0.4.4"


@pytest.fixture(scope="module")
def library():
    """The folder with the binding; skips where it cannot be had, or does not run here."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "rocketmq-reference" / "cpp" / WANTED
    if not (folder / "rocketmq").exists():
        got = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, WANTED],
            capture_output=True, text=True, timeout=BOUND_S,
        )  # fmt: skip
        if got.returncode:
            pytest.skip(f"{WANTED} cannot be had: {got.stderr[-300:]}")
    tried = subprocess.run(
        [sys.executable, "-c", "import rocketmq.client"],
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True, text=True, timeout=BOUND_S,
    )  # fmt: skip
    if tried.returncode:
        pytest.skip(f"librocketmq does not run here: {tried.stderr[-300:]}")
    return folder


def test_the_cpp_client_sends_and_takes_by_push(library, tmp_path, small):
    with Broker(tmp_path / "store", listenPort=0, with_namesrv=True, **small) as broker:
        done = subprocess.run(
            [sys.executable, PROGRAM, broker.namesrv_address, "orders", "readers", "20"],
            env=os.environ | {"PYTHONPATH": str(library), "HOME": str(tmp_path)},
            cwd=tmp_path, capture_output=True, text=True, timeout=2 * BOUND_S,
        )  # fmt: skip
        group = broker.services.groups.get("readers")
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert group is not None
