"""``pystore clone``: a whole copy of a running broker's store."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli.inquirer import check_address
from broker.cli.signing import CredentialsFile, TrustFile, context_of, credentials_of
from pystore.cli.verbs import Session, Size

if TYPE_CHECKING:
    from broker.cloning import Clone, CloneReport, MasterFacts

__all__ = ["run"]


def run(
    s: Session,
    broker: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="The master's main port (listenPort).")
    ],
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="New directory, or one of a clone that ended early."),
    ],
    ha: Annotated[
        str | None,
        typer.Option("--ha", metavar="HOST:PORT", help="Its port for slaves. Default: ask it."),
    ] = None,
    existing: Annotated[
        bool,
        typer.Option("--existing", help="DIR may hold a store that no clone made: a slave's."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and print the plan; copy nothing.")
    ] = False,
    credentials: CredentialsFile = None,
    trust: TrustFile = None,
) -> int | None:
    """Copy the whole store of a running master, of this project or of Java.

    The log comes by the port for slaves, byte for byte; queues and index are made of it here.
    Topics, groups, consumer offsets and the progress of delays follow. Users, access rules and
    settings stay behind. The master serves its clients meanwhile; one that waits for slaves counts
    the copy as one until it ends.

    A run that ended early goes on where it stopped: give the same command again. A directory with
    a store that no clone made, or with a longer log than the master's, is refused and not changed.
    The copy is in sync when the run ends. Use it as the store of a new slave, or look at it with
    verify and diff.

    It has no STORE; --set and --conf are the copy's settings, over those of the master's that
    its files depend on. See docs/replication.md.

    An error's kind says what is wrong: NotAStore for a directory that holds something else;
    ForeignLog for a store with another past or layout, with a longer log than the master's, or
    that no clone made (clone.json names the broker that a clone copied); DiskFull before the
    first byte or later; NotServed for a port that is closed or closes the connection;
    StoreLocked for a directory that is in use.

    \b
    Examples:
      pystore clone 10.0.0.1:10911 /data/copy
      pystore clone 10.0.0.1:10911 /data/copy --dry-run --json
      pystore clone 10.0.0.1:10911 /data/copy --ha 10.0.0.1:10912 --credentials admin.yml
    """
    import asyncio

    from broker.cloning import Clone

    check_address(broker, "HOST:PORT")
    if ha is not None:
        check_address(ha, "--ha")
    settings = s.settings()
    given = {name: settings[name] for name in settings.explicit}
    clone = Clone(
        broker, folder, given, ha=ha or "", credentials=credentials_of(credentials),
        tls=context_of(trust), existing=existing,
    )  # fmt: skip
    began = time.monotonic()
    facts, cloned = asyncio.run(_run(s, clone, folder, dry_run))
    if cloned is None:
        return 0
    s.out.facts(
        "clone",
        {
            "master": facts.address, "directory": str(folder), "log begin": cloned.begin,
            "log end": cloned.end, "bytes": Size(cloned.end - cloned.begin),
            "topics": cloned.topics, "groups": cloned.groups,
            "seconds": round(time.monotonic() - began, 1), "not taken over": cloned.problems,
        },
    )  # fmt: skip
    s.out.note(f"check it with `pystore verify {folder}`")
    return 0


async def _run(
    s: Session, clone: Clone, folder: Path, dry_run: bool
) -> tuple[MasterFacts, CloneReport | None]:
    facts = await clone.facts()
    left = clone.check_folder(facts)
    if dry_run:
        s.out.plan(
            {"master": facts.address, "port for slaves": facts.ha, "directory": str(folder),
             "log begin": facts.begin, "log end": facts.end, "to come": Size(left),
             **facts.settings}
        )  # fmt: skip
        return facts, None
    with s.progress("copying") as bar:
        return facts, await clone.run(facts, bar.update)
