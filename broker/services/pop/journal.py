"""What changed of ordered batches since their file was saved, a line a change: for a process that
is killed (docs/internals/pop.md#order). Not upstream's, and of no use without the file.

The first line names the file by its CRC-32, and so does one before each save: lines after it count
for the file that is being written, too.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker.loop.safe_log import SafeLogger
from broker.wire import mqjson
from broker.wire.jsonbody import INT, LONG, OBJECT, TEXT, JsonMember, Shape
from pystore import files

__all__ = ["OrderJournal"]

log = SafeLogger("broker.pop")

_LINE = Shape(
    file=JsonMember(LONG), topic=TEXT, group=TEXT, queue=JsonMember(INT, 0), next=JsonMember(LONG),
    batch=OBJECT,
)  # fmt: skip


_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


class OrderJournal:
    """Keeps changes of order until the file has them. It lives on the event loop: a line goes to
    the page cache, and nobody waits for the disk."""

    def __init__(self, path: Path, file_mode: int) -> None:
        self._path, self._file_mode = path, file_mode
        self._file: int | None = None
        #: Lines that the next file begins with: those since the last mark.
        self._since: list[bytes] = []

    def read(self, saved: bytes) -> list[dict[str, Any]]:
        """Returns the changes after the file with this content, the earliest first; begin() keeps
        them."""
        try:
            data = files.read_file(self._path)
        except OSError as bad:
            log.warning("Changes of ordered batches are not read: %s", bad)
            return []
        lines = (data or b"").split(b"\n")
        found: list[dict[str, Any]] = []
        counts, crc = False, zlib.crc32(saved)
        for number, line in enumerate(lines, 1):
            try:
                said = _LINE.loads(line)
            except ValueError:  # the end, or a line that was not written whole
                if number < len(lines):
                    log.warning(
                        "%s: line %d is damaged: ordered groups may get messages of the lines"
                        " after it again", self._path, number,
                    )  # fmt: skip
                break
            if said["file"] is None:
                if counts:
                    found.append(said)
                    self._since.append(line + b"\n")
            elif said["file"] == crc:
                counts, found = True, []
                self._since.clear()
        return found

    def add(self, topic: str, group: str, queue: int, **change: Mapping[str, Any] | int) -> None:
        """Notes a change. `next` is the offset at which the group continues, and `batch` what is
        out; without it nothing is."""
        self._add({"topic": topic, "group": group, "queue": queue, **change})

    def _add(self, said: Mapping[str, Any]) -> None:
        # Nobody else reads it, and ordered groups wait for it at each acknowledgement: what writes
        # it is the standard library's C.
        line = _ENCODE(said).encode() + b"\n"
        self._since.append(line)
        if self._file is not None:
            try:
                if os.write(self._file, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as failed:
                log.warning(
                    "A crash now would repeat messages of ordered groups: %s: %s",
                    self._path, failed,
                )  # fmt: skip
                self.close()

    def mark(self, content: bytes) -> None:
        """Notes that the file is about to be saved with this content."""
        self._since = []
        self._add({"file": zlib.crc32(content)})

    def begin(self, content: bytes) -> None:
        """Begins after the file with this content: lines before its mark are of no use. Raises:
        StoreIOError, Forbidden, DiskFull."""
        self.close()
        head = mqjson.dumps({"file": zlib.crc32(content)}) + b"\n"
        lines = b"".join([head, *self._since])
        try:
            files.make_folders(self._path.parent, self._file_mode)
            files.write_whole(self._path, lines, durable=False, mode=self._file_mode)
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as failed:
            raise files.os_error(failed, self._path) from failed
        self._since = []

    def end(self) -> None:
        """Ends, since all of it is in the file. Raises: OSError."""
        self.close()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
