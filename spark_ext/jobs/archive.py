"""``pystore spark archive``: the log as Parquet, by topic and day, a run after the other.

Tasks write the files, each of a part of the log, and compare what they wrote (parquet.py); how a
run lies on the disk, and how it becomes visible, is in runs.py. A cold tier has no such log: what a
run takes of its queues is in tier_news.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from pystore import errors
from pystore.cli.verbs import Size, usage
from pystore.files import FILE_MODE, make_folders
from spark_ext.jobs.frame import Job, job, main
from spark_ext.jobs.parquet import ExportContext, Sums, partition_of, write_part
from spark_ext.jobs.report import Plot
from spark_ext.jobs.runs import (
    LogRun,
    QueueReach,
    TierRun,
    alone,
    publish,
    queues_of,
    runs_of,
    staging_of,
    write_queues,
)
from spark_ext.jobs.spread import TASKS_A_CORE, cores_of, on_executors
from spark_ext.stores import close_reader
from spark_ext.tasks import check_packages

if TYPE_CHECKING:
    import pystore
    from pystore.cold.reader import ColdReader
    from spark_ext.jobs.tier_news import QueueNews
    from spark_ext.options import ReadOptions
    from spark_ext.plan import Part

__all__ = ["run"]

#: A run of so few bytes is written by the driver: starting tasks takes longer.
_ALONE_BYTES = 32 << 20
#: Of the log, or of queues, below which a further task is not worth its start.
_PART_BYTES = 16 << 20


class _Partition(NamedTuple):
    topic: str
    day: str
    sums: Sums


class _Work(NamedTuple):
    """What a run is to write. runs: before it. bytes: of the log, or of queues; none: nothing is
    new. facts: for the report. made: returns the run of what was written, compared with what was to
    be; it may write into the folder of the run."""

    runs: int
    bytes: int
    options: ReadOptions
    parts: list[Part]
    facts: dict[str, Any]
    made: Callable[[Path, list[_Partition]], LogRun | TierRun]


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
    store may be in use. STORE may be a cold tier, whose queues are archived by their offsets.

    JSON: one object with archive, partitions. See docs/spark-jobs.md.

    \b
    Examples:
      pystore spark archive STORE /archive/broker-a
      pystore spark archive STORE /archive/broker-a --json
      pystore spark archive s3://bucket/cold /archive/broker-a-cold
    """
    # Spark's tasks write there, whatever directory they run in.
    archive = j.output = archive.absolute()
    with j.reader():
        pass  # what is not a store is refused before anything is made
    j.check_outside(archive)
    with alone(archive, "_lock"):
        with j.reader() as reader:
            found = runs_of(archive)
            work = (_of_tier if reader.is_cold else _of_log)(j, reader, archive, found, allow_gap)
            staged = staging_of(archive, "run")
            if not reader.is_cold:
                reader.metadata.export_json(staged / "_config")
        if not work.bytes:
            shutil.rmtree(staged.parent)
            j.report.facts("archive", {"runs": work.runs, "new messages": 0, **work.facts})
            return 0
        parts = _write(j, staged, work)
        made = work.made(staged, parts)
        publish(archive, staged, made)
    _show(j, made, work, parts)
    return 0


# ---- of a log ----


def _of_log(
    j: Job, reader: pystore.Reader, archive: Path, found: list[LogRun] | list[TierRun],
    allow_gap: bool,
) -> _Work:  # fmt: skip
    """Returns the bytes of a store's log that no run has. Raises: BadArgument, NotFound,
    StoreIOError."""
    from spark_ext.plan import plan

    info = reader.info()
    runs = [run for run in found if isinstance(run, LogRun)]
    if len(runs) < len(found):
        raise usage(f"{archive} is the archive of a cold tier", "name another directory")
    start, end = _start(reader, runs, allow_gap), info.log_max
    options = _log_options(j, start, end)
    parts = plan(options) if start < end else []
    _check_tiles([part.log or (0, 0) for part in parts], start, end)

    def made(staged: Path, parts: list[_Partition]) -> LogRun:
        last = [each for p in parts for each in p.sums.last.values()]
        return LogRun(
            start, end, info.commitlog_file_size,
            sum(p.sums.messages for p in parts), sum(p.sums.bytes for p in parts),
            list(max(last)) if last else [], _renamed(parts),
        )  # fmt: skip

    facts = {"from": start, "up to": end} if start < end else {"up to": start}
    return _Work(len(runs), end - start, options, parts, facts, made)


def _start(reader: pystore.Reader, runs: list[LogRun], allow_gap: bool) -> int:
    """Returns the first byte of the log that is new. Raises: BadArgument, NotFound."""
    info = reader.info()
    if not runs:
        return info.log_min
    last = runs[-1]
    if last.end > info.log_max or not _same_log(reader, last):
        raise usage(
            f"the archive is of another log: byte {last.end} was its end",
            "name another directory for this store",
        )
    if last.end < info.log_min and not allow_gap:
        raise _gap(
            f"the log begins at byte {info.log_min}, and the archive ends at {last.end}: what lay"
            " between was deleted",
            str(reader.path), "; such an archive cannot be restored",
        )  # fmt: skip
    return max(last.end, info.log_min)


def _gap(text: str, where: str, more: str = "") -> errors.NotFound:
    error = errors.NotFound(text, where)
    error.next_step = f"--allow-gap archives the rest{more}"
    return error


def _same_log(reader: pystore.Reader, last: LogRun) -> bool:
    """Says whether the record that a run ended with still lies there; True when it was deleted."""
    if not last.witness or last.witness[0] < reader.info().log_min:
        return True
    try:
        m = reader.message(last.witness[0])
    except (errors.NotFound, errors.RecordDamaged):
        return False
    return last.witness == [m.physical_offset, m.size, m.store_timestamp, m.body_crc]


def _log_options(j: Job, start: int, end: int) -> ReadOptions:
    more: dict[str, object] = {"startingLogOffset": start, "endingLogOffset": end}
    if end - start > _ALONE_BYTES:
        most = max(1, (end - start) // _PART_BYTES)
        more["minPartitions"] = min(most, TASKS_A_CORE * cores_of(j))
    return _options(j, scan="log", **more)


def _check_tiles(spans: list[tuple[int, int]], start: int, end: int) -> None:
    """Checks the parts of a file. Raises: StoreIOError when the parts are not the bytes asked for,
    each once."""
    edges = [start, *(edge for span in spans for edge in span), end]
    if edges[::2] != edges[1::2]:
        raise errors.StoreIOError(f"parts {spans} are not bytes {start} to {end} of the log")


# ---- of a tier ----


def _of_tier(
    j: Job, reader: pystore.Reader, archive: Path, found: list[LogRun] | list[TierRun],
    allow_gap: bool,
) -> _Work:  # fmt: skip
    """Returns the offsets of a tier's queues that no run has. Raises: BadArgument, NotFound,
    StoreError."""
    from spark_ext.jobs.tier_news import packed, queue_news
    from spark_ext.plan import Part

    cold = cast("ColdReader", reader)
    tier = cold.tier
    runs = [run for run in found if isinstance(run, TierRun)]
    if len(runs) < len(found):
        raise usage(f"{archive} is the archive of a store", "name another directory for this tier")
    if runs and (runs[-1].cluster, runs[-1].broker) != (tier.cluster, tier.broker):
        raise usage(
            f"the archive is of the tier of {runs[-1].cluster}/{runs[-1].broker}",
            "name another directory for this tier",
        )
    reached = queues_of(archive, runs[-1]) if runs else {}
    news = list(queue_news(cold, reached, begun=bool(runs)))
    lacking = next((each for each in news if each.missing), None)
    if lacking is not None and not allow_gap:
        raise _gap(f"of {lacking.topic}/{lacking.queue}, {lacking.missing} messages from offset"
                   f" {lacking.first_missing} on were deleted, or lost before they were written"
                   " out, and are not in the archive", cold.address)  # fmt: skip
    total = sum(each.size for each in news)
    goal = total if total <= _ALONE_BYTES else max(
        _PART_BYTES, total // (TASKS_A_CORE * cores_of(j))
    )  # fmt: skip
    options = _options(j, scan="queue")
    parts = [Part(options.paths[0], "", ranges, cold.probe(*ranges[0][:3]))
             for ranges in packed(news, goal)]  # fmt: skip

    def made(staged: Path, parts: list[_Partition]) -> TierRun:
        _check_offsets(news, parts)
        crc = write_queues(staged, _reached(reached, news, parts))
        return TierRun(
            len(runs) + 1, tier.cluster, tier.broker, sum(p.sums.messages for p in parts),
            sum(p.sums.bytes for p in parts), crc, _renamed(parts),
        )  # fmt: skip

    facts = {"queues": sum(each.size > 0 for each in news)}
    return _Work(len(runs), total, options, parts, facts, made)


def _check_offsets(news: list[QueueNews], parts: list[_Partition]) -> None:
    """Checks that each offset was written, once: by their number and sum, and the sum of their
    queues. Raises: StoreIOError."""
    wanted: dict[str, tuple[int, int, int]] = {}
    for each in news:
        messages, queues, offsets = wanted.get(each.topic, (0, 0, 0))
        for first, end, _ in each.pieces:
            count = end - first
            messages, queues = messages + count, queues + count * each.queue
            offsets += count * (first + end - 1) // 2
        wanted[each.topic] = messages, queues, offsets
    for topic, said in wanted.items():
        sums = [p.sums for p in parts if p.topic == topic]
        found = (sum(s.messages for s in sums), sum(s.of("queueId") for s in sums),
                 sum(s.of("queueOffset") for s in sums))  # fmt: skip
        if any((a - b) % (1 << 64) for a, b in zip(said, found, strict=True)):
            raise errors.StoreIOError(
                f"{found[0]} messages of {topic} were written, not those {said[0]} that were read"
            )


def _reached(
    before: dict[tuple[str, int], QueueReach], news: list[QueueNews], parts: list[_Partition]
) -> list[QueueReach]:
    """Returns how far all queues are after a run."""
    now = {place: each._replace(start=each.end) for place, each in before.items()}
    last: dict[tuple[str, int], tuple[int, ...]] = {}
    for part in parts:
        for queue, facts in part.sums.last.items():
            place = part.topic, queue
            last[place] = max(facts, last.get(place, facts))
    for each in news:
        place = each.topic, each.queue
        if place in last:
            now[place] = QueueReach(*place, each.start, each.end, *last[place])
    return [now[place] for place in sorted(now)]


# ---- writing ----


def _options(j: Job, **more: object) -> ReadOptions:
    from spark_ext.options import parse_read

    given: dict[str, object] = {
        "path": j.address, **j.session.sets, "includeTransactions": "all", "decompress": "false",
        "checkCrc": "true", "includeProperties": "json", **more,
    }  # fmt: skip
    if j.session.conf is not None:
        given["conf"] = j.session.conf
    return parse_read({name: str(value) for name, value in given.items()}, streaming=False)


def _write(j: Job, staged: Path, work: _Work) -> list[_Partition]:
    """Writes the partitions of a run, each file compared with what was read. Raises:
    StoreIOError."""
    check_packages()
    options, parts = work.options, list(enumerate(work.parts))
    shared = ExportContext(options, staged.parent / "tasks")
    if work.bytes > _ALONE_BYTES:
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


def _renamed(parts: list[_Partition]) -> dict[str, str]:
    """Returns topics whose directories have other names, by these names."""
    return {name: p.topic for p in parts if (name := partition_of(p.topic)) != p.topic}


def _show(j: Job, made: LogRun | TierRun, work: _Work, parts: list[_Partition]) -> None:
    of = "bytes of the log" if isinstance(made, LogRun) else "bytes"
    j.report.facts(
        "archive",
        {"runs": work.runs + 1, "new messages": made.messages, **work.facts, of: Size(made.bytes)},
    )
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
