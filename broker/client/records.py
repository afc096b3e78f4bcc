"""Records of pull answers to messages, and messages to the body of a batch: both in the C core
(csrc/wire/client.h)."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Collection, Sequence
from typing import Any

from broker.client._messages import received as messages_of
from broker.client.message import ReceivedMessage
from broker.client.progress import QueueProgress
from pystore.format.records import ROW_SIZE
from pystore.native import ffi, lib, raise_error

__all__ = ["BATCH_ITEM", "BadRecord", "encode_batch", "received"]

#: Bytes that a message takes in the body of a batch beside its body and its properties.
BATCH_ITEM = int(lib.PS_ITEM_FIXED)
#: Rows that one call asks for: more than a pull brings with the usual settings.
_ROWS = 64


class BadRecord(ValueError):
    """A pull answer holds bytes that are not a record."""


#: queue_offset, tags_at and tags_len of a row.
_SHORT = struct.Struct("@q88xq12xi24x")
assert _SHORT.size == ROW_SIZE


def received(
    body: bytes, progress: QueueProgress, tags: Collection[bytes] | None = None, delta: int = 0,
    topic: bytes | None = None,
) -> list[ReceivedMessage]:  # fmt: skip
    """Returns the messages of a pull answer's body. tags: those that are wanted. delta: what a
    broker of a static topic wants to have added to their offsets. topic: of all of them; None: any.
    Raises: BadRecord."""
    made: list[ReceivedMessage] = []
    room, at, end = _ROWS, 0, len(body)
    raw = ffi.from_buffer("uint8_t[]", body)
    used = ffi.new("int64_t *")
    while at < end:
        rows = ffi.new("ps_fields[]", room)
        count = lib.ps_fields_read(raw, at, end, 0, rows, room, used)
        at = used[0]
        if count < room and at < end:
            raise BadRecord(f"the {end - at} bytes at {at} of a pull's answer are not a record")
        if topic is not None:
            other = lib.ps_client_other_topic(raw, rows, count, topic, len(topic))
            if other < count:
                row = rows[other]
                named = body[row.topic_at : row.topic_at + row.topic_len]
                raise BadRecord(
                    f"{topic.decode()} was asked for, and message {row.queue_offset} of an answer"
                    f" is of {named.decode('utf-8', 'replace')!r:.300}"
                )
        if lib.ps_client_batches(rows, count):
            rows, count = _unpacked(raw, rows, count)
        known = ffi.buffer(rows, count * ROW_SIZE)[:]
        if tags is None and not delta:
            made += messages_of(body, known, progress)
        else:
            made += [
                ReceivedMessage(body, known, index, offset + delta, progress)
                for index, (offset, tag, size) in enumerate(_SHORT.iter_unpack(known))
                if tags is None or (size >= 0 and body[tag : tag + size] in tags)
            ]
    return made


def _unpacked(raw: Any, rows: Any, count: int) -> tuple[Any, int]:
    """Returns the rows with a row a message where a record holds several, as those of a topic with
    queue.type=BatchCQ of Apache's brokers do; offsets count messages. Raises: BadRecord."""
    made = lib.ps_client_unpack(raw, rows, count, ffi.NULL, 0)
    if made < 0:
        raise BadRecord("a record of a pull's answer holds a batch that cannot be read")
    out = ffi.new("ps_fields[]", made)
    lib.ps_client_unpack(raw, rows, count, out, made)
    return out, made


def encode_batch(
    flags: Sequence[int], bodies: Sequence[bytes], properties: Sequence[bytes]
) -> bytes:
    """Returns the body of a batch (docs/internals/format.md#batch). properties: encoded. Raises:
    BadArgument for properties that are too long."""
    count = len(bodies)
    all_bodies, all_properties = b"".join(bodies), b"".join(properties)
    room = len(all_bodies) + len(all_properties) + BATCH_ITEM * count
    out, error = ffi.new("uint8_t[]", room), ffi.new("ps_error *")
    lengths = [array("i", numbers) for numbers in (map(len, bodies), flags, map(len, properties))]
    body_lens, numbers, properties_lens = (ffi.from_buffer("int32_t[]", each) for each in lengths)
    size = lib.ps_client_batch(
        all_bodies, body_lens, numbers, all_properties, properties_lens, count, out, room, error
    )
    if size < 0:
        raise_error(error[0], size)
    made: bytes = ffi.buffer(out, size)[:]
    return made
