"""The audit of log, queues and index in C (csrc/audit), a thread a segment.

Each step can be done for some of the queues, index files or segments alone, and what it found of
them be told another process (parts.py).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, TypeVar

from pystore.audit.findings import Audit, Finding
from pystore.audit.kinds import BY_CODE, FileFault, LightNamesFinding, TombstonesFinding
from pystore.audit.layout import Layout, last_with_data
from pystore.errors import NotFound
from pystore.native import ffi, lib, raise_error
from pystore.settings import Settings, fill

__all__ = ["Claim", "CoreAudit", "IndexFacts", "Key", "QueueFacts", "SegmentFacts"]

Progress = Callable[[str, int, int], None]
#: Topic and queue id.
Key = tuple[str, int]
#: Topic, queue id, queue offsets [begin, end), the place of the first record, the end of the last.
Claim = tuple[bytes, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """ps_audit_queue_facts (csrc/audit/audit.h)."""

    max_offset: int
    units: int
    matched: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """ps_audit_index_facts."""

    slots: int
    keep: int
    end: int


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """ps_audit_segment_facts."""

    bytes: int
    records: int
    end: int
    first_time: int
    last_time: int
    units_pending: int
    pending_from: int
    keys: int
    tags_entries: int
    keys_pending: int
    keys_pending_from: int
    forgotten: int
    blank: int


_Facts = TypeVar("_Facts", QueueFacts, IndexFacts, SegmentFacts)


_FIELDS = {kind: attrgetter(*(field.name for field in fields(kind)))
           for kind in (QueueFacts, IndexFacts, SegmentFacts)}  # fmt: skip


def _facts_of(kind: type[_Facts], raw: Any) -> _Facts:
    return kind(*_FIELDS[kind](raw))


def _bytes(topic: str) -> bytes:
    return os.fsencode(topic)


class CoreAudit:
    """One audit, in this order: queues(), index(), light(), segments(), rivals(), recount()."""

    def __init__(
        self, layout: Layout, settings: Settings, audit: Audit, progress: Progress
    ) -> None:
        self._layout = layout
        self._audit = audit
        self._progress = progress
        self._error = ffi.new("ps_error *")
        self._named = False
        conf, _keep = fill(ffi, settings, layout.root)
        root = ffi.new("char[]", os.fsencode(layout.root))
        given = ffi.new("ps_audit_conf *")
        given.root = root
        given.consumequeue_file_size = layout.queue_file_size
        # A live log grows while it is read: what points past its end today may be right.
        end = (1 << 62) if audit.state == "live" else layout.log_end
        given.log_min, given.log_end = layout.log_min, end
        given.check_crc = 1
        given.level_count = conf.level_count
        for i in range(conf.level_count):
            given.level_delay_ms[i] = conf.level_delay_ms[i]
        raw = lib.ps_audit_new(given, ffi.NULL)
        if raw == ffi.NULL:
            raise MemoryError("no memory for the audit")
        self._raw = ffi.gc(raw, lib.ps_audit_free)

    # ---- steps ----

    def forget(self, topic: str, physical: int) -> None:
        """Notes that records of the topic before `physical` belong to a life of it that was
        deleted."""
        name = _bytes(topic)
        self._check(lib.ps_audit_forget(self._raw, name, len(name), physical, self._error))

    def queues(self, some: Collection[Key] | None = None) -> dict[Key, QueueFacts]:
        """Returns facts of each queue, or of `some` alone."""
        found = {}
        for i, key in enumerate(keys := self._layout.queues if some is None else some):
            found[key] = self._queue(*key)
            self._audit.units += found[key].units
            self._progress("queues", i + 1, len(keys))
        return found

    def index(self, some: Collection[int] | None = None) -> list[IndexFacts]:
        """Returns facts of each index file, oldest first, or of `some` alone, by number."""
        found, raw = [], ffi.new("ps_audit_index_facts *")
        for i in range(len(self._layout.index)) if some is None else some:
            path, slots, entries = self._layout.index[i]
            # Retention may have taken it just now.
            with self._findings(self._layout.name(path)) as out, suppress(NotFound):
                self._check(
                    lib.ps_audit_index(
                        self._raw, os.fsencode(path), slots, entries, out, self._error
                    )
                )
            lib.ps_audit_index_get(self._raw, raw)
            found.append(_facts_of(IndexFacts, raw))
        return found

    def light(self) -> None:
        """Looks at the files of light queues, if there are any."""
        if self._layout.lights is None:
            return
        numbers = [file.number for file in self._layout.lights]
        with self._findings() as out:
            self._check(
                lib.ps_audit_light(
                    self._raw, ffi.new("int64_t[]", numbers), len(numbers),
                    ffi.new("ps_audit_light_facts *"), out, self._error,
                )
            )  # fmt: skip

    def learn(self, queues: dict[Key, QueueFacts], indexes: list[IndexFacts]) -> None:
        """Takes over what other processes found of queues and index files, instead of queues() and
        index(). Facts of a queue that is known change."""
        raw = ffi.new("ps_audit_queue_facts *")
        for (topic, queue), facts in queues.items():
            name = _bytes(topic)
            for field in fields(facts):
                setattr(raw, field.name, getattr(facts, field.name))
            self._check(lib.ps_audit_queue_set(self._raw, name, len(name), queue, raw, self._error))
        for (path, _, _), seen in zip(self._layout.index, indexes, strict=False):
            given = ffi.new("ps_audit_index_facts *", (seen.slots, seen.keep, seen.end))
            self._check(lib.ps_audit_index_set(self._raw, os.fsencode(path), given, self._error))

    def segments(
        self, jobs: int, last: int | None = None, some: Collection[int] | None = None
    ) -> list[SegmentFacts]:
        """Returns facts of each segment, in order, or of `some` alone, by number. last: the number
        of the last one that holds anything; None looks for it."""
        self.name_segments()
        files = self._layout.segments
        numbers = range(len(files)) if some is None else some
        newest = last_with_data(self._layout) if last is None else last
        watch = ffi.new("ps_progress *")
        total = sum(files[i].size for i in numbers)
        stop = threading.Event()

        def tell() -> None:
            while not stop.wait(0.1):
                self._progress("log", watch.done, total)

        teller = threading.Thread(target=tell, name="audit-progress", daemon=True)
        teller.start()
        facts: dict[int, SegmentFacts] = {}
        try:
            with ThreadPoolExecutor(max(1, jobs), "audit") as pool:
                waiting = {pool.submit(self._segment, i, i >= newest, watch): i for i in numbers}
                try:
                    for done in as_completed(waiting):
                        facts[waiting[done]] = _facts_of(SegmentFacts, done.result())
                except BaseException:
                    watch.stop = 1
                    raise
        finally:
            stop.set()
            teller.join()
        return [facts[i] for i in numbers]

    def rivals(self) -> list[Finding]:
        """Finds which of the records that no unit leads to will be in no queue, and returns what it
        found; it comes after segments()."""
        before = len(self._audit.findings)
        with self._findings() as out:
            lib.ps_audit_rivals(self._raw, out)
        return self._audit.findings[before:]

    def claims(self) -> list[Claim]:
        """Returns the records that no unit leads to, as segments() met them."""
        found, raw = [], ffi.new("ps_audit_claim *")
        while lib.ps_audit_claim_next(self._raw, raw):
            topic = bytes(ffi.buffer(raw.topic, raw.topic_len))
            found.append((topic, raw.queue_id, raw.from_at, raw.to_at, raw.physical, raw.end))
        return found

    def take_claims(self, claims: Iterable[Claim]) -> None:
        """Takes over what other processes met, instead of segments()."""
        for topic, queue, begin, end, *places in claims:
            given = ffi.new("ps_audit_claim *", (begin, end, *places, queue, len(topic), topic))
            lib.ps_audit_claim_add(self._raw, given)

    def name_segments(self) -> None:
        """Tells the core of all segments; it comes before segments() of some, and before
        recount()."""
        if self._named:
            return
        for file in self._layout.segments:
            self._check(
                lib.ps_audit_add_segment(
                    self._raw, os.fsencode(file.path), file.number,
                    min(file.size, self._layout.segment_size) or file.size, self._error,
                )
            )  # fmt: skip
        self._named = True

    def differing(self, *, everywhere: bool) -> list[Key]:
        """Returns the queues that recount() is for: those whose counts differ from what the log
        asks for."""
        known = {key: self.facts(*key) for key in self._layout.queues}
        return [key for key, f in known.items() if everywhere or f.units != f.matched]

    def recount(self, some: Collection[Key]) -> None:
        """Looks at each unit of these queues."""
        self.name_segments()
        for i, (topic, queue) in enumerate(some):
            self._progress("units", i, len(some))
            name = _bytes(topic)
            with self._findings() as out:
                self._check(
                    lib.ps_audit_queue_recount(self._raw, name, len(name), queue, out, self._error)
                )

    def max_offsets(self) -> dict[Key, int]:
        """Returns the end of each queue, as its files have it."""
        return {key: self.facts(*key).max_offset for key in self._layout.queues}

    def facts(self, topic: str, queue: int) -> QueueFacts:
        """Returns what is known of a queue so far."""
        raw = ffi.new("ps_audit_queue_facts *")
        name = _bytes(topic)
        lib.ps_audit_queue_get(self._raw, name, len(name), queue, raw)
        return _facts_of(QueueFacts, raw)

    # ---- pieces ----

    def _queue(self, topic: str, queue: int) -> QueueFacts:
        files = self._layout.queues[topic, queue]
        name = _bytes(topic)
        numbers = ffi.new("int64_t[]", [file.number for file in files])
        sizes = ffi.new("int64_t[]", [file.size for file in files])
        with self._findings() as out:
            self._check(
                lib.ps_audit_queue(
                    self._raw, name, len(name), queue, numbers, sizes, len(files), out, self._error
                )
            )
        return self.facts(topic, queue)

    def _segment(self, number: int, last: bool, watch: Any) -> Any:
        facts, error = ffi.new("ps_audit_segment_facts *"), ffi.new("ps_error *")
        with self._findings() as out:
            code = lib.ps_audit_segment(self._raw, number, last, watch, facts, out, error)
            if code < 0:
                try:
                    raise_error(error[0], code)
                except NotFound:
                    return facts  # retention took it just now
        return facts

    def _check(self, code: int) -> None:
        if code < 0:
            raise_error(self._error[0], code)

    @contextmanager
    def _findings(self, file: str | None = None) -> Iterator[Any]:
        raw = ffi.new("ps_findings *")
        try:
            yield raw
            self._audit.dropped += raw.dropped
            for i in range(raw.count):
                self._audit.findings.append(self._finding(raw.items[i], file))
        finally:
            lib.ps_findings_free(raw)

    def _finding(self, raw: Any, file: str | None) -> Finding:
        kind = BY_CODE[raw.kind]
        own = {name: convert(getattr(raw, field))
               for name, (field, convert) in kind.from_core.items()}  # fmt: skip
        topic = os.fsdecode(bytes(ffi.buffer(raw.topic, raw.topic_len))) if raw.topic_len else None
        queue = int(raw.queue_id) if raw.queue_id >= 0 else None
        if kind is TombstonesFinding:
            fault = FileFault.AMID_A_RECORD
            return TombstonesFinding(file="deletedTopics", topic=topic, fault=fault, **own)
        if file is None and kind.about.where == "log":
            file = self._layout.segment_of(raw.from_at)
        elif kind is LightNamesFinding:
            file = "lightqueue/names"
        elif kind.about.where == "light":
            file = self._layout.light_file_of(raw.from_at)
        elif file is None and kind.about.where == "index":
            file = "index"  # met while the log was read: its entries are in any of them
        elif file is None and topic is not None and queue is not None:
            file = self._layout.queue_file_of(topic, queue, max(0, raw.from_at))
        return kind(
            file=file or self._layout.segment_of(raw.from_at),
            start=int(raw.from_at), end=int(raw.to_at),
            count=int(raw.count) if raw.count >= 0 else None, topic=topic, queue=queue, **own,
        )  # fmt: skip
