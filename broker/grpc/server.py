"""The gRPC server: calls in, replies out."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any

from broker.grpc._http2 import Service
from broker.grpc.calls import HEADERS, Call, Handlers
from broker.grpc.http2 import INTERNAL, Address, Serving, Stream
from broker.grpc.links import GrpcPort, HotCalls
from broker.grpc.messages import set_millis
from broker.grpc.schema import METHODS, SERVICE, DecodeError, Method
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Code, Problem, of_response
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.remoting.tls import TlsSettings
from broker.wire.command import Refused

__all__ = ["GrpcServer"]

_quiet = RateLimitedLogger(SafeLogger("broker.grpc"))

#: Calls of one connection in progress, bytes of a call's headers.
_STREAMS_MAX = 10_000
_HEADERS_MAX = 8 << 10
#: A request that says that it is longer has to prove its client's name before its bytes are read.
_ASK_FROM = 64 << 10
#: A status of gRPC.
_INVALID_ARGUMENT = 3
_POLL_S = 0.02


class GrpcServer:
    """Has calls served by the `handlers`, which are by the name of their method; a method without
    one is answered as unimplemented. `gone` is told of each client whose connection is closed."""

    def __init__(
        self,
        handlers: Handlers,
        settings: ProxySettings,
        sock: socket.socket,
        *,
        tls: TlsSettings,
        connections_max: int,
        proxies: Sequence[tuple[int, int, int]],
        gone: Callable[[Address], None],
        check: Callable[[Call], Awaitable[None]],
        is_known: Callable[[Call], bool],
        hot: HotCalls | None = None,
    ) -> None:
        """Takes the methods, and a bound socket. proxies: as Limits has them. check: raises Problem
        for a call whose signature is wrong or missing. is_known: says whether access control is on
        and the call has a signature that is right, as far as can be told at once. hot: what a
        network thread serves; without it there is none."""
        self._methods = [(METHODS[name], handler) for name, handler in handlers.items()]
        self._check = check
        self._is_known = is_known
        self._service = Service(
            tuple((f"/{SERVICE}/{m.name}".encode(), m.streams_in) for m, _ in self._methods),
            streams_max=_STREAMS_MAX,
            headers_max=_HEADERS_MAX,
            message_max=settings.inbound_max,
            ask_from=_ASK_FROM,
            held_max=2 * settings.inbound_max,
            headers=tuple(name.encode() for name in HEADERS),
        )
        self._serving = Serving(self._serve, self._admit, self._proves)
        self._sock = sock
        self._make_port = partial(
            GrpcPort, hot, self._service, [method.name for method, _ in self._methods], sock,
            self._serving, connections_max=connections_max, idle_s=settings.idle_ms / 1000,
            tls=tls, proxies=proxies, gone=gone,
        )  # fmt: skip
        self._port: GrpcPort | None = None

    async def start(self) -> None:
        self._sock.setblocking(False)
        self._sock.listen(1024)
        self._port = self._make_port()

    async def stop(self, drain_s: float) -> None:
        """Answers the calls in progress for drain_s at most."""
        port, self._port = self._port, None
        if port is not None:
            port.deafen()
            for connection in port.connections:
                connection.leave()
            until = time.monotonic() + drain_s
            while port.calls and time.monotonic() < until:
                await asyncio.sleep(_POLL_S)
            for connection in port.connections:
                connection.give_up()
            await asyncio.sleep(0)  # what was said last is written
            await asyncio.sleep(0)
            port.stop()
        self._sock.close()

    @property
    def connection_count(self) -> int:
        return len(self._port.connections) if self._port is not None else 0

    def settings_changed(self) -> None:
        """Takes over what has changed in the settings. Raises: OutOfMemory."""
        if self._port is not None:
            self._port.settings_changed()

    def times(self) -> dict[str, tuple[list[int], float]]:
        """Returns of each method that was called, answered calls by how long they took, and the
        seconds of all."""
        rows = zip(self._methods, self._service.times(), strict=True)
        return {method.name: row for (method, _), row in rows if any(row[0])}

    async def _admit(
        self, number: int, address: Address, metadata: dict[str, str], deadline: float | None
    ) -> bytes | None:
        method = self._methods[number][0]
        try:
            await self._check(Call(method.name, metadata, address, deadline))
        except Exception as error:  # noqa: BLE001 - answered
            return _failed(method, error)
        return None

    def _proves(self, address: Address, metadata: dict[str, str]) -> bool:
        return self._is_known(Call("", metadata, address, None))

    def _serve(
        self,
        stream: Stream,
        number: int,
        data: bytes,
        found: Any,
    ) -> Coroutine[Any, Any, None]:
        method, handler = self._methods[number]
        call = Call(
            method.name, stream.metadata, stream.address, stream.deadline, found, stream.hold
        )  # fmt: skip
        if method.streams_in:
            return _telemetry(method, handler, call, stream)
        if method.streams_out:
            return _stream(method, lambda: _called(method, handler, call, data), stream)
        return _unary(method, handler, call, data, stream)


async def _unary(method: Method, handler: Any, call: Call, data: bytes, stream: Stream) -> None:
    try:
        call.client_id  # noqa: B018 - every call names its client
        reply = (await handler(call, _parsed(method, data))).SerializeToString()
    except Exception as error:  # noqa: BLE001 - answered
        reply = _failed(method, error)
    stream.reply(reply)


def _failed(method: Method, error: Exception) -> bytes:
    """Returns the reply that says so."""
    data: bytes = method.reply(status=_problem(method, error).status()).SerializeToString()
    return data


def _called(method: Method, handler: Any, call: Call, data: bytes) -> Any:
    call.client_id  # noqa: B018 - every call names its client
    return handler(call, _parsed(method, data))


async def _stream(method: Method, call: Callable[[], Any], stream: Stream) -> None:
    """Serves a call that streams. call: gives the replies, an async generator."""
    replies: Any = None
    try:
        replies = call()
        async for reply in replies:
            await stream.write(reply if isinstance(reply, bytes) else reply.SerializeToString())
    except Exception as error:  # noqa: BLE001 - answered
        for last in _last(method, error):
            await stream.write(last)
    finally:
        if replies is not None:
            await replies.aclose()
    stream.finish()


def _last(method: Method, error: Exception) -> Iterator[bytes]:
    """Yields what ends a stream of replies with an error."""
    yield _failed(method, error)
    if "delivery_timestamp" in method.reply.DESCRIPTOR.fields_by_name:
        made = method.reply()  # clients take it for the end of what they received
        set_millis(made.delivery_timestamp, time.time_ns() // 1_000_000)
        yield made.SerializeToString()


#: Which end the stream with a status; others with an error of gRPC, as Apache's proxy does.
_ENDS_QUIETLY = (Code.CLIENT_ID_REQUIRED, Code.UNAUTHORIZED)


async def _telemetry(method: Method, handler: Any, call: Call, stream: Stream) -> None:
    replies: Any = None
    try:
        call.client_id  # noqa: B018 - every call names its client
        replies = handler(call, _all_parsed(method, stream.requests()))
        async for reply in replies:
            await stream.write(reply.SerializeToString())
        stream.finish()
        return
    except Exception as error:  # noqa: BLE001 - answered
        problem = _problem(method, error)
    finally:
        if replies is not None:
            await replies.aclose()
    if problem.code in _ENDS_QUIETLY:
        await stream.write(method.reply(status=problem.status()).SerializeToString())
        stream.finish()
        return
    bad = Code.BAD_REQUEST <= problem.code < Code.INTERNAL_ERROR
    stream.finish(_INVALID_ARGUMENT if bad else INTERNAL, problem.text)


def _parsed(method: Method, data: bytes) -> Any:
    try:
        return method.parse(data)
    except DecodeError as bad:
        raise Problem(Code.BAD_REQUEST, f"malformed {method.name} request: {bad}") from None


async def _all_parsed(method: Method, requests: Any) -> AsyncIterator[Any]:
    async for data in requests:
        yield _parsed(method, data)


def _problem(method: Method, error: Exception) -> Problem:
    """Returns what a client is told of an error."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, Refused):
        return Problem(of_response(error.code), error.remark)
    _quiet.error((method.name, type(error)), error, "%s failed", method.name)
    return Problem(Code.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
