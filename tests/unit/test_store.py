"""Opening, locking, closing, refusing, retention: the life of a store."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
import time

import purecodec
import pytest
import storeview
from storeview import everything
from waiting import BOUND_S

import pystore
from pystore import RecoveryMode
from pystore.errors import MessageIllegal
from pystore.store import hosting

HOUR_S = 3600


def fill(store, count, topic="T", queue=0, size=0, **options):
    return [store.put(topic, b"%d" % i + bytes(size), queue=queue, **options) for i in range(count)]


def python(code, *args, **options):
    """Runs Python code in another process; its output as text. It must exit with 0."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ---- names ----


def test_public_names():
    """__all__ holds what is public, each name once, and nothing that is not there."""
    assert len(pystore.__all__) == len(set(pystore.__all__))
    for name in pystore.__all__:
        assert getattr(pystore, name) is not None
    errors = {
        n for n, v in vars(pystore).items() if isinstance(v, type) and issubclass(v, Exception)
    }
    assert errors <= set(pystore.__all__)
    modules = type(pystore)
    public = {n for n, v in vars(pystore).items() if n[0] != "_" and not isinstance(v, modules)}
    assert public - {"annotations", "Mapping"} == set(pystore.__all__)


def test_every_error_is_a_store_error():
    """All exceptions have one root, a documented meaning and a next step."""
    for name in pystore.__all__:
        kind = getattr(pystore, name)
        if isinstance(kind, type) and issubclass(kind, Exception):
            assert issubclass(kind, pystore.StoreError)
            assert kind.meaning
            assert kind.next_step


# ---- making and opening ----


def test_open_makes_a_store(store_path, small):
    """Opening a path that is not there makes an empty store, in upstream's layout."""
    with pystore.open(store_path, **small) as store:
        assert store.report.mode is RecoveryMode.NEW
        info = store.info()
        assert (info.log_min, info.log_max, info.puts, info.topics) == (0, 0, 0, 0)
        assert (store_path / "abort").read_text().strip() == str(os.getpid())
        assert not store.closed
    assert not (store_path / "abort").exists()
    assert (store_path / "checkpoint").stat().st_size == 4096
    assert (store_path / "lock").read_bytes() == b"lock"
    assert store.closed


def test_open_takes_an_empty_folder(store_path, small):
    """An empty folder becomes a store."""
    store_path.mkdir()
    with pystore.open(store_path, **small) as store:
        assert fill(store, 1)[0].physical_offset == 0


def test_everything_is_there_after_reopening(store_path, small):
    """What was put before a close is there after it, and puts go on after it."""
    with pystore.open(store_path, **small) as store:
        puts = fill(store, 500, keys="k")
        before = storeview.view(store)
    with pystore.open(store_path) as store:
        assert store.report.mode is RecoveryMode.NORMAL
        assert storeview.view(store) == before
        assert len(store.query("T", "k")) == 500
        after = store.put("T", b"next", queue=0)
        assert after.queue_offset == 500
        assert after.physical_offset == puts[-1].physical_offset + puts[-1].size


def test_empty_store_reopens(store_path, small):
    """A store that never got a message opens again, any number of times."""
    for _ in range(3):
        with pystore.open(store_path, **small) as store:
            assert store.info().log_max == 0


def test_files_have_their_full_size(store_path, small):
    """Every file has exactly the configured size, since upstream refuses any other."""
    with pystore.open(store_path, **small) as store:
        fill(store, 1000, size=2000, keys="k")
    for path in (store_path / "commitlog").iterdir():
        assert path.stat().st_size == 1 << 20
    for path in (store_path / "consumequeue" / "T" / "0").iterdir():
        assert path.stat().st_size == 6000
    for path in (store_path / "index").iterdir():
        assert path.stat().st_size == 40 + 512 * 4 + 1024 * 20
        assert (len(path.name), path.name.isdigit()) == (17, True)


def test_consume_queue_size_is_rounded_up(store_path, small):
    """mappedFileSizeConsumeQueue is rounded up to whole units."""
    with pystore.open(store_path, **small | {"mappedFileSizeConsumeQueue": 5990}) as store:
        fill(store, 1)
    assert (store_path / "consumequeue/T/0" / f"{0:020d}").stat().st_size == 6000


def test_sizes_of_existing_files_are_adopted(store_path, small):
    """A store opened without sizes takes those of its files and goes on with them."""
    with pystore.open(store_path, **small) as store:
        fill(store, 30, size=100_000)
    with pystore.open(store_path) as store:
        info = store.info()
        assert (info.commitlog_file_size, info.consumequeue_file_size) == (1 << 20, 6000)
        fill(store, 30, size=100_000)
    assert {p.stat().st_size for p in (store_path / "commitlog").iterdir()} == {1 << 20}


def test_sizes_of_the_files_win_over_those_asked_for(store_path, small):
    """A store whose files have another size than configured is opened with the files' size."""
    with pystore.open(store_path, **small) as store:
        fill(store, 10)
    with pystore.open(store_path, **small | {"mappedFileSizeCommitLog": 2 << 20}) as store:
        assert store.info().commitlog_file_size == small["mappedFileSizeCommitLog"]
        assert len(store.read("T", 0, 0)) == 10


def test_files_of_two_sizes_are_refused(store_path, small):
    """A file that is shorter than its neighbours: FileSizeMismatch naming it, nothing changed."""
    with pystore.open(store_path, **small) as store:
        fill(store, 30, size=100_000)
    odd = store_path / "commitlog" / f"{1 << 20:020d}"
    with odd.open("r+b") as file:
        file.truncate(1000)
    before = storeview.folder_hash(store_path)
    with pytest.raises(pystore.FileSizeMismatch) as caught:
        pystore.open(store_path, **small)
    assert str(odd) in str(caught.value)
    assert storeview.folder_hash(store_path) == before


def test_several_commit_log_folders(store_path, tmp_path, small):
    """Files of the log go to the folders of storePathCommitLog in turn, and are read from them."""
    dirs = [tmp_path / "disk1", tmp_path / "disk2", tmp_path / "disk3"]
    conf = small | {"storePathCommitLog": ",".join(map(str, dirs))}
    with pystore.open(store_path, **conf) as store:
        fill(store, 60, size=100_000)
        before = storeview.view(store)
    for i, path in enumerate(dirs):
        names = sorted(int(p.name) >> 20 for p in path.iterdir())
        assert names
        assert all(n % 3 == i for n in names)
    with pystore.open(store_path, **conf) as store:
        assert storeview.view(store) == before
    with pystore.Reader(store_path, **conf) as reader:
        assert storeview.view(reader) == before


# ---- refusing ----


def refused(path, kind, opener=pystore.open, **settings):
    """Opens a path that must be refused, with nothing changed; the exception."""
    before = storeview.folder_hash(path) if path.is_dir() else path.exists()
    with pytest.raises(kind) as caught:
        opener(path, **settings)
    assert (storeview.folder_hash(path) if path.is_dir() else path.exists()) == before
    return caught.value


def test_file_is_no_store(tmp_path):
    """A path that is a file is NotAStore, for both ways to open."""
    path = tmp_path / "file"
    path.write_text("hello")
    refused(path, pystore.NotAStore)
    refused(path, pystore.NotAStore, pystore.Reader)


def test_foreign_folder_is_no_store(tmp_path):
    """A folder with other things in it and no commitlog is NotAStore; nothing is written there."""
    path = tmp_path / "home"
    path.mkdir()
    (path / "letter.txt").write_text("hello")
    refused(path, pystore.NotAStore)
    refused(path, pystore.NotAStore, pystore.Reader)


def test_reader_makes_nothing(tmp_path):
    """A Reader on a path that is not there raises NotAStore and makes nothing."""
    path = tmp_path / "nothing"
    error = refused(path, pystore.NotAStore, pystore.Reader)
    assert isinstance(error, FileNotFoundError)
    assert not path.exists()


def test_a_path_with_a_colon_is_no_address(tmp_path):
    """A Reader takes a path for a cold tier's only where it begins as an address does."""
    path = tmp_path / "volume:" / "store"
    with pystore.open(path) as store:
        store.put("t", b"m", queue=0)
    with pystore.Reader(path) as reader:
        assert len(reader.read("t", 0, 0)) == 1
    with pytest.raises(pystore.NotAStore):
        pystore.Reader(tmp_path / ("x" * 3000))


def test_missing_parent(tmp_path):
    """A path whose parents are missing is made with them, or refused; never a crash."""
    path = tmp_path / "a" / "b" / "store"
    try:
        pystore.open(path, mappedFileSizeCommitLog=1 << 20).close()
    except pystore.StoreError:
        assert not path.exists()
    else:
        assert (path / "commitlog").is_dir()


def test_stray_file_is_refused(store_path, small):
    """An unexpected file in commitlog: StrayFile names it; nothing has changed."""
    with pystore.open(store_path, **small) as store:
        fill(store, 1)
    stray = store_path / "commitlog" / "notes.txt"
    stray.write_text("hello")
    error = refused(store_path, pystore.StrayFile)
    assert "notes.txt" in str(error)


def test_segment_of_another_size_is_refused(store_path, small):
    """A log file of another size than its neighbours: FileSizeMismatch; nothing has changed."""
    with pystore.open(store_path, **small) as store:
        fill(store, 30, size=100_000)
    first = store_path / "commitlog" / f"{0:020d}"
    os.truncate(first, (1 << 20) - 4096)
    error = refused(store_path, pystore.FileSizeMismatch)
    assert "commitlog" in str(error)


def test_missing_segment_is_refused(store_path, small):
    """A hole in the log: MissingSegment; nothing has changed."""
    with pystore.open(store_path, **small) as store:
        fill(store, 40, size=100_000)
    (store_path / "commitlog" / f"{1 << 20:020d}").unlink()
    refused(store_path, pystore.MissingSegment)


def test_last_empty_file_is_removed(store_path, small):
    """A last file of length 0, as a crash may leave it, does not matter."""
    with pystore.open(store_path, **small) as store:
        fill(store, 5)
    (store_path / "commitlog" / f"{1 << 20:020d}").touch()
    with pystore.open(store_path) as store:
        assert store.put("T", b"x", queue=0).queue_offset == 5


@pytest.mark.parametrize(
    "settings",
    [
        {"noSuchSetting": 1},
        {"mappedFileSizeCommitLog": -1},
        {"mappedFileSizeCommitLog": "many"},
        {"flushDiskType": "SOMETIMES"},
        {"brokerIP1": "999.1.1.1"},
        {"maxHashSlotNum": 0},
    ],
    ids=lambda s: next(iter(s)),
)
def test_bad_settings_make_nothing(store_path, settings):
    """Settings that are unknown or out of range raise BadArgument before anything is made."""
    refused(store_path, pystore.BadArgument, **settings)
    assert not store_path.exists()


def test_tiny_files_do_not_crash(store_path):
    """The smallest sizes that are accepted work: puts and reads, or named refusals."""
    for size in (4096, 8192, 65536):
        path = store_path.with_name(f"store{size}")
        try:
            store = pystore.open(
                path,
                mappedFileSizeCommitLog=size,
                mappedFileSizeConsumeQueue=20,
                maxHashSlotNum=1,
                maxIndexNum=2,
            )
        except pystore.BadArgument:
            continue
        with store:
            for i in range(50):
                store.put("T", b"%d" % i, queue=0, keys=f"k{i}")
            assert [bytes(m.body) for m in store.read("T", 0, 49)] == [b"49"]
            assert len(list(store.messages())) == 50
            assert len(store.query("T", "k7")) == 1
        with pystore.open(path) as store:
            assert len(list(store.messages())) == 50


# What another user may not do, as code for a process that lets go of its rights.
AS_NOBODY = """
    import os, sys
    import pystore.cold.tier  # while it may read that
    os.setgid(65534); os.setuid(65534)
    try:
        {action}
    except pystore.Forbidden as e:
        assert isinstance(e, PermissionError) and e.where, e
        print("Forbidden", e.where)
"""


def let_in(path, rights):
    """Gives everybody these rights on a folder and on those above it."""
    for parent in (path, *path.parents):
        if parent.stat().st_uid == 0 and parent != parent.parent:
            parent.chmod(parent.stat().st_mode | rights)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("action", ["pystore.open(sys.argv[1])", "pystore.Reader(sys.argv[1])"])
def test_folder_without_rights(tmp_path, small, action):
    """A store of somebody else: Forbidden names the path; nothing has changed."""
    path = tmp_path / "theirs"
    let_in(tmp_path, 0o011)
    with pystore.open(path, **small) as store:
        fill(store, 3)
    path.chmod(0o700)
    before = storeview.folder_hash(path)
    out = python(AS_NOBODY.format(action=action), path)
    assert out.startswith(f"Forbidden {path}")
    assert storeview.folder_hash(path) == before


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_folder_that_cannot_be_listed_is_forbidden(tmp_path):
    """Whether it holds a cold tier is not to be known, and not asked further."""
    let_in(tmp_path, 0o011)
    path = tmp_path / "theirs"
    path.mkdir(mode=0o711)
    out = python(AS_NOBODY.format(action="pystore.Reader(sys.argv[1])"), path)
    assert out.startswith(f"Forbidden {path}")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_reader_needs_reading_rights_only(tmp_path, small):
    """A folder that one may read but not write serves a Reader; open says Forbidden."""
    path = tmp_path / "theirs"
    let_in(tmp_path, 0o055)
    with pystore.open(path, **small) as store:
        fill(store, 3)
    for each in (path, *path.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
    look = "print(len(list(pystore.Reader(sys.argv[1]).messages())))"
    out = python(AS_NOBODY.format(action=f"{look}; pystore.open(sys.argv[1])"), path)
    assert out.splitlines()[0] == "3"
    assert out.splitlines()[1].startswith("Forbidden")


# ---- one writer ----


def test_second_open_in_this_process(store_path, small):
    """A second open in the same process: StoreLocked with this process's pid."""
    with pystore.open(store_path, **small) as store:
        fill(store, 1)
        with pytest.raises(pystore.StoreLocked) as caught:
            pystore.open(store_path)
        assert caught.value.pid == os.getpid()
        assert isinstance(caught.value, BlockingIOError)
        fill(store, 1)
    pystore.open(store_path).close()


def test_second_open_in_another_process(store_path, small):
    """A store that another process writes: StoreLocked with its pid; a Reader still looks in."""
    with pystore.open(store_path, **small) as store:
        fill(store, 7)
        store.flush()
        out = python(
            """
            import sys, pystore
            try:
                pystore.open(sys.argv[1])
            except pystore.StoreLocked as e:
                print(e.pid)
            with pystore.Reader(sys.argv[1]) as reader:
                print(len(list(reader.messages())))
            """,
            store_path,
        )
        assert out.split() == [str(os.getpid()), "7"]
        assert store.put("T", b"x", queue=0).queue_offset == 7


def test_lock_ends_with_its_process(store_path, small):
    """The lock of a process that died is nobody's."""
    python(
        """
        import json, os, sys, pystore
        store = pystore.open(sys.argv[1], **json.loads(sys.argv[2]))
        store.put("T", b"x", queue=0)
        os._exit(0)
        """,
        store_path,
        json.dumps(small),
    )
    assert (store_path / "abort").exists()
    with pystore.open(store_path) as store:
        assert store.report.mode is RecoveryMode.ABNORMAL
        assert len(list(store.messages())) == 1


# ---- closing ----


def test_close_twice(store_path, small):
    """A second close does nothing."""
    store = pystore.open(store_path, **small)
    store.close()
    store.close()


def test_exit_closes_after_an_error(store_path, small):
    """An exception in the with block still closes, and passes through."""
    with pytest.raises(KeyError), pystore.open(store_path, **small) as store:
        raise KeyError("mine")
    assert store.closed
    pystore.open(store_path).close()


CALLS = {
    "put": lambda s: s.put("T", b"x"),
    "put of a new topic": lambda s: s.put("new", b"x"),
    "put rare": lambda s: s.put("T", b"x", reconsume_times=1),
    "put delayed": lambda s: s.put("T", b"x", delay_level=1),
    "put_many": lambda s: s.put_many("T", [b"x"]),
    "put_batch": lambda s: s.put_batch("T", b""),
    "read": lambda s: s.read("T", 0, 0),
    "log": lambda s: s.log(),
    "messages": lambda s: list(s.messages()),
    "message": lambda s: s.message(0),
    "query": lambda s: s.query("T", "k"),
    "units": lambda s: s.units("T", 0),
    "offset_at": lambda s: s.offset_at("T", 0, 0),
    "range": lambda s: s.range("T", 0),
    "queues": lambda s: s.queues(),
    "info": lambda s: s.info(),
    "flush": lambda s: s.flush(),
    "wait_flushed": lambda s: s.wait_flushed(0),
    "clean": lambda s: s.clean(),
    "refresh": lambda s: s.refresh(),
    "follow": lambda s: next(s.follow("T", 0, 0)),
    "with": lambda s: s.__enter__(),
    "arrow": lambda s: s.arrow("T", 0).read_all(),
}


@pytest.mark.parametrize("name", CALLS)
def test_use_after_close(store_path, small, name):
    """Every call on a closed store raises StoreClosed."""
    with pystore.open(store_path, **small) as store:
        fill(store, 1, keys="k")
    with pytest.raises(pystore.StoreClosed):
        CALLS[name](store)


def test_use_after_fork(store_path, small):
    """In a child after fork every call raises UsedAfterFork; the parent goes on."""
    with pystore.open(store_path, **small) as store:
        fill(store, 1, keys="k")
        child = os.fork()
        if child == 0:
            wrong = 1
            try:
                wrong = 0
                for call in CALLS.values():
                    try:
                        call(store)
                        wrong += 1
                    except pystore.UsedAfterFork:
                        pass
                store.close()
                with pystore.Reader(store_path) as reader:
                    wrong += len(list(reader.messages())) != 1
            except BaseException:
                wrong = 99
            finally:
                os._exit(wrong)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.put("T", b"after", queue=0).queue_offset == 1
    with pystore.open(store_path) as store:
        assert store.report.mode is RecoveryMode.NORMAL
        assert len(list(store.messages())) == 2


def test_closing_forgets_no_message(store_path, small):
    """After a clean close the files alone hold everything: log, queues and index agree."""
    with pystore.open(store_path, **small) as store:
        for i in range(400):
            store.put("T", b"%d" % i, queue=i % 3, keys=f"k{i}", tags="t")
    log = list(purecodec.iter_log(store_path / "commitlog"))
    assert len(log) == 400
    for (topic, queue), units in purecodec.derive_units(iter(log)).items():
        assert list(purecodec.iter_units(store_path / "consumequeue" / topic / str(queue))) == units
    for place, record in log:
        key = record.property_map["KEYS"]
        assert place in purecodec.query_index(store_path / "index", 512, "T", key)


def test_garbage_collected_store_is_closed(store_path, small):
    """A store that is dropped without close lets go of the lock, and nothing is lost."""
    import gc
    import warnings

    store = pystore.open(store_path, **small)
    fill(store, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del store
        gc.collect()
    with pystore.open(store_path) as store:
        assert len(list(store.messages())) == 3


def test_progress_is_told(store_path, small):
    """A progress callback is called with phases and ends with the work done."""
    with pystore.open(store_path, **small) as store:
        fill(store, 100, size=10_000)
    (store_path / "abort").write_text("")
    (store_path / "checkpoint").write_bytes(bytes(4096))
    told = []
    with pystore.open(store_path, progress=lambda *facts: told.append(facts)) as store:
        assert len(list(store.messages())) == 100
    assert told
    assert all(isinstance(p, str) and 0 <= done <= total for p, done, total in told if total)


def test_error_in_progress_leaves_the_store(store_path, small):
    """An exception out of the progress callback ends opening, and the next open works."""
    with pystore.open(store_path, **small) as store:
        fill(store, 100, size=10_000)

    def stop(*facts):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pystore.open(store_path, progress=stop)
    with pystore.open(store_path) as store:
        assert len(list(store.messages())) == 100


# ---- recovery ----


def crashed(path):
    """Makes a closed store look crashed with nothing synced: abort is there, checkpoint zeros."""
    (path / "abort").write_text("1")
    (path / "checkpoint").write_bytes(bytes(4096))


@pytest.mark.parametrize(
    ("what", "abnormal"),
    [
        ("consumequeue", False),
        ("consumequeue", True),
        ("consumequeue/T/0", True),
        ("index", False),
        ("index", True),
        ("checkpoint", False),
    ],
)
def test_derived_files_are_made_again(store_path, small, what, abnormal):
    """Queues, index and checkpoint that were lost are rebuilt from the log."""
    with pystore.open(store_path, **small) as store:
        for i in range(700):
            store.put("TU"[i % 2], b"%d" % i + bytes(3000), queue=i % 3, keys=f"k{i}")
        before = storeview.view(store)
    if abnormal:
        crashed(store_path)
    target = store_path / what
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    with pystore.open(store_path) as store:
        assert storeview.view(store) == before
        for i in range(0, 700, 13):
            found = store.query("TU"[i % 2], f"k{i}")
            assert [bytes(m.body).rstrip(b"\0") for m in found] == [b"%d" % i]


def test_torn_tail_is_cut(store_path, small):
    """A record cut off in the middle goes, all before it stays, and the report names the bytes."""
    with pystore.open(store_path, **small) as store:
        puts = fill(store, 20, size=100, keys="k")
    crashed(store_path)
    last = puts[-1]
    with (store_path / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(last.physical_offset + last.size // 2)
        log.write(bytes(last.size))
    with pystore.open(store_path) as store:
        report = store.report
        assert (report.mode, report.log_max) == (RecoveryMode.ABNORMAL, last.physical_offset)
        assert 0 < report.bytes_cut <= last.size
        cut = [i for i in report.items if i.action is pystore.Action.CUT and i.what == "commitlog"]
        assert [i.start for i in cut] == [last.physical_offset]
        assert store.range("T", 0) == (0, 19)
        assert len(store.query("T", "k")) == 19
        assert store.put("T", b"again", queue=0).physical_offset == last.physical_offset
    assert json.loads(json.dumps(report.as_dict()))["mode"] == "ABNORMAL"


def test_offsets_past_the_end_are_set_back_after_a_crash(store_path, small, caplog):
    """The tail of the log is lost, the offsets are not: a group would skip what is put next. An
    offset that is right stays, also where the queue's files have to be made again."""
    with pystore.open(store_path, **small) as store:
        for i in range(12):
            last = store.put("T", b"%d" % i, queue=i % 2)
        for group, queue, offset in (("g", 0, 6), ("g", 1, 6), ("slow", 1, 4), ("far", 0, 90)):
            store.metadata.offsets.commit(group, "T", queue, offset)
        store.metadata.offsets.commit("g", "Gone", 0, 3)
        store.metadata.delay_offsets.commit(3, 7)
    crashed(store_path)
    shutil.rmtree(store_path / "consumequeue" / "T" / "0")
    with (store_path / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(last.physical_offset)
        log.write(bytes(last.size))
    with pystore.open(store_path, **small) as store:
        assert (store.range("T", 0), store.range("T", 1)) == ((0, 6), (0, 5))
        kept = {(o.group, o.topic, o.queue): o.offset for o in store.metadata.offsets.all()}
        assert kept == {
            ("g", "T", 0): 6, ("g", "T", 1): 5, ("slow", "T", 1): 4, ("far", "T", 0): 6,
            ("g", "Gone", 0): 0,
        }  # fmt: skip
        assert store.metadata.delay_offsets.get(3) == 0
        assert store.report.offsets_clamped == 4
        items = [i for i in store.report.items if i.action is pystore.Action.CLAMPED]
        assert ("config/consumerOffset.json", 5, 6, 1) in [
            (i.what, i.start, i.end, i.records) for i in items
        ]
    assert caplog.text.count("set back") == 4
    offsets = json.loads((store_path / "config/consumerOffset.json").read_text())["offsetTable"]
    assert offsets["T@g"] == {"0": 6, "1": 5}


def test_offsets_past_the_end_are_set_back_after_a_clean_exit(store_path, small, caplog):
    """The files of config/ may be another store's, or an older log was put beside them."""
    with pystore.open(store_path, **small) as store:
        store.put("T", b"x", queue=0)
        for group, topic, queue, offset in (
            ("g", "T", 0, 90), ("done", "T", 0, 1), ("g", "T", 1, 3),
            ("CID_RMQ_SYS_REVIVE_GROUP", "T", 0, 5), ("CID_RMQ_SYS_REVIVE_GROUP", "T", 2, 0),
        ):  # fmt: skip
            store.metadata.offsets.commit(group, topic, queue, offset)
        store.metadata.delay_offsets.commit(2, 8)
    with pystore.open(store_path, **small) as store:
        kept = {(o.group, o.queue): o.offset for o in store.metadata.offsets.all()}
        # POP keeps the last record that is done: none is, in a queue that is not there.
        revive = {("CID_RMQ_SYS_REVIVE_GROUP", 0): 0}
        assert kept == {("g", 0): 1, ("done", 0): 1, ("g", 1): 0} | revive
        assert store.metadata.delay_offsets.get(2) == 0
        assert store.report.offsets_clamped == 5
    told = "group g stood past the end of T: set back queue 0 from 90 to 1, queue 1 from 3 to 0"
    assert told in caplog.text
    assert "delay level 2 stood past the end of its queue: set back from 8 to 0" in caplog.text
    with pystore.open(store_path, **small) as store:
        assert store.report.offsets_clamped == 0


@pytest.mark.parametrize("clean", [True, False])
def test_config_without_its_log_hides_no_new_message(store_path, small, clean):
    with pystore.open(store_path, **small) as store:
        for _ in range(5):
            store.put("T", b"old", queue=0)
        store.metadata.offsets.commit("g", "T", 0, 5)
    shutil.rmtree(store_path / "commitlog")
    shutil.rmtree(store_path / "consumequeue")
    if not clean:
        crashed(store_path)
    with pystore.open(store_path, **small) as store:
        assert store.put("T", b"new", queue=0).queue_offset == 0
        assert store.metadata.offsets.get("g", "T", 0) == 0


@pytest.mark.parametrize("kind", [pystore.Reader, pystore.open])
@pytest.mark.parametrize("clean", [True, False])
def test_queues_without_any_segment_refuse(store_path, small, clean, kind, tmp_path):
    """The log's folder is not mounted, or another one is named: nothing is changed."""
    with pystore.open(store_path, **small) as store:
        store.put("T", b"old", queue=0)
        store.metadata.offsets.commit("g", "T", 0, 1)
    (store_path / "commitlog").rename(tmp_path / "away")
    if not clean:
        crashed(store_path)
    with pytest.raises(pystore.MissingSegment, match="commitlog"):
        kind(store_path, **small)
    shutil.rmtree(store_path / "commitlog", ignore_errors=True)
    (tmp_path / "away").rename(store_path / "commitlog")
    with pystore.open(store_path, **small) as store:
        assert [bytes(m.body) for m in store.read("T", 0, 0)] == [b"old"]
        assert store.metadata.offsets.get("g", "T", 0) == 1


def test_missing_config_of_a_store_with_messages_is_named(store_path, small, caplog):
    with pystore.open(store_path, **small) as store:
        store.put("T", b"old", queue=0)
    shutil.rmtree(store_path / "config")
    shutil.rmtree(store_path / "meta")
    with pystore.open(store_path, **small) as store:
        named = {item.what for item in store.report.items if item.action is pystore.Action.SKIPPED}
    assert named == {"topics.json", "subscriptionGroup.json", "consumerOffset.json",
                     "delayOffset.json"}  # fmt: skip
    assert "config/consumerOffset.json is missing, and the log has messages" in caplog.text


def test_first_message_of_a_delay_level_is_delivered_however_far_its_progress_is(store_path, small):
    with pystore.open(store_path, **small) as store:
        due = hosting.deliver_due(store, 1, 7, now_ms=1)
        assert due.offset == 0
        store.put("T", b"late", queue=0, delay_level=1)
        done = hosting.deliver_due(store, 1, due.offset, now_ms=1 << 50)
        assert (done.delivered, store.range("T", 0)) == (1, (0, 1))


def test_old_records_after_the_end_stay_dead(store_path, small):
    """Records of an earlier run that stand after the end of the log do not come back: what was
    stored after them says so."""
    with pystore.open(store_path, **small) as store:
        for i in range(20):
            store.put("T", b"old%02d" % i, queue=0)
    log = store_path / "commitlog" / f"{0:020d}"
    old = log.read_bytes()
    shutil.rmtree(store_path)
    time.sleep(0.01)  # another millisecond
    with pystore.open(store_path, **small) as store:
        ends = [p.physical_offset + p.size for p in (
            store.put("T", b"new%02d" % i, queue=0) for i in range(10)
        )]  # fmt: skip
    crashed(store_path)
    with log.open("r+b") as out:  # as Java leaves it, which does not erase what it cuts
        out.seek(ends[9] + 20)
        out.write(old[ends[9] + 20 : 8192])
    with pystore.open(store_path) as store:
        got = [bytes(m.body) for m in store.messages()]
    assert got == [b"new%02d" % i for i in range(10)]


def test_flipped_topic_does_not_refuse(store_path, small):
    """A byte flipped in a topic, which no sum covers, costs one message at most."""
    with pystore.open(store_path, **small) as store:
        puts = fill(store, 20, keys="k")
    crashed(store_path)
    raw = (store_path / "commitlog" / f"{0:020d}").read_bytes()[: puts[11].physical_offset]
    at = raw.rindex(b"\x01T\x00\x07KEYS")
    with (store_path / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(at + 1)
        log.write(b"U")
    with pystore.open(store_path) as store:
        expected = [b"%d" % i for i in range(20) if i != 10]
        assert [bytes(m.body) for m in everything(store, "T", 0)] == expected
        assert store.put("T", b"x", queue=0).queue_offset >= 19
    with pystore.open(store_path) as store:
        assert len(list(store.messages())) == 21


def test_units_behind_the_log_are_cut(store_path, small):
    """Queue units that point beyond the end of the log are taken back."""
    with pystore.open(store_path, **small) as store:
        puts = fill(store, 20)
    queue = store_path / "consumequeue" / "T" / "0" / f"{0:020d}"
    with queue.open("r+b") as units:
        units.seek(20 * 20)
        for i in range(5):
            at = puts[-1].physical_offset + puts[-1].size * (i + 1)
            units.write(at.to_bytes(8, "big") + (100).to_bytes(4, "big") + bytes(8))
    with pystore.Reader(store_path) as reader:
        assert reader.range("T", 0) == (0, 20)
    with pystore.open(store_path) as store:
        assert store.range("T", 0) == (0, 20)
        assert store.report.units_cut == 5
        assert store.put("T", b"x", queue=0).queue_offset == 20


# ---- retention ----


def test_expired_segments_go(store_path, small):
    """Files older than fileReservedTime go, oldest first, never the last; ranges follow."""
    with pystore.open(store_path, **small) as store:
        puts = fill(store, 60, size=100_000, keys="k")
        files = sorted((store_path / "commitlog").iterdir())
        old = time.time() - 73 * HOUR_S
        for path in files[:2]:
            os.utime(path, (old, old))
        dry = store.clean(dry_run=True)
        assert (dry.log_files, dry.bytes) == (2, 2 << 20)
        assert store.info().log_min == 0
        done = store.clean()
        assert (done.log_files, done.bytes, done.log_min) == (2, 2 << 20, 2 << 20)
        left = [p for p in puts if p.physical_offset >= 2 << 20]
        assert store.range("T", 0) == (left[0].queue_offset, 60)
        assert len(store.query("T", "k")) == len(left)
        assert [m.physical_offset for m in store.messages()] == [p.physical_offset for p in left]
    assert not files[0].exists()
    with pystore.open(store_path) as store:
        assert store.info().log_min == 2 << 20
        assert store.range("T", 0) == (left[0].queue_offset, 60)
        assert store.put("T", b"x", queue=0).queue_offset == 60


def test_unexpired_segments_stay(store_path, small):
    """A round of retention deletes nothing that is younger than fileReservedTime."""
    with pystore.open(store_path, **small) as store:
        fill(store, 60, size=100_000)
        assert store.clean().log_files == 0
        assert store.info().log_min == 0


def test_retention_stops_at_the_first_that_stays(store_path, small):
    """An expired file after one that stays is kept: the log has no holes."""
    with pystore.open(store_path, **small) as store:
        fill(store, 60, size=100_000)
        files = sorted((store_path / "commitlog").iterdir())
        old = time.time() - 73 * HOUR_S
        os.utime(files[2], (old, old))
        assert store.clean().log_files == 0


def test_last_segment_stays(store_path, small):
    """The file that is being written stays, whatever its age and however often one asks."""
    with pystore.open(store_path, **small, deleteFileBatchMax=100) as store:
        puts = fill(store, 60, size=100_000)
        for _ in range(5):
            store.clean(immediate=True, now_ms=int((time.time() + 1e6) * 1000))
        left = list(store.messages())
        assert left
        assert left[-1].physical_offset == puts[-1].physical_offset
        assert store.put("T", b"x", queue=0).queue_offset == 60


def test_queue_of_deleted_messages_only(store_path, small):
    """A queue whose messages are all deleted is empty at its end, and goes on there."""
    with pystore.open(store_path, **small) as store:
        fill(store, 700, topic="old")
        fill(store, 60, size=100_000)
        store.clean(immediate=True)
        assert store.info().log_min > 0
        assert store.range("old", 0) == (700, 700)
        assert store.put("old", b"x", queue=0).queue_offset == 700
        assert store.range("old", 0) == (700, 701)
    with pystore.open(store_path) as store:
        assert store.range("old", 0) == (700, 701)
        assert [bytes(m.body) for m in store.read("old", 0, 700)] == [b"x"]


def test_queues_of_a_log_that_begins_later(store_path, small):
    """Queues lost after retention are rebuilt at the offsets of the records, pre-filled before."""
    with pystore.open(store_path, **small) as store:
        fill(store, 700, topic="many", size=3000)
        fill(store, 30, size=100_000)
        old = time.time() - 73 * HOUR_S
        os.utime(store_path / "commitlog" / f"{0:020d}", (old, old))
        assert store.clean().log_files == 1
        low, high = store.range("many", 0)
        assert 0 < low < high == 700
        assert low % 300
        before = storeview.view(store)
    shutil.rmtree(store_path / "consumequeue")
    crashed(store_path)
    with pystore.Reader(store_path, **small) as reader:
        assert reader.range("many", 0) == (low, high)
    with pystore.open(store_path, **small) as store:
        assert storeview.view(store) == before
        assert store.range("many", 0) == (low, high)
        first = store.read("many", 0, low, max_messages=1)[0]
        assert bytes(first.body).rstrip(b"\0") == b"%d" % low
    file = sorted((store_path / "consumequeue/many/0").iterdir())[0]
    assert int(file.name) == low * 20 // 6000 * 6000
    unit = file.read_bytes()[:20]
    assert unit == bytes(8) + (0x7FFFFFFF).to_bytes(4, "big") + bytes(8)


def test_many_topics(store_path, small):
    """Hundreds of topics open, close and come back."""
    with pystore.open(store_path, **small | {"mappedFileSizeConsumeQueue": 200}) as store:
        for i in range(300):
            store.put(f"topic{i}", b"%d" % i, queue=0)
        assert len(store.topics()) == 300
    with pystore.open(store_path) as store:
        assert [bytes(m.body) for m in store.read("topic277", 0, 0)] == [b"277"]
        assert store.info().queues == 300


def test_results_are_shown_by_what_they_say(store_path, small):
    """print() of where a message went, and of what a read met."""
    with pystore.open(store_path, **small) as store:
        put = store.put("t", b"x")
        assert (
            str(put)
            == repr(put)
            == f"PutResult(PUT_OK, queue=0, queue_offset=0, physical_offset=0, size={put.size})"
        )
        batch = store.read("t", put.queue, 0)
        assert str(batch.status) == f"{batch.status}" == "FOUND"
        assert f"{batch.status:d}" == "0"
        assert (str(store.report.mode), store.report.mode) == ("NEW", 0)


def test_a_result_can_be_pickled_compared_and_hashed(store_path, small):
    with pystore.open(store_path, **small) as store:
        first, second = store.put("orders", b"a"), store.put("orders", b"a")
    again = pickle.loads(pickle.dumps(first))
    assert again == first and hash(again) == hash(first) and again.message_id == first.message_id
    assert first != second and len({first, second, again}) == 2


@pytest.mark.parametrize("queue", [1 << 31, -(1 << 31) - 1, 1 << 70])
def test_a_queue_id_beyond_32_bits_is_refused(store_path, small, queue):
    with pystore.open(store_path, **small) as store:
        with pytest.raises(OverflowError):
            store.put("orders", b"a", queue=queue)
        assert store.put("orders", b"a").physical_offset == 0


def test_results_of_puts_leave_no_memory_behind(store_path, small):
    with pystore.open(store_path, **small) as store:
        kind = sys.getrefcount(pystore.PutResult)
        for _ in range(1000):
            store.put("orders", b"a", tags="t")
            with pytest.raises(MessageIllegal):
                store.put("orders", bytes(5 << 20))
        assert sys.getrefcount(pystore.PutResult) < kind + 100  # one a leaked result
