"""The ways to start a job, as docs/spark-jobs.md has them: each job by `spark-submit` and by
`python -m`, each in a virtual machine of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import BOUND_S

import pystore
from tests.spark.clusters import BRIEF, ROOT
from tests.spark.test_job_faults import JOBS, told, words

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]


def started(line: list[str], folder: Path) -> Any:
    """The report of a job that was started in a folder."""
    known = ("PATH", "JAVA_HOME", "LANG", "SPARK_CONF_DIR", "SPARK_LOCAL_IP")
    environment = {name: os.environ[name] for name in known if name in os.environ}
    done = subprocess.run(
        line, cwd=folder,
        env=environment | {"PYSPARK_PYTHON": sys.executable, "JAVA_TOOL_OPTIONS": BRIEF},
        capture_output=True, text=True, timeout=2 * BOUND_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("how", ["spark-submit", "python -m"])
@pytest.mark.parametrize("name", JOBS)
def test_a_job_says_the_same_however_it_is_started(run_job, busy, store_path, tmp_path, name, how):
    import pyspark

    store = busy(store_path)
    if name == "restore":
        for out in ("here", "there"):
            run_job("archive", store, tmp_path / out / "source")
    want = told(run_job(name, *words(name, store, tmp_path / "here")))
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    line = {
        "spark-submit": [str(submit), "--master", "local[2]", "--driver-memory", "768m",
                         str(ROOT / "spark_ext" / "jobs" / f"{name}.py")],
        "python -m": [sys.executable, "-m", f"spark_ext.jobs.{name}",
                      "--spark", "spark.driver.memory=768m"],
    }[how]  # fmt: skip
    given = [*words(name, store, tmp_path / "there"), "--json"]
    assert told(started([*line, *given], tmp_path)) == want
    if name == "restore":
        with pystore.Reader(tmp_path / "there" / "restore") as reader:
            assert reader.info().log_max > 0
