"""Twins: the same frames are served once by the tables of the core and once with Python deciding
every one of them, into two fresh stores. Answers and log are equal, times apart.

PS_TWINS=100000 is the campaign (`make fuzz`); PS_SEED repeats a run.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import struct
from contextlib import ExitStack

import pytest
import uvloop
from fakes import FakePeer, services
from sends import GROUP, TOPICS, Sends

from broker.hot.dedup import Dedup
from broker.processors import all_handlers
from broker.services.transaction import Transactions
from broker.services.uniq_ids import UniqIds
from broker.wire import codec
from broker.wire.command import Refused
from pystore import TopicConfig
from pystore.meta.pending import Decision
from pystore.store import hosting

CASES = int(os.environ.get("PS_TWINS", "500"))
SETTINGS = {
    "maxMessageSize": 4096, "idempotentProduceWindow": 200, "idempotentProduceTopics": "once",
    "transactionTimeOut": 86_400_000, "brokerIP1": "10.0.0.9",
}  # fmt: skip
LEVELS = range(1, 19)
_DUE = re.compile(rb"TIMER_OUT_MS\x01\d{13}")  # by the clock


class Side:
    """One store and what serves it. python: it decides everything."""

    def __init__(self, stack, path, settings, *, python):
        self.s = s = stack.enter_context(services(path, settings, seed=7))
        self.core = s.core.real
        self.core.attach(asyncio.get_running_loop())
        s.transactions = Transactions(s.store, self.core, s.settings, s.clients, s.topics)
        s.transactions.start_now()
        s.once = Dedup(self.core, settings["idempotentProduceWindow"], "UNIQ_KEY")
        for name, queues, perm in TOPICS:
            s.topics._put(TopicConfig(name, queues, queues, perm))
        s.groups.find(GROUP)
        self.handlers = all_handlers(s)
        self.peer = FakePeer(core=s.core)
        self.framer = self.core.framer(self.peer)
        self.peer._framer = self.framer
        if python:
            self.framer.delegate()
        self.came_up = 0
        self.due = dict.fromkeys(LEVELS, 0)

    async def ask(self, frame):
        """The answers to a frame, encoded."""
        self.peer.answers.clear()
        at = 0
        while at < len(frame):
            room = self.framer.buffer(len(frame) - at)
            count = min(len(room), len(frame) - at)
            room[:count] = frame[at : at + count]
            at += count
            for command in self.framer.received(count):
                self.came_up += 1
                await self._serve(command)
        self.peer.flush()
        while self.core.waiting:
            await asyncio.sleep(0)
        return [codec.encode(answer) for answer in self.peer.answers]

    async def _serve(self, command):
        """As a connection does (broker/remoting/connection.py)."""
        try:
            answer = self.handlers[command.code](self.peer, command)
            if asyncio.iscoroutine(answer):
                answer = await answer
        except Refused as refused:
            answer = command.reply(refused.code, refused.remark)
        if answer is not None and not command.is_oneway:
            self.peer.answers.append(answer)

    def deliver(self, level):
        """Has messages of a level delivered; what came of it, but for the time."""
        done = hosting.deliver_due(self.s.store, level, self.due[level], most=16, now_ms=1 << 50)
        self.due[level] = done.offset
        return done._replace(next_ms=0)

    def discard(self, offset):
        """Discards a half, and has it checked from the beginning."""
        transactions = self.s.transactions
        done = transactions.halves.decide(offset, Decision.DISCARD)
        if done is None:
            return None
        half = transactions.resume(self.s.store.message(done.end - done.size))
        return done, half._replace(store_ms=0), self.s.store.info().log_max

    def log(self):
        """The records of the log, those times set to 0 that the clock gave them."""
        self.s.store.flush()
        return list(_records(self.s.store))

    def state(self):
        """What the core counted."""
        halves = self.s.transactions.halves.state()._replace(ops_since_ms=0)
        topics = sorted((t.name, t.write_queue_nums, t.perm) for t in self.s.topics.all())
        return halves, topics, sorted(map(str, self.core.statistics())), self.core.sums().puts


def _without_due(answer):
    """An answer without the time in its handle: what is due after a delay is so by the clock, and
    the second may have changed between the twins."""
    handle = codec.decode(answer).ext.get("recallHandle")
    if handle is None:
        return answer
    words = base64.urlsafe_b64decode(handle).split(b" ")  # version, topic, broker, due, id
    words[3] = b"0" * len(words[3])
    return answer.replace(handle.encode(), base64.urlsafe_b64encode(b" ".join(words)))


def _records(store):
    for path in sorted((store.path / "commitlog").iterdir()):
        data = bytearray(path.read_bytes())
        at = 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, at)
            if magic == 0xCBD43194 or size <= 0:
                break
            (sys_flag,) = struct.unpack_from(">i", data, at + 36)
            stored = at + 48 + (20 if sys_flag & 16 else 8)
            born, kept = (struct.unpack_from(">q", data, place)[0] for place in (at + 40, stored))
            if abs(born - kept) < 3_600_000:
                struct.pack_into(">q", data, at + 40, 0)
            struct.pack_into(">q", data, stored, 0)
            record = bytes(data[at : at + size])
            yield _DUE.sub(b"", record) if b"TIMER_DELAY_" in record else record
            at += size


class Twins:
    def __init__(self, stack, path, settings, rng):
        self.rng = rng
        self.sends = Sends(rng)
        self.sides = [
            Side(stack, path / name, settings, python=name == "python")
            for name in ("tables", "python")
        ]

    def _same(self, values, what):
        one, two = values
        assert one == two, f"{what}\n tables: {one!r}\n python: {two!r}"
        return one

    async def step(self):
        draw = self.rng.random()
        if draw < 0.02:
            level = self.rng.choice(LEVELS)
            self._same([side.deliver(level) for side in self.sides], f"level {level}")
        elif draw < 0.03 and self.sends.halves:
            offset, _ = self.rng.choice(self.sends.halves)
            self._same([side.discard(offset) for side in self.sides], f"discard {offset}")
        else:
            await self._frame()

    async def _frame(self):
        frame = self.sends.next()
        answers = [await side.ask(frame) for side in self.sides]
        if b"TIMER_DELAY_" in frame:
            answers = [[_without_due(answer) for answer in each] for each in answers]
        for answer in map(codec.decode, self._same(answers, repr(codec.decode(frame))[:3000])):
            self._learn(codec.decode(frame), answer)

    def _learn(self, command, answer):
        """Later frames may name what was stored."""
        if answer.code or not answer.ext.get("msgId") or answer.ext["msgId"] == "0":
            return
        places = [int(each[-16:], 16) for each in answer.ext["msgId"].split(",")]
        self.sends.messages = [*self.sends.messages[-200:], *places]
        if len(places) == 1:
            message = self.sides[0].s.store.message(places[0])
            if message.topic == "RMQ_SYS_TRANS_HALF_TOPIC":
                place = message.queue_offset, message.physical_offset
                self.sends.halves = [*self.sends.halves[-50:], place]


@pytest.mark.parametrize(
    ("flush", "share"), [("ASYNC_FLUSH", 0.8), ("SYNC_FLUSH", 0.2)], ids=["async", "sync"]
)
def test_tables_and_python_do_the_same(tmp_path, small, rng, monkeypatch, flush, share):
    counts = {}

    def make(ids):
        counts[ids] = counts.get(ids, 0) + 1
        return f"MADE{counts[ids]:08d}"

    monkeypatch.setattr(UniqIds, "make", make)
    settings = small | SETTINGS | {"flushDiskType": flush, "mappedFileSizeCommitLog": 4 << 20}

    async def work():
        with ExitStack() as stack:
            twins = Twins(stack, tmp_path, settings, rng)
            for _ in range(int(CASES * share)):
                await twins.step()
            logs = [side.log() for side in twins.sides]
            for one, two in zip(*logs, strict=True):
                assert one == two
            twins._same([side.state() for side in twins.sides], "what was counted")
            tables, python = twins.sides
            # The frames take both ways often enough to mean something.
            assert len(logs[0]) > CASES * share / 10
            # The tables decide some and hand on others; how many is chance.
            assert 0 < tables.came_up < python.came_up

    uvloop.run(work())
