"""``pystore.audit.verify``: all checks of one store, in one call."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pystore import settings as _settings
from pystore.audit.core import CoreAudit, Key, SegmentFacts
from pystore.audit.delays import with_own_levels
from pystore.audit.findings import Audit, Finding, Severity
from pystore.audit.kinds import (
    CheckpointFinding,
    DeletedMessagesFinding,
    DeletedTopicFinding,
    GhostUnitsFinding,
    IndexGhostsFinding,
    IndexSizeFinding,
    IndexSlotsFinding,
    LightDamagedFinding,
    LightFault,
    LightNamesFinding,
    LightUnitsFinding,
    MissingKeysFinding,
    MissingSegmentFinding,
    MissingUnitsFinding,
    NotDispatchedFinding,
    SameOffsetFinding,
    StrayFileFinding,
    StrayReason,
    TornTailFinding,
    UnitsBeyondFinding,
)
from pystore.audit.layout import Layout, check_folders, is_circle, look
from pystore.audit.metadata import (
    Beside,
    believable,
    check_checkpoint,
    check_offsets,
    lost_light_queues,
    read_beside,
)
from pystore.audit.nextopen import NextOpen
from pystore.format.names import LIGHT_PREFIX
from pystore.native import ffi, lib
from pystore.settings import Settings

__all__ = ["verify"]

#: A log begun so recently may have no file of a queue or the index yet, a file no size yet.
_YOUNG_S = 60


def verify(
    path: str | os.PathLike[str],
    conf: str | os.PathLike[str] | None = None,
    *,
    jobs: int = 0,
    deep: bool = False,
    held: bool = False,
    core: Callable[..., CoreAudit] = CoreAudit,
    progress: Callable[[str, int, int], None] | None = None,
    **settings: Any,
) -> Audit:
    """Checks every file of a store: live, stopped or crashed, ours or a Java broker's.

    Nothing is locked, mapped or written, and no time stamp of a file changes. The log is compared
    with queues and index both ways, and all of it with the metadata.

    `path` is the folder that holds ``commitlog/``. `conf` and `settings` are as
    :func:`pystore.open` takes them. `jobs` is the number of threads; 0 means one for each
    processor. With `deep` each unit is compared with its record, also where the counts agree.
    `progress` is called with a phase ("queues", "log", "units"), what is done and the total. `held`
    means that this process holds the store's lock. `core` carries out the checks of log, queues and
    index; pystore.audit.parts spreads them over processes.

    A writer goes on, deletes and makes files while they are looked at one after the other, and what
    was seen at different times may not fit together. What is damaged there is so at a second look,
    too: of a store that was live, or that somebody opened meanwhile, only that is a finding.

    Raises: NotAStore, BadArgument, Forbidden, StoreIOError. Damage is a finding, never an error."""
    started = time.monotonic()
    root = Path(path)
    given = _settings.load(conf, settings)
    told = progress or (lambda phase, done, total: None)
    state, marks = _state(root, held), _marks(root)
    audit = _look(root, given, jobs, deep, state, core, told)
    used = not held and (state == "live" or marks != _marks(root) or _state(root, held) != state)
    if used and any(f.severity > Severity.INFO for f in audit.findings):
        first = {_what(f) for f in audit.findings}
        audit = _look(root, given, jobs, deep, "live", core, told)
        audit.findings = [
            f for f in audit.findings if f.severity == Severity.INFO or _what(f) in first
        ]
    audit.seconds = time.monotonic() - started
    return audit


def _marks(root: Path) -> list[tuple[int, int] | None]:
    """Returns what changes when a writer opens a store, and when it closes it."""
    marks: list[tuple[int, int] | None] = []
    for name in ("abort", "checkpoint"):
        try:
            info = (root / name).stat()
        except OSError:
            marks.append(None)
        else:
            marks.append((info.st_ino, info.st_mtime_ns))
    return marks


def _what(f: Finding) -> tuple[object, ...]:
    """Returns what a finding is about, however far it reaches."""
    return f.kind, f.file, f.topic, f.queue, f.start


def _look(
    root: Path,
    given: Settings,
    jobs: int,
    deep: bool,
    state: str,
    core: Callable[..., CoreAudit],
    told: Callable[[str, int, int], None],
) -> Audit:
    layout = look(root, given)
    given = with_own_levels(given, layout)
    audit = Audit(str(root), state)
    live = audit.state == "live"
    beside = read_beside(layout)
    _check_way(layout, beside)
    lost = set() if live else lost_light_queues(layout, beside)
    layout.queues.update((key, []) for key in lost)  # what the log has of them is missing
    steps = core(layout, given, audit, told)
    deleted = believable(layout, beside, closed=audit.state == "closed")
    for topic, physical in deleted:
        steps.forget(topic, physical)
    steps.queues()
    steps.index()
    steps.light()
    facts = steps.segments(jobs or os.cpu_count() or 1)
    refused = [] if live else steps.rivals()
    if not live:
        steps.recount(steps.differing(everywhere=deep))
    for key in lost:
        del layout.queues[key]
    audit.findings = [
        replace(f, folder_missing=True)
        if isinstance(f, MissingUnitsFinding) and (f.topic, f.queue) in lost else f
        for f in audit.findings
    ]  # fmt: skip
    _sum_up(audit, layout, facts, refused)
    _cut_off(audit, layout, facts, given)
    check_checkpoint(layout, max((f.last_time for f in facts), default=-1))
    ends = _ends(audit, steps.max_offsets())
    check_offsets(layout, beside, ends, audit.not_dispatched, live)
    indexed = bool(given["messageIndexEnable"])
    _pending(audit, layout, facts, indexed)
    _forgotten(audit, facts, deleted)
    found = [
        weighed
        for each in layout.findings + audit.findings
        if (weighed := _weigh(each, audit, layout, beside, indexed)) is not None
    ]
    audit.findings = (
        _promised(found, NextOpen(layout, facts)) if audit.state == "crashed" else found
    )
    audit.findings.sort(key=lambda f: (-f.severity, f.file, f.start or 0))
    return audit


def _check_way(layout: Layout, beside: Beside) -> None:
    """Finds what is in the way where an open would make the folder of a queue, or of a topic that
    is known."""
    for path in layout.in_the_way:
        of_topic = path.parent == layout.root / "consumequeue"
        known = beside.topics is None or path.name in beside.topics
        if not of_topic or known or is_circle(path):
            layout.found(StrayFileFinding, path, why=StrayReason.IN_A_QUEUES_PLACE)


def _ends(audit: Audit, ends: dict[Key, int]) -> dict[Key, int]:
    """Returns where queues end once they have what they lack of the log's records."""
    for f in audit.findings:
        if isinstance(f, MissingUnitsFinding) and f.topic is not None and f.queue is not None:
            key = f.topic, f.queue
            ends[key] = max(ends.get(key, 0), f.end or 0)
    return ends


def _state(root: Path, held: bool) -> str:
    if not held and lib.ps_lock_holder(ffi.NULL, os.fsencode(root)) != 0:
        return "live"
    return "crashed" if (root / "abort").exists() else "closed"


def _sum_up(
    audit: Audit, layout: Layout, facts: list[SegmentFacts], refused: list[Finding]
) -> None:
    audit.segments, audit.queues = len(layout.segments), len(layout.queues)
    audit.index_files = len(layout.index)
    audit.log_min = layout.log_min
    audit.log_max = max((f.end for f in facts if f.records or f.blank), default=layout.log_min)
    audit.bytes = sum(f.bytes for f in facts)
    audit.records = sum(f.records for f in facts)
    audit.segment_keys = [f.keys for f in facts]
    audit.keys = sum(audit.segment_keys)
    pending = min((f.pending_from for f in facts if f.pending_from >= 0), default=audit.log_max)
    audit.not_dispatched = sum(f.units_pending for f in facts) - sum(
        _place(f) >= pending for f in refused
    )
    audit.not_indexed = sum(f.keys_pending for f in facts)


def _place(f: Finding) -> int:
    """Returns where the record is that no open puts into a queue."""
    if isinstance(f, SameOffsetFinding):
        return f.hidden
    return -1 if f.start is None else f.start


def _cut_off(audit: Audit, layout: Layout, facts: list[SegmentFacts], given: Settings) -> None:
    """Finds segments that are missing after the last one: it is full, and units point to what came
    after it. A writer that is at work has made them since the folders were listed."""
    if audit.state == "live" or not facts or not facts[-1].blank:
        return
    size = layout.segment_size
    end = layout.segments[-1].number + size
    beyond = [f.points_to for f in audit.findings
              if isinstance(f, UnitsBeyondFinding) and f.points_to >= end]  # fmt: skip
    if facts[-1].end != end or not beyond:
        return
    until = end + ((max(beyond) - end) // size + 1) * size
    layout.found(MissingSegmentFinding, f"commitlog/{end:020d}", start=end, end=until)
    check_folders(layout, given.commitlog_dirs(layout.root))


def _pending(audit: Audit, layout: Layout, facts: list[SegmentFacts], indexed: bool) -> None:
    """Finds the end of the log that queues or index do not hold. That is normal unless the store
    was closed, or unless there are no derived files at all although its writer has had the time to
    make some."""
    began = min((f.first_time for f in facts if f.records), default=0)
    if audit.state == "live" and _young(began / 1000):
        return
    if audit.not_dispatched and (audit.state == "closed" or not layout.queues):
        start = min(f.pending_from for f in facts if f.pending_from >= 0)
        audit.findings.append(
            NotDispatchedFinding(file=layout.segment_of(start), start=start, end=audit.log_max,
                                 count=audit.not_dispatched)
        )  # fmt: skip
    if indexed and audit.not_indexed and (audit.state == "closed" or not layout.index):
        start = min(f.keys_pending_from for f in facts if f.keys_pending_from >= 0)
        audit.findings.append(
            MissingKeysFinding(file=layout.segment_of(start), start=start, end=audit.log_max,
                               count=audit.not_indexed)
        )  # fmt: skip


def _forgotten(audit: Audit, facts: list[SegmentFacts], deleted: list[tuple[str, int]]) -> None:
    """Finds what the list of deleted topics hides: nobody else would miss the messages if it were
    another store's."""
    count = sum(f.forgotten for f in facts)
    if count:
        audit.findings.append(
            DeletedMessagesFinding(file="deletedTopics", count=count, tombstones=tuple(deleted))
        )


def _weigh(
    f: Finding, audit: Audit, layout: Layout, beside: Beside, indexed: bool
) -> Finding | None:
    """Returns a finding as the state of the store makes it look, or None when it means nothing
    there."""
    live = audit.state == "live"
    if isinstance(f, TornTailFinding) and live:
        return None  # a record that is being written just now
    if isinstance(f, IndexSizeFinding) and live and f.end == 0:
        # Between its making and its first size, if it was made just now.
        return None if _in_the_making(layout.root / f.file) else f
    if isinstance(f, MissingUnitsFinding) and f.folder_missing:
        if live and (layout.root / f.file).parent.is_dir():
            return None  # made since the queues were listed
        known: Mapping[str, object] | set[str] | None = beside.topics
        light = f.topic is not None and f.topic.startswith(LIGHT_PREFIX)
        if known and f.topic not in known and not light:
            return DeletedTopicFinding(
                file=f.file, start=f.start, end=f.end, count=f.count, topic=f.topic,
                queue=f.queue, first_record=f.first_record,
            )  # fmt: skip
    if isinstance(f, MissingKeysFinding | IndexGhostsFinding) and not indexed:
        return None
    if isinstance(f, UnitsBeyondFinding) and audit.state != "closed" and layout.segments:
        # The log is cut where its last whole record ends; so are the queues, at the next open.
        return None if live else replace(f, severity=Severity.WARNING)
    if isinstance(f, LightUnitsFinding) and f.fault is LightFault.NO_RECORD and not live:
        # The log is cut before them: so are they, at the next open.
        after = audit.state == "crashed" and f.points_to >= audit.log_max
        return replace(f, severity=Severity.WARNING) if after else f
    if isinstance(f, GhostUnitsFinding) and audit.state == "crashed":
        after = f.points_to >= audit.log_max
        return replace(f, severity=Severity.WARNING) if after else f
    moving = (IndexSlotsFinding, CheckpointFinding, LightDamagedFinding, LightNamesFinding,
              LightUnitsFinding)  # fmt: skip
    return None if live and isinstance(f, moving) else f


def _promised(found: list[Finding], after: NextOpen) -> list[Finding]:
    """Returns the findings of a crashed store: those that the next open mends say so."""
    if not after.succeeds(found):
        return found
    return [_mended(f) if after.mends(f) else f for f in found]


def _mended(f: Finding) -> Finding:
    """Returns a finding that the next open mends."""
    return replace(f, severity=min(f.severity, Severity.WARNING), open_mends=True)


def _young(time_s: float) -> bool:
    return abs(time.time() - time_s) < _YOUNG_S


def _in_the_making(path: Path) -> bool:
    """Returns whether a file was written, or removed, just now."""
    try:
        return _young(path.stat().st_mtime)
    except FileNotFoundError:
        return True
