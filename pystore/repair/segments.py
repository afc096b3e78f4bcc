"""Segments written again from records that are at hand: the log of a store that is restored.

Each record goes to its own place, so they may come in any order and from many processes. The files
are made at full length first, and closed with a blank when all records are there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from pystore.errors import RecordDamaged
from pystore.files import make_folders, new_file, sync_folder
from pystore.format.records import CHECK_BODY, check_record
from pystore.native import lib
from pystore.repair.census import Census
from pystore.repair.filler import blank

__all__ = ["join_record", "make_segments", "put_records"]


def join_record(envelope: bytes, body: bytes, place: int) -> bytes:
    """Returns the record of an envelope (a scan's column: the record without its body) and a body.

    `place` is its log offset. Raises: RecordDamaged when the two do not make the record of that
    place."""
    at = lib.ps_fields_body_at(envelope, len(envelope))
    record = b"".join((envelope[:at], body, envelope[at:]))
    head = check_record(record)
    if head is None or head.physical_offset != place:
        raise RecordDamaged("envelope and body do not make a record", offset=place)
    if check_record(record, checks=CHECK_BODY) is None:
        raise RecordDamaged("the CRC of the body differs", offset=place)
    return record


def make_segments(log: Path, size: int, ends: dict[int, int], mode: int) -> None:
    """Makes the segments of a log, of `size` bytes, zeros but for the blanks.

    `ends` maps the first byte of each segment to the end of its last record, both in the log. The
    last segment gets no blank. Raises: OSError; ValueError when a blank has no room."""
    make_folders(log, mode)
    for base in sorted(ends):
        with new_file(log / f"{base:020d}", mode) as file:
            file.truncate(size)
            if base != max(ends) and ends[base] - base < size:
                for at, data in blank(ends[base] - base, size):
                    file.seek(at)
                    file.write(data)
            file.flush()
            os.fsync(file.fileno())
    sync_folder(log)


def put_records(log: Path, size: int, records: Iterable[tuple[int, bytes, bytes]]) -> Census:
    """Puts (place, envelope, body) into the segments of make_segments; all is synced when it
    returns.

    Returns the records. Raises: OSError, RecordDamaged."""
    census = Census()
    files: dict[int, BinaryIO] = {}
    try:
        for place, envelope, body in records:
            base = place - place % size
            if base not in files:
                files[base] = (log / f"{base:020d}").open("r+b", buffering=0)
            record = memoryview(join_record(envelope, body, place))
            census.add(place, record)
            at = place - base
            while record:
                done = os.pwrite(files[base].fileno(), record, at)
                record, at = record[done:], at + done
        for file in files.values():
            os.fsync(file.fileno())
    finally:
        for file in files.values():
            file.close()
    return census
