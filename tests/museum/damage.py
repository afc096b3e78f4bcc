"""Hands that damage a store: small changes to its files, each at a place that is looked up first.

Everything here works on closed stores. Records are found by walking the log, so that a test says
"the body of message 20" and not a number of bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAGICS = (0xDAA320A7, 0xDAA320AB)
BLANK = 0xCBD43194
UNIT = struct.Struct(">qiq")


@dataclass(frozen=True, slots=True)
class Record:
    """Where a record stands: its file, its place in the file and in the log, and what it says."""

    file: Path
    at: int
    physical: int
    size: int
    queue: int
    queue_offset: int
    topic: str


def segments(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def records(root: Path) -> Iterator[Record]:
    """Every record of the log, until the first place in a file where none stands."""
    for file in segments(root):
        data, at = file.read_bytes(), 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, at)
            if magic not in MAGICS:
                break
            queue, _, offset, physical, flags = struct.unpack_from(">iiqqi", data, at + 12)
            body = at + 48 + (20 if flags & 16 else 8) + 8 + (20 if flags & 32 else 8) + 12
            topic = body + 4 + struct.unpack_from(">i", data, body)[0]
            wide = magic == MAGICS[1]
            length = struct.unpack_from(">h" if wide else ">b", data, topic)[0]
            name = data[topic + 1 + wide : topic + 1 + wide + length].decode()
            yield Record(file, at, physical, size, queue, offset, name)
            at += size


def flip(file: Path, at: int, bit: int = 0) -> None:
    """Turns one bit over."""
    with file.open("r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1 << bit]))


def write(file: Path, at: int, data: bytes) -> None:
    with file.open("r+b") as f:
        f.seek(at)
        f.write(data)


def queue_files(root: Path, topic: str, queue: int = 0) -> list[Path]:
    return sorted((root / "consumequeue" / topic / str(queue)).iterdir())


def crash(root: Path) -> None:
    """Makes the next opening a recovery after a crash."""
    (root / "abort").write_text("")
