"""``pystore.repair``: plan a repair, apply it, undo it; rebuild derived files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pystore import settings as _settings
from pystore.audit import Audit, verify
from pystore.audit.core import CoreAudit
from pystore.audit.layout import look, look_at_log
from pystore.errors import BadArgument, NotFound, RecordDamaged
from pystore.repair.census import Balance, Census
from pystore.repair.evidence import mark_of
from pystore.repair.journal import Journal, hold_lock, refuse_if_held
from pystore.repair.light_files import copy_offsets, make_queue_folder
from pystore.repair.manifest import DERIVED, Action, side_folders
from pystore.repair.parts import Run as PartsRun
from pystore.repair.parts import derive, one_by_one
from pystore.repair.plan import (
    keep_rivals,
    make_plan,
    refuse_unclear,
    set_back_offsets,
    set_lights_aside,
)
from pystore.repair.reasons import balance_of
from pystore.repair.scratch import Derive, Progress, make_derived, swap_derived
from pystore.settings import Settings
from pystore.store._reading import Reader

__all__ = ["Repair", "plan", "rebuild", "repair", "undo"]


@dataclass(slots=True)
class Repair:
    """What a repair does or did.

    `actions` are in order. `side` is the folder with every byte that was removed, None while
    nothing was done. `before` and `after` are the audits around it. `balance` has the log's records
    before and after, None while nothing was done."""

    path: str
    actions: list[Action]
    before: Audit | None = None
    after: Audit | None = None
    side: str | None = None
    finished: list[str] = field(default_factory=list)
    balance: Balance | None = None

    @property
    def good(self) -> bool:
        """Whether the store is sound now, and no record differs without a reason."""
        seen = self.after or self.before
        return (seen is None or seen.sound) and (self.balance is None or self.balance.good)

    def as_dict(self) -> dict[str, Any]:
        """Returns what JSON takes."""
        actions = [{"do": a.do, "file": a.file, "what": a.what, "done": a.done}
                   for a in self.actions]  # fmt: skip
        return {
            "path": self.path, "actions": actions, "side": self.side, "finished": self.finished,
            "sound_before": None if self.before is None else self.before.sound,
            "sound_after": None if self.after is None else self.after.sound,
            "balance": None if self.balance is None else self.balance.as_dict(),
        }  # fmt: skip


def _rebuilder(settings: Settings, progress: Progress | None, ahead: Derive | None = None) -> Any:
    def make(journal: Journal, action: Action) -> None:
        made = journal.folder / "made"
        if not action.data.get("inodes"):
            layout = look(journal.root, settings)
            lights = action.data.get("lights", ())
            report = make_derived(
                layout, settings, made, progress, action.data["names"], ahead, lights
            )
            action.data["log"] = mark_of(layout, report.log_max)
            (made / "abort").unlink(missing_ok=True)
        swap_derived(journal, action, made)

    return make


def plan(
    path: str | os.PathLike[str], conf: str | os.PathLike[str] | None = None,
    *, progress: Progress | None = None, **settings: Any,
) -> Repair:  # fmt: skip
    """Returns what :func:`repair` would do; nothing is changed.

    Raises: as :func:`pystore.audit.verify`, and StoreLocked while a process has the store open."""
    audit = verify(path, conf, progress=progress, **settings)
    if audit.state == "live":
        refuse_if_held(Path(path))
    layout = look(Path(path), _settings.load(conf, settings))
    return Repair(os.fspath(path), make_plan(layout, audit), before=audit)


def _begun(root: Path, given: Settings) -> list[Journal]:
    """Returns the repairs that were interrupted."""
    folders = given.commitlog_dirs(root)
    all_of_them = [Journal.load(side, folders, given.file_mode) for side in side_folders(root)]
    return [journal for journal in all_of_them if journal.state in ("applying", "undoing")]


def _finish(begun: list[Journal], given: Settings, progress: Progress | None) -> list[str]:
    """Finishes what was interrupted. Where the store was used since, what is left to do belongs to
    a store that no longer exists, and the next plan takes its place."""
    for journal in begun:
        layout, forwards = look(journal.root, given), journal.state == "applying"
        if journal.differs(layout, forwards=forwards) is not None:
            journal.abandon()
        elif forwards:
            journal.apply(_rebuilder(given, progress))
        else:
            journal.undo(layout)
    return [journal.folder.name for journal in begun if journal.state != "abandoned"]


def repair(
    path: str | os.PathLike[str], conf: str | os.PathLike[str] | None = None,
    *, progress: Progress | None = None, confirm: Callable[[Repair], bool] | None = None,
    **settings: Any,
) -> Repair:  # fmt: skip
    """Mends what :func:`pystore.audit.verify` finds.

    Damage in the log becomes a record that no queue delivers, so that everything after it is read
    again and no offset moves; derived files are made again from the log and swapped in; every byte
    that is removed is in ``STORE/repair-TIME`` afterwards. A repair that was interrupted is
    finished first.

    `confirm` is asked with the plan before anything changes, and with what is left of a repair that
    was interrupted; when it returns False, nothing changes and ``after`` is None. The store's lock
    is held meanwhile.

    Raises: NotAStore, BadArgument, StoreLocked, Forbidden, StoreIOError, DiskFull."""
    root = Path(path)
    given = _settings.load(conf, settings)
    look_at_log(root, given)
    with hold_lock(root, given.file_mode):
        begun = _begun(root, given)
        left = Repair(str(root), [a for journal in begun for a in journal.actions])
        if begun and confirm is not None and not confirm(left):
            return left
        ended = _finish(begun, given, progress)
        check = _check_held(root, conf, progress, settings)
        before = check()
        actions = make_plan(look(root, given), before)
        done = Repair(str(root), actions, before=before, finished=ended)
        if actions and confirm is not None and not confirm(done):
            return done
        done.after = before
        if actions:
            counted = _census(root, given)
            journal, done.after = _carry_out(root, given, actions, progress, check)
            done.side, done.actions = str(journal.folder), journal.actions
            done.balance = balance_of(counted, _census(root, given), done.actions)
    return done


def _carry_out(
    root: Path, given: Settings, actions: list[Action], progress: Progress | None,
    check: Callable[[], Audit], ahead: Derive | None = None,
) -> tuple[Journal, Audit]:  # fmt: skip
    """Applies the actions, and returns what the store is like then. Only now is it known which of
    two records on one queue offset is delivered, and where the queues end."""
    journal = Journal.begin(root, actions, given.file_mode, given.commitlog_dirs(root))
    journal.apply(_rebuilder(given, progress, ahead))
    after = check()
    layout = look_at_log(root, given)
    ends = set_back_offsets(layout, after)
    more = keep_rivals(layout, after) + ends
    if more:
        journal.add(more)
        journal.apply(_rebuilder(given, progress))
    return journal, check() if ends else after


def _check_held(
    root: Path, conf: Any, progress: Progress | None, settings: Any, core: Any = CoreAudit
) -> Callable[[], Audit]:
    """Returns the audit of a store whose lock this process holds."""
    return partial(verify, root, conf, progress=progress, held=True, core=core, **settings)


@contextmanager
def _looking(root: Path) -> Iterator[None]:
    """Stands in for the lock, whose file may have to be made. Raises: StoreLocked."""
    refuse_if_held(root)
    yield


def rebuild(
    path: str | os.PathLike[str], conf: str | os.PathLike[str] | None = None,
    *, queues: bool = True, index: bool = True, checkpoint: bool = True, metadata: bool = False,
    light_files: bool = False, dry_run: bool = False, progress: Progress | None = None,
    core: Callable[..., CoreAudit] = CoreAudit, parts: PartsRun | None = one_by_one,
    **settings: Any,
) -> Repair:  # fmt: skip
    """Makes derived files again from the log's first record, whatever the checkpoint says.

    They are made beside the old ones and swapped in; the old ones lie in ``STORE/repair-TIME``
    afterwards. metadata: the database is moved aside, and the next open makes it again from
    ``config/*.json`` and the log. light_files: queues too, and those of lite topics are written as
    a Java broker has them, a folder each in ``consumequeue/``, and offsets of groups are where it
    looks for them; a later open keeps those going.
    dry_run: check and plan, and change nothing. core: as :func:`pystore.audit.verify` takes it, for
    the audits before and after. parts: does parts of the
    making (:mod:`pystore.repair.parts`); None: the recovery of a scratch store makes all.

    Raises: as :func:`repair`, and RecordDamaged while the log itself is damaged.
    """
    root = Path(path)
    given = _settings.load(conf, settings)
    look_at_log(root, given)
    queues = queues or light_files
    names = [n for n, on in zip(DERIVED, (queues, index, checkpoint), strict=True) if on]
    with _looking(root) if dry_run else hold_lock(root, given.file_mode):
        ended = [] if dry_run else _finish(_begun(root, given), given, progress)
        check = _check_held(root, conf, progress, settings, core)
        before = check()
        _refuse_damaged_log(before, root)
        actions = []
        if names:
            actions.append(Action("rebuild", "", f"make {', '.join(names)} again from the log",
                                  {"names": names}))  # fmt: skip
        if queues and not light_files:
            actions += set_lights_aside(look(root, given))
        if metadata and (root / "meta").exists():
            actions.append(Action("move", "meta", "move the database aside: the next open makes it"
                                  " again from config/*.json and the log"))  # fmt: skip
        if not actions:
            raise BadArgument("nothing was chosen to rebuild")
        if dry_run:
            return Repair(str(root), actions, before)
        if light_files:
            _make_light_folders(root, conf, given, settings)
            copy_offsets(root / "config", given.file_mode)
        ahead = None if parts is None else partial(derive, before.segment_keys, parts)
        counted = _census(root, given)
        journal, after = _carry_out(root, given, actions, progress, check, ahead)
        balance = balance_of(counted, _census(root, given), journal.actions)
    side = str(journal.folder)
    return Repair(str(root), journal.actions, before, after, side, ended, balance)


def _make_light_folders(root: Path, conf: Any, given: Settings, settings: dict[str, Any]) -> None:
    """Makes the folders of light queues: what is made again is what has one."""
    with Reader(root, conf, **settings) as reader:
        begin = 0
        while begin >= 0:
            some, begin = reader.lights.some(begin)
            for each in some:
                make_queue_folder(root, each.name, given.file_mode)


def _census(root: Path, given: Settings) -> Census:
    """Returns the records of the log as they stand now."""
    return Census.of((file.path, file.number) for file in look_at_log(root, given).segments)


def _refuse_damaged_log(audit: Audit, root: Path) -> None:
    refuse_unclear(audit)
    log = {"damaged-record", "log-hole", "records-after-blank", "missing-segment", "segment-size",
           "tombstones"}  # fmt: skip
    bad = next((f for f in audit.findings if f.kind in log), None)
    if bad is not None:
        error = RecordDamaged(bad.meaning, bad.file, offset=bad.start)
        error.next_step = f"run pystore repair {root}, which mends that first"
        raise error


def undo(
    path: str | os.PathLike[str], conf: str | os.PathLike[str] | None = None, **settings: Any
) -> Repair:
    """Puts the store back as it was before its last repair; one that was interrupted, too.

    Raises: NotAStore, NotFound, StoreLocked; BadArgument when the store was used since, and
    RecordDamaged when manifest or copies are not what the repair wrote: nothing has changed then.
    """
    root = Path(path)
    given = _settings.load(conf, settings)
    layout = look(root, given)
    with hold_lock(root, given.file_mode):
        for folder in reversed(side_folders(root)):
            journal = Journal.load(folder, given.commitlog_dirs(root), given.file_mode)
            if journal.state == "undone":
                continue
            journal.undo(layout)
            shutil.rmtree(folder / "made", ignore_errors=True)
            return Repair(str(root), journal.actions, side=str(folder))
    error = NotFound("no repair of this store can be undone", str(root))
    error.next_step = "nothing to do: no repair has changed this store, or all are undone"
    raise error
