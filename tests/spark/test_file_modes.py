"""Files that queries leave beside a store have its rights: bodies, topics and groups are not for
every user of the machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pystore
from pystore.files import FILE_MODE
from spark_ext import batch, sink
from spark_ext.groups import commit_to_group
from spark_ext.ledger import CommitEntry, Ledger
from spark_ext.options import parse_write
from spark_ext.plan import Part
from tests.spark.test_sink import spooled
from tests.spark.test_stream import reader_of


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(*paths: Path) -> set[int]:
    """Of files; what is a folder has the bits to enter it besides."""
    found = [p for path in paths for p in ([path, *path.rglob("*")] if path.is_dir() else [path])]
    assert found
    return {p.stat().st_mode & (0o666 if p.is_dir() else 0o777) for p in found}


def test_offsets_of_a_group_that_are_left_beside(make):
    path = make({"t": [1]})
    (path / "lock").unlink()
    assert commit_to_group(str(path), "g", {("t", 0): 1})
    assert modes(path / "lock") == {FILE_MODE}
    with pystore.open(path):
        assert not commit_to_group(str(path), "g", {("t", 0): 1})
    assert json.loads((path / "spark" / "groups" / "g.json").read_text())
    assert modes(path / "spark") == {FILE_MODE}


def test_the_ledger_of_commits(store_path):
    Ledger(store_path).put(CommitEntry("job", 0, False, 0, 1, ()))
    assert modes(store_path / "spark") == {FILE_MODE}


def test_the_state_of_a_stream(make, tmp_path):
    state = tmp_path / "states" / "state.json"
    reader_of(make({"t": [1]}), stateFile=state).initialOffset()
    assert modes(state.parent) == {FILE_MODE}


def test_spools(store_path):
    options = parse_write({"path": str(store_path), "topic": "t"})
    spooled(options, "job", 0, ["a"])
    assert modes(sink._spool_root(options)) == {FILE_MODE}


def test_reports_of_damage(tmp_path):
    counts = batch._Counts(Part("/store", "broker-a"))
    counts.add(1, 2)
    counts.tell(str(tmp_path / "reports"))
    assert modes(tmp_path / "reports") == {FILE_MODE}
