"""A broker's services without sockets: a core that is a few dicts over a real one, which alone puts
messages; peers that remember."""

from __future__ import annotations

import asyncio
import threading
from array import array
from contextlib import contextmanager

from broker.hot.core import Core, MessageSums, Sample, Times, Totals
from broker.services.clients import Clients
from broker.services.config import Config
from broker.services.context import Services
from broker.services.groups import Groups
from broker.services.locks import Locks
from broker.services.offsets import ConsumerOffsets
from broker.services.registration import Registration
from broker.services.statistics import Statistics
from broker.services.topics import Topics
from broker.wire import codec
from broker.wire.command import Command, texts
from pystore import Store
from pystore.format.offset_blocks import offset_rows
from pystore.settings import load

__all__ = ["FakeCore", "FakePeer", "answer_of", "beat", "send_command", "services"]


class FakePeer:
    """Remembers what it was sent; answers our requests with `reply`. core: what its sends go to."""

    def __init__(self, port=40000, serves=False, core=None):
        self.address = ("127.0.0.1", port)
        self.closed = False
        self.busy = False
        self.state = {}
        self.sent = []
        self.pushed = []
        self.asked = []
        self.raw = []
        self.serves = serves
        self.answers = []
        self.parts = []
        #: Its heartbeat that the core would answer: number, and what with.
        self.kept = None
        self._heartbeat_at = 0.0
        self._thread = threading.get_ident()
        self._framer = None
        self._core = core
        self.reply = lambda command: command.reply()

    def send(self, command):
        if not self.closed:
            self.sent.append(command)

    def hold(self, size):
        """Nothing of it is counted."""

    def push(self, frames):
        if not self.closed:
            self.pushed.append(frames)

    @property
    def heartbeat_at(self):
        assert threading.get_ident() == self._thread, "a connection is its loop's"
        return self._heartbeat_at

    @heartbeat_at.setter
    def heartbeat_at(self, value):
        self._heartbeat_at = value

    async def request(self, command, timeout):
        if self.closed:
            raise ConnectionResetError("it is closed")
        self.asked.append(command)
        answer = self.reply(command)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def serve_raw(self, command):
        self.raw.append(command)
        return self.serves

    def keep_heartbeat(self, opaque, says_changed):
        self.kept = opaque, says_changed

    def forget_heartbeat(self):
        self.kept = None

    def know(self):
        pass

    def framer(self, command):
        """The framer of a connection to the real core, for a command that came on it."""
        if self._framer is None:
            self._framer = self._core.real.framer(self)
            self._framer.buffer(1)
        if command.raw is None:
            command.raw = codec.encode(command)
        return self._framer

    def read_send(self, command):
        return self.framer(command).read_send(command)

    def decide(self, command, decision):
        return self.framer(command).decide(command, decision)

    def flush(self):
        parts, self.parts = self.parts, []
        self.answers += [codec.decode(part) for part in parts]

    def close(self):
        self.closed = True

    def notices(self):
        """Groups that it was told have changed, since the last call."""
        sent, self.sent = self.sent, []
        return [c.ext["consumerGroup"] for c in sent if c.code == 40]


class FakeCore:
    """The tables of broker.hot.core.Core. real: the core that puts messages."""

    leads = True

    def __init__(self, real=None):
        self.real = real
        self.topics = {}
        self.subscriptions = {}
        self.table = {}
        self.changed = set()
        self.resets = {}
        self.counters = []
        self.samples = self.since = 0
        self.pulls = (0, 0, 0)
        self.put_times = [0] * 1011
        self.put_max_ms = 0

    def publish_topic(self, name, read_queues, write_queues, perm, *, hot, once=False, **more):
        self.topics[name] = (read_queues, write_queues, perm, hot)
        if self.real is not None:
            self.real.publish_topic(
                name, read_queues, write_queues, perm, hot=hot, once=once, **more
            )

    def set_priority_factor(self, group, percent):
        if self.real is not None:
            self.real.set_priority_factor(group, percent)

    def bind_lite_group(self, group, parent):
        if self.real is not None:
            self.real.bind_lite_group(group, parent)

    def withdraw_topic(self, name):
        self.topics.pop(name, None)

    def put_again(self, physical_offset, decision, *, more_tries=0):
        return self.real.put_again(physical_offset, decision, more_tries=more_tries)

    def must_wait(self, position):
        return self.real.must_wait(position)

    async def safe(self, position):
        return await self.real.safe(position)

    def publish_subscription(
        self, group, topic, *, tags, sql=None, sub_version, own, own_sql=False, shared=True
    ):
        self.subscriptions[group, topic] = (tags, sql, sub_version, own, own_sql, shared)

    def withdraw_subscription(self, group, topic=None):
        for key in list(self.subscriptions):
            if key[0] == group and topic in (None, key[1]):
                del self.subscriptions[key]

    def load_offsets(self, blocks, pairs):
        for some in blocks:
            for row in offset_rows(some):
                self.commit_offset(*row)
        self.pass_over_changed_offsets()
        return 0, ""

    def commit_offset(self, group, topic, queue, offset):
        key = group, topic, queue
        if key in self.resets:
            return False
        self.table[key] = offset
        self.changed.add(key)
        return True

    def pulled_offset(self, group, topic, queue):
        return self.offset(group, topic, queue)

    def offset(self, group, topic, queue):
        return self.table.get((group, topic, queue))

    def offsets(self, group=None, topic=None):
        return [
            (*key, offset)
            for key, offset in self.table.items()
            if group in (None, key[0]) and topic in (None, key[1])
        ]

    def consumed(self, group=None, topic=None, *, light=True):
        return {row[:2] for row in self.offsets(group, topic)}

    def may_commit(self, group, topic, queue):
        return True

    def take_refused_offsets(self):
        return 0

    def take_changed_offsets(self, *, begin):
        changed = list(self.changed)[: getattr(self, "PIECE", None)]
        self.changed.difference_update(changed)
        return [(g, t, {q: self.table[g, t, q]}) for g, t, q in changed if (g, t, q) in self.table]

    def pass_over_changed_offsets(self):
        self.changed.clear()

    def delete_offsets(self, group=None, topic=None):
        for key in list(self.table):
            if group in (None, key[0]) and topic in (None, key[1]):
                del self.table[key]

    def reset_offset(self, group, topic, queue, target):
        self.table[group, topic, queue] = target
        self.changed.add((group, topic, queue))
        self.resets[group, topic, queue] = target

    def statistics(self):
        return self.counters + (self.real.statistics() if self.real is not None else [])

    def sample(self):
        rows = self.statistics()
        values = array("q", [number for row in rows for number in row[2:]])
        self.samples += 1
        return Sample(self.samples, values, self.sums())

    def sums(self):
        made = [0, 0, 0, 0]
        for _, group, messages, size in self.statistics():
            at = 0 if group is None else 2
            made[at] += messages
            made[at + 1] += size
        return MessageSums(*made)

    def counter(self, topic, group):
        for place, row in enumerate(self.statistics()):
            if tuple(row[:2]) == (topic, group):
                return place, self.since, *row[2:]
        return -1, 0, 0, 0

    def totals(self):
        return Totals(0, 0, *self.pulls)

    def times(self):
        return Times(list(self.put_times), self.put_max_ms, 0, 0)

    def notify_all(self):
        pass


async def nobody(address):
    raise ConnectionRefusedError(f"nobody listens at {address}")


@contextmanager
def services(path, settings=None, dial=nobody, *, seed=0):
    """The services of a broker, over a real store and a fake core. seed: of chosen queues."""
    given = dict(settings or {})
    with Store(path, None, **given) as store:
        config = Config(load(None, given))
        real = Core(
            store, cluster=config["brokerClusterName"], region=config["regionId"],
            trace_on=config["traceOn"], seed=seed,
        )  # fmt: skip
        core = FakeCore(real)
        groups = Groups(config, store.metadata, core)
        topics = Topics(config, store.metadata, core)
        clients = Clients(groups, core)
        clients.filters = lambda: bool(config["enablePropertyFilter"])
        groups.changed = clients.republish
        made = Services(
            store=store,
            settings=config,
            core=core,
            topics=topics,
            groups=groups,
            offsets=ConsumerOffsets(store, core),
            clients=clients,
            locks=Locks(),
            statistics=Statistics(core, config["brokerClusterName"]),
            registration=Registration(config, topics, "127.0.0.1:10911", dial),
            address="127.0.0.1:10911",
        )
        groups.start()
        topics.start()
        made.offsets.start()
        try:
            yield made
        finally:
            real.close()


def answer_of(handler, peer, command):
    """What a handler answers, refusals included, as a connection makes them."""
    from broker.wire.command import Refused

    async def wait(work):
        return await work

    try:
        answer = handler(peer, command)
        if asyncio.iscoroutine(answer):
            answer = asyncio.run(wait(answer))
    except Refused as refused:
        return command.reply(refused.code, refused.remark)
    return peer.answers.pop() if answer is None and peer.answers else answer


def send_command(topic="orders", body=b"hello", code=310, version=479, **fields):
    """A send in version 2; fields by letter, or `properties` as a dict."""
    properties = fields.pop("properties", {"UNIQ_KEY": "U1", "WAIT": "true"})
    encoded = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    ext = {
        "a": "makers", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1700000000000,
        "h": 0, "i": encoded, "j": 0, "k": False, "m": False, "n": "broker-a",
    }  # fmt: skip
    return Command(code, texts(ext | fields), body, version=version)


def beat(client="c1", group="readers", topics=("orders",), version=1, **more):
    """The body of a heartbeat of one consumer group."""
    subscriptions = [
        {
            "topic": topic,
            "subString": more.get("expression", "*"),
            "tagsSet": [],
            "codeSet": [],
            "subVersion": version,
            "expressionType": more.get("kind", "TAG"),
            "classFilterMode": False,
        }
        for topic in topics
    ]
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": more.get("model", "CLUSTERING"),
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "unitMode": False,
        "subscriptionDataSet": subscriptions,
    }
    return {
        "clientID": client,
        "consumerDataSet": [consumer],
        "producerDataSet": more.get("producers", []),
        "heartbeatFingerprint": more.get("fingerprint", 0),
        "withoutSub": more.get("without", False),
    }
