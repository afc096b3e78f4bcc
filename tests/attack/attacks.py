"""The attacks. Each is a function of its target; it gives up what the other end closes."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from broker.grpc.schema import METHODS, SERVICE, pb
from broker.wire import codec, http2
from broker.wire.codes import RequestCode
from broker.wire.command import Command
from broker.wire.http2 import (
    BEGIN,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    grpc_message,
    text,
)

MIB = 1 << 20
#: Seconds that an attack waits for what comes of it.
AFTER_S = 1.0


@dataclass
class Target:
    """ports: of "broker", "grpc" and "names"."""

    ports: dict[str, int]
    random: random.Random

    def connect(self, what: str) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.ports[what]), 30)
        sock.settimeout(10)
        return sock


@contextlib.contextmanager
def many(target: Target, what: str, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(target.connect(what)) for _ in range(count)]


def write(socks: Sequence[socket.socket], data: bytes) -> None:
    for sock in socks:
        with contextlib.suppress(OSError):
            sock.sendall(data)


def read_away(sock: socket.socket, seconds: float = AFTER_S) -> None:
    """What is answered, as long as it comes."""
    sock.settimeout(seconds)
    with contextlib.suppress(OSError):
        while sock.recv(1 << 16):
            pass


def call(stream: int, method: str, more: bytes = b"") -> bytes:
    """HEADERS of a call. more: headers that are encoded already."""
    path = f"/{SERVICE}/{method}"
    return http2.call(stream, path, {"x-mq-client-id": "stranger"}, encoded=more)


def request(method: str, **fields: object) -> bytes:
    return grpc_message(METHODS[method].request(**fields).SerializeToString())


def one_call(target: Target, method: str, body: bytes) -> None:
    with target.connect("grpc") as sock:
        parts = [body[at : at + 16384] for at in range(0, len(body), 16384)]
        data = b"".join(frame(DATA, 0, 1, part) for part in parts[:-1])
        data += frame(DATA, END_STREAM, 1, parts[-1])
        windows = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30))
        with contextlib.suppress(OSError):
            sock.sendall(BEGIN + windows + call(1, method) + data)
            read_away(sock, 3 * AFTER_S)


# ---- unfinished things ----


def large_frames(target: Target) -> None:
    for what in ("broker", "names"):
        with many(target, what, 40) as socks:
            write(socks, struct.pack(">iI", 16 * MIB - 5, 100) + bytes(12 * MIB))
            time.sleep(AFTER_S)


def small_frames(target: Target) -> None:
    with many(target, "broker", 200) as socks:
        write(socks, struct.pack(">iI", 4 * MIB, 100) + bytes(3 * MIB))
        time.sleep(AFTER_S)


def half_calls(target: Target) -> None:
    """Calls whose large headers are a few bytes each: they name an entry of the table."""
    entry = b"\x40" + text(b"authorization") + text(b"x" * 3500)
    with many(target, "grpc", 20) as socks:
        for sock in socks:
            calls = [call(1, "SendMessage", entry)]
            calls += [call(2 * n + 1, "SendMessage", b"\xbe\xbe") for n in range(1, 1000)]
            write([sock], BEGIN + b"".join(calls))
        time.sleep(AFTER_S)


def half_requests(target: Target) -> None:
    body = b"\0" + struct.pack(">I", 120 * MIB) + bytes(16000)
    with many(target, "grpc", 64) as socks:
        write(
            socks,
            BEGIN + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30)) + call(1, "SendMessage"),
        )
        write(socks, frame(DATA, 0, 1, body))
        for _ in range(60):
            write(socks, frame(DATA, 0, 1, bytes(16000)))
        time.sleep(AFTER_S)


def half_proxies(target: Target) -> None:
    with many(target, "grpc", 500) as socks:
        write(socks, b"PROXY TCP4 ")
        time.sleep(2 * AFTER_S)


# ---- many at once ----


def every_code(target: Target) -> None:
    """Each request of the protocol 300 times in one write."""
    ext = {
        "topic": "wide", "group": "g", "consumerGroup": "g", "queueId": "0", "offset": "0",
        "maxMsgNums": "32", "brokerName": "x", "statsName": "TOPIC_PUT_NUMS", "statsKey": "wide",
        "invisibleTime": "1000", "pollTime": "0", "bornTime": "0", "initMode": "0",
        "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "timestamp": "0",
    }  # fmt: skip
    for what in ("broker", "names"):
        for code in RequestCode:
            flood = b"".join(
                codec.encode(Command(code, {**ext, "extraInfo": "x"}, b"{}", opaque=n))
                for n in range(300)
            )
            with target.connect(what) as sock:
                write([sock], flood)
                read_away(sock, 0.05)


def routes(target: Target) -> None:
    for method, fields in (
        ("QueryRoute", {"topic": pb.Resource(name="wide")}),
        ("QueryAssignment", {"topic": pb.Resource(name="wide"), "group": pb.Resource(name="g")}),
    ):
        body = request(method, **fields)
        with target.connect("grpc") as sock:
            calls = [
                call(2 * n + 1, method) + frame(DATA, END_STREAM, 2 * n + 1, body)
                for n in range(600)
            ]
            write([sock], BEGIN + b"".join(calls))
            read_away(sock)


def entries(target: Target) -> None:
    """A million entries of an acknowledgement, and a million empty messages."""
    for method, field in (("AckMessage", 3), ("SendMessage", 1)):
        data = bytes([field << 3 | 2, 0]) * 1_000_000
        one_call(target, method, grpc_message(data))


def lists(target: Target) -> None:
    """Bodies of very many entries: a batch, and the lists that each request may bring."""
    ext = {"topic": "wide", "group": "g", "consumerGroup": "g", "clientID": "c", "queueId": "0",
           "a": "g", "b": "wide", "c": "T", "d": "4", "e": "0", "f": "0", "g": "0", "m": "true",
           "l": "0", "j": "0", "i": "", "h": "0"}  # fmt: skip
    one = struct.pack(">iiiii", 23, 0, 0, 0, 1) + b"x" + struct.pack(">h", 0)
    names = ("consumerDataSet", "producerDataSet", "mqSet", "acks", "subscriptionDataSet",
             "topicConfigList", "groupConfigList", "brokerNames")  # fmt: skip
    for count in (2_000, 150_000):
        bodies = [json.dumps({name: [{}] * count}).encode() for name in names]
        table = {"topicConfigSerializeWrapper": {
            "topicConfigTable": {str(n): {"topicName": str(n)} for n in range(count)},
        }}  # fmt: skip
        bodies.append(json.dumps(table).encode())
        sends = [codec.encode(Command(320, ext, one * count, opaque=1))]
        asks = [codec.encode(Command(code, ext, body)) for body in bodies for code in _LISTING]
        for what in ("broker", "names"):
            for data in sends + asks:
                with target.connect(what) as sock:
                    write([sock], data)
                    read_away(sock, 0.05)


#: Requests whose bodies have lists.
_LISTING = (34, 41, 42, 46, 103, 200, 215, 217, 225, 226, 400, 401, 200151)


def strangers(target: Target) -> None:
    """Ever new names of users, with what begins a new line and what speaks to a terminal."""
    with target.connect("broker") as sock:
        for first in range(0, 5000, 100):
            frames = (_of_stranger(n) for n in range(first, first + 100))
            write([sock], b"".join(frames))
            read_away(sock, 0.02)


def _of_stranger(n: int) -> bytes:
    ext = {"AccessKey": f"u{n}\n\x1b[31m" + "x" * 2000, "Signature": "x", "topic": "wide"}
    return codec.encode(Command(310, ext, opaque=n))


# ---- what stays ----

PULL = {
    "consumerGroup": "g", "topic": "full", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
    "subVersion": "0", "expressionType": "TAG",
}  # fmt: skip


def slow_readers(target: Target) -> None:
    """Each asks for more than the system keeps for it and we do, and reads none of it."""
    asks = codec.encode(Command(11, PULL)) * 50
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            sock = stack.enter_context(unread(target, "broker", asks))
            with contextlib.suppress(OSError):
                sock.recv(4)  # it is served: others come after it
        time.sleep(AFTER_S)


def slow_calls(target: Target) -> None:
    """The same over gRPC, with all the room that HTTP/2 has."""
    body = request("QueryRoute", topic=pb.Resource(name="wide"))
    begin = BEGIN + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30))
    begin += frame(SETTINGS, 0, 0, struct.pack(">HI", 4, (1 << 31) - 1))
    calls = b"".join(
        call(2 * n + 1, "QueryRoute") + frame(DATA, END_STREAM, 2 * n + 1, body) for n in range(30)
    )
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(unread(target, "grpc", begin + calls))
            time.sleep(0.002)
        time.sleep(2 * AFTER_S)


def unread(target: Target, what: str, data: bytes) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(5)
    with contextlib.suppress(OSError):
        sock.connect(("127.0.0.1", target.ports[what]))
        sock.sendall(data)
    return sock


def long_bodies(target: Target) -> None:
    """Half a megabyte each, faster than they are read: one kind is refused for what it is."""
    bodies = (b"[" + b"{}," * 170_000 + b"{}]", b'{"clientID":"c","pad":"' + b"y" * 500_000 + b'"}')
    for code, body in zip((400, 34), bodies, strict=True):
        data = codec.encode(Command(code, {}, body))
        with many(target, "broker", 4) as socks:
            end = time.monotonic() + 2 * AFTER_S
            while time.monotonic() < end:
                for sock in socks:
                    sock.settimeout(0.05)
                write(socks, data)


def heartbeats(target: Target) -> None:
    """Ever new groups, then who looks at all of them, then all leave at once."""
    with many(target, "broker", 20) as socks:
        for n in range(60):
            for at, sock in enumerate(socks):
                groups = [{"groupName": f"{'x' * 200}{n}-{at}-{k}"} for k in range(300)]
                body = json.dumps({"clientID": f"c{at}", "producerDataSet": groups}).encode()
                write([sock], codec.encode(Command(34, {}, body)))
        for sock in socks:
            read_away(sock, 0.02)
        with target.connect("broker") as sock:
            write(
                [sock], codec.encode(Command(328)) + codec.encode(Command(300, {"topic": "wide"}))
            )
            read_away(sock)


def members(target: Target) -> None:
    """A large group that changes with each beat of one member."""
    with many(target, "broker", 400) as socks:
        for at, sock in enumerate(socks):
            write([sock], _of_member(at, "wide", 1))
        for version in range(2, 300):
            write(socks[:1], _of_member(0, f"topic-{version}", version))
        time.sleep(AFTER_S)


def _of_member(number: int, topic: str, version: int) -> bytes:
    consumer = {
        "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "subscriptionDataSet": [{"topic": topic, "subString": "*", "subVersion": version}],
    }  # fmt: skip
    body = {"clientID": f"m{number}", "consumerDataSet": [consumer]}
    return codec.encode(Command(34, {}, json.dumps(body).encode()))


def registrations(target: Target) -> None:
    """Hundreds of brokers with a thousand topics each, a few with very many, then all go at once:
    the name server asks nobody for a name."""
    with contextlib.ExitStack() as stack:
        for n in range(200):
            topics = 40_000 if n % 20 == 0 else 1000
            sock = stack.enter_context(target.connect("names"))
            write([sock], _registration(n, topics))
            read_away(sock, 0.02)
        with target.connect("names") as sock:
            for code in (206, 224, 106, 304, 311, 312, 313, 205, 327):
                ext = {"cluster": "c", "brokerName": "b0"}
                write([sock], codec.encode(Command(code, ext)))
            read_away(sock)
    time.sleep(AFTER_S)


def _registration(number: int, topics: int) -> bytes:
    ext = {
        "clusterName": "c", "brokerName": f"b{number}", "brokerAddr": f"1.2.3.4:{number + 1}",
        "brokerId": "0", "haServerAddr": "x",
    }  # fmt: skip
    table: dict[str, object] = {f"t{number}-{n}": {} for n in range(topics)}
    wrapper = {"topicConfigTable": table, "dataVersion": {"counter": number}}
    body = json.dumps({"topicConfigSerializeWrapper": wrapper}).encode()
    return codec.encode(Command(103, ext, body))


# ---- ever new names ----


def locks(target: Target) -> None:
    """Ever new queues of ever new groups are locked."""
    with many(target, "broker", 8) as socks:
        for n in range(200):
            queues = [{"topic": f"{'x' * 100}{n}-{k}", "queueId": k} for k in range(2000)]
            body = {"consumerGroup": f"g{n}", "clientId": "c", "mqSet": queues}
            data = codec.encode(Command(41, {}, json.dumps(body).encode()))
            write([socks[n % len(socks)]], data)
            read_away(socks[n % len(socks)], 0.02)
        for sock in socks:
            read_away(sock)


def tables(target: Target) -> None:
    """Ever new groups are asked for, get modes and offsets, and are forbidden a topic."""
    with many(target, "broker", 4) as socks:
        for n in range(6000):
            group = f"{'x' * 200}{n}"
            mode = {"topic": "full", "consumerGroup": group, "mode": "POP"}
            asks = (
                Command(352, {"group": group}),
                Command(401, {}, json.dumps(mode).encode()),
                Command(353, {"group": group, "topic": "full", "readable": "false"}),
                Command(314, {"srcGroup": "g", "destGroup": group, "topic": "full"}),
            )
            for sock, ask in zip(socks, asks, strict=True):
                write([sock], codec.encode(ask))
            if n % 100 == 0:
                for sock in socks:
                    read_away(sock, 0.005)
        for sock in socks:
            read_away(sock)


def key_values(target: Target) -> None:
    """Ever new namespaces at the name server, and very many keys in one."""
    with target.connect("names") as sock:
        for n in range(2000):
            ext = {"namespace": f"{'x' * 30_000}{n}", "key": "k", "value": ""}
            write([sock], codec.encode(Command(100, ext)))
        for n in range(40_000):
            ext = {"namespace": "n", "key": f"{n:x}", "value": ""}
            write([sock], codec.encode(Command(100, ext)))
            if n % 1000 == 0:
                read_away(sock, 0.005)
        read_away(sock)


# ---- HTTP/2 ----


def bombs(target: Target) -> None:
    """Bytes that name kilobytes of headers: in trailers, and in calls whose headers are a little
    too large; then SETTINGS, each of which changes the windows of thousands of calls."""
    entry = b"\x40" + text(b"x") + text(b"y" * 3900)
    for trailers in (True, False):
        with target.connect("grpc") as sock:
            write([sock], BEGIN + call(1, "Telemetry", entry))
            for stream in range(3, 1000, 2):
                if trailers:
                    end = frame(HEADERS, END_HEADERS | END_STREAM, stream, b"\xbe" * 16000)
                    write([sock], call(stream, "Telemetry") + end)
                else:
                    write([sock], call(stream, "Telemetry", b"\xbe" * 14))
            read_away(sock)
    with target.connect("grpc") as sock:
        write([sock], BEGIN + b"".join(call(2 * n + 1, "Telemetry") for n in range(5000)))
        read_away(sock)
        for n in range(2000):
            write([sock], frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535 + n % 2)))
        read_away(sock)


# ---- nonsense ----


def nonsense(target: Target) -> None:
    """Frames with a few bytes changed, at every port."""
    good = {
        "broker": codec.encode(Command(310, {"a": "g", "b": "wide", "e": "0"}, b"x" * 100)),
        "names": codec.encode(Command(105, {"topic": "wide"})),
        "grpc": BEGIN + call(1, "QueryRoute")
        + frame(DATA, END_STREAM, 1, request("QueryRoute", topic=pb.Resource(name="wide"))),
    }  # fmt: skip
    for what, data in good.items():
        for _ in range(300):
            bad = bytearray(data)
            for _ in range(target.random.randrange(1, 6)):
                bad[target.random.randrange(len(bad))] = target.random.randrange(256)
            with target.connect(what) as sock:
                write([sock], bytes(bad))
                read_away(sock, 0.005)


ATTACKS: dict[str, Callable[[Target], None]] = {
    made.__name__: made
    for made in (
        large_frames, small_frames, half_calls, half_requests, half_proxies, every_code, routes,
        entries, lists, strangers, slow_readers, slow_calls, long_bodies, heartbeats, members,
        registrations, locks, tables, key_values, bombs, nonsense,
    )
}  # fmt: skip
