"""Folders that may only be read, and extension files of queues, which nobody here needs: every verb
ends with a result or with an error that has a name, and what was begun can be finished."""

from __future__ import annotations

import ast
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pystore
from pystore.audit import verify
from pystore.repair import rebuild, repair, undo

ROOT = Path(__file__).parents[2]
NOBODY = 65534
SIZES = {
    "mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 64, "maxIndexNum": 512,
}  # fmt: skip

#: Does one verb as somebody who may only read; prints the name of the error, or what was found.
CHILD = """
import os, sys
import pystore.cold.tier  # a Reader asks it for a folder that lacks a log
from pystore.audit import verify
from pystore.repair import plan, rebuild, repair, undo
root, logs, verb = sys.argv[1:]
settings = {"storePathCommitLog": logs}
plan(root, **settings)  # loads what the other user may have no right to
os.setgid(65534)
os.setuid(65534)
try:
    if verb == "reader":
        with pystore.Reader(root, **settings) as reader:
            print(sum(1 for _ in reader.messages()))
    elif verb == "verify":
        print([f.kind for f in verify(root, **settings).findings])
    elif verb == "plan":
        print([a.do for a in plan(root, **settings).actions])
    else:
        do = {"open": pystore.open, "repair": repair, "rebuild": rebuild, "undo": undo}[verb]
        done = do(root, **settings)
        print("done")
        if verb == "open":
            done.close()
except pystore.StoreError as e:
    assert str(e)
    print(type(e).__name__)
"""


def is_open_to_all(folder: str) -> bool:
    return all(path.stat().st_mode & 0o1 for path in (Path(folder), *Path(folder).parents))


@pytest.fixture
def place() -> Iterator[Path]:
    """Where another user may go, too, which TMPDIR need not be."""
    around = next(d for d in (tempfile.gettempdir(), "/tmp", "/dev/shm") if is_open_to_all(d))
    with tempfile.TemporaryDirectory(prefix="pystore-ro-", dir=around) as folder:
        os.chmod(folder, 0o755)  # noqa: PTH101
        yield Path(folder)


def make(place: Path) -> str:
    """A store with its log in two folders; the setting that names them."""
    logs = f"{place}/a,{place}/b"
    with pystore.open(place / "store", storePathCommitLog=logs, **SIZES) as store:
        for i in range(10):
            store.put_many("t", [b"x" * 30] * 200, keys=[f"k{i * 200 + j}" for j in range(200)])
    return logs


def allow(folder: Path, *, write: bool) -> None:
    for path in (folder, *folder.rglob("*")):
        mode = 0o777 if path.is_dir() else 0o666
        path.chmod(mode if write else mode & ~0o222)


def as_nobody(place: Path, logs: str, verb: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(place / "store"), logs, verb],
        cwd=ROOT, env=os.environ | environ, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes somebody who may only read")


@needs_root
def test_who_may_only_read_a_store_reads_and_checks_it(place):
    logs = make(place)
    allow(place, write=False)
    place.chmod(0o755)
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    assert as_nobody(place, logs, "reader") == "2000"
    assert as_nobody(place, logs, "verify") == "[]"
    assert as_nobody(place, logs, "plan") == "[]"
    for verb in ("open", "repair", "rebuild", "undo"):
        assert as_nobody(place, logs, verb) == "Forbidden", verb
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before


@needs_root
def test_what_may_not_be_read_is_no_damage(place):
    """Nor is a folder for temporary files that is somebody else's: none is needed."""
    logs = make(place)
    private = place / "private"
    private.mkdir(mode=0o700)
    allow(place / "store", write=False)
    allow(place / "a", write=False)
    allow(place / "b", write=False)
    assert as_nobody(place, logs, "verify", TMPDIR=str(private)) == "[]"
    for name in ("meta/data.mdb", "config/topics.json", "checkpoint", "config"):
        (place / "store" / name).chmod(0)
        found = as_nobody(place, logs, "verify", TMPDIR=str(private))
        assert "not-checked" in found, name
        assert set(ast.literal_eval(found)) == {"not-checked"}, name
        allow(place / "store", write=False)
    for folder in (place / "store/consumequeue", place / "a"):
        for mode in (0o400, 0):
            folder.chmod(mode)
            assert as_nobody(place, logs, "verify") == "Forbidden", (folder, mode)
        folder.chmod(0o755)


@needs_root
def test_a_log_folder_that_may_only_be_read_stops_a_repair_that_can_go_on(place):
    """The other folders may be written to."""
    logs = make(place)
    segment = next((place / "b").iterdir())
    with segment.open("r+b") as file:
        file.seek(5000)
        file.write(b"?" * 130)
    allow(place, write=True)
    allow(place / "b", write=False)
    damaged = segment.read_bytes()
    assert "damaged-record" in as_nobody(place, logs, "verify")
    assert as_nobody(place, logs, "repair") == "Forbidden"
    assert segment.read_bytes() == damaged
    allow(place / "b", write=True)
    assert as_nobody(place, logs, "repair") == "done"
    assert verify(place / "store", storePathCommitLog=logs).sound
    assert as_nobody(place, logs, "reader") == "1999"


# ---- extension files ----


def bodies(root: Path, **options: object) -> list[bytes]:
    with pystore.Reader(root) as reader:
        return sorted(
            bytes(m.body)
            for q in reader.queues("ext")
            for m in reader.read("ext", q.queue, 0, max_messages=1000, **options)
        )


EXTENSION: dict[str, Callable[[Path], object]] = {
    "gone": shutil.rmtree,
    "a file": lambda ext: (shutil.rmtree(ext), ext.write_text("x")),
    "a pipe": lambda ext: (shutil.rmtree(ext), os.mkfifo(ext)),
    "a loop": lambda ext: (shutil.rmtree(ext), ext.symlink_to(ext.name)),
    "cut": lambda ext: [os.truncate(path, 3) for path in ext.rglob("*") if path.is_file()],
    "zeros": lambda ext: [path.write_bytes(bytes(512)) for path in ext.rglob("*")
                          if path.is_file()],
    "pipes": lambda ext: [(path.unlink(), os.mkfifo(path)) for path in list(ext.rglob("*"))
                          if path.is_file()],
}  # fmt: skip


@pytest.mark.parametrize("change", EXTENSION.values(), ids=EXTENSION)
def test_nobody_needs_the_extension_files(golden, change):
    """What a unit's address leads to is in the record, too."""
    root = golden("queue-ext")
    wanted = bodies(root), bodies(root, tags="even")
    change(root / "consumequeue_ext")
    assert not [f for f in verify(root).findings if f.severity > 0]
    assert (bodies(root), bodies(root, tags="even")) == wanted
    pystore.open(root).close()
    assert (bodies(root), bodies(root, tags="even")) == wanted


def test_damaged_addresses_hide_nothing(golden, seed):
    """A code of any value: the message is delivered; by its tag after a repair at the latest, and
    an undo brings the addresses back."""
    root, dice = golden("queue-ext"), random.Random(seed)
    wanted = bodies(root), bodies(root, tags="even")
    for file in (root / "consumequeue/ext").glob("*/*"):
        data = bytearray(file.read_bytes())
        for at in range(0, len(data), 20):
            if any(data[at : at + 12]) and dice.random() < 0.5:
                wide = dice.choice((1, 4, 8))
                data[at + 20 - wide : at + 20] = dice.randbytes(wide)
        file.write_bytes(data)
    damaged = {path: path.read_bytes() for path in (root / "consumequeue").rglob("*")
               if stat.S_ISREG(path.stat().st_mode)}  # fmt: skip
    assert bodies(root) == wanted[0]
    done = repair(root)
    assert done.after is not None and done.after.sound
    assert (bodies(root), bodies(root, tags="even")) == wanted
    if done.actions:
        undo(root)
        assert all(path.read_bytes() == data for path, data in damaged.items())
    rebuild(root)
    assert (bodies(root), bodies(root, tags="even")) == wanted
