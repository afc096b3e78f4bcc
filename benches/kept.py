"""`python -m benches all`: makes docs/benchmarks.md anew, from runs of one commit on one machine.

    python -m benches all [KIND ...] [--minutes 55] [--plan]

Each kind is a run of a bench with the arguments of KEPT, one after the other, on a machine that has
nothing else to do. What ends well is kept as benches/results/committed-KIND.json; a run that fails
or takes far too long is ended, leaves what was kept before, and the next one goes on. Then the page
is written. With PS_BENCH_RESULTS=FOLDER all of it goes there, the page too.

--minutes: leaves out what would end later. --plan: prints what would run, and how long each takes.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from benches.harness import RESULTS, ROOT, SCALE, SCRATCH

__all__ = ["KEPT", "Kept", "main"]


class Kept(NamedTuple):
    """A kind of results that is kept. run: the words after `python -m benches`. seconds: that it
    takes on two quiet cores. scale: PS_BENCH_SCALE of it."""

    kind: str
    run: str
    seconds: int
    scale: float = 1.0

    @property
    def command(self) -> str:
        scale = "" if self.scale == 1 else f"PS_BENCH_SCALE={self.scale} "
        return f"{scale}python -m benches {self.run}"


#: In the order in which they run: when time runs out, the first are there.
KEPT = (
    Kept("broker", "broker --peers ours,5.3.3 --only start,idle,send,batch,consume,latency,e2e,"
         "many,pop --warm 7 --measure 5", 480),
    Kept("transactions", "transactions --peers ours,5.3.3 --rounds 2 --warm 16 --measure 8"
         " --count 200000", 165),
    Kept("grpc", "grpc_work --only send,take,tx,start --rounds 2 --count 40000", 130),
    Kept("peers", "peers --rounds 4", 62),
    Kept("replication", "replication --rounds 2 --seconds 3", 165),
    Kept("store", "store --only append,put,sync,read,sql,recovery,memory,levels", 100, 0.3),
    Kept("client", "client --rounds 1 --seconds 3", 130),
    Kept("pops", "pops --ways pop --peers ours,5.3.3 --rounds 1"
         " --only plain,sql,lost,synced,together", 175),
    Kept("lite", "lite --rounds 1 --peers ours,5.5.0"
         " --only sends,subscribe,delivery,memory,restart", 120),
    Kept("lite_rocksdb", "lite --rounds 1 --peers ours,5.5.0-rocksdb --topics 100000"
         " --only memory,sends,subscribe,delivery", 200),
    Kept("tier", "tier --rounds 2 --mb 1000 --turns 8 --seconds 2", 200),
    Kept("tier_peers", "tier_peers --rounds 1", 90),
    Kept("tier_reads", "tier_reads --rounds 2 --mb 500 --hours 8760", 220),
    Kept("cold_reads", "cold_reads --rounds 2 --mb 500 --seconds 6", 80),
    Kept("cold", "cold --rounds 2 --mb 1000 --seconds 5", 55),
    Kept("timers", "timers", 23),
    Kept("signed", "signed --rounds 2", 40),
    Kept("dedup", "dedup", 20),
    Kept("audit", "audit", 10),
    Kept("failover", "failover --only kill,move --rounds 3", 130),
    Kept("grpc_real", "grpc_work --only real --rounds 2 --count 20000", 115),
    Kept("grpc_synced", "grpc_work --only real --rounds 1 --count 20000 --synced", 90),
    Kept("pops_grpc", "pops --ways take,send --rounds 1"
         " --only plain,sql,lost,ordered,guarded,together", 125),
    Kept("grpc_idle", "grpc_idle --seconds 20", 80),
    Kept("namesrv", "namesrv --seconds 10", 70),
    Kept("spark", "spark", 80, 0.3),
    Kept("formats", "formats --rounds 2", 110, 0.4),
    Kept("clients", "clients --rounds 2 --seconds 2", 115),
    Kept("iceberg", "iceberg --rounds 2", 100),
    Kept("jobs", "jobs --rounds 2 --only archive,audits", 110, 0.3),
)  # fmt: skip


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a bench and everything that it started, which is its session."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def words_of(kept: Kept) -> list[str]:
    keep = RESULTS / f"committed-{kept.kind}.json"
    return [sys.executable, "-m", "benches", *shlex.split(kept.run), "--keep", str(keep)]


def limit_of(kept: Kept) -> float:
    """Returns after how many seconds it is ended."""
    return 1.5 * kept.seconds + 90


def run(kept: Kept, limit_s: float) -> int | None:
    """Returns the exit code; None: it took longer than so many seconds."""
    folder, logs = SCRATCH / f"kept-{kept.kind}", ROOT / "build" / "bench-all"
    logs.mkdir(parents=True, exist_ok=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    env = os.environ | {"PS_BENCH_DIR": str(folder), "PS_BENCH_SCALE": str(SCALE * kept.scale)}
    with (logs / f"{kept.kind}.log").open("wb") as log:
        process = subprocess.Popen(
            words_of(kept), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, env=env,
            start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end(process)
            shutil.rmtree(folder, ignore_errors=True)


def show_plan(kinds: Sequence[Kept]) -> None:
    total = 0
    for kept in kinds:
        total += kept.seconds
        print(f"{kept.kind:<14} {kept.seconds:>4} s, done after {total / 60:4.1f} min"
              f"   {kept.command}")  # fmt: skip


def run_all(kinds: Sequence[Kept], minutes: float) -> list[str]:
    """Runs them; returns the kinds that were not kept."""
    missing, over = [], time.monotonic() + minutes * 60
    for kept in kinds:
        left = over - time.monotonic()
        if kept.seconds > left:
            print(f"{kept.kind}: left out, it takes {kept.seconds} s", flush=True)
            missing.append(kept.kind)
            continue
        print(f"{time.strftime('%H:%M:%S')} {kept.kind}: load {os.getloadavg()[0]:.2f}",
              end="", flush=True)  # fmt: skip
        began = time.monotonic()
        code = run(kept, min(left, limit_of(kept)))
        took = time.monotonic() - began
        said = "ended, it took too long" if code is None else f"exit code {code}"
        print(f", {took:.0f} s of about {kept.seconds}, {said}", flush=True)
        if code != 0:
            missing.append(kept.kind)
    return missing


def main(words: Sequence[str]) -> int:
    """Returns 1 when a kind was not kept."""
    parser = argparse.ArgumentParser(
        prog="python -m benches all", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--plan", action="store_true")
    given = parser.parse_args(words)
    if unknown := set(given.kinds) - {kept.kind for kept in KEPT}:
        parser.error(f"{', '.join(sorted(unknown))}: not one of "
                     f"{', '.join(kept.kind for kept in KEPT)}")  # fmt: skip
    kinds = [kept for kept in KEPT if not given.kinds or kept.kind in given.kinds]
    if given.plan:
        show_plan(kinds)
        return 0
    missing = run_all(kinds, given.minutes)
    from benches import report

    print(f"wrote {report.write()}")
    if missing:
        print(f"not kept: {', '.join(missing)}; see build/bench-all", file=sys.stderr)
    return bool(missing)
