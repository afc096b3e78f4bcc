"""gRPC sends: rate and processor time a message of `pystore broker --grpc`, and of its transport.

    python -m benches.grpc_send [--count 20000] [--beside HOST:PORT PID] [--keep FILE]

64 calls are in flight on one connection of a process of their own. The same work goes in turns to
another server, if one is named (Apache's proxy with a topic `bench` of type NORMAL); its processor
time is that of the process. `transport` calls a method that only looks a client up: what is left
is the transport and parsing, which no handler can make cheaper.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import uvloop

from benches import harness
from benches.harness import ROOT, Row
from broker.client.ids import new_unique_key
from broker.grpc.schema import METHODS, SERVICE, pb

ROUNDS, IN_FLIGHT, BODY, TOPIC = 5, 64, 128, "bench"
_HEADERS = (("x-mq-client-id", "bench"), ("x-mq-language", "PYTHON"))
_TICKS = 100


def request_of(method: str) -> bytes:
    made = METHODS[method].request()
    if method == "SendMessage":
        message = made.messages.add(body=b"x" * BODY, topic=pb.Resource(name=TOPIC))
        message.system_properties.message_id = f"01{new_unique_key()}"
        message.system_properties.message_type = pb.MessageType.NORMAL
        message.system_properties.born_timestamp.seconds = int(time.time())
    data: bytes = made.SerializeToString()
    return data


async def load(address: str, method: str, count: int) -> float:
    """Seconds for so many calls."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(f"/{SERVICE}/{method}")
        reply = METHODS[method].reply.FromString(await call(request_of(method), metadata=_HEADERS))
        wanted = pb.Code.OK if method == "SendMessage" else pb.Code.UNRECOGNIZED_CLIENT_TYPE
        assert reply.status.code == wanted, reply.status
        requests = iter([request_of(method) for _ in range(count)])

        async def work() -> None:
            for request in requests:
                await call(request, metadata=_HEADERS)

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
        return time.perf_counter() - began


def cpu_s(pid: int) -> float:
    """Seconds of processor time of a process."""
    words = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / _TICKS


def measure(address: str, pid: int, method: str, count: int) -> tuple[float, float]:
    """Calls a second, and microseconds of the server's processor time a call."""
    before = cpu_s(pid)
    words = [sys.executable, "-m", "benches.grpc_send", "--load", address, method, str(count)]
    done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    return count / float(done.stdout), (cpu_s(pid) - before) / count * 1e6


def rows_of(servers: dict[str, tuple[str, int]], count: int) -> list[Row]:
    cases = [(name, "SendMessage") for name in servers] + [("transport", "Heartbeat")]
    rates = {case: Row("gRPC", f"{BODY} B", case[0], "/s", []) for case in cases}
    times = {case: Row("gRPC", f"{BODY} B", case[0], " us", [], smaller=True) for case in cases}
    for number in range(ROUNDS + 1):
        for case in cases:
            address, pid = servers.get(case[0], servers["ours"])
            rate, cpu = measure(address, pid, case[1], count)
            if number:  # the first touches memory for the first time
                rates[case].rounds.append(rate)
                times[case].rounds.append(cpu)
    return [*rates.values(), *times.values()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.grpc_send")
    parser.add_argument("--count", type=int, default=20_000, help="messages a round")
    parser.add_argument("--beside", nargs=2, metavar=("HOST:PORT", "PID"), help="another server")
    parser.add_argument("--keep", type=Path, help="write the JSON there as well")
    parser.add_argument("--load", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load:
        address, method, count = given.load
        print(uvloop.run(load(address, method, int(count))))
        return
    facts: dict[str, Any] = harness.machine()
    with servers_of(given.beside) as servers:
        rows = rows_of(servers, given.count)
    harness.show(rows, facts, "gRPC")
    path = harness.save(rows, facts, "grpc")
    print(f"raw rounds: {path.relative_to(ROOT)}")
    if given.keep:
        given.keep.write_text(path.read_text("utf-8"), "utf-8")


SERVE = """
import json, os, sys, asyncio, uvloop
from broker.broker import Broker
async def main():
    async with Broker(sys.argv[1], listenPort=0, grpc_port=0, mappedFileSizeCommitLog=1 << 28) as b:
        b.create_topic("bench")
        print(json.dumps([b.grpc_address, os.getpid()]), flush=True)
        await asyncio.to_thread(sys.stdin.read)
uvloop.run(main())
"""


@contextmanager
def servers_of(beside: tuple[str, str] | None) -> Iterator[dict[str, tuple[str, int]]]:
    """Address and process of a server of ours, and of the one to be measured beside it."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-c", SERVE, str(Path(folder) / "store")]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
        ) as server:
            assert server.stdin is not None and server.stdout is not None
            servers = {"ours": tuple(json.loads(server.stdout.readline()))}
            if beside:
                servers["beside"] = beside[0], int(beside[1])
            try:
                yield servers
            finally:
                server.stdin.close()


if __name__ == "__main__":
    main()
