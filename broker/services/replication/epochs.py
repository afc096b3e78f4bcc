"""The epochs of a log: who was its master when (docs/internals/ha.md#under-a-controller). Upstream:
EpochFileCache, AutoSwitchHAClient. Two logs are the same up to where their histories part, and that
is found from these lists alone."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pystore.files import replace_file, sync_folder

__all__ = ["Epoch", "EpochFile", "common_end", "merge"]

#: A file of more is not ours.
_FILE_MAX = 1 << 20


class Epoch(NamedTuple):
    """What the master of this epoch put begins at byte `start` of the log."""

    epoch: int
    start: int


def common_end(ours: Sequence[Epoch], our_end: int, theirs: Sequence[Epoch], their_end: int) -> int:
    """Returns where the log of one ends to be that of the other; -1: they have no epoch in common.
    Ends: of the two logs."""
    ours = [each for each in ours if each.start <= our_end]
    other = {each: _end_of(theirs, at, their_end) for at, each in enumerate(theirs)}
    for at in range(len(ours) - 1, -1, -1):
        if ours[at] in other:
            return min(_end_of(ours, at, our_end), other[ours[at]])
    return -1


def _end_of(epochs: Sequence[Epoch], at: int, end: int) -> int:
    return epochs[at + 1].start if at + 1 < len(epochs) else end


def merge(ours: Iterable[Epoch], theirs: Iterable[Epoch], at: int) -> list[Epoch]:
    """Returns the epochs of a log that is ours up to byte `at` and goes on as theirs."""
    return [each for each in ours if each.start < at] + [e for e in theirs if e.start >= at]


@dataclass
class EpochFile:
    """``epochFileCheckpoint`` of a store, Java's format: the count of lines that follow, their
    CRC-32 without its highest bit, and a line ``epoch-start`` each. The file of before stays beside
    it as ``.bak``."""

    path: Path
    mode: int
    epochs: list[Epoch]

    @classmethod
    def load(cls, path: Path, mode: int, log_end: int) -> EpochFile:
        """Reads the epochs that begin within the log. Raises: ValueError for a damaged file without
        a backup, OSError."""
        problem: ValueError | None = None
        for each in (path, path.with_name(path.name + ".bak")):
            try:
                found = _parse(each.read_bytes()[:_FILE_MAX])
            except FileNotFoundError:
                continue
            except ValueError as damaged:
                problem = ValueError(f"{each}: {damaged}")
                continue
            return cls(path, mode, [e for e in found if e.start <= log_end])
        if problem is not None:
            raise problem
        return cls(path, mode, [])

    def replace(self, epochs: Iterable[Epoch]) -> None:
        """Replaces the epochs; they are on the disk when it returns. Raises: OSError, ValueError
        for epochs that go back."""
        found = list(epochs)
        _check(found)
        if found == self.epochs and self.path.exists():
            return
        replace_file(self.path, _text(found), keep_old=True, mode=self.mode)
        sync_folder(self.path.parent)
        self.epochs = found

    def begin(self, epoch: int, end: int) -> None:
        """Begins an epoch: this broker is its master from the end of its log on. Raises: OSError,
        ValueError for an epoch that is not newer."""
        if not self.epochs or self.epochs[-1].epoch != epoch:
            self.replace([*self.epochs, Epoch(epoch, end)])


def _check(epochs: Sequence[Epoch]) -> None:
    before = Epoch(-1, 0)
    for each in epochs:
        if each.epoch <= before.epoch or each.start < before.start:
            raise ValueError(f"epoch {each.epoch} at {each.start} follows {before}")
        before = each


def _text(epochs: Iterable[Epoch]) -> bytes:
    lines = [b"%d-%d\n" % each for each in epochs]
    return b"%d\n%d\n" % (len(lines), zlib.crc32(b"".join(lines)) & 0x7FFFFFFF) + b"".join(lines)


def _parse(data: bytes) -> list[Epoch]:
    """Reads the lines of the file. Raises: ValueError."""
    count, crc, *lines = data.decode("ascii").split("\n")
    rows = [line for line in lines if line]
    if len(rows) != int(count):
        raise ValueError(f"{len(rows)} epochs instead of {count}")
    found = [Epoch(*map(int, row.split("-"))) for row in rows]
    if zlib.crc32(b"".join(b"%d-%d\n" % each for each in found)) & 0x7FFFFFFF != int(crc):
        raise ValueError("its checksum is another")
    _check(found)
    return found
