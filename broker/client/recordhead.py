"""The fields of a received record, as the C core has found them (csrc/remoting/client.h)."""

from __future__ import annotations

import struct
from typing import NamedTuple

from pystore.native import ffi

__all__ = ["ROW_SIZE", "RecordHead", "head_of"]


class RecordHead(NamedTuple):
    """ps_received. Names that end with _at, _start or _end: places in the answer's body."""

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


_ROW = struct.Struct("@13q8i")
ROW_SIZE = _ROW.size
assert ffi.sizeof("ps_received") == ROW_SIZE


def head_of(rows: bytes, index: int) -> RecordHead:
    """rows: of ps_client_records."""
    return RecordHead._make(_ROW.unpack_from(rows, index * ROW_SIZE))
