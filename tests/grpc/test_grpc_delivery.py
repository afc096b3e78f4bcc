"""Messages that are handed out and acknowledged: what is composed of a record (delivery.c in
csrc/http2), and read of a request (ack.c)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import zlib
from pathlib import Path
from typing import Any

import pytest
from consuming import codes, handle_of, run, serving
from purecodec import encode_record, host_bytes
from waiting import until_async

from broker.grpc._http2 import read_acks
from broker.grpc.calls import Call
from broker.grpc.messages import delivery_at_once
from broker.grpc.receipts import Receipt
from broker.grpc.schema import pb
from broker.grpc.status import ok
from broker.wire.receipts import Handle
from pystore.properties import parse_properties

RECEIPT = "17 1700000000000 60000 3 0 broker-a 2 19 8192"
VALUES = [
    b"a", b"two words", b"   ", "gr\u00fcn".encode(), b"x" * 300, b"x" * 2000, b"\xff\xfe", b"\xc3",
    b"a\x00b", b"a\x01b", b"", b"\x7f",
]  # fmt: skip
NAMES = [b"u1", b"u2", b"u3", b"gr\xc3\xbcn", b"\xff", b"", b"TAGS", b"POP_CK", b"__SHARDINGKEY"]


def message_of(record: bytes, topic: str = "T", attempt: int = 1) -> Any:
    """As it is handed out at once."""
    made = delivery_at_once(memoryview(record), topic, RECEIPT, attempt)
    assert made is not None
    return pb.ReceiveMessageResponse.FromString(made).message


def record_of(body: bytes = b"body", **changes: Any) -> bytes:
    made: bytes = encode_record(b"%RETRY%g_T", body, **changes)
    return made


def test_a_record_becomes_a_message() -> None:
    properties = {
        "UNIQ_KEY": "01AB", "TAGS": "t", "KEYS": " k1  gr\u00fcn ", "PGROUP": "T",
        "RECONSUME_TIME": "0", "__BORNHOST": "192.0.2.1", "BORN_TIMESTAMP": "1700000000123",
        "color": "gr\u00fcn", "__SHARDINGKEY": "g", "WAIT": "true", "TRACE_CONTEXT": "trace",
        "TIMER_OUT_MS": "1800000000000",
    }  # fmt: skip
    encoded = "".join(f"{n}\x01{v}\x02" for n, v in properties.items()).encode()
    record = record_of(
        b"x" * 128, properties=encoded, queue_id=7, queue_offset=300, physical_offset=1 << 40,
        born_timestamp=5, store_timestamp=1_700_000_000_456,
        store_host=host_bytes("10.1.2.3", 10911),
    )  # fmt: skip
    wanted = pb.Message(topic=pb.Resource(name="Shown"), body=b"x" * 128)
    wanted.user_properties.update({"color": "gr\u00fcn", "__SHARDINGKEY": "g"})
    system = wanted.system_properties
    system.tag, system.message_id, system.message_group = "t", "01AB", "g"
    system.keys.extend(["k1", "gr\u00fcn"])
    system.body_digest.type = pb.DigestType.MD5
    digest = hashlib.md5(b"x" * 128, usedforsecurity=False).hexdigest()
    system.body_digest.checksum = digest.upper()
    system.body_encoding, system.message_type = pb.Encoding.IDENTITY, pb.MessageType.FIFO
    system.born_timestamp.FromMilliseconds(1_700_000_000_123)
    system.store_timestamp.FromMilliseconds(1_700_000_000_456)
    system.delivery_timestamp.FromMilliseconds(1_800_000_000_000)
    system.born_host, system.store_host = "192.0.2.1", "10.1.2.3:10911"
    system.receipt_handle, system.trace_context = RECEIPT, "trace"
    system.queue_id, system.queue_offset, system.delivery_attempt = 7, 300, 3
    assert message_of(record, "Shown", 3) == wanted


@pytest.mark.parametrize("size", [0, 1, 55, 56, 57, 63, 64, 65, 119, 120, 128, 1000, 4 << 20])
def test_the_digest(size: int, rng: random.Random) -> None:
    body = rng.randbytes(size)
    found = message_of(record_of(body))
    wanted = hashlib.md5(body, usedforsecurity=False).hexdigest()
    assert found.body == body
    assert found.system_properties.body_digest.checksum == wanted.upper()


def test_what_is_unusual_is_handed_out_all_the_same() -> None:
    system = message_of(record_of(born_host=host_bytes("2001:db8::7", 1))).system_properties
    assert system.born_host == "[2001:db8::7]:1"
    system = message_of(record_of(store_host=host_bytes("::1", 2))).system_properties
    assert system.store_host == "[::1]:2" and len(system.message_id) == 56
    system = message_of(record_of(born_timestamp=-1)).system_properties
    assert (system.born_timestamp.seconds, system.born_timestamp.nanos) == (-1, 999_000_000)
    packed = zlib.compress(b"body" * 9)
    found = message_of(record_of(packed, sys_flag=1))
    assert (found.body, found.system_properties.body_encoding) == (b"body" * 9, 1)
    for name, kind in (("TRAN_MSG\x01TRUE", 4), ("TIMER_DELAY_SEC\x011", 3), ("a\x01b", 1)):
        found = message_of(record_of(properties=f"{name}\x02".encode()))
        assert found.system_properties.message_type == kind


def test_the_users_properties_are_those_of_the_record(rng: random.Random) -> None:
    """Of any number, also more than once, and also such as are not UTF-8."""
    for _ in range(500):
        parts = [
            rng.choice(NAMES) + b"\x01" + rng.choice(VALUES) + b"\x02"
            for _ in range(rng.choice([0, 1, 5, 70]))
        ]
        raw = b"".join(parts)[: rng.choice([-1, 30_000])][:32_000]
        said = parse_properties(raw)
        found = message_of(record_of(properties=raw))
        wanted = {n: v for n, v in said.items() if n not in ("TAGS", "POP_CK")}
        assert dict(found.user_properties) == wanted, raw.hex()
        assert found.system_properties.tag == said.get("TAGS", "")


def test_a_damaged_record_is_not_read_beyond_its_end(rng: random.Random) -> None:
    record = encode_record(b"T", b"x" * 100, properties=b"TAGS\x01t\x02KEYS\x01a b\x02u\x01v\x02")
    for cut in range(len(record)):
        with pytest.raises(ValueError):
            delivery_at_once(memoryview(record[:cut].ljust(40, b"\0")), "T", RECEIPT, 1)
    for _ in range(5000):
        damaged = bytearray(record)
        for _ in range(rng.randrange(1, 4)):
            at = rng.choice([rng.randrange(len(record)), *range(100)])
            damaged[at] = rng.randrange(256)
        with contextlib.suppress(ValueError):
            made = delivery_at_once(memoryview(bytes(damaged)), "T", RECEIPT, 1)
            assert made is None or pb.ReceiveMessageResponse.FromString(made).message


# ---- acknowledgements ----


def handle_text(rng: random.Random) -> str:
    """Mostly a good one, of eight or nine fields."""
    fields = [str(rng.choice([0, 1, 1_700_000_000_000, 10**17])) for _ in range(8)]
    fields[4], fields[5] = rng.choice("012"), rng.choice(["broker-a", "b", "B_1"])
    if rng.randrange(2):
        fields.append(str(rng.randrange(1 << 40)))
    if rng.randrange(4) == 0:
        at = rng.randrange(len(fields))
        fields[at] = rng.choice(["", "-1", "x", "3", "1" * 19, "\u0661", " ", "0 0"])
    return " ".join(fields) + rng.choice([""] * 9 + [" "])


def test_acknowledgements_are_read_as_the_usual_way_reads_them(rng: random.Random) -> None:
    taken = 0
    for _ in range(3000):
        request = pb.AckMessageRequest(
            group=pb.Resource(name=rng.choice(["g", "g", "", "gr\u00fcn"])),
            topic=pb.Resource(name="T", resource_namespace=rng.choice(["", "n"])),
        )
        for _ in range(rng.choice([1, 1, 2, 32, 64, 65])):
            request.entries.add(
                message_id=rng.choice(["01AB", "01AB", "", "x" * 5000, "\n"]),
                receipt_handle=handle_text(rng),
            )
        read = read_acks(request.SerializeToString())
        if read is None:
            continue
        taken += 1
        group, topic, entries, reply = read
        assert (group, topic) == (request.group.name, request.topic.name)
        wanted = pb.AckMessageResponse(status=ok())
        for entry, (given, physical, fields) in zip(request.entries, entries, strict=True):
            assert given == entry.receipt_handle
            assert Receipt(Handle._make(fields), physical) == Receipt.parse(given)
            wanted.entries.add(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=ok()
            )
        assert reply == wanted.SerializeToString()
    assert taken > 100


def test_damaged_acknowledgements_are_not_plain(rng: random.Random) -> None:
    """Or mean what protobuf makes of them."""
    request = pb.AckMessageRequest(group=pb.Resource(name="g"), topic=pb.Resource(name="T"))
    for number in range(2):
        request.entries.add(message_id=f"0{number}", receipt_handle=RECEIPT)
    data = request.SerializeToString()
    assert read_acks(data) is not None
    for _ in range(10_000):
        damaged = bytearray(data[: rng.choice([len(data), 1 + rng.randrange(len(data))])])
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        read = read_acks(bytes(damaged))
        if read is not None:
            other = pb.AckMessageRequest.FromString(bytes(damaged))
            assert [each.receipt_handle for each in other.entries] == [e[0] for e in read[2]]
            assert (other.group.name, other.topic.name) == read[:2]


# ---- through the service ----


def test_each_acknowledgement_of_a_request_has_its_own_answer(store_path: Path) -> None:
    """With one handle that is not good among them."""

    async def work() -> None:
        async with serving(store_path) as raw:
            raw.make("T", queues=1)
            raw.put("a", "b", "c", TAGS="t", KEYS="k1 k2", color="red")
            found = await raw.take()
            shown = [
                (each.body, each.system_properties.tag, list(each.system_properties.keys))
                for each in found
            ]
            assert shown == [(body, "t", ["k1", "k2"]) for body in (b"a", b"b", b"c")]
            assert [dict(each.user_properties) for each in found] == [{"color": "red"}] * 3
            handles = [handle_of(each) for each in found]
            counts = raw.broker.services.statistics.current()
            assert counts["GROUP_GET_NUMS", "T@g"] == 3
            late = handles[0].split(" ")
            late[1] = "1000"
            reply = await raw.ack(*handles[:2])
            assert [codes(each.status) for each in reply.entries] == ["OK", "OK"]
            assert [each.receipt_handle for each in reply.entries] == handles[:2]
            reply = await raw.ack(handles[0], " ".join(late), handles[2])
            assert codes(reply.status) == "MULTIPLE_RESULTS"
            wanted = ["OK", "INVALID_RECEIPT_HANDLE", "OK"]
            assert [codes(each.status) for each in reply.entries] == wanted
            assert len(raw.broker.services.pop.points) == 0
            assert codes((await raw.receive())[0]) == "MESSAGE_NOT_FOUND"

    run(work())


def test_acknowledgements_of_one_turn_are_one_record(store_path: Path) -> None:
    """By calls of their own, as official clients send them; with one that is refused, the usual
    way answers each by itself."""

    async def work() -> None:
        async with serving(store_path) as raw:
            raw.make("T", queues=1)
            raw.put("a", "b", "c", "d")
            handles = [handle_of(each) for each in await raw.take()]
            ack = raw.broker.grpc._acking.at_once()["AckMessage"]
            call = Call("AckMessage", {"x-mq-client-id": "one"}, ("127.0.0.1", 1))

            def ticket(handle: str) -> Any:
                request = pb.AckMessageRequest(
                    group=pb.Resource(name="g"), topic=pb.Resource(name="T")
                )
                request.entries.add(message_id="01", receipt_handle=handle)
                return ack(call, request.SerializeToString())

            def records() -> int:
                (queue,) = raw.broker.store.queues("rmq_sys_wheel_timer")
                return int(queue.max_offset)

            before = records()
            tickets = [ticket(each) for each in handles[:3]]
            assert records() == before
            for handle, each in zip(handles, tickets, strict=False):
                reply = pb.AckMessageResponse.FromString(each.redeem())
                assert [codes(one.status) for one in reply.entries] == ["OK"]
                assert reply.entries[0].receipt_handle == handle
            assert records() == before + 1
            fields = handles[3].split(" ")
            fields[7] = "1000"
            tickets = [ticket(handles[3]), ticket(" ".join(fields))]
            assert [each.redeem() for each in tickets] == [None, None]
            assert codes((await raw.ack(handles[3])).status) == "OK"
            assert len(raw.broker.services.pop.points) == 0

    run(work())


def test_what_is_handed_out_and_acknowledged_waits_for_the_disk(store_path: Path) -> None:
    """Found at once, and after a wait."""

    async def work() -> None:
        async with serving(store_path, flushDiskType="SYNC_FLUSH") as raw:
            raw.put("a")
            handles = [handle_of(each) for each in await raw.take()]
            waiting = asyncio.ensure_future(raw.take(poll=20))
            await until_async(lambda: raw.broker.services.pop.waiting() == 1)
            raw.put("b")
            handles += [handle_of(each) for each in await waiting]
            flushed = raw.broker.store.info().log_flushed
            assert flushed >= raw.broker.services.pop.log.end
            assert codes((await raw.ack(*handles)).status) == "OK"
            assert len(handles) == 2 and len(raw.broker.services.pop.points) == 0

    run(work())
