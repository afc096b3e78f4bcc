"""A slice of `make fuzz` for the readers of metadata, and what it once found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("what", "runs"), [("json", 3000), ("lmdb", 500)])
def test_damaged_metadata_is_refused_by_name_or_read_whole(what, runs, tmp_path):
    """In a process of its own, since what LMDB makes of a bad page may end one."""
    environ = os.environ | {"PS_FUZZ_RUNS": str(runs), "PS_FUZZ_FIND": str(tmp_path / "find")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.metadata", what],
        cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{what}: {runs} inputs" in done.stdout
