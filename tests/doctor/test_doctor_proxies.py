"""`pystore doctor` of a proxy, of its settings and of certificates."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from examining import examined, found, names, running
from listening import Listener

pytest.importorskip("broker.grpc._http2")

from broker import Broker
from broker.client.credentials import Credentials
from broker.client.options import ClientSettings
from broker.doctor import examine_network
from broker.doctor.proxies import proxy_problems
from broker.grpc.proxy import ROUTE_POLL_S, Proxy
from broker.loop.thread import LoopThread
from broker.remoting.tls import TlsSettings
from pystore.configuration.problems import SettingProblem


@contextlib.contextmanager
def proxy_of(namesrv: str, folder: Path | None = None, **conf: Any) -> Iterator[str]:
    """The address of a running proxy. conf: of rmq-proxy.json, which lies in the folder."""
    file = None
    if folder is not None:
        file = folder / "rmq-proxy.json"
        file.write_text(json.dumps(conf))
    thread = LoopThread("proxy")
    made = Proxy(
        namesrv, conf=file, grpc_port=0, remoting_port=0, bind="127.0.0.1", drain_s=0.1,
        client=ClientSettings(request_timeout_s=2.0, route_poll_s=ROUTE_POLL_S),
    )  # fmt: skip
    try:
        thread.run(made.start())
        yield f"127.0.0.1:{made.port}"
    finally:
        thread.run(made.stop())
        thread.stop()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("doctor") / "s", maxMessageSize=1 << 20) as made:
        made.create_topic("orders")
        yield made


# ---- brokers and name servers ----


def test_nothing_is_found_of_a_good_proxy(broker: Broker, tmp_path: Path) -> None:
    at, more = broker.namesrv_address, {"rocketMQClusterName": "DefaultCluster"}
    with proxy_of(at, tmp_path, **more) as proxy:
        assert asyncio.run(examine_network(proxy)) == ("proxy", [])
        conf = tmp_path / "rmq-proxy.json"
        looked = examine_network(proxy, namesrv=at, proxy_conf=conf)
        assert asyncio.run(looked) == ("proxy", [])


def test_its_name_servers_know_no_broker() -> None:
    with names() as server, proxy_of(server) as proxy:
        assert "no master" in found(proxy, "proxy-without-broker", namesrv=server).text


def test_its_broker_cannot_be_reached(tmp_path: Path) -> None:
    with names() as server:
        more = {"namesrvAddr": server, "brokerIP1": "127.0.0.9"}
        with running(tmp_path / "s", **more) as broker, proxy_of(server) as proxy:
            broker.create_topic("orders")
            assert "route" in found(proxy, "proxy-without-broker", namesrv=server).text


def test_it_cannot_ask_its_name_server() -> None:
    """Seen without being told which one that is."""
    with proxy_of("127.0.0.1:1") as proxy:
        assert "route" in found(proxy, "proxy-without-broker").text


def test_a_name_server_that_it_should_ask_is_silent(broker: Broker) -> None:
    with proxy_of(broker.namesrv_address) as proxy:
        at = f"{broker.namesrv_address};127.0.0.1:1"
        assert "127.0.0.1:1" in found(proxy, "name-server-silent", namesrv=at).text


def test_it_is_for_a_cluster_that_is_not_there(broker: Broker, tmp_path: Path) -> None:
    at, conf = broker.namesrv_address, tmp_path / "other.json"
    conf.write_text('{"rocketMQClusterName": "blue"}')
    with proxy_of(at) as proxy:
        said = found(proxy, "proxy-other-cluster", namesrv=at, proxy_conf=conf)
        assert "blue" in said.text and "DefaultCluster" in said.text


def test_it_asks_other_name_servers_than_it_should(broker: Broker, tmp_path: Path) -> None:
    with running(tmp_path / "s") as other, proxy_of(other.namesrv_address) as proxy:
        said = found(proxy, "proxy-elsewhere", namesrv=broker.namesrv_address)
        assert "orders" in said.text and broker.namesrv_address in said.mend


def test_it_sends_clients_where_nobody_answers(broker: Broker) -> None:
    """As behind a load balancer that has another port than the proxy."""
    with proxy_of(broker.namesrv_address) as proxy, forwarded(proxy) as shown:
        said = found(shown, "proxy-address", namesrv=broker.namesrv_address)
        assert f"127.0.0.2:{proxy.rpartition(':')[2]}" in said.text


@contextlib.contextmanager
def forwarded(to: str) -> Iterator[str]:
    """An address behind which another one answers."""
    thread = LoopThread("forwarding")

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = to.rpartition(":")
        there, back = await asyncio.open_connection(host, int(port))
        try:
            await asyncio.gather(copy(reader, back), copy(there, writer))
        finally:
            back.transport.abort()

    listener = Listener(serve)
    try:
        yield thread.run(listener.open("127.0.0.2"))
    finally:
        thread.run(listener.close())
        thread.stop()


def test_its_messages_are_smaller_than_those_of_the_brokers(broker: Broker, tmp_path: Path) -> None:
    at = broker.namesrv_address
    with proxy_of(at, tmp_path, maxMessageSize=4096) as proxy:
        said = found(proxy, "proxy-message-size", namesrv=at)
        assert "4096" in said.text and str(1 << 20) in said.mend


def test_it_lets_nobody_in_without_credentials(tmp_path: Path) -> None:
    user = '{"username":"root","password":"rootrootroot"}'
    with running(
        tmp_path / "s", authenticationEnabled=True, initAuthenticationUser=user, grpc_port=0
    ) as broker:  # fmt: skip
        assert "--credentials" in found(broker.grpc_address, "access-refused").mend
        known = Credentials("root", "rootrootroot")
        assert examined(broker.grpc_address, credentials=known) == {}


# ---- settings ----


@pytest.mark.parametrize(
    ("check", "settings", "text"),
    [
        ("proxy-ports-clash", {"remotingListenPort": 8081}, "grpcServerPort=8081"),
        ("proxy-ports-clash", {"metricsExporterType": "PROM", "metricsPromExporterPort": 8080},
         "metricsPromExporterPort=8080"),
        ("proxy-times-crossed", {"minInvisibleTimeMillsForRecv": 90_000},
         "defaultInvisibleTimeMills=60000"),
        ("proxy-times-crossed", {"grpcClientConsumerMinLongPollingTimeoutMillis": 30_000},
         "grpcClientConsumerMaxLongPollingTimeoutMillis=20000"),
        ("proxy-inbound-small", {"grpcMaxInboundMessageSize": 4096}, "maxMessageSize=4194304"),
        ("proxy-renews-late", {"renewSchedulePeriodMillis": 10_000}, "renewAheadTimeMillis=10000"),
        ("rights-without-users",
         {"authorizationEnabled": True, "innerClientAuthenticationCredentials": "{}"},
         "authenticationEnabled=false"),
        ("proxy-unsigned", {"authenticationEnabled": True}, "Credentials"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together(
    check: str, settings: dict[str, object], text: str, tmp_path: Path
) -> None:
    (said,) = problems_of(settings, tmp_path)
    assert said.check == check and text in said.text
    assert said.place == str(tmp_path / "rmq-proxy.json")


@pytest.mark.parametrize(
    "settings", [{}, {"metricsExporterType": "PROM"}, {"grpcServerPort": 0,
                                                      "remotingListenPort": 0}], ids=str,
)  # fmt: skip
def test_settings_that_are_right(settings: dict[str, object], tmp_path: Path) -> None:
    assert not problems_of(settings, tmp_path)


def test_credentials_beside_the_file_count(tmp_path: Path) -> None:
    assert not problems_of({"authenticationEnabled": True}, tmp_path, is_signed=True)


def problems_of(
    settings: dict[str, object], folder: Path, *, is_signed: bool = False
) -> list[SettingProblem]:
    conf = folder / "rmq-proxy.json"
    conf.write_text(json.dumps(settings))
    return proxy_problems(conf, is_signed=is_signed)[1]


def test_a_setting_that_a_proxy_would_refuse(broker: Broker, tmp_path: Path) -> None:
    conf = tmp_path / "rmq-proxy.json"
    conf.write_text('{"grpcServerPort": "8081"}')
    with proxy_of(broker.namesrv_address) as proxy:
        assert "grpcServerPort" in found(proxy, "refused-setting", proxy_conf=conf).text


# ---- certificates ----


def certificate(folder: Path, host: str, days: float) -> TlsSettings:
    """One for a host, that expires in so many days."""
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "proxy")])
    now = datetime.datetime.now(datetime.UTC)
    named = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=100))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(named, critical=False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return TlsSettings(
        mode="enforcing", cert_path=str(folder / "cert.pem"), key_path=str(folder / "key.pem")
    )


@pytest.mark.parametrize(
    ("check", "host", "days"),
    [
        ("certificate-expired", "127.0.0.1", -1),
        ("certificate-expires", "127.0.0.1", 3.5),
        ("certificate-name", "127.0.0.7", 90),
        (None, "127.0.0.1", 90),
    ],
)
def test_the_certificate_of_a_service(
    tmp_path: Path, check: str | None, host: str, days: float
) -> None:
    """Of gRPC and of remoting alike; who trusts it hears of it, and who has no TLS, too."""
    tls = certificate(tmp_path, host, days)
    trusting = ssl.create_default_context(cafile=str(tls.cert_path))
    wanted = {check} - {None}
    with running(tmp_path / "s", grpc_port=0, tls=tls) as broker:
        for address in (broker.grpc_address, broker.address):
            seen = examined(address, tls=trusting)
            assert {each for each in seen if each.startswith("certificate")} == wanted
            assert "tls-only" not in seen
            seen = examined(address)
            assert {*seen} == wanted | {"tls-only"}
        anybody = ssl.create_default_context(cafile=str(tls.cert_path))
        anybody.check_hostname = False
        assert ("certificate-name" in examined(broker.grpc_address, tls=anybody)) is False
