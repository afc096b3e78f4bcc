"""No request holds the event loop for long: the worst of every code that the limits allow.

What counts is the processor time of the loop's own thread between two of its turns, so that others
who use the machine do not; what they take from the caches is made up for, and a request that took
too long gets two more tries. The garbage collector does not look at what was there before.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import statistics
import struct
import time

import pytest
from fakes import FakePeer, beat, send_command
from loops import Wire, run

from broker import Broker, Credentials, NameServer
from broker.client.credentials import SigningHook
from broker.loop.watchdog import Watchdog
from broker.processors import all_handlers, bodies
from broker.processors.lite import LISTED_MAX
from broker.remoting.connection import Connection
from broker.wire import codec
from broker.wire.codec import BadFrame
from broker.wire.codes import RequestCode
from broker.wire.command import Command, texts
from pystore import TopicConfig
from pystore.meta.configfiles import SubscriptionGroup

LIMIT_MS = 50
TRIES = 3
#: What the work of slowness() takes on an idle machine of two slow cores.
IDLE_MS = 12
#: What the broker holds: topics, queues of one, groups, and groups that have read all of that one.
#: Codes of lite topics, which are not of pops.
LITE = range(200_070, 200_080)
TOPICS, QUEUES, GROUPS, READERS = 3_000, 4_096, 1_000, 4
#: Topics that the name server knows.
ROUTES = 10_000


class Held:
    """longest: of the pieces of work on the loop since clear(), in ms."""

    def __init__(self):
        self.longest = 0.0

    @contextlib.contextmanager
    def measured(self):
        began = time.thread_time()
        try:
            yield
        finally:
            self.longest = max(self.longest, (time.thread_time() - began) * 1000)

    def watch(self, dog):
        """Pieces of handlers after they waited; what the dog noted counts, too."""
        plain = dog.step

        def step(*given):
            with self.measured():
                return plain(*given)

        dog.step = step


@pytest.fixture
def held(monkeypatch):
    made = Held()
    gc.collect()
    gc.freeze()

    def measure(name):
        plain = getattr(Connection, name)

        def call(self, *given):
            with made.measured():
                return plain(self, *given)

        monkeypatch.setattr(Connection, name, call)

    for name in ("buffer_updated", "flush", "_answer"):
        measure(name)
    return made


def slowness():
    """How much longer the machine takes just now than one that has nothing else to do."""
    took = []
    for _ in range(5):
        began, made = time.thread_time(), {}
        for i in range(50_000):
            made[str(i)] = i
        took.append((time.thread_time() - began) * 1000)
    return max(1.0, statistics.median(took) / IDLE_MS)


async def ask(wire, command):
    """The answer; what the broker asks meanwhile is passed over."""
    wire.write(command)
    while True:
        frame = await wire.frame()
        try:
            answer = codec.decode(frame)
        except BadFrame:  # its header names the messages of a large batch
            return None
        if answer.is_response:
            return answer


async def check(port, held, requests):
    """requests: pairs of a name and a command. None holds the loop longer than allowed."""
    async with await Wire.to(port, limit=64 << 20) as wire:
        for name, command in requests:
            for last in [False] * (TRIES - 1) + [True]:
                held.longest = 0.0
                answer = await ask(wire, command)
                if held.longest <= LIMIT_MS or held.longest <= LIMIT_MS * slowness():
                    break
                assert not last, f"{name} held the loop for {held.longest:.0f} ms: {answer}"[:500]


# ---- what is worst ----

READERS_OF_JSON = (18, 34, 41, 42, 46, 200, 217, 225, 322, 400, 401, 3001, 3006)


@functools.cache
def dense(size, item=b"{}"):
    return b"[" + b",".join([item] * (size // (len(item) + 1))) + b"]"


def listed(name, item, count):
    items = (json.dumps(item).replace("%d", str(i)).encode() for i in range(count))
    return b'{"%s":[%s]}' % (name.encode(), b",".join(items))


def of(ext=None, body=b"", **more):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    return texts((ext or {}) | more), body


def anything(code):
    """For any code: many fields, and bodies that take long to read."""
    yield of({f"{i:03}": "x" * 4000 for i in range(250)})
    yield of(body=dense(bodies.BODY_MAX))
    if code not in READERS_OF_JSON:
        return
    yield of(body=dense(bodies.BODY_MAX, b"[]"))
    yield of(body=b"{" + b",".join(b"a%d:1" % i for i in range(bodies.LAX_MAX // 8)) + b"}")
    yield of(body=dense(bodies.BODY_MAX * 2))


def heartbeats():
    (consumer,) = beat(group="reader-0")["consumerDataSet"]
    (one,) = consumer["subscriptionDataSet"]
    subs = [
        one | {"topic": f"t{i}", "subString": "a||" * 30} for i in range(bodies.SUBSCRIPTIONS_MAX)
    ]
    small = {"subscriptionDataSet": [{"topic": f"u{i}"} for i in range(4)]}
    groups = [small | {"groupName": f"g{i}"} for i in range(bodies.GROUPS_MAX)]
    makers = [{"groupName": f"p{i}"} for i in range(bodies.GROUPS_MAX)]
    yield of(body={"clientID": "c", "consumerDataSet": [consumer | {"subscriptionDataSet": subs}]})
    yield of(body={"clientID": "c", "consumerDataSet": groups, "producerDataSet": makers})


def worst():
    """By code, what takes this broker longest; queues are those of the widest topic."""
    topic, group = {"topic": "wide"}, {"group": "reader-0"}
    queue = {"topic": "wide", "brokerName": "b", "queueId": "%d"}
    locks = listed("mqSet", queue, bodies.LOCKS_MAX)[:-1]
    locks += b',"consumerGroup":"reader-0","clientId":"c"}'
    made = {"topicName": "made-%d", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    sent = send_command("wide", bytes(4 << 20))
    item = struct.pack(">iiiiih", 22, 0, 0, 0, 0, 0)
    batch = sent.ext | {"m": "true", "i": ""}
    asked = {"topic": "wide", "consumerGroup": "reader-0", "clientId": "c"}
    expression = " AND ".join(["a = 1"] * 20_000)
    return {
        12: [of(topic, key="k", maxNum=64, beginTimestamp=0, endTimestamp=1 << 62)],
        18: [of(body=listed("topicConfigList", made, bodies.MADE_MAX))],
        25: [of(body=b"a=1\n" * (16 << 10)), of(body=b"\\\n" * (32 << 10))],
        34: heartbeats(),
        41: [of(body=locks)],
        42: [of(body=locks)],
        46: [of(body={"subscriptionData": {"expressionType": "SQL92", "subString": expression}})],
        200: [of(body={"groupName": "g", "attributes": {f"k{i}": "v" for i in range(30_000)}})],
        202: [of(topic)],
        207: [of(groupName="reader-3", cleanOffset="true")],
        208: [of(consumerGroup="reader-0")],
        215: [of(topic="topic-00001")],
        222: [of(topic | group, timestamp=when, isForce="true") for when in (0, 1)],
        225: [of(body=listed("groupConfigList", {"groupName": "made-%d"}, bodies.MADE_MAX))],
        300: [of(topic)],
        303: [of(topic | group)],
        308: [of(topic, filterGroups="x," * 100_000, compareGroup="reader-0")],
        310: [(sent.ext, sent.body)],
        314: [of(topic, srcGroup="reader-0", destGroup="copy")],
        317: [of(isOrder="false")],
        320: [(batch, item * 65536), (batch, item * 190_000)],
        321: [of(topic, queueId=0, index=0, count=1 << 30)],
        343: [of(group)],
        400: [of(body=asked | {"messageModel": "BROADCASTING"})],
        **{code: [of(ext, body) for _, ext, body, _, _ in cases] for code, cases in POPS.items()},
    }


# ---- POP ----

POP_FILTER = " OR ".join(["a = 1"] * 20_000)
POPPED = {"topic": "wide", "consumerGroup": "reader-0", "queueId": "0"}
DELIVERED = POPPED | {"extraInfo": "0 1 60000 0 0 b 0 0", "offset": "0"}
TAKES = POPPED | {"maxMsgNums": "32", "invisibleTime": "60000"}


def acks(count, **changed):
    """count: of batches, each of a queue of its own."""
    one = {"c": "reader-0", "t": "wide", "so": 0, "pt": 1, "it": 60_000, "rq": 0, "b": "AQ=="}
    return json.dumps({"acks": [one | {"q": q} | changed for q in range(count)]}).encode()


#: By code of POP: a name, fields, a body, the code of the answer and words of its remark.
POPS = {
    200050: [
        ("a long filter", TAKES | {"expType": "SQL92", "exp": POP_FILTER}, b"", 23, "more than 65"),
        ("a filter of no kind", TAKES | {"expType": "x" * 60_000}, b"", 23, "neither TAG nor"),
        ("too many", TAKES | {"maxMsgNums": "33"}, b"", 29, "num is greater than 32"),
        ("none", TAKES | {"maxMsgNums": "0"}, b"", 29, "maxMsgNums 0 is less than 1"),
        ("for ever", TAKES | {"invisibleTime": "1" * 18}, b"", 29, "invisibleTime 1111"),
        ("another queue", TAKES | {"queueId": "2147483647"}, b"", 29, "queueId[2147483647] is ill"),
        ("no number", TAKES | {"queueId": "1" * 4000}, b"", 1, "queueId"),
        ("a long group", TAKES | {"consumerGroup": "g" * 60_000}, b"", 29, "group max length 255"),
    ],
    200051: [
        ("a handle of nothing", DELIVERED | {"extraInfo": "0 " * 30_000}, b"", 13, "handle"),
        ("another queue", DELIVERED | {"queueId": "99999"}, b"", 13, "queueId[99999] is illegal"),
        ("another offset", DELIVERED | {"offset": "1" * 18}, b"", 208, "offset is illegal"),
    ],
    200052: [
        ("too many", TAKES | {"maxMsgNums": "9" * 9}, b"", 29, "maxMsgNums 999999999 is not"),
    ],
    200053: [
        ("for ever", DELIVERED | {"invisibleTime": "1" * 18}, b"", 29, "invisibleTime 1111"),
        ("no handle", DELIVERED | {"extraInfo": "", "invisibleTime": "1"}, b"", 1, "extraInfo"),
    ],
    200054: [("another queue", POPPED | {"queueId": "99999"}, b"", 29, "queueId[99999] is ill")],
    200055: [("another queue", POPPED | {"queueId": "99999"}, b"", 29, "queueId[99999] is ill")],
    200056: [("a body", {}, dense(bodies.BODY_MAX), 0, "")],
    200151: [
        ("a queue each", {}, acks(1024), 0, ""),
        ("too many", {}, acks(1025), 1, "1024"),
        ("many bits", {}, acks(40, b="/" * 10_920), 13, "the bits of a batch"),
        ("no bits", {}, acks(1, b="?"), 13, "the bits of a batch"),
        ("a list", {}, dense(bodies.BODY_MAX), 1, "body"),
    ],
}


async def fill(broker, messages=QUEUES):
    """messages: in how many queues of the widest topic there is one."""
    s = broker.services
    for i in range(TOPICS):
        s.topics.update(TopicConfig(f"topic-{i:05}", 1, 1))
    s.topics.update(TopicConfig("wide", QUEUES, QUEUES))
    await s.topics.settled()
    for i in range(GROUPS):
        s.groups.update(SubscriptionGroup(f"group-{i:05}"))
    for queue in range(messages):
        s.store.put("wide", b"b", queue=queue)
    for i in range(READERS):
        s.groups.update(SubscriptionGroup(f"reader-{i}"))
        for queue in range(QUEUES):
            s.offsets.commit(f"reader-{i}", "wide", queue, 1)


async def test_no_request_of_a_broker_holds_the_loop(tmp_path, held):
    async with Broker(tmp_path, listenPort=0, bindAddress="127.0.0.1") as broker:
        await fill(broker)
        held.watch(broker.services.watchdog)
        cases = worst()
        requests = [
            (f"request {code}, {at}", Command(code, ext, body))
            for code in all_handlers(broker.services)
            for at, (ext, body) in enumerate([*cases.get(code, ()), *anything(code)])
        ]
        await check(broker.port, held, requests)


async def test_the_longest_list_of_lite_topics_does_not_hold_the_loop(tmp_path, held):
    """So many rows as an answer names at most, of a group that is behind in each."""
    async with Broker(tmp_path, listenPort=0, bindAddress="127.0.0.1") as broker:
        s = broker.services
        s.topics.update(TopicConfig("L", 1, 1), "+message.type=LITE")
        s.groups.update(SubscriptionGroup("g", attributes={"+lite.bind.topic": "L"}))
        for n in range(LISTED_MAX):
            queue = f"%LMQ%$L$session-{n}"
            s.store.put("L", b"x", properties={"INNER_MULTI_DISPATCH": queue}, wait=False)
            s.offsets.commit("g", queue, 0, 0)
        held.watch(s.watchdog)
        asked = {"group": "g", "topK": str(LISTED_MAX)}
        await check(broker.port, held, [("topK", Command(RequestCode.GET_LITE_GROUP_INFO, asked))])
        async with await Wire.to(broker.port, limit=64 << 20) as wire:
            answer = await ask(wire, Command(RequestCode.GET_LITE_GROUP_INFO, asked))
        said = json.loads(bytes(answer.body))
        assert {row["lagCount"] for row in said["lagCountTopK"]} == {1}
        assert len({row["liteTopic"] for row in said["lagCountTopK"]}) == LISTED_MAX


# ---- with access control ----

BOSS = ("admin-user", "admin-secret")


#: An account without rights for what the tests ask.
LITTLE = ("account-0000", "a-secret")


def signed(command, by=BOSS):
    SigningHook(Credentials(*by)).before_request("", command)
    return command


def plain_list(folder):
    rights = "".join(f"  - topic-{i:03}=PUB|SUB\n" for i in range(10))
    accounts = "".join(
        f"- accessKey: account-{i:04}\n  secretKey: a-secret\n  topicPerms:\n{rights}"
        for i in range(200)
    )
    boss = (
        f"- accessKey: {BOSS[0]}\n  secretKey: {BOSS[1]}\n  admin: true\n"
        "  defaultTopicPerm: PUB|SUB\n  defaultGroupPerm: SUB\n"
    )
    (folder / "plain_acl.yml").write_text("accounts:\n" + boss + accounts)
    return {"aclEnable": True}


def policies(folder):
    return {
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "initAuthenticationUser": json.dumps(
            dict(zip(("username", "password"), BOSS, strict=True))
        ),
    }


async def test_the_worst_of_each_code_of_pop_is_refused_by_name(tmp_path):
    """To one who may do everything, with what is wrong; to others before anything is looked at.
    The plain list wants no right for 200055 and 200056, which tell a count and do nothing."""
    settings = plain_list(tmp_path)
    store = tmp_path / "store"
    async with Broker(store, listenPort=0, bindAddress="127.0.0.1", **settings) as broker:
        broker.services.topics.update(TopicConfig("wide", QUEUES, QUEUES))
        broker.services.groups.update(SubscriptionGroup("reader-0"))
        broker.services.store.put("wide", b"b", queue=0)
        served = set(all_handlers(broker.services))
        assert set(POPS) == {code for code in RequestCode if code > 200_000} & served - set(LITE)
        async with await Wire.to(broker.port, limit=64 << 20) as wire:
            for code, cases in POPS.items():
                _, ext, body, _, _ = cases[0]
                answer = await ask(wire, signed(Command(code, dict(ext), body), LITTLE))
                denied = "No default permission" in (answer.remark or "")
                assert denied == (code not in (200055, 200056)), code
                for name, ext, body, expected, words in cases:
                    where = f"request {code}, {name}"
                    answer = await ask(wire, Command(code, dict(ext), body))
                    assert (answer.code, "No accessKey" in answer.remark) == (1, True), where
                    answer = await ask(wire, signed(Command(code, dict(ext), body)))
                    assert (answer.code, words in (answer.remark or "")) == (expected, True), (
                        f"{where}: {answer}"[:500]
                    )


def user_requests(count):
    entry = {"actions": ["Pub"], "decision": "Allow", "sourceIps": ["10.0.0.1"] * 10}
    resources = [{"policyType": "Custom", "entries": [
        entry | {"resource": [f"Topic:t-{i}*" for i in range(50)]}] * 10}]  # fmt: skip
    for i in range(count):
        yield 3001, of({"username": f"user-{i}"}, {"password": "a-secret", "userType": "Normal"})
        yield 3006, of({"subject": f"User:user-{i}"}, {"subject": f"User:user-{i}",
                       "policies": resources})  # fmt: skip


@pytest.mark.parametrize("kind", [pytest.param(plain_list, marks=pytest.mark.long), policies])
async def test_no_request_holds_the_loop_while_access_control_is_on(tmp_path, held, kind):
    """What it needs is read from the same bodies, and signatures are over all of them."""
    settings = kind(tmp_path)
    store = tmp_path / "store"
    async with Broker(store, listenPort=0, bindAddress="127.0.0.1", **settings) as broker:
        held.watch(broker.services.watchdog)
        broker.create_topic("wide", 8)
        cases = worst()
        asked = list(user_requests(20)) if kind is policies else []
        account = {"accessKey": "account-9999", "secretKey": "a-secret"}
        account["topicPerms"] = ",".join(f"topic-{i}=PUB" for i in range(5_000))
        asked += [(50, of(account)), (53, of(globalWhiteAddrs="10.0.0.1," * 5_000))]
        for code in (
            18,
            34,
            41,
            42,
            200,
            225,
            320,
            400,
            46,
            52,
            54,
            3005,
            3010,
            3004,
            3009,
            *POPS,
        ):
            asked += [(code, each) for each in [*cases.get(code, ()), *anything(code)]]
        requests = [
            (f"request {code}, {at}", signed(Command(code, ext, body)))
            for at, (code, (ext, body)) in enumerate(asked)
        ]
        await check(broker.port, held, requests)


# ---- the name server ----


def registration(count):
    version = {"counter": count, "timestamp": 1, "stateVersion": 0}
    table = {
        f"topic-{i:05}": {"topicName": f"topic-{i:05}", "readQueueNums": 8, "writeQueueNums": 8,
                          "perm": 6, "topicSysFlag": 0}
        for i in range(count)
    }  # fmt: skip
    wrapper = {"topicConfigTable": table, "dataVersion": version}
    return {"filterServerList": [], "topicConfigSerializeWrapper": wrapper}


async def test_no_request_of_a_name_server_holds_the_loop(held):
    who = {"clusterName": "c", "brokerName": "b", "brokerAddr": "127.0.0.1:1", "brokerId": 0}
    async with NameServer(listenPort=0) as names:
        held.watch(names.watchdog)
        cases = {
            103: [of(who, registration(ROUTES), haServerAddr="127.0.0.1:2")],
            104: [of(who)],
            105: [of(topic="topic-00001")],
            205: [of(who)],
            224: [of(cluster="c")],
            318: [of(body=b"a=1\n" * (8 << 10))],
            327: [of(who)],
        }
        codes = [103, *(set(names._server._shared.handlers) - {103, 104}), 104]
        requests = [
            (f"request {code}, {at}", Command(code, ext, body))
            for code in codes
            for at, (ext, body) in enumerate([*cases.get(code, ()), *anything(code)])
        ]
        keys = [of(namespace="n", key=f"k{i}", value="x" * 500_000) for i in range(6)]
        requests += [("request 100", Command(100, *key)) for key in keys]
        requests += [("request 219", Command(219, *of(namespace="n")))]
        await check(names.port, held, requests)
        assert names.kv.size <= 2 << 20


# ---- who did it ----


def test_what_holds_the_loop_after_a_wait_is_named():
    """Each piece of a handler is measured, up to where it waits; the wait is not."""
    now = [0.0]

    async def handler(peer, command):
        now[0] += 0.03
        await asyncio.sleep(0)
        now[0] += 0.08
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        except TimeoutError:
            now[0] += 0.03
        return command.reply(code=7)

    async def work():
        dog = Watchdog(50, clock=lambda: now[0])
        answer = await dog.call(handler, FakePeer(), Command(911))
        return answer.code, dict(dog.counts), dog.longest_ms

    assert run(work()) == (7, {911: 1}, 80)
