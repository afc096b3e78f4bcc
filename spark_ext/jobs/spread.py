"""The parts of an audit as tasks of Spark: rows of a source whose partitions are the parts."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pystore.audit.core import CoreAudit
from pystore.audit.parts import Found, Part, Shared, SpreadAudit, audit_part
from spark_ext.jobs.frame import Job

__all__ = ["spread"]

#: Tasks a core in one step: enough that the last of them does not leave the others waiting long.
_TASKS_A_CORE = 3
#: Where nobody tells how many cores there are, as in Spark Connect.
_TASKS = 32
_LABELS = {
    "queues": "reading the queues",
    "index": "reading the index",
    "log": "checking the log",
    "units": "checking units",
}


def spread(j: Job) -> Callable[..., CoreAudit]:
    """What pystore.audit.verify takes as `core`: its checks as tasks of this job's session."""

    def run(shared: Shared, parts: Sequence[Part]) -> Iterable[Found]:
        j.spark.dataSource.register(_source(shared, parts))
        frame = j.spark.read.format("rocketmq-audit").load()
        rows = j.collect(frame, _LABELS[parts[0].step])
        return [pickle.loads(row.found) for row in sorted(rows, key=lambda row: row.part)]

    return functools.partial(SpreadAudit, run=run, most=_tasks(j))


def _tasks(j: Job) -> int:
    from pyspark.errors import PySparkException

    try:
        return _TASKS_A_CORE * int(j.spark.sparkContext.defaultParallelism)
    except PySparkException:
        return _TASKS


def _source(shared: Shared, parts: Sequence[Part]) -> Any:
    """A source of one row a part. It is pickled with the parts in it."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    begin = pickle.dumps(shared)
    works = [pickle.dumps(part) for part in parts]

    class _Reader(DataSourceReader):
        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition((i, work)) for i, work in enumerate(works)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int, bytes]]:
            from spark_ext.jobs.spread import work_on

            number, work = partition.value
            yield number, work_on(begin, work)

    class AuditSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "rocketmq-audit"

        def schema(self) -> str:
            return "part int, found binary"

        def reader(self, schema: Any) -> DataSourceReader:
            return _Reader()

    return AuditSource


def work_on(shared: bytes, part: bytes) -> bytes:
    """One task, all of it pickled: this process has the same version of these modules, or the job
    could not have begun."""
    from spark_ext.stores import settle_worker

    settle_worker()
    found = audit_part(pickle.loads(shared), pickle.loads(part))
    return pickle.dumps(found)
