"""The body of a registration, in its three forms (docs/internals/wire.md#registration).

| form | when | content |
|---|---|---|
| JSON | version 37 and later | filterServerList, topicConfigSerializeWrapper |
| zlib | ``compressed``, or begins so | length and text of each part, see _compressed() |
| old JSON | before version 37 | the wrapper alone |
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from broker.namesrv.routes import BrokerTopic
from broker.wire import mqjson
from broker.wire.jsonbody import (
    INT,
    LONG,
    OBJECT,
    TEXT,
    JsonMember,
    Kind,
    Shape,
    each,
    listed,
    mapping,
    required,
)
from pystore.meta.configfiles import DataVersion

__all__ = ["BODY_MAX", "RegistrationBody", "data_version", "is_packed", "parse", "route_rows"]

V3_0_11, V5_0_0 = 37, 413
#: First byte of a zlib stream; that of JSON is a brace. A 5.x broker with compressedRegister=true
#: packs the body and says compressed=false, so that upstream's own name server refuses it.
ZLIB = 0x78
#: What unpacks to more than a frame may hold unpacked is an attack.
UNPACKED_MAX = 16 << 20
#: Topics of one broker; upstream's own tables end long before.
TOPICS_MAX = 100_000
#: Of a registration as it is sent. Reading JSON of this size takes some 50 ms of the interpreter.
BODY_MAX = 8 << 20
_NUMBER = re.compile("-?[0-9]{1,10}", re.ASCII)


@dataclass(slots=True)
class RegistrationBody:
    """topics: by name. mapping: of static topics, by name, as the broker wrote it."""

    version: DataVersion = field(default_factory=DataVersion)
    topics: dict[str, BrokerTopic] = field(default_factory=dict)
    mapping: dict[str, dict[str, Any]] = field(default_factory=dict)
    filters: list[str] = field(default_factory=list)


_VERSION = Shape(
    stateVersion=JsonMember(LONG, 0), counter=JsonMember(LONG, 0), timestamp=JsonMember(LONG, 0)
)  # fmt: skip
_TOPIC = Shape(
    topicName=TEXT,
    readQueueNums=JsonMember(INT, 16),
    writeQueueNums=JsonMember(INT, 16),
    perm=JsonMember(INT, 6),
    topicSysFlag=JsonMember(INT, 0),
)


def _topic(value: Any) -> tuple[str | None, BrokerTopic]:
    """Reads a topic's name and row. As brokers write it, it needs no look at each member: a
    hundred brokers tell a million of them."""
    try:
        return value["topicName"], _checked(
            value["readQueueNums"], value["writeQueueNums"], value["perm"], value["topicSysFlag"]
        )
    except (KeyError, TypeError, ValueError):
        row = _TOPIC(value)
        return row["topicName"], _checked(
            row["readQueueNums"], row["writeQueueNums"], row["perm"], row["topicSysFlag"]
        )


_WRAPPER = Shape(
    dataVersion=JsonMember(_VERSION, {"stateVersion": 0, "counter": 0, "timestamp": 0}),
    topicConfigTable=JsonMember(mapping(_topic), {}),
    topicQueueMappingInfoMap=JsonMember(mapping(OBJECT), {}),
)
_FILTERS: Kind = each(TEXT)
_MAPPING = Shape(topic=required(TEXT))
_REGISTRATION = Shape(filterServerList=listed(TEXT), topicConfigSerializeWrapper=_WRAPPER)
#: The newer brokers say topicSysFlag, the older ones topicSynFlag.
_ROUTE = Shape(
    queueDatas=listed(
        Shape(
            brokerName=required(TEXT),
            readQueueNums=JsonMember(INT, 0),
            writeQueueNums=JsonMember(INT, 0),
            perm=JsonMember(INT, 0),
            topicSysFlag=INT,
            topicSynFlag=JsonMember(INT, 0),
        )
    )
)


def is_packed(data: bytes, compressed: bool) -> bool:
    """Says whether a body is a zlib stream, of which a few bytes may become UNPACKED_MAX."""
    return compressed or data[:1] == bytes((ZLIB,))


def parse(data: bytes, compressed: bool, version: int) -> RegistrationBody:
    """Reads a body. Raises: ValueError that says what is wrong."""
    if not data:
        return RegistrationBody()
    if version < V3_0_11:
        return _wrapper(_WRAPPER.loads(data), [])
    if is_packed(data, compressed):
        return _compressed(data, version)
    whole = _REGISTRATION.loads(data)
    return _wrapper(
        whole["topicConfigSerializeWrapper"] or _WRAPPER({}),
        [one for one in whole["filterServerList"] if one is not None],
    )


def _counted(topics: int) -> int:
    if topics > TOPICS_MAX:
        raise ValueError(f"it has {topics} topics, {TOPICS_MAX} are allowed")
    return topics


def _wrapper(wrapper: dict[str, Any], filters: list[str]) -> RegistrationBody:
    made = RegistrationBody(filters=filters, version=_version(wrapper["dataVersion"]))
    _counted(len(wrapper["topicConfigTable"]))
    for name, (told, row) in wrapper["topicConfigTable"].items():
        made.topics[told or str(name)] = row
    made.mapping = {str(name): info for name, info in wrapper["topicQueueMappingInfoMap"].items()}
    return made


def _version(found: Mapping[str, int]) -> DataVersion:
    return DataVersion(found["stateVersion"], found["counter"], found["timestamp"])


def data_version(data: bytes) -> DataVersion:
    """Reads the DataVersion of a body (322). Raises: ValueError that says what is wrong."""
    return _version(_VERSION.loads(data))


def route_rows(data: bytes) -> dict[str, BrokerTopic]:
    """Reads what a topic has at each broker: TopicRouteData (217). Raises: ValueError that says
    what is wrong."""
    return {
        row["brokerName"]: _checked(
            row["readQueueNums"],
            row["writeQueueNums"],
            row["perm"],
            row["topicSynFlag"] if row["topicSysFlag"] is None else row["topicSysFlag"],
        )
        for row in _ROUTE.loads(data)["queueDatas"]
    }


@lru_cache(4096)  # most topics of a broker are alike
def _checked(*numbers: Any) -> BrokerTopic:
    """Takes what a broker may have been told, as upstream does: one odd topic of a broker does
    not have all of its topics refused."""
    for number in numbers:
        if type(number) is not int or not -(1 << 31) <= number < 1 << 31:
            raise ValueError(f"a topic has the invalid number {number!r:.40}")
    return BrokerTopic(*numbers)


class _Parts:
    """Reads numbers and texts with their length in front."""

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


def _compressed(data: bytes, version: int) -> RegistrationBody:
    """Reads a compressed body: length and JSON of the data version; count, then length and text of
    each topic; length and JSON of the filter servers; from 5.0.0 count, then length and JSON of
    each mapping."""
    parts = _Parts(_unpacked(data))
    made = RegistrationBody(version=data_version(parts.text().encode()))
    for _ in range(_counted(parts.number())):
        words = parts.text().split(" ", 5)
        if len(words) < 5:
            raise ValueError("a topic has fewer than five fields")
        if not all(map(_NUMBER.fullmatch, words[1:4])):
            raise ValueError(f"a topic has invalid numbers: {' '.join(words[1:4]):.60}")
        made.topics[words[0]] = _checked(*map(int, words[1:4]), 0)
    filters = _FILTERS(mqjson.loads((parts.text() or "null").encode()))
    made.filters = [one for one in filters or () if one is not None]
    if version >= V5_0_0:
        for _ in range(_counted(parts.number())):
            info = mqjson.loads(parts.text().encode())
            made.mapping[_MAPPING(info)["topic"]] = info
    return made
