"""Light queues of a store of RocketMQ 5.5.0 that was killed: as Java's own store sees them."""

from __future__ import annotations

import json
import lzma
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

import pystore
from pystore.audit import verify

HERE = Path(__file__).parent
Units = dict[str, list[tuple[int, int]]]


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    subprocess.run(["tar", "-C", tmp_path, "-xJf", HERE / "lite-killed.tar.xz"], check=True)
    return tmp_path / "lite-killed"


def java_sees() -> Units:
    """Offset and place of each unit, by light queue."""
    found: Units = defaultdict(list)
    with lzma.open(HERE / "lite-killed.records.jsonl.xz") as lines:
        rows = [json.loads(line) for line in lines]
    for row in rows:
        if "offset" in row and row["topic"].startswith("%LMQ%"):
            found[row["topic"]].append((row["offset"], row["phy"]))
    return found


def we_see(store: pystore.Store) -> Units:
    return {
        each.name: [(m.offset, m.physical_offset) for m in store.lights.read(each.name, 0, 64)]
        for each in store.lights.some(0)[0]
    }


def test_light_queues_are_as_java_sees_them_and_stay_so(killed: Path):
    wanted = java_sees()
    assert len(wanted) == 44
    assert verify(killed, deep=True).findings == []
    with pystore.open(killed) as store:
        assert not store.lights.is_on  # nobody has asked for them
        store.lights.begin()
        assert we_see(store) == wanted
        assert store.lights.skipped == 2  # ca,cb and d/e, which Java skips too
    assert verify(killed, deep=True).findings == []
    with pystore.open(killed) as store:
        assert we_see(store) == wanted
