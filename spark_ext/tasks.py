"""What sources and sinks ask of Spark: which task this is, and whether it can work at all."""

from __future__ import annotations

import importlib.util
import sys

from spark_ext.errors import SinkError, SourceError

__all__ = ["EXTRA", "batch_of_stream", "check_packages", "task_ids"]

#: What reading and writing need.
EXTRA = "'rocketmq-pystore[spark]'"


def task_ids() -> tuple[int, int]:
    """Returns partition and attempt of this task; zeros outside of Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return (context.partitionId(), context.taskAttemptId()) if context else (0, 0)


def batch_of_stream() -> tuple[str, int]:
    """Returns the query and the batch that this task works for. Raises: SinkError."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context else None
    if query is None or batch is None:
        raise SinkError("Spark does not tell its tasks which query and batch they belong to")
    return query, int(batch)


def check_packages() -> None:
    """Checks the packages before any task has begun. Raises: SourceError naming what cannot be
    imported."""
    missing = [name for name in ("pyarrow", "numpy") if importlib.util.find_spec(name) is None]
    if missing:
        raise SourceError(
            f"{sys.executable} cannot import {' and '.join(missing)}: pip install {EXTRA}"
        )
