"""Every kind of damage: what is done, where, to which store, and which records it touches.

A kind is a file and a damage of it, at a place, in a store that was closed or had crashed: of ours,
or of Apache's (the golden ones). Its name says all four. :func:`all_kinds` makes them.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pystore
from tests.museum import damage

TOPIC, QUEUES, COUNT = "t", 3, 400
SIZES = {
    "mappedFileSizeCommitLog": 16 << 10,
    "mappedFileSizeConsumeQueue": 400,
    "maxHashSlotNum": 64,
    "maxIndexNum": 128,
}
INDEX_ENTRIES_AT = 40


@dataclass(frozen=True)
class Whole:
    """A whole record of the log that a queue delivers."""

    topic: str
    queue: int
    offset: int
    physical: int
    size: int
    keys: tuple[str, ...]


@dataclass
class Sample:
    """A sound store. topic: the one that queues are damaged of."""

    root: Path
    topic: str
    whole: list[Whole] = field(default_factory=list)
    slots: int = SIZES["maxHashSlotNum"]

    def read(self) -> Sample:
        with pystore.Reader(self.root) as reader:
            self.slots = reader.info().index_slots
            for m in reader.messages():
                keys = (*m.properties.get("KEYS", "").split(), m.properties.get("UNIQ_KEY", ""))
                if m.sys_flag & 0xC not in (0x4, 0xC):
                    self.whole.append(
                        Whole(m.topic, m.queue, m.queue_offset, m.physical_offset, m.size,
                              tuple(k for k in keys if k))
                    )  # fmt: skip
        return self

    def overlapping(self, start: int, end: int) -> set[int]:
        return {w.physical for w in self.whole if w.physical < end and w.physical + w.size > start}


def make_ours(root: Path) -> Sample:
    """A small store of several segments, queue files and index files."""
    with pystore.open(root, **SIZES) as store:
        for i in range(COUNT):
            store.put(TOPIC, b"m%d" % i, keys=f"k{i}", queue=i % QUEUES, tags="ab"[i % 2])
        store.metadata.offsets.commit("group", TOPIC, 0, 7)
    shutil.rmtree(root / "meta")  # the config files have it, too, and reading those is fast
    return Sample(root, TOPIC).read()


Touched = set[int]
Damage = Callable[[Sample, Path], "Touched | None"]


# ---- the log ----

Change = Callable[[damage.Record], None]


def _flip(at: int, bit: int = 0) -> Change:
    return lambda r: damage.flip(r.file, r.at + at, bit)


def _put(at: int, data: bytes) -> Change:
    return lambda r: damage.write(r.file, r.at + at, data)


def _in_text(text: Callable[[damage.Record], bytes], shift: int, data: bytes) -> Change:
    def change(r: damage.Record) -> None:
        found = r.file.read_bytes()[r.at : r.at + r.size].rindex(text(r))
        damage.write(r.file, r.at + found + shift, data)

    return change


def _in_properties(patterns: tuple[bytes, ...], data: bytes) -> Change:
    """Over the group of the first pattern that the record has."""

    def change(r: damage.Record) -> None:
        record = r.file.read_bytes()[r.at : r.at + r.size]
        match = next(m for p in patterns if (m := re.search(p, record, re.DOTALL)))
        damage.write(r.file, r.at + match.start(1), data)

    return change


def _next_offset(r: damage.Record) -> None:
    damage.write(r.file, r.at + 20, struct.pack(">q", r.queue_offset + 1))


def _other_queue(r: damage.Record) -> None:
    damage.write(r.file, r.at + 12, struct.pack(">i", (r.queue + 1) % QUEUES))


def _zeros(size: int) -> Change:
    def change(r: damage.Record) -> None:
        room = r.file.stat().st_size - r.at
        damage.write(r.file, r.at, bytes(min(size or r.size, room)))

    return change


def _blank(size: int) -> Change:
    def change(r: damage.Record) -> None:
        room = size or r.file.stat().st_size - r.at
        damage.write(r.file, r.at, struct.pack(">iI", room, damage.BLANK))

    return change


def _noise(r: damage.Record) -> None:
    damage.write(r.file, r.at, (b"\xda\xa3\x20\xa7" * r.size)[: r.size])


#: Name, what is done to the record, how many bytes of the log it takes (0: its own).
RECORD: dict[str, tuple[Change, int]] = {
    "size": (_flip(3), 0),
    "size negative": (_put(0, b"\xff"), 0),
    "size zero": (_put(0, bytes(4)), 0),
    "size huge": (_put(0, b"\x7f\xff\xff\xff"), 0),
    "magic": (_flip(6, 3), 0),
    "body sum": (_flip(8), 0),
    "queue id": (_other_queue, 0),
    "queue id negative": (_put(12, b"\xff"), 0),
    "queue offset": (_next_offset, 0),
    "queue offset negative": (_put(20, b"\xff"), 0),
    "queue offset far": (_put(21, b"\x10"), 0),
    "own place": (_flip(34), 0),
    "system flag": (_flip(39, 4), 0),
    "born time": (_flip(44, 5), 0),
    "store time back": (_put(56, bytes(4)), 0),
    "store time ahead": (_put(56, b"\x00\x7f"), 0),
    "body length": (_flip(87), 0),
    "body length negative": (_put(84, b"\xff"), 0),
    "body": (_flip(88), 0),
    "topic": (_in_text(lambda r: r.topic.encode(), 0, b"\x01"), 0),
    "topic length": (_in_text(lambda r: bytes([len(r.topic)]) + r.topic.encode(), 0, b"\x7f"), 0),
    "properties": (_in_properties((rb"KEYS(\x01)", rb"UNIQ_KEY(\x01)"), b"\x02"), 0),
    "key": (_in_properties((rb"KEYS\x01(.)", rb"UNIQ_KEY\x01(.)"), b"\xff"), 0),
    "properties length": (_in_properties((rb"(.)MSG_REGION\x01", rb"(.)KEYS\x01"), b"\xff"), 0),
    "zeros": (_zeros(0), 0),
    "page of zeros": (_zeros(4096), 4096),
    "noise": (_noise, 0),
    "early blank": (_blank(0), 8),
    "short blank": (_blank(256), 8),
}


def _places(root: Path) -> dict[str, damage.Record]:
    log = [r for r in damage.records(root) if r.topic == TOPIC or r.size < 3000]
    files = sorted({r.file for r in log})
    second_file = files[min(1, len(files) - 1)]
    second = [r for r in log if r.file == second_file]
    return {"first": log[0], "middle": second[len(second) // 2], "last": log[-1]}


def _in_log(name: str, place: str) -> Damage:
    change, size = RECORD[name]

    def do(s: Sample, root: Path) -> Touched:
        record = _places(root)[place]
        change(record)
        return s.overlapping(record.physical, record.physical + (size or record.size))

    return do


def _segment(do: Callable[[Path, int], None], number: int, begin: float = 0) -> Damage:
    def damaged(s: Sample, root: Path) -> Touched:
        file = damage.segments(root)[number]
        size, base = file.stat().st_size, int(file.name)
        do(file, size)
        return s.overlapping(base + int(size * begin), base + size)

    return damaged


def _untouched(do: Callable[[Path], object]) -> Damage:
    def damaged(s: Sample, root: Path) -> None:
        do(root)

    return damaged


SEGMENT: dict[str, Damage] = {
    "first segment gone": _segment(lambda f, n: f.unlink(), 0),
    "middle segment gone": _segment(lambda f, n: f.unlink(), 1),
    "last segment gone": _segment(lambda f, n: f.unlink(), -1),
    "middle segment zeroed": _segment(lambda f, n: f.write_bytes(bytes(n)), 1),
    "last segment zeroed": _segment(lambda f, n: f.write_bytes(bytes(n)), -1),
    "middle segment cut in half": _segment(lambda f, n: os.truncate(f, n // 2), 1, 0.5),
    "last segment cut": _segment(lambda f, n: os.truncate(f, n // 4), -1, 0.25),
    "middle segment emptied": _segment(lambda f, n: os.truncate(f, 0), 1),
    "segment of another size": _segment(lambda f, n: os.truncate(f, n + 100), 1, 1),
    "stray file among segments": _untouched(lambda r: (r / "commitlog/notes.txt").write_text("x")),
    "folder among segments": _untouched(lambda r: (r / "commitlog/1").mkdir()),
    "empty next segment": _untouched(
        lambda r: (r / "commitlog" / f"{int(damage.segments(r)[-1].name) * 2:020d}").touch()
    ),
}


# ---- segments of other generations ----


def _generation(of: int) -> Damage:
    """The second segment, of another generation: records that stand whole in its place and claim
    the queue offsets of the messages of another segment."""

    def damaged(s: Sample, root: Path) -> Touched:
        here, there = damage.segments(root)[1], damage.segments(root)[of]
        base, data = int(here.name), bytearray(there.read_bytes())
        size, at = here.stat().st_size, 0
        while at + 36 <= len(data) and (length := int.from_bytes(data[at : at + 4], "big")) > 8:
            if data[at + 4 : at + 8] != MAGIC_BLANK:
                data[at + 28 : at + 36] = (base + at).to_bytes(8, "big")
            at += length
        if not any(data[at:]) and size - at >= 8:  # the last one ends without a blank
            data[at : at + 8] = (size - at).to_bytes(4, "big") + MAGIC_BLANK
        here.write_bytes(data)
        return s.overlapping(base, base + size)

    return damaged


MAGIC_BLANK = bytes.fromhex("cbd43194")
#: Two records claim one queue offset, whatever mends the rest.
GENERATION: dict[str, Damage] = {
    "segment of a later generation": _generation(2),
    "segment of an earlier generation": _generation(0),
}


# ---- queues ----


def _queue_file(number: int, do: Callable[[Path], object], queue: int = 1) -> Damage:
    def damaged(s: Sample, root: Path) -> None:
        files = damage.queue_files(root, s.topic, queue)
        do(files[min(number, len(files) - 1)])

    return damaged


def _unit(at: int, data: bytes) -> Damage:
    return _queue_file(1, lambda f: damage.write(f, 200 + at, data))


def _swap(file: Path) -> None:
    data = file.read_bytes()
    damage.write(file, 200, data[220:240] + data[200:220])


def _double(file: Path) -> None:
    damage.write(file, 220, file.read_bytes()[200:220])


def _foreign(s: Sample, root: Path) -> None:
    other = damage.queue_files(root, s.topic, 2)[0].read_bytes()[200:220]
    damage.write(damage.queue_files(root, s.topic, 1)[0], 200, other)


def _whole_queue(do: Callable[[Path], object]) -> Damage:
    def damaged(s: Sample, root: Path) -> None:
        do(root / "consumequeue" / s.topic / "1")

    return damaged


def _zero_file(file: Path) -> None:
    damage.write(file, 0, bytes(file.stat().st_size))


def _add_file(file: Path) -> None:
    size = file.stat().st_size
    (file.parent / f"{int(file.name) + size:020d}").write_bytes(bytes(size))


def _to_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _to_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _to_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _exchanged(s: Sample, root: Path) -> None:
    folder = root / "consumequeue" / s.topic
    for old, new in (("1", "beside"), ("2", "1"), ("beside", "2")):
        (folder / old).rename(folder / new)


def _moved_by_one(s: Sample, root: Path) -> None:
    carried = bytes(20)
    for file in damage.queue_files(root, s.topic, 1):
        units = file.read_bytes()
        file.write_bytes(carried + units[:-20])
        carried = units[-20:]


QUEUE: dict[str, Damage] = {
    "queues exchanged": _exchanged,
    "units moved by one": _moved_by_one,
    "queues gone": _untouched(lambda r: shutil.rmtree(r / "consumequeue")),
    "queue gone": _whole_queue(shutil.rmtree),
    "queue folder empty": _whole_queue(lambda p: [f.unlink() for f in p.iterdir()]),
    "topic's queues gone": lambda s, r: shutil.rmtree(r / "consumequeue" / s.topic),
    "first queue file gone": _queue_file(0, Path.unlink),
    "middle queue file gone": _queue_file(1, Path.unlink),
    "last queue file gone": _queue_file(-1, Path.unlink),
    "first queue file zeroed": _queue_file(0, _zero_file),
    "middle queue file zeroed": _queue_file(1, _zero_file),
    "last queue file zeroed": _queue_file(-1, _zero_file),
    "queue file cut": _queue_file(1, lambda f: os.truncate(f, f.stat().st_size // 2)),
    "queue file emptied": _queue_file(1, lambda f: os.truncate(f, 0)),
    "queue file longer": _queue_file(1, lambda f: os.truncate(f, f.stat().st_size + 20)),
    "queue file too many": _queue_file(-1, _add_file),
    "queue file a pipe": _queue_file(1, _to_fifo),
    "queue file a device": _queue_file(1, _to_device),
    "queue file a loop": _queue_file(1, _to_loop),
    "queue file a folder": _queue_file(1, _to_folder),
    "stray file in a queue": _whole_queue(lambda p: (p / "notes.txt").write_text("x")),
    "file among topics": _untouched(lambda r: (r / "consumequeue/notes.txt").write_text("x")),
    "unit zero": _unit(0, bytes(20)),
    "unit's place": _unit(7, b"\x01"),
    "unit's place far": _unit(0, b"\x7f"),
    "unit's place negative": _unit(0, b"\xff"),
    "unit's size": _unit(11, b"\x01"),
    "unit's size huge": _unit(8, b"\x7f"),
    "unit's tags": _unit(19, b"\x01"),
    "units swapped": _queue_file(1, _swap),
    "unit doubled": _queue_file(1, _double),
    "unit of another queue": _foreign,
    "first unit zero": _queue_file(0, lambda f: damage.write(f, 0, bytes(20))),
}


# ---- the index ----


def _index(number: int, do: Callable[[Path], object]) -> Damage:
    return _untouched(lambda r: do(sorted((r / "index").iterdir())[number]))


def _entry(shift: int, data: bytes) -> Damage:
    """Into entry 10 of the first file."""

    def damaged(s: Sample, root: Path) -> None:
        file = sorted((root / "index").iterdir())[0]
        damage.write(file, INDEX_ENTRIES_AT + s.slots * 4 + 200 + shift, data)

    return damaged


INDEX: dict[str, Damage] = {
    "index gone": _untouched(lambda r: shutil.rmtree(r / "index")),
    "index empty": _untouched(lambda r: [f.unlink() for f in (r / "index").iterdir()]),
    "first index file gone": _index(0, Path.unlink),
    "last index file gone": _index(-1, Path.unlink),
    "first index file zeroed": _index(0, _zero_file),
    "last index file zeroed": _index(-1, _zero_file),
    "index file emptied": _index(0, lambda f: os.truncate(f, 0)),
    "index file cut": _index(0, lambda f: os.truncate(f, f.stat().st_size // 2)),
    "index file cut to its header": _index(0, lambda f: os.truncate(f, 41)),
    "index file a pipe": _index(0, _to_fifo),
    "index file a device": _index(0, _to_device),
    "index file a loop": _index(0, _to_loop),
    "index file a folder": _index(0, _to_folder),
    "stray file in the index": _untouched(lambda r: (r / "index/notes.txt").write_text("x")),
    "index header's count": _index(0, lambda f: damage.write(f, 36, b"\0\0\0\5")),
    "index header's count huge": _index(0, lambda f: damage.write(f, 36, b"\x7f\xff\xff\xff")),
    "index header's slots": _index(0, lambda f: damage.write(f, 32, b"\x7f")),
    "index header's times": _index(0, lambda f: damage.write(f, 0, b"\x7f")),
    "index header's places": _index(0, lambda f: damage.write(f, 16, b"\x7f")),
    "index slots zeroed": _index(0, lambda f: damage.write(f, 40, bytes(200))),
    "index slots of noise": _index(0, lambda f: damage.write(f, 40, b"\xff" * 200)),
    "index entry's hash": _entry(0, b"\x11"),
    "index entry's place": _entry(4, b"\x7f"),
    "index entry's time": _entry(12, b"\x7f"),
    "index entry's chain": _entry(16, b"\x11"),
    "index entry's chain a circle": _entry(16, b"\0\0\0\x0a"),
    "index entries zeroed": _entry(0, bytes(400)),
}


# ---- what stands beside ----


def _file(name: str, do: Callable[[Path], object]) -> Damage:
    return _untouched(lambda r: do(r / name))


def _deleted_elsewhere(s: Sample, root: Path) -> None:
    """The list of deleted topics of another store."""
    record = _places(root)["middle"]
    rows = struct.pack(">qi", record.physical + 10, len(s.topic)) + s.topic.encode()
    head = struct.pack(">II", 0x50534431, zlib.crc32(rows))
    (root / "deletedTopics").write_bytes(head + rows)


BESIDE: dict[str, Damage] = {
    "checkpoint gone": _file("checkpoint", Path.unlink),
    "checkpoint zeroed": _file("checkpoint", _zero_file),
    "checkpoint ahead": _file("checkpoint", lambda f: damage.write(f, 0, b"\x7f" * 40)),
    "checkpoint negative": _file("checkpoint", lambda f: damage.write(f, 0, b"\xff" * 40)),
    "checkpoint cut": _file("checkpoint", lambda f: os.truncate(f, 10)),
    "checkpoint a folder": _file("checkpoint", _to_folder),
    "topics.json torn": _file("config/topics.json", lambda f: os.truncate(f, 10)),
    "topics.json gone": _file("config/topics.json", Path.unlink),
    "topics.json emptied": _file("config/topics.json", lambda f: os.truncate(f, 0)),
    "topics.json noise": _file("config/topics.json", lambda f: f.write_bytes(b"\xff\0\x80" * 99)),
    "consumerOffset.json torn": _file("config/consumerOffset.json", lambda f: os.truncate(f, 10)),
    "consumerOffset.json ahead": lambda s, r: (r / "config/consumerOffset.json").write_text(
        f'{{"offsetTable":{{"{s.topic}@g":{{0:99999}}}}}}'
    ) and None,
    "queueEnds noise": lambda s, r: (r / "queueEnds").write_bytes(b"\xff" * 100) and None,
    "queueEnds emptied": lambda s, r: (r / "queueEnds").write_bytes(b"") and None,
    "tombstones of another store": _deleted_elsewhere,
    "tombstones noise": lambda s, r: (r / "deletedTopics").write_bytes(b"PSD1junk") and None,
}  # fmt: skip

#: Done to the second segment; Apache's closed store has one.
OF_TWO_SEGMENTS = {
    "middle segment gone", "middle segment zeroed", "middle segment cut in half",
    "middle segment emptied", "segment of another size",
}  # fmt: skip

#: Nothing is hidden or wrong: verify has nothing to say, or what it says is not damage.
QUIET = {
    "queueEnds noise", "queueEnds emptied", "file among topics", "empty next segment",
    "queue file too many", "stray file in the index", "topics.json gone", "born time",
    "folder among segments", "first segment gone", "checkpoint zeroed",
    # No sum covers these, and no reader believes them.
    "store time back", "store time ahead", "index header's slots", "index header's times",
    "index entry's time",
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """store: "ours closed", "ours crashed", "normal-exit" or "killed" (of Apache)."""

    name: str
    store: str
    what: str
    do: Damage


def _of_store(store: str, apache: bool) -> Iterator[Kind]:
    places = ("middle", "last") if apache else ("first", "middle", "last")
    for what in RECORD:
        for place in places:
            if what == "page of zeros" and place == "last":
                continue  # the same as zeros there
            yield Kind(f"{what}, {place} record", store, what, _in_log(what, place))
    tables = (
        (SEGMENT, QUEUE, INDEX, BESIDE) if apache else (SEGMENT, GENERATION, QUEUE, INDEX, BESIDE)
    )
    for table in tables:
        for what, do in table.items():
            if store != "normal-exit" or what not in OF_TWO_SEGMENTS:
                yield Kind(what, store, what, do)


def all_kinds() -> list[Kind]:
    found = []
    for store in ("ours closed", "ours crashed", "normal-exit", "killed"):
        found += list(_of_store(store, store in ("normal-exit", "killed")))
    return found
