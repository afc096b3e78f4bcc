"""What lies beside the log: configuration files, the metadata database, checkpoint, tombstones."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pystore.audit.findings import Finding, Severity
from pystore.audit.kinds import (
    AccessDbFinding,
    CheckpointFinding,
    ConfigBakFinding,
    ConfigJsonFinding,
    ConfigValueFinding,
    FileFault,
    KeptAsideFinding,
    MetadataDbFinding,
    NotAFileFinding,
    NotCheckedFinding,
    OffsetPastEndFinding,
    OwnNoteFinding,
    SinkLedgerFinding,
    TombstonesFinding,
)
from pystore.audit.layout import File, Layout, is_circle
from pystore.audit.readdb import PackedQueues, read_access, read_meta
from pystore.errors import StoreError
from pystore.files.notes import (
    CHECKPOINT_SIZE,
    checkpoint_times,
    is_note,
    noted_queues,
    tombstones_of,
)
from pystore.files.quiet import open_quietly, read_quietly
from pystore.format.names import LIGHT_PREFIX
from pystore.format.units import NO_RECORD, UNIT, units_of
from pystore.meta import accessfiles
from pystore.meta._database import digest
from pystore.meta.accessfiles import AccessRows
from pystore.meta.configfiles import (
    LMQ_OFFSETS,
    RAW_FILES,
    SECTIONS,
    TopicConfig,
    check_json,
)
from pystore.native import lib

__all__ = [
    "Beside", "believable", "check_checkpoint", "check_offsets", "lost_light_queues",
    "read_beside",
]  # fmt: skip

_JSON_MAX = 256 << 20
_HOUR_MS = 3_600_000
_PIECE = UNIT.size << 10  # bytes of a queue that are read at once
#: Whatever is not such a note is made again at the next open.
_NOTES = {"queueEnds": (lib.PS_NOTE_ENDS,),
          "timers/state": (lib.PS_NOTE_TIMERS_OLD, lib.PS_NOTE_TIMERS)}  # fmt: skip
#: What must be files, and what is wrong with a store where they are not. Those of the last row are
#: a broker's, which meets their damage itself.
_FILES: tuple[tuple[tuple[str, ...], type[Finding], Severity], ...] = (
    (("lock", "abort"), NotAFileFinding, Severity.ERROR),
    (("meta/lock.mdb", "meta/owner", "access/lock.mdb"), OwnNoteFinding, Severity.ERROR),
    (("config/consumerOrderInfo.journal", "config/popCheckPoints.json", "config/timercheck",
      "config/transactionMetrics"), OwnNoteFinding, Severity.WARNING),
)  # fmt: skip


_Offsets = Mapping[str, "dict[int, int] | PackedQueues"]


@dataclass(slots=True)
class Beside:
    """What is known beside log, queues and index. `topics` are the names that any configuration
    knows, None when none could be read. `offsets` has the committed offset of a queue by
    ``topic@group``. `lights` are the light queues that a group has an offset of, in the file of a
    Java broker, too. `deleted` has topics and the log offsets before which their records belong to
    a deleted life."""

    topics: set[str] | None = None
    offsets: _Offsets = field(default_factory=dict)
    lights: set[str] = field(default_factory=set)
    deleted: list[tuple[str, int]] = field(default_factory=list)


def _decoded(
    layout: Layout, name: str, path: Path, known: Sequence[Collection[str]] = ((), ())
) -> Any:
    """Returns the parsed content of a configuration file, or None when it is missing or damaged, or
    when the database has its content. known: has the digests of what the database last wrote to or
    read from the file and its ``.bak``."""
    bak = path.with_name(path.name + ".bak")
    section = SECTIONS.get(name)
    parsed: Any = None
    in_database = False
    kinds = (path, ConfigJsonFinding, known[0]), (bak, ConfigBakFinding, known[1])
    for file, kind, digests in kinds:
        data = _content(layout, kind, file)
        if data is None:
            continue
        if not data:
            layout.found(kind, file, fault=FileFault.EMPTY)
            continue
        if digests and digest(data) in digests:
            in_database |= file is path
            continue
        try:
            if section is None:
                check_json(data)
                continue
            found = section.loads(data)
        except ValueError as bad:
            layout.found(kind, file, fault=FileFault.MALFORMED, detail=str(bad))
            continue
        if parsed is None:
            parsed = found
    return None if in_database else parsed


def _unread(layout: Layout, kind: type[Finding], path: Path, error: OSError) -> None:
    """Adds a finding for a file that cannot be read: it is damaged, unless only this user may not
    read it. No store opens where something else takes the place of one."""
    text = error.text if isinstance(error, StoreError) else error.strerror or str(error)
    if isinstance(error, PermissionError):
        layout.found(NotCheckedFinding, path, fault=FileFault.FORBIDDEN, detail=text)
    else:
        odd = os.path.lexists(path) and not path.is_file()
        heavy = Severity.ERROR if odd else kind.about.severity
        layout.found(kind, path, severity=heavy, fault=FileFault.UNREADABLE, detail=text)


def _content(
    layout: Layout, kind: type[Finding], path: Path, most: int = _JSON_MAX
) -> bytes | None:
    """Returns what a file holds; None: there is none, or it cannot be read, which is a finding."""
    try:
        return read_quietly(path, most)
    except OSError as error:
        _unread(layout, kind, path, error)
        return None


def _read_database(
    layout: Layout, folder: Path, kind: type[Finding], read: Callable[[Path], dict[str, Any]]
) -> dict[str, Any]:
    """Returns what `read` (readdb.py) finds, or {} when there is no database or it is damaged."""
    data = folder / "data.mdb"
    if os.path.lexists(folder) and not folder.is_dir():
        layout.found(kind, folder, fault=FileFault.NOT_A_DIRECTORY)
        return {}
    if is_circle(data):
        layout.found(kind, data, fault=FileFault.LINK_IN_A_CIRCLE)
        return {}
    try:
        if not data.exists() and not data.is_symlink():
            return {}
        found = read(folder)
    except OSError as error:
        _unread(layout, kind, data, error)
        return {}
    if "error" in found:
        layout.found(kind, data, fault=FileFault.MALFORMED, detail=found["error"])
        return {}
    return found


def _check_access(layout: Layout) -> None:
    """Compares the database of users and policies with its copy."""
    folder = layout.root / "access"
    path, copy = folder / accessfiles.COPY, None
    data = _content(layout, ConfigBakFinding, path)
    try:
        copy = None if data is None else AccessRows.from_file(data)
    except ValueError as bad:
        layout.found(ConfigBakFinding, path, fault=FileFault.MALFORMED, detail=str(bad))
    database = _read_database(layout, folder, AccessDbFinding, read_access)
    if copy is None or "copy" not in database:
        return
    if copy.contradicts(AccessRows.from_file(database["copy"].encode())):
        layout.found(AccessDbFinding, folder / "data.mdb", fault=FileFault.NOT_ITS_COPY)


def _read_tombstones(layout: Layout) -> list[tuple[str, int]]:
    path = layout.root / "deletedTopics"
    data = _content(layout, TombstonesFinding, path, 64 << 20)
    if data is None:
        return []
    found = tombstones_of(data)
    if found is None:
        layout.found(TombstonesFinding, path, fault=FileFault.WRONG_SUM)
    return found or []


def _first_place(layout: Layout, files: list[File]) -> int | None:
    """Returns where the first unit of a queue that is one points to, or None when it has none."""
    for file in files:
        with suppress(OSError), open_quietly(file.path) as opened:
            for _ in range(0, layout.queue_file_size, _PIECE):
                data = opened.read(_PIECE)
                for physical, size, _ in units_of(data):
                    if size > 0 and size != NO_RECORD:
                        return int(physical)
    return None


def believable(layout: Layout, beside: Beside, *, closed: bool) -> list[tuple[str, int]]:
    """Returns the deleted topics, without those that the store's own queues contradict: a clean
    exit ends every deletion, so that no queue begins before the log offset at which its topic was
    deleted."""
    found = []
    for topic, below in beside.deleted:
        begins = [_first_place(layout, files) for key, files in layout.queues.items()
                  if closed and key[0] == topic]  # fmt: skip
        if any(place is not None and place < below for place in begins):
            layout.found(TombstonesFinding, "deletedTopics", topic=topic,
                         fault=FileFault.QUEUES_ARE_WHOLE, deleted_at=below)  # fmt: skip
        else:
            found.append((topic, below))
    return found


def _check_own(layout: Layout) -> None:
    """Checks our own notes: their magic, the CRC-32 of what follows it, and rows that an open looks
    at itself."""
    for name, magics in _NOTES.items():
        path = layout.root / name
        if os.path.lexists(path.parent) and not path.parent.is_dir():
            layout.found(OwnNoteFinding, path.parent, fault=FileFault.NOT_A_DIRECTORY)
            continue
        data = _content(layout, OwnNoteFinding, path)
        if data is not None and not is_note(data, *magics):
            layout.found(OwnNoteFinding, path, fault=FileFault.WRONG_SUM)
    for names, kind, severity in _FILES:
        for name in names:
            path = layout.root / name
            if os.path.lexists(path) and not path.is_file():
                layout.found(kind, path, severity=severity, fault=FileFault.NOT_A_FILE)


def _check_ledgers(layout: Layout) -> None:
    """Checks the files that let a batch of a Spark sink be put once (spark_ext/ledger.py)."""
    for path in sorted((layout.root / "spark" / "ledger").glob("*.json")):
        data = _content(layout, SinkLedgerFinding, path)
        try:
            if data is not None:
                check_json(data)
        except ValueError as bad:
            layout.found(SinkLedgerFinding, path, fault=FileFault.MALFORMED, detail=str(bad))


def _check_aside(layout: Layout) -> None:
    """Checks the copies that recovery and repair keep: whether they are as long as the manifest
    says."""
    for manifest in sorted((layout.root / "aside").glob("*/manifest.jsonl")):
        try:
            lines = (read_quietly(manifest, _JSON_MAX) or b"").splitlines()
            for line in lines[:-1] if lines and not lines[-1].endswith(b"}") else lines:
                row = json.loads(line)
                size, kept = int(row["length"]), manifest.parent / str(row["kept"])
                if not os.path.lexists(kept) or (size >= 0 and kept.lstat().st_size != size):
                    fault = FileFault.WRONG_SIZE if os.path.lexists(kept) else FileFault.MISSING
                    layout.found(KeptAsideFinding, kept, fault=fault, size=size)
        except OSError as error:
            _unread(layout, KeptAsideFinding, manifest, error)
        except (ValueError, KeyError, TypeError):
            layout.found(KeptAsideFinding, manifest, fault=FileFault.MALFORMED)


def _changed_outside(layout: Layout, name: str, database: dict[str, Any]) -> bool:
    """Returns whether the next open takes the file instead of the database: another program wrote
    it."""
    file = SECTIONS[name].file
    if not database or any(f.file in ("config", f"config/{file}") for f in layout.findings):
        return False
    data = read_quietly(layout.root / "config" / file, _JSON_MAX)
    return data is not None and digest(data) not in database["known"].get(file, ((), ()))[0]


def read_beside(layout: Layout) -> Beside:
    """Reads all of it; what cannot be read becomes a finding."""
    _check_own(layout)
    _check_ledgers(layout)
    _check_aside(layout)
    config = layout.root / "config"
    beside = Beside()
    database = _read_database(layout, layout.root / "meta", MetadataDbFinding, read_meta)
    known = database.get("known", {})
    if os.path.lexists(config) and not config.is_dir():
        layout.found(ConfigJsonFinding, config, fault=FileFault.NOT_A_DIRECTORY)
        parts, light = dict.fromkeys(SECTIONS), None
    else:
        parts = {
            name: _decoded(layout, name, config / s.file, known.get(s.file, ((), ())))
            for name, s in SECTIONS.items()
        }
        for file in RAW_FILES:
            if file != LMQ_OFFSETS:
                _decoded(layout, file, config / file)
        in_lmq = known.get(LMQ_OFFSETS, ((), ()))
        light = _decoded(layout, "offsets", config / LMQ_OFFSETS, in_lmq)
    topics: set[str] = set()
    if parts["topics"] is not None:
        _check_queue_numbers(layout, parts["topics"].rows.values())
        topics |= set(parts["topics"].rows)
    if parts["offsets"] is not None:
        beside.offsets = dict(parts["offsets"].rows)
    _check_access(layout)
    topics |= set(database.get("topics", ()))
    if not _changed_outside(layout, "offsets", database):
        beside.offsets = _merged(beside.offsets, database.get("offsets", {}))
    pairs = (beside.offsets, {} if light is None else light.rows)
    beside.lights = {pair.partition("@")[0] for pair in itertools.chain(*pairs)
                     if pair.startswith(LIGHT_PREFIX)}  # fmt: skip
    if parts["topics"] is not None or "topics" in database:
        beside.topics = topics
    beside.deleted = _read_tombstones(layout)
    return beside


def _check_queue_numbers(layout: Layout, rows: Iterable[TopicConfig]) -> None:
    """Finds topics with numbers of queues that none can have: no broker of ours serves them."""
    odd = tuple(
        f"{row.name} with {number} queues"
        for row in rows
        for number in (row.read_queue_nums, row.write_queue_nums)
        if not 0 <= number < 1 << 16
    )
    if odd:
        layout.found(ConfigValueFinding, "config/topics.json", severity=Severity.ERROR,
                     count=len(odd), names=odd)  # fmt: skip


def _merged(file: _Offsets, newer: _Offsets) -> _Offsets:
    """Returns the offsets of a file with those of the database, which is the newer of the two."""
    if not file:
        return newer
    return {
        **newer,
        **{
            pair: dict(rows.items()) | dict(newer[pair].items() if pair in newer else ())
            for pair, rows in file.items()
        },
    }


def lost_light_queues(layout: Layout, beside: Beside) -> set[tuple[str, int]]:
    """Returns light queues that have no folder, and had one: a group has an offset of them, which
    goes when a Java broker deletes the queue, or our last close noted them. Where none has a folder
    their broker kept them elsewhere, and where our own files have them, none needs one."""
    if not layout.light_queues or layout.lights is not None:
        return set()
    named = set(beside.lights)
    if lib.ps_queues_are_noted(os.fsencode(layout.root)):
        with suppress(OSError):
            note = read_quietly(layout.root / "queueEnds", _JSON_MAX) or b""
            named |= {topic for topic, _ in noted_queues(note)}
    return {(topic, 0) for topic in named
            if topic.startswith(LIGHT_PREFIX) and (topic, 0) not in layout.queues}  # fmt: skip


def check_offsets(
    layout: Layout, beside: Beside, ends: dict[tuple[str, int], int], pending: int, live: bool
) -> None:
    """Compares committed offsets with the ends of their queues. pending: records of the log that no
    queue has yet, and any may get."""
    if live:
        return  # it moves on while it is read
    past = []
    by_topic: dict[str, dict[int, int]] = {}
    for (topic, queue), end in ends.items():
        by_topic.setdefault(topic, {})[queue] = end
    for pair, rows in beside.offsets.items():  # a million, perhaps
        topic, _, group = pair.partition("@")
        if topic.startswith(LIGHT_PREFIX) and topic not in by_topic:
            continue  # whoever serves light queues knows where it ends, and sets the group back
        end_of = by_topic.get(topic, {}).get
        past += [
            (group, topic, q, offset)
            for q, offset in rows.items()
            if not 0 <= offset <= end_of(q, 0) + pending
        ]
    below = tuple(f"{g} at {o} of {t}/{q}" for g, t, q, o in sorted(past) if o < 0)
    if below:
        layout.found(ConfigValueFinding, "config/consumerOffset.json", count=len(below),
                     names=below)  # fmt: skip
    for group, topic, queue, offset in sorted(p for p in past if p[3] > 0):
        end = ends.get((topic, queue), 0)
        layout.found(
            OffsetPastEndFinding, "config/consumerOffset.json", start=end, end=offset,
            count=offset - end, topic=topic, queue=queue, group=group,
        )  # fmt: skip


def check_checkpoint(layout: Layout, last_time: int) -> None:
    """Compares the checkpoint with the log and the clock. last_time: the store time of the last
    record in ms, or -1 when there is none."""
    path = layout.root / "checkpoint"
    try:
        data = read_quietly(path, CHECKPOINT_SIZE + 1)
    except OSError as error:
        _unread(layout, CheckpointFinding, path, error)
        return
    if data is None:
        if last_time >= 0:
            layout.found(CheckpointFinding, path, fault=FileFault.MISSING)
        return
    if len(data) != CHECKPOINT_SIZE:
        layout.found(CheckpointFinding, path, fault=FileFault.WRONG_SIZE, size=len(data))
        return
    ahead = max(last_time, 0)
    now = int(time.time() * 1000)
    times = checkpoint_times(data)
    for name, value in zip(("physic", "logics", "index"), times, strict=True):
        if value < 0 or value > now + _HOUR_MS or (ahead and value > ahead + _HOUR_MS):
            layout.found(CheckpointFinding, path, fault=FileFault.AHEAD,
                         timestamp=f"{name}MsgTimestamp", time_ms=value)  # fmt: skip
