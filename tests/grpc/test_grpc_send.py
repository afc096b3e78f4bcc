"""What is sent, and what of it a consumer of the remoting protocol sees; and the reverse."""

from __future__ import annotations

import gzip
import hashlib
from typing import Any

import pytest
from caller import CODE, Caller, at, message
from waiting import until

from broker import Broker, Message
from broker.grpc.messages import incoming
from broker.grpc.schema import pb
from pystore.format.javahash import bucket_of, java_hash


def taken(broker: Broker, topic: str, *ids: str) -> list[Any]:
    """Messages of a topic by their ids, in the order in which they come."""
    found: list[Any] = []
    with broker.consumer(f"of-{ids[0]}", topic, start="first") as consumer:
        for each in consumer:
            if each.message_id in ids:
                found.append(each)
            if len(found) == len(ids):
                return found
    raise AssertionError("the consumer ended")


def test_every_property_of_a_message(broker: Broker, caller: Caller) -> None:
    sent = message(
        "Mixed", b"12 apples", tag="fruit", keys=["a", "b"], user={"colour": "grün"},
        trace_context="00-1-2", message_group="row-7", delivery_attempt=3,
    )  # fmt: skip
    sent.system_properties.born_timestamp.CopyFrom(
        pb.Timestamp(seconds=1_700_000_000, nanos=5 * 10**6)
    )
    reply = caller.send(sent)
    assert reply.status.code == CODE.OK and reply.status.message == "OK"
    (entry,) = reply.entries
    assert entry.message_id == entry.transaction_id == sent.system_properties.message_id
    (found,) = taken(broker, "Mixed", entry.message_id)
    assert found.body == b"12 apples"
    assert found.born_timestamp == 1_700_000_000_005
    assert found.queue_offset == entry.offset
    assert dict(found.properties) == {
        "UNIQ_KEY": entry.message_id, "TAGS": "fruit", "KEYS": "a b", "colour": "grün",
        "__SHARDINGKEY": "row-7", "TRACE_CONTEXT": "00-1-2", "PGROUP": "Mixed",
        "RECONSUME_TIME": "3", "__BORNHOST": "vm", "BORN_TIMESTAMP": "1700000000005",
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster",
    }  # fmt: skip


def test_a_message_of_the_remoting_protocol_as_the_schema_has_it(broker: Broker) -> None:
    with broker.producer("shop") as producer:
        sent = producer.send(
            Message("Normal", b"x" * 9000, tags="t", keys=["a", "b"], properties={"own": "1"})
        )  # compressed by its client
    (found,) = taken(broker, "Normal", sent.message_id)
    made = incoming(found)
    system = made.system_properties
    assert (made.topic.name, made.body) == ("Normal", b"x" * 9000)
    assert dict(made.user_properties) == {"own": "1"}
    assert (system.tag, list(system.keys)) == ("t", ["a", "b"])
    assert system.message_id == sent.message_id
    assert system.message_type == pb.MessageType.NORMAL
    assert system.body_encoding == pb.Encoding.IDENTITY
    assert system.body_digest.checksum == hashlib.md5(made.body).hexdigest().upper()
    assert (system.queue_id, system.queue_offset) == (found.head.queue, found.queue_offset)
    assert system.delivery_attempt == 1
    assert system.born_timestamp.ToMilliseconds() == found.born_timestamp
    assert system.store_timestamp.ToMilliseconds() == found.store_timestamp
    assert system.store_host == broker.address
    assert system.born_host.startswith("127.0.0.1:")


def test_what_is_sent_comes_back_as_it_was(broker: Broker, caller: Caller) -> None:
    sent = message("Fifo", b"1", tag="t", keys=["k"], user={"p": "q"}, message_group="g")
    entry = caller.send(sent).entries[0]
    (found,) = taken(broker, "Fifo", entry.message_id)
    made = incoming(found)
    assert made.user_properties == {"p": "q", "__SHARDINGKEY": "g"}
    for name in ("tag", "keys", "message_id", "message_group", "born_timestamp", "born_host"):
        assert getattr(made.system_properties, name) == getattr(sent.system_properties, name), name
    assert made.system_properties.message_type == pb.MessageType.FIFO


def test_a_gzipped_body_is_stored_as_it_was_before(broker: Broker, caller: Caller) -> None:
    """By Python, which lets the client in, then by the network thread."""
    for _ in range(2):
        sent = message("Normal", gzip.compress(b"y" * 5000), body_encoding=2)
        (entry,) = caller.send(sent).entries
        (found,) = taken(broker, "Normal", entry.message_id)
        assert found.body == b"y" * 5000
        assert found.head.sys_flag & 1 == 0


def test_a_gzipped_body_that_would_be_too_long(caller: Caller) -> None:
    bomb = message("Normal", gzip.compress(bytes((4 << 20) + 1)), body_encoding=2)
    assert caller.send(bomb).status.code == CODE.MESSAGE_BODY_TOO_LARGE


def test_a_batch_has_an_entry_for_each_message(broker: Broker, caller: Caller) -> None:
    sent = [message("Normal", b"%d" % n, tag=f"t{n}") for n in range(3)]
    reply = caller.send(*sent)
    ids = [each.system_properties.message_id for each in sent]
    assert reply.status.code == CODE.OK
    assert [each.message_id for each in reply.entries] == ids
    first = reply.entries[0].offset
    assert [each.offset for each in reply.entries] == [first, first + 1, first + 2]
    found = taken(broker, "Normal", *ids)
    assert [(m.message_id, m.tags, m.body) for m in found] == [
        (id, f"t{n}", b"%d" % n) for n, id in enumerate(ids)
    ]


def shift(broker: Broker, ms: int) -> None:
    """So far ahead is the clock of its timers from now on."""

    async def on_loop() -> None:
        assert broker.services.schedule is not None
        broker.services.schedule.shift_clock(ms)

    broker.run(on_loop())


def test_a_batch_of_delayed_messages_keeps_each_ones_properties(
    broker: Broker, caller: Caller
) -> None:
    sent = [message("Delay", b"%d" % n, tag=f"t{n}", delivery_timestamp=at(900)) for n in range(2)]
    ids = [each.system_properties.message_id for each in sent]
    reply = caller.send(*sent)
    assert [each.message_id for each in reply.entries] == ids
    assert all(each.recall_handle for each in reply.entries)
    shift(broker, 1_000_000)
    found = {m.message_id: m.tags for m in taken(broker, "Delay", *ids)}
    shift(broker, 0)
    assert found == {ids[0]: "t0", ids[1]: "t1"}


def test_a_delayed_message_can_be_recalled(broker: Broker, caller: Caller) -> None:
    sent = message("Delay", delivery_timestamp=at(3600))
    handle = caller.send(sent).entries[0].recall_handle
    fields = {"topic": pb.Resource(name="Delay"), "recall_handle": handle}
    assert broker.services.schedule is not None and broker.services.schedule.timers is not None
    timers = broker.services.schedule.timers.timers
    until(timers.count, "the timer in the wheel")
    reply = caller("RecallMessage", **fields)
    assert reply.status.code == CODE.OK
    assert reply.message_id == sent.system_properties.message_id
    until(lambda: not timers.count(), "the recall")
    again = caller("RecallMessage", **fields)
    assert (again.status.code, again.message_id) == (CODE.OK, reply.message_id)


def test_a_delivery_time_that_has_passed_is_now(broker: Broker, caller: Caller) -> None:
    entry = caller.send(message("Delay", delivery_timestamp=at(-100))).entries[0]
    taken(broker, "Delay", entry.message_id)


#: Seen of Apache RocketMQ 5.3.3 with four queues.
GROUPS = {"g0": 0, "g1": 0, "one": 0, "p": 2, "g": 1}


@pytest.mark.parametrize("group", GROUPS)
def test_a_message_group_has_the_queue_that_apache_gives_it(group: str) -> None:
    assert bucket_of(group, 4) == GROUPS[group]


def test_a_message_group_stays_in_its_queue(broker: Broker, caller: Caller) -> None:
    sent = [message("Fifo", b"%d" % n, message_group="g") for n in range(5)]
    ids = [caller.send(each).entries[0].message_id for each in sent]
    found = taken(broker, "Fifo", *ids)
    assert {m.head.queue for m in found} == {1}
    assert [m.message_id for m in found] == ids


def test_hashes_are_those_of_java() -> None:
    assert [java_hash(text) for text in ("", "a", "hello", "polygenelubricants", "😀")] == [
        0, 97, 99162322, -(1 << 31), 1772899,
    ]  # fmt: skip


def test_the_route_lists_every_queue_with_what_it_takes(broker: Broker, caller: Caller) -> None:
    reply = caller("QueryRoute", topic=pb.Resource(name="Mixed"))
    assert reply.status.code == CODE.OK
    assert [queue.id for queue in reply.message_queues] == [0, 1, 2, 3]
    for queue in reply.message_queues:
        assert queue.permission == pb.Permission.READ_WRITE
        assert list(queue.accept_message_types) == [1, 2, 3, 4]
        assert queue.broker.endpoints.scheme == pb.AddressScheme.IPv4
        (address,) = queue.broker.endpoints.addresses
        assert (address.host, address.port) == ("127.0.0.1", broker.grpc_port)
