"""The parts without I/O: records, routes, allocation, progress, choosing brokers, identifiers."""

from __future__ import annotations

import ast
import functools
import itertools
import operator
import random
import struct
import types
from pathlib import Path

import pytest
from purecodec import encode_record

import broker.client
from broker import Consumer, Message, Producer, SendResult, SendStatus
from broker.client import (
    MessageQueue,
    Misuse,
    by_config,
    machine_room,
    machine_room_nearby,
    sending,
)
from broker.client.allocation import STRATEGIES, average, strategy_of
from broker.client.consumer import ConsumerOptions, ConsumerSettings
from broker.client.errors import ClientError, InvalidMessage
from broker.client.faults import FaultTable, QueueChooser
from broker.client.ids import new_unique_key, offset_id_of
from broker.client.options import ClientOptions, ClientSettings
from broker.client.producer import ProducerOptions, ProducerSettings
from broker.client.progress import QueueProgress
from broker.client.records import BadRecord, encode_batch, received
from broker.client.routes import Route, parse_route
from broker.client.sending import (
    SendRules,
    cut_batches,
    prepare,
    with_namespace,
    without_namespace,
)
from pystore.format.javahash import java_hash

FOLDER = Path(broker.client.__file__).parent
WITHOUT_IO = (
    "allocation", "checks", "errors", "faults", "lite", "message", "progress", "records", "routes",
    "sending", "subscription",
)  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT_IO)
def test_rules_do_no_io(name):
    """Neither directly nor through another file of the folder."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    assert not imported & {"asyncio", "socket", "threading", "broker.client.network"}
    allowed = {f"broker.client.{each}" for each in (*WITHOUT_IO, "ids", "_messages")}
    assert {each for each in imported if each.startswith("broker.client")} <= allowed


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (ClientOptions, [ClientSettings]),
        (ProducerOptions, [ClientSettings, ProducerSettings]),
        (ConsumerOptions, [ClientSettings, ConsumerSettings]),
    ],
)
def test_keyword_arguments_are_the_fields_of_the_settings(options, settings):
    fields = set().union(*(each.__dataclass_fields__ for each in settings))
    assert set(options.__annotations__) | set(ClientOptions.__annotations__) == fields


def test_every_public_name_is_documented_and_importable():
    for name in broker.client.__all__:
        assert getattr(broker.client, name).__doc__, name
        if name in broker.__all__:
            assert getattr(broker, name) is getattr(broker.client, name)


def test_every_error_is_a_client_error():
    for name in broker.client.__all__:
        found = getattr(broker.client, name)
        if isinstance(found, type) and issubclass(found, Exception) and name != "RetryLater":
            assert issubclass(found, ClientError)


# ---- dividing queues ----


def queues(count, topic="t", name="b"):
    return [MessageQueue(topic, name, n) for n in range(count)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("count", "members"), [(0, 3), (1, 3), (4, 3), (8, 3), (7, 1), (16, 5)])
def test_every_queue_goes_to_one_member(strategy, count, members):
    ids = sorted(f"10.0.0.{n}@{n}" for n in range(members))
    given = [STRATEGIES[strategy](queues(count), ids, each) for each in ids]
    assert sorted(itertools.chain(*given)) == queues(count)


def test_average_gives_neighbours_and_the_rest_to_the_first():
    shares = [[q.queue for q in average(queues(8), list("abc"), each)] for each in "abc"]
    assert shares == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_strategies_of_rooms():
    near, far = queues(4, name="r1@a"), queues(4, name="r2@b")
    both = sorted(near + far)
    shares = [machine_room(["r1"])(both, ["c1", "c2", "c3"], c) for c in ("c1", "c2", "c3")]
    assert sorted(itertools.chain(*shares)) == near
    nearby = machine_room_nearby(
        average, lambda queue: queue.broker.split("@")[0], lambda client: client.split("-")[0]
    )
    ids = ["r1-x", "r1-y"]
    shares = [nearby(both, ids, each) for each in ids]
    assert sorted(itertools.chain(*shares)) == both
    assert by_config(near)(both, ids, "r1-x") == tuple(near)
    with pytest.raises(Misuse, match="use one of AVG"):
        strategy_of("RANDOM")


# ---- progress ----


def test_what_is_committed_never_skips_an_open_message(rng: random.Random):
    """Against a plain set: messages are done in any order, some twice."""
    for _ in range(50):
        progress = QueueProgress(MessageQueue("t", "b", 0), 100)
        offsets = sorted(rng.sample(range(100, 160), 30))
        progress.pulled(offsets, 160)
        left = set(offsets)
        order = offsets + rng.sample(offsets, 10)
        rng.shuffle(order)
        for offset in order:
            assert progress.is_open(offset) == (offset in left)
            progress.done(offset)
            left.discard(offset)
            assert progress.commit_offset == min(left, default=160)
            assert progress.pending == len(left)


def test_a_reset_forgets_what_was_pulled():
    progress = QueueProgress(MessageQueue("t", "b", 0), 0)
    progress.pulled([0, 1, 2], 3)
    progress.done(1)
    progress.reset(7)
    assert (progress.commit_offset, progress.pending, progress.epoch) == (7, 0, 1)


# ---- records, routes, identifiers ----


@pytest.mark.parametrize("damage", [b"\0" * 90, struct.pack(">i", 5) + b"\0" * 90, b"\x7f" * 95])
def test_bytes_that_are_no_records_are_named(damage):
    with pytest.raises(BadRecord):
        received(damage, QueueProgress(MessageQueue("t", "b", 0), 0))


def batch_record(flag: int = 0xC0, cut: int = 0) -> bytes:
    """As Apache's broker has a batch in a topic with queue.type=BatchCQ."""
    bodies = [b"one", b"two", b"three"]
    items = encode_batch([0] * 3, bodies, [b"TAGS\1%c\2" % tag for tag in b"aba"])
    return encode_record(b"t", items[: len(items) - cut], queue_offset=50, sys_flag=flag)


def test_a_record_that_holds_a_batch_is_as_many_messages():
    """One message was made of it, and none where a pull began in its middle."""
    body = encode_record(b"t", b"zero", queue_offset=49) + batch_record()
    queue = QueueProgress(MessageQueue("t", "b", 0), 0)
    found = [(m.queue_offset, m.body) for m in received(body, queue)]
    assert found == [(49, b"zero"), (50, b"one"), (51, b"two"), (52, b"three")]
    assert [m.body for m in received(body, queue, {b"a"})] == [b"one", b"three"]


@pytest.mark.parametrize("record", [batch_record(0xC1), batch_record(cut=1)])
def test_a_batch_that_cannot_be_read_is_named(record):
    with pytest.raises(BadRecord, match="holds a batch"):
        received(record, QueueProgress(MessageQueue("t", "b", 0), 0))


def test_a_route_is_read_in_both_notations():
    body = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"a:1",1:"a:2"},"brokerName":"b","cluster":"c"},'
        b'{"brokerAddrs":{"1":"z:2"},"brokerName":"z","cluster":"c"}],"queueDatas":['
        b'{"brokerName":"b","perm":6,"readQueueNums":2,"writeQueueNums":1},'
        b'{"brokerName":"z","perm":6,"readQueueNums":1,"writeQueueNums":1}]}'
    )
    route = parse_route(body, "t")
    assert route.publish == (MessageQueue("t", "b", 0),)  # z has no master
    assert route.read == (*queues(2), MessageQueue("t", "z", 0))
    assert (route.master("b"), route.address("b", 1), route.address("z")) == ("a:1", "a:2", "z:2")
    assert route.addresses(masters_only=True) == {"a:1"}


def test_an_order_topic_has_the_queues_of_its_configuration():
    body = (
        b'{"orderTopicConf":"b:3","brokerDatas":[{"brokerAddrs":{"0":"a:1"},"brokerName":"b"}],'
        b'"queueDatas":[{"brokerName":"b","perm":4,"readQueueNums":1,"writeQueueNums":1}]}'
    )
    assert parse_route(body, "t").publish == tuple(queues(3))


def test_unique_keys_are_unique_and_have_upstreams_length():
    keys = {new_unique_key() for _ in range(10_000)}
    assert len(keys) == 10_000
    assert {len(key) for key in keys} == {32}
    int(min(keys), 16)


def test_an_offset_id_says_where_a_record_lies():
    assert offset_id_of("7F00000100002A9F00000000001147BF") == ("127.0.0.1", 10911, 0x1147BF)
    assert offset_id_of("0" * 30 + "01" + "00002A9F" + "0" * 15 + "5") == ("::1", 10911, 5)
    with pytest.raises(ValueError, match="not an offset message id"):
        offset_id_of("7F00")


@pytest.mark.parametrize(
    ("tag", "value"),
    [("", 0), ("AaAa", 2031744), ("BBBB", 2031744), ("水果", 885224),
     ("polygenelubricants", -(1 << 31))],
)  # fmt: skip
def test_tags_hash_as_in_java(tag, value):
    assert java_hash(tag) == value


@pytest.mark.parametrize(
    ("plain", "full"),
    [("t", "n%t"), ("%RETRY%g", "%RETRY%n%g"), ("%DLQ%g", "%DLQ%n%g"), ("n%t", "n%t")],
)
def test_namespaces_stand_behind_the_prefix(plain, full):
    assert with_namespace(plain, "n") == full
    assert without_namespace(full, "n") == plain.replace("n%", "")
    assert with_namespace(plain, "") == plain


# ---- choosing brokers ----


_BROKERS = Route(tuple(sorted(queues(2, name="a") + queues(2, name="b"))))
_LOGICAL = queues(4, name="__syslo__global__")
_LEADERS = Route(tuple(_LOGICAL), leaders=dict(zip(_LOGICAL, "abab", strict=True)))


@pytest.mark.parametrize("both", [_BROKERS, _LEADERS], ids=["brokers", "leaders"])
def test_slow_and_lost_brokers_are_avoided_for_a_while(both):
    faults, chooser = FaultTable(), QueueChooser()

    def chosen(now, failed=()):
        return {both.broker(chooser.choose(both, faults, now, failed)) for _ in range(8)}

    assert chosen(0) == {"a", "b"}
    faults.report("a", 0.6, 0)
    assert chosen(1.9) == {"b"}
    assert chosen(2.1) == {"a", "b"}
    faults.report("a", 0, 10, failed=True)
    assert chosen(19) == {"b"}
    assert chosen(19, ["b"]) == {"a"}  # one that has failed just now is worse
    faults.report("b", 0, 10, failed=True)
    assert chosen(19) == {"a", "b"}  # when all are to be avoided, none is
    faults.report("a", 0.001, 19)
    assert chosen(19) == {"a"}


@pytest.mark.parametrize(
    "message",
    [
        "hello", None,
        Message(None, b"x"), Message(5, b"x"), Message("t", None), Message("t", "x"),
        Message("t", bytearray(b"x")), Message("t", b"x", tags=5), Message("t", b"x", keys=5),
        Message("t", b"x", tags=["a"]), Message("t", b"x", keys=[5]), Message("t", b"x", keys=b"k"),
        Message("t", b"x", properties=["a"]), Message("t", b"x", properties={"a": 1}),
        Message("t", b"x", properties={"": "1"}), Message("t", b"x", delay_level="1"),
        Message("t", b"x", delay_level=1.5), Message("t", b"x", deliver_at_ms=1.5),
        Message("t", b"x", flag="1"), Message("t", b"x", flag=1.5),
        Message("t", b"x", flag=1 << 31),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_not_a_message_is_named(message):
    """One by one and in batches: nothing is sent as whatever text Python makes of it."""
    rules = SendRules("p")
    with pytest.raises(InvalidMessage):
        prepare(message, rules)
    with pytest.raises(InvalidMessage):
        list(cut_batches([Message("t", b"x"), message], rules, 1 << 20))
    with pytest.raises(InvalidMessage):
        list(cut_batches([message], rules, 1 << 20))


#: Messages of one topic that C takes; the first is the topic of all.
PLAIN = (
    Message("t", b"x"), Message("t", b"y" * 5000, tags="red"), Message("t", b"z", keys="a b"),
    Message("t", b"\x00\x01\x02", tags="ü", keys="k", flag=-5),
    Message("t", b"w", tags="", keys=""), Message("t", b"v", flag=(1 << 31) - 1),
    Message("t", b"u", tags=None, keys=()),
)  # fmt: skip


def cut_by_hand(messages, size, monkeypatch):
    """Each request as (numbers of messages, body, keys), by C and, message by message, in Python,
    with the same unique keys."""
    rules, found = SendRules("g"), []
    for cut in (sending.cut_batches, sending._cut_any):
        numbers = itertools.count(65_530)

        def keys(count, numbers=numbers):
            return [f"{'AB' * 14}{next(numbers) & 0xFFFF:04X}" for _ in range(count)]

        with monkeypatch.context() as patched:
            patched.setattr(sending, "key_source", lambda numbers=numbers: ("AB" * 14, numbers))
            patched.setattr(sending, "new_unique_keys", keys)
            cuts = list(cut(messages, rules, size))
        found.append([(list(indexes), o.body, o.keys, o.properties) for indexes, o in cuts])
    return found


@pytest.mark.parametrize("size", [1 << 20, 6000, 400, 1])
def test_a_batch_made_in_c_is_that_of_python(size, monkeypatch, rng):
    messages = rng.choices(PLAIN, k=40)
    by_c, by_python = cut_by_hand(messages, size, monkeypatch)
    for field in range(3):  # where the parts end differs: C makes them about equal
        c, python = (
            functools.reduce(operator.add, (cut[field] for cut in cuts))
            for cuts in (by_c, by_python)
        )
        assert c == python
    assert {cut[3] for cut in by_c} == {cut[3] for cut in by_python}
    assert all(len(body) <= size or len(keys) == 1 for _, body, keys, _ in by_c)


@pytest.mark.parametrize(
    "message",
    [
        Message("other", b"x"), Message("t", b"x", properties={"a": "b"}),
        Message("t", b"x", keys=["a", "b"]), Message("t", b"x", wait_stored=False),
        Message("t", b"x", properties=types.MappingProxyType({})),
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("at", [0, 1])
def test_a_message_that_is_not_plain_is_left_to_python(message, at, monkeypatch):
    messages = [Message("t", b"first"), Message("t", b"last")]
    messages.insert(at, message)
    by_c, by_python = cut_by_hand(messages, 1 << 20, monkeypatch)
    assert by_c == by_python
    assert sorted(number for indexes, *_ in by_c for number in indexes) == [0, 1, 2]


def test_results_of_a_batch_name_every_message():
    queue = MessageQueue("t", "b", 3)
    outgoing = next(sending.cut_batches([Message("t", b"x")] * 3, SendRules("g"), 1 << 20))[1]
    for ids in ("AA,BB,CC", "AA", "AA,BB", ""):
        found = sending.results_of(outgoing, queue, sending.Answer(10, 4, 70, ids, ""))
        each = ids.split(",") if ids.count(",") == 2 else [ids.split(",")[0]] * 3
        assert found == [
            SendResult(SendStatus.FLUSH_DISK_TIMEOUT, key, i, MessageQueue("t", "b", 4), 70 + n)
            for n, (key, i) in enumerate(zip(outgoing.keys, each, strict=True))
        ]
        assert all(type(row) is SendResult for row in found)


def test_messages_of_several_at_once_are_done_as_one_by_one(rng):
    together, alone = (QueueProgress(MessageQueue("t", "b", 0), 5) for _ in range(2))
    woken = []
    together.wake = lambda: woken.append(together.commit_offset)
    for each in (together, alone):
        each.pulled(range(5, 65), 65)
    left = list(range(5, 65))
    while left:
        some = rng.sample(left, min(len(left), rng.randrange(1, 9)))
        left = [offset for offset in left if offset not in some]
        together.done(*some, *rng.sample(some, 1), 3)
        for offset in some:
            alone.done(offset)
        assert (together.commit_offset, together.pending) == (alone.commit_offset, alone.pending)
        assert woken.pop() == together.commit_offset
        assert not woken  # once for all of them
    assert together.commit_offset == 65


WRONG_SETTINGS = (
    (Producer, {"max_in_flight": "5"}), (Producer, {"max_in_flight": 0}),
    (Producer, {"retries": None}), (Producer, {"retries": -1}), (Producer, {"batch_max": 0}),
    (Producer, {"send_timeout_s": "x"}), (Producer, {"send_timeout_s": 0}),
    (Producer, {"compression": None}), (Producer, {"tls": "yes"}), (Producer, {"namespace": 5}),
    (Producer, {"hooks": 5}), (Producer, {"credentials": "k:s"}), (Producer, {"nonsense": 1}),
    (Producer, {"heartbeat_s": 0}), (Producer, {"request_timeout_s": 0}), (Producer, {"trace": 1}),
    (Producer, {"namesrv": 5}), (Producer, {"namesrv": b"h:1"}), (Producer, {"namesrv": "h"}),
    (Consumer, {"handler": 5}), (Consumer, {"topics": 5}), (Consumer, {"topics": {"t": None}}),
    (Consumer, {"topics": ""}), (Consumer, {"topics": [5]}), (Consumer, {"start": 1.5}),
    (Consumer, {"start": "now"}), (Consumer, {"start": -1}), (Consumer, {"on_assigned": 5}),
    (Consumer, {"strategy": 5}), (Consumer, {"concurrency": True}), (Consumer, {"pull_batch": 0}),
)  # fmt: skip


@pytest.mark.parametrize(("kind", "options"), WRONG_SETTINGS, ids=repr)
def test_settings_that_cannot_work_are_named(kind, options):
    with pytest.raises(Misuse):
        kind("group", **({"namesrv": "127.0.0.1:9876"} | options))
