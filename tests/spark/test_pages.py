"""The documents of Spark do what they say: every block of each page runs, in the shared session."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.run_page import run_page

DOCS = Path(__file__).resolve().parents[2] / "docs"

pytestmark = [pytest.mark.spark, pytest.mark.slow]


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


@pytest.mark.parametrize("page", sorted(DOCS.glob("spark*.md")), ids=lambda page: page.name)
def test_its_blocks_run(
    page: Path, work: Path, own_settings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as in an interpreter
        run_page(page)
