"""System calls that fail: a failed sync is never a success, a full disk passes, nothing is lost."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import random
import re
import shutil
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import storeview
from faulty import faulty
from storeview import everything
from waiting import until

import pystore
from pystore.native import ffi

# The order of csrc/tests/faulty_io.h.
CALLS = [
    "open",
    "close",
    "pread",
    "pwrite",
    "fsync",
    "fdatasync",
    "ftruncate",
    "fallocate",
    "mmap",
    "munmap",
    "msync",
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
    "fstat",
    "statvfs",
    "stat",
    "lstat",
    "access",
    "lseek",
    "opendir",
    "readdir",
    "closedir",
    "lock",
    "flock",
    "syncfs",
    "advise",
]
SYNCS = ("fsync", "fdatasync", "msync")

#: The number of a call that nobody makes.
NEVER = 1 << 40
ROUNDS = int(os.environ.get("PS_CRASH_ROUNDS", "5"))
SMALL = {
    "mappedFileSizeCommitLog": 64 << 10,
    "mappedFileSizeConsumeQueue": 400,
    "maxHashSlotNum": 16,
    "maxIndexNum": 64,
}


def mask(*names):
    return sum(1 << CALLS.index(name) for name in names)


class Faults:
    """A table of system calls that fail on purpose; never freed, since views may outlive a test."""

    def __init__(self):
        self.table = faulty.ps_io_faulty_new()
        assert self.table != ffi.NULL

    def fail(self, *names, at=1, err=errno.EIO, forever=True):
        self._armed = names, at, forever
        while True:  # until no thread of the store made a call between the two
            self._before = self.calls(*names), faulty.ps_io_faulty_struck(self.table)
            faulty.ps_io_faulty_set(self.table, mask(*names), at, err, forever)
            made = self.calls(*names) - self._before[0]
            struck = faulty.ps_io_faulty_struck(self.table) - self._before[1]
            if not made or (at == 1 and struck == (made if forever else 1)):
                return

    def within(self, part):
        """Only calls on files whose path has this part count; before anything is opened."""
        self._part = ffi.new("char[]", part.encode())
        faulty.ps_io_faulty_within(self.table, self._part)

    def heal(self):
        """From now on every call succeeds. Returns how many failed since fail()."""
        injected = self.injected
        faulty.ps_io_faulty_set(self.table, 0, 0, 0, 0)
        return injected

    @property
    def injected(self):
        """How many calls failed since fail(): as many as were due by the calls that were made."""
        least = self._due()
        found = faulty.ps_io_faulty_struck(self.table) - self._before[1]
        assert least <= found <= self._due()
        return found

    def _due(self):
        names, at, forever = self._armed
        late = self.calls(*names) - self._before[0] - at + 1
        return max(0, late if forever else min(late, 1))

    def calls(self, *names):
        return faulty.ps_io_faulty_calls(self.table, mask(*names))


class FaultyStore(pystore.Store):
    """A store over such a table."""

    def __init__(self, path, faults, **settings):
        self._faults = faults
        super().__init__(path, **SMALL | settings)

    def _io(self):
        return self._faults.table


@pytest.fixture
def faults():
    return Faults()


@contextmanager
def opened(path, faults, **settings):
    """A faulty store; closed whatever happens, healed or not."""
    store = FaultyStore(path, faults, **settings)
    try:
        yield store
    finally:
        with suppress(pystore.StoreError):
            store.close()
        del store
        gc.collect()


def check(path, acknowledged, refused=()):
    """Opens with the system's own calls: what was acknowledged is there; the queues are sound."""
    with pystore.open(path) as store:
        there = {m.physical_offset: bytes(m.body) for m in store.messages(check_crc=True)}
        for place, body in acknowledged:
            assert there.get(place) == body
        for q in store.queues():
            got = [m.queue_offset for m in everything(store, q.topic, q.queue)]
            assert got == list(range(q.min_offset, q.max_offset))
        assert sum(len(q) for q in store.queues()) == len(there)
        for body in refused:
            assert body not in there.values()
        end = store.put("T", b"after", queue=0)
        assert bytes(store.message(end.physical_offset).body) == b"after"


# ---- syncs ----


def test_failed_sync_is_no_success(store_path, faults):
    """With SYNC_FLUSH a put whose sync failed raises FlushFailed, and so does every later one."""
    with opened(store_path, faults, flushDiskType="SYNC_FLUSH") as store:
        done = []
        for i in range(5):
            body = b"good%d" % i
            done.append((store.put("T", body, queue=0).physical_offset, body))
        assert faults.calls(*SYNCS) >= 5
        faults.fail(*SYNCS, forever=False)
        with pytest.raises(pystore.FlushFailed) as caught:
            store.put("T", b"bad", queue=0)
        assert caught.value.errno == errno.EIO
        flushed = store.info().log_flushed
        assert faults.heal() == 1
        for _ in range(3):  # a later sync of the same file may lie: the failure is sticky
            with pytest.raises(pystore.FlushFailed):
                store.put("T", b"later", queue=0)
        with pytest.raises(pystore.FlushFailed):
            store.put_many("T", [b"later"] * 3)
        with pytest.raises(pystore.FlushFailed):
            asyncio.run(store.put_async("T", b"later"))
        with pytest.raises(pystore.FlushFailed):
            store.put("T", b"later", wait=False)
        with pytest.raises(pystore.FlushFailed):
            store.flush()
        with pytest.raises(pystore.FlushFailed):
            store.wait_flushed(store.info().log_max)
        info = store.info()
        assert (info.log_flushed, info.flush_errno) == (flushed, errno.EIO)
        assert [bytes(m.body) for m in store.read("T", 0, 0, max_messages=5)] == [
            b for _, b in done
        ]
        with pytest.raises(pystore.FlushFailed):
            store.close()
    assert (store_path / "abort").exists()
    check(store_path, done, refused=[b"later"])


def test_failed_sync_reaches_awaiting_puts(store_path, faults):
    """Every put_async that waited for the failed sync raises FlushFailed, none returns PUT_OK."""

    async def many(store):
        puts = (store.put_async("T", b"%d" % i) for i in range(50))
        return await asyncio.gather(*puts, return_exceptions=True)

    with opened(store_path, faults, flushDiskType="SYNC_FLUSH") as store:
        store.put("T", b"good")
        faults.fail(*SYNCS)
        results = asyncio.run(many(store))
        assert all(isinstance(r, pystore.FlushFailed) for r in results)
        assert faults.injected >= 1


def test_failed_background_sync_is_told(store_path, faults):
    """With ASYNC_FLUSH a failed sync in the background makes the next puts raise FlushFailed."""
    fast = {"flushIntervalCommitLog": 10, "flushCommitLogThoroughInterval": 10}
    with opened(store_path, faults, **fast) as store:
        done = [(store.put("T", b"good", queue=0).physical_offset, b"good")]
        faults.fail(*SYNCS)

        def more():
            put = store.put("T", b"more", queue=0)
            done.append((put.physical_offset, b"more"))

        with pytest.raises(pystore.FlushFailed):
            until(more)
        assert faults.heal() >= 1
        with pytest.raises(pystore.FlushFailed):
            store.put("T", b"later", queue=0)
    check(store_path, done, refused=[b"later"])


# ---- a full disk ----


def test_full_disk_passes(store_path, faults, caplog):
    """No space for blocks: DiskFull, nothing stored; with space again puts succeed."""
    done = []

    def put(store, i):
        body = b"%d" % i + bytes(9000)
        done.append((store.put("T", body, queue=0).physical_offset, body))

    with opened(store_path, faults) as store:
        put(store, 0)
        assert store.range("T", 0) == (0, 1)  # its queue's file is made before the disk is full
        faults.fail("fallocate", err=errno.ENOSPC)
        with pytest.raises(pystore.DiskFull) as caught:
            for i in range(1, 1000):
                put(store, i)
        assert isinstance(caught.value, OSError)
        assert caught.value.errno == errno.ENOSPC
        stored = len(done)
        for _ in range(3):
            with pytest.raises(pystore.DiskFull):
                put(store, 0)
        assert store.info().disk_full
        assert len([r for r in caplog.records if "disk is full" in r.message]) == 1
        assert store.range("T", 0) == (0, stored)
        assert len(store.read("T", 0, 0, max_messages=stored)) == stored
        assert faults.heal() >= 1

        def goes_on():
            with suppress(pystore.DiskFull):
                put(store, stored)
            return len(done) > stored

        until(goes_on)
        for i in range(stored + 1, stored + 30):
            put(store, i)
        assert store.range("T", 0) == (0, len(done))
        assert not store.info().disk_full
        store.close()
    check(store_path, done)


def test_a_closed_store_stays_one_when_its_open_finds_no_space(faults, store_path):
    """Else the next open, ours or Java's, would recover it as after a crash."""
    with FaultyStore(store_path, faults, **SMALL) as store:
        store.put("T", b"x")
    faults.fail("pwrite", err=errno.ENOSPC)
    with pytest.raises(pystore.DiskFull, match="abort file"):
        FaultyStore(store_path, faults, **SMALL)
    assert not (store_path / "abort").exists()


def test_full_disk_in_the_middle_of_many(store_path, faults):
    """put_many that meets a full disk says how many were stored; those are there, no others."""
    with opened(store_path, faults) as store:
        store.put("T", b"first", queue=0)
        faults.fail("fallocate", err=errno.ENOSPC)
        bodies = [b"%d" % i + bytes(5000) for i in range(100)]
        with pytest.raises(pystore.DiskFull) as caught:
            store.put_many("T", bodies, queue=0)
        stored = caught.value.offset or 0
        assert faults.heal() >= 1
        assert store.range("T", 0) == (0, 1 + stored)
        assert 0 <= stored < 100
    with pystore.open(store_path) as store:
        got = [bytes(m.body) for m in store.read("T", 0, 0, max_messages=200)]
        assert got == [b"first", *bodies[:stored]]


@pytest.mark.parametrize("err", [errno.ENOSPC, errno.EDQUOT])
def test_opening_on_a_full_disk(store_path, faults, err):
    """A store that cannot be made for lack of space is a named error, and can be made later."""
    faults.fail("fallocate", "ftruncate", "pwrite", err=err)
    try:
        with opened(store_path, faults) as store:
            store.put("T", b"x")
            pytest.fail("there is no space")
    except pystore.StoreError as e:
        assert isinstance(e, OSError)
    assert faults.injected >= 1
    with pystore.open(store_path, **SMALL) as store:
        assert store.put("T", b"x", queue=0).queue_offset == 0


def test_next_file_cannot_be_made(store_path, faults):
    """A segment that cannot be opened: a named error; when it can be, puts go on."""
    with opened(store_path, faults) as store:
        store.put("T", b"first", queue=0)
        faults.fail("open", err=errno.EMFILE)
        done = 1
        kinds = (pystore.CreateMappedFileFailed, pystore.NotWriteable, pystore.StoreIOError)
        with pytest.raises(kinds):
            for _ in range(1000):
                store.put("T", bytes(9000), queue=0)
                done += 1
        assert faults.heal() >= 1

        def goes_on():
            with suppress(*kinds):
                return store.put("T", b"again", queue=0)

        until(goes_on)
        done += 1
    with pystore.open(store_path) as store:
        assert store.range("T", 0)[1] == done


@pytest.mark.parametrize("err", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC])
def test_queue_file_cannot_be_made_for_now(store_path, faults, err):
    """What passes by itself is waited out: puts are refused by name, then go on; none is lost."""
    with opened(store_path, faults) as store:
        store.put("Other", b"makes the first file of the log", queue=0)
        assert store.range("Other", 0) == (0, 1)
        faults.fail("open", err=err)
        done = 0
        with pytest.raises((pystore.NotWriteable, pystore.DiskFull)) as caught:
            for _ in range(1000):
                store.put("T", b"x", queue=0)
                done += 1
                store.range("T", 0)
        assert caught.value.errno == err
        assert faults.heal() >= 1
        until(lambda: store.range("T", 0) == (0, done))
        store.put("T", b"x", queue=0)
    with pystore.open(store_path) as store:
        assert store.range("T", 0) == (0, done + 1)


# ---- each call in turn ----


#: What each call may fail with, after its manual page.
ERRNOS = {
    "open": "EMFILE ENFILE ENOSPC EDQUOT EACCES EPERM EIO ENOMEM EROFS ELOOP",
    "close": "EIO EINTR ENOSPC EDQUOT",
    "pread": "EIO EAGAIN",
    "pwrite": "EIO ENOSPC EDQUOT EFBIG",
    "fsync": "EIO ENOSPC EDQUOT EROFS",
    "fdatasync": "EIO ENOSPC EDQUOT EROFS",
    "ftruncate": "EIO ENOSPC EFBIG EPERM EROFS",
    "fallocate": "EIO ENOSPC EDQUOT EFBIG EPERM",
    "mmap": "ENOMEM EACCES EAGAIN ENFILE ENODEV",
    "munmap": "ENOMEM EINVAL",
    "msync": "EIO ENOMEM EBUSY",
    "rename": "EIO ENOSPC EDQUOT EACCES EPERM EROFS",
    "unlink": "EIO EACCES EPERM EBUSY EROFS",
    "mkdir": "EIO ENOSPC EDQUOT EACCES EMLINK EROFS",
    "rmdir": "EIO EACCES EBUSY EROFS",
    "fstat": "EIO ENOMEM EOVERFLOW",
    "statvfs": "EIO EACCES ENOMEM",
    "stat": "EIO EACCES ENOMEM ELOOP",
    "lstat": "EIO EACCES ENOMEM",
    "access": "EIO EACCES ENOMEM",
    "lseek": "EIO EINVAL ESPIPE",
    "opendir": "EIO EMFILE ENFILE EACCES ENOMEM",
    "readdir": "EIO EBADF",
    "closedir": "EIO EBADF",
    "lock": "EIO ENOLCK EAGAIN EDEADLK",
    "flock": "EIO ENOLCK EAGAIN ENOMEM",
    "syncfs": "EIO ENOSPC EDQUOT",
    "advise": "EINVAL EBADF",
}


def whole_life(path, faults, flush, acknowledged):
    """Create, put, roll, index, checkpoint, retention, close; open again, read, query, close.

    Errors of ours that any step raised.
    """
    met = []

    def step(call, *args, **options):
        try:
            return call(*args, **options)
        except pystore.StoreError as e:
            met.append(e)
            return None

    for life in range(2):
        try:
            store = FaultyStore(path, faults, flushDiskType=flush)
        except pystore.StoreError as e:
            met.append(e)
            continue
        for i in range(25):
            body = b"%d-%d" % (life, i) + bytes(6000)
            put = step(store.put, f"T{i % 2}", body, queue=0, keys=f"k{i}")
            if put is not None:
                acknowledged.append((put.physical_offset, body))
            if i % 10 == 9:
                step(store.flush)
        for q in step(store.queues) or ():
            step(store.read, q.topic, q.queue, q.min_offset)
        step(store.query, "T0", "k0")
        step(store.clean, immediate=True)
        step(store.close)
        del store
        gc.collect()
    return met


#: What an error says of the call that failed; calls that it does not name are those whose failure
#: is not an error.
SAYS = {
    "open": "open|create|make|read", "pread": "read", "pwrite": "write|zero|copy", "fsync": "sync",
    "fdatasync": "sync", "msync": "sync", "syncfs": "sync", "ftruncate": "resize",
    "fallocate": "allocate", "mmap": "map", "rename": "rename|move", "unlink": "delete|remove",
    "mkdir": "create|make", "rmdir": "remove|delete", "fstat": "size|look",
    "stat": "stat|open|look", "lstat": "stat", "access": "permission|open", "lseek": "seek|read",
    "opendir": "list|open", "readdir": "read|list", "lock": "lock", "flock": "lock",
}  # fmt: skip


def check_told(met, path, name, err):
    """What was raised has the errno of the call that failed, says which it was, and of what file.

    An error without errno says what was found, as of the next open.
    """
    for e in met:
        if not e.errno:
            continue
        assert e.errno == err, e
        # What holds up the dispatcher is a state, which later calls name, too.
        assert re.search(f"{SAYS[name]}|no disk space|cannot extend", str(e)), e
        named = Path(re.search(r": (/\S+)", str(e))[1])
        assert named.is_relative_to(path) or path.is_relative_to(named), e


def cases_of(name, total):
    """(call, number, errno, for good). Of a call that is made very often, those in the middle,
    which do the same for one folder after another, take turns at the errors, and fail once."""
    errors = [getattr(errno, err) for err in ERRNOS[name].split()]
    for at in range(1, total + 1):
        ends = at <= 20 or at > total - 20
        for err in errors if ends else [errors[at % len(errors)]]:
            yield name, at, err, False
        if ends:
            yield name, at, errors[at % len(errors)], True


class Table:
    """Each call of a piece of work fails, once and for good, with each errno that it may give.

    prepare: makes the folder, with the system's own calls. work: what is done over the faulty
    ones; returns the errors of ours. check: whether the store is what it must be afterwards.
    """

    def __init__(self, tmp_path, rng, prepare, work, check):
        self.tmp_path, self.rng = tmp_path, rng
        self.prepare, self.work, self.check = prepare, work, check
        self.struck, self.cases, self.called = Counter(), 0, set()

    def run(self):
        """All cases; in a slice one of each kind of call."""
        counting = Faults()
        path = self.tmp_path / "counting"
        self.prepare(path)
        assert self.work(path, counting) == []
        self.called = {name for name in CALLS if counting.calls(name)}
        kinds = [
            list(cases_of(name, counting.calls(name))) for name in CALLS if name in self.called
        ]
        whole = sum(map(len, kinds))
        if ROUNDS < 100:
            kinds = [[self.rng.choice(cases)] for cases in kinds]
        self.cases = sum(map(len, kinds))
        for name, at, err, forever in (case for cases in kinds for case in cases):
            try:
                self.one(name, at, err, forever)
            except BaseException as e:
                case = f"{name} number {at}{' for good' if forever else ''}"
                raise AssertionError(f"{case}: {errno.errorcode[err]}: {e!r}") from e
        struck = dict(self.struck)
        print(f"{self.cases} of {whole} cases, {self.struck.total()} struck: {struck}")

    def one(self, name, at, err, forever):
        faults, path = Faults(), self.tmp_path / "store"
        self.prepare(path)
        faults.fail(name, at=at, err=err, forever=forever)
        check_told(self.work(path, faults), path, name, err)
        self.struck[name] += faults.heal()
        self.check(path)
        shutil.rmtree(path, ignore_errors=True)


def test_every_call_fails_with_every_error(tmp_path, seed):
    """Of a whole life; what was acknowledged stays."""
    rng = random.Random(seed)
    flush = rng.choice(("SYNC_FLUSH", "ASYNC_FLUSH"))
    acknowledged = []

    def work(path, faults):
        acknowledged.clear()
        return whole_life(path, faults, flush, acknowledged)

    def still_there(path):
        begin = min((int(f.name) for f in (path / "commitlog").glob("*")), default=0)
        check(path, [told for told in acknowledged if told[0] >= begin])  # retention ran

    table = Table(tmp_path, rng, lambda path: None, work, still_there)
    table.run()
    assert table.struck.total() >= table.cases // 2  # how many come in all depends on threads


# ---- syncs of the log, by number ----


def life_of_segments(path, faults, flush):
    """Puts over four segments, until the fault is known. Returns what was acknowledged; nothing may
    be once it is known, and the end is not a clean one then."""
    told, known = [], False
    try:
        store = FaultyStore(path, faults, flushDiskType=flush)
    except pystore.StoreError:
        return told
    with suppress(pystore.StoreError), opened_already(store):
        for i in range(14):
            if faults.injected:
                until(lambda: store.info().flush_errno)
                known = True
            try:
                told.append((store.put("T", b"%d" % i + bytes(15000), queue=0), b"%d" % i))
                assert not known
            except pystore.FlushFailed:
                assert faults.injected
    assert (path / "abort").exists() == bool(faults.injected)
    return [(put.physical_offset, body + bytes(15000)) for put, body in told]


@contextmanager
def opened_already(store):
    try:
        yield store
    finally:
        store.close()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_nothing_is_acknowledged_after_any_failed_sync_of_the_log(tmp_path, flush):
    """Of a segment, of one that is made ahead, of their folder: the failure stays, the end is not
    a clean one, and the next open recovers."""
    counting = Faults()
    counting.within("/commitlog")
    counting.fail("fsync", "fdatasync", at=NEVER)
    assert len(life_of_segments(tmp_path / "counting", counting, flush)) == 14
    total = counting.calls("fsync", "fdatasync")
    assert total > 8  # four segments and their folder
    for number in range(1, total + 1):
        for err in (errno.EIO, errno.ENOSPC) if number == total else (errno.EIO,):
            faults, path = Faults(), tmp_path / f"{number}-{err}"
            faults.within("/commitlog")
            faults.fail("fsync", "fdatasync", at=number, err=err, forever=False)
            told = life_of_segments(path, faults, flush)
            struck = faults.heal()
            with pystore.open(path) as store:
                if struck:
                    assert store.report.mode is not pystore.RecoveryMode.NORMAL
            check(path, told)
            shutil.rmtree(path)


def test_syncs_go_on_after_retention_took_what_was_not_synced_yet(store_path, faults):
    with opened(store_path, faults, flushIntervalCommitLog=60_000) as store:
        for _ in range(14):
            store.put("T", bytes(15000), queue=0)
        assert store.info().log_flushed < store.clean(immediate=True).log_min
        store.flush()
        assert store.info().log_flushed == store.info().log_max


# ---- recovery, and what deletes ----

#: So many queues that their folders are synced by one call for all.
WIDE = 36


def make_to_recover(root):
    """A store whose open has everything to do: a bad record, a torn end, units and an index that
    are gone, a topic that was deleted. The messages that are whole."""
    with pystore.open(root, **SMALL) as store:
        store.metadata.topics.put(pystore.TopicConfig("wide", WIDE, WIDE))
        for queue in range(WIDE):
            store.put("wide", b"w%d" % queue, queue=queue)
        done = [
            (put.physical_offset, put.size, body)
            for body in (b"%d" % i + bytes(4000) for i in range(40))
            for put in [store.put("T", body, queue=0, keys="k")]
        ]
        store.put("gone", b"x", queue=0)
        store.delete_topic("gone")
        end = store.info().log_max
    (root / "abort").write_text("")
    (root / "checkpoint").write_bytes(bytes(4096))
    shutil.rmtree(root / "index")
    shutil.rmtree(root / "consumequeue" / "T")
    place, size, _ = done[5]
    segment = SMALL["mappedFileSizeCommitLog"]
    for at, data in ((place + size - 200, b"?"), (end, b"torn" * 10)):
        file = root / "commitlog" / f"{at - at % segment:020d}"
        with file.open("r+b") as opened:
            opened.seek(at % segment)
            opened.write(data)
    return [(at, body) for at, _, body in done if at != place]


def fresh_copies(source):
    def prepare(path):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)

    return prepare


def test_recovery_with_every_error(tmp_path, seed):
    """An open that fails leaves the store to the next one, which finds all that is whole."""
    done = make_to_recover(tmp_path / "source")

    def work(path, faults):
        try:
            FaultyStore(path, faults).close()
        except pystore.StoreError as e:
            return [e]
        finally:
            gc.collect()
        return []

    def recovered(path):
        with pystore.open(path, **SMALL) as store:
            there = {m.physical_offset: bytes(m.body) for m in store.messages(check_crc=True)}
            assert all(there.get(place) == body for place, body in done)
            got = storeview.delivered(store)
            assert [at for _, at in got["T", 0]] == [at for at, _ in done]
            assert [len(q) for q in store.queues() if q.topic == "wide"] == [1] * WIDE
            assert not [q for q in store.queues() if q.topic == "gone" and len(q)]
            found = store.query("T", "k", max_messages=100)
            assert {m.physical_offset for m in found} >= {place for place, _ in done}

    table = Table(tmp_path, random.Random(seed), fresh_copies(tmp_path / "source"), work, recovered)
    table.run()
    assert set(CALLS) - table.called <= {"lstat", "rmdir", "statvfs", "msync"}


@pytest.mark.parametrize("err", [0, *(getattr(errno, name) for name in ERRNOS["lstat"].split())])
def test_a_segment_that_is_a_link_to_nothing_is_named(store_path, faults, err):
    """Nobody calls lstat but for such a link, which is not a file that has gone meanwhile."""
    with pystore.open(store_path, **SMALL) as store:
        store.put("T", b"x", queue=0)
    link = store_path / "consumequeue/T/0" / f"{400:020d}"
    link.symlink_to(store_path / "nowhere")
    faults.fail("lstat", at=1 if err else NEVER, err=err or errno.EIO)
    with pytest.raises(pystore.StoreError, match=link.name):
        FaultyStore(store_path, faults)
    assert faults.calls("lstat") == 1


def test_deletion_with_every_error(tmp_path, seed):
    """Retention and the deletion of a topic take all of it or nothing, and nothing else."""
    source = tmp_path / "source"
    with pystore.open(source, **SMALL) as store:
        puts = []
        for i in range(60):
            store.put("gone", b"old", queue=i % 2, keys="g")
            body = b"%d" % i + bytes(4000)
            puts.append((store.put("T", body, queue=0, keys="k").physical_offset, body))
    for path in (source / "commitlog").iterdir():
        os.utime(path, (1, 1))  # older than any fileReservedTime

    def work(path, faults):
        met = []
        try:
            with FaultyStore(path, faults, fileReservedTime=1) as store:
                for step in (lambda: store.clean(immediate=True),
                             lambda: store.delete_topic("gone"),
                             lambda: store.flush()):  # fmt: skip
                    try:
                        step()
                    except pystore.StoreError as e:
                        met.append(e)
        except pystore.StoreError as e:
            met.append(e)
        finally:
            gc.collect()
        return met

    def rest_is_there(path):
        begin = min(int(f.name) for f in (path / "commitlog").glob("*"))
        with pystore.open(path, **SMALL) as store:
            got = storeview.delivered(store)
            kept = [(n, at) for n, (at, _) in enumerate(puts) if at >= begin]
            assert got["T", 0] == kept
            assert all(bytes(store.message(at).body) == puts[n][1] for n, at in kept)
            for queue in (0, 1):
                first, end = store.range("gone", queue) or (0, 0)
                assert [n for n, _ in got.get(("gone", queue), [])] == list(range(first, end))
            end = store.put("gone", b"new", queue=0)
            assert bytes(store.message(end.physical_offset).body) == b"new"

    table = Table(tmp_path, random.Random(seed), fresh_copies(source), work, rest_is_there)
    table.run()
    assert {"unlink", "rmdir", "rename", "statvfs", "msync"} <= table.called
    begin = min(int(f.name) for f in (tmp_path / "counting" / "commitlog").glob("*"))
    assert begin > 0


def test_every_call_has_errors():
    assert list(ERRNOS) == CALLS


def test_order_of_calls():
    """The order of calls above is that of csrc/tests/faulty_io.h."""
    header = (Path(__file__).parents[2] / "csrc" / "tests" / "faulty_io.h").read_text()
    names = header.partition("enum {")[2].partition("}")[0].replace("PS_IO_", "").lower()
    assert [n.strip() for n in names.split(",")][:-1] == CALLS
