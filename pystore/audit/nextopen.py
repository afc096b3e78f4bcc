"""What the next open of a crashed store mends by itself, and is therefore no damage.

Recovery after a crash writes the units and the index entries of all records from a start on again
(docs/recovery.md, csrc/store/recover.c). The start is worked out here as it is there, from the
checkpoint and the times of the segments' first records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pystore.audit.core import SegmentFacts
from pystore.audit.findings import Finding, Severity
from pystore.audit.kinds import (
    DoubleSegmentFinding,
    IndexChainFinding,
    IndexSizeFinding,
    MisnamedSegmentFinding,
    MissingKeysFinding,
    MissingSegmentFinding,
    MissingUnitsFinding,
    NotDispatchedFinding,
    QueueStrayFinding,
    SegmentSizeFinding,
    StrayFileFinding,
)
from pystore.audit.layout import Layout
from pystore.files.notes import CHECKPOINT_SIZE, checkpoint_times
from pystore.files.quiet import open_quietly, read_quietly
from pystore.format.names import LIGHT_PREFIX
from pystore.native import lib

__all__ = ["NextOpen"]

_MARGIN_MS: int = lib.PS_CHECKPOINT_MARGIN_MS
_HEADER, _SLOT, _ENTRY = 40, 4, 20
#: What has an open refused (docs/recovery.md#before-anything-is-changed).
_STOPS = (
    DoubleSegmentFinding, MisnamedSegmentFinding, MissingSegmentFinding, QueueStrayFinding,
    SegmentSizeFinding, StrayFileFinding,
)  # fmt: skip


class NextOpen:
    """What the next open does with a store that was not closed. `queues_from` and `index_from` are
    log offsets."""

    def __init__(self, layout: Layout, facts: Sequence[SegmentFacts]) -> None:
        self._layout = layout
        try:
            data = read_quietly(layout.root / "checkpoint", CHECKPOINT_SIZE) or b""
        except OSError:
            data = b""
        times = checkpoint_times(data)
        log, index = (max(0, t - _MARGIN_MS) for t in (min(times[:2]), times.index_ms))
        self.queues_from = self._file_by_time(facts, log)
        if not any(file.size for files in layout.queues.values() for file in files):
            self.queues_from = layout.log_min  # the checkpoint vouches for files that are not there
        self.index_from = min(self.queues_from, self._file_by_time(facts, min(index, log)))

    def _file_by_time(self, facts: Sequence[SegmentFacts], time_ms: int) -> int:
        older = [file.number for file, each in zip(self._layout.segments, facts, strict=False)
                 if each.records and each.first_time <= time_ms]  # fmt: skip
        return max(older, default=self._layout.log_min)

    def succeeds(self, found: Iterable[Finding]) -> bool:
        """Returns whether nothing that was found has each open refused until it is repaired."""
        stops = any(isinstance(f, _STOPS) and f.severity is Severity.ERROR for f in found)
        return not stops and not self._index_is_odd()

    def mends(self, f: Finding) -> bool:
        """Returns whether recovery, once it runs, writes again what is wrong here."""
        if isinstance(f, MissingUnitsFinding):
            # The records of a light queue do not ask for its folder.
            asked = not f.folder_missing or not str(f.topic).startswith(LIGHT_PREFIX)
            return asked and f.first_record >= self.queues_from
        if isinstance(f, NotDispatchedFinding):
            return f.start is not None and f.start >= self.queues_from
        if isinstance(f, MissingKeysFinding):
            return f.start is not None and f.start >= self.index_from
        if isinstance(f, IndexSizeFinding):
            return f.end == 0  # between its making and its first size
        return isinstance(f, IndexChainFinding) and self._entries_go(f)

    def _index_is_odd(self) -> bool:
        """Returns whether something other than a file is named like one of the index."""
        folder = self._layout.root / "index"
        return folder.is_dir() and any(each.is_symlink() or not each.is_file()
                                       for each in folder.iterdir())  # fmt: skip

    def _entries_go(self, f: Finding) -> bool:
        """Returns whether the entry that breaks the row, or the one before it, is of a record that
        recovery reads: it removes that entry and what follows."""
        for path, slots, _ in self._layout.index:
            if self._layout.name(path) != f.file or f.start is None:
                continue
            try:
                with open_quietly(path) as file:
                    file.seek(_HEADER + slots * _SLOT + (f.start - 1) * _ENTRY)
                    data = file.read(2 * _ENTRY)
            except OSError:
                return False
            places = [int.from_bytes(data[at + 4 : at + 12], "big", signed=True)
                      for at in range(0, len(data) - _ENTRY + 1, _ENTRY)]  # fmt: skip
            return max(places, default=-1) >= self.index_from
        return False
