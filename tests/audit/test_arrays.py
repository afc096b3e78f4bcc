"""Units and entries as arrays are what the store itself reads from its queues and its index."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from damages import Sample, sample

import pystore

np = pytest.importorskip("numpy")
arrays = pytest.importorskip("pystore.audit.arrays")

__all__ = ["sample"]  # a fixture


@pytest.fixture(params=["ours", "java"])
def root(request: pytest.FixtureRequest, golden: Callable[[str], Path], sample: Sample) -> Path:
    return sample.root if request.param == "ours" else golden("normal-exit")


def test_units_are_those_of_the_reader(root: Path):
    with pystore.Reader(root) as reader:
        for q in reader.queues():
            expected = reader.units(q.topic, q.queue, q.min_offset, count=len(q))
            found = {
                first + i: unit
                for first, units in arrays.units(root, q.topic, q.queue)
                for i, unit in enumerate(units.tolist())
            }
            assert [found[q.min_offset + i] for i in range(len(q))] == [
                tuple(unit) for unit in expected
            ]


def test_entries_lead_to_records_with_that_key(root: Path):
    with pystore.Reader(root) as reader:
        known = {m.physical_offset: m for m in reader.messages()}
        checked = 0
        for _, entries in arrays.entries(root):
            used = entries[1:][entries["physical"][1:] + entries["hash"][1:] > 0]
            for entry in used.tolist():
                m = known[entry[1]]
                keys = [*(m.properties.get("KEYS") or "").split(" "), m.uniq_key]
                assert entry[0] in {java_hash(f"{m.topic}#{key}") for key in keys if key}
                checked += 1
        assert checked >= reader.info().index_used > 1000


def java_hash(text: str) -> int:
    """Java's String.hashCode, and its absolute value as the index takes it."""
    value = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return abs(value - (value >> 31 << 32))


def test_nothing_can_be_changed(sample: Sample):
    first, units = arrays.units(sample.root, "orders", 0)[1]
    assert first == 300
    with pytest.raises(ValueError, match="read-only"):
        units["size"] = 0


def test_an_unknown_queue_is_named(sample: Sample):
    with pytest.raises(pystore.NotFound, match="no queue 77 of topic 'orders'"):
        arrays.units(sample.root, "orders", 77)


#: Cuts the files under living arrays, and looks. What ends it otherwise is a signal.
CUT = """
import gc, os, sys
from pathlib import Path
import pystore
from pystore.audit import arrays

root = Path(sys.argv[1])
with pystore.open(root, mappedFileSizeConsumeQueue=20_000, maxHashSlotNum=2000) as store:
    for i in range(500):
        store.put("t", b"x", queue=0, keys=f"k{i}")
(_, units), = arrays.units(root, "t", 0)
(_, entries), = arrays.entries(root)
units = units[:500]  # what keeps the mapping alive is a slice
gc.collect()
assert units["size"].all() and entries["physical"][1:501].any()
for pattern in ("consumequeue/t/0/*", "index/*"):
    for file in root.glob(pattern):
        os.truncate(file, 4096)
print(int(units["size"][:200].all()), int(units["size"][300:].sum()), int(entries["hash"].sum()))
def mapped():
    return sum("consumequeue/t" in line for line in open("/proc/self/maps"))
before = mapped()
del units
gc.collect()
print(before > 0, mapped())
"""


def test_a_file_that_is_cut_reads_as_zeros(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", CUT, str(tmp_path / "s")],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout.split() == ["1", "0", "0", "True", "0"], (done.returncode, done.stderr)
