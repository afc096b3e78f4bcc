"""Damage within the pages of meta/data.mdb is an error with a name: never a signal or a hang.

PS_META_DAMAGES sets how many (`make damage-meta`: 1,000), PS_SEED which.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys

import lmdb
import pytest
from waiting import BOUND_S

from pystore.meta import _pages
from pystore.metadata import Metadata, TopicConfig

DAMAGES = int(os.environ.get("PS_META_DAMAGES", "40"))

#: Opens, reads, writes and reopens each damaged folder; a signal ends it, and the last line that it
#: has printed names the folder.
CHILD = """
import contextlib, sys
from pathlib import Path
import pystore
from pystore.metadata import Metadata

for folder in map(Path, sys.argv[1:]):
    print(folder.name, flush=True)
    for look in range(2):
        with contextlib.suppress(pystore.StoreError), Metadata(folder, sync=False) as meta:
            for table in (meta.topics, meta.groups):
                table.list()
            meta.offsets.commit("another", "t", 0, look)
            for i in range(50):
                meta.offsets.commit(f"again{i}", "t", i, 1)
    with contextlib.suppress(pystore.StoreError), Metadata(folder, readonly=True) as meta:
        meta.topics.list()
print("survived")
"""


def fill(path):
    for round_ in range(3):
        with Metadata(path) as meta:
            with meta.batch():
                for i in range(400):
                    meta.offsets.commit(f"group{i}-{round_}", "topic", i % 4, i)
                for i in range(40):
                    meta.topics.put(TopicConfig(f"T{i}" * 20, 4, 4, 6))
            for i in range(5):
                meta.offsets.commit("alone", "topic", 0, i)


def damage(data, dice):
    """One of: bits flipped, bytes of a page replaced, a page zeroed or put elsewhere, a cut."""
    kind = dice.randrange(5)
    pages = len(data) // 4096
    page = dice.choice([0, 1, dice.randrange(pages)]) * 4096
    if kind == 0:
        for _ in range(dice.choice([1, 1, 4, 40])):
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    elif kind == 1:
        at = page + dice.choice([dice.randrange(200), dice.randrange(4090)])
        data[at : at + 6] = dice.randbytes(6)
    elif kind == 2:
        data[page : page + 4096] = bytes(4096)
    elif kind == 3:
        other = dice.randrange(pages) * 4096
        data[page : page + 4096] = data[other : other + 4096]
    else:
        del data[dice.randrange(1, len(data)) :]
    return data


def test_damaged_pages_end_no_process(tmp_path, rng):
    fill(tmp_path / "whole")
    whole = (tmp_path / "whole" / "meta" / "data.mdb").read_bytes()
    for first in range(0, DAMAGES, 100):
        folders = []
        for i in range(first, min(first + 100, DAMAGES)):
            (tmp_path / f"{i}" / "meta").mkdir(parents=True)
            damaged = damage(bytearray(whole), rng)
            (tmp_path / f"{i}" / "meta" / "data.mdb").write_bytes(damaged)
            folders.append(str(tmp_path / f"{i}"))
        done = subprocess.run(
            [sys.executable, "-c", CHILD, *folders], capture_output=True, text=True, timeout=600
        )
        last = done.stdout.split()[-1:]
        assert last == ["survived"], f"{last} {done.returncode} {done.stderr}"


def test_whole_pages_pass_after_every_commit(tmp_path):
    file = tmp_path / "meta" / "data.mdb"
    dice = random.Random(7)
    with Metadata(tmp_path, sync=False) as meta:
        for i in range(60):
            with meta.batch():
                for _ in range(dice.choice([1, 30, 300])):
                    meta.offsets.commit(f"g{dice.randrange(2000)}", "t", dice.randrange(8), i)
                meta.topics.put(TopicConfig("long" * dice.randrange(1, 30), 4, 4, 6))
            if i % 5 == 0:
                for topic in meta.topics.list():
                    meta.topics.delete(topic.name)
            _pages.check_pages(file)


def test_what_lmdb_leaves_unwritten_or_longer_is_sound(tmp_path):
    """Pages that one transaction takes and frees are never written, though the last page is one of
    them; and a long value keeps its pages when a shorter one replaces it."""
    assert any(shorter_than_said(tmp_path / f"{seed}", random.Random(seed)) for seed in range(60))


def shorter_than_said(folder, dice):
    """Whether a file ends before its last page after any of many commits, all of which pass."""
    folder.mkdir()
    shorter, file = 0, folder / "data.mdb"
    with lmdb.open(str(folder), map_size=1 << 26, max_dbs=1, sync=False) as env:
        table = env.open_db(b"t")
        for _ in range(60):
            with env.begin(write=True) as change:
                for _ in range(dice.choice([1, 5, 100])):
                    key, size = b"%d" % dice.randrange(300), dice.choice([5, 3000, 9000, 100_000])
                    if dice.random() < 0.5:
                        change.put(key, b"v" * size, db=table)
                    else:
                        change.delete(key, db=table)
            shorter += file.stat().st_size < (env.info()["last_pgno"] + 1) * 4096
            _pages.check_pages(file)
    return shorter


def test_a_number_beyond_the_file_is_found(tmp_path):
    fill(tmp_path)
    file = tmp_path / "meta" / "data.mdb"
    data = bytearray(file.read_bytes())
    newest = max((0, 4096), key=lambda at: int.from_bytes(data[at + 144 : at + 152], "little"))
    data[newest + 16 + 24 + 48 + 40 : newest + 16 + 24 + 48 + 44] = b"\xff\xff\xff\x7f"
    file.write_bytes(data)
    with pytest.raises(_pages.PageError, match="is not in the file"):
        _pages.check_pages(file)


def test_a_file_that_is_cut_while_open_is_named(tmp_path):
    script = f"""
import os
from pathlib import Path
import pystore
from pystore.metadata import Metadata
root = Path({str(tmp_path)!r})
meta = Metadata(root)
with meta.batch():
    for i in range(400):
        meta.offsets.commit(f"group{{i}}", "t", 0, i)
os.truncate(root / "meta" / "data.mdb", 8192)
try:
    meta.offsets.commit("a", "t", 0, 1)
except pystore.RecordDamaged as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=BOUND_S
    )
    assert done.returncode == 0, done.stderr
    assert "cut off" in done.stdout
