"""Attacks a broker, a name server and the gRPC port, then the two ports of a proxy before them,
with access control off and on:

    python -m tests.attack [--only NAME,NAME] [--seed N] [--at broker|proxy|names|tiers|both]
                           [--access on|off|both]

Each attack comes from strangers, is bounded in count and time, and ends. Each meets a process of
its own, that gets no more than 512 MB of memory (RLIMIT_DATA). After each the table says how long
the loop served nobody else (processor time), what the memory was, and what was logged.
Then, `names`: brokers, slaves, proxies and clients meet a stranger at their name server
(hostile.py, met.py); they stay, log no traceback, and stop in time. And `tiers`: tools, readers and
a broker meet cold tiers that a stranger has written into (tiers.py); what they say is named. Exit
code 1: a process died, or a bound was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.table import Table

from tests.attack.attacks import ATTACKS, Target
from tests.attack.hostile import Hostile
from tests.attack.lite import LITE_ATTACKS
from tests.attack.met import WHATS
from tests.attack.tiers import STRANGE

#: By their names.
ALL = ATTACKS | LITE_ATTACKS
ROOT = Path(__file__).resolve().parents[2]
#: ms of processor time, MB of anonymous memory, bytes of log: of one attack.
HELD_MS, PEAK_MB, LOG_BYTES = 50.0, 512.0, 1 << 20
#: Bytes that the stack of a thread may have: it counts as memory, whether it is used or not.
STACK = 1 << 20
#: Strange tiers of a kind.
TIERS = 12
#: Seconds that a process meets a stranger, and that its stop may take.
MEETS_S, STOP_S = 6.0, 15.0


def limit_memory() -> None:
    """Of the process that is about to begin."""
    resource.setrlimit(resource.RLIMIT_STACK, (STACK, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    resource.setrlimit(resource.RLIMIT_DATA, (int(PEAK_MB) << 20, int(PEAK_MB) << 20))


def words_of(at: str, access: bool) -> list[str]:
    """Of the process of served.py."""
    words = ["tests.attack.served", *(["--access"] if access else [])]
    return [*words, *(["--proxy"] if at == "proxy" else [])]


class Served:
    """The process of a module of this folder. module: with its arguments."""

    def __init__(self, module: Sequence[str], log: IO[str]) -> None:
        words = [sys.executable, "-m", *module]
        self.process = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            preexec_fn=limit_memory,
        )  # fmt: skip
        self.ports: dict[str, int] = json.loads(self._line() or "{}")

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def told(self) -> dict[str, float] | None:
        """Since the last time; None: it is dead."""
        try:
            assert self.process.stdin is not None
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            found: dict[str, float] = json.loads(self._line() or "{}")
        except (OSError, ValueError):
            return None
        return found

    def stop(self) -> None:
        with contextlib.suppress(BrokenPipeError), self.process:  # closes its pipes, and waits
            pass
        self.process.wait()


def run(names: Sequence[str], at: str, access: bool, seed: int) -> list[dict[str, Any]]:
    """A row an attack. Each meets a process of its own."""
    rows = []
    for name in names:
        with tempfile.NamedTemporaryFile("w+") as log:
            served = Served(words_of(at, access), log)
            served.told()
            began = time.monotonic()
            ALL[name](Target(served.ports, random.Random(seed)))
            took = time.monotonic() - began
            told = served.told()
            size = Path(log.name).stat().st_size
            row: dict[str, Any] = {"attack": name, "at": at, "access": access}
            row |= {"seconds": took, "log": size}
            row |= told or {"held_ms": 0.0, "peak_mb": 0.0}
            row["broken"] = broken(row, told is None)
            rows.append(row)
            held, peak = round(row["held_ms"]), round(row["peak_mb"])
            print(f"{name} at the {at}: {held} ms, {peak} MB", file=sys.stderr)
            served.stop()
    return rows


def meet(what: str, seed: int, seconds: float) -> dict[str, Any]:
    """A row: what becomes of a broker, a slave, a proxy or clients whose name server is a stranger,
    and everybody that he names."""
    with tempfile.NamedTemporaryFile("w+") as log, Hostile(seed) as stranger:
        served = Served(["tests.attack.met", stranger.address, what], log)
        served.told()
        time.sleep(seconds)
        told = served.told()
        began = time.monotonic()
        served.stop()
        text = Path(log.name).read_text(errors="replace")
        row: dict[str, Any] = {"attack": what, "at": "the names", "access": "guarded" in what}
        row |= {"seconds": time.monotonic() - began, "log": len(text)}
        row |= told or {"held_ms": 0.0, "peak_mb": 0.0}
        row["broken"] = broken(row, told is None or served.process.returncode != 0)
        if "Traceback" in text:
            row["broken"] += " a traceback"
        if not stranger.asked:
            row["broken"] += " nothing was asked of the stranger"
        if row["seconds"] > STOP_S:
            row["broken"] += f" {row['seconds']:.0f} s for its stop"
        if row["broken"]:
            row["text"] = text
        print(f"{what} at the names: {round(row['held_ms'])} ms, {round(row['peak_mb'])} MB,"
              f" {sum(stranger.asked.values())} asked", file=sys.stderr)  # fmt: skip
        return row


def tier(what: str, seed: int, count: int) -> dict[str, Any]:
    """A row: what becomes of whoever reads, checks, copies, mends or writes so many strange tiers.
    All of it is in threads of tools and of the tier, so that no loop is held."""
    words = [sys.executable, "-m", "tests.attack.tiers", what, str(seed), str(count)]
    began = time.monotonic()
    done = subprocess.run(words, cwd=ROOT, text=True, capture_output=True, check=False,
                          preexec_fn=limit_memory)  # fmt: skip
    row: dict[str, Any] = {"attack": what, "at": "tiers", "access": False, "held_ms": 0.0}
    row |= {"peak_mb": float(done.stdout or 0), "log": len(done.stderr)}
    row["broken"] = broken(row, done.returncode != 0)
    if done.stderr:
        row |= {"broken": f"{row['broken']} not named, or slow", "text": done.stderr}
    took = time.monotonic() - began
    print(f"{what} in {count} tiers: {took:.0f} s, {row['peak_mb']:.0f} MB", file=sys.stderr)
    return row


def broken(row: dict[str, Any], died: bool) -> str:
    """Which bound was, if any."""
    if died:
        return "the process died"
    bounds = (("held_ms", HELD_MS, "ms held"), ("peak_mb", PEAK_MB, "MB"),
              ("log", LOG_BYTES, "bytes of log"))  # fmt: skip
    found = [f"{row[key]:.0f} {unit}" for key, most, unit in bounds if row[key] > most]
    return ", ".join(found)


def shown(rows: Sequence[dict[str, Any]]) -> Table:
    heads = ("attack", "at", "access", "held, ms", "memory, MB", "log, bytes", "broken")
    table = Table(*heads)
    for row in rows:
        table.add_row(
            row["attack"], row["at"], "on" if row["access"] else "off", f"{row['held_ms']:.1f}",
            f"{row['peak_mb']:.0f}", str(row["log"]), row["broken"],
        )  # fmt: skip
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", default=",".join(ALL), help="names, with commas between them")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--access", choices=("on", "off", "both"), default="both")
    at = ("broker", "proxy", "names", "tiers", "both")
    parser.add_argument("--at", choices=at, default="both")
    given = parser.parse_args()
    print(f"seed {given.seed}")
    kinds = {"on": [True], "off": [False], "both": [False, True]}[given.access]
    places = {"both": ["broker", "proxy"], "names": [], "tiers": []}.get(given.at, [given.at])
    names = given.only.split(",")
    rows = [row for at in places for access in kinds for row in run(names, at, access, given.seed)]
    if given.at in ("names", "both"):
        rows += [meet(what, given.seed, MEETS_S) for what in WHATS]
    if given.at in ("tiers", "both"):
        rows += [tier(what, given.seed, TIERS) for what in STRANGE]
    Console().print(shown(rows))
    for row in rows:
        print(row.get("text", "")[-5000:], file=sys.stderr)
    return 1 if any(row["broken"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
