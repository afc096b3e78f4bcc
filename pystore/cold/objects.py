"""Object stores: a folder by our own hands, everything else by obstore.

A folder needs no package, and its files are synced before they have their names, which obstore does
not do (docs/adr/010-cold-tier.md). Objects are whole or not there, and none is ever changed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import heapq
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pystore.cold.buffers import BufferPool
from pystore.cold.failures import NotATier, TierDamaged, TierUnreachable
from pystore.errors import BadArgument, StoreIOError
from pystore.files import FILE_MODE, make_folders, new_file, sync_folder
from pystore.files.mapped import MappedFile
from pystore.format.records import Buffer
from pystore.native import address_of as memory_of
from pystore.native import ffi

__all__ = ["FOLDERS_MAX", "ObjectStore", "StoredObject", "address_of", "is_address", "open_objects"]

#: A path that pathlib has taken for one of this host has lost a slash.
_ADDRESS = re.compile(r"(s3a?|gs|az|abfss?|adl|azure|https?|memory):/{1,3}(?=\S)")
_TEMPORARY = ".part"
#: Folders that a key of ours has, at most; deeper ones are strangers'.
_DEPTH = 4
#: Of folders that lie side by side, a caller hears of one more at most.
FOLDERS_MAX = 10_000
#: So many are looked for one by one, which costs a request each; others by a listing of all, which
#: has so many seconds: two million of them, at 5 ms a request.
_ONE_BY_ONE, _FOLDERS_S = 16, 10.0
#: How often obstore asks again, and for how long, before the caller hears of it.
_RETRIES, _RETRY_S, _ANSWER_S = 5, 30, 30
#: Ranges from so many bytes on are taken as they come, in pieces of so many.
_STREAMED, _CHUNK = 1 << 20, 1 << 16
#: What a write past the system's cache is made of, and objects of which there is one.
_PAGE, _DIRECT = 4096, 1 << 20
#: Objects from so many bytes on are mapped where they are wanted whole.
_MAPPED = 1 << 18


class StoredObject(NamedTuple):
    """An object of a listing. age_s: since it was written."""

    key: str
    size: int
    age_s: float


class ObjectStore(Protocol):
    """What the tier needs of an object store. Keys are relative to its address.

    Each call raises TierUnreachable; get and mapped raise TierDamaged where the object is not
    there, or is shorter than what was asked for.
    """

    address: str

    def get(self, key: str, start: int, end: int) -> Buffer:
        """Returns the bytes [start, end) of an object."""

    def mapped(self, key: str, size: int, base: int) -> MappedFile | None:
        """Returns an object of `size` bytes where it lies, its first byte called `base`; None: it
        is to be got."""

    def size_of(self, key: str) -> int | None:
        """Returns the bytes of an object; None: there is none."""

    def put_new(self, key: str, data: Buffer) -> bool:
        """Writes an object, durably; False: one of that key and of other bytes is there."""

    def find(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        """Yields objects whose keys begin with a prefix that ends with a slash, or all, in the
        order of their keys. after: only keys after this one."""

    def folders(self, prefix: str = "") -> Iterator[str]:
        """Yields the names of folders one level below, in order, of more than FOLDERS_MAX no
        others. Each of the first ones may cost a listing: who knows a name asks `has`."""

    def has(self, folder: str) -> bool:
        """Says whether anything lies in a folder."""

    def below(self, prefix: str) -> ObjectStore:
        """Returns the part of the store below a prefix."""

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes objects; one that is not there is no error."""


def is_address(path: str | os.PathLike[str]) -> bool:
    """Says whether a path is the address of an object store."""
    return _ADDRESS.match(os.fspath(path)) is not None


def address_of(path: str | os.PathLike[str]) -> str:
    """Returns the address of an object store, or the path of a folder, without a slash at the
    end."""
    text = os.fspath(path)
    found = _ADDRESS.match(text)
    if found is not None:
        slashes = ":///" if found[1] == "memory" else "://"
        text = found[1] + slashes + text[found.end() :]
    return text.rstrip("/")


def open_objects(path: str | os.PathLike[str]) -> ObjectStore:
    """Opens the object store at an address or folder. Raises: BadArgument, TierUnreachable."""
    address = address_of(path)
    if is_address(address):
        return _remote(address)
    return FolderObjects(Path(address))


def _checked(key: str) -> str:
    """Returns the key. Raises: TierDamaged for one that leads out of the tier."""
    if any(part in ("", ".", "..") for part in key.split("/")) or "\0" in key:
        raise TierDamaged(f"the name {key!r} leads out of the tier")
    return key


class FolderObjects:
    """A folder of this host."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.address = str(root)
        self._buffers = BufferPool()
        self._seen = False

    def _check_there(self) -> None:
        """Refuses a folder that was there and is gone: where a mount ends, another one would be
        made below it. Raises: TierUnreachable."""
        try:
            there = self.root.is_dir()
        except OSError as failed:
            raise _unreachable(failed, self.address) from failed
        if self._seen and not there:
            raise TierUnreachable("the folder of the tier no longer exists", self.address)
        self._seen = self._seen or there

    def _path(self, key: str) -> Path:
        """Returns where an object lies. Raises: TierDamaged where that is not in the folder."""
        path = self.root / _checked(key)
        above = path.parent
        while above != self.root:
            if above.is_symlink():
                raise TierDamaged("a link stands in the place of a folder", str(above))
            above = above.parent
        return path

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, str]]:
        """Gives the descriptor and the path of an object. Raises: TierDamaged, TierUnreachable,
        also in the place of an OSError of what is done with them."""
        path = self._path(key)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            self._check_there()
            raise TierDamaged("an object is missing", str(path)) from None
        except OSError as failed:
            raise _unreachable(failed, str(path)) from failed
        try:
            yield fd, str(path)
        except OSError as failed:
            raise _unreachable(failed, str(path)) from failed
        finally:
            os.close(fd)

    def get(self, key: str, start: int, end: int) -> Buffer:
        with self._opened(key) as (fd, path):
            data = self._buffers.take(max(0, end - start))
            size = _read_into(data, fd, start)
            _check_size(size, start, end, path)
        return data.toreadonly()

    def mapped(self, key: str, size: int, base: int) -> MappedFile | None:
        if size < _MAPPED:
            return None
        with self._opened(key) as (fd, path):
            _check_size(min(size, os.fstat(fd).st_size), 0, size, path)
            try:
                file = MappedFile(fd, path, size, base)
            except StoreIOError:  # a file system that maps nothing
                return None
        file.read_whole()
        return file

    def size_of(self, key: str) -> int | None:
        try:
            return self._path(key).lstat().st_size
        except (FileNotFoundError, NotADirectoryError):
            self._check_there()
            return None
        except OSError as failed:
            raise _unreachable(failed, key) from failed

    def put_new(self, key: str, data: Buffer) -> bool:
        self._check_there()
        path = self._path(key)
        part = path.with_name(f"{path.name}.{os.getpid()}{_TEMPORARY}")
        try:
            make_folders(path.parent, FILE_MODE, durable=True)
            try:
                with new_file(part, FILE_MODE) as file:
                    _write(file.fileno(), data)
                    os.fsync(file.fileno())
                os.link(part, path)
            except FileExistsError:
                return path.stat().st_size == len(data) and path.read_bytes() == data
            finally:
                part.unlink(missing_ok=True)
            sync_folder(path.parent)
        except OSError as failed:
            raise _unreachable(failed, str(path)) from failed
        self._seen = True
        return True

    def find(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        self._check_there()
        return self._below(prefix, after, time.time())

    def _below(self, prefix: str, after: str, now: float) -> Iterator[StoredObject]:
        try:
            with os.scandir(self.root / prefix) as found:
                here = sorted(f"{e.name}/" if e.is_dir(follow_symlinks=False) else e.name
                              for e in found)  # fmt: skip
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as failed:
            raise _unreachable(failed, str(self.root / prefix)) from failed
        for name in here:
            key = prefix + name
            if key.endswith("/"):
                if (key > after or after.startswith(key)) and key.count("/") <= _DEPTH:
                    yield from self._below(key, after, now)
            elif key > after and not key.endswith(_TEMPORARY):
                with contextlib.suppress(FileNotFoundError):
                    about = (self.root / key).lstat()
                    yield StoredObject(key, about.st_size, now - about.st_mtime)

    def folders(self, prefix: str = "") -> Iterator[str]:
        try:
            with os.scandir(self.root / prefix) as found:
                names = (each.name for each in found if each.is_dir(follow_symlinks=False))
                yield from heapq.nsmallest(FOLDERS_MAX + 1, names)
        except FileNotFoundError:
            return
        except OSError as failed:
            raise _unreachable(failed, str(self.root / prefix)) from failed

    def has(self, folder: str) -> bool:
        try:
            return stat.S_ISDIR(self._path(folder).lstat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as failed:
            raise _unreachable(failed, folder) from failed

    def below(self, prefix: str) -> ObjectStore:
        return FolderObjects(self.root / _checked(prefix)) if prefix else self

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                self._path(key).unlink(missing_ok=True)
            except OSError as failed:
                raise _unreachable(failed, key) from failed


def _read_into(data: memoryview, fd: int, start: int) -> int:
    """Fills as much of it as the file has from `start` on; returns how much."""
    at = 0
    while at < len(data) and (size := os.preadv(fd, [data[at:]], start + at)):
        at += size
    return at


def _write(fd: int, data: Buffer) -> None:
    """Writes an object to an empty file, all but the last of its pages past the system's cache:
    nobody reads soon what goes out, and to fill new pages of the cache takes more processor time
    than all else that writing out does (docs/adr/010-cold-tier.md). Raises: OSError."""
    view, at = memoryview(data), 0
    whole = len(view) // _PAGE * _PAGE
    if whole >= _DIRECT and memory_of(ffi.from_buffer(view)) % _PAGE == 0 and _pass_cache(fd, True):
        try:
            while at < whole and at % _PAGE == 0:
                at += os.pwrite(fd, view[at:whole], at)
        except OSError as failed:
            if failed.errno != errno.EINVAL:  # the file system has another idea of pages
                raise
        _pass_cache(fd, False)
    while at < len(view):
        at += os.pwrite(fd, view[at:], at)


def _pass_cache(fd: int, on: bool) -> bool:
    """Sets whether writes pass the system's cache; False: the system does not know that."""
    try:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
    except (OSError, AttributeError):
        return False
    return True


def _check_size(size: int, start: int, end: int, where: str) -> None:
    if size != max(0, end - start):
        raise TierDamaged(f"an object has {size} bytes from {start}, not {end - start}", where)


def _unreachable(failed: Exception, where: str) -> TierUnreachable:
    """Makes the named error. What obstore says goes on with dumps of its own and with the page that
    the service has answered, which are left out."""
    if isinstance(failed, OSError):
        text = failed.strerror or str(failed)
        return TierUnreachable(text, where, errno=failed.errno)
    return TierUnreachable(str(failed).partition("\n")[0].partition(": <")[0], where)


# ---- by obstore ----


@cache
def _memory(address: str) -> Any:
    """Returns the store in this process's memory at an address: one for all who name it."""
    from obstore.store import MemoryStore

    return MemoryStore()


def _remote(address: str) -> ObjectStore:
    try:
        import obstore
    except ImportError as missing:
        error = BadArgument("object stores need a package that is not installed", address)
        error.next_step = "pip install 'rocketmq-pystore[cold]'"
        raise error from missing
    scheme, _, rest = address.partition("://")
    if scheme == "memory":
        name, _, prefix = rest.lstrip("/").partition("/")
        return RemoteObjects(obstore, _memory(name), address, f"{prefix}/" if prefix else "")
    try:
        store = obstore.store.from_url(
            address,
            client_options={"timeout": f"{_ANSWER_S}s", "allow_http": True},
            retry_config={"max_retries": _RETRIES, "retry_timeout": _seconds(_RETRY_S)},
        )
    except Exception as failed:  # each kind of store has errors of its own
        raise _unreachable(failed, address) from failed
    return RemoteObjects(obstore, store, address, "")


def _seconds(count: int) -> Any:
    from datetime import timedelta

    return timedelta(seconds=count)


class RemoteObjects:
    """An object store that obstore knows. Its calls let go of the GIL; it asks again by itself
    where the service is busy."""

    def __init__(self, obstore: Any, store: Any, address: str, prefix: str) -> None:
        self._obstore = obstore
        self._store = store
        self._prefix = prefix
        self._buffers = BufferPool()
        self.address = address

    def _key(self, key: str) -> str:
        return self._prefix + _checked(key)

    def get(self, key: str, start: int, end: int) -> Buffer:
        where = f"{self.address}/{key}"
        if end <= start:
            return b""
        try:
            if end - start < _STREAMED:
                data = self._obstore.get_range(self._store, self._key(key), start=start, end=end)
            else:
                data = self._stream(key, start, end)
        except FileNotFoundError:
            raise TierDamaged("an object is missing", where) from None
        except self._obstore.exceptions.BaseError as failed:
            raise _unreachable(failed, where) from failed
        view = memoryview(data).toreadonly()
        _check_size(len(view), start, end, where)
        return view

    def mapped(self, key: str, size: int, base: int) -> None:
        return None

    def _stream(self, key: str, start: int, end: int) -> memoryview:
        """Returns what comes of a range, in memory that is used again: in one piece obstore would
        take twice as much, and new memory each time."""
        options = {"range": (start, end)}
        data, at = self._buffers.take(end - start), 0
        answer = self._obstore.get(self._store, self._key(key), options=options)
        for chunk in answer.stream(min_chunk_size=_CHUNK):
            piece = memoryview(chunk)[: len(data) - at]
            data[at : at + len(piece)] = piece
            at += len(piece)
        return data[:at]

    def size_of(self, key: str) -> int | None:
        try:
            return int(self._obstore.head(self._store, self._key(key))["size"])
        except FileNotFoundError:
            return None
        except self._obstore.exceptions.BaseError as failed:
            raise _unreachable(failed, f"{self.address}/{key}") from failed

    def put_new(self, key: str, data: Buffer) -> bool:
        errors = self._obstore.exceptions
        try:
            self._obstore.put(self._store, self._key(key), data, mode="create", use_multipart=False)
        except (errors.AlreadyExistsError, errors.PreconditionError):
            # A request whose answer was lost is sent again, and then meets its own object.
            return self._holds(key, data)
        except errors.BaseError as failed:
            raise _unreachable(failed, f"{self.address}/{key}") from failed
        return True

    def _holds(self, key: str, data: Buffer) -> bool:
        try:
            there = self._obstore.get(self._store, self._key(key)).bytes()
        except FileNotFoundError:
            return False
        except self._obstore.exceptions.BaseError as failed:
            raise _unreachable(failed, f"{self.address}/{key}") from failed
        return bytes(there) == data

    def find(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        now = time.time()
        offset = self._prefix + after if after else None
        try:
            for page in self._obstore.list(self._store, self._prefix + prefix, offset=offset):
                for each in page:
                    key = str(each["path"])[len(self._prefix) :]
                    yield StoredObject(
                        key, int(each["size"]), now - each["last_modified"].timestamp()
                    )
        except self._obstore.exceptions.BaseError as failed:
            raise _unreachable(failed, f"{self.address}/{prefix}") from failed
        except FileNotFoundError:
            raise NotATier("nothing is there", self.address) from None

    def folders(self, prefix: str = "") -> Iterator[str]:
        after, count = "", 0
        while count <= FOLDERS_MAX:
            if count == _ONE_BY_ONE and (every := self._all_folders(prefix)) is not None:
                rest = sorted(f"{each}/" for each in every if f"{prefix}{each}/" > after)
                yield from (each[:-1] for each in rest[: FOLDERS_MAX + 1 - count])
                return
            found = (each.key for each in self.find(prefix, after) if each.key > after)
            key = next((key for key in found if "/" in key[len(prefix) :]), None)
            if key is None:
                return
            name = key[len(prefix) :].partition("/")[0]
            yield name
            # "0" comes after "/": this is beyond all that lies in the folder.
            after, count = f"{prefix}{name}0", count + 1

    def _all_folders(self, prefix: str) -> list[str] | None:
        """Returns all folders, in no order, by a listing of a thousand a request; None: there are
        too many for that, or it takes too long."""
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        # obstore has all of them in memory, and the objects beside them: the time bounds that.
        listed = self._obstore.list_with_delimiter_async

        async def ask() -> Any:
            async with asyncio.timeout(_FOLDERS_S):
                return await listed(self._store, self._prefix + prefix)

        try:
            with ThreadPoolExecutor(1) as pool:  # the caller may have an event loop of its own
                found = pool.submit(lambda: asyncio.run(ask())).result()
        except TimeoutError:
            return None
        except self._obstore.exceptions.BaseError as failed:
            raise _unreachable(failed, f"{self.address}/{prefix}") from failed
        return [str(each).rstrip("/").rpartition("/")[2] for each in found["common_prefixes"]]

    def has(self, folder: str) -> bool:
        return next(self.find(f"{folder}/"), None) is not None

    def below(self, prefix: str) -> ObjectStore:
        if not prefix:
            return self
        address, below = f"{self.address}/{prefix}", f"{self._prefix}{_checked(prefix)}/"
        return RemoteObjects(self._obstore, self._store, address, below)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                self._obstore.delete(self._store, self._key(key))
            except FileNotFoundError:
                continue
            except self._obstore.exceptions.BaseError as failed:
                raise _unreachable(failed, f"{self.address}/{key}") from failed
