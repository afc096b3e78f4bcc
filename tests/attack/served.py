"""The process that is attacked: a broker with its gRPC port, and a name server, on one event loop.

It prints its ports as JSON; for each line that it reads it prints what came of the time since: the
longest time in which the loop served nobody else, in ms of processor time, and the memory, in MB.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from broker import Broker
from broker.services.topics import TopicConfig

RULES = """accounts:
- accessKey: orders-team
  secretKey: orders-secret
  admin: true
"""
TICK_S = 0.002
QUEUES = 1024


class Watch:
    """Ticks on the loop, and sees by its own processor time what came between two ticks."""

    def __init__(self) -> None:
        self.held_ms = 0.0
        self.peak_mb = 0.0

    async def run(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.thread_time()
            self.held_ms = max(self.held_ms, (now - before) * 1000)
            self.peak_mb = max(self.peak_mb, anonymous_mb())
            before = time.thread_time()

    def told(self) -> str:
        said = json.dumps({"held_ms": self.held_ms, "peak_mb": self.peak_mb})
        self.held_ms = self.peak_mb = 0.0
        return said


def anonymous_mb() -> float:
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("RssAnon"))


async def main(access: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if access:
            (Path(folder) / "plain_acl.yml").write_text(RULES)
            (Path(folder) / "plain_acl.yml").chmod(0o600)
        async with Broker(
            Path(folder) / "store", listenPort=0, bindAddress="127.0.0.1", with_namesrv=True,
            grpc_port=0, aclEnable=access,
        ) as broker:  # fmt: skip
            broker.services.topics.update(TopicConfig("wide", QUEUES, QUEUES))
            await broker.services.topics.settled()
            watch = Watch()
            task = asyncio.create_task(watch.run())
            names = int(str(broker.namesrv_address).rpartition(":")[2])
            ports = {"broker": broker.port, "grpc": broker.grpc_port, "names": names}
            print(json.dumps(ports), flush=True)
            while await asyncio.to_thread(sys.stdin.readline):
                print(watch.told(), flush=True)
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main("--access" in sys.argv))
