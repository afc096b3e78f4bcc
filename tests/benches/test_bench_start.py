"""Every bench starts, does its work with small numbers and ends.

What needs an official client, a Java machine or minutes is marked `long`; `make bench-start` runs
that, and so does continuous integration. The programs in C are runs of `make test`
(benches/Makefile.inc).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benches import harness, table

ROOT = Path(__file__).resolve().parents[2]
BENCHES = ROOT / "benches"
QUICK = {each.name: each.quick for each in table.BENCHES if not each.slow}
LONG = {each.name: each.quick for each in table.BENCHES if each.slow}
WITH_JAVA = {each.name for each in table.BENCHES if each.java}
ENVIRONMENT = {"PS_BENCH_SCALE": "0.002", "PS_BENCH_OPEN_GB": "0.01"}


def run(words: list[str], folder: Path) -> None:
    folders = {"PS_BENCH_DIR": str(folder), "PS_BENCH_RESULTS": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT, env={**os.environ, **ENVIRONMENT, **folders},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_every_bench_is_a_row_of_the_table() -> None:
    files = {
        path.stem for path in BENCHES.glob("*.py") if "\ndef bench(" in path.read_text("utf-8")
    }
    assert files == {*QUICK, *LONG}


def test_what_a_bench_does_not_know_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert harness.main(["nothing"]) == 2
    assert "sends" in capfd.readouterr().out
    with pytest.raises(SystemExit) as ended:
        harness.main(["sends", "--only", "tables,nothing"])
    assert ended.value.code == 2
    assert "nothing: not one of tables, timed" in capfd.readouterr().err


@pytest.mark.parametrize("name", QUICK)
def test_a_program_starts_works_and_ends(name: str, tmp_path: Path) -> None:
    run(["benches", name, *QUICK[name].split()], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_a_long_program_starts_works_and_ends(name: str, tmp_path: Path) -> None:
    if name in WITH_JAVA and shutil.which("java") is None:
        pytest.skip("Java is not installed")
    run(["benches", name, *LONG[name].split()], tmp_path)


@pytest.mark.long
def test_the_demo_of_the_readme_agrees_with_itself(tmp_path: Path) -> None:
    """Its exit code says whether every comparison does."""
    run(["demo.flights"], tmp_path)
