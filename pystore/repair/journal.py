"""The side folder of a repair: what it will do, what it did, and every byte that it takes away.

``STORE/repair-TIME/`` holds ``manifest.json`` and ``old/``. The manifest is on the disk before the
first byte of the store changes, and each action can be done twice, so that a repair that was
interrupted anywhere is finished by the next one. ``repair --undo`` does the actions backwards.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pystore._aside import copy_aside
from pystore.errors import BadArgument, Forbidden, RecordDamaged, StoreIOError, StoreLocked
from pystore.files import FILE_MODE, folder_mode, make_folders, new_file, sync_folder, write_whole
from pystore.native import ffi, lib
from pystore.repair.sparse import copy_range, data_ranges

__all__ = ["Action", "Journal", "hold_lock", "journals", "refuse_if_held"]

_PREFIX = "repair-"
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


@dataclass(slots=True)
class Action:
    """One step. do: "patch", "zero", "resize", "create", "move", "replace", "keep" or "rebuild".

    file: relative to the store's root. what: one sentence for people. data: what the step needs,
    JSON-ready. done: whether it was applied.
    """

    do: str
    file: str
    what: str
    data: dict[str, Any] = field(default_factory=dict)
    done: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {"do": self.do, "file": self.file, "what": self.what, "data": self.data,
                "done": self.done}  # fmt: skip


def refuse_if_held(root: Path) -> None:
    """Raises: StoreLocked while a process has the store open."""
    holder = lib.ps_lock_holder(ffi.NULL, os.fsencode(root))
    if holder != 0:
        who = f"process {holder}" if holder > 0 else "another process"
        raise StoreLocked(f"{who} has the store open", str(root), pid=max(0, holder) or None)


@contextmanager
def hold_lock(root: Path, file_mode: int = FILE_MODE) -> Iterator[None]:
    """Holds the store's lock, as its writer would. file_mode: of the store (storeFileMode).

    Raises: StoreLocked, Forbidden, StoreIOError.
    """
    refuse_if_held(root)
    path, flags = root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags, file_mode)
    except OSError as failed:
        denied = failed.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        kind = Forbidden if denied else StoreIOError
        raise kind("cannot open the lock file", str(path), errno=failed.errno) from failed
    try:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            raise StoreLocked("another process has the store open", str(root)) from None
        yield
    finally:
        os.close(fd)


def _exchange(one: Path, other: Path) -> None:
    """Swaps two directory entries in one step. Raises: OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.renameat2(
        _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE
    )
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one))
    sync_folder(one.parent)
    sync_folder(other.parent)


@dataclass(slots=True)
class Journal:
    """A repair that was begun. state: "applying", "applied", "undoing" or "undone". file_mode: of
    files that it makes (storeFileMode)."""

    root: Path
    folder: Path
    state: str
    actions: list[Action]
    file_mode: int = FILE_MODE

    @classmethod
    def begin(cls, root: Path, actions: list[Action], file_mode: int) -> Journal:
        """Makes the side folder and writes the plan into it; nothing else changes yet."""
        stamp = time.strftime("%Y%m%d%H%M%S")
        for n in range(100):
            folder = root / f"{_PREFIX}{stamp}{f'-{n}' if n else ''}"
            try:
                folder.mkdir(mode=folder_mode(file_mode))
                break
            except FileExistsError:
                continue
        (folder / "old").mkdir(mode=folder_mode(file_mode))
        made = cls(root, folder, "applying", actions, file_mode)
        made.save()
        sync_folder(root)
        return made

    @classmethod
    def load(cls, folder: Path, file_mode: int = FILE_MODE) -> Journal:
        """Raises: RecordDamaged when the manifest cannot be read."""
        try:
            data = json.loads((folder / "manifest.json").read_bytes())
            actions = [Action(**each) for each in data["actions"]]
            return cls(folder.parent, folder, data["state"], actions, file_mode)
        except (OSError, ValueError, KeyError, TypeError) as bad:
            raise RecordDamaged(f"the manifest cannot be read ({bad})", str(folder)) from None

    def save(self) -> None:
        data = {"format": 1, "state": self.state, "actions": [a.as_dict() for a in self.actions]}
        text = json.dumps(data, indent=1).encode()
        write_whole(self.folder / "manifest.json", text, mode=self.file_mode)

    # ---- forwards ----

    def apply(self, rebuild: Callable[[Journal, Action], None]) -> None:
        """Does what is not done yet. rebuild: makes derived files (pystore.repair.scratch)."""
        self.state = "applying"
        for number, action in enumerate(self.actions):
            if action.done:
                continue
            if action.do == "rebuild":
                rebuild(self, action)
            else:
                getattr(self, f"_{action.do}")(action, number)
            action.done = True
            self.save()
        self.state = "applied"
        self.save()

    def _patch(self, action: Action, number: int) -> None:
        with (self.root / action.file).open("r+b") as file:
            if "old" not in action.data:
                old = []
                for at, new in action.data["new"]:
                    file.seek(at)
                    old.append([at, file.read(len(new) // 2).hex()])
                action.data["old"] = old
                self.save()
            for at, new in action.data["new"]:
                file.seek(at)
                file.write(bytes.fromhex(new))
            file.flush()
            os.fsync(file.fileno())

    def _zero(self, action: Action, number: int) -> None:
        start, end = action.data["start"], action.data["end"]
        kept = self.folder / "old" / str(number)
        with (self.root / action.file).open("r+b") as file:
            if not os.path.lexists(kept):
                part = kept.with_suffix(".tmp")
                copy_range(file, start, end, part, self.file_mode)
                part.rename(kept)
                sync_folder(kept.parent)
            for at, count in data_ranges(file.fileno(), start, end):
                for piece in range(at, at + count, 1 << 20):
                    os.pwrite(file.fileno(), bytes(min(1 << 20, at + count - piece)), piece)
            os.fsync(file.fileno())

    def _resize(self, action: Action, number: int) -> None:
        path, size = self.root / action.file, action.data["size"]
        kept = self.folder / "old" / str(number)
        now = path.stat().st_size
        if now > size and not os.path.lexists(kept):
            with path.open("rb") as file:
                part = kept.with_suffix(".tmp")
                copy_range(file, size, now, part, self.file_mode)
                part.rename(kept)
                sync_folder(kept.parent)
        action.data.setdefault("was", now)
        self.save()
        os.truncate(path, size)
        with path.open("rb") as file:
            os.fsync(file.fileno())

    def _create(self, action: Action, number: int) -> None:
        path = self.root / action.file
        with new_file(path, self.file_mode) as file:
            file.truncate(action.data["size"])
            for at, new in action.data["new"]:
                file.seek(at)
                file.write(bytes.fromhex(new))
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)

    def _move(self, action: Action, number: int) -> None:
        source, kept = self.root / action.file, self.folder / "old" / str(number)
        if os.path.lexists(source):
            if os.path.lexists(kept):
                raise StoreIOError("the side folder holds this already", str(kept))
            source.rename(kept)
            sync_folder(source.parent)
            sync_folder(kept.parent)

    def _replace(self, action: Action, number: int) -> None:
        path, kept = self.root / action.file, self.folder / "old" / str(number)
        if path.is_file() and not os.path.lexists(kept):
            part = kept.with_suffix(".tmp")
            with path.open("rb") as source, new_file(part, self.file_mode) as copy:
                shutil.copyfileobj(source, copy)
            part.rename(kept)
            sync_folder(kept.parent)
        make_folders(path.parent, self.file_mode)
        write_whole(path, bytes.fromhex(action.data["content"]), mode=self.file_mode)

    def _keep(self, action: Action, number: int) -> None:
        pieces = [(str(name), int(at), int(size)) for name, at, size in action.data["pieces"]]
        folder = copy_aside(self.root, pieces, action.data["why"], self.file_mode)
        action.data["folder"] = str(folder.relative_to(self.root))

    def swap_in(self, action: Action, name: str, made: Path) -> None:
        """Exchanges ``root/name`` with `made`, once: which is which is known by the inode."""
        target = self.root / name
        inodes: dict[str, int] = action.data.setdefault("inodes", {})
        if name not in inodes:
            inodes[name] = made.stat().st_ino
            action.data.setdefault("made", {})[name] = str(made.relative_to(self.root))
            self.save()
        if os.path.lexists(target) and target.lstat().st_ino == inodes[name]:
            return
        if not os.path.lexists(target):
            made.rename(target)
            sync_folder(self.root)
        else:
            _exchange(target, made)

    # ---- backwards ----

    def undo(self) -> None:
        """Puts everything back as it was before the repair. Raises: BadArgument."""
        if self.state == "undone":
            raise BadArgument("this repair was undone already", str(self.folder))
        self.state = "undoing"
        self.save()
        for number, action in reversed(list(enumerate(self.actions))):
            if action.done or action.data.get("inodes") or action.data.get("old"):
                getattr(self, f"_undo_{action.do}")(action, number)
            action.done = False
            self.save()
        self.state = "undone"
        self.save()

    def _undo_patch(self, action: Action, number: int) -> None:
        with (self.root / action.file).open("r+b") as file:
            for at, old in action.data["old"]:
                file.seek(at)
                file.write(bytes.fromhex(old))
            file.flush()
            os.fsync(file.fileno())

    def _undo_zero(self, action: Action, number: int) -> None:
        kept = self.folder / "old" / str(number)
        with kept.open("rb") as old, (self.root / action.file).open("r+b") as file:
            size = kept.stat().st_size
            for at, count in data_ranges(old.fileno(), 0, size):
                for piece in range(at, at + count, 1 << 20):
                    data = os.pread(old.fileno(), min(1 << 20, at + count - piece), piece)
                    os.pwrite(file.fileno(), data, action.data["start"] + piece)
            os.fsync(file.fileno())

    def _undo_resize(self, action: Action, number: int) -> None:
        path, kept = self.root / action.file, self.folder / "old" / str(number)
        os.truncate(path, action.data["was"])
        if os.path.lexists(kept):
            with path.open("r+b") as file:
                file.seek(action.data["size"])
                file.write(kept.read_bytes())
                file.flush()
                os.fsync(file.fileno())

    def _undo_create(self, action: Action, number: int) -> None:
        (self.root / action.file).unlink(missing_ok=True)

    def _undo_move(self, action: Action, number: int) -> None:
        kept = self.folder / "old" / str(number)
        if os.path.lexists(kept):
            kept.rename(self.root / action.file)

    def _undo_replace(self, action: Action, number: int) -> None:
        kept = self.folder / "old" / str(number)
        if os.path.lexists(kept):
            rights = stat.S_IMODE(kept.stat().st_mode)
            write_whole(self.root / action.file, kept.read_bytes(), mode=rights)
        else:
            (self.root / action.file).unlink(missing_ok=True)

    def _undo_keep(self, action: Action, number: int) -> None:
        shutil.rmtree(self.root / action.data.pop("folder"), ignore_errors=True)
        with suppress(OSError):
            (self.root / "aside").rmdir()  # unless it holds something else

    def _undo_rebuild(self, action: Action, number: int) -> None:
        for name, inode in action.data.get("inodes", {}).items():
            target = self.root / name
            made = self.root / action.data["made"][name]
            if not os.path.lexists(target) or target.lstat().st_ino != inode:
                continue
            if os.path.lexists(made):
                _exchange(target, made)
            else:
                target.rename(made)
        action.data.pop("inodes", None)


def journals(root: Path) -> list[Path]:
    """The side folders of a store, oldest first."""
    return sorted(path for path in root.glob(f"{_PREFIX}*") if (path / "manifest.json").exists())
