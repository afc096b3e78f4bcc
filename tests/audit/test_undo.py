"""An undo, or the end of an interrupted repair, is a named error that changes nothing, or finishes.

The manifest and the copies lie in a folder of the store: they are damaged, cut, restored from
elsewhere and forged like any other file.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damages import poke

import pystore
from pystore.audit import verify
from pystore.files import write_whole
from pystore.repair import journal, plan, rebuild, repair, undo
from pystore.repair.manifest import DATA, next_name, side_folders
from tests.museum import damage as damage_of

SEGMENT = 64 << 10
SMALL = {
    "mappedFileSizeCommitLog": SEGMENT,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 64,
    "maxIndexNum": 512,
}
TOPICS = "config/topics.json"


def make(root: Path) -> Path:
    """A sound store of three segments."""
    with pystore.open(root, **SMALL) as store:
        store.metadata.topics.put(pystore.TopicConfig("orders", 2, 2))
        for i in range(5):
            keys = [f"k{i * 200 + j}" for j in range(200)]
            store.put_many("orders", [b"x" * 20] * 200, tags="a", keys=keys)
    return root


def damage(root: Path) -> None:
    """What needs a step of each kind but "keep"."""
    with pystore.Reader(root) as reader:
        place = reader.read("orders", 0, 20, max_messages=1)[0].physical_offset
        end = reader.info().log_max
    poke(root / f"commitlog/{0:020d}", place, b"\x7f")  # patch, rebuild
    (root / TOPICS).write_text("{")  # move, or replace where there is a .bak
    (root / "config/consumerOffset.json").write_text(
        '{"offsetTable":{"orders@group":{0:99999}}}'
    )  # replace
    os.truncate(root / f"commitlog/{SEGMENT:020d}", SEGMENT // 2)  # resize
    last = end - end % SEGMENT
    poke(root / f"commitlog/{last:020d}", SEGMENT - 9, b"x")  # zero


def tree(root: Path) -> dict[str, bytes | str]:
    """Every file of the store and of its repairs, but the lock."""
    found: dict[str, bytes | str] = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_file() and name != "lock":
            found[name] = path.read_bytes()
    return found


def store_of(files: dict[str, bytes | str]) -> dict[str, bytes | str]:
    return {name: data for name, data in files.items() if not name.startswith("repair-")}


class Case:
    """A store that was repaired, in a folder of its own."""

    def __init__(self, root: Path, damaged: dict[str, bytes | str]) -> None:
        self.root = root
        self.damaged = damaged
        (self.side,) = root.glob("repair-*")
        self.manifest = self.side / "manifest.json"

    def edit(self, change: Callable[[Any], object]) -> None:
        data = json.loads(self.manifest.read_bytes())
        change(data)
        self.manifest.write_text(json.dumps(data))

    def action(self, do: str) -> int:
        actions = json.loads(self.manifest.read_bytes())["actions"]
        return next(n for n, each in enumerate(actions) if each["do"] == do)

    def set(self, step: str, /, **fields: Any) -> None:
        number = self.action(step)

        def change(data: Any) -> None:
            into = data["actions"][number]
            for name, value in fields.items():
                (into if name in into else into["data"])[name] = value

        self.edit(change)

    def kept(self, do: str) -> Path:
        return self.side / "old" / str(self.action(do))


@pytest.fixture(scope="module")
def repaired(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes | str]]:
    root = make(tmp_path_factory.mktemp("undo") / "store")
    damage(root)
    damaged = tree(root)
    done = repair(root)
    assert done.after is not None
    assert done.after.sound, done.after.findings
    assert {a.do for a in done.actions} >= {"patch", "resize", "zero", "replace", "rebuild"}
    return root, damaged


@pytest.fixture
def case(repaired: tuple[Path, dict[str, bytes | str]], tmp_path: Path) -> Case:
    return Case(Path(shutil.copytree(repaired[0], tmp_path / "store")), repaired[1])


def refused(case: Case, kind: type[Exception], match: str) -> None:
    """The undo says what is wrong, and nothing has changed; twice."""
    before = tree(case.root)
    for _ in range(2):
        with pytest.raises(kind, match=match) as caught:
            undo(case.root)
        assert "nothing was changed" in str(caught.value) or "not changed" in str(caught.value)
        assert tree(case.root) == before


def test_a_copy_of_a_repaired_store_is_undone(case: Case):
    """Other inodes, other holes: what counts is what the files hold."""
    undo(case.root)
    assert store_of(tree(case.root)) == case.damaged


# ---- a manifest that cannot be believed ----

TEXTS = {
    "empty": b"",
    "cut": b'{"format": 1, "state": "app',
    "not JSON": b"\xff\xfe",
    "no object": b"[]",
    "nested": b"[" * 100_000,
    "nothing in it": b"{}",
    "no state": b'{"format": 1, "actions": []}',
    "unknown state": b'{"format": 1, "state": "done", "actions": []}',
    "actions of another kind": b'{"format": 1, "state": "applied", "actions": {}}',
    "a number for an action": b'{"format": 1, "state": "applied", "actions": [7]}',
    "fields missing": b'{"format": 1, "state": "applied", "actions": [{"do": "patch"}]}',
    "long number": b'{"format": ' + b"1" * 6000 + b', "state": "applied", "actions": []}',
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_malformed_manifest_is_named(case: Case, text: bytes):
    case.manifest.write_bytes(text)
    refused(case, pystore.RecordDamaged, r"manifest cannot be read .*manifest\.json")


def test_a_manifest_of_a_later_format_is_left_alone(case: Case):
    case.edit(lambda data: data.update(format=2))
    refused(case, pystore.NewerLayout, "format 2")


FORGED: dict[str, tuple[str, dict[str, Any]]] = {
    "a step of another name": ("patch", {"do": "undo_create"}),
    "no step": ("patch", {"do": "__init__"}),
    "a field too many": ("patch", {"more": 1}),
    "a name above": ("patch", {"file": "../outside"}),
    "a name above, later": ("replace", {"file": "config/../../outside"}),
    "an absolute name": ("patch", {"file": "/etc/hostname"}),
    "an empty name": ("patch", {"file": ""}),
    "a name with a zero": ("patch", {"file": "commitlog/\0"}),
    "the side folder": ("replace", {"file": "repair-20200101000000/manifest.json"}),
    "the lock": ("replace", {"file": "lock"}),
    "a file that is not a segment": ("zero", {"file": "config/topics.json"}),
    "a position below zero": ("patch", {"new": [[-1, "00"]], "old": [[-1, "00"]]}),
    "a position past any file": ("patch", {"new": [[1 << 40, "00"]], "old": [[1 << 40, "00"]]}),
    "no hexadecimal": ("patch", {"new": [[1, "zz"]], "old": [[1, "00"]]}),
    "other old bytes": ("patch", {"new": [[1, "00"]], "old": [[2, "00"]]}),
    "an empty stretch": ("zero", {"start": 9, "end": 9}),
    "a size past any file": ("resize", {"size": 1 << 62}),
    "a truth for a number": ("resize", {"was": True}),
    "an unknown file to rebuild": ("rebuild", {"names": ["commitlog"]}),
    "made elsewhere": ("rebuild", {"made": dict.fromkeys(("consumequeue", "index"), "commitlog")}),
    "no mark of the log": ("rebuild", {"log": {}}),
}


@pytest.mark.parametrize(("do", "fields"), FORGED.values(), ids=FORGED)
def test_a_forged_step_is_named(case: Case, do: str, fields: dict[str, Any]):
    (case.root.parent / "outside").write_text("precious")
    if "more" in fields:
        case.edit(lambda data: data["actions"][0].update(fields))
    else:
        case.set(do, **fields)
    refused(case, pystore.RecordDamaged, "manifest cannot be read")
    assert (case.root.parent / "outside").read_text() == "precious"


def test_a_folder_of_aside_is_never_another_folder(case: Case):
    """A forged one would be deleted."""
    keep = {"do": "keep", "file": "", "what": "", "done": True,
            "data": {"pieces": [], "why": "", "folder": "commitlog"}}  # fmt: skip
    case.edit(lambda data: data["actions"].append(keep))
    refused(case, pystore.RecordDamaged, "not a folder of aside/")


def test_each_step_has_its_checks():
    assert set(DATA) == {"patch", "zero", "resize", "create", "move", "replace", "keep", "rebuild"}


@pytest.mark.parametrize("records", [0, 9])
def test_a_segment_that_is_cut_between_records_is_closed(tmp_path: Path, records: int):
    root = make(tmp_path / "store")
    end = list(damage_of.records(root))[records]
    os.truncate(end.file, end.at)
    before = tree(root)
    done = repair(root)
    assert done.after is not None
    assert done.after.sound, done.after.findings
    undo(root)
    assert store_of(tree(root)) == before


# ---- what recovery would do beside the plan ----


def early_blank(root: Path, last: damage_of.Record) -> None:
    room = last.file.stat().st_size - last.at
    poke(last.file, last.at, room.to_bytes(4, "big") + damage_of.BLANK.to_bytes(4, "big"))


def short_blank(root: Path, last: damage_of.Record) -> None:
    poke(last.file, last.at, (256).to_bytes(4, "big") + damage_of.BLANK.to_bytes(4, "big"))


def torn(root: Path, last: damage_of.Record) -> None:
    poke(last.file, last.at + last.size + 9000, b"torn")


def empty_segment(root: Path, last: damage_of.Record) -> None:
    (root / f"commitlog/{int(last.file.name) + SEGMENT:020d}").touch()


def doubled_segment(root: Path, last: damage_of.Record) -> None:
    """Of two that are exchanged nothing is repaired (test_repair.py)."""
    files = damage_of.segments(root)[:2]
    files[1].write_bytes(files[0].read_bytes())


AT_THE_END = (early_blank, short_blank, torn, empty_segment, doubled_segment)


@pytest.mark.parametrize("hurt", AT_THE_END)
@pytest.mark.parametrize("crashed", [False, True], ids=["closed", "crashed"])
def test_what_no_step_names_does_not_change(
    tmp_path: Path, hurt: Callable[[Path, damage_of.Record], None], crashed: bool
):
    """Derived files are made by a recovery, which clears and cuts what it finds in its own log."""
    root = make(tmp_path / "store")
    hurt(root, list(damage_of.records(root))[-1])
    poke(root / f"consumequeue/orders/0/{0:020d}", 100, bytes(20))
    if crashed:
        damage_of.crash(root)
    before = tree(root)
    with contextlib.suppress(pystore.StoreError):  # most of these logs want a repair first
        rebuild(root)
        undo(root)
    assert store_of(tree(root)) == before
    repair(root)
    undo(root)
    assert store_of(tree(root)) == before


def test_what_a_manifest_names_is_on_the_disk_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Else a power failure between the two leaves a repair that cannot be undone."""
    root = make(tmp_path / "store")
    synced: set[Path] = set()
    sync, save = journal.sync_folder, journal.Journal.save

    def noted_sync(folder: Path) -> None:
        sync(folder)
        synced.add(folder)

    def checked_save(self: journal.Journal) -> None:
        if any(action.data.get("inodes") for action in self.actions):
            assert {self.folder, self.folder / "made"} <= synced
        save(self)

    monkeypatch.setattr(journal, "sync_folder", noted_sync)
    monkeypatch.setattr(journal.Journal, "save", checked_save)
    rebuild(root)


# ---- links ----


def test_no_link_is_followed_below_a_folder_of_the_store(case: Case):
    outside = case.root.parent / "outside"
    (outside / "0").mkdir(parents=True)
    (case.root / "elsewhere").symlink_to(outside)
    move = {"do": "move", "file": "elsewhere/0/x", "what": "", "done": True,
            "data": {"found": "0" * 64}}  # fmt: skip
    case.edit(lambda data: data["actions"].append(move))
    refused(case, pystore.RecordDamaged, "leads through a link")


@pytest.mark.parametrize("name", ["manifest.json", "old", "made"])
def test_a_side_folder_has_no_links(case: Case, name: str):
    (case.side / name).rename(case.root.parent / name)
    (case.side / name).symlink_to(case.root.parent / name)
    refused(case, pystore.RecordDamaged, "is a link")


def test_a_link_in_place_of_a_segment_is_named(case: Case):
    segment = case.root / f"commitlog/{0:020d}"
    segment.rename(case.root.parent / "segment")
    segment.symlink_to(case.root.parent / "segment")
    refused(case, pystore.RecordDamaged, "is a link")


def test_a_link_in_place_of_a_side_folder_is_named(case: Case):
    case.side.rename(case.root.parent / "side")
    case.side.symlink_to(case.root.parent / "side")
    with pytest.raises(pystore.RecordDamaged, match="not a folder"):
        undo(case.root)


def test_a_pipe_in_place_of_the_manifest_is_named(case: Case):
    case.manifest.unlink()
    os.mkfifo(case.manifest)
    with pytest.raises(pystore.StoreIOError, match="not a regular file"):
        undo(case.root)


# ---- copies that are missing, short or of another store ----


@pytest.mark.parametrize("do", ["zero", "replace"])
@pytest.mark.parametrize("what", ["missing", "short", "foreign", "a folder"])
def test_a_bad_copy_is_named(case: Case, do: str, what: str):
    kept = case.kept(do)
    data = kept.read_bytes()
    kept.unlink()
    if what == "short":
        kept.write_bytes(data[:-1])
    elif what == "foreign":
        kept.write_bytes(b"y" + data[1:])
    elif what == "a folder":
        kept.mkdir()
    refused(case, pystore.RecordDamaged, "the copy")


@pytest.mark.parametrize("name", ["consumequeue", "index"])
def test_missing_old_files_of_a_rebuild_are_named(case: Case, name: str):
    shutil.rmtree(case.side / "made" / name)
    refused(case, pystore.RecordDamaged, f"{name}: the copy")


def test_a_missing_manifest_is_named(case: Case):
    """Else an undo would take the repair before it."""
    case.manifest.unlink()
    with pytest.raises(pystore.RecordDamaged, match="manifest of this repair is missing"):
        undo(case.root)


def test_a_side_folder_that_was_only_begun_is_none(case: Case):
    (case.root / "repair-20990101000000" / "old").mkdir(parents=True)
    undo(case.root)
    assert store_of(tree(case.root)) == case.damaged


def test_the_manifest_of_another_store_changes_nothing(case: Case, tmp_path: Path):
    other = make(tmp_path / "other")
    shutil.copytree(case.side, other / case.side.name)
    before = tree(other)
    with pytest.raises(pystore.StoreError, match="cannot be undone"):
        undo(other)
    assert tree(other) == before


# ---- a store that was used since ----


def test_after_a_put_nothing_is_undone(case: Case):
    with pystore.open(case.root, **SMALL) as store:
        store.put("orders", b"acknowledged", queue=0)
    refused(case, pystore.BadArgument, "cannot be undone")


def test_after_a_put_a_rebuild_is_not_undone(tmp_path: Path):
    """The old queues would not have what was put."""
    root = make(tmp_path / "store")
    rebuild(root)
    with pystore.open(root, **SMALL) as store:
        store.put("orders", b"acknowledged", queue=0)
    before = tree(root)
    with pytest.raises(pystore.BadArgument, match="put or deleted since the repair"):
        undo(root)
    assert tree(root) == before


def test_after_a_topic_was_deleted_a_rebuild_is_not_undone(tmp_path: Path):
    """Its queues would be back."""
    root = make(tmp_path / "store")
    rebuild(root)
    with pystore.open(root, **SMALL) as store:
        store.delete_topic("orders")
    with pytest.raises(pystore.BadArgument, match="put or deleted since the repair"):
        undo(root)
    assert not (root / "consumequeue/orders").exists()


def test_after_a_look_a_rebuild_is_undone(tmp_path: Path):
    """A store that was opened and closed has the log that it had."""
    root = make(tmp_path / "store")
    before = tree(root)["consumequeue/orders/0/" + "0" * 20]
    rebuild(root)
    pystore.open(root, **SMALL).close()
    undo(root)
    assert tree(root)["consumequeue/orders/0/" + "0" * 20] == before
    assert verify(root).sound


def test_a_file_that_was_made_again_is_not_overwritten(tmp_path: Path):
    """The database that was moved aside, and the one that the next open made."""
    root = make(tmp_path / "store")
    rebuild(root, queues=False, index=False, checkpoint=False, metadata=True)
    with pystore.open(root, **SMALL) as store:
        store.metadata.topics.put(pystore.TopicConfig("new", 1, 1))
    before = tree(root)
    with pytest.raises(pystore.BadArgument, match="made again"):
        undo(root)
    assert tree(root) == before


def test_a_segment_that_retention_took_is_named(case: Case):
    (case.root / f"commitlog/{0:020d}").unlink()
    refused(case, pystore.BadArgument, "gone|put or deleted")


def test_copies_aside_stay_when_the_log_lost_their_records(tmp_path: Path):
    root = make(tmp_path / "store")
    with pystore.Reader(root) as reader:
        second = reader.read("orders", 0, 1, max_messages=1)[0]
    poke(root / f"commitlog/{0:020d}", second.physical_offset + 20, bytes(8))
    rebuild(root)
    (copy,) = (root / "aside").glob("*/0001")
    data = copy.read_bytes()
    poke(root / f"commitlog/{0:020d}", second.physical_offset + 90, b"?")
    undo(root)
    assert copy.read_bytes() == data


# ---- interrupted, and again ----


class Stop(Exception):
    """The power went."""


def stop_at(monkeypatch: pytest.MonkeyPatch, n: int, work: Callable[[], object]) -> bool:
    """Ends `work` at its n-th sync. Whether it was ended."""
    left, real = n, os.fsync

    def failing(fd: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Stop
        real(fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        try:
            work()
        except Stop:
            return True
    return False


def test_an_interrupted_undo_is_finished_by_the_next(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    step, ended = 3, 0
    for n in range(1, 200, step):
        root = Path(shutil.copytree(case.root, tmp_path / f"{n}"))
        stopped = stop_at(monkeypatch, n, lambda root=root: undo(root))
        ended += stopped
        if stopped:
            undo(root)
        assert store_of(tree(root)) == case.damaged, n
        with pytest.raises(pystore.NotFound):
            undo(root)
        shutil.rmtree(root)
        if not stopped:
            break
    assert ended >= 3


def half_way(root: Path, monkeypatch: pytest.MonkeyPatch, do: str) -> None:
    """A repair of the damaged store that ends before its first step of this kind."""
    from pystore.repair import journal

    def fail(*_: object) -> None:
        raise Stop

    with monkeypatch.context() as patched:
        if do == "rebuild":
            patched.setattr(journal.Journal, "swap_in", fail)
        else:
            patched.setattr(journal.Journal, f"_{do}", fail)
        with pytest.raises(Stop):
            repair(root)


@pytest.mark.parametrize("do", ["patch", "resize", "zero", "replace", "rebuild"])
def test_an_interrupted_repair_can_be_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case, do: str
):
    undo(case.root)
    half_way(case.root, monkeypatch, do)
    undo(case.root)
    assert store_of(tree(case.root)) == case.damaged


def test_a_repair_without_its_folder_of_copies_is_finished(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    """The power may keep the manifest and lose the folder beside it, of a repair that did nothing
    yet."""
    undo(case.root)
    half_way(case.root, monkeypatch, do="move")
    (side_folders(case.root)[-1] / "old").rmdir()
    done = repair(case.root)
    assert done.finished != []
    assert done.after is not None
    assert done.after.sound, done.after.findings


def test_what_was_put_into_a_half_repaired_store_stays(case: Case, monkeypatch: pytest.MonkeyPatch):
    """The rest of the plan belongs to a store that is no more: a new one is made."""
    undo(case.root)
    half_way(case.root, monkeypatch, "zero")
    with pystore.open(case.root, **SMALL) as store:
        put = store.put("orders", b"acknowledged" * 100, queue=0)
    done = repair(case.root)
    assert done.finished == []
    assert done.after is not None
    assert done.after.sound, done.after.findings
    with pystore.Reader(case.root) as reader:
        assert bytes(reader.message(put.physical_offset).body) == b"acknowledged" * 100


def test_an_abandoned_repair_is_not_undone(case: Case, monkeypatch: pytest.MonkeyPatch):
    undo(case.root)
    half_way(case.root, monkeypatch, "zero")
    with pystore.open(case.root, **SMALL) as store:
        store.put("orders", b"acknowledged" * 100, queue=0)
    repair(case.root)
    undo(case.root)
    with pytest.raises(pystore.BadArgument, match="abandoned already"):
        undo(case.root)


# ---- more than one ----


def test_an_undo_has_no_undo(case: Case):
    undo(case.root)
    with pytest.raises(pystore.NotFound, match="no repair"):
        undo(case.root)


def test_two_repairs_are_undone_one_after_the_other(case: Case):
    after_one = store_of(tree(case.root))
    rebuild(case.root)
    undo(case.root)
    assert store_of(tree(case.root)) == after_one
    undo(case.root)
    assert store_of(tree(case.root)) == case.damaged
    with pytest.raises(pystore.NotFound):
        undo(case.root)


def test_only_the_last_repair_is_undone(case: Case):
    """An earlier one would pull the ground from under it."""
    rebuild(case.root)
    last = sorted(case.root.glob("repair-*"))[-1]
    shutil.rmtree(last / "made" / "index")
    before = tree(case.root)
    with pytest.raises(pystore.RecordDamaged, match=f"{last.name} cannot be undone"):
        undo(case.root)
    assert tree(case.root) == before


def test_side_folders_are_ordered_by_age_whatever_the_clock_says(tmp_path: Path):
    names = []
    for _ in range(12):
        names.append(next_name(tmp_path))
        (tmp_path / names[-1]).mkdir()
        write_whole(tmp_path / names[-1] / "manifest.json", b"{}")
    (tmp_path / "repair-29990101000000").mkdir()
    write_whole(tmp_path / "repair-29990101000000/manifest.json", b"{}")
    names.append("repair-29990101000000")
    names.append(next_name(tmp_path))
    assert names[-1] == "repair-29990101000000-1"
    (tmp_path / names[-1]).mkdir()
    write_whole(tmp_path / names[-1] / "manifest.json", b"{}")
    assert [path.name for path in side_folders(tmp_path)] == names


def test_a_relative_path_names_files_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The manifest is read again where the store has moved to."""
    root = make(tmp_path / "store")
    poke(root / "consumequeue/orders/0" / ("0" * 20), 100, bytes(20))
    with pystore.Reader(root) as reader:
        place = reader.read("orders", 0, 20, max_messages=1)[0].physical_offset
    poke(root / f"commitlog/{0:020d}", place, b"\x7f")
    damaged = tree(root)
    monkeypatch.chdir(tmp_path)
    assert all(not a.file.startswith("/") for a in plan("store").actions)
    repair("store")
    root.rename(tmp_path / "moved")
    undo(tmp_path / "moved")
    assert store_of(tree(tmp_path / "moved")) == damaged
