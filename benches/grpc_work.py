"""gRPC of `pystore broker --grpc` beside Apache's proxy in local mode, which has its broker in the
same process: both under RocketMQ 5's official Java client, in turns.

    python -m benches grpc_work [--peers ours,5.3.3] [--rounds 3] [--only send,take,tx,real,start]
                                [--count 100000] [--synced] [--keep FILE]

`send`: 128 bytes, 64 in flight. `take`: what was sent is received, 32 at most at once, and each
message acknowledged by a call of its own. `tx`: a half and its commit each, 32 threads, a fifth of
the count. `real`: a fifth of the count with tag, keys and properties, in Chinese, too, is received
with a filter by tag, with one of SQL92, and by a group that does not acknowledge one in 20 at first
(whose rate says when those came back); and ordered messages. `--synced`: both brokers answer what
they took when it is on the disk, with SYNC_FLUSH. Processor time is that of the server's process
for each message. `start`: from the start of the process to the first send that is answered well, of
a raw client that tries without end. Memory is the anonymous pages after the start, and after all of
the work. The round before the first is not counted: it warms both virtual machines up.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import ClassVar

import grpc
from rich.console import Console

from benches import harness
from benches.brokers import (
    REFERENCE,
    TOPIC,
    Peer,
    ask,
    connect,
    frame,
    free_port,
)
from benches.harness import SCRATCH, Figure, Given, Row
from broker.grpc.schema import SERVICE, pb

console = Console(stderr=True, highlight=False)

BODY, IN_FLIGHT = 128, 64
#: Of a topic for each kind of message.
TOPICS = {
    "bench": "NORMAL", "bench-tx": "TRANSACTION", "bench-real": "NORMAL", "bench-fifo": "FIFO",
}  # fmt: skip
#: A group that consumes in order, and the request that makes it.
_ORDERED, _GROUP = "bench-ordered", 200
_STARTS, _STARTS_WITHIN_S = 5, 120.0


class Client:
    """The official Java client, one process for all of the work (tests/reference, grpc-load)."""

    def __init__(self) -> None:
        env = os.environ | {"JAVA_OPTS": "-Xms512m -Xmx512m"}
        self._process = subprocess.Popen(
            [str(REFERENCE), "grpc-load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env=env,
        )  # fmt: skip

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def ask(self, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def said(self) -> dict[str, float]:
        assert self._process.stdout is not None
        while not (line := self._process.stdout.readline()).startswith("{"):
            if not line:
                raise SystemExit("the client ended")
        answer: dict[str, float] = json.loads(line)
        return answer

    def __call__(self, *words: object) -> dict[str, float]:
        self.ask(*words)
        return self.said()


@dataclass
class GrpcPeer(Peer):
    """A broker with a gRPC port."""

    verb: ClassVar[str] = "proxy-local"
    grpc_port: int = field(default_factory=free_port)
    synced: bool = False

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def launch(self, *more: str, **settings: object) -> float:
        if self.synced:
            settings["flushDiskType"] = "SYNC_FLUSH"
        os.environ["RMQ_GRPC_PORT"] = str(self.grpc_port)
        if self.name != "ours":
            settings["enablePropertyFilter"] = "true"
        return super().launch("--grpc-port", str(self.grpc_port), *more, **settings)

    def start_broker(self, *more: str) -> float:
        took = super().start_broker(*more)
        self.make_topics()
        return took

    def make_topics(self) -> None:
        with connect(self.port) as wire:
            for name, kind in TOPICS.items():
                ext = {
                    "topic": name, "defaultTopic": "TBW102", "readQueueNums": 4,
                    "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG",
                    "topicSysFlag": 0, "order": "false", "attributes": f"+message.type={kind}",
                }  # fmt: skip
                code, body = ask(wire, frame(TOPIC, ext))
                assert code == 0, f"topic {name}: {code} {body!r}"
            group = {"groupName": _ORDERED, "consumeEnable": True, "consumeMessageOrderly": True}
            code, body = ask(wire, frame(_GROUP, {}, json.dumps(group).encode()))
            assert code == 0, f"group {_ORDERED}: {code} {body!r}"


@contextmanager
def peer_of(name: str, synced: bool = False) -> Iterator[GrpcPeer]:
    """A peer whose name server runs; its folder is deleted afterwards."""
    made = GrpcPeer(name, SCRATCH / f"grpc-{name}-{os.getpid()}", synced=synced)
    try:
        made.start_names()
        yield made
    finally:
        made.stop()
        shutil.rmtree(made.folder, ignore_errors=True)


def _worked(peer: GrpcPeer, client: Client, name: str, *words: object) -> list[Figure]:
    before = peer.cpu_s()
    said = client(*words)
    used = peer.cpu_s() - before
    if said["errors"]:
        console.print(f"{peer.name}: {name}: {said['errors']:.0f} errors")
    return [
        (name, "/s", False, said["done"] / said["seconds"]),
        (f"{name}: server's processor time each", " us", True, used / max(said["done"], 1) * 1e6),
    ]


def work(peer: GrpcPeer, client: Client, only: Sequence[str], count: int) -> list[Figure]:
    made: list[Figure] = []
    if "send" in only or "take" in only:
        name = f"send, {BODY} bytes, {IN_FLIGHT} in flight"
        made += _worked(peer, client, name, "send", peer.endpoint, "bench", count)
    if "take" in only:
        name, group = "receive and acknowledge a backlog", "takers"
        made += _worked(peer, client, name, "take", peer.endpoint, "bench", group, count)
    if "tx" in only:
        name = "transactions, 32 threads"
        made += _worked(peer, client, name, "tx", peer.endpoint, "bench-tx", count // 5)
    if "real" in only:
        made += _real(peer, client, count // 5)
    return made


def _real(peer: GrpcPeer, client: Client, count: int) -> list[Figure]:
    """What is sent is received by three groups: half of it, half of it, and all."""
    topic, fifo = "bench-real", "bench-fifo"
    name = "send with tag, keys and properties in Chinese"
    made = _worked(peer, client, name, "send", peer.endpoint, topic, count, "real")
    for kind, what, many in (
        ("tag", "receive by tag", count // 2), ("sql", "receive by SQL92", count // 2),
        ("lost", "receive, 5 % come back", count),
    ):  # fmt: skip
        words = ("take", peer.endpoint, topic, f"takers-{kind}", many, kind)
        made += _worked(peer, client, what, *words)
    made += _worked(peer, client, "send ordered", "send", peer.endpoint, fifo, count, "ordered")
    words = ("take", peer.endpoint, fifo, _ORDERED, count, "ordered")
    return made + _worked(peer, client, "receive ordered", *words)


def until_it_takes(peer: GrpcPeer) -> None:
    """Sends one message, again and again until it is stored."""
    made = pb.Message(topic=pb.Resource(name="bench"), body=b"x" * BODY)
    own = made.system_properties
    own.message_id, own.message_type = f"01{0:032X}", pb.MessageType.NORMAL
    own.body_encoding, own.born_host = pb.Encoding.IDENTITY, "bench"
    own.born_timestamp.GetCurrentTime()
    data = pb.SendMessageRequest(messages=[made]).SerializeToString()
    headers = [("x-mq-client-id", "bench"), ("x-mq-language", "JAVA"),
               ("x-mq-client-version", "5.1.0")]  # fmt: skip
    end = time.monotonic() + _STARTS_WITHIN_S
    while time.monotonic() < end:
        # A channel of its own each time: one that found nobody waits before it tries again.
        with (
            suppress(OSError, grpc.RpcError),
            socket.create_connection(("127.0.0.1", peer.grpc_port)),
            grpc.insecure_channel(
                peer.endpoint, [("grpc.use_local_subchannel_pool", 1)]
            ) as channel,
        ):
            call = channel.unary_unary(f"/{SERVICE}/SendMessage")
            while time.monotonic() < end:
                said = pb.SendMessageResponse.FromString(call(data, timeout=5, metadata=headers))
                if said.status.code == pb.Code.OK:
                    return
                time.sleep(0.005)
        time.sleep(0.002)
    raise TimeoutError(f"{peer.name} takes no message over gRPC")


def start(peer: GrpcPeer) -> list[Figure]:
    """On the folder that is there, with its topics."""
    took = []
    for _ in range(_STARTS):
        peer.stop_broker()
        began = peer.launch()
        until_it_takes(peer)
        took.append(time.perf_counter() - began)
    return [("start to the first gRPC send", " s", True, sorted(took)[_STARTS // 2])]


def bench(given: Given) -> list[Row]:
    figures = harness.Figures(f"{BODY} B")
    with ExitStack() as undo:
        client = undo.enter_context(Client())
        made = [undo.enter_context(peer_of(name, given.synced)) for name in given.peers]
        for peer in made:
            peer.start_broker()
            time.sleep(5)
            figures.add("anonymous memory, started", peer.name, " MB", peer.anonymous_mb())
        for number in range(given.rounds + 1):
            for peer in made[number % 2 :] + made[: number % 2]:
                found = work(peer, client, given.only, given.count)
                if number:
                    figures.note(peer.name, found)
        for peer in made:
            what = "anonymous memory, after the work"
            figures.add(what, peer.name, " MB", peer.anonymous_mb())
            if "start" in given.only:
                figures.note(peer.name, start(peer))
    return figures.rows
