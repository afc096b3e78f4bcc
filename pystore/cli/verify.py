"""``pystore verify``: every check that the files of a store allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pystore.cli._session import Session
from pystore.cli._values import Size
from pystore.cli.cold import verify as verify_tier
from pystore.store._reading import is_elsewhere

if TYPE_CHECKING:
    from pystore.audit import Audit

__all__ = ["PHASES", "run", "show_audit"]

_SHOWN = 200  # findings in text; --json has them all
PHASES = {
    "opening": "reading the log",
    "queues": "reading the queues",
    "index": "reading the index",
    "log": "checking the log",
    "units": "checking units",
}


def run(
    s: Session,
    jobs: Annotated[int, typer.Option(min=0, help="Threads; 0: one a processor.")] = 0,
    deep: Annotated[
        bool, typer.Option("--deep", help="Compare each unit with its record, one by one.")
    ] = False,
) -> int | None:
    """Check log, consume queues, index and metadata against each other, and say what is lost.

    Works on live, stopped and crashed stores, ours and Java's. Takes no lock and writes nothing: no
    byte and no time stamp changes. Each finding says what it means, what Apache RocketMQ does with
    it and which command mends it. The exit code is 5 when messages are damaged or hidden.

    A cold tier is checked as `pystore cold verify` does.

    What the next open of a crashed store mends is a warning, and the exit code 0. 'to do' is
    the one thing to run. docs/damage.md lists every kind of finding, and its fields in JSON.

    \b
    Examples:
      pystore verify /data/rocketmq/store
      pystore verify /data/rocketmq/store --deep --jobs 8
      pystore verify /data/rocketmq/store --json | jq '.findings[] | select(.severity == "ERROR")'
    """
    if is_elsewhere(s.path):
        return verify_tier(s, str(s.path), False)
    from pystore.audit import verify

    with s.progress("checking the log") as bar:
        audit = verify(
            s.path, s.conf, jobs=jobs, deep=deep,
            progress=lambda phase, done, total: bar.update(done, total, PHASES.get(phase)),
            **dict[str, Any](s.sets),
        )  # fmt: skip
    show_audit(s, audit)
    s.damaged = not audit.sound
    return 0


def show_audit(s: Session, audit: Audit) -> None:
    """Shows facts, findings, and what each kind of finding means."""
    from pystore.audit import describe, mend_command

    facts: dict[str, object] = {
        "path": audit.path,
        "state": audit.state,
        "sound": audit.sound,
        "to do": audit.next_step or None,
        "log min": audit.log_min,
        "log max": audit.log_max,
        "segments": audit.segments,
        "bytes": Size(audit.bytes),
        "records": audit.records,
        "queues": audit.queues,
        "units": audit.units,
        "index files": audit.index_files,
        "keys": audit.keys,
        "not dispatched": audit.not_dispatched,
        "not indexed": audit.not_indexed,
        "errors": len(audit.errors),
        "findings": len(audit.findings),
        "findings left out": audit.dropped,
        "seconds": round(audit.seconds, 3),
    }
    if s.out.json:
        s.out.facts("audit", {k: v for k, v in facts.items() if k != "findings"})
        s.out.objects("findings", [f.as_dict() for f in audit.findings])
        return
    s.out.facts("audit", facts)
    if not audit.findings:
        return
    rows = []
    for f in audit.findings[:_SHOWN]:
        place = "" if f.start is None else f"{f.start} to {f.end}"
        rows.append((f.severity.name.lower(), f.kind, f.file, place, f.count, describe(f)))
    s.out.table("findings", ("severity", "kind", "file", "range", "count", "details"), rows)
    if len(audit.findings) > _SHOWN:
        s.out.note(f"{len(audit.findings) - _SHOWN} more findings: --json shows all of them")
    kinds = {f.kind: f for f in audit.findings}
    s.out.table(
        "what they mean",
        ("kind", "meaning", "Apache RocketMQ", "mend it by"),
        [(name, f.meaning, f.java, mend_command(f, audit.path))
         for name, f in sorted(kinds.items())],
    )  # fmt: skip
