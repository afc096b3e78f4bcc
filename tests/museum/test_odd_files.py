"""Files and folders of a store that are something else, lie on another disk, or are cut off
while the store is open."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import pystore
from pystore.audit import Severity, verify
from pystore.audit.layout import look
from pystore.repair import journal, repair, salvage, undo
from pystore.settings import load

CUT = """
import os, sys, pystore
store = pystore.open(sys.argv[1], mappedFileSizeCommitLog=1 << 20)
store.put("orders", b"one", queue=0)
os.truncate(sys.argv[1] + "/meta/lock.mdb", 0)
for act in (lambda: store.put("bills", b"one", queue=0), store.close):
    try:
        act()
    except pystore.StoreError as error:
        print(error)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "store"
    with pystore.open(made, mappedFileSizeCommitLog=1 << 20) as store:
        for number in range(100):
            store.put("orders", b"%d" % number, queue=0)
    return made


def test_a_cut_lock_file_of_the_metadata_ends_no_process(tmp_path: Path) -> None:
    """LMDB maps it: the next look at it would be a SIGBUS."""
    path = tmp_path / "store"
    words = [sys.executable, "-c", CUT, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "lock.mdb" in done.stdout
    assert "cut off at 0 bytes while it was open" in done.stdout
    with pystore.open(path) as store:
        assert store.range("orders", 0) == (0, 1)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no second file system")
def test_queues_on_another_disk_are_mended_by_an_open(root: Path) -> None:
    other = Path("/dev/shm") / f"pystore-queues-{os.getpid()}"
    shutil.move(root / "consumequeue", other)
    try:
        (root / "consumequeue").symlink_to(other)
        (file,) = (other / "orders" / "0").iterdir()
        os.truncate(file, 777)
        with pystore.open(root) as store:
            assert store.range("orders", 0) == (0, 100)
    finally:
        shutil.rmtree(other)


def test_a_pipe_in_the_place_of_the_timers_hinders_no_repair(root: Path) -> None:
    shutil.rmtree(root / "timers", ignore_errors=True)
    os.mkfifo(root / "timers")
    (root / "checkpoint").unlink()
    repair(root)
    assert not verify(root).findings
    assert not (root / "timers").is_fifo()


@pytest.mark.parametrize(
    ("file", "beside"),
    [("config/consumerOffsets/000012.sst", "CURRENT"), ("config/rdb/000004.log", "CURRENT"),
     ("rocksdbstore/000013.sst", "CURRENT"), ("kvStore/000007.sst", "CURRENT"),
     ("compaction/compactionLog/T/0/00000000000000000000", "../../../position-checkpoint"),
     ("batchconsumequeue/T/0/00000000000000000000", "00000000000013800000"),
     ("dledger-n0/data/00000000000000000000", "../currterm")],
)  # fmt: skip
def test_what_javas_broker_keeps_elsewhere_is_not_passed_over(
    root: Path, file: str, beside: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Folders as 5.3.3 and 5.5.0 make them. An open without them began all groups again, left
    popped messages to nobody, gave batches as a message, and had of compacted topics the log."""
    path = root / file
    path.parent.mkdir(parents=True)
    (path.parent / beside).touch()
    path.write_bytes(b"")
    if not file.startswith("dledger"):  # a database that was only made, a file that was
        path.write_bytes(bytes(64) if path.name.isdigit() else b"")
        (path.parent / "000004.log").touch()
        path.unlink() if path.suffix == ".sst" else None
        assert verify(root).sound
        pystore.open(root).close()
    path.write_bytes(b"1")
    before = {each: each.read_bytes() for each in root.rglob("*") if each.is_file()}
    found = verify(root).errors
    assert [f.kind for f in found] == ["kept-elsewhere"]
    for act in (pystore.open, repair):
        with pytest.raises(pystore.StrayFile, match=r"which is not read.*nothing was changed"):
            act(root)
    with pystore.Reader(root) as reader:
        assert reader.metadata.topics
    assert found[0].file in caplog.text
    assert {each: each.read_bytes() for each in root.rglob("*") if each.is_file()} == before


def test_files_of_rocksdb_stand_in_no_queues_way(root: Path) -> None:
    shutil.rmtree(root / "meta")
    shutil.rmtree(root / "config")  # so that nobody knows what a topic is called
    for name in ("CURRENT", "IDENTITY", "000010.sst"):
        (root / "consumequeue" / name).write_bytes(b"1")
    assert not verify(root).errors


def test_a_file_with_the_name_of_a_repair_hinders_none(root: Path) -> None:
    (root / "repair-20261123101010").write_text("notes")
    (root / "checkpoint").unlink()
    repair(root)
    assert not verify(root).findings
    assert (root / "repair-20261123101010").read_text() == "notes"


KILLED = """
import os, signal, sys
from pystore.repair import salvage
sys.modules[salvage.__module__].repair = lambda *given, **also: os.kill(os.getpid(), signal.SIGKILL)
salvage(sys.argv[1], sys.argv[2])
"""


def test_a_salvage_that_is_killed_leaves_no_half_store(root: Path, tmp_path: Path) -> None:
    into = tmp_path / "saved"
    done = subprocess.run([sys.executable, "-c", KILLED, str(root), str(into)], check=False)
    assert done.returncode == -9
    assert not into.exists()
    with pytest.raises(pystore.BadArgument, match="delete it first"):
        salvage(root, into)
    shutil.rmtree(into.with_name("saved.unfinished"))
    assert salvage(root, into).repair.path == str(into)
    with pystore.open(into) as store:
        assert store.range("orders", 0) == (0, 100)


def test_topics_that_only_pending_messages_name_come_back(tmp_path: Path) -> None:
    """With metadata and configuration gone, a delivery would go to a queue that no pull reaches."""
    path = tmp_path / "store"
    due = str(time.time_ns() // 1_000_000 + 3_600_000)
    with pystore.open(path, mappedFileSizeCommitLog=1 << 20) as store:
        store.put("later", b"one", queue=2, delay_level=18)
        store.put("timed", b"one", queue=5, properties={"TIMER_DELIVER_MS": due})
    for folder in ("meta", "config"):
        shutil.rmtree(path / folder)
    with pystore.open(path) as store:
        found = {name: store.metadata.topics.get(name) for name in ("later", "timed")}
        assert {name: row is not None for name, row in found.items()} == {
            "later": True, "timed": True,
        }  # fmt: skip
        assert found["timed"].read_queue_nums >= 6


@pytest.mark.parametrize("checks", [False, True])
def test_a_body_that_does_not_fit_its_crc_is_passed_over_where_reads_check(
    root: Path, checks: bool
) -> None:
    """And is counted and told as other damage is; without checkCRCOnRead it is given out."""
    (segment,) = (root / "commitlog").iterdir()
    with segment.open("r+b") as log:
        place = _body_of(log.read(), b"42")
        log.seek(place)
        log.write(b"xy")
    with pystore.open(root, checkCRCOnRead=checks) as store:
        found = [bytes(message.body) for message in store.read("orders", 0, 0, max_messages=100)]
        assert len(found) == (99 if checks else 100)
        assert (b"xy" in found) != checks
        assert store.info().damaged_reads == checks


def _body_of(log: bytes, body: bytes) -> int:
    """Where the record with this body has it: after its length."""
    return log.index(struct.pack(">i", len(body)) + body) + 4


def a_file(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"odd")


def a_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir(parents=True)


def a_pipe(path: Path) -> None:
    a_file(path)
    path.unlink()
    os.mkfifo(path)


def a_circle(path: Path) -> None:
    a_file(path)
    path.unlink()
    path.symlink_to(path.name)


def a_device(path: Path) -> None:
    a_file(path)
    path.unlink()
    path.symlink_to("/dev/zero")


def a_link_to_nothing(path: Path) -> None:
    a_file(path)
    path.unlink()
    path.symlink_to("/nothing/here")


ODD = [
    (a_link_to_nothing, "consumequeue/orders/0"), (a_link_to_nothing, "consumequeue/orders"),
    (a_device, "consumequeue/orders"), (a_device, "config/topics.json.bak"),
    (a_circle, "config/topics.json.bak"), (a_circle, "commitlog/.hidden"),
    (a_device, "index/00000000000000000007"), (a_pipe, "meta/lock.mdb"),
    (a_folder, "meta/lock.mdb"), (a_circle, "meta/lock.mdb"), (a_circle, "access/lock.mdb"),
    (a_circle, "consumequeue/odd"), (a_circle, "consumequeue/orders/0/7"), (a_circle, "index/7"),
    (a_circle, "commitlog/7"), (a_folder, "meta/owner"), (a_circle, "meta/data.mdb"),
    (a_circle, "config"), (a_link_to_nothing, "config"),
    (a_circle, "index"), (a_circle, "consumequeue"), (a_circle, "consumequeue/orders"),
    (a_circle, "consumequeue/orders/0"), (a_link_to_nothing, "consumequeue"),
    (a_circle, "checkpoint"), (a_circle, "meta"), (a_circle, "timers"), (a_circle, "aside"),
    (a_file, "consumequeue/orders/0/odd"), (a_file, "consumequeue/orders/odd"),
    (a_file, "consumequeue/orders/0"), (a_file, "consumequeue/orders"), (a_file, "consumequeue"),
    (a_file, "commitlog/odd"), (a_file, "config"), (a_file, "meta"), (a_file, "index"),
    (a_folder, "consumequeue/orders/0/00000000000006000000"), (a_folder, "checkpoint"),
    (a_folder, "queueEnds"), (a_folder, "deletedTopics"), (a_folder, "config/topics.json"),
    (a_folder, "commitlog/00000000000001048576"), (a_folder, "consumequeue/orders/0/odd"),
]  # fmt: skip


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize(("make", "name"), ODD, ids=[f"{m.__name__} {n}" for m, n in ODD])
def test_a_store_that_does_not_open_is_not_called_sound_and_opens_after_a_repair(
    make: Callable[[Path], None], name: str, crashed: bool, root: Path, tmp_path: Path
) -> None:
    make(root / name)
    if crashed:
        (root / "abort").touch()
    sound = verify(root).sound
    mended = tmp_path / "mended"
    subprocess.run(["cp", "-a", root, mended], check=True)
    try:
        with pystore.open(root, mappedFileSizeCommitLog=1 << 20):
            pass
    except pystore.StoreError:
        assert not sound
    assert repair(mended).good
    with pystore.open(mended, mappedFileSizeCommitLog=1 << 20) as store:
        assert store.range("orders", 0) == (0, 100)


CUTS = list(itertools.product((-1, -2), (0, 8, 4096, 40_000), (False, True)))
SMALL = {"mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 2000}


def filled(root: Path, segments: int, seed: int) -> list[Path]:
    """A store whose records are of odd lengths; its segments."""
    chosen, number = random.Random(seed), 0
    with pystore.open(root, **SMALL) as store:
        while store.info().log_max <= (segments - 1 << 16) + 30_000:
            store.put("orders", bytes(chosen.randrange(10, 400)), queue=number % 2)
            number += 1
    found = sorted((root / "commitlog").iterdir())
    assert len(found) == segments
    return found


@pytest.mark.parametrize("segments", [2, 4])
@pytest.mark.parametrize(("which", "length", "crashed"), CUTS)
def test_one_repair_is_enough_wherever_the_last_segments_are_cut(
    segments: int, which: int, length: int, crashed: bool, tmp_path: Path, seed: int
) -> None:
    root = tmp_path / "store"
    os.truncate(filled(root, segments, seed)[which], length)
    if crashed:
        (root / "abort").touch()
    done = repair(root)
    assert done.good
    assert len(done.actions) < 10
    with pystore.open(root) as store:
        assert store.info().commitlog_file_size == 1 << 16


@pytest.mark.parametrize("length", [0, 8, 4096, 40_000])
def test_one_repair_is_enough_when_all_segments_are_cut(length: int, tmp_path: Path) -> None:
    """Only the distance between their names says how long they were."""
    for segment in filled(tmp_path / "store", 3, 7):
        os.truncate(segment, length)
    done = repair(tmp_path / "store")
    assert done.good
    assert look(tmp_path / "store", load(None, {})).segment_size == 1 << 16


STEP, LITTLE = 512, 16 << 10  # bytes between cuts, and of a segment
EVERY = list(itertools.product((-1, -2, -3), range(0, LITTLE, STEP), (False, True), (False, True)))
#: `make museum` takes all.
SOME = random.Random(os.environ["PS_SEED"]).sample(EVERY, 6)


@pytest.fixture(scope="module")
def little(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of four segments of 16 KiB, the last of which is half full."""
    root, chosen, number = tmp_path_factory.mktemp("little") / "store", random.Random(7), 0
    small = {**SMALL, "mappedFileSizeCommitLog": LITTLE, "maxHashSlotNum": 16, "maxIndexNum": 64}
    with pystore.open(root, **small) as store:
        while store.info().log_max <= 3 * LITTLE + 7000:
            body = bytes(chosen.randrange(10, 400))
            store.put("orders", body, queue=number % 2, keys=f"k{number}")
            number += 1
    return root


@pytest.mark.random
@pytest.mark.parametrize(
    ("which", "length", "crashed", "ahead"), EVERY if "PS_MUSEUM" in os.environ else SOME
)
def test_one_repair_is_enough_at_every_cut(
    which: int, length: int, crashed: bool, ahead: bool, little: Path, tmp_path: Path
) -> None:
    """ahead: a segment that was made ahead, all zeros, follows."""
    root = tmp_path / "store"
    subprocess.run(["cp", "-a", little, root], check=True)
    os.truncate(sorted((root / "commitlog").iterdir())[which], length)
    if ahead:
        with (root / "commitlog" / f"{4 * LITTLE:020d}").open("wb") as file:
            file.truncate(LITTLE)
    if crashed:
        (root / "abort").touch()
    done = repair(root)
    assert done.good
    assert done.after is not None
    assert {f.severity for f in done.after.findings} <= {Severity.INFO}
    assert repair(root).actions == []


def test_the_last_used_segment_is_cut_before_one_that_was_made_ahead(
    little: Path, tmp_path: Path
) -> None:
    """The log ends in it: no blank closes what was cut off."""
    test_one_repair_is_enough_at_every_cut(-1, 9 * STEP, False, True, little, tmp_path)


FAR = "00009000000000000000"


def test_a_file_far_away_that_holds_no_record_is_moved_aside(tmp_path: Path) -> None:
    root = tmp_path / "store"
    filled(root, 2, 7)
    (root / "commitlog" / FAR).write_bytes(bytes(1 << 16))
    assert not verify(root).sound
    done = repair(root)
    assert done.good
    assert [action.do for action in done.actions] == ["move"]
    with pystore.open(root) as store:
        assert store.info().commitlog_file_size == 1 << 16


def test_a_gap_that_no_log_has_is_refused_by_name(tmp_path: Path) -> None:
    """Records that belong there: of two logs nobody but their owner knows which is the store's."""
    root = tmp_path / "store"
    first, second = filled(root, 2, 7)
    data, far = bytearray(first.read_bytes()), int(FAR) - int(FAR) % (1 << 16)
    at = 0
    while (size := int.from_bytes(data[at : at + 4], "big")) and data[at + 4] == 0xDA:
        data[at + 28 : at + 36] = (far + at).to_bytes(8, "big")
        at += size
    (root / "commitlog" / f"{far:020d}").write_bytes(data)
    assert not verify(root).sound
    with pytest.raises(pystore.MissingSegment, match="segments are missing before it"):
        repair(root)
    assert first.stat().st_size == second.stat().st_size == 1 << 16


def test_a_gap_of_many_segments_is_filled_with_one_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saving the plan after each of its steps would cost the square of their number."""
    root, written = tmp_path / "store", []
    with pystore.open(root, mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=2000) as store:
        for number in range(2000):
            store.put("orders", b"x" * 400, queue=number % 2)
    segments = sorted((root / "commitlog").iterdir())
    for gone in segments[3:-3]:
        gone.unlink()
    whole = journal.write_whole
    monkeypatch.setattr(
        journal, "write_whole",
        lambda path, data, **how: (written.append(path.name), whole(path, data, **how)),
    )  # fmt: skip
    done = repair(root)
    assert done.good
    assert sum(action.do == "create" for action in done.actions) == len(segments) - 6
    assert written.count("manifest.json") < 12


@pytest.mark.long
def test_a_gap_of_many_segments_is_filled_and_emptied_again(root: Path) -> None:
    segment = root / "commitlog" / f"{1 << 20:020d}"
    far = root / "commitlog" / f"{300 << 20:020d}"
    far.write_bytes(bytes(1 << 20))
    before = sorted(path.name for path in (root / "commitlog").iterdir())
    repair(root)
    assert segment.exists()
    undo(root)
    assert sorted(path.name for path in (root / "commitlog").iterdir()) == before
