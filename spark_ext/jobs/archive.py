"""``pystore spark archive``: the log as Parquet, by topic and day, a run after the other.

What is written is read again and compared with the log before anybody can see it; how a run lies
on the disk, and how it becomes visible, is in runs.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pystore import errors
from pystore.cli.verbs import Size, usage
from spark_ext.jobs.frame import Job, job, main
from spark_ext.jobs.report import Plot
from spark_ext.jobs.runs import FIELDS, Run, alone, publish, runs_of, staging_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    import pystore

__all__ = ["run"]

_TIMES = ("bornTimestamp", "storeTimestamp")
_CRC_BITS = 0x7FFFFFFF  # of a body's CRC, as a record has it


@job("archive")
def run(
    j: Job,
    archive: Annotated[
        Path, typer.Argument(metavar="ARCHIVE", help="Directory of the archive; made if missing.")
    ],
    allow_gap: Annotated[
        bool,
        typer.Option(
            "--allow-gap", help="Go on although messages were deleted before they were archived."
        ),
    ] = False,
) -> int | None:
    """Archive the log as Parquet by topic and day; each further run adds what is new.

    Every record of the log is written, those of transactions, delays and timers too, with what it
    takes to restore it to the byte. A run is compared with the log by counts and CRCs, and becomes
    visible in one step: a run that is killed, or a full disk, leaves the archive as it was. The
    store may be in use.

    \b
    Examples:
      pystore spark archive STORE /archive/broker-a
      pystore spark archive STORE /archive/broker-a --json
    """
    # Spark's tasks write there, whatever directory they run in.
    archive = j.output = archive.absolute()
    with j.reader():
        pass  # what is no store is refused before anything is made
    with alone(archive, "_lock"):
        with j.reader() as reader:
            start, found = _start(reader, runs_of(archive), allow_gap)
            info = reader.info()
            staged = staging_of(archive, "run")
            reader.metadata.export_json(staged / "_config")
        if start == info.log_max:
            shutil.rmtree(staged.parent)
            j.report.facts("archive", {"runs": found, "new messages": 0, "up to": start})
            return 0
        parts = _write(j, staged, start, info.log_max)
        made = Run(
            start, info.log_max, info.commitlog_file_size,
            sum(p.messages for p in parts), sum(p.bytes for p in parts),
            list(max(p.last for p in parts)) if parts else [],
        )  # fmt: skip
        publish(archive, staged, made)
    _show(j, made, found + 1, parts)
    return 0


def _start(reader: pystore.Reader, runs: list[Run], allow_gap: bool) -> tuple[int, int]:
    """(first byte of the log that is new, number of runs). Raises: BadArgument, NotFound."""
    info = reader.info()
    if not runs:
        return info.log_min, 0
    last = runs[-1]
    if last.end > info.log_max or not _same_log(reader, last):
        raise usage(
            f"the archive is of another log: byte {last.end} was its end",
            "name another directory for this store",
        )
    if last.end < info.log_min and not allow_gap:
        error = errors.NotFound(
            f"the log begins at byte {info.log_min}, and the archive ends at {last.end}: what lay"
            " between was deleted",
            str(reader.path),
        )
        error.next_step = "--allow-gap archives the rest; such an archive cannot be restored"
        raise error
    return max(last.end, info.log_min), len(runs)


def _same_log(reader: pystore.Reader, last: Run) -> bool:
    """Whether the record that a run ended with still lies there; True when it was deleted."""
    if not last.witness or last.witness[0] < reader.info().log_min:
        return True
    try:
        m = reader.message(last.witness[0])
    except (errors.NotFound, errors.RecordDamaged):
        return False
    return last.witness == [m.physical_offset, m.size, m.store_timestamp, m.body_crc]


# ---- writing and comparing ----


def _log(j: Job, fields: str, start: int, end: int) -> DataFrame:
    """Records of a part of the log, with topic and day."""
    columns = ", ".join(
        f"{name} timestamp" if name in _TIMES else f"{name} {kind}"
        for name, kind in (each.split() for each in fields.split(","))
    )
    frame = j.read(
        f"topic string, {columns}", scan="log", includeTransactions="all", decompress="false",
        checkCrc="true", includeProperties="json", startingLogOffset=start, endingLogOffset=end,
    )  # fmt: skip
    names = [
        f"unix_millis({name}) AS {name}" if name in _TIMES else name
        for name in (each.split()[0] for each in fields.split(","))
    ]
    day = "CAST(date_from_unix_date(CAST(floor(unix_millis(storeTimestamp) / 86400000) AS int))"
    return frame.selectExpr("topic", f"{day} AS string) AS day", *names)


def _sums(frame: DataFrame) -> DataFrame:
    """What must be equal on both sides, by topic and day. A frame without bodies is of a scan that
    has compared each of them with its CRC; that of an empty one says nothing."""
    from pyspark.sql.functions import expr

    bodies = (
        "crc32(body)"
        if "body" in frame.columns
        else ("if(storeSize > length(envelope), bodyCRC, 0)")
    )
    return frame.groupBy("topic", "day").agg(
        expr("count(*) AS messages"), expr("sum(storeSize) AS bytes"),
        expr("sum(crc32(envelope)) AS envelopes"), expr(f"sum({bodies} & {_CRC_BITS}) AS bodies"),
        expr("max(struct(commitLogOffset, storeSize, storeTimestamp, bodyCRC)) AS last"),
    )  # fmt: skip


def _write(j: Job, staged: Path, start: int, end: int) -> list[Any]:
    """The partitions of a run, compared with the log. Raises: StoreIOError when they differ."""
    with j.working("writing Parquet"):
        frame = _log(j, FIELDS, start, end)
        writer = frame.write.partitionBy("topic", "day").mode("append")
        writer.option("compression", "zstd").parquet(str(staged))
    fields = (
        "commitLogOffset long, storeSize int, storeTimestamp long, bodyCRC int, envelope binary"
    )
    wanted = j.collect(_sums(_log(j, fields, start, end)), "reading the log again")
    names = f"{fields}, body binary, topic string, day string"
    written = j.spark.read.schema(names).option("basePath", str(staged)).parquet(str(staged))
    got = {(r.topic, r.day): r for r in j.collect(_sums(written), "reading the Parquet files")}
    for row in wanted:
        if got.pop((row.topic, row.day), None) != row:
            raise _differs(row.topic, row.day, staged)
    if got:
        raise _differs(*min(got), staged)
    return sorted(wanted, key=lambda r: (r.topic, r.day))


def _differs(topic: str, day: str, staged: Path) -> errors.StoreIOError:
    error = errors.StoreIOError(
        f"the Parquet files of topic {topic}, {day}, are not what the log holds", str(staged)
    )
    error.next_step = "nothing was published; run the job again, and check the disk"
    return error


def _show(j: Job, made: Run, runs: int, parts: list[Any]) -> None:
    j.report.facts(
        "archive",
        {"runs": runs, "new messages": made.messages, "from": made.start, "up to": made.end,
         "bytes of the log": Size(made.bytes)},
    )  # fmt: skip
    j.report.table(
        "partitions",
        ("topic", "day", "messages", "bytes", "envelope CRCs", "body CRCs"),
        [(p.topic, p.day, p.messages, Size(p.bytes), p.envelopes, p.bodies) for p in parts],
        Plot("day", "bytes", "topic"),
    )


if __name__ == "__main__":
    main("archive")
