"""The HTTP port of the metrics: scrapes, /health and /ready.

A GET of any path but these two answers with all metrics, as upstream's exporter does. Bounds, since
whoever reaches the port may ask: so many connections, each with so long a head that must come
within so many seconds, no bodies, one page under construction that all who ask meanwhile get, and
so long for reading it. A connection that keeps to none of them is closed.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

from broker.loop.http_bounds import CONNECTIONS_MAX, HEAD_MAX, HEAD_S
from broker.loop.lifetime import end_tasks
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.wire.command import Body

__all__ = ["MetricsEndpoint", "ProbeCheck", "verdict"]

log = SafeLogger("broker.metrics")
_quiet = RateLimitedLogger(log)

#: Seconds to read an answer, and between two requests.
READ_S = 30.0
IDLE_S = 120.0

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"
_REASONS = {
    200: "OK", 400: "Bad Request", 405: "Method Not Allowed", 413: "Content Too Large",
    431: "Request Header Fields Too Large", 500: "Internal Server Error",
    503: "Service Unavailable",
}  # fmt: skip


class ProbeCheck(NamedTuple):
    """One thing that was looked at. reason: what is wrong, or how it is; for people."""

    name: str
    ok: bool
    reason: str


def verdict(checks: Sequence[ProbeCheck]) -> tuple[int, bytes]:
    """Returns the status and the body of /health or /ready."""
    good = all(check.ok for check in checks)
    body = {
        "status": "ok" if good else "failing",
        "checks": [check._asdict() for check in checks],
    }
    return (200 if good else 503), json.dumps(body, indent=1).encode() + b"\n"


class ProbedFigures(Protocol):
    """What has metrics, and says how it is."""

    async def page(self) -> Sequence[Body]: ...

    def health(self) -> Sequence[ProbeCheck]: ...

    def ready(self) -> Sequence[ProbeCheck]: ...


class MetricsEndpoint:
    """One port."""

    def __init__(
        self,
        sock: socket.socket,
        figures: ProbedFigures,
    ) -> None:
        self.port: int = sock.getsockname()[1]
        self._sock = sock
        self._page = figures.page
        self._checks = {"/health": figures.health, "/ready": figures.ready}
        self._server: asyncio.Server | None = None
        self._pages: asyncio.Task[Sequence[Body]] | None = None
        self.connections: set[_Connection] = set()

    async def start(self) -> None:
        """Opens the port. Raises: OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), sock=self._sock, backlog=CONNECTIONS_MAX
        )

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for each in list(self.connections):
            each.abort()
        await end_tasks(self._pages)
        await asyncio.sleep(0)

    async def respond(self, method: str, path: str) -> tuple[int, str, Sequence[Body]]:
        """Returns status, type and the parts of the body."""
        if method not in ("GET", "HEAD"):
            return 405, _JSON, [b'{"error": "GET and HEAD are served"}\n']
        checks = self._checks.get(path)
        try:
            if checks is not None:
                status, body = verdict(checks())
                return status, _JSON, [body]
            return 200, _TEXT, await self._shared_page()
        except Exception as failed:  # noqa: BLE001 - one scrape must not end the server
            _quiet.error(type(failed), failed, "A scrape failed")
            return 500, _JSON, [b'{"error": "the scrape failed; see the log"}\n']

    async def _shared_page(self) -> Sequence[Body]:
        """Returns a page; whoever asks while a page is made gets the same one."""
        if self._pages is None or self._pages.done():
            self._pages = asyncio.get_running_loop().create_task(self._made())
        return await asyncio.shield(self._pages)

    async def _made(self) -> Sequence[Body]:
        return await self._page()


class _Connection(asyncio.Protocol):
    """One client, whose requests are answered one after the other."""

    def __init__(self, endpoint: MetricsEndpoint) -> None:
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._head = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._work: asyncio.Task[None] | None = None
        self._written: asyncio.Event | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's classes, but have their methods.
        self._transport = cast(asyncio.Transport, transport)
        if len(self._endpoint.connections) >= CONNECTIONS_MAX:
            _quiet.warning(
                "connections", "%d clients are connected to the metrics; one more is refused",
                CONNECTIONS_MAX,
            )  # fmt: skip
            self._transport.abort()
            return
        self._endpoint.connections.add(self)
        self._limit(HEAD_S)

    def connection_lost(self, error: Exception | None) -> None:
        self._endpoint.connections.discard(self)
        self._limit(None)
        if self._work is not None:
            self._work.cancel()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _limit(self, seconds: float | None) -> None:
        """Gives it so much time for what comes next."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self.abort)

    def data_received(self, data: bytes) -> None:
        self._head += data
        if self._work is None:
            self._next()
        elif len(self._head) > HEAD_MAX:
            self.abort()

    def _next(self) -> None:
        end = self._head.find(b"\r\n\r\n")
        if end < 0 and len(self._head) <= HEAD_MAX:
            return
        if end < 0 or end > HEAD_MAX:
            self._refuse(431)
            return
        head, self._head = bytes(self._head[:end]), self._head[end + 4 :]
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._refuse(400)
        elif "transfer-encoding" in fields or fields.get("content-length", "0") != "0":
            self._refuse(413)
        else:
            keep = words[2] == "HTTP/1.1" and fields.get("connection", "").lower() != "close"
            self._limit(READ_S)
            self._work = self._loop.create_task(self._serve(words[0], words[1], keep))

    async def _serve(self, method: str, target: str, keep: bool) -> None:
        path = target.partition("?")[0]
        status, kind, parts = await self._endpoint.respond(method, path)
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._written is not None:
            await self._written.wait()
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {sum(map(len, parts))}\r\nX-Content-Type-Options: nosniff\r\n"
            f"Connection: {'keep-alive' if keep else 'close'}\r\n\r\n"
        ).encode()
        transport.writelines([head] if method == "HEAD" else [head, *parts])
        while self._written is not None:
            await self._written.wait()
        self._work = None
        if not keep:
            transport.close()
            return
        self._limit(IDLE_S)
        self._next()

    def _refuse(self, status: int) -> None:
        assert self._transport is not None
        self._transport.write(
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Length: 0\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        self._transport.close()

    def pause_writing(self) -> None:
        self._written = asyncio.Event()

    def resume_writing(self) -> None:
        written, self._written = self._written, None
        if written is not None:
            written.set()
