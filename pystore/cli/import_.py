"""``pystore import``: the way back from ``pystore export``."""

from __future__ import annotations

import base64
import binascii
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from pystore import files
from pystore.cli._balance import show_balance
from pystore.cli._session import Session
from pystore.cli._values import Size, unreadable, usage
from pystore.errors import BadArgument, StoreError
from pystore.meta import configfiles
from pystore.repair.census import Balance, Contents, content_of
from pystore.store._store import Store

__all__ = ["ImportCount", "ImportTarget", "Scratch", "arguments", "content_of_put", "run"]

_LINE_MAX = 512 << 20  # a line that is longer holds no message
_SCRATCH_BYTES = 256 << 20  # a dry run starts a new scratch store after so much
_HOST_KINDS = 0x30  # bits of sysFlag: born host, store host is IPv6
_INT32 = (-(1 << 31), (1 << 31) - 1)
_INT64 = (-(1 << 63), (1 << 63) - 1)
#: Written again by the store, or wrong at any other place of the log.
_OWN_PROPERTIES = ("__CRC32#",)


def run(
    s: Session,
    messages: Annotated[
        str | None, typer.Option("--messages", metavar="FILE|-", help="Messages as JSON lines.")
    ] = None,
    metadata: Annotated[
        Path | None,
        typer.Option("--metadata", metavar="DIR", help="Directory of config/*.json to import."),
    ] = None,
    skip: Annotated[
        int, typer.Option(min=0, help="Skip the first N lines, to continue after a stop.")
    ] = 0,
    create: Annotated[
        bool, typer.Option("--create", help="Create the store if it does not exist.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check every line and print counts; store nothing.")
    ] = False,
) -> int | None:
    """Import exported messages and metadata into a store.

    Keeps topic, queue, body (compressed bodies stay compressed), flag, system flag, properties,
    born time and host, reconsume times and order; assigns new offsets and store times. Each
    metadata file replaces that table of the store. A malformed line stops the import and is named;
    earlier lines are stored, and --skip continues after them.

    The number of the prepared transaction is kept as well; the store host and the property
    __CRC32# are new. Members that are left out have their defaults; topic, queue and body are
    needed. The exit code of a malformed line is 2. --dry-run puts every message into a store
    that is thrown away, so it refuses what the real run would.

    \b
    Examples:
      pystore import STORE --messages orders.jsonl --dry-run
      pystore import ./copy --metadata ./config --messages all.jsonl --create
      zcat today.jsonl.gz | pystore import STORE --messages -
    """
    if messages is None and metadata is None:
        raise usage(
            "nothing to import: pass --messages FILE|-, --metadata DIR, or both", "see --help"
        )
    s.check_target(create)
    config = _check_metadata(metadata)
    facts: dict[str, object] = {"store": str(s.path)}
    if dry_run:
        s.check_free()
        facts |= {"creates the store": not s.exists(), "config files": config}
        if messages is not None:
            count = _each(s, messages, skip, Scratch(s))
            facts |= {"messages": count.messages, "log": Size(count.bytes), "topics": count.topics}
        s.out.plan(facts)
        return 0
    with s.writer(create=create) as store:
        if metadata is not None:
            events = store.metadata.import_json(metadata)
            facts["config files"] = {e.file: e.action for e in events}
        count, low = ImportCount(), store.info().log_max
        if messages is not None:
            count = _each(s, messages, skip, ImportTarget(store))
            store.flush()
            facts |= {"messages": count.messages, "log": Size(count.bytes), "topics": count.topics}
    s.out.facts("imported", facts)
    if messages is not None:
        folders = s.settings().commitlog_dirs(s.path)
        show_balance(s, Balance.between(count.contents, Contents.of(*folders, low=low)))
    return 1 if messages is not None and not count.messages else 0


def _check_metadata(folder: Path | None) -> list[str]:
    """Reads each file of a folder that is metadata once. Raises: BadArgument."""
    if folder is None:
        return []
    if not folder.is_dir():
        raise usage(
            f"--metadata {folder} is not a directory",
            "pass the directory that contains topics.json",
        )
    found = []
    for section in configfiles.SECTIONS.values():
        data = files.read_file(folder / section.file)
        if not data:
            continue
        try:
            section.loads(data)
        except ValueError as bad:
            raise BadArgument(f"cannot read the file: {bad}", str(folder / section.file)) from None
        found.append(section.file)
    found += [name for name in configfiles.RAW_FILES if (folder / name).is_file()]
    if not found:
        raise usage(
            f"--metadata {folder} contains no config file",
            "pass the directory that contains topics.json",
        )
    return found


@dataclass(slots=True)
class ImportCount:
    """What was stored, or would be. bytes: of records. topics: messages of each. contents: of what
    was given, to be compared with what is there afterwards."""

    messages: int = 0
    bytes: int = 0
    topics: dict[str, int] = field(default_factory=dict)
    contents: Contents = field(default_factory=Contents)

    def add(self, topic: str, size: int, content: int) -> None:
        self.messages += 1
        self.contents.add(content)
        self.bytes += size
        self.topics[topic] = self.topics.get(topic, 0) + 1


class ImportTarget:
    """Puts messages into a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, message: dict[str, Any]) -> int:
        """Stores the message and returns the size of its record. The sync of all comes once, at the
        end."""
        return self._store.put_message(**message, block=False, as_stored=True).size

    def close(self) -> None:
        pass


class Scratch(ImportTarget):
    """A store of its own for a dry run, discarded and created again before it grows large."""

    def __init__(self, s: Session) -> None:
        self._session = s
        self._stack = ExitStack()
        self._used = _SCRATCH_BYTES

    def put(self, message: dict[str, Any]) -> int:
        if self._used >= _SCRATCH_BYTES:
            self._stack.close()
            self._store = self._stack.enter_context(self._session.scratch())
            self._used = 0
        size = super().put(message)
        self._used += size
        return size

    def close(self) -> None:
        self._stack.close()


def _each(s: Session, messages: str, skip: int, target: ImportTarget) -> ImportCount:
    """Puts every line. Raises: the error of the first that is wrong, with its number."""
    count = ImportCount()
    line = 0
    with ExitStack() as stack:
        stack.callback(target.close)
        source: IO[bytes] = sys.stdin.buffer
        if messages != "-":
            try:
                source = stack.enter_context(open(messages, "rb"))
            except OSError as failed:
                raise unreadable("--messages", messages, failed) from failed
        bar = stack.enter_context(s.progress("importing", "messages"))
        try:
            for line, text in _lines(source):
                if line <= skip:
                    continue
                message = _message(text)
                count.add(message["topic"], target.put(message), content_of_put(message))
                bar.update(count.messages)
        except StoreError as error:
            error.text = f"line {line} of {messages}: {error.text}"
            if not isinstance(target, Scratch) and line > skip + 1:
                error.next_step += f"; earlier lines are stored: continue with --skip {line - 1}"
            raise
        except KeyboardInterrupt:
            if not isinstance(target, Scratch):
                s.out.note(f"stopped after line {line}: continue with --skip {line}")
            raise
    return count


def _lines(source: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yields numbered lines; blank ones are counted and left out."""
    number = 0
    while text := source.readline(_LINE_MAX):
        number += 1
        if len(text) == _LINE_MAX:
            raise BadArgument(f"the line is longer than {_LINE_MAX} bytes")
        if text.strip():
            yield number, text


def _message(text: bytes) -> dict[str, Any]:
    """Makes the arguments of a put. Raises: BadArgument naming the member that is wrong."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as bad:
        raise BadArgument(f"malformed JSON ({bad})") from None
    if not isinstance(value, dict):
        raise BadArgument("this is not a JSON object")
    return arguments(value)


def arguments(value: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of the put that stores an exported message again.

    value: a message as ``message_record(message, stored=True)`` makes it. Raises: BadArgument
    naming the member that is wrong.
    """
    properties = value.get("props") or {}
    if not isinstance(properties, dict) or not all(
        isinstance(v, str) and _is_unicode(k + v) for k, v in properties.items()
    ):
        raise BadArgument("'props' does not map strings to strings")
    message = {
        "topic": _text(value, "topic"),
        "queue": _number(value, "queue", _INT32, needed=True),
        "body": _body(value),
        "properties": {k: v for k, v in properties.items() if k not in _OWN_PROPERTIES} or None,
        "flag": _number(value, "flag", _INT32),
        # What kind of address a host is the host itself says.
        "sys_flag": _number(value, "sys_flag", _INT32) & ~_HOST_KINDS,
        "reconsume_times": _number(value, "reconsume", _INT32),
        "born_timestamp": _number(value, "born_ts", _INT64) or int(time.time() * 1000),
        "prepared_transaction_offset": _number(value, "prepared_offset", _INT64),
    }
    if value.get("born_host") is not None:
        address, _, port = _text(value, "born_host").rpartition(":")
        bare = ":" in address and not address.startswith("[")
        message["born_host"] = f"[{address}]:{port}" if bare else f"{address}:{port}"
    return message


def content_of_put(put: dict[str, Any]) -> int:
    """Returns the content sum of a put's arguments."""
    return content_of(
        put["topic"], put["queue"], put["body"], flag=put["flag"], sys_flag=put["sys_flag"],
        properties=put["properties"] or {}, born_timestamp=put["born_timestamp"],
        reconsume_times=put["reconsume_times"],
    )  # fmt: skip


def _text(value: dict[str, Any], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str) or not _is_unicode(found):
        raise BadArgument(f"'{name}' is not a string")
    return found


def _is_unicode(text: str) -> bool:
    """Says whether a text is Unicode: JSON can name half a character (a lone surrogate), UTF-8
    cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number(
    value: dict[str, Any], name: str, limits: tuple[int, int], *, needed: bool = False
) -> int:
    found = value.get(name, None if needed else 0)
    if type(found) is not int or not limits[0] <= found <= limits[1]:
        raise BadArgument(f"'{name}' is not an integer from {limits[0]} to {limits[1]}")
    return found


def _body(value: dict[str, Any]) -> bytes:
    text = _text(value, "body")
    encoding = value.get("body_encoding", "utf-8")
    try:
        if encoding == "utf-8":
            return text.encode()
        if encoding == "base64":
            return base64.b64decode(text, validate=True)
    except (UnicodeEncodeError, binascii.Error) as bad:
        raise BadArgument(f"'body' is not valid {encoding} ({bad})") from None
    raise BadArgument(f"'body_encoding' must be utf-8 or base64, not {encoding!r:.40}")
