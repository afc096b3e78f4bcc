"""What users with some rights try with what is not theirs; and somebody without any."""

from __future__ import annotations

import json
import logging
import socket
import struct
from pathlib import Path

import pytest
from access_cases import frame, play, play_on
from waiting import BOUND_S, until

import broker as broker_package
from broker import Broker
from broker.access.needs import AccessAction, Need, ResourceKind
from broker.access.policies import Acl, PolicyEntry, parse_acl, parse_resource
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.services.policy_access import PolicyAccess

ROOT = {"server": "5.3.3", "key": "root", "secret": "root-secret"}
ALICE = {"server": "5.3.3", "key": "alice", "secret": "alice-secret"}
MALLORY = {"server": "5.3.3", "key": "mallory", "secret": "mallory-secret"}


def request(who, code, body=None, **ext):
    text = {} if body is None else {"body": json.dumps(body)}
    return who | {"code": code, "ext": {name: str(value) for name, value in ext.items()}} | text


def rights(user, *resources, actions=("Pub", "Sub")):
    entries = [
        {"resource": each, "actions": list(actions), "decision": "Allow"} for each in resources
    ]
    body = {"subject": f"User:{user}", "policies": [{"entries": entries}]}
    return request(ROOT, 3006, body, subject=f"User:{user}")


def send(who, topic, body="x", **changes):
    ext = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0",
           "g": "1700000000000", "h": "0", "i": "KEYS\1k", "j": "0", "k": "false"}  # fmt: skip
    return who | {"code": 310, "ext": ext | changes, "body": body}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """Alice has payroll and its group, Mallory memos and a group of her own."""
    first = {"username": "root", "password": "root-secret"}
    with Broker(
        tmp_path_factory.mktemp("guarded") / "store", authenticationEnabled=True,
        authorizationEnabled=True, initAuthenticationUser=json.dumps(first), listenPort=0,
        bindAddress="127.0.0.1",
    ) as broker:  # fmt: skip
        for topic in ("payroll", "memos"):
            broker.create_topic(topic, 1)
        for user, own in (("alice", "payroll"), ("mallory", "memos")):
            body = {"username": user, "password": f"{user}-secret"}
            assert play(broker.port, request(ROOT, 3001, body, username=user))[0] == 0
            assert play(broker.port, rights(user, f"Topic:{own}", f"Group:{user}"))[0] == 0
            assert play(broker.port, request(ROOT, 200, {"groupName": user}))[0] == 0
        yield broker


# ---- stars ----


@pytest.mark.parametrize("name", ["*-public", "mid*x", "a**", "*a*"])
@pytest.mark.parametrize("kind", ["Topic", "Group"])
def test_a_rule_with_a_star_elsewhere_than_at_its_end_is_refused(guarded, kind, name):
    code, remark, _ = play(guarded.port, rights("alice", f"{kind}:{name}"))
    assert code == 16
    assert f"{kind}:{name} has a star that is not its last letter" in remark


@pytest.mark.parametrize(("name", "other"), [("*-public", "payroll"), ("mid*x", "middle")])
def test_a_star_elsewhere_than_at_the_end_stands_for_nothing(name, other):
    """As in RocketMQ 5.3.3, for rules that a store has."""
    entry = {"resource": f"Topic:{name}", "actions": ["Pub"], "decision": "Allow"}
    acl = parse_acl({"policies": [{"entries": [entry]}]})
    assert acl.deciding(Need(ResourceKind.TOPIC, other, (AccessAction.PUB,)), "10.0.0.1") is None


def test_a_rule_with_such_a_star_in_a_store_is_warned_of(tmp_path, caplog):
    access = PolicyAccess(tmp_path / "access", lambda: None)
    access.open(access.rules)
    entry = PolicyEntry(parse_resource("Topic:mid*x"), (AccessAction.PUB,), True)
    access._write({}, {"bob": Acl((entry,)).as_json("bob")})
    access.close()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "broker.access"):
        access.open(access.rules)
    access.close()
    assert "A rule of User:bob is on Topic:mid*x" in caplog.text


# ---- records by their place in the log ----


def back(who, group, offset):
    return request(
        who, 36, group=group, offset=offset, delayLevel=0, originMsgId="x", originTopic="memos",
        unitMode="false", maxReconsumeTimes=16,
    )  # fmt: skip


def stored(guarded, who, topic, **changes):
    """Where a message that somebody sends lies in the log."""
    before = guarded.run(_end_of(guarded))
    assert play(guarded.port, send(who, topic, **changes))[0] == 0
    return before


async def _end_of(guarded):
    return guarded.services.store.info().log_max


@pytest.fixture
def place(guarded):
    """Of a message of Alice's."""
    return stored(guarded, ALICE, "payroll", body="salaries")


def test_a_record_that_one_may_not_read_is_not_sent_back(guarded, place):
    code, remark, _ = play(guarded.port, back(MALLORY, "mallory", place))
    assert (code, "has no permission" in remark) == (16, True)
    assert "%RETRY%mallory" not in {row.name for row in guarded.services.topics.all()}


def test_a_record_that_one_has_read_is_sent_back(guarded, place):
    assert play(guarded.port, back(ALICE, "alice", place))[0] == 0


def test_a_half_message_is_not_sent_back_by_who_may_read_its_topic(guarded):
    place = stored(guarded, ALICE, "payroll", body="a half", i="TRAN_MSG\1true\2PGROUP\1alice",
                   f="4")  # fmt: skip
    assert play(guarded.port, back(ALICE, "alice", place))[0] == 16


def id_at(offset):
    """The offsetMsgId of a record, whichever broker it names."""
    return f"{0:016x}{offset:016x}"


@pytest.mark.parametrize("code", [33, 36, 37, 309, 323])
def test_a_refusal_does_not_tell_whether_a_record_is_there(guarded, place, code):
    """Nor of which topic it is."""
    said = set()
    for offset in (place, place + 1, 1 << 40):
        asked = request(
            MALLORY, code, group="mallory", offset=offset, delayLevel=0, producerGroup="mallory",
            tranStateTableOffset=0, commitLogOffset=offset, commitOrRollback=8,
            consumerGroup="mallory", clientId="none", msgId=id_at(offset),
        )  # fmt: skip
        answered, remark, _ = play(guarded.port, asked)
        assert "payroll" not in remark
        said.add((answered, remark.replace(f"at {offset},", "at N,")))
    assert {answered for answered, _ in said} == {16}
    assert len(said) == 1


@pytest.mark.parametrize("more", [{}, {"topic": "memos"}])
def test_a_record_of_others_is_handed_to_no_client_of_ones_own(guarded, place, more):
    """By 309, whatever topic it names. One that the group has read is."""

    def handed(who, offset):
        own = who["key"]
        asked = request(
            who, 309, consumerGroup=own, clientId=f"{own}@1", msgId=id_at(offset), **more
        )
        code, remark, _ = play(guarded.port, asked)
        return code, remark[-10:]

    mine = stored(guarded, MALLORY, "memos")
    half = stored(guarded, MALLORY, "memos", i="TRAN_MSG\1true\2PGROUP\1mallory", f="4")
    assert handed(MALLORY, place)[0] == handed(MALLORY, half)[0] == 16
    assert handed(MALLORY, mine) == (1, "not online")


def test_a_check_is_resumed_by_whoever_may_update_the_transactions_topic(guarded):
    """By 323, which older tools send without a topic."""
    place = stored(guarded, ALICE, "payroll", i="TRAN_MSG\1true\2PGROUP\1alice", f="4")
    play(guarded.port, rights("mallory", "Topic:notes", actions=["Update"]))
    for more, code in (({}, 16), ({"topic": "payroll"}, 16), ({"topic": "notes"}, 1)):
        asked = request(MALLORY, 323, msgId=id_at(place), **more)
        assert play(guarded.port, asked)[0] == code
    assert play(guarded.port, request(ROOT, 323, msgId=id_at(place)))[0] == 0


@pytest.mark.parametrize("code", [3002, 3003])
def test_a_super_is_changed_by_no_normal_user(guarded, code):
    """Who may change the cluster, and so the other users."""
    body = {"username": "clerk", "password": "clerk-secret"}
    play(guarded.port, request(ROOT, 3001, body, username="clerk"))
    play(guarded.port, rights("clerk", "Cluster:*", actions=["All"]))
    clerk = {"server": "5.3.3", "key": "clerk", "secret": "clerk-secret"}
    for given in ({"username": "root", "password": "mine"}, {"userType": "nonsense"}):
        answered, remark, _ = play(guarded.port, request(clerk, code, given, username="root"))
        assert (answered, remark) == (16, "The super user can only be update by super user")


# ---- the log ----


def lines_of(caplog):
    """Of the broker; a busy machine adds a line on how long a request took."""
    return [
        record
        for record in caplog.records
        if record.name.startswith("broker") and "held the event loop" not in record.msg
    ]


def test_strangers_with_ever_new_names_write_one_line_a_minute(guarded, caplog):
    """With and without a signature, for any request, with a name that begins another line."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "broker"):
        for number in range(40):
            name = f"u{number}\n2026-01-01 INFO all is well \x1b[2J"
            stranger = {"server": "5.3.3", "key": name, "secret": "guessed"}
            code = (310, 11, 34, 3001)[number % 4]
            topic = f"nowhere{number}"
            assert play(guarded.port, send(stranger, topic) | {"code": code})[0] == 16
            wrong = ALICE | {"secret": f"guessed{number}"}
            assert play(guarded.port, send(wrong, topic))[0] == 16
    assert len(lines_of(caplog)) <= 1


def test_malformed_frames_of_ever_new_lengths_write_one_line_a_minute(guarded, caplog):
    caplog.clear()
    with caplog.at_level(logging.INFO, "broker"):
        for number in range(20):
            with socket.create_connection(("127.0.0.1", guarded.port), BOUND_S) as sock:
                sock.sendall(struct.pack(">ii", (16 << 20) - 1 - number, 0))
                assert sock.recv(1) == b""
        assert play(guarded.port, request(ROOT, 28, {}))[0] == 0  # all of it is known by now
    assert len(lines_of(caplog)) <= 1


def test_a_user_who_may_less_writes_a_line_a_minute_and_request(guarded, caplog):
    caplog.clear()
    with caplog.at_level(logging.INFO, "broker"):
        for number in range(20):
            assert play(guarded.port, send(MALLORY, f"nowhere{number}"))[0] == 16
    assert len(lines_of(caplog)) <= 1


@pytest.mark.parametrize(
    "text", ["a\nb", "a\r\x1b[2Jb", "a\x85b\u2028c", "a\u202eb", "\ud800", "\0"]
)
def test_what_is_logged_begins_no_line_and_speaks_to_no_terminal(caplog, text):
    """Of arguments, and of an error's own text in a traceback."""
    log = SafeLogger("broker.test")
    log.warning("Refused '%s' of %d", text, 7)
    try:
        raise ValueError(text)
    except ValueError:
        log.exception("%s failed", text)
    plain, failed = (logging.Formatter().format(record) for record in caplog.records)
    assert plain.isprintable()
    first, *rest = failed.split("\n")
    assert first.isprintable()
    assert rest and all(line.isprintable() and line.startswith("  | ") for line in rest)


def test_what_is_logged_is_cut(caplog):
    SafeLogger("broker.test").warning("Refused %s", "x" * 1_000_000)
    (record,) = caplog.records
    assert len(record.getMessage()) < 1000
    assert "1000000 characters" in record.getMessage()


def test_a_line_names_the_place_that_logs_it(caplog):
    log = RateLimitedLogger(SafeLogger("broker.test"))
    log.warning("kind", "Refused")
    SafeLogger("broker.test").warning("Refused")
    assert {record.filename for record in caplog.records} == {"test_access_strangers.py"}


def test_kinds_without_end_are_one_kind(caplog):
    log = RateLimitedLogger(SafeLogger("broker.test"))
    for number in range(5000):
        log.warning(number, "Refused")
    assert len(caplog.records) <= 1001


def test_no_room_logs_what_a_peer_sent_by_another_way():
    """Whoever makes a logger elsewhere escapes nothing. The shell's own room shows people lines,
    and log_lines.py gives loggers their levels."""
    root = Path(broker_package.__file__).parent
    found = [
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if "getLogger(" in path.read_text() and path.parts[-2] != "cli"
    ]
    assert sorted(found) == ["loop/log_lines.py", "loop/safe_log.py"]


# ---- retry topics ----


@pytest.mark.parametrize("code", [17, 215, 513])
def test_whoever_consumes_as_a_group_does_not_change_its_retry_topic(guarded, code):
    """What waits there is lost with it. The group's own rights to be made and deleted count."""
    name = f"keepers{code}"
    asked = request(
        MALLORY, code, None, topic=f"%RETRY%{name}", defaultTopic="TBW102", readQueueNums=1,
        writeQueueNums=1, perm=0, topicFilterType="SINGLE_TAG", topicSysFlag=0, order="false",
    )  # fmt: skip
    assert play(guarded.port, rights("mallory", f"Group:{name}", actions=["Sub", "Pub"]))[0] == 0
    code, remark, _ = play(guarded.port, asked)
    assert (code, f"to access Group:{name}" in remark) == (16, True)
    given = ["Sub", "Create", "Delete"]
    assert play(guarded.port, rights("mallory", f"Group:{name}", actions=given))[0] == 0
    assert play(guarded.port, asked)[0] != 16


# ---- light queues ----


@pytest.mark.parametrize("code", [10, 310, 320, 325])
def test_a_message_goes_into_no_light_queue_that_one_may_not_publish_to(guarded, code):
    """Also where the core was granted sends to its topic. One that is sent back goes into none."""

    def asked(queue, topic="memos", **more):
        ask = send(MALLORY, topic, i=f"INNER_MULTI_DISPATCH\1{queue}\2UNIQ_KEY\1u", **more)
        names = {"a": "producerGroup", "b": "topic", "c": "defaultTopic", "f": "sysFlag",
                 "d": "defaultTopicQueueNums", "e": "queueId", "g": "bornTimestamp", "h": "flag",
                 "i": "properties"}  # fmt: skip
        ext = {names[name] if code == 10 else name: ask["ext"][name] for name in names}
        return ask | {"code": code, "ext": ext}

    with socket.create_connection(("127.0.0.1", guarded.port), 300) as sock:
        assert play_on(sock, send(MALLORY, "memos"))[0] == 0
        for queue in ("%LMQ%alice", "%LMQ%$payroll$x", "x,%LMQ%alice"):
            answered, remark, _ = play_on(sock, asked(queue))
            assert (answered, "no permission to access" in remark) == (16, True)
        if code != 325:  # which needs the right on the reply topic, too
            assert play_on(sock, asked("%LMQ%alice", "%RETRY%mallory"))[0] != 16


# ---- client ids ----


def test_a_client_id_is_refused_to_another_user_while_its_first_one_is_there(guarded):
    def beat(who):
        return request(who, 34, {"clientID": "c@1", "producerDataSet": [{"groupName": who["key"]}]})

    with socket.create_connection(("127.0.0.1", guarded.port), 300) as sock:
        sock.sendall(frame(beat(ALICE)))
        assert b'"code":0' in sock.recv(1 << 16)
        code, remark, _ = play(guarded.port, beat(MALLORY))
        assert (code, "is another user's" in remark) == (16, True)
        assert play(guarded.port, beat(ALICE))[0] == 0
    until(lambda: play(guarded.port, beat(MALLORY))[0] == 0)


def test_nobody_leaves_for_another_user(guarded):
    """A producer group, or a client, by 35; with one's own it is answered as in RocketMQ."""

    def leave(who, client, group):
        return request(who, 35, None, clientID=client, producerGroup=group)

    with socket.create_connection(("127.0.0.1", guarded.port), 300) as sock:
        beat = {"clientID": "left@1", "producerDataSet": [{"groupName": "alices"}]}
        sock.sendall(frame(request(ALICE, 34, beat)))
        assert b'"code":0' in sock.recv(1 << 16)
        for client in ("left@1", "mallory@1"):
            code, remark, _ = play(guarded.port, leave(MALLORY, client, "alices"))
            assert (code, "another user's" in remark) == (16, True)
        assert play(guarded.port, leave(MALLORY, "mallory@1", "mallorys"))[0] == 0
        assert play(guarded.port, leave(ALICE, "left@1", "alices"))[0] == 0


# ---- halves of others ----


@pytest.mark.parametrize(("who", "asked"), [(ALICE, 1), (MALLORY, 0)])
def test_half_messages_are_shown_to_nobody_who_may_not_publish_to_their_topic(guarded, who, asked):
    """Whatever producer group a heartbeat names. No check is counted that nobody can answer."""
    transactions = guarded.services.transactions
    group = f"makers-{who['key']}"
    half = f"TRAN_MSG\1true\2PGROUP\1{group}\2UNIQ_KEY\1{group}"
    stored(guarded, ALICE, "payroll", body="salaries", i=half, f="4")
    beat = request(who, 34, {"clientID": group, "producerDataSet": [{"groupName": group}]})
    guarded.run(_later(transactions))
    try:
        with socket.create_connection(("127.0.0.1", guarded.port), 300) as sock:
            sock.sendall(frame(beat))
            answered = sock.recv(1 << 16)
            report = guarded.run(transactions.check())
            sock.sendall(frame(beat | {"code": 34}))
            while answered.count(b"IS_SUB_CHANGE") < 2:
                answered += sock.recv(1 << 16)
    finally:
        transactions.now_ms = transactions.now_before
    assert (b"salaries" in answered) == bool(asked)
    assert report.asked >= asked
    (found,) = [each for each in guarded.run(_halves(transactions)) if each.group == group]
    assert found.checks == asked


def test_a_half_of_a_stranger_does_not_make_a_group_present_for_others(guarded):
    """Else the others would be asked nobody about until they are discarded."""
    transactions, group = guarded.services.transactions, "absent-makers"
    for who, topic in ((ALICE, "payroll"), (MALLORY, "memos")):
        half = f"TRAN_MSG\1true\2PGROUP\1{group}\2UNIQ_KEY\1{topic}"
        stored(guarded, who, topic, body=topic, i=half, f="4")
    beat = request(MALLORY, 34, {"clientID": group, "producerDataSet": [{"groupName": group}]})
    guarded.run(_later(transactions))
    try:
        with socket.create_connection(("127.0.0.1", guarded.port), 300) as sock:
            sock.sendall(frame(beat))
            sock.recv(1 << 16)
            guarded.run(transactions.check())
    finally:
        transactions.now_ms = transactions.now_before
    found = {each.topic: each.checks for each in guarded.run(_halves(transactions))
             if each.group == group}  # fmt: skip
    assert found == {"payroll": 0, "memos": 1}


async def _later(transactions):
    """An hour passes."""
    transactions.now_before = now = transactions.now_ms
    transactions.now_ms = lambda: now() + 3_600_000


async def _halves(transactions):
    return list(transactions.halves.all())
