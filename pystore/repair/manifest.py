"""The manifest of a repair: its format, and reading one that nobody vouches for.

``STORE/repair-TIME/manifest.json`` says what a repair does and did. It lies in a folder that others
can write to, that is copied, restored and cut like any other, so that nothing of it is believed:
names must stay inside the store, numbers in their range, and every step must be one there is.

====== ==========================================================================================
format 1
state  "applying", "applied", "undoing", "undone", or "abandoned": interrupted, and the store was
       used before anybody finished it
actions in order, each with ``do``, ``file``, ``what``, ``data`` and ``done``
====== ==========================================================================================

What ``data`` holds, by ``do`` (DATA below checks it). A digest is :func:`digest_of`'s.

======= =========================================================================================
patch   new, old: [position, hex] of each piece, in pairs
zero    start, end; found: digest of these bytes before
resize  size, was: bytes; found: digest of what a cut takes away
create  size; new: as for a patch, all else is zero
move    found: digest of what is moved
replace content: hex; found: digest of the file before, or null
keep    pieces: [file, position, length]; why; folder: of ``aside/``, once it is made
rebuild names; inodes, made, had: by name, once the first is swapped in; log: mark of the log
======= =========================================================================================
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from pystore.errors import NewerLayout, RecordDamaged
from pystore.files import read_file

__all__ = ["DERIVED", "STATES", "Action", "check_manifest", "next_name", "read_manifest",
           "side_folders", "to_json"]  # fmt: skip

FORMAT = 1
STATES = ("applying", "applied", "undoing", "undone", "abandoned")
#: What a rebuild swaps in.
DERIVED = ("consumequeue", "index", "checkpoint")
#: Folders of a store that operators replace by links to other disks. No link is followed below.
_LINKED = ("commitlog", "config", "consumequeue", "index", "meta")
_SIDE = re.compile(r"repair-([0-9]{14})(?:-([0-9]{1,9}))?")
_ASIDE = re.compile(r"aside/[0-9TZ-]{1,40}")
_SEGMENT = re.compile(r"[0-9]{1,20}")
#: Numbers in a file are Java's long; a segment's size is an int.
_LONG, _INT = 1 << 63, 1 << 31


@dataclass(slots=True)
class Action:
    """One step. `do` is "patch", "zero", "resize", "create", "move", "replace", "keep" or
    "rebuild".

    `file` is relative to the store's root, or absolute in a log folder elsewhere. `what` is one
    sentence for people. `data` is what the step needs, ready for JSON. `done` says whether it was
    applied."""

    do: str
    file: str
    what: str
    data: dict[str, Any] = field(default_factory=dict)
    done: bool = False


def to_json(state: str, actions: list[Action]) -> bytes:
    """Returns the manifest."""
    data = {"format": FORMAT, "state": state, "actions": [asdict(each) for each in actions]}
    return json.dumps(data, indent=1).encode()


# ---- side folders ----


def _age(name: str) -> tuple[str, int]:
    found = _SIDE.fullmatch(name)
    assert found
    return found[1], int(found[2] or 0)


def _names(root: Path) -> list[str]:
    """Returns the names that only side folders have, oldest first, whatever is there."""
    return sorted((n for n in os.listdir(root) if _SIDE.fullmatch(n)), key=_age)  # noqa: PTH208


def side_folders(root: Path) -> list[Path]:
    """Returns the side folders of a store, oldest first, without those that were only made.

    Raises: RecordDamaged for one that has copies and no manifest, and for a link; OSError."""
    found = []
    for name in _names(root):
        folder = root / name
        mode = folder.lstat().st_mode
        if stat.S_ISLNK(mode):
            raise RecordDamaged("not a folder, though its name is that of a repair", str(folder))
        if not stat.S_ISDIR(mode):
            continue  # somebody's file: no repair has made it
        if os.path.lexists(folder / "manifest.json"):
            found.append(folder)
        elif (folder / "old").is_dir() and any((folder / "old").iterdir()):
            raise RecordDamaged("the manifest of this repair is missing", str(folder))
    return found


def next_name(root: Path) -> str:
    """Returns the name of a new side folder, younger than all others whatever the clock says."""
    now = time.strftime("%Y%m%d%H%M%S", time.gmtime())
    last = max(map(_age, _names(root)), default=("", 0))
    if last[0] < now:
        return f"repair-{now}"
    return f"repair-{last[0]}-{last[1] + 1}"


# ---- what stands in one ----


class _Bad(Exception):
    """Raised with what is wrong with a manifest, in a few words."""


def _need(holds: bool, text: str) -> None:
    if not holds:
        raise _Bad(text)


def _number(value: object, below: int = _LONG) -> int:
    _need(type(value) is int and 0 <= value < below, f"{value!r:.40} is not a valid number")
    assert isinstance(value, int)
    return value


def _text(value: object) -> str:
    _need(isinstance(value, str), f"{value!r:.40} is not a text")
    assert isinstance(value, str)
    return value


def _hex(value: object) -> bytes:
    try:
        return bytes.fromhex(_text(value))
    except ValueError:
        raise _Bad(f"{value!r:.40} is not hexadecimal") from None


def _pieces(value: object, below: int = _LONG) -> list[tuple[int, int]]:
    """Returns position and length of each piece of a patch."""
    _need(isinstance(value, list), "pieces are not a list")
    assert isinstance(value, list)
    found = []
    for each in value:
        _need(isinstance(each, list) and len(each) == 2, f"{each!r:.40} is not a piece")
        at, length = _number(each[0], below), len(_hex(each[1]))
        _need(at + length < below, "a piece lies past the end of every file")
        found.append((at, length))
    return found


def _digest(value: object) -> None:
    _need(re.fullmatch("[0-9a-f]{64}", _text(value)) is not None, f"{value!r:.40} is not a digest")


def _patch(data: dict[str, Any], side: str) -> None:
    new, old = _pieces(data["new"], _INT), _pieces(data["old"], _INT)
    _need(new == old, "old pieces do not fit the new ones")


def _zero(data: dict[str, Any], side: str) -> None:
    start, end = _number(data["start"], _INT), _number(data["end"], _INT)
    _need(start < end, "the stretch is empty")
    _digest(data["found"])


def _resize(data: dict[str, Any], side: str) -> None:
    _number(data["size"], _INT)
    _number(data["was"])
    _digest(data["found"])


def _create(data: dict[str, Any], side: str) -> None:
    size = _number(data["size"], _INT)
    _pieces(data["new"], size + 1)


def _move(data: dict[str, Any], side: str) -> None:
    _digest(data["found"])


def _replace(data: dict[str, Any], side: str) -> None:
    _hex(data["content"])
    if data["found"] is not None:
        _digest(data["found"])


def _keep(data: dict[str, Any], side: str) -> None:
    _text(data["why"])
    _need(isinstance(data["pieces"], list), "pieces are not a list")
    for each in data["pieces"]:
        _need(isinstance(each, list) and len(each) == 3, f"{each!r:.40} is not a piece")
        _text(each[0])
        _need(_number(each[1], _INT) + _number(each[2], _INT) < _INT, "a piece is too long")
    if "folder" in data:
        plain = _ASIDE.fullmatch(_text(data["folder"])) is not None
        _need(plain, f"{data['folder']!r:.40} is not a folder of aside/")


def _rebuild(data: dict[str, Any], side: str) -> None:
    names = data["names"]
    _need(isinstance(names, list) and all(name in DERIVED for name in names),
          f"{names!r:.80} are not derived files")  # fmt: skip
    swapped = data.get("inodes", {})
    _need(isinstance(swapped, dict) and set(swapped) <= set(names), "inodes of unknown files")
    for name, inode in swapped.items():
        _number(inode, 1 << 64)
        _need(data["made"][name] == f"{side}/made/{name}", "made elsewhere")
        _need(type(data["had"][name]) is bool, f"{data['had'][name]!r:.40} is not a boolean")
    mark = data.get("log", {})
    _need(isinstance(mark, dict), "the mark of the log is malformed")
    if swapped or mark:
        _number(mark["begin"])
        _number(mark["end"])
        _digest(mark["tail"])


#: What an action of each kind holds. Called with the name of the side folder, too.
DATA: dict[str, Callable[[dict[str, Any], str], None]] = {
    "patch": _patch, "zero": _zero, "resize": _resize, "create": _create, "move": _move,
    "replace": _replace, "keep": _keep, "rebuild": _rebuild,
}  # fmt: skip


def _check_name(root: Path, name: str, log_folders: Sequence[Path], segment: bool) -> None:
    """Checks that the name is one of the store's, and leads to it. With `segment` it must be one of
    the log's."""
    pure = PurePosixPath(name)
    _need(bool(name) and "\0" not in name and ".." not in pure.parts and str(pure) == name,
          f"{name!r:.80} is not a name")  # fmt: skip
    path = Path(os.path.abspath(root)) / name  # noqa: PTH100 - links are looked at below
    in_log = any(path.parent == folder for folder in log_folders)
    _need(in_log or not pure.is_absolute(), f"{name!r:.200} lies outside of the store")
    if segment:
        _need(in_log and _SEGMENT.fullmatch(path.name) is not None,
              f"{name!r:.80} is not a segment of the log")  # fmt: skip
        _need(not path.is_symlink(), f"{name!r:.80} is a link")
    if in_log:
        return
    first = pure.parts[0]
    _need(first != "lock" and first != "aside" and _SIDE.fullmatch(first) is None,
          f"{name!r:.80} is not a file that a repair changes")  # fmt: skip
    for n in range(1, len(pure.parts)):
        above = root.joinpath(*pure.parts[:n])
        linked = n == 1 and first in _LINKED
        _need(linked or not above.is_symlink(), f"{name!r:.80} leads through a link")


def _action(row: object, root: Path, side: str, log_folders: Sequence[Path]) -> Action:
    _need(isinstance(row, dict), f"{row!r:.40} is not an action")
    assert isinstance(row, dict)
    known = Action.__slots__
    _need(set(row) == set(known), "an action has missing or unknown fields")
    _need(isinstance(row["data"], dict), "the data of an action is not an object")
    _need(type(row["done"]) is bool, "done is not a boolean")
    made = Action(_text(row["do"]), _text(row["file"]), _text(row["what"]), row["data"],
                  row["done"])  # fmt: skip
    _need(made.do in DATA, f"{made.do!r:.40} is not a step")
    DATA[made.do](made.data, side)
    if made.do in ("keep", "rebuild"):
        _need(made.file == "", f"{made.do} names a file")
        for name, _, _ in made.data.get("pieces", ()):
            _check_name(root, name, log_folders, segment=True)
    else:
        segment = made.do in ("patch", "zero", "resize", "create")
        _check_name(root, made.file, log_folders, segment)
        if made.do == "replace":
            config = PurePosixPath(made.file).parts[:-1] == ("config",)
            _need(config or made.file == "deletedTopics",
                  f"{made.file!r:.80} is not a configuration file")  # fmt: skip
    return made


def _parsed(
    data: bytes, root: Path, side: str, log_folders: Sequence[Path]
) -> tuple[str, list[Action]]:
    whole = json.loads(data)
    _need(isinstance(whole, dict), "it is not an object")
    if _number(whole["format"]) > FORMAT:
        raise NewerLayout(f"the manifest has format {whole['format']}", str(root / side))
    _need(whole["state"] in STATES, f"{whole['state']!r:.40} is not a state")
    _need(isinstance(whole["actions"], list), "the actions are not a list")
    rows = [_action(row, root, side, log_folders) for row in whole["actions"]]
    return whole["state"], rows


def check_manifest(data: bytes, folder: Path, log_folders: Sequence[Path]) -> None:
    """Checks a manifest. Raises: RecordDamaged for what :func:`read_manifest` would not take."""
    try:
        _parsed(data, folder.parent, folder.name, log_folders)
    except _Bad as bad:
        raise RecordDamaged(f"a repair cannot do this ({bad})", str(folder.parent)) from None


def read_manifest(folder: Path, log_folders: Sequence[Path]) -> tuple[str, list[Action]]:
    """Returns state and actions of a repair, which are safe to do and to undo as far as names and
    numbers go.

    `folder` is in the store's root; `log_folders` are those of the store's settings, absolute.
    Raises: RecordDamaged, NewerLayout; Forbidden, StoreIOError when it cannot be read."""
    path = folder / "manifest.json"
    data = read_file(path)
    if data is None:
        raise RecordDamaged("the manifest of this repair is missing", str(folder))
    try:
        for inner in (path, folder / "old", folder / "made"):
            _need(not inner.is_symlink(), f"{inner.name} is a link")
        return _parsed(data, folder.parent, folder.name, log_folders)
    except NewerLayout:
        raise
    except (_Bad, ValueError, KeyError, TypeError, RecursionError) as bad:
        what = f"{bad} is missing" if isinstance(bad, KeyError) else str(bad)
        error = RecordDamaged(f"the manifest cannot be read ({what})", str(path))
        error.next_step = (
            "nothing was changed; restore the manifest from a backup, or move the folder"
            " out of the store and run pystore repair again"
        )
        raise error from None
