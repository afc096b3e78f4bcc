"""POP and gRPC as they are used: processor time of the broker a message, popped and acknowledged,
with filters, unusual text, messages that come back, order, access control, a PROXY header, and
answers that wait for the disk; and sends of such messages over gRPC.

    python -m benches pops [--ways pop,take,send] [--peers ours] [--count 20000] [--rounds 3]
                           [--only plain,tags,..] [--keep FILE]

A raw client in this process asks for eight messages at a time and acknowledges each by a request of
its own, over the remoting protocol (`pop`) or gRPC (`take`), or sends one a call over gRPC
(`send`); the broker is a process of its own. A message that a filter passes over is not counted.
Processor time is counted until the timers of all deliveries are over; the rate of `pop` is that of
first deliveries, since what comes back is waited for. With `--peers ours,5.3.3` Apache's broker is
asked the same over the remoting protocol, in turns with ours; another group has all of the messages
first, which warms its virtual machine up. Over gRPC benches.grpc_work has both beside each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hmac
import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc.aio

from benches import harness
from benches.brokers import peer_of
from benches.harness import ROOT, Figures, Given, Row, command_of
from benches.peer_servers import Server
from benches.popclient import Plan, pop
from broker.access.signature import Credentials, sign
from broker.broker import Broker
from broker.grpc.schema import METHODS, SERVICE, pb
from broker.remoting.client import RemotingClient
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, texts
from pystore.meta.configfiles import SubscriptionGroup, TopicConfig

_TOPIC, _GROUP, _NAME, _QUEUES = "bench-pops", "bench", "bench", 4
_BODY, _USER = b"x" * 128, Credentials("bench", "bench-secret")
_AT_ONCE, _IN_FLIGHT, _COMPRESSED = 8, 8, 1
_CHINESE = "订单已付款，等待发货"
#: The same for every row. What is due after it, timers of check points and of acknowledgements, is
#: work of each: processor time is counted until then.
_INVISIBLE_MS, _GRPC_INVISIBLE_MS = 5_000, 10_000  # over gRPC the shortest that is taken
_AFTERWARDS_S = 1.5
_DEADLINE_S, _STARTS_S = 180, 300
_WARM, _SENDING = "bench-warm", 8


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
    #: The connection begins with a PROXY header.
    header: bool = False


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
    "header": Kind(header=True),
    "together": Kind(
        expression="a || c", lost=0.05, chinese=True, compressed=True, synced=True, guarded=True
    ),
}
_WAYS = {"pop": "POP", "take": "gRPC, receive", "send": "gRPC, send"}
#: Of sends: what a consumer does makes no difference.
_SENDS = ("plain", "chinese", "compressed", "synced", "guarded", "header", "together")


# ---- the broker ----


def properties_of(kind: Kind, n: int) -> Mapping[str, str]:
    said = {"UNIQ_KEY": f"{n:032d}", "TAGS": "ab"[n % 2], "n": str(n % 10)}
    return said | {"KEYS": f"{_CHINESE}{n}", "状态": _CHINESE} if kind.chinese else said


def serve(folder: str, name: str, count: int) -> None:
    """A broker that has so many messages, until stdin ends."""
    asyncio.run(_serve(folder, KINDS[name], count))


async def _serve(folder: str, kind: Kind, count: int) -> None:
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
        while (state := broker.store.info()).dispatched < state.log_max:
            await asyncio.sleep(0.01)
        print(broker.address, broker.grpc_address, flush=True)
        await asyncio.to_thread(sys.stdin.read)


# ---- the client ----


class Asks:
    """Requests beside popping: what makes topics and groups, and sends."""

    def __init__(self, client: RemotingClient, address: str, kind: Kind) -> None:
        self._client, self._address, self._kind = client, address, kind

    async def ask(self, code: int, body: bytes = b"", **ext: object) -> Command:
        command = Command(code, texts(ext), body=body)
        if self._kind.guarded:
            sign(command, _USER)
        return await self._client.request(self._address, command, timeout=60.0)


def wanted(kind: Kind, count: int) -> int:
    """How many of so many messages the filter takes."""
    return count if kind.expression == "*" else count // 2


def consume(address: str, kind: Kind, count: int, group: str = _GROUP) -> float:
    """Seconds until the last message was delivered for the first time."""
    plan = Plan(
        _TOPIC, group, _NAME, wanted(kind, count), at_once=_AT_ONCE, consumers=_IN_FLIGHT,
        invisible_ms=_INVISIBLE_MS, filter_type=kind.filter_type, expression=kind.expression,
        ordered=kind.ordered, lost=kind.lost, user=_USER if kind.guarded else None,
        deadline_s=_DEADLINE_S,
    )  # fmt: skip
    return pop(address, plan).first_pass_s


# ---- Apache's broker ----


def settings_of_apaches(kind: Kind) -> dict[str, object]:
    said: dict[str, object] = {"brokerName": _NAME, "enablePropertyFilter": "true"}
    if kind.synced:
        said["flushDiskType"] = "SYNC_FLUSH"
    if kind.guarded:
        first = json.dumps({"username": _USER.access_key, "password": _USER.secret_key})
        said |= {
            "authenticationEnabled": "true", "authorizationEnabled": "true",
            "initAuthenticationUser": first,
            "authenticationMetadataProvider":
            "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider",
            "authorizationMetadataProvider":
            "org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider",
        }  # fmt: skip
    return said


async def fill(address: str, kind: Kind, count: int) -> None:
    """Topic, groups, and so many messages."""
    async with RemotingClient() as client:
        asks = Asks(client, address, kind)
        await until_it_serves(asks)
        for name in (_GROUP, _WARM):
            group = {"groupName": name, "consumeMessageOrderly": kind.ordered}
            made = await asks.ask(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, json.dumps(group).encode()
            )
            assert made.code == 0, made
        left = iter(range(count))
        await asyncio.gather(*[put_each(asks, kind, left) for _ in range(_SENDING)])


async def until_it_serves(asks: Asks) -> None:
    end = time.monotonic() + _STARTS_S
    while True:
        try:
            made = await asks.ask(
                RequestCode.UPDATE_AND_CREATE_TOPIC, topic=_TOPIC, defaultTopic="TBW102",
                readQueueNums=_QUEUES, writeQueueNums=_QUEUES, perm=6, order=False,
                topicFilterType="SINGLE_TAG", topicSysFlag=0, attributes="",
            )  # fmt: skip
            assert made.code == 0, made
            return
        except OSError:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.2)


async def put_each(asks: Asks, kind: Kind, numbers: Iterator[int]) -> None:
    body = zlib.compress(_BODY) if kind.compressed else _BODY
    for n in numbers:
        ext: dict[str, object] = {
            "a": "bench", "b": _TOPIC, "c": "TBW102", "d": _QUEUES, "e": n % _QUEUES,
            "f": _COMPRESSED if kind.compressed else 0, "g": time.time_ns() // 1_000_000, "h": 0,
            "i": "".join(f"{k}\x01{v}\x02" for k, v in properties_of(kind, n).items()),
            "j": 0, "k": False, "l": 16, "m": False,
        }  # fmt: skip
        # A broker whose virtual machine is cold says that it is busy.
        while (said := await asks.ask(RequestCode.SEND_MESSAGE_V2, body, **ext)).code:
            assert said.code == ResponseCode.SYSTEM_BUSY, said
            await asyncio.sleep(0.1)


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
        request.invisible_duration.FromMilliseconds(_GRPC_INVISIBLE_MS)
        request.long_polling_timeout.FromMilliseconds(5_000)
        while self.left > 0:
            replies = [each async for each in self._call("ReceiveMessage", request)]
            for reply in replies:
                if reply.HasField("message"):
                    await self._acknowledge(reply.message.system_properties)

    async def _acknowledge(self, system: Any) -> None:
        if system.delivery_attempt == 1 and self._random.random() < self._kind.lost:
            return
        entry = pb.AckMessageEntry(
            message_id=system.message_id, receipt_handle=system.receipt_handle
        )
        reply = await self._call(
            "AckMessage",
            pb.AckMessageRequest(group=self._group, topic=self._topic, entries=[entry]),
        )
        if reply.status.code == pb.Code.INVALID_RECEIPT_HANDLE:
            return  # on a machine that is too busy its time was over: it comes again
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


# ---- a proxy ----


@contextmanager
def proxied(address: str) -> Iterator[str]:
    """An address of this process, whose connections go there after a PROXY header."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=relay_all, args=(listener, address), daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def relay_all(listener: socket.socket, address: str) -> None:
    host, _, port = address.rpartition(":")
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        far = socket.create_connection((host, int(port)))
        far.sendall(b"PROXY TCP4 203.0.113.7 127.0.0.1 4711 8081\r\n")
        for one, other in ((near, far), (far, near)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=pump, args=(one, other), daemon=True).start()


def pump(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
    for each in (one, other):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


# ---- rows ----


def measure(peer: str, way: str, name: str, count: int) -> tuple[float, float]:
    """Microseconds of the broker's processor time a message, and messages a second."""
    kind = KINDS[name]
    got = count if way == "send" else wanted(kind, count)
    serving = ours if peer == "ours" else apaches
    with serving(peer, name, 0 if way == "send" else count) as (server, grpc_address):
        asked = server.address if way == "pop" else grpc_address
        between = proxied(asked) if kind.header else contextlib.nullcontext(asked)
        before, began = server.cpu_s(), time.monotonic()
        with between as address:
            if way == "pop":
                took = consume(address, kind, count)
            else:
                asyncio.run(over_grpc(address, way, kind, got))
                took = time.monotonic() - began
        if way != "send":
            invisible_ms = _INVISIBLE_MS if way == "pop" else _GRPC_INVISIBLE_MS
            time.sleep(invisible_ms / 1000 + _AFTERWARDS_S)
        used = server.cpu_s() - before
    return used / got * 1e6, got / took


@contextmanager
def ours(peer: str, name: str, count: int) -> Iterator[tuple[Server, str]]:
    """A broker that has so many messages, and its gRPC address."""
    harness.SCRATCH.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=harness.SCRATCH) as folder,
        subprocess.Popen(
            command_of(serve, folder, name, count),
            cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as broker,
    ):  # fmt: skip
        assert broker.stdout is not None
        addresses = broker.stdout.readline().split()
        yield Server(addresses[0], broker.pid), addresses[1]
        broker.kill()


@contextmanager
def apaches(version: str, name: str, count: int) -> Iterator[tuple[Server, str]]:
    """The same of Apache's, warm, without gRPC."""
    kind = KINDS[name]
    with peer_of(version) as peer:
        peer.launch(**settings_of_apaches(kind))
        assert peer.broker is not None
        server = Server(f"127.0.0.1:{peer.port}", peer.broker.pid)
        asyncio.run(fill(server.address, kind, count))
        consume(server.address, kind._replace(lost=0.0), count, _WARM)
        yield server, ""


def bench(given: Given) -> list[Row]:
    figures = Figures("128 bytes")
    rows = [
        (peer, way, name)
        for way in given.ways for name in given.only if way != "send" or name in _SENDS
        for peer in given.peers if peer == "ours" or way == "pop"
    ]  # fmt: skip
    for _ in range(given.rounds):
        for peer, way, name in rows:
            used_us, rate = measure(peer, way, name, given.count)
            what = f"{_WAYS[way]}, {name}"
            figures.add(f"{what}: processor time a message", peer, " us", used_us)
            figures.add(f"{what}: messages", peer, "/s", rate, smaller=False)
    return figures.rows
