"""Cold tiers into which a stranger has written: ``python -m tests.attack.tiers KIND FIRST COUNT``
makes so many of them, from a seed on, and does with each what tools, readers and a broker do. An
error without a name, and what takes long, goes to stderr; MB of memory to stdout.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import resource
import shutil
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pystore
from broker.services.cold.cold import Cold
from broker.services.config import Config
from pystore.cold.java import hand_over
from pystore.cold.manifest import ManifestPage, Row, crc_of, page_key, with_sum
from pystore.cold.places import MANIFESTS, broker_folder, manifest_key, object_name
from pystore.cold.push import push
from pystore.cold.reader import ColdReader
from pystore.cold.restore import fetch, restore, salvage
from pystore.cold.tier import Tier, new_tier, open_tier
from pystore.cold.upkeep import collect, remove, verify
from pystore.errors import StoreError
from pystore.format.units import UNIT
from pystore.native import lib
from tests.attack.hostile import NODES

__all__ = ["STRANGE", "made", "spoil"]

NAMES = "c1", "broker-a"
#: Seconds that one thing may take with one tier; those of a loop are a hundred times less.
SLOW_S = 20.0
#: In the place of any number.
NUMBERS = [-1, 0, 1, 2, 255, 1 << 20, 1 << 31, 1 << 32, 1 << 46, (1 << 62) - 1, 1 << 62,
           (1 << 63) - 1, 1 << 63, 1 << 64, 10**40]  # fmt: skip

# ---- a sound one ----


def made(folder: Path) -> None:
    """Makes a store, and its tier: two topics of two queues, in several segments."""
    rng = random.Random(49)
    with pystore.open(folder / "store", mappedFileSizeCommitLog=64 << 10) as store:
        for n in range(600):
            body = rng.randbytes(rng.randrange(300))
            store.put(("orders", "paid")[n % 2], body, queue=n // 2 % 2, tags="ab"[n % 2],
                      keys=f"k{n % 9} all")  # fmt: skip
        store.flush()
        push(store, new_tier(folder / "cold", *NAMES), segment_bytes=4 << 10)
        store.clean(immediate=True)


# ---- a strange one ----


class Spoiled:
    """A tier that a stranger writes into."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root = root / broker_folder(*NAMES)
        self.rng = rng
        self.topic, self.queue = rng.choice(["orders", "paid"]), rng.randrange(2)

    def manifest(self) -> Path:
        return self.root / manifest_key(self.topic, self.queue, 1)

    def edit(self, change: Callable[[Any], Any]) -> None:
        value = json.loads(self.manifest().read_bytes())
        del value["crc"]
        self.manifest().write_bytes(with_sum(json.dumps(change(value) or value).encode()))

    def segments(self) -> list[Path]:
        return sorted((self.root / self.topic / str(self.queue) / "COMMIT_LOG").iterdir(),
                      key=lambda path: path.name[-20:])  # fmt: skip

    def reseal(self, number: int, data: bytes) -> None:
        """Writes a segment, and makes its manifest agree."""
        self.segments()[number].write_bytes(data)
        at = Row._fields.index("crc")
        self.edit(lambda m: m["rows"][number].__setitem__(at, crc_of(data)))

    def row(self, number: int) -> Row:
        return Row(*json.loads(self.manifest().read_bytes())["rows"][number])

    def any_segment(self) -> int:
        return self.rng.randrange(len(self.segments()))


def field(t: Spoiled) -> None:
    """Any value of a manifest is another one."""
    value = t.rng.choice([*NODES, *NUMBERS])

    def change(m: dict[str, Any]) -> None:
        name = t.rng.choice(list(m))
        place, at = m, name
        while isinstance(place[at], list) and place[at] and t.rng.random() < 0.9:
            place, at = place[at], t.rng.randrange(len(place[at]))
        place[at] = value

    t.edit(change)


def numbers(t: Spoiled) -> None:
    """Several numbers of a row, such that its sizes add up."""

    def change(m: dict[str, Any]) -> None:
        for row in m["rows"]:
            row[0] = t.rng.choice([row[0], (1 << 61) + row[0]])
        far = t.rng.choice(NUMBERS)
        for row in m["rows"][t.rng.randrange(len(m["rows"])) :]:
            row[3] += far
        m["end"] = m["rows"][-1][3] + m["rows"][-1][4]
        m["next_base"] = m["last_end"] = (1 << 61) + m["next_base"]
        m["low"] = t.rng.choice([0, m["end"], m["end"] // 2])

    t.edit(change)


def times(t: Spoiled) -> None:
    at = Row._fields.index("time_min") + t.rng.randrange(2)
    t.edit(lambda m: [row.__setitem__(at, t.rng.choice(NUMBERS)) for row in m["rows"]] and None)


def text(t: Spoiled) -> None:
    """What is not a manifest, or more than one."""
    whole = t.manifest().read_bytes()
    rows = b'"rows":' + whole.partition(b'"rows":')[2]
    t.manifest().write_bytes(t.rng.choice([
        b"", b"\0" * 100, b"[" * 2_000_000, b"[" + b"[]," * 1_300_000 + b"[]]",
        b"{" + b",".join(b'"%d":0' % n for n in range(300_000)) + b"}", b"9" * 4_000_000,
        b"NaN", b'"\\ud800"', b"\xff\xfe[\0]\0", whole[:-1], whole + whole,
        b'{"rows":[],' + whole[1:], whole[:-1] + b"," + rows,
        whole.replace(b'"low":0', b'"low":Infinity'), whole.replace(b'"low":0', b'"low":1e400'),
        whole.replace(t.topic.encode(), b"\\ud800"),
    ]))  # fmt: skip


def large(t: Spoiled) -> None:
    """More than anybody has: a manifest of a gigabyte, rows without number, pages."""
    kind = t.rng.randrange(4)
    if kind == 0:
        os.truncate(t.manifest(), 1 << 30)
    elif kind == 1:
        row = [0, 91 + 20 + 48, 91, 0, 1, 0, 0, 0, 0, 0, 0]
        rows = [[n * 200, *row[1:3], n, *row[4:]] for n in range(60_000)]
        t.edit(lambda m: m | {"rows": rows, "end": 60_000, "next_base": 1 << 30})
    elif kind == 2:
        size = t.rng.choice([1, 4 << 20])
        pages = [[n, size, 0, 1, n, n + 1, 0, 1 << 61, 1] for n in range(16_384)]
        t.edit(lambda m: m | {"rows": [], "pages": pages, "end": 16_384})
    else:
        os.truncate(t.segments()[t.any_segment()], 1 << 40)


def pages(t: Spoiled) -> None:
    """A page that says something else than its manifest."""
    whole = json.loads(t.manifest().read_bytes())
    rows = whole["rows"][:2]
    first, end = rows[0][3], rows[-1][3] + rows[-1][4]
    change = t.rng.randrange(4)
    if change == 0:
        rows = rows[:1]
    elif change == 1:
        rows[0][t.rng.randrange(len(rows[0]))] = t.rng.choice(NUMBERS)
    data = t.rng.choice([json.dumps(rows).encode()] * 3 + [b"[[" * 100_000, b"{}"])
    page = ManifestPage(7, len(data), crc_of(data), 2, first, end, 0, 1 << 50, 1 << 20)
    t.edit(lambda m: m | {"rows": m["rows"][2:], "pages": [list(page)]})
    path = t.root / page_key(t.topic, t.queue, 7)
    if change != 2:
        path.write_bytes(data)


def names(t: Spoiled) -> None:
    """Names that lead elsewhere, or that two have."""
    manifest = t.manifest().read_bytes()
    below = t.root / MANIFESTS
    deep = "a/" * 40
    for name in (
        f"{t.topic}/007/{1:020d}", f"{t.topic}/{t.queue}/{10**20 - 1:020d}",
        f"{t.topic}/{t.queue}/{(1 << 62) - 1:020d}", f"{t.topic}/99999/{1:020d}",
        f"{t.topic}/-1/{1:020d}", f"{t.topic}/x/{1:020d}", f"\x1b[31m\n/0/{1:020d}",
        f"{'n' * 250}/0/{1:020d}", f"..x/0/{1:020d}", f"\udcff/0/{1:020d}", f"{deep}/0/{1:020d}",
        f"TBW102/0/{1:020d}", f"rmq_sys_x/0/{1:020d}", f"{MANIFESTS}/0/{1:020d}",
    ):  # fmt: skip
        if t.rng.random() < 0.3:
            (below / name).parent.mkdir(parents=True, exist_ok=True)
            (below / name).write_bytes(manifest)
    for base in (0, 10**20 - 1, (1 << 62) - 1, 1 << 63):
        (t.root / t.topic / str(t.queue) / "COMMIT_LOG" / object_name(base)).touch()


def links(t: Spoiled) -> None:
    """Links out of the tier, folders in the places of objects, pipes."""
    path = t.rng.choice([*t.segments(), t.manifest(), t.manifest().parent,
                         t.segments()[0].parent.parent])  # fmt: skip
    shutil.move(path, t.root.parent.parent / "elsewhere")
    kind = t.rng.randrange(4)
    if kind == 0:
        path.symlink_to(t.root.parent.parent / "elsewhere")
    elif kind == 1:
        path.symlink_to(path)
    elif kind == 2:
        path.mkdir()
    else:
        os.mkfifo(path)


def objects(t: Spoiled) -> None:
    """Objects that are empty, cut, longer, others', or not there."""
    path = t.segments()[t.any_segment()]
    data = path.read_bytes()
    other = t.segments()[t.any_segment()].read_bytes()
    path.write_bytes(t.rng.choice([b"", data[:-1], data + b"\0", t.rng.randbytes(len(data)), other,
                                   data[: t.rng.randrange(len(data))]]))  # fmt: skip
    if t.rng.random() < 0.2:
        path.unlink()


def units(t: Spoiled) -> None:
    """Units that lead elsewhere; the sums are right."""
    number = t.any_segment()
    row, data = t.row(number), bytearray(t.segments()[number].read_bytes())
    for n in range(row.count):
        if t.rng.random() < 0.2:
            place, size, code = UNIT.unpack_from(data, row.records + n * UNIT.size)
            place = t.rng.choice([place, -(1 << 63), -1, (1 << 63) - 1, 1 << 46, row.base - 1, 0])
            size = t.rng.choice([size, -(1 << 31), 0, 1, (1 << 31) - 1, row.size])
            UNIT.pack_into(data, row.records + n * UNIT.size, place, size, code)
    t.reseal(number, bytes(data))


def records(t: Spoiled) -> None:
    """Records with another place, queue, offset or length; the sum of the segment is right."""
    number = t.any_segment()
    row, data = t.row(number), bytearray(t.segments()[number].read_bytes())
    for n in range(row.count):
        place, _, _ = UNIT.unpack_from(data, row.records + n * UNIT.size)
        if t.rng.random() < 0.3:
            at = place - row.base + t.rng.choice([0, 4, 8, 12, 16, 20, 28, 36, 40, 48, 56, 64, 72])
            struct.pack_into(
                ">q",
                data,
                min(at, len(data) - 8),
                t.rng.choice([-1, 0, 1 << 40, (1 << 62) - 1, 0x7FFFFFFF_7FFFFFFF]),
            )
    t.reseal(number, bytes(data))


def keys(t: Spoiled) -> None:
    """A table of keys in which each key is every message's."""
    number = t.any_segment()
    row, data = t.row(number), bytearray(t.segments()[number].read_bytes())
    start = row.records + row.count * UNIT.size
    wanted = t.rng.choice([crc_of(b"all"), crc_of(b"k1"), 0, 0xFFFFFFFF])
    block, numbers = int(lib.PS_FLAT_KEYS), [0xFFFFFFFF, 0, *range(row.count)]
    at = start
    for first in range(0, row.keys, block):
        few = min(block, row.keys - first)
        keys = b"".join(struct.pack(">II", wanted, t.rng.choice(numbers)) for _ in range(few))
        summed = struct.pack(">qI", row.base, first) + keys
        data[at : at + len(keys) + 4] = keys + struct.pack(">I", crc_of(summed))
        at += len(keys) + 4
    t.reseal(number, bytes(data))


def order(t: Spoiled) -> None:
    """Segments in another order, twice, with gaps."""

    def change(m: dict[str, Any]) -> None:
        kind = t.rng.randrange(4)
        if kind == 0:
            m["rows"].reverse()
        elif kind == 1:
            m["rows"].append(m["rows"][-1])
        elif kind == 2:
            del m["rows"][1:-1]
        else:
            t.rng.shuffle(m["rows"])

    t.edit(change)


def strangers_units(t: Spoiled) -> None:
    """A tier as upstream writes it, whose units lead anywhere, into files without an end."""
    shutil.rmtree(t.root)
    folder = t.root / "orders" / "0"
    for kind in ("COMMIT_LOG", "CONSUME_QUEUE"):
        (folder / kind).mkdir(parents=True)
    log = folder / "COMMIT_LOG" / object_name(0)
    log.touch()
    os.truncate(log, t.rng.choice([0, 1 << 20, 1 << 31, 1 << 43]))
    table = folder / "CONSUME_QUEUE" / object_name(t.rng.choice([0, 20, 7, (1 << 61)]))
    places = [0, 1, 1 << 20, 1 << 30, 1 << 42, -1, (1 << 63) - 1]
    sizes = [0, 100, 1 << 20, 1 << 26, 1 << 30, (1 << 31) - 1, -1]
    table.write_bytes(b"".join(
        UNIT.pack(t.rng.choice(places), t.rng.choice(sizes), 0) for _ in range(2000)
    ))  # fmt: skip
    if t.rng.random() < 0.3:
        os.truncate(table, 1 << 42)
    (folder / "CONSUME_QUEUE" / object_name(200)).write_bytes(bytes(4000))


STRANGE: dict[str, Callable[[Spoiled], None]] = {
    made.__name__: made
    for made in (
        field, numbers, times, text, large, pages, names, links, objects, units, records, keys,
        order, strangers_units,
    )
}  # fmt: skip


def spoil(folder: Path, kind: str, seed: int) -> None:
    """Writes into the tier of a folder. A stranger's name may be one that the disk does not
    take."""
    STRANGE[kind](Spoiled(folder / "cold", random.Random(seed)))


# ---- what is done with it ----


def _reads(folder: Path) -> None:
    with ColdReader(folder / "cold") as reader:
        for topic in ("orders", "paid"):
            for queue in (0, 1):
                for offset in (0, 40, 1 << 61):
                    reader.read(topic, queue, offset, tags="a")
                    reader.read(topic, queue, offset, max_messages=1000)
                reader.units(topic, queue, 0, 100)
                reader.offset_at(topic, queue, 1_800_000_000_000)
                reader.holes(topic, queue, *reader.range(topic, queue))


def _queries(folder: Path) -> None:
    with ColdReader(folder / "cold") as reader:
        for key in ("all", "k1", "none"):
            reader.query("orders", key)
            reader.query("paid", key)


def _scans(folder: Path) -> None:
    with ColdReader(folder / "cold") as reader:
        for _ in reader.messages():
            pass


def _lists(folder: Path) -> None:
    with ColdReader(folder / "cold") as reader:
        list(reader.tier.each_span())
        reader.info()


def _own(folder: Path) -> Tier | None:
    found = open_tier(folder / "cold")
    return found if isinstance(found, Tier) else None


def _verifies(folder: Path) -> None:
    tier = _own(folder)
    if tier is not None:
        verify(tier)
        verify(tier, quick=True)


def _writes(folder: Path) -> None:
    with pystore.Reader(folder / "store") as reader:
        push(reader, new_tier(folder / "cold", *NAMES), segment_bytes=4 << 10)


def _serves(folder: Path) -> None:
    """What the thread of a broker does, and one read of each queue."""
    with pystore.Store(folder / "store", mappedFileSizeCommitLog=64 << 10) as store:
        given = {"tieredStoreFilePath": str(folder / "cold"), "tieredUploadWaitMillis": 0}
        cold = Cold(store, Config(store.settings.replaced(**given)),
                    SimpleNamespace(get=lambda _: None), *NAMES, 0)  # fmt: skip
        cold.lead()

        async def serves() -> None:
            cold.reads.start()
            for n in range(3):
                store.put("orders", b"new", queue=n % 2)
                store.flush()
                cold.round()
                for topic in ("orders", "paid"):
                    for queue in (0, 1):
                        store.read(topic, queue, 0)
                await asyncio.sleep(0.05)
            await cold.reads.stop()
            cold.uploads.close()

        asyncio.run(serves())


def _goes_on(folder: Path) -> None:
    tier = _own(folder)
    if tier is not None:
        collect(tier, grace_s=-1)
        for topic in ("orders", "paid"):
            remove(tier, topic, before=1_800_000_000_000)
            remove(tier, topic)


def _copies(folder: Path) -> None:
    with ColdReader(folder / "cold") as reader:
        fetch(reader, folder / "copy", cluster="c", broker="b")


def _restores(folder: Path) -> None:
    with ColdReader(folder / "cold") as reader:
        restore(reader, folder / "restored", segment_bytes=64 << 10)


def _salvages(folder: Path) -> None:
    salvage(folder / "cold", folder / "salvaged", segment_bytes=64 << 10)


def _hands_over(folder: Path) -> None:
    tier = _own(folder)
    if tier is not None:
        hand_over(tier, folder / "java")


WORK = (_lists, _reads, _queries, _scans, _verifies, _copies, _restores, _salvages, _writes,
        _serves, _hands_over, _goes_on)  # fmt: skip


def tried(folder: Path) -> Iterator[str]:
    """Yields errors without a name, and what takes too long."""
    for work in WORK:
        began_s = time.monotonic()
        try:
            work(folder)
        except StoreError:
            pass
        except Exception:
            yield f"{work.__name__}: {traceback.format_exc()}"
        took_s = time.monotonic() - began_s
        if took_s > SLOW_S:
            yield f"{work.__name__}: {took_s:.0f} s"


def run(kind: str, first: int, count: int) -> None:
    with tempfile.TemporaryDirectory() as at:
        sound = Path(at, "sound")
        made(sound)
        for seed in range(first, first + count):
            folder = Path(at, "spoiled")
            shutil.copytree(sound, folder)
            spoil(folder, kind, seed)
            for wrong in tried(folder):
                print(f"{kind} {seed} {wrong}", file=sys.stderr)
            shutil.rmtree(folder)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
