"""Sound stores have no findings, whoever wrote them and whoever is writing; nothing is changed."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pystore
from pystore.audit import Audit, Finding, verify
from pystore.audit.core import CoreAudit, SegmentFacts
from pystore.audit.kinds import DeletedMessagesFinding
from pystore.audit.readdb import read_meta
from pystore.cli import main
from pystore.repair import rebuild


@pytest.mark.parametrize("name", ["normal-exit", "killed"])
def test_java_stores_are_sound(golden: Callable[[str], Path], name: str):
    audit = verify(golden(name))
    assert audit.findings == []
    assert audit.records > 1000


def test_a_killed_store_says_what_is_not_dispatched(golden: Callable[[str], Path]):
    audit = verify(golden("killed"))
    assert audit.state == "crashed"
    assert audit.records - audit.units == audit.not_dispatched


def fill(store: pystore.Store, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 12)):
        topic = f"t{rng.randrange(3)}"
        count = rng.randrange(1, 400)
        keys = [f"k{rng.randrange(50)} q{i}" for i in range(count)] if rng.random() < 0.7 else None
        bodies = [rng.randbytes(rng.randrange(0, 300)) for _ in range(count)]
        store.put_many(topic, bodies, keys=keys, tags=rng.choice([None, "a", "b"]))
        if rng.random() < 0.3:
            store.put(topic, b"later", delay_level=3)
    if rng.random() < 0.3:
        store.delete_topic(topic)


def unsound(audit: Audit) -> list[Finding]:
    """What was deleted on purpose is named, and no fault."""
    return [f for f in audit.findings if f.kind != "deleted-messages"]


def delivered(store: pystore.Store | pystore.Reader) -> int:
    return sum(
        len(store.read(q.topic, q.queue, q.min_offset, max_messages=1000)) for q in store.queues()
    )


def test_what_a_list_of_deleted_topics_hides_is_named(tmp_path: Path, small: dict[str, Any]):
    """It may be another store's, and after a crash the open has to believe it where a record
    begins: the messages are gone from their queue, and all looks well."""
    root = tmp_path / "s"
    with pystore.open(root, **small) as store:
        store.put_many("orders", [b"x" * 50] * 300, keys=[f"k{i}" for i in range(300)])
        begins = store.read("orders", 0, 10)[0].physical_offset
    rows = struct.pack(">qi", begins, 6) + b"orders"
    (root / "deletedTopics").write_bytes(struct.pack(">II", 0x50534431, zlib.crc32(rows)) + rows)
    (root / "abort").touch()
    with pystore.open(root) as store:
        hidden = sum(m.physical_offset < begins for m in store.messages())
        assert 0 < hidden == 300 - delivered(store)
    named = verify(root)
    assert named.sound
    (found,) = [f for f in named.findings if isinstance(f, DeletedMessagesFinding)]
    assert (found.count, found.tombstones) == (hidden, (("orders", begins),))
    (root / "deletedTopics").unlink()
    rebuild(root)
    with pystore.Reader(root) as reader:
        assert delivered(reader) == 300


def test_stores_of_ours_are_sound(tmp_path: Path, small: dict[str, Any], seed: int):
    rng = random.Random(seed)
    for i in range(int(os.environ.get("PS_AUDIT_STORES", "5"))):
        path = tmp_path / str(i)
        with pystore.open(path, **small) as store:
            fill(store, rng)
            store.flush()
            assert unsound(verify(path, deep=True)) == []
        closed = verify(path, deep=True)
        assert unsound(closed) == []
        assert closed.not_dispatched == 0


def test_a_store_that_is_written_to_is_sound(tmp_path: Path, small: dict[str, Any]):
    stop = threading.Event()
    with pystore.open(tmp_path / "s", **small) as store:

        def write() -> None:
            n = 0
            while not stop.wait(0.003):  # as fast as that, or the log outgrows the test
                store.put_many("busy", [b"x" * 80] * 50, keys=[f"k{n + i}" for i in range(50)])
                n += 50

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(5):
                assert verify(tmp_path / "s").findings == []
        finally:
            stop.set()
            writer.join()


class AmidAudit(CoreAudit):
    """Whose store is opened, written to and closed between the look at queues and that at the
    log."""

    def segments(self, *args: Any, **options: Any) -> list[SegmentFacts]:
        with pystore.open(self._layout.root) as store:
            store.put_many("t", [b"x" * 50] * 300, queue=0, keys="k")
        return super().segments(*args, **options)


def test_what_was_seen_while_somebody_used_a_closed_store_is_looked_at_again(
    tmp_path: Path, small: dict[str, Any]
):
    with pystore.open(tmp_path, **small) as store:
        store.put_many("t", [b"x" * 50] * 300, queue=0, keys="k")
        hole = store.message(0).size
    assert verify(tmp_path, core=AmidAudit).findings == []
    with (tmp_path / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(hole)
        log.write(bytes(hole))
    kept = [f.start for f in verify(tmp_path, core=AmidAudit).findings if f.kind == "log-hole"]
    assert kept == [hole]


def test_a_million_offsets_take_little_memory(store_path: Path) -> None:
    """In the database, in a copy of which they are read, and in what is kept of them."""
    count, each = 400, 100
    with pystore.open(store_path) as store:
        sizes = {(f"group{i}", "t"): {q: q + 1000 for q in range(each)} for i in range(count)}
        store.metadata.offsets.set_many(sizes)
    assert (store_path / "meta" / "data.mdb").stat().st_size < 60 * count * each
    tracemalloc.start()
    try:
        offsets = read_meta(store_path / "meta")["offsets"]
        assert tracemalloc.get_traced_memory()[0] < 20 * count * each
    finally:
        tracemalloc.stop()
    assert {pair: dict(rows.items()) for pair, rows in offsets.items()} == {
        f"t@{group}": rows for (group, _), rows in sizes.items()
    }


def test_an_index_file_that_a_writer_is_making_is_no_finding(
    tmp_path: Path, small: dict[str, Any]
) -> None:
    with pystore.open(tmp_path / "s", **small) as store:
        store.put("t", b"x", keys="k")
        store.flush()
        made = tmp_path / "s/index/99991231235959999"
        made.touch()
        assert verify(tmp_path / "s").findings == []
        os.utime(made, (1, 1))
        found = verify(tmp_path / "s").findings
        assert [f.kind for f in found] == ["index-size"]
        made.unlink()


@pytest.mark.parametrize("count", [1, 3, 1500])
def test_index_files_of_any_shape_are_read(store_path: Path, small: dict[str, Any], count: int):
    """The file does not say how many slots it has: only its entries do."""
    with pystore.open(store_path, **small | {"maxHashSlotNum": 64, "maxIndexNum": 999}) as store:
        store.put_many("orders", [b"x"] * count, keys=[f"k{i}" for i in range(count)])
    assert verify(store_path).findings == []


def stamps(root: Path) -> dict[str, tuple[int, int, int, int]]:
    found = {}
    for path in root.rglob("*"):
        if path.is_file():
            s = path.stat()
            found[str(path)] = (s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_atime_ns)
    return found


def test_no_byte_and_no_time_stamp_changes(golden: Callable[[str], Path]):
    root = golden("killed")
    for path in root.rglob("*"):
        if path.is_file():
            os.utime(path, ns=(1, path.stat().st_mtime_ns))  # an old access, that reading renews
    before = stamps(root)
    verify(root, deep=True)
    assert stamps(root) == before


def test_missing_store_is_named(tmp_path: Path):
    with pytest.raises(pystore.NotAStore):
        verify(tmp_path / "nothing")


def test_command_line_tells_damage_by_its_exit_code(
    store_path: Path, small: dict[str, Any], capsys: pytest.CaptureFixture[str]
):
    with pystore.open(store_path, **small) as store:
        store.put_many("orders", [b"x"] * 100)
    assert main(["verify", str(store_path)]) == 0
    assert "sound" in capsys.readouterr().out
    queue = store_path / "consumequeue/orders/0/00000000000000000000"
    with queue.open("r+b") as file:
        file.write(bytes(20))
    assert main(["verify", str(store_path), "--json"]) == 5
    seen = json.loads(capsys.readouterr().out)
    assert seen["audit"]["sound"] is False
    assert {f["kind"] for f in seen["findings"]} == {"zero-units", "missing-units"}
    assert all(f["fix"] and f["java"] and f["meaning"] for f in seen["findings"])


def test_ctrl_c_ends_it(golden: Callable[[str], Path]):
    """An interrupt during the walk ends the command with the documented code."""
    program = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # it may come in ignored\n"
        "from pystore import audit\n"
        "import pystore.audit.core as core\n"
        "walk = core.CoreAudit._segment\n"
        "def segment(self, number, last, watch):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return walk(self, number, last, watch)\n"
        "core.CoreAudit._segment = segment\n"
        "from pystore.cli import main\n"
        "sys.exit(main(['verify', sys.argv[1]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(golden("normal-exit"))], timeout=300, check=False
    )
    assert done.returncode == 130
