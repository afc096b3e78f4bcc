"""What lists show of a message, made of its record; text that strangers wrote; bytes. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pystore.cli.verbs import printable
from pystore.format.properties import parse_properties
from pystore.format.records import Buffer, RecordHead, record_head
from pystore.native import lib

__all__ = ["HexLine", "RecordView", "hex_lines", "text_of"]

_PREVIEW = 80
_VALUE_SHOWN = 2000
_LINE = 16


def text_of(text: str, most: int = _VALUE_SHOWN) -> str:
    """Returns the text of a client, shortened, with control characters, marks of direction and the
    like written out, so that it cannot pretend to be something else. Lines and tabs stay."""
    made = printable(text[:most].replace("\r\n", "\n"), keep="\n\t")
    return made + (f"\u2026 ({len(text) - most} more)" if len(text) > most else "")


@dataclass(frozen=True, slots=True)
class HexLine:
    """at: of its first byte. digits, letters: of up to 16 bytes."""

    at: int
    digits: str
    letters: str


def hex_lines(data: Buffer, at: int = 0) -> list[HexLine]:
    """Returns the lines of a dump. at: how the first byte is counted."""
    found = []
    for start in range(0, len(data), _LINE):
        part = bytes(data[start : start + _LINE])
        letters = "".join(chr(b) if 32 <= b < 127 else "\u00b7" for b in part)
        found.append(HexLine(at + start, part.hex(" "), letters))
    return found


class RecordView:
    """A message, by its record. Raises: ValueError for bytes that are not a whole record."""

    def __init__(self, record: Buffer) -> None:
        self.record = memoryview(record)
        self.head: RecordHead = record_head(record)

    @property
    def size(self) -> int:
        return len(self.record)

    @property
    def raw_properties(self) -> bytes:
        """The properties as they are stored."""
        head = self.head
        return bytes(self.record[head.properties_at : head.properties_at + head.properties_len])

    @cached_property
    def properties(self) -> Mapping[str, str]:
        return parse_properties(self.raw_properties)

    @property
    def offset_id(self) -> str:
        head = self.head
        host = self.record[head.host_at : head.host_at + head.host_len]
        return f"{host.hex()}{head.physical_offset:016x}".upper()

    @property
    def topic(self) -> str:
        head = self.head
        raw = self.record[head.topic_at : head.topic_at + head.topic_len]
        return str(raw, "utf-8", "replace")

    @property
    def tags(self) -> str:
        return self.properties.get("TAGS", "")

    @property
    def keys(self) -> str:
        return self.properties.get("KEYS", "")

    @property
    def preview(self) -> str:
        """The beginning of the body, on one line."""
        body = self.record[self.head.body_start : self.head.body_end]
        if self.head.sys_flag & lib.PS_SYS_COMPRESSED:
            return f"<compressed, {len(body)} bytes>"
        raw = bytes(body[: 4 * _PREVIEW])
        for cut in range(4):  # a character may be cut in two
            try:
                text = raw[: len(raw) - cut].decode()
            except UnicodeDecodeError:
                continue
            return printable(text[:_PREVIEW]) + ("\u2026" if len(body) > _PREVIEW else "")
        return f"<{len(body)} bytes>"
