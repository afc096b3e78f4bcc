"""The plain access list of a running broker: its files, watched, and changed by admin requests.

docs/internals/access.md#the-plain-list
"""

from __future__ import annotations

import asyncio
import contextlib
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from broker.access import plain_file
from broker.access.addresses import Pattern
from broker.access.plain import Account, PlainRules
from broker.access.plain_file import PlainFile, Version
from broker.loop.lifetime import end_tasks
from broker.loop.safe_log import SafeLogger
from pystore.errors import BadArgument, StoreError
from pystore.files import named_errors, write_whole

__all__ = ["PlainAccess"]

log = SafeLogger("broker.access")

#: How often the files are looked at. A change holds within twice this time.
WATCH_S = 0.2
_MAIN, _FOLDER = "plain_acl.yml", "acl"
#: Names, times, sizes and inodes of all files.
_Seen = tuple[tuple[str, int, int, int], ...]


class PlainAccess:
    """The plain list, from the files of the folder `conf` (plain_acl.yml and acl/). `changed` is
    called on the loop after the rules were replaced."""

    def __init__(self, conf: Path, changed: Callable[[], None]) -> None:
        self.conf = conf
        self.rules = PlainRules()
        self.files: tuple[PlainFile, ...] = ()
        #: What is wrong with the files as they are now; empty: nothing is.
        self.problem = ""
        self._failed: tuple[int, str | None, _Seen | None] | None = None
        self._changed = changed
        self._seen: _Seen = ()
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    @property
    def main(self) -> Path:
        return self.conf / _MAIN

    def load(self) -> None:
        """Reads the files for the first time. Raises: BadArgument, since a broker does not start
        with rules that nobody can read."""
        self._seen = self._look()
        if not any(path == str(self.main) for path, *_ in self._seen):
            raise BadArgument(
                "aclEnable is true, but there is no access list; make one, see docs/access.md",
                str(self.main),
            )
        self._swap(_LoadedFiles(self._read(self._seen)))

    def start(self) -> None:
        """Watches the files from now on."""
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        task, self._task = self._task, None
        await end_tasks(task)

    # ---- files ----

    def _look(self) -> _Seen:
        """Reads the files of the folder first and the main file last. Raises: BadArgument."""
        folder = self.conf / _FOLDER
        paths = sorted(path for path in folder.rglob("*") if path.suffix in (".yml", ".yaml"))
        found = []
        for path in (*paths, self.main):
            try:
                about = path.stat()
            except FileNotFoundError:
                continue
            except OSError as failed:
                raise BadArgument(
                    f"the access list cannot be read ({failed.strerror})", str(path)
                ) from failed
            # Of the inode: it tells rights and times that were set back, too.
            found.append((str(path), about.st_ctime_ns, about.st_size, about.st_ino))
        return tuple(found)

    @staticmethod
    def _read(seen: _Seen) -> tuple[PlainFile, ...]:
        return tuple(plain_file.load(Path(path)) for path, *_ in seen)

    def _swap(self, taken: _LoadedFiles) -> None:
        for line in taken.warnings:
            log.warning("%s", line)
        self.files, self.rules, self.problem = taken.files, taken.rules, ""
        self._failed = None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            async with self._lock:
                await self._refresh()

    async def _refresh(self) -> None:
        """Takes over what has changed, all of it or nothing."""
        seen = None
        try:
            seen = await asyncio.to_thread(self._look)
            if seen == self._seen:
                return
            self._seen = seen
            if str(self.main) not in [path for path, *_ in seen]:
                raise BadArgument("the access list is gone", str(self.main))
            taken = await asyncio.to_thread(lambda: _LoadedFiles(self._read(seen)))
        except StoreError as bad:
            failed = (bad.code, bad.where, seen)
            if failed != self._failed:
                log.error("The access list did not change, the old rules hold: %s", bad)
            self.problem, self._failed = str(bad), failed
            return
        self._swap(taken)
        self._changed()
        log.info("The access list has %d accounts now", len(self.rules.accounts))

    # ---- admin requests ----

    def file_of(self, key: str) -> PlainFile | None:
        """Returns the file whose definition of an account holds."""
        for file in self.files:
            if any(account.key == key for account in file.accounts):
                return file
        return None

    def file_at(self, path: Path) -> PlainFile | None:
        for file in self.files:
            if file.path.resolve() == path.resolve():
                return file
        return None

    async def put(self, account: Account) -> None:
        """Adds or changes an account in its file. Raises: StoreError."""
        async with self._lock:
            await self._write(self._file_with(account))

    def check(self, account: Account) -> None:
        """Checks that put() would accept the account. Raises: BadArgument."""
        file = self._file_with(account)
        plain_file.parse(file.path, plain_file.written(file))

    def _file_with(self, account: Account) -> PlainFile:
        file = self.file_of(account.key) or self.file_at(self.main)
        assert file is not None  # load() wants it to be there
        known = {each.key: each for each in file.accounts}
        known[account.key] = account
        return replace(file, accounts=tuple(known.values()))

    async def remove(self, key: str) -> bool:
        """Removes an account and returns whether there was one. Raises: StoreError."""
        async with self._lock:
            file = self.file_of(key)
            if file is None:
                return False
            left = tuple(each for each in file.accounts if each.key != key)
            await self._write(replace(file, accounts=left))
            return True

    async def set_white(self, patterns: Sequence[Pattern], path: Path | None) -> bool:
        """Sets the global white list of a file, by default of the main one, and returns whether
        there is that file. Raises: StoreError."""
        async with self._lock:
            file = self.file_at(path or self.main)
            if file is None:
                return False
            await self._write(replace(file, white=tuple(patterns)))
            return True

    async def _write(self, file: PlainFile) -> None:
        """Writes a file and takes its rules over in the same step."""

        def write() -> tuple[_LoadedFiles, _Seen]:
            text = plain_file.written(replace(file, version=file.version.bumped()))
            read = plain_file.parse(file.path, text)  # what nobody could load again is not written
            taken = _LoadedFiles(read if each.path == file.path else each for each in self.files)
            with named_errors(file.path):
                write_whole(file.path, text.encode(), mode=0o600)
            return taken, self._look()

        taken, self._seen = await asyncio.to_thread(write)
        self._swap(taken)
        self._changed()

    def versions(self) -> dict[str, Version]:
        """Returns the version of each file by its path."""
        return {str(file.path): file.version for file in self.files}


class _LoadedFiles:
    """The files as they were read, and all that follows from them."""

    def __init__(self, files: Iterable[PlainFile]) -> None:
        self.files = tuple(files)
        self.rules, found = plain_file.joined(self.files)
        self.warnings = [*found, *_readable_by_all(self.files)]


def _readable_by_all(files: Sequence[PlainFile]) -> list[str]:
    """Returns lines about files that show their secrets to every user of the machine."""
    made = []
    for file in files:
        with contextlib.suppress(OSError):
            if file.path.stat().st_mode & stat.S_IROTH:
                made.append(f"{file.path} holds secrets and everybody can read it: chmod 640")
    return made
