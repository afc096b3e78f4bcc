"""The store's files in plain Python: written from the format alone, apart from the C core.

Tests look with it at what the core wrote, and make records that our broker does not write. It never
changes a file. The formats: csrc/format/layout.h, csrc/queues/consumequeue.c and
csrc/index/indexfile.h.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194

SYS_BORN_V6 = 0x10
SYS_STORE_V6 = 0x20

PROPERTY_END = b"\x02"
PROP_CRC_LEN = 20
UNIT_SIZE = 20
INDEX_HEADER = 40
INDEX_ENTRY = 20


@dataclass(slots=True)
class Record:
    """A record of the commit log; the fields of docs/internals/format.md#record."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: bytes
    properties: bytes

    @property
    def topic_name(self) -> str:
        """The topic as text."""
        return self.topic.decode()

    @property
    def property_map(self) -> dict[str, str]:
        """The properties by name."""
        parts = self.properties.decode().split("\x02")
        return dict(part.split("\x01") for part in parts if part)


@dataclass(slots=True, frozen=True)
class Unit:
    """A unit of a consume queue, and the queue offset that it stands at."""

    offset: int
    physical_offset: int
    size: int
    tags_code: int


def java_hash(text: str) -> int:
    """Java's String.hashCode, which runs over UTF-16 units in 32 bits."""
    data = text.encode("utf-16-be")
    h = 0
    for unit in struct.unpack(f">{len(data) // 2}H", data):
        h = (31 * h + unit) & 0xFFFFFFFF
    return h - (1 << 32) if h >> 31 else h


def host_bytes(address: str, port: int) -> bytes:
    """A host as on disk: 4 or 16 address bytes and the port."""
    return ipaddress.ip_address(address).packed + struct.pack(">i", port)


# ---- records ----


def encode_record(
    topic: bytes,
    body: bytes,
    *,
    properties: bytes = b"",
    queue_id: int = 0,
    flag: int = 0,
    queue_offset: int = 0,
    physical_offset: int = 0,
    sys_flag: int = 0,
    born_timestamp: int = 0,
    born_host: bytes = host_bytes("127.0.0.1", 0),
    store_timestamp: int = 0,
    store_host: bytes = host_bytes("127.0.0.1", 10911),
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """The bytes of one record. Properties are encoded and written as they are, limits unchecked."""
    sys_flag &= ~(SYS_BORN_V6 | SYS_STORE_V6)
    sys_flag |= SYS_BORN_V6 if len(born_host) == 20 else 0
    sys_flag |= SYS_STORE_V6 if len(store_host) == 20 else 0
    long_topic = len(topic) > 127
    middle = struct.pack(
        ">iiiqqiq",
        zlib.crc32(body) & 0x7FFFFFFF,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
    )
    rest = b"".join(
        (
            middle,
            born_host,
            struct.pack(">q", store_timestamp),
            store_host,
            struct.pack(">iqi", reconsume_times, prepared_transaction_offset, len(body)),
            body,
            struct.pack(">h" if long_topic else ">b", len(topic)),
            topic,
            struct.pack(">h", len(properties)),
            properties,
        )
    )
    return struct.pack(">iI", 8 + len(rest), MAGIC_V2 if long_topic else MAGIC_V1) + rest


def check_record(data: bytes, *, prop_crc: bool = False) -> Record:
    """The record that the bytes are, its sums checked. prop_crc: that of its properties, too.

    Raises: ValueError, IndexError or struct.error for bytes that are not exactly a record.
    """
    record = _parse(data, struct.unpack_from(">I", data, 4)[0])
    if record.magic not in (MAGIC_V1, MAGIC_V2) or record.size != len(data):
        raise ValueError("there is no record")
    if record.body and zlib.crc32(record.body) & 0x7FFFFFFF != record.body_crc:
        raise ValueError("the sum of the body")
    if prop_crc and not data.endswith(prop_crc_bytes(data[:-PROP_CRC_LEN])):
        raise ValueError("the sum of the properties")
    return record


def prop_crc_bytes(head: bytes) -> bytes:
    """The properties CRC after the bytes `head` of a record: ten digits, the least significant
    first."""
    digits = f"{zlib.crc32(head) & 0x7FFFFFFF:010d}"[::-1].encode()
    return b"__CRC32#\x01" + digits + PROPERTY_END


def _parse(data: bytes, magic: int) -> Record:
    """The record that fills `data` exactly; any exception means that its fields do not."""
    at = 8

    def number(code: str) -> int:
        nonlocal at
        value: int
        (value,) = struct.unpack_from(">" + code, data, at)
        at += struct.calcsize(">" + code)
        return value

    def part(length: int) -> bytes:
        nonlocal at
        if length < 0 or at + length > len(data):
            raise ValueError("a part runs past the record")
        at += length
        return data[at - length : at]

    body_crc, queue_id, flag = number("i"), number("i"), number("i")
    queue_offset, physical_offset, sys_flag = number("q"), number("q"), number("i")
    born_timestamp, born_host = number("q"), part(20 if sys_flag & SYS_BORN_V6 else 8)
    store_timestamp, store_host = number("q"), part(20 if sys_flag & SYS_STORE_V6 else 8)
    reconsume_times, prepared = number("i"), number("q")
    body = part(number("i"))
    topic = part(number("b" if magic == MAGIC_V1 else "h"))
    properties = part(number("h"))
    if at != len(data):
        raise ValueError("the parts do not fill the record")
    return Record(
        size=struct.unpack_from(">i", data)[0],
        magic=magic,
        body_crc=body_crc,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
        body=body,
        topic=topic,
        properties=properties,
    )


# ---- files ----


def files_of(folder: Path) -> list[tuple[int, Path]]:
    """The files of a log or queue with their first offsets, in order."""
    return sorted((int(path.name), path) for path in folder.iterdir())


def iter_log(folder: Path) -> Iterator[tuple[int, Record]]:
    """Every record of a commit log with its place, up to the first place without one."""
    for first, path in files_of(folder):
        data, at = path.read_bytes(), 0
        while True:
            size, magic = struct.unpack_from(">iI", data, at)
            if magic == MAGIC_BLANK:
                break
            if size == magic == 0:
                return
            yield first + at, check_record(data[at : at + size])
            at += size


def iter_units(folder: Path) -> Iterator[Unit]:
    """The units of one queue's folder, up to the first one without a size."""
    for first, path in files_of(folder):
        for n, unit in enumerate(struct.iter_unpack(">qiq", path.read_bytes()), first // UNIT_SIZE):
            if unit[1] <= 0:
                return
            yield Unit(n, *unit)


def derive_units(log: Iterator[tuple[int, Record]]) -> dict[tuple[str, int], list[Unit]]:
    """The units that a log of plain messages implies, by topic and queue id."""
    queues: dict[tuple[str, int], list[Unit]] = {}
    for place, record in log:
        code = java_hash(record.property_map.get("TAGS", ""))
        unit = Unit(record.queue_offset, place, record.size, code)
        queues.setdefault((record.topic_name, record.queue_id), []).append(unit)
    return queues


def query_index(folder: Path, slots: int, topic: str, key: str) -> list[int]:
    """The first 64 physical offsets filed under the hash of topic#key, the newest file first."""
    key_hash = abs(java_hash(f"{topic}#{key}")) & 0x7FFFFFFF
    found: list[int] = []
    for _, path in reversed(files_of(folder)):
        data = path.read_bytes()
        (number,) = struct.unpack_from(">i", data, INDEX_HEADER + 4 * (key_hash % slots))
        while number:
            entry = INDEX_HEADER + 4 * slots + INDEX_ENTRY * number
            filed, physical, _, number = struct.unpack_from(">iqii", data, entry)
            if filed == key_hash:
                found.append(physical)
    return found[:64]
