"""An index of RocketMQ 5.5.0, which leads to tags, too: read, kept, and written when told."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pystore
from pystore.audit import verify
from pystore.audit.arrays import entries
from pystore.repair import rebuild, repair
from tests.museum import damage

ARCHIVE = Path(__file__).with_name("lite-killed.tar.xz")


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A store of 5.5.0 that was killed: 432 entries, about half of them of tags."""
    subprocess.run(["tar", "-C", tmp_path, "-xJf", ARCHIVE], check=True)
    return tmp_path / "lite-killed"


def entries_of(root: Path) -> list[tuple[int, int]]:
    """Hash and place of each entry, in order."""
    found = []
    for path, rows in entries(root):
        count = int.from_bytes(path.read_bytes()[36:40], "big")
        found += [(int(row["hash"]), int(row["physical"])) for row in rows[1:count]]
    return found


def tagged(store: pystore.Store) -> Counter[tuple[str, str]]:
    return Counter((m.topic, m.tags) for m in store.messages() if m.tags)


def opened(root: Path) -> None:
    pystore.open(root).close()


@pytest.mark.parametrize("mend", [opened, repair, rebuild])
def test_entries_of_tags_are_kept(killed: Path, mend: Callable[[Path], Any]):
    before = entries_of(killed)
    assert len(before) == 432
    mend(killed)
    assert entries_of(killed) == before
    assert verify(killed).findings == []


def test_entries_of_tags_are_written_again_as_they_were(killed: Path):
    """Those that are left tell that those that are lost led to tags, too."""
    before = entries_of(killed)
    (index,) = (killed / "index").iterdir()
    damage.write(index, 36, (200).to_bytes(4, "big"))  # the header lost the newest entries
    opened(killed)
    assert entries_of(killed) == before


def test_tags_lead_to_their_messages(killed: Path):
    with pystore.open(killed) as store:
        for (topic, tags), count in tagged(store).items():
            found = store.query(topic, tags, tags=True)
            assert {(m.topic, m.tags) for m in found} == {(topic, tags)}
            assert len(found) == count
            assert len(store.query(topic, tags)) == 0


def test_no_entry_of_tags_is_a_ghost(killed: Path):
    (killed / "abort").unlink(missing_ok=True)
    assert "index-ghosts" not in verify(killed).counts()


@pytest.mark.parametrize("told", [False, True])
def test_tags_are_put_when_that_is_told(store_path: Path, told: bool):
    with pystore.open(store_path, indexTagsEnable=told) as store:
        for i in range(20):
            store.put("T", b"x", tags="ab"[i % 2], keys=f"k{i}")
        assert len(store.query("T", "a", tags=True)) == (10 if told else 0)
        assert len(store.query("T", "k3")) == 1
    assert verify(store_path).findings == []
    with pystore.open(store_path) as store:  # it keeps what it has
        store.put("T", b"x", tags="a")
        assert len(store.query("T", "a", tags=True)) == (11 if told else 0)
    rebuild(store_path)
    with pystore.open(store_path) as store:
        assert len(store.query("T", "a", tags=True)) == (11 if told else 0)
