"""gRPC clients that are held in ReceiveMessage: memory and processor time of the server while
nothing happens, ours beside Apache's proxy in local mode.

    python -m benches.grpc_idle [--peers ours,5.3.3] [--clients 2000] [--seconds 60] [--keep FILE]

Each client (h2_clients.py) has a connection and a telemetry stream of its own, and asks again when
its poll of 20 s ends, as official consumers do. The figures are those of the whole process, of
service and broker. Memory is what is resident more than before the first client came.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from benches import harness
from benches.grpc_work import GrpcPeer, peer_of
from benches.h2_clients import hold
from benches.harness import ROOT, Row

console = Console(stderr=True, highlight=False)

#: Clients between two lines that say how many there are.
_STEP = 100
#: Seconds after which what the last ones have begun is done.
_SETTLING_S = 5


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _hold(address: str, count: int) -> None:
    """Holds so many clients until stdin ends, and says how many there are."""

    def progress(held: int) -> None:
        if held % _STEP == 0 or held == count:
            print(held, flush=True)

    lost = await hold(address, count, progress)
    done = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait({lost, done}, return_when=asyncio.FIRST_COMPLETED)
    if lost.done():
        print(f"lost: {lost.result()}", flush=True)
    os._exit(0)  # thousands of calls need not end one by one


def measure(peer: GrpcPeer, clients: int, seconds: float) -> tuple[float, float]:
    """KiB a client, and milliseconds of processor time a second of the server."""
    assert peer.broker is not None
    address, pid = peer.endpoint, peer.broker.pid
    before = resident_bytes(pid)
    words = [sys.executable, "-m", "benches.grpc_idle", "--hold", address, str(clients)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    ) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        held = 0
        while held < clients:
            line = holder.stdout.readline()
            if not line.strip().isdigit():
                raise SystemExit(f"{address} holds {held} clients of {clients}: {line}")
            held = int(line)
            console.print(f"{peer.name}: {held:,} clients are held")
        time.sleep(_SETTLING_S)
        began = peer.cpu_s()
        time.sleep(seconds)
        used = peer.cpu_s() - began
        grown = resident_bytes(pid) - before
        holder.stdin.close()
        if said := holder.stdout.read():
            raise SystemExit(f"{address} did not hold all of them: {said}")
    return grown / clients / 1024, used / seconds * 1000


def main() -> None:
    parser = harness.parser_of("grpc_idle")
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long they are watched")
    parser.add_argument("--peers", default="ours,5.3.3")
    parser.add_argument("--hold", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if given.hold:
        asyncio.run(_hold(given.hold[0], int(given.hold[1])))
        return
    rows, what = [], f"{given.clients:,} clients held in ReceiveMessage"
    for name in given.peers.split(","):
        with peer_of(name) as peer:
            peer.start_broker()
            memory, cpu = measure(peer, given.clients, given.seconds)
        of_each, of_all = f"{what}: memory of each", f"{what}: processor time a second"
        rows.append(Row(of_each, "", name, " KiB", [memory], smaller=True))
        rows.append(Row(of_all, "", name, " ms", [cpu], smaller=True))
    facts = harness.machine()
    harness.report(rows, facts, "grpc_idle", "idle gRPC clients", given.keep)


if __name__ == "__main__":
    main()
