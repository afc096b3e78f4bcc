"""Damages of a sound store: what they do, and what verify must say. Shared by the tests here."""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import pystore

SEGMENT = 1 << 20
SIZES = {
    "mappedFileSizeCommitLog": SEGMENT,
    "mappedFileSizeConsumeQueue": 6000,
    "maxHashSlotNum": 512,
    "maxIndexNum": 1024,
}
QUEUE = "consumequeue/orders/0/00000000000000000000"
#: Bytes of the body of each of 5,000 messages.
BODY = 360


@dataclass(frozen=True)
class Sample:
    """A sound store of three segments. place: of record 350 of queue 0, in the second segment."""

    root: Path
    place: int

    @property
    def segment(self) -> str:
        return f"commitlog/{self.place - self.place % SEGMENT:020d}"

    @property
    def at(self) -> int:
        return self.place % SEGMENT


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    root = tmp_path_factory.mktemp("audit") / "store"
    with pystore.open(root, **SIZES) as store:
        store.metadata.topics.put(pystore.TopicConfig("orders", 8, 8))
        for i in range(10):
            keys = [f"k{i * 500 + j}" for j in range(500)]
            store.put_many("orders", [b"x" * BODY] * 500, tags="a", keys=keys)
        found = store.read("orders", 0, 350, max_messages=1)[0].physical_offset
    assert SEGMENT < found < 2 * SEGMENT
    return Sample(root, found)


def poke(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def in_record(offset: int, data: bytes) -> Callable[[Sample, Path], None]:
    return lambda s, root: poke(root / s.segment, s.at + offset, data)


def in_file(name: str, at: int, data: bytes) -> Callable[[Sample, Path], None]:
    return lambda s, root: poke(root / name, at, data)


def index_file(root: Path, number: int) -> Path:
    return sorted((root / "index").iterdir())[number]


def swap_units(s: Sample, root: Path) -> None:
    data = (root / QUEUE).read_bytes()
    poke(root / QUEUE, 100, data[120:140] + data[100:120])


def replace_by_link(s: Sample, root: Path) -> None:
    (root / "meta/data.mdb").unlink()
    (root / "meta/data.mdb").symlink_to("/dev/zero")


def replace_by_pipe(s: Sample, root: Path) -> None:
    (root / QUEUE).unlink()
    os.mkfifo(root / QUEUE)


def blank(size: int) -> bytes:
    return struct.pack(">iI", size, 0xCBD43194)


def configuration_a_file(s: Sample, root: Path) -> None:
    shutil.rmtree(root / "config")
    (root / "config").touch()


def segments_swapped(s: Sample, root: Path) -> None:
    first, second = (root / f"commitlog/{n * SEGMENT:020d}" for n in (0, 1))
    first.rename(root / "beside")
    second.rename(first)
    (root / "beside").rename(second)


def queues_exchanged(s: Sample, root: Path) -> None:
    """Two that are not equally long."""
    folder = root / "consumequeue/orders"
    (folder / "0").rename(folder / "beside")
    (folder / "7").rename(folder / "0")
    (folder / "beside").rename(folder / "7")


def queue_files_moved(s: Sample, root: Path) -> None:
    """Each gets the name of the next one."""
    for file in sorted((root / QUEUE).parent.iterdir(), reverse=True):
        file.rename(file.with_name(f"{int(file.name) + 6000:020d}"))


def units_moved(s: Sample, root: Path) -> None:
    """Each stands where the next one belongs."""
    carried = bytes(20)
    for file in sorted((root / QUEUE).parent.iterdir()):
        units = file.read_bytes()
        file.write_bytes(carried + units[:-20])
        carried = units[-20:]


def last_unit_doubled(s: Sample, root: Path) -> None:
    file = sorted((root / QUEUE).parent.iterdir())[-1]
    units = file.read_bytes()
    end = -(-len(units.rstrip(b"\0")) // 20) * 20
    if end == len(units):
        file, at = file.with_name(f"{int(file.name) + 6000:020d}"), 0
        file.write_bytes(bytes(6000))
    else:
        at = end
    poke(file, at, units[end - 20 : end])


def topic_not_deleted(s: Sample, root: Path) -> None:
    """The list of deleted topics of another store, or of another copy of this one."""
    rows = struct.pack(">qi", 3 * SEGMENT, 6) + b"orders"
    head = struct.pack(">II", 0x50534431, zlib.crc32(rows))
    (root / "deletedTopics").write_bytes(head + rows)


#: Name of the damage, what does it, kinds that verify must name, at least.
CASES: list[tuple[str, Callable[[Sample, Path], object], set[str]]] = [
    ("magic", in_record(4, b"\0"), {"damaged-record"}),
    ("size", in_record(0, b"\x7f"), {"damaged-record"}),
    ("negative size", in_record(0, b"\xff"), {"damaged-record"}),
    ("body", in_record(90, b"Z"), {"damaged-record"}),
    ("place", in_record(35, b"\x07"), {"damaged-record"}),
    ("topic", in_record(84 + 4 + BODY + 1, b"p"), {"record-disagrees"}),
    ("queue id", in_record(15, b"\x07"), {"same-offset", "record-disagrees"}),
    ("queue offset", in_record(27, b"\x07"), {"same-offset", "record-disagrees"}),
    ("negative queue offset", in_record(20, b"\xff"), {"bad-queue-offset"}),
    ("page of zeros", in_record(0, bytes(4096)), {"damaged-record"}),
    ("early blank", lambda s, r: poke(r / s.segment, s.at, blank(SEGMENT - s.at)),
     {"records-after-blank"}),
    ("short blank", in_record(0, blank(100)), {"records-after-blank", "short-blank"}),
    ("segment gone", lambda s, r: (r / s.segment).unlink(), {"missing-segment"}),
    ("segment cut", lambda s, r: os.truncate(r / s.segment, SEGMENT // 2),
     {"segment-size", "ghost-units"}),
    ("stray file", lambda s, r: (r / "commitlog/notes.txt").touch(), {"stray-file"}),
    ("zero unit", in_file(QUEUE, 100, bytes(20)), {"zero-units", "missing-units"}),
    ("zero queue file", in_file(QUEUE, 0, bytes(6000)), {"zero-units", "missing-units"}),
    ("unit size", in_file(QUEUE, 111, b"\x01"), {"unit-size"}),
    ("unit place", in_file(QUEUE, 107, b"\x01"), {"foreign-unit"}),
    ("unit far away", in_file(QUEUE, 100, b"\x7f"), {"units-beyond"}),
    ("units swapped", swap_units, {"foreign-unit", "unit-order"}),
    ("pipe for a queue file", replace_by_pipe, {"queue-stray", "missing-units"}),
    ("queue file gone", lambda s, r: (r / QUEUE.replace("0" * 20, "6000".zfill(20))).unlink(),
     {"queue-gap", "missing-units"}),
    ("queue file cut", lambda s, r: os.truncate(r / QUEUE, 3000),
     {"queue-file-size", "missing-units"}),
    ("queues exchanged", queues_exchanged, {"foreign-unit", "record-disagrees"}),
    ("queue files moved", queue_files_moved, {"record-disagrees", "missing-units"}),
    ("units moved", units_moved, {"foreign-unit", "record-disagrees"}),
    ("last unit doubled", last_unit_doubled, {"record-disagrees"}),
    ("queue gone", lambda s, r: shutil.rmtree(r / "consumequeue/orders/0"), {"missing-units"}),
    ("queues gone", lambda s, r: shutil.rmtree(r / "consumequeue"), {"not-dispatched"}),
    ("index gone", lambda s, r: shutil.rmtree(r / "index"), {"missing-keys"}),
    ("index file gone", lambda s, r: index_file(r, 3).unlink(), {"missing-keys"}),
    ("index file empty", lambda s, r: os.truncate(index_file(r, 3), 0),
     {"index-size", "missing-keys"}),
    ("index file huge", lambda s, r: os.truncate(index_file(r, 3), 1 << 40), {"index-size"}),
    ("index hash", lambda s, r: poke(index_file(r, 3), 40 + 2048 + 1000, b"\x11"),
     {"missing-keys", "index-ghosts"}),
    ("index chain", lambda s, r: poke(index_file(r, 3), 40 + 2048 + 1016, b"\x11"),
     {"index-chain"}),
    ("index slot", lambda s, r: poke(index_file(r, 3), 40 + 200, bytes(4)), {"index-slots"}),
    ("index count", lambda s, r: poke(index_file(r, 3), 36, b"\0\0\0\5"),
     {"missing-keys", "index-header"}),
    ("configuration a file", configuration_a_file, {"config-json"}),
    ("topics torn", lambda s, r: (r / "config/topics.json").write_text('{"a'), {"config-json"}),
    ("database cut", lambda s, r: os.truncate(r / "meta/data.mdb", 8192), {"metadata-db"}),
    ("database empty", lambda s, r: os.truncate(r / "meta/data.mdb", 0), {"metadata-db"}),
    ("database overwritten", in_file("meta/data.mdb", 100, b"\xff" * 9000), {"metadata-db"}),
    ("database a device", replace_by_link, {"metadata-db"}),
    ("offset past the end", lambda s, r: (r / "config/consumerOffset.json").write_text(
        '{"offsetTable":{"orders@group":{0:99999}}}'), {"offset-past-end"}),
    ("tombstones", lambda s, r: (r / "deletedTopics").write_bytes(b"PSD1junk"), {"tombstones"}),
    ("a topic that was not deleted", topic_not_deleted, {"tombstones"}),
    ("queue file past every number", lambda s, r: (r / QUEUE).with_name("9" * 20).touch(),
     {"queue-stray"}),
]  # fmt: skip

#: Damage that hides nothing: a warning.
WARNINGS: list[tuple[str, Callable[[Sample, Path], object], str]] = [
    ("unit tags", in_file(QUEUE, 119, b"\x01"), "unit-tags"),
    ("checkpoint gone", lambda s, r: (r / "checkpoint").unlink(), "checkpoint"),
    ("offset below zero", lambda s, r: (r / "config/consumerOffset.json").write_text(
        '{"offsetTable":{"orders@group":{0:-5}}}'), "config-value"),
    ("checkpoint ahead", in_file("checkpoint", 0, b"\x7f"), "checkpoint"),
    ("garbage at the end",
     lambda s, r: poke(r / f"commitlog/{2 * SEGMENT:020d}", SEGMENT - 9, b"x"), "torn-tail"),
]  # fmt: skip


@pytest.fixture
def copy(sample: Sample, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sample.root, tmp_path / "store"))
