"""Many threads at once: nothing lost, nothing twice, nothing mixed up."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pytest
import storeview
from waiting import BOUND_S

import pystore


def run_all(jobs):
    """Runs callables in threads of their own; raises what the first of them raised."""
    errors = []

    def guarded(job):
        try:
            job()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for t in threads:
        t.start()
    for t in threads:
        t.join(BOUND_S)
    assert not any(t.is_alive() for t in threads)
    if errors:
        raise errors[0]


def read_all(store, topic, queue):
    got, at = [], store.range(topic, queue)[0]
    while batch := store.read(topic, queue, at, max_messages=1000):
        got += [(m.queue_offset, bytes(m.body)) for m in batch]
        at = batch.next_offset
    return got


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_sixteen_threads_put_and_read(store_path, small, flush, seed):
    """8 threads put while 8 read: every reader sees each queue in order, without gaps."""
    count = 1500 if flush == "ASYNC_FLUSH" else 150
    results = [[] for _ in range(8)]
    done = threading.Event()
    busy = threading.Semaphore(0)

    def putter(n):
        rng = random.Random(seed + n)
        for i in range(count):
            body = b"%d-%d-" % (n, i) + bytes(rng.randrange(2000))
            results[n].append((body, store.put("T", body, queue=rng.randrange(4), keys=f"{n}-{i}")))
        busy.release()

    def reader(queue):
        at = 0
        while True:
            last = done.is_set()
            batch = store.read("T", queue, at, max_messages=50)
            for k, m in enumerate(batch):
                assert m.queue_offset == at + k
                assert m.topic == "T"
                bytes(m.body)
            at = batch.next_offset if batch else at
            if last and not batch:
                return

    def finisher():
        for _ in range(8):
            busy.acquire()
        done.set()

    with pystore.open(store_path, **small, flushDiskType=flush) as store:
        jobs = [lambda n=n: putter(n) for n in range(8)]
        jobs += [lambda n=n: reader(n % 4) for n in range(8)]
        run_all([*jobs, finisher])
        puts = [pair for each in results for pair in each]
        assert len({r.physical_offset for _, r in puts}) == 8 * count
        by_queue = Counter(r.queue for _, r in puts)
        for queue, n in by_queue.items():
            got = read_all(store, "T", queue)
            expected = {r.queue_offset: body for body, r in puts if r.queue == queue}
            assert got == sorted(expected.items())
            assert len(got) == n
        for n in range(8):  # the order of each thread is the order of the log
            places = [r.physical_offset for _, r in results[n]]
            assert places == sorted(places)
        for body, r in puts[:: max(1, len(puts) // 200)]:
            key = body.rsplit(b"-", 1)[0].decode()
            assert [m.physical_offset for m in store.query("T", key)] == [r.physical_offset]
        before = storeview.view(store)
    with pystore.Reader(store_path) as reader_of_files:
        assert storeview.view(reader_of_files) == before


def test_mixed_kinds_of_put(store_path, small):
    """put, put_many and put_batch at once share queues without holes; batches stay together."""
    import struct

    item = struct.pack(">iiiii", 0, 0, 0, 0, 3) + b"bat" + struct.pack(">h", 0)

    def single(n):
        for i in range(300):
            store.put("T", b"s%d-%d" % (n, i), queue=0)

    def many(n):
        for i in range(20):
            store.put_many("T", [b"m%d-%d-%d" % (n, i, k) for k in range(50)], queue=0)

    def batch():
        for _ in range(60):
            result = store.put_batch("T", item * 10, queue=0)
            first, last = result.queue_offsets[0], result.queue_offsets[-1]
            assert last - first == 9
            got = store.read("T", 0, first, max_messages=10)
            assert [bytes(m.body) for m in got] == [b"bat"] * 10

    with pystore.open(store_path, **small) as store:
        run_all([lambda: single(1), lambda: single(2), lambda: many(1), lambda: many(2), batch])
        got = read_all(store, "T", 0)
        assert [offset for offset, _ in got] == list(range(600 + 2000 + 600))
        kinds = Counter(body[:1] for _, body in got)
        assert kinds == {b"s": 600, b"m": 2000, b"b": 600}
        for n in (1, 2):
            mine = [b for _, b in got if b.startswith(b"s%d-" % n)]
            assert mine == [b"s%d-%d" % (n, i) for i in range(300)]


def test_new_topics_from_many_threads(store_path, small):
    """Threads that meet a new topic at once make one of it."""
    barrier = threading.Barrier(8)

    def work(n):
        for i in range(10):
            barrier.wait()
            store.put(f"topic{i}", b"%d" % n, queue=n % 2)

    with pystore.open(store_path, **small) as store:
        run_all([lambda n=n: work(n) for n in range(8)])
        assert len(store.topics()) == 10
        for i in range(10):
            assert store.range(f"topic{i}", 0) == (0, 4)
            assert store.range(f"topic{i}", 1) == (0, 4)


def test_close_while_others_work(store_path, small, seed):
    """Closing under load: each call succeeds or raises StoreClosed, and what succeeded is there."""
    rng = random.Random(seed)
    for round_ in range(8):
        path = store_path.with_name(f"store{round_}")
        store = pystore.open(path, **small)
        acknowledged = [[] for _ in range(6)]

        def putter(n, store=store, acknowledged=acknowledged):
            i = 0
            while True:
                try:
                    r = store.put("T", b"%d-%d" % (n, i), queue=n, keys="k")
                except pystore.StoreClosed:
                    return
                acknowledged[n].append(r.physical_offset)
                i += 1

        def looker(store=store):
            try:
                while True:
                    for m in store.read("T", 0, 0):
                        bytes(m.body)
                    store.query("T", "k", max_messages=3)
                    store.info()
                    store.flush()
            except pystore.StoreClosed:
                return

        def closer(store=store, wait=rng.random() * 0.1):
            time.sleep(wait)
            store.close()

        run_all([*(lambda n=n, p=putter: p(n) for n in range(6)), looker, looker, closer, closer])
        with pystore.open(path) as store:
            assert store.report.mode is pystore.RecoveryMode.NORMAL
            for n in range(6):
                got = [m[1] for m in read_all(store, "T", n)]
                assert got[: len(acknowledged[n])] == [
                    b"%d-%d" % (n, i) for i in range(len(acknowledged[n]))
                ]
                assert len(got) - len(acknowledged[n]) in (0, 1)


def test_close_wakes_followers(store_path, small):
    """A follower that waits when the store is closed raises StoreClosed."""
    store = pystore.open(store_path, **small)
    store.put("T", b"x", queue=0)

    def follow():
        with pytest.raises(pystore.StoreClosed):
            next(store.follow("T", 0))

    def close():
        time.sleep(0.1)  # the follower waits by now, as a rule
        store.close()

    run_all([follow, close])


def test_cleaning_while_others_read(store_path, small):
    """Retention under load: readers of any message see it whole or not at all.

    The putter goes on until 200 messages are there, the cleaner has deleted files in ten rounds and
    both readers have looked at the queue ten times.
    """
    stop = threading.Event()
    deleted, looks, puts = [], [[], []], []

    def enough():
        return len(puts) >= 200 and len(deleted) >= 10 and all(len(each) >= 10 for each in looks)

    def putter():
        while not enough() and not stop.is_set():
            store.put("T", b"%06d" % len(puts) * 4000, queue=0)
            puts.append(1)
        stop.set()

    def cleaner():
        while not stop.is_set():
            if store.clean(immediate=True).log_files:
                deleted.append(1)

    def reader(seen):
        try:
            while not stop.is_set():
                low, high = store.range("T", 0)
                for at in range(low, high, 5):
                    for m in store.read("T", 0, at, max_messages=3):
                        assert bytes(m.body) == b"%06d" % m.queue_offset * 4000
                seen.append(1)
        finally:
            stop.set()

    with pystore.open(store_path, **small) as store:
        run_all([putter, cleaner, lambda: reader(looks[0]), lambda: reader(looks[1])])
        assert enough()
        assert store.range("T", 0)[1] == len(puts)
        assert store.info().log_min > 0


def test_reads_let_go_of_the_gil(store_path, small):
    """While a thread waits in C for a message, others run Python: one of them puts it."""
    got, waits = [], threading.Event()

    def wait():
        waits.set()
        got.append(next(store.follow("T", 0, 1, timeout=BOUND_S)))

    def work():
        waits.wait(BOUND_S)
        for _ in range(100):
            time.sleep(0.001)
        assert not got
        store.put("T", b"y", queue=0)

    with pystore.open(store_path, **small) as store:
        store.put("T", b"x", queue=0)
        run_all([wait, work])
        assert [bytes(m.body) for m in got] == [b"y"]
