"""What the next open of a crashed store mends is not damage; what it does not mend is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from damages import SIZES

import pystore
from pystore.audit import verify
from pystore.audit.findings import Severity

DERIVED = ("index", "consumequeue/t/0", "consumequeue/t/1", "commitlog")


def fill(store: pystore.Store, begin: int, count: int = 1500) -> None:
    for queue in (0, 1):
        keys = [f"k{begin + i}-{queue}" for i in range(count)]
        store.put_many("t", [b"x" * 100] * count, queue=queue, keys=keys)


def copied(root: Path, into: Path, *first: str) -> Path:
    """A copy of a live store: these folders as they were before many messages, the rest after."""
    with pystore.open(root, **SIZES) as store:
        store.metadata.topics.put(pystore.TopicConfig("t", 2, 2))
        fill(store, 0)
        store.flush()
        for name in first:
            shutil.copytree(root / name, into / name)
        fill(store, 1500)
        store.flush()
        for name in DERIVED:
            if name not in first:
                shutil.copytree(root / name, into / name)
        (into / "abort").touch()
    return into


@pytest.mark.parametrize("first", DERIVED)
def test_a_copy_of_a_live_store_is_sound_when_the_next_open_mends_it(first: str, tmp_path: Path):
    into = copied(tmp_path / "live", tmp_path / "copy", first)
    seen = verify(into)
    assert seen.errors == []
    with pystore.open(into, **SIZES):
        pass
    assert verify(into).findings == []


def test_an_index_file_without_a_size_is_no_damage_after_a_kill(tmp_path: Path):
    into = copied(tmp_path / "live", tmp_path / "copy")
    (into / "index" / "29991231235959999").touch()
    found = [f for f in verify(into).findings if f.kind == "index-size"]
    assert [f.severity for f in found] == [Severity.WARNING]
    with pystore.open(into, **SIZES):
        pass
    assert verify(into).findings == []


def test_units_that_the_next_open_does_not_read_are_damage(tmp_path: Path):
    """The checkpoint says that all before the last segment was synced, so that nothing of it is
    written again."""
    into = copied(tmp_path / "live", tmp_path / "copy", "consumequeue/t/0")
    far = (1 << 62).to_bytes(8, "big")
    (into / "checkpoint").write_bytes(far * 3 + bytes(4096 - 24))
    seen = verify(into)
    assert "missing-units" in {f.kind for f in seen.errors}
    assert seen.next_step == f"pystore repair {into}"


def test_a_crashed_store_without_queues_names_one_mend(tmp_path: Path):
    into = copied(tmp_path / "live", tmp_path / "copy")
    shutil.rmtree(into / "consumequeue")
    shutil.rmtree(into / "index")
    seen = verify(into)
    assert seen.errors == []
    assert seen.next_step == "nothing: the next open mends it"
    assert not any("clean exit" in f.meaning for f in seen.findings)
    (into / "abort").unlink()
    seen = verify(into)
    assert seen.errors
    assert seen.next_step == f"pystore repair {into}"
