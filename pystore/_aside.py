"""Keeping what is taken away in ``aside/TIME/`` of the store, as csrc/files/aside.c does."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from pystore.files import folder_mode, new_file, sync_folder

__all__ = ["move_aside"]

_FOLDERS_MAX = 1000


def move_aside(root: Path, paths: list[Path], why: str, file_mode: int) -> Path:
    """Moves files or folders of a store into a new folder of its own, and returns that.

    ``manifest.jsonl`` there, which says where each came from, is on the disk before the first of
    them moves. file_mode: of the store (storeFileMode). Raises: OSError.
    """
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
    rows = [
        {"file": str(path.relative_to(root)), "at": -1, "length": -1, "kept": f"{n:04d}",
         "why": why} for n, path in enumerate(paths, 1)
    ]  # fmt: skip
    with new_file(folder / "manifest.jsonl", file_mode) as file:
        file.writelines(json.dumps(row).encode() + b"\n" for row in rows)
        file.flush()
        os.fsync(file.fileno())
    for each in (folder, base, root):
        sync_folder(each)
    for n, path in enumerate(paths, 1):
        path.rename(folder / f"{n:04d}")
    for each in {folder, *(path.parent for path in paths)}:
        sync_folder(each)
    return folder
