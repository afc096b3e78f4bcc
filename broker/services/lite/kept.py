"""What clients subscribe to, kept over a restart: config/liteSubscriptions.json, a file of ours.
Upstream forgets it, and has no delivery until each client has sent its whole set again.

The file is an object with a list of rows, each on a line of its own, so that it is written and read
in pieces: of a million subscriptions nobody holds the whole. A client with many has several rows,
one after the other; all but the last say `more`."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from broker.loop.safe_log import SafeLogger
from broker.services.lite.names import lined_up, parts_of, subscription_problem
from broker.services.lite.registry import LiteClient
from broker.wire import mqjson
from broker.wire.jsonbody import BOOLEAN, TEXT, JsonMember, Shape, listed, required
from pystore import files
from pystore.store.light_queues import names_in

__all__ = ["KeptClient", "KeptSubscriptions", "clients_of"]

log = SafeLogger("broker.lite")

_CLIENT = Shape(
    group=required(TEXT),
    clientId=required(TEXT),
    topic=required(TEXT),
    wildcard=JsonMember(BOOLEAN, False),
    more=JsonMember(BOOLEAN, False),
    liteTopicSet=listed(TEXT),
)
_FILE = Shape(clients=listed(_CLIENT))
#: Its first line, and its last.
_BEGIN, _END = b'{"clients":[\n', b"]}\n"
#: Of names that are written at once, and of the file that a slave is given at once.
_PIECE_BYTES = 256 << 10
#: About what a row takes beside its names.
_ROW_BYTES = 128


class KeptClient(NamedTuple):
    """A row of the file: a client. `wild`: it reads all lite topics of `parent`, its topic; else
    those of `names`, as lined_up() has them, and if there are `more`, those of the next row."""

    group: str
    client_id: str
    parent: str
    wild: bool
    names: bytes
    more: bool = False


def clients_of(file: BinaryIO) -> Iterator[KeptClient]:
    """Reads the rows of such a file, a piece at a time, but for those whose names are wrong.
    Raises: ValueError where it is malformed; OSError."""
    first = file.readline(len(_BEGIN))
    if first != _BEGIN:  # of an older version, or not written by us
        data = first + file.read(files.FILE_MAX_BYTES)
        yield from _sound(_FILE.loads(data)["clients"] if data else ())
        return
    while (line := file.readline(files.FILE_MAX_BYTES)) != _END:
        if not line.endswith(b"\n"):
            raise ValueError("the file of subscriptions ends in the middle")
        yield from _sound([_CLIENT.loads(line.rstrip(b",\n"))])


def _sound(rows: Iterable[Any]) -> Iterator[KeptClient]:
    for r in rows:
        names = r["liteTopicSet"]
        try:
            f"{r['group']}{r['clientId']}".encode()
            problem = subscription_problem(r["topic"], names)
        except UnicodeEncodeError as bad:
            problem = str(bad)
        if problem:
            log.warning("Subscriptions of %.80r are not taken over: %s", r["clientId"], problem)
            continue
        wild, more = r["wildcard"], r["more"]
        yield KeptClient(r["group"], r["clientId"], r["topic"], wild, lined_up(names), more)


class KeptSubscriptions:
    """The file."""

    def __init__(self, path: Path, file_mode: int) -> None:
        self._path, self._file_mode = path, file_mode

    def read(self) -> Iterator[KeptClient]:
        """Yields the rows of the file. What cannot be read counts as none: clients come with their
        sets again."""
        try:
            with files.open_file(self._path) or BytesIO() as file:
                yield from clients_of(file)
        except (OSError, ValueError) as bad:
            log.warning("Subscriptions to lite topics cannot be read: %s", bad)

    def names(self) -> int:
        """Returns how many names the file has at most; 0 where it cannot be read."""
        count = 0
        with contextlib.suppress(OSError), files.open_file(self._path) or BytesIO() as file:
            while data := file.read(_PIECE_BYTES):
                count += data.count(b",")
        return count

    def piece(self, begin: int, most: int = 0) -> tuple[bytes, int]:
        """Returns the rows that begin at a place of the file, as many as `most` bytes have (0: a
        piece's), but one at least, and the place of the next one; 0: these are the last. Raises:
        OSError."""
        opened = files.open_file(self._path)
        if opened is None:
            return b"", 0
        with opened as file:
            file.seek(begin)
            data = file.read(most or _PIECE_BYTES) + file.readline(files.FILE_MAX_BYTES)
            return data, file.tell() if file.peek(1) else 0

    async def write(self, clients: AsyncIterable[tuple[LiteClient, bytes, bool]]) -> None:
        """Replaces the file, of which a piece is in memory, and what takes long happens on another
        thread. clients: each with some of what LiteRegistry.queues() said, and whether the next
        one has more of it. Raises: OSError."""
        files.make_folders(self._path.parent, self._file_mode)
        with files.whole_file(self._path, durable=False, mode=self._file_mode) as file:
            file.write(_BEGIN)
            rows, size = list[tuple[LiteClient, bytes, bool]](), 0
            async for row in clients:
                if size >= _PIECE_BYTES:
                    await asyncio.to_thread(_put, file, rows, b",\n")
                    rows, size = [], 0
                rows.append(row)
                size += len(row[1]) + _ROW_BYTES
            await asyncio.to_thread(_put, file, rows, b"\n")
            await asyncio.to_thread(_sync, file)


def _put(file: BinaryIO, rows: list[tuple[LiteClient, bytes, bool]], end: bytes) -> None:
    if rows:
        file.write(b",\n".join(_row(*each) for each in rows) + end)


def _sync(file: BinaryIO) -> None:
    file.write(_END)
    file.flush()
    os.fsync(file.fileno())


def _row(client: LiteClient, queues: bytes, more: bool) -> bytes:
    row: dict[str, object] = {
        "group": client.group, "clientId": client.client_id, "topic": client.parent,
        "wildcard": client.wild,
        "liteTopicSet": [(parts_of(queue) or ("", queue))[1] for queue in names_in(queues)],
    }  # fmt: skip
    return mqjson.dumps(row | {"more": True} if more else row)
