"""Segments of other generations: a file of the log that was restored from an older backup.

Two logs share their beginning and were written apart from there on; one segment of the one stands
in the other. Its records are whole, and claim queue offsets that records of the other have."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import storeview

import pystore
from pystore.audit import Audit, verify
from pystore.audit.core import CoreAudit
from pystore.audit.kinds import SameOffsetFinding
from pystore.audit.parts import SpreadAudit, audit_part
from pystore.format.records import check_record
from pystore.repair import rebuild, repair
from pystore.repair.census import found_in
from tests.museum import damage

SIZES: dict[str, Any] = {
    "mappedFileSizeCommitLog": 16 << 10, "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 64, "maxIndexNum": 200,
}  # fmt: skip
TOPICS, QUEUES = ("red", "blue"), 2


def fill(store: pystore.Store, rng: random.Random, count: int) -> None:
    for i in range(count):
        body = b"x" * rng.randrange(20, 300)
        store.put(rng.choice(TOPICS), body, queue=rng.randrange(QUEUES), keys=f"k{i}")


def delivered(root: Path) -> set[tuple[str, int, int, int]]:
    """Topic, queue, offset and place of what the queues deliver after an open."""
    with pystore.open(root) as store:
        there = storeview.delivered(store)
    return {(*key, *place) for key, places in there.items() for place in places}


def restored(tmp_path: Path, seed: int, number: int, *, crashed: bool = False) -> Path:
    """A store whose segment of this number is of another generation."""
    rng = random.Random(seed)
    other, root = tmp_path / "other", tmp_path / "store"
    with pystore.open(other, **SIZES) as store:
        fill(store, rng, 120)
    shutil.copytree(other, root)
    for path in (other, root):
        with pystore.open(path, **SIZES) as store:
            fill(store, rng, 160)
    name = damage.segments(root)[number].name
    shutil.copy(other / "commitlog" / name, root / "commitlog" / name)
    if crashed:
        damage.crash(root)
    return root


@pytest.mark.parametrize("mend", [repair, rebuild])
@pytest.mark.parametrize(("seed", "number"), [(0, 3), (3, 3), (4, 2), (5, 3)])
def test_a_mend_delivers_what_an_open_delivers(
    tmp_path: Path, seed: int, number: int, mend: Callable[[Path], Any]
):
    root = restored(tmp_path, seed, number)
    before = verify(root)
    assert "same-offset" in before.counts()
    shutil.copytree(root, tmp_path / "opened")
    opened = delivered(tmp_path / "opened")
    mend(root)
    assert opened - delivered(root) == set()


def lose_units(root: Path, physical: int) -> None:
    """Units of records from here on never reached the disk."""
    (root / "queueEnds").unlink(missing_ok=True)
    for file in (root / "consumequeue").rglob("0*"):
        data = bytearray(file.read_bytes() if file.is_file() else b"")
        for at in range(0, len(data), 20):
            if int.from_bytes(data[at : at + 8], "big") >= physical:
                data[at : at + 20] = bytes(20)
        if data:
            file.write_bytes(data)


def whole(root: Path) -> set[tuple[str, int, int, int]]:
    """Topic, queue, offset and place of each record of the log."""
    found = set()
    for segment in damage.segments(root):
        with segment.open("rb") as file:
            for each in found_in(file):
                head = check_record(each.record)
                assert head is not None
                topic = each.record[head.topic_at : head.topic_at + head.topic_len]
                name = bytes(topic).decode()
                if name in TOPICS:
                    found.add((name, head.queue, head.queue_offset, each.place))
    return found


def spread(*given: Any) -> SpreadAudit:
    def run(context: Any, parts: Any) -> Any:
        return (audit_part(context, part) for part in parts)

    return SpreadAudit(*given, run=run, most=3)


@pytest.mark.parametrize("core", [CoreAudit, spread])
@pytest.mark.parametrize(("seed", "number"), [(0, 2), (1, 3), (2, 3), (5, 3)])
def test_what_the_next_open_leaves_in_no_queue_is_named_before(
    tmp_path: Path, seed: int, number: int, core: Callable[..., CoreAudit]
):
    """No unit says which of two records has an offset: the first one in the log has it."""
    root = restored(tmp_path, seed, number, crashed=True)
    lose_units(root, int(damage.segments(root)[number].name))
    seen = verify(root, core=core)
    named = {
        (f.topic, f.queue, f.start, f.hidden): f.delivered
        for f in seen.findings if isinstance(f, SameOffsetFinding)
    }  # fmt: skip
    there, got = whole(root), delivered(root)
    assert there - got == set(named)
    assert not seen.sound
    assert {(*key[:3], place) for key, place in named.items()} <= got


def hidden(seen: Audit) -> set[tuple[str | None, int | None, int]]:
    """Topic, queue and place of the records that are in no queue, as an audit names them."""
    found = [f for f in seen.findings if isinstance(f, SameOffsetFinding)]
    return {(f.topic, f.queue, f.hidden) for f in found}


@pytest.mark.parametrize(
    ("seed", "number", "state"),
    [
        (0, 3, "closed"),  # offsets beyond those of later segments
        (4, 3, "crashed"),
        (12, 3, "closed"),  # which a pass that fills holes meets again
        (1, 3, "lost"),  # offsets for which the log has no room
        (4, 4, "lost"),
    ],
)
def test_one_repair_of_two_generations_is_enough(
    tmp_path: Path, seed: int, number: int, state: str
):
    """Every record is in its queue, or is named as one that is in none."""
    root = restored(tmp_path, seed, number, crashed=state != "closed")
    if state == "lost":
        lose_units(root, int(damage.segments(root)[number].name))
    there = {(*key[:2], key[3]) for key in whole(root)}
    named = hidden(verify(root))
    done = repair(root)
    assert done.after is not None
    assert {f.kind for f in done.after.errors} == {"same-offset"}
    assert hidden(done.after) == named
    assert there - {(*key[:2], key[3]) for key in delivered(root)} == named
    assert hidden(verify(root)) == named


def test_a_last_record_whose_offset_is_not_believed_is_named_and_mended(tmp_path: Path):
    root = tmp_path / "store"
    with pystore.open(root, **SIZES) as store:
        fill(store, random.Random(1), 120)
    last = list(damage.records(root))[-1]
    damage.write(last.file, last.at + 20, (last.queue_offset + 200).to_bytes(8, "big"))
    damage.crash(root)
    lose_units(root, last.physical)
    assert "bad-queue-offset" in verify(root).counts()
    done = repair(root)
    assert done.after is not None
    assert done.after.sound
    assert {key[3] for key in whole(root)} - {key[3] for key in delivered(root)} == set()
