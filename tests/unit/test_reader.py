"""Reader: looking into a store that somebody else writes, or that a crash left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager

import pytest
import storeview
from faulty import faulty
from storeview import everything
from waiting import until

import pystore
from pystore import GetStatus, settings
from pystore.repair.tail import cut_back

#: Their numbers in csrc/tests/faulty_io.h.
OPEN, LSEEK = 0, 20

WRITER = """
    import json, sys, pystore
    store = pystore.open(sys.argv[1], **json.loads(sys.argv[2]))
    n = 0
    for line in sys.stdin:
        verb, _, count = line.strip().partition(" ")
        if verb == "put":
            for _ in range(int(count)):
                store.put("T", b"%d" % n + bytes(500), queue=0, keys=f"k{n}", tags="ab"[n % 2])
                n += 1
        elif verb == "clean":
            store.clean(immediate=True)
        elif verb == "refresh":
            store.refresh()
        elif verb == "close":
            store.close()
        print(store.info().log_max if verb != "close" else "closed", flush=True)
"""


class Writer:
    """Another process that has the store open, driven line by line."""

    def __init__(self, path, settings):
        code = textwrap.dedent(WRITER)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(path), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.kill()
        self.process.communicate()


@contextmanager
def writer(path, settings):
    w = Writer(path, settings)
    try:
        yield w
    finally:
        w.end()


def test_reader_over_a_live_writer(store_path, small):
    """A Reader sees what another process has put, after each refresh, by queue, key and place."""
    with writer(store_path, small) as w:
        w.tell("put 10")
        with pystore.Reader(store_path) as reader:
            assert reader.range("T", 0) == (0, 10)
            end = 10
            for count in (1, 5, 500, 3000):
                log_max = int(w.tell(f"put {count}"))
                end += count
                reader.refresh()
                assert reader.range("T", 0) == (0, end)
                assert reader.info().log_max == log_max
                m = reader.read("T", 0, end - 1)[0]
                assert bytes(m.body).rstrip(b"\0") == b"%d" % (end - 1)
                assert [m.queue_offset for m in reader.query("T", f"k{end - 1}")] == [end - 1]
                assert len(list(reader.messages())) == end
            w.tell("close")
            reader.refresh()
            assert reader.range("T", 0) == (0, end)
            assert len(storeview.view(reader)) == 2 * end


def test_reader_opened_mid_write_sees_whole_records(store_path, small):
    """Readers opened under a busy writer see a prefix of the log, every record whole."""
    with writer(store_path, small) as w:
        w.tell("put 1")
        w.process.stdin.write("put 20000\n")
        w.process.stdin.flush()
        last = 0
        for _ in range(15):
            with pystore.Reader(store_path) as reader:
                bodies = [bytes(m.body).rstrip(b"\0") for m in reader.messages(check_crc=True)]
                units = reader.range("T", 0)[1]
            assert bodies == [b"%d" % i for i in range(len(bodies))]
            assert units == len(bodies) >= last
            last = len(bodies)
            time.sleep(0.01)


def test_reader_opened_while_the_queues_lag_misses_nothing(store_path, small):
    """The dispatcher goes on between the opening of one queue and that of the next. Many small
    stores, since it is behind for a moment only."""
    names = [f"T{i}" for i in range(6)]
    for number in range(60):
        path = store_path / str(number)
        with pystore.open(path, **small) as store:
            for i in range(120):
                store.put(names[i * 7 % 6], b"%d" % i, queue=i % 2, keys=f"k{i}")
            with pystore.Reader(path) as reader:
                for name in names:
                    sent = [i for i in range(120) if names[i * 7 % 6] == name]
                    for queue in (0, 1):
                        found = [int(bytes(m.body)) for m in everything(reader, name, queue)]
                        assert found == [i for i in sent if i % 2 == queue]
                    assert all(reader.query(name, f"k{i}") for i in sent)


def test_reader_follows_a_live_writer(store_path, small):
    """follow() of a Reader yields what another process puts."""
    with writer(store_path, small) as w:
        w.tell("put 3")
        with pystore.Reader(store_path) as reader:
            got = []
            for m in reader.follow("T", 0, 0, timeout=1):
                got.append(m.queue_offset)
                if m.queue_offset == 2:
                    w.tell("put 40")
            assert got == list(range(43))


def test_reader_while_the_writer_deletes(store_path, small):
    """A Reader keeps its views when the first files go, and says OFFSET_TOO_SMALL later."""
    with writer(store_path, small) as w:
        w.tell("put 6000")
        with pystore.Reader(store_path) as reader:
            batch = reader.read("T", 0, 0, max_messages=3)
            w.tell("clean")
            assert [bytes(m.body).rstrip(b"\0") for m in batch] == [b"0", b"1", b"2"]
            reader.refresh()
            low, high = reader.range("T", 0)
            assert 0 < low < high == 6000
            assert reader.read("T", 0, 0).status is GetStatus.OFFSET_TOO_SMALL
            assert bytes(reader.read("T", 0, low)[0].body).rstrip(b"\0") == b"%d" % low
            assert len(list(reader.messages())) == high - low


def test_reader_that_retention_has_passed(store_path, small):
    """A Reader that slept while all it knew was deleted goes on where the store begins now."""
    segment = small["mappedFileSizeCommitLog"]
    with pystore.open(store_path, **small) as store, pystore.Reader(store_path) as reader:
        store.put_many("T", [bytes(500)] * 100, queue=0)
        store.refresh()
        reader.refresh()
        assert reader.range("T", 0) == (0, 100)
        store.put_many("T", [bytes(500)] * (4 * segment // 600), queue=0)
        store.put("new", b"", queue=0)
        store.refresh()
        assert store.clean(immediate=True) is not None
        store.put("T", b"later", queue=0, keys="later")
        store.refresh()
        reader.refresh()
        facts = store.info()
        assert facts.log_min > segment
        assert (reader.info().log_min, reader.info().log_max) == (facts.log_min, facts.log_max)
        assert reader.queues() == store.queues()
        assert sum(1 for _ in reader.messages()) == sum(1 for _ in store.messages())
        assert len(reader.query("T", "later")) == 1


def test_reader_after_the_writer_died(store_path, small):
    """A Reader on a crashed store shows what recovery will, and changes no byte."""
    with writer(store_path, small) as w:
        w.tell("put 3000")
        w.end()
    before = storeview.folder_hash(store_path)
    with pystore.Reader(store_path) as reader:
        seen = storeview.view(reader)
        assert len(reader.query("T", "k2999")) == 1
    assert storeview.folder_hash(store_path) == before
    with pystore.open(store_path) as store:
        assert storeview.view(store) == seen
        assert len(seen) == 6000


def test_reader_survives_recovery_by_another(store_path, small):
    """A Reader that was open before a recovery goes on after it."""
    with writer(store_path, small) as w:
        w.tell("put 100")
        w.end()
    with pystore.Reader(store_path) as reader:
        assert reader.range("T", 0) == (0, 100)
        with pystore.open(store_path) as store:
            store.put("T", b"more", queue=0)
            store.flush()
            reader.refresh()
            assert reader.range("T", 0) == (0, 101)
            assert bytes(reader.read("T", 0, 100)[0].body) == b"more"


def test_many_readers(store_path, small):
    """Any number of Readers may be open, beside each other and the writer."""
    with pystore.open(store_path, **small) as store:
        store.put_many("T", [b"%d" % i for i in range(100)], queue=0)
        store.flush()
        readers = [pystore.Reader(store_path) for _ in range(20)]
        assert all(len(list(r.messages())) == 100 for r in readers)
        for r in readers:
            r.close()


def test_reader_has_no_put(store_path, small):
    """A Reader offers nothing that writes."""
    pystore.open(store_path, **small).close()
    with pystore.Reader(store_path) as reader:
        for name in ("put", "put_many", "put_batch", "put_async", "clean", "flush"):
            assert not hasattr(reader, name)


def test_reader_after_close(store_path, small):
    """A closed Reader raises StoreClosed; its views stay."""
    with pystore.open(store_path, **small) as store:
        store.put("T", b"x", queue=0)
    reader = pystore.Reader(store_path)
    body = reader.read("T", 0, 0)[0].body
    reader.close()
    reader.close()
    with pytest.raises(pystore.StoreClosed):
        reader.read("T", 0, 0)
    assert bytes(body) == b"x"


def test_reader_of_an_empty_store(store_path, small):
    """An empty store has no messages, queues or topics, and says so without errors."""
    pystore.open(store_path, **small).close()
    with pystore.Reader(store_path) as reader:
        assert list(reader.messages()) == []
        assert reader.queues() == []
        assert reader.read("T", 0, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
        assert len(reader.query("T", "k")) == 0
        info = reader.info()
        assert (info.log_min, info.log_max, info.writable) == (0, 0, 0)


def test_reader_sees_a_store_grow_from_nothing(store_path, small):
    """A Reader opened on an empty store sees the first topic after refresh()."""
    with pystore.open(store_path, **small) as store, pystore.Reader(store_path) as reader:
        store.put("T", b"x", queue=0, keys="k")
        store.flush()
        reader.refresh()
        assert [bytes(m.body) for m in reader.read("T", 0, 0)] == [b"x"]
        assert len(reader.query("T", "k")) == 1


def write_over(path, start, data):
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)


def place(store):
    """The end of the log, in its last segment of 1 MiB."""
    return store.info().log_max % (1 << 20)


def exchanged(path):
    """The same bytes and times in another file."""
    shutil.copy2(path, path.with_suffix(".other"))
    path.with_suffix(".other").rename(path)


CHANGES = {
    "a message": lambda store, log: store.put("T", b"x", queue=0),
    "a queue": lambda store, log: store.put("T", b"x", queue=1),
    "a topic": lambda store, log: store.put("new", b"x", queue=0),
    "a segment": lambda store, log: store.put_many("T", [bytes(500)] * 2500, queue=0),
    "a deleted topic": lambda store, log: store.delete_topic("gone"),
    "retention": lambda store, log: store.clean(immediate=True),
    "half a record": lambda store, log: write_over(log, place(store), b"\0\0\0\x70"),
    "a wiped record": lambda store, log: write_over(log, place(store) - 60, bytes(60)),
    "a shorter file": lambda store, log: os.truncate(log, 1 << 19),
    "another file": lambda store, log: exchanged(log),
}  # fmt: skip


def view_of_all(reader):
    """What the reader shows once it shows all: a store makes its next segment in the background."""

    def shown():
        reader.refresh()
        return reader.view()

    return until(shown, "all of the store")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_view_tells_each_change(store_path, small, change):
    """A Reader that says that it shows all of a store does so."""
    with pystore.open(store_path, **small) as store, pystore.Reader(store_path) as reader:
        store.put_many("T", [bytes(500)] * 2000, queue=0)
        store.put("gone", b"x", queue=0)
        store.flush()
        assert reader.view() == 0
        first = view_of_all(reader)
        store.flush()  # the checkpoint, and nothing that a reader shows
        assert first == reader.view() > 0
        change(store, max((store_path / "commitlog").iterdir()))
        assert reader.view() == 0
        if change in list(CHANGES.values())[:6]:
            store.flush()
            assert view_of_all(reader) > first
            assert reader.queues() == [q for q in store.queues() if q.max_offset]


def test_a_view_needs_no_dispatch(store_path, small, tmp_path):
    """What the log has and the queues lack is shown from the log; that the queues follow later
    changes nothing, and what comes into the log meanwhile does."""
    with pystore.open(store_path, **small) as store:
        store.put_many("T", [b"x"] * 3, queue=0)
        shutil.copytree(store_path, tmp_path / "copy")
        begun = store.info().log_max
        for queue in (0, 1):
            store.put("T", b"y", queue=queue)
        store.flush()
        trailing = (store_path / "commitlog" / ("0" * 20)).read_bytes()
    (log,) = (tmp_path / "copy" / "commitlog").iterdir()
    with pystore.Reader(tmp_path / "copy") as reader:
        reader.refresh()
        assert reader.view() == 1 and reader.range("T", 0) == (0, 3)
        write_over(log, begun, trailing[begun:])
        assert reader.view() == 0
        reader.refresh()
        shown = reader.queues()
        assert [q.max_offset for q in shown] == [4, 1] and reader.view() == 2
        shutil.copytree(store_path / "consumequeue", tmp_path / "copy" / "consumequeue",
                        dirs_exist_ok=True)  # fmt: skip
        assert reader.view() == 2
        reader.refresh()
        assert reader.queues() == shown and reader.view() == 3


def test_reader_metadata_is_read_only(store_path, small):
    """A Reader's metadata can be looked at while the writer has the store."""
    with pystore.open(store_path, **small) as store:
        store.put("T", b"x", queue=0)
        store.flush()
        with pystore.Reader(store_path) as reader:
            assert reader.metadata is reader.metadata


def test_room_made_ahead_is_asked_for_and_not_read(store_path):
    """The system says where a segment has no data: to look at its zeros would bring up to a
    gibibyte into memory each time that a reader opens."""
    with pystore.open(store_path, mappedFileSizeCommitLog=64 << 20) as store:
        store.put("T", b"x", queue=0)
        end = store.info().log_max
    io = faulty.ps_io_faulty_new()

    class Watched(pystore.Reader):
        def _io(self):
            return io

    with Watched(store_path) as reader:
        assert faulty.ps_io_faulty_calls(io, 1 << LSEEK) > 0
        assert (reader.info().log_max, len(reader.read("T", 0, 0))) == (end, 1)


@pytest.mark.parametrize("kept", [10, 300])
def test_a_log_that_was_cut_back_is_named(tmp_path, kept):
    """As a slave's is that has what its master does not have. 300: in the segment before the last
    one that stays."""
    small = {"mappedFileSizeCommitLog": 65536}
    with pystore.open(tmp_path / "s", **small) as store:
        places = [store.put("t", b"%d" % n * 200, queue=0).physical_offset for n in range(400)]
    with pystore.Reader(tmp_path / "s") as reader:
        reader.refresh()
        cut_back(tmp_path / "s", settings.load(None, small), places[kept])
        with pytest.raises(pystore.LogCutBack):
            reader.refresh()
        with pystore.Reader(tmp_path / "s") as later:  # before a writer has opened it
            assert later.range("t", 0) == (0, kept)
            assert (later.info().log_max, len(list(later.messages()))) == (places[kept], kept)
        with pystore.open(tmp_path / "s", **small) as store:
            for n in range(400):
                store.put("t", b"%d" % n * 200, queue=0)
        with pytest.raises(pystore.LogCutBack):
            reader.refresh()
        assert reader.view() == 0


def test_what_looks_damaged_beside_a_writer_is_looked_at_again(store_path, small):
    """A writer that opens the store has parts of it in hand; what stays is told."""
    strange = store_path / "index" / "20261130120000000"

    def opens():
        io = faulty.ps_io_faulty_new()

        class Watched(pystore.Reader):
            def _io(self):
                return io

        with Watched(store_path) as reader:
            assert any(item.what == "index" for item in reader.report.items)
        return faulty.ps_io_faulty_calls(io, 1 << OPEN)

    with writer(store_path, small) as w:
        w.tell("put 1")
        strange.write_bytes(b"x")
        beside = opens()
    assert beside > 3 * opens()
