"""What both sinks ask of Spark: which task this is, and whether it can work at all."""

from __future__ import annotations

import importlib.util

from spark_ext.errors import SinkError

__all__ = ["batch_of_stream", "check_packages", "task_ids"]


def task_ids() -> tuple[int, int]:
    """Partition and attempt of this task; zeros outside of Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return (context.partitionId(), context.taskAttemptId()) if context else (0, 0)


def batch_of_stream() -> tuple[str, int]:
    """The query and the batch that this task works for. Raises: SinkError."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context else None
    if query is None or batch is None:
        raise SinkError("Spark does not tell its tasks which query and batch they belong to")
    return query, int(batch)


def check_packages() -> None:
    """Before any task has spooled anything. Raises: SinkError."""
    missing = [name for name in ("pyarrow", "numpy") if importlib.util.find_spec(name) is None]
    if missing:
        raise SinkError(
            f"a write needs {' and '.join(missing)}, which cannot be imported: pip install"
            " 'rocketmq-pystore[spark]'"
        )
