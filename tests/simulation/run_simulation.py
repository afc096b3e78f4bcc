"""Very many runs of one kind: `make model-ha MODEL_SEEDS=1000000`, `ARGS="--kind real"`,
`ARGS="--kind fleet --seconds 604800" MODEL_SEEDS=2`.

Prints the first seed, progress, and each seed that fails: keep it in test_simulation.py."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from virtual_scenes import KINDS
from virtual_time import Violation

#: Seeds that a worker runs before it says how they ended.
_PIECES = {"model": 500, "real": 50, "fleet": 1}
#: Seconds between two lines of progress.
_TELL_S = 20.0


def piece(kind: str, seeds: range, seconds: float | None) -> tuple[Counter[str], list[str]]:
    """What was counted, and what failed."""
    counts: Counter[str] = Counter()
    failed = []
    for seed in seeds:
        try:
            groups = KINDS[kind](seed, *([seconds] if seconds else []))
        except Violation as found:
            failed.append(f"seed {seed}: {found}")
            continue
        for group in groups:
            counts["masters"] += len(group.masters)
            counts["acknowledged"] += len(group.acknowledged)
            counts["faults"] += sum(group.faults.values())
            counts["virtual seconds"] += round(group.events.now / len(groups))
            counts["events"] += group.events.steps // len(groups)
    return counts, failed


def pieces(kind: str, first: int, count: int) -> Iterator[range]:
    for start in range(first, first + count, _PIECES[kind]):
        yield range(start, min(start + _PIECES[kind], first + count))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=list(KINDS), default="model")
    parser.add_argument("--seeds", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--seconds", type=float, help="of virtual time with faults, each")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args()
    print(f"{given.kind}: {given.seeds:,} seeds from {given.first}", flush=True)
    began = told = time.monotonic()
    done, failures, counts = 0, 0, Counter[str]()
    with ProcessPoolExecutor(given.jobs) as pool:
        asked = list(pieces(given.kind, given.first, given.seeds))
        kinds, seconds = [given.kind] * len(asked), [given.seconds] * len(asked)
        for seeds, (more, failed) in zip(
            asked, pool.map(piece, kinds, asked, seconds), strict=True
        ):
            done, failures = done + len(seeds), failures + len(failed)
            counts += more
            for each in failed:
                print(each, flush=True)
            if time.monotonic() - told >= _TELL_S or done == given.seeds:
                told = time.monotonic()
                shown = ", ".join(f"{count:,} {name}" for name, count in counts.items())
                print(f"{done:,} seeds in {told - began:,.0f} s: {shown}; {failures} failed",
                      flush=True)  # fmt: skip
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
