"""``pystore spark verify``: the checks of ``pystore verify``, spread over executors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from pystore.audit import KINDS, Audit, describe, verify
from pystore.cli.verbs import Size, usage
from spark_ext.jobs.frame import Job, is_cold, job, main
from spark_ext.jobs.report import Plot
from spark_ext.jobs.spread import on_executors, spread

__all__ = ["run", "show_audit"]

_SEGMENTS_A_TASK = 16
#: A driver has so many in memory at once.
_SEGMENTS_A_JOB = 1 << 14


@job("verify")
def run(
    j: Job,
    deep: Annotated[
        bool, typer.Option("--deep", help="Compare each unit with its record, one by one.")
    ] = False,
) -> int | None:
    """Check log, queues, index and metadata against each other, spread over executors.

    The findings are those of `pystore verify`, by the same checks: tasks take segments of the log,
    queues and index files each; of a cold tier, segments. Nothing is locked or written. The exit
    code is 5 when messages are damaged or hidden.

    JSON: one object with audit, kinds, findings. See docs/spark-jobs.md.

    \b
    Examples:
      pystore spark verify STORE
      pystore spark verify STORE --deep --report verify.html
    """
    if is_cold(j.path):
        return _verify_tier(j)
    sets: dict[str, Any] = j.session.sets
    audit = verify(j.path.absolute(), j.session.conf, deep=deep, core=spread(j), **sets)
    show_audit(j, audit)
    return 0


def _verify_tier(j: Job) -> int:
    """Checks a cold tier: ``pystore cold verify``, with segments as tasks."""
    from pystore.cold.tier import Tier, open_tier
    from pystore.cold.upkeep import SegmentWork, check_segments
    from pystore.cold.upkeep import verify as verify_segments

    tier = open_tier(j.address)
    if not isinstance(tier, Tier):
        raise usage(
            "RocketMQ wrote this tier, which has no manifests", "check it by `pystore cold verify`"
        )

    def run(work: Iterator[SegmentWork]) -> Iterator[tuple[SegmentWork, str]]:
        while some := list(itertools.islice(work, _SEGMENTS_A_JOB)):
            parts = [some[n : n + _SEGMENTS_A_TASK] for n in range(0, len(some), _SEGMENTS_A_TASK)]
            done = on_executors(j, check_segments, j.address, parts, "checking segments")
            yield from zip(some, itertools.chain(*done), strict=True)

    audit = verify_segments(tier, run=run)
    j.report.facts("tier", {
        "sound": not audit.wrong, "queues": audit.queues, "segments": audit.segments,
        "messages": audit.messages, "bytes": Size(audit.bytes), "orphans": audit.orphans,
        "orphan bytes": Size(audit.orphan_bytes), "not listed": audit.more,
    })  # fmt: skip
    if audit.wrong:
        j.report.table("wrong", ("what",), [(each,) for each in audit.wrong])
    j.session.damaged = bool(audit.wrong)
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
