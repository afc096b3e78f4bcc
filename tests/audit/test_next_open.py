"""What the next open of a crashed store mends is not damage; what it does not mend is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from damages import SIZES

import pystore
from pystore.audit import verify
from pystore.audit.findings import Severity
from pystore.repair import repair
from tests.museum import damage

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


def test_records_without_room_in_their_queue_are_promised_to_nobody(tmp_path: Path):
    """A compacted log: what is left of a queue claims offsets that so short a log has no room for.
    Those that have room are mended, and counted alone."""
    root = tmp_path / "store"
    with pystore.open(root, **SIZES) as store:
        store.put_many("t", [b"x" * 100] * 30, queue=0)
    for record in list(damage.records(root))[10:]:
        far = 1_000_000 + 37 * record.queue_offset
        damage.write(record.file, record.at + 20, far.to_bytes(8, "big"))
    shutil.rmtree(root / "consumequeue")
    damage.crash(root)
    seen = verify(root)
    assert seen.not_dispatched == 10
    assert [f.count for f in seen.findings if f.open_mends] == [10]
    with pystore.open(root, **SIZES) as store:
        assert [q.max_offset for q in store.queues("t")] == [10]
    assert {f.kind for f in verify(root).errors} == {"bad-queue-offset"}


def test_nothing_is_promised_of_an_open_that_is_refused(tmp_path: Path):
    into = copied(tmp_path / "live", tmp_path / "copy", "consumequeue/t/0")
    assert any(f.open_mends for f in verify(into).findings)
    (into / "commitlog" / "notes").write_text("no segment")
    assert not any(f.open_mends for f in verify(into).findings)
    with pytest.raises(pystore.StrayFile):
        pystore.open(into, **SIZES)
    repair(into, **SIZES)
    assert verify(into).sound
