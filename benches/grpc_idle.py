"""gRPC clients that are held in ReceiveMessage: memory and processor time of the server while
nothing happens, ours beside Apache's proxy in local mode.

    python -m benches.grpc_idle [--peers ours,5.3.3] [--clients 2000] [--seconds 60] [--keep FILE]

Each client has a connection and a telemetry stream of its own, and asks again when its poll of 20 s
ends, as official consumers do. The figures are those of the whole process, of service and broker.
Memory is what is resident more than before the first client came.
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
from typing import Any

import grpc

from benches import harness
from benches.grpc_work import GrpcPeer, peer_of
from benches.harness import ROOT, Row
from broker.grpc.schema import METHODS, SERVICE, pb

TOPIC, GROUP, POLL_S = "bench", "idle", 20
#: Clients of one process that holds them: Python's own cost must not be what is measured.
OF_A_PROCESS = 500


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _client(address: str, number: int, ready: asyncio.Semaphore) -> None:
    """Is held for ever."""
    headers = (
        ("x-mq-client-id", f"idle-{os.getpid()}-{number}"), ("x-mq-language", "PYTHON"),
        ("x-mq-client-version", "5.1.2"),
    )  # fmt: skip
    topic = pb.Resource(name=TOPIC)
    every = pb.FilterExpression(type=pb.FilterType.TAG, expression="*")
    settings = pb.Settings(
        client_type=pb.ClientType.SIMPLE_CONSUMER,
        subscription=pb.Subscription(
            group=pb.Resource(name=GROUP),
            subscriptions=[pb.SubscriptionEntry(topic=topic, expression=every)],
        ),
    )
    poll = METHODS["ReceiveMessage"].request(
        group=pb.Resource(name=GROUP), message_queue=pb.MessageQueue(topic=topic),
        filter_expression=every, batch_size=32, invisible_duration=pb.Duration(seconds=30),
        long_polling_timeout=pb.Duration(seconds=POLL_S),
    ).SerializeToString()  # fmt: skip
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        stream = channel.stream_stream(f"/{SERVICE}/Telemetry")(metadata=headers)
        await stream.write(pb.TelemetryCommand(settings=settings).SerializeToString())
        reply = pb.TelemetryCommand.FromString(await stream.read())
        assert reply.status.code == pb.Code.OK, reply.status
        receive = channel.unary_stream(f"/{SERVICE}/ReceiveMessage")
        ready.release()
        while True:
            async for _ in receive(poll, metadata=headers, timeout=POLL_S + 10):
                pass


async def hold(address: str, count: int) -> None:
    """Holds so many clients until stdin ends; says when all have their settings."""
    ready = asyncio.Semaphore(0)
    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(_client(address, number, ready)))
        if number % 50 == 49:
            await asyncio.sleep(0.1)
    waiting: asyncio.Future[Any] = asyncio.gather(*tasks)
    for _ in range(count):
        waiter: asyncio.Future[Any] = asyncio.ensure_future(ready.acquire())
        await asyncio.wait({waiter, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            waiting.result()
    print("held", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)  # thousands of calls need not end one by one


def measure(peer: GrpcPeer, clients: int, seconds: float) -> tuple[float, float]:
    """KiB a client, and milliseconds of processor time a second of the server."""
    assert peer.broker is not None
    address, pid = peer.endpoint, peer.broker.pid
    before = resident_bytes(pid)
    holders: list[Any] = []
    try:
        for start in range(0, clients, OF_A_PROCESS):
            count = min(OF_A_PROCESS, clients - start)
            words = [sys.executable, "-m", "benches.grpc_idle", "--hold", address, str(count)]
            holder = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
            )
            holders.append(holder)
            assert holder.stdout is not None
            if holder.stdout.readline() != "held\n":
                raise SystemExit(f"{address} did not take {start + count} clients")
        began = peer.cpu_s()
        time.sleep(seconds)
        used = peer.cpu_s() - began
        return (resident_bytes(pid) - before) / clients / 1024, used / seconds * 1000
    finally:
        for holder in holders:
            holder.stdin.close()
            holder.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.grpc_idle")
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long they are watched")
    parser.add_argument("--peers", default="ours,5.3.3")
    parser.add_argument("--keep", type=Path, help="write the JSON there as well")
    parser.add_argument("--hold", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if given.hold:
        asyncio.run(hold(given.hold[0], int(given.hold[1])))
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
    harness.show(rows, facts, "idle gRPC clients")
    path = harness.save(rows, facts, "grpc_idle")
    print(f"raw rounds: {path.relative_to(ROOT)}")
    if given.keep:
        given.keep.write_text(path.read_text("utf-8"), "utf-8")


if __name__ == "__main__":
    main()
