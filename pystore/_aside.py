"""Keeping what is taken away in ``aside/TIME/`` of the store, as csrc/files/aside.c does."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from pystore.errors import StoreIOError
from pystore.files import folder_mode, new_file, read_file, sync_folder

__all__ = ["Piece", "copy_aside", "drop_copies", "kept_aside", "move_aside"]

#: Bytes of a file: its path relative to the root (absolute for a log folder elsewhere), where they
#: begin, how many there are.
Piece = tuple[str, int, int]

_FOLDERS_MAX = 1000


def _new_folder(root: Path, file_mode: int) -> Path:
    base = root / "aside"
    base.mkdir(mode=folder_mode(file_mode), exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    for n in range(_FOLDERS_MAX):
        folder = base / f"{stamp}-{n:03d}"
        try:
            folder.mkdir(mode=folder_mode(file_mode))
            break
        except FileExistsError:
            continue
    return folder


def _write_manifest(root: Path, folder: Path, rows: list[dict[str, Any]], file_mode: int) -> None:
    with new_file(folder / "manifest.jsonl", file_mode) as file:
        file.writelines(json.dumps(row).encode() + b"\n" for row in rows)
        file.flush()
        os.fsync(file.fileno())
    for each in (folder, folder.parent, root):
        sync_folder(each)


def move_aside(root: Path, paths: list[Path], why: str, file_mode: int) -> Path:
    """Moves files or folders of a store into a new folder of its own, and returns that.

    ``manifest.jsonl`` there, which says where each came from, is on the disk before the first of
    them moves. file_mode: of the store (storeFileMode). Raises: OSError.
    """
    folder = _new_folder(root, file_mode)
    rows = [
        {"file": str(path.relative_to(root)), "at": -1, "length": -1, "kept": f"{n:04d}",
         "why": why} for n, path in enumerate(paths, 1)
    ]  # fmt: skip
    _write_manifest(root, folder, rows, file_mode)
    for n, path in enumerate(paths, 1):
        path.rename(folder / f"{n:04d}")
    for each in {folder, *(path.parent for path in paths)}:
        sync_folder(each)
    return folder


def copy_aside(root: Path, pieces: list[Piece], why: str, file_mode: int) -> Path:
    """Copies parts of files, at most 2 GiB each, into a new folder, and returns that.

    The manifest is written last: where it stands, the copies are on the disk. file_mode: of the
    store (storeFileMode). Raises: OSError.
    """
    folder = _new_folder(root, file_mode)
    rows = []
    for n, (name, at, length) in enumerate(pieces, 1):
        with (root / name).open("rb") as source, new_file(folder / f"{n:04d}", file_mode) as copy:
            copy.write(os.pread(source.fileno(), length, at))
            copy.flush()
            os.fsync(copy.fileno())
        rows.append({"file": name, "at": at, "length": length, "kept": f"{n:04d}", "why": why})
    _write_manifest(root, folder, rows, file_mode)
    return folder


def drop_copies(root: Path, folder: Path, pieces: list[Piece]) -> None:
    """Removes what :func:`copy_aside` made, unless a file no longer holds what was copied: then
    there is no other copy. Raises: OSError."""
    if not folder.is_dir() or folder.is_symlink():
        return
    copies = [(folder / f"{n:04d}", *piece) for n, piece in enumerate(pieces, 1)]
    for copy, name, at, length in copies:
        try:
            with (root / name).open("rb") as source:
                there = os.pread(source.fileno(), length, at)
            if copy.is_symlink() or copy.read_bytes() != there:
                return
        except FileNotFoundError:
            return
    for path in (*(copy for copy, *_ in copies), folder / "manifest.jsonl"):
        path.unlink(missing_ok=True)
    for each in (folder, folder.parent):
        with contextlib.suppress(OSError):  # it holds something else
            each.rmdir()


def kept_aside(root: Path) -> set[tuple[str, int]]:
    """File and first byte of every piece of which a copy stands aside. Raises: Forbidden."""
    found = set()
    for manifest in (root / "aside").glob("*/manifest.jsonl"):
        try:
            data = read_file(manifest) or b""
        except StoreIOError:
            continue  # something else stands in its place: verify names it
        for line in data.splitlines():
            try:
                row = json.loads(line)
                found.add((str(row["file"]), int(row["at"])))
            except (ValueError, KeyError, TypeError):
                continue  # a row that a crash cut off, or that is not ours
    return found
