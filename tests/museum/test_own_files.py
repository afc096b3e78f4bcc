"""Notes and journals that only this software writes: damage to them is named and mended, and nobody
waits for what stands in their place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from damage import flip

import pystore
from broker.services.pop.journal import Journal
from broker.services.pop.order import OrderTable
from pystore.audit import verify
from pystore.repair import repair
from pystore.timers import Timers, save_timers

ROOT = Path(__file__).parents[2]
SIZES = {"mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 400}
NOTES = ("queueEnds", "timers/state")
OTHERS = (
    "config/consumerOrderInfo.journal", "config/consumerOrderInfo.json",
    "config/messageRequestMode.json", "config/timercheck", "config/transactionMetrics",
)  # fmt: skip

#: Pipes in place of the notes are there; whoever waited for one would wait for ever.
OPEN_ALL = """
import os, sys
from pathlib import Path
import pystore
from broker.services.pop.modes import RequestModes
from broker.services.pop.order import OrderTable
from broker.services.transaction.metrics import Metrics
from pystore.timers import Timers

root = Path(sys.argv[1])
with pystore.open(root, timerWheelEnable=True) as store:
    Timers(store)
for name in sys.argv[2:]:
    os.mkfifo(root / name)
OrderTable(root / "config/consumerOrderInfo.json", 0o640).load()
RequestModes(root / "config/messageRequestMode.json", 0o640).load()
Metrics(root / "config/transactionMetrics", None, 0o640)
"""


def make_store(root):
    """A store with its notes."""
    with pystore.open(root, timerWheelEnable=True, **SIZES) as store:
        store.put("t", b"x", keys="k")
        save_timers(store, Timers(store).capture()[0])


@pytest.fixture
def root(tmp_path):
    make_store(tmp_path / "store")
    assert verify(tmp_path / "store").findings == []
    return tmp_path / "store"


def test_a_damaged_note_is_named_and_taken_away(root):
    for name in NOTES:
        flip(root / name, (root / name).stat().st_size - 1)
    assert {(f.kind, f.file) for f in verify(root).findings} == {("own-note", n) for n in NOTES}
    repair(root)
    assert verify(root).findings == []
    with pystore.open(root) as store:
        assert [bytes(m.body) for m in store.messages()] == [b"x"]


def test_nothing_waits_for_a_pipe(root):
    for name in NOTES:
        (root / name).unlink()
        os.mkfifo(root / name)
    assert {f.file for f in verify(root).findings} == {*NOTES}
    done = subprocess.run(
        [sys.executable, "-c", OPEN_ALL, str(root), *OTHERS], cwd=ROOT, timeout=300,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {f.file for f in verify(root).findings} >= {*OTHERS[1:]}  # the journal is new


def test_a_folder_for_a_journal_is_named(tmp_path):
    (tmp_path / "consumerOrderInfo.journal").mkdir()
    with pytest.raises(pystore.StoreError, match="journal"):
        OrderTable(tmp_path / "consumerOrderInfo.json", 0o640).load()


def test_damage_amid_a_journal_is_told(tmp_path, caplog):
    """A line that is torn at the end is what a crash leaves; one before others is not."""
    path = tmp_path / "journal"
    journal = Journal(path, 0o640)
    journal.begin(b"")
    for queue in range(3):
        journal.add("t", "g", queue, next=queue)
    journal.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert len(Journal(path, 0o640).read(b"")) == 2 and not caplog.records
    flip(path, whole.index(b"\n") + 1)
    assert Journal(path, 0o640).read(b"") == []
    assert "line 2 is damaged" in caplog.text
