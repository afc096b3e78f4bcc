"""``pystore spark restore``: a store from an archive, every record at its old place.

Tasks put the records of the Parquet files into segments; the driver lets the store's own recovery
make queues, index and checkpoint from them, verifies the whole, and puts it in place by one rename.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pystore import errors
from pystore.cli.verbs import Size, show_balance, usage
from pystore.files import FILE_MODE
from spark_ext.jobs.frame import Job, job, main
from spark_ext.jobs.runs import FIELDS, LogRun, made_beside, runs_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystore.repair.census import Balance, Contents

__all__ = ["read_archive", "run"]


@job("restore")
def run(
    j: Job,
    archive: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="Directory of the archive.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the archive's runs and print the plan.")
    ] = False,
) -> int | None:
    """Restore a store from an archive, every record to the byte and at its old place.

    STORE must not exist yet, or be an empty directory. It is made beside its place, verified, and
    renamed when it is whole: a run that is killed leaves no store, and the next one begins again.
    Queues, index and checkpoint are made from the log, topics and offsets come from the archive's
    last run.

    JSON: one object with restored, or plan. See docs/spark-jobs.md.

    \b
    Examples:
      pystore spark restore STORE /archive/broker-a --dry-run
      pystore spark restore STORE /archive/broker-a
    """
    target, archive = j.path.absolute(), archive.absolute()
    if j.session.settings()["storePathCommitLog"]:
        raise usage(
            "storePathCommitLog would lead to a log elsewhere",
            "restore into one directory, and move the log afterwards",
        )
    if target.exists():
        j.session.check_free()
        looked = [folder for folder in (target / "commitlog", target) if folder.is_dir()]
        if any(list(folder.iterdir()) for folder in looked):
            raise usage(f"{target} exists already", "name a new directory, or move that one away")
    runs = _checked(archive)
    facts: dict[str, Any] = {
        "store": str(target), "runs": len(runs), "from": runs[0].start, "up to": runs[-1].end,
        "messages": sum(r.messages for r in runs), "bytes": Size(sum(r.bytes for r in runs)),
    }  # fmt: skip
    if dry_run:
        j.report.facts("plan", facts)
        return 0
    with made_beside(target, "restoring") as made:
        j.output = made
        put = _make_log(j, archive, runs, made / "commitlog")
        settings = {**j.session.sets, "mappedFileSizeCommitLog": runs[0].segment_size}
        _finish(j, archive / runs[-1].name / "_config", settings, made)
        _verify(j, settings, made, facts["messages"])
        balance = _balance(put, made / "commitlog")
    j.report.facts("restored", facts)
    show_balance(j.session, balance)
    return 0


def _checked(archive: Path) -> list[LogRun]:
    """Returns the runs, which must make one log. Raises: BadArgument for those of a tier,
    NotAStore, MissingSegment."""
    found = runs_of(archive)
    runs = [run for run in found if isinstance(run, LogRun)]
    if len(runs) < len(found):
        raise usage(
            "the archive is of a cold tier, which has no order over all queues",
            "make a store of the tier: pystore cold restore",
        )
    if not any(run.messages for run in runs):
        error: errors.StoreError = errors.NotAStore("no run of an archive there", str(archive))
        error.next_step = "name the directory that `pystore spark archive` wrote"
        raise error
    for before, after in itertools.pairwise(runs):
        if after.start != before.end or after.segment_size != before.segment_size:
            error = errors.MissingSegment(
                f"bytes {before.end} to {after.start} of the log are not in the archive",
                str(archive),
            )
            error.next_step = "the runs can be read as Parquet, but make no whole store"
            raise error
    return runs


def read_archive(j: Job, archive: Path, fields: str = FIELDS) -> DataFrame:
    """Returns all messages of an archive, with topic and day."""
    runs = runs_of(archive)
    folders = [str(archive / run.name) for run in runs]
    names = f"{fields}, run string, topic string, day string"
    frame = j.spark.read.schema(names).option("basePath", str(archive)).parquet(*folders)
    renamed: dict[Any, Any] = {name: topic for run in runs for name, topic in run.topics.items()}
    return frame.replace(renamed, subset=["topic"]) if renamed else frame


# ---- the log ----


def _make_log(j: Job, archive: Path, runs: list[LogRun], log: Path) -> Contents:
    """Returns what was put there."""
    from pyspark.sql.functions import expr

    from pystore.repair.census import Contents
    from pystore.repair.segments import make_segments
    from spark_ext.jobs.segments import SegmentSink

    size = runs[0].segment_size
    places = read_archive(j, archive, "commitLogOffset long, storeSize int")
    base = expr(f"commitLogOffset - pmod(commitLogOffset, {size})")
    ends = places.groupBy(base.alias("base")).agg(expr("max(commitLogOffset + storeSize) AS end"))
    found = {r.base: r.end for r in j.collect(ends, "reading the archive")}
    if None in found:
        raise errors.StoreIOError("a Parquet file there is not of an archive", str(archive))
    make_segments(log, size, found, FILE_MODE)
    j.spark.dataSource.register(SegmentSink)
    records = read_archive(j, archive, "commitLogOffset long, envelope binary, body binary")
    records = records.select("commitLogOffset", "envelope", "body")
    sums = log.with_name("sums.json")
    with j.working("writing segments"):
        writer = records.write.format(SegmentSink.name()).mode("append")
        writer.option("segmentSize", str(size)).option("sums", str(sums)).save(str(log))
    put = Contents(**json.loads(sums.read_bytes()))
    sums.unlink()
    return put


def _balance(put: Contents, log: Path) -> Balance:
    """Compares what was put with what stands there in the end."""
    from pystore.repair.census import Balance, Census, Contents

    stands = Census.of((path, int(path.name)) for path in sorted(log.iterdir()))
    return Balance.between(put, Contents(stands.records, stands.checksum))


def _finish(j: Job, config: Path, settings: dict[str, Any], made: Path) -> None:
    """Makes queues, index, checkpoint and metadata. An unclean end is what makes recovery read it
    all."""
    import pystore

    (made / "abort").touch()
    # Retention must not run here.
    with pystore.open(made, j.session.conf, **settings, cleanResourceInterval=0) as store:
        if config.is_dir() and any(config.iterdir()):
            store.metadata.import_json(config)


def _verify(j: Job, settings: dict[str, Any], made: Path, messages: int) -> None:
    """Checks the store that was made. Raises: RecordDamaged; the half-made store stays for a
    look."""
    from pystore.audit import verify

    audit = verify(made, j.session.conf, **settings)
    if audit.sound and audit.records == messages:
        return
    what = audit.errors[0].meaning if audit.errors else f"{audit.records} of {messages} records"
    error = errors.RecordDamaged(f"the restored store is not sound: {what}", str(made))
    error.next_step = f"see `pystore verify {made}`"
    raise error


if __name__ == "__main__":
    main("restore")
