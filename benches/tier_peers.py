"""Our tier beside Apache's 5.5.0, each in a folder of the same disk: writing out what a broker
has, and reading it from there.

    python -m benches tier_peers [--peers ours,5.5.0] [--rounds 3] [--mb 100]

Each broker is filled with messages of 1 KiB in 4 queues while it has no tier, stopped, and started
with one: Apache's writes out only what is younger than two minutes. Then the same client pulls
every queue from its first message, with `tieredStorageLevel=FORCE`, so that a broker reads all of
it in the tier. Processor time is all that the broker's process takes meanwhile.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from benches.brokers import TOPIC as MAKE_TOPIC
from benches.brokers import Peer, connect, frame, peer_of, send_frame
from benches.brokers import ask as ask_by_hand
from benches.cold import RECEIVED, pull
from benches.harness import TOPIC, Figures, Given, Row
from broker.wire import codec
from broker.wire.codes import ResponseCode
from broker.wire.command import Command

QUEUES, AT_ONCE, PATIENCE_S = 4, 64, 600.0
#: Apache's writes out nothing that was two minutes old when it first looked.
OLDEST_S = 110
BODY = bytes(range(256)) * 4
SETTINGS: dict[str, dict[str, object]] = {
    "ours": {"tieredUploadWaitMillis": 1000, "tieredUploadRateMax": 0},
    "5.5.0": {
        "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
        "tieredBackendServiceProvider":
            "org.apache.rocketmq.tieredstore.provider.PosixFileSegment",
        "tieredStoreGroupCommitTimeout": 1000,
    },
}  # fmt: skip


class Wire:
    """A connection that sends several requests before it takes their answers."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._left = bytearray()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def answers(self, count: int) -> list[Command]:
        found: list[Command] = []
        left = self._left
        while len(found) < count:
            size = int.from_bytes(left[:4], "big")
            if len(left) < 4 or len(left) < 4 + size:
                left += self._sock.recv(RECEIVED)
                continue
            found.append(codec.decode(bytes(left[: 4 + size])))
            del left[: 4 + size]
        return found


def a_send(number: int) -> bytes:
    ext = {
        "a": "makers", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % QUEUES), "f": "0",
        "g": str(int(time.time() * 1000)), "h": "0", "i": f"UNIQ_KEY\1{number:032X}\2", "j": "0",
        "k": "false", "m": "false", "n": "broker-a",
    }  # fmt: skip
    return codec.encode(Command(310, ext, BODY, opaque=number))


def fill(port: int, count: int) -> dict[int, int]:
    """Sends so many messages; returns where each queue ends."""
    about = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": QUEUES,
             "writeQueueNums": QUEUES, "perm": 6, "topicFilterType": "SINGLE_TAG",
             "topicSysFlag": 0, "order": "false"}  # fmt: skip
    with connect(port) as wire:
        assert ask_by_hand(wire, frame(MAKE_TOPIC, about))[0] == 0
    ends, sent, number = dict.fromkeys(range(QUEUES), 0), 0, 0
    with Wire(port) as made:
        while sent < count:
            for _ in range(AT_ONCE):
                made.send(a_send(number))
                number += 1
            for answer in made.answers(AT_ONCE):
                if answer.code == ResponseCode.SUCCESS:  # a busy broker refuses some
                    queue = int(answer.ext["queueId"])
                    ends[queue] = max(ends[queue], int(answer.ext["queueOffset"]) + 1)
                    sent += 1
    return ends


def read_all(port: int, ends: dict[int, int]) -> int:
    """Pulls every queue, one pull of each at a time; returns the bytes of records."""
    at, total = dict.fromkeys(ends, 0), 0
    with Wire(port) as wire:
        for queue in ends:
            wire.send(pull(queue, 0))
        while at:
            (answer,) = wire.answers(1)
            queue = answer.opaque
            if answer.code == ResponseCode.SUCCESS:
                at[queue] = int(answer.ext["nextBeginOffset"])
                total += len(answer.body or b"")
            else:
                time.sleep(0.01)  # it is fetched from the tier, or the offset is moved
            if at[queue] >= ends[queue]:
                del at[queue]
            else:
                wire.send(pull(queue, at[queue]))
    return total


def measured(peer: Peer, work: Callable[[], float]) -> tuple[float, float, float]:
    """Returns what the work returns, its seconds, and the broker's processor time for it."""
    began, cpu = time.perf_counter(), peer.cpu_s()
    done = work()
    return done, time.perf_counter() - began, peer.cpu_s() - cpu


def until_out(peer: Peer, size: int) -> float:
    """Waits until so many bytes of records lie in the tier; returns how many do."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = sum(
            each.stat().st_size for each in (peer.folder / "tier").rglob(f"{TOPIC}/*/*/*")
            if each.parent.name == "COMMIT_LOG"
        )  # fmt: skip
        if found >= size:
            return found
        time.sleep(0.02)
    raise TimeoutError(f"{peer.name} has not written out what it has")


def one(peer: Peer, count: int, figures: Figures) -> None:
    peer.start_broker()
    began = time.monotonic()
    ends = fill(peer.port, count)
    peer.stop_broker()
    peer.launch(tieredStoreFilePath=peer.folder / "tier", tieredStorageLevel="FORCE",
                **SETTINGS[peer.name])  # fmt: skip
    peer._until(peer.port, send_frame("bench-start"))
    fill(peer.port, AT_ONCE)  # Apache's looks at queues that something comes into
    if time.monotonic() - began > OLDEST_S:
        raise TimeoutError(
            "it took so long to fill the broker that Apache's lets some go: less --mb"
        )
    size = sum(ends.values()) * len(BODY)
    works: dict[str, Callable[[], Any]] = {
        "written out": lambda: until_out(peer, size),
        "read from the tier": lambda: read_all(peer.port, ends),
    }
    for what, work in works.items():
        done, took, cpu = measured(peer, work)
        figures.add(what, peer.name, "MB/s", done / took / 1e6, smaller=False)
        figures.add(f"{what}, processor time", peer.name, "s/GB", cpu / done * 1e9)
    peer.stop_broker()


def bench(given: Given) -> list[Row]:
    figures = Figures("1 KiB")
    for _ in range(given.rounds):
        for name in given.peers:
            with peer_of(name) as peer:
                one(peer, (given.mb << 20) // len(BODY), figures)
    return figures.rows
