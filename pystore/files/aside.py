"""Keeping what is taken away in ``aside/TIME/`` of the store, as csrc/files/aside.c does."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from pystore.errors import StoreIOError
from pystore.files import folder_mode, make_folders, new_file, read_file, sync_folder

__all__ = ["Piece", "copy_aside", "free_folder", "kept_aside", "move_aside", "take_back_copies"]

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


def _write_manifest(folder: Path, rows: list[dict[str, Any]], file_mode: int) -> None:
    """Writes the manifest; it is durable then, as the folder is. Raises: OSError."""
    with new_file(folder / "manifest.jsonl", file_mode) as file:
        file.writelines(json.dumps(row).encode() + b"\n" for row in rows)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)


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
    _write_manifest(folder, rows, file_mode)
    for each in (folder.parent, root):
        sync_folder(each)
    for n, path in enumerate(paths, 1):
        path.rename(folder / f"{n:04d}")
    for each in {folder, *(path.parent for path in paths)}:
        sync_folder(each)
    return folder


def free_folder(root: Path) -> Path:
    """Returns a name in ``aside/`` that nothing has yet."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    names = (root / "aside" / f"{stamp}-{n:03d}" for n in itertools.count())
    return next(name for name in names if not os.path.lexists(name))


def copy_aside(
    root: Path, pieces: list[Piece], why: str, file_mode: int, part: Path, folder: Path
) -> None:
    """Copies parts of files, at most 2 GiB each, into a folder of ``aside/``.

    folder: of :func:`free_folder`; nothing happens where it is there already. part: what it is made
    as, on the same file system, so that it is there whole or not at all. file_mode: of the store
    (storeFileMode). Raises: OSError.
    """
    if folder.is_dir():
        return
    shutil.rmtree(part, ignore_errors=True)
    make_folders(part, file_mode)
    rows = []
    for n, (name, at, length) in enumerate(pieces, 1):
        with (root / name).open("rb") as source, new_file(part / f"{n:04d}", file_mode) as copy:
            copy.write(os.pread(source.fileno(), length, at))
            copy.flush()
            os.fsync(copy.fileno())
        rows.append({"file": name, "at": at, "length": length, "kept": f"{n:04d}", "why": why})
    _write_manifest(part, rows, file_mode)
    make_folders(folder.parent, file_mode)
    part.rename(folder)
    for each in (folder.parent, root):
        sync_folder(each)


def take_back_copies(root: Path, folder: Path, pieces: list[Piece], to: Path) -> None:
    """Moves what :func:`copy_aside` made out of ``aside/``, unless a file no longer holds what was
    copied: then there is no other copy. Raises: OSError."""
    if not folder.is_dir() or folder.is_symlink():
        return
    for n, (name, at, length) in enumerate(pieces, 1):
        copy = folder / f"{n:04d}"
        try:
            with (root / name).open("rb") as source:
                there = os.pread(source.fileno(), length, at)
            if copy.is_symlink() or copy.read_bytes() != there:
                return
        except FileNotFoundError:
            return
    folder.rename(to)
    for each in (to.parent, folder.parent):
        sync_folder(each)
    with contextlib.suppress(OSError):  # it holds something else
        folder.parent.rmdir()


def kept_aside(root: Path) -> set[tuple[str, int]]:
    """Returns file and first byte of every piece of which a copy stands aside. Raises:
    Forbidden."""
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
