"""The first script: an environment that nobody activated, and one sentence for what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import BOUND_S

pytest.importorskip("pyspark", reason="PySpark is not installed")

ROOT = Path(__file__).resolve().parents[2]

#: Reads, writes and streams, where no pandas can be imported and no page of Spark's is served.
FIRST = """
import sys
import spark_ext
from pyspark.sql import SparkSession

source, copy, checkpoint = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.memory", "512m").config("spark.log.level", "OFF")
spark = spark_ext.register(builder.getOrCreate())
frame = spark.read.format("rocketmq").load(source)
frame.select("body", "topic").write.format("rocketmq").mode("append").save(copy)
stream = spark.readStream.format("rocketmq").option("startingOffsets", "earliest").load(copy)
writer = stream.select("body", "topic").writeStream.format("rocketmq")
writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
writer.start(copy + "-2").awaitTermination()
print("there are", spark.read.format("rocketmq").load(copy + "-2").count())
"""

#: The same by the calls that Spark makes of the format, in one process.
CALLS = """
import sys
import pystore
from spark_ext.source import RocketmqSource

source, copy = sys.argv[1:]
rows = RocketmqSource({"path": source, "columns": "body,topic"})
from pyspark.sql.types import StructType
layout = StructType().add("body", "binary").add("topic", "string")
reader = rows.reader(layout)
batches = [batch for part in reader.partitions() for batch in reader.read(part)]
writer = RocketmqSource({"path": copy}).writer(layout, False)
writer.commit([writer.write(iter(batches))])
stream = RocketmqSource({"path": copy, "startingOffsets": "earliest"}).streamReader(layout)
begin = stream.initialOffset()
end = stream.latestOffset(begin, stream.getDefaultReadLimit())
parts = stream.partitions(begin, end)
print("there are", sum(batch.num_rows for part in parts for batch in stream.read(part)))
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH with Java and a `python3` that has no packages."""
    folder = tmp_path / "bin"
    folder.mkdir()
    other = folder / "python3"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    other.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def run(path: str, code: str, *words: object, **more: str) -> subprocess.CompletedProcess[str]:
    """A script by the full name of this Python, and nothing of this environment."""
    environment = {"PATH": path, "HOME": "/nonexistent", "PYTHONPATH": str(ROOT)}
    kept = ("JAVA_HOME", "JDK_JAVA_OPTIONS")
    java = {n: os.environ[n] for n in kept if n in os.environ}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        env=environment | java | {"SPARK_LOCAL_IP": "127.0.0.1"} | more,
        capture_output=True,
        text=True,
        timeout=4 * BOUND_S,
        check=False,
    )


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A store of three messages."""
    import pystore

    with pystore.open(tmp_path / "store") as store:
        store.put_many("t", [b"a", b"b", b"c"])
    return tmp_path / "store"


@pytest.fixture
def broken(tmp_path: Path) -> str:
    """A PYTHONPATH on which pandas cannot be imported."""
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "pandas.py").write_text("raise ImportError('of another version')\n")
    return f"{folder}:{ROOT}"


@pytest.mark.spark
@pytest.mark.long
def test_an_environment_that_is_not_activated(path, tmp_path, three, broken, monkeypatch):
    if shutil.which("java") is None:
        pytest.skip("Java is not installed")
    monkeypatch.chdir(tmp_path)
    done = run(path, FIRST, three, tmp_path / "copy", tmp_path / "checkpoint", PYTHONPATH=broken)
    assert "there are 3" in done.stdout, done.stderr[-3000:]


def test_reading_and_writing_need_no_pandas(path, tmp_path, three, broken):
    done = run(path, CALLS, three, tmp_path / "copy", PYTHONPATH=broken)
    assert "there are 3" in done.stdout, done.stderr[-3000:]


def test_a_session_that_runs_gets_this_python(path):
    """Where PYSPARK_PYTHON is not set, and the `python3` of the path has no packages."""
    code = (
        "import types, spark_ext\n"
        "registry = types.SimpleNamespace(register=print)\n"
        "context = types.SimpleNamespace(pythonExec='python3')\n"
        "made = types.SimpleNamespace(sparkContext=context, dataSource=registry)\n"
        "print(spark_ext.register(made).sparkContext.pythonExec)"
    )
    said = run(path, code).stdout.split("\n")
    assert "RocketmqSource" in said[0]
    assert said[1] == sys.executable


def test_a_new_session_starts_spark_with_this_python(path):
    """Its workers take the name from the environment that the virtual machine is started with."""
    code = (
        "import os, types, spark_ext\n"
        "class Builder:\n"
        "    def getOrCreate(self):\n"
        "        print(os.environ['PYSPARK_PYTHON'])\n"
        "        registry = types.SimpleNamespace(register=print)\n"
        "        context = types.SimpleNamespace()\n"
        "        return types.SimpleNamespace(sparkContext=context, dataSource=registry)\n"
        "spark = spark_ext.session(Builder())\n"
        "print(spark.sparkContext.pythonExec)"
    )
    said = run(path, code).stdout.split("\n")
    assert (said[0], said[2]) == (sys.executable, sys.executable)
    assert "RocketmqSource" in said[1]


def sentence(path: str, code: str = "import spark_ext; spark_ext.session()", **more: str) -> str:
    """The error of a script: it must be all that Spark's side says."""
    done = run(path, code, **more)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) < 12, done.stderr
    return done.stderr.splitlines()[-1]


def test_a_chosen_python_without_the_package_is_told(path):
    said = sentence(path, PYSPARK_PYTHON="python3")
    assert "PYSPARK_PYTHON is 'python3', which cannot run the format (ModuleNotFoundErr" in said
    assert f"set PYSPARK_PYTHON={sys.executable} before the session starts" in said


def test_a_chosen_python_that_is_not_there_is_told(path):
    assert "PYSPARK_PYTHON is '/none/python', which is not on this host" in sentence(
        path, PYSPARK_PYTHON="/none/python"
    )


def test_another_version_of_python_is_told(path, tmp_path):
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho 3.99\n")
    other.chmod(0o755)
    assert "which is Python 3.99, while this script runs in" in sentence(
        path, PYSPARK_PYTHON=str(other)
    )


def test_a_machine_without_java_is_told(tmp_path):
    said = sentence(str(tmp_path), JAVA_HOME="")
    assert "Spark needs Java, and there is no 'java' on the path: install Java 17" in said
    assert "JAVA_HOME is /none, which does not run" in sentence(str(tmp_path), JAVA_HOME="/none")


def test_an_old_java_is_told(tmp_path):
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019' >&2\n")
    java.chmod(0o755)
    assert "is Java 11, too old for Spark" in sentence(str(tmp_path), JAVA_HOME="")


@pytest.mark.parametrize("name", ["pyspark", "pyarrow", "numpy"])
def test_a_missing_package_is_told(path, name):
    code = (
        "import importlib.util as u; found = u.find_spec\n"
        f"u.find_spec = lambda name, *a: None if name == {name!r} else found(name, *a)\n"
        "import spark_ext; spark_ext.session()"
    )
    said = sentence(path, code)
    assert f"cannot import {name}: pip install 'rocketmq-pystore[spark]'" in said


def test_an_old_pyspark_is_told(path):
    code = "import pyspark; pyspark.__version__ = '3.5.1'; import spark_ext; spark_ext.session()"
    assert "PySpark 3.5.1 is too old for format('rocketmq'), which needs 4.1" in sentence(
        path, code
    )
