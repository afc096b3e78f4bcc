"""What is answered to requests that come up to Python: codes, order of checks, what is stored."""

from __future__ import annotations

import base64
import json
import struct

import pytest
from fakes import FakePeer, answer_of, beat, send_command, services
from waiting import BOUND_S

from broker.processors import all_handlers
from broker.processors.assignment import divide
from broker.processors.refusals import put_refusal
from broker.services.hooks import AbortProcessException
from broker.wire import mqjson
from broker.wire.command import Command, texts
from broker.wire.mqjson import MessageQueue
from pystore import FlushFailed, TopicConfig


class Desk:
    """A broker's services, its handlers, and one client."""

    def __init__(self, s):
        self.s = s
        self.handlers = all_handlers(s)
        self.peer = FakePeer(core=s.core)

    def ask(self, code, body=b"", peer=None, version=479, **ext):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        command = Command(code, texts(ext), body, version=version)
        return answer_of(self.handlers[code], peer or self.peer, command)

    def send(self, *args, **fields):
        command = send_command(*args, **fields)
        return answer_of(self.handlers[command.code], self.peer, command)

    def stored(self, topic, queue=0):
        return list(self.s.store.read(topic, queue, 0))

    def wait(self, topic, queue=0, count=1):
        self.s.store.flush()
        found = self.stored(topic, queue)
        while len(found) < count:
            next(self.s.store.follow(topic, queue, len(found), timeout=BOUND_S))
            found = self.stored(topic, queue)
        return found


@pytest.fixture
def desk(tmp_path, small):
    with services(tmp_path / "store", small) as s:
        yield Desk(s)


def body_of(answer):
    return mqjson.loads(answer.body)


# ---- sends: the order of checks ----

SEND_CHECKS = [
    ({"topic": ""}, 29, "blank"),
    ({"topic": "a b"}, 29, "illegal characters"),
    ({"topic": "x" * 128}, 29, "longer than"),
    ({"topic": "SCHEDULE_TOPIC_XXXX"}, 16, "forbidden"),
    ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, 16, "forbidden"),
    ({"topic": "orders", "c": "nothing"}, 17, "not exist"),
    ({"topic": "orders", "e": 4}, 29, "queueId[4] is illegal"),
    ({"topic": "orders", "e": "many"}, 1, "not a number"),
    ({"topic": "orders", "body": b""}, 13, "illegal"),
    ({"topic": "orders", "body": bytes((4 << 20) + 1)}, 13, "illegal"),
    ({"topic": "orders", "properties": {"TRAN_MSG": "true", "UNIQ_KEY": "U"}}, 16, "transaction"),
    ({"topic": "orders", "properties": {"TIMER_DELAY_SEC": "x"}}, 13, "not a number"),
    ({"topic": "orders", "properties": {"TIMER_DELAY_SEC": "259201"}}, 13, "beyond timerMax"),
    ({"topic": "%RETRY%a+b"}, 29, "illegal characters"),
]


@pytest.mark.parametrize(("fields", "code", "remark"), SEND_CHECKS)
def test_refused_send(desk, fields, code, remark):
    answer = desk.send(**fields)
    assert (answer.code, remark in answer.remark) == (code, True), answer.remark
    # Java reads these unasked.
    assert answer.ext == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


def test_a_failed_sync_is_answered_as_the_core_answers_it(desk):
    assert put_refusal(FlushFailed("the sync failed"), desk.s).code == 14


def test_broker_that_does_not_accept_sends_yet(tmp_path, small):
    with services(tmp_path / "s", small | {"startAcceptSendRequestTimeStamp": 1 << 50}) as s:
        answer = Desk(s).send(topic="")
        assert (answer.code, "until" in answer.remark) == (1, True)


def test_broker_without_write_permission_refuses_ordered_topics_alone(tmp_path, small):
    with services(tmp_path / "s", small | {"brokerPermission": 4}) as s:
        desk = Desk(s)
        s.topics.update(TopicConfig("ordered", 4, 4, order=True))
        s.topics.update(TopicConfig("plain", 4, 4))
        assert desk.send("ordered").code == 16
        assert desk.send("plain").code == 0


def test_topic_without_write_permission_takes_no_sends(desk):
    desk.s.topics.update(TopicConfig("orders", 4, 4, perm=4))
    assert desk.send().code == 16


# ---- sends: what is stored and answered ----


def test_first_send_makes_its_topic(desk):
    assert desk.send().code == 0
    assert desk.s.core.topics["orders"] == (4, 4, 6, True)


def test_stored_message_has_what_upstream_adds(desk):
    answer = desk.send(properties={"KEYS": "k", "POP_CK": "x", "WAIT": "true"}, h=7)
    assert answer.code == 0
    assert answer.ext.keys() == {
        "msgId", "queueId", "queueOffset", "transactionId", "MSG_REGION", "TRACE_ON",
    }  # fmt: skip
    (message,) = desk.wait("orders")
    properties = message.properties
    assert properties.pop("UNIQ_KEY") == answer.ext["transactionId"]
    assert properties == {
        "KEYS": "k", "WAIT": "true", "CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }  # fmt: skip
    assert (message.flag, message.born_timestamp) == (7, 1700000000000)
    assert message.born_host == "127.0.0.1:40000"
    assert message.offset_message_id == answer.ext["msgId"]


def test_both_versions_of_the_header_say_the_same(desk):
    short = send_command(h=3, j=2)
    names = {
        "producerGroup": "a", "topic": "b", "defaultTopic": "c", "defaultTopicQueueNums": "d",
        "queueId": "e", "sysFlag": "f", "bornTimestamp": "g", "flag": "h", "properties": "i",
        "reconsumeTimes": "j", "unitMode": "k", "batch": "m",
    }  # fmt: skip
    long = Command(10, {name: short.ext[letter] for name, letter in names.items()}, b"hello")
    assert desk.send(h=3, j=2).code == 0
    assert answer_of(desk.handlers[10], desk.peer, long).code == 0
    one, two = desk.wait("orders", count=2)
    assert one.properties == two.properties
    assert (one.flag, one.reconsume_times) == (two.flag, two.reconsume_times) == (3, 2)


def test_negative_queue_is_any(desk):
    queues = {int(desk.send(e=-1).ext["queueId"]) for _ in range(40)}
    assert queues <= set(range(4))
    assert len(queues) > 1


def test_delayed_message_waits_in_the_queue_of_its_level(desk):
    answer = desk.send(e=2, properties={"DELAY": "3", "UNIQ_KEY": "U", "WAIT": "false"})
    assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "2", "0")
    (message,) = desk.wait("SCHEDULE_TOPIC_XXXX", 2)
    properties = message.properties
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("orders", "2")
    assert (properties["DELAY"], properties["WAIT"]) == ("3", "false")
    assert message.raw_properties.count(b"DELAY\x01") == 1


def test_level_beyond_the_last_is_the_last(desk):
    desk.send(properties={"DELAY": "99", "UNIQ_KEY": "U"})
    assert desk.wait("SCHEDULE_TOPIC_XXXX", 17)[0].properties["DELAY"] == "18"


@pytest.mark.parametrize(("times", "most", "dead"), [(16, None, False), (17, None, True),
                                                     (1, 1, False), (2, 1, True)])  # fmt: skip
def test_retried_too_often_goes_to_the_dead_letters(desk, times, most, dead):
    desk.s.groups.find("readers")
    more = {} if most is None else {"l": most}
    answer = desk.send("%RETRY%readers", j=times, properties={"DELAY": "0"}, **more)
    assert answer.code == 0
    topic = "%DLQ%readers" if dead else "%RETRY%readers"
    (message,) = desk.wait(topic)
    assert message.reconsume_times == times


def test_old_clients_cannot_say_how_often(desk):
    assert desk.send("%RETRY%readers", j=5, l=1, version=120).code == 0
    assert desk.wait("%RETRY%readers")


def test_orderly_groups_do_not_retry(desk):
    desk.s.locks.lock("readers", "c1", [MessageQueue("orders", "b", 0)])
    assert desk.send("%RETRY%readers", j=1).code == 0
    assert desk.wait("%DLQ%readers")


def test_retry_of_an_unknown_group_is_refused(desk):
    desk.s.settings.update({"autoCreateSubscriptionGroup": "false"})
    assert desk.send("%RETRY%readers").code == 26


# ---- batches ----


def item(body, **properties):
    encoded = "".join(f"{k}\x01{v}\x02" for k, v in properties.items()).encode()
    size = 20 + len(body) + 2 + len(encoded)
    return (
        struct.pack(">5i", size, 0, 0, 5, len(body))
        + body
        + struct.pack(">H", len(encoded))
        + encoded
    )


def test_batch_is_stored_whole(desk):
    body = item(b"one", UNIQ_KEY="A") + item(b"two", UNIQ_KEY="B", KEYS="k")
    answer = desk.send(body=body, code=320, m=True)
    assert (answer.code, answer.ext["queueOffset"], answer.ext["transactionId"]) == (0, "0", "U1")
    found = desk.wait("orders", count=2)
    assert answer.ext["msgId"] == ",".join(m.offset_message_id for m in found)
    assert [bytes(m.body) for m in found] == [b"one", b"two"]
    # The batch's own id must not hide those of its messages.
    assert [m.properties["UNIQ_KEY"] for m in found] == ["A", "B"]
    assert found[1].properties["CLUSTER"] == "DefaultCluster"


def test_batch_without_ids_gets_the_one_of_the_batch(desk):
    desk.send(body=item(b"one") + item(b"two"), code=320, m=True)
    assert [m.properties["UNIQ_KEY"] for m in desk.wait("orders", count=2)] == ["U1", "U1"]


@pytest.mark.parametrize(
    "fields",
    [{"topic": "%RETRY%readers"}, {"f": 4}, {"properties": {"DELAY": "1"}},
     {"properties": {"TRAN_MSG": "true"}}, {"body": b"nonsense"}],
)  # fmt: skip
def test_batches_that_are_none(desk, fields):
    assert desk.send(**({"body": item(b"one"), "m": True} | fields)).code == 13
    assert not desk.s.store.range("orders", 0)[1]


# ---- hooks ----


class Watcher:
    name = "watcher"

    def __init__(self):
        self.seen = []
        self.stop = False

    def before(self, context):
        if self.stop:
            raise AbortProcessException(604, "not today")

    def after(self, context):
        self.seen.append((context.topic, context.code, context.queue_offset))


def test_hooks_see_sends_and_may_stop_them(desk):
    hook = Watcher()
    desk.s.send_hooks.add(hook)
    assert desk.send().code == 0
    hook.stop = True
    answer = desk.send(topic="a b")  # before any check
    assert (answer.code, answer.remark) == (604, "not today")
    assert hook.seen == [("orders", 0, 0), ("a b", 604, -1)]


# ---- pulls ----


def pull(desk, code=11, **fields):
    asked = {
        "consumerGroup": "readers", "topic": "orders", "queueId": 0, "queueOffset": 0,
        "maxMsgNums": 32, "sysFlag": 2, "commitOffset": 0, "suspendTimeoutMillis": 1000,
        "subVersion": 1,
    }  # fmt: skip
    return desk.ask(code, **(asked | fields))


def test_pull_is_given_to_the_core_with_what_it_needs(desk):
    desk.peer.serves = True
    desk.s.topics.update(TopicConfig("orders", 4, 4))
    desk.ask(34, beat())
    desk.s.core.subscriptions.clear()
    assert pull(desk) is None
    assert desk.s.core.subscriptions["readers", "orders"] == (None, None, 1, True, False, True)


def test_pull_that_brings_its_subscription_needs_no_heartbeat(desk):
    desk.peer.serves = True
    desk.s.topics.update(TopicConfig("orders", 4, 4))
    assert pull(desk, sysFlag=6, subscription="A || B") is None
    # Others of the group still have to subscribe.
    assert desk.s.core.subscriptions["readers", "orders"] == (None, None, 0, True, False, False)


def test_order_of_a_pulls_checks(tmp_path, small):
    """Everything is wrong at first; each step mends what was refused."""
    wrong = {"brokerPermission": 2, "autoCreateSubscriptionGroup": False,
             "litePullMessageEnable": False}  # fmt: skip
    with services(tmp_path / "store", small | wrong) as s:
        desk = Desk(s)
        codes = []

        def step(**fields):
            codes.append(pull(desk, code=361, **({"queueId": 4} | fields)).code)

        step()
        s.settings.update({"brokerPermission": "6"})
        step()
        s.settings.update({"litePullMessageEnable": "true"})
        step()
        s.groups.update(s.groups.from_json({"groupName": "readers", "consumeEnable": False}))
        step()
        s.groups.update(
            s.groups.from_json({"groupName": "readers", "consumeBroadcastEnable": False})
        )
        step()
        s.topics.update(TopicConfig("orders", 4, 4, perm=2))
        step()
        s.topics.update(TopicConfig("orders", 4, 4))
        step()
        step(queueId=0)
        desk.ask(34, beat(model="BROADCASTING"))
        step(queueId=0)
        desk.ask(34, beat(topics=["other"], version=2))
        s.groups.forbid("readers", "orders", True)
        step(queueId=0)
        s.groups.forbid("readers", "orders", False)
        step(queueId=0)
        desk.ask(34, beat(version=3, kind="SQL92", expression="a >"))
        step(queueId=0, subVersion=4)
        step(queueId=0, subVersion=3)
        s.settings.update({"enablePropertyFilter": "true"})
        step(queueId=0, subVersion=3)
        desk.ask(34, beat(version=4))
        desk.peer.serves = True
        assert pull(desk, subVersion=4) is None
    assert codes == [16, 16, 26, 16, 17, 16, 29, 24, 16, 16, 24, 25, 1, 23]


# ---- send back ----


def test_send_back_comes_again_later(desk):
    desk.s.groups.find("readers")
    desk.send(properties={"UNIQ_KEY": "U", "TAGS": "A"})
    (message,) = desk.wait("orders")
    assert desk.ask(36, group="readers", offset=message.physical_offset, delayLevel=0).code == 0
    (again,) = desk.wait("SCHEDULE_TOPIC_XXXX", 2)
    properties = again.properties
    assert again.reconsume_times == 1
    assert properties["REAL_TOPIC"] == "%RETRY%readers"
    assert properties["RETRY_TOPIC"] == "orders"
    assert properties["ORIGIN_MESSAGE_ID"] == message.offset_message_id
    assert (properties["UNIQ_KEY"], properties["WAIT"], properties["TAGS"]) == ("U", "false", "A")
    assert (again.born_timestamp, again.born_host) == (message.born_timestamp, message.born_host)
    assert "%RETRY%readers" in desk.s.topics
    assert desk.s.statistics.view("SNDBCK_PUT_NUMS", "orders@readers")["statsDay"]["sum"] == 1


@pytest.mark.parametrize(
    ("fields", "version", "dead"),
    [({"delayLevel": -1}, 479, True), ({"maxReconsumeTimes": 2}, 479, True),
     ({"maxReconsumeTimes": 3}, 479, False), ({"maxReconsumeTimes": 2}, 120, False),
     ({}, 479, False)],
)  # fmt: skip
def test_send_back_counts_as_upstream_does(desk, fields, version, dead):
    """With >=, where a send to the retry topic has >."""
    desk.s.groups.find("readers")
    desk.send(j=2)
    (message,) = desk.wait("orders")
    asked = {"group": "readers", "offset": message.physical_offset, "delayLevel": 0} | fields
    assert desk.ask(36, version=version, **asked).code == 0
    if dead:
        (letter,) = desk.wait("%DLQ%readers")
        assert (letter.reconsume_times, letter.properties["DELAY"]) == (3, "0")
    else:
        assert desk.wait("SCHEDULE_TOPIC_XXXX", 3 + 2 - 1)


def test_send_back_that_cannot_be(desk):
    asked = {"offset": 12345, "delayLevel": 0}
    assert desk.ask(36, group="readers", **asked).code == 26
    desk.s.groups.update(desk.s.groups.from_json({"groupName": "readers", "retryQueueNums": 0}))
    assert desk.ask(36, group="readers", **asked).code == 0
    assert "%RETRY%readers" not in desk.s.topics
    desk.s.groups.update(desk.s.groups.from_json({"groupName": "readers"}))
    assert desk.ask(36, group="readers", **asked).code == 1
    desk.s.topics.update(TopicConfig("%RETRY%readers", 1, 1, perm=4))
    assert desk.ask(36, group="readers", **asked).code == 16
    desk.s.settings.update({"brokerPermission": "4"})
    assert desk.ask(36, group="readers", **asked).code == 16


# ---- offsets ----


def test_first_offset_of_a_new_group(desk):
    asked = {"consumerGroup": "readers", "topic": "orders", "queueId": 0}
    assert desk.ask(14, **asked).code == 22  # no such topic
    desk.s.topics.update(TopicConfig("orders", 1, 1))
    # Told of no offset, clients ask for the end, and pass over what is put meanwhile.
    assert desk.ask(14, **asked).ext == {"offset": "0"}
    assert desk.ask(14, **(asked | {"queueId": 1})).code == 22
    desk.send()
    desk.wait("orders")
    assert desk.ask(14, **asked).ext == {"offset": "0"}
    assert desk.ask(14, setZeroIfNotFound=False, **asked).code == 22
    desk.s.offsets.commit("readers", "orders", 0, 1)
    assert desk.ask(14, **asked).ext == {"offset": "1"}


def test_commit_by_request(desk):
    asked = {"consumerGroup": "readers", "topic": "orders", "queueId": 0, "commitOffset": 3}
    assert desk.ask(15, consumerGroup="readers", topic="orders").code == 29
    assert desk.ask(15, **asked).code == 26
    desk.s.groups.find("readers")
    assert desk.ask(15, **asked).code == 17
    desk.s.topics.update(TopicConfig("orders", 4, 4))
    assert desk.ask(15, **(asked | {"queueId": -1})).code == 29
    assert desk.ask(15, **asked).code == 0
    assert desk.s.offsets.get("readers", "orders", 0) == 3


def test_no_offset_is_kept_for_a_queue_that_the_topic_does_not_have(desk):
    desk.s.groups.find("readers")
    desk.s.topics.update(TopicConfig("orders", 2, 4))
    asked = {"consumerGroup": "readers", "topic": "orders", "commitOffset": 3}
    assert desk.ask(15, queueId=3, **asked).code == 0
    assert desk.ask(15, queueId=4, **asked).code == 29
    assert desk.s.offsets.get("readers", "orders", 4) is None


def test_questions_about_a_queue(desk):
    where = {"topic": "orders", "queueId": 0}
    assert desk.ask(30, **where).ext == desk.ask(31, **where).ext == {"offset": "0"}
    assert desk.ask(32, **where).ext == {"timestamp": "-1"}
    assert desk.ask(29, timestamp=5, **where).ext == {"offset": "0"}
    for _ in range(3):
        desk.send()
    stored = desk.wait("orders", count=3)
    assert desk.ask(30, **where).ext == {"offset": "3"}
    assert desk.ask(32, **where).ext == {"timestamp": str(stored[0].store_timestamp)}
    far = stored[2].store_timestamp + 1000
    assert desk.ask(29, timestamp=far, **where).ext == {"offset": "3"}
    assert desk.ask(29, timestamp=far, boundaryType="upper", **where).ext == {"offset": "2"}
    assert desk.ask(30, topic="orders").code == 1
    assert desk.ask(30, topic="orders", queueId="x").code == 1


def test_questions_about_what_is_not_there_look_for_no_nearest_name(desk, monkeypatch):
    """Of ten thousand topics that would take the event loop a second for each request."""
    monkeypatch.setattr("pystore.store._missing.nearest_topic", lambda *_: pytest.fail("looked"))
    desk.s.groups.find("readers")
    desk.s.topics.update(TopicConfig("empty", 1, 1))
    desk.s.offsets.commit("readers", "empty", 0, 3)
    for topic in ("empty", "nothing"):
        where = {"topic": topic, "queueId": 0}
        assert desk.ask(29, timestamp=5, **where).ext == {"offset": "0"}
        assert desk.ask(32, **where).ext == {"timestamp": "-1"}
    assert body_of(desk.ask(208, consumerGroup="readers"))["offsetTable"]
    assert body_of(desk.ask(317, isOrder=False))["consumeStatsList"]


def test_reset_is_told_and_kept(desk):
    for _ in range(3):
        desk.send()
    desk.wait("orders", count=3)
    asked = {"topic": "orders", "group": "readers", "timestamp": -1, "isForce": True}
    assert desk.ask(222, **(asked | {"topic": "none"})).code == 17
    assert desk.ask(222, **asked).code == 26
    desk.s.groups.find("readers")
    table = body_of(desk.ask(222, **asked))["offsetTable"]
    assert {q.queue: offset for q, offset in table.items()} == {0: 3, 1: 0, 2: 0, 3: 0}
    assert desk.s.core.resets["readers", "orders", 0] == 3
    one = body_of(desk.ask(222, queueId=0, offset=1, **asked))["offsetTable"]
    assert list(one.values()) == [1]
    assert desk.ask(222, queueId=0, offset=5, **asked).code == 1
    assert desk.ask(222, queueId=4, **asked).code == 1


def test_reset_by_the_client_where_the_broker_may_not(desk):
    desk.s.settings.update({"useServerSideResetOffset": "false"})
    desk.s.groups.find("readers")
    for _ in range(3):
        desk.send()
    desk.wait("orders", count=3)
    asked = {"topic": "orders", "group": "readers", "timestamp": -1, "queueId": 0}
    assert desk.ask(222, **asked).code == 1  # no offset yet
    desk.s.offsets.commit("readers", "orders", 0, 2)
    assert desk.ask(222, **asked).code == 206
    desk.ask(34, beat())
    desk.peer.sent.clear()
    kept = body_of(desk.ask(222, isForce=False, **asked))["offsetTable"]
    moved = body_of(desk.ask(222, isForce=True, **asked))["offsetTable"]
    assert (list(kept.values()), list(moved.values())) == ([2], [3])
    assert [c.code for c in desk.peer.sent] == [220, 220]
    # Go cuts this text by hand.
    assert desk.peer.sent[1].body == (
        b'{"offsetTable":{{"brokerName":"DEFAULT_BROKER","queueId":0,"topic":"orders"}:3}}'
    )


def test_cloned_offsets(desk):
    desk.s.offsets.commit("readers", "orders", 1, 7)
    assert desk.ask(314, srcGroup="readers", destGroup="others", offline=True).code == 0
    assert desk.s.offsets.get("others", "orders", 1) == 7
    assert desk.ask(314, srcGroup="readers", destGroup="others", topic="none").code == 17
    assert body_of(desk.ask(308, topic="orders", filterGroups="readers")) == {
        "correctionOffsets": {"1": 7}
    }
    assert body_of(desk.ask(43))["offsetTable"]["orders@others"] == {"1": 7}


# ---- looking up ----


def test_messages_by_key_and_place(desk):
    desk.send(properties={"KEYS": "k1 k2", "UNIQ_KEY": "U"})
    (message,) = desk.wait("orders")
    record = bytes(message.record)
    window = {"beginTimestamp": 0, "endTimestamp": (1 << 63) - 1, "maxNum": 10}
    assert desk.ask(12, topic="orders", key="k2", **window).body == record
    found = desk.ask(12, topic="orders", key="U", _UNIQUE_KEY_QUERY=True, **window)
    assert (found.body, found.ext.keys()) == (
        record, {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"},
    )  # fmt: skip
    assert desk.ask(12, topic="orders", key="none", **window).code == 22
    assert desk.ask(33, offset=message.physical_offset).body == record
    assert desk.ask(33, offset=1 << 40).code == 1


@pytest.mark.parametrize("told", [False, True])
def test_messages_by_the_type_of_their_key(tmp_path, small, told):
    """5.5.0's types: K and U lead to keys, T to tags, where the index has them."""
    with services(tmp_path / "tagged", {**small, "indexTagsEnable": told}) as s:
        desk = Desk(s)
        desk.send(properties={"KEYS": "k1", "UNIQ_KEY": "U", "TAGS": "red"})
        (message,) = desk.wait("orders")
        window = {"beginTimestamp": 0, "endTimestamp": (1 << 63) - 1, "maxNum": 10, "lastKey": ""}

        def found(key, kind):
            return desk.ask(12, topic="orders", key=key, indexType=kind, **window).body

        record = bytes(message.record)
        assert (found("k1", "K"), found("U", "U"), found("red", "K")) == (record, record, b"")
        assert found("red", "T") == (record if told else b"")
        assert found("k1", "T") == b""


# ---- heartbeats ----


def test_heartbeat_makes_the_retry_topic_and_answers_as_upstream(desk):
    answer = desk.ask(34, beat(producers=[{"groupName": "makers"}]))
    assert answer.ext == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert answer.version == 479
    assert "%RETRY%readers" in desk.s.topics
    assert body_of(desk.ask(38, consumerGroup="readers")) == {"consumerIdList": ["c1"]}
    assert desk.ask(35, clientID="c1", consumerGroup="readers", producerGroup="makers").code == 0
    assert desk.ask(38, consumerGroup="readers").code == 1
    assert not desk.s.clients.producers


def test_heartbeat_of_the_newer_kind(desk):
    def changed(**more):
        return desk.ask(34, beat(fingerprint=99, **more)).ext["IS_SUB_CHANGE"] == "true"

    assert changed(without=True)  # nothing is known of it
    assert changed()
    assert not changed()
    assert not changed(without=True)
    assert desk.s.clients.consumers["readers"].subscriptions.keys() == {"orders"}


# Heartbeats that the core may answer from then on: FakePeer.kept.


def test_a_heartbeat_that_changed_nothing_is_kept(desk):
    said = beat(producers=[{"groupName": "makers"}])
    desk.ask(34, said)
    assert desk.peer.kept is None
    desk.ask(34, said)
    assert desk.peer.kept == (0, True)


def test_of_the_newer_kind_too_with_its_answer(desk):
    for _ in range(2):
        desk.ask(34, beat(fingerprint=99))
        assert desk.peer.kept is None  # the first has set the fingerprint
        desk.ask(34, beat(fingerprint=99, without=True))
        assert desk.peer.kept == (0, False)
        desk.ask(34, beat(fingerprint=98))


def test_the_first_heartbeat_of_a_producer_is_kept(desk):
    producer = {**beat(), "consumerDataSet": [], "producerDataSet": [{"groupName": "makers"}]}
    desk.ask(34, producer)
    assert desk.peer.kept is not None


def test_a_heartbeat_of_an_unknown_group_is_not_kept(desk):
    desk.s.settings.update({"autoCreateSubscriptionGroup": "false"})
    for _ in range(3):
        desk.ask(34, beat())
    assert desk.peer.kept is None
    desk.s.groups.update(desk.s.groups.from_json({"groupName": "readers"}))
    desk.ask(34, beat())
    assert "readers" in desk.s.clients.consumers


#: What happens after a heartbeat was kept, and whether the next one may change something.
AFTER_IT = {
    "another member beats": (lambda d: d.ask(34, beat("c2"), FakePeer(2)), False),
    "another group begins": (lambda d: d.ask(34, beat("c2", "others"), FakePeer(2)), False),
    "the group's rights change": (lambda d: d.s.groups.changed("readers"), True),
    "it leaves": (lambda d: d.ask(35, clientID="c1", consumerGroup="readers"), True),
    "its producer leaves": (lambda d: d.ask(35, clientID="c1", producerGroup="makers"), True),
    "another member wants more": (
        lambda d: d.ask(34, beat("c2", topics=("orders", "more")), FakePeer(2)), True),
    "another member wants other tags": (
        lambda d: d.ask(34, beat("c2", version=2, expression="A"), FakePeer(2)), True),
    "another member broadcasts": (
        lambda d: d.ask(34, beat("c2", model="BROADCASTING"), FakePeer(2)), True),
    "another fingerprint": (lambda d: d.ask(34, beat("c2", fingerprint=5), FakePeer(2)), True),
}  # fmt: skip


@pytest.mark.parametrize("name", AFTER_IT)
def test_what_a_kept_heartbeat_rests_on(desk, name):
    happens, may_change = AFTER_IT[name]
    for _ in range(2):
        desk.ask(34, beat(producers=[{"groupName": "makers"}]))
    assert desk.peer.kept is not None
    happens(desk)
    assert (desk.peer.kept is None) == may_change


def test_a_client_whose_heartbeats_the_core_answers_is_not_silent(desk):
    desk.ask(34, beat())
    channel = desk.s.clients.consumers["readers"].channels[desk.peer]
    before = channel.heard_ms
    channel.seen -= 121
    desk.peer.heartbeat_at = channel.seen + 120
    desk.s.clients.scan()
    assert not desk.peer.closed
    assert abs(channel.heard_ms - before + 1000) < 500
    desk.peer.heartbeat_at = 0.0
    desk.s.clients.scan()
    assert desk.peer.closed


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"clientID":null}', b'{"clientID":"c","consumerDataSet":5}',
     b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{}]}]}',
     b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":'
     b'[{"topic":"t","codeSet":["x"]}]}]}', b"\xff", b"[" * 8_000],
)  # fmt: skip
def test_heartbeats_that_are_none(desk, body):
    answer = desk.ask(34, body)
    assert (answer.code, bool(answer.remark)) == (1, True)
    assert not desk.s.clients.consumers


def test_codes_of_go_are_texts(desk):
    body = beat()
    body["consumerDataSet"][0]["subscriptionDataSet"][0] |= {"codeSet": ["65"], "tagsSet": ["A"]}
    assert desk.ask(34, body).code == 0
    table = body_of(desk.ask(203, consumerGroup="readers"))["subscriptionTable"]
    assert table["orders"]["codeSet"] == [65]


def test_client_config_is_checked(desk):
    def check(kind, text="a > 1"):
        data = {"subString": text, "expressionType": kind, "topic": "orders"}
        return desk.ask(46, {"clientId": "c", "group": "g", "subscriptionData": data}).code

    assert (check("TAG"), check("SQL92"), check("XYZ")) == (0, 1, 23)
    desk.s.settings.update({"enablePropertyFilter": "true"})
    assert (check("SQL92"), check("SQL92", "a >"), check("SQL92", " ")) == (0, 23, 23)


# ---- locks ----


def test_locks_by_request(desk):
    queues = [{"topic": "orders", "brokerName": "b", "queueId": i} for i in range(2)]

    def lock(client, code=41):
        body = {"consumerGroup": "readers", "clientId": client, "mqSet": queues}
        return desk.ask(code, body)

    assert body_of(lock("c1"))["lockOKMQSet"] == queues
    assert body_of(lock("c2"))["lockOKMQSet"] == []
    assert lock("c1", 42).code == 0
    assert body_of(lock("c2"))["lockOKMQSet"] == queues
    assert desk.ask(41, {"consumerGroup": "g", "clientId": "c", "mqSet": [{}]}).code == 1


# ---- request and reply, questions to clients ----


def reply(desk, **properties):
    topic = "DefaultCluster_REPLY_TOPIC"
    return desk.send(
        topic, code=325, properties={"UNIQ_KEY": "U", "MSG_TYPE": "reply"} | properties
    )


def test_reply_reaches_the_one_who_asked(desk):
    asker = FakePeer(1)
    desk.ask(34, beat("asker", producers=[{"groupName": "makers"}]), peer=asker)
    answer = reply(desk, REPLY_TO_CLIENT="asker", CORRELATION_ID="7")
    assert (answer.code, answer.ext["queueOffset"]) == (0, "0")
    (push,) = asker.asked
    assert (push.code, push.body, push.ext["bornHost"]) == (326, b"hello", "127.0.0.1:40000")
    assert "PUSH_REPLY_TIME\x01" in push.ext["properties"]
    assert desk.wait("DefaultCluster_REPLY_TOPIC")


def test_reply_without_anybody_is_stored_all_the_same(desk):
    assert reply(desk).code == 1
    answer = reply(desk, REPLY_TO_CLIENT="gone")
    assert (answer.code, "not found" in answer.remark) == (1, True)
    assert len(desk.wait("DefaultCluster_REPLY_TOPIC", count=2)) == 2
    desk.s.settings.update({"storeReplyMessageEnable": "false"})
    assert reply(desk, REPLY_TO_CLIENT="gone").ext["msgId"] == "0"


def test_questions_to_consumers(desk):
    member = FakePeer(1)
    asked = {"consumerGroup": "readers", "clientId": "c1"}
    assert desk.ask(307, **asked).code == 1
    desk.ask(34, beat(), peer=member)
    member.reply = lambda command: command.reply(body=b'{"opaque":1}')
    assert desk.ask(307, jstackEnable=False, **asked).body == b'{"opaque":1}'
    assert member.asked[0].ext["jstackEnable"] == "false"
    sent = desk.send()
    desk.ask(309, msgId=sent.ext["msgId"], **asked)
    assert member.asked[1].ext["brokerName"] == "DEFAULT_BROKER"
    assert member.asked[1].body == bytes(desk.wait("orders")[0].record)
    member.reply = lambda command: TimeoutError("late")
    assert desk.ask(307, **asked).code == 207
    member.reply = lambda command: ConnectionResetError("gone")
    assert desk.ask(307, **asked).code == 1
    desk.ask(34, beat("old", group="elders"), peer=FakePeer(2), version=61)
    assert desk.ask(307, consumerGroup="elders", clientId="old").code == 1


def test_where_the_clients_are(desk):
    member = FakePeer(1)
    asked = {"topic": "orders", "group": "readers"}
    assert desk.ask(223, **asked).code == 1
    desk.ask(34, beat(), peer=member)
    table = b'{"messageQueueTable":{{"brokerName":"b","queueId":0,"topic":"orders"}:17}}'
    member.reply = lambda command: command.reply(body=table)
    found = desk.ask(223, **asked).body
    assert found == b'{"consumerTable":{"c1":' + table[len(b'{"messageQueueTable":') : -1] + b"}}"


# ---- tools ----


def test_topics_by_request(desk):
    made = {"topic": "orders", "defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 2,
            "perm": 6, "topicFilterType": "SINGLE_TAG", "order": False}  # fmt: skip
    assert desk.ask(351, topic="orders").code == 17
    assert desk.ask(17, **made).code == 0
    assert body_of(desk.ask(351, topic="orders")) == {
        "topicName": "orders", "readQueueNums": 3, "writeQueueNums": 2, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False, "attributes": {},
    }  # fmt: skip
    assert "orders" in body_of(desk.ask(21))["topicConfigTable"]
    desk.s.offsets.commit("readers", "orders", 0, 1)
    assert body_of(desk.ask(300, topic="orders")) == {"groupList": ["readers"]}
    assert desk.ask(215, topic="orders").code == 0
    assert desk.ask(351, topic="orders").code == 17
    assert body_of(desk.ask(300, topic="orders")) == {"groupList": []}
    assert (desk.ask(215, topic="").code, desk.ask(215, topic="TBW102").code) == (29, 29)
    assert desk.ask(17, **(made | {"topic": ""})).code == 29
    assert desk.ask(17, **(made | {"perm": "x"})).code == 1
    assert desk.ask(17, **(made | {"attributes": "+no.such=1"})).code == 1  # not 29, as upstream
    wanted = [{"topicName": name, "attributes": {"+message.type": "FIFO"}} for name in "ab"]
    assert desk.ask(18, {"topicConfigList": wanted}).code == 0
    assert desk.s.topics.get("b").attributes == {"message.type": "FIFO"}


def test_a_deleted_topic_begins_again_at_zero(desk):
    for topic in ("orders", "%RETRY%readers_orders", "others"):
        desk.s.topics.update(TopicConfig(topic, 1, 1, 6))
        desk.s.store.put(topic, b"old", queue=0)
    desk.s.offsets.commit("readers", "orders", 0, 1)
    assert desk.ask(215, topic="orders").code == 0
    assert desk.s.store.topics() == ["others"]
    assert desk.s.offsets.get("readers", "orders", 0) is None
    assert desk.send("orders").ext["queueOffset"] == "0"


def test_cleaning_of_unused_topics_takes_queues_without_a_topic(desk):
    for topic in ("unused", "used", "SCHEDULE_TOPIC_XXXX"):
        desk.s.store.put(topic, b"old", queue=0)
    desk.s.topics.update(TopicConfig("used", 1, 1, 6))
    assert desk.ask(316).code == 0
    assert desk.s.store.topics() == ["SCHEDULE_TOPIC_XXXX", "used"]


def test_groups_by_request(desk):
    assert desk.ask(200, {"groupName": "readers", "retryMaxTimes": 3}).code == 0
    assert body_of(desk.ask(352, group="readers"))["retryMaxTimes"] == 3
    assert "readers" in body_of(desk.ask(201))["subscriptionGroupTable"]
    assert desk.ask(200, {"retryMaxTimes": 3}).code == 1
    assert desk.ask(200, {"groupName": "g", "retryMaxTimes": "x"}).code == 1
    desk.s.offsets.commit("readers", "orders", 0, 1)
    assert desk.ask(207, groupName="readers", cleanOffset=True).code == 0
    assert desk.s.offsets.get("readers", "orders", 0) is None
    desk.s.settings.update({"autoCreateSubscriptionGroup": "false"})
    assert desk.ask(352, group="readers").code == 26


def test_forbidden_topics_by_request(desk):
    desk.s.groups.find("readers")
    desk.s.topics.update(TopicConfig("orders", 4, 4))
    asked = {"group": "readers", "topic": "orders"}
    assert body_of(desk.ask(353, **asked)) == asked | {"readable": True}
    assert body_of(desk.ask(353, readable=False, **asked)) == asked | {"readable": False}
    assert body_of(desk.ask(353, **asked)) == asked | {"readable": False}
    assert body_of(desk.ask(201))["forbiddenTable"] == {"readers": {"orders": 1}}


def test_what_is_forbidden_stays_so_after_a_restart(tmp_path, small):
    asked = {"group": "readers", "topic": "orders"}
    with services(tmp_path / "store", small) as s:
        s.topics.update(TopicConfig("orders", 4, 4))
        Desk(s).ask(353, readable=False, **asked)
    file = json.loads((tmp_path / "store/config/subscriptionGroup.json").read_text())
    assert file["forbiddenTable"] == {"readers": {"orders": 1}}
    with services(tmp_path / "store", small) as s:
        assert s.groups.is_forbidden("readers", "orders")
        assert Desk(s).ask(207, groupName="readers").code == 0
    with services(tmp_path / "store", small) as s:
        assert not s.groups.is_forbidden("readers", "orders")


def test_changed_settings_are_written_into_the_file_that_was_given(desk, tmp_path):
    file = tmp_path / "broker.conf"
    file.write_text("# ours\nfileReservedTime = 48\nbrokerName=b\n")
    file.chmod(0o640)
    desk.s.settings.file = file
    assert desk.ask(25, b"fileReservedTime=24\nenablePropertyFilter=true").code == 0
    text = "# ours\nfileReservedTime=24\nbrokerName=b\nenablePropertyFilter=true\n"
    assert file.read_text() == text
    assert file.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "broker.conf.bak").read_text().startswith("# ours\nfileReservedTime = 48")


@pytest.mark.parametrize("body", [b"fileReservedTime=x", b"traceOn=false", b"none=1"])
def test_settings_that_are_refused_change_no_file(desk, tmp_path, body):
    file = tmp_path / "broker.conf"
    file.write_text("fileReservedTime=48\n")
    desk.s.settings.file = file
    assert desk.ask(25, body).code == 1
    assert file.read_text() == "fileReservedTime=48\n"


def test_settings_whose_file_cannot_be_written_stay(desk, tmp_path):
    desk.s.settings.file = tmp_path / "gone" / "broker.conf"
    answer = desk.ask(25, b"fileReservedTime=24")
    assert (answer.code, desk.s.settings["fileReservedTime"]) == (1, 72)


def test_who_is_online(desk):
    assert desk.ask(203, consumerGroup="readers").code == 206
    assert desk.ask(204, producerGroup="makers").code == 1
    desk.ask(34, beat(producers=[{"groupName": "makers"}]))
    connection = {
        "clientAddr": "127.0.0.1:40000", "clientId": "c1", "language": "JAVA", "version": 479,
    }  # fmt: skip
    consumers = body_of(desk.ask(203, consumerGroup="readers"))
    assert consumers["connectionSet"] == [connection]
    assert consumers["subscriptionTable"]["orders"]["subString"] == "*"
    assert body_of(desk.ask(204, producerGroup="makers")) == {"connectionSet": [connection]}
    (maker,) = body_of(desk.ask(328))["data"]["makers"]
    assert maker["remoteIP"] == "/127.0.0.1:40000"  # as Java shows a socket's address
    found = body_of(desk.ask(345, group="readers", topic="orders"))
    assert found["subscriptionData"]["topic"] == "orders"
    assert "subscriptionData" not in body_of(desk.ask(345, group="readers", topic="x"))


def test_consumption(desk):
    for _ in range(3):
        desk.send()
    stored = desk.wait("orders", count=3)
    desk.s.groups.find("readers")
    desk.s.offsets.commit("readers", "orders", 0, 2)
    table = body_of(desk.ask(208, consumerGroup="readers"))["offsetTable"]
    assert table[MessageQueue("orders", "DEFAULT_BROKER", 0)] == {
        "brokerOffset": 3, "consumerOffset": 2, "pullOffset": 2,
        "lastTimestamp": stored[1].store_timestamp,
    }  # fmt: skip
    assert table[MessageQueue("orders", "DEFAULT_BROKER", 1)]["lastTimestamp"] == 0
    assert body_of(desk.ask(317, isOrder=False))["totalDiff"] == 1
    assert body_of(desk.ask(317, isOrder=True))["totalDiff"] == 0
    span = body_of(desk.ask(303, topic="orders", group="readers"))["consumeTimeSpanSet"][0]
    assert span["minTimeStamp"] == stored[0].store_timestamp
    assert span["consumeTimeStamp"] == stored[1].store_timestamp
    assert span["delayTime"] > 0
    assert desk.ask(303, topic="none", group="readers").code == 17
    desk.ask(34, beat(topics=["others"]))  # online, and not interested any more
    assert not body_of(desk.ask(208, consumerGroup="readers"))["offsetTable"]
    units = body_of(desk.ask(321, topic="orders", queueId=0, index=1, count=5))
    assert [u["physicOffset"] for u in units["queueData"]] == [
        m.physical_offset for m in stored[1:]
    ]
    assert body_of(desk.ask(202, topic="orders"))["topicPutTps"] > 0
    assert desk.ask(202, topic="none").code == 17


def test_units_of_a_queue(desk):
    """What a 5.3.3 broker answers to the same requests."""
    desk.send()
    desk.send()
    desk.wait("orders", count=2)
    desk.ask(34, beat(group="tags"))
    desk.ask(34, beat(group="sql", kind="SQL92", expression="a > 3", version=9))
    asked = {"topic": "orders", "queueId": 0, "index": 0, "count": 1}
    plain = body_of(desk.ask(321, **asked))
    assert not plain["queueData"][0].pop("eval")
    assert plain["queueData"][0].keys() == {"physicOffset", "physicSize", "tagsCode"}
    assert plain.keys() == {"queueData", "minQueueIndex", "maxQueueIndex"}
    tags = body_of(desk.ask(321, **asked, consumerGroup="tags"))
    assert (tags["filterData"], tags["subscriptionData"]["topic"]) == ("null", "orders")
    data = json.loads(body_of(desk.ask(321, **asked, consumerGroup="sql"))["filterData"])
    assert data == {
        "bornTime": 9, "clientVersion": 9, "consumerGroup": "sql", "dead": False, "deadTime": 0,
        "expression": "a > 3", "expressionType": "SQL92", "topic": "orders",
    }  # fmt: skip
    nobody = body_of(desk.ask(321, **asked, consumerGroup="nobody"))
    assert nobody["filterData"] == "nobody@orders is not online!"
    assert "subscriptionData" not in nobody
    late = desk.ask(321, **(asked | {"index": 50}))
    assert (late.code, late.remark, late.body) == (0, "Index 50 of 0@orders is not exist!", b"")
    none = desk.ask(321, **(asked | {"topic": "none"}))
    assert (none.code, none.remark) == (1, "0@none is not exist!")


def test_a_heartbeat_with_ordinals(desk):
    """As librocketmq, the official C++ client, writes it."""
    body = beat(group="readers")
    body["consumerDataSet"][0] |= {"consumeType": 1, "messageModel": 0, "consumeFromWhere": 4}
    assert desk.ask(34, body).code == 0
    found = body_of(desk.ask(203, consumerGroup="readers"))
    assert found["consumeType"] == "CONSUME_PASSIVELY"
    assert found["messageModel"] == "BROADCASTING"
    assert found["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"


def test_settings_by_request(desk):
    before = desk.ask(26)
    assert b"brokerName=DEFAULT_BROKER\n" in before.body
    assert json.loads(before.ext["version"])["counter"] == 0
    assert desk.ask(25, b"brokerPermission=6\ndefaultQueryMaxNum=7\n").code == 0
    assert b"defaultQueryMaxNum=7\n" in desk.ask(26).body
    assert json.loads(desk.ask(26).ext["version"])["counter"] == 1
    refused = desk.ask(25, b"traceOn=false\n")  # the C core was told at the start
    assert (refused.code, "only at a start" in refused.remark) == (1, True)
    assert desk.ask(25, b"configBlackList=x\n").code == 16
    desk.s.settings.update({"configBlackList": "namesrvAddr"})  # as by a broker.conf
    for line in (b"configBlackList=x\n", b"namesrvAddr=127.0.0.1:1\n"):
        assert desk.ask(25, line).code == 16
    for wrong in (b"", b"no such=1", b"traceOn=5", b"brokerName=x", b"\xff", b"a=\\u12"):
        assert desk.ask(25, wrong).code == 1


def test_codes_that_only_agree(desk):
    for code in (306, 316, 27, 329):
        assert desk.ask(code).code == 0


# ---- assignment ----


def test_queues_are_divided_as_clients_do():
    queues = list(range(10))
    clients = ["a", "b", "c"]
    runs = [divide(queues, clients, c, "AVG") for c in clients]
    assert runs == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    dealt = [divide(queues, clients, c, "AVG_BY_CIRCLE") for c in clients]
    assert dealt == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
    assert divide(queues, clients, "x", "AVG") == []
    assert [divide(queues[:2], clients, c, "AVG") for c in clients] == [[0], [1], []]


def test_assignment_by_request(desk):
    def ask(**more):
        body = {"topic": "orders", "consumerGroup": "readers", "clientId": "c1",
                "strategyName": "AVG", "messageModel": "CLUSTERING"} | more  # fmt: skip
        return desk.ask(400, body)

    assert body_of(ask()) == {}  # null: the client keeps what it has
    desk.s.topics.update(TopicConfig("orders", 2, 2))
    assert body_of(ask()) == {}
    assert len(body_of(ask(messageModel="BROADCASTING"))["messageQueueAssignments"]) == 2
    desk.ask(34, beat())
    given = body_of(ask())["messageQueueAssignments"]
    assert [(a["messageQueue"]["queueId"], a["mode"]) for a in given] == [(0, "PULL"), (1, "PULL")]
    assert ask(strategyName="X").code == 1
    mode = {"topic": "orders", "consumerGroup": "readers", "mode": "PULL"}
    assert desk.ask(401, mode).code == 0
    assert desk.ask(401, mode | {"mode": "POP"}).code == 1
    assert desk.ask(401, mode | {"topic": "%RETRY%readers"}).code == 16
    assert desk.ask(401, mode | {"topic": "none"}).code == 17


def test_offset_ids_are_hexadecimal(desk):
    found = desk.send().ext["msgId"]
    assert base64.b16decode(found)[:4] == bytes([127, 0, 0, 1])
