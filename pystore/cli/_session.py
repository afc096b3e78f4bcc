"""What every verb gets: the path, the settings and the output, and ways to open the store."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pystore.cli._output import Output
from pystore.cli._progress import ProgressBar
from pystore.cli._values import named_values
from pystore.errors import Forbidden, NotAStore
from pystore.native import ffi, lib
from pystore.settings import PLACES, Settings, load
from pystore.store._reading import Reader
from pystore.store._store import Store

__all__ = ["LockHolder", "Session", "holder_of", "parse_settings"]

_Opened = TypeVar("_Opened", Reader, Store)
_PHASES = {
    "opening": "opening",
    "queues": "reading the queues",
    "index": "reading the index",
    "log": "checking the log",
    "done": "opening",
}


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that writes to a store. pid: 0 when it is unknown."""

    locked: bool
    pid: int


def holder_of(root: Path) -> LockHolder:
    """Says whether a process holds the store's lock, and which; nothing is changed."""
    pid = lib.ps_lock_holder(ffi.NULL, os.fsencode(root))
    return LockHolder(pid != 0, max(0, pid))


def _check_readable(lock: Path) -> None:
    """Refuses a lock that this user may not look at, since it does not say who holds it. Raises:
    Forbidden."""
    try:
        os.close(os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except PermissionError as failed:
        raise Forbidden("no rights on the store's lock", str(lock), errno=failed.errno) from failed


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """Reads ``NAME=VALUE`` of --set; the settings themselves are checked when they are loaded."""
    given = named_values(pairs, "--set", "maxMessageSize=65536")
    return {name.strip(): value for name, value in given.items()}


@dataclass(slots=True)
class Session:
    """One run of one verb.

    named: whether the user gave a path.
    damaged: set by a verb that met damage and went on; the exit code tells. reader(), writer() and
    scratch() are context managers.
    """

    path: Path
    conf: Path | None
    sets: dict[str, str]
    out: Output
    named: bool = True
    damaged: bool = field(default=False)

    def progress(self, label: str, unit: str = "bytes") -> ProgressBar:
        return ProgressBar(label, unit, as_json=self.out.json)

    def settings(self) -> Settings:
        """Returns the settings of --conf with --set over them."""
        return load(self.conf, self.sets)

    def _open(self, kind: Callable[..., _Opened], **extra: object) -> _Opened:
        with self.progress("opening") as bar:
            return kind(
                self.path,
                self.conf,
                progress=lambda phase, done, total: bar.update(done, total, _PHASES[phase]),
                **{**self.sets, **extra},
            )

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        with self._open(Reader) as reader:
            yield reader

    def exists(self) -> bool:
        """Says whether there is a commit log."""
        return any(d.is_dir() for d in self.settings().commitlog_dirs(self.path))

    def check_target(self, create: bool) -> None:
        """Refuses a store that is not there, unless it may be made.

        Raises: NotAStore.
        """
        if not create and not self.exists():
            error = NotAStore("no store at this path", str(self.path))
            error.next_step = "check the path, or add --create to create a store there"
            raise error

    def check_free(self) -> None:
        """Refuses a dry run where the real run would be refused, while somebody else writes.
        Raises: StoreLocked, Forbidden."""
        from pystore.repair.journal import refuse_if_held

        if holder_of(self.path) == LockHolder(True, 0):
            _check_readable(self.path / "lock")
        refuse_if_held(self.path)

    @contextmanager
    def writer(self, *, create: bool = False, **extra: object) -> Iterator[Store]:
        """Opens the store for writing. extra: settings over all others. Raises: NotAStore."""
        self.check_target(create)
        with self._open(Store, **extra) as store:
            yield store

    @contextmanager
    def scratch(self) -> Iterator[Store]:
        """Opens an empty store with the same limits, thrown away afterwards.

        A dry run puts into it, so that it accepts and refuses exactly what the real run would.
        """
        given = self.settings()
        elsewhere = PLACES | {"flushDiskType"}
        same = {name: given[name] for name in given.explicit if name not in elsewhere}
        same["mappedFileSizeCommitLog"] = max(64 << 20, 2 * int(given["maxMessageSize"]))
        with (
            tempfile.TemporaryDirectory(prefix="pystore-") as folder,
            Store(Path(folder) / "store", None, **same) as store,
        ):
            yield store
