"""The gRPC server: calls in, replies out, on grpcio's asyncio server. The only file beside front.py
that knows which library that is."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from broker.grpc.calls import Call, Handlers
from broker.grpc.front import Address, Front
from broker.grpc.messages import set_millis
from broker.grpc.schema import METHODS, SERVICE, DecodeError, Method
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Code, Problem, of_response
from broker.remoting.command import Refused
from broker.remoting.rate_limited_log import RateLimitedLogger
from broker.remoting.tls import TlsSettings

__all__ = ["GrpcServer"]

_quiet = RateLimitedLogger(logging.getLogger("broker.grpc"))

#: Streams of one connection.
_STREAMS_MAX = 10_000
_HEADERS_MAX = 64 << 10
_PREFIX, _SOCKET = "pystore-grpc-", "socket"
#: Bytes of the path of a Unix socket.
_SOCKET_MAX = 107
#: For the first frames of HTTP/2.
_HANDSHAKE_MS = 10_000


class GrpcServer:
    """handlers: by method name; a method without one is answered as unimplemented. gone: told of
    each client whose connection is closed."""

    def __init__(
        self,
        handlers: Handlers,
        settings: ProxySettings,
        sock: socket.socket,
        *,
        tls: TlsSettings,
        connections_max: int,
        trusts: Callable[[str], bool],
        gone: Callable[[Address], None],
    ) -> None:
        self._handlers = handlers
        self._settings = settings
        self._folder = _own_folder()
        inner = self._folder / _SOCKET
        self._front = Front(sock, inner, tls, connections_max, trusts, gone)
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", self._settings.inbound_max),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", _STREAMS_MAX),
                ("grpc.max_metadata_size", _HEADERS_MAX),
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
                ("grpc.max_connection_idle_ms", self._settings.idle_ms),
                # Java's client pings around its calls, and every 300 s without any.
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
                ("grpc.http2.max_ping_strikes", 0),
            ]
        )
        self._server.add_generic_rpc_handlers((_Table(self._handlers, self._call),))
        self._server.add_insecure_port(f"unix:{self._folder / _SOCKET}")
        await self._server.start()
        self._front.start()

    async def stop(self, drain_s: float) -> None:
        """Answers the calls in progress for drain_s at most."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(drain_s)
        await self._front.stop()
        await asyncio.to_thread(shutil.rmtree, self._folder, True)

    def _call(self, method: str, context: Any) -> Call:
        metadata = {
            name: value
            for name, value in context.invocation_metadata() or ()
            if isinstance(value, str)
        }
        remaining = context.time_remaining()
        address = self._front.address_of(context.peer())
        deadline = None if remaining is None else time.monotonic() + remaining
        return Call(method, metadata, address, deadline)


def _own_folder() -> Path:
    """A new folder that nobody else may look into, whose sockets have names of a legal length."""
    made = Path(tempfile.mkdtemp(prefix=_PREFIX))
    if len(str(made / _SOCKET).encode()) > _SOCKET_MAX:
        made.rmdir()
        made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))
    return made


MakeCall = Callable[[str, Any], Call]


class _Table(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The methods that are served, as the library wants them."""

    def __init__(self, handlers: Handlers, call: MakeCall) -> None:
        self._methods = {
            f"/{SERVICE}/{name}": _method(METHODS[name], handler, call)
            for name, handler in handlers.items()
        }

    def service(self, handler_call_details: Any) -> Any:
        return self._methods.get(handler_call_details.method)


def _method(method: Method, handler: Any, call: MakeCall) -> Any:
    if method.streams_in:
        return grpc.stream_stream_rpc_method_handler(partial(_telemetry, method, handler, call))
    if method.streams_out:
        return grpc.unary_stream_rpc_method_handler(partial(_stream, method, handler, call))
    return grpc.unary_unary_rpc_method_handler(partial(_unary, method, handler, call))


async def _unary(method: Method, handler: Any, call: MakeCall, data: bytes, context: Any) -> bytes:
    try:
        made = call(method.name, context)
        made.client_id  # noqa: B018 - every call names its client
        reply = await handler(made, _parsed(method, data))
    except Exception as error:  # noqa: BLE001 - answered
        reply = method.reply(status=_problem(method, error).status())
    serialized: bytes = reply.SerializeToString()
    return serialized


async def _stream(method: Method, handler: Any, call: MakeCall, data: bytes, context: Any) -> None:
    replies: Any = None
    try:
        made = call(method.name, context)
        made.client_id  # noqa: B018 - every call names its client
        replies = handler(made, _parsed(method, data))
        async for reply in replies:
            await context.write(reply.SerializeToString())
    except Exception as error:  # noqa: BLE001 - answered
        for reply in _last(method, _problem(method, error)):
            await context.write(reply.SerializeToString())
    finally:
        if replies is not None:
            await replies.aclose()


def _last(method: Method, problem: Problem) -> Iterator[Any]:
    """What ends a stream of replies with an error."""
    yield method.reply(status=problem.status())
    if "delivery_timestamp" in method.reply.DESCRIPTOR.fields_by_name:
        made = method.reply()  # clients take it for the end of what they received
        set_millis(made.delivery_timestamp, time.time_ns() // 1_000_000)
        yield made


#: Which end the stream with a status; others with an error of gRPC, as Apache's proxy does.
_ENDS_QUIETLY = (Code.CLIENT_ID_REQUIRED, Code.UNAUTHORIZED)


async def _telemetry(
    method: Method, handler: Any, call: MakeCall, requests: Any, context: Any
) -> None:
    replies: Any = None
    try:
        made = call(method.name, context)
        made.client_id  # noqa: B018 - every call names its client
        replies = handler(made, _all_parsed(method, requests))
        async for reply in replies:
            await context.write(reply.SerializeToString())
        return
    except Exception as error:  # noqa: BLE001 - answered
        problem = _problem(method, error)
    finally:
        if replies is not None:
            await replies.aclose()
    if problem.code in _ENDS_QUIETLY:
        await context.write(method.reply(status=problem.status()).SerializeToString())
        return
    bad = Code.BAD_REQUEST <= problem.code < Code.INTERNAL_ERROR
    code = grpc.StatusCode.INVALID_ARGUMENT if bad else grpc.StatusCode.INTERNAL
    await context.abort(code, problem.text)


def _parsed(method: Method, data: bytes) -> Any:
    try:
        return method.request.FromString(data)
    except DecodeError as bad:
        raise Problem(Code.BAD_REQUEST, f"malformed {method.name} request: {bad}") from None


async def _all_parsed(method: Method, requests: Any) -> AsyncIterator[Any]:
    async for data in requests:
        yield _parsed(method, data)


def _problem(method: Method, error: Exception) -> Problem:
    """What a client is told of an error."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, Refused):
        return Problem(of_response(error.code), error.remark)
    _quiet.error((method.name, type(error)), error, "%s failed", method.name)
    return Problem(Code.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
