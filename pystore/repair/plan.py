"""From findings to actions: what a repair of this store consists of."""

from __future__ import annotations

import os

from pystore.audit import Audit, Finding, Severity, describe
from pystore.audit.kinds import (
    AccessDbFinding,
    BadQueueOffsetFinding,
    CheckpointFinding,
    ConfigBakFinding,
    ConfigJsonFinding,
    DamagedRecordFinding,
    DoubleSegmentFinding,
    ForeignUnitFinding,
    GhostUnitsFinding,
    IndexChainFinding,
    IndexGhostsFinding,
    IndexHeaderFinding,
    IndexSizeFinding,
    IndexSlotsFinding,
    KeptElsewhereFinding,
    LightMissingFinding,
    LightUnitsFinding,
    LogFolderFinding,
    LogHoleFinding,
    MetadataDbFinding,
    MisnamedSegmentFinding,
    MissingKeysFinding,
    MissingSegmentFinding,
    MissingUnitsFinding,
    NoQueueFinding,
    NotAFileFinding,
    NotDispatchedFinding,
    OffsetPastEndFinding,
    OwnNoteFinding,
    QueueFileSizeFinding,
    QueueGapFinding,
    QueueStrayFinding,
    RecordDisagreesFinding,
    RecordsAfterBlankFinding,
    SameOffsetFinding,
    SegmentSizeFinding,
    ShortBlankFinding,
    StrayFileFinding,
    TombstonesFinding,
    TornTailFinding,
    UnitOrderFinding,
    UnitsBeyondFinding,
    UnitSizeFinding,
    UnitTagsFinding,
    ZeroUnitsFinding,
)
from pystore.audit.layout import GAP_MOST, File, Layout, file_of, last_with_data, record_of
from pystore.errors import MissingSegment, StoreError, StrayFile
from pystore.files.aside import Piece, kept_aside
from pystore.files.elsewhere import refusal
from pystore.files.notes import tombstones_without
from pystore.format.names import LIGHT_PREFIX
from pystore.format.records import HEAD_LEN, record_size
from pystore.meta.accessfiles import has_access_copy
from pystore.meta.configfiles import SECTIONS
from pystore.repair.disagreeing import read_at, restored
from pystore.repair.filler import SMALLEST, Patch, blank, filler
from pystore.repair.manifest import Action

__all__ = ["keep_rivals", "make_plan", "refuse_unclear", "set_back_offsets",
           "set_lights_aside"]  # fmt: skip

#: Findings that replace a stretch of the log by one record.
_STRETCHES = (DamagedRecordFinding, LogHoleFinding, RecordsAfterBlankFinding, NoQueueFinding,
              BadQueueOffsetFinding)  # fmt: skip
#: Findings that mean the queues must be made again.
_QUEUES = (
    MissingUnitsFinding, NotDispatchedFinding, ForeignUnitFinding, UnitSizeFinding,
    UnitTagsFinding, ZeroUnitsFinding, GhostUnitsFinding, UnitsBeyondFinding, UnitOrderFinding,
    QueueGapFinding, QueueFileSizeFinding, QueueStrayFinding, MissingSegmentFinding,
    SegmentSizeFinding, TombstonesFinding, RecordDisagreesFinding, *_STRETCHES,
)  # fmt: skip
_INDEX = (
    IndexHeaderFinding, IndexChainFinding, IndexSlotsFinding, IndexGhostsFinding,
    MissingKeysFinding, IndexSizeFinding, MissingSegmentFinding, SegmentSizeFinding,
    RecordDisagreesFinding, *_STRETCHES,
)  # fmt: skip


def _time_at(layout: Layout, physical: int) -> int:
    """Returns the store time of the record there in ms, or 0 when there is none."""
    found = record_of(layout, physical)
    return 0 if found is None else max(found[1].store_ms, 0)


def _patch(layout: Layout, file: File, patches: list[Patch], what: str) -> Action:
    new = [[at, data.hex()] for at, data in patches]
    return Action("patch", layout.name(file.path), what, {"new": new})


def _stretch(layout: Layout, f: Finding) -> Action | None:
    """Returns one record, or the blank, for the place of damage, or None when there is no room for
    either."""
    file = None if f.start is None else file_of(layout, f.start)
    if file is None or f.start is None or f.end is None:
        return None
    at, size = f.start - file.number, f.end - f.start
    whole = layout.segment_size
    if f.end - file.number >= min(file.size, whole):
        if whole - at < 8:
            return None
        text = f"end the segment at {f.start}: {size} damaged bytes stay after the blank"
        return _patch(layout, file, blank(at, whole), text)
    if size < SMALLEST:
        return None
    time = _time_at(layout, f.end)
    patches = filler(at, size, f.start, time, lambda a, n: read_at(file.path, a, n))
    what = f"make {size} damaged bytes at {f.start} one record that no queue delivers"
    return _patch(layout, file, patches, what)


def _closed(layout: Layout, audit: Audit, f: Finding) -> list[Action]:
    """Returns the blank of a segment that is cut where a record ends, or emptied, before another
    one that holds records: it would have a hole once it is as long as the others. Where files that
    were made ahead alone follow, the log ends in it."""
    before = layout.segments[: last_with_data(layout)]
    file = next((s for s in before if layout.name(s.path) == f.file), None)
    if file is None or layout.segment_size - file.size < 8:
        return []
    ends = [f for f in audit.findings if isinstance(f, (*_STRETCHES, ShortBlankFinding))]
    if any(each.end == file.number + file.size for each in ends):
        return []
    text = f"end the segment at {file.number + file.size}: what followed is gone"
    return [_patch(layout, file, blank(file.size, layout.segment_size), text)]


def _segments(layout: Layout, audit: Audit) -> list[Action]:
    """Plans the log, from its beginning: sizes, gaps, then damage."""
    actions = []
    for f in sorted(audit.findings, key=lambda f: f.start or 0):
        if isinstance(f, SegmentSizeFinding):
            text = f"give the segment its {layout.segment_size} bytes"
            actions.append(Action("resize", f.file, text, {"size": layout.segment_size}))
            actions += _closed(layout, audit, f)
        elif isinstance(f, MissingSegmentFinding) and f.start is not None and f.end is not None:
            folder = layout.name(layout.segments[0].path.parent)
            new = [[at, data.hex()] for at, data in blank(0, layout.segment_size)]
            for base in range(f.start, f.end, layout.segment_size):  # GAP_MOST at most
                actions.append(
                    Action("create", f"{folder}/{base:020d}", "put an empty segment into the gap",
                           {"size": layout.segment_size, "new": new})
                )  # fmt: skip
    overwritten = {f.start for f in audit.findings if isinstance(f, RecordsAfterBlankFinding)}
    # A record claims this offset by itself: then it is the unit that is wrong.
    claimed = {(f.topic, f.queue, f.start) for f in audit.findings
               if isinstance(f, ForeignUnitFinding | SameOffsetFinding)}  # fmt: skip
    disagree = [f for f in audit.findings if isinstance(f, RecordDisagreesFinding)
                and (f.topic, f.queue, f.start) not in claimed]  # fmt: skip
    # What was left out of the findings may be the record that claims the place.
    mended = {} if audit.dropped else {
        f.points_to: made for f in disagree if (made := restored(layout, f)) is not None
    }  # fmt: skip
    places = set(mended)
    for f in sorted(audit.findings, key=lambda f: f.start or 0):
        made = None
        if isinstance(f, RecordDisagreesFinding):
            made = mended.pop(f.points_to, None) if f in disagree else None
        elif isinstance(f, _STRETCHES) and f.start not in places:
            made = _stretch(layout, f)
        elif isinstance(f, ShortBlankFinding | TornTailFinding):
            made = _end(layout, f, overwritten)
        if made is not None:
            actions.append(made)
    return actions


def _end(layout: Layout, f: Finding, overwritten: set[int | None]) -> Action | None:
    """Returns the end of a segment, or of the log."""
    file = None if f.start is None else file_of(layout, f.start)
    if file is None or f.start is None or f.end is None:
        return None
    if isinstance(f, TornTailFinding):
        text = f"clear {f.end - f.start} bytes at {f.start} that are not a whole record"
        data = {"start": f.start - file.number, "end": f.end - file.number}
        return Action("zero", f.file, text, data)
    if f.start in overwritten:
        return None
    patches = blank(f.start - file.number, layout.segment_size)
    return _patch(layout, file, patches, "let the blank reach the end of its file")


def _configs(layout: Layout, audit: Audit) -> list[Action]:
    actions = []
    config = layout.root / "config"
    blocked = os.path.lexists(config) and not config.is_dir()
    if blocked:
        actions.append(Action("move", "config", "move it aside: it stands where the folder of the"
                              " configuration belongs"))  # fmt: skip
    for f in audit.findings:
        path = layout.root / f.file
        if isinstance(f, ConfigJsonFinding) and not blocked:
            backup = path.with_name(path.name + ".bak")
            section = next((s for s in SECTIONS.values() if s.file == path.name), None)
            content = None
            if section is not None and backup.is_file():
                try:
                    content = backup.read_bytes()
                    section.loads(content)
                except (OSError, ValueError):
                    content = None
            if content:
                actions.append(Action("replace", f.file, f"restore it from {backup.name}",
                                      {"content": content.hex()}))  # fmt: skip
            else:
                actions.append(Action("move", f.file, "move it aside: it is made again at the next"
                                      " open from what is known"))  # fmt: skip
        elif isinstance(f, MetadataDbFinding):
            actions.append(Action("move", "meta", "move the database aside: the next open makes it"
                                  " again from config/*.json and the log"))  # fmt: skip
        elif isinstance(f, AccessDbFinding) and has_access_copy(layout.root):
            actions.append(Action("move", f.file, "move the database of users aside: the next start"
                                  " makes it again from its copy"))  # fmt: skip
        elif isinstance(f, DoubleSegmentFinding) and f.equal:
            actions.append(Action("move", f.file, "move the second copy of a segment aside"))
        elif isinstance(f, StrayFileFinding | OwnNoteFinding) or (
            isinstance(f, ConfigBakFinding) and f.severity is Severity.ERROR and not blocked
        ):
            actions.append(Action("move", f.file, "move the file aside"))
    return actions + _tombstones(layout, audit)


def _tombstones(layout: Layout, audit: Audit) -> list[Action]:
    """Plans the list of deleted topics without those that were not deleted in this store."""
    found = [f for f in audit.findings if isinstance(f, TombstonesFinding)]
    if not found:
        return []
    wrong = {f.topic for f in found if f.topic is not None}
    left = b"" if any(f.topic is None for f in found) else tombstones_without(
        (layout.root / "deletedTopics").read_bytes(), wrong
    )  # fmt: skip
    if not left:
        return [Action("move", "deletedTopics", "move the file aside")]
    text = f"take {', '.join(sorted(wrong))} out of it"
    return [Action("replace", "deletedTopics", text, {"content": left.hex()})]


def set_back_offsets(layout: Layout, audit: Audit) -> list[Action]:
    """Sets back committed offsets past the end of their queues, in the file that Java reads,
    too."""
    found = [f for f in audit.findings if isinstance(f, OffsetPastEndFinding)]
    path = layout.root / "config" / "consumerOffset.json"
    if not found or not path.is_file():
        return []
    section = SECTIONS["offsets"]
    try:
        parts = section.loads(path.read_bytes())
    except (OSError, ValueError):
        return []
    changed = 0
    for f in found:
        for pair, rows in parts.rows.items():
            if pair.partition("@")[0] == f.topic and rows.get(f.queue, -1) > (f.start or 0):
                rows[f.queue] = f.start
                changed += 1
    if not changed:
        return []
    content = section.dumps(parts).hex()
    text = f"set {changed} committed offsets back to the ends of their queues"
    return [Action("replace", layout.name(path), text, {"content": content})]


def keep_rivals(layout: Layout, audit: Audit) -> list[Action]:
    """Keeps a copy of each record that no queue delivers since another one has its queue offset:
    the log holds it only until retention deletes its segment."""
    there = kept_aside(layout.root)
    pieces: list[Piece] = []
    for f in audit.findings:
        if not isinstance(f, SameOffsetFinding):
            continue
        file = file_of(layout, f.hidden)
        if file is None:
            continue
        name, at = layout.name(file.path), f.hidden - file.number
        if (name, at) not in there:
            pieces.append((name, at, record_size(read_at(file.path, at, HEAD_LEN)) or 0))
    if not pieces:
        return []
    text = f"copy {len(pieces)} records aside: others have their queue offsets and are delivered"
    why = "another record has its queue offset"
    return [Action("keep", "", text, {"pieces": [list(p) for p in pieces], "why": why})]


def set_lights_aside(layout: Layout) -> list[Action]:
    """Returns what has the next open make the light queues again. The names stay: they know of
    queues whose records are gone where each goes on."""
    what = "move the units of light queues aside: the next open makes them again from the log"
    return [Action("move", layout.name(file.path), what) for file in layout.lights or ()]


def refuse_unclear(audit: Audit) -> None:
    """Refuses what is not clear. What lies in a folder that is not mounted is not lost, and of two
    files for one place nobody but their owner knows which is the log's; one with a wrong name is
    whole under its own. Something in the place of `abort` does not say whether the store was
    closed.

    Raises: MissingSegment, StrayFile."""
    error: StoreError
    for f in audit.findings:
        what = describe(f)
        if isinstance(f, LogFolderFinding):
            error = MissingSegment(f"a folder of the log is missing ({what})", f.file)
        elif isinstance(f, DoubleSegmentFinding) and not f.equal:
            error = MissingSegment(f"two folders of the log have this segment ({what})", f.file)
        elif isinstance(f, MisnamedSegmentFinding):
            error = MissingSegment(f"a segment has another's name ({what})", f.file)
        elif isinstance(f, NotAFileFinding):
            error = StrayFile(what, f.file)
        elif isinstance(f, KeptElsewhereFinding):
            raise refusal(f.what, f.file, f.mend_by)
        else:
            continue
        error.next_step = f"nothing was changed; {f.fix}"
        raise error


def _refuse_wide_gap(layout: Layout, audit: Audit) -> None:
    """Refuses a log in which so much is missing that it is two logs rather than one. Raises:
    MissingSegment."""
    for f in audit.findings:
        if isinstance(f, MissingSegmentFinding) and f.start is not None and f.end is not None:
            missing = -(-(f.end - f.start) // max(1, layout.segment_size))
            if missing > GAP_MOST:
                after = layout.segment_of(f.end)
                error = MissingSegment(f"{missing} segments are missing before it", after)
                error.next_step = (
                    "nothing was changed; this is not a gap of one log: move what does not belong"
                    " to it elsewhere, or salvage each part by itself"
                )
                raise error


def _lost_lights(layout: Layout, audit: Audit) -> list[str]:
    """Returns light queues that the log has records of, and that have no folder."""
    missing = {f.topic for f in audit.findings if isinstance(f, MissingUnitsFinding)}
    return sorted(topic for topic in missing if topic is not None
                  and topic.startswith(LIGHT_PREFIX) and (topic, 0) not in layout.queues
    )  # fmt: skip


def make_plan(layout: Layout, audit: Audit) -> list[Action]:
    """Returns the actions that mend what the audit found, in the order in which they are done.

    Raises: MissingSegment while a folder of the log is missing, a segment is there twice or has the
    name of another, or more than GAP_MOST are missing in one place; StrayFile where the file
    `abort` belongs."""
    refuse_unclear(audit)
    _refuse_wide_gap(layout, audit)
    actions = _configs(layout, audit) + _segments(layout, audit)
    names = []
    if any(isinstance(f, _QUEUES) for f in audit.findings):
        names.append("consumequeue")
    if any(isinstance(f, _INDEX) for f in audit.findings):
        names.append("index")
    if names or any(isinstance(f, CheckpointFinding) for f in audit.findings):
        names.append("checkpoint")
        actions.append(Action("rebuild", "", f"make {', '.join(names)} again from the log",
                              {"names": names, "lights": _lost_lights(layout, audit)})
        )  # fmt: skip
    if any(isinstance(f, LightMissingFinding | LightUnitsFinding) for f in audit.findings):
        actions += set_lights_aside(layout)
    if "consumequeue" not in names:  # else the new queues say where they end, and whom they deliver
        actions += set_back_offsets(layout, audit) + keep_rivals(layout, audit)
    return actions
