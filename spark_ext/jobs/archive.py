"""``pystore spark archive``: the log as Parquet, by topic and day, a run after the other.

Tasks write the files, each of a part of the log, and compare what they wrote (parquet.py); how a
run lies on the disk, and how it becomes visible, is in runs.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from pystore import errors
from pystore.cli.verbs import Size, usage
from pystore.files import FILE_MODE, make_folders
from spark_ext.jobs.frame import Job, job, main
from spark_ext.jobs.parquet import ExportContext, Sums, partition_of, write_part
from spark_ext.jobs.report import Plot
from spark_ext.jobs.runs import ReportRun, alone, publish, runs_of, staging_of
from spark_ext.jobs.spread import TASKS_A_CORE, cores_of, on_executors
from spark_ext.stores import close_reader
from spark_ext.tasks import check_packages

if TYPE_CHECKING:
    import pystore
    from spark_ext.options import ReadOptions

__all__ = ["run"]

#: A run of so few bytes is written by the driver: starting tasks takes longer.
_ALONE_BYTES = 32 << 20
#: Of the log, below which a further task is not worth its start.
_PART_BYTES = 16 << 20


class _Partition(NamedTuple):
    topic: str
    day: str
    sums: Sums


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

    JSON: one object with archive, partitions. See docs/spark-jobs.md.

    \b
    Examples:
      pystore spark archive STORE /archive/broker-a
      pystore spark archive STORE /archive/broker-a --json
    """
    # Spark's tasks write there, whatever directory they run in.
    archive = j.output = archive.absolute()
    with j.reader() as reader:  # what is not a store is refused before anything is made
        if reader.is_cold:
            raise usage(
                "a cold tier has no log over all queues, of which an archive is made",
                "keep its topics as tables: pystore spark table; or make a store of it: pystore"
                " cold restore",
            )
    j.check_outside(archive)
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
        made = ReportRun(
            start, info.log_max, info.commitlog_file_size,
            sum(p.sums.messages for p in parts), sum(p.sums.bytes for p in parts),
            list(max(p.sums.last for p in parts)) if parts else [],
            {name: p.topic for p in parts if (name := partition_of(p.topic)) != p.topic},
        )  # fmt: skip
        publish(archive, staged, made)
    _show(j, made, found + 1, parts)
    return 0


def _start(reader: pystore.Reader, runs: list[ReportRun], allow_gap: bool) -> tuple[int, int]:
    """Returns (first byte of the log that is new, number of runs). Raises: BadArgument,
    NotFound."""
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


def _same_log(reader: pystore.Reader, last: ReportRun) -> bool:
    """Says whether the record that a run ended with still lies there; True when it was deleted."""
    if not last.witness or last.witness[0] < reader.info().log_min:
        return True
    try:
        m = reader.message(last.witness[0])
    except (errors.NotFound, errors.RecordDamaged):
        return False
    return last.witness == [m.physical_offset, m.size, m.store_timestamp, m.body_crc]


# ---- writing ----


def _options(j: Job, start: int, end: int) -> ReadOptions:
    from spark_ext.options import parse_read

    given: dict[str, object] = {
        "path": j.path.absolute(), **j.session.sets, "scan": "log", "includeTransactions": "all",
        "decompress": "false", "checkCrc": "true", "includeProperties": "json",
        "startingLogOffset": start, "endingLogOffset": end,
    }  # fmt: skip
    if j.session.conf is not None:
        given["conf"] = j.session.conf
    if end - start > _ALONE_BYTES:
        most = max(1, (end - start) // _PART_BYTES)
        given["minPartitions"] = min(most, TASKS_A_CORE * cores_of(j))
    return parse_read({name: str(value) for name, value in given.items()}, streaming=False)


def _write(j: Job, staged: Path, start: int, end: int) -> list[_Partition]:
    """Writes the partitions of a run, each file compared with the log. Raises: StoreIOError."""
    from spark_ext.plan import plan

    check_packages()
    options = _options(j, start, end)
    parts = list(enumerate(plan(options)))
    _check_tiles([part.log or (0, 0) for _, part in parts], start, end)
    shared = ExportContext(options, staged.parent / "tasks")
    if end - start > _ALONE_BYTES:
        done = on_executors(j, write_part, shared, parts, "writing Parquet")
    else:
        done = [write_part(shared, each) for each in parts]
        close_reader(options.paths[0], options.settings_of(options.paths[0]))
    found: dict[tuple[str, str], Sums] = {}
    for folder, files in done:
        for file in files:
            make_folders((staged / file.path).parent, FILE_MODE)
            (folder / file.path).rename(staged / file.path)
            key = file.topic, file.day
            if key in found:
                found[key].add(file.sums)
            else:
                found[key] = file.sums
    return [_Partition(*key, found[key]) for key in sorted(found)]


def _check_tiles(spans: list[tuple[int, int]], start: int, end: int) -> None:
    """Checks the parts of a file. Raises: StoreIOError when the parts are not the bytes asked for,
    each once."""
    edges = [start, *(edge for span in spans for edge in span), end]
    if edges[::2] != edges[1::2]:
        raise errors.StoreIOError(f"parts {spans} are not bytes {start} to {end} of the log")


def _show(j: Job, made: ReportRun, runs: int, parts: list[_Partition]) -> None:
    j.report.facts(
        "archive",
        {"runs": runs, "new messages": made.messages, "from": made.start, "up to": made.end,
         "bytes of the log": Size(made.bytes)},
    )  # fmt: skip
    j.report.table(
        "partitions",
        ("topic", "day", "messages", "bytes", "envelope CRCs", "body CRCs"),
        [
            (p.topic, p.day, p.sums.messages, Size(p.sums.bytes), p.sums.envelopes, p.sums.bodies)
            for p in parts
        ],
        Plot("day", "bytes", "topic"),
    )


if __name__ == "__main__":
    main("archive")
