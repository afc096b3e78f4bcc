"""Very many short runs of the model of failover: `make model-ha MODEL_SEEDS=1000000`.

Prints the first seed, progress, and each seed that fails: keep it in test_failover_model.py."""

from __future__ import annotations

import argparse
import os
import random
import time
from concurrent.futures import ProcessPoolExecutor

from failover_model import Violation, World

#: Runs that a worker makes before it says how they ended.
_PIECE = 2000


def piece(first: int, count: int, seconds: float) -> tuple[int, int, list[str]]:
    """Reigns, acknowledged messages, and what failed."""
    reigns, acknowledged, failed = 0, 0, []
    for seed in range(first, first + count):
        world = World(seed)
        try:
            world.run(seconds)
        except Violation as found:
            failed.append(f"seed {seed}: {found}")
        reigns += len(world.reigns)
        acknowledged += len(world.acknowledged)
    return reigns, acknowledged, failed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--seconds", type=float, default=45.0, help="of virtual time, each")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args()
    print(f"seeds from {given.first}", flush=True)
    began, done, reigns, acknowledged, failed = time.monotonic(), 0, 0, 0, 0
    starts = range(given.first, given.first + given.seeds, _PIECE)
    counts = [min(_PIECE, given.first + given.seeds - start) for start in starts]
    with ProcessPoolExecutor(given.jobs) as pool:
        seconds = [given.seconds] * len(counts)
        for count, (r, a, bad) in zip(
            counts, pool.map(piece, starts, counts, seconds), strict=True
        ):
            done, reigns, acknowledged = done + count, reigns + r, acknowledged + a
            failed += len(bad)
            print(*bad, sep="\n" if bad else "", end="\n" if bad else "", flush=True)
            if done % (10 * _PIECE) == 0 or done == given.seeds:
                print(
                    f"{done:,} seeds of {given.seconds:g} s, {time.monotonic() - began:,.0f} s:"
                    f" {reigns:,} reigns, {acknowledged:,} acknowledged, {failed} failed",
                    flush=True,
                )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
