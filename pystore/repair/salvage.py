"""A store from a bare heap of segments: no queues, no index, no configuration, names lost."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pystore import settings as _settings
from pystore.audit.layout import base_of
from pystore.errors import BadArgument, Forbidden, NotAStore
from pystore.files import make_folders
from pystore.repair.repair import Repair, repair
from pystore.repair.sparse import copy_range

__all__ = ["Salvaged", "salvage"]


@dataclass(frozen=True, slots=True)
class Salvaged:
    """segments: file and first byte in the log, of those taken over. skipped: files that hold no
    record. repair: what was mended in the new store."""

    segments: list[tuple[str, int]]
    skipped: list[str]
    repair: Repair


def salvage(
    heap: str | os.PathLike[str], into: str | os.PathLike[str],
    conf: str | os.PathLike[str] | None = None, **settings: Any,
) -> Salvaged:  # fmt: skip
    """Makes a store of the segments in a folder, whatever they are called, and repairs it.

    The segments are copied, holes kept; nothing in the heap changes. Their places in the log are
    read from their records. heap: folder with segments. into: folder for the store, which must not
    exist; nothing is left of it when this raises.

    Raises: NotAStore when no file holds a record, BadArgument, DiskFull, StoreIOError.
    """
    source, target = Path(heap), Path(into)
    if target.exists():
        raise BadArgument("the folder for the store exists already", str(target))
    if not source.is_dir():
        raise NotAStore("not a directory", str(source))
    # First of all: a setting that is wrong is refused before anything is copied.
    mode = _settings.load(conf, settings).file_mode
    files = _files_below(source)
    sizes = sorted(p.stat().st_size for p in files)
    size = int(settings.get("mappedFileSizeCommitLog") or (sizes[len(sizes) // 2] if sizes else 0))
    try:
        return _salvage(source, files, target, size, conf, settings, mode)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _salvage(
    source: Path, files: list[Path], target: Path, size: int,
    conf: str | os.PathLike[str] | None, settings: dict[str, Any], mode: int,
) -> Salvaged:  # fmt: skip
    taken: list[tuple[str, int]] = []
    skipped: list[str] = []
    make_folders(target / "commitlog", mode)
    (target / "abort").touch(mode=mode)
    for path in files:
        base = base_of(path, size)
        place = None if base is None else target / "commitlog" / f"{base:020d}"
        if base is None or place is None or place.exists():
            skipped.append(str(path.relative_to(source)))
            continue
        with path.open("rb") as file:
            copy_range(file, 0, path.stat().st_size, place, mode)
        taken.append((str(path.relative_to(source)), base))
    if not taken:
        raise NotAStore("no file in it holds a record of a commit log", str(source))
    done = repair(target, conf, **{**settings, "mappedFileSizeCommitLog": size})
    return Salvaged(sorted(taken, key=lambda each: each[1]), skipped, done)


def _files_below(source: Path) -> list[Path]:
    """The regular files that may be segments. Raises: Forbidden."""

    def refuse(failed: OSError) -> None:
        raise Forbidden("cannot list the folder", failed.filename, errno=failed.errno)

    found = (
        Path(folder) / name
        for folder, _, names in os.walk(source, onerror=refuse)
        for name in names
    )
    return sorted(p for p in found if p.is_file() and p.stat().st_size >= 4096)
