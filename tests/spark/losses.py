"""What happens to stores outside of tests: segments deleted, cut off, damaged."""

from __future__ import annotations

from pathlib import Path

import pystore


def segments(path: Path) -> list[Path]:
    return sorted((path / "commitlog").iterdir())


def drop_oldest(path: Path, count: int) -> int:
    """Deletes the oldest segments, as retention does; the first offset of t/0 that is left."""
    for segment in segments(path)[:count]:
        segment.unlink()
    with pystore.Reader(path) as reader:
        return reader.range("t", 0)[0]


def damage(path: Path, physical: int, data: bytes = b"\xff" * 16) -> None:
    """Overwrites bytes of the log."""
    size = segments(path)[0].stat().st_size
    name = f"{physical - physical % size:020d}"
    with (path / "commitlog" / name).open("r+b") as log:
        log.seek(physical % size)
        log.write(data)
