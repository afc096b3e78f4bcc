"""Messages that are handed out and acknowledged: what C composes of a record (delivery.c in
csrc/http2) and reads of a request (ack.c) is what the usual way makes of it, byte by byte."""

from __future__ import annotations

import asyncio
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
from broker.grpc.local import LocalBroker
from broker.grpc.messages import RESERVED, plain_delivery, usual_delivery
from broker.grpc.receipts import Receipt
from broker.grpc.schema import pb
from broker.grpc.status import ok
from broker.remoting.receipts import Handle

RECEIPT = "17 1700000000000 60000 3 0 broker-a 2 19 8192"
SPECIAL = (
    "TAGS", "KEYS", "UNIQ_KEY", "BORN_TIMESTAMP", "__BORNHOST", "TIMER_DELIVER_MS", "TIMER_OUT_MS",
    "__SHARDINGKEY", "TRACE_CONTEXT", "TRAN_MSG", "DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS",
    "__transactionId__", "TRANSACTION_CHECK_TIMES", "POP_CK", "RETRY_TOPIC",
)  # fmt: skip
VALUES = [
    b"a", b"true", b"TRUE", b"truE ", b"1700000000123", b"0", b"00012", b"99999999999999",
    b"999999999999999", b"-5", b"two words", b" a  b\tc\x0bd\x1ce ", b"   ", "gr\u00fcn".encode(),
    "a\u00a0b".encode(), b"x" * 300, b"x" * 20000, b"\xff\xfe", b"\xed\xa0\x80", b"\xc3", b"a\x00b",
    b"a\x01b", b"", b"\x7f",
]  # fmt: skip


def canonical(reply: bytes) -> bytes:
    """With the user's properties in order: protobuf's maps have none."""
    made: bytes = pb.ReceiveMessageResponse.FromString(reply).SerializeToString(deterministic=True)
    return made


def properties_of(rng: random.Random) -> bytes:
    """Mostly as clients write them; sometimes damaged."""
    parts = []
    for _ in range(rng.choice([0, 1, 2, 5, 12, 70])):
        kind = rng.randrange(10)
        if kind < 6:
            name = rng.choice(SPECIAL).encode()
        elif kind < 7:
            name = rng.choice(sorted(RESERVED)).encode()
        else:
            name = rng.choice([b"user", b"u%d" % rng.randrange(1000), b"", b"gr\xc3\xbcn", b"\xff"])
        value = rng.choice(VALUES) if rng.randrange(3) else b"%d" % rng.randrange(10**6)
        if sum(map(len, parts)) + len(name) + len(value) < 32000:
            parts.append(name + b"\x01" + value + b"\x02")
    made = b"".join(parts)
    if rng.randrange(20) == 0 and made:
        at = rng.randrange(len(made))
        made = made[:at] + bytes([rng.randrange(256)]) + made[at + 1 :]
    return made[:-1] if rng.randrange(10) == 0 else made


def record_of(rng: random.Random) -> bytes:
    body = rng.randbytes(rng.choice([0, 1, 55, 56, 63, 64, 65, 128, 5000]))
    flag = rng.choice([0] * 20 + [1, 1 | 1 << 8, 1 | 2 << 8, 1 | 7 << 8, 4, 8])
    if flag == 1 and rng.randrange(2):
        body = zlib.compress(body)
    host = host_bytes("192.0.2.7", rng.choice([0, 10911, 65535]))
    if rng.randrange(20) == 0:
        host = host_bytes("2001:db8::7", 10911)
    return encode_record(
        rng.choice([b"T", b"%RETRY%g_T", b"x" * 200]), body, properties=properties_of(rng),
        queue_id=rng.choice([0, 1, 7, 65535]), queue_offset=rng.choice([0, 1, 127, 128, 1 << 40]),
        physical_offset=rng.choice([0, 1 << 30, 1 << 50]), sys_flag=flag,
        born_timestamp=rng.choice([0, 999, 1000, 1_700_000_000_123, -1]), born_host=host,
        store_timestamp=rng.choice([0, 1_700_000_000_000, 1_700_000_000_456]),
        store_host=host_bytes("10.1.2.3", 10911), reconsume_times=rng.choice([0, 1, 16]),
    )  # fmt: skip


def twins(record: bytes, topic: str = "T", attempt: int = 1) -> tuple[bytes | None, bytes]:
    view = memoryview(record)
    return plain_delivery(view, topic, RECEIPT, attempt), usual_delivery(
        view, topic, RECEIPT, attempt
    )


def test_both_ways_write_the_same_bytes(rng: random.Random) -> None:
    taken = 0
    for _ in range(3000):
        record, attempt = record_of(rng), rng.choice([1, 2, 127, 128, 1 << 30])
        plain, usual = twins(record, rng.choice(["T", "a" * 200]), attempt)
        if plain is None:
            continue
        taken += 1
        assert canonical(plain) == canonical(usual), record.hex()
        assert len(plain) == len(usual)
        made = pb.ReceiveMessageResponse.FromString(usual).message
        if len(made.user_properties) < 2:
            assert plain == usual, record.hex()
    assert taken > 500


def test_what_clients_send_is_taken() -> None:
    properties = {
        "UNIQ_KEY": "01AB", "TAGS": "t", "KEYS": "k1 k2", "PGROUP": "T", "RECONSUME_TIME": "0",
        "__BORNHOST": "192.0.2.1", "BORN_TIMESTAMP": "1700000000000", "color": "gr\u00fcn",
        "__SHARDINGKEY": "g", "WAIT": "true",
    }  # fmt: skip
    encoded = "".join(f"{n}\x01{v}\x02" for n, v in properties.items()).encode()
    plain, usual = twins(encode_record(b"T", b"x" * 128, properties=encoded))
    assert plain is not None
    made = pb.ReceiveMessageResponse.FromString(plain).message
    assert dict(made.user_properties) == {"color": "gr\u00fcn", "__SHARDINGKEY": "g"}
    assert made.system_properties.receipt_handle == RECEIPT
    assert canonical(plain) == canonical(usual)


@pytest.mark.parametrize("size", [0, 1, 55, 56, 57, 63, 64, 65, 119, 120, 128, 1000, 4 << 20])
def test_the_digest(size: int, rng: random.Random) -> None:
    body = rng.randbytes(size)
    plain, _ = twins(encode_record(b"T", body))
    assert plain is not None
    digest = pb.ReceiveMessageResponse.FromString(plain).message.system_properties.body_digest
    wanted = hashlib.md5(body, usedforsecurity=False).hexdigest()
    assert (digest.type, digest.checksum) == (pb.DigestType.MD5, wanted.upper())


@pytest.mark.parametrize(
    "changes",
    [
        {"sys_flag": 1},
        {"born_host": host_bytes("::1", 1)},
        {"store_host": host_bytes("::1", 1)},
        {"properties": b"a\x01\xff\x02"},
        {"properties": b"a\x01b\x02a\x01c\x02"},
        {"properties": b"KEYS\x01gr\xc3\xbcn\x02"},
        {"born_timestamp": -1},
    ],
)
def test_what_is_unusual_is_left_to_the_usual_way(changes: dict[str, object]) -> None:
    record = encode_record(b"T", zlib.compress(b"body"), **changes)  # type: ignore[arg-type]
    assert plain_delivery(record, "T", RECEIPT, 1) is None


def test_a_damaged_record_is_not_read_beyond_its_end(rng: random.Random) -> None:
    record = encode_record(b"T", b"x" * 100, properties=b"TAGS\x01t\x02KEYS\x01a b\x02u\x01v\x02")
    for cut in range(len(record)):
        assert plain_delivery(record[:cut], "T", RECEIPT, 1) is None
    for _ in range(5000):
        damaged = bytearray(record)
        for _ in range(rng.randrange(1, 4)):
            at = rng.choice([rng.randrange(len(record)), *range(100)])
            damaged[at] = rng.randrange(256)
        plain = plain_delivery(bytes(damaged), "T", RECEIPT, 1)
        if plain is not None:
            assert canonical(plain) == canonical(twins(bytes(damaged))[1]), damaged.hex()


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


# ---- both ways through the service ----


@pytest.mark.parametrize("at_once", [True, False])
def test_the_service_answers_the_same_both_ways(
    at_once: bool, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is handed out and acknowledged, with one handle that is not good among them."""
    if not at_once:
        monkeypatch.setattr(LocalBroker, "pop_at_once", lambda *asked: None)

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
            await until_async(lambda: len(raw.broker.services.pop.polling) == 1)
            raw.put("b")
            handles += [handle_of(each) for each in await waiting]
            flushed = raw.broker.store.info().log_flushed
            assert flushed >= raw.broker.services.pop.log.end
            assert codes((await raw.ack(*handles)).status) == "OK"
            assert len(handles) == 2 and len(raw.broker.services.pop.points) == 0

    run(work())
