"""Connections that begin with a PROXY header at a broker; csrc/tests/test_proxyheader.c has what a
header may be."""

from __future__ import annotations

import ipaddress
import socket
import struct
from contextlib import contextmanager

import pytest
from fakes import send_command
from holding import tls_of_server
from waiting import BOUND_S, until

from broker.broker import Broker
from broker.loop import rate_limited_log
from broker.remoting.connection import Limits
from broker.remoting.tls import TlsSettings, client_context
from broker.wire import codec
from broker.wire.codes import RequestCode as Code
from broker.wire.codes import ResponseCode
from broker.wire.command import Command

V2 = b"\r\n\r\n\0\r\nQUIT\n"


def v2(address="10.1.2.3", command=1, extra=b""):
    packed = ipaddress.ip_address(address).packed
    body = packed + packed + struct.pack(">HH", 4711, 9876) + extra
    family = 0x11 if len(packed) == 4 else 0x21
    return V2 + struct.pack(">BBH", 0x20 | command, family, len(body)) + body


V1 = b"PROXY TCP4 10.1.2.3 127.0.0.1 4711 9876\r\n"
KINDS = {
    "v1 TCP4": (V1, ("10.1.2.3", 4711)),
    "v1 TCP6": (b"PROXY TCP6 2001:db8::7 ::1 4711 9876\r\n", ("2001:db8::7", 4711)),
    "v1 UNKNOWN": (b"PROXY UNKNOWN\r\n", None),
    "v2 TCP4": (v2(), ("10.1.2.3", 4711)),
    "v2 TCP6": (v2("2001:db8::7"), ("2001:db8::7", 4711)),
    "v2 IPv4 as IPv6": (v2("::ffff:10.1.2.3"), ("10.1.2.3", 4711)),
    "v2 with the longest TLV": (v2(extra=b"\x04\x0f\xf1" + bytes(4081)), ("10.1.2.3", 4711)),
    "v2 LOCAL": (v2(command=0), None),
    "v2 a socket of the file system": (V2 + b"\x21\x31\0\xd8" + bytes(216), None),
}


class Client:
    def __init__(self, port, source=""):
        self.sock = socket.create_connection(("127.0.0.1", port), BOUND_S, (source, 0))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def say(self, data, pieces=1 << 20):
        for at in range(0, len(data), pieces):
            self.sock.sendall(data[at : at + pieces])

    def answer(self):
        file = self.sock.makefile("rb")
        head = file.read(4)
        return codec.decode(head + file.read(struct.unpack(">i", head)[0]))

    def ask(self, command):
        self.say(codec.encode(command))
        return self.answer()

    def is_closed(self):
        try:
            return not self.sock.recv(1)
        except ConnectionResetError:
            return True

    def born_host(self, answer):
        """Of the message that a send was answered for, as it is on the disk."""
        assert answer.code == 0, answer.remark
        place = int(answer.ext["msgId"][-16:], 16)
        return bytes(self.ask(Command(Code.VIEW_MESSAGE_BY_ID, {"offset": str(place)})).body)[48:]


def send():
    return send_command("T")


def on_disk(source):
    return ipaddress.ip_address(source[0]).packed + struct.pack(">i", source[1])


@contextmanager
def started(path, small, **more):
    with Broker(path / "s", listenPort=0, bindAddress="127.0.0.1", **small, **more) as broker:
        broker.create_topic("T", queues=1)
        yield broker


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    sizes = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 6000}
    with started(tmp_path_factory.mktemp("handed"), sizes) as broker:
        yield broker


@pytest.fixture
def warnings(caplog, monkeypatch):
    """Every warning is logged, however many of its kind were before."""
    monkeypatch.setattr(rate_limited_log, "PAUSE_S", 0.0)
    return caplog


@pytest.mark.parametrize("pieces", [1, 1 << 20], ids=["byte by byte", "at once"])
@pytest.mark.parametrize("name", KINDS)
def test_a_record_is_of_whom_the_header_names(served, name, pieces):
    """In its first request, and in what comes later."""
    header, source = KINDS[name]
    with Client(served.port) as client:
        expected = on_disk(source or client.sock.getsockname())
        client.say(header + codec.encode(send()), pieces)
        for answer in (client.answer(), client.ask(send())):
            assert client.born_host(answer).startswith(expected)
    until(lambda: served._listeners.main.connection_count == 0)


def test_python_sees_the_same_address(served):
    """Of a request that only it serves, and in the lists of clients."""
    with Client(served.port) as client:
        client.say(V1)
        client.ask(send())
        (connection,) = until(lambda: served._listeners.main.connections)
        assert connection.address == ("10.1.2.3", 4711)
        assert connection.local == client.sock.getpeername()
    until(lambda: served._listeners.main.connection_count == 0)


@pytest.mark.parametrize("after", [V1, v2(), b"GET / HTTP/1.1\r\n"])
def test_a_second_header_is_refused(served, after, warnings):
    with Client(served.port) as client:
        client.say(V1 + after + codec.encode(send()))
        assert client.is_closed()
    until(lambda: "Closed 10.1.2.3:4711: malformed frame" in warnings.text)
    until(lambda: served._listeners.main.connection_count == 0)


@pytest.mark.parametrize(
    "header", [b"PROXY x\r\n", b"POST / HTTP/1.1\r\n\r\n", b"\r\n\r\n\r\n", V2 + b"\x31\x11\0\x0c"]
)
def test_what_is_no_header_is_refused(served, header, warnings):
    with Client(served.port) as client:
        client.say(header + bytes(200))
        assert client.is_closed()
    until(lambda: "malformed frame" in warnings.text)


def test_a_header_of_a_stranger_is_refused_before_anything_follows(tmp_path, small, warnings):
    with started(tmp_path, small, trustedProxies="127.0.0.2") as broker:
        with Client(broker.port, "127.0.0.3") as client:
            client.say(V1)
            assert client.is_closed()
        until(lambda: "PROXY header refused: the peer is not in trustedProxies" in warnings.text)
        with Client(broker.port, "127.0.0.2") as client:
            client.say(V1)
            assert client.ask(send()).code == 0


@pytest.mark.parametrize(
    "begin", [b"P", b"\r", b"PROXY TCP4 10.", V2, V1, v2(command=0), b"\x16\x03\x01"]
)
def test_a_beginning_that_does_not_go_on_is_closed(tmp_path, small, begin, monkeypatch, warnings):
    """Of a header, of TLS, or of what follows a header. One that has said nothing is idle, which
    is another limit."""
    limits = Limits(opening_s=0.1)
    monkeypatch.setattr("broker.listeners.Limits", lambda **more: limits)
    with started(tmp_path, small) as broker, Client(broker.port) as silent:
        with Client(broker.port) as client:
            client.say(begin)
            assert client.is_closed()
        until(lambda: "handshake timed out" in warnings.text)
        assert silent.ask(send()).code == 0


@pytest.mark.parametrize("begin", [b"P", V1[:-1], V1, v2(command=0)])
def test_a_peer_that_leaves_is_no_warning(served, begin, warnings):
    """As a proxy does that asks whether we are there."""
    with Client(served.port) as client:
        client.say(begin)
    with Client(served.port) as later:
        assert later.ask(send()).code == 0
    until(lambda: served._listeners.main.connection_count == 0)
    assert not warnings.records


def test_half_headers_count_as_connections(tmp_path, small, monkeypatch):
    monkeypatch.setattr("broker.listeners.Limits", lambda **more: Limits(connections_max=2))
    with (
        started(tmp_path, small) as broker, Client(broker.port) as one, Client(broker.port) as two
    ):  # fmt: skip
        for each in (one, two):
            each.say(V1[:5])
        until(lambda: broker._listeners.main.connection_count == 2)
        with Client(broker.port) as three:
            assert three.ask(send()).code == ResponseCode.SYSTEM_BUSY
        one.say(V1[5:])
        assert one.ask(send()).code == 0


def test_who_waits_with_half_a_header_does_not_hold_up_the_end(tmp_path, small):
    with started(tmp_path, small) as broker:
        half = Client(broker.port)
        half.say(V1[:9])
        until(lambda: broker._listeners.main.connection_count == 1)
    with half:
        assert half.is_closed()


# ---- TLS after it ----


@pytest.mark.parametrize("own", [True, False], ids=["a certificate", "one that is made"])
def test_tls_after_a_header_is_served(tmp_path, small, own):
    tls = TlsSettings.from_names(tls_of_server(tmp_path) if own else {})
    with started(tmp_path, small, tls=tls) as broker, Client(broker.port) as client:
        client.say(V1)
        client.sock = client_context().wrap_socket(client.sock)
        assert client.born_host(client.ask(send())).startswith(on_disk(("10.1.2.3", 4711)))


@pytest.mark.parametrize(
    ("mode", "after", "why"),
    [
        ("disabled", b"\x16\x03\x01", "TLS refused: tls.server.mode is disabled"),
        ("enforcing", codec.encode(send()), "plain text refused: tls.server.mode is enforcing"),
    ],
)
def test_the_mode_of_tls_holds_after_a_header(tmp_path, small, mode, after, why, warnings):
    with started(tmp_path, small, tls=TlsSettings(mode=mode)) as broker:
        with Client(broker.port) as client:
            client.say(V1 + after)
            assert client.is_closed()
        until(lambda: f"Closed 10.1.2.3:4711: {why}" in warnings.text)


def test_a_handshake_that_fails_is_logged_with_the_source(tmp_path, small, warnings):
    tls = TlsSettings.from_names(tls_of_server(tmp_path))
    with started(tmp_path, small, tls=tls) as broker:
        with Client(broker.port) as client:
            client.say(V1 + b"\x16\x03\x01\x00\x05hello" + bytes(100))
            while not client.is_closed():
                pass  # an alert comes first
        until(lambda: "Closed 10.1.2.3:4711: the TLS handshake failed" in warnings.text)
