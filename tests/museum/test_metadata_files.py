"""What stands in the place of the metadata's file never ends, blocks or fills anything."""

from __future__ import annotations

import os

import pytest

from pystore.metadata import Metadata


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
