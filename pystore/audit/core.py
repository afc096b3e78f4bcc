"""The audit of log, queues and index in C (csrc/audit), a thread a segment."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any

from pystore.audit.findings import KINDS, Audit, Finding, Severity
from pystore.audit.layout import Layout
from pystore.audit.quiet import open_quietly
from pystore.errors import NotFound
from pystore.native import ffi, lib, raise_error
from pystore.settings import Settings, fill

__all__ = ["CoreAudit", "soften"]

_NAMES = {
    lib.PS_FIND_DAMAGED: "damaged-record",
    lib.PS_FIND_HOLE: "log-hole",
    lib.PS_FIND_TAIL: "torn-tail",
    lib.PS_FIND_AFTER_BLANK: "records-after-blank",
    lib.PS_FIND_SHORT_BLANK: "short-blank",
    lib.PS_FIND_NO_BLANK: "no-blank",
    lib.PS_FIND_UNREADABLE: "unreadable",
    lib.PS_FIND_PROPERTIES: "bad-properties",
    lib.PS_FIND_NO_QUEUE: "no-queue",
    lib.PS_FIND_QUEUE_OFFSET: "bad-queue-offset",
    lib.PS_FIND_TIME: "time-goes-back",
    lib.PS_FIND_SUSPECT: "suspect-properties",
    lib.PS_FIND_UNIT_MISSING: "missing-units",
    lib.PS_FIND_UNIT_FOREIGN: "foreign-unit",
    lib.PS_FIND_UNIT_SIZE: "unit-size",
    lib.PS_FIND_UNIT_TAGS: "unit-tags",
    lib.PS_FIND_SAME_OFFSET: "same-offset",
    lib.PS_FIND_UNIT_ZERO: "zero-units",
    lib.PS_FIND_UNIT_GHOST: "ghost-units",
    lib.PS_FIND_UNIT_BEYOND: "units-beyond",
    lib.PS_FIND_UNIT_ORDER: "unit-order",
    lib.PS_FIND_UNIT_LOST: "lost-messages",
    lib.PS_FIND_DISAGREE: "record-disagrees",
    lib.PS_FIND_QUEUE_GAP: "queue-gap",
    lib.PS_FIND_QUEUE_FILE_SIZE: "queue-file-size",
    lib.PS_FIND_INDEX_HEADER: "index-header",
    lib.PS_FIND_INDEX_CHAIN: "index-chain",
    lib.PS_FIND_INDEX_SLOT: "index-slots",
    lib.PS_FIND_INDEX_GHOST: "index-ghosts",
    lib.PS_FIND_KEY_MISSING: "missing-keys",
}
#: ps_rec_outcome
_OUTCOMES = {2: "zeros", 3: "runs past the end", 4: "bad magic", 5: "lengths do not add up",
             6: "bad CRC", 7: "not its own place"}  # fmt: skip

Progress = Callable[[str, int, int], None]


def _bytes(topic: str) -> bytes:
    return os.fsencode(topic)


class CoreAudit:
    """One audit. Use: queues(), index(), segments(), recount(), each once and in that order."""

    def __init__(
        self, layout: Layout, settings: Settings, audit: Audit, progress: Progress
    ) -> None:
        self._layout = layout
        self._audit = audit
        self._progress = progress
        self._error = ffi.new("ps_error *")
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
        """Records of the topic before `physical` belong to a life of it that was deleted."""
        name = _bytes(topic)
        self._check(lib.ps_audit_forget(self._raw, name, len(name), physical, self._error))

    def queues(self) -> None:
        total = len(self._layout.queues)
        for i, ((topic, queue), files) in enumerate(self._layout.queues.items()):
            name = _bytes(topic)
            numbers = ffi.new("int64_t[]", [file.number for file in files])
            sizes = ffi.new("int64_t[]", [file.size for file in files])
            with self._findings() as out:
                self._check(
                    lib.ps_audit_queue(
                        self._raw,
                        name,
                        len(name),
                        queue,
                        numbers,
                        sizes,
                        len(files),
                        out,
                        self._error,
                    )
                )
            self._audit.units += self._facts(topic, queue).units
            self._progress("queues", i + 1, total)

    def index(self) -> None:
        for path, slots, entries in self._layout.index:
            with self._findings(self._layout.name(path)) as out:
                raw = os.fsencode(path)
                try:
                    self._check(
                        lib.ps_audit_index(self._raw, raw, slots, entries, out, self._error)
                    )
                except NotFound:
                    continue  # retention took it just now

    def segments(self, jobs: int) -> list[Any]:
        """Facts of each segment, in order."""
        files = self._layout.segments
        for file in files:
            self._check(
                lib.ps_audit_add_segment(
                    self._raw, os.fsencode(file.path), file.number,
                    min(file.size, self._layout.segment_size) or file.size, self._error,
                )
            )  # fmt: skip
        last = self._last_with_data()
        watch = ffi.new("ps_progress *")
        total = sum(file.size for file in files)
        stop = threading.Event()

        def tell() -> None:
            while not stop.wait(0.1):
                self._progress("log", watch.done, total)

        teller = threading.Thread(target=tell, name="audit-progress", daemon=True)
        teller.start()
        facts: list[Any] = [None] * len(files)
        try:
            with ThreadPoolExecutor(max(1, jobs), "audit") as pool:
                waiting = {
                    pool.submit(self._segment, i, i >= last, watch): i for i in range(len(files))
                }
                try:
                    for done in as_completed(waiting):
                        facts[waiting[done]] = done.result()
                except BaseException:
                    watch.stop = 1
                    raise
        finally:
            stop.set()
            teller.join()
        return facts

    def recount(self, *, everywhere: bool) -> None:
        """Looks at each unit of the queues whose counts differ from what the log asks for."""
        total = len(self._layout.queues)
        for i, (topic, queue) in enumerate(self._layout.queues):
            facts = self._facts(topic, queue)
            if facts.units == facts.matched and not everywhere:
                continue
            self._progress("units", i, total)
            name = _bytes(topic)
            with self._findings() as out:
                self._check(
                    lib.ps_audit_queue_recount(self._raw, name, len(name), queue, out, self._error)
                )

    def max_offsets(self) -> dict[tuple[str, int], int]:
        """The end of each queue, as its files have it."""
        return {
            (topic, queue): int(self._facts(topic, queue).max_offset)
            for topic, queue in self._layout.queues
        }

    # ---- pieces ----

    def _last_with_data(self) -> int:
        """Number of the last segment that holds anything: files made ahead follow it."""
        for i in reversed(range(len(self._layout.segments))):
            try:
                with open_quietly(self._layout.segments[i].path) as file:
                    if any(file.read(8)):
                        return i
            except OSError:
                return i
        return 0

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

    def _facts(self, topic: str, queue: int) -> Any:
        facts = ffi.new("ps_audit_queue_facts *")
        name = _bytes(topic)
        lib.ps_audit_queue_get(self._raw, name, len(name), queue, facts)
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
        name = _NAMES[raw.kind]
        kind = KINDS[name]
        topic = os.fsdecode(bytes(ffi.buffer(raw.topic, raw.topic_len))) if raw.topic_len else None
        queue = int(raw.queue_id) if raw.queue_id >= 0 else None
        if file is None and kind.where == "log":
            file = self._layout.segment_of(raw.from_at)
        elif file is None and topic is not None and queue is not None:
            file = self._layout.queue_file_of(topic, queue, max(0, raw.from_at))
        return Finding(
            name, kind.severity, file or self._layout.segment_of(raw.from_at),
            int(raw.from_at), int(raw.to_at), int(raw.count) if raw.count >= 0 else None,
            topic, queue, _text(name, raw),
        )  # fmt: skip


def _text(name: str, raw: Any) -> str:
    """The details of one finding, in words."""
    if name in ("damaged-record", "torn-tail"):
        return _OUTCOMES.get(raw.outcome, "")
    if name == "missing-units":
        folder = "the queue's folder is missing; " if raw.value else ""
        return f"{folder}the first record is at {raw.physical} of the log"
    if name in ("foreign-unit", "ghost-units", "record-disagrees", "units-beyond", "unit-order"):
        return f"points to {raw.value} of the log"
    if name == "same-offset":
        return f"claimed by the records at {raw.value} and {raw.physical} of the log"
    if name == "unit-size":
        return f"the unit says {raw.value} bytes"
    if name == "time-goes-back":
        return f"by {raw.value} ms at most"
    if name == "unreadable":
        return os.strerror(raw.value)
    if name == "bad-queue-offset":
        return f"queue offset {raw.value}"
    if name == "no-queue":
        return f"queue id {raw.value}"
    if name == "queue-file-size":
        return f"{raw.value} bytes"
    return ""


def soften(finding: Finding, severity: Severity, kind: str | None = None) -> Finding:
    """The same finding, taken less seriously."""
    return Finding(
        kind or finding.kind, severity, finding.file, finding.start, finding.end, finding.count,
        finding.topic, finding.queue, finding.text,
    )  # fmt: skip
