"""Records whose header names another place than the unit that points to them.

No sum covers topic, queue id and queue offset of a record. A unit is derived and is never believed
over the log, so a header is written again only where the log itself has a gap that this record
fills: its neighbours in the queue agree with their units, stand before and after it, and nothing
else claims the place. Where queues were exchanged or their units moved, no neighbour agrees.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pystore.audit.kinds import RecordDisagreesFinding
from pystore.audit.layout import UNIT, File, Layout, file_of, record_of
from pystore.native import lib
from pystore.repair.filler import Patch
from pystore.repair.manifest import Action

__all__ = ["read_at", "restored"]


@dataclass(frozen=True, slots=True)
class _Claim:
    """What the record at `physical` says of itself; `topic_at` is where its topic's name is in the
    file."""

    file: File
    physical: int
    topic: bytes
    queue: int
    offset: int
    topic_at: int
    data: bytes


def read_at(path: Path, at: int, count: int) -> bytes:
    with path.open("rb") as file:
        return os.pread(file.fileno(), count, at)


def _claim(layout: Layout, physical: int) -> _Claim | None:
    file, found = file_of(layout, physical), record_of(layout, physical)
    if file is None or found is None or found[1].physical_offset != physical:
        return None
    data, head = found
    topic = data[head.topic_at : head.topic_at + head.topic_len]
    topic_at = physical - file.number + head.topic_at
    return _Claim(file, physical, topic, head.queue, head.queue_offset, topic_at, data)


def _unit(layout: Layout, topic: bytes, queue: int, offset: int) -> tuple[int, bytes] | None:
    """Returns the log offset to which a unit points, and the unit, or None when there is none."""
    base = offset * UNIT - offset * UNIT % layout.queue_file_size
    files = layout.queues.get((os.fsdecode(topic), queue), [])
    file = next((each for each in files if each.number == base), None)
    data = b"" if file is None or offset < 0 else read_at(file.path, offset * UNIT - base, UNIT)
    size = int.from_bytes(data[8:12], "big", signed=True)
    whole = len(data) == UNIT and size > 0
    return (int.from_bytes(data[:8], "big", signed=True), data) if whole else None


def _at(layout: Layout, topic: bytes, queue: int, offset: int) -> tuple[_Claim | None, bool]:
    """Returns the record to which the unit of a place points, and whether the unit names it: only
    then the place is that record's (csrc/queues/claims.h)."""
    unit = _unit(layout, topic, queue, offset)
    claim = None if unit is None else _claim(layout, unit[0])
    if unit is None or claim is None:
        return None, False
    named = lib.ps_audit_unit_names(
        unit[1], claim.data, len(claim.data), topic, len(topic), queue, offset
    )
    return claim, bool(named)


def _agreed(layout: Layout, topic: bytes, queue: int, offset: int) -> int | None:
    """Returns the log offset to which the unit points, when the record there says the same of
    itself."""
    claim, named = _at(layout, topic, queue, offset)
    return claim.physical if claim is not None and named else None


def _strange(layout: Layout, topic: bytes, queue: int, offset: int) -> bool:
    """Returns whether the unit points to a record of another place."""
    claim, named = _at(layout, topic, queue, offset)
    return claim is not None and not named


def _fits(layout: Layout, claim: _Claim) -> bool:
    """Returns whether the log may well be right: nothing else is at the place that the record
    claims, and the message before it is there."""
    if _agreed(layout, claim.topic, claim.queue, claim.offset) is not None:
        return False
    before = claim.offset - 1
    return before < 0 or _agreed(layout, claim.topic, claim.queue, before) is not None


def _fills_a_gap(layout: Layout, claim: _Claim, topic: bytes, queue: int, offset: int) -> bool:
    """Returns whether the log lacks the message at this place of the queue, and it can be this
    record."""
    if (_unit(layout, claim.topic, claim.queue, claim.offset) or (-1,))[0] == claim.physical:
        return False  # delivered where it says
    before, after = (_agreed(layout, topic, queue, offset + by) for by in (-1, 1))
    if any(_strange(layout, topic, queue, offset + by) for by in (-1, 1)):
        return False
    if (before or 0) > claim.physical or (after is not None and after < claim.physical):
        return False
    if after is not None and (before is not None or offset == 0):
        return True
    # At an end of the queue a gap cannot be seen.
    return (before is not None or after is not None) and not _fits(layout, claim)


def restored(layout: Layout, f: RecordDisagreesFinding) -> Action | None:
    """Returns the header of a record that disagrees with its unit, as the unit has it. It is None
    where the record is right, or where nobody can tell: then the log is believed."""
    physical = f.points_to
    claim = _claim(layout, physical)
    if claim is None or f.topic is None or f.queue is None or f.start is None:
        return None
    topic = os.fsencode(f.topic)
    if len(claim.topic) != len(topic):
        return None
    if not _fills_a_gap(layout, claim, topic, f.queue, f.start):
        return None
    at = physical - claim.file.number
    patches: list[Patch] = [
        (at + lib.PS_AT_QUEUE_ID, f.queue.to_bytes(4, "big")),
        (at + lib.PS_AT_QUEUE_OFFSET, f.start.to_bytes(8, "big")),
        (claim.topic_at, topic),
    ]
    what = f"give the record at {physical} its topic, queue and offset back, as its queue has them"
    new = [[place, data.hex()] for place, data in patches]
    return Action("patch", layout.name(claim.file.path), what, {"new": new})
