"""Queues that somebody took units away from after a broker had closed the store: Java's broker
notes nowhere how far they reached, so what the log holds is what counts."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import storeview

import pystore

UNIT = 20
Damage = Callable[[Path], object]


def _files(queue: Path) -> list[Path]:
    return sorted(queue.iterdir())


def _zero(file: Path, start: int, end: int) -> None:
    with file.open("r+b") as out:
        out.seek(start)
        out.write(bytes(end - start))


def gone(queue: Path) -> None:
    shutil.rmtree(queue)


def emptied(queue: Path) -> None:
    for file in _files(queue):
        file.write_bytes(b"")


def shortened(queue: Path) -> None:
    file = _files(queue)[-1]
    file.write_bytes(file.read_bytes()[: 5 * UNIT])


def zeros(queue: Path) -> None:
    for file in _files(queue):
        _zero(file, 0, file.stat().st_size)


def end_zeroed(queue: Path) -> None:
    file = _files(queue)[-1]
    _zero(file, UNIT, file.stat().st_size)


def swapped(queue: Path) -> None:
    """Another unit of the same queue stands where one stood."""
    file = _files(queue)[0]
    data = file.read_bytes()
    file.write_bytes(data[:UNIT] + data[:UNIT] + data[2 * UNIT :])


def exchanged(queue: Path) -> None:
    """Of two queues, so that no unit of the store is missing."""
    beside = queue.parents[1] / "beside"
    other = next(p for p in queues_of(queue.parents[2]) if p != queue)
    for old, new in ((queue, beside), (other, queue), (beside, other)):
        old.rename(new)


def last_file_exchanged(queue: Path) -> None:
    mine, other = _files(queue)[-1], _files(queue.parent / "0")[-1]
    data = mine.read_bytes()
    mine.write_bytes(other.read_bytes())
    other.write_bytes(data)


DAMAGES = (gone, emptied, shortened, zeros, end_zeroed, swapped, exchanged)


def queues_of(root: Path) -> list[Path]:
    return sorted(p for p in (root / "consumequeue").glob("*/*") if any(p.iterdir()))


def expected_of(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return storeview.of_dump(records)


@pytest.mark.parametrize("kind", [pystore.Reader, pystore.open])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_queue_that_lacks_units_shows_what_the_log_holds(
    damage: Damage, kind: Any, golden: Any, golden_records: Any, rng: Any
):
    root = golden("normal-exit")
    long = [q for q in queues_of(root) if _files(q)[0].read_bytes()[: 4 * UNIT].count(0) < 60]
    damage(rng.choice(long))
    with kind(root) as store:
        got = storeview.view(store)
    assert storeview.explain(expected_of(golden_records("normal-exit")), got) == ""


def test_every_queue_may_be_gone_alone(golden: Any, golden_records: Any, tmp_path: Path):
    """Those of system topics, too."""
    root = golden("normal-exit")
    expected = expected_of(golden_records("normal-exit"))
    assert len(queues_of(root)) > 10
    for queue in queues_of(root):
        kept = tmp_path / "kept"
        queue.rename(kept)
        with pystore.Reader(root) as reader:
            assert storeview.explain(expected, storeview.view(reader)) == "", queue
        kept.rename(queue)


def test_a_topic_whose_queues_are_gone_is_made_again(golden: Any, golden_records: Any):
    root = golden("normal-exit")
    shutil.rmtree(root / "consumequeue" / "golden1_ordered")
    with pystore.open(root) as store:
        got = storeview.view(store)
        assert store.report.offsets_clamped == 0
    assert storeview.explain(expected_of(golden_records("normal-exit")), got) == ""


def test_groups_keep_their_offsets_where_their_queues_are_gone(golden: Any):
    root = golden("normal-exit")
    with pystore.Reader(root) as reader:
        offsets = [o for o in reader.metadata.offsets.all() if o.offset > 0]
    for name in {o.topic for o in offsets}:
        shutil.rmtree(root / "consumequeue" / name)
    with pystore.open(root) as store:
        assert store.report.offsets_clamped == 0
        kept = [o for o in store.metadata.offsets.all() if o.offset > 0]
    assert kept == offsets


def test_a_topic_that_java_deleted_stays_away(golden: Any, golden_records: Any):
    """Its queues and its row are gone together; what the log has of it is in the report."""
    root = golden("normal-exit")
    shutil.rmtree(root / "consumequeue" / "golden1_plain")
    config = root / "config" / "topics.json"
    table = json.loads(config.read_text())
    del table["topicConfigTable"]["golden1_plain"]
    config.write_text(json.dumps(table))
    plain = [r for r in golden_records("normal-exit")
             if r["at"] == "msg" and r["topic"] == "golden1_plain"]  # fmt: skip
    with pystore.open(root) as store:
        assert "golden1_plain" not in store.topics()
        told = [item for item in store.report.items if item.what == "commitlog"]
        assert [item.records for item in told if item.action is pystore.Action.SKIPPED] == [
            len(plain)
        ]


def test_a_note_from_before_java_ran_does_not_bring_back_what_java_deleted(tmp_path: Path):
    """Its broker deleted a topic after our close, and was killed: what the note names is old."""
    root = tmp_path / "store"
    with pystore.open(root, mappedFileSizeCommitLog=65536) as store:
        store.put_many("gone", [b"old"] * 50, queue=0)
        for _ in range(3):
            store.put("others", bytes(40_000), queue=0)
    with (root / "checkpoint").open("r+b") as file:  # recovery begins at the last segment
        times = struct.unpack(">3q", file.read(24))
        file.seek(0)
        file.write(struct.pack(">3q", *(time + 10_000 for time in times)))
    (root / "abort").touch()
    shutil.rmtree(root / "consumequeue" / "gone")
    config = root / "config" / "topics.json"
    table = json.loads(config.read_text())
    del table["topicConfigTable"]["gone"]
    config.write_text(json.dumps(table))
    with pystore.open(root) as store:
        assert store.topics() == ["others"]
        assert [i.records for i in store.report.items if i.action is pystore.Action.SKIPPED] == [50]


def test_the_first_open_notes_what_it_found(golden: Any):
    """The next one need not look again, and its own note names what is lost later."""
    root = golden("normal-exit")
    pystore.open(root).close()
    gone(root / "consumequeue" / "golden1_keys" / "0")
    with pystore.open(root) as store:
        assert sum(q.max_offset for q in store.queues("golden1_keys")) > 0
        whys = {item.why for item in store.report.items}
    assert "the queue is missing" in whys


@pytest.mark.parametrize("damage", [*DAMAGES, last_file_exchanged])
def test_a_store_whose_note_is_gone_shows_what_the_log_holds(damage: Damage, tmp_path: Path):
    root = tmp_path / "store"
    sizes = {"mappedFileSizeCommitLog": 65536, "mappedFileSizeConsumeQueue": 100 * UNIT}
    with pystore.open(root, **sizes) as store:
        for n in range(1200):
            store.put("orders", b"x" * (n % 90), queue=n % 3)
            store.put("others", b"y", queue=0)
        before = storeview.delivered(store)
    (root / "queueEnds").unlink()
    damage(root / "consumequeue" / "orders" / "1")
    with pystore.Reader(root) as reader:
        assert storeview.delivered(reader) == before
    with pystore.open(root) as store:
        assert storeview.delivered(store) == before


def test_a_topic_that_was_made_again_keeps_its_new_life(tmp_path: Path):
    """Java counts from 0 again, and leaves the earlier messages in the log."""
    root = tmp_path / "store"
    with pystore.open(root) as store:
        store.put_many("orders", [b"old"] * 50, queue=0)
        store.put("others", b"y", queue=0)
        store.delete_topic("orders")
        store.put_many("orders", [b"new"] * 20, queue=0)
        before = storeview.delivered(store)
    (root / "queueEnds").unlink()
    (root / "deletedTopics").unlink()
    with pystore.open(root) as store:
        assert storeview.delivered(store) == before
