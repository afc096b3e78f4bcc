"""Copies of a store that is written to meanwhile: file by file, in any order, as ``cp -r`` and
``rsync`` make them. No backup; but what is whole in the copied log is delivered after an open, or
else named by `verify` and delivered after a repair, and nothing else is."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import storeview

import pystore
from pystore.audit import verify
from pystore.audit.kinds import MissingSegmentFinding
from pystore.repair import repair
from tests.museum import damage

COPIES = int(os.environ.get("PS_COPIES", "6"))
CHILD = """
import random, sys
import pystore
dice = random.Random(int(sys.argv[2]))
sizes = {"mappedFileSizeCommitLog": 64 << 10, "mappedFileSizeConsumeQueue": 4000,
         "maxHashSlotNum": 64, "maxIndexNum": 256}
told = False
with pystore.open(sys.argv[1], **sizes) as store:
    while True:
        bodies = [b"." * dice.choice((10, 100, 1000)) for _ in range(dice.randrange(1, 9))]
        keys = [f"k{dice.randrange(99)}" for _ in bodies]
        store.put_many(f"t{dice.randrange(4)}", bodies, keys=keys, queue=dice.randrange(3))
        if not told:
            told = print("put", flush=True) is None
        sys.stdin.readline()  # as fast as it is asked to
"""

MAGIC = bytes.fromhex("daa320a7")
#: Up to the body: size, magic, CRC, queue, flag, queue offset, place, ..., length of the body.
HEAD = struct.Struct(">iIiiiqq48xi")

Place = tuple[str, int, int, int]  # topic, queue, queue offset, physical offset


def whole(root: Path) -> set[Place]:
    """The whole records of the log, those behind a hole among them: a page that was copied late may
    hold more than the one before it."""
    found = set()
    for file in damage.segments(root):
        data, at = file.read_bytes(), 0
        while (at := data.find(MAGIC, at + 1)) >= 0:
            place = place_of(data, at - 4, int(file.name))
            if place is not None:
                found.add(place)
    return found


def place_of(data: bytes, at: int, base: int) -> Place | None:
    """Of the record there, when it is whole: its last byte ends a property."""
    if at < 0 or at + HEAD.size > len(data):
        return None
    size, _, crc, queue, _, offset, physical, length = HEAD.unpack_from(data, at)
    topic = at + HEAD.size + length
    if physical != base + at or length < 0 or topic >= at + size or at + size > len(data):
        return None
    body, name = data[topic - length : topic], data[topic + 1 : topic + 1 + data[topic]]
    if zlib.crc32(body) & 0x7FFFFFFF != crc or data[at + size - 1] != 2:
        return None
    return name.decode(), queue, offset, physical


def served(store: pystore.Store | pystore.Reader) -> set[Place]:
    there = storeview.delivered(store)
    return {(*queue, *m[:2]) for queue, messages in there.items() for m in messages}


def copy(root: Path, into: Path, dice: random.Random, writer: subprocess.Popen[str]) -> None:
    """First what `first` names, or in no order at all; a message is put after each file."""
    first = dice.choice(("", "commitlog", "consumequeue", "checkpoint", "index"))
    files = sorted(p for p in root.rglob("*") if p.is_file())
    dice.shuffle(files)
    if first:
        files.sort(key=lambda p: not str(p.relative_to(root)).startswith(first))
    print("copy", into.name, "first", first or "any")
    assert writer.stdin is not None
    for file in files:
        target = into / file.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # it was replaced meanwhile
            shutil.copyfile(file, target)
        for _ in range(dice.randrange(3)):
            print(file=writer.stdin, flush=True)


@pytest.fixture
def copies(tmp_path: Path, seed: int) -> list[Path]:
    dice, root, made = random.Random(seed), tmp_path / "store", []
    command, pipe = [sys.executable, "-c", CHILD, str(root), str(seed)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdout.readline()  # there is a log
        for i in range(COPIES):
            for _ in range(dice.randrange(100)):
                print(file=writer.stdin, flush=True)
            made.append(tmp_path / str(i))
            copy(root, made[-1], dice, writer)
        writer.kill()
    return made


def test_what_is_whole_in_a_copy_is_delivered(copies: list[Path]):
    for root in copies:
        log = whole(root)
        seen = verify(root)
        opened = Path(shutil.copytree(root, root.with_name("opened")))
        try:
            with pystore.Reader(root) as reader:
                assert served(reader) <= log, root
            with pystore.open(opened) as store:
                kept = served(store)
            assert kept <= log, root
            assert kept == log or seen.errors or verify(opened).errors, root
        except pystore.MissingSegment:
            # The copy of the log ended with a segment, and that of the queues came later.
            assert any(isinstance(f, MissingSegmentFinding) for f in seen.findings), root
        done = repair(root)
        assert done.after is not None
        assert done.after.sound, (root, done.after.findings)
        with pystore.open(root) as store:
            assert served(store) == log, root
        shutil.rmtree(opened)
