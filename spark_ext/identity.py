"""Which store an offset belongs to: what a copy of a store keeps and a new store does not have.

That is the log itself: the first records of its newest segments, each by its place and by what no
two stores write alike (topic, queue, times, sizes). Nothing is added to a store for it; a copy, a
replica and a restored archive have the same records, and retention deletes the newest segments
last. An offset of a stream holds two for each store (stream.py). One that cannot be read, or that
retention has deleted, proves nothing; one that is there and differs is of another store.
"""

from __future__ import annotations

import enum
import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pystore

__all__ = ["Identity", "Kinship", "aged", "compare", "identity_of", "outlived"]

#: (byte of the log, digest of the record there), the newest first; empty: the store had no record.
Identity = tuple[tuple[int, str], ...]
#: So many records a store: damage of one leaves the other, and so does a crash that takes the
#: newest segment.
KEPT = 2
#: Segments that are looked into for them.
LOOKED_AT = 8


class Kinship(enum.Enum):
    """What a store is to the one that an identity was taken of."""

    SAME = "same"
    OTHER = "other"
    UNKNOWN = "unknown"


def identity_of(reader: pystore.Reader) -> Identity:
    """Returns the identity of a store as it is now. Costs a read of two records."""
    info = reader.info()
    size = info.commitlog_file_size
    newest = max(info.log_max - 1, 0) // size * size
    found = []
    for place in range(newest, max(info.log_min, newest - LOOKED_AT * size) - 1, -size):
        digest = _digest(reader, place)
        if digest is not None:
            found.append((place, digest))
        if len(found) == KEPT:
            break
    return tuple(found)


def compare(reader: pystore.Reader, known: Identity) -> Kinship:
    """Says whether a store is the one that an identity was taken of, or a copy of it."""
    digests = [(_digest(reader, place), digest) for place, digest in known]
    if not known or any(found == digest for found, digest in digests):
        return Kinship.SAME
    if any(found is not None for found, _ in digests):
        return Kinship.OTHER
    return Kinship.UNKNOWN


def aged(reader: pystore.Reader, known: Identity) -> bool:
    """Says whether retention comes near what an identity knows: it lies in the older half of the
    log."""
    info = reader.info()
    return bool(known) and known[0][0] + info.commitlog_file_size <= (
        info.log_min + (info.log_max - info.log_min) // 2
    )


def outlived(reader: pystore.Reader, known: Identity) -> bool:
    """Says whether retention has deleted what an identity knows, and with it each record that the
    log had when the identity was taken: the newest one known began the segment that was written."""
    return bool(known) and reader.info().log_min > known[0][0]


def _digest(reader: pystore.Reader, place: int) -> str | None:
    """Returns a digest of the record at a place; None where no whole record begins."""
    import pystore

    try:
        m = reader.message(place)
    except (pystore.StoreError, LookupError):
        return None
    facts = (
        m.topic, m.queue, m.queue_offset, m.size, m.body_crc, m.store_timestamp, m.born_timestamp,
    )  # fmt: skip
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
