"""A proxy with access control of its own (authenticationEnabled, authorizationEnabled) before a
broker that has the users and policies: gRPC clients, and clients of the remoting protocol."""

from __future__ import annotations

import hmac
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "broker"))

from access_cases import frame, play
from caller import CODE, Caller, message, serving
from strangers import stranger_at
from test_grpc_cluster import ack, receive
from waiting import BOUND_S, until

from broker import (
    Broker,
    Consumer,
    Credentials,
    LocalState,
    Message,
    NameServer,
    Producer,
    TransactionProducer,
)
from broker.access.policies import User
from broker.client.errors import ClientError
from broker.grpc.proxy import Proxy
from broker.grpc.schema import pb
from broker.grpc.settings import CLUSTER, ProxySettings
from broker.loop.thread import LoopThread
from broker.wire.codes import RequestCode as Code
from broker.wire.http2 import PREFACE
from pystore.errors import BadArgument

DATE = "20261122T110000Z"
INNER = json.dumps({"accessKey": "inner", "secretKey": "inner-secret"})
CONF = {
    "enableAclRpcHookForClusterMode": True,
    "authenticationEnabled": True,
    "authenticationProvider": (
        "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider"
    ),
    "authenticationMetadataProvider": (
        "org.apache.rocketmq.proxy.auth.ProxyAuthenticationMetadataProvider"
    ),
    "innerClientAuthenticationCredentials": INNER,
    "authorizationEnabled": True,
    "authorizationProvider": (
        "org.apache.rocketmq.auth.authorization.provider.DefaultAuthorizationProvider"
    ),
    "authorizationMetadataProvider": (
        "org.apache.rocketmq.proxy.auth.ProxyAuthorizationMetadataProvider"
    ),
}


def headers_of(user: str, password: str) -> dict[str, str | None]:
    """Those of a client that signs."""
    signed = hmac.new(password.encode(), DATE.encode(), "sha1").hexdigest()
    return {
        "x-mq-date-time": DATE,
        "authorization": (
            f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={signed}"
        ),
    }


class Guarded:
    """A broker with users, and the proxy."""

    def __init__(self, broker: Broker, proxy: Proxy, thread: LoopThread) -> None:
        self.broker, self.proxy, self.run = broker, proxy, thread.run

    def caller(self, user: str | None = None, password: str = "") -> Caller:
        return Caller(self.proxy.address, headers_of(user, password) if user is not None else None)

    def user(self, name: str, *entries: tuple[str, str]) -> None:
        """A user that is there from now on, whose password is NAME-secret, with these rights."""
        policies = self.broker.services.access.policies
        given = {"password": f"{name}-secret"}
        assert self.broker.run(policies.create_user(name, given, None)) is None
        if entries:
            self.permit(name, *entries)

    def permit(self, user: str, *entries: tuple[str, str]) -> None:
        """entries: resources, and what may be done to them."""
        policies = self.broker.services.access.policies
        rows = [{"resource": r, "actions": a.split(","), "decision": "Allow"} for r, a in entries]
        self.broker.run(policies.merge_acl(f"User:{user}", {"policies": [{"entries": rows}]}))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    conf = folder / "rmq-proxy.json"
    conf.write_text(json.dumps(CONF))
    rules = {"authenticationEnabled": True, "authorizationEnabled": True}
    thread = LoopThread("proxy")
    with (
        NameServer.in_thread(listenPort=0, kvConfigPath="") as names,
        serving(
            folder / "store", namesrvAddr=names.address,
            innerClientAuthenticationCredentials=INNER, **rules,
            authorizationWhitelist=f"{Code.CONSUMER_SEND_MSG_BACK},{Code.END_TRANSACTION}",
        ) as broker,
    ):  # fmt: skip
        proxy = Proxy(names.address, conf=conf, grpc_port=0, remoting_port=0, drain_s=0.2)
        thread.run(proxy.start())
        try:
            found = Guarded(broker, proxy, thread)
            found.user("shop", ("Topic:Normal", "Pub,Sub,Get"), ("Group:g", "Sub"))
            found.user("guest")  # may nothing, in every test
            yield found
        finally:
            thread.run(proxy.stop())
            thread.stop()


@pytest.mark.parametrize(
    ("user", "password", "says"),
    [
        (None, "", "username cannot be null."),
        ("nobody", "x", "User:nobody is not found."),
        ("shop", "guessed", "check signature failed."),
        ("guest", "guest-secret", "User:guest has no permission to access Topic:Normal from"),
    ],
)
def test_who_may_not_send(guarded: Guarded, user: str | None, password: str, says: str) -> None:
    with guarded.caller(user, password) as caller:
        status = caller.send(message("Normal")).status
        assert (status.code, status.message.startswith(says)) == (CODE.UNAUTHORIZED, True), status


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("QueryRoute", {"topic": pb.Resource(name="Normal")}),
        ("QueryAssignment", {"topic": pb.Resource(name="Normal"), "group": pb.Resource(name="g")}),
        ("EndTransaction", {
            "topic": pb.Resource(name="Normal"), "transaction_id": "0-1-1-6162", "resolution": 1,
        }),
        ("RecallMessage", {"topic": pb.Resource(name="Delay"), "recall_handle": "bm90aGluZw"}),
    ],
)  # fmt: skip
def test_what_a_user_without_rights_is_refused(
    guarded: Guarded, method: str, fields: dict[str, Any]
) -> None:
    with guarded.caller("guest", "guest-secret") as caller:
        answer = caller(method, **fields)
        assert answer.status.code == CODE.UNAUTHORIZED, answer
        assert "User:guest has no permission" in answer.status.message


def test_settings_of_a_client_without_rights_end_its_stream(guarded: Guarded) -> None:
    with guarded.caller("guest", "guest-secret") as caller:
        assert caller.telemetry().publish("Normal").status.code == CODE.UNAUTHORIZED
        assert caller.telemetry().subscribe("g", "Normal").status.code == CODE.UNAUTHORIZED


def test_who_may_sends_receives_and_acknowledges(guarded: Guarded) -> None:
    """The broker, which checks, too, sees the proxy's signature. Another group is refused."""
    guarded.user("mixer", ("Topic:Mixed", "Pub,Sub"), ("Group:m", "Sub"))
    with guarded.caller("mixer", "mixer-secret") as caller:
        sent = caller.send(message("Mixed"))
        assert sent.status.code == CODE.OK, sent
        assert caller.telemetry().subscribe("m", "Mixed").status.code == CODE.OK
        (found,) = receive(caller, "m", "Mixed")
        assert found.system_properties.message_id == sent.entries[0].message_id
        handle = found.system_properties.receipt_handle
        assert ack(caller, "h", "Mixed", handle).entries[0].status.code == CODE.UNAUTHORIZED
        assert ack(caller, "m", "Mixed", handle).status.code == CODE.OK


def test_changes_count_when_they_are_asked_for_again(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded.user("novice")
    with guarded.caller("novice", "novice-secret") as caller:
        assert caller.send(message("Fifo", message_group="g")).status.code == CODE.UNAUTHORIZED
        guarded.permit("novice", ("Topic:Fifo", "Pub"))
        assert caller.send(message("Fifo", message_group="g")).status.code == CODE.UNAUTHORIZED
        monkeypatch.setattr("broker.grpc.access._KNOWN_S", 0.0)
        assert caller.send(message("Fifo", message_group="g")).status.code == CODE.OK


def test_remoting_clients_are_checked_as_well(guarded: Guarded) -> None:
    names = guarded.proxy.remoting_address
    good = Credentials("shop", "shop-secret")
    with Producer("shop", names, credentials=good) as producer:
        producer.send(Message("Normal", b"12 apples"))
    with Consumer("g", "Normal", namesrv=names, credentials=good, start="first") as consumer:
        assert next(iter(consumer)).body in (b"hello", b"12 apples")
    bad = Credentials("shop", "guessed")
    with (
        pytest.raises(ClientError, match="check signature failed"),
        Producer("shop", names, credentials=bad) as producer,
    ):
        producer.send(Message("Normal", b"12 apples"))


def asked_by(guarded: Guarded, user: str, code: int, **ext: object) -> tuple[int, str]:
    """Code and remark of the answer to a remoting client of the proxy. The broker lets in whoever
    asks this, as one does that leaves rights to its proxies."""
    case = {"server": "5.3.3", "code": code, "key": user, "secret": f"{user}-secret"}
    named = {"bname": guarded.broker.services.broker_name, **ext}
    fields = {name: str(value) for name, value in named.items()}
    port = int(guarded.proxy.remoting_address.rpartition(":")[2])
    code, remark, _ = play(port, {**case, "ext": fields})
    return code, remark


def test_a_proxy_sends_back_no_record_that_one_may_not_read(guarded: Guarded) -> None:
    guarded.user("fence", ("Topic:Mixed", "Pub,Sub"), ("Group:fence", "Sub"))
    guarded.broker.create_group("fence")
    put = guarded.broker.services.store.put
    own, other = (put(topic, b"x", queue=0).physical_offset for topic in ("Mixed", "Normal"))
    back: dict[str, Any] = {"group": "fence", "delayLevel": 1}
    for offset in (other, own + 1, 1 << 40):
        code, remark = asked_by(
            guarded, "fence", Code.CONSUMER_SEND_MSG_BACK, **back, offset=offset
        )
        assert (code, remark.split(" from ")[0]) == (
            16,
            "User:fence has no permission to access Topic:"
            f"(of the message at {offset}, if there is one)",
        )
    code, remark = asked_by(guarded, "fence", Code.CONSUMER_SEND_MSG_BACK, **back, offset=own)
    assert code == 0, remark


def test_a_proxy_decides_no_transaction_of_others(guarded: Guarded) -> None:
    """Whatever topic the request names, and whosever producer group."""
    guarded.user("judge", ("Topic:Mixed", "Pub"))
    guarded.user("payer", ("Topic:Tx", "Pub"))
    names, good = guarded.proxy.remoting_address, Credentials("payer", "payer-secret")
    halves = guarded.broker.services.transactions.halves
    with (
        TransactionProducer(
            "payer", names, credentials=good, check=lambda _: LocalState.UNKNOWN
        ) as producer,
        producer.transaction(Message("Tx", b"1")) as tx,
    ):
        tx.leave_open()
    (half,) = halves.all()
    end = {
        "producerGroup": "payer", "tranStateTableOffset": half.offset, "msgId": tx.transaction_id,
        "commitLogOffset": half.physical, "commitOrRollback": 8, "fromTransactionCheck": "true",
    }  # fmt: skip
    for named in ({}, {"topic": "Mixed"}):
        code, remark = asked_by(guarded, "judge", Code.END_TRANSACTION, **end, **named)
        assert (code, "has no permission" in remark) == (16, True), remark
    assert list(halves.all()) == [half]
    assert asked_by(guarded, "payer", Code.END_TRANSACTION, **end) == (0, "")
    assert not list(halves.all())


def test_a_password_is_told_to_nobody_in_clear(guarded: Guarded) -> None:
    """The proxy, which needs it to verify what clients sign, unseals it."""
    policies = guarded.broker.services.access.policies
    guarded.user("clerk", ("Cluster:DefaultCluster", "Get"))
    found = {}
    for user in ("inner", "clerk"):
        found[user] = _ask_for_user(guarded.broker, user, f"{user}-secret", "shop")
    assert not any("password" in each or "pystoreSealed" in each for each in found.values())
    assert found["clerk"]["username"] == found["inner"]["username"] == "shop"
    assert policies.rules.users["shop"] == User("shop", "shop-secret")


def _ask_for_user(broker: Broker, user: str, password: str, name: str) -> dict[str, Any]:
    case = {"server": "5.3.3", "code": 3004, "ext": {"username": name}}
    code, remark, body = play(broker.port, {**case, "key": user, "secret": password})
    assert code == 0, remark
    return dict(json.loads(body))


def test_a_name_that_nobody_can_have_is_not_kept(guarded: Guarded) -> None:
    """Else whoever wants to would fill the proxy's memory with them."""
    name = "x" * 6_000
    with guarded.caller(name, "secret") as caller:
        assert caller.send(message("Normal")).status.code == CODE.UNAUTHORIZED
    assert guarded.proxy.service is not None
    assert name not in guarded.proxy.service.broker.access._asked


def test_a_proxy_whose_credentials_are_not_those_of_a_super(
    guarded: Guarded, tmp_path: Path
) -> None:
    """It cannot know who a client is, says why, and lets nobody in."""
    guarded.user("weak", ("Cluster:DefaultCluster", "Get"), ("Topic:Normal", "Get"))
    conf = tmp_path / "rmq-proxy.json"
    own = {"accessKey": "weak", "secretKey": "weak-secret"}
    conf.write_text(json.dumps({**CONF, "innerClientAuthenticationCredentials": own}))
    thread = LoopThread("weak proxy")
    weak = Proxy(guarded.proxy.servers, conf=conf, grpc_port=0, remoting_port=0, drain_s=0.2)
    thread.run(weak.start())
    try:
        with Caller(weak.address, headers_of("shop", "shop-secret")) as caller:
            status = caller.send(message("Normal")).status
            assert status.code == CODE.INTERNAL_SERVER_ERROR
            assert "have to be those of a Super" in status.message
    finally:
        thread.run(weak.stop())
        thread.stop()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"innerClientAuthenticationCredentials": ""}, "credentials of a Super"),
        ({"innerClientAuthenticationCredentials": "x"}, "is not JSON like"),
        ({"authenticationProvider": "com.example.Own"}, 'cannot be "com.example.Own" here'),
    ],
)
def test_settings_that_cannot_be_meant(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    conf = tmp_path / "rmq-proxy.json"
    conf.write_text(json.dumps({**CONF, **changes}))
    with pytest.raises(BadArgument, match=says):
        Proxy("127.0.0.1:1", conf=conf)


def test_the_proxys_secret_is_not_shown(tmp_path: Path) -> None:
    """As JSON in a text, as an object, or where a text is wanted."""
    conf = tmp_path / "rmq-proxy.json"
    for given in (INNER, json.loads(INNER)):
        conf.write_text(json.dumps({"innerClientAuthenticationCredentials": given}))
        found = ProxySettings.read(conf, CLUSTER)
        assert json.loads(found.credentials) == json.loads(INNER)
        assert "inner-secret" not in repr(found)
    conf.write_text(json.dumps({"innerClientAuthenticationCredentials": ["inner-secret"]}))
    with pytest.raises(BadArgument) as refused:
        ProxySettings.read(conf, CLUSTER)
    assert "inner-secret" not in str(refused.value)


def test_in_local_mode_they_belong_to_the_broker(tmp_path: Path) -> None:
    conf = tmp_path / "rmq-proxy.json"
    conf.write_text(json.dumps(CONF))
    with pytest.raises(BadArgument, match="authenticationEnabled has no effect here"):
        Broker(tmp_path / "store", listenPort=0, proxy_conf=conf).__enter__()


def test_a_client_id_is_the_users_that_came_first(guarded: Guarded) -> None:
    """Settings, heartbeats and the end of another user's client are refused; it goes on."""
    guarded.user("other", ("Topic:Delay", "Pub"))
    with (
        guarded.caller("shop", "shop-secret") as shop,
        guarded.caller("other", "other-secret") as b,
    ):
        b.headers["x-mq-client-id"] = shop.headers["x-mq-client-id"]
        stream = shop.telemetry()
        assert stream.publish("Normal").status.code == CODE.OK
        assert b.telemetry().publish("Delay").status.code == CODE.UNAUTHORIZED
        for method in ("NotifyClientTermination", "Heartbeat"):
            status = b(method).status
            assert status.code == CODE.UNAUTHORIZED, (method, status)
            assert "is another user's" in status.message
        assert shop("Heartbeat").status.code == CODE.OK
        assert shop("NotifyClientTermination").status.code == CODE.OK


def test_a_stranger_who_registers_as_a_broker_says_who_nobody_is(guarded: Guarded) -> None:
    """He is asked for no user, and what the proxy sends him is refused by the broker."""
    user = {"username": "evil", "password": "evil-1", "userType": "Super", "userStatus": "enable"}
    answers = {int(Code.AUTH_GET_USER): user}
    (servers,) = guarded.proxy.servers
    with stranger_at(servers, "0", 0, answers, relay=guarded.broker.address) as stranger:
        assert guarded.proxy.service is not None
        brokers = guarded.proxy.service.broker

        async def sees() -> bool:
            await brokers._look()  # no more often than it may ask
            return "0" in brokers._clusters

        until(lambda: guarded.run(sees()), "the stranger's registration")
        with guarded.caller("evil", "evil-1") as caller:
            status = caller.send(message("Normal")).status
            assert status.code == CODE.UNAUTHORIZED and "not found" in status.message
        assert stranger.seen and not stranger.asked(Code.AUTH_GET_USER)
        for asked, told in stranger.seen:
            assert told.code == 16 or asked.code == Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
    with guarded.caller("shop", "shop-secret") as caller:
        assert caller.send(message("Normal")).status.code == CODE.OK


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker that checks nobody and keeps users for its proxy."""
    folder = tmp_path_factory.mktemp("keeper")
    conf = folder / "rmq-proxy.json"
    conf.write_text(json.dumps(CONF))
    kept = "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
    thread = LoopThread("proxy of a keeper")
    with (
        NameServer.in_thread(listenPort=0, kvConfigPath="") as names,
        serving(
            folder / "store", namesrvAddr=names.address, authenticationMetadataProvider=kept,
            innerClientAuthenticationCredentials=INNER,
        ) as broker,
    ):  # fmt: skip
        proxy = Proxy(names.address, conf=conf, grpc_port=0, remoting_port=0, drain_s=0.2)
        thread.run(proxy.start())
        try:
            found = Guarded(broker, proxy, thread)
            found.user("shop", ("Topic:Normal", "Pub"), ("Cluster:DefaultCluster", "All"))
            yield found
        finally:
            thread.run(proxy.stop())
            thread.stop()


@pytest.mark.parametrize(
    ("password", "topic", "code"),
    [
        ("shop-secret", "Normal", CODE.OK),
        ("shop-secret", "Fifo", CODE.UNAUTHORIZED),
        ("guessed", "Normal", CODE.UNAUTHORIZED),
    ],
)
def test_a_proxy_checks_by_users_of_a_broker_that_checks_nobody(
    keeper: Guarded, password: str, topic: str, code: int
) -> None:
    with keeper.caller("shop", password) as caller:
        assert caller.send(message(topic)).status.code == code
    unsigned = {"server": "5.3.3", "code": Code.GET_ALL_TOPIC_CONFIG, "ext": {}}
    assert play(keeper.broker.port, unsigned)[0] == 0


@pytest.mark.parametrize("code", range(Code.AUTH_CREATE_USER, Code.AUTH_LIST_ACL + 1))
def test_a_broker_that_keeps_users_tells_them_to_a_super_alone(keeper: Guarded, code: int) -> None:
    """Whatever the rights of a Normal user are, which are about what proxies let in."""
    about = {"username": "shop", "subject": "User:shop"}
    case = {"server": "5.3.3", "code": code, "ext": about, "body": '{"password": "stolen-1"}'}
    bad, good = {"key": "inner", "secret": "guessed"}, {"key": "inner", "secret": "inner-secret"}
    normal = {"key": "shop", "secret": "shop-secret"}
    said = [play(keeper.broker.port, case | who)[:2] for who in ({}, bad, normal)]
    assert said == [
        (16, "username cannot be null."),
        (16, "check signature failed."),
        (16, "User:shop is not Super."),
    ]
    if code not in (Code.AUTH_UPDATE_USER, Code.AUTH_DELETE_USER, Code.AUTH_DELETE_ACL):
        answered, remark, _ = play(keeper.broker.port, case | good)
        assert "check signature" not in remark and answered != 3


def test_a_broker_that_keeps_users_proves_nothing_to_who_does_not_know_the_secret(
    keeper: Guarded,
) -> None:
    """A proof of the secret over a request that another has signed would be one for a stranger."""
    bound = "pystore-for " + keeper.broker.address + " 305 nonce\n"
    case = {"server": "5.3.3", "code": 305, "ext": {"!for": bound}, "key": "inner"}
    assert play(keeper.broker.port, case | {"secret": "guessed"})[:2] == (
        16, "check signature failed."
    )  # fmt: skip
    assert play(keeper.broker.port, case | {"secret": "inner-secret"})[0] == 0
    assert play(keeper.broker.port, {"server": "5.3.3", "code": 305, "ext": {}})[0] == 0


@pytest.mark.parametrize("port", ["gRPC", "remoting", "name server"])
def test_a_stranger_claims_no_address_at_a_proxy_or_a_name_server(
    keeper: Guarded, port: str
) -> None:
    """One that a policy allows, for example: headers count from this host alone, by default."""
    proxy = keeper.proxy
    address = {
        "gRPC": proxy.address, "remoting": proxy.remoting_address, "name server": proxy.servers[0],
    }[port]  # fmt: skip
    host, number = str(address).split(":")
    asked = {"server": "5.3.3", "code": Code.GET_ROUTEINFO_BY_TOPIC, "ext": {"topic": "Normal"}}
    for source, believed in (("127.0.0.1", True), ("127.0.0.3", False)):
        with socket.create_connection((host, int(number)), BOUND_S, (source, 0)) as sock:
            sock.sendall(b"PROXY TCP4 10.9.9.9 127.0.0.1 4711 8081\r\n")
            sock.sendall(PREFACE + bytes(9) if port == "gRPC" else frame(asked))
            try:
                answered = bool(sock.recv(1))
            except ConnectionResetError:  # nobody has read what came after
                answered = False
            assert answered == believed
