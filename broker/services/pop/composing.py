"""What was popped as remoting clients read it: three texts and the records, those of a retry topic
under the name of the topic itself (docs/internals/pop.md#handles, docs/internals/format.md#record;
upstream ExtraInfoUtil, MessageDecoder.encode)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from broker.remoting.receipts import NORMAL, shown_offsets
from broker.services.pop.batches import Popped, Taken
from pystore import Message
from pystore.properties import encode_properties

__all__ = ["records", "shown"]

_MAGIC_V1, _MAGIC_V2 = -626843481, -626843477
_TOPIC_MAX_V1 = 127
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">H")
_BORN_V6, _STORE_V6 = 0x10, 0x20
#: From the record's start to its body length, with addresses of four bytes.
_TO_BODY_LENGTH = 84


def shown(popped: Popped, *, order: bool) -> dict[str, object]:
    """Members of an answer that say which messages its records are."""
    said: dict[str, object] = {
        "startOffsetInfo": ";".join(f"{t.kind} {t.queue} {t.start}" for t in popped.batches),
        "msgOffsetInfo": ";".join(
            shown_offsets(t.kind, t.queue, t.offsets) for t in popped.batches
        ),
    }
    if order:
        counts = [each for t in popped.batches for each in _shown_counts(t)]
        said["orderCountInfo"] = ";".join(counts)
    return said


def _shown_counts(taken: Taken) -> Iterator[str]:
    """How often these messages were popped before."""
    times = taken.times or {}
    counts = [(each, times.get(each, 0)) for each in taken.offsets]
    for offset, count in counts:
        if count > 0:
            yield f"{taken.kind} qo{taken.queue}%{offset} {count}"
    yield f"{taken.kind} {taken.queue} {min(count for _, count in counts)}"


def records(popped: Popped, topic: str, broker: str, *, actual: bool) -> bytes:
    """The records, one after the other. actual: those of a retry topic as they are stored.

    Raises: StoreError.
    """
    found: list[bytes] = []
    for taken in popped.batches:
        if taken.kind == NORMAL or actual:
            found.append(taken.messages.records())
        else:
            of = popped.deliveries_of(taken, broker)
            found += [_with_handle(message, topic, handle.text) for message, handle, _ in of]
    return b"".join(found)


def _with_handle(message: Message, topic: str, handle: str) -> bytes:
    """The record with this topic and POP_CK; everything else is as it is stored."""
    record, flag = message.record, message.sys_flag
    at = _TO_BODY_LENGTH + (12 if flag & _BORN_V6 else 0) + (12 if flag & _STORE_V6 else 0)
    body_end = at + 4 + _INT.unpack_from(record, at)[0]
    properties = encode_properties({**message.properties, "POP_CK": handle})
    name = topic.encode()
    long = len(name) > _TOPIC_MAX_V1
    named = _SHORT.pack(len(name)) if long else bytes([len(name)])
    tail = named + name + _SHORT.pack(len(properties)) + properties
    size = body_end + len(tail)
    magic = _MAGIC_V2 if long else _MAGIC_V1
    return b"".join((_INT.pack(size), _INT.pack(magic), bytes(record[8:body_end]), tail))
