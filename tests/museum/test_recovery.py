"""Opening a damaged store: every whole message of the log is delivered by its queue and by its key,
what was lost is named, and nothing is taken away without a copy."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from storeview import everything

import pystore
from pystore.audit import verify
from tests.museum import damage, kinds

COUNT = 1000
QUEUES = 3


def fill(root, settings, count=COUNT):
    """A closed store: `count` keyed messages over QUEUES queues of t; their bodies by queue."""
    with pystore.open(root, **settings) as store:
        for i in range(count):
            store.put("t", b"m%d" % i, keys=f"k{i}", queue=i % QUEUES)
    return root


def delivered(store, topic="t"):
    """Bodies of every queue of the topic, in order."""
    got = {q.queue: [] for q in store.queues(topic)}
    for message in everything(store, topic):
        got[message.queue].append(bytes(message.body))
    return got


def expected(lost=(), count=COUNT):
    return {
        q: [b"m%d" % i for i in range(q, count, QUEUES) if i not in lost] for q in range(QUEUES)
    }


def whole(root, lost=(), count=COUNT, reader_first=True, **settings):
    """What a reader and then a writer deliver; both must agree, by queue and by key."""
    if reader_first:
        with pystore.Reader(root, **settings) as reader:
            assert delivered(reader) == expected(lost, count)
            for i in range(0, count, 37):
                assert len(reader.query("t", f"k{i}")) == (i not in lost), i
    with pystore.open(root, **settings) as store:
        assert delivered(store) == expected(lost, count)
        for i in range(0, count, 7):
            assert len(store.query("t", f"k{i}")) == (i not in lost), i
        report = store.report
        for q in range(QUEUES):
            last = store.queues("t")[q].max_offset
            assert store.put("t", b"next", queue=q).queue_offset == last
    with pystore.Reader(root, **settings) as reader:
        assert {q: b[:-1] for q, b in delivered(reader).items()} == expected(lost, count)
    return report


# ---- queues ----


def zero_file(file):
    damage.write(file, 0, bytes(file.stat().st_size))


def zero_page(file):
    damage.write(file, 400, bytes(400))


QUEUE_DAMAGE = {
    "all gone": lambda root: shutil.rmtree(root / "consumequeue"),
    "one queue gone": lambda root: shutil.rmtree(root / "consumequeue" / "t" / "1"),
    "one folder empty": lambda root: [f.unlink() for f in damage.queue_files(root, "t", 1)],
    "first file gone": lambda root: damage.queue_files(root, "t")[0].unlink(),
    "middle file gone": lambda root: damage.queue_files(root, "t")[3].unlink(),
    "last file gone": lambda root: damage.queue_files(root, "t")[-1].unlink(),
    "first file zeroed": lambda root: zero_file(damage.queue_files(root, "t")[0]),
    "middle file zeroed": lambda root: zero_file(damage.queue_files(root, "t")[3]),
    "page zeroed in the middle": lambda root: zero_page(damage.queue_files(root, "t")[3]),
    "last file zeroed": lambda root: zero_file(damage.queue_files(root, "t")[-1]),
    "file cut in half": lambda root: damage.queue_files(root, "t")[2].write_bytes(bytes(400)),
    "units swapped": lambda root: swap(damage.queue_files(root, "t")[2]),
    "unit far away": lambda root: damage.flip(damage.queue_files(root, "t")[2], 201, 4),
}


def swap(file):
    data = file.read_bytes()
    damage.write(file, 200, data[220:240] + data[200:220])


@pytest.fixture
def tiny(small):
    return small | {"mappedFileSizeConsumeQueue": 800, "mappedFileSizeCommitLog": 32 << 10}


@pytest.mark.parametrize("kind", QUEUE_DAMAGE)
def test_queues_after_a_crash(store_path, tiny, kind):
    fill(store_path, tiny)
    damage.crash(store_path)
    QUEUE_DAMAGE[kind](store_path)
    whole(store_path)


SEEN_WHEN_CLEAN = [
    kind for kind in QUEUE_DAMAGE
    if kind not in ("page zeroed in the middle", "units swapped", "unit far away")
]  # fmt: skip


@pytest.mark.parametrize("kind", SEEN_WHEN_CLEAN)
def test_queues_after_a_clean_exit(store_path, tiny, kind):
    fill(store_path, tiny)
    QUEUE_DAMAGE[kind](store_path)
    report = whole(store_path)
    assert any("t/" in i.what or i.what == "consumequeue" for i in report.items) or kind in (
        "all gone", "last file zeroed", "last file gone",
    )  # fmt: skip


def test_a_queue_folder_without_files_does_not_set_the_size_of_others(store_path, tiny):
    """It was given files of the default size, and the next opening refused the store."""
    fill(store_path, tiny)
    (store_path / "consumequeue" / "a" / "0").mkdir(parents=True)
    damage.crash(store_path)
    with pystore.open(store_path) as store:
        store.put("a", b"x", queue=0)
    (file,) = damage.queue_files(store_path, "a")
    assert file.stat().st_size == 800
    whole(store_path)


def test_a_store_that_has_files_of_two_sizes_opens(store_path, tiny):
    fill(store_path, tiny)
    file = damage.queue_files(store_path, "t", 2)[0]
    file.write_bytes(file.read_bytes().ljust(6000000, b"\0"))
    damage.crash(store_path)
    whole(store_path)


# ---- the log ----


def kept_aside(root):
    """The manifest rows of all that recovery took away."""
    rows = []
    for manifest in root.glob("aside/*/manifest.jsonl"):
        lines = manifest.read_text().splitlines()
        rows += [(manifest.parent, json.loads(line)) for line in lines]
    return rows


def put_blank(record):
    left = record.file.stat().st_size - record.at
    damage.write(record.file, record.at, left.to_bytes(4, "big") + bytes.fromhex("cbd43194"))


LOG_DAMAGE = {
    "size": lambda r: damage.flip(r.file, r.at + 2),
    "magic": lambda r: damage.flip(r.file, r.at + 7),
    "body": lambda r: damage.flip(r.file, r.at + 90),
    "place": lambda r: damage.flip(r.file, r.at + 33),
    "zeroed": lambda r: damage.write(r.file, r.at, bytes(r.size)),
    "noise": lambda r: damage.write(r.file, r.at, b"\xda\xa3\x20\xa7" * (r.size // 4)),
    "early blank": put_blank,
    "blank that does not fill its file": lambda r: damage.write(
        r.file, r.at, bytes.fromhex("00000100cbd43194")
    ),
}


PLACES = ["middle of the last segment", "middle of another", "last record of a segment"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", LOG_DAMAGE)
def test_whole_records_after_damage_are_kept(store_path, tiny, kind, place):
    fill(store_path, tiny)
    (store_path / "checkpoint").write_bytes(bytes(4096))  # all of the log is checked
    damage.crash(store_path)
    log = list(damage.records(store_path))
    last = [r for r in log if r.file == log[-1].file]
    second = [r for r in log if r.file == damage.segments(store_path)[1]]
    record = {
        "middle of the last segment": last[len(last) // 2],
        "middle of another": second[10],
        "last record of a segment": second[-1],
    }[place]
    if place == "last record of a segment" and "blank" in kind:
        pytest.skip("a blank there is what stands there")
    before = record.file.read_bytes()
    LOG_DAMAGE[kind](record)
    damaged = record.file.read_bytes()[record.at : record.at + record.size]
    # Sums of bodies are the recovery's: a read does not look at them.
    whole(store_path, {log.index(record)}, reader_first=kind != "body")
    folder, row = next((f, r) for f, r in kept_aside(store_path) if r["at"] == record.at)
    assert row["file"] == f"commitlog/{record.file.name}"
    assert (folder / row["kept"]).read_bytes()[: record.size] == damaged
    # The log is a chain again: walking it meets every other record.
    texts = [r for r in damage.records(store_path) if r.topic == "t"]
    assert len(texts) == COUNT - 1 + QUEUES
    assert before[: record.at] == record.file.read_bytes()[: record.at]


@pytest.mark.parametrize("claim", ["queue id", "next offset", "later offset"])
def test_two_records_that_claim_one_offset(store_path, tiny, claim):
    """Bits that no sum covers; the unit that stood there says whose the offset is."""
    fill(store_path, tiny)
    (store_path / "checkpoint").write_bytes(bytes(4096))
    damage.crash(store_path)
    log = list(damage.records(store_path))
    record = log[0] if claim == "queue id" else log[300]
    at, value = {
        "queue id": (12, (record.queue + 1).to_bytes(4, "big")),
        "next offset": (20, (record.queue_offset + 1).to_bytes(8, "big")),
        "later offset": (20, (record.queue_offset + 2).to_bytes(8, "big")),
    }[claim]
    damage.write(record.file, record.at + at, value)
    with pystore.open(store_path) as store:
        assert delivered(store) == expected({log.index(record)})
        assert [i.start for i in store.report.items if "of another" in i.why] == [record.physical]
    assert "same-offset" in verify(store_path).counts()


def test_a_closed_segment_whose_last_record_is_damaged_is_sound_again(store_path, tiny):
    fill(store_path, tiny)
    damage.crash(store_path)
    (store_path / "checkpoint").write_bytes(bytes(4096))
    second = [r for r in damage.records(store_path) if r.file == damage.segments(store_path)[1]]
    LOG_DAMAGE["zeroed"](second[-1])
    pystore.open(store_path).close()
    assert verify(store_path).counts() == {"lost-messages": 1}


def test_an_index_file_of_no_possible_size_is_kept_aside(store_path, tiny):
    fill(store_path, tiny)
    file = sorted((store_path / "index").iterdir())[0]
    torn = file.read_bytes()[: file.stat().st_size // 2 + 1]
    file.write_bytes(torn)
    whole(store_path)
    ((folder, row),) = [x for x in kept_aside(store_path) if x[1]["file"] == f"index/{file.name}"]
    assert (folder / row["kept"]).read_bytes() == torn


def test_index_entries_that_are_cut_are_kept_aside(store_path, tiny):
    """From the unsound entry on, and the files after it; what a crash takes back needs no copy."""
    fill(store_path, tiny | {"maxIndexNum": 300})
    files = sorted((store_path / "index").iterdir())
    before = {file.name: file.read_bytes() for file in files}
    at = 40 + tiny["maxHashSlotNum"] * 4 + 20 * 10
    damage.write(files[1], at, b"\x7f" * 8)  # a hash and a place
    damaged = files[1].read_bytes()
    later = (int(time.time() * 1000) + 60_000).to_bytes(8, "big")
    damage.write(store_path / "checkpoint", 0, later * 3)  # only the last segment is in doubt
    damage.crash(store_path)
    with pystore.open(store_path) as store:
        assert len(store.query("t", "k500")) == 1
    rows = {Path(row["file"]).name: (folder / row["kept"], row) for folder, row in
            kept_aside(store_path) if row["file"].startswith("index/")}  # fmt: skip
    copy, row = rows[files[1].name]
    assert row["at"] == at
    assert copy.read_bytes() == damaged[at : at + row["length"]]
    for file in files[2:]:
        assert rows[file.name][0].read_bytes() == before[file.name]


def test_a_torn_tail_is_kept_aside(store_path, tiny):
    fill(store_path, tiny)
    damage.crash(store_path)
    record = list(damage.records(store_path))[-1]
    damage.flip(record.file, record.at + 90)
    torn = record.file.read_bytes()[record.at : record.at + record.size]
    with pystore.open(store_path) as store:
        assert store.report.bytes_cut > 0
        assert len(store.read("t", (COUNT - 1) % QUEUES, COUNT // QUEUES)) == 0
    ((folder, row),) = [x for x in kept_aside(store_path) if x[1]["file"].startswith("commitlog")]
    assert (folder / row["kept"]).read_bytes() == torn.rstrip(b"\0")
    assert not any(record.file.read_bytes()[record.at :])


def test_offsets_that_cannot_be_take_no_room(tmp_path, tiny):
    """Two records of one queue with offsets 0 and 10**15, in a log that begins far out."""
    base = 91 * 32768 * 10**12
    root = tmp_path / "far"
    with pystore.open(root, **tiny) as store:
        for _ in range(2):
            store.put("t", b"x", queue=0)
    (file,) = damage.segments(root)
    data = bytearray(file.read_bytes())
    for i, r in enumerate(damage.records(root)):
        data[r.at + 20 : r.at + 28] = (i * 10**15).to_bytes(8, "big")
        data[r.at + 28 : r.at + 36] = (base + r.at).to_bytes(8, "big")
    file.unlink()
    (root / "commitlog" / f"{base:020d}").write_bytes(data)
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    damage.crash(root)
    for opener in (pystore.Reader, pystore.open):
        with opener(root) as store:
            assert [len(q) for q in store.queues("t")] == [1]
    assert sum(f.stat().st_blocks for f in root.rglob("*") if f.is_file()) * 512 < 4 << 20


# ---- the index ----


def index_files(root):
    return sorted((root / "index").iterdir())


INDEX_DAMAGE = {
    "folder gone": lambda root: shutil.rmtree(root / "index"),
    "folder empty": lambda root: [f.unlink() for f in index_files(root)],
    "first file gone": lambda root: index_files(root)[0].unlink(),
    "middle file gone": lambda root: index_files(root)[1].unlink(),
    "last file gone": lambda root: index_files(root)[-1].unlink(),
    "first file zeroed": lambda root: zero_file(index_files(root)[0]),
    "middle file zeroed": lambda root: zero_file(index_files(root)[1]),
    "last file zeroed": lambda root: zero_file(index_files(root)[-1]),
    "middle file emptied": lambda root: index_files(root)[1].write_bytes(b""),
}


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("kind", INDEX_DAMAGE)
def test_every_key_is_found_again(store_path, tiny, kind, crashed):
    fill(store_path, tiny | {"maxIndexNum": 300})
    INDEX_DAMAGE[kind](store_path)
    if crashed:
        damage.crash(store_path)
    whole(store_path)


def test_queues_of_another_store_cost_no_record_of_the_log(tmp_path):
    """The end of a unit lay amid a record: what fills holes began there, and closed over it."""
    logs = {}
    for name, count in (("ours", 200), ("other", 260)):
        with pystore.open(tmp_path / name, **kinds.SIZES) as store:
            for i in range(count):
                store.put("t", b"x" * (i * i * (7 + count) % 151), queue=i % 3)
        logs[name] = [(r.physical, r.size) for r in damage.records(tmp_path / name)]
    for ours, other in (("ours", "other"), ("other", "ours")):
        root = tmp_path / f"{ours} with queues of {other}"
        shutil.copytree(tmp_path / ours, root)
        shutil.rmtree(root / "consumequeue")
        shutil.copytree(tmp_path / other / "consumequeue", root / "consumequeue")
        pystore.open(root).close()
        assert [(r.physical, r.size) for r in damage.records(root)] == logs[ours]


# ---- times that cannot be ----


def test_damage_costs_no_whole_record_while_a_queue_is_made_again(store_path, tiny):
    """The log's first record is damaged, and a queue is gone: the log is read a second time, from
    there. What was stored before the log's end is not stale for that."""
    with pystore.open(store_path, **tiny) as store:
        for i in range(COUNT):
            store.put("t", b"m%d" % i, keys=f"k{i}", queue=i % QUEUES)
            if i % 100 == 0:
                time.sleep(0.002)
    record = next(damage.records(store_path))
    damage.flip(record.file, record.at + 6, 3)
    shutil.rmtree(store_path / "consumequeue" / "t" / "1")
    whole(store_path, lost={0})


@pytest.mark.parametrize("ending", ["closed", "crashed"])
def test_a_store_time_ahead_makes_nothing_stale(store_path, tiny, ending):
    """No sum covers it. The record after it is damaged, too."""
    fill(store_path, tiny)
    if ending == "crashed":
        damage.crash(store_path)
    log = list(damage.records(store_path))
    damage.write(log[500].file, log[500].at + 56, b"\0\x7f")
    damage.flip(log[501].file, log[501].at + 6, 3)
    shutil.rmtree(store_path / "consumequeue" / "t" / "1")
    whole(store_path, lost={501})


def test_a_store_time_ahead_is_not_handed_on(store_path, tiny):
    """New messages are not stored in its year."""
    fill(store_path, tiny, count=10)
    last = list(damage.records(store_path))[-1]
    damage.write(last.file, last.at + 56, b"\0\x7f")
    before = time.time() * 1000
    with pystore.open(store_path) as store:
        store.put("t", b"next", queue=0)
        (stored,) = store.read("t", 0, store.range("t", 0)[1] - 1, max_messages=1)
    assert before - 1 <= stored.store_timestamp <= time.time() * 1000 + 1
