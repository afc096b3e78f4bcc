"""What every bench shares: payloads, stores, the machine, the table and file of results."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

import pystore

ROOT = Path(__file__).resolve().parents[1]
#: Where the raw rounds go; PS_BENCH_RESULTS takes them elsewhere.
RESULTS = Path(os.environ.get("PS_BENCH_RESULTS", ROOT / "benches" / "results"))
#: Stores of the benches; PS_BENCH_DIR puts them on another disk.
SCRATCH = Path(os.environ.get("PS_BENCH_DIR", ROOT / "build" / "bench"))
#: A smaller run: PS_BENCH_SCALE=0.1 does a tenth of the work.
SCALE = float(os.environ.get("PS_BENCH_SCALE", "1"))
TOPIC = "bench"
QUEUES = 4


@dataclass
class Row:
    """One figure: what, of which payload, in which mode, the rate of each round.

    target: the rate aimed at, None when there is none; smaller: less is better.
    """

    bench: str
    payload: str
    mode: str
    unit: str
    rounds: list[float]
    target: float | None = None
    smaller: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return median(self.rounds)


# ---- payloads and stores ----


def scaled(count: int) -> int:
    return max(1000, int(count * SCALE))


def bodies(count: int, size: int) -> list[bytes]:
    """`count` different bodies of `size` bytes."""
    text = bytes(range(32, 127)) * (size // 95 + 2)
    return [b"%08d" % (i % 100_000_000) + text[i % 95 : i % 95 + size - 8] for i in range(count)]


def flat(values: list[bytes]) -> tuple[bytes, Any]:
    """The same as one buffer with offsets, which a store takes without looking at each body."""
    import numpy as np

    lengths = np.fromiter((len(v) for v in values), "int64", len(values))
    return b"".join(values), np.concatenate([[0], lengths.cumsum()]).astype("int64")


def fresh(name: str) -> Path:
    """A path below SCRATCH where nothing lies."""
    path = SCRATCH / name
    shutil.rmtree(path, ignore_errors=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def new_store(name: str, **settings: Any) -> Iterator[pystore.Store]:
    """An open store with its four queues made; deleted afterwards."""
    path = fresh(name)
    try:
        with pystore.open(path, **settings) as store:
            store.put_many(TOPIC, [b"first"] * QUEUES, queues=range(QUEUES))
            store.refresh()
            yield store
    finally:
        shutil.rmtree(path, ignore_errors=True)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# ---- the machine ----


def _first(path: str, start: str) -> str:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    return next((x.partition(":")[2].strip() for x in lines if x.startswith(start)), "unknown")


def _file_system(path: Path) -> str:
    words = ["findmnt", "-n", "-o", "FSTYPE", "-T", str(path)]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def machine() -> dict[str, str]:
    """What a figure means nothing without."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    return {
        "cpu": f"{os.cpu_count()} cores, {_first('/proc/cpuinfo', 'model name')}",
        "memory": _first("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "file system": _file_system(SCRATCH),
        "python": platform.python_version(),
        "pystore": pystore.__version__,
        "crc": pystore.native.ffi.string(pystore.native.lib.ps_crc32_name()).decode(),
        "lmdb": _version("lmdb"),
        "pyarrow": _version("pyarrow"),
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


# ---- results ----


def figure(value: float) -> str:
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.2f}{letter}"
    return f"{value:.3f} " if abs(value) < 10 else f"{value:.1f} "


def cpu_s(pid: int) -> float:
    """Processor time of a whole process so far, to the nanosecond: /proc counts in hundredths of a
    second. The number of its clock is made as clock_getcpuclockid makes it."""
    return time.clock_gettime((~pid << 3) | 2)


def family_cpu_s() -> float:
    """Processor time of this process and all below it: the virtual machine, daemons, workers.

    Beside wall time, since on a machine that others use only this says what the work itself costs.
    """
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        spent[pid] = sum(map(int, fields[11:15])) / tick  # with children that have ended
    mine = {os.getpid()}
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in mine} - mine
        mine |= more
        grown = bool(more)
    return sum(spent[pid] for pid in mine if pid in spent)


def anonymous_mb(pid: int) -> float:
    """Anonymous memory of a process."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    line = next(each for each in text.splitlines() if each.startswith("Anonymous:"))
    return int(line.split()[1]) / 1024


def show(rows: list[Row], facts: dict[str, str], title: str) -> None:
    """The table of a run, with the machine above it."""
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    console.print(f"\n[bold]{title}[/]: " + "; ".join(f"{k} {v}" for k, v in facts.items()))
    table = Table("bench", "payload", "mode", "median", "best to worst", "target", "")
    for row in rows:
        order = sorted(row.rounds, reverse=not row.smaller)
        mark = ""
        if row.target is not None:
            met = row.median <= row.target if row.smaller else row.median >= row.target
            mark = "[green]met[/]" if met else "[yellow]short[/]"
        table.add_row(
            row.bench,
            row.payload,
            row.mode,
            f"{figure(row.median)}{row.unit}",
            f"{figure(order[0])} to {figure(order[-1])}",
            "" if row.target is None else f"{figure(row.target)}{row.unit}",
            mark,
        )
    console.print(table)


def parser_of(name: str) -> argparse.ArgumentParser:
    """The arguments of ``python -m benches.name``, of which each bench has --keep."""
    parser = argparse.ArgumentParser(prog=f"python -m benches.{name}")
    parser.add_argument("--keep", type=Path, help="write the JSON there as well")
    return parser


def before_and_after(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, dict[str, Path]]:
    """The arguments of a bench that compares this tree with an earlier one, and the trees."""
    parser.add_argument("--before", type=Path, help="a built checkout of an earlier commit")
    given = parser.parse_args()
    return given, {"before": given.before, "after": ROOT} if given.before else {"after": ROOT}


def report(
    rows: list[Row], facts: dict[str, str], name: str, title: str, keep: Path | None = None
) -> None:
    """Shows a run and saves it."""
    show(rows, facts, title)
    save(rows, facts, name, keep)


def save(rows: list[Row], facts: dict[str, str], name: str, keep: Path | None = None) -> Path:
    """Writes every round of every row as JSON under RESULTS and prints where; keep: there, too."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = RESULTS / f"{name}-{stamp}.json"
    whole = {
        "when": stamp,
        "scale": SCALE,
        "machine": facts,
        "rows": [{**asdict(row), "median": row.median} for row in rows],
    }
    text = json.dumps(whole, indent=1) + "\n"
    path.write_text(text, encoding="utf-8")
    if keep is not None:
        keep.write_text(text, encoding="utf-8")
    print(f"raw rounds: {os.path.relpath(path)}")
    return path
