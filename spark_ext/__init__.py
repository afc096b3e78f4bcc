"""RocketMQ stores in Spark, no broker between: ``spark.read.format("rocketmq").load("store")``.

Spark finds the format through the module ``pyspark_rocketmq``; ``spark_ext.source.RocketmqSource``
is the class for ``spark.dataSource.register``. Reading needs ``pystore`` and pyarrow on every
executor.
"""

from __future__ import annotations

__all__: list[str] = []
