"""Stores on HDFS, by WebHDFS, which needs no native library: Hadoop's own servers in one process,
fetched by Maven."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import BOUND_S

pytest.importorskip("pyspark")
pytest.importorskip("requests")
fsspec = pytest.importorskip("fsspec")

from spark_ext import stores  # noqa: E402
from spark_ext.errors import SourceError  # noqa: E402
from tests.spark.losses import damage  # noqa: E402
from tests.spark.test_remote import COUNT, cache, log, rows  # noqa: E402, F401

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / "build" / "peers" / "hdfs"
POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>test</groupId><artifactId>hdfs</artifactId><version>1</version><dependencies>{}
</dependencies></project>
"""
DEPENDENCY = """<dependency><groupId>{}</groupId><artifactId>{}</artifactId>
<version>{}</version><type>{}</type></dependency>
"""
#: hadoop-client-minicluster would be one jar, but its WebHDFS answers 404 to everything: Jersey's
#: services are not found under their relocated names.
NEEDED = (
    *(("org.apache.hadoop", name, "3.4.1", kind)
      for name in ("hadoop-common", "hadoop-hdfs") for kind in ("jar", "test-jar")),
    ("org.apache.hadoop", "hadoop-hdfs-client", "3.4.1", "jar"),
    ("org.mockito", "mockito-core", "4.11.0", "jar"),
    ("junit", "junit", "4.13.2", "jar"),
)  # fmt: skip


def fetch() -> None:
    """Hadoop's jars, once."""
    if (JARS / "ready").exists():
        return
    if shutil.which("mvn") is None or shutil.which("javac") is None:
        pytest.skip("Maven or a Java compiler is not installed")
    JARS.mkdir(parents=True, exist_ok=True)
    needed = "".join(DEPENDENCY.format(*each) for each in NEEDED)
    (JARS / "pom.xml").write_text(POM.format(needed))
    line = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
    done = subprocess.run(
        line, cwd=JARS, capture_output=True, text=True, timeout=2 * BOUND_S, check=False
    )
    if done.returncode:
        pytest.skip(f"Maven cannot fetch Hadoop: {done.stdout[-200:]}")
    (JARS / "ready").touch()


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """hdfs(folder, name): the folder's files in HDFS; the address."""
    fetch()
    folder = tmp_path_factory.mktemp("hdfs")
    source = Path(__file__).with_name("Hdfs.java")
    subprocess.run(["javac", "-cp", f"{JARS}/lib/*", "-d", folder, source], check=True)
    line = ["java", "-Xmx256m", "--add-opens=java.base/java.lang=ALL-UNNAMED",
            "-cp", f"{folder}:{JARS}/lib/*", "Hdfs", str(folder / "data")]  # fmt: skip
    with (
        (folder / "log").open("wb") as errors,
        subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as server,
    ):
        assert server.stdin is not None and server.stdout is not None
        said = server.stdout.readline().split()
        assert said[:1] == ["port"], (folder / "log").read_text()[-2000:]
        fs = fsspec.filesystem("webhdfs", host="127.0.0.1", port=int(said[1]))

        def upload(path: Path, name: str) -> str:
            for file in sorted(p for p in path.rglob("*") if p.is_file()):
                target = f"/{name}/{file.relative_to(path)}"
                fs.makedirs(target.rpartition("/")[0], exist_ok=True)
                fs.put_file(str(file), target)
            return f"webhdfs://127.0.0.1:{said[1]}/{name}"

        yield upload
        server.stdin.close()
        server.wait(BOUND_S)


def test_the_rows_are_those_of_the_folder(hdfs, log):  # noqa: F811
    url = hdfs(log, "same")
    assert rows(url) == rows(log)
    stores._cache.clear()
    given = {"topic": "t", "startingOffsets": '{"t": {"0": 1500}}', "endingOffsets": "latest"}
    assert rows(url, **given) == rows(log, **given)


def test_a_store_that_changed_has_a_mirror_of_its_own(hdfs, log):  # noqa: F811
    """Of the same sizes, too: the damage is in the second copy alone."""
    import pystore

    with pystore.Reader(log) as reader:
        at = reader.units("t", 0, 7, 1)[0][0]
    url = hdfs(log, "changed")
    assert rows(url, topic="t").num_rows == 2 * COUNT
    damage(log, at)
    assert hdfs(log, "changed") == url
    with pytest.raises(SourceError, match=f"physical offset {at} cannot be read"):
        rows(url, topic="t")
    assert rows(url, topic="t", failOnDataLoss="false").num_rows == 2 * COUNT - 1
