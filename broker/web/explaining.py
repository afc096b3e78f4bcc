"""A record field by field: where each lies, what it holds, what that means (csrc/format/layout.h).
No I/O."""

from __future__ import annotations

import ipaddress
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from pystore.cli.verbs import iso
from pystore.format.compression import inflate
from pystore.format.properties import parse_properties
from pystore.format.records import RecordHead
from pystore.native import lib

__all__ = ["ExplainedField", "body_of", "explain"]

#: Bytes of a long field that are shown.
SHOWN = 48
_COMPRESSIONS = {1: "LZ4", 2: "Zstandard", 3: "zlib", 0: "zlib"}


@dataclass(frozen=True, slots=True)
class ExplainedField:
    """at: from the record's first byte. raw: the bytes, or the first of them. value: as read."""

    name: str
    at: int
    width: int
    raw: str
    value: str
    meaning: str


def _int(data: bytes, at: int, width: int) -> int:
    return int.from_bytes(data[at : at + width], "big", signed=True)


def _host(data: bytes, at: int, width: int) -> str:
    address = ipaddress.ip_address(data[at : at + width - 4])
    shown = f"[{address}]" if address.version == 6 else str(address)
    return f"{shown}:{_int(data, at + width - 4, 4)}"


def _flags(flag: int) -> str:
    """Returns the bits of sysFlag in words."""
    words = []
    if flag & lib.PS_SYS_COMPRESSED:
        kind = (flag & lib.PS_SYS_COMPRESSION_MASK) >> lib.PS_SYS_COMPRESSION_SHIFT
        words.append(f"compressed by {_COMPRESSIONS.get(kind, f'codec {kind}')}")
    if flag & lib.PS_SYS_MULTI_TAGS:
        words.append("several tags")
    state = flag & lib.PS_SYS_TX_MASK
    names = {
        lib.PS_SYS_TX_PREPARED: "half of a transaction", lib.PS_SYS_TX_COMMIT: "committed",
        lib.PS_SYS_TX_ROLLBACK: "rolled back",
    }  # fmt: skip
    if state in names:
        words.append(names[state])
    for bit, text in ((lib.PS_SYS_BORN_V6, "born host"), (lib.PS_SYS_STORE_V6, "store host")):
        if flag & bit:
            words.append(f"{text} is IPv6")
    return ", ".join(words) or "a plain message"


def body_of(data: bytes, head: RecordHead) -> tuple[bytes, str]:
    """Returns the body inflated, or as it is stored with the reason why it does not inflate."""
    stored = data[head.body_start : head.body_end]
    if not head.sys_flag & lib.PS_SYS_COMPRESSED:
        return stored, ""
    try:
        return inflate((head.sys_flag >> lib.PS_SYS_COMPRESSION_SHIFT) & 7, stored), ""
    except ValueError as bad:
        return stored, str(bad)


def explain(data: bytes, head: RecordHead) -> list[ExplainedField]:
    """Returns a record field by field. data: the record alone, as check_record took it apart."""
    made = []
    at = 0
    for name, width, value, meaning in _rows(data, head):
        raw = data[at : at + min(width, SHOWN)].hex(" ")
        made.append(
            ExplainedField(name, at, width, raw + (" ..." if width > SHOWN else ""), value, meaning)
        )
        at += width
    return made


def _rows(data: bytes, head: RecordHead) -> Iterator[tuple[str, int, str, str]]:
    """Fields in order: name, width, value, meaning."""
    body = data[head.body_start : head.body_end]
    computed = zlib.crc32(body) & 0x7FFFFFFF
    fits = "fits the body" if computed == head.body_crc else f"the body gives {computed:#010x}"
    yield "totalSize", 4, f"{len(data)}", "bytes of this record, this field included"
    kind = "V2: the topic has a length of two bytes" if head.magic == lib.PS_MAGIC_V2 else "V1"
    yield "magicCode", 4, f"{head.magic:#010x}", kind
    yield "bodyCRC", 4, f"{head.body_crc:#010x}", f"CRC-32 of the stored body, sign clear: {fits}"
    yield "queueId", 4, str(head.queue), "queue of the topic"
    yield "flag", 4, str(head.flag), "the user's"
    yield "queueOffset", 8, str(head.queue_offset), "place in the queue, in messages"
    yield "physicalOffset", 8, str(head.physical_offset), "its own place in the log, in bytes"
    yield "sysFlag", 4, f"{head.sys_flag:#x}", _flags(head.sys_flag)
    yield "bornTimestamp", 8, str(head.born_ms), f"{iso(head.born_ms)}, the producer's clock"
    born_width = head.born_host_end - lib.PS_AT_BORN_HOST
    yield "bornHost", born_width, _host(data, lib.PS_AT_BORN_HOST, born_width), "the producer"
    yield "storeTimestamp", 8, str(head.store_ms), f"{iso(head.store_ms)}, the broker's clock"
    host = _host(data, head.host_at, head.host_len)
    yield "storeHost", head.host_len, host, "the broker that stored it"
    yield "reconsumeTimes", 4, str(head.reconsume_times), "how often it was sent back"
    prepared = str(head.prepared_offset)
    yield "preparedTransactionOffset", 8, prepared, "of a decided transaction: its half"
    yield "bodyLength", 4, str(len(body)), "bytes of the stored body"
    if body:
        yield "body", len(body), "", "shown above"
    width = 2 if head.magic == lib.PS_MAGIC_V2 else 1
    yield "topicLength", width, str(head.topic_len), "bytes of the topic"
    topic = data[head.topic_at : head.topic_at + head.topic_len].decode("utf-8", "replace")
    yield "topic", head.topic_len, topic, "where it was stored"
    yield "propertiesLength", 2, str(head.properties_len), "bytes of the properties"
    if head.properties_len:
        raw = data[head.properties_at : head.properties_at + head.properties_len]
        count = len(parse_properties(raw))
        yield "properties", len(raw), f"{count} of them", "NAME 0x01 VALUE 0x02 and so on"
