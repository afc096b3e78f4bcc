"""Records taken apart by the C core (csrc/format/fields.h), for whoever has their bytes.

The layout stands in csrc/format/layout.h alone. Python takes places in a record from here, or, for
what stands before the hosts, by its names from ``lib``.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from pystore.native import ffi, lib

__all__ = ["CHECK_BODY", "HEAD_LEN", "MAGIC_HEAD", "ROW_SIZE", "Buffer", "RecordHead",
           "blank_size", "check_record", "head_of", "read_records", "record_at", "record_head",
           "record_size"]  # fmt: skip

Buffer = bytes | bytearray | memoryview

#: Of check_record and read_records: the body must fit its CRC.
CHECK_BODY = int(lib.PS_CHECK_BODY_CRC)
#: Bytes that tell the kinds of records apart, and all that is written of a blank.
HEAD_LEN = int(lib.PS_HEAD_LEN)
#: What both kinds of records have at lib.PS_AT_MAGIC.
MAGIC_HEAD = lib.PS_MAGIC_V1.to_bytes(4, "big")[:3]
assert lib.PS_MAGIC_V2.to_bytes(4, "big")[:3] == MAGIC_HEAD
_ROWS = 64
_STORE_HOST = int(lib.PS_MIDDLE_STORE_HOST)


class RecordHead(NamedTuple):
    """ps_fields. Names that end with _at, _start or _end, at and end: places in what was read.

    host: of the broker that stored it, 4 or 16 address bytes and the port. tags_len: -1 when there
    are none. magic: PS_MAGIC_V1 or PS_MAGIC_V2.
    """

    queue_offset: int
    physical_offset: int
    born_ms: int
    store_ms: int
    prepared_offset: int
    at: int
    end: int
    host_at: int
    body_start: int
    body_end: int
    topic_at: int
    properties_at: int
    tags_at: int
    host_len: int
    topic_len: int
    properties_len: int
    tags_len: int
    queue: int
    flag: int
    sys_flag: int
    reconsume_times: int
    body_crc: int
    magic: int

    @property
    def born_host_end(self) -> int:
        """The end of the producer's host, which begins at lib.PS_AT_BORN_HOST."""
        return self.host_at - _STORE_HOST


_ROW = struct.Struct("@13q9iI")
ROW_SIZE = _ROW.size
_ROW_TYPE, _ROWS_TYPE = ffi.typeof("ps_fields *"), ffi.typeof("ps_fields[]")
_INT64 = ffi.typeof("int64_t *")
assert ffi.sizeof("ps_fields") == ROW_SIZE


def head_of(rows: bytes, index: int) -> RecordHead:
    """Returns the head of a record. rows: of ps_fields_read."""
    return RecordHead._make(_ROW.unpack_from(rows, index * ROW_SIZE))


def read_records(data: Buffer, at: int = 0, *, checks: int = 0) -> list[RecordHead]:
    """Returns the whole records that stand at `at` and after it, one after the other, _ROWS at
    most.

    checks: 0 or CHECK_BODY.
    """
    rows, used = ffi.new(_ROWS_TYPE, _ROWS), ffi.new(_INT64)
    raw = ffi.from_buffer(data)
    count = lib.ps_fields_read(raw, at, len(data), checks, rows, _ROWS, used)
    known = ffi.buffer(rows, count * ROW_SIZE)[:]
    return [RecordHead._make(row) for row in _ROW.iter_unpack(known)]


def check_record(data: Buffer, *, checks: int = 0) -> RecordHead | None:
    """Returns the fields of the record that these bytes are; None when they are not one, or
    more."""
    row = ffi.new(_ROW_TYPE)
    if lib.ps_fields_check(ffi.from_buffer(data), len(data), checks, row) < 0:
        return None
    return RecordHead._make(_ROW.unpack(ffi.buffer(row)))


def record_head(record: Buffer) -> RecordHead:
    """Returns the fields of a whole record. Raises: ValueError when it is not one."""
    head = check_record(record)
    if head is None:
        raise ValueError("not a whole record")
    return head


def record_size(data: Buffer) -> int | None:
    """Returns the bytes that a record which begins like this says that it has; None: none begins
    so."""
    size = lib.ps_fields_size(ffi.from_buffer(data), len(data))
    return None if size < 0 else int(size)


def blank_size(data: Buffer) -> int | None:
    """Returns the bytes up to the segment's end, as the blank says that begins like this; None:
    none does."""
    size = lib.ps_fields_blank_size(ffi.from_buffer(data), len(data))
    return None if size < 0 else int(size)


def record_at(fd: int, at: int) -> tuple[bytes, RecordHead] | None:
    """Returns the whole record at a place of an open file, its sums not looked at; None: none
    stands there.

    Raises: OSError.
    """
    size = record_size(os.pread(fd, HEAD_LEN, at))
    if size is None or size > os.fstat(fd).st_size - at:
        return None
    data = os.pread(fd, size, at)
    head = check_record(data)
    return None if head is None else (data, head)
