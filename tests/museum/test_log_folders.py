"""A log in two folders (`storePathCommitLog` with two paths): a folder that is not mounted, a
segment that is in both, names that no segment has. Each is named, and nothing takes the place of
what is only away."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import storeview

import pystore
from pystore.audit import verify
from pystore.repair import plan, rebuild, repair, undo

SEGMENT = 1 << 16


def blot(segment: Path) -> None:
    """Damages a record or two."""
    with segment.open("r+b") as file:
        file.seek(5000)
        file.write(b"?" * 130)


class Two:
    """A store of five segments, every other one in folder b."""

    def __init__(self, home: Path) -> None:
        self.root, self.a, self.b = home / "store", home / "a", home / "b"
        self.settings = {
            "storePathCommitLog": f"{self.a},{self.b}",
            "mappedFileSizeCommitLog": SEGMENT, "mappedFileSizeConsumeQueue": 2000,
            "maxHashSlotNum": 64, "maxIndexNum": 512,
        }  # fmt: skip

    def segment(self, n: int) -> Path:
        return (self.a, self.b)[n % 2] / f"{n * SEGMENT:020d}"

    def kinds(self) -> set[str]:
        return {f.kind for f in verify(self.root, **self.settings).findings}

    def named(self, kind: str) -> list[str]:
        found = verify(self.root, **self.settings).findings
        return [f.file for f in found if f.kind == kind]

    def repair(self):
        return repair(self.root, **self.settings)

    def delivered(self) -> int:
        with pystore.open(self.root, **self.settings) as store:
            return sum(map(len, storeview.delivered(store).values()))

    def files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for folder in (self.root, self.a, self.b)
                for path in folder.rglob("*") if path.is_file() and path.name != "lock"
                and "repair-" not in str(path)}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    two = Two(tmp_path_factory.mktemp("two"))
    with pystore.open(two.root, **two.settings) as store:
        for i in range(10):
            keys = [f"k{i * 200 + j}" for j in range(200)]
            store.put_many("orders", [b"x" * 30] * 200, keys=keys)
    assert two.segment(3).exists() and two.segment(4).exists()
    return two.root.parent


@pytest.fixture
def two(home, tmp_path) -> Two:
    shutil.copytree(home, tmp_path / "home")
    return Two(tmp_path / "home")


def test_a_sound_one_has_no_findings(two):
    assert two.kinds() == set()
    assert two.delivered() == 2000


@pytest.mark.parametrize("n", [0, 1])
def test_damage_in_either_folder_is_mended_and_undone(two, n):
    blot(two.segment(n))
    before = two.files()
    assert two.named("damaged-record") == [str(two.segment(n))]
    done = two.repair()
    assert done.after.sound
    assert two.files() != before
    undo(two.root, **two.settings)
    assert two.files() == before
    two.repair()
    assert 1990 < two.delivered() < 2000


def test_an_undo_needs_the_settings_of_its_store(two):
    """Without them the segments lie outside of it."""
    blot(two.segment(1))
    two.repair()
    (two.root / "commitlog").mkdir()
    with pytest.raises(pystore.RecordDamaged, match="outside of the store"):
        undo(two.root)


AWAY: dict[str, Callable[[Path], object]] = {
    "missing": lambda folder: None,
    "a file": lambda folder: folder.write_text("x"),
    "a pipe": os.mkfifo,
    "a link to nothing": lambda folder: folder.symlink_to("nowhere"),
}


@pytest.mark.parametrize("put", AWAY.values(), ids=AWAY)
def test_what_is_in_a_folder_that_is_away_is_not_lost(two, put, tmp_path):
    """A disk that is not mounted: nothing takes the place of its segments."""
    two.b.rename(tmp_path / "away")
    put(two.b)
    assert {"log-folder", "missing-segment"} <= two.kinds()
    before = two.files()
    for change in (plan, repair, rebuild):
        with pytest.raises(pystore.MissingSegment, match="folder of the log is missing"):
            change(two.root, **two.settings)
    assert two.files() == before
    if os.path.lexists(two.b):
        two.b.unlink()
    (tmp_path / "away").rename(two.b)
    assert two.kinds() == set()
    assert two.delivered() == 2000


@pytest.mark.parametrize("crashed", [False, True], ids=["closed", "crashed"])
@pytest.mark.parametrize("mounted", [False, True], ids=["no folder", "an empty folder"])
def test_a_log_without_its_last_segments_is_refused(two, crashed, mounted, tmp_path):
    """They are in a folder that is not mounted. The log would end before them, and new messages
    would take their places in the log and in the queues."""
    (two.b / two.segment(1).name).rename(two.a / two.segment(1).name)
    two.segment(4).rename(two.b / two.segment(4).name)
    shutil.copytree(two.b, tmp_path / "away")
    shutil.rmtree(two.b)
    if mounted:
        two.b.mkdir()
    if crashed:
        (two.root / "abort").touch()
    before = two.files()
    for opens in (pystore.Reader, pystore.open):
        with pytest.raises(pystore.MissingSegment, match=f"segment {3 * SEGMENT:020d} is in no"):
            opens(two.root, **two.settings)
    assert two.files() == before
    assert {"missing-segment", "units-beyond"} <= two.kinds()
    if mounted:  # else the folder is named: see above
        two.repair()
        assert 0 < two.delivered() < 2000, "after a repair it goes on without them"
    else:
        shutil.copytree(tmp_path / "away", two.b)
        assert two.delivered() == 2000


def test_a_folder_that_loops_is_named(two):
    shutil.rmtree(two.b)
    two.b.symlink_to("b")
    with pytest.raises(pystore.StoreIOError, match="b"):
        verify(two.root, **two.settings)


def test_a_second_copy_of_a_segment_is_taken_away(two):
    shutil.copy(two.segment(1), two.a)
    assert two.named("double-segment") == [str(two.segment(1))]
    with pytest.raises(pystore.MissingSegment, match="two folders of the log have this segment"):
        pystore.open(two.root, **two.settings)
    assert [a.do for a in two.repair().actions] == ["move"]
    assert two.delivered() == 2000


def test_of_two_segments_for_one_place_nobody_guesses(two):
    copy = Path(shutil.copy(two.segment(1), two.a))
    blot(copy)
    before = two.files()
    assert two.named("double-segment") == [str(two.segment(1))]
    with pytest.raises(pystore.MissingSegment, match="other bytes than"):
        two.repair()
    assert two.files() == before
    copy.unlink()
    assert two.kinds() == set()


ODD: dict[str, Callable[[Path], object]] = {
    "a folder": lambda folder: (folder / f"{1 << 20:020d}").mkdir(),
    "a link to nothing": lambda folder: (folder / f"{1 << 20:020d}").symlink_to("nowhere"),
    "a pipe": lambda folder: os.mkfifo(folder / f"{1 << 20:020d}"),
    "amid another": lambda folder: (folder / f"{SEGMENT + 512:020d}").write_bytes(bytes(SEGMENT)),
    "a name": lambda folder: (folder / "notes.txt").touch(),
}


@pytest.mark.parametrize("put", ODD.values(), ids=ODD)
def test_what_an_open_refuses_is_named_and_taken_away(two, put):
    put(two.b)
    with pytest.raises(pystore.StoreError):
        pystore.open(two.root, **two.settings)
    assert len(two.named("stray-file")) == 1
    assert two.repair().after.sound
    assert two.delivered() == 2000


def test_a_segment_in_the_other_folder_is_where_it_belongs(two):
    """Upstream looks for segments in every folder, too."""
    two.segment(1).rename(two.a / two.segment(1).name)
    assert two.kinds() == set()
    assert two.delivered() == 2000
