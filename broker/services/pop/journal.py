"""What changed of ordered batches since their file was saved, as the core has noted it, a line a
change (csrc/pop/orderlog.c): for a process that was killed (docs/internals/pop.md#order). Not
upstream's, and of no use without the file."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from broker.loop.safe_log import SafeLogger
from broker.wire.jsonbody import INT, LONG, OBJECT, TEXT, JsonMember, Shape
from pystore import files

__all__ = ["read_change", "read_journal"]

log = SafeLogger("broker.pop")

_LINE = Shape(
    file=JsonMember(LONG), topic=TEXT, group=TEXT, queue=JsonMember(INT, 0), next=JsonMember(LONG),
    batch=OBJECT,
)  # fmt: skip


def read_change(line: bytes) -> dict[str, Any]:
    """Reads a line of the journal. Raises: ValueError for a malformed one."""
    return _LINE.loads(line)


def read_journal(path: Path, saved: bytes) -> tuple[list[dict[str, Any]], bytes]:
    """Returns the changes after the file with this content, the earliest first, and their lines as
    they stand there."""
    try:
        data = files.read_file(path)
    except OSError as bad:
        log.warning("Changes of ordered batches cannot be read: %s", bad)
        return [], b""
    lines = (data or b"").split(b"\n")
    found: list[dict[str, Any]] = []
    kept: list[bytes] = []
    counts, crc = False, zlib.crc32(saved)
    for number, line in enumerate(lines, 1):
        try:
            said = read_change(line)
        except ValueError:  # the end, or a line that was not written whole
            if number < len(lines):
                log.warning(
                    "%s: line %d is damaged: ordered groups may get messages of the lines"
                    " after it again", path, number,
                )  # fmt: skip
            break
        if said["file"] is None:
            if counts:
                found.append(said)
                kept.append(line + b"\n")
        elif said["file"] == crc:
            counts, found, kept = True, [], []
    return found, b"".join(kept)
