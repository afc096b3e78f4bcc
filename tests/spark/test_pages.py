"""The documents of Spark do what they say: every block of each page runs, in the shared session.

`make test-cluster` runs them whole. The page of the jobs is a dozen of them one after the other:
each job is in test_jobs.py, and here its line on the page is taken as it stands. Of the other page
`make test` leaves out the block that keeps states, which takes as long as all others.
"""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pystore.cli import main
from spark_ext.jobs.frame import Job
from tests.docs.run_page import Block, blocks_of, run_page
from tests.spark.test_job_faults import JOBS

DOCS = Path(__file__).resolve().parents[2] / "docs"
JOBS_PAGE = DOCS / "spark-jobs.md"
STATES = "transformWithState"


@pytest.fixture
def work(spark: Any, golden: Callable[[str], Path], tmp_path: Path) -> Iterator[Path]:
    """The directory in which Spark runs, so that a name of a file is one for all of its processes;
    `store` and `crashed` in it are a Java broker's stores."""
    folder = Path(spark._jvm.java.lang.System.getProperty("user.dir"))
    assert folder.name == "spark-runs-here"
    golden("normal-exit").rename(folder / "store")
    golden("killed").rename(folder / "crashed")
    yield folder
    for left in folder.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()


@pytest.fixture
def own_settings(spark: Any) -> Iterator[None]:
    """What a page sets is unset after it."""
    before = spark.conf.getAll
    yield
    for name, value in spark.conf.getAll.items():
        if name not in before:
            spark.conf.unset(name)
        elif value != before[name]:
            spark.conf.set(name, before[name])


def _pages() -> Iterator[Any]:
    for path in sorted(DOCS.glob("spark*.md")):
        yield pytest.param(path, None, id=path.name, marks=pytest.mark.long)
        if path != JOBS_PAGE:
            yield pytest.param(path, STATES, id=f"{path.name} without states")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(("page", "but"), list(_pages()))
def test_its_blocks_run(
    page: Path, but: str | None, work: Path, own_settings: None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as in an interpreter
        run_page(page, but)


class Begun(BaseException):
    """A job has all its arguments and would begin."""


def _lines(block: Block) -> list[list[str]]:
    """The arguments of each `pystore` of a block, in a shell or by main()."""
    if block.language == "console":
        words = [shlex.split(line) for line in block.text.splitlines()]
        return [line[2:] for line in words if line[:2] == ["$", "pystore"]]
    return [
        ast.literal_eval(call.args[0])
        for call in ast.walk(ast.parse(block.text))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "main"
    ]


def test_the_line_of_each_job_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(job: Job, session: Any, name: str, *_: object) -> None:
        raise Begun(name)

    monkeypatch.setattr(Job, "__init__", begin)
    begun = []
    for block in blocks_of(JOBS_PAGE):
        for line in _lines(block) if block.runs else ():
            with pytest.raises(Begun) as job:
                main(line)
            begun.append(str(job.value))
    assert {*begun} == {*JOBS}
