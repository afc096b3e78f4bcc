"""What stands in the place of the metadata's file never ends, blocks or fills anything."""

from __future__ import annotations

import errno
import os

import pytest

import pystore
from pystore.audit import verify
from pystore.metadata import Metadata
from pystore.repair import repair


def cut(file):
    os.truncate(file, file.stat().st_size // 2)


def pipe(file):
    file.unlink()
    os.mkfifo(file)


def device(file):
    file.unlink()
    file.symlink_to("/dev/zero")


@pytest.mark.parametrize("damage", [cut, pipe, device])
def test_damaged_metadata_gives_way_to_the_config_files(store_path, damage):
    with Metadata(store_path) as meta:
        for i in range(200):
            meta.offsets.commit(f"group{i}", "t", 0, i)
    damage(store_path / "meta" / "data.mdb")
    with Metadata(store_path, readonly=True) as meta:  # from the config files
        assert meta.report[0].action == "skipped"
        assert meta.offsets.get("group7", "t", 0) == 7
    with Metadata(store_path) as meta:  # and the database goes aside
        assert meta.report[0].action == "aside"
        assert "the metadata is damaged" in meta.report[0].why
        assert meta.offsets.get("group7", "t", 0) == 7


@pytest.mark.parametrize(
    ("name", "kind"), [("config/topics.json", "config-json"), ("meta/data.mdb", "metadata-db")]
)
def test_what_is_larger_than_any_is_named_and_not_read(store_path, name, kind):
    """A sparse file: its zeros cost neither memory nor room for a copy."""
    with pystore.open(store_path) as store:
        store.put("t", b"x")
    os.truncate(store_path / name, 17 << 30)
    found = {f.kind: f.details["detail"] for f in verify(store_path).findings}
    assert f"{17 << 30} bytes, and " in found[kind]
    assert repair(store_path).after.sound


def test_a_full_disk_is_named_before_lmdb_maps_its_lock_file(store_path, monkeypatch):
    """The first byte of a file without room would end the process (SIGBUS)."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(pystore.DiskFull):
            Metadata(store_path)
    with Metadata(store_path):
        lock = (store_path / "meta/lock.mdb").stat()
        assert lock.st_blocks * 512 >= lock.st_size == 8192
