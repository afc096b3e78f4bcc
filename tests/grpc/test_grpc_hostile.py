"""HTTP/2 by hand, over a socket: too much of everything, malformed frames, clients that never read.
Each ends its own connection at most, and nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from caller import CODE, Caller, message, serving
from waiting import BOUND_S, until

from broker import Broker
from broker.grpc import schema
from broker.grpc._http2 import Service, count_fields
from broker.grpc.http2 import Serving, Stream
from broker.grpc.links import GrpcPort
from broker.grpc.schema import METHODS, SERVICE, DecodeError, pb
from broker.grpc.status import Code
from broker.loop.budget import Budget
from broker.remoting.tls import TlsSettings
from broker.wire import http2
from broker.wire.http2 import (
    BEGIN,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Frame,
    FrameReader,
    frame,
    grpc_message,
    header,
)

CALM = 11


def call(stream: int, method: str = "QueryRoute", flags: int = END_HEADERS) -> bytes:
    return call_of(f"/{SERVICE}/{method}", stream, flags)


def call_of(path: str, stream: int, flags: int = END_HEADERS) -> bytes:
    return http2.call(stream, path, {"x-mq-client-id": "hostile"}, flags=flags)


#: The headers of a call, and one of kilobytes that goes to the table: 0xbe names it.
HEAD = call(1, "Telemetry")[9:]
ENTRY = b"\x40\x01x" + b"\x7f\xbd\x1d" + b"y" * 3900


def request(topic: str = "Normal") -> bytes:
    data = METHODS["QueryRoute"].request(topic=pb.Resource(name=topic)).SerializeToString()
    return grpc_message(data)


@contextmanager
def connected(broker: Broker) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", broker.grpc_port), BOUND_S) as sock:
        sock.sendall(BEGIN)
        yield sock


def frames(sock: socket.socket) -> Iterator[Frame]:
    """kind, flags, stream and payload of each, until the connection is closed."""
    reader = FrameReader()
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65536):
            yield from reader.feed(data)


def flood(sock: socket.socket, pieces: Iterator[bytes]) -> bool:
    """Whether the other end closes the connection before all was written."""
    try:
        for piece in pieces:
            sock.sendall(piece)
    except (ConnectionError, TimeoutError):
        return True
    return False


def fine(broker: Broker) -> bool:
    with Caller(broker.grpc_address) as caller:
        return bool(caller.send(message("Normal")).status.code == CODE.OK)


def test_a_call_by_hand_is_answered(broker: Broker) -> None:
    """What the other tests rest on."""
    with connected(broker) as sock:
        sock.sendall(call(1) + frame(DATA, END_STREAM, 1, request()))
        found = {kind: payload for kind, _, stream, payload in _until_end(sock) if stream == 1}
    reply = METHODS["QueryRoute"].reply.FromString(found[DATA][5:])
    assert reply.status.code == CODE.OK


def _until_end(sock: socket.socket) -> Iterator[Frame]:
    for each in frames(sock):
        yield each
        if each[0] == HEADERS and each[1] & END_STREAM:
            return


def test_calls_that_are_given_up_without_end(broker: Broker) -> None:
    """CVE-2023-44487."""
    one = (call(n) + frame(RST_STREAM, 0, n, struct.pack(">I", 8)) for n in range(1, 200_000, 2))
    with connected(broker) as sock:
        closed = flood(sock, one)
        last = [p for kind, _, _, p in frames(sock) if kind == GOAWAY] if not closed else []
        assert closed or int.from_bytes(last[-1][4:8], "big") == CALM
    assert fine(broker)


@pytest.mark.parametrize(
    "piece",
    [
        pytest.param(frame(PING, 0, 0, bytes(8)), id="pings"),
        pytest.param(frame(SETTINGS, 0, 0, struct.pack(">HI", 3, 100)), id="settings"),
    ],
)
def test_what_must_be_answered_without_reading_answers(broker: Broker, piece: bytes) -> None:
    """The connection is closed, or not read from any more."""
    with connected(broker) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(1)
        assert flood(sock, itertools.repeat(piece * 1000, 20_000))
    assert fine(broker)


def test_headers_without_end(broker: Broker) -> None:
    """CVE-2024-28182."""
    piece = frame(CONTINUATION, 0, 1, header("x", "y" * 100) * 100)
    with connected(broker) as sock:
        sock.sendall(call(1, flags=0))
        assert flood(sock, itertools.repeat(piece, 20_000))
    assert fine(broker)


def test_a_byte_that_names_kilobytes_of_headers(broker: Broker) -> None:
    """An HPACK bomb: the connection ends at the first one."""
    with connected(broker) as sock:
        sock.sendall(frame(HEADERS, END_HEADERS, 1, ENTRY + b"\xbe" * 10_000))
        assert [kind for kind, *_ in frames(sock)].count(HEADERS) == 0  # until it is closed
    assert fine(broker)


def test_a_byte_that_names_kilobytes_of_trailers(broker: Broker) -> None:
    with connected(broker) as sock:
        sock.sendall(frame(HEADERS, END_HEADERS, 1, HEAD + ENTRY))
        sock.sendall(frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\xbe" * 10_000))
        assert [kind for kind, *_ in frames(sock)].count(HEADERS) == 0  # until it is closed
    assert fine(broker)


def test_many_calls_whose_headers_are_some_kilobytes_too_large(broker: Broker) -> None:
    """The first ones are told so, and the connection ends."""
    with connected(broker) as sock:
        blocks = [HEAD + ENTRY] + [HEAD + b"\xbe" * 14] * 20
        calls = [frame(HEADERS, END_HEADERS, 2 * at + 1, each) for at, each in enumerate(blocks)]
        sock.sendall(b"".join(calls))  # at once: the other end may close it at any of them
        answers = [kind for kind, *_ in frames(sock)].count(HEADERS)  # until it is closed
        assert 0 < answers < 20
    assert fine(broker)


@pytest.mark.parametrize(
    "data",
    [
        frame(DATA, 0, 0, b"x"),
        frame(DATA, 0, 5, b"x"),
        frame(HEADERS, END_HEADERS, 2, b"\x82"),
        frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff"),
        frame(SETTINGS, 0, 0, b"abc"),
        frame(PING, 0, 0, b"short"),
        frame(WINDOW_UPDATE, 0, 0, bytes(4)),
        frame(CONTINUATION, 0, 1, b""),
        frame(RST_STREAM, 0, 9, bytes(4)),
        b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    ],
    ids=lambda data: data[:9].hex(),
)
def test_frames_that_cannot_be_end_the_connection(broker: Broker, data: bytes) -> None:
    with connected(broker) as sock:
        sock.sendall(data)
        assert any(kind == GOAWAY for kind, *_ in frames(sock))
    assert fine(broker)


def test_an_error_beside_a_call_in_progress_ends_the_connection(broker: Broker) -> None:
    """As soon as the call is over, although nothing comes from the client any more."""
    with connected(broker) as sock:
        ended = frame(DATA, END_STREAM, 1, request())
        sock.sendall(call(1) + ended + ended)
        assert GOAWAY in [kind for kind, *_ in frames(sock)]  # until it is closed
    assert fine(broker)


def test_calls_beyond_the_limit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.grpc.server._STREAMS_MAX", 10)
    with serving(tmp_path / "store") as broker:
        with connected(broker) as sock:
            all_of = frames(sock)
            for number in range(12):
                sock.sendall(call(2 * number + 1))
            _, _, stream, payload = next(f for f in all_of if f[0] == RST_STREAM)
            assert (stream, int.from_bytes(payload, "big")) == (21, 7)
        assert fine(broker)


def test_a_connection_without_calls_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "rmq-proxy.json"
    path.write_text('{"grpcClientIdleTimeMills": 200}')
    with serving(tmp_path / "store", proxy_conf=path) as broker, connected(broker) as sock:
        assert any(kind == GOAWAY for kind, *_ in frames(sock))


def test_a_client_that_reads_no_replies(broker: Broker) -> None:
    """Calls whose answers it does not take are not read for ever."""
    broker.create_topic("Wide", queues=100)
    assert broker.grpc is not None
    broker.grpc._server._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
    with connected(broker) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(1)
        window = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", (1 << 30)))
        sock.sendall(window)
        pieces = (
            call(n) + frame(DATA, END_STREAM, n, request("Wide")) for n in range(1, 400_000, 2)
        )
        assert flood(sock, pieces)
        assert fine(broker)
    port = broker.grpc._server._port
    assert port is not None
    until(lambda: all(not c.calls for c in port.connections), "calls that are gone")


@pytest.mark.parametrize("how", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_calls_are_unimplemented(broker: Broker, how: grpc.Compression) -> None:
    with Caller(broker.grpc_address, compression=how) as caller:
        with pytest.raises(grpc.RpcError) as failed:
            caller.send(message("Normal", b"x" * 10_000))
        assert failed.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert "identity" in failed.value.details()


def test_a_flood_of_calls_does_not_hold_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a millisecond: others have their turn after a few, and each is answered."""
    now = [1.0]

    async def work() -> None:
        loop = asyncio.get_running_loop()
        served, turns = 0, []
        monkeypatch.setattr("broker.loop.turns.monotonic", lambda: now[0])
        service = Service(((b"/s/Method", False),), 10_000, 1 << 16, 1 << 20, 1 << 20, 1 << 30, ())

        async def serve(stream: Stream, *asked: object) -> None:
            nonlocal served
            served += 1
            now[0] += 0.001
            stream.reply(b"reply")

        def look() -> None:
            turns.append(served)
            if served < 1000:
                loop.call_soon(look)

        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.setblocking(False)
            port = GrpcPort(
                None, service, [], listening,
                Serving(serve, lambda *asked: None, lambda *asked: False),  # type: ignore[arg-type]
                connections_max=9, idle_s=BOUND_S, tls=TlsSettings(), proxies=(),
                gone=lambda address: None,
            )  # fmt: skip
            with socket.create_connection(listening.getsockname(), BOUND_S) as client:
                empty = b"\0" + struct.pack(">I", 0)
                pieces = [call_of("/s/Method", 2 * n + 1) for n in range(1000)]
                ends = [frame(DATA, END_STREAM, 2 * n + 1, empty) for n in range(1000)]
                loop.call_soon(look)
                client.sendall(BEGIN + b"".join(map(bytes.__add__, pieces, ends)))
                while served < 1000:
                    await asyncio.sleep(0)
                assert max(after - before for before, after in pairwise([0, *turns])) < 20
            port.stop()

    asyncio.run(work())


# ---- many of something ----


def fields_of(message: Any) -> int:
    """Fields and elements of a message with those in it, as protobuf itself knows them."""
    count = 0
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            count += 3 * len(value)
        elif isinstance(value, (str, bytes, int, float, bool)):
            count += 1
        elif field.message_type is None and not isinstance(value[0], (str, bytes)):
            count += 1 + len(value)  # packed
        else:
            values = value if isinstance(field.default_value, list) else [value]
            inner = [0 if isinstance(v, (str, bytes)) else fields_of(v) for v in values]
            count += len(values) + sum(inner)
    return count


def test_fields_are_counted_as_protobuf_knows_them() -> None:
    system = pb.SystemProperties(keys=["a", "b", "c"], message_id="id", tag="t")
    properties = {"k": "v", "l": "w"}
    one = pb.Message(
        topic=pb.Resource(name="T"), user_properties=properties, system_properties=system, body=b"x"
    )
    requests: dict[str, Any] = {
        "SendMessage": pb.SendMessageRequest(messages=[one, one, pb.Message()]),
        "AckMessage": pb.AckMessageRequest(
            topic=pb.Resource(name="T"), entries=[pb.AckMessageEntry(receipt_handle="h")] * 5
        ),
        "ReceiveMessage": pb.ReceiveMessageRequest(
            message_queue=pb.MessageQueue(accept_message_types=[1, 2, 3]), batch_size=3
        ),
        "Telemetry": pb.TelemetryCommand(
            settings=pb.Settings(
                subscription=pb.Subscription(
                    subscriptions=[pb.SubscriptionEntry(topic=pb.Resource(name="T"))] * 3
                )
            )
        ),
    }
    for name, request in requests.items():
        data, method = request.SerializeToString(), METHODS[name]
        found = count_fields(data, schema._SHAPES, method.kind, 1000)
        assert found == fields_of(request), name
        assert count_fields(data, schema._SHAPES, method.kind, 3) > 3, name


def test_a_request_of_very_many_fields_is_refused_unparsed(broker: Broker) -> None:
    """Whatever there is many of: a million entries would hold the loop for seconds."""
    many = 200_000
    system = pb.SystemProperties(keys=["k"] * many)
    topics = pb.Publishing(topics=[pb.Resource(name="T")] * many)
    types = pb.MessageQueue(accept_message_types=[1] * many)
    requests: dict[str, Any] = {
        "AckMessage": pb.AckMessageRequest(entries=[pb.AckMessageEntry()] * many),
        "SendMessage": pb.SendMessageRequest(messages=[pb.Message(system_properties=system)]),
        "ReceiveMessage": pb.ReceiveMessageRequest(message_queue=types),
        "Telemetry": pb.TelemetryCommand(settings=pb.Settings(publishing=topics)),
    }
    for name, request in requests.items():
        with pytest.raises(DecodeError, match="more than 100000 fields"):
            METHODS[name].parse(request.SerializeToString())
    with Caller(broker.grpc_address) as caller:
        found = METHODS["AckMessage"].reply.FromString(
            caller.raw("AckMessage", requests["AckMessage"].SerializeToString())
        )
    assert found.status.code == Code.BAD_REQUEST
    assert "more than 100000 fields" in found.status.message


def test_entries_of_one_call_are_bounded(broker: Broker) -> None:
    resources = {"topic": pb.Resource(name="Normal"), "group": pb.Resource(name="g")}
    entry = pb.AckMessageEntry(receipt_handle="no handle", message_id="m")
    with Caller(broker.grpc_address) as caller:
        found = caller("AckMessage", **resources, entries=[entry] * 1025)
        assert found.status.code == Code.BAD_REQUEST
        assert found.status.message == "1025 messages to acknowledge, 1024 are allowed"
        allowed = caller("AckMessage", **resources, entries=[entry] * 1024)
        assert {each.status.code for each in allowed.entries} == {Code.INVALID_RECEIPT_HANDLE}
        found = caller.send(*[pb.Message()] * 4097)
        assert found.status.code == Code.BAD_REQUEST
        assert found.status.message == "4097 messages to send, 4096 are allowed"


def test_a_long_request_without_a_signature_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """By what its prefix says: of a hundred megabytes a few bytes have come."""
    begun = b"\0" + struct.pack(">I", 100 << 20) + bytes(100)
    with (
        serving(tmp_path, authenticationEnabled=True, authorizationEnabled=True) as broker,
        connected(broker) as sock,
    ):
        sock.sendall(call(1, "SendMessage") + frame(DATA, 0, 1, begun))
        found = {kind: payload for kind, _, stream, payload in _until_end(sock) if stream == 1}
    reply = METHODS["SendMessage"].reply.FromString(found[DATA][5:])
    assert reply.status.code == CODE.UNAUTHORIZED


def test_what_open_calls_hold_is_in_the_budget_of_all_connections(broker: Broker) -> None:
    """Their headers are, and what is kept goes with the connection."""
    budget = Budget.of(broker.loop)
    before = budget.held
    with connected(broker) as sock:
        sock.sendall(b"".join(call(2 * n + 1) for n in range(500)))
        until(lambda: budget.held > before + 500 * 512)
    until(lambda: budget.held <= before)


def test_calls_that_their_connection_ends_go_without_the_garbage_collector(broker: Broker) -> None:
    """What a server's process puts aside from it would stay for ever (broker/cli/collecting.py)."""

    def streams() -> int:
        return sum(type(each) is Stream for each in gc.get_objects())

    gc.collect()
    before = streams()
    gc.disable()
    try:
        with connected(broker) as sock:
            sock.sendall(b"".join(call(2 * n + 1, "Telemetry") for n in range(50)))
            until(lambda: streams() >= before + 50, "the calls")
        until(lambda: streams() <= before, "their end")
    finally:
        gc.enable()
