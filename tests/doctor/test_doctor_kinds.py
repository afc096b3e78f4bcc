"""Values that a start takes and nobody can serve, parties that disagree, promises about time that
the disk breaks: each as `pystore doctor` sees it from outside."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from examining import SMALL, examined, found, names, running
from waiting import until

from broker import Broker, Message
from broker.doctor import brokers as looking
from broker.doctor import examine_folder, groups
from broker.remoting.client import RemotingClient
from broker.remoting.tls import TlsSettings

# ---- values that nobody can serve ----


@pytest.mark.parametrize(
    ("check", "settings"),
    [
        ("half-open", {"brokerPermission": 4}),
        ("reserved-nothing", {"fileReservedTime": 0}),
        ("silence-too-short", {"channelExpiredTimeout": 5000}),
        ("delay-over-retention", {"messageDelayLevel": "1s 50h", "fileReservedTime": 24}),
        ("transactions-over-retention", {"transactionTimeOut": 90_000_000, "fileReservedTime": 24}),
    ],
)
def test_a_running_broker_is_asked_for_its_settings(
    check: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    with running(tmp_path / "s", **settings) as broker:
        found(broker.address, check)


def test_name_servers_of_a_broker_are_separated_by_a_comma() -> None:
    """A broker of Java takes it, and registers nowhere."""

    async def seen() -> list[str]:
        facts = SimpleNamespace(
            entries={}, started_ms=0, disk_used=0.1, log_min=0, log_max=0,
        )  # fmt: skip

        class Admin:
            async def broker(self) -> Any:
                return facts

            async def configuration(self) -> dict[str, str]:
                return {"brokerName": "a", "namesrvAddr": "127.0.0.1:1,127.0.0.1:2"}

            network = SimpleNamespace(exchange=None)

        made = []
        async with RemotingClient() as client:
            with contextlib.suppress(TypeError):  # it has nothing to say of replication
                admin: Any = Admin()
                async for each in looking.check_broker(admin, "127.0.0.1:1", client, ()):
                    made.append(each.check)
        return made

    assert "name-server-address" in asyncio.run(seen())


def test_a_client_separates_name_servers_by_a_comma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1,127.0.0.1:2")
    assert "comma" in found(None, "bad-address").text


# ---- addresses ----


class Accepting:
    """Takes every connection and answers none, as docker's proxy for a container that is gone."""

    def __enter__(self) -> int:
        self._at = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return int(self._at.getsockname()[1])

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._at.accept()
            except OSError:
                return
            connection.close()

    def __exit__(self, *_: object) -> None:
        self._at.shutdown(socket.SHUT_RDWR)
        self._at.close()
        self._thread.join()


def test_what_accepts_connections_for_a_broker_is_asked_whether_it_is_one(tmp_path: Path) -> None:
    with Accepting() as port:

        async def seen() -> list[Any]:
            settings = {"brokerIP1": "127.0.0.1", "listenPort": str(port)}
            async with RemotingClient() as client:
                made = looking._address("127.0.0.1:1", settings, client)
                return [each async for each in made]

        (said,) = asyncio.run(seen())
    assert said.check == "advertised-address" and "no broker answers" in said.text


def test_an_address_that_does_not_resolve_is_named() -> None:
    async def seen() -> list[Any]:
        settings = {"brokerIP1": "no-such-host.invalid", "listenPort": "10911"}
        async with RemotingClient() as client:
            return [each async for each in looking._address("127.0.0.1:1", settings, client)]

    (said,) = asyncio.run(seen())
    assert said.check == "advertised-address" and "no-such-host.invalid" in said.text


def test_who_answers_late_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from broker.client.errors import ClientError

    async def late(*_: object, **__: object) -> Any:
        raise ClientError("no answer within 3 s") from TimeoutError()

    with running(tmp_path / "s") as broker:
        monkeypatch.setattr("broker.client.admin.AsyncAdmin.broker", late)
        seen = examined(broker.address)
    assert "late-answer" in seen and "no-answer" not in seen


# ---- certificates ----


def test_an_expired_certificate_is_named_although_plain_text_is_served(tmp_path: Path) -> None:
    certs = pytest.importorskip("cryptography.x509")
    assert certs
    cert, key = _expired(tmp_path)
    tls = TlsSettings(mode="permissive", cert_path=cert, key_path=key)
    with running(tmp_path / "s", tls=tls) as broker:
        found(broker.address, "certificate-expired")


def test_a_certificate_of_another_name_is_nothing_where_plain_text_is_served(
    tmp_path: Path,
) -> None:
    """Java's brokers have one of their own by default, which names nobody."""
    tls = TlsSettings(mode="permissive", test_mode=True)
    with running(tmp_path / "s", tls=tls) as broker:
        until(lambda: not examined(broker.address), "nothing")


def _expired(folder: Path) -> tuple[str, str]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "broker")])
    day = datetime.timedelta(days=1)
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - 9 * day).not_valid_after(now - day)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    cert, pem = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )  # fmt: skip
    return str(cert), str(pem)


# ---- two that disagree ----


def test_a_broker_of_another_cluster_than_the_rest(tmp_path: Path) -> None:
    with names() as server:
        same = {"namesrvAddr": server, "brokerClusterName": "orders"}
        with (
            running(tmp_path / "a", brokerName="a", **same),
            running(tmp_path / "b", brokerName="b", **same) as sound,
            running(
                tmp_path / "c", brokerName="c", namesrvAddr=server, brokerClusterName="Orders"
            ) as lost,
        ):
            assert "brokerClusterName=orders" in found(lost.address, "other-cluster").mend
            assert "Orders" in found(server, "other-cluster").text
            assert "other-cluster" not in examined(sound.address)


def test_two_clusters_of_a_name_server_are_sound() -> None:
    assert looking._alone({"clusterAddrTable": {"a": ["1", "2"], "b": ["3", "4"]}}) == {}
    assert looking._alone({"clusterAddrTable": {"a": ["1"], "b": ["3"]}}) == {}


def test_clocks_of_two_brokers_disagree(tmp_path: Path) -> None:
    """One of them says that it began an hour later than it did."""
    with names() as server, running(
        tmp_path / "a", brokerName="a", namesrvAddr=server
    ) as first, running(tmp_path / "b", brokerName="b", namesrvAddr=server) as second:  # fmt: skip
        until(lambda: not examined(server), "nothing")
        second.services.started_ms += 3_600_000
        assert first.address in found(server, "clock-skew").text


def test_two_members_of_a_group_have_one_client_id(tmp_path: Path) -> None:
    with running(tmp_path / "s") as broker:
        broker.create_topic("orders")
        twin = {"instance_name": "copied"}
        with (
            broker.consumer("billing", "orders", **twin),
            broker.consumer("billing", "orders", **twin),
        ):
            assert "copied" in found(broker.address, "client-id-twice").text


# ---- limits ----


def test_limits_of_a_broker_that_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "s") as broker:
        until(lambda: not examined(broker.address), "nothing")
        monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
        assert "1024 files" in found(broker.address, "few-files").text
        monkeypatch.undo()
        broker.services.settings.current = broker.services.settings.current.replaced(
            mappedFilesMax=1 << 24
        )
        found(broker.address, "few-mappings")


@pytest.mark.parametrize("name", ["listenPort", "metricsPromExporterPort"])
def test_a_port_of_the_settings_is_taken(name: str, tmp_path: Path) -> None:
    _made(tmp_path / "s")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = {"listenPort": 0, "bindAddress": "127.0.0.1", "metricsExporterType": "PROM",
                 "metricsPromExporterPort": 0, name: taken.getsockname()[1]}  # fmt: skip
        seen = {each.check: each.text for each in examine_folder(tmp_path / "s", None, given)}
    assert name in seen["port-taken"]


def _made(folder: Path) -> None:
    with Broker(folder, **SMALL):
        pass


def test_a_log_whose_disk_is_not_there_is_named(tmp_path: Path) -> None:
    _made(tmp_path / "s")
    given = {"storePathCommitLog": str(tmp_path / "disk" / "rocketmq" / "log"), "listenPort": 0}
    seen = {each.check: each.text for each in examine_folder(tmp_path / "s", None, given)}
    assert "log-missing" in seen
    assert "its log is not there" in seen["refused-setting"]


# ---- promises about time ----


@pytest.fixture
def lagging(tmp_path: Path) -> Iterator[Broker]:
    """A group that has consumed the first of some messages."""
    with running(tmp_path / "s") as broker, broker.producer() as producer:
        producer.send(Message("orders", b"1"))
        with broker.consumer("billing", "orders", start="first") as consumer:
            consumer.ack(*until(lambda: consumer.poll(1.0), "the first message"))
            consumer.commit()
        for number in range(8):
            producer.send(Message("orders", b"%d" % number))
        yield broker


def test_a_group_lags_behind_retention(lagging: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "lag-over-retention" not in examined(lagging.address, late_s=3600)
    real = time.time
    clock = SimpleNamespace(time=lambda: real() + 71 * 3600)
    monkeypatch.setattr(groups, "time", clock)
    assert "billing" in found(lagging.address, "lag-over-retention").text


def test_messages_of_a_group_were_deleted_unread(
    lagging: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from broker.client.admin.admin import AsyncAdmin

    real = AsyncAdmin.topic

    async def cut(self: AsyncAdmin, name: str) -> Any:
        facts = await real(self, name)
        ends = [SimpleNamespace(queue=e.queue, min_offset=e.max_offset) for e in facts.queues]
        return SimpleNamespace(queues=ends, messages=facts.messages)

    monkeypatch.setattr(AsyncAdmin, "topic", cut)
    assert "deleted before billing" in found(lagging.address, "lag-deleted").text


def test_a_tier_that_lacks_much_is_named() -> None:
    said = {"tieredBehindSeconds": "144000", "tieredBehindBytes": "8000000000"}
    facts: Any = SimpleNamespace(disk_used=0.8, log_min=0, log_max=10**10, entries=said)
    seen = {each.check: each.text for each in looking._tier("x", facts, {})}
    assert "40 h old, fileReservedTime is 72 h" in seen["tier-behind"]
    assert "8.0 GB of the log" in seen["tier-holds-disk"]
    assert (
        looking._tier("x", facts, {"fileReservedTime": "100", "diskMaxUsedSpaceRatio": "90"}) == []
    )


def test_a_tier_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    with Broker(tmp_path / "store", listenPort=0, tieredStoreFilePath=tmp_path / "cold") as broker:
        cold = broker.services.cold
        assert cold is not None
        (tmp_path / "cold").write_text("a file, where a folder is to be")

        def looked() -> str:
            cold.handle.looked_s = None
            return cold.problem

        until(looked, "a look at the tier")
        assert "cannot be used" in found(broker.address, "tier-unreachable").text


def test_the_disk_does_not_hold_what_is_reserved() -> None:
    """2 TB of which 1 is used, 1 GB/s of log: some minutes, not 72 h."""
    began = (time.time() - 1000) * 1000
    facts: Any = SimpleNamespace(
        disk_used=0.5, log_min=0, log_max=10**12,
        entries={"earliestMessageTimeStamp": str(int(began)),
                 "commitLogDirCapacity": "Total : 2.0 TiB, Free : 1.0 TiB."},
    )  # fmt: skip
    seen = {each.check: each.text for each in looking._disk("x", facts, {})}
    assert "fileReservedTime is 72 h" in seen["disk-under-retention"]
    assert not list(looking._disk("x", facts, {"fileReservedTime": "0"}))[1:]
