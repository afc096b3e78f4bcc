"""Derived files made again from the log: a store beside the old one, over the same segments.

The scratch store has no queues, no index and no checkpoint, so its recovery reads the log from the
start and dispatches every record: the files that come out are what the dispatcher would have
written, to the byte. They are synced when it closes, and then swapped in.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pystore.audit.delays import with_own_levels
from pystore.audit.indextags import with_own_tags
from pystore.audit.layout import Layout
from pystore.files import make_folders, write_whole
from pystore.repair.journal import Journal
from pystore.repair.manifest import Action
from pystore.settings import NOT_SERVED, PLACES, Settings
from pystore.store._report import RecoveryReport
from pystore.store._store import Store

__all__ = ["Derive", "Progress", "make_derived", "swap_derived"]

Progress = Callable[[str, int, int], None]
#: Makes the queues, and the index if the flag is set, of a store in a folder. False: it made
#: nothing.
Derive = Callable[[Layout, Settings, Path, bool], bool]
#: Settings that say where a store is, or how it treats its disk: the scratch store has its own.
_ELSEWHERE = PLACES | {"flushDiskType", "fileReservedTime", "paranoidRecovery"}


class _Scratch(Store):
    """A store in which what recovery would cut off or close over stays, since no manifest would
    know of it. Where two records claim one queue offset, the units of the store that it is made for
    say whose it is, as they do for an open. Its own metadata goes with it, so the topics of its log
    are not looked at."""

    _keeps_log = True
    _compares_queues = False

    def __init__(self, layout: Layout, into: Path, progress: Progress | None, given: Any) -> None:
        self._queues_before = layout.root / "consumequeue"
        super().__init__(into, None, progress=progress, **given)

    def _learn_of_log(self, bare: bool) -> None: ...


def make_derived(
    layout: Layout, settings: Settings, into: Path, progress: Progress | None, names: list[str],
    ahead: Derive | None = None, lights: Iterable[str] = (),
) -> RecoveryReport:  # fmt: skip
    """Makes what `names` asks for of the log in folder `into`, which is emptied first: queues and
    checkpoint always, "index" only when it is named. lights: light queues that are made beside
    those that have a folder. ahead: makes queues and index, where it can;
    the recovery then finds nothing to do."""
    shutil.rmtree(into, ignore_errors=True)
    make_folders(into, settings.file_mode)
    settings = with_own_tags(with_own_levels(settings, layout), layout)
    (into / "abort").touch(mode=settings.file_mode)
    for topic, queue in (*layout.light_queues, *((name, 0) for name in lights)):
        make_folders(into / "consumequeue" / topic / str(queue), settings.file_mode)
    tombstones = layout.root / "deletedTopics"
    if tombstones.is_file():
        write_whole(into / "deletedTopics", tombstones.read_bytes(), mode=settings.file_mode)
    given: dict[str, Any] = {
        name: settings[name] for name in settings.explicit
        if name not in _ELSEWHERE and name not in NOT_SERVED  # a Java broker's own file
    }  # fmt: skip
    given["storePathCommitLog"] = ",".join(
        str(folder) for folder in settings.commitlog_dirs(layout.root)
    )
    given["mappedFileSizeCommitLog"] = layout.segment_size
    given["mappedFileSizeConsumeQueue"] = layout.queue_file_size
    if layout.index:
        given["maxHashSlotNum"], given["maxIndexNum"] = layout.index[-1][1:]
    if "index" not in names:
        given["messageIndexEnable"] = False  # most of the work
    given["cleanResourceInterval"] = 0  # retention must not run here
    if ahead is not None and ahead(layout, settings, into, "index" in names):
        (into / "abort").unlink()
    with _Scratch(layout, into, progress, given) as store:
        return store.report


def swap_derived(journal: Journal, action: Action, made: Path) -> None:
    """Puts what make_derived made into the store, each piece in one step."""
    for name in action.data["names"]:
        if (made / name).exists():
            journal.swap_in(action, name, made / name)
