"""Brokers and name servers that are broken, or mean: what they say is refused by name, nothing
hangs, nothing that was acknowledged is lost, and a client goes on once they speak sense.

A liar stands between the clients and a real broker. It passes frames on, and puts others in the
place of answers; the broker itself does its work. Each lie is told once unless a test says more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import time
import zlib

import pytest
from listening import Listener, listening
from loops import run, serving, until
from waiting import BOUND_S

from broker import (
    AsyncConsumer,
    AsyncProducer,
    AsyncTransactionProducer,
    Broker,
    LocalState,
    Message,
)
from broker.client import BadAnswer, BrokerRefused, RequestTimeout, SendFailed, Unreachable, pulling
from broker.client.routes import QUEUES_MAX, route_of_queues
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.wire import codec
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command
from pystore.format import compression

SEND, PULL, POP = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE
CLOSE = b""


class Liar:
    """lies: by request code, what is said in the place of an answer: told(answer) gives frames,
    CLOSE among them, or another answer. asked: the code of each request."""

    def __init__(self, broker):
        self.broker = broker
        self.lies = {}
        self.asked = []
        self.accepted = 0
        self._listener = Listener(self._accept)

    async def __aenter__(self):
        self.address = await self._listener.open()
        return self

    async def __aexit__(self, *_):
        await self._listener.close()

    async def _accept(self, reader, writer):
        self.accepted += 1
        there, back = await asyncio.open_connection("127.0.0.1", self.broker.port)
        requests = {}
        both = (self._ask(reader, back, requests), self._answer(there, writer, requests))
        tasks = [asyncio.create_task(each) for each in both]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in tasks:
                each.cancel()
            back.transport.abort()

    async def _ask(self, reader, back, requests):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                frame = await frame_of(reader)
                command = codec.decode(frame)
                self.asked.append(command.code)
                requests[command.opaque] = command.code
                back.write(frame)

    async def _answer(self, there, writer, requests):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                frame = await frame_of(there)
                answer = codec.decode(frame)
                told = self.lies.get(requests.get(answer.opaque))
                said = [frame] if told is None else told(answer)
                if isinstance(said, Command):
                    said = [codec.encode(said)]
                for each in said:
                    if each == CLOSE:
                        await asyncio.sleep(0.01)
                        return
                    writer.write(each)

    def lie(self, code, told, times=1):
        """Puts told(answer) in the place of so many answers."""
        left = [times]

        def once(answer):
            left[0] -= 1
            if not left[0]:
                del self.lies[code]
            return told(answer)

        self.lies[code] = once

    async def route(self, topic):
        return route_of_queues(topic, "b", self.address, "c", 6, 1, 1)


async def frame_of(reader):
    head = await reader.readexactly(4)
    return head + await reader.readexactly(struct.unpack(">i", head)[0])


@contextlib.asynccontextmanager
async def lied_to(folder, small, messages=0):
    settings = small | {"listenPort": 0, "drain_s": 0.0, "brokerName": "b"}
    async with Broker(folder / "store", **settings) as broker:
        broker.create_topic("orders", queues=1)
        for n in range(messages):
            broker.store.put("orders", b"%d" % n, queue=0)
        async with Liar(broker) as liar:
            yield liar


def with_fields(**fields):
    """The answer with other fields; None leaves one out."""

    def told(answer):
        known = dict(answer.ext) | fields
        answer.ext = {name: value for name, value in known.items() if value is not None}
        return answer

    return told


def with_body(change):
    def told(answer):
        answer.body = change(bytes(answer.body))
        return answer

    return told


def with_code(code):
    def told(answer):
        return Command(code, dict(answer.ext), opaque=answer.opaque, flag=answer.flag)

    return told


def other_opaque(answer):
    answer.opaque += 1000
    return answer


def frame_with(header, length=None):
    """A frame around a header that is not a command's."""
    size = len(header) if length is None else length
    return struct.pack(">ii", 4 + len(header), size) + header


#: What is not a frame, or half of one: the connection ends.
NO_FRAMES = {
    "noise": lambda answer: [b"\xff" * 64],
    "length 0": lambda answer: [bytes(8)],
    "giant length": lambda answer: [struct.pack(">ii", (1 << 31) - 1, 10) + bytes(64)],
    "header beyond the frame": lambda answer: [frame_with(b"{}", length=1 << 20)],
    "no JSON": lambda answer: [frame_with(b"{'code':")],
    "JSON of another kind": lambda answer: [frame_with(b"[1,2,3]")],
    "deep JSON": lambda answer: [frame_with(b"[" * 60_000)],
    "fields that are not texts": lambda answer: [
        frame_with(b'{"code":0,"flag":1,"opaque":%d,"extFields":[7]}' % answer.opaque)
    ],
    "half a frame": lambda answer: [codec.encode(answer)[:20], CLOSE],
    "nothing": lambda answer: [CLOSE],
}


# ---- answers to sends ----


@pytest.mark.parametrize(
    "told",
    [*NO_FRAMES.values(), with_fields(queueId="many"), with_fields(queueOffset="1e3")],
    ids=[*NO_FRAMES, "a queue that is not a number", "an offset that is not a number"],
)
async def test_a_send_is_repeated_after_an_answer_that_is_none(tmp_path, small, told):
    async with (
        lied_to(tmp_path, small) as liar,
        AsyncProducer(find_route=liar.route, send_timeout_s=BOUND_S) as producer,
    ):
        liar.lie(SEND, told)
        result = await producer.send(Message("orders", b"x"))
        assert not liar.lies
        # The first attempt is stored, too: at least once is what a send promises.
        assert result.queue_offset == 1


@pytest.mark.parametrize("told", [lambda answer: [], other_opaque], ids=["never", "other opaque"])
async def test_a_send_whose_answer_does_not_come_fails_by_name(tmp_path, small, told):
    options = {"send_timeout_s": 1.0, "retries": 0}
    async with (
        lied_to(tmp_path, small) as liar,
        AsyncProducer(find_route=liar.route, **options) as producer,
    ):
        await producer.send(Message("orders", b"x"))
        liar.lie(SEND, told)
        with pytest.raises(SendFailed, match="may have been stored") as failed:
            await producer.send(Message("orders", b"x"))
        assert isinstance(failed.value.attempts[0].error, RequestTimeout)
        assert (await producer.send(Message("orders", b"x"))).queue_offset == 2


async def test_a_code_that_nobody_knows_is_a_refusal(tmp_path, small):
    async with (
        lied_to(tmp_path, small) as liar,
        AsyncProducer(find_route=liar.route) as producer,
    ):
        liar.lie(SEND, with_code(9999))
        with pytest.raises(SendFailed) as failed:
            await producer.send(Message("orders", b"x"))
        (attempt,) = failed.value.attempts
        assert isinstance(attempt.error, BrokerRefused)
        assert attempt.error.code == 9999


async def test_answers_that_come_twice_or_late_belong_to_nobody_else(tmp_path, small):
    options = {"send_timeout_s": 1.0, "retries": 0}
    async with (
        lied_to(tmp_path, small) as liar,
        AsyncProducer(find_route=liar.route, **options) as producer,
    ):
        kept = []
        liar.lies[SEND] = lambda answer: [codec.encode(answer)] * 2
        found = [(await producer.send(Message("orders", b"x"))).queue_offset for _ in range(5)]
        assert found == [0, 1, 2, 3, 4]
        liar.lie(SEND, lambda answer: kept.append(codec.encode(answer)) or [])
        with pytest.raises(SendFailed):
            await producer.send(Message("orders", b"x"))
        liar.lies[SEND] = lambda answer: [*kept, codec.encode(answer)]
        assert (await producer.send(Message("orders", b"x"))).queue_offset == 6


async def test_a_batch_is_repeated_too(tmp_path, small):
    async with (
        lied_to(tmp_path, small) as liar,
        AsyncProducer(find_route=liar.route, send_timeout_s=BOUND_S) as producer,
    ):
        liar.lie(RequestCode.SEND_BATCH_MESSAGE, with_fields(queueOffset="first"))
        found = await producer.send_batch([Message("orders", b"%d" % n) for n in range(3)])
        assert [result.queue_offset for result in found] == [3, 4, 5]


async def test_local_work_does_not_begin_on_a_half_message_that_cannot_be_ended(tmp_path, small):
    async with (
        lied_to(tmp_path, small) as liar,
        AsyncTransactionProducer(
            "g", find_route=liar.route, check=lambda message: LocalState.UNKNOWN
        ) as producer,
    ):
        liar.lie(SEND, with_fields(msgId="nowhere"))
        with pytest.raises(BadAnswer, match="half message to orders"):
            async with producer.transaction(Message("orders", b"x")):
                pytest.fail("the block was entered")


# ---- answers to pulls ----

#: Code 0 and messages 0 to 19, but.
WRONG_PULLS = {
    "no next offset": with_fields(nextBeginOffset=None),
    "no number": with_fields(nextBeginOffset="twenty"),
    "beyond 64 bits": with_fields(nextBeginOffset=str(1 << 70)),
    "backwards": with_fields(nextBeginOffset="-5"),
    "no step further": with_fields(nextBeginOffset="0"),
    "before the messages": with_fields(nextBeginOffset="3"),
    "half a record": with_body(lambda body: body[: len(body) - 20]),
    "noise": with_body(lambda body: b"\xa5" * len(body)),
    "a damaged record": with_body(lambda body: body[:4] + bytes(4) + body[8:]),
    "a record without end": with_body(lambda body: b"\x7f\xff\xff\xff" + body[4:]),
    "of another topic": with_body(lambda body: body.replace(b"\x06orders", b"\x06others", 1)),
    "in another order": with_body(lambda body: body[len(body) // 2 :] + body[: len(body) // 2]),
    "nothing found, backwards": lambda answer: with_code(ResponseCode.PULL_NOT_FOUND)(
        with_fields(nextBeginOffset="-7")(answer)
    ),
    "moved to nowhere": lambda answer: with_code(ResponseCode.PULL_OFFSET_MOVED)(
        with_fields(nextBeginOffset=None)(answer)
    ),
    "an unknown code": with_code(9999),
    "go away": with_code(ResponseCode.GO_AWAY),
}


@pytest.mark.parametrize(
    "told", [*NO_FRAMES.values(), *WRONG_PULLS.values()], ids=[*NO_FRAMES, *WRONG_PULLS]
)
async def test_a_pull_is_repeated_and_nothing_of_it_is_skipped(tmp_path, small, told):
    """Each message comes, in order and once, and the group's offset is after the last."""
    async with lied_to(tmp_path, small, messages=20) as liar:
        found = []
        liar.lie(PULL, told)
        async with AsyncConsumer("g", find_route=liar.route) as consumer:
            (queue,) = await consumer.queues("orders")
            await consumer.assign({queue: 0})
            while len(found) < 20:
                batch = await consumer.poll(60.0)
                found += [message.body for message in batch]
                consumer.ack(*batch)
            assert found == [b"%d" % n for n in range(20)]
        assert not liar.lies
        async with AsyncConsumer("g", find_route=liar.route) as again:
            await again.queues("orders")
            assert await again.committed(queue) == 20


def moved_back(answer):
    return with_code(ResponseCode.PULL_OFFSET_MOVED)(with_fields(nextBeginOffset="0")(answer))


@pytest.mark.parametrize(
    "told",
    [
        WRONG_PULLS["noise"],
        WRONG_PULLS["of another topic"], WRONG_PULLS["an unknown code"], WRONG_PULLS["go away"],
        with_code(ResponseCode.FLOW_CONTROL), moved_back,
    ],
    ids=["noise", "topic", "code", "go away", "flow control", "moved"],
)  # fmt: skip
async def test_a_broker_that_answers_pulls_with_nonsense_is_asked_more_and_more_rarely(
    tmp_path, small, told, monkeypatch, caplog
):
    """And the log says so, once and not each time. The pauses are what is looked at."""
    pauses, asked, sleep = [], [], asyncio.sleep

    async def shorter(seconds, *given):
        if seconds >= 0.02:
            pauses.append(seconds)
        await sleep(min(seconds, 0.02), *given)

    quiet = RateLimitedLogger(pulling.log)
    monkeypatch.setattr(pulling, "_quiet", quiet)
    async with (
        lied_to(tmp_path, small, messages=3) as liar,
        AsyncConsumer("g", find_route=liar.route) as consumer,
    ):
        (queue,) = await consumer.queues("orders")
        liar.lie(PULL, told, times=-1)
        monkeypatch.setattr(pulling.asyncio, "sleep", shorter)
        await consumer.assign({queue: 0})
        await until(lambda: max(pauses, default=0.0) >= 1.5, "long pauses")
        monkeypatch.setattr(pulling.asyncio, "sleep", sleep)
        assert not consumer._member.ready
        asked.append(liar.asked.count(PULL))
    assert asked[0] <= 12, asked
    said = [each for each in caplog.records if each.levelname == "WARNING"]
    about_pulls = [each for each in said if "orders" in each.getMessage()]
    assert len(about_pulls) <= 2 or "moves this group" in about_pulls[0].getMessage()


async def test_a_broker_that_has_nothing_and_says_so_at_once_is_not_asked_in_a_storm(
    tmp_path, small
):
    async with lied_to(tmp_path, small, messages=1) as liar:
        nothing = with_code(ResponseCode.PULL_RETRY_IMMEDIATELY)
        liar.lies[PULL] = lambda answer: nothing(with_fields(nextBeginOffset="0")(answer))
        async with AsyncConsumer("g", "orders", find_route=liar.route, start="first"):
            began, before = time.monotonic(), liar.asked.count(PULL)
            await asyncio.sleep(0.5)
            asked, spent = liar.asked.count(PULL) - before, time.monotonic() - began
    assert asked <= spent / 0.02 + 2


async def test_a_static_topic_says_what_to_add_to_offsets(tmp_path, small):
    """Brokers of 5.x do for topics that moved: their records know older offsets."""
    async with lied_to(tmp_path, small, messages=3) as liar:

        def moved(answer):
            return with_fields(offsetDelta="1000", nextBeginOffset="1003")(answer)

        liar.lies[PULL] = moved
        async with AsyncConsumer("g", find_route=liar.route) as consumer:
            (queue,) = await consumer.queues("orders")
            await consumer.assign({queue: 0})
            found = await consumer.poll(60.0)
            consumer.ack(*found)
            assert [(m.queue_offset, m.body) for m in found] == [
                (1000, b"0"), (1001, b"1"), (1002, b"2"),
            ]  # fmt: skip
            assert consumer.position(queue) == 1003


async def test_a_body_that_claims_a_terabyte_is_refused_and_the_next_one_comes(tmp_path, small):
    async with lied_to(tmp_path, small) as liar:
        bomb = b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + bytes(8)
        liar.broker.store.put("orders", bomb, queue=0, sys_flag=0x201)
        liar.broker.store.put("orders", b"after", queue=0)
        async with AsyncConsumer("g", "orders", find_route=liar.route, start="first") as consumer:
            found = []
            while len(found) < 2:
                found += await consumer.poll(60.0)
            with pytest.raises(ValueError, match="claims 1099511627776 bytes"):
                _ = found[0].body
            assert found[1].body == b"after"


# ---- answers about groups ----


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, with_body(lambda body: b"{no json")),
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, with_body(lambda body: b"[1]")),
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, with_body(lambda body: b'{"consumerIdList":7}')),
        (RequestCode.QUERY_CONSUMER_OFFSET, lambda answer: with_code(0)(answer)),
        (RequestCode.GET_MIN_OFFSET, with_fields(offset="first")),
        (RequestCode.HEART_BEAT, with_code(1)),
    ],
    ids=["members: no JSON", "members: a list", "members: a number", "no offset", "offset", "beat"],
)
async def test_a_group_is_joined_after_answers_that_make_no_sense(tmp_path, small, code, told):
    async with lied_to(tmp_path, small, messages=3) as liar:
        liar.lie(code, told)
        options = {"find_route": liar.route, "start": "first", "rebalance_s": 0.1}
        async with AsyncConsumer("g", "orders", **options) as consumer:
            found = await consumer.poll(60.0)
            assert [message.body for message in found] == [b"0", b"1", b"2"]
        assert code not in liar.lies


async def test_who_may_not_read_a_queue_is_told_why_nothing_comes(tmp_path, small, caplog):
    async with lied_to(tmp_path, small, messages=3) as liar:
        liar.lie(RequestCode.GET_MIN_OFFSET, with_code(16))
        options = {"find_route": liar.route, "start": "first", "rebalance_s": 0.1}
        async with AsyncConsumer("g", "orders", **options) as consumer:
            assert len(await consumer.poll(60.0)) == 3
        (told,) = (line for line in caplog.records if "Cannot start" in line.message)
        assert told.levelname == "WARNING" and "code 16" in told.message


async def test_locks_are_asked_for_again(tmp_path, small):
    async with lied_to(tmp_path, small, messages=3) as liar:
        liar.lie(RequestCode.LOCK_BATCH_MQ, with_body(lambda body: b'{"lockOKMQSet":[3,{}]}'))
        found = []
        options = {"find_route": liar.route, "start": "first", "rebalance_s": 0.1}
        async with AsyncConsumer(
            "g", "orders", handler=lambda m: found.append(m.body), orderly=True, **options
        ):
            await until(lambda: len(found) == 3)
        assert found == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    "told",
    [with_fields(popTime=None), with_fields(startOffsetInfo="0 zero 0"), with_body(lambda b: b"x")],
    ids=["no time", "no place", "no record"],
)
async def test_what_was_popped_and_not_understood_comes_again(tmp_path, small, told):
    async with lied_to(tmp_path, small, messages=3) as liar:
        liar.lie(POP, told)
        options = {"mode": "pop", "invisible_s": 1.0, "start": "first"}
        found = set()
        async with AsyncConsumer("g", "orders", find_route=liar.route, **options) as consumer:
            while len(found) < 3:
                batch = await consumer.poll(60.0)
                found |= {message.body for message in batch}
                consumer.ack(*batch)
        assert not liar.lies


# ---- what a broker asks on its own ----


def asked_of(code, body=b"", **fields):
    return codec.encode(Command(code, fields, body, opaque=7))


async def test_requests_that_make_no_sense_harm_nobody(tmp_path, small):
    """Of each kind that a broker sends to clients, one that cannot be read."""
    bad = [
        asked_of(RequestCode.CHECK_TRANSACTION_STATE, b"\x01\x02\x03"),
        asked_of(RequestCode.CHECK_TRANSACTION_STATE),
        asked_of(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, b"[[]]"),
        asked_of(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, b'{"offsetTable":{"q":"x"}}'),
        asked_of(RequestCode.CONSUME_MESSAGE_DIRECTLY, b""),
        asked_of(RequestCode.CONSUME_MESSAGE_DIRECTLY, b"\xff" * 90),
        asked_of(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"x", sysFlag="many"),
        asked_of(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, b"x"),
        asked_of(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, b"x"),
        asked_of(4711, b"x"),
    ]
    async with lied_to(tmp_path, small, messages=3) as liar:
        liar.lies[RequestCode.HEART_BEAT] = lambda answer: [codec.encode(answer), *bad]
        liar.lies[SEND] = lambda answer: [*bad, codec.encode(answer)]
        async with (
            AsyncTransactionProducer(
                "g", find_route=liar.route, check=lambda message: LocalState.UNKNOWN
            ) as producer,
            AsyncConsumer("g", "orders", find_route=liar.route, start="first") as consumer,
        ):
            async with producer.transaction(Message("orders", b"3")):
                pass
            found = []
            while len(found) < 4:
                found += await consumer.poll(60.0)
        assert [message.body for message in found] == [b"0", b"1", b"2", b"3"]


async def test_a_reply_that_does_not_inflate_ends_the_wait(tmp_path, small):
    async with (
        lied_to(tmp_path, small) as liar,
        AsyncProducer("asking", find_route=liar.route) as producer,
    ):

        def pushed(answer):
            (key,) = producer._replies._futures
            text = f"CORRELATION_ID\x01{key}\x02"
            frame = asked_of(
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"no zlib", properties=text,
                sysFlag="1",
            )  # fmt: skip
            return [codec.encode(answer), frame]

        liar.lie(SEND, pushed)
        with pytest.raises(BadAnswer, match="bad zlib stream"):
            await producer.request(Message("orders", b"x"), timeout_s=BOUND_S)


def test_a_reply_is_inflated_beside_the_loop(tmp_path, small, monkeypatch):
    at, usual = [], compression._zlib

    def watched(*given):
        at.append(asyncio._get_running_loop())
        return usual(*given)

    monkeypatch.setattr(compression, "_zlib", watched)

    async def scenario():
        async with (
            lied_to(tmp_path, small) as liar,
            AsyncProducer("asking", find_route=liar.route) as producer,
        ):

            def pushed(answer):
                (key,) = producer._replies._futures
                frame = asked_of(
                    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, zlib.compress(bytes(5000)),
                    properties=f"CORRELATION_ID\x01{key}\x02", sysFlag="1",
                )  # fmt: skip
                return [codec.encode(answer), frame]

            liar.lie(SEND, pushed)
            reply = await producer.request(Message("orders", b"x"), timeout_s=BOUND_S)
            assert reply.body == bytes(5000)

    run(scenario())
    assert at == [None]


# ---- name servers, and servers that are none ----


def route_json(address, **more):
    queues = {"brokerName": "b", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
    brokers = {"brokerName": "b", "cluster": "c", "brokerAddrs": {"0": address}}
    return {"brokerDatas": [brokers], "queueDatas": [queues | more]}


NO_ROUTES = {
    "no JSON": b"\x00\x01",
    "a number": b"7",
    "a text for a list": b'{"brokerDatas":"b","queueDatas":"q"}',
    "numbers for objects": b'{"brokerDatas":[1],"queueDatas":[2]}',
    "addresses in a list": b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":["x"]}]}',
    "counts that are texts": json.dumps(route_json("127.0.0.1:1", readQueueNums="4")).encode(),
    "too many queues": json.dumps(route_json("127.0.0.1:1", writeQueueNums=1 << 31)).encode(),
    "too many ordered queues": json.dumps(
        route_json("127.0.0.1:1") | {"orderTopicConf": f"b:{QUEUES_MAX + 1}"}
    ).encode(),
    "deep": b"[" * 100_000,
}


@contextlib.asynccontextmanager
async def name_server(bodies):
    """Gives them in turn, the last for ever."""

    def route(peer, command):
        return command.reply(body=bodies.pop(0) if len(bodies) > 1 else bodies[0])

    async with serving({RequestCode.GET_ROUTEINFO_BY_TOPIC: route}) as server:
        yield f"127.0.0.1:{server.port}"


@pytest.mark.parametrize("body", NO_ROUTES.values(), ids=NO_ROUTES)
async def test_a_route_that_is_none_is_refused_by_name_and_asked_for_again(tmp_path, small, body):
    async with lied_to(tmp_path, small) as liar:
        right = json.dumps(route_json(liar.address)).encode()
        async with (
            name_server([body, right]) as address,
            AsyncProducer("p", address) as producer,
        ):
            with pytest.raises(BadAnswer, match=f"{address}.*route of orders"):
                await producer.send(Message("orders", b"x"))
            assert (await producer.send(Message("orders", b"x"))).queue_offset == 0


async def test_of_several_name_servers_one_that_makes_sense_is_enough(tmp_path, small):
    async with lied_to(tmp_path, small) as liar:
        right = json.dumps(route_json(liar.address)).encode()
        async with (
            name_server([b"nonsense"]) as first,
            name_server([b"[]"]) as second,
            name_server([right]) as third,
            AsyncProducer("p", f"{first};{second};{third}") as producer,
        ):
            assert (await producer.send(Message("orders", b"x"))).queue_offset == 0


async def test_routes_that_turn_bad_leave_the_known_one_and_the_heartbeats(tmp_path, small):
    async with lied_to(tmp_path, small) as liar:
        right = json.dumps(route_json(liar.address)).encode()
        options = {"route_poll_s": 0.05, "heartbeat_s": 0.05}
        async with (
            name_server([right, *NO_ROUTES.values()]) as address,
            AsyncProducer("p", address, **options) as producer,
        ):
            await producer.send(Message("orders", b"x"))
            await asyncio.sleep(0.05 * 2 * len(NO_ROUTES))
            before = liar.asked.count(RequestCode.HEART_BEAT)
            await until(lambda: liar.asked.count(RequestCode.HEART_BEAT) > before + 2)
            assert (await producer.send(Message("orders", b"x"))).queue_offset == 1


async def test_a_server_that_hangs_up_is_not_called_in_a_storm():
    """Connections come slower and slower, and the wait for a send ends by name."""
    calls = []

    async def hang_up(reader, writer):
        calls.append(time.monotonic())
        writer.transport.abort()

    async with listening(hang_up) as address:

        async def route(topic):
            return route_of_queues(topic, "b", address, "c", 6, 4, 4)

        async with AsyncConsumer("g", find_route=route) as consumer:
            await consumer.assign(dict.fromkeys(await consumer.queues("orders"), 0))
            began = time.monotonic()
            await asyncio.sleep(1.5)
            spent, count = time.monotonic() - began, len(calls)
        async with AsyncProducer(find_route=route, send_timeout_s=0.5) as producer:
            with pytest.raises(SendFailed) as failed:
                await producer.send(Message("orders", b"x"))
    assert isinstance(failed.value.attempts[-1].error, (Unreachable, RequestTimeout))
    # Four queues and the heartbeats, each after 0.1 s at least.
    assert count <= 5 * (spent / 0.1 + 2)


async def test_a_header_without_end_takes_no_more_than_a_frame_and_fails_in_time():
    """A server that drips a frame of the largest size: the send fails in its time."""

    async def drip(reader, writer):
        with contextlib.suppress(ConnectionError):
            writer.write(struct.pack(">ii", (16 << 20) - 8, 15 << 20))
            while True:
                writer.write(bytes(1 << 10))
                await writer.drain()
                await asyncio.sleep(0.01)

    async with listening(drip) as address:

        async def route(topic):
            return route_of_queues(topic, "b", address, "c", 6, 1, 1)

        options = {"send_timeout_s": 0.3, "retries": 0, "request_timeout_s": 0.3}
        async with AsyncProducer(find_route=route, **options) as producer:
            for _ in range(2):
                with pytest.raises(SendFailed) as failed:
                    await producer.send(Message("orders", b"x"))
                error = failed.value.attempts[0].error
                assert isinstance(error, (RequestTimeout, Unreachable))
