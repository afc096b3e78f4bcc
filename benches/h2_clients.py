"""gRPC consumers that are held in ReceiveMessage, thousands in a process: as little of HTTP/2 as
they need (broker/wire/http2.py), so that they cost the machine less than the server that is
measured: what the server says is looked at only where a stream has data or ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable

from broker.grpc.schema import METHODS, SERVICE, pb
from broker.wire import http2

__all__ = ["hold"]

TOPIC, POLL_S = "bench", 20
#: Clients of a group: a broker holds 1,024 pops of one at the most (popPollingSize).
_OF_A_GROUP = 500
#: A poll that ends sooner was refused.
_SOON_S = 1.0
#: Clients that connect at the same time: each waits for the answer to its settings.
_AT_ONCE = 50
#: A connection that was closed before that is made again after so many seconds.
_AGAIN_S = 1.0
#: Seconds in which a client has that answer.
_SETTLED_S = 300.0
_TELEMETRY = 1
_WINDOW_BYTES = 1 << 30


def _headers(method: str, stream: int, client: str, more: dict[str, str]) -> bytes:
    named = {"x-mq-client-id": client, "x-mq-language": "PYTHON", "x-mq-client-version": "5.1.2"}
    return http2.call(stream, f"/{SERVICE}/{method}", named | more)


def _request(stream: int, message: bytes, flags: int) -> bytes:
    return http2.frame(http2.DATA, flags, stream, http2.grpc_message(message))


def _settings(group: str) -> bytes:
    every = pb.FilterExpression(type=pb.FilterType.TAG, expression="*")
    entry = pb.SubscriptionEntry(topic=pb.Resource(name=TOPIC), expression=every)
    settings = pb.Settings(
        client_type=pb.ClientType.SIMPLE_CONSUMER,
        subscription=pb.Subscription(group=pb.Resource(name=group), subscriptions=[entry]),
    )
    data: bytes = pb.TelemetryCommand(settings=settings).SerializeToString()
    return data


def _poll(group: str) -> bytes:
    data: bytes = METHODS["ReceiveMessage"].request(
        group=pb.Resource(name=group),
        message_queue=pb.MessageQueue(topic=pb.Resource(name=TOPIC)),
        filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
        batch_size=32, invisible_duration=pb.Duration(seconds=30),
        long_polling_timeout=pb.Duration(seconds=POLL_S),
    ).SerializeToString()  # fmt: skip
    return data


class _Client(asyncio.Protocol):
    """settled: set when the server has answered its settings. lost: told why the connection has
    ended."""

    def __init__(self, number: int, lost: Callable[[str], None]) -> None:
        self._name = f"idle-{os.getpid()}-{number}"
        self._group = f"idle{number // _OF_A_GROUP}"
        self._asked = 0.0
        self._lost = lost
        self._frames = http2.FrameReader()
        self._stream = _TELEMETRY
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(
            http2.BEGIN
            + http2.frame(http2.WINDOW_UPDATE, 0, 0, _WINDOW_BYTES.to_bytes(4, "big"))
            + _headers("Telemetry", _TELEMETRY, self._name, {})
            + _request(_TELEMETRY, _settings(self._group), 0)
        )

    def connection_lost(self, error: Exception | None) -> None:
        self._end(f"closed: {error}")

    def _end(self, why: str) -> None:
        if not self.settled.done():
            self.settled.set_exception(ConnectionError(why))
        elif not self.settled.exception():
            self._lost(why)

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            self._take(frame)

    def _take(self, frame: http2.Frame) -> None:
        transport = self._transport
        assert transport is not None
        telemetry = frame.stream == _TELEMETRY
        if frame.answer:
            transport.write(frame.answer)
        elif frame.kind == http2.GOAWAY or (telemetry and frame.ends):
            self._end(f"the server ended it with a frame of type {frame.kind}")
        elif frame.kind == http2.DATA and telemetry and not self.settled.done():
            status = pb.TelemetryCommand.FromString(frame.payload[5:]).status
            if status.code != pb.Code.OK:
                self._end(f"its settings were refused: {status}")
                return
            self.settled.set_result(None)
            self._ask(transport)
        elif frame.stream == self._stream and frame.ends:
            if time.monotonic() - self._asked < _SOON_S:
                self._end("a poll was refused")
            self._ask(transport)

    def _ask(self, transport: asyncio.Transport) -> None:
        """Again and again, as consumers do."""
        self._stream += 2
        self._asked = time.monotonic()
        timeout = {"grpc-timeout": f"{POLL_S + 10}S"}
        transport.write(
            _headers("ReceiveMessage", self._stream, self._name, timeout)
            + _request(self._stream, _poll(self._group), http2.END_STREAM)
        )


async def hold(address: str, count: int, progress: Callable[[int], None]) -> asyncio.Future[str]:
    """Once this returns, so many clients are held; the future says why the first one is not any
    more. progress: told how many are. Raises: OSError, TimeoutError."""
    host, port = address.rsplit(":", 1)
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[str] = loop.create_future()
    turn = asyncio.Semaphore(_AT_ONCE)
    held = 0

    def gone(why: str) -> None:
        if not lost.done():
            lost.set_result(why)

    async def one(number: int) -> None:
        nonlocal held
        async with turn, asyncio.timeout(_SETTLED_S):
            while True:
                _, client = await loop.create_connection(
                    lambda: _Client(number, gone), host, int(port)
                )
                with contextlib.suppress(ConnectionError):
                    await client.settled
                    break
                await asyncio.sleep(_AGAIN_S)  # a busy server closes what it could not greet
        held += 1
        progress(held)

    await asyncio.gather(*(one(number) for number in range(count)))
    return lost
