"""Makes Spark know the format ``rocketmq``: it imports every top-level module named ``pyspark_*``.

Those imports are not guarded, so this one must neither fail nor be slow, whatever is installed.
"""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):  # no PySpark, or one before 4: there is nothing to offer
    from spark_ext.source import RocketmqSource as DefaultSource

__all__ = ["DefaultSource"]
