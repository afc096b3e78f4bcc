"""The port: TLS and plain text, PROXY headers, bytes of nobody, calls of access control."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from caller import CODE, Caller, message, serving
from waiting import BOUND_S, until

from broker import Broker
from broker.access.policies import User
from broker.grpc.local import LocalBroker
from broker.grpc.schema import METHODS, SERVICE, pb
from broker.grpc.settings import ProxySettings
from broker.remoting.tls import TlsSettings
from broker.wire.http2 import PREFACE
from pystore.errors import BadArgument


def test_tls_and_plain_text_on_one_port(broker: Broker, caller: Caller) -> None:
    """As Java's and Go's clients begin, and as Python's and Node's do."""
    host, port = "127.0.0.1", broker.grpc_port
    certificate = ssl.get_server_certificate((host, port), timeout=BOUND_S)
    credentials = grpc.ssl_channel_credentials(certificate.encode())
    name = (("grpc.ssl_target_name_override", _name_of(certificate)),)
    with grpc.secure_channel(f"{host}:{port}", credentials, options=name) as channel:
        known = METHODS["QueryRoute"]
        data = known.request(topic=pb.Resource(name="Normal")).SerializeToString()
        call = channel.unary_unary(f"/{SERVICE}/QueryRoute")
        reply = known.reply.FromString(call(data, metadata=caller.metadata, timeout=BOUND_S))
    assert reply.status.code == CODE.OK
    assert caller("QueryRoute", topic=pb.Resource(name="Normal")).status.code == CODE.OK


def _name_of(certificate: str) -> str:
    from cryptography import x509

    found = x509.load_pem_x509_certificate(certificate.encode())
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return names.get_values_for_type(x509.DNSName)[0]
    except (x509.ExtensionNotFound, IndexError):
        return str(found.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


def test_the_tls_of_the_port_speaks_http2(broker: Broker) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", broker.grpc_port), BOUND_S) as sock,
        context.wrap_socket(sock) as wrapped,
    ):
        assert wrapped.selected_alpn_protocol() == "h2"


def test_plain_text_is_refused_where_tls_is_enforced(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "store", tls=TlsSettings(mode="enforcing")) as broker,
        socket.create_connection(("127.0.0.1", broker.grpc_port), BOUND_S) as sock,
    ):
        sock.sendall(PREFACE)
        assert closed(sock)


def closed(sock: socket.socket) -> bool:
    """Whether the other end closes a connection, whatever it says before."""
    sock.settimeout(BOUND_S)
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize(
    "data", [b"\0" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\0\x05hello", b"PROXY x\r\n"]
)
def test_bytes_of_another_protocol_close_the_connection(broker: Broker, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", broker.grpc_port), BOUND_S) as sock:
        sock.sendall(data)
        assert closed(sock)


@pytest.mark.parametrize(
    "data",
    [b"", b"PR", b"PRI", PREFACE, b"PROXY TCP4 ", b"PROXY UNKNOWN\r\n", b"PROXY UNKNOWN\r\nPRI",
     b"PROXY UNKNOWN\r\n" + PREFACE, b"\x16\x03\x01\x01\x00"],
)  # fmt: skip
def test_a_connection_that_does_not_begin_is_closed(
    tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.grpc.links.OPENING_MS", 50)
    with (
        serving(tmp_path) as broker,
        socket.create_connection(("127.0.0.1", broker.grpc_port), BOUND_S) as sock,
    ):
        sock.sendall(data)
        assert closed(sock)


HEADER = b"PROXY TCP4 203.0.113.7 127.0.0.1 4711 8081\r\n"


@pytest.mark.parametrize("tls", [False, True])
def test_a_proxy_header_names_the_client(broker: Broker, tls: bool) -> None:
    """Every record of the client's then has its address."""
    host, port = "127.0.0.1", broker.grpc_port
    listener = socket.create_server((host, 0))
    options: dict[str, Any] = {}
    if tls:
        certificate = ssl.get_server_certificate((host, port), timeout=BOUND_S)
        options["trusted"] = certificate.encode()
        options["options"] = (("grpc.ssl_target_name_override", _name_of(certificate)),)
    with listener, Caller(f"{host}:{listener.getsockname()[1]}", **options) as caller:

        def relay() -> None:
            near, _ = listener.accept()
            far = socket.create_connection((host, port))
            far.sendall(HEADER)
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=pump, args=(one, other), daemon=True).start()

        thread = threading.Thread(target=relay, daemon=True)
        thread.start()
        entry = caller.send(message("Normal")).entries[0]
        thread.join(BOUND_S)
        assert broker.grpc is not None
        port = broker.grpc._server._port
        assert port is not None
        assert "203.0.113.7" in [each.address[0] for each in port.connections]
    with broker.consumer("far", "Normal", start="first") as consumer:
        found = next(m for m in consumer if m.message_id == entry.message_id)
    assert bytes(found.record[48:52]) == socket.inet_aton("203.0.113.7")


@pytest.mark.parametrize("after", [HEADER, b"PRX", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64])
def test_what_is_not_the_protocol_is_refused_after_a_header(broker: Broker, after: bytes) -> None:
    """A second header, too."""
    with socket.create_connection(("127.0.0.1", broker.grpc_port), BOUND_S) as sock:
        sock.sendall(HEADER + after)
        assert closed(sock)


def pump(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(65536):
            other.sendall(data)
    except OSError:
        pass
    other.close()


def test_connections_that_end_leave_nothing_behind(broker: Broker) -> None:
    assert broker.grpc is not None
    links = broker.grpc.broker.links
    before = len(links)
    for _ in range(3):
        with Caller(broker.grpc_address) as caller:
            caller("QueryRoute", topic=pb.Resource(name="Normal"))
            caller.send(message("Normal"))
    until(lambda: len(links) <= before, "links that are gone")


# ---- access control ----


def signed(key: str, secret: str, date: str = "20261122T101112Z", **more: str) -> dict[str, Any]:
    signature = hmac.new(secret.encode(), date.encode(), hashlib.sha1).hexdigest()
    return {
        "x-mq-date-time": date,
        "authorization": f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time,"
        f" Signature={signature.upper()}",
        **more,
    }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = json.dumps({"username": "root", "password": "secret"})
    with serving(
        tmp_path_factory.mktemp("secured") / "store", authenticationEnabled=True,
        authorizationEnabled=True, initAuthenticationUser=root,
        innerClientAuthenticationCredentials='{"accessKey":"inner","secretKey":"inner-secret"}',
    ) as made:  # fmt: skip
        policies = made.services.access.policies
        may = {"resource": "Topic:Normal", "actions": ["Pub"], "decision": "Allow"}

        async def make() -> None:
            policies.make_now(User("writer", "pen"))
            await policies.merge_acl("User:writer", {"policies": [{"entries": [may]}]})

        made.run(make())
        yield made


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "MQv2-HMAC-SHA1 Credential=, SignedHeaders=, Signature="},
        {"authorization": "Basic cm9vdDpzZWNyZXQ="},
        signed("root", "wrong"),
        signed("nobody", "secret"),
        {**signed("root", "secret"), "x-mq-date-time": None},
        {**signed("root", "secret"), "x-mq-date-time": "20200101T000000Z"},
    ],
)
def test_whoever_does_not_prove_his_name_is_unauthorized(
    secured: Broker, headers: dict[str, Any]
) -> None:
    with Caller(secured.grpc_address, headers) as caller:
        assert caller.send(message("Normal")).status.code == CODE.UNAUTHORIZED
        route = caller("QueryRoute", topic=pb.Resource(name="Normal"))
        assert route.status.code == CODE.UNAUTHORIZED
        stream = caller.telemetry()
        assert stream.publish("Normal").status.code == CODE.UNAUTHORIZED
        with pytest.raises(StopIteration):
            stream.read()


@pytest.mark.parametrize("key", ["root", "root//Rocketmq"])
def test_a_signed_call_is_served(secured: Broker, key: str) -> None:
    headers = signed("root", "secret")
    headers["authorization"] = headers["authorization"].replace("=root", f"={key}")
    with Caller(secured.grpc_address, headers) as caller:
        assert caller("QueryRoute", topic=pb.Resource(name="Normal")).status.code == CODE.OK
        assert caller.telemetry().publish("Normal").status.code == CODE.OK
        for _ in range(2):  # the second one need not be asked about again
            assert caller.send(message("Normal")).status.code == CODE.OK


def test_a_client_may_do_what_its_policies_say(secured: Broker) -> None:
    with Caller(secured.grpc_address, signed("writer", "pen")) as caller:
        assert caller("QueryRoute", topic=pb.Resource(name="Normal")).status.code == CODE.OK
        assert caller.send(message("Normal")).status.code == CODE.OK
        assert caller.send(message("Mixed")).status.code == CODE.UNAUTHORIZED
        route = caller("QueryRoute", topic=pb.Resource(name="Mixed"))
        assert route.status.code == CODE.UNAUTHORIZED
        assert caller.telemetry().subscribe("g", "Normal").status.code == CODE.UNAUTHORIZED


def test_rights_are_remembered_until_they_change(
    secured: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain send asks the rules once for each user, and goes the quick way; one whose signature
    is wrong is refused by them."""
    asked = []
    let_in = LocalBroker._let_in

    def seen(self: LocalBroker, call: Any, link: Any, command: Any) -> None:
        asked.append(command.code)
        let_in(self, call, link, command)

    policies = secured.services.access.policies

    async def make(actions: list[str]) -> None:
        entry = {"resource": "Topic:Normal", "actions": actions, "decision": "Allow"}
        await policies.merge_acl("User:other", {"policies": [{"entries": [entry]}]})

    async def begin() -> None:
        policies.make_now(User("other", "pen"))
        await make(["Pub"])

    secured.run(begin())
    with Caller(secured.grpc_address, signed("other", "pen")) as caller:
        monkeypatch.setattr(LocalBroker, "_let_in", seen)
        for _ in range(3):
            assert caller.send(message("Normal")).status.code == CODE.OK
        assert len(asked) == 1
        caller.headers |= signed("other", "wrong", "20261122T101113Z")
        assert caller.send(message("Normal")).status.code != CODE.OK
        caller.headers |= signed("other", "pen")
        secured.run(make(["Sub"]))
        assert caller.send(message("Normal")).status.code != CODE.OK


# ---- settings ----


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("[]", "object"),
        ("{", "cannot be read"),
        ('{"grpcServerPrt": 1}', "grpcServerPort"),
        ('{"maxMessageSize": "4"}', "maxMessageSize"),
        ('{"maxMessageSize": -1}', "maxMessageSize"),
        ('{"maxMessageSize": true}', "maxMessageSize"),
        ('{"proxyMode": "CLUSTER"}', "LOCAL"),
    ],
)
def test_settings_that_cannot_be_meant(tmp_path: Path, given: str, says: str) -> None:
    path = tmp_path / "rmq-proxy.json"
    path.write_text(given)
    with pytest.raises(BadArgument, match=says):
        ProxySettings.read(path)


def test_settings_of_a_proxy_are_obeyed(tmp_path: Path) -> None:
    path = tmp_path / "rmq-proxy.json"
    path.write_text('{"proxyMode": "local", "maxMessageSize": 10, "grpcServerPort": 1}')
    with (
        serving(tmp_path / "store", proxy_conf=path) as broker,
        Caller(broker.grpc_address) as caller,
    ):
        refused = caller.send(message("Normal", b"x" * 11))
    assert refused.status.code == CODE.MESSAGE_BODY_TOO_LARGE


# ---- too much of something ----


def test_a_message_beyond_the_inbound_limit_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "rmq-proxy.json"
    path.write_text('{"grpcMaxInboundMessageSize": 100000}')
    with (
        serving(tmp_path / "store", proxy_conf=path) as broker,
        Caller(broker.grpc_address) as caller,
    ):
        with pytest.raises(grpc.RpcError) as failed:
            caller.send(message("Normal", bytes(100_001)))
        assert failed.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caller.send(message("Normal")).status.code == CODE.OK


def test_clients_of_one_connection_are_bounded(broker: Broker, caller: Caller) -> None:
    codes = []
    for number in range(257):
        caller.headers["x-mq-client-id"] = f"one of many {number}"
        codes.append(caller.send(message("Normal")).status.code)
    assert codes == [CODE.OK] * 256 + [CODE.TOO_MANY_REQUESTS]


def test_connections_are_bounded(tmp_path: Path) -> None:
    """In plain text and by TLS; the others are served."""
    with (
        serving(tmp_path / "store", maxConnections=1) as broker,
        Caller(broker.grpc_address) as caller,
    ):
        assert caller.send(message("Normal")).status.code == CODE.OK
        shown = ssl.get_server_certificate(("127.0.0.1", broker.grpc_port), timeout=BOUND_S)
        own, name = ("grpc.use_local_subchannel_pool", 1), _name_of(shown)
        for trusted in (None, shown.encode()):
            options = own, ("grpc.ssl_target_name_override", name)
            with (
                Caller(broker.grpc_address, trusted=trusted, options=options) as another,
                pytest.raises(grpc.RpcError) as caught,
            ):
                another.send(message("Normal"))
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
            assert caught.value.details() == "the server has too many connections"
        assert caller.send(message("Normal")).status.code == CODE.OK


def test_streams_that_never_end_cost_others_nothing(broker: Broker, caller: Caller) -> None:
    streams = [caller.telemetry() for _ in range(300)]
    for stream in streams:
        stream.publish("Normal")
    with Caller(broker.grpc_address) as another:
        assert another.send(message("Normal")).status.code == CODE.OK
    for stream in streams:
        stream.close()
