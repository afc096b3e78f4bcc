"""A server of `pystore web` over a folder, and a client of it."""

from __future__ import annotations

import contextlib
import http.client
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

from waiting import BOUND_S

from broker.client.credentials import Credentials
from broker.loop.thread import LoopThread
from broker.web.page_server import PageServer
from broker.web.server import FolderServer

__all__ = ["Answer", "Visitor", "visiting", "visiting_server"]


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """What a reader sees: without tags, with entities as letters."""
        return unescape(re.sub(r"<[^>]*>", " ", self.body.decode()))

    def rows(self) -> list[list[str]]:
        """The cells of all rows of tables."""
        return [
            [unescape(re.sub(r"<[^>]*>", "", cell)).strip() for cell in re.findall(
                r"<td[^>]*>(.*?)</td>", row, re.S)]
            for row in re.findall(r"<tr[^>]*>(.*?)</tr>", self.body.decode(), re.S)
        ]  # fmt: skip


class Visitor:
    """Asks a server. token: of the server; None asks as a stranger."""

    def __init__(self, server: PageServer) -> None:
        self.server = server
        self.token: str | None = server.token

    def get(self, path: str, method: str = "GET", headers: dict[str, str] | None = None,
            **query: object) -> Answer:  # fmt: skip
        given = dict(headers or {})
        if self.token is not None:
            given.setdefault("Authorization", f"Bearer {self.token}")
        if query:
            path += "?" + urlencode(query)
        return self._send(method, path, given, None)

    def post(self, path: str, headers: dict[str, str] | None = None, **form: object) -> Answer:
        given = {"Content-Type": "application/x-www-form-urlencoded"} | (headers or {})
        if self.token is not None:
            given["Authorization"] = f"Bearer {self.token}"
        return self._send("POST", path, given, urlencode(form))

    def _send(self, method: str, path: str, headers: dict[str, str], body: str | None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=BOUND_S)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def follow(self, path: str, **query: object) -> Answer:
        """The same, after redirections."""
        answer = self.get(path, **query)
        while answer.status == 303:
            answer = self.get(answer.headers["Location"])
        return answer


@contextlib.contextmanager
def visiting(folder: Path, known: Credentials | None = None, **given: object) -> Iterator[Visitor]:
    """A visitor of a folder's pages. known: with them visitors sign in."""
    with visiting_server(lambda: FolderServer(folder, None, given, "127.0.0.1", 0, known)) as made:
        yield made


@contextlib.contextmanager
def visiting_server(make: Callable[[], PageServer]) -> Iterator[Visitor]:
    thread = LoopThread("web")
    server = make()
    try:
        thread.run(server.start())
        try:
            yield Visitor(server)
        finally:
            thread.run(server.stop())
    finally:
        thread.stop()
