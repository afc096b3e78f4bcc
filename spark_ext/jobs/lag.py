"""``pystore spark lag``: what each group has not consumed, and since when it waits."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from pystore.cli.verbs import When
from spark_ext.jobs.frame import Job, hour_ms, job, main
from spark_ext.jobs.report import Plot

__all__ = ["run"]


@job("lag", skips=True)
def run(
    j: Job,
    group: Annotated[str | None, typer.Option(help="Only this consumer group.")] = None,
) -> int | None:
    """Report the lag of each consumer group from the stored offsets, and the age of what waits.

    A group's lag in a queue is what lies at or after its offset. The report has it by queue, with
    the age of the oldest message that waits, and by the hour in which the waiting messages were
    stored, so that it shows when a group fell behind. A running broker keeps newer offsets in its
    memory.

    JSON: one object with lag, waiting by hour, groups, queues. See docs/spark-jobs.md.

    \b
    Examples:
      pystore spark lag STORE
      pystore spark lag STORE --group billing --report lag.html
    """
    with j.reader() as reader:
        ends = {(q.topic, q.queue): (q.min_offset, q.max_offset) for q in reader.queues()}
        now = reader.info().store_timestamp_max
        known = [
            (o.group, o.topic, o.queue, o.offset, *ends[o.topic, o.queue])
            for o in reader.metadata.offsets.all(group)
            if (o.topic, o.queue) in ends
        ]
    if not known:
        j.report.facts("lag", {"groups": 0})
        return 1
    behind = [k for k in known if max(k[3], k[4]) < k[5]]
    oldest = _hours(j, behind)
    rows = []
    for name, topic, queue, offset, low, high in sorted(known):
        lag, stored = max(0, high - max(offset, low)), oldest.get((name, topic, queue))
        rows.append(
            (name, topic, queue, offset, high, lag, max(0, low - offset),
             None if stored is None else (now - stored) / 1000)
        )  # fmt: skip
    _groups(j, rows)
    j.report.table(
        "queues",
        ("group", "topic", "queue", "offset", "end", "lag", "expired", "oldest s"),
        rows,
    )
    return 0


def _groups(j: Job, rows: list[Any]) -> None:
    sums: dict[tuple[str, str], list[Any]] = {}
    for name, topic, _, _, _, lag, lost, age in rows:
        each = sums.setdefault((name, topic), [0, 0, 0, None])
        each[0] += 1
        each[1] += lag
        each[2] += lost
        each[3] = age if each[3] is None else max(each[3], age or 0)
    names = {name for name, _ in sums}
    j.report.facts("lag", {"groups": len(names), "messages": sum(s[1] for s in sums.values())})
    j.report.table(
        "groups",
        ("group", "topic", "queues", "lag", "expired", "oldest s"),
        [(*key, *value) for key, value in sorted(sums.items())],
        Plot("group", "lag", "topic"),
    )


def _hours(j: Job, behind: list[Any]) -> dict[tuple[str, str, int], int]:
    """Adds the table by hour. Returns the store time, ms, of the oldest that waits in each
    queue."""
    from pyspark.sql.functions import broadcast, expr

    columns = ("group", "topic", "hour", "messages")
    if not behind:
        j.report.table("waiting by hour", columns, [])
        return {}
    starts: dict[str, dict[str, int]] = {}
    for _, topic, queue, offset, low, _ in behind:
        inner = starts.setdefault(topic, {})
        inner[str(queue)] = min(inner.get(str(queue), 1 << 62), max(offset, low))
    offsets = j.spark.createDataFrame(
        [(name, topic, queue, offset) for name, topic, queue, offset, _, _ in behind],
        "group string, topic string, queueId int, offset long",
    )
    frame = _unread(j, starts).join(broadcast(offsets), ["topic", "queueId"])
    keys = ("group", "topic", "queueId", expr(hour_ms("storeTimestamp")).alias("hour"))
    waiting = frame.where("queueOffset >= offset").groupBy(*keys)
    counts = (expr("count(*) AS messages"), expr("unix_millis(min(storeTimestamp)) AS first"))
    rows = j.collect(waiting.agg(*counts), "reading what waits")
    hours: dict[tuple[str, str, int], int] = {}
    oldest: dict[tuple[str, str, int], int] = {}
    for r in rows:
        hours[r.group, r.topic, r.hour] = hours.get((r.group, r.topic, r.hour), 0) + r.messages
        key = (r.group, r.topic, r.queueId)
        oldest[key] = min(oldest.get(key, r.first), r.first)
    j.report.table(
        "waiting by hour",
        columns,
        [(name, topic, When(hour), n) for (name, topic, hour), n in sorted(hours.items())],
        Plot("hour", "messages", "group", "line", "waiting messages"),
    )
    return oldest


def _unread(j: Job, starts: dict[str, dict[str, int]]) -> Any:
    """Returns what some group has not read. Queues that nobody is behind in are read from their end
    on."""
    with j.reader() as reader:
        for q in reader.queues():
            if q.topic in starts:
                starts[q.topic].setdefault(str(q.queue), -1)
    return j.read(
        "topic string, queueId int, queueOffset long, storeTimestamp timestamp",
        topic=",".join(starts), scan="queue", startingOffsets=json.dumps(starts),
    )  # fmt: skip


if __name__ == "__main__":
    main("lag")
