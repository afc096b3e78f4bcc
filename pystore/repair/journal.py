"""The side folder of a repair: what it will do, what it did, and every byte that it takes away.

``STORE/repair-TIME/`` holds ``manifest.json`` (manifest.py) and ``old/``. The manifest is on the
disk before the first byte of the store changes, and each action can be done twice, so that a repair
that was interrupted anywhere is finished by the next one. ``repair --undo`` does the actions
backwards. Both look first whether the store is still as the repair left it (evidence.py).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pystore.audit.layout import Layout
from pystore.errors import (
    BadArgument,
    Forbidden,
    RecordDamaged,
    StoreError,
    StoreIOError,
    StoreLocked,
    StrayFile,
)
from pystore.files import (
    FILE_MODE,
    folder_mode,
    make_folders,
    new_file,
    os_error,
    sync_folder,
    write_whole,
)
from pystore.files.aside import copy_aside, free_folder, take_back_copies
from pystore.files.sparse import copy_range, data_ranges
from pystore.native import ffi, lib
from pystore.repair.evidence import Differs, differs, note_found
from pystore.repair.manifest import Action, check_manifest, next_name, read_manifest, to_json

__all__ = ["Journal", "hold_lock", "refuse_if_held"]

#: What they find out as they go is needed to do them again, or to undo them: it is written down at
#: once. That others are done is not, which would cost the square of their number.
_TELLING = ("keep", "rebuild")
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


def refuse_if_held(root: Path) -> None:
    """Checks that no process has the store open. Raises: StoreLocked."""
    holder = lib.ps_lock_holder(ffi.NULL, os.fsencode(root))
    if holder != 0:
        who = f"process {holder}" if holder > 0 else "another process"
        raise StoreLocked(f"{who} has the store open", str(root), pid=max(0, holder) or None)


@contextmanager
def hold_lock(root: Path, file_mode: int = FILE_MODE) -> Iterator[None]:
    """Holds the store's locks, as its writer would: that of the file `lock`, and that of its folder
    (csrc/files/places.h). file_mode: that of the store (storeFileMode).

    Raises: StoreLocked, StrayFile, Forbidden, StoreIOError."""
    refuse_if_held(root)
    with _locked_folder(root), _locked_file(root, file_mode):
        yield


@contextmanager
def _locked_folder(root: Path) -> Iterator[None]:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLocked("another process has the store open", str(root)) from None
        except OSError:
            pass  # a file system without such locks: the file alone refuses
        yield
    finally:
        os.close(fd)


@contextmanager
def _locked_file(root: Path, file_mode: int) -> Iterator[None]:
    path, flags = root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    if os.path.lexists(path) and not path.is_file():
        raise StrayFile("not a regular file", str(path))
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


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turns errors of system calls on files of a store and of its side folder into errors of
    ours."""
    try:
        yield
    except OSError as failed:
        if isinstance(failed, StoreError):
            raise
        at = Path(os.fsdecode(failed.filename)) if failed.filename else path
        raise os_error(failed, at, "cannot change the store") from failed


@dataclass(slots=True)
class Journal:
    """A repair that was begun. `state` is one of STATES; `file_mode` is that of files that it makes
    (storeFileMode)."""

    root: Path
    folder: Path
    state: str
    actions: list[Action]
    file_mode: int = FILE_MODE

    @classmethod
    def begin(
        cls, root: Path, actions: list[Action], file_mode: int, log_folders: list[Path]
    ) -> Journal:
        """Makes the side folder and writes the plan into it; nothing else changes yet. log_folders:
        those of the store, absolute.

        Raises: RecordDamaged for a plan that would leave the store, Forbidden, DiskFull,
        StoreIOError."""
        with _named(root):
            note_found(root, actions)
            made = cls(root, root / next_name(root), "applying", actions, file_mode)
            check_manifest(to_json(made.state, actions), made.folder, log_folders)
            made.folder.mkdir(mode=folder_mode(file_mode))
            made.save()
            sync_folder(root)
        return made

    @classmethod
    def load(cls, folder: Path, log_folders: list[Path], file_mode: int = FILE_MODE) -> Journal:
        """Reads the journal of a side folder. Raises: as :func:`read_manifest`."""
        state, actions = read_manifest(folder, log_folders)
        return cls(folder.parent, folder, state, actions, file_mode)

    def add(self, actions: list[Action]) -> None:
        """Adds actions that were planned by what the others made. Raises: Forbidden,
        StoreIOError."""
        with _named(self.root):
            note_found(self.root, actions)
        self.actions = self.actions + actions

    def save(self) -> None:
        text = to_json(self.state, self.actions)
        write_whole(self.folder / "manifest.json", text, mode=self.file_mode)

    def _enter(self, state: str) -> None:
        self.state = state
        self.save()

    def differs(self, layout: Layout, *, forwards: bool) -> tuple[Action, Differs] | None:
        """Returns the first action that the store or the copies no longer fit, and why; nothing
        changes. With `forwards` what is done stays as it is.

        Raises: Forbidden, StoreIOError."""
        interrupted = self.state != "applied"
        steps: dict[str, list[Action]] = {}
        for action in self.actions:
            steps.setdefault(action.file, []).append(action)
        for number, action in enumerate(self.actions):
            if forwards and action.done:
                continue
            kept, others = self.folder / "old" / str(number), steps[action.file]
            with _named(self.root / action.file):
                found = differs(layout, kept, action, others, interrupted=interrupted)
            if found is not None:
                return action, found
        return None

    def abandon(self) -> None:
        """Leaves the store as it is: it was used since the repair was interrupted."""
        with _named(self.folder):
            self._enter("abandoned")

    # ---- forwards ----

    def apply(self, rebuild: Callable[[Journal, Action], None]) -> None:
        """Does what is not done yet. rebuild: makes derived files (pystore.repair.scratch).

        Raises: Forbidden, DiskFull, StoreIOError."""
        with _named(self.folder):
            # Here: a loss of power may keep the manifest and lose the folder beside it.
            (self.folder / "old").mkdir(mode=folder_mode(self.file_mode), exist_ok=True)
            sync_folder(self.folder)
            self._enter("applying")
            for number, action in enumerate(self.actions):
                if action.done:
                    continue
                if action.do == "rebuild":
                    rebuild(self, action)
                else:
                    getattr(self, f"_{action.do}")(action, number)
                action.done = True
                if action.do in _TELLING:
                    self.save()
            self._enter("applied")

    def _patch(self, action: Action, number: int) -> None:
        with (self.root / action.file).open("r+b") as file:
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
            source.rename(kept)
            sync_folder(source.parent)
            sync_folder(kept.parent)

    def _replace(self, action: Action, number: int) -> None:
        path, kept = self.root / action.file, self.folder / "old" / str(number)
        if path.is_file() and not os.path.lexists(kept):
            part = kept.with_suffix(".tmp")
            with path.open("rb") as source, new_file(part, self.file_mode) as copy:
                shutil.copyfileobj(source, copy)
                copy.flush()
                os.fsync(copy.fileno())
            part.rename(kept)
            sync_folder(kept.parent)
        make_folders(path.parent, self.file_mode)
        write_whole(path, bytes.fromhex(action.data["content"]), mode=self.file_mode)

    def _keep(self, action: Action, number: int) -> None:
        pieces = [(str(name), int(at), int(size)) for name, at, size in action.data["pieces"]]
        if "folder" not in action.data:
            action.data["folder"] = str(free_folder(self.root).relative_to(self.root))
            self.save()
        part, folder = self.folder / "old" / f"{number}.tmp", self.root / action.data["folder"]
        copy_aside(self.root, pieces, action.data["why"], self.file_mode, part, folder)

    def swap_in(self, action: Action, name: str, made: Path) -> None:
        """Exchanges ``root/name`` with `made`, once: the inode tells which is which."""
        target = self.root / name
        inodes: dict[str, int] = action.data.setdefault("inodes", {})
        if name not in inodes:
            for folder in (made.parent, self.folder):
                sync_folder(folder)  # what the manifest names is on the disk before it
            inodes[name] = made.lstat().st_ino
            action.data.setdefault("made", {})[name] = str(made.relative_to(self.root))
            action.data.setdefault("had", {})[name] = os.path.lexists(target)
            self.save()
        if os.path.lexists(target) and target.lstat().st_ino == inodes[name]:
            return
        if not os.path.lexists(target):
            made.rename(target)
            sync_folder(made.parent)
            sync_folder(self.root)
        else:
            _exchange(target, made)

    # ---- backwards ----

    def undo(self, layout: Layout) -> None:
        """Puts everything back as it was before the repair. An undo that was interrupted continues.

        Raises: BadArgument, RecordDamaged: nothing has changed; Forbidden, DiskFull,
        StoreIOError."""
        if self.state in ("undone", "abandoned"):
            raise BadArgument(f"this repair was {self.state} already", str(self.folder))
        found = self.differs(layout, forwards=False)
        if found is not None:
            raise self._refusal(*found)
        with _named(self.folder):
            self._enter_undo()
            for number, action in reversed(list(enumerate(self.actions))):
                getattr(self, f"_undo_{action.do}")(action, number)
                action.done = False
                if action.do in _TELLING:
                    self.save()
            self._enter("undone")

    def _enter_undo(self) -> None:
        if self.state == "applied":  # then all is swapped in, in a copy of the store, too
            for action in self.actions:
                for name in action.data.get("inodes", {}):
                    action.data["inodes"][name] = (self.root / name).lstat().st_ino
        self._enter("undoing")

    def _refusal(self, action: Action, found: Differs) -> StoreError:
        where = str(self.root / action.file)
        kind = RecordDamaged if found.copy else BadArgument
        error = kind(f"{self.folder.name} cannot be undone: {found}", where)
        error.next_step = (
            "nothing was changed; restore the copies from a backup"
            if found.copy
            else f"nothing was changed; what the repair took away lies in {self.folder}/old"
        )
        return error

    def _undo_patch(self, action: Action, number: int) -> None:
        with (self.root / action.file).open("r+b") as file:
            for at, old in action.data["old"]:
                file.seek(at)
                file.write(bytes.fromhex(old))
            file.flush()
            os.fsync(file.fileno())

    def _undo_zero(self, action: Action, number: int) -> None:
        kept = self.folder / "old" / str(number)
        if not os.path.lexists(kept):
            return  # nothing was zeroed yet
        with kept.open("rb") as old, (self.root / action.file).open("r+b") as file:
            size = kept.stat().st_size
            for at, count in data_ranges(old.fileno(), 0, size):
                for piece in range(at, at + count, 1 << 20):
                    data = os.pread(old.fileno(), min(1 << 20, at + count - piece), piece)
                    os.pwrite(file.fileno(), data, action.data["start"] + piece)
            os.fsync(file.fileno())

    def _undo_resize(self, action: Action, number: int) -> None:
        path, kept = self.root / action.file, self.folder / "old" / str(number)
        with path.open("r+b") as file:
            file.truncate(action.data["was"])
            if os.path.lexists(kept):
                file.seek(action.data["size"])
                with kept.open("rb") as old:
                    shutil.copyfileobj(old, file)
            file.flush()
            os.fsync(file.fileno())

    def _undo_create(self, action: Action, number: int) -> None:
        path = self.root / action.file
        path.unlink(missing_ok=True)
        sync_folder(path.parent)

    def _undo_move(self, action: Action, number: int) -> None:
        kept = self.folder / "old" / str(number)
        if os.path.lexists(kept):
            target = self.root / action.file
            kept.rename(target)
            sync_folder(target.parent)
            sync_folder(kept.parent)

    def _undo_replace(self, action: Action, number: int) -> None:
        kept = self.folder / "old" / str(number)
        if os.path.lexists(kept):
            rights = stat.S_IMODE(kept.stat().st_mode)
            write_whole(self.root / action.file, kept.read_bytes(), mode=rights)
        elif action.data["found"] is None:
            path = self.root / action.file
            path.unlink(missing_ok=True)
            sync_folder(path.parent)

    def _undo_keep(self, action: Action, number: int) -> None:
        if "folder" not in action.data:
            return
        pieces = [(name, at, length) for name, at, length in action.data["pieces"]]
        folder, kept = self.root / action.data["folder"], self.folder / "old" / str(number)
        take_back_copies(self.root, folder, pieces, kept)
        del action.data["folder"]

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
                sync_folder(self.root)
                sync_folder(made.parent)
        for key in ("inodes", "made", "had", "log"):
            action.data.pop(key, None)
