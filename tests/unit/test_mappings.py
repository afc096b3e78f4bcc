"""`mappedFilesMax`: stores of more files than a process may have mapped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import pystore

#: The smallest that is allowed, and 40 index files.
SETTINGS = {"mappedFilesMax": 16, "maxHashSlotNum": 8, "maxIndexNum": 51,
            "mappedFileSizeCommitLog": 64 << 10, "mappedFileSizeConsumeQueue": 20_000}  # fmt: skip
KEYS = 2000
#: On top: what a thread holds just now, and the segments ahead of the writer.
SPARE = 8


def mapped(path: Path) -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(str(path) in line for line in lines)


def found(store: pystore.Store | pystore.Reader, n: int) -> list[bytes]:
    return [message.body for message in store.query("T", f"k{n}")]


def fill(store: pystore.Store) -> None:
    for n in range(KEYS):
        store.put("T", b"%d" % n, queue=0, keys=f"k{n}")
        if n % 100 == 0:
            assert mapped(store.path) <= SETTINGS["mappedFilesMax"] + SPARE
    store.refresh()  # the index has caught up


def test_index_files_share_the_bound_on_mappings(tmp_path: Path):
    most = SETTINGS["mappedFilesMax"]
    with pystore.open(tmp_path, **SETTINGS) as store:
        fill(store)
        files = store.info().index_files
        assert files >= 40
        for n in range(KEYS):
            assert found(store, n) == [b"%d" % n]
        assert mapped(tmp_path) <= most + SPARE
    for make, settings in (
        (pystore.open, SETTINGS),
        (pystore.open, {"mappedFilesMax": most}),  # sizes are taken from the files
        (pystore.Reader, {"mappedFilesMax": most}),
    ):
        with make(tmp_path, **settings) as store:
            assert store.info().index_files == files
            for n in range(0, KEYS, 19):
                assert found(store, n) == [b"%d" % n]
            assert mapped(tmp_path) <= most + SPARE


def not_mapped(path: Path) -> Path:
    maps = Path("/proc/self/maps").read_text()
    return next(file for file in sorted((path / "index").iterdir()) if str(file) not in maps)


def test_an_index_file_that_is_cut_while_it_is_not_mapped_is_named(tmp_path: Path):
    with pystore.open(tmp_path, **SETTINGS) as store:
        fill(store)
        file = not_mapped(tmp_path)
        whole = file.read_bytes()
        os.truncate(file, len(whole) - 1)
        with pytest.raises(pystore.FileSizeMismatch, match=file.name):
            found(store, 0)
        file.write_bytes(whole)
        assert found(store, 0) == [b"0"]


def test_an_index_file_that_somebody_deletes_is_named(tmp_path: Path):
    with pystore.open(tmp_path, **SETTINGS) as store:
        fill(store)
        file = not_mapped(tmp_path)
        file.unlink()
        with pytest.raises(pystore.StoreError, match=file.name):
            found(store, 0)
    with pystore.open(tmp_path, **SETTINGS) as store:
        assert found(store, 0) == [b"0"]
