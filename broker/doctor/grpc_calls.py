"""Calls of RocketMQ 5's gRPC service by a client that makes one call a connection: what a proxy
tells its clients."""

from __future__ import annotations

import asyncio
import ssl
import struct
import time
from typing import Any

from broker.access.signature import Credentials
from broker.remoting.client import parse_address
from broker.wire import http2

__all__ = ["ProxyCalls"]

_CALL_S = 5.0
_REPLY_MAX = 16 << 20
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
        from broker.grpc.schema import SERVICE

        host, port = parse_address(self._where)
        if self._tls is not None:
            self._tls.set_alpn_protocols(["h2"])
        async with asyncio.timeout(_CALL_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=self._tls)
            try:
                scheme = "https" if self._tls else "http"
                writer.write(
                    http2.PREFACE
                    + http2.frame(http2.SETTINGS, 0, 0, _BEGIN[0])
                    + http2.frame(http2.WINDOW_UPDATE, 0, 0, _BEGIN[1])
                    + http2.call(
                        1, f"/{SERVICE}/{method}", self._headers(),
                        authority=self._where, scheme=scheme,
                    )
                    + http2.frame(
                        http2.DATA, http2.END_STREAM if ends else 0, 1, http2.grpc_message(request)
                    )
                )  # fmt: skip
                return await _first_message(reader, writer)
            finally:
                writer.transport.abort()

    def _headers(self) -> dict[str, str]:
        from broker.grpc.access import ALGORITHM, signature_of

        made = {
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


async def _first_message(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Reads the first message. Raises: OSError when the call ends without one."""
    data, frames = bytearray(), http2.FrameReader()
    while part := await reader.read(1 << 16):
        for each in frames.feed(part):
            writer.write(each.answer)
            if each.kind == http2.DATA:
                data += each.data
                end = 5 + int.from_bytes(data[1:5], "big") if len(data) >= 5 else 5
                if end > _REPLY_MAX:
                    raise OSError(f"the reply has {end} bytes")
                if len(data) >= end:
                    return bytes(data[5:end])
            if each.ends or each.kind == http2.GOAWAY:
                raise OSError("the call ended without a reply")
    raise OSError("the connection was closed during a call")
