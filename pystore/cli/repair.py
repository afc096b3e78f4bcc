"""``pystore repair`` and ``pystore rebuild``: mend a store, or make its derived files again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pystore.cli._balance import show_balance
from pystore.cli._session import Session
from pystore.cli._values import usage
from pystore.cli.verify import PHASES, show_audit

if TYPE_CHECKING:
    from pystore.repair import Repair

__all__ = ["rebuild", "run"]


def _options(s: Session, bar: Any) -> dict[str, Any]:
    def tell(phase: str, done: int, total: int | None) -> None:
        if phase in PHASES:  # the others say that one has ended
            bar.update(done, total, PHASES[phase])

    return {"progress": tell, **s.sets}


def _show_plan(s: Session, planned: Repair) -> None:
    rows = [(n, a.do, a.file, a.what) for n, a in enumerate(planned.actions, 1)]
    if s.out.json:
        s.out.objects("actions", planned.as_dict()["actions"])
    else:
        s.out.table("plan", ("step", "do", "file", "what"), rows)


def _confirmed(s: Session, yes: bool) -> bool:
    """Says whether to go on: it asks on a terminal, and refuses elsewhere without --yes."""
    if yes:
        return True
    if s.out.json or not sys.stdin.isatty():
        raise usage("this changes the store", "add --yes, or --dry-run to see the plan alone")
    return typer.confirm("Apply this plan?", default=False, err=True)


def _show_result(s: Session, done: Repair) -> None:
    s.out.facts(
        "result",
        {
            "actions": len(done.actions),
            "side folder": done.side,
            "finished before": ", ".join(done.finished) or None,
            "sound": done.after.sound if done.after else None,
        },
    )
    if done.balance is not None:
        show_balance(s, done.balance)
    if done.after is not None and done.after.findings:
        show_audit(s, done.after)
    s.damaged = not done.good


def run(
    s: Session,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan; change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Apply without asking.")] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Put the store back as it was before its last repair.")
    ] = False,
) -> int | None:
    """Mend what `pystore verify` finds: print a plan, then apply it.

    Damage in the log becomes a record that no queue delivers, so that everything after it can be
    read again and no offset moves. Queues and index are made again from the log and swapped in.
    Every byte that is taken away stays in STORE/repair-TIME, and --undo puts it back. A repair that
    was interrupted is finished by the next one. Refused while a process has the store open.

    \b
    Examples:
      pystore repair /data/rocketmq/store --dry-run
      pystore repair /data/rocketmq/store --yes
      pystore repair /data/rocketmq/store --undo
    """
    from pystore import repair as _repair

    if undo:
        done = _repair.undo(s.path, s.conf, **s.sets)
        s.out.facts("undone", {"side folder": done.side, "actions": len(done.actions)})
        return 0
    if dry_run:
        with s.progress("checking the log") as bar:
            planned = _repair.plan(s.path, s.conf, **_options(s, bar))
        _show_plan(s, planned)
        return _unchanged(s, planned)
    with s.progress("checking the log") as bar:

        def agreed(planned: Repair) -> bool:
            bar.close()
            _show_plan(s, planned)
            return _confirmed(s, yes)

        done = _repair.repair(s.path, s.conf, confirm=agreed, **_options(s, bar))
    if done.side is None and not done.finished:
        if not done.actions:
            _show_plan(s, done)
        return _unchanged(s, done)
    _show_result(s, done)
    return 0


def _unchanged(s: Session, planned: Repair) -> int:
    """Ends a run in which nothing was to be done, or somebody did not want it."""
    s.damaged = planned.before is not None and not planned.before.sound
    if planned.actions:
        return 0
    if planned.before is not None and s.damaged:
        show_audit(s, planned.before)
    else:
        s.out.note("nothing to repair")
    return 0


Queues = Annotated[bool, typer.Option("--queues", help="Consume queues.")]
Index = Annotated[bool, typer.Option("--index", help="Index files.")]
Checkpoint = Annotated[bool, typer.Option("--checkpoint", help="The checkpoint.")]
Metadata = Annotated[
    bool, typer.Option("--metadata", help="The metadata database, at the next open.")
]
LightFiles = Annotated[
    bool,
    typer.Option("--light-files", help="Queues of lite topics also as a Java broker has them."),
]
RebuildDryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check the log and print the plan; change nothing.")
]


def chosen(queues: bool, index: bool, checkpoint: bool, metadata: bool) -> dict[str, Any]:
    """Returns which files are made again: without a choice all but the metadata."""
    usual = not (queues or index or checkpoint or metadata)
    return {
        "queues": queues or usual, "index": index or usual, "checkpoint": checkpoint or usual,
        "metadata": metadata,
    }  # fmt: skip


def rebuild(
    s: Session,
    queues: Queues = False,
    index: Index = False,
    checkpoint: Checkpoint = False,
    metadata: Metadata = False,
    light_files: LightFiles = False,
    dry_run: RebuildDryRun = False,
) -> int | None:
    """Make derived files again from the log's first record, whatever the checkpoint says.

    Without a choice: queues, index and checkpoint. They are made beside the old ones and swapped
    in, equal to the byte to what the broker would have written; the old ones stay in
    STORE/repair-TIME. A store with lite topics goes to a Java broker with --light-files, which
    makes a folder and a file for each of them; enableLmq and enableMultiDispatch must be on there.

    \b
    Examples:
      pystore rebuild /data/rocketmq/store
      pystore rebuild /data/rocketmq/store --index
      pystore rebuild /data/rocketmq/store --light-files
    """
    from pystore import repair as _repair

    with s.progress("reading the log") as bar:
        done = _repair.rebuild(
            s.path, s.conf, **chosen(queues, index, checkpoint, metadata), dry_run=dry_run,
            light_files=light_files, **_options(s, bar),
        )  # fmt: skip
    _show_plan(s, done)
    if dry_run:
        return 0
    _show_result(s, done)
    return 0
