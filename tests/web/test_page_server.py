"""Who may ask `pystore web`, the headers of every answer, and hostile content."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import Visitor, visiting
from waiting import BOUND_S, until

import pystore
from broker.metrics import endpoint
from broker.web import page_server
from broker.web.server import COOKIE, HEADERS

HOSTILE = (
    "<script>document.title = 'owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    '"><svg onload=alert(1)>',
    "{{ 7 * 7 }}{% raw %}",
    "</pre></td></table><h1>gone",
    "\u202eevil\u202c",
    "\x1b[2J\x00\x07\x9b",
    "javascript:alert(1)",
    "a" * 70_000,
    "&lt;b&gt;",
    "\ufeff\u2028\u2029",
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bodies, keys, tags and properties that would like to be more than text."""
    path = tmp_path_factory.mktemp("web") / "store"
    with pystore.open(
        path, mappedFileSizeCommitLog=4 << 20, mappedFileSizeConsumeQueue=6000,
        maxMessageSize=1 << 18,
    ) as made:  # fmt: skip
        for text in HOSTILE:
            short = re.sub(r"[\x00-\x1f]", "?", text)[:200]
            made.put(
                "evil", text.encode("utf-8", "surrogatepass"), queue=0, keys=short, tags=short,
                properties={"name": short, short.replace(" ", "_")[:100]: "value"},
            )  # fmt: skip
    return path


@pytest.fixture
def visitor(store: Path) -> Iterator[Visitor]:
    with visiting(store) as made:
        yield made


def connected(visitor: Visitor, sent: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", visitor.server.port), BOUND_S)
    made.sendall(sent)
    return made


def left_of(connection: socket.socket) -> bytes:
    """What comes until the other end closes it."""
    found = b""
    with connection:
        try:
            while data := connection.recv(65536):
                found += data
        except ConnectionResetError:
            pass
    return found


def test_malformed_requests_are_refused_with_one_line(
    visitor: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    for sent in [b"GET / HTTP/1.1\r\na b: c\r\n\r\n"] * 30 + [b"\x16\x03\x01\r\n\r\n"] * 30:
        assert left_of(connected(visitor, sent)).startswith(b"HTTP/1.0 400") or sent[0] == 22
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.exc_info for record in said] == [None]
    assert "malformed request" in caplog.text


def test_half_a_request_is_closed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "HEAD_S", 0.2)
    with visiting(store) as visitor:
        assert left_of(connected(visitor, b"GET / HT")) == b""


def test_connections_are_limited(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the rule of the metrics port. When one goes, another comes in."""
    assert page_server.CONNECTIONS_MAX == endpoint.CONNECTIONS_MAX
    monkeypatch.setattr(page_server, "CONNECTIONS_MAX", 3)
    with visiting(store) as visitor:
        held = [connected(visitor, b"GET / HT") for _ in range(3)]
        server = visitor.server._runner.server
        until(lambda: len(server.connections) == 3, "all of them")
        assert left_of(connected(visitor, b"GET / HT")) == b""
        for each in held:
            each.close()
        until(lambda: not server.connections, "none of them")
        assert visitor.get("/").status == 200


PATHS = (
    "/", "/topic?name=evil", "/topic?name=%3Cb%3E", "/find", "/find?topic=evil&key=none",
    "/message?at=0", "/message?at=1", "/message?at=-1", "/body?at=0", "/record?at=0", "/verify",
    "/waiting",
    "/style.css", "/nothing", "/../../etc/passwd", "/topics?q=%3Cscript%3E", "/topics?page=x",
    "/doctor",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_has_strict_headers(visitor: Visitor, path: str) -> None:
    for token in (visitor.server.token, None):
        visitor.token = token
        answer = visitor.get(path)
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy and "script-src" not in policy


@pytest.mark.parametrize("path", [path for path in PATHS if path != "/style.css"])
def test_a_stranger_sees_nothing(visitor: Visitor, path: str) -> None:
    for token in (None, "", "wrong", visitor.server.token[:-1]):
        visitor.token = token
        answer = visitor.get(path)
        assert answer.status == 403
        assert b"evil" not in answer.body.replace(b"name=evil", b"")


def test_the_page_that_refuses_a_stranger_is_styled(visitor: Visitor) -> None:
    visitor.token = None
    style = visitor.get("/style.css")
    assert style.status == 200 and "Content-Security-Policy" in style.headers
    assert visitor.get("/style.css", headers={"Host": "evil.example"}).status == 403


def test_the_printed_address_lets_a_browser_in(visitor: Visitor) -> None:
    secret, visitor.token = visitor.token, None
    answer = visitor.get("/", token=secret)
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    name = cookie.partition("=")[0]
    assert name == f"{COOKIE}-{visitor.server.port}", "a second server does not overwrite it"
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert visitor.get("/", headers={"Cookie": f"{name}={secret}"}).status == 200
    assert visitor.get("/", headers={"Cookie": f"{name}=x"}).status == 403
    assert visitor.get("/", token="wrong").status == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_another_name_of_this_host_is_refused(visitor: Visitor, host: str) -> None:
    """A page elsewhere may have its own name lead here."""
    assert visitor.get("/", headers={"Host": host}).status in (400, 403)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST:80"])
def test_names_of_the_loopback_are_ours(visitor: Visitor, host: str) -> None:
    assert visitor.get("/", headers={"Host": host}).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_reading_is_served(visitor: Visitor, method: str) -> None:
    assert visitor.get("/verify?run=1", method=method).status == 405


def test_hostile_content_is_text(visitor: Visitor, store: Path) -> None:
    """No page has an element, an attribute or a control character that a message brought."""
    with pystore.Reader(store) as reader:
        places = [message.physical_offset for message in reader.read("evil", 0, 0)]
    paths = ["/topic?name=evil", "/find?topic=evil&key=none", *(f"/message?at={p}" for p in places)]
    assert len(places) == len(HOSTILE)
    allowed = {
        "html", "head", "meta", "title", "link", "body", "a", "header", "nav", "p", "bdi", "main",
        "h1", "h2", "dl", "div", "dt", "dd", "pre", "details", "summary", "table", "thead",
        "tbody", "tr", "th", "td", "form", "label", "input", "button", "footer", "b", "span",
        "section", "svg", "rect",
    }  # fmt: skip
    for path in paths:
        page = visitor.get(path).body.decode()
        tags = re.findall(r"<(/?[a-zA-Z!][^\s>]*)[^>]*>", page)
        assert {tag.strip("/").lower() for tag in tags} <= allowed | {"!doctype"}, path
        assert not re.search(r"<[^>]*\son\w+=", page), path
        assert page.count("<svg") == page.count('<svg class="amount"'), "a bar of ours"
        assert not re.search(r"<[^>]*\s(style|src)=", page), path
        assert not re.search(r"href=\"(?![/#])", page), path
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page), path
        assert "49" not in re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.S), "a template ran"


def test_what_is_asked_for_is_text_as_well(visitor: Visitor) -> None:
    page = visitor.get("/topics", q='"><script>alert(1)</script>').body.decode()
    assert "<script" not in page
    assert "<script" not in visitor.get("/topic", name="<script>").body.decode()
