"""Records of pull answers to messages, and messages to the body of a batch.

A record (docs/internals/wire.md#records-on-the-wire), hosts IPv4; an IPv6 host makes its field 20
bytes:

| at | field | at | field |
|---|---|---|---|
| 0 | total size | 40 | born timestamp |
| 4 | magic | 48 | born host |
| 8 | body CRC | 56 | store timestamp |
| 12 | queue id | 64 | store host |
| 16 | flag | 72 | reconsume times |
| 20 | queue offset | 76 | prepared transaction offset |
| 28 | physical offset | 84 | length of the body, body |
| 36 | sysFlag | then | length and bytes of topic, then of the properties |
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from broker.client.message import ReceivedMessage
from broker.client.progress import QueueProgress

__all__ = ["BadRecord", "RecordHead", "encode_batch", "read_head", "received"]

_SIZES = struct.Struct(">i16xqq")
_HEAD = struct.Struct(">12xii16xiq")
_MAGIC_V2 = 0xDAA320AB
_BORN_V6, _STORE_V6 = 16, 32
_FIXED_MIN = 91
_INNER_HEAD = struct.Struct(">iiiii")
_SHORT = struct.Struct(">H")


class BadRecord(ValueError):
    """A pull answer holds bytes that are not a record."""


class RecordHead(NamedTuple):
    """Fields of a record. body_start, body_end, properties_start: places in the same buffer."""

    magic: int
    queue: int
    flag: int
    sys_flag: int
    born_ms: int
    store_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body_start: int
    body_end: int
    topic: str
    properties_start: int


def received(body: memoryview, progress: QueueProgress) -> list[ReceivedMessage]:
    """The messages of a pull answer's body. Raises: BadRecord."""
    made = []
    at, end = 0, len(body)
    unpack = _SIZES.unpack_from
    while at < end:
        if end - at < _FIXED_MIN:
            raise BadRecord(f"{end - at} bytes at {at} are not a record")
        size, queue_offset, physical = unpack(body, at)
        following = at + size
        if size < _FIXED_MIN or following > end:
            raise BadRecord(f"a record at {at} claims {size} bytes, {end - at} are there")
        made.append(ReceivedMessage(body, at, following, queue_offset, physical, progress))
        at = following
    return made


def read_head(data: memoryview, start: int) -> RecordHead:
    """The fields of the record at `start`. Raises: BadRecord when lengths do not agree."""
    size = int.from_bytes(data[start : start + 4], "big")
    magic = int.from_bytes(data[start + 4 : start + 8], "big")
    queue, flag, sys_flag, born_ms = _HEAD.unpack_from(data, start)
    try:
        return _read_rest(data, start, start + size, (magic, queue, flag, sys_flag, born_ms))
    except struct.error:
        raise BadRecord(f"the record at {start} ends too soon") from None


def _read_rest(
    data: memoryview, start: int, end: int, known: tuple[int, int, int, int, int]
) -> RecordHead:
    magic, _, _, sys_flag, _ = known
    at = start + 48 + (20 if sys_flag & _BORN_V6 else 8)
    (store_ms,) = struct.unpack_from(">q", data, at)
    host = at + 8
    at = host + (20 if sys_flag & _STORE_V6 else 8)
    times, prepared, length = struct.unpack_from(">iqi", data, at)
    body_start = at + 16
    body_end = body_start + length
    if magic == _MAGIC_V2:
        topic_start = body_end + 2
        topic_end = topic_start + int.from_bytes(data[body_end:topic_start], "big")
    else:
        topic_start = body_end + 1
        topic_end = topic_start + data[body_end] if body_end < end else end
    if length < 0 or topic_end + 2 > end:
        raise BadRecord(f"the record at {start} claims a body of {length} bytes")
    topic = str(data[topic_start:topic_end], "utf-8", "replace")
    return RecordHead(
        *known, store_ms, bytes(data[host:at]), times, prepared, body_start, body_end, topic,
        topic_end + 2,
    )  # fmt: skip


def encode_batch(items: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """The body of a batch (docs/internals/format.md#batch). items: flag, body and encoded
    properties of each."""
    parts = []
    for flag, body, properties in items:
        total = _INNER_HEAD.size + len(body) + 2 + len(properties)
        parts.append(_INNER_HEAD.pack(total, 0, 0, flag, len(body)))
        parts.append(body)
        parts.append(_SHORT.pack(len(properties)))
        parts.append(properties)
    return b"".join(parts)


def batched_size(body: bytes, properties: bytes) -> int:
    """Bytes that a message takes in the body of a batch."""
    return _INNER_HEAD.size + len(body) + 2 + len(properties)
