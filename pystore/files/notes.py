"""Small files in a store's root, taken apart by the C core: notes of our own, and the checkpoint
(csrc/files/notes.h, csrc/files/checkpoint.h)."""

from __future__ import annotations

import os
from typing import NamedTuple

from pystore.native import ffi, lib

__all__ = ["CHECKPOINT_SIZE", "CheckpointTimes", "checkpoint_times", "is_note", "noted_queues",
           "tombstones_of", "tombstones_without"]  # fmt: skip

CHECKPOINT_SIZE = int(lib.PS_CHECKPOINT_SIZE)


class CheckpointTimes(NamedTuple):
    """Store times of what is known to be on the disk: of the log, of queues, of the index."""

    physic_ms: int
    logics_ms: int
    index_ms: int


def checkpoint_times(data: bytes) -> CheckpointTimes:
    """Returns the times in the bytes of a checkpoint; zeros where they are too few."""
    made = ffi.new("ps_checkpoint *")
    lib.ps_checkpoint_parse(ffi.from_buffer(data), len(data), made)
    return CheckpointTimes(
        made.physic_msg_timestamp, made.logics_msg_timestamp, made.index_msg_timestamp
    )


def is_note(data: bytes, *magics: int) -> bool:
    """Says whether these are the bytes of a note of one of these kinds, with the right sum."""
    raw = ffi.from_buffer(data)
    return any(lib.ps_note_good(raw, len(data), magic) for magic in magics)


def noted_queues(data: bytes) -> list[tuple[str, int]]:
    """Returns topic and id of each queue that the bytes of ``queueEnds`` name (csrc/store/ends.c);
    none when they are not such a note."""
    if not is_note(data, lib.PS_NOTE_ENDS):
        return []
    raw, at, row = ffi.from_buffer(data), ffi.new("int64_t *"), ffi.new("ps_noted_end *")
    found = list[tuple[str, int]]()
    at[0] = lib.PS_NOTED_ENDS
    while lib.ps_noted_end_next(raw, len(data), at, row) > 0:
        name = data[row.name_at : row.name_at + row.name_len]
        found.append((os.fsdecode(name), int(row.queue)))
    return found


def tombstones_of(data: bytes) -> list[tuple[str, int]] | None:
    """Returns the deleted topics, and the places of the log where they were deleted; None when the
    bytes are not such a list."""
    if not is_note(data, lib.PS_NOTE_TOMBSTONES):
        return None
    raw, at, row = ffi.from_buffer(data), ffi.new("int64_t *"), ffi.new("ps_tombstone *")
    found: list[tuple[str, int]] = []
    at[0] = lib.PS_NOTE_HEAD
    while (more := lib.ps_tombstone_next(raw, len(data), at, row)) > 0:
        name = data[row.name_at : row.name_at + row.name_len]
        found.append((os.fsdecode(name), int(row.below)))
    return found if more == 0 else None


def tombstones_without(data: bytes, topics: set[str]) -> bytes:
    """Returns the list without some topics; empty when no other is left, or when it is not such a
    list."""
    kept = [row for row in tombstones_of(data) or () if row[0] not in topics]
    if not kept:
        return b""
    made = ffi.new("uint8_t[]", len(data))
    end = int(lib.PS_NOTE_HEAD)
    for topic, below in kept:
        name = os.fsencode(topic)
        end += lib.ps_tombstone_put(made + end, below, name, len(name))
    lib.ps_note_seal(made, end, lib.PS_NOTE_TOMBSTONES)
    return bytes(ffi.buffer(made, end))
