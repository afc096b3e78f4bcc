"""The body of a registration, in its three forms (docs/internals/wire.md#registration).

| form | when | content |
|---|---|---|
| JSON | version 37 and later | filterServerList, topicConfigSerializeWrapper |
| zlib | ``compressed``, or begins so | length and text of each part, see _compressed() |
| old JSON | before version 37 | the wrapper alone |
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from broker.namesrv.routes import Topic
from pystore import javajson
from pystore.configfiles import DataVersion, version_from_json

__all__ = ["Body", "parse"]

V3_0_11, V5_0_0 = 37, 413
#: First byte of a zlib stream; that of JSON is a brace. A 5.x broker with compressedRegister=true
#: packs the body and says compressed=false, so that upstream's own name server refuses it.
ZLIB = 0x78
#: A body of a million topics has some 60 MB; what unpacks to more is an attack.
UNPACKED_MAX = 256 << 20
QUEUES_MAX = 2**31 - 1


@dataclass(slots=True)
class Body:
    """topics: by name. mapping: of static topics, by name, as the broker wrote it."""

    version: DataVersion = field(default_factory=DataVersion)
    topics: dict[str, Topic] = field(default_factory=dict)
    mapping: dict[str, dict[str, Any]] = field(default_factory=dict)
    filters: list[str] = field(default_factory=list)


def parse(data: bytes, compressed: bool, version: int) -> Body:
    """Raises: ValueError that says what is wrong."""
    if not data:
        return Body()
    try:
        if version < V3_0_11:
            return _wrapper(_object(javajson.loads(data)), [])
        if compressed or data[0] == ZLIB:
            return _compressed(data, version)
        whole = _object(javajson.loads(data))
        filters = [str(each) for each in whole.get("filterServerList") or ()]
        return _wrapper(_object(whole.get("topicConfigSerializeWrapper") or {}), filters)
    except (TypeError, AttributeError, KeyError) as bad:
        raise ValueError(f"a member has the wrong type ({bad})") from None


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def _wrapper(wrapper: dict[str, Any], filters: list[str]) -> Body:
    made = Body(filters=filters)
    if wrapper.get("dataVersion") is not None:
        made.version = version_from_json(wrapper["dataVersion"])
    for name, row in _object(wrapper.get("topicConfigTable") or {}).items():
        topic = _topic(_object(row))
        made.topics[str(row.get("topicName") or name)] = topic
    for name, info in _object(wrapper.get("topicQueueMappingInfoMap") or {}).items():
        made.mapping[name] = _object(info)
    return made


def _topic(row: Mapping[str, Any]) -> Topic:
    """Absent members have upstream's defaults."""
    return _checked(
        row.get("readQueueNums", 16),
        row.get("writeQueueNums", 16),
        row.get("perm", 6),
        row.get("topicSysFlag", 0),
    )


@lru_cache(4096)  # most topics of a broker are alike
def _checked(*numbers: Any) -> Topic:
    for number in numbers:
        if type(number) is not int or not 0 <= number <= QUEUES_MAX:
            raise ValueError(f"a topic has the invalid number {number!r:.40}")
    return Topic(*numbers)


class _Parts:
    """Numbers and texts with their length in front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        if self._at + 4 > len(self._data):
            raise ValueError("the decompressed body ends within a number")
        (value,) = struct.unpack_from(">i", self._data, self._at)
        self._at += 4
        if value < 0:
            raise ValueError("a length is negative")
        return int(value)

    def text(self) -> str:
        size = self.number()
        if self._at + size > len(self._data):
            raise ValueError("a part is longer than the decompressed body")
        self._at += size
        return self._data[self._at - size : self._at].decode()


def _unpacked(data: bytes) -> bytes:
    unpack = zlib.decompressobj()
    try:
        made = unpack.decompress(data, UNPACKED_MAX)
    except zlib.error as bad:
        raise ValueError(f"the body cannot be decompressed ({bad})") from None
    if not unpack.eof:
        raise ValueError("the compressed body is truncated or decompresses to too much")
    return made


def _compressed(data: bytes, version: int) -> Body:
    """Length and JSON of the data version; count, then length and text of each topic; length and
    JSON of the filter servers; from 5.0.0 count, then length and JSON of each mapping."""
    parts = _Parts(_unpacked(data))
    made = Body(version=version_from_json(json.loads(parts.text())))
    for _ in range(parts.number()):
        words = parts.text().split(" ", 5)
        if len(words) < 5:
            raise ValueError("a topic has fewer than five fields")
        if not all(word.isascii() and word.isdigit() for word in words[1:4]):
            raise ValueError(f"a topic has invalid numbers: {' '.join(words[1:4]):.60}")
        made.topics[words[0]] = _checked(*map(int, words[1:4]), 0)
    filters = json.loads(parts.text() or "null")
    made.filters = [str(each) for each in filters or ()]
    if version >= V5_0_0:
        for _ in range(parts.number()):
            info = _object(javajson.loads(parts.text()))
            made.mapping[str(info["topic"])] = info
    return made
