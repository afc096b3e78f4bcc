"""What every job is given: a Spark session, frames over stores, a report, progress, named errors.

A job is a function with the decorator :func:`job`; it becomes a verb of the command line. Nothing
here imports PySpark before a job runs, since every run of ``pystore`` imports this module.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from pystore import errors
from pystore.cli.verbs import Session, named_values, usage
from pystore.cold.objects import address_of, is_address
from spark_ext.jobs.report import Report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    import pystore

__all__ = ["Job", "hour_ms", "is_cold", "job", "main"]

_Report = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE", help="Also write the report as one HTML page."),
]
_Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Spark master, or sc://HOST:PORT of Spark Connect. Default: that of spark-submit,"
        " else this machine.",
    ),
]
_Spark = Annotated[
    list[str] | None,
    typer.Option("--spark", metavar="NAME=VALUE", help="One setting of Spark. Repeatable."),
]
_SkipDamaged = Annotated[
    Path | None,
    typer.Option(
        "--skip-damaged",
        metavar="DIR",
        help="Read past damaged messages; tasks note their places in DIR, which all hosts share.",
    ),
]

#: What a failed task says last of an error of ours, in the text of Spark's error.
_OURS = re.compile(r"(?:^|\s)(?:spark_ext|pystore)(?:\.\w+)*\.(\w+): (.+)")
#: How Java and Python say ENOSPC and EDQUOT.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_WHEN_FULL = "free some space there, or where Spark keeps its scratch files (spark.local.dir)"
_POLL_S = 0.2
_WHEN_DAMAGED = (
    "`pystore verify STORE` lists all damage; --skip-damaged DIR reads the rest, where a job has it"
)


class Job:
    """One run of one job.

    session: the verb's. report: what it found. damage: the directory of --skip-damaged, or None.
    output: the directory that tasks write to, or None.
    """

    def __init__(self, session: Session, name: str, master: str | None, given: list[str]) -> None:
        self.session = session
        self.report = Report(name)
        self.damage: Path | None = None
        self.output: Path | None = None
        self._name = name
        self._master = master
        self._given = named_values(given, "--spark", "spark.driver.memory=4g")
        self._spark: SparkSession | None = None
        self._started = False

    # ---- stores and frames ----

    @property
    def path(self) -> Path:
        """The store, or what the job calls so."""
        return self.session.path

    @property
    def address(self) -> str:
        """The same as Spark's tasks name it, whatever directory they run in: its whole path, or the
        address of a tier."""
        return _whole(self.path)

    def check_outside(self, path: Path) -> None:
        """Checks what a job writes to: a store does not open with files of others in its log.
        Raises: BadArgument."""
        folders = (self.path, *self.session.settings().commitlog_dirs(self.path))
        if any(path.resolve().is_relative_to(folder.resolve()) for folder in folders):
            raise usage(f"{path} lies in the store", "name a place elsewhere")

    @contextlib.contextmanager
    def reader(self) -> Iterator[pystore.Reader]:
        """Opens the store, read by the driver. Raises: NotAStore and others of opening."""
        with self.session.reader() as reader:
            yield reader

    def read(self, columns: str, path: str | Path | None = None, **options: object) -> DataFrame:
        """Returns a frame over a store or a cold tier. columns: DDL. path: by default the job's
        store, with its settings."""
        frame = self.spark.read.format("rocketmq").schema(columns)
        if path is None:
            if self.session.conf is not None:
                frame = frame.option("conf", str(self.session.conf))
            frame = frame.options(**self.session.sets)
        if self.damage is not None:
            frame = frame.option("failOnDataLoss", "false").option("damageReport", str(self.damage))
        chosen = {name: str(value) for name, value in options.items()}
        return frame.options(**chosen).load(self.address if path is None else _whole(path))

    @property
    def spark(self) -> SparkSession:
        """The session: the one that is there, or one that ends with the job."""
        if self._spark is None:
            from pyspark.sql import SparkSession

            from spark_ext.session import session

            self._started = SparkSession.getActiveSession() is None
            builder = SparkSession.builder.appName(f"pystore spark {self._name}")
            remote = (self._master or os.environ.get("SPARK_REMOTE", "")).startswith("sc://")
            if self._started and not remote:
                builder = builder.config("spark.ui.showConsoleProgress", "false")
                builder = builder.config("spark.log.level", "OFF")
            if self._master is not None:
                builder = (builder.remote if remote else builder.master)(self._master)
            for name, value in self._given.items():
                builder = builder.config(name, value)
            self._spark = session(builder)
            if self._started and not remote:
                _fit_one_machine(self._spark, self._given)
        return self._spark

    def close(self) -> None:
        """Ends the session if this job started it."""
        if self._spark is not None and self._started:
            self._spark.stop()

    @contextlib.contextmanager
    def working(self, label: str) -> Iterator[None]:
        """Shows how many of Spark's tasks are done, on stderr."""
        spark, stop = self.spark, threading.Event()
        with self.session.progress(label, "tasks") as bar:
            watcher = threading.Thread(target=_watch, args=(spark, bar, stop), daemon=True)
            watcher.start()
            try:
                yield
            finally:
                stop.set()
                watcher.join()

    def collect(self, frame: DataFrame, label: str) -> list[Any]:
        """Returns the rows of a small result."""
        with self.working(label):
            return list(frame.collect())

    # ---- damage ----

    def note_damage(self) -> None:
        """Puts what tasks skipped into the report and the exit code."""
        if self.damage is None or not self.damage.is_dir():
            return
        facts = [json.loads(p.read_text("utf-8")) for p in sorted(self.damage.glob("*.json"))]
        if not facts:
            return
        self.session.damaged = True
        self.report.table(
            "damage",
            ("store", "first at byte", "skipped"),
            [(f["store"], f["firstSkipped"], f["skipped"]) for f in facts],
        )


def _whole(path: str | Path) -> str:
    return address_of(path) if is_address(path) else str(Path(path).absolute())


def is_cold(path: str | Path) -> bool:
    """Says whether a cold tier lies there, and not a store."""
    from pystore.cold.tier import is_tier

    return is_address(path) or (not (Path(path) / "commitlog").is_dir() and is_tier(path))


def _fit_one_machine(spark: SparkSession, given: Mapping[str, str]) -> None:
    """Sets the partitions of a shuffle: Spark's 200 of a shuffle are for a cluster; here each costs
    more than its rows."""
    name, context = "spark.sql.shuffle.partitions", spark.sparkContext
    if name not in given and str(context.master).startswith("local"):
        spark.conf.set(name, str(2 * context.defaultParallelism))


def _watch(spark: SparkSession, bar: Any, stop: threading.Event) -> None:
    """Polls Spark's own counters. A session of Spark Connect has none."""
    try:
        tracker = spark.sparkContext.statusTracker()
        while not stop.wait(_POLL_S):
            stages = [tracker.getStageInfo(i) for i in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            bar.update(
                sum(stage.numCompletedTasks for stage in known),
                sum(stage.numTasks for stage in known) or None,
            )
    except Exception:  # noqa: BLE001 - progress is a courtesy; the job itself says what is wrong
        return


def hour_ms(column: str) -> str:
    """Makes SQL for the hour of a timestamp, UTC, in ms since 1970, whatever the session's time
    zone."""
    return f"unix_millis({column}) - pmod(unix_millis({column}), 3600000)"


# ---- errors ----


def _named(failed: Exception, output: Path | None = None) -> Exception:
    """Returns what Spark's error is about, as an error of ours. Never a stack. output: of the
    job."""
    if full := _FULL.search(str(failed)):
        return errors.DiskFull(full[0], None if output is None else str(output))
    found = _OURS.findall(str(failed))
    if not found:
        error: errors.StoreError = errors.StoreIOError(f"Spark: {_first_line(failed)}")
        error.next_step = "see Spark's log; --spark spark.log.level=ERROR shows it here"
        return error
    kind, text = found[-1]
    text = text.split("; failOnDataLoss=false")[0].strip()
    if kind == "DataLoss":
        error = errors.RecordDamaged(text)
        error.next_step = _WHEN_DAMAGED
        return error
    if kind in ("BadOption", "BadSchema"):
        return usage(text, "check the arguments and --set")
    from pystore.cold import failures

    known = getattr(errors, kind, None) or getattr(failures, kind, None)
    if isinstance(known, type) and issubclass(known, errors.StoreError):
        return known(text.split(" \u2014 ")[0])
    error = errors.StoreIOError(text)
    error.next_step = ""  # these sentences end with it
    return error


def _first_line(failed: Exception) -> str:
    """Returns what an error of Spark says first, but for the name of the call that met it."""
    lines = [line.strip() for line in str(failed).splitlines() if line.strip()]
    if lines and lines[0].startswith("An error occurred while calling") and lines[1:]:
        lines = [lines[1].lstrip(": ")]
    return lines[0] if lines else type(failed).__name__


@contextlib.contextmanager
def _named_errors(j: Job) -> Iterator[None]:
    """Names errors. Raises: StoreError for whatever Spark raises, and DiskFull wherever a disk is
    full."""
    try:
        from pyspark.errors import PySparkException
    except ImportError as missing:
        raise usage(
            f"jobs need PySpark, which cannot be imported ({missing})",
            "pip install 'rocketmq-pystore[spark]'",
        ) from None
    from py4j.protocol import Py4JError

    from spark_ext.errors import SourceError

    try:
        try:
            yield
        except (PySparkException, Py4JError) as failed:
            raise _named(failed, j.output) from None
        except SourceError as failed:
            kind = f"spark_ext.errors.{type(failed).__name__}"
            raise _named(RuntimeError(f"{kind}: {failed}")) from None
        except OSError as failed:
            if isinstance(failed, errors.StoreError) or failed.errno not in _NO_ROOM:
                raise
            # A write that fails by its descriptor names no file.
            where = str(failed.filename or j.output or "") or None
            raise errors.DiskFull(failed.strerror, where) from None
    except errors.DiskFull as full:
        full.next_step = _WHEN_FULL
        raise


# ---- a job as a verb ----


def job(name: str, *, skips: bool = False) -> Callable[[Callable[..., int | None]], Any]:
    """Makes a verb of ``run(job, ...)``: its arguments are those of the command line beside the
    options that every job has. skips: it has --skip-damaged too."""

    def made(run: Callable[..., int | None]) -> Callable[..., int | None]:
        hints = get_type_hints(run, include_extras=True)
        own = list(inspect.signature(run).parameters.values())[1:]

        def verb(
            s: Session,
            report: Path | None,
            master: str | None,
            spark: list[str] | None,
            skip_damaged: Path | None = None,
            **given: Any,
        ) -> int | None:
            started = Job(s, name, master, spark or [])
            if report is not None:
                _check_report(report)
                started.check_outside(report)
            if skip_damaged is not None:
                started.check_outside(skip_damaged)
                started.damage = _empty(skip_damaged)
            with _named_errors(started):
                try:
                    code = run(started, **given)
                    started.note_damage()
                finally:
                    started.close()
            started.report.show(s.out)
            if report is not None:
                started.report.write(report)
            return code

        extra: dict[str, Any] = {"report": _Report, "master": _Master, "spark": _Spark}
        if skips:
            extra["skip_damaged"] = _SkipDamaged
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("s", inspect.Parameter.POSITIONAL_ONLY, annotation=Session),
            *(p.replace(kind=keyword, annotation=hints[p.name]) for p in own),
            *(inspect.Parameter(n, keyword, annotation=kind, default=None)
              for n, kind in extra.items()),
        ]  # fmt: skip
        verb.__doc__ = run.__doc__
        verb.__name__ = run.__name__
        verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        verb.__annotations__ = {p.name: p.annotation for p in parameters}
        return verb

    return made


def _check_report(path: Path) -> None:
    """Checks the report's options before the job, not after hours of its work. Raises:
    BadArgument."""
    if not path.absolute().parent.is_dir():
        raise usage(f"--report {path}: there is no such directory", "make it first")
    if os.path.lexists(path) and not path.is_file():
        raise usage(f"--report {path} is not a file", "name the HTML page to write")


def _empty(folder: Path) -> Path:
    """Makes an empty directory for notes of damage; those of an earlier run would be counted
    again."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise usage(f"--skip-damaged {folder} is not a directory", "name a new directory")
    if folder.is_dir() and any(folder.glob("*.json")):
        raise usage(f"--skip-damaged {folder} holds notes of another run", "name a new directory")
    return folder.absolute()


def main(name: str) -> None:
    """Runs ``python -m spark_ext.jobs.NAME`` and ``spark-submit``: the verb, with this command
    line."""
    from pystore.cli import main as program

    sys.exit(program(["spark", name, *sys.argv[1:]]))
