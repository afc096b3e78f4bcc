"""Images of a folder as a power failure would leave it; volatile.c notes what is durable.

What was synced is there. Of the rest a random subset is: pages of files, sizes of files, and names
in folders that were made, renamed or removed since the folder was last synced. As POSIX has it, a
synced file without a synced name is gone, and a synced folder in one that is not, too.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PAGE = 4096
#: How likely a page, a size or a name is kept that nobody synced.
CHANCES = (0.0, 0.05, 0.3, 0.5, 0.7, 0.95, 1.0)


def build(folder: Path) -> Path | None:
    """The shim, compiled into a folder; None where it cannot be compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        return None
    made, source = folder / "volatile.so", Path(__file__).with_name("volatile.c")
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, "-o", made, source, "-ldl"], check=True)
    return made


@dataclass(eq=False)
class File:
    number: int


@dataclass(eq=False)
class Folder:
    """names: as they are. durable: as of the last sync; pending: what came after it."""

    number: int
    names: dict[str, File | Folder] = field(default_factory=dict)
    durable: dict[str, File | Folder] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)


@dataclass(eq=False)
class Change:
    """Names that change at once, in one folder or in two: None takes a name away."""

    number: int
    names: list[tuple[Folder, str, File | Folder | None]]

    def apply(self) -> None:
        """It is on the disk: earlier changes of its folders may not be."""
        for folder, name, what in self.names:
            if what is None:
                folder.durable.pop(name, None)
            else:
                folder.durable[name] = what
        for folder, _, _ in self.names:
            if self in folder.pending:
                folder.pending.remove(self)


class Disk:
    """A volatile disk under one folder, over any number of lives of processes."""

    def __init__(self, shim: Path, root: Path, kept: Path, seed: int, speed: int = 0) -> None:
        """shim: of :func:`build`. speed: how many times as fast the clock goes, from a day ago; 0:
        it is the system's."""
        self.root, self.kept = root, kept
        self._environment = os.environ | {
            "LD_PRELOAD": str(shim), "PS_DISK_ROOT": str(root), "PS_DISK_KEPT": str(kept),
            "PS_DISK_SEED": str(seed),
        }  # fmt: skip
        if speed:
            self._environment["PS_DISK_CLOCK"] = f"{int(time.time())}:{speed}"
        root.mkdir(parents=True, exist_ok=True)
        kept.mkdir()

    @classmethod
    def of(cls, root: Path, kept: Path) -> Disk:
        """The disk of a process that began it itself, by disk_begin()."""
        made = object.__new__(cls)
        made.root, made.kept = root, kept
        return made

    def start(self, *command: object) -> subprocess.Popen[str]:
        """Runs a program of which this is the disk."""
        pipe = subprocess.PIPE
        words = [str(word) for word in command]
        return subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=self._environment)

    def tree(self) -> Folder:
        """What the journal tells of the root."""
        seen: dict[int, File | Folder] = {}
        count = itertools.count()

        def folder(number: str) -> Folder:
            found = seen[int(number)]
            assert isinstance(found, Folder)
            return found

        def change(*names: tuple[Folder, str, File | Folder | None]) -> None:
            one = Change(next(count), list(names))
            for at, name, what in names:
                if what is None:
                    at.names.pop(name, None)
                else:
                    at.names[name] = what
                if one not in at.pending:
                    at.pending.append(one)

        root = None
        for line in (self.kept / "journal").read_text().splitlines():
            what, *fields = line.split("\t")
            if what == "D":
                for one in list(folder(fields[0]).pending):
                    one.apply()
            elif what == "M" and fields[0] == "0":
                root = seen[int(fields[1])] = Folder(int(fields[1]))
            elif what in "CM":
                number = int(fields[1])
                seen[number] = File(number) if what == "C" else Folder(number)
                change((folder(fields[0]), fields[2], seen[number]))
            elif what == "L":
                change((folder(fields[0]), fields[2], seen[int(fields[1])]))
            elif what == "U":
                change((folder(fields[0]), fields[1], None))
            elif what == "X":
                one, other = folder(fields[0]), folder(fields[2])
                here, there = one.names[fields[1]], other.names[fields[3]]
                change((one, fields[1], there), (other, fields[3], here))
            else:
                old, new = folder(fields[0]), folder(fields[2])
                moved = old.names[fields[1]]
                change((new, fields[3], moved), (old, fields[1], None))
        assert root is not None
        return root

    def content(self, file: File, path: Path | None) -> tuple[bytes, bytes]:
        """Durable bytes and those that processes see."""
        durable = self.kept / str(file.number)
        held = self.kept / f"held-{file.number}"
        now = held if held.exists() else path
        return (
            durable.read_bytes() if durable.exists() else b"",
            now.read_bytes() if now is not None and now.exists() else b"",
        )

    def image(self, to: Path, rng: random.Random) -> dict[int, int]:
        """Makes one image; while it is made, no process may run. Returns the inode numbers that
        its files have, by those that they had."""
        root = self.tree()
        paths: dict[int, Path] = {}
        _collect(root, self.root, paths)
        chance, by_file = rng.choice(CHANCES), rng.random() < 0.3
        for one in _pending(root):
            if rng.random() < chance:
                one.apply()

        numbers: dict[int, int] = {}

        def put(folder: Folder, at: Path) -> None:
            at.mkdir(exist_ok=True)
            numbers[folder.number] = at.stat().st_ino
            for name, what in folder.durable.items():
                if isinstance(what, Folder):
                    put(what, at / name)
                    continue
                durable, now = self.content(what, paths.get(what.number))
                kept = rng.choice((0.0, 1.0)) if by_file else chance
                (at / name).write_bytes(_mixed(durable, now, kept, rng))
                numbers[what.number] = (at / name).stat().st_ino

        put(root, to)
        return numbers


def _collect(folder: Folder, at: Path, paths: dict[int, Path]) -> None:
    for name, what in folder.names.items():
        paths[what.number] = at / name
        if isinstance(what, Folder):
            _collect(what, at / name, paths)


def _pending(root: Folder) -> list[Change]:
    """Every change that no sync covers, the oldest first, of all folders that are or may be."""
    found: list[Change] = []
    seen: set[int] = set()
    todo = [root]
    while todo:
        folder = todo.pop()
        if id(folder) in seen:
            continue
        seen.add(id(folder))
        found += [one for one in folder.pending if one not in found]
        linked = [*folder.names.values(), *folder.durable.values()]
        linked += [what for one in folder.pending for _, _, what in one.names if what is not None]
        todo += [what for what in linked if isinstance(what, Folder)]
    return sorted(found, key=lambda one: one.number)


def _mixed(durable: bytes, now: bytes, chance: float, rng: random.Random) -> bytes:
    """Pages of the one or the other; what was never written is zeros."""
    size = len(now) if rng.random() < chance else len(durable)
    out = bytearray(durable[:size].ljust(size, b"\0"))
    for at in range(0, size, PAGE):
        end = min(at + PAGE, size)
        page = now[at:end].ljust(end - at, b"\0")
        if page != out[at:end] and rng.random() < chance:
            out[at:end] = page
    return bytes(out)


@contextmanager
def frozen(process: subprocess.Popen[str]) -> Iterator[None]:
    """No thread of the process runs."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)
