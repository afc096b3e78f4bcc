"""Sessions that know the format: what must be there is looked at first, and told in one sentence.

Spark starts its Python processes with the program that ``PYSPARK_PYTHON`` names, else with the
``python3`` of the path. Where that is another one than the script's, it lacks this package, and
Spark says so in a hundred lines. This module imports PySpark only inside its functions.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from spark_ext.errors import SourceError
from spark_ext.tasks import EXTRA, check_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "session"]

JAVA_MIN = 17
PROBE_S = 300.0
_PROBE = """
import sys
import numpy, pyarrow, pystore, spark_ext
print("%d.%d" % sys.version_info[:2])
"""


def session(builder: SparkSession.Builder | None = None) -> SparkSession:
    """Returns a session in which ``format("rocketmq")`` works, or one sentence that says what is
    missing.

    Starts Spark's Python processes with the Python that runs this, unless ``PYSPARK_PYTHON`` or the
    ``python3`` of the path serves. builder: ``SparkSession.builder`` with settings; None: as it is.
    Raises: SourceError.
    """
    _check_pyspark()
    from pyspark.sql import SparkSession

    given = builder if builder is not None else SparkSession.builder
    if not _is_remote(given) and SparkSession.getActiveSession() is None:
        _check_java()
        os.environ["PYSPARK_PYTHON"] = _worker_python()
    return register(given.getOrCreate())


def register(spark: SparkSession) -> SparkSession:
    """Does the same for a session that is there already, and returns it. Raises: SourceError."""
    _check_pyspark()
    context = None if _is_connect(spark) else spark.sparkContext
    if context is not None:
        context.pythonExec = _worker_python()
    from spark_ext.source import RocketmqSource

    spark.dataSource.register(RocketmqSource)
    return spark


def _check_pyspark() -> None:
    """Checks that PySpark is there. Raises: SourceError naming what is not installed, or is too
    old."""
    if importlib.util.find_spec("pyspark") is None:
        raise SourceError(f"{sys.executable} cannot import pyspark: pip install {EXTRA}")
    check_packages()
    from pyspark import __version__

    found = tuple(int(part) for part in re.findall(r"\d+", __version__)[:2])
    if found < (4, 1):
        raise SourceError(
            f"PySpark {__version__} is too old for format('rocketmq'), which needs 4.1 or newer:"
            f" pip install {EXTRA}"
        )


def _is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _is_remote(builder: SparkSession.Builder) -> bool:
    """Says whether it is a session of Spark Connect, whose server has the virtual machine and the
    Python processes."""
    options = getattr(builder, "_options", {})
    return "spark.remote" in options or "SPARK_REMOTE" in os.environ


# ---- Java ----


def _check_java() -> None:
    """Checks the Java of this machine. Raises: SourceError for a machine without Java, or with one
    that Spark does not start on."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    where = f"JAVA_HOME is {home}" if home else "there is no 'java' on the path"
    remedy = f"install Java {JAVA_MIN} or newer, or set JAVA_HOME to its folder"
    if program is None:
        raise SourceError(f"Spark needs Java, and {where}: {remedy}")
    try:
        done = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        text = f"Spark needs Java, and {where}, which does not run ({e}): {remedy}"
        raise SourceError(text) from None
    match = re.search(r'version "(\d+)', done.stderr + done.stdout)
    if match and int(match[1]) < JAVA_MIN:
        raise SourceError(f"{program} is Java {match[1]}, too old for Spark: {remedy}")


# ---- Python ----


def _worker_python() -> str:
    """Returns the program of Spark's Python processes. Raises: SourceError for a chosen one that
    lacks this package."""
    chosen = os.environ.get("PYSPARK_PYTHON")
    if chosen is None:
        return "python3" if _why_not("python3") is None else sys.executable
    why = _why_not(chosen)
    if why is not None:
        raise SourceError(
            f"PYSPARK_PYTHON is '{chosen}', which {why}: set PYSPARK_PYTHON={sys.executable}"
            " before the session starts"
        )
    return chosen


@functools.cache
def _why_not(program: str) -> str | None:
    """Says why a Python cannot run the format, or None when it can."""
    found = shutil.which(program)
    if found is None:
        # A path inside of an archive that executors unpack is not there on the driver's host.
        return "is not on this host"
    if found == sys.executable:
        return None
    try:
        done = subprocess.run(
            [found, "-c", _PROBE], capture_output=True, text=True, timeout=PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"does not run ({e})"
    if done.returncode:
        return f"cannot run the format ({(done.stderr.strip().splitlines() or ['it died'])[-1]})"
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    theirs = done.stdout.strip()
    return None if theirs == ours else f"is Python {theirs}, while this script runs in {ours}"
