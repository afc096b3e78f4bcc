"""consumerOffset.json of a store that is open for writing, laid out by the core: of a million lite
topics it has 70 MB, which are never in memory together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pystore.files import javajson
from pystore.meta import _database
from pystore.meta.configfiles import SECTIONS, DataVersion, Json

__all__ = ["ConsumerOffsetFile"]

_SECTION = SECTIONS["offsets"]


class ConsumerOffsetFile:
    """The content in pieces, byte for byte that of Section.dumps(), as often as it is asked for;
    nobody commits offsets meanwhile. Raises: RecordDamaged, StoreIOError, OutOfMemory."""

    __slots__ = ("_escaped", "_frame", "_meta", "_others")

    def __init__(self, meta: Path, version: DataVersion, extra: Json) -> None:
        self._meta = meta
        self._others, self._escaped = _database.other_members(meta, False)
        names = [name.decode("utf-8", "surrogatepass") for name in self._others]
        members = _SECTION.members(extra, version, names)
        try:
            self._frame = javajson.around(members, _SECTION.table, escaped=self._escaped)
        except UnicodeEncodeError:
            self._escaped = True
            self._frame = javajson.around(members, _SECTION.table, escaped=True)
        if self._escaped:
            self._others, _ = _database.other_members(meta, True)

    def __iter__(self) -> Iterator[bytes]:
        head, tail = self._frame
        yield head
        members = self._members()
        first = next(members, None)
        if first is None:
            yield b"{}"
        else:
            yield b"{" + first.removeprefix(b",")
            yield from members
            yield b"\n\t}"
        yield tail

    def _members(self) -> Iterator[bytes]:
        yield from _database.light_members(self._meta, self._escaped)
        for _, text in sorted(self._others.items()):
            yield text
