"""Files that are read and replaced as a whole; the one place where this project does that.

To replace: a temporary file beside it, fsync, rename, fsync of the folder.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from pystore.errors import DiskFull, Forbidden, StoreError, StoreIOError

__all__ = [
    "FILE_MAX_BYTES",
    "FILE_MODE",
    "folder_mode",
    "hold_the_same",
    "make_folders",
    "named_errors",
    "new_file",
    "open_file",
    "os_error",
    "place_folder",
    "read_file",
    "remove_temporaries",
    "replace_file",
    "replace_pieces",
    "sync_folder",
    "whole_file",
    "write_whole",
]

#: Of files that belong to no store, and of a store's unless its storeFileMode says otherwise
#: (csrc/files/io.h has the same): names of topics and groups are not for every user of the machine.
FILE_MODE = 0o640
#: Larger than any cluster's; what is larger is not read into memory.
FILE_MAX_BYTES = 256 << 20
#: Bytes that are copied or compared at once.
_PIECE = 1 << 20


def folder_mode(file_mode: int) -> int:
    """Returns the mode of folders: whoever reads the files may enter them, as PS_FOLDER_MODE of
    csrc/files/io.h."""
    return file_mode | (file_mode & 0o444) >> 2


def make_folders(path: Path, file_mode: int, *, durable: bool = False) -> None:
    """Makes the folder and those above it that are missing, for files of this mode. durable: they
    are there for good afterwards. Raises: OSError."""
    missing = [each for each in (path, *path.parents) if not each.is_dir()]
    for each in reversed(missing):
        each.mkdir(mode=folder_mode(file_mode), exist_ok=True)
        if durable:
            sync_folder(each.parent)


def new_file(path: Path, mode: int) -> BinaryIO:
    """Opens an empty file to write to, in the place of what is there, unless that is a link. mode:
    of a file that was not there, less the umask. Raises: OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return open(os.open(path, flags, mode), "wb")


def os_error(
    failed: OSError, path: str | os.PathLike[str], what: str = "cannot read or write the metadata"
) -> StoreError:
    """Makes the named error of a system call on a file."""
    text = f"{what} ({failed.strerror or failed})"
    kind: type[StoreError] = StoreIOError
    if failed.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        kind = Forbidden
    elif failed.errno in (errno.ENOSPC, errno.EDQUOT):
        kind = DiskFull
    return kind(text, os.fspath(path), errno=failed.errno)


@contextlib.contextmanager
def named_errors(
    path: str | os.PathLike[str], what: str = "cannot read or write the metadata"
) -> Iterator[None]:
    """Gives an error of the system within the block its name; those of the store have one. Raises:
    Forbidden, DiskFull, StoreIOError."""
    try:
        yield
    except StoreError:
        raise
    except OSError as failed:
        raise os_error(failed, path, what) from failed


def open_file(path: Path) -> io.BufferedReader | None:
    """Opens a file to read; None when there is no such file. Raises: Forbidden, StoreIOError; also
    for what is not a regular file."""
    try:
        # Without O_NONBLOCK a named pipe in the file's place would make this wait for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as failed:
        raise os_error(failed, path) from failed
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise StoreIOError("not a regular file", str(path))
    return open(fd, "rb")


def read_file(path: Path) -> bytes | None:
    """Returns the content, or None when there is no such file.

    Raises: Forbidden, StoreIOError; also for what is not a regular file, or larger than
    :data:`FILE_MAX_BYTES`.
    """
    file = open_file(path)
    if file is None:
        return None
    with named_errors(path), file:
        data = file.read(FILE_MAX_BYTES + 1)
    if len(data) > FILE_MAX_BYTES:
        raise StoreIOError(f"the file is larger than {FILE_MAX_BYTES} bytes", str(path))
    return data


def sync_folder(folder: Path) -> None:
    """Makes renames in the folder durable. Raises: OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")


@contextlib.contextmanager
def whole_file(path: Path, *, durable: bool = True, mode: int = FILE_MODE) -> Iterator[BinaryIO]:
    """Opens a file to write to; at the end of the block it takes the place of the one at `path`.

    Whenever the power fails, `path` holds its old content or all of the new one. It keeps the
    rights of the old one. When the block raises, nothing has happened. durable: the new one is
    there for good when the block ends; otherwise call :func:`sync_folder` after the last file.
    mode: of a file that was not there, less the umask.

    Raises: OSError.
    """
    temporary = _temporary(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, mode), "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)  # noqa: PTH105 - one name for tests to make fail
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def place_folder(made: Path, target: Path) -> None:
    """Gives a whole folder its final name, durably. Raises: OSError where that name is taken."""
    os.rename(made, target)  # noqa: PTH104 - an empty folder alone would be replaced
    sync_folder(target.parent)


def write_whole(path: Path, data: bytes, *, durable: bool = True, mode: int = FILE_MODE) -> None:
    """Writes content that is at hand as :func:`whole_file` does. Raises: OSError."""
    with whole_file(path, durable=durable, mode=mode) as file:
        file.write(data)


def replace_file(path: Path, data: bytes, *, keep_old: bool, mode: int = FILE_MODE) -> None:
    """Writes content that is at hand as replace_pieces() does. Raises: as that."""
    replace_pieces(path, (data,), keep_old=keep_old, mode=mode)


def replace_pieces(
    path: Path, content: Iterable[bytes], *, keep_old: bool, mode: int = FILE_MODE
) -> None:
    """Writes the file, whose content comes in pieces; with keep_old what it had so far, if that was
    another, becomes its ``.bak`` first.

    mode: of a file that was not there, less the umask; a ``.bak`` gets that of its file.

    The folder is not synced: call :func:`sync_folder` after the last file. The old content is
    copied, not linked: upstream overwrites in place, and would change both names at once.

    Raises: Forbidden, DiskFull, StoreIOError; the file then holds its old content, or all of the
    new one.
    """
    with named_errors(path), whole_file(path, durable=False, mode=mode) as file:
        file.writelines(content)
        file.flush()
        if keep_old:
            _keep_old(path)


def _keep_old(path: Path) -> None:
    old = open_file(path)
    if old is None:
        return
    with old, open_file(_temporary(path)) or old as new:
        if not hold_the_same(old, new):
            old.seek(0)
            rights = stat.S_IMODE(os.fstat(old.fileno()).st_mode)
            with whole_file(path.with_name(path.name + ".bak"), durable=False, mode=rights) as bak:
                shutil.copyfileobj(old, bak, _PIECE)


def hold_the_same(one: BinaryIO, other: BinaryIO) -> bool:
    """Says whether two open files go on with the same bytes. Raises: OSError."""
    while (piece := one.read(_PIECE)) == other.read(_PIECE):
        if not piece:
            return True
    return False


def remove_temporaries(folder: Path, names: Iterable[str]) -> None:
    """Removes what an export that was killed left behind. Raises nothing: the next one retries."""
    for name in names:
        for leftover in (f"{name}.tmp", f"{name}.bak.tmp"):
            with contextlib.suppress(OSError):
                (folder / leftover).unlink()
