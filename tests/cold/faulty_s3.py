"""An S3 server that fails: it stands in front of a sound one. What it answers wrongly it answers
rightly the next time, to whoever asks next."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

__all__ = ["FaultyS3", "faulty_s3"]

_SLOW_DOWN = (
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
#: Headers that are of one connection.
_HOPS = {"connection", "transfer-encoding", "content-length", "date", "server", "keep-alive"}


class FaultyS3(ThreadingHTTPServer):
    """away: nobody is answered. fails: one request in `seldom` of each sort, in each of its ways by
    turns. faults: how often each was met. late_s: how late an answer is, which is to be longer than
    the client waits. watch: called with method and path of each request, and whether it was passed
    on; where it says so there is no answer, and nothing is passed on any more."""

    daemon_threads = True

    def __init__(self, behind: str, rng: random.Random, host: str, seldom: int) -> None:
        super().__init__((host, 0), _Handler)
        self.behind, self.rng, self.seldom = urlsplit(behind).netloc, rng, seldom
        self.away = self.fails = False
        self.late_s = 2.0
        self.watch: Callable[[str, str, bool], bool] | None = None
        self.faults: Counter[str] = Counter()
        self._asked: Counter[tuple[str, ...]] = Counter()
        self._lock = threading.Lock()
        self._failed: set[str] = set()

    @property
    def address(self) -> str:
        return "http://{}:{}".format(*self.server_address[:2])

    def is_over(self, method: str, path: str, passed: bool) -> bool:
        return self.watch is not None and self.watch(method, path, passed)

    def fault(self, key: str, kinds: tuple[str, ...]) -> str:
        """Returns how a request for a key fails; nothing: it does not."""
        with self._lock:
            if self.away:
                self.faults["away"] += 1
                return "closed"
            self._asked[kinds] += self.fails
            number, fails = divmod(self._asked[kinds], self.seldom)
            if not self.fails or fails or key in self._failed:
                self._failed.discard(key)
                return ""
            self._failed.add(key)
            kind = kinds[number % len(kinds)]
            self.faults[kind] += 1
            return kind

    def handle_error(self, *_: object) -> None:
        """Says nothing of a client that no longer waits."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyS3

    def _serve(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kinds: tuple[str, ...] = ("closed", "busy", "late")
        if self.command == "PUT":
            kinds = ("closed", "lost", "busy", "late")
        elif self.command == "GET" and "/COMMIT_LOG/" in self.path:
            kinds = ("closed", "cut", "wrong", "busy", "late")
        if self.server.is_over(self.command, self.path, False):
            self.close_connection = True
            return
        kind = self.server.fault(self.path, kinds)
        if kind == "closed":
            self.close_connection = True
            return
        if kind == "busy":
            self._answer(503, {"Content-Type": "application/xml"}, _SLOW_DOWN)
            return
        if kind == "late":
            time.sleep(self.server.late_s)
        status, headers, body = self._ask(sent)
        if self.server.is_over(self.command, self.path, True) or kind == "lost":
            self.close_connection = True
            return
        if kind == "wrong" and body:
            at = self.server.rng.randrange(len(body))
            body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        self._answer(status, headers, body, cut=kind == "cut")

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _serve

    def _ask(self, sent: bytes) -> tuple[int, dict[str, str], bytes]:
        link = http.client.HTTPConnection(self.server.behind, timeout=60)
        try:
            link.request(self.command, self.path, sent, dict(self.headers))
            answer = link.getresponse()
            headers = {n: v for n, v in answer.getheaders() if n.lower() not in _HOPS}
            if self.command == "HEAD":
                headers["Content-Length"] = answer.getheader("Content-Length") or "0"
            return answer.status, headers, answer.read()
        finally:
            link.close()

    def _answer(
        self, status: int, headers: dict[str, str], body: bytes, *, cut: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = self.close_connection or cut

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def faulty_s3(
    behind: str, rng: random.Random, host: str = "127.0.0.1", seldom: int = 5, named: bool = True
) -> Iterator[FaultyS3]:
    """Yields the server; it fails once that is set. host: an address of this one. named: as the
    environment's, where clients look for one."""
    server = FaultyS3(behind, rng, host, seldom)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            if named:
                patch.setenv("AWS_ENDPOINT_URL", server.address)
            yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
