"""``kill -9`` of an archive of a cold tier at every step: what can be seen of the archive is as
before the run or as after it, and the next run makes it whole."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pystore
from pystore.cold.push import push
from pystore.cold.tier import Tier, new_tier
from pystore.cold.upkeep import remove
from pystore.store import hosting

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

CHILD = Path(__file__).with_name("archive_child.py")
Row = tuple[str, int, int, bytes]


def tier_at(root: Path) -> Tier:
    return new_tier(root / "cold", "c", "broker-a")


def push_all(store: pystore.Store, root: Path) -> None:
    store.flush()
    push(store, tier_at(root), segment_bytes=4096)


def in_tier(root: Path) -> list[Row]:
    with pystore.Reader(root / "cold") as reader:
        return [(m.topic, m.queue, m.queue_offset, bytes(m.body)) for m in reader.messages()]


def in_archive(archive: Path) -> list[Row]:
    """Returns what whoever reads the archive gets, each row as often as it is there."""
    if not any(archive.glob("run=*")):
        return []
    from pyarrow import dataset  # by whom it is needed: it loads pandas

    table = dataset.dataset(archive, partitioning="hive").to_table()
    names = ("topic", "queueId", "queueOffset", "body")
    return sorted(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def run(root: Path, archive: Path, step: int) -> int:
    words = [sys.executable, str(CHILD), str(root / "cold"), str(archive), str(step)]
    return subprocess.run(words, capture_output=True).returncode


def kill_at_each_step(root: Path, before: Path, wanted: list[Row]) -> int:
    """Returns how many steps a run has that follows what stands in an archive."""
    was, step = in_archive(before), 1
    while True:
        archive = before.with_name("killed")
        shutil.rmtree(archive, ignore_errors=True)
        subprocess.run(["cp", "-a", before, archive], check=True)
        code = run(root, archive, step)
        seen = in_archive(archive)
        if code == 0:
            assert seen == wanted
            return step - 1
        assert code == -signal.SIGKILL
        assert seen in (was, wanted), step
        assert run(root, archive, 0) == 0, step
        assert in_archive(archive) == wanted, step
        left = {each.name for each in archive.iterdir()}
        assert not {each for each in left if not each.startswith("run=")} - {"_lock"}, step
        step += 1


@pytest.mark.long
def test_an_archive_of_a_tier_that_is_killed_is_whole_after_the_next_run(tmp_path: Path):
    with pystore.open(tmp_path / "store", mappedFileSizeCommitLog=1 << 20) as store:
        for number in range(120):
            store.put("orders", b"%d" % number * 40, queue=number % 2)
        for number in range(9):
            store.put("odd", b"of before %d" % number)
        push_all(store, tmp_path)
        empty = tmp_path / "archive"
        empty.mkdir()
        before = sorted(in_tier(tmp_path))
        steps = kill_at_each_step(tmp_path, empty, before)
        assert run(tmp_path, empty, 0) == 0
        remove(tier_at(tmp_path), "odd")
        hosting.delete_queues(store, "odd")
        for number in range(30):
            store.put("orders", b"%d" % number * 40, queue=number % 2)
            store.put("odd", b"made again %d" % number)
        push_all(store, tmp_path)
        gone = [row for row in before if row[0] == "odd"]
        more = kill_at_each_step(tmp_path, empty, sorted([*gone, *in_tier(tmp_path)]))
    print(f"killed at {steps} steps of a first run, and at {more} of a second")
    assert steps > 10 and more > 10
