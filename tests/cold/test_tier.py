"""What is written out is what a reader gets, whatever the object store is."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pystore
from pystore.cold.ahead import in_order
from pystore.cold.blocks import BlockCache
from pystore.cold.failures import TierTaken
from pystore.cold.manifest import ROWS_A_PAGE, ROWS_MAX, Manifest
from pystore.cold.push import PushReport, QueuePusher, push
from pystore.cold.reader import ColdReader
from pystore.cold.restore import restore
from pystore.cold.tier import Tier, new_tier, open_tier
from pystore.cold.upkeep import collect, remove, verify

SEGMENT = 8 << 10


def tier_of(root: str) -> Tier:
    return new_tier(root, "c1", "broker-a")


def cold(root: str) -> ColdReader:
    reader = pystore.Reader(root)
    assert isinstance(reader, ColdReader)
    return reader


@pytest.fixture
def pushed(filled: Path, root: str) -> str:
    with pystore.Reader(filled) as reader:
        push(reader, tier_of(root), segment_bytes=SEGMENT)
    return root


def fields(message: pystore.Message) -> tuple[Any, ...]:
    """All that a message is, but for its place in the log."""
    return (
        message.topic, message.queue, message.queue_offset, bytes(message.body),
        message.raw_properties.rpartition(b"__CRC32#")[0], message.store_timestamp,
        message.born_timestamp, message.store_host, message.body_crc, message.sys_flag,
    )  # fmt: skip


def answer(reader: pystore.Reader, seed: int) -> Any:
    """What a random read, search or query gives."""
    rng = random.Random(seed)
    topic, queue = rng.choice(["orders", "payments", "missing"]), rng.randrange(4)
    if topic == "missing" or queue == 3:
        batch = reader.read(topic, queue, rng.randrange(10))
        return batch.status, len(batch)
    low, high = reader.range(topic, queue)
    kind = rng.randrange(5)
    if kind == 0:
        known = reader.read(topic, queue, rng.randrange(low, high))[0].store_timestamp
        at = known + rng.randrange(-5, 6)
        upper = rng.random() < 0.5
        return reader.offset_at(topic, queue, at, upper=upper)
    if kind == 1:
        key = f"order-{rng.randrange(950)}"
        return [fields(m) for m in reader.query(topic, key)]
    filters: dict[str, Any] = {}
    if kind == 2:
        filters["tags"] = rng.choice(["paid", "AaAa", "paid || BBBB", "nothing"])
    if kind == 3:
        filters["sql"] = f"amount > {rng.randrange(10)}"
    offset = rng.randrange(low - 1, high + 3)
    found, at, statuses = [], offset, []
    for _ in range(40):  # where a read ends within a queue is the reader's choice
        batch = reader.read(topic, queue, at, max_messages=17, **filters)
        found += [fields(m) for m in batch]
        if batch.next_offset == at or (at >= high and not batch):
            statuses.append((batch.status, batch.next_offset))
            break
        at = batch.next_offset
    return found, statuses, batch.min_offset, batch.max_offset


def test_a_tier_answers_as_the_store_does(filled: Path, pushed: str):
    with pystore.Reader(filled) as store, cold(pushed) as tier:
        ranges = [
            [(q.topic, q.queue, q.min_offset, q.max_offset) for q in each.queues()]
            for each in (store, tier)
        ]
        assert ranges[0] == ranges[1]
        for seed in range(60 if "s3:" in pushed else 400):
            assert answer(tier, seed) == answer(store, seed), seed


def test_a_record_differs_in_its_place_and_its_sum_alone(filled: Path, pushed: str):
    with pystore.Reader(filled) as store, cold(pushed) as tier:
        found = tier.read("orders", 0, 0)
        assert len(found) > 5
        for hot, kept in zip(store.read("orders", 0, 0), found, strict=False):
            a, b = bytes(hot.record), bytes(kept.record)
            assert a[:28] == b[:28]
            assert a[36:-11] == b[36:-11]  # the last property is the sum: ten digits and its end
            assert kept.physical_offset == int.from_bytes(b[28:36], "big")


def test_a_second_push_writes_nothing_and_a_later_one_goes_on(tmp_path: Path, root: str):
    with pystore.open(tmp_path / "store") as store:
        for number in range(50):
            store.put("orders", b"%d" % number, queue=0)
        assert push(store, tier_of(root)).messages == 50
        assert push(store, tier_of(root)).objects == 0
        store.put("orders", b"more", queue=0)
        store.put("%LMQ%light", b"stays", queue=0)
        store.put("RMQ_SYS_TRACE_TOPIC", b"stays", queue=0)
        assert push(store, tier_of(root)).messages == 1
    with cold(root) as tier:
        bodies = [bytes(m.body) for m in tier.messages()]
        assert bodies == [b"%d" % n for n in range(50)] + [b"more"]
        assert tier.topics() == ["orders"]


def test_the_second_of_two_writers_hears_of_the_first(filled: Path, root: str):
    first, second = tier_of(root), tier_of(root)
    with pystore.Reader(filled) as store:
        push(store, first, topics=["orders"], segment_bytes=SEGMENT)
        # It has looked before the other wrote.
        late = second.manifest("orders", 0)
        row = next(first.rows(first.manifest("orders", 0), 0, 1))
        with pytest.raises(TierTaken, match="another writer has made version 1 of orders/0"):
            second.publish(late.with_rows((row,), 0, second.writer))
        assert push(store, second, topics=["orders"]).messages == 0
    assert verify(tier_of(root)).wrong == []


def test_a_writer_of_an_older_epoch_is_refused(filled: Path, root: str):
    with pystore.Reader(filled) as store:
        push(store, tier_of(root), topics=["orders"], epoch=5)
        with pytest.raises(TierTaken, match=r"orders/0 was written to in epoch 5"):
            push(store, tier_of(root), topics=["orders"], epoch=4)


def test_what_a_killed_writer_left_is_stepped_over_and_collected(filled: Path, root: str):
    tier = tier_of(root)
    left = [tier.key_of("orders", 0, 0), "rmq_sys_MANIFEST/orders/0/page-00000000000000000007"]
    for key in left:
        assert tier.objects.put_new(key, b"left by a writer that was killed")
    with pystore.Reader(filled) as store:
        push(store, tier, topics=["orders"], segment_bytes=SEGMENT)
    before = verify(tier)
    assert (before.orphans, before.wrong) == (2, [])
    assert collect(tier, grace_s=3600) == (0, 0)  # it may be about to write its manifest
    assert collect(tier, grace_s=-1)[0] == 2
    after = verify(tier)
    assert (after.orphans, after.messages, after.wrong) == (0, 450, [])


def test_old_rows_go_to_pages_and_are_found_there(tmp_path: Path):
    count = ROWS_MAX + ROWS_A_PAGE
    with pystore.open(tmp_path / "store") as store:
        tier = tier_of(str(tmp_path / "cold"))
        for number in range(count):
            store.put("orders", b"%1000d" % number, queue=0, keys=f"k{number}")
        push(store, tier, segment_bytes=1024)
        for number in range(count, count + 40):
            store.put("orders", b"%1000d" % number, queue=0, keys=f"k{number}")
            push(store, tier)
    manifest = open_tier(tmp_path / "cold").manifest("orders", 0)
    with cold(str(tmp_path / "cold")) as reader:
        assert [int(bytes(m.body)) for m in reader.messages()] == list(range(count + 40))
        assert [bytes(m.body) for m in reader.query("orders", "k0")] == [b"%1000d" % 0]
    assert len(manifest.rows) <= ROWS_MAX
    assert manifest.pages
    with cold(str(tmp_path / "cold")) as reader:
        newest = manifest.rows[-1].time_max
        for page in tmp_path.rglob("page-*"):
            page.unlink()  # what is older is not asked for
        reader.tier._known.put(("orders", 0), older(manifest), 1)
        pieces = list(reader.pieces("orders", time_min=newest))
        assert pieces[-1].end == count + 40


def older(manifest: Manifest) -> Manifest:
    """Returns the manifest with pages that were stored long before its rows."""
    pages = tuple(page._replace(time_min=1, time_max=2) for page in manifest.pages)
    return manifest._replace(pages=pages)


class _Meeting:
    """An object store that answers nobody before so many ask at once."""

    def __init__(self, objects: Any, parties: int) -> None:
        self._objects = objects
        self._met = threading.Barrier(parties, timeout=60)
        self._all_here = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def get(self, *args: Any) -> Any:
        if not self._all_here.is_set():
            self._met.wait()
            self._all_here.set()
        return self._objects.get(*args)


def test_a_query_by_key_asks_128_segments_at_once(tmp_path: Path):
    with pystore.open(tmp_path / "store", mappedFileSizeCommitLog=1 << 20) as store:
        for number in range(128):
            store.put("orders", bytes(1000), queue=0, keys=f"order-{number}")
    with pystore.Reader(tmp_path / "store") as reader:
        push(reader, tier_of(str(tmp_path / "cold")), segment_bytes=1024)
    tier = open_tier(tmp_path / "cold")
    assert len(list(tier.extents("orders", 0, 0, 128))) == 128  # manifest and page are known
    tier.objects = _Meeting(tier.objects, 128)
    reader = ColdReader.over(tier, BlockCache(tier.objects))
    assert [m.queue_offset for m in reader.query("orders", "order-7")] == [7]
    reader.close()


def test_one_that_takes_long_does_not_hold_up_its_neighbours():
    passed = threading.Event()

    def work(number: int) -> bool:
        if number == 5:
            passed.set()
        return number != 0 or passed.wait(60)

    assert [done for _, done in in_order(work, range(6), 2)] == [True] * 6


def test_what_is_taken_away_is_gone_and_the_rest_stays(pushed: str):
    tier = tier_of(pushed)
    rows = list(tier.rows(tier.manifest("orders", 1), 0, 1 << 40))
    assert remove(tier, "orders", 1, before=rows[1].time_max + 1) >= 1
    assert remove(tier, "payments") > 0
    with cold(pushed) as reader:
        low, high = reader.range("orders", 1)
        assert (0 < low < high, high) == (True, 150)
        batch = reader.read("orders", 1, 0)
        assert (batch.status, batch.next_offset) == (pystore.GetStatus.OFFSET_TOO_SMALL, low)
        assert reader.topics() == ["orders"]
    assert collect(tier, grace_s=-1)[0] > 0
    assert verify(tier).wrong == []


def test_taking_away_leaves_each_queue_in_its_epoch(filled: Path, tmp_path: Path):
    tier = tier_of(str(tmp_path / "cold"))
    with pystore.Reader(filled) as store, ThreadPoolExecutor(1) as pool:
        for queue in store.queues("orders"):
            QueuePusher(store, tier, queue, PushReport(), pool, epoch=5 - queue.queue).run()
    remove(tier, "orders")
    assert [tier.manifest("orders", queue).epoch for queue in range(3)] == [5, 4, 3]


def test_a_topic_that_was_made_again_does_not_mix_with_the_old_one(tmp_path: Path):
    root = str(tmp_path / "cold")
    for name, bodies in (("old", [b"a", b"b", b"c"]), ("new", [b"x"] * 5)):
        with pystore.open(tmp_path / name) as store:
            for body in bodies:
                store.put("orders", body, queue=0)
            if name == "new":
                with pytest.raises(pystore.BadArgument, match="is not the queue that the tier has"):
                    push(store, tier_of(root))
                remove(tier_of(root), "orders")
            push(store, tier_of(root))
    with cold(root) as reader:
        assert [bytes(m.body) for m in reader.messages()] == [b"x"] * 5
    assert verify(tier_of(root)).wrong == []


def test_a_store_is_made_of_a_tier(tmp_path: Path, filled: Path, pushed: str):
    from pystore.audit import verify as verify_store

    with cold(pushed) as reader:
        assert restore(reader, tmp_path / "made", segment_bytes=64 << 10) == 900
    assert verify_store(tmp_path / "made").sound
    with pystore.Reader(filled) as store, pystore.Reader(tmp_path / "made") as made:
        for queue in store.queues():
            for hot, again in zip(
                store.read(queue.topic, queue.queue, 0, max_messages=1000),
                made.read(queue.topic, queue.queue, 0, max_messages=1000),
                strict=True,
            ):
                assert fields(hot) == fields(again)


def test_arrow_columns_of_a_tier_are_those_of_the_store(filled: Path, pushed: str):
    pa = pytest.importorskip("pyarrow")
    names = ["queueId", "queueOffset", "body", "tags", "keys", "storeTimestamp"]
    with pystore.Reader(filled) as store, cold(pushed) as tier:
        for options in ({}, {"tags": "paid"}, {"start": 20, "end": 90}):
            both = [
                pa.table(reader.arrow("orders", 2, columns=names, **options))
                for reader in (store, tier)
            ]
            assert both[0].to_pylist() == both[1].to_pylist()
