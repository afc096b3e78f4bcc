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
import time
from pathlib import Path

import pytest

from benches import harness, kept, report, table

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


def test_every_result_that_is_kept_has_its_run_and_its_section() -> None:
    kinds = {each.kind for each in kept.KEPT}
    files = {path.stem.partition("-")[2] for path in (BENCHES / "results").glob("committed-*.json")}
    assert (files - kinds, kinds ^ set(report.SECTIONS)) == (set(), set())
    for each in kept.KEPT:
        name, *words = each.run.split()
        bench = next(bench for bench in table.BENCHES if bench.name == name)
        harness.given_of(bench, None, words)  # an option that it does not know ends it


def test_of_kinds_that_run_one_that_fails_or_hangs_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kept, "SCRATCH", tmp_path)
    monkeypatch.setattr(kept, "RESULTS", tmp_path)
    monkeypatch.setattr(kept, "words_of", lambda each: ["sh", "-c", each.run])
    monkeypatch.setattr(kept, "limit_of", lambda each: 60 if each.seconds else 1)
    os.mkfifo(tmp_path / "held")
    held = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    hangs = f"exec 9> {tmp_path}/held; sleep 1000 & wait"
    kinds = [kept.Kept("fails", "exit 3", 5), kept.Kept("hangs", hangs, 0),
             kept.Kept("slow", "exit 0", 500), kept.Kept("works", "exit 0", 5)]  # fmt: skip
    assert kept.run_all(kinds, minutes=5) == ["fails", "hangs", "slow"]
    until = time.monotonic() + 60
    while not is_closed(held):
        assert time.monotonic() < until, "what it has started still runs"
        time.sleep(0.01)
    os.close(held)


def is_closed(pipe: int) -> bool:
    """Whether nobody holds the other end of a pipe."""
    try:
        return os.read(pipe, 1) == b""
    except BlockingIOError:
        return False


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
