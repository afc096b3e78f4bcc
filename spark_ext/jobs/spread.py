"""Parts of a work as tasks of Spark: elements of an RDD, which costs less than a query; by Spark
Connect, which has none, rows of a source whose partitions are the parts."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from pystore.audit.core import CoreAudit
from pystore.audit.parts import AuditContext, AuditPart, PartFindings, SpreadAudit, audit_part
from pystore.cli.verify import PHASES
from pystore.repair.parts import DerivedPart, Deriving, derive_part
from pystore.repair.parts import Run as Making
from spark_ext.jobs.frame import Job

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["cores_of", "on_executors", "spread", "spread_making"]

#: Tasks a core in one step: enough that the last of them does not leave the others waiting long.
TASKS_A_CORE = 3
#: Queues and index files of so many bytes are read by the driver before tasks have begun.
_ALONE_BYTES = 1 << 30
#: Where nobody tells how many cores there are, as in Spark Connect.
_CORES = 10

#: What a task does: of what all tasks begin with, and of its part. A function of a module.
Work = Callable[[Any, Any], Any]


def spread(j: Job) -> Callable[..., CoreAudit]:
    """Returns what pystore.audit.verify takes as `core`: its checks as tasks of this job's
    session."""

    def run(shared: AuditContext, parts: Sequence[AuditPart]) -> Iterable[PartFindings]:
        label = PHASES[parts[-1].step]
        if parts[-1].step == "log" or sum(part.size for part in parts) > _ALONE_BYTES:
            return on_executors(j, audit_part, shared, parts, label)
        return _on_threads(j, partial(audit_part, shared), parts, label)

    return partial(SpreadAudit, run=run, most=TASKS_A_CORE * cores_of(j))


def spread_making(j: Job) -> Making:
    """Returns what pystore.repair.rebuild takes as `parts`."""

    def run(deriving: Deriving, parts: Sequence[AuditPart]) -> Iterable[DerivedPart]:
        return on_executors(j, derive_part, deriving, parts, "making queues and index")

    return Making(run, TASKS_A_CORE * cores_of(j))


def _context(j: Job) -> SparkContext | None:
    """Returns the context, None by Spark Connect."""
    from pyspark.errors import PySparkException

    try:
        return j.spark.sparkContext
    except PySparkException:
        return None


def cores_of(j: Job) -> int:
    """Counts the cores of all executors."""
    context = _context(j)
    return _CORES if context is None else int(context.defaultParallelism)


def on_executors(j: Job, work: Work, shared: Any, parts: Sequence[Any], label: str) -> list[Any]:
    """Returns what `work` returns of each part, in their order. label: of the progress."""
    begin, works = pickle.dumps((work, shared)), [pickle.dumps(part) for part in parts]
    context = _context(j)
    if context is not None:
        done = context.parallelize(works, max(1, len(works))).map(partial(work_on, begin))
        with j.working(label):
            return [pickle.loads(found) for found in done.collect()]
    j.spark.dataSource.register(_source(begin, works))
    frame = j.spark.read.format("rocketmq-parts").load()
    rows = j.collect(frame, label)
    return [pickle.loads(row.found) for row in sorted(rows, key=lambda row: row.part)]


def _on_threads(j: Job, work: Callable[[Any], Any], parts: Sequence[Any], label: str) -> list[Any]:
    """Does the same by the driver; `work` lets go of the GIL."""
    done = []
    with ThreadPoolExecutor(os.cpu_count()) as pool, j.session.progress(label, "parts") as bar:
        for found in pool.map(work, parts):
            done.append(found)
            bar.update(len(done), len(parts))
    return done


def _source(begin: bytes, works: Sequence[bytes]) -> Any:
    """Registers a source of one row a part. It is pickled with the parts in it."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class _SpreadReader(DataSourceReader):
        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition((i, part)) for i, part in enumerate(works)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int, bytes]]:
            from spark_ext.jobs.spread import work_on

            number, part = partition.value
            yield number, work_on(begin, part)

    class PartsSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "rocketmq-parts"

        def schema(self) -> str:
            return "part int, found binary"

        def reader(self, schema: Any) -> DataSourceReader:
            return _SpreadReader()

    return PartsSource


def work_on(begin: bytes, part: bytes) -> bytes:
    """Does one task, all of it pickled: this process has the same version of these modules, or the
    job could not have begun."""
    from spark_ext.stores import settle_worker

    settle_worker()
    work, shared = pickle.loads(begin)
    return pickle.dumps(work(shared, pickle.loads(part)))
