"""docs/arrow.md does what it says: its code is run as it stands there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pystore

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "arrow.md"
AMOUNTS = {"paid": [10.0, 20.0, 30.0], "open": [5.0, 7.0]}


def examples(heading: str) -> list[str]:
    """The code of one section of the page, block by block."""
    text = PAGE.read_text("utf-8")
    section = re.split(rf"^## {heading}$", text, flags=re.MULTILINE)[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """run(section) runs its blocks in one namespace, in a folder with a store of orders."""
    monkeypatch.chdir(tmp_path)
    with pystore.open("store", mappedFileSizeCommitLog=1 << 20) as store:
        for tag, amounts in AMOUNTS.items():
            for amount in amounts:
                store.put("orders", json.dumps({"amount": amount}), tags=tag)
    names: dict[str, Any] = {}
    opened = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[0]
    exec(opened, names)

    def section(heading: str) -> dict[str, Any]:
        for block in examples(heading):
            exec(block, names)
        return names

    yield section
    names["reader"].close()


def test_pyarrow(run: Any, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    names = run("pyarrow")
    assert names["table"].num_rows == 5
    assert names["table"].column_names == ["queueId", "queueOffset", "tags", "body"]
    with pystore.Reader("store") as reader:
        assert names["total"] == sum(m.size for m in reader.messages())
    assert pq.read_table("orders.parquet").num_rows == 5
    with pystore.Reader("copy") as copy:
        assert sorted(m.tags or "" for m in copy.messages()) == ["open"] * 2 + ["paid"] * 3


def test_polars(run: Any) -> None:
    pytest.importorskip("polars", reason="Polars is not installed")
    names = run("Polars")
    assert names["slowest"]["len"].to_list() == [2, 3]
    assert names["by_tag"].rows() == [("open", 6.0), ("paid", 20.0)]


def test_duckdb(run: Any) -> None:
    """In a process of its own: DuckDB complains at exit when other modules hold its types."""
    pytest.importorskip("duckdb", reason="DuckDB is not installed")
    opened = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[0]
    code = "\n".join(["import pyarrow as pa", opened, *examples("DuckDB"), "print(rows)"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["[('open', 6.0), ('paid', 20.0)]"], done.stderr
