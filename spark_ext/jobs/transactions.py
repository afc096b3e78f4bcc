"""``pystore spark transactions``: what became of every half message.

Halves and ops come from their queues, final messages from a scan of the log. What a half, an op and
a copy are is decided in pystore/store/pending_log.py; which records settle a half as in
csrc/transactions/outcomes.c.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pystore.cli.verbs import When, usage
from pystore.format.names import DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC
from spark_ext.jobs.frame import Job, hour_ms, job, main
from spark_ext.jobs.report import Plot
from spark_ext.jobs.runs import made_beside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["run"]

_TX_MASK, _TX_COMMIT = 0xC, 0x8  # sysFlag: how a record ends a transaction
_HALF = (
    "struct<group: string, topic: string, checks: int, copyOf: bigint, copyKey: string,"
    " id: string, keys: string>"
)
#: Columns of a half in the report.
_SHOWN = (
    "offset", "fate", "group", "topic", "stored", "resolved_s", "checks", "commits", "id", "keys",
)  # fmt: skip


@job("transactions", skips=True)
def run(
    j: Job,
    max_: Annotated[
        int, typer.Option("--max", min=0, help="List so many halves, open ones first; 0: all.")
    ] = 50,
    orphan_after: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="An open half this much older than the log's end is an orphan.",
        ),
    ] = 3600,
    halves: Annotated[
        Path | None,
        typer.Option("--halves", metavar="DIR", help="Write every half to DIR as Parquet."),
    ] = None,
) -> int | None:
    """Report the fate of every half message, and how long it took.

    A half is committed, rolled back, discarded (after too many checks) or open. The report has
    counts and percentiles of the time to the decision by producer group, decisions by hour,
    transactions that were committed twice, and orphans: halves that stay open. Copies that a Java
    broker makes for its checks count as one half with their first. The store may be in use.

    JSON: one object with transactions, by producer group, by hour, committed more than once,
    orphans, halves. See docs/spark-jobs.md.

    \b
    Examples:
      pystore spark transactions STORE
      pystore spark transactions STORE --json --max 0
      pystore spark transactions STORE --report transactions.html --orphan-after 600
    """  # fmt: skip
    if halves is not None and halves.exists() and (not halves.is_dir() or any(halves.iterdir())):
        raise usage(f"--halves {halves} exists already", "name a new directory")
    if halves is not None:
        j.check_outside(halves)
    with j.reader() as reader:
        if HALF_TOPIC not in reader.topics():
            j.report.facts("transactions", {"halves": 0})
            return 1
        checked = _checks_of_open(reader)
        orphan_from = reader.info().store_timestamp_max - round(orphan_after * 1000)
    with contextlib.ExitStack() as undo:
        if halves is not None:  # another job that writes there is met before the work
            made = undo.enter_context(made_beside(halves.absolute(), "writing"))
        fates = _fates(j, checked).persist()
        undo.callback(fates.unpersist)
        _show(j, fates, max_, orphan_from)
        if halves is not None:
            with j.working("writing the halves"):
                j.output = made
                fates.write.mode("append").parquet(str(made))
    return 0


def _checks_of_open(reader: Any) -> list[tuple[int, int]]:
    """Returns (first offset, checks) of open halves that were checked: this broker writes no copies
    of them, the count is in the metadata."""
    from pystore.store.pending_log import find_pending

    return [(row.root, row.checks) for row in find_pending(reader).rows.values() if row.checks]


# ---- from records to fates ----


def _half(properties: dict[str, str], offset: int, place: int, stored: int) -> Any:
    """Makes the columns of _HALF; None for a record that is not a half."""
    from pystore.store.pending_log import copy_of, half_of

    record: Any = SimpleNamespace(
        properties=properties, queue_offset=offset, physical_offset=place, store_timestamp=stored
    )
    half = half_of(record)
    if half is None:
        return None
    at, key = copy_of(half, properties)
    found = (properties.get("UNIQ_KEY"), properties.get("KEYS"))
    return (half.group, half.topic, half.checks, at, key, *found)


def _named(body: bytes) -> list[int]:
    from pystore.store.pending_log import op_offsets

    return op_offsets(bytes(body))


def _read(j: Job, topic: str, columns: str) -> DataFrame:
    """Returns queue 0 of a topic, which may be missing. A damaged op would name other halves."""
    return j.read(
        columns, subscribePattern=topic, queues=0, includeTransactions="all", scan="queue",
        includeProperties="map", checkCrc="true",
    )  # fmt: skip


def _halves(j: Job) -> DataFrame:
    """Returns a row for each record of the half topic, with the offset of the first copy as
    `root`."""
    from pyspark.sql.functions import udf

    stored = _read(
        j,
        HALF_TOPIC,
        "queueOffset long, commitLogOffset long, storeTimestamp timestamp,"
        " properties map<string,string>",
    ).selectExpr(
        "queueOffset AS offset", "commitLogOffset AS place",
        "unix_millis(storeTimestamp) AS stored", "properties",
    )  # fmt: skip
    parse = udf(_half, _HALF, useArrow=False)
    rows = (
        stored.withColumn("half", parse("properties", "offset", "place", "stored"))
        .where("half IS NOT NULL")
        .selectExpr("offset", "place", "stored", "half.*")
    )
    # A copy is of the same producer group as its first; the first may be gone from the log.
    firsts = rows.selectExpr("offset AS copyOf", "group AS firstGroup")
    return rows.join(firsts, "copyOf", "left").selectExpr(
        "offset", "place", "stored", "group", "topic", "checks", "id", "keys",
        "CASE WHEN copyOf < offset AND coalesce(firstGroup, group) = group THEN copyOf"
        " WHEN copyKey IS NOT NULL THEN min(offset) OVER (PARTITION BY id, group)"
        " ELSE offset END AS root",
    )  # fmt: skip


def _finals(j: Job) -> DataFrame:
    """Returns (place of the half, when, committed or discarded) of each record that settles a
    half."""
    log = j.read(
        "topic string, sysFlag int, preparedTransactionOffset long, storeTimestamp timestamp",
        scan="log", includeTransactions="all",
    )  # fmt: skip
    committed = f"(sysFlag & {_TX_MASK}) = {_TX_COMMIT}"
    return log.where(
        f"{committed} OR (topic = '{DISCARD_TOPIC}' AND preparedTransactionOffset > 0)"
    ).selectExpr(
        "preparedTransactionOffset AS place", "unix_millis(storeTimestamp) AS at",
        f"{committed} AS committed",
    )  # fmt: skip


def _ops(j: Job) -> DataFrame:
    """Returns (offset of a half, when) of each decision that an op names."""
    from pyspark.sql.functions import udf

    ops = _read(j, OP_TOPIC, "body binary, storeTimestamp timestamp")
    offsets = udf(_named, "array<bigint>", useArrow=False)
    return ops.select(offsets("body").alias("offsets"), "storeTimestamp").selectExpr(
        "explode(offsets) AS offset", "unix_millis(storeTimestamp) AS at"
    )


def _fates(j: Job, checked: list[tuple[int, int]]) -> DataFrame:
    """Returns a row for each transaction: offset, fate, group, topic, stored, resolved_ms, checks,
    copies, commits, id, keys."""
    halves = _halves(j)
    transactions = halves.groupBy("root").agg(*_exprs(
        "min_by(group, offset) AS group", "min_by(topic, offset) AS topic",
        "min(stored) AS stored", "max(checks) AS checks", "count(*) AS copies",
        "min_by(id, offset) AS id", "min_by(keys, offset) AS keys",
    ))  # fmt: skip
    finals = _finals(j).join(halves.select("place", "root"), "place")
    ends = finals.groupBy("root").agg(*_exprs(
        "count_if(committed) AS commits", "min(at) FILTER (WHERE committed) AS committedAt",
        "min(at) FILTER (WHERE NOT committed) AS discardedAt",
    ))  # fmt: skip
    named = _ops(j).join(halves.select("offset", "root"), "offset")
    named = named.groupBy("root").agg(*_exprs("min(at) AS namedAt"))
    asked = j.spark.createDataFrame(checked, "root long, asked int")
    whole = transactions.join(ends, "root", "left").join(named, "root", "left")
    return whole.join(asked, "root", "left").selectExpr(
        "root AS offset",
        "CASE WHEN commits > 0 THEN 'committed' WHEN discardedAt IS NOT NULL THEN 'discarded'"
        " WHEN namedAt IS NOT NULL THEN 'rolled back' ELSE 'open' END AS fate",
        "group", "topic", "stored", "coalesce(committedAt, discardedAt, namedAt) - stored AS took",
        "greatest(checks, coalesce(asked, 0)) AS checks", "copies",
        "coalesce(commits, 0) AS commits", "id", "keys",
    )  # fmt: skip


def _exprs(*texts: str) -> list[Any]:
    from pyspark.sql.functions import expr

    return [expr(text) for text in texts]


# ---- the report ----


def _show(j: Job, fates: DataFrame, most: int, orphan_from: int) -> None:
    groups = j.collect(
        fates.groupBy("group", "topic", "fate").agg(*_exprs(
            "count(*) AS halves", "percentile(took, array(0.5, 0.95, 0.99)) AS p",
            "max(took) AS longest", "max(checks) AS checks",
        )).orderBy("group", "topic", "fate"),
        "reading transactions",
    )  # fmt: skip
    _show_groups(j, groups)
    hours = fates.withColumn("at", _exprs("timestamp_millis(stored)")[0])
    hours = hours.groupBy(_exprs(hour_ms("at"))[0].alias("hour"), "fate").count()
    rows = [(When(r.hour), r.fate, r["count"])
            for r in j.collect(hours.orderBy("hour", "fate"), "counting by hour")]  # fmt: skip
    j.report.table("by hour", ("hour", "fate", "halves"), rows, Plot("hour", "halves", "fate"))
    twice = fates.where("commits > 1").orderBy("offset")
    _list(j, "committed more than once", twice, most)
    _show_orphans(j, fates.where(f"fate = 'open' AND stored <= {orphan_from}"))
    order = _exprs("fate != 'open'", "stored", "offset")
    _list(j, "halves", fates.orderBy(*order), most)


def _show_groups(j: Job, groups: list[Any]) -> None:
    sums: dict[str, int] = {}
    for r in groups:
        sums[r.fate] = sums.get(r.fate, 0) + r.halves
    j.report.facts("transactions", {"halves": sum(sums.values())} | dict(sorted(sums.items())))
    rows = []
    for r in groups:
        times = [None if each is None else round(each / 1000, 3) for each in (r.p or [None] * 3)]
        longest = None if r.longest is None else r.longest / 1000
        rows.append((r.group, r.topic, r.fate, r.halves, *times, longest, r.checks))
    j.report.table(
        "by producer group",
        ("group", "topic", "fate", "halves", "p50 s", "p95 s", "p99 s", "longest s", "most checks"),
        rows,
        Plot("group", "halves", "fate"),
    )


def _show_orphans(j: Job, orphans: DataFrame) -> None:
    found = orphans.groupBy("group").agg(*_exprs(
        "count(*) AS halves", "min(stored) AS oldest", "max(checks) AS checks"
    ))  # fmt: skip
    rows = [(r.group, r.halves, When(r.oldest), r.checks)
            for r in j.collect(found.orderBy("group"), "looking for orphans")]  # fmt: skip
    j.report.table(
        "orphans", ("group", "halves", "oldest", "most checks"), rows, Plot("group", "halves")
    )


def _list(j: Job, name: str, frame: DataFrame, most: int) -> None:
    found = j.collect(frame.limit(most) if most else frame, f"listing {name}")
    j.report.table(
        name,
        _SHOWN,
        [
            (r.offset, r.fate, r.group, r.topic, When(r.stored),
             None if r.took is None else r.took / 1000, r.checks, r.commits, r.id, r["keys"])
            for r in found
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main("transactions")
