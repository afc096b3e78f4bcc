"""Damage to the files of light queues: verify names it, an open or a repair mends it, and it never
changes what a light queue delivers."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

import pystore
from pystore.audit import verify
from pystore.errors import ReadOnly
from pystore.repair import rebuild, repair, undo
from tests.museum import damage

QUEUES, COUNT, SLOT = 7, 300, 48
SLOTS = f"{0:020d}"
Seen = dict[str, list[bytes]]


def name_of(i: int) -> str:
    return f"%LMQ%$parent$s{i % QUEUES}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("light") / "store"
    with pystore.open(root, mappedFileSizeCommitLog=64 << 10) as store:
        store.lights.begin()
        for i in range(COUNT):
            told = {"INNER_MULTI_DISPATCH": f"{name_of(i)},{name_of(i + 1)}"} if i % 3 else {}
            store.put("parent", b"m%d" % i, properties=told)
        store.put("parent", b"last", properties={"INNER_MULTI_DISPATCH": "%LMQ%$parent$gone"})
        store.lights.delete("%LMQ%$parent$gone")
        store.metadata.offsets.commit("g", name_of(0), 0, 3)
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "store"))


def seen(store: pystore.Store | pystore.Reader) -> Seen:
    found: Seen = {}
    for queue in store.lights.some(0)[0]:
        rows: list[pystore.store.light_queues.LightRecord] = []
        while got := store.lights.read(queue.name, len(rows), 64):
            rows += got
        assert [row.offset for row in rows] == list(range(queue.high))
        found[queue.name] = [row.raw for row in rows]
    return found


def kinds(root: Path) -> set[str]:
    return {finding.kind for finding in verify(root).findings}


def cut(file: Path, at: int) -> None:
    file.write_bytes(file.read_bytes()[:at])


def other(file: Path, at: int, place: int, value: bytes) -> None:
    """A slot that is sound and says something else."""
    slot = bytearray(file.read_bytes()[at : at + SLOT])
    slot[place : place + len(value)] = value
    slot[44:] = struct.pack(">I", zlib.crc32(slot[:44]))
    damage.write(file, at, bytes(slot))


def folder(root: Path) -> Path:
    return root / "lightqueue"


def test_what_a_store_wrote_is_sound(root: Path):
    assert verify(root, deep=True).findings == []
    damage.crash(root)
    assert verify(root).findings == []


def test_a_reader_sees_them_and_what_comes(root: Path):
    with pystore.open(root) as store, pystore.Reader(root) as reader:
        assert seen(reader) == seen(store)
        store.put("parent", b"more", properties={"INNER_MULTI_DISPATCH": name_of(0)})
        reader.refresh()
        assert seen(reader) == seen(store)
        with pytest.raises(ReadOnly):
            reader.lights.delete(name_of(0))


OPEN_MENDS: list[tuple[str, Callable[[Path], object], str]] = [
    ("a bit", lambda f: damage.flip(f / SLOTS, SLOT * 40 + 9, 2), "light-damaged"),
    ("a slot cut amid", lambda f: cut(f / SLOTS, SLOT * 40 + 9), "light-damaged"),
    ("nothing left of a file", lambda f: (f / SLOTS).unlink(), ""),
    ("an older file", lambda f: cut(f / SLOTS, SLOT * 40), ""),
    ("a bit of a name", lambda f: damage.flip(f / "names", 57, 2), "light-damaged light-names"),
    ("no names", lambda f: (f / "names").unlink(), "light-damaged"),
    ("the first file gone", lambda f: (f / SLOTS).rename(f / f"{1 << 18:020d}"), "light-damaged"),
    ("of a queue that has no name", lambda f: other(f / SLOTS, SLOT * 40, 28, b"\0\0\1\0"),
     "light-damaged"),
    ("out of order", lambda f: other(f / SLOTS, SLOT * 40, 1, bytes(7)), "light-damaged"),
]  # fmt: skip


@pytest.mark.parametrize("harm, kind", [each[1:] for each in OPEN_MENDS],
                         ids=[each[0] for each in OPEN_MENDS])  # fmt: skip
def test_an_open_mends_what_is_not_sound(root: Path, harm: Callable[[Path], object], kind: str):
    with pystore.Reader(root) as reader:
        wanted = seen(reader)
    harm(folder(root))
    assert kinds(root) == set(kind.split())
    with pystore.Reader(root) as reader:
        assert wanted.items() <= seen(reader).items()
    with pystore.open(root) as store:
        assert wanted.items() <= seen(store).items()
    assert verify(root).findings == []


REPAIR_MENDS: list[tuple[str, Callable[[Path], object], str]] = [
    ("another place", lambda f: other(f / SLOTS, SLOT * 40, 20, (99).to_bytes(8)), "light-units"),
    ("another queue", lambda f: other(f / SLOTS, SLOT * 40, 28, bytes(4)), "light-units"),
    ("another size", lambda f: other(f / SLOTS, SLOT * 40, 8, bytes(4)), "light-units"),
    ("another list", lambda f: other(f / SLOTS, SLOT * 40, 32, bytes(12)), "light-units"),
    ("no unit", lambda f: other(f / SLOTS, SLOT * 40, 0, b"\2"), "light-missing"),
]  # fmt: skip


@pytest.mark.parametrize("harm, kind", [each[1:] for each in REPAIR_MENDS],
                         ids=[each[0] for each in REPAIR_MENDS])  # fmt: skip
def test_a_repair_mends_what_is_sound_and_wrong(
    root: Path, harm: Callable[[Path], object], kind: str
):
    with pystore.Reader(root) as reader:
        wanted = seen(reader)
    harm(folder(root))
    harmed = (folder(root) / SLOTS).read_bytes()
    assert kind in {finding.kind for finding in verify(root).errors}
    assert repair(root).after.findings == []
    with pystore.open(root) as store:
        assert wanted.items() <= seen(store).items()
    assert verify(root).findings == []
    shutil.rmtree(folder(root))  # as before the open
    folder(root).mkdir()
    undo(root)
    assert (folder(root) / SLOTS).read_bytes() == harmed


def test_a_record_that_a_crash_took_is_in_no_light_queue(root: Path):
    """Its units may be on the disk, and later records, too; the open makes a chain of these."""
    with pystore.Reader(root) as reader:
        wanted = seen(reader)
    lost = [record for record in damage.records(root) if record.topic == "parent"][200]
    raw = lost.file.read_bytes()[lost.at :][: lost.size]
    named = [name for name, records in wanted.items() if raw in records]
    damage.write(lost.file, lost.at, bytes(lost.size))
    damage.crash(root)
    (root / "checkpoint").write_bytes(bytes(4096))
    with pystore.open(root) as store:
        for name in wanted:
            found = [row.raw for row in store.lights.read(name, 0, 64)]
            assert found == [each for each in wanted[name] if each != raw]
            assert store.lights.range(name) == (0, len(wanted[name]))
    assert len(named) == 2
    assert verify(root).errors == []


def test_a_rebuild_makes_them_again(root: Path):
    with pystore.Reader(root) as reader:
        wanted = seen(reader)
    rebuild(root)
    with pystore.open(root) as store:
        assert wanted.items() <= seen(store).items()
    assert verify(root, deep=True).findings == []


def test_what_stands_in_the_place_of_a_file_is_named(root: Path):
    (folder(root) / "names").unlink()
    (folder(root) / "names").mkdir()
    assert [finding.kind for finding in verify(root).errors] == ["stray-file"]
