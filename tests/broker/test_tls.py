"""TLS and plain text on one port, and the certificates of both sides."""

from __future__ import annotations

import asyncio
import ssl
import sys
import threading

import pytest
from loops import Wire, serving
from waiting import BOUND_S, settled_async

from broker.loop import rate_limited_log
from broker.remoting.client import RemotingClient
from broker.remoting.selfsigned import self_signed
from broker.remoting.tls import TlsSettings, client_context
from broker.wire import codec
from broker.wire.command import ONEWAY, Command
from pystore.errors import BadArgument


def who(peer, command):
    return command.reply(ext={"host": peer.address[0], "port": peer.address[1]}, body=command.body)


def anyone():
    return client_context()


@pytest.mark.parametrize("mode", ["permissive", "enforcing", "disabled"])
async def test_modes_of_tls(mode):
    seen = []
    tls = TlsSettings(mode=mode)
    async with serving({1: who}, tls=tls, on_connect=seen.append) as server:
        at = f"127.0.0.1:{server.port}"
        async with RemotingClient() as plain, RemotingClient(tls=anyone()) as ciphered:
            for client, fits in ((plain, mode != "enforcing"), (ciphered, mode != "disabled")):
                before = len(seen)
                if fits:
                    answer = await client.request(at, Command(1, {}, b"body"), timeout=BOUND_S)
                    assert (answer.ext["host"], answer.body) == ("127.0.0.1", b"body")
                    assert len(seen) == before + 1
                else:
                    with pytest.raises(ConnectionError):
                        await client.request(at, Command(1), timeout=BOUND_S)
                    assert len(seen) == before


async def test_tls_carries_large_frames_and_many_of_them():
    async with serving({1: who}) as server, RemotingClient(tls=anyone()) as client:
        at = f"127.0.0.1:{server.port}"
        body = bytes(range(256)) * 60_000
        answer = await client.request(at, Command(1, {}, body), timeout=BOUND_S)
        assert answer.body == body
        asked = [client.request(at, Command(1, {}, b"%d" % n)) for n in range(500)]
        assert [a.body for a in await asyncio.gather(*asked)] == [b"%d" % n for n in range(500)]


async def test_without_a_certificate_tls_is_refused_and_plain_text_served(monkeypatch, caplog):
    """cryptography is an extra; the log says what to do, and shows no stack."""
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.setattr(rate_limited_log, "PAUSE_S", 0.0)
    async with serving({1: who}) as server:
        async with await Wire.to(server.port) as wire:
            wire.write(b"\x16\x03\x01\x00\x05hello")
            await wire.closed()
        async with await Wire.to(server.port) as wire:
            wire.write(codec.encode(Command(1, body=b"plain")))
            assert (await wire.answer()).body == b"plain"
    refusals = [r for r in caplog.records if "TLS refused" in r.getMessage()]
    assert len(refusals) == 1 and refusals[0].getMessage().endswith(
        "(a certificate is needed: set tls.server.certPath and tls.server.keyPath, or install"
        " rocketmq-pystore[tls], which makes one)"
    )
    assert not any(r.exc_info for r in caplog.records)


async def test_back_pressure_holds_through_tls():
    served = [0]

    def large(peer, command):
        served[0] += 1
        return command.reply(body=bytes(100_000))

    async with (
        serving({1: large}) as server,
        await Wire.to(server.port, ssl=anyone()) as deaf,
    ):
        deaf.writer.transport.pause_reading()
        one = codec.encode(Command(1))
        for _ in range(100):
            deaf.write(one * 100)
            await asyncio.sleep(0)
        before = await settled_async(lambda: served[0])
        assert before < 2500  # of 10,000
        deaf.writer.transport.resume_reading()
        for _ in range(before + 200):
            assert len((await deaf.answer()).body) == 100_000


def test_settings_of_tls_that_cannot_work_are_refused(tmp_path):
    for given, text in (
        ({"tls.server.mode": "perhaps"}, "tls.server.mode = 'perhaps': it is not one of"),
        ({"tls.server.need.client.auth": "maybe"}, "is not one of none, optional, require"),
        ({"tls.client.authServer": "yes"}, "tls.client.authServer = 'yes': it is not true or"),
        ({"tls.server.certpath": "x"}, "the nearest name is 'tls.server.certPath'"),
        ({"tls.server.keyPassword": "let\0in"}, r"tls.server.keyPassword = \*\*\*: it contains"),
        ({"tls.server.certPath": "x"}, "set both"),
        ({"tls.server.certPath": "x", "tls.server.keyPath": "y"}, "cannot be used"),
        (
            {"tls.server.mode": "enforcing", "tls.test.mode.enable": "false"},
            "tls.server.certPath is not set",
        ),
    ):
        with pytest.raises(BadArgument, match=text):
            TlsSettings.from_names(given)


async def test_a_service_may_speak_first():
    async with (
        serving({}, on_connect=lambda peer: peer.send(Command(40, flag=ONEWAY))) as server,
        await Wire.to(server.port) as wire,
    ):
        wire.write(Command(99, flag=ONEWAY))
        assert (await wire.answer()).code == 40


@pytest.mark.parametrize("named", [True, False])
async def test_a_certificate_that_is_trusted_is_for_the_host_that_was_asked(tmp_path, named):
    """Else whoever has a certificate of the same issuer passes for a broker; an option says so."""
    cert, key = self_signed("x", ["127.0.0.1"] if named else ["broker.example", "127.0.0.2"])
    (tmp_path / "cert").write_text(cert)
    (tmp_path / "key").write_text(key)
    trust = str(tmp_path / "cert")
    tls = TlsSettings(mode="enforcing", cert_path=trust, key_path=str(tmp_path / "key"))
    told = {"tls.enable": "true", "tls.client.authServer": "true"}
    told["tls.client.trustCertPath"] = trust
    of_names = TlsSettings.from_names(told).client_context()
    any_host = TlsSettings.from_names(told | {"tls.client.verifyHost": "false"}).client_context()
    own = ssl.create_default_context(cafile=trust)
    async with serving({1: who}, tls=tls) as server:
        at = f"127.0.0.1:{server.port}"
        for context, checks in (
            (client_context(trust), True), (of_names, True), (own, True), (any_host, False),
            (client_context(trust, verify_host=False), False), (client_context(), False),
        ):  # fmt: skip
            async with RemotingClient(tls=context) as client:
                if named or not checks:
                    assert (await client.request(at, Command(1))).code == 0
                    continue
                with pytest.raises(ConnectionError, match=r"mismatch.*verifyHost=false"):
                    await client.request(at, Command(1))


async def test_a_certificate_of_our_own_is_made_beside_the_loop(monkeypatch):
    made_on = []
    monkeypatch.setattr(
        "broker.remoting.tls.self_signed",
        lambda name: (made_on.append(threading.current_thread()), self_signed(name))[1],
    )
    async with serving({1: who}, tls=TlsSettings()) as server:
        clients = [RemotingClient(tls=client_context()) for _ in range(20)]
        at = f"127.0.0.1:{server.port}"
        asked = [each.request(at, Command(1), timeout=BOUND_S) for each in clients]
        assert {answer.code for answer in await asyncio.gather(*asked)} == {0}
        for each in clients:
            await each.close()
    assert len(made_on) == 1
    assert made_on[0] is not threading.current_thread()
