"""``pystore spark rebuild``: derived files made again from the log, as by ``pystore rebuild``."""

from __future__ import annotations

from typing import Any

from pystore.cli.repair import Checkpoint, Index, Metadata, Queues, RebuildDryRun, chosen
from pystore.repair import rebuild
from spark_ext.jobs.frame import Job, job, main
from spark_ext.jobs.spread import spread, spread_making
from spark_ext.jobs.verify import show_audit

__all__ = ["run"]


@job("rebuild")
def run(
    j: Job,
    queues: Queues = False,
    index: Index = False,
    checkpoint: Checkpoint = False,
    metadata: Metadata = False,
    dry_run: RebuildDryRun = False,
) -> int | None:
    """Make derived files again from the log, on executors, as well as the checks before and after.

    Without a choice: queues, index and checkpoint. They are made beside the old ones, equal to the
    byte to those of `pystore rebuild`, and swapped in; the old ones stay in STORE/repair-TIME, and
    `pystore repair STORE --undo` puts them back. A run that was killed is finished by the next one.
    Refused while a process has the store open.

    JSON: one object with actions, result, and what spark verify has. See docs/spark-jobs.md.

    \b
    Examples:
      pystore spark rebuild STORE --dry-run
      pystore spark rebuild STORE --index
    """
    if dry_run:
        j.session.check_free()
    sets: dict[str, Any] = j.session.sets
    done = rebuild(
        j.path.absolute(), j.session.conf, **chosen(queues, index, checkpoint, metadata),
        dry_run=dry_run, core=spread(j), parts=spread_making(j), **sets,
    )  # fmt: skip
    steps = [(n, a.do, a.file, a.what) for n, a in enumerate(done.actions, 1)]
    j.report.table("actions", ("step", "do", "file", "what"), steps)
    if done.after is None:
        return 0
    j.report.facts(
        "result",
        {"actions": len(done.actions), "side folder": done.side,
         "finished before": ", ".join(done.finished) or None, "sound": done.after.sound},
    )  # fmt: skip
    show_audit(j, done.after)
    return 0


if __name__ == "__main__":
    main("rebuild")
