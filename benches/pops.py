"""POP and gRPC as they are used: processor time of the broker a message, popped and acknowledged,
with filters, unusual text, messages that come back, order, access control, and answers that wait
for the disk; and sends of such messages over gRPC.

    python -m benches.pops [--ways pop,take,send] [--count 20000] [--rounds 3]
                           [--only plain,tags,..] [--keep FILE]

A raw client in this process asks for eight messages at a time and acknowledges each by a request of
its own, over the remoting protocol (`pop`) or gRPC (`take`), or sends one a call over gRPC
(`send`); the broker is a process of its own. A message that a filter passes over is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import hmac
import json
import random
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc.aio
from rich.console import Console

from benches import harness
from benches.harness import ROOT, Row
from benches.peer_servers import Server
from broker.access.signature import Credentials, sign
from broker.broker import Broker
from broker.client.message import MessageQueue
from broker.client.progress import QueueProgress
from broker.client.records import received
from broker.grpc.schema import METHODS, SERVICE, pb
from broker.remoting import mqjson
from broker.remoting.client import RemotingClient
from broker.remoting.codes import RequestCode
from broker.remoting.command import Command, texts
from broker.remoting.receipts import Deliveries
from pystore.configfiles import SubscriptionGroup, TopicConfig

console = Console(stderr=True, highlight=False)

_TOPIC, _GROUP, _NAME, _QUEUES = "bench-pops", "bench", "bench", 4
_BODY, _USER = b"x" * 128, Credentials("bench", "bench-secret")
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
    guarded: bool = False


KINDS = {
    "plain": Kind(),
    "tags": Kind(expression="a || c"),
    "sql": Kind(filter_type="SQL92", expression="n < 5"),
    "lost": Kind(lost=0.05),
    "chinese": Kind(chinese=True),
    "compressed": Kind(compressed=True),
    "ordered": Kind(ordered=True),
    "synced": Kind(synced=True),
    "guarded": Kind(guarded=True),
    "together": Kind(
        expression="a || c", lost=0.05, chinese=True, compressed=True, synced=True, guarded=True
    ),
}
_WAYS = {"pop": "POP", "take": "gRPC, receive", "send": "gRPC, send"}
#: Of sends: what a consumer does makes no difference.
_SENDS = ("plain", "chinese", "compressed", "synced", "guarded", "together")


# ---- the broker ----


def properties_of(kind: Kind, n: int) -> Mapping[str, str]:
    said = {"UNIQ_KEY": f"{n:032d}", "TAGS": "ab"[n % 2], "n": str(n % 10)}
    return said | {"KEYS": f"{_CHINESE}{n}", "状态": _CHINESE} if kind.chinese else said


async def serve(folder: str, kind: Kind, count: int) -> None:
    """A broker that has so many messages, until stdin ends."""
    settings: dict[str, Any] = {
        "flushDiskType": "SYNC_FLUSH" if kind.synced else "ASYNC_FLUSH", "brokerName": _NAME,
        "listenPort": 0, "grpc_port": 0,
    }  # fmt: skip
    if kind.guarded:
        first = json.dumps({"username": _USER.access_key, "password": _USER.secret_key})
        settings |= {
            "authenticationEnabled": True, "authorizationEnabled": True,
            "initAuthenticationUser": first,
        }  # fmt: skip
    body = _BODY
    async with Broker(folder, **settings) as broker:
        broker.services.topics.update(TopicConfig(_TOPIC, _QUEUES, _QUEUES))
        group = SubscriptionGroup(_GROUP, consume_message_orderly=kind.ordered)
        broker.services.groups.update(group)
        for n in range(count):
            broker.store.put_message(
                _TOPIC, zlib.compress(body) if kind.compressed else body, queue=n % _QUEUES,
                properties=properties_of(kind, n), block=False,
                sys_flag=_COMPRESSED if kind.compressed else 0,
            )  # fmt: skip
        await asyncio.to_thread(broker.store.flush)
        print(broker.address, broker.grpc_address, flush=True)
        await asyncio.to_thread(sys.stdin.read)


# ---- the client ----


class Consumer:
    """Pops and acknowledges until it has got `count` messages."""

    def __init__(self, client: RemotingClient, address: str, kind: Kind, count: int) -> None:
        self._client, self._address, self._kind = client, address, kind
        self.left, self._random = count, random.Random(1)

    async def ask(self, code: int, body: bytes = b"", **ext: object) -> Command:
        command = Command(code, texts(ext), body=body)
        if self._kind.guarded:
            sign(command, _USER)
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


# ---- over gRPC ----


class GrpcClient:
    """A client over one connection, that signs each second anew as official ones do."""

    def __init__(self, channel: grpc.aio.Channel, kind: Kind, count: int) -> None:
        self._channel, self._kind = channel, kind
        self.left, self._random = count, random.Random(1)
        self._group, self._topic = pb.Resource(name=_GROUP), pb.Resource(name=_TOPIC)
        self._filter = pb.FilterExpression(
            type=pb.FilterType.SQL if kind.filter_type == "SQL92" else pb.FilterType.TAG,
            expression=kind.expression,
        )

    def _metadata(self) -> list[tuple[str, str]]:
        headers = [
            ("x-mq-client-id", "bench"), ("x-mq-language", "PYTHON"),
            ("x-mq-client-version", "5.1.2"),
        ]  # fmt: skip
        if self._kind.guarded:
            date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            signed = hmac.new(_USER.secret_key.encode(), date.encode(), "sha1").hexdigest()
            proof = f"Credential={_USER.access_key}, SignedHeaders=x-mq-date-time"
            headers.append(("x-mq-date-time", date))
            headers.append(("authorization", f"MQv2-HMAC-SHA1 {proof}, Signature={signed}"))
        return headers

    def _call(self, method: str, request: Any, timeout: float = 60.0) -> Any:
        kind = METHODS[method]
        make = self._channel.unary_stream if kind.streams_out else self._channel.unary_unary
        made = make(
            f"/{SERVICE}/{method}", request_serializer=kind.request.SerializeToString,
            response_deserializer=kind.reply.FromString,
        )  # fmt: skip
        return made(request, timeout=timeout, metadata=self._metadata())

    async def settle(self) -> Any:
        """Sends settings; the stream, which is to stay open."""
        kind = METHODS["Telemetry"]
        stream = self._channel.stream_stream(
            f"/{SERVICE}/Telemetry", request_serializer=kind.request.SerializeToString,
            response_deserializer=kind.reply.FromString,
        )(metadata=self._metadata())  # fmt: skip
        entry = pb.SubscriptionEntry(topic=self._topic, expression=self._filter)
        settings = pb.Settings(
            client_type=pb.ClientType.SIMPLE_CONSUMER,
            subscription=pb.Subscription(group=self._group, subscriptions=[entry]),
        )
        await stream.write(pb.TelemetryCommand(settings=settings))
        await stream.read()
        return stream

    async def take(self) -> None:
        request = METHODS["ReceiveMessage"].request(
            group=self._group, message_queue=pb.MessageQueue(topic=self._topic),
            filter_expression=self._filter, batch_size=_AT_ONCE,
        )  # fmt: skip
        request.invisible_duration.FromMilliseconds(10_000 if self._kind.lost else 60_000)
        request.long_polling_timeout.FromMilliseconds(5_000)
        while self.left > 0:
            replies = [each async for each in self._call("ReceiveMessage", request)]
            for reply in replies:
                if reply.HasField("message"):
                    await self._acknowledge(reply.message.system_properties)

    async def _acknowledge(self, system: Any) -> None:
        if self._random.random() < self._kind.lost:
            return
        entry = pb.AckMessageEntry(
            message_id=system.message_id, receipt_handle=system.receipt_handle
        )
        reply = await self._call(
            "AckMessage",
            pb.AckMessageRequest(group=self._group, topic=self._topic, entries=[entry]),
        )
        assert reply.status.code == pb.Code.OK, reply
        self.left -= 1

    async def send(self) -> None:
        while self.left > 0:
            self.left -= 1
            reply = await self._call("SendMessage", self._message(self.left))
            assert reply.status.code == pb.Code.OK, reply

    def _message(self, n: int) -> Any:
        said, body = dict(properties_of(self._kind, n)), _BODY
        made = pb.Message(topic=self._topic)
        system = made.system_properties
        system.message_id, system.tag = said.pop("UNIQ_KEY"), said.pop("TAGS")
        system.keys.extend([said.pop("KEYS")] if "KEYS" in said else [])
        system.message_type, system.body_encoding = pb.MessageType.NORMAL, pb.Encoding.IDENTITY
        system.born_timestamp.GetCurrentTime()
        if self._kind.compressed:
            body, system.body_encoding = gzip.compress(body), pb.Encoding.GZIP
        made.body = body
        made.user_properties.update(said)
        return METHODS["SendMessage"].request(messages=[made])


async def over_grpc(address: str, way: str, kind: Kind, count: int) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        client = GrpcClient(channel, kind, count)
        stream = await client.settle()
        work = client.send if way == "send" else client.take
        async with asyncio.timeout(_DEADLINE_S):
            await asyncio.gather(*[work() for _ in range(_IN_FLIGHT)])
        stream.cancel()


# ---- rows ----


def measure(way: str, name: str, count: int) -> tuple[float, float]:
    """Microseconds of the broker's processor time a message, and messages a second."""
    kind = KINDS[name]
    got = count if way == "send" else wanted(kind, count)
    harness.SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=harness.SCRATCH) as folder:
        stored = 0 if way == "send" else count
        command = [sys.executable, "-m", "benches.pops", "--serve", folder, name, str(stored)]
        with subprocess.Popen(
            command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as broker:
            assert broker.stdout is not None
            addresses = broker.stdout.readline().split()
            server = Server(addresses[0], broker.pid)
            before, began = server.cpu_s(), time.monotonic()
            if way == "pop":
                asyncio.run(consume(server.address, kind, count))
            else:
                asyncio.run(over_grpc(addresses[1], way, kind, got))
            used, took = server.cpu_s() - before, time.monotonic() - began
            broker.kill()
    return used / got * 1e6, got / took


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benches.pops")
    parser.add_argument("--count", type=int, default=20_000, help="messages")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default="pop,take,send", help="what is done")
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
    found: dict[tuple[str, str, str], Row] = {}
    rows = [
        (way, name)
        for way in given.ways.split(",") for name in only if way != "send" or name in _SENDS
    ]  # fmt: skip
    for number in range(given.rounds):
        for way, name in rows:
            for unit, value in zip(("us", "/s"), measure(way, name, given.count), strict=True):
                row = Row(
                    f"{_WAYS[way]}, {name}", "128 bytes", "ours", unit, [], smaller=unit == "us"
                )
                found.setdefault((way, name, unit), row).rounds.append(value)
                console.print(f"round {number + 1}: {way} {name}: {harness.figure(value)}{unit}")
    path = harness.save(list(found.values()), harness.machine(), "pops")
    if given.keep:
        given.keep.write_text(path.read_text("utf-8"), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
