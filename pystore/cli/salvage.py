"""``pystore salvage``: a store from a bare heap of segments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pystore.cli._balance import show_balance
from pystore.cli._session import Session
from pystore.cli.verify import show_audit
from pystore.store._reading import is_elsewhere

__all__ = ["run"]

_SHOWN = 20  # files without records, in text


def run(
    s: Session,
    into: Annotated[Path, typer.Argument(metavar="INTO", help="Folder for the new store.")],
) -> int | None:
    """Make a store of the segments in folder STORE, whatever they are called, and repair it.

    For segments without queues, index or configuration, from a broken disk or a backup, or for the
    folder of a whole store: size and places of the segments are read from their records. Nothing in
    STORE changes. Every file in which a record was found is taken, or named with the count of its
    records: the exit code is 5 when the new store lacks one of them.

    Of a cold tier every record that is whole is taken, also where a manifest or the end of an
    object is damaged; what is missing between them is listed.

    \b
    Examples:
      pystore salvage /mnt/recovered ./store
      pystore salvage s3://bucket/cold ./store
    """
    if is_elsewhere(s.path):
        return _salvage_tier(s, into)
    from pystore.repair import salvage

    done = salvage(s.path, into, s.conf, **dict[str, Any](s.sets))
    s.out.table("segments", ("file", "first byte"), done.segments)
    if s.out.json or 0 < len(done.skipped) <= _SHOWN:
        s.out.table("without records", ("file",), [(name,) for name in done.skipped])
    elif done.skipped:
        s.out.note(f"files without a record: {len(done.skipped)}; --json names them")
    if done.left:
        s.out.table("not taken", ("file", "records", "why"), done.left)
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
    if after is not None and not after.sound:
        show_audit(s, after)
    s.damaged = not done.repair.good
    show_balance(s, done.balance)
    return 0


def _salvage_tier(s: Session, into: Path) -> int:
    from pystore.cold.restore import salvage

    s.settings()  # so that wrong ones are refused
    done = salvage(s.path, into)
    if done.lost or s.out.json:
        s.out.table("lost", ("topic", "queue", "from", "to"), done.lost)
    s.out.facts("salvaged", {"store": str(into), "messages": done.messages,
                             "lost": sum(to - at for _, _, at, to in done.lost)})  # fmt: skip
    s.damaged = bool(done.lost)
    return 0 if done.messages else 1
