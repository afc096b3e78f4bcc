"""Whether a store is still as a repair found or left it.

Before the first byte changes, the manifest learns what stands in each place (:func:`note_found`).
Before a repair that was interrupted goes on, and before one is undone, each place must hold that or
what the repair puts there, and each copy must be the one that was made (:func:`differs`): a store
that was used since, a copy that is short, or the manifest of another store changes nothing.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pystore.audit.layout import Layout
from pystore.files.quiet import open_quietly
from pystore.files.sparse import data_ranges
from pystore.repair.manifest import Action

__all__ = ["Differs", "differs", "digest_of", "mark_of", "note_found"]

_PIECE = 64 << 10
#: Around the end of the log: of what is there, and of what nobody has put yet.
_BEFORE, _AFTER = 4096, 64


# ---- digests ----


def _pieces(fd: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yields what is not zero, in pieces that begin where their number says, whether or not the
    zeros are a hole."""
    size = min(end, os.fstat(fd).st_size)
    for at, count in data_ranges(fd, start, size):
        first = start + (at - start) // _PIECE * _PIECE
        for piece in range(first, at + count, _PIECE):
            data = os.pread(fd, min(_PIECE, size - piece), piece)
            if data.count(0) != len(data):
                yield piece, data


def _range_digest(fd: int, start: int, end: int) -> str:
    """Returns the digest of the bytes [start, end) of a file, those past its end among them."""
    found, last = hashlib.sha256(str(max(0, end - start)).encode()), -1
    for piece, data in _pieces(fd, start, end):
        if piece != last:  # two stretches of data may share one piece
            found.update(b"%d:" % (piece - start) + data.ljust(min(_PIECE, end - piece), b"\0"))
        last = piece
    return found.hexdigest()


def digest_of(path: Path) -> str | None:
    """Returns the digest of a file, of a folder with all that is in it, or of whatever else has
    this name; None when there is nothing.

    Raises: OSError."""
    try:
        about = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISREG(about.st_mode):
        with open_quietly(path) as file:
            return _range_digest(file.fileno(), 0, about.st_size)
    if stat.S_ISDIR(about.st_mode):
        names = sorted(os.listdir(path))  # noqa: PTH208
        inside = [f"{name}:{digest_of(path / name)}" for name in names]
        text = "folder " + " ".join(inside)
    elif stat.S_ISLNK(about.st_mode):
        text = f"link {os.readlink(path)}"  # noqa: PTH115 - names alone
    else:
        text = f"kind {stat.S_IFMT(about.st_mode)}"
    return hashlib.sha256(os.fsencode(text)).hexdigest()


def mark_of(layout: Layout, end: int) -> dict[str, Any]:
    """Returns what tells this log, as long as it ends at `end`, from any other, and from the same
    one after a put, or after a segment or a topic was deleted. Raises: OSError."""
    tail = hashlib.sha256()
    for file in layout.segments:
        if file.number < end + _AFTER and end - _BEFORE < file.number + file.size:
            with open_quietly(file.path) as opened:
                start = max(0, end - _BEFORE - file.number)
                data = os.pread(opened.fileno(), end + _AFTER - file.number - start, start)
            tail.update(data.rstrip(b"\0"))
    tail.update((digest_of(layout.root / "deletedTopics") or "").encode())
    return {"begin": layout.log_min, "end": end, "tail": tail.hexdigest()}


# ---- before the first change ----


def _old_pieces(path: Path, new: list[list[Any]]) -> list[list[Any]]:
    """Returns what is where a patch goes; these are zeros past the end, where an earlier step makes
    room."""
    sizes = [(at, len(data) // 2) for at, data in new]
    if not path.exists():
        return [[at, bytes(size).hex()] for at, size in sizes]
    with open_quietly(path) as file:
        return [[at, os.pread(file.fileno(), size, at).ljust(size, b"\0").hex()]
                for at, size in sizes]  # fmt: skip


def note_found(root: Path, actions: list[Action]) -> None:
    """Adds to each action what it will find. Raises: OSError."""
    for action in actions:
        path, data = root / action.file, action.data
        if action.do == "patch":
            data["old"] = _old_pieces(path, data["new"])
        elif action.do == "zero":
            with open_quietly(path) as file:
                data["found"] = _range_digest(file.fileno(), data["start"], data["end"])
        elif action.do == "resize":
            with open_quietly(path) as file:
                data["was"] = os.fstat(file.fileno()).st_size
                data["found"] = _range_digest(file.fileno(), data["size"], data["was"])
        elif action.do in ("move", "replace"):
            data["found"] = digest_of(path)


# ---- afterwards ----


class Differs(Exception):
    """Raised with what differs, in one sentence without its file; `copy` means that a copy of the
    repair does."""

    def __init__(self, text: str, *, copy: bool = False) -> None:
        super().__init__(text)
        self.copy = copy


_USED = "it no longer holds what the repair found or made there"
_MISSING = "the copy of what the repair took away is missing"
_FOREIGN = "the copy is not what the repair took away"


def _open(path: Path) -> BinaryIO:
    try:
        return open_quietly(path)
    except FileNotFoundError:
        raise Differs("the file is gone") from None


def _patch(path: Path, kept: Path, data: dict[str, Any], others: list[Action]) -> None:
    with _open(path) as file:
        for (at, new), (_, old) in zip(data["new"], data["old"], strict=True):
            one, other = bytes.fromhex(new), bytes.fromhex(old)
            now = os.pread(file.fileno(), len(one), at).ljust(len(one), b"\0")
            if any(n not in pair for n, *pair in zip(now, one, other, strict=True)):
                raise Differs(_USED)


def _zero(path: Path, kept: Path, data: dict[str, Any], others: list[Action]) -> None:
    start, end = data["start"], data["end"]
    with _open(path) as file:
        if digest_of(kept) is None:
            if _range_digest(file.fileno(), start, end) != data["found"]:
                raise Differs(_MISSING, copy=True)
            return
        if digest_of(kept) != data["found"]:
            raise Differs(_FOREIGN, copy=True)
        with open_quietly(kept) as old:
            for at, now in _pieces(file.fileno(), start, end):
                was = os.pread(old.fileno(), len(now), at - start).ljust(len(now), b"\0")
                if now != was and any(n not in (0, w) for n, w in zip(now, was, strict=True)):
                    raise Differs(_USED)


def _grown(file: BinaryIO, was: int, others: list[Action]) -> None:
    """Checks that the room that a resize made holds what other steps put there, and nothing
    else."""
    patched = [(at, at + len(new) // 2) for each in others if each.do == "patch"
               for at, new in each.data["new"]]  # fmt: skip
    for at, data in _pieces(file.fileno(), was, os.fstat(file.fileno()).st_size):
        for i, byte in enumerate(data):
            if byte and not any(start <= at + i < end for start, end in patched):
                raise Differs(_USED)


def _resize(path: Path, kept: Path, data: dict[str, Any], others: list[Action]) -> None:
    size, was = data["size"], data["was"]
    with _open(path) as file:
        now = os.fstat(file.fileno()).st_size
        if now not in (size, was):
            raise Differs(f"it has {now} bytes")
        if was <= size:
            _grown(file, was, others)
            return
        if digest_of(kept) is None:
            if now != was or _range_digest(file.fileno(), size, was) != data["found"]:
                raise Differs(_MISSING, copy=True)
        elif digest_of(kept) != data["found"]:
            raise Differs(_FOREIGN, copy=True)


def _create(path: Path, kept: Path, data: dict[str, Any], others: list[Action]) -> None:
    if not os.path.lexists(path):
        return
    size = path.lstat().st_size
    with _open(path) as file:
        new = {at + i: byte for at, text in data["new"] for i, byte in
               enumerate(bytes.fromhex(text))}  # fmt: skip
        for at, now in _pieces(file.fileno(), 0, size):
            if any(byte and new.get(at + i) != byte for i, byte in enumerate(now)):
                raise Differs(_USED)
    if size > data["size"]:
        raise Differs(f"it has {size} bytes")


def _move(path: Path, kept: Path, data: dict[str, Any], others: list[Action]) -> None:
    here, there = digest_of(path), digest_of(kept)
    if here is None and there is None:
        raise Differs(_MISSING, copy=True)
    if there not in (None, data["found"]):
        raise Differs(_FOREIGN, copy=True)
    if here is not None and there is not None:
        raise Differs("it was made again since the repair moved it aside")
    if here not in (None, data["found"]):
        raise Differs(_USED)


def _replace(path: Path, kept: Path, data: dict[str, Any], others: list[Action]) -> None:
    here, there, found = digest_of(path), digest_of(kept), data["found"]
    if there not in (None, found):
        raise Differs(_FOREIGN, copy=True)
    steps = [each.data for each in others if each.do == "replace"]
    plain = path.is_file() and not path.is_symlink()
    made = plain and path.read_bytes() in [bytes.fromhex(each["content"]) for each in steps]
    if here not in [each["found"] for each in steps] and not made:
        raise Differs(_USED)
    if here != found and found is not None and there is None:
        raise Differs(_MISSING, copy=True)


def _keep(root: Path, data: dict[str, Any]) -> None:
    for name, at, length in data["pieces"]:
        with _open(root / name) as file:
            if os.fstat(file.fileno()).st_size < at + length:
                raise Differs(f"{name} is shorter than when it was looked at")


_CHECKS = {"patch": _patch, "zero": _zero, "resize": _resize, "create": _create, "move": _move,
           "replace": _replace}  # fmt: skip


def _rebuild(layout: Layout, data: dict[str, Any], interrupted: bool) -> None:
    """Checks a rebuild: derived files fit one log only. With `interrupted` it is not known which
    files were swapped in."""
    inodes = data.get("inodes", {})
    if not inodes:
        return
    if mark_of(layout, data["log"]["end"]) != data["log"]:
        raise Differs("messages were put or deleted since the repair")
    for name, inode in inodes.items():
        numbers = [path.lstat().st_ino if os.path.lexists(path) else 0
                   for path in (layout.root / name, layout.root / data["made"][name])]  # fmt: skip
        if numbers[0] == 0 and (data["had"][name] or not interrupted):
            raise Differs(f"{name}: the file is gone")
        if data["had"][name] and numbers[1] == 0:
            raise Differs(f"{name}: {_MISSING}", copy=True)
        if interrupted and inode not in numbers:
            raise Differs(f"{name}: the store was copied or restored while a repair was under way")


def differs(
    layout: Layout, kept: Path, action: Action, others: list[Action], *, interrupted: bool
) -> Differs | None:
    """Returns what keeps an action from being done, finished or undone.

    `kept` is where the bytes are kept that it removes. `others` are all actions on its file.
    `interrupted` means that the repair was, so that each action is done, half done or not. Raises:
    OSError."""
    try:
        if action.do == "rebuild":
            _rebuild(layout, action.data, interrupted)
        elif action.do == "keep":
            if not action.done:
                _keep(layout.root, action.data)
        else:
            _CHECKS[action.do](layout.root / action.file, kept, action.data, others)
    except Differs as found:
        return found
    return None
