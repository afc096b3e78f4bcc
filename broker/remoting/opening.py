"""The first bytes of an accepted connection: a proxy's header, then TLS or not
(docs/internals/wire.md#connections).

HAProxy's PROXY protocol, version 1:
    ``PROXY TCP4|TCP6 source destination source-port destination-port CR LF``, 107 bytes at most, or
    ``PROXY UNKNOWN ... CR LF``.

Version 2:

| offset | width | meaning |
|---|---|---|
| 0 | 12 | signature CR LF CR LF 0 CR LF Q U I T LF |
| 12 | 1 | version 2 in the high half; command in the low half: 0 LOCAL, 1 PROXY |
| 13 | 1 | address family in the high half: 1 IPv4, 2 IPv6; protocol in the low half |
| 14 | 2 | bytes that follow: addresses, ports, then what we pass over |
| 16 | 4 or 16 | source address, then destination address, source port, destination port |

None of these, nor a TLS record (0x16), can be the begin of a frame: its first byte is the top one
of a length of 16 MiB at most.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.remoting.tls import TlsIntake, TlsSettings
from broker.wire.codec import BadFrame
from pystore.errors import BadArgument

if TYPE_CHECKING:
    from broker.remoting.connection import Connection, Parts

__all__ = [
    "Opening",
    "ProxyHeader",
    "RefusedOpening",
    "begins_tls",
    "context_of",
    "proxied",
    "source_of",
]

V1 = b"PROXY "
V1_MAX = 107
V2 = b"\r\n\r\n\0\r\nQUIT\n"
V2_HEAD = 16
V2_MAX = 4096
TLS_HANDSHAKE = 0x16
#: A proxy's header in full, and a first frame beside it.
ROOM = 8192


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """A proxy's header. `size` is its length in bytes, 0 when there is none; `source` is None when
    it names none."""

    size: int
    source: tuple[str, int] | None = None


def proxied(data: bytes | bytearray | memoryview) -> ProxyHeader | None:
    """Returns the proxy's header that `data` begins with, or None while more bytes are needed to
    tell.

    Raises: BadFrame for a malformed header."""
    head = bytes(data[: max(V1_MAX, V2_HEAD)])
    if not head:
        return None
    if head.startswith(V1):
        return _text(head)
    if head.startswith(V2):
        return _binary(bytes(data[: V2_HEAD + V2_MAX]))
    if V1.startswith(head) or V2.startswith(head):
        return None
    return ProxyHeader(0)


def _text(head: bytes) -> ProxyHeader | None:
    end = head.find(b"\r\n")
    if end < 0:
        if len(head) >= V1_MAX:
            raise BadFrame("unterminated PROXY line")
        return None
    words = head[:end].split(b" ")
    if words[1] == b"UNKNOWN":
        return ProxyHeader(end + 2)
    try:
        if len(words) != 6 or words[1] not in (b"TCP4", b"TCP6"):
            raise ValueError
        address = ipaddress.ip_address(words[2].decode("ascii"))
        port = int(words[4])
        if address.version != int(words[1][3:]) or not 0 <= port <= 65535 or b"%" in words[2]:
            raise ValueError
    except ValueError:
        raise BadFrame(f"malformed PROXY line: {head[:end]!r}") from None
    return ProxyHeader(end + 2, (str(address), port))


def _binary(data: bytes) -> ProxyHeader | None:
    if len(data) < V2_HEAD:
        return None
    kind, family, length = struct.unpack_from(">BBH", data, len(V2))
    if kind >> 4 != 2 or kind & 15 > 1:
        raise BadFrame(f"unknown PROXY version and command {kind:#04x}")
    if length > V2_MAX:
        raise BadFrame(f"PROXY header of {length} bytes is too long")
    if len(data) < V2_HEAD + length:
        return None
    size = V2_HEAD + length
    width = {1: 4, 2: 16}.get(family >> 4)
    if kind & 15 == 0 or width is None:  # the proxy's own check, or no internet address
        return ProxyHeader(size)
    if length < 2 * width + 4:
        raise BadFrame("the PROXY header is shorter than its addresses")
    address = ipaddress.ip_address(data[V2_HEAD : V2_HEAD + width])
    (port,) = struct.unpack_from(">H", data, V2_HEAD + 2 * width)
    return ProxyHeader(size, (str(address), port))


# ---- who is let in: the rules of every port ----


class RefusedOpening(BadFrame):
    """Raised for a connection that is closed because of how it begins; `detail` is the cause, if it
    differs from one to the next."""

    def __init__(self, why: str, detail: str = "") -> None:
        super().__init__(f"{why}: {detail}" if detail else why)
        self.why, self.detail = why, detail


def source_of(
    found: ProxyHeader, address: tuple[str, int], trusts: Callable[[str], bool]
) -> tuple[str, int]:
    """Returns for whom a connection from `address` speaks. `trusts` returns whether a PROXY header
    of a peer at this address is believed. Raises: RefusedOpening."""
    if found.size and not trusts(address[0]):
        raise RefusedOpening("PROXY header refused: the peer is not in trustedProxies")
    return found.source or address


def begins_tls(first: int, tls: TlsSettings, *, private: bool = False) -> bool:
    """Returns whether a connection with this first byte speaks TLS; `private` means that nobody can
    listen in between. Raises: RefusedOpening when the mode does not allow what it speaks."""
    speaks = first == TLS_HANDSHAKE
    if speaks and tls.mode == "disabled":
        raise RefusedOpening("TLS refused: tls.server.mode is disabled")
    if not speaks and tls.mode == "enforcing" and not private:
        raise RefusedOpening("plain text refused: tls.server.mode is enforcing")
    return speaks


def context_of(tls: TlsSettings) -> ssl.SSLContext:
    """Returns the context of a server. Raises: RefusedOpening when there is no certificate; plain
    text is served all the same."""
    try:
        return tls.server_context()
    except BadArgument as why:
        raise RefusedOpening("TLS refused", why.text) from None


class Opening:
    """The intake of a connection until its first bytes are known."""

    def __init__(
        self,
        connection: Connection,
        tls: TlsSettings,
        seconds: float,
        trusts: Callable[[str], bool] = lambda host: True,
    ) -> None:
        """Begins a connection. trusts: returns whether a PROXY header of a peer at this address is
        believed."""
        self._connection = connection
        self._trusts = trusts
        self._tls = tls
        #: Made when bytes come: thousands of connections may be there that have not said a word.
        self._room = bytearray()
        self._filled = 0
        self._proxy_done = False
        #: Where in the room waits what a TLS handshake begins with.
        self._waits_at = 0
        self._waits = False
        # A proxy's header or a handshake that does not come to its end holds a connection for
        # nothing; one that says nothing at all is idle, which is another limit.
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def buffer(self, hint: int) -> memoryview:
        if not self._room:
            self._room = bytearray(ROOM)
        return memoryview(self._room)[self._filled :]

    def received(self, count: int) -> None:
        if not count:
            if self._waits:
                self._enter(memoryview(self._room)[self._waits_at : self._filled])
            return
        self._filled += count
        connection = self._connection
        if self._timer is None:
            late = asyncio.get_running_loop().call_later
            self._timer = late(self._seconds, connection.abort, "handshake timed out")
        data = memoryview(self._room)[: self._filled]
        at = 0
        if not self._proxy_done:
            found = proxied(data)
            if found is None:
                return
            self._proxy_done = True
            try:
                connection.address = source_of(found, connection.address, self._trusts)
            except RefusedOpening as refused:
                self._refuse(refused)
                return
            at = found.size
            if at == self._filled:
                self._filled = 0
                return
        self._waits_at = at
        self._enter(data[at:])

    def _enter(self, data: memoryview) -> None:
        connection = self._connection
        try:
            context = None
            if begins_tls(data[0], self._tls, private=connection.in_process):
                if not self._tls.is_ready and not self._waits:
                    self._waits = True
                    loop = asyncio.get_running_loop()
                    connection.read_on_after(loop.run_in_executor(None, self._tls.prepare))
                    return
                context = context_of(self._tls)
        except RefusedOpening as refused:
            self._refuse(refused)
            return
        if context is not None:
            tls = TlsIntake(connection, context, True, self.closed)
            connection.intake = tls
            tls.take(data)
            return
        self.closed()
        connection.intake = None
        connection.opened()
        connection.feed(data)

    def _refuse(self, refused: RefusedOpening) -> None:
        self.closed()
        self._connection.abort(refused.why, refused.detail)

    def write(self, parts: Parts) -> None:
        """Writes, since a service may speak first although nothing was asked yet."""
        self._connection.write_out(parts)

    def finish(self) -> None:
        """Does nothing: there is nothing to end."""

    def closed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
