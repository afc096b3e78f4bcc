"""A read passes over exactly what is damaged, says so, and never serves one message as another."""

from __future__ import annotations

import struct
import time

import pyarrow
import pytest

import pystore
from pystore.store import hosting
from tests.museum import damage

COUNT = 1000


@pytest.fixture
def filled(store_path, small):
    """A closed store of COUNT messages in queue t/0 and as many in t/1 and other/0."""
    with pystore.open(store_path, **small) as store:
        store.put_many("t", [b"a%d" % i for i in range(COUNT)], queues=[0] * COUNT)
        store.put_many("other", [b"o%d" % i for i in range(COUNT)], queues=[0] * COUNT)
    return store_path


def bodies(store, topic="t", queue=0):
    """Every body that reading a queue to its end gives, and how many were passed over."""
    got, passed, at = [], 0, 0
    while True:
        batch = store.read(topic, queue, at, max_messages=100)
        got += [bytes(m.body) for m in batch]
        passed += batch.damaged
        if batch.next_offset <= at:
            return got, passed
        at = batch.next_offset


def log_damage(record, what):
    """Damages one field of a record that no sum covers, or its frame."""
    tail = record.file.read_bytes()[record.at : record.at + record.size]
    topic_at = record.at + tail.index(record.topic.encode(), 91 - 16)
    {
        "size": lambda: damage.flip(record.file, record.at + 3),
        "magic": lambda: damage.flip(record.file, record.at + 6, 3),
        "queue id": lambda: damage.flip(record.file, record.at + 15),
        "queue offset": lambda: damage.flip(record.file, record.at + 27, 5),
        "physical offset": lambda: damage.flip(record.file, record.at + 35),
        "topic": lambda: damage.flip(record.file, topic_at, 2),
        "body length": lambda: damage.flip(record.file, record.at + 87),
        "zeroed": lambda: damage.write(record.file, record.at, bytes(record.size)),
    }[what]()


@pytest.mark.parametrize(
    "what",
    ["size", "magic", "queue id", "queue offset", "physical offset", "topic", "body length",
     "zeroed"],
)  # fmt: skip
@pytest.mark.parametrize("opener", [pystore.Reader, pystore.open])
def test_one_bad_record_costs_one_message(filled, what, opener):
    record = [r for r in damage.records(filled) if r.topic == "t"][200]
    log_damage(record, what)
    with opener(filled) as store:
        got, passed = bodies(store)
        assert got == [b"a%d" % i for i in range(COUNT) if i != 200]
        assert passed == 1
        assert store.info().damaged_reads == 1
        assert len(bodies(store, "other")[0]) == COUNT


def test_damage_is_logged_once_a_queue(filled, caplog):
    record = [r for r in damage.records(filled) if r.topic == "t"][200]
    log_damage(record, "magic")
    with pystore.Reader(filled) as store:
        bodies(store)
        bodies(store)
        assert store.read("t", 0, 200, max_messages=1).first_damaged == 200
    (line,) = [r.getMessage() for r in caplog.records if r.name == "pystore"]
    assert "of queue t/0, the first at offset 200" in line


def unit_of(root, topic, offset):
    file = damage.queue_files(root, topic)[offset * 20 // 6000]
    return file, offset * 20 % 6000


def read_unit(root, topic, offset):
    file, at = unit_of(root, topic, offset)
    return file.read_bytes()[at : at + 20]


def put_unit(root, topic, offset, unit):
    file, at = unit_of(root, topic, offset)
    damage.write(file, at, unit)


@pytest.mark.parametrize(
    ("what", "lost"),
    [("swapped", {40, 41}), ("doubled", {41}), ("foreign", {41}), ("far", {41}), ("zero", {41}),
     ("negative", {41})],
)  # fmt: skip
def test_a_wrong_unit_is_never_served(filled, what, lost):
    one, two = read_unit(filled, "t", 40), read_unit(filled, "t", 41)
    if what == "swapped":
        put_unit(filled, "t", 40, two)
        put_unit(filled, "t", 41, one)
    elif what == "doubled":
        put_unit(filled, "t", 41, one)
    elif what == "foreign":
        put_unit(filled, "t", 41, read_unit(filled, "other", 41))
    elif what == "far":
        put_unit(filled, "t", 41, struct.pack(">qiq", 1 << 60, 100, 0))
    elif what == "negative":
        put_unit(filled, "t", 41, struct.pack(">qiq", -5, 100, 0))
    else:
        put_unit(filled, "t", 41, bytes(20))
    with pystore.Reader(filled) as store:
        got, passed = bodies(store)
        assert got == [b"a%d" % i for i in range(COUNT) if i not in lost]
        assert passed == len(lost)


@pytest.mark.parametrize("size", [-1, 0, 90, 1 << 30])
@pytest.mark.parametrize("opener", [pystore.Reader, pystore.open])
def test_a_unit_of_another_size_costs_no_message(filled, size, opener):
    """The record there says itself how long it is."""
    file, at = unit_of(filled, "t", 200)
    damage.write(file, at + 8, size.to_bytes(4, "big", signed=True))
    with opener(filled) as store:
        assert bodies(store) == ([b"a%d" % i for i in range(COUNT)], 0)


@pytest.mark.parametrize("size", [-1, 0, 90, 1 << 30])
@pytest.mark.parametrize("column", ["body", "tags", "queueOffset"])
def test_a_unit_of_another_size_costs_a_scan_no_row(filled, size, column):
    """Nor one of the units alone, but for a size that a record there could have."""
    want = arrow_of(filled, column)
    file, at = unit_of(filled, "t", 200)
    damage.write(file, at + 8, size.to_bytes(4, "big", signed=True))
    assert arrow_of(filled, column) == want
    assert want.num_rows == COUNT


def arrow_of(root, column):
    with pystore.Reader(root) as store:
        return pyarrow.table(store.arrow("t", queue=0, columns=[column]))


def test_a_negative_size_passes_one_row_over(filled):
    """It once stood for as many missing units as its place in the log says."""
    put_unit(filled, "t", 41, struct.pack(">qiq", 1 << 40, -1, 0))
    with pystore.Reader(filled) as store:
        stream = store.arrow("t", queue=0, columns=["body"], skip_damaged=True)
        assert pyarrow.table(stream).num_rows == COUNT - 1
        assert stream.stats.skipped == 1


@pytest.mark.parametrize("size", [-1, 0, 90, 1 << 30])
def test_a_unit_of_another_size_costs_no_delayed_message(store_path, small, size):
    with pystore.open(store_path, **small) as store:
        for i in range(4):
            store.put("t", b"d%d" % i, delay_level=1, queue=0)
    (file,) = damage.queue_files(store_path, "SCHEDULE_TOPIC_XXXX")
    damage.write(file, 20 + 8, size.to_bytes(4, "big", signed=True))
    with pystore.open(store_path, **small) as store:
        due = hosting.deliver_due(store, 1, 0, now_ms=int(time.time() * 1000) + 3_600_000)
        assert (due.delivered, due.skipped) == (4, 0)
        assert bodies(store) == ([b"d%d" % i for i in range(4)], 0)


def test_a_scan_refuses_the_unit_of_another_queue(filled):
    put_unit(filled, "t", 41, read_unit(filled, "other", 41))
    with pystore.Reader(filled) as store:
        stream = store.arrow("t", queue=0, columns=["body", "queueOffset"], skip_damaged=True)
        rows = pyarrow.table(stream).column("body").to_pylist()
    assert rows == [b"a%d" % i for i in range(COUNT) if i != 41]


def test_a_queue_that_counts_on_over_a_loss_is_served(store_path, small):
    """Java appends to a queue without a gap when its log has lost messages."""
    with pystore.open(store_path, **small) as store:
        store.put_many("t", [b"a%d" % i for i in range(20)], queues=[0] * 20)
    units = [read_unit(store_path, "t", i) for i in range(20)]
    file, _ = unit_of(store_path, "t", 0)
    damage.write(file, 10 * 20, b"".join(units[13:]) + bytes(3 * 20))
    with pystore.Reader(store_path) as store:
        got = [bytes(m.body) for m in store.read("t", 0, 0)]
    assert got[:17] == [b"a%d" % i for i in (*range(10), *range(13, 20))]


def test_addresses_in_the_extension_are_no_tags(store_path, small):
    """With enableConsumeQueueExt Java writes an address in place of the tags code: the tags are
    then the record's."""
    with pystore.open(store_path, **small) as store:
        for i in range(20):
            store.put("t", b"a%d" % i, tags="even" if i % 2 == 0 else "odd", queue=0)
    for i in range(20):
        physical, size, _ = damage.UNIT.unpack(read_unit(store_path, "t", i))
        put_unit(store_path, "t", i, damage.UNIT.pack(physical, size, 20 * i - (1 << 63)))
    with pystore.Reader(store_path) as store:
        got = store.read("t", 0, 0, tags="odd")
        assert [bytes(m.body) for m in got] == [b"a%d" % i for i in range(1, 20, 2)]
        rows = pyarrow.table(store.arrow("t", queue=0, columns=["body"], tags="odd"))
        assert rows.column("body").to_pylist() == [b"a%d" % i for i in range(1, 20, 2)]
