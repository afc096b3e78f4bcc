"""gRPC clients that are held in ReceiveMessage: memory and processor time of the server while
nothing happens, ours beside Apache's proxy in local mode.

    python -m benches grpc_idle [--peers ours,5.3.3] [--clients 2000] [--seconds 60] [--keep FILE]

Each client (h2_clients.py) has a connection and a telemetry stream of its own, and asks again when
its poll of 20 s ends, as official consumers do. The figures are those of the whole process, of
service and broker. Memory is what is resident more than before the first client came.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import time

from rich.console import Console

from benches.grpc_work import GrpcPeer, peer_of
from benches.h2_clients import hold
from benches.harness import ROOT, Figures, Given, Row, command_of, resident_mb

console = Console(stderr=True, highlight=False)

#: Clients between two lines that say how many there are.
_STEP = 100
#: Seconds after which what the last ones have begun is done.
_SETTLING_S = 5


def hold_all(address: str, count: int) -> None:
    """Holds so many clients until stdin ends, and says how many there are."""
    asyncio.run(_hold_all(address, count))


async def _hold_all(address: str, count: int) -> None:
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
    before = resident_mb(pid)
    with subprocess.Popen(
        command_of(hold_all, address, clients),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True,
    ) as holder:  # fmt: skip
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
        grown = resident_mb(pid) - before
        holder.stdin.close()
        if said := holder.stdout.read():
            raise SystemExit(f"{address} did not hold all of them: {said}")
    return grown / clients * 1024, used / seconds * 1000


def bench(given: Given) -> list[Row]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # of the processes below it, too
    figures, what = Figures(), f"{given.clients:,} clients held in ReceiveMessage"
    for name in given.peers:
        with peer_of(name) as peer:
            peer.start_broker()
            memory, cpu = measure(peer, given.clients, given.seconds)
        figures.add(f"{what}: memory of each", name, " KiB", memory)
        figures.add(f"{what}: processor time a second", name, " ms", cpu)
    return figures.rows
