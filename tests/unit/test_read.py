"""Reading: queues, the log, keys, times, and what a read says where nothing is."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import BOUND_S, until

import pystore
from pystore import GetStatus


@pytest.fixture
def store(store_path, small):
    with pystore.open(store_path, **small) as store:
        yield store


def bodies(batch):
    return [bytes(b) for b in batch.bodies()]


def fill(store, count, topic="T", queue=0, size=0, **options):
    return [store.put(topic, b"%d" % i + bytes(size), queue=queue, **options) for i in range(count)]


# ---- the statuses of docs/internals/format.md#reading-a-queue, in its order ----


def test_unknown_topic(store):
    """A topic that is not there: NO_MATCHED_LOGIC_QUEUE, next 0; nothing is created."""
    batch = store.read("nothing", 0, 5)
    assert (batch.status, batch.next_offset, len(batch)) == (
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
        0,
        0,
    )
    assert store.topics() == []


def test_unknown_queue(store):
    """A queue that is not there, of a topic that is: NO_MATCHED_LOGIC_QUEUE, next 0."""
    fill(store, 1)
    batch = store.read("T", 3, 0)
    assert (batch.status, batch.next_offset) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)


def test_offset_overflow_one(store):
    """At the end of a queue: OFFSET_OVERFLOW_ONE, next is the same offset."""
    fill(store, 3)
    batch = store.read("T", 0, 3)
    assert (batch.status, batch.next_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, 3)
    assert (batch.min_offset, batch.max_offset) == (0, 3)


@pytest.mark.parametrize("offset", [4, 1000, 1 << 40, (1 << 63) - 1])
def test_offset_overflow_badly(store, offset):
    """Beyond the end: OFFSET_OVERFLOW_BADLY, next is the end."""
    fill(store, 3)
    batch = store.read("T", 0, offset)
    assert (batch.status, batch.next_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 3)


@pytest.mark.parametrize("offset", [-1, -(1 << 63)])
def test_negative_offset(store, offset):
    """Below the beginning: OFFSET_TOO_SMALL, next is the beginning."""
    fill(store, 3)
    batch = store.read("T", 0, offset)
    assert (batch.status, batch.next_offset) == (GetStatus.OFFSET_TOO_SMALL, 0)


def test_found(store):
    """From an offset within: FOUND, the messages in order, next after the last of them."""
    fill(store, 10)
    batch = store.read("T", 0, 4, max_messages=3)
    assert (batch.status, batch.next_offset) == (GetStatus.FOUND, 7)
    assert bodies(batch) == [b"4", b"5", b"6"]
    assert [m.queue_offset for m in batch] == [4, 5, 6]
    assert [m.queue for m in batch] == [0, 0, 0]


def test_no_matched_message(store):
    """No message with the tag: NO_MATCHED_MESSAGE, next after what was looked at."""
    fill(store, 10, tags="a")
    batch = store.read("T", 0, 0, tags="b")
    assert (batch.status, batch.next_offset, len(batch)) == (GetStatus.NO_MATCHED_MESSAGE, 10, 0)


def test_scan_of_units_is_bounded(store):
    """A read looks at 800 units at most when none matches, or at max_messages if that is more."""
    store.put_many("T", [b"x"] * 3000, tags="a", queue=0)
    assert 0 < store.read("T", 0, 0, tags="b", max_messages=32).next_offset <= 800
    assert store.read("T", 0, 0, tags="b", max_messages=2000).next_offset <= 2000


def _dropped_segments(store_path, small):
    """A store whose first segments are gone: offsets of queue T/0 that are left."""
    with pystore.open(store_path, **small) as store:
        puts = fill(store, 60, size=50_000)
        assert store.info().log_files >= 3
        report = store.clean(immediate=True)
        assert report.log_files >= 1
        gone = [p for p in puts if p.physical_offset < report.log_min]
        return len(gone), len(puts)


def test_offset_too_small_after_deletion(store_path, small):
    """Below what deletion left: OFFSET_TOO_SMALL, next is the new beginning."""
    low, high = _dropped_segments(store_path, small)
    with pystore.open(store_path) as store:
        assert store.range("T", 0) == (low, high)
        batch = store.read("T", 0, 0)
        assert (batch.status, batch.next_offset) == (GetStatus.OFFSET_TOO_SMALL, low)
        assert bodies(store.read("T", 0, low, max_messages=1))[0].rstrip(b"\0") == b"%d" % low
    with pystore.Reader(store_path) as reader:
        assert reader.range("T", 0) == (low, high)
        assert reader.read("T", 0, 0).status is GetStatus.OFFSET_TOO_SMALL


def test_no_message_in_queue(store_path, small):
    """A queue folder without a unit: NO_MESSAGE_IN_QUEUE, next 0."""
    with pystore.open(store_path, **small) as store:
        fill(store, 1)
    empty = store_path / "consumequeue" / "T" / "1" / f"{0:020d}"
    empty.parent.mkdir()
    empty.write_bytes(bytes(6000))
    with pystore.open(store_path) as store:
        batch = store.read("T", 1, 0)
        assert (batch.status, batch.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
        batch = store.read("T", 1, 7)
        assert (batch.status, batch.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)


def test_reads_over_deleted_segments_never_raise(store_path, small):
    """While segments go away, a read says FOUND, OFFSET_TOO_SMALL or MESSAGE_WAS_REMOVING."""
    with pystore.open(store_path, **small) as store:
        fill(store, 100, size=50_000)
        seen, stop = set(), threading.Event()

        def look():
            while not stop.is_set():
                for at in range(0, 100, 7):
                    batch = store.read("T", 0, at, max_messages=5)
                    seen.add(batch.status)
                    for m in batch:
                        assert bytes(m.body).rstrip(b"\0") == b"%d" % m.queue_offset

        thread = threading.Thread(target=look)
        thread.start()
        for _ in range(5):
            store.clean(immediate=True)
            time.sleep(0.02)
        stop.set()
        thread.join()
    assert seen <= {
        GetStatus.FOUND,
        GetStatus.OFFSET_TOO_SMALL,
        GetStatus.MESSAGE_WAS_REMOVING,
        GetStatus.OFFSET_FOUND_NULL,
    }


# ---- limits ----


def test_first_message_always_comes(store):
    """A message larger than max_bytes still comes when it is the first."""
    fill(store, 3, size=10_000)
    batch = store.read("T", 0, 0, max_bytes=100)
    assert len(batch) == 1
    assert len(store.read("T", 0, 0, max_bytes=25_000)) == 2


def test_reads_cross_files_of_a_queue(store):
    """A loop over next_offset passes every file border of queue and log."""
    store.put_many("T", [b"%d" % i for i in range(1000)], queue=0)
    got, at = [], 0
    while batch := store.read("T", 0, at, max_messages=70):
        got += bodies(batch)
        at = batch.next_offset
    assert got == [b"%d" % i for i in range(1000)]
    assert at == 1000


def test_transfer_limits(store):
    """With transfer_limits a read ends where the broker's would: 32 messages or 256 KiB."""
    store.put_many("T", [b"x"] * 100, queue=0)
    fill(store, 10, queue=1, size=100_000)
    assert len(store.read("T", 0, 0, max_messages=100, transfer_limits=True)) == 32
    assert len(store.read("T", 0, 0, max_messages=10, transfer_limits=True)) == 10
    assert len(store.read("T", 1, 0, max_messages=100, transfer_limits=True)) == 2


@pytest.mark.parametrize("count", [0, -1, (1 << 24) + 1])
def test_max_messages_is_checked(store, count):
    """max_messages must be positive and sane."""
    with pytest.raises(pystore.BadArgument):
        store.read("T", 0, 0, max_messages=count)


# ---- tags ----


def test_tags_by_hash_then_text(store):
    """AaAa and BBBB have one hash; a read for one does not yield the other."""
    for tags in ("AaAa", "BBBB", "AaAa", None):
        store.put("T", str(tags), tags=tags, queue=0)
    assert bodies(store.read("T", 0, 0, tags="AaAa")) == [b"AaAa", b"AaAa"]
    batch = store.read("T", 0, 0, tags="BBBB")
    assert bodies(batch) == [b"BBBB"]
    assert batch.next_offset == 4


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a", "a"),
        ("a||b", "ab"),
        (" a || b ", "ab"),
        ("b || ", "b"),
        ("*", "abc-"),
        ("", "abc-"),
        (None, "abc-"),
        ("d", ""),
    ],
)
def test_tag_expressions(store, expression, expected):
    """An expression is tags joined by ``||``; ``*``, an empty one and None mean every message."""
    for tags in ("a", "b", "c", None):
        store.put("T", tags or "-", tags=tags, queue=0)
    assert bodies(store.read("T", 0, 0, tags=expression)) == [c.encode() for c in expected]


def test_tags_beyond_the_basic_plane(store):
    """Tags are hashed over UTF-16 units and compared as UTF-8."""
    store.put("T", b"x", tags="🚀标签", queue=0)
    assert len(store.read("T", 0, 0, tags="🚀标签")) == 1


def test_selective_read_passes_over_units(store):
    """A loop over next_offset finds each tagged message once, however rare."""
    tags = ["rare" if i % 997 == 0 else "common" for i in range(5000)]
    store.put_many("T", [b"%d" % i for i in range(5000)], tags=tags, queue=0)
    got, at, rounds = [], 0, 0
    while at < 5000:
        batch = store.read("T", 0, at, tags="rare")
        got += bodies(batch)
        at, rounds = batch.next_offset, rounds + 1
    assert got == [b"%d" % i for i in range(0, 5000, 997)]
    assert rounds < 40


# ---- lifetimes ----


def test_views_outlive_the_store(store_path, small):
    """Bodies and records of a batch stay readable after the store is closed."""
    with pystore.open(store_path, **small) as store:
        fill(store, 5, size=1000)
        batch = store.read("T", 0, 0)
        m, body = batch[2], batch[3].body
    assert bytes(m.body).rstrip(b"\0") == b"2"
    assert m.topic == "T"
    del batch, m
    gc.collect()
    assert bytes(body).rstrip(b"\0") == b"3"


def test_views_outlive_their_segment(store):
    """Bodies stay readable after retention has deleted their file."""
    fill(store, 60, size=50_000)
    batch = store.read("T", 0, 0, max_messages=3)
    views = batch.raw_bodies()
    assert store.clean(immediate=True).log_files >= 1
    assert store.read("T", 0, 0).status is GetStatus.OFFSET_TOO_SMALL
    assert [bytes(v).rstrip(b"\0") for v in views] == [b"0", b"1", b"2"]
    del batch
    gc.collect()
    assert [bytes(v).rstrip(b"\0") for v in views] == [b"0", b"1", b"2"]


def test_views_are_read_only(store):
    """Nobody can write into the log through a view."""
    fill(store, 1)
    m = store.read("T", 0, 0)[0]
    for view in (m.body, m.raw_body, m.record, store.read("T", 0, 0).raw_bodies()[0]):
        assert view.readonly
        with pytest.raises(TypeError):
            view[0] = 1


def test_batch_is_a_sequence(store):
    """A batch has a length, items, slices and negative indexes."""
    fill(store, 5)
    batch = store.read("T", 0, 0)
    assert len(batch) == 5
    assert bytes(batch[-1].body) == b"4"
    assert [bytes(m.body) for m in batch[1:4:2]] == [b"1", b"3"]
    with pytest.raises(IndexError):
        batch[5]
    assert "5 messages" in repr(batch)


# ---- the log ----


def test_log_in_pieces(store):
    """The log read piece by piece yields every record once, over blanks, and says where it ends."""
    puts = [store.put("ab"[i % 2], b"%d" % i + bytes(20_000), queue=i % 3) for i in range(120)]
    assert store.info().log_files > 2
    got, at, outcome = [], None, 0
    while outcome == 0:
        batch = store.log(at, max_messages=7)
        got += [m.physical_offset for m in batch]
        at, outcome = batch.next_offset, batch.outcome
    assert outcome == -1
    assert got == [p.physical_offset for p in puts]
    assert at == store.info().log_max


def test_log_within_a_record_is_damage(store):
    """From within a record, log() says that none stands there and message() raises."""
    fill(store, 2)
    batch = store.log(5)
    assert (len(batch), batch.next_offset) == (0, 5)
    assert batch.outcome > 0
    with pytest.raises(pystore.RecordDamaged) as caught:
        store.message(5)
    assert caught.value.offset == 5


@pytest.mark.parametrize("offset", [-1, 1 << 40, -(1 << 63), (1 << 63) - 1])
def test_message_beyond_the_log(store, offset):
    """A place outside the log is NotFound."""
    fill(store, 2)
    with pytest.raises(pystore.NotFound):
        store.message(offset)


@pytest.mark.parametrize("message_id", ["", "xyz", "00" * 15, "7F00000100002A9F" + "g" * 16])
def test_message_id_is_checked(store, message_id):
    """What is not a message id raises BadArgument."""
    with pytest.raises(pystore.BadArgument):
        store.message_by_id(message_id)


# ---- keys and times ----


def test_query_finds_each_key(store):
    """KEYS tokens and UNIQ_KEY lead to their messages, oldest first, and to no others."""
    store.put("T", b"1", keys="a b")
    store.put("T", b"2", keys=["b", "ключ"])
    store.put("T", b"3", properties={"UNIQ_KEY": "U3"})
    store.put("other", b"4", keys="a")
    assert bodies(store.query("T", "a")) == [b"1"]
    assert bodies(store.query("T", "b")) == [b"1", b"2"]
    assert bodies(store.query("T", "ключ")) == [b"2"]
    assert bodies(store.query("T", "U3")) == [b"3"]
    assert bodies(store.query("other", "a")) == [b"4"]
    assert bodies(store.query("T", "c")) == []
    assert bodies(store.query("nothing", "a")) == []


def test_query_compares_the_key_itself(store):
    """Keys of one hash (AaAa, BBBB) are told apart, and a part of a key does not find it."""
    for key in ("AaAa", "BBBB", "AaAaBBBB", "xAaAa"):
        store.put("T", key, keys=key)
    assert bodies(store.query("T", "AaAa")) == [b"AaAa"]
    assert bodies(store.query("T", "BBBB")) == [b"BBBB"]


def test_query_over_many_index_files(store):
    """Keys are found in every index file, newest messages first when there is a limit."""
    puts = [store.put("T", b"%d" % i, keys=f"k{i} all") for i in range(3000)]
    store.refresh()
    assert store.info().index_files >= 5
    for i in range(0, 3000, 37):
        assert bodies(store.query("T", f"k{i}")) == [b"%d" % i]
    assert len(store.query("T", "all")) == 3000
    newest = store.query("T", "all", max_messages=5)
    assert [m.physical_offset for m in newest] == [p.physical_offset for p in puts[-5:]]


def test_query_by_time(store):
    """begin and end limit a query to store times, both inclusive."""
    puts = []
    for i in range(5):
        puts.append(store.put("T", b"%d" % i, keys="k"))
        time.sleep(0.003)
    times = [p.store_timestamp for p in puts]
    assert bodies(store.query("T", "k", begin=times[1], end=times[3])) == [b"1", b"2", b"3"]
    assert bodies(store.query("T", "k", end=times[0])) == [b"0"]
    assert bodies(store.query("T", "k", begin=times[4])) == [b"4"]
    assert bodies(store.query("T", "k", begin=times[4] + 1)) == []


def test_messages_without_index(store_path, small):
    """With messageIndexEnable=false nothing is indexed and a query finds nothing."""
    with pystore.open(store_path, **small, messageIndexEnable=False) as store:
        store.put("T", b"x", keys="k")
        assert bodies(store.query("T", "k")) == []
        assert store.info().index_used == 0


def test_offset_at(store):
    """offset_at finds the first message at or after a time, or the last at or before it."""
    puts = []
    for i in range(300):
        puts.append(store.put("T", b"%d" % i, queue=0))
        if i % 50 == 49:
            time.sleep(0.003)
    times = [p.store_timestamp for p in puts]
    for t in {*times, times[0] - 1, times[-1] + 1, times[60] + 1, 0, 1 << 50}:
        first = next((i for i, at in enumerate(times) if at >= t), len(times))
        last = max((i for i, at in enumerate(times) if at <= t), default=0)
        assert store.offset_at("T", 0, t) == first
        assert store.offset_at("T", 0, t, upper=True) == last


def test_offset_at_without_queue(store):
    """A queue that is not there raises NotFound."""
    fill(store, 1)
    with pytest.raises(pystore.NotFound):
        store.offset_at("T", 3, 0)
    with pytest.raises(pystore.NotFound):
        store.offset_at("nothing", 0, 0)


def test_units_of_no_queue(store):
    """Units of a queue that is not there raise NotFound."""
    with pytest.raises(pystore.NotFound):
        store.units("nothing", 0)


def test_queue_list(store):
    """queues() lists every queue with its range, sorted by topic and queue id."""
    for topic, queue, count in (("b", 10, 2), ("a", 1, 3), ("b", 2, 1)):
        fill(store, count, topic=topic, queue=queue)
    got = [(q.topic, q.queue, q.min_offset, q.max_offset, len(q)) for q in store.queues()]
    assert got == [("a", 1, 0, 3, 3), ("b", 2, 0, 1, 1), ("b", 10, 0, 2, 2)]
    assert [q.queue for q in store.queues("b")] == [2, 10]
    assert store.topics() == ["a", "b"]
    assert store.range("nothing", 0) == (0, 0)
    assert max(q.max_physical for q in store.queues()) == store.info().log_max


# ---- following ----


def test_follow_yields_what_comes(store):
    """follow() yields messages put meanwhile, from its start on, and ends when nothing comes."""
    fill(store, 3)

    def later():
        for i in range(3, 50):
            store.put("T", b"%d" % i, queue=0)

    thread = threading.Thread(target=later)
    thread.start()
    follower = store.follow("T", 0, 0, timeout=BOUND_S)
    got = [bytes(next(follower).body) for _ in range(50)]
    thread.join()
    assert got == [b"%d" % i for i in range(50)]
    assert list(store.follow("T", 0, 50, timeout=0.1)) == []


def test_follow_waits_for_the_next(store):
    """A message reaches a follower that waits, long before its time is over."""
    fill(store, 1)
    follower = store.follow("T", 0, timeout=100 * BOUND_S)

    def later():
        time.sleep(0.3)  # the follower waits by now, as a rule
        store.put("T", b"late", queue=0)

    thread = threading.Thread(target=later)
    thread.start()
    started = time.monotonic()
    m = next(follower)
    thread.join()
    assert bytes(m.body) == b"late"
    assert time.monotonic() - started < BOUND_S


def test_follow_a_topic_to_come(store):
    """A follower may wait for a topic that nobody has made yet."""
    thread = threading.Timer(0.2, lambda: store.put("new", b"x", queue=0))
    thread.start()
    m = next(store.follow("new", 0, 0, timeout=BOUND_S))
    thread.join()
    assert bytes(m.body) == b"x"


def test_follow_with_tags(store):
    """follow() with tags yields only those, and steps over the rest."""
    for i in range(20):
        store.put("T", b"%d" % i, tags="ab"[i % 2], queue=0)
    until(lambda: store.range("T", 0)[1] == 20)
    got = [bytes(m.body) for m in store.follow("T", 0, 0, tags="b", timeout=0.2)]
    assert got == [b"%d" % i for i in range(1, 20, 2)]


def test_follow_async(store):
    """follow_async() yields the same without blocking the loop."""
    fill(store, 3)

    async def run():
        got = []

        async def put_later():
            for _ in range(20):  # the loop turns while the follower waits
                await asyncio.sleep(0.01)
            store.put("T", b"3", queue=0)

        putting = asyncio.create_task(put_later())
        async for m in store.follow_async("T", 0, 0, timeout=BOUND_S):
            got.append(bytes(m.body))
            if len(got) == 4:
                break
        await putting
        return got

    assert asyncio.run(run()) == [b"0", b"1", b"2", b"3"]


# ---- compressed bodies ----


def test_compressed_bodies(store):
    """Bodies of the three kinds of compression come inflated, raw_body as stored."""
    import zlib

    import lz4.frame
    import zstandard

    text = b"abc " * 1000
    kinds = {
        0x1: zlib.compress(text),
        0x301: zlib.compress(text),
        0x101: lz4.frame.compress(text),
        0x201: zstandard.ZstdCompressor().compress(text),
    }
    for flag, data in kinds.items():
        m = store.message(store.put("T", data, sys_flag=flag, queue=0).physical_offset)
        assert bytes(m.body) == text
        assert bytes(m.raw_body) == data
    store.put("T", b"plain", queue=0)
    assert bodies(store.read("T", 0, 0)) == [text] * 4 + [b"plain"]


@pytest.mark.parametrize("flag", [0x1, 0x101, 0x201, 0x301, 0x401, 0x701])
def test_body_that_does_not_inflate(store, flag):
    """A body that is flagged compressed and is not raises RecordDamaged with its place."""
    m = store.message(store.put("T", b"not compressed", sys_flag=flag).physical_offset)
    assert bytes(m.raw_body) == b"not compressed"
    with pytest.raises(pystore.RecordDamaged):
        bytes(m.body)


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd", "zstd of unknown size"])
def test_a_compressed_body_that_was_cut_is_no_body(kind):
    """Half of it never comes as if it were all: each cut raises ValueError."""
    import zlib

    import lz4.frame
    import zstandard

    from pystore.format.compression import inflate

    text = random.Random(7).randbytes(300) + b"x" * 300
    bits, data = {
        "zlib": (3, zlib.compress(text)),
        "lz4": (1, lz4.frame.compress(text)),
        "zstd": (2, zstandard.ZstdCompressor().compress(text)),
        "zstd of unknown size": (
            2, zstandard.ZstdCompressor(write_content_size=False).compress(text)
        ),
    }[kind]  # fmt: skip
    assert inflate(bits, memoryview(data)) == text
    for cut in range(len(data)):
        with pytest.raises(ValueError):
            inflate(bits, data[:cut])


def test_a_body_that_claims_too_much_gets_no_room():
    """A frame's header alone must not take memory."""
    import zstandard

    from pystore.format.compression import inflate

    head = b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little")
    assert zstandard.get_frame_parameters(head + bytes(8)).content_size == 1 << 40
    with pytest.raises(ValueError, match="claims 1099511627776 bytes"):
        inflate(2, head + bytes(8))


def _arrow(reader: Any, **options: Any) -> list[Any]:
    import pyarrow as pa

    stream = reader.arrow("T", 0, columns=("tags", "flag", "storeTimestamp"), **options)
    return pa.RecordBatchReader.from_stream(stream).read_all().to_pylist()


#: Ways to read a store that look at sums: what each does to a record whose sums do not fit.
SUM_READERS: dict[str, Callable[[Path], object]] = {
    "message": lambda path: pystore.Reader(path).message(0),
    "messages": lambda path: list(pystore.Reader(path).messages(check_crc=True)),
    "read": lambda path: pystore.Reader(path, checkCRCOnRead=True).read("T", 0, 0)[0],
    "arrow": lambda path: _arrow(pystore.Reader(path), check_crc=True),
    "arrow of a tag": lambda path: _arrow(pystore.Reader(path), check_crc=True, tags="TagA"),
    "arrow of a time": lambda path: _arrow(
        pystore.Reader(path), check_crc=True, store_time=(0, 10**12)
    ),
    "arrow of SQL92": lambda path: _arrow(
        pystore.Reader(path), check_crc=True, sql="TAGS = 'TagA'"
    ),
}


@pytest.mark.parametrize("way", SUM_READERS)
@pytest.mark.parametrize(
    ("what", "at"), [("tag", None), ("flag", 16), ("bornTimestamp", 43), ("storeTimestamp", 63)]
)
def test_the_sum_of_a_whole_record_is_checked_where_there_is_one(store_path, small, way, what, at):
    """A body's own sum says nothing of properties, flags and times."""
    pytest.importorskip("pyarrow")
    with pystore.open(store_path, **small, enabledAppendPropCRC=True) as store:
        put = store.put("T", b"body", tags="TagA", queue=0)
        assert store.message(put.physical_offset).tags == "TagA"
    with (store_path / "commitlog" / f"{0:020d}").open("r+b") as log:
        record = log.read(put.size)
        at = record.index(b"TagA") + 3 if at is None else at
        log.seek(at)
        log.write(bytes([record[at] ^ 1]))
    with pytest.raises((pystore.RecordDamaged, OSError, IndexError)):
        SUM_READERS[way](store_path)
    (found,) = pystore.Reader(store_path).messages()
    assert bytes(found.body) == b"body"
