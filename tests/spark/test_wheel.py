"""The wheel with its extra `spark`, and nothing else: what a user installs must read and write.

`make test-wheel` shows the same with what an index gives; this test needs no index.
"""

from __future__ import annotations

import importlib.metadata as metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
NOT_SOURCE = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "tests")

READS_AND_WRITES = """
import json, sys
from pyspark.sql import SparkSession
import numpy, pyarrow, pystore, spark_ext

site, store = sys.argv[1:]
assert pystore.__file__.startswith(site), pystore.__file__
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.log.level", "OFF").getOrCreate())
rows = spark.sql("SELECT * FROM VALUES ('a', 3), ('b', NULL), ('c', NULL) AS t(body, delayLevel)")
conf = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 6000}
(rows.write.format("rocketmq").mode("append").option("topic", "t")
 .option("storeConf", json.dumps(conf)).save(store))
read = spark.read.format("rocketmq").option("topic", "t").load(store)
print("read", sorted(bytes(row.body).decode() for row in read.collect()))
"""


def wanted(requirements: list[str], extra: str, found: dict[str, metadata.Distribution]) -> None:
    """Adds what these requirements install, and what those require, to `found`."""
    from packaging.requirements import Requirement

    for text in requirements:
        one = Requirement(text)
        if one.marker is not None and not one.marker.evaluate({"extra": extra}):
            continue
        name = re.sub(r"[-_.]+", "-", one.name).lower()
        if name in found or name == "rocketmq-pystore":
            continue
        found[name] = metadata.distribution(name)
        wanted(found[name].requires or [], "", found)


def requirements_of(wheel: Path, extra: str) -> list[str]:
    """Of the wheel with an extra; one that names another extra of the wheel means that one's."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        lines = archive.read(name).decode().splitlines()
    field = "Requires-Dist: "
    given = [line.removeprefix(field) for line in lines if line.startswith(field)]
    found = [one for one in given if "extra ==" not in one]
    for one in given:
        if re.search(rf"extra == ['\"]{extra}['\"]", one):
            own = re.match(r"rocketmq-pystore\[(\w+)\]", one)
            found += requirements_of(wheel, own[1]) if own else [one.split(";")[0]]
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with the wheel and what its metadata asks for."""
    made = tmp_path_factory.mktemp("wheel")
    source = shutil.copytree(ROOT, made / "source", ignore=NOT_SOURCE)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
         "-w", made, source],
        check=True, timeout=600,
    )  # fmt: skip
    (wheel,) = made.glob("*.whl")
    packages = made / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    found: dict[str, metadata.Distribution] = {}
    wanted(requirements_of(wheel, "spark"), "", found)
    for one in found.values():
        for top in {file.parts[0] for file in one.files or () if ".." not in file.parts}:
            if not (packages / top).exists() and top != "__pycache__":
                (packages / top).symlink_to(Path(str(one.locate_file(top))).resolve())
    return packages


def test_a_wheel_alone_reads_and_writes(site, tmp_path):
    if shutil.which("java") is None:
        pytest.skip("Java is not installed")
    program = tmp_path / "program.py"
    program.write_text(READS_AND_WRITES)
    # Without the site of this environment: only what the wheel asks for can be imported.
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    ours = {name: text for name, text in os.environ.items() if name[:5] not in ("PYTHO", "SPARK")}
    environment = ours | {
        "PYTHONPATH": str(site), "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(bare), "PYSPARK_DRIVER_PYTHON": str(bare),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-S", program, site, tmp_path / "store"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "read ['b', 'c']" in done.stdout, (done.stdout + done.stderr)[-3000:]
    assert not (tmp_path / "store.spool").exists()
