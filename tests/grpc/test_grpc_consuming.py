"""Messages received over gRPC: by a raw client, which says exactly what a test wants said
(docs/internals/grpc.md#receiving)."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import zlib
from datetime import timedelta

import lz4.frame
import pytest
from consuming import calls_of_python, codes, handle_of, serving
from waiting import BOUND_S, until_async

from broker import Message
from broker.grpc.receipts import Receipt
from broker.grpc.receiving import Receiving
from broker.grpc.schema import pb
from pystore.format import compression
from pystore.meta.configfiles import SubscriptionGroup, TopicConfig


def bodies(messages):
    return [message.body for message in messages]


def attempts(messages):
    return [message.system_properties.delivery_attempt for message in messages]


async def test_what_is_not_acknowledged_comes_again_with_one_more_attempt(store_path):
    async with serving(store_path) as raw:
        raw.put("a", "b", "c")
        first = await raw.take()
        assert bodies(first) == [b"a", b"b", b"c"] and attempts(first) == [1, 1, 1]
        done = await raw.ack(handle_of(first[1]))
        assert codes(done.status) == "OK" and codes(done.entries[0].status) == "OK"
        raw.shift(15_100)
        again = await raw.take()
        assert bodies(again) == [b"a", b"c"] and attempts(again) == [2, 2]
        shown = [m.system_properties.message_id for m in again]
        assert shown == [m.system_properties.message_id for m in (first[0], first[2])]
        assert {m.topic.name for m in again} == {"T"}
        late = await raw.ack(handle_of(first[0]))
        assert codes(late.status) == codes(late.entries[0].status) == "INVALID_RECEIPT_HANDLE"
        assert late.entries[0].status.message == "receipt handle is expired"
        several = await raw.ack(handle_of(again[0]), handle_of(first[0]), handle_of(again[1]))
        assert codes(several.status) == "MULTIPLE_RESULTS"
        each = ["OK", "INVALID_RECEIPT_HANDLE", "OK"]
        assert [codes(entry.status) for entry in several.entries] == each
        raw.shift(60_000)
        assert codes((await raw.receive())[0]) == "MESSAGE_NOT_FOUND"


async def test_a_changed_handle_acknowledges_a_message_amid_its_batch(store_path):
    """Apache's proxy in local mode answers OK here, and the message comes again."""
    async with serving(store_path) as raw:
        raw.put("a", "b", "c")
        found = await raw.take()
        changed = await raw.change(handle_of(found[1]), 40)
        assert codes(changed.status) == "OK"
        assert codes((await raw.ack(changed.receipt_handle)).status) == "OK"
        again = await raw.change(handle_of(found[2]), 1)
        refused = await raw.change(again.receipt_handle, 13 * 3600)
        assert codes(refused.status) == "ILLEGAL_INVISIBLE_TIME"
        assert refused.receipt_handle == again.receipt_handle
        raw.shift(1_100)
        assert bodies(await raw.take()) == [b"c"]
        raw.shift(60_000)
        assert sorted(bodies(await raw.take())) == [b"a", b"c"]


async def test_dead_letters_are_the_message_itself_and_nobody_elses(store_path):
    async with serving(store_path) as raw:
        raw.put("other", topic="T")
        raw.put("bad", TAGS="tag", KEYS="k1 k2", colour="red")
        raw.put("secret", topic="Secret")
        _, found = await raw.take()
        changed = await raw.change(handle_of(found), 30)
        *parts, _ = changed.receipt_handle.split(" ")
        for forged in ("0", "212", "999999999"):
            answer = await raw.forward(" ".join([*parts, forged]))
            assert codes(answer.status) == "INVALID_RECEIPT_HANDLE"
        answer = await raw.forward(" ".join(parts))
        assert answer.status.message == "commit log offset is empty"
        assert codes((await raw.forward(changed.receipt_handle)).status) == "OK"
        store = raw.broker.store
        (dead,) = store.read("%DLQ%g", 0, 0)
        assert bytes(dead.body) == b"bad" and dead.properties["colour"] == "red"
        assert dead.properties["UNIQ_KEY"] == found.system_properties.message_id
        raw.shift(60_000)
        assert bodies(await raw.take()) == [b"other"]


async def test_python_hands_out_what_the_network_thread_has_popped_and_may_not_show(
    store_path, monkeypatch
):
    """A message that came too often, which is a dead letter now, and a body of another kind than
    zlib's; one of zlib's the thread shows itself."""
    popped, shown = [], []

    def popping(self, *given):
        popped.append(given)
        return usual(self, *given)

    usual = Receiving._popping
    monkeypatch.setattr(Receiving, "_popping", popping)

    def showing(self, *given):
        shown.append(given)
        return before(self, *given)

    before = Receiving._found_before
    monkeypatch.setattr(Receiving, "_found_before", showing)
    async with serving(store_path) as raw:
        raw.make(group="g", tries=0)
        await raw.settle()
        before_thread, by_python = 0, -1
        while len(popped) > by_python:  # until the thread has been told who this is
            by_python = len(popped)
            raw.put("first")
            assert bodies(await raw.take(batch=1)) == [b"first"]
            before_thread += 1
        raw.broker.store.put("T", zlib.compress(b"x" * 999), queue=0, sys_flag=1 | 3 << 8)
        raw.put("plain")
        assert bodies(await raw.take()) == [b"x" * 999, b"plain"]
        assert not shown or not compression.zlib_addresses()
        packed = lz4.frame.compress(b"y" * 999)
        raw.broker.store.put("T", packed, queue=0, sys_flag=1 | 1 << 8)
        assert bodies(await raw.take()) == [b"y" * 999]
        assert shown
        raw.shift(15_100)

        async def are_dead():
            raw.put("more")
            await raw.receive()
            return raw.broker.store.range("%DLQ%g", 0)[1] == before_thread + 3

        while not await are_dead():
            pass
        assert len(popped) == by_python, "Python popped"


async def test_after_the_last_attempt_a_message_goes_to_the_dead_letters(store_path):
    async with serving(store_path) as raw:
        raw.make("T", group="g", tries=1)  # and the first attempt
        assert (await raw.settle()).backoff_policy.max_attempts == 2
        raw.put("a")
        for attempt in (1, 2):
            assert attempts(await raw.take()) == [attempt]
            raw.shift(16_000)
        assert codes((await raw.receive())[0]) == "MESSAGE_NOT_FOUND"
        (dead,) = raw.broker.store.read("%DLQ%g", 0, 0)
        assert bytes(dead.body) == b"a"


async def test_an_ordered_group_keeps_its_order_over_redeliveries(store_path):
    async with serving(store_path) as raw:
        raw.make("T", group="g", fifo=True)
        assert (await raw.settle()).subscription.fifo
        raw.put(*"01234", __SHARDINGKEY="one")
        first = await raw.take(batch=3, attempt="1")
        assert bodies(first) == [b"0", b"1", b"2"]
        assert first[0].system_properties.message_group == "one"
        assert codes((await raw.receive())[0]) == "MESSAGE_NOT_FOUND"
        same = await raw.take(batch=3, attempt="1")  # the answer was lost on its way
        assert bodies(same) == [b"0", b"1", b"2"] and attempts(same) == [1, 1, 1]
        await raw.ack(handle_of(same[0]))
        longer = await raw.change(handle_of(same[1]), 30)
        assert codes(longer.status) == "OK"
        raw.shift(20_000)
        assert codes((await raw.receive())[0]) == "MESSAGE_NOT_FOUND"
        raw.shift(11_000)
        again = await raw.take(batch=2, attempt="2")
        assert bodies(again) == [b"1", b"2"] and attempts(again) == [2, 2]
        waiting = asyncio.ensure_future(raw.take(poll=20))
        for message in again:
            assert codes((await raw.ack(handle_of(message))).status) == "OK"
        assert bodies(await waiting) == [b"3", b"4"]


@pytest.mark.parametrize("kind", ["tags", "sql"])
async def test_filters_are_those_of_the_request(store_path, kind):
    async with serving(store_path, enablePropertyFilter=True) as raw:
        for tag in ("even", "odd", "even", "none"):
            raw.put(tag, TAGS=tag, amount=str(len(tag)))
        more = {"exp": "odd || none"}
        if kind == "sql":
            more = {"exp": "amount < 4 OR TAGS = 'none'", "kind": pb.FilterType.SQL}
        assert bodies(await raw.take(**more)) == [b"odd", b"none"]


async def test_what_came_back_is_consumed_without_python(store_path, monkeypatch):
    """With a filter, too, for which enablePropertyFilter need not be on: that is about pulls."""
    async with serving(store_path, enablePropertyFilter=False, settled=False) as raw:
        of_sql = {"exp": "n = 1", "kind": pb.FilterType.SQL}
        await raw.settle(**of_sql)
        raw.put("a", "b", n="1")
        assert attempts(await raw.take(**of_sql)) == [1, 1]
        raw.shift(15_100)
        seen = calls_of_python(monkeypatch)
        again = await raw.take(**of_sql)
        assert bodies(again) == [b"a", b"b"] and attempts(again) == [2, 2]
        done = await raw.ack(*map(handle_of, again))
        assert [codes(each.status) for each in (done, *done.entries)] == ["OK"] * 3
        assert not seen


#: The service looks for what it has to renew all the time.
RENEWS = {
    "renewSchedulePeriodMillis": 20, "grpcClientConsumerMinLongPollingTimeoutMillis": 100,
}  # fmt: skip

REFUSED = [
    ({"poll": 1, "timeout": 3.0}, "ILLEGAL_POLLING_TIME"),
    ({"invisible": 9}, "ILLEGAL_INVISIBLE_TIME"),
    ({"invisible": 13 * 3600}, "ILLEGAL_INVISIBLE_TIME"),
    ({"invisible": None}, "ILLEGAL_INVISIBLE_TIME"),
    ({"batch": 0}, "BAD_REQUEST"),
    ({"exp": "||"}, "ILLEGAL_FILTER_EXPRESSION"),
    ({"exp": "a = = b", "kind": pb.FilterType.SQL}, "ILLEGAL_FILTER_EXPRESSION"),
]


async def test_requests_for_messages_are_refused_by_name(store_path):
    async with serving(store_path, proxy={}, enablePropertyFilter=True) as raw:
        for more, code in REFUSED:
            status, messages = await raw.receive(**more)
            assert (codes(status), messages) == (code, []), more
        old = [(k, "5.0.2" if k == "x-mq-client-version" else v) for k, v in raw.metadata]
        assert codes((await raw.receive(timeout=3.0, metadata=old))[0]) == "BAD_REQUEST"
        stranger = [("x-mq-client-id", "stranger")]
        status, _ = await raw.receive(metadata=stranger)
        assert codes(status) == "UNRECOGNIZED_CLIENT_TYPE"
        nameless = [("x-mq-language", "JAVA")]
        assert codes((await raw.receive(metadata=nameless))[0]) == "CLIENT_ID_REQUIRED"
        for field, value, code in (
            ("topic", "none", "TOPIC_NOT_FOUND"),
            ("topic", "SCHEDULE_TOPIC_XXXX", "ILLEGAL_TOPIC"),
            ("topic", "a b", "ILLEGAL_TOPIC"),
            ("group", "CID_RMQ_SYS_x", "ILLEGAL_CONSUMER_GROUP"),
            ("group", "", "ILLEGAL_CONSUMER_GROUP"),
        ):
            old = getattr(raw, field)
            setattr(raw, field, pb.Resource(name=value))
            assert codes((await raw.receive())[0]) == code, value
            setattr(raw, field, old)


async def test_what_the_broker_refuses_has_the_status_that_it_means(store_path):
    settings = {"popPollingSize": 0, "autoCreateSubscriptionGroup": False}
    async with serving(store_path, **settings) as raw:
        services = raw.broker.services
        assert codes((await raw.receive())[0]) == "CONSUMER_GROUP_NOT_FOUND"
        services.groups.update(SubscriptionGroup("g"))
        held = raw.call("ReceiveMessage", raw.request(poll=20))
        await until_async(lambda: services.pop.waiting() == 1)
        full, _ = await raw.receive(poll=20)
        assert (codes(full), full.message) == ("TOO_MANY_REQUESTS", "polling full")
        held.cancel()
        services.groups.update(SubscriptionGroup("g", consume_enable=False))
        assert codes((await raw.receive())[0]) == "FORBIDDEN"
        services.groups.update(SubscriptionGroup("g"))
        services.topics.update(TopicConfig("T", 1, 1, perm=2))  # may be written only
        assert codes((await raw.receive())[0]) == "FORBIDDEN"
        request = pb.QueryAssignmentRequest(topic=raw.topic, group=raw.group)
        refused = (await raw.call("QueryAssignment", request)).status
        assert (codes(refused), refused.message) == ("FORBIDDEN", "no readable queue")


async def test_consumption_needs_rights_to_the_topic_and_the_group(store_path):
    root = '{"username":"root","password":"secret"}'
    inner = '{"accessKey":"inner","secretKey":"inner-secret"}'
    async with serving(
        store_path, settled=False, authenticationEnabled=True, authorizationEnabled=True,
        initAuthenticationUser=root, innerClientAuthenticationCredentials=inner,
    ) as raw:  # fmt: skip
        nobody = list(raw.metadata)
        date = "20261122T101112Z"
        proof = hmac.new(b"secret", date.encode(), "sha1").hexdigest()
        raw.metadata += [
            ("x-mq-date-time", date),
            (
                "authorization", "MQv2-HMAC-SHA1 Credential=root,"
                f" SignedHeaders=x-mq-date-time, Signature={proof}",
            ),
        ]  # fmt: skip
        await raw.settle()
        raw.put("a")
        (found,) = await raw.take()
        root_metadata, raw.metadata = raw.metadata, nobody
        refused = "UNAUTHORIZED"
        assert codes((await raw.receive())[0]) == refused
        assert codes((await raw.ack(handle_of(found))).status) == refused
        assert codes((await raw.change(handle_of(found), 20)).status) == refused
        assert codes((await raw.forward(handle_of(found))).status) == refused
        request = pb.QueryAssignmentRequest(topic=raw.topic, group=raw.group)
        assert codes((await raw.call("QueryAssignment", request)).status) == refused
        raw.metadata = root_metadata
        assert codes((await raw.call("QueryAssignment", request)).status) == "OK"
        assert codes((await raw.ack(handle_of(found))).status) == "OK"


async def test_malformed_handles_and_empty_requests_are_refused_by_name(store_path):
    async with serving(store_path) as raw:
        raw.put("a")
        (found,) = await raw.take()
        assert codes((await raw.ack()).status) == "BAD_REQUEST"
        beyond = handle_of(found).rsplit(" ", 2)[0] + " 77 0"
        for bad in ("", "nonsense", "1 " * 40, beyond):
            assert codes((await raw.ack(bad)).status) == "INVALID_RECEIPT_HANDLE"
            changed = await raw.change(bad, 20)
            assert codes(changed.status) == "INVALID_RECEIPT_HANDLE"
            assert changed.receipt_handle == bad
            assert codes((await raw.forward(bad)).status) == "INVALID_RECEIPT_HANDLE"
        assert codes((await raw.change(handle_of(found), -1)).status) == "ILLEGAL_INVISIBLE_TIME"


async def test_assignments_are_any_queue_or_each_queue_of_an_ordered_group(store_path):
    async with serving(store_path) as raw:
        raw.make("T", queues=3, group="ordered", fifo=True)
        request = pb.QueryAssignmentRequest(topic=raw.topic, group=raw.group)
        reply = await raw.call("QueryAssignment", request)
        (one,) = reply.assignments
        assert (one.message_queue.id, codes(reply.status)) == (-1, "OK")
        assert one.message_queue.broker.endpoints.addresses[0].port == raw.broker.grpc_port
        request.group.name = "ordered"
        reply = await raw.call("QueryAssignment", request)
        assert [each.message_queue.id for each in reply.assignments] == [0, 1, 2]
        request.topic.name = "none"
        reply = await raw.call("QueryAssignment", request)
        assert codes(reply.status) == "TOPIC_NOT_FOUND"


async def given_up(raw):
    """A call that waited for messages, and whose client gave it up."""
    pop = raw.broker.services.pop
    held = raw.call("ReceiveMessage", raw.request(poll=20))
    await until_async(lambda: pop.waiting() == 1)
    held.cancel()
    await until_async(lambda: pop.waiting() == 0)


async def test_who_gave_up_its_call_gets_nothing(store_path):
    async with serving(store_path) as raw:
        await given_up(raw)
        raw.put("a")
        (only,) = await raw.take(poll=20)
        assert only.system_properties.delivery_attempt == 1


async def test_clients_of_one_connection_hold_what_each_of_them_has_waited_for(store_path):
    """Another one asks while the first waits."""
    async with serving(store_path, proxy=RENEWS) as raw:
        pop = raw.broker.services.pop
        await raw.receive()  # the thread knows its client from now on
        waiting = asyncio.ensure_future(raw.take(renew=True, invisible=None, poll=20))
        await until_async(lambda: pop.waiting() == 1)
        first, raw.metadata = raw.metadata, [("x-mq-client-id", "second")]
        await raw.settle()
        assert codes((await raw.receive())[0]) == "MESSAGE_NOT_FOUND"
        raw.metadata = first
        raw.put("a")
        assert bodies(await waiting) == [b"a"]
        assert [each.invisible_ms for each in pop.points] == [60_000]
        left = pb.NotifyClientTerminationRequest(group=raw.group)
        assert codes((await raw.call("NotifyClientTermination", left)).status) == "OK"
        await until_async(lambda: [each.invisible_ms for each in pop.points] == [1000])


async def test_auto_renewed_messages_stay_with_their_client_until_it_leaves(store_path):
    async with serving(store_path, proxy=RENEWS) as raw:
        raw.put("a", "b")
        found = await raw.take(renew=True, invisible=None)
        pop = raw.broker.services.pop
        (before,) = pop.points
        assert before.invisible_ms == 60_000
        raw.shift(51_000)
        await until_async(lambda: all(ck.pop_ms > before.pop_ms for ck in pop.points))
        raw.shift(20_000)
        assert codes((await raw.receive())[0]) == "MESSAGE_NOT_FOUND"
        # The handle of before the renewal, which is all that the client knows.
        assert codes((await raw.ack(handle_of(found[0]))).status) == "OK"
        assert len(pop.points) == 1
        left = await raw.call(
            "NotifyClientTermination", pb.NotifyClientTerminationRequest(group=raw.group)
        )
        assert codes(left.status) == "OK"
        await until_async(lambda: [ck.invisible_ms for ck in pop.points] == [1000])
        await raw.settle()
        raw.shift(1_100)
        assert bodies(await raw.take()) == [b"b"]


async def test_two_hundred_clients_that_wait_are_not_asked_for_again_and_again(store_path):
    """One try each, until there is something."""
    patient = {"grpcClientConsumerMaxLongPollingTimeoutMillis": int(BOUND_S * 1000)}
    async with serving(store_path, proxy=patient, reviveQueueNum=900) as raw:
        raw.put("first")
        before = Receipt.parse(handle_of((await raw.take())[0])).handle
        held = [
            asyncio.ensure_future(raw.receive(poll=BOUND_S, batch=1, timeout=2 * BOUND_S))
            for _ in range(200)
        ]
        await until_async(lambda: raw.broker.services.pop.waiting() == 200)
        await asyncio.sleep(1)
        raw.put(*map(str, range(200)))
        answers = await asyncio.gather(*held)
        assert {codes(status) for status, _ in answers} == {"OK"}
        found = [m for _, messages in answers for m in messages]
        assert len({m.body for m in found}) == 200
        # Each try takes the next of the revive queues.
        first = min(Receipt.parse(handle_of(m)).handle.revive_queue for m in found)
        assert first == before.revive_queue + 200 + 1


async def test_a_message_sent_over_remoting_means_the_same_over_grpc(store_path):
    async with serving(store_path) as raw:
        sent = Message(
            "T", b"classic", tags="tag", keys=["k1", "k2"], properties={"colour": "red"},
            delay=timedelta(seconds=1),
        )  # fmt: skip
        async with raw.broker.async_producer("classic") as producer:
            result = await producer.send(sent)
        raw.shift(2_000)
        (got,) = await raw.take(poll=20)
        system = got.system_properties
        assert got.body == b"classic" and got.topic.name == "T"
        assert system.message_id == result.message_id and system.tag == "tag"
        assert list(system.keys) == ["k1", "k2"]
        assert dict(got.user_properties) == {"colour": "red"}
        assert system.message_type == pb.MessageType.DELAY
        assert system.delivery_timestamp.seconds > 0
        assert system.body_encoding == pb.Encoding.IDENTITY
        (stored,) = raw.broker.store.read("T", 0, 0)
        born = system.born_timestamp.ToMilliseconds()
        assert born == stored.born_timestamp and system.born_host == stored.born_host
        assert system.store_timestamp.ToMilliseconds() == stored.store_timestamp


async def test_a_message_sent_over_grpc_means_the_same_over_remoting(store_path):
    async with serving(store_path) as raw:
        raw.make("F", kind="FIFO", queues=4)
        sent = pb.Message(topic=pb.Resource(name="F"), body=b"modern")
        own = sent.system_properties
        own.message_id, own.tag, own.message_type = "01AB", "tag", pb.MessageType.FIFO
        own.message_group, own.trace_context = "one", "00-11-22"
        own.keys.extend(["k1", "k2"])
        own.born_timestamp.FromMilliseconds(1_700_000_000_123)
        sent.user_properties["shape"] = "round"
        reply = await raw.call("SendMessage", pb.SendMessageRequest(messages=[sent]))
        assert codes(reply.status) == "OK"
        async with raw.broker.async_consumer("classic", "F", start="first") as consumer:
            got = await anext(aiter(consumer))
        assert (got.body, got.topic, got.message_id) == (b"modern", "F", "01AB")
        assert (got.tags, got.keys, got.attempt) == ("tag", ["k1", "k2"], 1)
        wanted = {
            "shape": "round", "__SHARDINGKEY": "one", "TRACE_CONTEXT": "00-11-22",
            "BORN_TIMESTAMP": "1700000000123",
        }  # fmt: skip
        assert wanted.items() <= got.properties.items()
        assert reply.entries[0].offset == got.queue_offset


async def test_long_bodies_are_inflated_beside_the_loop(store_path, monkeypatch):
    """A few kilobytes may become gigabytes: what would become too long is the client's to inflate,
    as every compressed body is at Apache's proxy."""
    at, usual = [], compression._zlib

    def watched(data, most):
        at.append((asyncio._get_running_loop(), most))
        return usual(data, most)

    monkeypatch.setattr(compression, "_zlib", watched)
    async with serving(store_path) as raw:
        bodies = [b"y" * 5000, bytes(3 << 20), bytes((4 << 20) + 1), b"plain"]
        async with raw.broker.async_producer("classic", compress_over=1000) as producer:
            for body in bodies[:2]:
                await producer.send(Message("T", body))
        bomb = zlib.compress(bodies[2])
        raw.broker.store.put("T", bomb, properties={"UNIQ_KEY": "b"}, sys_flag=1)
        raw.put(bodies[3])
        found = {}
        while len(found) < 4:
            found |= {each.body: each for each in await raw.take(poll=20)}
        assert set(found) == {*bodies[:2], bomb, bodies[3]}
        for body, each in found.items():
            system = each.system_properties
            kind = pb.Encoding.GZIP if body == bomb else pb.Encoding.IDENTITY
            assert system.body_encoding == kind
            digest = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
            assert system.body_digest.checksum == digest
    assert sum(loop is None for loop, _ in at) == 2
    short = [most for loop, most in at if loop is not None]
    assert max(short) <= 32 << 10, "what may take long was inflated on the event loop"
