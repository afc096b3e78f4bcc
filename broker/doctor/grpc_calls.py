"""Calls of RocketMQ 5's gRPC service by a client that makes one call a connection: what a proxy
tells its clients."""

from __future__ import annotations

import asyncio
import ssl
import struct
import time
from collections.abc import Mapping
from typing import Any

from broker.access.signature import Credentials
from broker.remoting.client import parse_address

__all__ = ["ProxyCalls"]

_CALL_S = 5.0
_REPLY_MAX = 16 << 20
#: HTTP/2 (RFC 9113): the beginning of a connection; frames and their flags.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK, _END_STREAM, _END_HEADERS, _PADDED = 1, 1, 4, 8
_WINDOW = (1 << 31) - 1
_BEGIN = (
    # INITIAL_WINDOW_SIZE, and as much for the connection, which has 65,535 bytes already.
    struct.pack(">HI", 4, _WINDOW),
    struct.pack(">I", _WINDOW - 65_535),
)


class ProxyCalls:
    """where: host:port of the service. tls: whom it trusts; None: plain text. credentials: sign
    the calls."""

    def __init__(
        self, where: str, tls: ssl.SSLContext | None, credentials: Credentials | None
    ) -> None:
        self._where, self._tls, self._credentials = where, tls, credentials

    async def route(self, topic: str) -> Any:
        """Returns pb.QueryRouteResponse. Raises: OSError, TimeoutError."""
        from broker.grpc.routes import endpoints_of
        from broker.grpc.schema import pb

        host, port = parse_address(self._where)
        asked = pb.QueryRouteRequest(
            topic=pb.Resource(name=topic), endpoints=endpoints_of(host, port)
        )
        return pb.QueryRouteResponse.FromString(
            await self._reply("QueryRoute", asked.SerializeToString())
        )

    async def settings(self) -> Any:
        """Returns pb.TelemetryCommand: what a producer is to keep to. Raises: OSError,
        TimeoutError."""
        from broker.grpc.schema import pb

        asked = pb.TelemetryCommand(settings=pb.Settings(client_type=pb.ClientType.PRODUCER))
        asked.settings.publishing.SetInParent()
        return pb.TelemetryCommand.FromString(
            await self._reply("Telemetry", asked.SerializeToString(), ends=False)
        )

    async def _reply(self, method: str, request: bytes, *, ends: bool = True) -> bytes:
        """Returns the first message of the reply. ends: nothing follows the request."""
        host, port = parse_address(self._where)
        if self._tls is not None:
            self._tls.set_alpn_protocols(["h2"])
        async with asyncio.timeout(_CALL_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=self._tls)
            try:
                writer.write(
                    _PREFACE
                    + _frame(_SETTINGS, 0, 0, _BEGIN[0])
                    + _frame(_WINDOW_UPDATE, 0, 0, _BEGIN[1])
                    + _frame(_HEADERS, _END_HEADERS, 1, _block(self._headers(method)))
                    + _frame(_DATA, _END_STREAM if ends else 0, 1, _message(request))
                )
                return await _first_message(reader, writer)
            finally:
                writer.transport.abort()

    def _headers(self, method: str) -> dict[str, str]:
        from broker.grpc.access import ALGORITHM, signature_of
        from broker.grpc.schema import SERVICE

        made = {
            ":method": "POST", ":scheme": "https" if self._tls else "http",
            ":path": f"/{SERVICE}/{method}", ":authority": self._where,
            "content-type": "application/grpc", "te": "trailers",
            "x-mq-client-id": f"pystore-doctor@{time.time_ns()}", "x-mq-language": "PYTHON",
            "x-mq-client-version": "5.0.0", "x-mq-protocol": "v2",
        }  # fmt: skip
        known = self._credentials
        if known is not None:
            date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            signature = signature_of(known.secret_key, date).upper()
            made["x-mq-date-time"] = date
            made["authorization"] = (
                f"{ALGORITHM} Credential={known.access_key},"
                f" SignedHeaders=x-mq-date-time, Signature={signature}"
            )
        return made


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes((kind, flags))
        + struct.pack(">I", stream)
        + payload
    )


def _message(data: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(data)) + data


def _block(headers: Mapping[str, str]) -> bytes:
    """Encodes as HPACK (RFC 7541): each header in full, as one that is not remembered."""
    made = bytearray()
    for name, value in headers.items():
        made.append(0)
        for text in (name, value):
            data = text.encode()
            made += _length(len(data)) + data
    return bytes(made)


def _length(number: int) -> bytes:
    """Encodes an integer with a prefix of seven bits."""
    if number < 127:
        return bytes((number,))
    made, rest = bytearray((127,)), number - 127
    while rest >= 128:
        made.append(rest & 127 | 128)
        rest >>= 7
    made.append(rest)
    return bytes(made)


async def _first_message(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Reads the first message. Raises: OSError when the call ends without one."""
    data = bytearray()
    while True:
        head = await _exactly(reader, 9)
        size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        payload = await _exactly(reader, size)
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            answer = payload if kind == _PING else b""
            writer.write(_frame(kind, _ACK, 0, answer))
        elif kind == _DATA:
            data += payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload
            if len(data) >= 5:
                end = 5 + int.from_bytes(data[1:5], "big")
                if end > _REPLY_MAX:
                    raise OSError(f"the reply has {end} bytes")
                if len(data) >= end:
                    return bytes(data[5:end])
        if kind in (_RST_STREAM, _GOAWAY) or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
            raise OSError("the call ended without a reply")


async def _exactly(reader: asyncio.StreamReader, size: int) -> bytes:
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        raise OSError("the connection was closed during a call") from None
