"""What an operator does to the folder of a running store: nothing acknowledged is lost by it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

import pystore
from pystore.errors import NotWriteable, StoreError, StoreLocked
from pystore.repair.journal import hold_lock

OPENS = """
import sys, pystore
try:
    pystore.open(sys.argv[1])
except pystore.StoreLocked:
    sys.exit(7)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def bytes_of(root: Path) -> dict[str, bytes]:
    kept = {}
    for path in sorted((root / "commitlog").iterdir()):
        with path.open("rb") as file:
            kept[path.name] = file.read(1 << 20)
    return kept


def test_a_store_whose_lock_file_was_deleted_is_not_opened_twice(root: Path) -> None:
    """In no process, by no path; and nothing of it has changed."""
    with pystore.open(root, mappedFileSizeCommitLog=1 << 20) as store:
        for number in range(100):
            store.put("orders", b"%d" % number, queue=0)
        before = bytes_of(root)
        link = root.with_name("link")
        link.symlink_to(root)
        for path in (root, link):
            (root / "lock").unlink(missing_ok=True)
            done = subprocess.run([sys.executable, "-c", OPENS, str(path)], check=False)
            assert done.returncode == 7
            with pytest.raises(StoreLocked):
                pystore.open(path)
            with pytest.raises(StoreLocked), hold_lock(path):
                pass
        assert bytes_of(root) == before
    with pystore.open(root) as again:
        assert again.range("orders", 0) == (0, 100)


def test_a_lock_file_that_was_deleted_is_made_and_locked_again(root: Path) -> None:
    """A Java broker looks at nothing else."""
    with pystore.open(root) as store:
        (root / "lock").unlink()
        until((root / "lock").exists)
        store.put("orders", b"one")


def test_a_copy_of_a_running_store_can_be_opened(root: Path) -> None:
    with pystore.open(root, mappedFileSizeCommitLog=1 << 20) as store:
        store.put("orders", b"one", queue=0)
        store.flush()
        shutil.copytree(root, root.with_name("copy"))
        with pystore.open(root.with_name("copy")) as copy:
            assert copy.range("orders", 0) == (0, 1)


@pytest.mark.parametrize("moved", ["", "commitlog"])
def test_a_store_that_was_moved_takes_nothing_more_and_keeps_what_it_took(
    root: Path, moved: str
) -> None:
    """What was acknowledged after the move lies in the moved folder, or a put says why not."""
    taken = 0
    store = pystore.open(root, mappedFileSizeCommitLog=64 << 10, mappedFileSizeConsumeQueue=400)
    store.put("orders", b"before", queue=0)
    (root / moved).rename(root.with_name("moved"))
    with pytest.raises(NotWriteable, match="was moved, replaced or deleted"):
        while True:
            store.put("orders", bytes(4000), queue=0)
            taken += 1
    with pytest.raises(StoreError):
        store.close()
    if moved:
        assert not (root / "commitlog").exists()
        root.with_name("moved").rename(root / "commitlog")
    else:
        assert not root.exists()
        root.with_name("moved").rename(root)
    with pystore.open(root) as again:
        assert again.range("orders", 0) == (0, 1 + taken)
