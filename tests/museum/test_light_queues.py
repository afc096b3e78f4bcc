"""Queues of light messages (``enableLmq`` of a Java broker): they hold records of other topics, and
only properties of these say so. No store of ours makes them; none loses them."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

import pystore
from pystore.audit import verify
from pystore.repair import rebuild, repair
from tests.museum import damage

COUNT, FILE = 400, 1000
SIZES = {"mappedFileSizeCommitLog": 64 << 10, "mappedFileSizeConsumeQueue": FILE}
LIGHT = "%LMQ%device"
UNIT = struct.Struct(">qiq")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every second message is in the light queue, too."""
    root = tmp_path_factory.mktemp("light") / "store"
    units = b""
    with pystore.open(root, **SIZES) as store:
        for i in range(COUNT):
            told = {} if i % 2 else {"INNER_MULTI_DISPATCH": f"other,{LIGHT},%LMQ%gone",
                                     "INNER_MULTI_QUEUE_OFFSET": f"7,{i // 2},9"}  # fmt: skip
            store.put("t", b"m%d" % i, queue=i % 2, properties=told)
        for m in store.messages():
            if "INNER_MULTI_DISPATCH" in m.properties:
                units += UNIT.pack(m.physical_offset, m.size, 0)
    folder = root / "consumequeue" / LIGHT / "0"
    folder.mkdir(parents=True)
    for at in range(0, len(units), FILE):
        (folder / f"{at:020d}").write_bytes(units[at : at + FILE].ljust(FILE, b"\0"))
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "store"))


def bodies(store: pystore.Store | pystore.Reader) -> list[bytes]:
    assert {q.topic for q in store.queues()} == {"t", LIGHT}
    return [bytes(m.body) for m in store.read(LIGHT, 0, 0, max_messages=1000)]


ALL = [b"m%d" % i for i in range(0, COUNT, 2)]


def sound(root: Path, *, deep: bool = False) -> bool:
    """Whether verify says just that one queue has no folder."""
    return [f.kind for f in verify(root, deep=deep).findings] in (
        ["light-no-folder"], ["light-no-folder"] * 2,  # of each segment
    )  # fmt: skip


@pytest.mark.parametrize("deep", [False, True])
def test_they_are_sound(root: Path, deep: bool):
    assert sound(root, deep=deep)


@pytest.mark.parametrize("checkpoint", [True, False])
def test_recovery_keeps_them(root: Path, checkpoint: bool):
    damage.crash(root)
    if not checkpoint:
        (root / "checkpoint").unlink()
    with pystore.Reader(root) as reader:
        assert bodies(reader) == ALL
    with pystore.open(root) as store:
        assert bodies(store) == ALL
    assert sound(root)


def test_a_rebuild_makes_them_again(root: Path):
    rebuild(root)
    with pystore.Reader(root) as reader:
        assert bodies(reader) == ALL


def test_an_open_fills_a_gap_in_one(root: Path):
    damage.queue_files(root, LIGHT)[1].unlink()
    assert {f.kind for f in verify(root).errors} == {"queue-gap", "missing-units"}
    with pystore.open(root) as store:
        assert bodies(store) == ALL


def test_a_folder_that_our_own_files_make_needless_is_not_made_again(root: Path):
    """lightFilesAtStop takes the folders away that the last close has noted."""
    with pystore.open(root) as store:
        store.lights.begin()
    shutil.rmtree(root / "consumequeue" / LIGHT)
    with pystore.open(root) as store:
        assert {q.topic for q in store.queues()} == {"t"}
        assert store.lights.range(LIGHT) == (0, COUNT // 2)


def test_an_open_that_compares_finds_a_zero_unit(root: Path):
    """No note says how far the queues were, as when a Java broker ran since."""
    (root / "queueEnds").unlink()
    damage.write(damage.queue_files(root, LIGHT)[0], 200, bytes(UNIT.size))
    with pystore.Reader(root) as reader:
        assert bodies(reader) == ALL
    with pystore.open(root) as store:
        assert bodies(store) == ALL
        counted = [i.records for i in store.report.items if "neither a folder" in i.why]
    assert (counted, sound(root)) == ([COUNT // 2], True)


@pytest.mark.parametrize("unit", [UNIT.pack(0, 0, 0), UNIT.pack(1 << 40, 100, 0)])
def test_a_damaged_unit_is_named_and_mended(root: Path, unit: bytes):
    damage.write(damage.queue_files(root, LIGHT)[0], 200, unit)
    assert not verify(root).sound
    repair(root)
    assert sound(root)
    with pystore.Reader(root) as reader:
        assert bodies(reader) == ALL


def test_a_unit_of_a_record_that_does_not_name_the_queue_is_named(root: Path):
    with pystore.Reader(root) as reader:
        other = reader.read("t", 1, 5)[0]
    damage.write(damage.queue_files(root, LIGHT)[0], 200,
                 UNIT.pack(other.physical_offset, other.size, 0))  # fmt: skip
    assert {f.kind for f in verify(root, deep=True).errors} >= {"record-disagrees"}
