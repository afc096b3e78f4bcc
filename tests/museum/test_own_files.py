"""Notes and journals that only this software writes: damage to them is named and mended, and nobody
waits for what stands in their place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from damage import flip

import pystore
from broker import Broker
from broker.services.pop.journal import read_journal
from pystore.audit import verify
from pystore.files.aside import copy_aside, free_folder
from pystore.repair import repair
from pystore.store.timers import Timers, save_timers
from spark_ext.errors import SinkError
from spark_ext.ledger import Ledger
from spark_ext.sink import pending

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
from broker.services.pop.order import OrderFile
from broker.services.transaction.metrics import Metrics
from pystore.store.timers import Timers

root = Path(sys.argv[1])
with pystore.open(root, timerWheelEnable=True) as store:
    Timers(store)
for name in sys.argv[2:]:
    os.mkfifo(root / name)
OrderFile.read(root / "config/consumerOrderInfo.json")
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
    (tmp_path / "config" / "consumerOrderInfo.journal").mkdir(parents=True)
    with (
        pytest.raises(pystore.StoreError, match="journal"),
        Broker(tmp_path, listenPort=0, namesrvAddr=None),
    ):
        pass


def test_damage_amid_a_journal_is_told(tmp_path, caplog):
    """A line that is torn at the end is what a crash leaves; one before others is not."""
    path = tmp_path / "journal"
    line = b'{"topic":"t","group":"g","queue":%d}\n'
    whole = b'{"file":0}\n' + b"".join(line % queue for queue in range(3))
    path.write_bytes(whole[:-5])
    assert len(read_journal(path, b"")[0]) == 2 and not caplog.records
    path.write_bytes(whole)
    flip(path, whole.index(b"\n") + 1)
    assert read_journal(path, b"") == ([], b"")
    assert "line 2 is damaged" in caplog.text


# ---- what a Spark sink and what is kept aside leave in a store ----


def ledger_of(root, **changes):
    """The entry of a commit that is half done."""
    fields = {"job": "job", "batch": 1, "done": False, "log_from": 0, "rows": 1,
              "spools": ["/spool/job/1/000000-0-abc.arrow"]}  # fmt: skip
    path = root / "spark/ledger/job.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(fields | changes))
    return path


def test_the_ledger_of_a_sink_is_no_finding(root):
    ledger_of(root)
    assert verify(root).findings == []
    assert Ledger(root).get("job").rows == 1


@pytest.mark.parametrize("data", [b'{"job": "job", "ba', b"", b"[]", b"\xff"])
def test_a_damaged_ledger_is_named(root, data):
    """A repair leaves it alone: nobody but its owner knows which batch was put."""
    path = ledger_of(root)
    path.write_bytes(data)
    assert [(f.kind, f.file) for f in verify(root).findings] == [
        ("sink-ledger", "spark/ledger/job.json")
    ]
    assert repair(root).actions == []
    with pytest.raises(SinkError, match=r"entry of job job cannot be read .*job\.json"):
        pending(root)


@pytest.mark.parametrize(
    "change",
    [{"job": "other"}, {"spools": ["/etc/hostname"]}, {"spools": ["/spool/other/1/0-0-a.arrow"]},
     {"log_from": -1}, {"rows": True}, {"spools": "job"}, {"more": 1}],
    ids=str,
)  # fmt: skip
def test_a_forged_ledger_names_no_file_of_others(root, change):
    """What it names is put into the store, and deleted."""
    ledger_of(root, **change)
    with pytest.raises(SinkError, match="cannot be read"):
        pending(root)


def test_nobody_waits_for_a_pipe_in_place_of_a_ledger(root):
    path = ledger_of(root)
    path.unlink()
    os.mkfifo(path)
    assert [f.kind for f in verify(root).findings] == ["sink-ledger"]
    with pytest.raises(SinkError, match="not a regular file"):
        pending(root)


@pytest.mark.parametrize("what", ["missing", "short", "row", "pipe"])
def test_damage_to_what_is_kept_aside_is_named(root, what):
    folder, pieces = free_folder(root), [(f"commitlog/{0:020d}", 0, 100)]
    copy_aside(root, pieces, "a test", 0o640, root / "part", folder)
    assert verify(root).findings == []
    manifest = folder / "manifest.jsonl"
    if what == "missing":
        (folder / "0001").unlink()
    elif what == "short":
        os.truncate(folder / "0001", 50)
    elif what == "row":
        manifest.write_text('{"file": 1}\n' + manifest.read_text())
    else:
        manifest.unlink()
        os.mkfifo(manifest)
    assert {f.kind for f in verify(root).findings} == {"kept-aside"}
    assert repair(root).actions == []
