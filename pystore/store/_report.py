"""What recovery did, as plain objects for callers and tools."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pystore.base.enums import NamedInt
from pystore.native import text_of

__all__ = ["Action", "RecoveryMode", "RecoveryReport", "ReportItem"]


class RecoveryMode(NamedInt):
    """How the store was found: ``NEW`` empty, ``NORMAL`` closed cleanly, ``ABNORMAL`` with an abort
    file, ``READ`` opened read-only (nothing was changed)."""

    NEW = 0
    NORMAL = 1
    ABNORMAL = 2
    READ = 3


class Action(NamedInt):
    KEPT = 0
    CUT = 1
    SKIPPED = 2
    REBUILT = 3
    REMOVED = 4
    CLAMPED = 5


@dataclass(frozen=True, slots=True)
class ReportItem:
    """One thing recovery decided.

    start, end: the range concerned: bytes of the log, or units of a queue. records: how many
    records, units or entries are in it, -1 when nobody knows. what: file or queue, relative to the
    root. CLAMPED: a committed offset that was `end` is `start` now.
    """

    action: Action
    start: int
    end: int
    records: int
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening a store kept, cut, skipped and rebuilt (docs/recovery.md).

    Offsets are physical (bytes of the log). scanned_bytes: how much of the log was checked.
    bytes_cut: bytes at the end of the log that were no whole record. seconds: wall time.
    """

    mode: RecoveryMode
    log_min: int
    log_max: int
    scanned_from: int
    scanned_bytes: int
    records: int
    units_written: int
    units_cut: int
    entries_written: int
    entries_cut: int
    bytes_cut: int
    seconds: float
    items: tuple[ReportItem, ...]
    items_dropped: int

    @property
    def offsets_clamped(self) -> int:
        """How many committed offsets lay past the end of their queue."""
        return sum(item.action is Action.CLAMPED for item in self.items)

    def as_dict(self) -> dict[str, Any]:
        """Returns it ready for JSON, enums as their names."""
        out = asdict(self)
        out["mode"] = self.mode.name
        out["items"] = [{**asdict(i), "action": i.action.name} for i in self.items]
        return out


def report_of(raw: Any) -> RecoveryReport:
    """Makes a report of a cdata ``ps_report *``."""
    items = tuple(
        ReportItem(Action(i.action), i.from_at, i.to_at, i.records, text_of(i.what), text_of(i.why))
        for i in (raw.items[k] for k in range(raw.item_count))
    )
    names = [n for n in RecoveryReport.__slots__ if n not in ("mode", "items")]
    facts = {n: getattr(raw, n) for n in names}
    return RecoveryReport(mode=RecoveryMode(raw.mode), items=items, **facts)
