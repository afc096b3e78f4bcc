"""A broker that keeps everything beside one that keeps a segment and has the rest in its tier: both
are sent the same, and asked the same."""

from __future__ import annotations

import asyncio
import random
import zlib
from bisect import bisect_left, bisect_right
from contextlib import AsyncExitStack
from functools import partial
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

import grpc.aio
from popping import Popper, records
from waiting import until_async

from broker.broker import Broker
from broker.grpc.status import Code as GrpcCode
from broker.remoting.client import RemotingClient
from broker.wire.codes import RequestCode as Code
from broker.wire.codes import ResponseCode
from broker.wire.command import Command
from broker.wire.mqjson import loads
from pystore.format.properties import encode_properties
from pystore.meta.configfiles import SubscriptionGroup, TopicConfig
from tests.grpc.consuming import Raw

__all__ = ["QUEUES", "TOPICS", "Asking", "Side", "Twins"]

QUEUES = 2
TOPICS = ("orders", "payments", "odd")
SETTINGS = {
    "brokerName": "DEFAULT_BROKER", "brokerIP1": "127.0.0.1", "listenPort": 0, "grpc_port": 0,
    "mappedFileSizeCommitLog": 64 << 10, "mappedFileSizeConsumeQueue": 4000,
    "maxHashSlotNum": 500, "maxIndexNum": 2000, "enablePropertyFilter": True,
    "flushDiskType": "ASYNC_FLUSH", "drain_s": 0.2, "cleanResourceInterval": 0,
    # How young a queue is depends on where its first message lies, and that is the difference.
    "accessMessageInMemoryMaxRatio": 0,
}  # fmt: skip
_COLD = {"tieredUploadWaitMillis": 0, "tieredPutsPerHour": 100_000_000, "tieredUploadRateMax": 0}
_TAGS = ("paid", "sent", "AaAa", "BBBB", None)
#: Of this process: groups, keys.
_numbers = count()


class Side:
    """One of the two. cold: address of its tier; None: it keeps everything."""

    def __init__(self, path: Path, cold: str | None) -> None:
        self.path, self.cold = path, cold
        impatient = path.with_suffix(".json")
        impatient.write_text('{"grpcClientConsumerMinLongPollingTimeoutMillis": 100}')
        self._given = SETTINGS | {"fileReservedTime": 10_000, "proxy_conf": impatient}
        if cold is not None:
            self._given |= _COLD | {"tieredStoreFilePath": cold}
        #: Store times of each queue's messages, by offset.
        self.times: dict[tuple[str, int], list[int]] = {}
        self._open = AsyncExitStack()
        self._shift_ms = 0

    async def start(self) -> None:
        self.broker = await self._open.enter_async_context(Broker(self.path, **self._given))
        client = await self._open.enter_async_context(RemotingClient())
        channel = grpc.aio.insecure_channel(self.broker.grpc_address)
        self.raw = Raw(self.broker, await self._open.enter_async_context(channel))
        self.popper = Popper(self.broker, client)
        self.popper.shift(self._shift_ms)
        if self.cold is not None:
            part = self.broker.services.cold
            part.uploads._segment_bytes = 16 << 10
            await until_async(lambda: part.reads.is_known, "the tier")

    async def stop(self) -> None:
        await self._open.aclose()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def shift(self, ms: int) -> None:
        self._shift_ms += ms
        self.popper.shift(ms)

    async def thin_out(self) -> None:
        """Deletes what is out, once all of it that there is now is out."""
        store, part = self.broker.store, self.broker.services.cold
        if part is None:
            return
        end = store.info().log_max
        store.flush()
        await until_async(lambda: part.behind.out_to >= end, "everything is out")
        while store.clean(immediate=True).log_files:
            pass

    async def ask(self, code: int, body: bytes = b"", **ext: Any) -> Command:
        """Asks, and again while it is said that this would help."""
        for _ in range(100):
            answer = await self.popper.ask(code, body, **ext)
            if answer.code != ResponseCode.SYSTEM_BUSY:
                return answer
            await asyncio.sleep(0.05)
        raise AssertionError(answer.remark)

    async def one_record(self, topic: str, queue: int, offset: int) -> bytes:
        """Returns a record as a consumer gets it."""
        answer = await self.ask(
            Code.PULL_MESSAGE, consumerGroup="nobody", topic=topic, queueId=queue, maxMsgNums=1,
            sysFlag=4, commitOffset=0, suspendTimeoutMillis=0, subscription="*", subVersion=0,
            expressionType="TAG", queueOffset=offset,
        )  # fmt: skip
        assert answer.code == 0, answer.remark
        return bytes(answer.body)

    def note_times(self, topic: str, queue: int) -> None:
        times = self.times.setdefault((topic, queue), [])
        at, end = len(times), self.broker.store.range(topic, queue)[1]
        while at < end:
            for m in self.broker.store.read(topic, queue, at, max_messages=64):
                times.append(m.store_timestamp)
            at = len(times)


class Twins:
    """Both, and what is done to both."""

    def __init__(self, root: Path, cold: str, rng: random.Random) -> None:
        self.whole, self.thin = Side(root / "whole", None), Side(root / "thin", cold)
        self.both = (self.whole, self.thin)
        self.rng = rng
        self.sent = 0
        #: How many had been sent when a topic was made again.
        self.made_at: dict[str, int] = {}

    async def start(self) -> None:
        for each in self.both:
            await each.start()
            self.make(each, *TOPICS)

    async def stop(self) -> None:
        for each in self.both:
            await each.stop()

    @staticmethod
    def make(side: Side, *topics: str) -> None:
        for topic in topics:
            side.broker.services.topics.update(TopicConfig(topic, QUEUES, QUEUES))

    def group(self) -> str:
        """Makes a group that has never consumed."""
        name = f"g{next(_numbers)}"
        for each in self.both:
            each.broker.services.groups.update(SubscriptionGroup(name))
        return name

    def end(self, topic: str, queue: int) -> int:
        return len(self.whole.times.get((topic, queue), ()))

    # ---- what changes something ----

    def _message(self) -> tuple[bytes, dict[str, str], int]:
        """Returns body, properties and flags of a new message."""
        rng, number = self.rng, self.sent
        self.sent += 1
        body = b"%d-" % number + rng.randbytes(rng.choice((0, 20, 300, 300, 2000)))
        given = {
            "UNIQ_KEY": f"U{number:08X}", "KEYS": f"k{number} of-{number % 50}",
            "amount": str(number % 10), "long": "y" * rng.choice((0, 0, 500)),
        }  # fmt: skip
        tag = rng.choice(_TAGS)
        if tag is not None:
            given["TAGS"] = tag
        if rng.random() < 0.1:
            return zlib.compress(body), given, 1
        return body, given, 0

    async def send(self, topic: str, queue: int) -> None:
        """Sends a message, or some as a batch."""
        made = [self._message() for _ in range(self.rng.choice((1, 1, 1, 5)))]
        flag = made[0][2] if len(made) == 1 else 0
        ext = {
            "a": "p", "b": topic, "c": "TBW102", "d": QUEUES, "e": queue, "f": flag,
            "g": 1_700_000_000_000, "h": 0, "j": 0, "k": "false", "i": "",
            "m": str(len(made) > 1).lower(),
        }  # fmt: skip
        if len(made) == 1:
            code, body = Code.SEND_MESSAGE_V2, made[0][0]
            ext["i"] = encode_properties(made[0][1]).decode()
        else:
            code, body = Code.SEND_BATCH_MESSAGE, b"".join(_inner(*each) for each in made)
        for each in self.both:
            answer = await each.ask(code, body, **ext)
            assert answer.code == 0, answer.remark
            each.note_times(topic, queue)

    async def burst(self, messages: int) -> None:
        for _ in range(messages):
            await self.send(self.rng.choice(TOPICS), self.rng.randrange(QUEUES))

    async def remake(self, topic: str) -> None:
        """Deletes a topic, and makes it again."""
        for each in self.both:
            answer = await each.ask(Code.DELETE_TOPIC_IN_BROKER, topic=topic)
            assert answer.code == 0, answer.remark
            self.make(each, topic)
            for queue in range(QUEUES):
                each.times.pop((topic, queue), None)
        self.made_at[topic] = self.sent

    async def change(self) -> None:
        """Does one of the things that happen to brokers."""
        draw = self.rng.random()
        if draw < 0.5:
            await self.burst(self.rng.randrange(1, 40))
        elif draw < 0.85:
            await self.thin.thin_out()
        elif draw < 0.9:
            await self.remake("odd")
        else:
            await self.rng.choice((self.whole, self.thin, self.thin)).restart()


def _inner(body: bytes, properties: dict[str, str], flag: int) -> bytes:
    said = encode_properties(properties)
    parts = (
        bytes(4), bytes(4), bytes(4), bytes(4), len(body).to_bytes(4, "big"), body,
        len(said).to_bytes(2, "big"), said,
    )  # fmt: skip
    raw = b"".join(parts)
    return len(raw).to_bytes(4, "big") + raw[4:]


# ---- asking ----


class Asking:
    """Questions whose answers have to be equal. asked: how many the whole one was asked."""

    def __init__(self, twins: Twins) -> None:
        self.twins, self.rng = twins, twins.rng
        self.asked = 0
        self.kinds = (
            (self.pull, 30), (self.offsets, 15), (self.by_time, 15), (self.by_key, 10),
            (self.by_id, 5), (self.tables, 6), (self.peek, 5), (self.pop, 8), (self.pop_again, 1),
            (self.in_order, 2), (self.receive, 3), (self.reset, 3), (self.dead_letter, 1),
        )  # fmt: skip

    async def one(self) -> None:
        (kind,) = self.rng.choices(*zip(*self.kinds, strict=True))
        self.place = self.rng.choice(TOPICS), self.rng.randrange(QUEUES)
        await kind()

    async def ask(self, code: int, **ext: Any) -> tuple[Command, Command]:
        self.asked += 1
        return tuple([await each.ask(code, **ext) for each in self.twins.both])

    def equal(self, answers: Any, what: Any) -> None:
        wanted, got = answers
        if got != wanted and isinstance(got, list):  # what differs first, of very many
            pairs = enumerate(zip_longest(got, wanted))
            at, (got, wanted) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
            what = (what, f"from {at} on")
        assert got == wanted, (what, self.place, f"{got!r:.2000}", f"{wanted!r:.2000}")

    def offset(self) -> int:
        """Returns an offset of the place, or one that is not there."""
        end = self.twins.end(*self.place)
        edges = [0, end, end - 1, end + 1, -1, -5, end + 1000, 1 << 40]
        thin = self.twins.thin.broker.store.range(*self.place)[0]
        edges += [thin, thin - 1, thin + 1]
        return self.rng.choice(edges) if self.rng.random() < 0.25 else self.rng.randrange(end + 1)

    # ---- pulls ----

    async def pull(self) -> None:
        more = self.rng.choice(
            [
                {}, {}, {"subscription": "paid"}, {"subscription": "AaAa || sent"},
                {"subscription": "none"}, {"maxMsgNums": 1}, {"maxMsgNums": 200},
                {"subscription": "amount > 7 AND long IS NOT NULL", "expressionType": "SQL92"},
                {"subscription": "amount between 3", "expressionType": "SQL92"},
                {"queueId": 7}, {"topic": "nobody"}, {"consumerGroup": "nobody"},
            ]
        )  # fmt: skip
        group = self.twins.group() if "consumerGroup" not in more else "nobody"
        ext = {
            "consumerGroup": group, "topic": self.place[0], "queueId": self.place[1],
            "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
            "subscription": "*", "subVersion": 0, "expressionType": "TAG",
        } | more  # fmt: skip
        at = self.offset()
        there = not more.keys() & {"queueId", "topic", "consumerGroup"}
        if there and 0 <= at < self.twins.end(*self.place):
            # It would wait for news, and has no reason to.
            ext |= {"sysFlag": 6, "suspendTimeoutMillis": 1_000_000_000}
        wanted, got = await self.ask(Code.PULL_MESSAGE, queueOffset=at, **ext)
        found = records(wanted.body) if wanted.code == 0 else []
        next_one = int(wanted.ext.get("nextBeginOffset", -1))
        mine, goes_on = records(got.body) if got.code == 0 else [], _next_of(got)
        while at <= goes_on < next_one and got.code in (0, ResponseCode.PULL_RETRY_IMMEDIATELY):
            got_more = await self.twins.thin.ask(Code.PULL_MESSAGE, queueOffset=goes_on, **ext)
            assert _next_of(got_more) > goes_on, (got_more, ext)
            mine += records(got_more.body) if got_more.code == 0 else []
            goes_on = _next_of(got_more)
        said = ext, at, next_one, got.code, got.remark, [each[0] for each in mine]
        assert mine[: len(found)] == found, said
        assert all(each[0] >= next_one for each in mine[len(found) :]), said
        if not found and wanted.code != ResponseCode.PULL_RETRY_IMMEDIATELY:
            self.equal([(a.code, _remark_of(a), a.ext) for a in (wanted, got)], (ext, at))
        self.equal([_ends_of(a) for a in (wanted, got)], (ext, at))

    async def peek(self) -> None:
        group = self.twins.group()
        if self.rng.random() < 0.9:
            await self.commit(group)
        wanted, got = await self.ask(
            Code.PEEK_MESSAGE, consumerGroup=group, topic=self.place[0], queueId=self.place[1],
            maxMsgNums=self.rng.choice((1, 8, 32)),
        )  # fmt: skip
        self.equal([(a.code, a.ext.get("restNum")) for a in (wanted, got)], "peek")
        # One answer has as much as one object has, and is bounded as one from memory.
        found = [records(a.body) for a in (wanted, got)]
        alike = max(1, min(map(len, found)))
        self.equal([each[:alike] for each in found], "peek")

    async def commit(self, group: str) -> None:
        answers = await self.ask(
            Code.UPDATE_CONSUMER_OFFSET, consumerGroup=group, topic=self.place[0],
            queueId=self.place[1], commitOffset=self.offset(),
        )  # fmt: skip
        self.equal([(a.code, a.remark) for a in answers], "commit")

    # ---- offsets and times ----

    async def offsets(self) -> None:
        place = {"topic": self.place[0], "queueId": self.place[1]}
        wrong = self.rng.choice([{}] * 9 + [{"queueId": -1}, {"topic": "nobody"}])
        code = self.rng.choice(
            [
                Code.GET_MIN_OFFSET, Code.GET_MAX_OFFSET, Code.GET_EARLIEST_MSG_STORETIME,
                Code.QUERY_CONSUMER_OFFSET,
            ]
        )  # fmt: skip
        if code == Code.QUERY_CONSUMER_OFFSET:
            place["consumerGroup"] = self.twins.group()
            place["setZeroIfNotFound"] = self.rng.choice(["true", "false"])
        answers = await self.ask(code, **place | wrong)
        if code == Code.GET_EARLIEST_MSG_STORETIME and not wrong:
            for side, answer in zip(self.twins.both, answers, strict=True):
                times = side.times.get(self.place) or [-1]
                assert int(answer.ext["timestamp"]) == times[0], answer
            return
        self.equal([(a.code, a.remark, a.ext) for a in answers], (code, place, wrong))

    async def by_time(self) -> None:
        upper = self.rng.random() < 0.5
        end = self.twins.end(*self.place)
        base, add = self.rng.randrange(end + 1), self.rng.randrange(-1, 2)
        self.asked += 1
        for side in self.twins.both:
            times = side.times.get(self.place, [])
            at = (times[base] if base < end else 1 << 50) + add
            answer = await side.ask(
                Code.SEARCH_OFFSET_BY_TIMESTAMP, topic=self.place[0], queueId=self.place[1],
                timestamp=at, boundaryType="UPPER" if upper else "LOWER",
            )  # fmt: skip
            assert answer.code == 0, answer.remark
            assert int(answer.ext["offset"]) == _offset_at(times, at, upper=upper), (
                side.cold, self.place, at, upper,
            )  # fmt: skip

    async def reset(self) -> None:
        group = self.twins.group()
        way = self.rng.choice([{"offset": self.offset()}, {"timestamp": -1}, {"timestamp": 0}])
        answers = await self.ask(
            Code.INVOKE_BROKER_TO_RESET_OFFSET, topic=self.place[0], group=group, isForce="true",
            queueId=self.rng.choice((-1, *range(QUEUES))), **way,
        )  # fmt: skip
        self.equal([(a.code, a.remark, bytes(a.body)) for a in answers], way)
        answers = await self.ask(
            Code.QUERY_CONSUMER_OFFSET, consumerGroup=group, topic=self.place[0],
            queueId=self.place[1], setZeroIfNotFound="false",
        )  # fmt: skip
        self.equal([(a.code, a.ext) for a in answers], way)

    # ---- lookups ----

    async def by_key(self) -> None:
        number = self.rng.randrange(self.twins.sent + 5)
        key, more = self.rng.choice(
            [
                (f"k{number}", {}), (f"of-{number % 60}", {}), (f"U{number:08X}", {}),
                (f"U{number:08X}", {"_UNIQUE_KEY_QUERY": "true"}), (f"k{number}", {"maxNum": 0}),
            ]
        )  # fmt: skip
        ext = {
            "topic": self.place[0], "key": key, "maxNum": 64, "beginTimestamp": 0,
            "endTimestamp": 1 << 60,
        } | more  # fmt: skip
        answers = await self.ask(Code.QUERY_MESSAGE, **ext)
        # The index of a store leads to messages of topics that were deleted, a tier does not.
        since = self.twins.made_at.get(self.place[0], 0)
        found = [
            sorted((m for m in records(a.body) if _number_of(m) >= since), key=_place_of_record)
            for a in answers
        ]
        # Of many the newest are named, and what is newer depends on the time of sending.
        if len(found[0]) < 60:
            self.equal(found, ext)

    async def by_id(self) -> None:
        """A message that was pulled is found by the place that it names."""
        self.asked += 1
        if not self.twins.end(*self.place):
            return
        at = self.rng.randrange(self.twins.end(*self.place))
        for side in self.twins.both:
            record = await side.one_record(*self.place, at)
            place = int.from_bytes(record[28:36], "big")
            seen = await side.ask(Code.VIEW_MESSAGE_BY_ID, offset=place)
            assert (seen.code, bytes(seen.body)) == (0, record), seen.remark

    async def tables(self) -> None:
        group = self.twins.group()
        await self.commit(group)
        topic = {"topic": self.place[0]}
        code, ext = self.rng.choice(
            [
                (Code.GET_TOPIC_STATS_INFO, topic),
                (Code.GET_CONSUME_STATS, topic | {"consumerGroup": group}),
                (Code.QUERY_CONSUME_TIME_SPAN, topic | {"group": group}),
                (Code.QUERY_CONSUME_QUEUE, topic | {
                    "queueId": self.place[1], "index": self.offset(), "count": 7,
                }),
            ]
        )  # fmt: skip
        answers = await self.ask(code, **ext)
        self.equal([(a.code, _table(a)) for a in answers], (code, ext))

    # ---- pops ----

    async def both_take(self, take: Any, group: str, **more: Any) -> list[list[Any]]:
        """Returns what `take` gets of each side: of the thin one until it is as much, since a read
        of the tier may end earlier."""
        self.asked += 1
        wanted = await take(self.twins.whole, group, **more)
        got: list[Any] = []
        if not wanted:  # what was wanted of the tier comes after the answer
            got = await take(self.twins.thin, group, **more)
            reads = self.twins.thin.broker.services.cold.reads
            await until_async(lambda: not reads._serving, "what is wanted")
            got += await take(self.twins.thin, group, **more)
        while len(got) < len(wanted):
            more["most"] = len(wanted) - len(got)
            found = await take(self.twins.thin, group, poll_s=20, **more)
            assert found, (group, self.place, wanted, got)
            got += found
        return [wanted, got]

    async def popped(self, side: Side, group: str, poll_s: int = 0, **more: Any) -> list[Any]:
        given = {"topic": self.place[0], "queue": self.place[1], "most": 8, "invisible": 60_000}
        found = await side.popper.handles(group=group, poll=poll_s * 1000, **given | more)
        if more.get("order"):
            await self.acknowledge(side, group, found)
        return found

    async def acknowledge(self, side: Side, group: str, found: list[Any]) -> None:
        for handle, name, _ in found:
            assert (await side.popper.ack(handle, name, group)).code == 0

    @staticmethod
    def _said(found: list[Any]) -> list[Any]:
        return [(handle.queue, handle.offset, name, bytes(body)) for handle, name, body in found]

    async def pop(self) -> None:
        group = self.twins.group()
        if self.rng.random() < 0.9:
            await self.commit(group)
        more = self.rng.choice(
            [
                {}, {"most": 1}, {"most": 32}, {"exp": "paid"}, {"initMode": 1},
                {"exp": "amount > 7", "expType": "SQL92"}, {"exp": "none"},
            ]
        )  # fmt: skip
        for _ in range(2):
            found = await self.both_take(self.popped, group, **more)
            self.equal([self._said(each) for each in found], more)
            for side, each in zip(self.twins.both, found, strict=True):
                await self.acknowledge(side, group, each)

    async def pop_again(self) -> None:
        """What is not acknowledged comes back, although its retry has gone to the tier, too."""
        group = self.twins.group()
        await self.commit(group)
        found = await self.both_take(self.popped, group)
        kept = self.rng.randrange(len(found[0]) + 1)
        for side, each in zip(self.twins.both, found, strict=True):
            await self.acknowledge(side, group, each[:kept])
            side.shift(61_000)
            returned = partial(_returned, side, group, self.place[0], len(each) - kept)
            await until_async(returned, "retries")
        await self.twins.burst(60)
        await self.twins.thin.thin_out()
        again = []
        for side in self.twins.both:
            back: list[Any] = []
            end = self.twins.end(*self.place)
            side.broker.services.offsets.commit(group, *self.place, end)
            while len(back) < len(found[0]) - kept:
                more = await self.popped(side, group, poll_s=20)
                assert more, (group, self.place, back)
                back += more
                await self.acknowledge(side, group, more)
            again.append(sorted(body for _, _, body in back))
        self.equal(again, "what came back")

    async def in_order(self) -> None:
        group = self.twins.group()
        await self.commit(group)
        for _ in range(3):
            found = await self.both_take(self.popped, group, order="true")
            self.equal([self._said(each) for each in found], "in order")

    async def received(self, side: Side, group: str, poll_s: float = 0.1, **more: Any) -> list[Any]:
        raw = side.raw
        raw.group.name, raw.topic.name = group, self.place[0]
        if raw._telemetry is None:
            await raw.settle()
        # As long as an object store may take that fails: nothing comes twice meanwhile.
        status, found = await raw.receive(
            poll=poll_s, batch=more.pop("most", 8), invisible=60, **more
        )
        assert found or status.code == GrpcCode.MESSAGE_NOT_FOUND, status
        if found:
            done = await raw.ack(*(each.system_properties.receipt_handle for each in found))
            assert done.status.code == GrpcCode.OK, done
        return found

    async def receive(self) -> None:
        """Over gRPC; the other queues of the topic have nothing for the group."""
        group, topic = self.twins.group(), self.place[0]
        for side in self.twins.both:
            for other in range(QUEUES):
                end = self.twins.end(topic, other)
                side.broker.services.offsets.commit(group, topic, other, end)
        await self.commit(group)
        found = await self.both_take(self.received, group, exp=self.rng.choice(("*", "paid")))
        self.equal([[_said_by_grpc(m) for m in each] for each in found], ("gRPC", group))

    async def dead_letter(self) -> None:
        group = self.twins.group()
        if not self.twins.end(*self.place):
            return
        at, dead = self.rng.randrange(self.twins.end(*self.place)), []
        self.asked += 1
        for side in self.twins.both:
            record = await side.one_record(*self.place, at)
            answer = await side.ask(
                Code.CONSUMER_SEND_MSG_BACK, group=group, delayLevel=-1, unitMode="false",
                offset=int.from_bytes(record[28:36], "big"), originTopic=self.place[0],
                originMsgId="x", maxReconsumeTimes=16,
            )  # fmt: skip
            assert answer.code == 0, answer.remark
            (m,) = side.broker.store.read(f"%DLQ%{group}", 0, 0)
            said = {name: v for name, v in m.properties.items() if name != "ORIGIN_MESSAGE_ID"}
            dead.append((bytes(m.body), said, m.reconsume_times))
        self.equal(dead, (group, at))


def _returned(side: Side, group: str, topic: str, wanted: int) -> bool:
    store = side.broker.store
    names = f"%RETRY%{group}_{topic}", f"%RETRY%{group}+{topic}"
    return wanted == sum(store.range(name, 0)[1] for name in names if store.queues(name))


def _said_by_grpc(message: Any) -> Any:
    own = message.system_properties
    return (
        own.queue_id, own.queue_offset, own.message_id, own.tag, tuple(own.keys), message.body,
        dict(message.user_properties), own.delivery_attempt, own.body_encoding,
    )  # fmt: skip


def _remark_of(answer: Command) -> str | None:
    """Returns it; a queue that has had messages, in another life of its topic, has a name."""
    nothing = ("NO_MATCHED_LOGIC_QUEUE", "NO_MESSAGE_IN_QUEUE")
    return nothing[0] if answer.remark in nothing else answer.remark


def _next_of(answer: Command) -> int:
    return int(answer.ext.get("nextBeginOffset", -1))


def _ends_of(answer: Command) -> tuple[str | None, str | None]:
    return answer.ext.get("minOffset"), answer.ext.get("maxOffset")


def _place_of_record(record: Any) -> Any:
    return record[3], record[2].get("UNIQ_KEY"), record[0]


def _number_of(record: Any) -> int:
    return int(record[2]["UNIQ_KEY"][1:], 16)


def _offset_at(times: list[int], at: int, *, upper: bool) -> int:
    """Returns what a search by time is to find: the first at or after it, or the last at or before
    it, within the queue."""
    if not times:
        return 0
    found = bisect_right(times, at) - 1 if upper else bisect_left(times, at)
    return max(0, min(found, len(times)))


def _table(answer: Command) -> Any:
    """Returns a table of an answer without what depends on when something was sent."""
    if answer.code or not answer.body:
        return answer.remark
    return _plain(loads(answer.body))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            str(name): _plain(each) for name, each in value.items()
            if not str(name).lower().endswith(("timestamp", "tps", "delaytime", "physicoffset"))
        }  # fmt: skip
    return [_plain(each) for each in value] if isinstance(value, list) else value
