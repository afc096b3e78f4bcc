"""``pystore spark reconcile``: what one of two logs has and the other has not.

The measure is that of ``pystore diff``: by place, and by content wherever in its topic it lies.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pystore.cli.verbs import When, usage
from pystore.cold.objects import is_address
from pystore.format.names import HALF_TOPIC, OP_TOPIC
from spark_ext.jobs.frame import Job, is_cold, job, main
from spark_ext.jobs.report import Plot
from spark_ext.jobs.restore import read_archive
from spark_ext.jobs.runs import is_archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["run"]

_FIELDS = (
    "queueId int, queueOffset long, commitLogOffset long, bodyCRC int, msgId string,"
    " storeTimestamp {time}"
)
#: The id of a message without UNIQ_KEY says where it lies: another place, another id.
_CONTENT = (
    "CASE WHEN length(msgId) IN (32, 56) AND right(msgId, 16) = lpad(hex(commitLogOffset), 16, '0')"
    " THEN '' ELSE msgId END AS id"
)


@job("reconcile")
def run(
    j: Job,
    other: Annotated[
        str,
        typer.Argument(metavar="OTHER", help="The store, archive or cold tier to compare with."),
    ],
    topic: Annotated[
        str | None, typer.Option(help="Only these topics: a list, or a regular expression.")
    ] = None,
    max_: Annotated[
        int, typer.Option("--max", min=0, help="List so many differing messages; 0: all.")
    ] = 100,
) -> int | None:
    """Compare two logs message by message: after a migration, a failover, or an archive.

    STORE and OTHER are stores, archives or cold tiers. They are compared by place (topic, queue,
    queue offset) and by content: the CRC of the body as stored, and UNIQ_KEY, wherever in its topic
    it lies, each as often as it is there. Half messages and ops are left out. Exit code 0: the
    same; 1: they differ.

    JSON: one object with reconcile, by place, by content, differing contents. See docs/spark-
    jobs.md.

    \b
    Examples:
      pystore spark reconcile /data/old-store /data/new-store
      pystore spark reconcile STORE /archive/broker-a --topic 'orders.*' --report diff.html
    """
    if not is_archive(j.path):
        with j.reader():
            pass  # what is not a store is refused before Spark starts
    sides = []
    for number, path in enumerate((str(j.path), other)):
        frame = _messages(j, path, own=number == 0)
        if topic is not None:
            frame = frame.where(frame.topic.rlike(f"^({topic.replace(',', '|')})$"))
        sides.append(frame.selectExpr("*", f"{number} AS side"))
    both = sides[0].unionByName(sides[1])
    places = _by_place(j, both)
    contents = _by_content(j, both, max_)
    j.report.facts("reconcile", {"same places": not places, "same contents": not contents})
    return 1 if places or contents else 0


def _messages(j: Job, path: str, *, own: bool) -> DataFrame:
    if not is_address(path) and is_archive(Path(path)):
        frame = read_archive(j, Path(path).absolute(), _FIELDS.format(time="long"))
        stored = "storeTimestamp"
    else:
        if not is_address(path) and not Path(path).is_dir():
            raise usage(f"{path} is neither a store nor an archive", "check the path")
        columns = "topic string, " + _FIELDS.format(time="timestamp")
        scan = "queue" if is_cold(path) else "log"
        frame = j.read(columns, None if own else path, scan=scan, includeTransactions="all")
        stored = "unix_millis(storeTimestamp)"
    return frame.where(f"topic NOT IN ('{HALF_TOPIC}', '{OP_TOPIC}')").selectExpr(
        "topic", "queueId AS queue", "queueOffset AS offset", "bodyCRC AS crc", _CONTENT,
        f"{stored} AS stored",
    )  # fmt: skip


def _by_place(j: Job, both: DataFrame) -> int:
    """Adds the table by topic; returns how many places differ."""
    from pyspark.sql.functions import expr

    places = both.groupBy("topic", "queue", "offset").agg(
        expr("count_if(side = 0) AS a"), expr("count_if(side = 1) AS b"),
        expr("count(DISTINCT id, crc) AS contents"),
    )  # fmt: skip
    sums = places.groupBy("topic").agg(
        expr("count_if(a > 0 AND b > 0 AND contents = 1) AS same"),
        expr("count_if(b = 0) AS onlyA"), expr("count_if(a = 0) AS onlyB"),
        expr("count_if(a > 0 AND b > 0 AND contents > 1) AS changed"),
    )  # fmt: skip
    rows = [
        (r.topic, r.same, r.onlyA, r.onlyB, r.changed)
        for r in j.collect(sums.orderBy("topic"), "comparing places")
    ]
    j.report.table("by place", ("topic", "same", "only in a", "only in b", "changed"), rows)
    return sum(sum(row[2:]) for row in rows)


def _by_content(j: Job, both: DataFrame, most: int) -> int:
    """Adds the tables of contents; returns how many messages only one side has."""
    from pyspark.sql.functions import expr

    contents = both.groupBy("topic", "id", "crc").agg(
        expr("count_if(side = 0) AS a"), expr("count_if(side = 1) AS b"),
        expr("min(struct(queue, offset, stored)) AS first"),
    )  # fmt: skip
    sums = contents.groupBy("topic").agg(
        expr("sum(least(a, b)) AS same"), expr("sum(greatest(a - b, 0)) AS onlyA"),
        expr("sum(greatest(b - a, 0)) AS onlyB"),
    )  # fmt: skip
    rows = j.collect(sums.orderBy("topic"), "comparing contents")
    table = [(r.topic, r.same, r.onlyA, r.onlyB) for r in rows]
    j.report.table(
        "by content", ("topic", "same", "only in a", "only in b"), table, Plot("topic", "same")
    )
    differing = contents.where("a != b").orderBy("topic", "first")
    found = j.collect(differing.limit(most) if most else differing, "listing what differs")
    j.report.table("differing contents", _COLUMNS, [_shown(r) for r in found])
    return sum(row[2] + row[3] for row in table)


_COLUMNS = ("topic", "queue", "offset", "stored", "id", "body CRC", "in a", "in b")


def _shown(r: Any) -> tuple[Any, ...]:
    return (r.topic, r.first.queue, r.first.offset, When(r.first.stored), r.id, r.crc, r.a, r.b)


if __name__ == "__main__":
    main("reconcile")
