"""``pystore spark topics``: what the topics of a store hold, and when it came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pystore.cli.verbs import Size, When
from spark_ext.jobs.frame import Job, hour_ms, job, main
from spark_ext.jobs.report import Plot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["run"]

_COLUMNS = (
    "topic string, queueId int, storeSize int, tags string, keys string, storeTimestamp timestamp"
)


@job("topics", skips=True)
def run(
    j: Job,
    topic: Annotated[
        str | None, typer.Option(help="Only these topics: a list, or a regular expression.")
    ] = None,
    tags: Annotated[
        int, typer.Option(min=1, metavar="N", help="Show the N most frequent tags of a topic.")
    ] = 5,
    hot: Annotated[
        float,
        typer.Option(min=1, help="A queue is hot with this many times its even share of a topic."),
    ] = 2,
) -> int | None:
    """Report sizes, rates, tags, keys and hot queues by topic and hour.

    Counts what the queues hold now; the topics of half messages and their ends are left out unless
    --topic names them. Keys are counted to within some 5 %. The store may be in use.

    JSON: one object with store, topics, tags, by hour, queues, hot queues. See docs/spark-
    jobs.md.

    \b
    Examples:
      pystore spark topics STORE --report topics.html
      pystore spark topics STORE --topic 'orders.*' --json
    """
    options: dict[str, Any] = {"scan": "queue"}
    if topic is not None:
        options |= {"subscribePattern": topic.replace(",", "|"), "includeTransactions": "all"}
    with j.reader():
        frame = j.read(_COLUMNS, **options)
    found = _by_topic(j, frame, tags)
    if not found:
        return 1
    _hours(j, frame)
    _queues(j, frame, hot)
    return 0


def _by_topic(j: Job, frame: DataFrame, most: int) -> bool:
    from pyspark.sql.functions import expr

    words = frame.selectExpr("*", "filter(split(keys, ' '), k -> k != '') AS words")
    sums = words.groupBy("topic").agg(
        expr("count(*) AS messages"), expr("sum(storeSize) AS bytes"),
        expr("min(storeTimestamp) AS first"), expr("max(storeTimestamp) AS last"),
        expr("count_if(size(words) > 0) AS keyed"), expr("count(DISTINCT queueId) AS queues"),
    )  # fmt: skip
    keys = words.selectExpr("topic", "explode(words) AS word").groupBy("topic").agg(
        expr("approx_count_distinct(word) AS keys")
    )  # fmt: skip
    whole = sums.join(keys, "topic", "left").selectExpr(
        "topic", "messages", "bytes", "unix_millis(first) AS first", "unix_millis(last) AS last",
        "keyed", "queues", "coalesce(keys, 0) AS keys",
    )  # fmt: skip
    rows = j.collect(whole.orderBy("topic"), "reading topics")
    j.report.facts(
        "store",
        {"topics": len(rows), "messages": sum(r.messages for r in rows),
         "bytes": Size(sum(r.bytes for r in rows))},
    )  # fmt: skip
    j.report.table(
        "topics",
        ("topic", "queues", "messages", "bytes", "mean bytes", "per second", "with keys",
         "distinct keys", "first", "last"),
        [
            (r.topic, r.queues, r.messages, Size(r.bytes), r.bytes // r.messages, _rate(r),
             r.keyed, r["keys"], When(r.first), When(r.last))
            for r in rows
        ],
        Plot("topic", "bytes"),
    )  # fmt: skip
    _tags(j, frame, most)
    return bool(rows)


def _rate(row: Any) -> float | None:
    """Returns messages a second between the first and the last; None of a single moment."""
    span = row.last - row.first
    return round(1000 * row.messages / span, 3) if span else None


def _tags(j: Job, frame: DataFrame, most: int) -> None:
    counts = frame.groupBy("topic", "tags").count()
    ranked = counts.selectExpr(
        "topic", "tags", "count",
        "row_number() OVER (PARTITION BY topic ORDER BY count DESC, tags) AS place",
        "count / sum(count) OVER (PARTITION BY topic) AS share",
    )  # fmt: skip
    rows = j.collect(ranked.where(f"place <= {most}").orderBy("topic", "place"), "counting tags")
    j.report.table(
        "tags",
        ("topic", "tag", "messages", "share"),
        [(r.topic, r.tags, r["count"], round(r.share, 4)) for r in rows],
    )


def _hours(j: Job, frame: DataFrame) -> None:
    from pyspark.sql.functions import expr

    hours = frame.groupBy(expr(hour_ms("storeTimestamp")).alias("hour"), "topic").agg(
        expr("count(*) AS messages"), expr("sum(storeSize) AS bytes")
    )
    rows = j.collect(hours.orderBy("hour", "topic"), "counting by hour")
    j.report.table(
        "by hour",
        ("hour", "topic", "messages", "bytes"),
        [(When(r.hour), r.topic, r.messages, Size(r.bytes)) for r in rows],
        Plot("hour", "messages", "topic", "line", "messages an hour"),
    )


def _queues(j: Job, frame: DataFrame, hot: float) -> None:
    from pyspark.sql.functions import expr

    queues = frame.groupBy("topic", "queueId").agg(
        expr("count(*) AS messages"), expr("sum(storeSize) AS bytes")
    )
    shares = queues.selectExpr(
        "*", "bytes / avg(bytes) OVER (PARTITION BY topic) AS times",
    )  # fmt: skip
    rows = j.collect(shares.orderBy("topic", "queueId"), "comparing queues")
    columns = ("topic", "queue", "messages", "bytes", "times even share")
    shown = [(r.topic, r.queueId, r.messages, Size(r.bytes), round(r.times, 2)) for r in rows]
    j.report.table("queues", columns, shown)
    j.report.table("hot queues", columns, [row for row in shown if row[-1] >= hot])


if __name__ == "__main__":
    main("topics")
