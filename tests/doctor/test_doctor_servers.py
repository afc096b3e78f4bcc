"""The doctor of running brokers and name servers: each misconfiguration is set up, and found."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import launch
import pytest
from examining import examined, found, names, running
from pairs import master_of, slave_of
from waiting import until

from broker import Admin, Broker, Credentials, Message
from broker.client.ids import local_address
from broker.remoting.tls import TlsSettings


def test_nothing_is_found_on_a_good_broker(tmp_path: Path) -> None:
    with running(tmp_path / "s") as broker:
        with broker.producer() as producer:
            producer.send(Message("orders", b"12 apples"))
        with broker.consumer("billing", "orders", start="first") as consumer:
            until(lambda: consumer.poll(1.0), "the message")
            found_there = until(lambda: _sound(broker), "registration")
        assert found_there == "nothing"
        until(lambda: not examined(broker.namesrv_address), "nothing on its name server")


def _sound(broker: Broker) -> str:
    return "nothing" if not examined(broker.address) else ""


@pytest.mark.java
@pytest.mark.long
def test_a_good_broker_of_java_is_but_an_open_door(tmp_path: Path, reference: Any) -> None:
    reference.run("setup", timeout=reference.setup_s, RMQ_VERSION="5.3.3")
    with launch.running("java", tmp_path, version="5.3.3") as peer:
        until(lambda: set(examined(peer.broker)) <= {"open-door"}, "nothing else")
        assert "open-door" in examined(peer.broker)
        assert not examined(peer.namesrv)


# ---- any server ----


def test_nobody_listens(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    assert "refused" in found(address, "no-answer").text


def test_the_name_has_no_address() -> None:
    assert "no-such-host.invalid" in found("no-such-host.invalid:10911", "host-unknown").where


def test_somebody_else_listens() -> None:
    with _server(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as at:
        found(at, "not-rocketmq")


class _server:
    """Listens, and does one thing with each connection."""

    def __init__(self, work: Callable[[socket.socket], object]) -> None:
        self._work = work
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                self._work(connection)

    def __enter__(self) -> str:
        self._thread.start()
        return f"127.0.0.1:{self._listening.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()


def test_it_speaks_tls_only(tmp_path: Path) -> None:
    from broker.cli.secure import secured

    tls, _ = secured(tmp_path / "secure", "127.0.0.1")
    assert isinstance(tls, TlsSettings)
    with running(tmp_path / "s", tls=tls) as broker:
        assert "--trust" in found(broker.address, "tls-only").mend


def test_strangers_are_refused(tmp_path: Path) -> None:
    user = '{"username":"root","password":"rootrootroot"}'
    with running(
        tmp_path / "s", authenticationEnabled=True, authorizationEnabled=True,
        initAuthenticationUser=user,
    ) as broker:  # fmt: skip
        assert "--credentials" in found(broker.address, "access-refused").mend


def test_a_grpc_service_is_a_proxy(tmp_path: Path) -> None:
    pytest.importorskip("broker.grpc._http2")
    from broker.doctor import examine_network

    with running(tmp_path / "s", grpc_port=0) as broker:
        assert asyncio.run(examine_network(broker.grpc_address)) == ("proxy", [])


def test_a_grpc_service_behind_tls_is_a_proxy_to_whom_trusts_it(tmp_path: Path) -> None:
    pytest.importorskip("broker.grpc._http2")
    from broker.cli.secure import secured
    from broker.doctor import examine_network

    tls, _ = secured(tmp_path / "secure", "127.0.0.1")
    trusting = ssl.create_default_context(cafile=str(tls.cert_path))
    with running(tmp_path / "s", grpc_port=0, tls=tls) as broker:
        at = broker.grpc_address
        assert asyncio.run(examine_network(at, tls=trusting)) == ("proxy", [])
        (said,) = asyncio.run(examine_network(at, tls=ssl.create_default_context()))[1]
        assert said.check == "tls-only" and "CERTIFICATE_VERIFY_FAILED" in said.text


# ---- where a broker is ----


def test_it_advertises_an_address_that_nobody_reaches(tmp_path: Path) -> None:
    with (
        names() as server,
        running(tmp_path / "s", brokerIP1="127.0.0.9", namesrvAddr=server) as broker,
    ):
        diagnosis = found(f"127.0.0.1:{broker.port}", "advertised-address")
        assert broker.address in diagnosis.text
        assert "brokerIP1=127.0.0.1" in diagnosis.mend
        assert broker.address in found(server, "broker-unreachable").text


def test_it_advertises_an_address_of_its_own_host(tmp_path: Path) -> None:
    here = local_address()
    if here.startswith("127."):
        pytest.skip("this machine has no other address than its own loopback")
    with running(tmp_path / "s", brokerIP1="127.0.0.1", bindAddress="0.0.0.0") as broker:
        assert here in found(f"{here}:{broker.port}", "advertised-loopback").mend


def test_no_name_server_is_told(tmp_path: Path) -> None:
    with running(tmp_path / "s", with_namesrv=False) as broker:
        found(broker.address, "no-name-server")


def test_its_name_server_is_not_there(tmp_path: Path) -> None:
    with running(tmp_path / "s", namesrvAddr="127.0.0.1:1") as broker:
        assert "127.0.0.1:1" in found(broker.address, "name-server-silent").text


def test_its_name_server_is_a_broker(tmp_path: Path) -> None:
    with running(tmp_path / "a") as other, running(
        tmp_path / "b", namesrvAddr=other.address, brokerName="b"
    ) as broker:  # fmt: skip
        assert "it is a broker" in found(broker.address, "name-server-silent").text


def test_a_name_server_knows_nothing_of_it(tmp_path: Path) -> None:
    with running(tmp_path / "s") as broker, names() as other:
        diagnosis = found(broker.address, "name-server-ignorant", namesrv=other)
        assert other in diagnosis.text and other in diagnosis.mend


async def register_again(broker: Broker) -> None:
    broker.services.registration.again()


def test_two_brokers_have_one_name(tmp_path: Path) -> None:
    """Whoever holds it at the moment: each of the two, and the name server that knows both."""
    with names() as server:
        one = {"namesrvAddr": server, "brokerName": "twin"}
        with running(tmp_path / "a", **one) as first, running(tmp_path / "b", **one) as second:
            first.run(register_again(first))
            for where in (first.address, second.address, server):
                said = found(where, "name-taken").text
                assert (second if where == first.address else first).address in said


# ---- how it is ----


def test_it_is_open_to_everybody(tmp_path: Path) -> None:
    with running(tmp_path / "s", bindAddress="0.0.0.0") as broker:
        assert "--secure" in found(broker.address, "open-door").mend


def test_its_clock_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours is set back; the two disagree."""
    from broker.doctor import brokers

    class Slow:
        @staticmethod
        def time() -> float:
            import time

            return time.time() - 3600

    with running(tmp_path / "s") as broker:
        monkeypatch.setattr(brokers, "time", Slow)
        assert "3600 s ahead" in found(broker.address, "clock-skew").text.replace("3599", "3600")


def test_its_disk_is_full(disk_path: Path) -> None:
    """As full as the broker takes it to be: 35 % is the lowest limit that it allows."""
    usage = shutil.disk_usage(disk_path)
    if usage.used / usage.total < 0.36:
        pytest.skip("this disk is nearly empty")
    limits = {"diskSpaceWarningLevelRatio": 35, "diskMaxUsedSpaceRatio": 10}
    with running(disk_path / "s", **limits) as broker:
        found(broker.address, "disk-full")


def test_its_disk_counts_as_its_store_counts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of the blocks is kept for the system: 50 of 60 are used, not 50 of 90."""
    usage = SimpleNamespace(total=90, used=50, free=10)
    with running(tmp_path / "s") as broker, Admin(broker=broker.address) as admin:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
        assert admin.broker().disk_used == 0.83


def test_its_disk_is_full_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes of log, and a clock that says so: at this rate the disk lasts for less than..."""
    from broker.doctor import brokers, folder

    with running(tmp_path / "s") as broker:
        with broker.producer() as producer:
            producer.send(Message("orders", b"12 apples"))
        monkeypatch.setattr(folder, "_SOON_H", 1e12)
        real = brokers.time.time
        monkeypatch.setattr(brokers, "time", type("Clock", (), {"time": lambda: real() + 120}))
        monkeypatch.setattr(brokers, "_SKEW_S", 1e9)
        assert "MB/s" in found(broker.address, "disk-full-soon").text


def test_its_puts_are_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slower than none at all, which is what is allowed here."""
    from broker.doctor import brokers

    monkeypatch.setattr(brokers, "_SLOW_MS", 0.0)
    monkeypatch.setattr(brokers, "_PUTS_MIN", 1)
    with running(tmp_path / "s") as broker:
        with broker.producer() as producer:
            producer.send(Message("orders", b"12 apples"))
        found(broker.address, "slow-disk")


def test_its_rules_cannot_be_read(tmp_path: Path) -> None:
    """They were sound at the start; somebody has edited them."""
    rules = tmp_path / "conf" / "plain_acl.yml"
    rules.parent.mkdir()
    account = "accounts:\n- accessKey: rootroot\n  secretKey: rootrootroot\n  admin: true\n"
    rules.write_text(account)
    with running(tmp_path / "s", aclEnable=True, rocketmqHome=str(tmp_path)) as broker:
        rules.write_text("accounts: [\n")
        us = Credentials("rootroot", "rootrootroot")
        assert "plain_acl" in found(broker.address, "access-file-broken", credentials=us).text


# ---- masters and slaves ----


def test_a_master_waits_for_slaves_that_are_not_there(tmp_path: Path) -> None:
    with names() as server, master_of(
        tmp_path / "m", server, "SYNC_MASTER", inSyncReplicas=2
    ) as broker:  # fmt: skip
        assert "inSyncReplicas=1" in found(broker.address, "no-slave").mend


def test_a_slave_does_not_hear_its_master(tmp_path: Path) -> None:
    with names() as server, slave_of(tmp_path / "s", server) as broker:
        found(broker.address, "slave-alone")
        found(server, "no-master")


# ---- name servers ----


def test_a_name_server_knows_no_broker() -> None:
    with names() as server:
        assert "pystore broker" in found(server, "no-brokers").mend
