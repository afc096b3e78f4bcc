"""``pystore spark verify``: the checks of ``pystore verify``, spread over executors."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pystore.audit import KINDS, Audit, describe, verify
from pystore.cli.verbs import Size
from spark_ext.jobs.frame import Job, job, main
from spark_ext.jobs.report import Plot
from spark_ext.jobs.spread import spread

__all__ = ["run", "show_audit"]


@job("verify")
def run(
    j: Job,
    deep: Annotated[
        bool, typer.Option("--deep", help="Compare each unit with its record, one by one.")
    ] = False,
) -> int | None:
    """Check log, queues, index and metadata against each other, spread over executors.

    The findings are those of `pystore verify`, by the same checks: tasks take segments of the log,
    queues and index files each. Nothing is locked or written. The exit code is 5 when messages are
    damaged or hidden.

    JSON: one object with audit, kinds, findings. See docs/spark-jobs.md.

    \b
    Examples:
      pystore spark verify STORE
      pystore spark verify STORE --deep --report verify.html
    """
    sets: dict[str, Any] = j.session.sets
    audit = verify(j.path.absolute(), j.session.conf, deep=deep, core=spread(j), **sets)
    show_audit(j, audit)
    return 0


def show_audit(j: Job, audit: Audit) -> None:
    """Puts facts and findings into the report and the exit code."""
    facts = {k: v for k, v in audit.as_dict().items() if k != "findings"}
    facts["bytes"] = Size(audit.bytes)
    facts["seconds"] = round(audit.seconds, 3)
    facts["errors"] = len(audit.errors)
    j.report.facts("audit", {name.replace("_", " "): value for name, value in facts.items()})
    j.session.damaged = not audit.sound
    if not audit.findings:
        return
    counts = audit.counts()
    j.report.table(
        "kinds",
        ("kind", "findings", "meaning", "java", "fix"),
        [(name, n, KINDS[name].meaning, KINDS[name].java, KINDS[name].fix)
         for name, n in sorted(counts.items())],
        Plot("kind", "findings"),
    )  # fmt: skip
    names = ("severity", "kind", "file", "start", "end", "count", "topic", "queue", "details")
    typed = j.session.out.json  # as `pystore verify` shows them, to people and to programs
    rows = [
        (f.severity.name, f.kind, f.file, f.start, f.end, f.count, f.topic, f.queue,
         f.details if typed else describe(f))
        for f in audit.findings
    ]  # fmt: skip
    j.report.table("findings", names, rows)


if __name__ == "__main__":
    main("verify")
