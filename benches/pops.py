"""POP over remoting as it is used: processor time of the broker a message, popped and acknowledged,
with filters, unusual text, messages that come back, order, and answers that wait for the disk.

    python -m benches.pops [--count 20000] [--rounds 3] [--only plain,tags,..] [--keep FILE]

A raw client in this process asks for eight messages at a time and acknowledges each by a request of
its own; the broker is a process of its own. A message that a filter passes over is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from benches import harness
from benches.harness import ROOT, Row
from benches.peer_servers import Server
from broker.broker import Broker
from broker.client.message import MessageQueue
from broker.client.progress import QueueProgress
from broker.client.records import received
from broker.remoting import mqjson
from broker.remoting.client import RemotingClient
from broker.remoting.codes import RequestCode
from broker.remoting.command import Command, texts
from broker.remoting.receipts import Deliveries
from pystore.configfiles import TopicConfig

console = Console(stderr=True, highlight=False)

_TOPIC, _GROUP, _NAME, _QUEUES = "bench-pops", "bench", "bench", 4
_AT_ONCE, _IN_FLIGHT, _COMPRESSED = 8, 8, 1
_CHINESE = "订单已付款，等待发货"
_DEADLINE_S = 120


class Kind(NamedTuple):
    """What a row is about. lost: the share of deliveries that are not acknowledged."""

    filter_type: str = "TAG"
    expression: str = "*"
    lost: float = 0.0
    chinese: bool = False
    compressed: bool = False
    ordered: bool = False
    synced: bool = False


KINDS = {
    "plain": Kind(),
    "tags": Kind(expression="a || c"),
    "sql": Kind(filter_type="SQL92", expression="n < 5"),
    "lost": Kind(lost=0.05),
    "chinese": Kind(chinese=True),
    "compressed": Kind(compressed=True),
    "ordered": Kind(ordered=True),
    "synced": Kind(synced=True),
    "together": Kind(expression="a || c", lost=0.05, chinese=True, compressed=True, synced=True),
}


# ---- the broker ----


def properties_of(kind: Kind, n: int) -> Mapping[str, str]:
    said = {"UNIQ_KEY": f"{n:032d}", "TAGS": "ab"[n % 2], "n": str(n % 10)}
    return said | {"KEYS": f"{_CHINESE}{n}", "状态": _CHINESE} if kind.chinese else said


async def serve(folder: str, kind: Kind, count: int) -> None:
    """A broker that has so many messages, until stdin ends."""
    flush = "SYNC_FLUSH" if kind.synced else "ASYNC_FLUSH"
    body = b"x" * 128
    opened = Broker(folder, brokerName=_NAME, listenPort=0, flushDiskType=flush)
    async with opened as broker:
        broker.services.topics.update(TopicConfig(_TOPIC, _QUEUES, _QUEUES))
        for n in range(count):
            broker.store.put_message(
                _TOPIC, zlib.compress(body) if kind.compressed else body, queue=n % _QUEUES,
                properties=properties_of(kind, n), block=False,
                sys_flag=_COMPRESSED if kind.compressed else 0,
            )  # fmt: skip
        await asyncio.to_thread(broker.store.flush)
        print(broker.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)


# ---- the client ----


class Consumer:
    """Pops and acknowledges until it has got `count` messages."""

    def __init__(self, client: RemotingClient, address: str, kind: Kind, count: int) -> None:
        self._client, self._address, self._kind = client, address, kind
        self.left, self._random = count, random.Random(1)

    async def ask(self, code: int, body: bytes = b"", **ext: object) -> Command:
        command = Command(code, texts(ext), body=body)
        return await self._client.request(self._address, command, timeout=60.0)

    async def beat(self) -> None:
        subscription = {
            "topic": _TOPIC, "subString": "*", "subVersion": 1, "expressionType": "TAG",
            "tagsSet": [], "codeSet": [], "classFilterMode": False,
        }  # fmt: skip
        group = {
            "groupName": _GROUP, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
            "subscriptionDataSet": [subscription],
        }  # fmt: skip
        said = {"clientID": "bench", "producerDataSet": [], "consumerDataSet": [group]}
        await self.ask(RequestCode.HEART_BEAT, mqjson.dumps(said))

    async def run(self) -> None:
        kind = self._kind
        while self.left > 0:
            answer = await self.ask(
                RequestCode.POP_MESSAGE, consumerGroup=_GROUP, topic=_TOPIC, queueId=-1,
                maxMsgNums=_AT_ONCE, invisibleTime=1000 if kind.lost else 60_000, pollTime=1000,
                bornTime=time.time_ns() // 1_000_000 + 60_000, initMode=0,
                expType=kind.filter_type, exp=kind.expression, order=kind.ordered,
            )  # fmt: skip
            if answer.code == 0:
                await self._acknowledge(answer)

    async def _acknowledge(self, answer: Command) -> None:
        deliveries = Deliveries(answer.ext, _NAME)
        place = QueueProgress(MessageQueue(_TOPIC, _NAME, -1), 0)
        for message in received(bytes(answer.body), place):
            handle = deliveries.handle(
                message.head.queue, message.queue_offset, message.properties.get("POP_CK")
            )
            if self._random.random() < self._kind.lost:
                continue
            await self.ask(
                RequestCode.ACK_MESSAGE, consumerGroup=_GROUP, topic=_topic_of(handle.retry),
                queueId=handle.queue, offset=handle.offset, extraInfo=handle.text,
            )  # fmt: skip
            self.left -= 1


def _topic_of(retry: str) -> str:
    return {"0": _TOPIC, "1": f"%RETRY%{_GROUP}_{_TOPIC}", "2": f"%RETRY%{_GROUP}+{_TOPIC}"}[retry]


def wanted(kind: Kind, count: int) -> int:
    """How many of so many messages the filter takes."""
    return count if kind.expression == "*" else count // 2


async def consume(address: str, kind: Kind, count: int) -> None:
    async with RemotingClient() as client:
        consumer = Consumer(client, address, kind, wanted(kind, count))
        await consumer.beat()
        async with asyncio.timeout(_DEADLINE_S):
            await asyncio.gather(*[consumer.run() for _ in range(_IN_FLIGHT)])


# ---- rows ----


def measure(name: str, count: int) -> tuple[float, float]:
    """Microseconds of the broker's processor time a message, and messages a second."""
    harness.SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=harness.SCRATCH) as folder:
        command = [sys.executable, "-m", "benches.pops", "--serve", folder, name, str(count)]
        with subprocess.Popen(
            command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as broker:
            assert broker.stdout is not None
            server = Server(broker.stdout.readline().strip(), broker.pid)
            before, began = server.cpu_s(), time.monotonic()
            asyncio.run(consume(server.address, KINDS[name], count))
            used, took = server.cpu_s() - before, time.monotonic() - began
            broker.kill()
    got = wanted(KINDS[name], count)
    return used / got * 1e6, got / took


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benches.pops")
    parser.add_argument("--count", type=int, default=20_000, help="messages")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(KINDS), help=f"rows: {', '.join(KINDS)}")
    parser.add_argument("--keep", type=Path, help="write the JSON there as well")
    parser.add_argument("--serve", nargs=3, metavar=("FOLDER", "ROW", "COUNT"), help="internal")
    given = parser.parse_args(arguments)
    if given.serve:
        folder, name, count = given.serve
        asyncio.run(serve(folder, KINDS[name], int(count)))
        return 0
    only = given.only.split(",")
    if unknown := set(only) - set(KINDS):
        parser.error(f"no rows {unknown}")
    found: dict[tuple[str, str], Row] = {}
    for number in range(given.rounds):
        for name in only:
            for unit, value in zip(("us", "/s"), measure(name, given.count), strict=True):
                row = Row(f"POP, {name}", "128 bytes", "ours", unit, [], smaller=unit == "us")
                found.setdefault((name, unit), row).rounds.append(value)
                console.print(f"round {number + 1}: {name}: {harness.figure(value)}{unit}")
    path = harness.save(list(found.values()), harness.machine(), "pops")
    if given.keep:
        given.keep.write_text(path.read_text("utf-8"), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
