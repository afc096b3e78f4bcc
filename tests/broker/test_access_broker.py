"""Access control of a running broker: changes while it runs, its safe defaults, our clients."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import stat
import struct
import threading
from collections import Counter
from types import SimpleNamespace

import pytest
from access_cases import frame, play, play_on, text_of_refusal
from fakes import beat
from waiting import until

import pystore
from broker import Broker, Credentials, LocalState, Message, Producer, TransactionProducer
from broker.access import plain_file
from broker.access.signature import sign
from broker.cli.secure import ADMIN_FILE, secured
from broker.client.credentials import SigningHook, credentials_of_file
from broker.client.errors import BrokerRefused, SendFailed
from broker.client.in_process import RouteFinder
from broker.loop.budget import Budget
from broker.processors.admin_config import ConfigProcessor
from broker.processors.admin_stats import StatisticsProcessor
from broker.remoting.tls import client_context
from broker.services.policy_access import PolicyAccess
from broker.wire.command import BINARY, Command, Refused
from broker.wire.digests import digest_functions
from pystore.errors import BadArgument
from pystore.format.properties import encode_properties
from pystore.repair import rebuild

RULES = """accounts:
- accessKey: orders-team
  secretKey: orders-secret
  defaultGroupPerm: SUB
  topicPerms:
  - orders=PUB|SUB
- accessKey: operator
  secretKey: operator-secret
  admin: true
"""
TEAM = Credentials("orders-team", "orders-secret")
ASK = {"server": "4.9.7", "key": TEAM.access_key, "secret": TEAM.secret_key}


@pytest.fixture
def rules(tmp_path):
    """The access list of broker()."""
    file = tmp_path / "plain_acl.yml"
    file.write_text(RULES)
    file.chmod(0o600)
    return file


@pytest.fixture
def broker(tmp_path, rules):
    with Broker(
        tmp_path / "store", aclEnable=True, listenPort=0, bindAddress="127.0.0.1"
    ) as started:
        started.create_topic("orders", 1)
        yield started


def send(topic="orders", **changes):
    ext = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0",
           "g": "1700000000000", "h": "0", "i": "KEYS\1k", "j": "0", "k": "false"}  # fmt: skip
    return ASK | {"code": 310, "ext": ext, "body": "x"} | changes


def pull(hold_ms=0, **changes):
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0",
           "maxMsgNums": "1", "sysFlag": "6" if hold_ms else "4", "commitOffset": "0",
           "suspendTimeoutMillis": str(hold_ms), "subscription": "*", "subVersion": "0",
           "expressionType": "TAG"}  # fmt: skip
    return ASK | {"code": 11, "ext": ext} | changes


def ack(**changes):
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "offset": "0",
           "extraInfo": "0 1 60000 0 0 b 0 0"}  # fmt: skip
    return ASK | {"code": 200051, "ext": ext} | changes


def changed(file, text):
    """Writes the list as an editor does, by renaming."""
    other = file.with_suffix(".new")
    other.write_text(text)
    other.replace(file)


@pytest.mark.parametrize("code", [41, 42])
def test_locks_need_the_rights_of_a_consumer(broker, code):
    """Else whoever has an account keeps the members of any orderly group from their queues."""
    queue = {"topic": "payroll", "brokerName": "b", "queueId": 0}
    for topic, answer in (("payroll", 1), ("orders", 0)):
        said = {"consumerGroup": "g", "clientId": "c", "mqSet": [queue | {"topic": topic}]}
        case = ASK | {"code": code, "ext": {}, "body": json.dumps(said)}
        assert play(broker.port, case)[0] == answer


# ---- changes ----


def test_a_change_of_the_file_holds_soon(broker, rules):
    """A right taken is taken on every connection, without a restart."""
    assert play(broker.port, send())[0] == 0
    changed(rules, RULES.replace("orders=PUB|SUB", "orders=SUB"))
    until(lambda: play(broker.port, send())[0] == 1)
    changed(rules, RULES)
    until(lambda: play(broker.port, send())[0] == 0)


def test_a_heartbeat_that_the_core_answers_is_decided_again(broker, rules):
    """The same bytes, the same signature; another signature is never taken for it."""
    said = json.dumps(beat(group="g", topics=("orders",)))
    case = ASK | {"code": 34, "ext": {}, "body": said}
    with socket.create_connection(("127.0.0.1", broker.port), timeout=300) as sock:
        assert [play_on(sock, case)[0] for _ in range(3)] == [0, 0, 0]
        (connection,) = broker._listeners.main.connections
        assert connection.heartbeat_at > 0
        assert play_on(sock, case | {"sign": "bad"})[0] == 1
        assert [play_on(sock, case)[0] for _ in range(2)] == [0, 0]
        changed(rules, RULES.replace("defaultGroupPerm: SUB", "defaultGroupPerm: DENY"))
        until(lambda: play_on(sock, case)[0] == 1)


@pytest.mark.parametrize(
    "text",
    ["accounts: [", "accounts:\n- accessKey: orders-team\n", RULES.replace("orders-secret", "x")],
)
def test_a_broken_file_changes_nothing(broker, rules, caplog, text):
    """The log says where the mistake is, once."""
    access = broker.services.access.plain
    with caplog.at_level(logging.ERROR, "broker.access"):
        changed(rules, text)
        until(lambda: access.problem)
        looks = access._seen
        until(lambda: access._seen is looks)
    assert play(broker.port, send())[0] == 0
    assert play(broker.port, send(key="stranger-1"))[0] == 1
    assert f"{rules}:" in access.problem
    assert len([r for r in caplog.records if "the old rules hold" in r.message]) == 1
    changed(rules, RULES)
    until(lambda: not access.problem)


def test_refusals_and_a_broken_file_are_in_the_runtime_info(broker, rules):
    boss = ASK | {"key": "operator", "secret": "operator-secret", "code": 28, "ext": {}}
    for _ in range(2):
        assert play(broker.port, send(key="stranger-1"))[0] == 1
    changed(rules, "accounts: [")
    until(lambda: broker.services.access.plain.problem)
    broker.services.watchdog.counts.update({25: 3})
    table = broker.run(runtime(broker))
    assert (table["accessRefused"], table["loopHeldRequests"]) == ("2", "{25: 3}")
    assert f"{rules}:" in table["accessProblem"]
    assert play(broker.port, boss)[0] == 0


async def runtime(broker):
    answer = StatisticsProcessor(broker.services).runtime(None, Command(28))
    return json.loads(bytes(answer.body))["table"]


def test_a_change_that_keeps_size_and_time_of_the_file_is_seen(broker, rules):
    before = rules.stat()
    rules.write_text(RULES.replace("orders=PUB|SUB", "orders=SUB|SUB"))
    os.utime(rules, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (rules.stat().st_size, rules.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    until(lambda: play(broker.port, send())[0] == 1)


def link_to_zeros(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, link_to_zeros])
def test_what_is_no_file_changes_nothing(broker, rules, make):
    """And is not waited for."""
    access = broker.services.access.plain
    rules.unlink()
    make(rules)
    until(lambda: access.problem and "is gone" not in access.problem)
    assert f"{rules}" in access.problem
    assert play(broker.port, send())[0] == 0
    assert play(broker.port, send(key="stranger-1"))[0] == 1
    rules.rmdir() if rules.is_dir() else rules.unlink()
    changed(rules, RULES)
    until(lambda: not access.problem)


def test_a_list_that_is_removed_lets_nobody_in(broker, rules):
    rules.unlink()
    until(lambda: broker.services.access.plain.problem)
    assert play(broker.port, send())[0] == 0
    assert play(broker.port, send(key="stranger-1"))[0] == 1


def test_a_pull_that_waits_is_answered_when_rules_change(broker, rules):
    """And gets nothing that comes later; asking again is refused."""
    answers = []
    waiting = threading.Thread(
        target=lambda: answers.append(play(broker.port, pull(hold_ms=290_000)))
    )
    waiting.start()
    until(lambda: broker.run(held(broker)))
    changed(rules, RULES.replace("orders=PUB|SUB", "orders=PUB"))
    waiting.join(280)
    assert [(code, body) for code, _, body in answers] == [(19, b"")]
    assert play(broker.port, send())[0] == 0
    code, remark, _ = play(broker.port, pull())
    assert "No default permission for topic:orders" in text_of_refusal(code, remark)


async def held(broker):
    return broker.services.core.totals().held


class Sender(threading.Thread):
    """Sends one signed request again and again, 200 at a time. codes: of all answers."""

    def __init__(self, port, case, stop):
        super().__init__()
        self._port, self._data, self._stopped = port, frame(case) * 200, stop
        self.codes = Counter()

    def run(self):
        with socket.create_connection(("127.0.0.1", self._port), 300) as sock:
            file = sock.makefile("rb")
            while not self._stopped.is_set():
                sock.sendall(self._data)
                for _ in range(200):
                    (size,) = struct.unpack(">i", file.read(4))
                    found = re.search(rb'"code" ?: ?(\d+)', file.read(size))
                    self.codes[int(found[1])] += 1


def test_rules_change_under_load(broker, rules):
    """Ten changes while two send as fast as they can: whoever may send always may, whoever may not
    never may, and what was acknowledged is stored."""
    stop = threading.Event()
    senders = [Sender(broker.port, case, stop) for case in (send(), send("elsewhere"))]
    access = broker.services.access.plain
    for each in senders:
        each.start()
    try:
        for i in range(10):
            until(lambda: all(each.codes.total() > 500 * i for each in senders))  # noqa: B023
            before = access.rules
            changed(rules, f"{RULES}- accessKey: newcomer-{i}\n  secretKey: a-secret-of-it\n")
            until(lambda: access.rules is not before)  # noqa: B023
            assert f"newcomer-{i}" in access.rules.accounts
    finally:
        stop.set()
        for each in senders:
            each.join(300)
    may, may_not = senders
    assert (set(may.codes), set(may_not.codes)) == ({0}, {1})
    assert broker.run(stored(broker)) == may.codes[0]
    assert let_in(broker) > 0 or digest_functions() is None


async def stored(broker):
    low, high = broker.store.range("orders", 0)
    return high - low


def test_a_right_that_is_taken_by_a_request_holds_from_its_answer_on(broker, rules):
    """On connections that are open and have sent before; a pull that waits is answered."""
    boss = ASK | {"key": "operator", "secret": "operator-secret", "code": 50}
    taken = {"accessKey": TEAM.access_key, "topicPerms": "orders=DENY"}
    given = {"accessKey": TEAM.access_key, "topicPerms": "orders=PUB|SUB"}
    held_pull = pull(hold_ms=290_000)
    held_pull["ext"]["queueOffset"] = "1"  # after what asked() sends first
    waiting = threading.Thread(target=play, args=(broker.port, held_pull))
    with socket.create_connection(("127.0.0.1", broker.port), 300) as sock:

        def asked():
            sock.sendall(frame(send()))
            return b'"code":0' in sock.recv(1 << 16)

        for round_number in range(5):
            assert asked()
            if round_number == 0:
                waiting.start()
                until(lambda: broker.run(held(broker)))
            assert play(broker.port, boss | {"ext": taken})[0] == 0
            assert not asked()
            waiting.join(280)
            assert not waiting.is_alive()
            assert play(broker.port, boss | {"ext": given})[0] == 0


@pytest.mark.parametrize("text", [None, "accounts: [", "- a\n"])
def test_a_broker_does_not_start_with_rules_that_nobody_can_read(tmp_path, text):
    """Rather than letting everybody in."""
    if text is not None:
        (tmp_path / "plain_acl.yml").write_text(text)
    with pytest.raises(BadArgument, match=r"plain_acl\.yml"):
        Broker(
            tmp_path / "store", aclEnable=True, listenPort=0, bindAddress="127.0.0.1"
        ).__enter__()


def test_both_kinds_at_once_are_refused(tmp_path, rules):
    with pytest.raises(BadArgument, match="exclude each other"):
        Broker(
            tmp_path / "store", aclEnable=True, authenticationEnabled=True, listenPort=0,
            bindAddress="127.0.0.1",
        ).__enter__()  # fmt: skip


def test_accounts_become_users(tmp_path, rules):
    """migrateAuthFromV1Enabled: rights, defaults and administrators; a wrong right is Deny."""
    rules.write_text(RULES.replace("orders=PUB|SUB", "orders=PUB|SUB\n  - typo=PUBLISH"))
    with Broker(
        tmp_path / "store", authenticationEnabled=True, authorizationEnabled=True,
        migrateAuthFromV1Enabled=True, listenPort=0, bindAddress="127.0.0.1",
    ) as broker:  # fmt: skip
        broker.create_topic("orders", 1)
        assert play(broker.port, send())[0] == 0
        assert play(broker.port, send("typo"))[0] == 16
        assert play(broker.port, send("elsewhere"))[0] == 16
        admin = {"key": "operator", "secret": "operator-secret"}
        assert play(broker.port, send("typo", **admin))[0] == 0
        assert (tmp_path / "store" / "access").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["*", "mid*", "*-public"])
def test_a_star_in_a_plain_list_is_refused_when_a_request_brings_it(broker, name):
    boss = ASK | {"key": "operator", "secret": "operator-secret", "code": 50}
    given = {"accessKey": TEAM.access_key, "topicPerms": f"{name}=PUB"}
    code, remark, _ = play(broker.port, boss | {"ext": given})
    assert (code, "A star stands for nothing in a plain list" in remark) == (209, True)


def test_a_star_in_the_file_of_a_plain_list_is_warned_of(tmp_path):
    file = tmp_path / "plain_acl.yml"
    file.write_text(RULES.replace("orders=PUB|SUB", "ord*=PUB|SUB"))
    (warning,) = plain_file.load(file).warnings
    assert "topicPerms: ord*: a star stands for nothing" in warning


def test_a_star_of_a_plain_list_becomes_no_prefix_of_users(tmp_path):
    file = tmp_path / "plain_acl.yml"
    file.write_text(RULES.replace("orders=PUB|SUB", "ord*=PUB|SUB"))
    rules, _ = plain_file.joined([plain_file.load(file)])
    access = PolicyAccess(tmp_path / "access", lambda: None)
    access.open(access.rules)
    lost = access.migrate(rules)
    assert "Topic:ord*" in "".join(lost)
    assert "Topic:ord*" not in json.dumps(access.acls("", ""))
    access.close()


# ---- our clients ----


def test_our_clients_sign(broker):
    """Producer and consumer, with hooks before the signature."""
    with (
        broker.producer(credentials=TEAM) as producer,
        broker.consumer("g", "orders", credentials=TEAM, start="first") as consumer,
    ):
        producer.send(Message("orders", b"hello"))
        assert until(lambda: consumer.poll(1.0))[0].body == b"hello"
        with pytest.raises((SendFailed, BrokerRefused), match="No default permission"):
            producer.send(Message("elsewhere", b"hello"))


def test_halves_and_their_decisions_are_signed(broker):
    """By somebody with the rights; a stranger's half is refused."""

    def half_of(who):
        find = RouteFinder(lambda: broker.loop, broker._route_of)
        with (
            TransactionProducer(
                "makers", check=lambda message: LocalState.COMMIT, credentials=who, find_route=find
            ) as producer,
            producer.transaction(Message("orders", b"half")),
        ):
            pass

    with broker.consumer("g", "orders", credentials=TEAM, start="first") as consumer:
        half_of(TEAM)
        assert until(lambda: consumer.poll(1.0))[0].body == b"half"
    with pytest.raises((SendFailed, BrokerRefused), match="No acl config"):
        half_of(Credentials("stranger-1", "another-secret"))


def test_an_unsigned_client_is_refused(broker):
    with (
        broker.producer() as producer,
        pytest.raises((SendFailed, BrokerRefused), match="No accessKey"),
    ):
        producer.send(Message("orders", b"hello"))


def test_credentials_of_the_environment(broker, monkeypatch):
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", TEAM.access_key)
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", TEAM.secret_key)
    with broker.producer() as producer:
        producer.send(Message("orders", b"hello"))


def test_secrets_are_not_shown(tmp_path):
    """Neither by credentials nor by settings."""
    broker = Broker(tmp_path, initAuthenticationUser='{"username":"u","password":"hidden-one"}')
    assert "hidden" not in repr(broker.settings)
    assert "hidden" not in repr(Credentials("k", "hidden", "hidden"))


def test_an_empty_field_of_a_binary_header_is_not_signed():
    """Upstream's brokers would sign the word null for it."""
    command = Command(310, {"a": "g", "i": ""}, serialize=BINARY)
    SigningHook(TEAM).before_request("", command)
    assert "i" not in command.ext


# ---- safe defaults ----


@pytest.mark.parametrize(("address", "warns"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_a_door_that_is_open_to_everybody_is_said_at_the_start(tmp_path, caplog, address, warns):
    with caplog.at_level(logging.WARNING), Broker(tmp_path, listenPort=0, bindAddress=address):
        pass
    assert ("pystore broker --secure" in caplog.text) == warns


@pytest.mark.parametrize(
    ("host", "on", "refused"),
    [("127.0.0.1", False, False), ("10.1.2.3", False, True), ("10.1.2.3", True, False)],
)
def test_strangers_change_no_dangerous_setting(host, on, refused):
    """While access control is off; then it decides."""
    services = SimpleNamespace(access=SimpleNamespace(is_on=on))
    desk, peer = ConfigProcessor(services), SimpleNamespace(address=(host, 1))
    if refused:
        with pytest.raises(Refused, match="namesrvAddr can be changed from the broker's own host"):
            desk._check_source(peer, ["namesrvAddr"])
    else:
        desk._check_source(peer, ["namesrvAddr"])
    desk._check_source(peer, ["defaultQueryMaxNum"])


def test_only_a_trusted_proxy_says_where_a_client_is(tmp_path, rules):
    """A white list of addresses would else be open to whoever sends a PROXY header."""
    rules.write_text("globalWhiteRemoteAddresses:\n- 10.9.9.9\n" + RULES)
    with Broker(
        tmp_path / "store", aclEnable=True, listenPort=0, bindAddress="127.0.0.1",
        trustedProxies="127.0.0.2",
    ) as broker:  # fmt: skip
        broker.create_topic("orders", 1)
        case = send()
        del case["key"]
        header = b"PROXY TCP4 10.9.9.9 127.0.0.1 4711 9876\r\n"
        for source, answered in (("127.0.0.2", True), ("127.0.0.3", False)):
            with socket.create_connection(("127.0.0.1", broker.port), 300, (source, 0)) as sock:
                sock.sendall(header + frame(case))
                try:
                    got = sock.recv(1)
                except ConnectionResetError:  # nobody has read the frame
                    got = b""
                assert bool(got) == answered


def test_secure_makes_a_broker_that_lets_only_its_administrator_in(tmp_path):
    """Its files are their owner's alone; the second start finds them."""
    folder = tmp_path / "store.secure"
    tls, settings = secured(folder, "127.0.0.1")
    assert secured(folder, "127.0.0.1")[1] == settings
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    admin = credentials_of_file(folder / ADMIN_FILE)
    assert re.fullmatch(r"[\w-]{32}", admin.secret_key)
    trust = client_context(str(folder / "broker.crt"))
    with Broker(
        tmp_path / "store", tls=tls, with_namesrv=True, listenPort=0, bindAddress="127.0.0.1",
        **settings,
    ) as broker:  # fmt: skip
        with Producer("p", broker.namesrv_address, tls=trust, credentials=admin) as producer:
            producer.send(Message("orders", b"hello"))
        with (
            Producer("p", broker.namesrv_address, tls=trust) as producer,
            pytest.raises((SendFailed, BrokerRefused), match="username cannot be null"),
        ):
            producer.send(Message("orders", b"hello"))


# ---- in the core ----


def let_in(broker):
    return broker.services.core.let_in


def test_what_was_decided_once_is_served_by_the_core(broker):
    """Of one key, address, topic and group; then the signature is all that is checked."""
    if digest_functions() is None:
        pytest.skip("this interpreter does not show the functions of its cryptographic library")
    for case in (send(), pull(), ack(), send(code=320), send("orders", binary=True)):
        play(broker.port, case)
        before = let_in(broker)
        assert play(broker.port, case)[0] in (0, 13)
        assert let_in(broker) == before + 1
    for other in (
        send("elsewhere"), send(key="stranger-1"), send(secret="another-secret"),
        ack(secret="another-secret"), ack(key="stranger-1"),
    ):  # fmt: skip
        assert play(broker.port, other)[0] == 1
    before = let_in(broker)
    play(broker.port, send(source="127.0.0.9"))
    assert let_in(broker) == before


def test_a_change_of_rules_withdraws_every_grant(broker, rules):
    for _ in range(2):
        assert play(broker.port, send())[0] == 0
    changed(rules, RULES.replace("orders-secret", "orders-secret-2"))
    until(lambda: play(broker.port, send())[0] == 1)
    assert play(broker.port, send(secret="orders-secret-2"))[0] == 0


def locks():
    body = '{"clientId":"c","consumerGroup":"g","mqSet":[]}'
    return ASK | {"code": 42, "ext": {"x": "y"}, "body": body}


@pytest.mark.parametrize(
    "case",
    [send(), send(code=320, body="\0\0\0\x17" + "\0" * 15 + "\1b\0\0"), pull(), locks()],
    ids=["send", "batch", "pull", "unlock"],
)
def test_a_granted_frame_with_any_byte_changed_is_refused(broker, case):
    """Every byte of a value and of the body, by the core and by Python alike: nothing is stored.
    The names of the fields are not signed, as everywhere."""
    for _ in range(2):
        assert play(broker.port, case)[0] in (0, 19)
    whole = frame(case)
    body = case.get("body", "")
    head = json.loads(whole[8 : len(whole) - len(body)])
    places = list(range(len(whole) - len(body), len(whole)))
    for name, value in head["extFields"].items():
        text = json.dumps({name: value})[1:-1].encode()
        begin = whole.index(text) + len(json.dumps(name)) + 3
        places += range(begin, begin + len(json.dumps(value)) - 2)
    puts = broker.services.core.sums().puts
    for at in places:
        broken = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with socket.create_connection(("127.0.0.1", broker.port), 300) as sock:
            sock.sendall(broken)
            answer = sock.recv(1 << 16)
        assert not answer or b"AclException" in answer, whole[at - 9 : at + 9]
    assert broker.services.core.sums().puts == puts


def test_a_field_that_stands_twice_is_decided_by_the_last(broker):
    """Neither Python nor the core looks at one and puts by the other."""
    play(broker.port, send())
    ext = send()["ext"]
    for first, last, code in (("elsewhere", "orders", 0), ("orders", "elsewhere", 1)):
        signed = frame(send(ext=ext | {"b": last}))
        text = f'"b": "{last}"'.encode()
        twice = signed[8:].replace(text, f'"b": "{first}", '.encode() + text)
        (size, mark) = struct.unpack(">iI", signed[:8])
        more = len(twice) + 8 - len(signed)
        data = struct.pack(">iI", size + more, mark + more) + twice
        with socket.create_connection(("127.0.0.1", broker.port), 300) as sock:
            sock.sendall(data)
            answer = sock.recv(1 << 16)
        assert f'"code":{code},'.encode() in answer.replace(b" ", b"")


# ---- limits ----


def test_unfinished_frames_share_one_budget(tmp_path):
    """The largest go first, a small one stays; whoever is closed can come again."""
    limit, part = 32 << 20, 12 << 20
    head = struct.pack(">iI", (16 << 20) - 8, 100)
    with Broker(
        tmp_path, listenPort=0, bindAddress="127.0.0.1", maxUnfinishedBytes=limit
    ) as broker:
        core, budget = broker.services.core, Budget.of(broker.loop)
        with contextlib.ExitStack() as stack:
            small, *large = (
                stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), 300))
                for _ in range(9)
            )
            small.sendall(head + bytes(1000))
            for each in large:
                with contextlib.suppress(ConnectionError):
                    each.sendall(head + bytes(part))
                until(lambda: budget.held <= limit)  # each thread ends its own
            until(lambda: len(core._connections) < 9)
            small.setblocking(False)
            with pytest.raises(BlockingIOError):
                small.recv(1)
        until(lambda: not core._connections and budget.held == 0)


def test_a_large_frame_of_somebody_unknown_closes_the_connection(tmp_path, rules, caplog):
    """By its length alone, before the rest is read; counted. Whoever was let in may send it."""
    settings = {"aclEnable": True, "maxFirstFrameBytes": 100_000}
    with Broker(
        tmp_path / "store", listenPort=0, bindAddress="127.0.0.1", **settings
    ) as broker:  # fmt: skip
        broker.create_topic("orders", 1)
        small, large = frame(send()), frame(send(body="x" * 200_000))
        for refused in (False, True):  # before the large one: a request that is not let in
            with socket.create_connection(("127.0.0.1", broker.port), 300) as sock:
                if refused:
                    sock.sendall(frame(send(secret="another-secret")))
                    assert b"Check signature failed" in sock.recv(1 << 16)
                sock.sendall(large[:8])
                assert sock.recv(1 << 16) == b""
        assert "before any signed request was let in: 100000 are allowed" in caplog.text
        assert broker.run(runtime(broker))["firstFramesRefused"] == "2"
        for _ in range(2):  # let in by Python, then by the core
            with socket.create_connection(("127.0.0.1", broker.port), 300) as sock:
                for sent in (small, large):
                    sock.sendall(sent)
                    assert b'"code":0' in sock.recv(1 << 16)


def test_frames_before_the_first_request_are_limited_as_messages_are(tmp_path, rules):
    settings = {"aclEnable": True, "maxMessageSize": 1 << 20}
    with Broker(
        tmp_path / "store", listenPort=0, bindAddress="127.0.0.1", **settings
    ) as broker:  # fmt: skip
        core = broker.services.core
        for size, taken in (((2 << 20) - 4, True), ((2 << 20) - 3, False)):
            with socket.create_connection(("127.0.0.1", broker.port), 300) as sock:
                sock.sendall(struct.pack(">iI", size, 2) + b"{}")
                if taken:
                    until(lambda: sock.send(b"x") and Budget.of(broker.loop).held)
                else:
                    assert sock.recv(1) == b""
                assert core.first_frames_refused == (not taken)


def test_a_pull_over_the_limit_does_not_wait(tmp_path):
    with Broker(tmp_path, listenPort=0, bindAddress="127.0.0.1", maxHeldPulls=0) as broker:
        broker.create_topic("orders", 1)
        assert play(broker.port, pull(hold_ms=290_000))[0] == 19


def test_a_connection_over_the_limit_is_told_so(tmp_path):
    with (
        Broker(tmp_path, listenPort=0, bindAddress="127.0.0.1", maxConnections=1) as broker,
        socket.create_connection(("127.0.0.1", broker.port), 300),
    ):
        until(lambda: play(broker.port, send())[0] == 2)


def test_files_are_not_for_every_user(tmp_path):
    """Log, queues, configuration, metadata: nothing for others, whatever the umask."""
    before = os.umask(0)
    try:
        with Broker(tmp_path / "s", listenPort=0, bindAddress="127.0.0.1") as broker:
            broker.create_topic("orders", 1)
            assert play(broker.port, send())[0] == 0
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "s").rglob("*") if path.is_file()]
    open_to_all = [path for path in files if path.stat().st_mode & 0o007]
    assert len(files) > 10
    assert open_to_all == []


def modes_below(root):
    """Of the root and everything in it: folders, then files."""
    found = [(stat.S_IMODE(each.stat().st_mode), each) for each in (root, *root.rglob("*"))]
    folders = {mode for mode, each in found if each.is_dir()}
    return folders, {mode for mode, each in found if each.is_file()}


@pytest.mark.parametrize(("text", "file", "folder"), [
    ("0600", 0o600, 0o700), ("0660", 0o660, 0o770), ("0644", 0o644, 0o755),
])  # fmt: skip
def test_every_file_has_the_mode_of_the_setting(tmp_path, text, file, folder):
    """Messages, a delay, a timer, an open transaction; then a rebuild and damaged metadata."""
    root, mode = tmp_path / "new" / "s", {"storeFileMode": text}
    asks = [{"KEYS": "k"}, {"DELAY": "3"}, {"TIMER_DELAY_SEC": "3600"},
            {"TRAN_MSG": "true", "PGROUP": "p"}]  # fmt: skip
    before = os.umask(0)
    try:
        with Broker(root, listenPort=0, bindAddress="127.0.0.1", **mode) as broker:
            broker.create_topic("orders", 1)
            for number, properties in enumerate(asks):
                asked = send()
                given = properties | {"UNIQ_KEY": f"K{number}"}
                asked["ext"]["i"] = encode_properties(given).decode()
                assert play(broker.port, asked)[0] == 0
            while_open = modes_below(root)
        names = {each.name for each in root.iterdir()}
        rebuild(root, metadata=True, **mode)
        (root / "config" / "topics.json").write_bytes(b"torn")
        (root / "config" / "topics.json.bak").unlink(missing_ok=True)
        pystore.open(root, **mode).close()
        (root / "meta" / "data.mdb").write_bytes(bytes(100))
        pystore.open(root, **mode).close()
    finally:
        os.umask(before)
    assert {"timers", "timerlog", "config", "meta", "index", "lock", "checkpoint"} <= names
    assert {"aside"} | names <= {each.name for each in root.iterdir()}
    assert while_open == modes_below(root) == modes_below(root.parent) == ({folder}, {file})


def test_our_clients_sign_their_sends_in_c(broker, monkeypatch):
    """One by one and in batches; Python signs the rest."""
    if digest_functions() is None:
        pytest.skip("this interpreter does not show the functions of its cryptographic library")
    signed = []
    monkeypatch.setattr(
        "broker.client.credentials.sign",
        lambda command, credentials: (signed.append(command.code), sign(command, credentials)),
    )
    token = Credentials(TEAM.access_key, TEAM.secret_key, "a token")
    with broker.producer(credentials=token) as producer:
        producer.send(Message("orders", b"first"))
        signed.clear()
        before = let_in(broker)
        producer.send(Message("orders", "grün".encode(), keys="ключ", properties={"ü": "é"}))
        producer.send_batch([Message("orders", b"one"), Message("orders", b"two")])
        producer.send_batch([Message("orders", b"three"), Message("orders", b"four")])
        assert not {310, 320} & set(signed)
        assert let_in(broker) >= before + 2
