"""The process that is attacked: a broker with its gRPC port, and a name server, on one event loop;
with --proxy, a proxy on a loop of its own, before those.

It prints its ports as JSON; for each line that it reads it prints what came of the time since: the
longest time in which a loop served nobody else, in ms of processor time, and the memory, in MB.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from broker import Broker
from broker.cli.collecting import put_aside
from broker.grpc.proxy import Proxy
from broker.services.groups import SubscriptionGroup
from broker.services.topics import TopicConfig
from tests.attack.lite import LITE

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
        """On the loop that is watched."""
        before = time.thread_time()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.thread_time()
            self.held_ms = max(self.held_ms, (now - before) * 1000)
            self.peak_mb = max(self.peak_mb, anonymous_mb())
            before = time.thread_time()

    def told(self) -> dict[str, float]:
        said = {"held_ms": self.held_ms, "peak_mb": self.peak_mb}
        self.held_ms = self.peak_mb = 0.0
        return said


def anonymous_mb() -> float:
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("RssAnon"))


def brokers(folder: Path, access: bool) -> Broker:
    if access:
        (folder / "plain_acl.yml").write_text(RULES)
        (folder / "plain_acl.yml").chmod(0o600)
    return Broker(
        folder / "store", listenPort=0, bindAddress="127.0.0.1", with_namesrv=True, grpc_port=0,
        aclEnable=access,
    )  # fmt: skip


def fill(broker: Broker) -> None:
    """A topic of many queues, another with messages, and who may read them."""
    for topic, queues in (("wide", QUEUES), ("full", 1)):
        broker.services.topics.update(TopicConfig(topic, queues, queues))
    broker.services.topics.update(TopicConfig(LITE, 4, 4), "+message.type=LITE")
    broker.services.groups.update(SubscriptionGroup("g"))
    for _ in range(32):
        broker.services.store.put("full", bytes(4000), queue=0)


async def alone(folder: Path, access: bool) -> None:
    async with brokers(folder, access) as broker:
        fill(broker)
        await broker.services.topics.settled()
        names = port_of(broker.namesrv_address)
        await serve({"broker": broker.port, "grpc": broker.grpc_port, "names": names}, [])


def before(folder: Path, access: bool) -> None:
    """The broker has a thread and a loop of its own."""
    with brokers(folder, access) as broker:
        watch = Watch()

        async def begin() -> asyncio.Task[None]:
            fill(broker)
            await broker.services.topics.settled()
            return asyncio.create_task(watch.run())

        task = broker.run(begin())
        asyncio.run(proxied(str(broker.namesrv_address), watch))
        broker.run(end(task))


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()


async def proxied(names: str, of_broker: Watch) -> None:
    async with Proxy(names, grpc_port=0, remoting_port=0, bind="127.0.0.1") as proxy:
        relay = port_of(proxy.remoting_address)
        await serve({"broker": relay, "grpc": proxy.port, "names": port_of(names)}, [of_broker])


def port_of(address: object) -> int:
    return int(str(address).rpartition(":")[2])


async def serve(ports: dict[str, int], others: list[Watch]) -> None:
    """others: watches of other loops."""
    put_aside()  # as `pystore broker` does
    watch = Watch()
    task = asyncio.create_task(watch.run())
    print(json.dumps(ports), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        told = [each.told() for each in (watch, *others)]
        print(json.dumps({k: max(each[k] for each in told) for k in told[0]}), flush=True)
    task.cancel()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        if "--proxy" in sys.argv:
            before(Path(made), "--access" in sys.argv)
        else:
            asyncio.run(alone(Path(made), "--access" in sys.argv))
