"""One Spark session for the folder, and small stores for it to read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import BOUND_S, STARVED

import pystore
from pystore.cli import main
from pystore.format.names import HALF_TOPIC, OP_TOPIC

Run = Callable[..., Any]
#: Of the log of `busy`, in bytes.
SEGMENT = 1 << 16

pyspark = pytest.importorskip("pyspark", reason="PySpark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

#: First on the path of Spark's Python processes: those of streams connect before they import.
EARLY = Path(__file__).with_name("early")

LOG4J = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n%ex{short}
logger.task.name = org.apache.spark
logger.task.level = off
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.flaky(reruns=20, only_rerun=[STARVED, "TooLate"]))


class TooLate(AssertionError):
    """The work ended before it was killed, so nothing was shown; the test is repeated."""


def alive(query: Any) -> bool:
    """True, for a condition that waits for what a stream does. Raises: what the stream died of."""
    if (failure := query.exception()) is not None:
        raise failure
    return True


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session of the whole folder."""
    if shutil.which("java") is None:
        pytest.skip("Java is not installed")
    from pyspark.sql import SparkSession

    home = tmp_path_factory.mktemp("spark")
    (home / "log4j2.properties").write_text(LOG4J)
    runs_here = home / "spark-runs-here"
    runs_here.mkdir()
    logging = f"-Dlog4j2.configurationFile={(home / 'log4j2.properties').as_uri()}"
    root = str(Path(__file__).resolve().parents[2])
    with pytest.MonkeyPatch.context() as patch:
        # Workers are this Python, and see what this one sees.
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        paths = [str(EARLY), *filter(None, sys.path), root]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        with contextlib.chdir(runs_here):
            session = (
                SparkSession.builder.master("local[2]")
                .appName("tests")
                .config("spark.ui.enabled", "false")
                .config("spark.ui.showConsoleProgress", "false")
                .config("spark.log.level", "OFF")
                .config("spark.sql.shuffle.partitions", "2")
                # Java for a query of a few rows takes longer to compile than they take. Sessions of
                # processes of their own, and those of the cluster, compile as people's do.
                .config("spark.sql.codegen.wholeStage", "false")
                .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
                .config("spark.sql.session.timeZone", "UTC")
                .config("spark.sql.warehouse.dir", str(home / "warehouse"))
                .config("spark.local.dir", str(home / "local"))
                .config("spark.driver.memory", "1g")
                .config("spark.driver.extraJavaOptions", logging)
                # Between the connection of a Python process and its first word lie its imports.
                .config("spark.python.authenticate.socketTimeout", f"{BOUND_S:.0f}s")
                .getOrCreate()
            )
        yield session
        session.stop()


@pytest.fixture
def load(spark: Any) -> Callable[..., Any]:
    """load(path or paths, schema=..., **options): a frame over stores."""

    def make(path: object, schema: str | None = None, **options: object) -> Any:
        reader = spark.read.format("rocketmq")
        if schema is not None:
            reader = reader.schema(schema)
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load(list(map(str, path)) if isinstance(path, list) else str(path))

    return make


def put(
    store: pystore.Store, topic: str, queue: int, count: int, first: int = 0, **more: Any
) -> None:
    """`count` messages whose bodies are their numbers."""
    bodies = [f"{topic}-{queue}-{i}".encode() for i in range(first, first + count)]
    store.put_many(topic, bodies, queue=queue, **more)


@pytest.fixture
def make(store_path: Path, small: dict[str, Any]) -> Callable[..., Path]:
    """make({topic: [messages of queue 0, of queue 1, ...]}, path): a closed store."""

    def build(topics: dict[str, list[int]], path: Path = store_path, **settings: Any) -> Path:
        with pystore.open(path, **(small | settings)) as store:
            for topic, queues in topics.items():
                for queue, count in enumerate(queues):
                    if count:
                        put(store, topic, queue, count)
        return path

    return build


def said(failure: pytest.ExceptionInfo[BaseException]) -> str:
    """All that an error of Spark says."""
    return str(failure.value)


@pytest.fixture
def run_job(spark: Any, capfd: pytest.CaptureFixture[str]) -> Run:
    """run_job(name, store, *arguments, code=0): what the job writes as JSON; its error where it
    ends with another code."""

    def run(name: str, *arguments: object, code: int = 0) -> Any:
        capfd.readouterr()
        got = main(["spark", name, *map(str, arguments), "--json"])
        out, err = capfd.readouterr()
        assert got == code, err
        if not out:
            assert "Traceback" not in err and "at org.apache" not in err
            return json.loads(err.splitlines()[-1])["error"]
        return json.loads(out)

    return run


@pytest.fixture
def busy(small: dict[str, Any]) -> Callable[[Path], Path]:
    """busy(path): a store with several segments, and messages for each of the jobs."""

    def build(path: Path) -> Path:
        with pystore.open(path, **small | {"mappedFileSizeCommitLog": SEGMENT}) as store:
            for i in range(300):
                store.put("t", b"x" * 500, queue=i % 2, tags="a", keys=f"k{i}")
                more = {"REAL_TOPIC": "t", "REAL_QID": "0", "UNIQ_KEY": f"u{i}"}
                if i % 10 == 0:
                    store.put(HALF_TOPIC, b"x", queue=0, properties=more | {"PGROUP": "g"})
                if i % 20 == 0:
                    store.put(OP_TOPIC, f"{i // 10},", queue=0)
                if i % 10 == 5:
                    store.put("SCHEDULE_TOPIC_XXXX", b"x", queue=2, properties=more)
            store.metadata.offsets.commit("g", "t", 0, 3)
        return path

    return build
