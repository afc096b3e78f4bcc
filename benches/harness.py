"""What every bench shares: payloads, stores, the machine, the table and file of results; and
`python -m benches`, which runs them."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import uvloop
from rich.console import Console
from rich.table import Table

import pystore

if TYPE_CHECKING:
    from benches.table import Bench

ROOT = Path(__file__).resolve().parents[1]
#: Where the raw rounds go; PS_BENCH_RESULTS takes them elsewhere.
RESULTS = Path(os.environ.get("PS_BENCH_RESULTS", ROOT / "benches" / "results"))
#: Stores of the benches; PS_BENCH_DIR puts them on another disk.
SCRATCH = Path(os.environ.get("PS_BENCH_DIR", ROOT / "build" / "bench"))
#: A smaller run: PS_BENCH_SCALE=0.1 does a tenth of the work.
SCALE = float(os.environ.get("PS_BENCH_SCALE", "1"))
TOPIC = "bench"
QUEUES = 4

_console = Console(stderr=True, highlight=False)


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


def into_cache(path: Path) -> None:
    """Reads the log of a store into the page cache."""
    for file in sorted((path / "commitlog").iterdir()):
        with file.open("rb", buffering=0) as f:
            while f.read(16 << 20):
                pass


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


def _commit() -> str:
    """The commit that is measured; with `+` its code was changed since."""
    git = ["git", "-C", str(ROOT)]
    code = ["--", "*.c", "*.h", "*.def", "*.py"]
    try:
        words = [*git, "log", "-1", "--format=%h"]
        commit = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", *code], check=False).returncode
    except (OSError, subprocess.CalledProcessError):
        return "no commit"
    return commit + "+" * bool(changed)


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
        "pystore": f"{pystore.__version__} at {_commit()}",
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


def scheduled_s(thread: int) -> tuple[float, float]:
    """Seconds that a thread has run, and that it could have and others ran."""
    ran, waited, _ = Path(f"/proc/{thread}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


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


def resident_mb(pid: int) -> float:
    """Resident memory of a process: anonymous memory and pages of files."""
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


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


# ---- figures as they come ----


class Figures:
    """The rows of a run, by what they measure: each figure is a round of its row, and is shown at
    once. payload: of every row that says no other."""

    def __init__(self, payload: str = "") -> None:
        self._payload = payload
        self._rows: dict[tuple[str, str, str, str], Row] = {}

    def add(
        self, bench: str, mode: str, unit: str, value: float, *, payload: str | None = None,
        target: float | None = None, smaller: bool = True, **extra: float,
    ) -> None:  # fmt: skip
        payload = self._payload if payload is None else payload
        row = Row(bench, payload, mode, unit, [], target, smaller, dict(extra))
        self._rows.setdefault((bench, payload, mode, unit), row).rounds.append(value)
        _console.print(f"{mode}: {bench}: {figure(value)}{unit}")

    def note(self, mode: str, figures: Iterable[Figure]) -> None:
        """Adds figures of one mode."""
        for bench, unit, smaller, value in figures:
            self.add(bench, mode, unit, value, smaller=smaller)

    @property
    def rows(self) -> list[Row]:
        """Those that measure the same stand together, in the order in which they came first."""
        order = {bench: at for at, bench in enumerate(dict.fromkeys(r[0] for r in self._rows))}
        return sorted(self._rows.values(), key=lambda row: order[row.bench])


#: (what, unit, less is better, value)
Figure = tuple[str, str, bool, float]


def ratio(bench: str, mode: str, over: Row, under: Row, target: float | None = None) -> Row:
    """Returns a row of the ratios, round by round."""
    pairs = zip(over.rounds, under.rounds, strict=True)
    return Row(bench, over.payload, mode, "x", [a / b for a, b in pairs], target)


def side_by_side(rows: list[Row], peers: Sequence[str]) -> str:
    """The medians as a table in Markdown, a column a peer."""
    lines = ["| | " + " | ".join(peers) + " |", "|---" * (len(peers) + 1) + "|"]
    for what in dict.fromkeys(row.bench for row in rows):
        cells = []
        for name in peers:
            row = next((r for r in rows if (r.bench, r.mode) == (what, name)), None)
            cells.append(f"{figure(row.median)}{row.unit}".replace("  ", " ") if row else "")
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


# ---- processes of a bench's own ----


def command_of(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """Returns the command that calls a function in a process of its own, at ROOT. arguments: texts
    and numbers. What it returns is printed as JSON; a coroutine is run."""
    place = f"{function.__module__}:{function.__qualname__}"
    return [sys.executable, "-m", "benches", "--call", place, json.dumps(arguments)]


def _call(place: str, arguments: str) -> None:
    module, _, name = place.partition(":")
    returned = getattr(importlib.import_module(module), name)(*json.loads(arguments))
    if asyncio.iscoroutine(returned):
        returned = uvloop.run(returned)
    if returned is not None:
        print(json.dumps(returned), flush=True)


# ---- the command ----


class Given(argparse.Namespace):
    """What a bench was told. facts: of the machine, to which it adds."""

    facts: dict[str, str]


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def given_of(bench: Bench, about: str | None, words: Sequence[str]) -> Given:
    """Returns what a bench is told by its command line. Raises: SystemExit, its usage printed."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benches {bench.name}", description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--keep", type=Path, help="write the JSON there as well")
    for name, default in bench.options.items():
        flag, shown = f"--{name}", default
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, tuple):
            shown = ",".join(default)
            parser.add_argument(flag, type=_listed, default=default, help=f"otherwise {shown}")
        else:
            parser.add_argument(
                flag, type=type(default), default=default, help=f"otherwise {shown}"
            )
    given = parser.parse_args(words, Given())
    every = bench.options.get("only", ())
    if every and (unknown := set(given.only) - set(every)):
        parser.error(f"--only: {', '.join(unknown)}: not one of {', '.join(every)}")
    return given


def main(words: Sequence[str]) -> int:
    from benches.table import BENCHES

    if words[:1] == ["--call"]:
        _call(*words[1:])
        return 0
    if words[:1] == ["all"]:
        from benches import kept

        return kept.main(words[1:])
    bench = next((each for each in BENCHES if [each.name] == list(words[:1])), None)
    if bench is None:
        listed = "".join(f"{each.name:<14} {each.measures}\n" for each in BENCHES)
        print(f"{listed}\npython -m benches NAME --help: what one of them can be told"
              "\npython -m benches all: runs those whose results are kept")  # fmt: skip
        return 2 if words else 0
    module = importlib.import_module(f"benches.{bench.name}")
    given = given_of(bench, module.__doc__, words[1:])
    given.facts = machine()
    rows: list[Row] = []
    try:
        for row in module.bench(given):
            rows.append(row)
    except BaseException:
        if rows:  # nothing of what was measured is lost, and nothing of it kept
            save(rows, given.facts, bench.kind or bench.name)
        raise
    if bench.beside:
        print(side_by_side(rows, given.peers))
    else:
        show(rows, given.facts, bench.name)
    save(rows, given.facts, bench.kind or bench.name, given.keep)
    return 0


def written(head: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Returns a run as JSON, a line for each row: two runs are compared line by line."""
    lines = ",\n".join(map(json.dumps, rows))
    return f'{json.dumps(head)[:-1]}, "rows": [\n{lines}\n]}}\n'


def save(rows: list[Row], facts: dict[str, str], name: str, keep: Path | None = None) -> Path:
    """Writes every round of every row as JSON under RESULTS and prints where; keep: there, too."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = RESULTS / f"{name}-{stamp}.json"
    text = written(
        {"when": stamp, "scale": SCALE, "machine": facts},
        [{**asdict(row), "median": row.median} for row in rows],
    )
    path.write_text(text, encoding="utf-8")
    if keep is not None:
        keep.write_text(text, encoding="utf-8")
    print(f"raw rounds: {os.path.relpath(path)}")
    return path
