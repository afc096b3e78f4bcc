"""TLS that ends in a network thread: what the thread reads, whom it refuses, what it survives."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from unittest.mock import Mock

import pytest
from fakes import send_command
from holding import tls_of_server
from popping import records
from waiting import BOUND_S, until, until_async

from broker.broker import Broker
from broker.client.admin import AsyncAdmin
from broker.client.errors import BrokerRefused
from broker.grpc.proxy import Proxy
from broker.loop import rate_limited_log
from broker.namesrv.server import NameServer
from broker.remoting import certificates
from broker.remoting import tls as tls_module
from broker.remoting.client import RemotingClient
from broker.remoting.selfsigned import self_signed
from broker.remoting.tls import TlsSettings, client_context
from broker.wire import codec
from broker.wire.codes import RequestCode as Code
from broker.wire.command import Command, texts
from pystore.errors import BadArgument
from pystore.native import lib


def send(number=0, body=b"body"):
    given = {"UNIQ_KEY": f"{number:032X}", "WAIT": "true"}
    return send_command("T", body, properties=given)


def tls_of(folder, **names):
    return TlsSettings.from_names(tls_of_server(folder) | names)


def started(path, small, tls, **settings):
    return Broker(path / "s", listenPort=0, tls=tls, **small, **settings)


async def all_are_answered(broker, count):
    """Clients that begin at once."""
    clients = [RemotingClient(tls=client_context()) for _ in range(count)]
    answers = await asyncio.gather(*(
        client.request(broker.address, send(n), timeout=BOUND_S) for n, client in enumerate(clients)
    ))  # fmt: skip
    assert {answer.code for answer in answers} == {0}
    for client in clients:
        await client.close()


@pytest.fixture
def warnings(caplog, monkeypatch):
    """Every warning is logged, however many of its kind were before."""
    monkeypatch.setattr(rate_limited_log, "PAUSE_S", 0.0)
    return caplog


class Records:
    """A client whose TLS records a test carries."""

    def __init__(self, port):
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = client_context().wrap_bio(self.incoming, self.outgoing)
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=BOUND_S)
        self._left = bytearray()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def carry(self, pieces=1):
        """What is to go goes, in pieces of that size if not 1 << 30."""
        data = self.outgoing.read()
        for at in range(0, len(data), pieces):
            self.sock.sendall(data[at : at + pieces])

    def until_done(self, what, pieces=1 << 30):
        while True:
            try:
                return what()
            except ssl.SSLWantReadError:
                self.carry(pieces)
                got = self.sock.recv(1 << 16)
                assert got, "the broker has closed the connection"
                self.incoming.write(got)
            finally:
                self.carry(pieces)

    def answer(self, pieces=1 << 30):
        while len(self._left) < 4 or len(self._left) < self._size():
            self._left += self.until_done(lambda: self.tls.read(1 << 16), pieces)
        frame = bytes(self._left[: self._size()])
        del self._left[: len(frame)]
        return codec.decode(frame)

    def _size(self):
        return 4 + struct.unpack_from(">i", self._left)[0]


async def test_without_a_certificate_clients_are_refused(tmp_path, small, warnings):
    tls = TlsSettings(test_mode=False)
    async with (
        started(tmp_path, small, tls) as broker,
        RemotingClient(tls=client_context()) as client,
    ):
        with pytest.raises(ConnectionError):
            await client.request(broker.address, send(), timeout=BOUND_S)
    assert "tls.server.certPath is not set" in warnings.text


async def test_without_openssl_it_is_refused_by_name(tmp_path, small, warnings, monkeypatch):
    """A start with a certificate ends so; where one would be made, clients are refused, and plain
    text is served."""

    def missing(error):
        error.code, error.text = BadArgument.code, b"TLS needs OpenSSL 3: install libssl3"
        return error.code

    monkeypatch.setattr(tls_module, "lib", Mock(wraps=lib, ps_tls_check=missing))
    with pytest.raises(BadArgument, match="install libssl3"):
        tls_of(tmp_path)
    async with (
        started(tmp_path, small, TlsSettings()) as broker,
        RemotingClient(tls=client_context()) as ciphered,
        RemotingClient() as plain,
    ):
        with pytest.raises(ConnectionError):
            await ciphered.request(broker.address, send(), timeout=BOUND_S)
        assert (await plain.request(broker.address, send())).code == 0
    assert "TLS refused (TLS needs OpenSSL 3: install libssl3" in warnings.text


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tls.ciphers", "cannot be set: OpenSSL chooses the ciphers"),
        ("tls.protocols", "cannot be set: TLS 1.2 and 1.3 are spoken"),
        ("tls.server.certPth", "the nearest name is 'tls.server.certPath'"),
        ("tls.unheard", "is not a setting "),
    ],
)
def test_what_is_not_done_is_refused_by_name(name, why):
    with pytest.raises(BadArgument, match=f"'{name}' .*{why}"):
        TlsSettings.from_names({name: "x", "listenPort": "1"})


def test_records_may_be_cut_at_every_byte(tmp_path, small):
    with started(tmp_path, small, tls_of(tmp_path)) as broker, Records(broker.port) as client:
        client.until_done(client.tls.do_handshake, pieces=1)
        for number in range(3):
            client.tls.write(codec.encode(send(number)))
            assert client.answer(pieces=1).code == 0


def test_many_frames_in_few_records(tmp_path, small):
    """More than the thread reads at once: what it has decrypted wakes it, not the socket."""
    with started(tmp_path, small, tls_of(tmp_path)) as broker, Records(broker.port) as client:
        client.until_done(client.tls.do_handshake)
        count = 2000
        client.tls.write(b"".join(codec.encode(send(n, bytes(400))) for n in range(count)))
        client.carry(1 << 30)
        assert {client.answer().code for _ in range(count)} == {0}


async def test_large_records_come_from_the_log_as_they_are(tmp_path, small):
    bodies = [bytes([n]) * 60_000 for n in range(40)]
    async with started(tmp_path, small, tls_of(tmp_path)) as broker:
        broker.create_topic("T", queues=1)
        async with RemotingClient(tls=client_context()) as client:
            for number, body in enumerate(bodies):
                assert (await client.request(broker.address, send(number, body))).code == 0
            found = []
            while len(found) < len(bodies):
                answer = await client.request(broker.address, pulling(len(found)), timeout=BOUND_S)
                found += [body for _, body, *_ in records(answer.body)]
        assert found == bodies


def test_who_reads_late_gets_everything(tmp_path, small):
    """More than the socket and the thread's buffer hold; meanwhile nothing is read of it."""
    with started(tmp_path, small, tls_of(tmp_path)) as broker, Records(broker.port) as client:
        broker.create_topic("T", queues=1)
        client.until_done(client.tls.do_handshake)
        body, pulls = bytes(range(256)) * 200, 400
        for number in range(32):
            client.tls.write(codec.encode(send(number, body)))
            assert client.answer().code == 0
        client.tls.write(codec.encode(pulling(0)))  # once it was served, the core serves the others
        assert client.answer().code == 0
        client.tls.write(b"".join(codec.encode(pulling(0)) for _ in range(pulls)))
        client.carry(1 << 30)
        until(lambda: any(c.busy for c in broker._listeners.main.connections), "it to be full")
        for _ in range(pulls):
            found = [each for _, each, *_ in records(client.answer().body)]
            assert found and set(found) == {body}


def pulling(offset):
    ext = {
        "consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": offset, "maxMsgNums": 32,
        "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*",
        "subVersion": 0, "expressionType": "TAG",
    }  # fmt: skip
    return Command(Code.PULL_MESSAGE, texts(ext))


@pytest.mark.parametrize("said", [1, 4, 5, 100, 200])
def test_a_handshake_that_breaks_off_leaves_nothing(tmp_path, small, said):
    """After so many bytes of it."""
    with started(tmp_path, small, tls_of(tmp_path)) as broker:
        with Records(broker.port) as client, pytest.raises(ssl.SSLWantReadError):
            client.tls.do_handshake()
        with socket.create_connection(("127.0.0.1", broker.port)) as sock:
            sock.sendall(client.outgoing.read()[:said])
        until(lambda: broker._listeners.main.connection_count == 0)


@pytest.mark.parametrize(
    "hello",
    [
        b"\x16\x03\x01\x00\x05hello" + bytes(100),
        b"\x16" * 3000,
        b"\x16\x03\x01\xff\xff" + bytes(999),
    ],
)
async def test_a_handshake_that_is_none_ends_the_connection(tmp_path, small, hello, warnings):
    async with started(tmp_path, small, tls_of(tmp_path)) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writer.write(hello)
        await asyncio.wait_for(reader.read(), BOUND_S)
        writer.close()
        await until_async(lambda: "the TLS handshake failed (" in warnings.text)
        await until_async(lambda: broker._listeners.main.connection_count == 0)


async def test_a_client_whose_certificate_nobody_trusts_is_refused(tmp_path, small, warnings):
    for name in ("known", "stranger"):
        cert, key = self_signed(name)
        (tmp_path / f"{name}.pem").write_text(cert)
        (tmp_path / f"{name}.key").write_text(key)
    tls = tls_of(tmp_path, **{
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": str(tmp_path / "known.pem"),
    })  # fmt: skip

    def shows(name):
        files = [str(tmp_path / f"{name}.{each}") for each in ("pem", "key")]
        return client_context("", *files)

    async with (
        started(tmp_path, small, tls) as broker,
        RemotingClient(tls=shows("known")) as known,
        RemotingClient(tls=shows("stranger")) as stranger,
        RemotingClient(tls=client_context()) as nobody,
    ):
        assert (await known.request(broker.address, send(1))).code == 0
        for each in (stranger, nobody):
            with pytest.raises(ConnectionError):
                await each.request(broker.address, send(2))
        assert (await known.request(broker.address, send(3))).code == 0
    assert "the TLS handshake failed (self-signed certificate)" in warnings.text


def test_sessions_are_resumed(tmp_path, small):
    """Also where clients show a certificate."""
    tls = tls_of(tmp_path, **{"tls.server.need.client.auth": "optional"})
    context = client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # later ones resume by another way
    with started(tmp_path, small, tls) as broker:
        session = None
        for _ in range(2):
            plain = socket.create_connection(("127.0.0.1", broker.port), timeout=BOUND_S)
            with context.wrap_socket(plain, session=session) as sock:
                sock.sendall(codec.encode(send()))
                assert sock.recv(1 << 16)
                resumed, session = sock.session_reused, sock.session
        assert resumed


def test_its_end_is_said(tmp_path, small):
    """A broker that stops says so by TLS, so that nobody takes it for a cut."""
    with started(tmp_path, small, tls_of(tmp_path)) as broker:
        client = Records(broker.port)
        client.until_done(client.tls.do_handshake)
        client.tls.write(codec.encode(send()))
        assert client.answer().code == 0
    with client:
        assert client.until_done(lambda: client.tls.read(1)) == b""


async def test_many_begin_at_once(tmp_path, small):
    async with started(tmp_path, small, tls_of(tmp_path)) as broker:
        await all_are_answered(broker, 100)


def shown_at(port):
    """The certificate of the server there."""
    return ssl.get_server_certificate(("127.0.0.1", port))


def replace(folder):
    """Another certificate and its key."""
    cert, key = self_signed("localhost")
    (folder / "server.pem").write_text(cert)
    (folder / "server.key").write_text(key)
    return cert


@pytest.mark.parametrize("how", ["SIGHUP", "request", "files"])
async def test_a_new_certificate_is_for_new_connections(tmp_path, small, how, monkeypatch):
    monkeypatch.setattr(certificates, "LOOK_S", 0.02 if how == "files" else 300.0)
    tls = tls_of(tmp_path)
    async with (
        NameServer(None, None, tls, listenPort=0) as names,
        started(tmp_path, small, tls, grpc_port=0, namesrvAddr=names.address) as broker,
        Proxy(names.address, grpc_port=0, remoting_port=0, tls=tls, drain_s=0.2) as proxy,
        RemotingClient(tls=client_context()) as client,
        AsyncAdmin(names.address) as admin,
    ):
        ports = broker.port, broker.grpc_port, names.port, proxy.port, proxy.relay.port
        before = (tmp_path / "server.pem").read_text()
        assert (await client.request(broker.address, send(), timeout=BOUND_S)).code == 0
        assert {await asyncio.to_thread(shown_at, port) for port in ports} == {before}
        after = replace(tmp_path)
        if how == "request":
            for address in [*await admin.servers(), proxy.remoting_address]:
                await admin.renew_certificate(address)
        for each in (broker, names, proxy) if how == "SIGHUP" else ():
            each.reload()
        for port in ports:
            while await asyncio.to_thread(shown_at, port) != after:
                await asyncio.sleep(0.01)
        assert (await client.request(broker.address, send(1), timeout=BOUND_S)).code == 0
        await until_async(lambda: client.connected(broker.address) is not None)


async def test_a_certificate_without_its_key_leaves_the_old_one(tmp_path, small, caplog):
    async with started(tmp_path, small, tls_of(tmp_path)) as broker:
        before = (tmp_path / "server.pem").read_text()
        (tmp_path / "server.pem").write_text(self_signed("localhost")[0])
        broker.reload()
        await until_async(lambda: "Kept the certificate of before" in caplog.text)
        async with AsyncAdmin(broker=broker.address) as admin:
            with pytest.raises(BrokerRefused, match="cannot be used"):
                await admin.renew_certificate()
            with pytest.raises(BrokerRefused, match="takes effect only at a start"):
                await admin.configure({"tls.server.certPath": "/elsewhere"})
        assert await asyncio.to_thread(shown_at, broker.port) == before


async def test_a_server_without_a_certificate_of_its_own_says_so(tmp_path, small):
    async with (
        started(tmp_path, small, None) as broker, AsyncAdmin(broker=broker.address) as admin
    ):  # fmt: skip
        with pytest.raises(BrokerRefused, match="has no certificate that it could read again"):
            await admin.renew_certificate()


def test_files_are_read_one_after_the_other(tmp_path, monkeypatch):
    """So that what is served is what was read last, whoever asked for it."""
    tls, held = tls_of(tmp_path), []
    monkeypatch.setattr(type(tls), "_make", lambda self: held.append(self._lock.locked()))
    tls.read_again()
    assert held == [True]
