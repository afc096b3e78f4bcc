"""``pystore spark delays``: when messages were to be delivered, and when they were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pystore.cli.verbs import When
from pystore.format.names import SCHEDULE_TOPIC
from spark_ext.jobs.frame import Job, hour_ms, job, main
from spark_ext.jobs.report import Plot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    import pystore

__all__ = ["run"]


@job("delays", skips=True)
def run(j: Job) -> int | None:
    """Report asked against actual delivery of delayed messages, by level, and of timers.

    Each delayed message is paired with its delivery by topic and UNIQ_KEY, the n-th with the n-th
    where there are several. The report has percentiles of how late they came, those that were not
    delivered by the end of the log, and lateness by the hour in which they were due. Messages
    without UNIQ_KEY cannot be paired; they are counted. The store may be in use.

    JSON: one object with delays, by kind, by hour. See docs/spark-jobs.md.

    \b
    Examples:
      pystore spark delays STORE
      pystore spark delays STORE --report delays.html
    """
    from pyspark.sql.functions import expr

    from pystore.format.names import TIMER_TOPIC

    with j.reader() as reader:
        topics = reader.topics()
        end = reader.info().store_timestamp_max
        levels = _levels(reader) if SCHEDULE_TOPIC in topics else {}
    frames = [_delayed(j, levels)] if levels else []
    frames += [_timers(j)] if TIMER_TOPIC in topics else []
    if not frames:
        j.report.facts("delays", {"delayed messages": 0})
        return 1
    asked = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
    pairs = _paired(j, asked.persist()).persist()
    try:
        sums = pairs.groupBy("kind").agg(
            expr("count(*) AS asked"), expr("count(id) AS known"), expr("count(late) AS delivered"),
            expr(f"count_if(late IS NULL AND id IS NOT NULL AND due <= {end}) AS missing"),
            expr("count_if(late < 0) AS early"),
            expr("percentile(late, array(0.5, 0.95, 0.99)) AS p"), expr("max(late) AS longest"),
        )  # fmt: skip
        _show(j, j.collect(sums, "pairing deliveries"))
        due = expr(hour_ms("timestamp_millis(due)")).alias("hour")
        hours = pairs.where("late IS NOT NULL").groupBy(due, "kind").agg(
            expr("count(*) AS messages"), expr("percentile(late, 0.99) AS p99")
        )  # fmt: skip
        rows = j.collect(hours.orderBy("hour", "kind"), "counting by hour")
    finally:
        pairs.unpersist()
        asked.unpersist()
    j.report.table(
        "by hour",
        ("hour", "kind", "delivered", "p99 s"),
        [(When(r.hour), r.kind, r.messages, round(r.p99 / 1000, 3)) for r in rows],
        Plot("hour", "p99 s", "kind", "line", "99th percentile of lateness, s"),
    )
    return 0


def _levels(reader: pystore.Reader) -> dict[int, int]:
    """Returns the milliseconds of each level, as the store has used them: a unit of a delay queue
    holds the time of delivery, its record that of storing."""
    found = {}
    for q in reader.queues(SCHEDULE_TOPIC):
        units = reader.units(SCHEDULE_TOPIC, q.queue, max(q.min_offset, q.max_offset - 1), 1)
        if units:
            found[q.queue + 1] = units[0][2] - reader.message(units[0][0]).store_timestamp
    return found


def _waiting(j: Job, topic: str) -> DataFrame:
    return j.read(
        "queueId int, queueOffset long, storeTimestamp timestamp, properties map<string,string>",
        topic=topic, scan="queue", includeProperties="map",
    )  # fmt: skip


def _delayed(j: Job, levels: dict[int, int]) -> DataFrame:
    known = j.spark.createDataFrame(
        [(level - 1, ms, f"level {level:02d}") for level, ms in levels.items()],
        "queueId int, ms long, kind string",
    )
    return _waiting(j, SCHEDULE_TOPIC).join(known, "queueId").selectExpr(
        "properties['REAL_TOPIC'] AS topic", "properties['UNIQ_KEY'] AS id",
        "unix_millis(storeTimestamp) AS stored", "unix_millis(storeTimestamp) + ms AS due", "kind",
    )  # fmt: skip


def _timers(j: Job) -> DataFrame:
    """Returns timers and recalls: the first of ASKING that a record has counts, as for the broker.
    A timer that was put back to wait further, and a recall, ask for nothing."""
    from pystore.format.names import TIMER_TOPIC
    from pystore.store.timers import ASKING

    delay_s, delay_ms, at = (f"try_cast(properties['{name}'] AS bigint)" for name in ASKING)
    stored = "unix_millis(storeTimestamp)"
    asked = _waiting(j, TIMER_TOPIC).where(
        "properties['TIMER_ROLL_TIMES'] IS NULL AND properties['TIMER_DEL_UNIQKEY'] IS NULL"
    )
    return asked.selectExpr(
        "properties['REAL_TOPIC'] AS topic", "properties['UNIQ_KEY'] AS id", f"{stored} AS stored",
        f"coalesce({stored} + 1000 * {delay_s}, {stored} + {delay_ms}, {at}) AS due",
        "'timer' AS kind",
    )  # fmt: skip


def _paired(j: Job, asked: DataFrame) -> DataFrame:
    """Makes a row for each delayed message: kind, id, due, and how late it came in ms, null for one
    that has not come yet."""
    names = [r.topic for r in j.collect(asked.select("topic").distinct(), "reading delays")]
    turn = "row_number() OVER (PARTITION BY topic, id ORDER BY stored) AS n"
    wanted = asked.selectExpr("*", turn)
    there = set()
    with j.reader() as reader:
        there = set(reader.topics()) & {name for name in names if name}
    columns = "topic string, msgId string, storeTimestamp timestamp"
    if not there:
        return wanted.selectExpr("kind", "id", "due", "CAST(NULL AS bigint) AS late")
    rows = j.read(columns, topic=",".join(sorted(there)), scan="queue").selectExpr(
        "topic", "msgId AS id", "unix_millis(storeTimestamp) AS stored"
    )
    ids = asked.select("topic", "id").distinct()
    came = rows.join(ids, ["topic", "id"], "left_semi").selectExpr(
        "topic", "id", "stored AS at", turn
    )
    return wanted.join(came, ["topic", "id", "n"], "left").selectExpr(
        "kind", "id", "due", "at - due AS late"
    )


def _show(j: Job, found: list[Any]) -> None:
    rows = []
    for r in sorted(found, key=lambda r: r.kind):
        late = [None if each is None else round(each / 1000, 3) for each in (r.p or [None] * 3)]
        longest = None if r.longest is None else r.longest / 1000
        rows.append(
            (r.kind, r.asked, r.delivered, r.missing, r.asked - r.known, r.early, *late, longest)
        )
    j.report.facts(
        "delays",
        {"delayed messages": sum(r.asked for r in found),
         "delivered": sum(r.delivered for r in found)},
    )  # fmt: skip
    j.report.table(
        "by kind",
        ("kind", "asked", "delivered", "overdue", "without id", "early", "p50 s", "p95 s",
         "p99 s", "longest s"),
        rows,
        Plot("kind", "p99 s", label="99th percentile of lateness, s"),
    )  # fmt: skip


if __name__ == "__main__":
    main("delays")
