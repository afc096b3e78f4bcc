"""``pystore salvage``: a store from a bare heap of segments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pystore.cli._session import Session

__all__ = ["run"]


def run(
    s: Session,
    into: Annotated[Path, typer.Argument(metavar="INTO", help="Folder for the new store.")],
) -> int | None:
    """Makes a store of the segments in folder STORE, whatever they are called, and repairs it.

    For segments without queues, index or configuration, from a broken disk or a backup: their
    places in the log are read from their records. Nothing in STORE changes.

    \b
    Examples:
      pystore salvage /mnt/recovered ./store
    """
    from pystore.repair import salvage

    done = salvage(s.path, into, s.conf, **dict[str, Any](s.sets))
    s.out.table("segments", ("file", "first byte"), done.segments)
    if done.skipped:
        s.out.table("left out", ("file",), [(name,) for name in done.skipped])
    after = done.repair.after
    s.out.facts(
        "store",
        {
            "path": str(into),
            "records": after.records if after else None,
            "queues": after.queues if after else None,
            "sound": after.sound if after else None,
        },
    )
    s.damaged = after is not None and not after.sound
    return 0
