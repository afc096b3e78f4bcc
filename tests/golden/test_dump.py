"""`pystore dump --json` prints what Apache's own store prints of the same folder."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from pystore.cli import main

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("name", ["normal-exit", "killed"])
def test_dump_equals_the_reference(
    name: str, golden: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Line by line and letter by letter, without recovering the store: the dump only reads.

    The reference was told the file sizes; here they are taken from the files.
    """
    with lzma.open(HERE / f"{name}.records.jsonl.xz", "rt", encoding="ascii") as text:
        expected = [line.rstrip("\n") for line in text if not line.startswith('{"at":"key"')]
    store = golden(name)
    before = {p: p.stat().st_mtime_ns for p in store.rglob("*")}
    assert main(["dump", str(store), "--json"]) == 0
    printed = capsys.readouterr().out.splitlines()
    for number, (want, got) in enumerate(zip(expected, printed, strict=False), 1):
        assert want == got, f"line {number}"
    assert len(expected) == len(printed)
    assert {p: p.stat().st_mtime_ns for p in store.rglob("*")} == before
