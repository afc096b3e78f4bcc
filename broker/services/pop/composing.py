"""A stored record under the name of another topic, for an answer (docs/internals/format.md#record;
upstream MessageDecoder.encode)."""

from __future__ import annotations

import struct

from pystore import Message
from pystore.properties import encode_properties

__all__ = ["with_handle"]

_MAGIC_V1, _MAGIC_V2 = -626843481, -626843477
_TOPIC_MAX_V1 = 127
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">H")
_BORN_V6, _STORE_V6 = 0x10, 0x20
#: From the record's start to its body length, with addresses of four bytes.
_TO_BODY_LENGTH = 84


def with_handle(message: Message, topic: str, handle: str) -> bytes:
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
