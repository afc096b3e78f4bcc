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

ROOT = Path(__file__).resolve().parents[2]
BENCHES = ROOT / "benches"
#: Arguments that make each program a matter of seconds.
QUICK = {
    "audit": "--count 2000",
    "dedup": "--count 2000",
    "embedded": "--rounds 1 --seconds 0.2",
    "many_topics": "--topics 200 --seconds 1 --window 1 --offsets 2000",
    "namesrv": "--peers ours --brokers 4 --topics 200 --seconds 0.3",
    "peers": "1",
    "sends": "--rounds 1 --count 200",
    "transactions": "--count 1000 --peers=",
}
LONG = {
    "broker": "--peers ours --only start,send,pop --warm 1 --measure 1",
    "client": "--rounds 1 --seconds 0.3",
    "clients": "--rounds 1 --seconds 0.3 --only rocketmq",
    "cold": "--rounds 1 --seconds 0.3 --mb 20",
    "failover": "--groups etcd --rounds 1 --seconds 0.3",
    "formats": "--rounds 1 --only queues",
    "grpc_idle": "--clients 5 --seconds 1 --peers ours",
    "grpc_work": "--peers ours --rounds 1 --count 300",
    "jobs": "--rounds 1 --scale 0.002 --only archive,audits",
    "lite": "--rounds 1 --count 200 --topics 200 --only sends,subscribe,delivery,memory,restart",
    "pops": "--rounds 1 --count 400 --only plain,together",
    "replication": "--only async,one,catch-up,start --rounds 1 --seconds 0.3 --gb 0.01",
    "signed": "--rounds 1 --seconds 0.3 --count 1000",
    "timer_peers": "--peers ours --rounds 1 --rate 200 --seconds 1 --together 500",
    "timers": "--rate 200 --seconds 1 --together 500",
}
#: Files of `make bench` that start Spark.
SLOW = ("test_spark",)
#: A JVM is started for these.
WITH_JAVA = {
    "broker", "client", "failover", "formats", "grpc_work", "jobs", "replication", "timer_peers",
}  # fmt: skip
ENVIRONMENT = {"PS_BENCH_SCALE": "0.002", "PS_BENCH_OPEN_GB": "0.01"}


def run(words: list[str], folder: Path) -> None:
    folders = {"PS_BENCH_DIR": str(folder), "PS_BENCH_RESULTS": str(folder)}
    # pytest-benchmark measures nothing in a process that looks like a worker of xdist.
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT, env={**outer, **ENVIRONMENT, **folders},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_every_program_is_started_here() -> None:
    programs = {path.stem for path in BENCHES.glob("*.py") if "__main__" in path.read_text("utf-8")}
    assert programs - {"report"} == {*QUICK, *LONG}  # report measures nothing: tests/docs


@pytest.mark.parametrize("name", QUICK)
def test_a_program_starts_works_and_ends(name: str, tmp_path: Path) -> None:
    run([f"benches.{name}", *QUICK[name].split()], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_a_long_program_starts_works_and_ends(name: str, tmp_path: Path) -> None:
    if name in WITH_JAVA and shutil.which("java") is None:
        pytest.skip("Java is not installed")
    run([f"benches.{name}", *LONG[name].split()], tmp_path)


@pytest.mark.long
def test_the_benches_of_the_store_start_work_and_end(tmp_path: Path) -> None:
    files = [str(path) for path in sorted(BENCHES.glob("test_*.py")) if path.stem not in SLOW]
    run(["pytest", "-q", "-p", "no:cacheprovider", "--benchmark-only", *files], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", SLOW)
def test_a_long_bench_of_the_store_starts_works_and_ends(name: str, tmp_path: Path) -> None:
    run(["pytest", "-q", "--benchmark-only", str(BENCHES / f"{name}.py")], tmp_path)


@pytest.mark.long
def test_the_demo_of_the_readme_agrees_with_itself(tmp_path: Path) -> None:
    """Its exit code says whether every comparison does."""
    run(["demo.flights"], tmp_path)
