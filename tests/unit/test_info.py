"""``pystore info`` of a store with more offsets than anybody reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pystore
from pystore.cli import main


def test_text_shows_a_thousand_offsets_and_says_how_many_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pystore.open(tmp_path / "s") as store:
        for i in range(1200):
            store.metadata.offsets.commit(f"group-{i}", "t", 0, 0)
    assert main(["info", str(tmp_path / "s")]) == 0
    said = capsys.readouterr()
    assert said.out.count("group-") == 1000
    assert "200 more offsets" in said.out + said.err
    assert main(["info", str(tmp_path / "s"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["consumer offsets"]) == 1200
