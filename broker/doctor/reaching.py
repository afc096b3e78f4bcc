"""What listens at an address, found out with one connection or two."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import socket
import ssl

from broker.remoting.client import RemotingClient, parse_address
from broker.wire import http2
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command

__all__ = ["ServerKind", "can_connect", "kind_of", "speaks_tls", "why_no_broker"]

_CONNECT_S = 3.0
#: A server that was busy for one answer gets this long for another.
_AGAIN_S = 10.0


class ServerKind(enum.Enum):
    """What an address turned out to be."""

    BROKER = "broker"
    NAME_SERVER = "name server"
    PROXY = "proxy"
    TLS = "a server that speaks TLS only"
    UNKNOWN = "not RocketMQ"
    SILENT = "nobody"
    NO_SUCH_HOST = "no such host"


async def can_connect(address: str) -> str:
    """Returns why a connection fails; empty: it does not."""
    host, port = parse_address(address)
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"no answer within {_CONNECT_S:g} s"
    except socket.gaierror as unknown:
        return unknown.strerror or "the name is unknown"
    except OSError as failed:
        return os.strerror(failed.errno) if failed.errno else str(failed)
    await _end(writer)
    return ""


async def _end(writer: asyncio.StreamWriter) -> None:
    """Ends a connection at once: whoever says goodbye in TLS may wait half a minute for the
    answer."""
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def kind_of(
    address: str, client: RemotingClient, tls: ssl.SSLContext | None = None
) -> tuple[ServerKind, str]:
    """Returns what listens there, and why it is not a server of RocketMQ. client: speaks TLS or
    not, as the user wants; tls: whom it trusts. Raises: ValueError for a malformed address."""
    host, _ = parse_address(address)
    try:
        await asyncio.get_running_loop().getaddrinfo(host, None)
    except socket.gaierror as unknown:
        return ServerKind.NO_SUCH_HOST, unknown.strerror or str(unknown)
    refused = await can_connect(address)
    if refused:
        return ServerKind.SILENT, refused
    try:
        answer = await _asked(address, client)
    except (OSError, TimeoutError) as failed:
        return await _other_kind(address, tls), str(failed)
    if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return ServerKind.BROKER, ""
    return ServerKind.NAME_SERVER, ""


async def _asked(address: str, client: RemotingClient) -> Command:
    """Asks twice: one answer may be late where much is done; a second one is waited for longer.
    Raises: OSError, TimeoutError."""
    command = Command(RequestCode.GET_BROKER_RUNTIME_INFO)
    try:
        return await client.request(address, command)
    except TimeoutError:
        if await speaks_tls(address):  # which asks nothing of who does not
            raise
        again = Command(RequestCode.GET_BROKER_RUNTIME_INFO)
        return await client.request(address, again, _AGAIN_S)


async def why_no_broker(address: str, client: RemotingClient) -> str:
    """Returns why clients that are sent to an address find no broker there; empty: they do. Whoever
    maps ports (docker's proxy, a load balancer) accepts connections for a server that is not
    there."""
    kind, why = await kind_of(address, client)
    if kind in (ServerKind.BROKER, ServerKind.TLS):
        return ""
    if kind in (ServerKind.SILENT, ServerKind.NO_SUCH_HOST):
        return why or kind.value
    if kind is ServerKind.UNKNOWN:
        return f"it accepts connections, but no broker answers ({why})"
    return f"a {kind.value} answers there"


async def _other_kind(address: str, tls: ssl.SSLContext | None) -> ServerKind:
    if await _speaks_http2(address, tls):
        return ServerKind.PROXY
    if await speaks_tls(address):
        return ServerKind.TLS
    return ServerKind.UNKNOWN


async def _speaks_http2(address: str, tls: ssl.SSLContext | None) -> bool:
    """Says whether a gRPC service answers, in plain text or to whom TLS trusts."""
    host, port = parse_address(address)
    if tls is not None:
        tls.set_alpn_protocols(["h2"])  # no service of gRPC answers without it
    try:
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            try:
                writer.write(http2.BEGIN)
                head = await reader.readexactly(9)
            finally:
                await _end(writer)
    except (OSError, TimeoutError, EOFError):
        return False
    return head[3] == http2.SETTINGS


async def speaks_tls(address: str) -> bool:
    """Says whether TLS answers, whoever signed its certificate."""
    host, port = parse_address(address)
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(host, port, ssl=anybody)
    except (OSError, TimeoutError):
        return False
    await _end(writer)
    return True
