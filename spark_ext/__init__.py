"""RocketMQ stores in Spark, no broker between: ``spark.read.format("rocketmq").load("store")``.

Spark finds the format through the module ``pyspark_rocketmq``, where the Python that it starts has
this package; :func:`session` sees to that, and :func:`register` for a session that is there.
Reading and writing need the extra ``spark`` on the driver, and ``arrow`` on every executor.
"""

from __future__ import annotations

from spark_ext.session import register, session

__all__ = ["register", "session"]
