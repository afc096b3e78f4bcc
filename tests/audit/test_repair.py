"""A repair brings back every message that is whole, can be undone, and can be interrupted."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import storeview
from damages import (
    CASES,
    QUEUE,
    SIZES,
    WARNINGS,
    Sample,
    copy,
    in_record,
    poke,
    sample,
    segments_swapped,
)  # fmt: skip

import pystore
from pystore.audit import verify
from pystore.audit.kinds import SameOffsetFinding
from pystore.cli import main
from pystore.cli.repair import _options
from pystore.errors import MissingSegment, StrayFile
from pystore.meta.configfiles import SECTIONS
from pystore.repair import Repair, plan, rebuild, repair, salvage, undo
from pystore.repair.journal import Journal

__all__ = ["copy", "sample"]  # fixtures

DAMAGE = [(name, damage) for name, damage, _ in (*CASES, *WARNINGS)]
#: Bytes of the log that these take with them, as [from, to) after the sample's place; the others
#: take none.
LOST = {
    "magic": 1, "size": 1, "negative size": 1, "body": 1, "place": 1, "page of zeros": 20,
    "early blank": 1, "short blank": 1,
}  # fmt: skip

Key = tuple[str, int, int]


def in_log(root: Path) -> dict[Key, int]:
    """Queue offsets of all whole records, as the log alone has them."""
    with pystore.Reader(root) as reader:
        return {
            (m.topic, m.queue, m.queue_offset): m.physical_offset
            for m in reader.messages()
            if m.topic != "RMQ_SYS_DAMAGED"
        }


@pytest.fixture(scope="module")
def whole(sample: Sample) -> dict[Key, int]:
    """What the log of the sound store has."""
    return in_log(sample.root)


def in_queues(root: Path) -> dict[Key, int]:
    """What consumers get."""
    with pystore.Reader(root) as reader:
        found = storeview.delivered(reader).items()
    return {(*queue, offset): place for queue, got in found for offset, place in got}


def content(root: Path) -> dict[str, bytes]:
    """Every file but those of repairs, and the lock."""
    return {
        name: path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not (name := str(path.relative_to(root))).startswith("repair-")
        and name != "lock"
    }  # fmt: skip


@pytest.mark.parametrize(("name", "damage"), DAMAGE, ids=[d[0] for d in DAMAGE])
def test_what_is_whole_is_delivered_again(
    sample: Sample,
    whole: dict[Key, int],
    copy: Path,
    name: str,
    damage: Callable[[Sample, Path], object],
):
    damage(sample, copy)
    done = repair(copy)
    assert done.after is not None
    assert done.after.sound, done.after.findings
    delivered = in_queues(copy)
    assert delivered == in_log(copy)
    lost = {key: at for key, at in whole.items() if key not in delivered}
    if name in ("segment gone", "segment cut"):
        assert all(1 << 20 <= at < 2 << 20 for at in lost.values())
    else:
        assert len(lost) <= LOST.get(name, 0)
        assert all(sample.place <= at < sample.place + 4096 for at in lost.values())


#: One of each way to change a file.
UNDONE = {"magic", "early blank", "segment gone", "segment cut", "stray file", "queues gone",
          "topics torn", "database cut", "offset past the end", "garbage at the end"}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "damage"),
    [d for d in DAMAGE if d[0] in UNDONE],
    ids=[d[0] for d in DAMAGE if d[0] in UNDONE],
)
def test_undo_brings_back_every_byte(
    sample: Sample, copy: Path, name: str, damage: Callable[[Sample, Path], object]
):
    damage(sample, copy)
    before = content(copy)
    if repair(copy).actions:
        undo(copy)
    assert content(copy) == before


def test_segments_with_each_others_names_are_not_taken_for_damage(sample: Sample, copy: Path):
    segments_swapped(sample, copy)
    assert verify(copy).counts()["misnamed-segment"] == 2
    before = content(copy)
    with pytest.raises(MissingSegment, match="its records belong at"):
        repair(copy)
    assert content(copy) == before


@pytest.mark.parametrize("crashed", [False, True], ids=["closed", "crashed"])
def test_an_open_refuses_segments_with_each_others_names(sample: Sample, copy: Path, crashed: bool):
    segments_swapped(sample, copy)
    if crashed:
        (copy / "abort").touch()
    before = content(copy)
    with pytest.raises(MissingSegment, match="misnamed-segment: its records belong at"):
        pystore.open(copy)
    assert content(copy) == before


def test_one_record_that_claims_another_place_makes_no_name_wrong(tmp_path: Path):
    """A bit of the first record's own place is flipped, and it is alone in its segment."""
    with pystore.open(tmp_path / "s", mappedFileSizeCommitLog=4096) as store:
        for _ in range(3):
            store.put("t", bytes(3000), queue=0)
    poke(tmp_path / f"s/commitlog/{8192:020d}", 28 + 5, b"\1")
    (tmp_path / "s/abort").touch()
    assert set(verify(tmp_path / "s").counts()) & {"misnamed-segment"} == set()
    with pystore.open(tmp_path / "s") as store:
        assert store.put("t", b"next", queue=0).queue_offset == 2


@pytest.mark.parametrize("name", ["lock", "abort"])
@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo, lambda p: p.symlink_to("/dev/zero")],
                         ids=["folder", "pipe", "device"])  # fmt: skip
def test_what_stands_for_lock_or_abort_is_named_and_left(
    copy: Path, name: str, put: Callable[[Path], object]
):
    (copy / name).unlink(missing_ok=True)
    put(copy / name)
    before = content(copy)
    assert [f.file for f in verify(copy).findings if f.kind == "not-a-file"] == [name]
    for verb in (pystore.open, repair):
        with pytest.raises(StrayFile, match="not a regular file"):
            verb(copy)
    with pystore.Reader(copy) as reader:
        assert reader.queues()
    assert content(copy) == before


def test_salvage_reads_segments_with_each_others_names(
    sample: Sample, whole: dict[Key, int], copy: Path, tmp_path: Path
):
    segments_swapped(sample, copy)
    salvage(copy / "commitlog", tmp_path / "salvaged", **SIZES)
    assert in_queues(tmp_path / "salvaged") == whole


def test_a_sound_store_needs_no_repair(sample: Sample, copy: Path):
    before = content(copy)
    assert repair(copy).actions == []
    assert content(copy) == before


def test_the_plan_changes_nothing(sample: Sample, copy: Path):
    in_record(4, b"\0")(sample, copy)
    before = content(copy)
    planned = plan(copy)
    assert [a.do for a in planned.actions] == ["patch", "rebuild"]
    assert content(copy) == before


def test_somebody_may_refuse_the_plan(sample: Sample, copy: Path):
    in_record(4, b"\0")(sample, copy)
    before, shown = content(copy), []

    def refuse(planned: Repair) -> bool:
        shown.extend(a.do for a in planned.actions)
        return False

    done = repair(copy, confirm=refuse)
    assert shown == ["patch", "rebuild"]
    assert done.after is None
    assert content(copy) == before


def test_what_is_left_of_an_interrupted_repair_is_asked_about(
    sample: Sample, copy: Path, monkeypatch: pytest.MonkeyPatch
):
    in_record(4, b"\0")(sample, copy)

    def fail(*_: object) -> None:
        raise Stop

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "_patch", fail)
        with pytest.raises(Stop):
            repair(copy)
    before, shown = content(copy), []

    def refuse(planned: Repair) -> bool:
        shown.extend(a.do for a in planned.actions)
        return False

    assert repair(copy, confirm=refuse).after is None
    assert shown == ["patch", "rebuild"]
    assert content(copy) == before


def test_the_command_line_reads_the_store_twice(
    sample: Sample, copy: Path, monkeypatch: pytest.MonkeyPatch
):
    """Once for the plan, which is applied under the same lock, and once afterwards."""
    in_record(4, b"\0")(sample, copy)
    audits = []

    def counted(*args: Any, **options: Any) -> Any:
        audits.append(args)
        return verify(*args, **options)

    monkeypatch.setattr(sys.modules["pystore.repair.repair"], "verify", counted)
    assert main(["repair", str(copy), "--yes"]) == 0
    assert len(audits) == 2


class Stop(Exception):
    """The power went."""


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_an_interrupted_repair_is_finished_by_the_next(
    sample: Sample,
    whole: dict[Key, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
):
    """Ends the repair at its n-th sync or rename, for n after n, then repairs again."""
    original = getattr(os, call)
    ended = 0
    step = int(os.environ.get("PS_AUDIT_STEP", "7"))  # 1 in the long campaign
    for n in range(1, 400, step):
        root = Path(shutil.copytree(sample.root, tmp_path / f"{n}"))
        in_record(4, b"\0")(sample, root)
        poke(root / f"commitlog/{2 << 20:020d}", (1 << 20) - 9, b"x")
        (root / "commitlog/notes.txt").touch()
        (root / "config/topics.json").write_text("{")
        left = n

        def failing(*args: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                raise Stop
            return original(*args, **options)

        with monkeypatch.context() as patched:
            patched.setattr(os, call, failing)
            try:
                repair(root)
            except Stop:
                ended += 1
        done = repair(root)
        assert done.after is not None
        assert done.after.sound, (n, done.after.findings)
        found = in_log(root)
        assert in_queues(root) == found
        assert len(found) == len(whole) - 1
        shutil.rmtree(root)
        if left > 0:
            break
    assert ended >= 2


def test_rebuilt_files_equal_those_of_the_dispatcher(sample: Sample, copy: Path):
    before = content(copy)
    done = rebuild(copy)
    assert done.after is not None
    assert done.after.sound
    after = content(copy)
    queues = {k: v for k, v in before.items() if k.startswith("consumequeue/")}
    assert {k: v for k, v in after.items() if k.startswith("consumequeue/")} == queues

    def index(files: dict[str, bytes]) -> list[bytes]:
        return [v for k, v in sorted(files.items()) if k.startswith("index/")]

    assert index(after) == index(before)  # their names are times of birth


def test_of_two_records_on_one_offset_a_rebuild_names_both(sample: Sample, copy: Path):
    """The first is delivered; the second stays in the log, by its place and by its key."""
    with pystore.Reader(copy) as reader:
        second = reader.message(sample.place)
        first = reader.read(second.topic, second.queue, second.queue_offset - 1)[0]
    in_record(20, first.queue_offset.to_bytes(8, "big"))(sample, copy)
    done = rebuild(copy)
    assert done.after is not None
    (finding,) = [f for f in done.after.findings if isinstance(f, SameOffsetFinding)]
    assert (finding.topic, finding.queue, finding.start) == ("orders", 0, first.queue_offset)
    places = first.physical_offset, second.physical_offset
    assert (finding.delivered, finding.hidden) == places
    with pystore.open(copy) as store:
        (delivered,) = store.read("orders", 0, first.queue_offset, max_messages=1)
        assert delivered.physical_offset == first.physical_offset
        assert store.message(second.physical_offset).keys == second.keys
        found = store.query("orders", second.keys[0])
        assert [m.physical_offset for m in found] == [second.physical_offset]


def kept(root: Path) -> list[bytes]:
    """What stands in aside/ of the records that no queue delivers."""
    found = []
    for manifest in sorted((root / "aside").glob("*/manifest.jsonl")):
        rows = [json.loads(line) for line in manifest.read_bytes().splitlines()]
        found += [(manifest.parent / row["kept"]).read_bytes() for row in rows]
        for row, data in zip(rows, found, strict=True):
            assert (root / row["file"]).read_bytes()[row["at"] :][: row["length"]] == data
    return found


def test_the_record_that_is_not_delivered_is_copied_aside(sample: Sample, copy: Path):
    """Once, and the copy goes when the repair is undone."""
    with pystore.Reader(copy) as reader:
        second = reader.message(sample.place)
    in_record(20, (second.queue_offset - 1).to_bytes(8, "big"))(sample, copy)
    before = content(copy)
    rebuild(copy)
    (data,) = kept(copy)
    assert data[28:36] == second.physical_offset.to_bytes(8, "big")
    assert len(data) == second.size
    again = repair(copy)
    assert again.actions == []
    assert kept(copy) == [data]
    undo(copy)
    assert kept(copy) == []
    assert content(copy) == before


def test_a_copy_of_two_records_on_one_offset_alone_is_a_plan(sample: Sample, copy: Path):
    with pystore.Reader(copy) as reader:
        second = reader.message(sample.place)
    in_record(20, (second.queue_offset - 1).to_bytes(8, "big"))(sample, copy)
    rebuild(copy)
    shutil.rmtree(copy / "aside")
    (action,) = plan(copy).actions
    assert action.do == "keep"
    assert "copy 1 records aside" in action.what
    repair(copy)
    assert len(kept(copy)) == 1


def test_a_damaged_log_is_not_rebuilt_from(sample: Sample, copy: Path):
    in_record(4, b"\0")(sample, copy)
    with pytest.raises(pystore.RecordDamaged, match="damaged"):
        rebuild(copy)


def test_an_offset_past_the_end_is_mended_in_the_database_too(tmp_path: Path):
    """The next open takes the file that the repair wrote, and verify knows that."""
    with pystore.open(tmp_path / "s", **SIZES) as store:
        store.put_many("orders", [b"x"] * 10, queue=0)
        store.metadata.offsets.commit("group", "orders", 0, 99)
    assert [f.kind for f in verify(tmp_path / "s").findings] == ["offset-past-end"]
    done = repair(tmp_path / "s")
    assert done.after is not None
    assert done.after.findings == []
    with pystore.open(tmp_path / "s", **SIZES) as store:
        assert store.metadata.offsets.get("group", "orders", 0) == 10
    assert verify(tmp_path / "s").findings == []


@pytest.mark.parametrize("store", ["killed", "normal-exit"])
@pytest.mark.parametrize("gone", [True, False], ids=["gone", "empty"])
def test_groups_keep_their_offsets_when_queues_are_mended(
    golden: Callable[[str], Path], store: str, gone: bool
):
    """How far damaged queues go says nothing of where they end: the log does."""
    root = golden(store)
    offsets = root / "config/consumerOffset.json"
    before = SECTIONS["offsets"].loads(offsets.read_bytes()).rows
    assert sum(offset > 0 for rows in before.values() for offset in rows.values()) > 9
    for file in (root / "consumequeue").rglob("0" * 20):
        file.unlink() if gone else os.truncate(file, 0)
    assert "offset-past-end" not in verify(root).counts()
    done = repair(root)
    assert done.after is not None
    assert done.after.sound, done.after.findings
    assert SECTIONS["offsets"].loads(offsets.read_bytes()).rows == before


def test_an_offset_that_is_past_the_end_of_the_mended_queue_is_set_back(tmp_path: Path):
    """Only the repair shows where the queue ends: one repair is enough, and one undo."""
    root = tmp_path / "store"
    with pystore.open(root, **SIZES) as store:
        for i in range(20):
            store.put("orders", b"x" * 100, queue=i % 2)
        places = [m.physical_offset for m in store.messages()]
        store.metadata.offsets.commit("group", "orders", 0, 10)
        store.metadata.offsets.commit("group", "orders", 1, 99)  # which the plan sees, too
    poke(root / f"commitlog/{0:020d}", places[15], bytes(5 * 1000))
    before = content(root)
    done = repair(root)
    assert done.after is not None
    assert done.after.sound, done.after.findings
    assert [a.file for a in done.actions].count("config/consumerOffset.json") == 1
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    with pystore.open(copy) as store:
        assert [store.metadata.offsets.get("group", "orders", q) for q in (0, 1)] == [8, 7]
    undo(root)
    assert content(root) == before


def test_delay_levels_of_a_store_are_its_own(tmp_path: Path):
    """Without its settings, a repair for another reason leaves each message the time at which it is
    due; one wrong code among right ones is named and mended."""
    root = tmp_path / "store"
    with pystore.open(root, messageDelayLevel="1h 77m 3h", **SIZES) as store:
        for i in range(40):
            store.put("orders", b"x" * 100, delay_level=i % 3 + 1)
        store.put_many("orders", [b"x" * 100] * 20)
    assert verify(root).findings == []
    delayed = {p: p.read_bytes() for p in (root / "consumequeue/SCHEDULE_TOPIC_XXXX").glob("*/*")}
    assert len(delayed) >= 3
    shutil.rmtree(root / "consumequeue/orders")
    path, units = next(iter(delayed.items()))
    poke(path, 20 * 5 + 19, bytes([units[20 * 5 + 19] ^ 1]))
    assert "unit-tags" in {f.kind for f in verify(root).findings}
    done = repair(root)
    assert done.after is not None
    assert done.after.findings == []
    assert {p: p.read_bytes() for p in delayed} == delayed


def test_a_store_in_use_is_refused(tmp_path: Path):
    with pystore.open(tmp_path / "s", **SIZES) as store:
        store.put("orders", b"x")
        for change in (plan, repair, rebuild, undo):
            with pytest.raises(pystore.StoreLocked):
                change(tmp_path / "s")


def test_a_store_of_java_loses_only_what_a_hole_took(
    golden: Callable[[str], Path], golden_records: Callable[[str], list[dict[str, Any]]]
):
    root = golden("killed")
    poke(root / "commitlog" / f"{0:020d}", 100_000, bytes(5000))
    done = repair(root)
    assert done.after is not None
    assert done.after.sound, done.after.findings
    whole = {
        record["phy"]
        for record in golden_records("killed")
        if "phy" in record and not 100_000 - record["size"] < record["phy"] < 105_000
    }
    assert len(whole) > 5000
    assert whole <= set(in_log(root).values())
    assert set(in_queues(root).values()) == set(in_log(root).values())


def test_the_command_line_repairs_and_undoes(
    sample: Sample, copy: Path, capsys: pytest.CaptureFixture[str]
):
    poke(copy / QUEUE, 100, bytes(20))
    before = content(copy)
    assert main(["repair", str(copy), "--dry-run"]) == 5
    assert content(copy) == before
    assert main(["repair", str(copy)]) == 2  # nobody to ask
    assert content(copy) == before
    assert main(["repair", str(copy), "--yes"]) == 0
    assert verify(copy).findings == []
    assert main(["repair", str(copy), "--undo"]) == 0
    assert content(copy) == before
    assert main(["rebuild", str(copy), "--queues"]) == 0
    assert verify(copy).findings == []
    capsys.readouterr()


def test_a_salvage_that_fails_leaves_nothing(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Or the next one would say that the folder exists."""
    from pystore.repair import salvage as module

    def full(*_: object, **__: object) -> None:
        raise pystore.DiskFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(sys.modules[module.__module__], "repair", full)
        with pytest.raises(pystore.DiskFull):
            salvage(sample.root / "commitlog", tmp_path / "store")
    assert not (tmp_path / "store").exists()
    salvage(sample.root / "commitlog", tmp_path / "store")


def test_a_dry_run_makes_no_lock_file(copy: Path):
    """A copy may have none, and may lie where nobody can write."""
    (copy / "lock").unlink()
    before = sorted(copy.rglob("*"))
    assert rebuild(copy, dry_run=True).actions
    assert sorted(copy.rglob("*")) == before


def test_a_heap_of_nameless_segments_becomes_a_store(sample: Sample, tmp_path: Path):
    heap = tmp_path / "heap"
    heap.mkdir()
    for i, path in enumerate(sorted((sample.root / "commitlog").iterdir(), reverse=True)):
        shutil.copyfile(path, heap / f"found.{i}")
    (heap / "readme.txt").write_text("x" * 10_000)
    done = salvage(heap, tmp_path / "store")
    assert done.skipped == ["readme.txt"]
    assert [base for _, base in done.segments] == [0, 1 << 20, 2 << 20]
    assert in_queues(tmp_path / "store") == in_log(sample.root)
    with pystore.open(tmp_path / "store") as store:
        assert "orders" in [t.name for t in store.metadata.topics.list()]


def test_progress_shows_no_phase_that_has_ended():
    """An open ends with a report of nothing done."""
    shown = []
    bar = SimpleNamespace(update=lambda *what: shown.append(what))
    tell = _options(SimpleNamespace(sets={}), bar)["progress"]
    tell("log", 5, 10)
    tell("done", 0, 10)
    assert shown == [(5, 10, "checking the log")]
