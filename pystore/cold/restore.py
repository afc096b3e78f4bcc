"""A store made of a tier, and a tier copied: what `pystore cold restore` and `fetch` do.

The tier keeps no order over all queues, so that of the new log is by queue. Queue offsets stay;
physical offsets are new.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

from pystore.cold.ahead import in_order
from pystore.cold.blocks import BlockCache
from pystore.cold.failures import TierDamaged
from pystore.cold.listing import by_queue
from pystore.cold.objects import StoredObject
from pystore.cold.places import LOG, base_of
from pystore.cold.push import PushReport, push
from pystore.cold.reader import ColdReader
from pystore.cold.segment import checks_of, excerpt
from pystore.cold.tier import JavaTier, QueueSpan, Tier, new_tier, open_tier, span_of
from pystore.errors import BadArgument
from pystore.files import FILE_MODE, make_folders, new_file, place_folder
from pystore.format.records import CHECK_BODY, HEAD_LEN, MAGIC_HEAD, read_records
from pystore.format.units import UNIT
from pystore.native import ffi, lib
from pystore.settings import Settings
from pystore.store._messages import Message
from pystore.store._store import Store

__all__ = ["TierSalvage", "begin_after", "fetch", "restore", "salvage"]

SEGMENT_BYTES = 1 << 30
#: Last messages that are fetched side by side, and bytes of blocks meanwhile.
_AT_ONCE, _BLOCKS = 16, 24 << 20
#: The room that a missing message has in a log: more than the least record.
_MISSING_BYTES = 256
#: So much of a log may be room for what is missing, at once; in files.
_BLANK_MAX, _BLANK_FILES = 1 << 43, 1 << 14
#: Where the log of a store that goes on after a tier begins, at most.
_LOG_MAX = 1 << 60
#: A record whose offset is so far beyond the one before has a damaged offset.
_MISSING_MAX = 1 << 32
#: What is looked through at once, and of that once more: a record may lie across an end.
_WINDOW, _AGAIN = 64 << 20, 32 << 20
#: No file of RocketMQ's is larger.
_FILE_MAX = 4 << 30
_MAGIC_AT = int(lib.PS_AT_MAGIC)


class _LogWriter:
    """Segments of a commit log, filled one after the other."""

    def __init__(self, folder: Path, size: int, base: int) -> None:
        self._folder = folder
        self._size = size
        self._base = base
        self._at = 0
        self._file: BinaryIO | None = None
        self.records = 0

    def put(self, record: bytearray, least: int) -> int:
        """Appends a record, with its new physical offset, at byte `least` or after it. Returns the
        byte after it."""
        if len(record) + HEAD_LEN > self._size:
            raise BadArgument(f"a record of {len(record)} bytes does not fit into a segment")
        while self._base + self._at < least:
            if least - self._base > min(_BLANK_MAX, _BLANK_FILES * self._size):
                raise TierDamaged("there are more missing messages than a log has room for")
            self._next()
        if self._file is None or self._at + len(record) + HEAD_LEN > self._size:
            self._next()
        assert self._file is not None
        raw = ffi.from_buffer("uint8_t[]", record)
        if lib.ps_record_move(raw, len(record), self._base + self._at) < 0:
            raise TierDamaged("what a unit leads to is not a whole record")
        self._file.write(record)
        self._at += len(record)
        self.records += 1
        return self._base + self._at

    def _next(self) -> None:
        if self._file is not None:
            blank = bytearray(HEAD_LEN)
            lib.ps_blank_write(ffi.from_buffer("uint8_t[]", blank), self._size - self._at)
            self._file.write(blank)
            self._base += self._size
        self.close()
        self._file = new_file(self._folder / f"{self._base:020d}", FILE_MODE)
        self._at = 0

    def close(self) -> None:
        if self._file is not None:
            self._file.truncate(self._size)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None


def restore(
    reader: ColdReader, target: Path, *, topics: Iterable[str] = (),
    segment_bytes: int = SEGMENT_BYTES,
) -> int:  # fmt: skip
    """Makes a store of a tier's messages; returns how many. It is made beside its place, and opened
    once, so that its queues and index are there. target: must not exist.

    Raises: BadArgument, TierDamaged, TierUnreachable, DiskFull, StoreIOError."""
    chosen = sorted(set(topics) or {span.topic for span in reader.spans()})
    # Who recovers a store ends it before a damaged record.
    batches = (batch for topic in chosen for batch in reader.batches(topic=topic, check_crc=True))
    later = any(span.start > 0 for span in reader.spans() if span.topic in chosen)
    messages = (message for batch in batches for message in batch)
    return _make(target, segment_bytes, messages, segment_bytes if later else 0)


def _make(target: Path, segment_bytes: int, messages: Iterable[Message], base: int) -> int:
    """Makes a store of messages; returns how many. base: where its log begins.

    Recovery believes that a queue begins after offset 0, or lacks offsets, where the log begins
    after byte 0, or has the room for what is missing: else it takes the record for a damaged one.
    """
    if target.exists():
        raise BadArgument("the folder for the store exists already", str(target))
    made = target.with_name(f"{target.name}.unfinished")
    if made.exists():
        raise BadArgument("an unfinished restore lies here: delete it first", str(made))
    try:
        make_folders(made / "commitlog", FILE_MODE)
        log = _LogWriter(made / "commitlog", segment_bytes, base)
        counts: dict[str, int] = {}
        ends: dict[tuple[str, int], tuple[int, int]] = {}
        for message in messages:
            place = message.topic, message.queue
            following, at = ends.get(place, (0, 0))
            missing = message.queue_offset - following
            at = log.put(bytearray(message.record), at + missing * _MISSING_BYTES)
            ends[place] = message.queue_offset + 1, at
            counts[message.topic] = max(counts.get(message.topic, 0), message.queue + 1)
        log.close()
        (made / "abort").touch(mode=FILE_MODE)  # so that recovery makes queues and index
        _finish(made, segment_bytes, counts)
        place_folder(made, target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return log.records


def _finish(made: Path, segment_bytes: int, counts: dict[str, int]) -> None:
    size = {"mappedFileSizeCommitLog": segment_bytes}
    with Store(made, {**size, "cleanResourceInterval": 0}) as store:
        for topic, queues in counts.items():
            store.metadata.ensure_topic(topic, queues - 1)


# ---- a store that is lost ----


def begin_after(tier: Tier, path: Path, settings: Settings) -> dict[str, int]:
    """Begins the log of a store that has none with the last message of each queue of its tier, so
    that no offset is given twice and what is older is read there. Returns topics, each with how
    many queues it has. path: of the store.

    Raises: BadArgument, TierDamaged, TierTaken, TierUnreachable, DiskFull, StoreIOError."""
    spans: list[QueueSpan] = []
    for manifest in tier.load_all():
        if manifest.segments:
            spans.append(span_of(manifest))
        elif manifest.end:  # nothing of it is left to go on after
            tier.publish(manifest.emptied(manifest.epoch, tier.writer))
    if not spans:
        return {}
    folder, size = settings.commitlog_dirs(path)[0], int(settings["mappedFileSizeCommitLog"])
    made = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(made, ignore_errors=True)
    for each in (path, made):
        make_folders(each, settings.file_mode)
    counts: dict[str, int] = {}
    log = _LogWriter(made, size, _base_after(spans, size, tier.objects.address))
    blocks = BlockCache(tier.objects, _BLOCKS)
    reader = ColdReader.over(tier, blocks)
    for span, last in in_order(partial(_last_of, reader), spans, _AT_ONCE):
        log.put(bytearray(last.record), 0)
        counts[span.topic] = max(counts.get(span.topic, 0), span.queue + 1)
    log.close()
    (path / "abort").touch(mode=settings.file_mode)  # so that recovery makes queues and index
    place_folder(made, folder)
    return counts


def _base_after(spans: list[QueueSpan], size: int, address: str) -> int:
    """Returns where a log begins whose queues begin there: recovery takes a record for damaged
    whose queue offset leaves no room in the log for those before it."""
    longest = max(spans, key=lambda span: span.end)
    if longest.end > _LOG_MAX // _MISSING_BYTES:
        raise TierDamaged(
            f"no log has room for the {longest.end} messages of {longest.topic}/{longest.queue}",
            address,
        )
    return -(-longest.end * _MISSING_BYTES // size) * size


def _last_of(reader: ColdReader, span: QueueSpan) -> Message:
    found = reader.read(span.topic, span.queue, span.end - 1, max_messages=1)
    if not found:
        raise TierDamaged(
            f"the last message of {span.topic}/{span.queue}, offset {span.end - 1}, is damaged",
            reader.address,
        )
    return found[0]


# ---- what is left of a damaged tier ----


@dataclass(slots=True)
class TierSalvage:
    """messages: of the new store. lost: topic, queue, and offsets [from, to) of what is missing
    between them, and of what a manifest says there was."""

    messages: int = 0
    lost: list[tuple[str, int, int, int]] = field(default_factory=list)


def salvage(
    path: str | os.PathLike[str], target: Path, *, segment_bytes: int = SEGMENT_BYTES
) -> TierSalvage:
    """Makes a store of every whole record of a tier. Where a queue's manifest cannot be read, all
    of its objects are looked through. target: must not exist.

    Raises: BadArgument, NotATier, TierUnreachable, DiskFull, StoreIOError."""
    tier, done = open_tier(path), TierSalvage()
    messages = (
        message
        for place, found in by_queue(tier.objects)
        if place is not None
        for message in _left(tier, place, [each for each in found if _is_log(each.key)], done)
    )
    done.messages = _make(target, segment_bytes, messages, segment_bytes)
    return done


def _is_log(key: str) -> bool:
    """Says whether an object of a queue has records."""
    parts = key.split("/")
    return len(parts) == 4 and parts[2] == LOG and base_of(parts[3]) is not None


def _left(
    tier: Tier | JavaTier, place: tuple[str, int], objects: list[StoredObject], done: TierSalvage
) -> Iterator[Message]:
    """Yields the records of a queue in order of their offsets, each once."""
    span, named = None, None
    with contextlib.suppress(TierDamaged):
        span = tier.span(*place)
        if isinstance(tier, Tier) and span is not None:
            rows = tier.rows(tier.manifest(*place), 0, 1 << 62)
            named = {tier.key_of(*place, row.base) for row in rows}
        elif isinstance(tier, Tier):
            return  # the queue was taken away
    at = -1 if span is None else span.start
    for each in sorted(objects, key=lambda found: found.key[-20:]):
        if (named is not None and each.key not in named) or each.size > _FILE_MAX:
            continue
        for message in _whole_records(tier, each, place):
            if message.queue_offset < at:
                continue
            if at >= 0 and message.queue_offset - at > _MISSING_MAX:
                done.lost.append((*place, message.queue_offset, message.queue_offset + 1))
                continue
            if message.queue_offset > at >= 0:
                done.lost.append((*place, at, message.queue_offset))
            at = message.queue_offset + 1
            yield message
    if span is not None and at < span.end:
        done.lost.append((*place, at, span.end))


def _whole_records(
    tier: Tier | JavaTier, found: StoredObject, place: tuple[str, int]
) -> Iterator[Message]:
    """Yields the whole records of a queue that lie in an object, as far as it can be read."""
    base, at = int(found.key[-20:]), 0
    while at < found.size:
        end = min(found.size, at + _WINDOW)
        try:
            data = bytes(tier.objects.get(found.key, at, end))
        except TierDamaged:
            return
        beyond = at
        for message in _records(data, base + at, place, summed=tier.summed):
            beyond = message.physical_offset + message.size - base
            yield message
        at = end if end == found.size else max(beyond, end - _AGAIN)


def _records(data: bytes, base: int, place: tuple[str, int], *, summed: bool) -> Iterator[Message]:
    """Yields the whole records of a queue that lie in bytes, wherever they begin."""
    at = 0
    while at < len(data):
        heads = read_records(data, at, checks=CHECK_BODY)
        for head in heads:
            unit = UNIT.pack(base + head.at, head.end - head.at, 0)
            yield from excerpt(data[head.at : head.end], base + head.at, unit, head.queue_offset,
                               place, ffi.NULL, checks=checks_of(summed=summed))  # fmt: skip
            at = head.end
        if not heads:
            found = data.find(MAGIC_HEAD, at + _MAGIC_AT + 1)
            at = len(data) if found < 0 else found - _MAGIC_AT


def fetch(
    reader: ColdReader, target: str | os.PathLike[str], *, topics: Iterable[str] = (),
    cluster: str = "", broker: str = "",
) -> PushReport:  # fmt: skip
    """Copies a tier's messages into another tier, such as a folder of this host. It takes over what
    upstream has written, too. cluster, broker: where the address does not tell.

    Raises: BadArgument, TierTaken, TierDamaged, TierUnreachable."""
    cluster, broker = cluster or reader.tier.cluster, broker or reader.tier.broker
    if not cluster or not broker:
        raise BadArgument("the address does not tell the names of cluster and broker: give both")
    return push(reader, new_tier(target, cluster, broker), topics=topics)
