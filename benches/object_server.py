"""A folder as an S3 bucket, for benches: each request waits, and some fail.

It knows what reading a tier asks for: ranges of objects, and listings. It runs in a process of its
own, and counts.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import itemgetter
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from benches.harness import ROOT, command_of

__all__ = ["ADDRESS", "ObjectServer", "serving"]

BUCKET = "bucket"
#: Keys of a listing.
PAGE = 1000
ADDRESS = f"s3://{BUCKET}"


class _Bucket(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, delay_s: float, fails: float) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.folder, self.delay_s, self.fails = folder, delay_s, fails
        self.rng = random.Random(49)
        self.requests = self.sent = 0
        files = (path for path in folder.rglob("*") if path.is_file())
        #: Keys and sizes, by key: nobody writes there meanwhile.
        self.listing = sorted((f.relative_to(folder).as_posix(), f.stat().st_size) for f in files)
        #: The most requests of which each began after the one before it had been answered.
        self.in_sequence = 0


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Bucket

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        server.requests += 1
        place = server.in_sequence + 1
        time.sleep(server.delay_s)
        server.in_sequence = max(server.in_sequence, place)
        url = urlsplit(self.path)
        key = unquote(url.path).removeprefix(f"/{BUCKET}").lstrip("/")
        if server.rng.random() < server.fails:
            self._answer(503, b"<Error><Code>SlowDown</Code></Error>")
        elif key:
            self._give(server.folder / key)
        else:
            self._list({name: values[0] for name, values in parse_qs(url.query).items()})

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _give(self, path: Path) -> None:
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        try:
            size = os.fstat(fd).st_size
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            at, end = int(first), min(size, int(last) + 1)
            self.send_response(206)
            self.send_header("Content-Length", str(end - at))
            self.send_header("Content-Range", f"bytes {at}-{end - 1}/{size}")
            self.send_header("Last-Modified", self.date_time_string())
            self.send_header("ETag", '"1"')
            self.end_headers()
            self.wfile.flush()
            self.server.sent += end - at
            while at < end:
                at += os.sendfile(self.connection.fileno(), fd, at, end - at)
        finally:
            os.close(fd)

    def _list(self, asked: dict[str, str]) -> None:
        prefix = asked.get("prefix", "")
        after = asked.get("continuation-token") or asked.get("start-after", "")
        listing, found, below = self.server.listing, list[tuple[str, int]](), set[str]()
        at = bisect_right(listing, max(prefix, after), key=itemgetter(0))
        for key, size in listing[at:]:
            if not key.startswith(prefix) or len(found) == PAGE:
                break
            inner, slash, _ = key[len(prefix) :].partition("/")
            if slash and asked.get("delimiter") == "/":
                below.add(f"{prefix}{inner}/")
            else:
                found.append((key, size))
        more = len(found) == PAGE
        last = escape(found[-1][0]) if more else ""
        token = f"<NextContinuationToken>{last}</NextContinuationToken>" if more else ""
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>1</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, size in found
        )
        folders = "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>"
            for each in sorted(below)
        )
        body = (
            f"<ListBucketResult><Name>{BUCKET}</Name>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{contents}{folders}"
            "</ListBucketResult>"
        )
        self._answer(200, body.encode(), Content_Type="application/xml")


def run(folder: str, delay_ms: float, fails: float) -> None:
    import threading

    server = _Bucket(Path(folder), delay_ms / 1000, fails)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while sys.stdin.readline():
        print(server.requests, server.sent, server.in_sequence, flush=True)


class ObjectServer:
    """The server of a folder, in a process of its own."""

    def __init__(self, folder: Path, delay_ms: float, fails: float) -> None:
        """fails: the share of requests that are answered with 503."""
        self._process = subprocess.Popen(
            command_of(run, str(folder), delay_ms, fails),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def counts(self) -> tuple[int, int, int]:
        """Returns how many requests there were, how many bytes of objects it gave, and how many
        requests followed each other: as many delays nobody is spared."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        requests, sent, in_sequence = map(int, process.stdout.readline().split())
        return requests, sent, in_sequence

    def stop(self) -> None:
        self._process.communicate("")


@contextmanager
def serving(folder: Path, delay_ms: float = 30, fails: float = 0.01) -> Iterator[ObjectServer]:
    """Serves a folder as s3://bucket; the environment names the server meanwhile."""
    server = ObjectServer(folder, delay_ms, fails)
    before = dict(os.environ)
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}", "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1",
    }  # fmt: skip
    try:
        yield server
    finally:
        os.environ.clear()
        os.environ.update(before)
        server.stop()
