"""Spark's daemon of Python workers (``spark.python.daemon.module``) for a driver to be killed.

From the moment that the file DYING_STEP is there, the first task that answers Spark kills the
process group DYING_GROUP, in which driver and virtual machine are: its work is done, and nobody has
heard of it. Spark's own counters do not show a task that takes less than 100 ms.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from pyspark import daemon, worker

_main = worker.main


class _LastWords:
    """Stands for a stream: whatever is wanted of it, it kills."""

    def __getattr__(self, name: str) -> Any:
        os.killpg(int(os.environ["DYING_GROUP"]), signal.SIGKILL)
        os._exit(1)


def _work(infile: Any, outfile: Any) -> None:
    _main(infile, _LastWords() if Path(os.environ["DYING_STEP"]).exists() else outfile)


worker.main = _work

if __name__ == "__main__":
    daemon.manager()
