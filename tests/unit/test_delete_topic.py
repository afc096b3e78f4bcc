"""Deleting a topic: its queues go, the log stays, and nothing brings the old offsets back."""

from __future__ import annotations

import shutil
import struct
import zlib

import pyarrow
import pytest
from storeview import everything

import pystore

SMALL = {
    "mappedFileSizeCommitLog": 64 << 10,
    "mappedFileSizeConsumeQueue": 400,
    "maxHashSlotNum": 16,
    "maxIndexNum": 64,
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def bodies(store, topic, queue=0):
    return [bytes(message.body) for message in everything(store, topic, queue)]


def filled(path, count=50):
    """A store with messages of two topics; the deleted one's are the newest."""
    store = pystore.open(path, **SMALL)
    for i in range(count):
        store.put("kept", b"k%d" % i, queue=0)
        store.put("gone", b"g%d" % i, queue=i % 2, keys="key")
    return store


def crashed(path, into):
    """The folder as a kill would leave it."""
    shutil.copytree(path, into)
    return into


def test_the_queues_the_row_and_the_offsets_are_gone(path):
    with filled(path) as store:
        store.metadata.offsets.commit("readers", "gone", 0, 5)
        store.metadata.offsets.commit("readers", "kept", 0, 6)
        store.delete_topic("gone")
        assert store.topics() == ["kept"]
        assert "gone" not in store.metadata.topics
        assert store.metadata.offsets.get("readers", "gone", 0) is None
        assert store.metadata.offsets.get("readers", "kept", 0) == 6
        assert not (path / "consumequeue" / "gone").exists()


def test_a_topic_made_again_counts_from_zero(path):
    with filled(path) as store:
        store.delete_topic("gone")
        assert store.put("gone", b"new", queue=1).queue_offset == 0
        assert bodies(store, "gone", 1) == [b"new"]
        assert store.metadata.topics.get("gone") is not None


def test_arrow_has_the_life_of_now(path):
    with filled(path) as store, pystore.Reader(path) as reader:
        store.delete_topic("gone")
        store.put("gone", b"new", queue=1)
        store.flush()
        reader.refresh()
        for each in (store, reader):
            table = pyarrow.table(each.arrow("gone"))
            assert table["body"].to_pylist() == [b"new"]
            assert pyarrow.table(each.arrow(topics=["gone", "kept"])).num_rows == 51
            assert pyarrow.table(each.arrow()).num_rows == 101


def test_the_messages_are_still_found_by_offset_and_key(path):
    with filled(path) as store:
        place = store.put("gone", b"last", queue=0).physical_offset
        store.delete_topic("gone")
        assert bytes(store.message(place).body) == b"last"
        assert len(store.query("gone", "key")) == 50


def test_a_batch_that_was_read_before_stays_readable(path):
    with filled(path) as store:
        batch = store.read("gone", 0, 0)
        store.delete_topic("gone")
        assert [bytes(m.body) for m in batch][:2] == [b"g0", b"g2"]


def test_an_unknown_topic_is_not_found(path):
    with filled(path) as store:
        with pytest.raises(pystore.NotFound):
            store.delete_topic("nobody")
        store.delete_topic("gone")
        with pytest.raises(pystore.NotFound):
            store.delete_topic("gone")


def test_a_topic_of_the_store_itself_is_refused(path):
    with filled(path) as store, pytest.raises(pystore.BadArgument, match="SCHEDULE_TOPIC_XXXX"):
        store.delete_topic("SCHEDULE_TOPIC_XXXX")


@pytest.mark.parametrize("again", [0, 3])
def test_a_clean_restart_keeps_it_deleted(path, again):
    with filled(path) as store:
        store.delete_topic("gone")
        for i in range(again):
            store.put("gone", b"n%d" % i, queue=0)
    with pystore.open(path, **SMALL) as store:
        assert bodies(store, "gone") == [b"n%d" % i for i in range(again)]
        assert store.put("gone", b"next", queue=0).queue_offset == again


@pytest.mark.parametrize("again", [0, 3])
def test_a_crash_keeps_it_deleted(path, tmp_path, again):
    with filled(path) as store:
        store.delete_topic("gone")
        for i in range(again):
            store.put("gone", b"n%d" % i, queue=0)
        store.flush()
        copy = crashed(path, tmp_path / "copy")
    with pystore.open(copy, **SMALL) as store:
        assert store.report.mode is pystore.RecoveryMode.ABNORMAL
        assert bodies(store, "gone") == [b"n%d" % i for i in range(again)]
        assert len(bodies(store, "kept")) == 50


def test_queues_made_again_from_the_log_hold_the_new_life_alone(path):
    with filled(path) as store:
        store.delete_topic("gone")
        store.put("gone", b"new", queue=0)
    shutil.rmtree(path / "consumequeue")
    with pystore.open(path, **SMALL) as store:
        assert bodies(store, "gone") == [b"new"]
        assert len(bodies(store, "kept")) == 50


def test_a_crash_between_the_mark_and_the_files_ends_the_deletion_at_the_next_open(path, tmp_path):
    with filled(path) as store:
        store.flush()
        before = crashed(path / "consumequeue" / "gone", tmp_path / "before")
        store.delete_topic("gone")
        for i in range(3):
            store.put("gone", b"n%d" % i, queue=0)
        store.flush()
        copy = crashed(path, tmp_path / "copy")
    shutil.rmtree(copy / "consumequeue" / "gone")
    shutil.copytree(before, copy / "consumequeue" / "gone")
    with pystore.open(copy, **SMALL) as store:
        assert bodies(store, "gone") == [b"n0", b"n1", b"n2"]
        assert bodies(store, "gone", 1) == []


def test_a_mark_behind_the_end_of_the_log_takes_nothing_that_comes_later(path, tmp_path):
    with filled(path) as store:
        store.flush()
        copy = crashed(path, tmp_path / "copy")
        for _ in range(50):
            store.put("kept", b"lost", queue=0)
        store.delete_topic("gone")
    shutil.copy(path / "deletedTopics", copy)
    with pystore.open(copy, **SMALL) as store:
        assert bodies(store, "gone") == []
        store.put("gone", b"new", queue=0)
    shutil.rmtree(copy / "consumequeue")
    with pystore.open(copy, **SMALL) as store:
        assert bodies(store, "gone") == [b"new"]


def test_a_damaged_list_is_reported_and_opens(path):
    with filled(path) as store:
        store.delete_topic("gone")
    file = path / "deletedTopics"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pystore.open(path, **SMALL) as store:
        assert any(item.what == "deletedTopics" for item in store.report.items)


def test_an_entry_goes_once_the_log_begins_behind_it(path):
    with filled(path) as store:
        store.delete_topic("gone")
        for _ in range(40):
            store.put("kept", bytes(4000), queue=0)
        while store.clean(immediate=True).log_files:
            pass
        store.put("other", b"o", queue=0)
        store.delete_topic("other")
        raw = (path / "deletedTopics").read_bytes()
        assert b"other" in raw and b"gone" not in raw


def test_a_reader_sees_it_with_its_next_refresh(path):
    with filled(path) as store, pystore.Reader(path) as reader:
        assert len(bodies(reader, "gone")) == 25
        store.delete_topic("gone")
        reader.refresh()
        assert reader.topics() == ["kept"]
        store.put("gone", b"new", queue=0)
        reader.refresh()
        assert bodies(reader, "gone") == [b"new"]


def test_a_reader_that_opens_later_shows_the_new_life(path):
    with filled(path) as store:
        store.delete_topic("gone")
        store.put("gone", b"new", queue=0)
        with pystore.Reader(path) as reader:
            assert bodies(reader, "gone") == [b"new"]
            assert bodies(reader, "gone", 1) == []


# ---- lists of another store ----


def belie(path, below):
    """Puts a list there that says that "gone" was deleted."""
    rows = struct.pack(">qi", below, 4) + b"gone"
    head = struct.pack(">II", 0x50534431, zlib.crc32(rows))
    (path / "deletedTopics").write_bytes(head + rows)


def whole_gone(store):
    return [len(bodies(store, "gone", queue)) for queue in (0, 1)] == [25, 25]


@pytest.mark.parametrize("into_record", [0, 5])
def test_after_a_clean_exit_a_list_hides_no_queue_that_is_there(path, into_record):
    with filled(path) as store:
        place = store.read("gone", 1, 20)[0].physical_offset
    belie(path, place + into_record)
    with pystore.Reader(path) as reader:
        assert whole_gone(reader)
    with pystore.open(path, **SMALL) as store:
        assert whole_gone(store)
        assert any(item.what == "deletedTopics" for item in store.report.items)
        assert store.put("gone", b"next", queue=0).queue_offset == 25
    assert len(list((path / "aside").rglob("manifest.jsonl"))) == 1
    with pystore.open(path, **SMALL) as store:
        assert not any(item.what == "deletedTopics" for item in store.report.items)


def test_after_a_crash_a_list_that_points_amid_a_record_hides_nothing(path, tmp_path):
    with filled(path) as store:
        store.flush()
        place = store.read("gone", 1, 20)[0].physical_offset
        copy = crashed(path, tmp_path / "copy")
    belie(copy, place + 5)
    with pystore.open(copy, **SMALL) as store:
        assert whole_gone(store)
        assert any(item.what == "deletedTopics" for item in store.report.items)


def test_an_interrupted_deletion_that_is_ended_is_reported(path, tmp_path):
    with filled(path) as store:
        store.flush()
        copy = crashed(path, tmp_path / "copy")
        store.delete_topic("gone")
    shutil.copy(path / "deletedTopics", copy)
    with pystore.open(copy, **SMALL) as store:
        ended = [item.what for item in store.report.items if item.action.name == "REMOVED"]
        assert ended == ["consumequeue/gone/0", "consumequeue/gone/1"]


def test_other_entries_of_such_a_list_stay(path):
    with filled(path) as store:
        store.put("third", b"x")
        store.delete_topic("third")
    rows = (path / "deletedTopics").read_bytes()[8:] + struct.pack(">qi", 500, 4) + b"gone"
    head = struct.pack(">II", 0x50534431, zlib.crc32(rows))
    (path / "deletedTopics").write_bytes(head + rows)
    with pystore.open(path, **SMALL) as store:
        assert whole_gone(store)
    raw = (path / "deletedTopics").read_bytes()
    assert b"third" in raw and b"gone" not in raw
