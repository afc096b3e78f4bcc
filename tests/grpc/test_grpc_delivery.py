"""Messages that are handed out, as they are composed of a record (csrc/messaging/delivery.c), and
acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import zlib
from pathlib import Path
from typing import Any

import pytest
from consuming import codes, handle_of, serving
from purecodec import encode_record, host_bytes
from waiting import until_async

from broker.grpc.messages import delivery_at_once
from broker.grpc.schema import pb
from pystore.format.properties import parse_properties

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


# ---- through the service ----


async def test_each_acknowledgement_of_a_request_has_its_own_answer(store_path: Path) -> None:
    """With one handle that is not good among them."""
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


async def test_what_is_handed_out_and_acknowledged_waits_for_the_disk(store_path: Path) -> None:
    """Found at once, and after a wait."""
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
