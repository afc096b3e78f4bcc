"""What an audit finds: severities, kinds, findings, the report."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["KINDS", "Audit", "Finding", "Kind", "Severity"]


class Severity(enum.IntEnum):
    """How serious a finding is. ``ERROR``: messages are damaged, hidden or served wrongly.
    ``WARNING``: nothing is hidden, or the next open mends it. ``INFO``: worth knowing."""

    INFO = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of finding.

    Programs compare the `name`. `severity` holds unless the state of the store softens it. `where`
    says what ``start`` and ``end`` count ("log": bytes of the log, "queue": queue offsets, "index":
    entries, "file": bytes of the file, "": nothing). `meaning` says what it means and what is lost,
    and `java` what Apache RocketMQ does with it. `fix` is the command that mends it, in which
    ``STORE`` stands for the path."""

    name: str
    severity: Severity
    where: str
    meaning: str
    java: str
    fix: str


_REPAIR = "pystore repair STORE"
_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO

#: By name.
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        # ---- the log ----
        Kind("damaged-record", _E, "log", "no whole record stands here, whole ones follow",
             "truncates the log here when recovery reaches it; else serves what follows", _REPAIR),
        Kind("log-hole", _E, "log", "zeros where records should be, whole records follow",
             "takes the first zero for the end of the log and drops what follows", _REPAIR),
        Kind("torn-tail", _W, "log", "the log ends with bytes that are not a whole record",
             "truncates them at the next start", "the next open cuts them off"),
        Kind("records-after-blank", _E, "log", "whole records follow the blank that ends the file",
             "never reads them, and overwrites them when it is the last file", _REPAIR),
        Kind("short-blank", _W, "log", "the blank record does not reach the end of its file",
             "continues in the next file all the same", _REPAIR),
        Kind("no-blank", _W, "log", "the segment ends without the blank record that closes it",
             "continues in the next file", _REPAIR),
        Kind("unreadable", _E, "file", "the disk cannot read these bytes",
             "stops with a read error or a SIGBUS", "copy the disk with ddrescue, then repair"),
        Kind("bad-properties", _W, "log", "malformed properties: readers drop them",
             "drops them silently", "none: the record is whole"),
        Kind("suspect-properties", _W, "log", "properties that no client writes: not UTF-8, or a"
             " wrong digit in UNIQ_KEY", "serves them",
             "none: only enabledAppendPropCRC covers them"),
        Kind("no-queue", _E, "log", "topic or queue id of the record cannot name a queue",
             "fails to dispatch the record, or makes a queue nobody reads", _REPAIR),
        Kind("bad-queue-offset", _E, "log", "the record claims a queue offset that is out of range",
             "logs an error and does not dispatch it", _REPAIR),
        Kind("time-goes-back", _I, "log", "store times decrease",
             "searches by time may miss these records", "none: the records are whole"),
        Kind("missing-segment", _E, "log", "a file of the log is missing between others",
             "starts, and stops reading at the gap", "put the file back, or pystore repair STORE"),
        Kind("segment-size", _E, "file", "a segment of another size than the others",
             "does not start", _REPAIR),
        Kind("stray-file", _E, "", "an unexpected file among the segments",
             "does not start", "move the file elsewhere, or pystore repair STORE"),
        Kind("double-segment", _E, "file", "two folders of the log have a file for this place",
             "loads both", "move the wrong one elsewhere; if they are equal,"
             " pystore repair STORE"),
        Kind("misnamed-segment", _E, "file", "a segment has the name of another place in the log",
             "takes its records for damage, or serves others",
             "rename it, or pystore salvage its folder"),
        Kind("log-folder", _E, "", "a folder of the log is missing, and so are segments",
             "makes it anew", "mount or restore it, or take it out of storePathCommitLog"),
        # ---- consume queues ----
        Kind("missing-units", _E, "queue", "records are in the log and not in their queue:"
             " consumers never get them", "does not notice: they stay undelivered", _REPAIR),
        Kind("not-dispatched", _E, "log", "the last records are not in their queues",
             "dispatches those after the furthest unit", _REPAIR),
        Kind("foreign-unit", _E, "queue", "the unit of this message points to another record",
             "delivers the wrong message", _REPAIR),
        Kind("unit-size", _E, "queue", "the unit says another size than its record has",
             "delivers a cut record, or none", _REPAIR),
        Kind("unit-tags", _W, "queue",
             "its tags code is not its record's (a delay level's: give --conf)",
             "filters by the wrong tag, or delivers at the wrong time", _REPAIR),
        Kind("same-offset", _E, "queue", "two records claim one queue offset: one is delivered",
             "delivers the one that its queue holds",
             "read both with pystore get"),
        Kind("zero-units", _E, "queue", "units are zero and written ones follow",
             "skips them silently, or loops on an empty file", _REPAIR),
        Kind("ghost-units", _E, "queue", "units point to no record that belongs to them",
             "delivers nothing, or another message", _REPAIR),
        Kind("record-disagrees", _E, "queue", "a unit points to a whole record that names another"
             " topic, queue or offset",
             "delivers the message, or ends its consumer's pull", _REPAIR),
        Kind("units-beyond", _E, "queue", "units point past the end of the log",
             "cuts them off at the next start", _REPAIR),
        Kind("unit-order", _E, "queue", "a unit points before the one before it",
             "delivers out of order; searches by time fail", _REPAIR),
        Kind("lost-messages", _I, "queue", "these messages were lost with their part of the log"
             " earlier; units without a record stand for them", "skips them", "none"),
        Kind("queue-gap", _E, "queue", "a file of the queue is missing between others",
             "answers OFFSET_FOUND_NULL and jumps over it", _REPAIR),
        Kind("queue-file-size", _E, "queue", "a queue file of another size than the others",
             "does not start", _REPAIR),
        Kind("queue-stray", _E, "", "unexpected files in a queue folder", "does not start",
             "move the files elsewhere, or pystore repair STORE"),
        Kind("deleted-messages", _I, "", "the list of deleted topics hides these messages",
             "does not know the list",
             "none; if the list is another store's, move it away and pystore rebuild STORE"),
        Kind("deleted-topic", _I, "queue", "records of a topic that no configuration names and that"
             " has no queues: it was deleted", "the same", "none"),
        # ---- index ----
        Kind("index-header", _W, "index", "the header disagrees with the entries",
             "searches the wrong times", _REPAIR),
        Kind("index-chain", _E, "index", "entries from here on are damaged or unreachable",
             "does not find these keys", _REPAIR),
        Kind("index-slots", _E, "index", "slots lead to the wrong entries",
             "does not find keys of these slots", _REPAIR),
        Kind("index-ghosts", _W, "index", "entries point to no record with that key",
             "returns nothing, or another message, for these keys", _REPAIR),
        Kind("missing-keys", _E, "log", "keys of whole records are not in the index",
             "does not find them", _REPAIR),
        Kind("index-size", _E, "file", "an index file of a size that slots and entries cannot have",
             "does not start, or reads it wrongly", _REPAIR),
        # ---- the rest ----
        Kind("checkpoint", _W, "", "the checkpoint is missing, damaged or ahead of the log",
             "recovers from the first file, or from too late a file",
             _REPAIR),
        Kind("config-json", _E, "", "a configuration file cannot be read",
             "takes the .bak beside it, or starts without what it held", _REPAIR),
        Kind("config-bak", _W, "", "the backup of a configuration file cannot be read",
             "never looks at it while the file itself is whole", "the next export replaces it"),
        Kind("not-checked", _W, "", "this user has no right to read the file: it was not checked",
             "does not start as this user", "run it as the user that the store belongs to"),
        Kind("metadata-db", _E, "", "the metadata database is damaged",
             "does not know it", "the next open takes config/*.json"),
        Kind("access-db", _E, "", "the database of users and policies is damaged: rules may be"
             " lost or changed", "does not know it",
             "the next start takes access/users.json, else a backup"),
        Kind("own-note", _W, "", "a note that saves an open some reading is damaged",
             "does not know it", "the next stop writes it again"),
        Kind("not-a-file", _E, "", "no file stands where lock or abort belongs: no open",
             "does not start", "move it elsewhere; where it stood for abort, touch STORE/abort"),
        Kind("sink-ledger", _E, "", "the ledger of a Spark sink is damaged: was its last batch"
             " put?", "does not know it", "remove the file; a batch may be put twice"),
        Kind("kept-aside", _W, "", "what was taken out of the store is no longer whole in its side"
             " folder: it cannot be put back", "does not know it", "none: the store is as it was"),
        Kind("offset-past-end", _E, "queue", "a group's committed offset is past the end of its"
             " queue: it will skip new messages", "the same", _REPAIR),
        Kind("tombstones", _E, "", "the list of deleted topics is damaged, or another store's:"
             " topics may come back, or be hidden", "does not know it", _REPAIR),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    `kind` is a name of :data:`KINDS`. `file` is relative to the store's root. `start` and `end` are
    the range concerned, counted as the kind says (:attr:`Kind.where`), or None when there is none.
    `count` says how many records, units, entries or keys are concerned, or None when nobody knows.
    `topic` and `queue` name the queue, or are None. `text` has the details of this one."""

    kind: str
    severity: Severity
    file: str
    start: int | None = None
    end: int | None = None
    count: int | None = None
    topic: str | None = None
    queue: int | None = None
    text: str = ""

    @property
    def meaning(self) -> str:
        """Returns what it means and what is lost."""
        return KINDS[self.kind].meaning

    @property
    def java(self) -> str:
        """Returns what Apache RocketMQ does with it."""
        return KINDS[self.kind].java

    @property
    def fix(self) -> str:
        """Returns the command that mends it."""
        return KINDS[self.kind].fix

    def as_dict(self) -> dict[str, Any]:
        """Returns it ready for JSON."""
        out = asdict(self)
        out["severity"] = self.severity.name
        return {**out, "meaning": self.meaning, "java": self.java, "fix": self.fix}


@dataclass(slots=True)
class Audit:
    """What :func:`pystore.audit.verify` saw.

    `state` is "live", "closed" or "crashed". `bytes` are those of the log that were read, and
    `records` counts whole ones. `not_dispatched` and `not_indexed` count records and keys at the
    end of the log that queues and index do not hold yet, which is normal for a live store and
    mended by the next open of a crashed one. `dropped` counts findings beyond what is kept.
    `seconds` is wall time. `segment_keys` says how many of `keys` each segment holds."""

    path: str
    state: str
    findings: list[Finding] = field(default_factory=list)
    segments: int = 0
    queues: int = 0
    index_files: int = 0
    bytes: int = 0
    records: int = 0
    units: int = 0
    keys: int = 0
    log_min: int = 0
    log_max: int = 0
    not_dispatched: int = 0
    not_indexed: int = 0
    dropped: int = 0
    seconds: float = 0.0
    segment_keys: list[int] = field(default_factory=list, repr=False)

    @property
    def errors(self) -> list[Finding]:
        """Returns the findings of severity ``ERROR``."""
        return [f for f in self.findings if f.severity is Severity.ERROR]

    @property
    def sound(self) -> bool:
        """Returns whether nothing is damaged, hidden or served wrongly."""
        return not self.errors

    @property
    def next_step(self) -> str:
        """Returns the one thing to do; it is empty when there is nothing to do."""
        if not self.errors:
            mends = any("the next open" in f.fix + f.text for f in self.findings)
            return "nothing: the next open mends it" if mends else ""
        command = _REPAIR.replace("STORE", self.path)
        own = sorted({f.fix for f in self.errors if _REPAIR not in f.fix})
        return "; ".join([*own, *([command] if len(own) < len({f.fix for f in self.errors})
                                  else [])])  # fmt: skip

    def counts(self) -> dict[str, int]:
        """Returns how many findings there are of each kind, by name."""
        return dict(Counter(f.kind for f in self.findings))

    def as_dict(self) -> dict[str, Any]:
        """Returns it ready for JSON."""
        out = {k: v for k, v in asdict(self).items() if k not in ("findings", "segment_keys")}
        return {**out, "sound": self.sound, "findings": [f.as_dict() for f in self.findings]}
