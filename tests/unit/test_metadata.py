"""Metadata: durable tables, upstream's files in both directions, nothing lost wherever it stops."""

from __future__ import annotations

import copy
import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
import threading

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pystore
from pystore import metadata
from pystore.errors import (
    BadArgument,
    DiskFull,
    Forbidden,
    NewerLayout,
    ReadOnly,
    RecordDamaged,
    StoreClosed,
    StoreIOError,
    StoreLocked,
    UsedAfterFork,
)
from pystore.files import javajson
from pystore.format.offset_blocks import offset_rows
from pystore.meta import _database, _offsets, configfiles
from pystore.metadata import DataVersion, Metadata, SubscriptionGroup, TopicConfig, system_topics
from pystore.settings import load

FILES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


def crash(meta):
    """Ends the use of it as a kill would: nothing is exported."""
    meta._release()


def fill(meta):
    """One of everything."""
    meta.topics.put(TopicConfig("orders", 8, 8, attributes={"message.type": "FIFO"}))
    meta.groups.put(SubscriptionGroup("bill", retry_max_times=3))
    meta.offsets.commit("bill", "orders", 0, 41)
    meta.offsets.commit("bill", "orders", 1, 39)
    meta.delay_offsets.commit(3, 120)


def content(meta):
    """All that the tables hold, without the versions."""
    parts = meta._state.parts.items()
    rows = {name: (dict(each.rows), each.extra) for name, each in parts}
    return copy.deepcopy((rows, meta._state.raw))


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(value if isinstance(value, bytes) else javajson.dumps(value))


def listing(folder):
    """Every file below with its content and time of change."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# ---- tables ----


def test_tables_outlive_the_process(root):
    """What a call put is there after a crash right after it."""
    meta = Metadata(root)
    fill(meta)
    before = content(meta)
    crash(meta)
    with Metadata(root) as again:
        assert content(again) == before
        assert again.topics.get("orders").attributes == {"message.type": "FIFO"}
        assert again.groups.get("bill").retry_max_times == 3
        assert again.offsets.get("bill", "orders", 1) == 39
        assert again.delay_offsets.all() == {3: 120}


def test_topics_are_listed_by_name_and_deleted(root):
    """A table has list, names, get, put, delete, in and len."""
    with Metadata(root) as meta:
        for name in ("b", "a", "%RETRY%g"):
            meta.topics.put(TopicConfig(name))
        assert [each.name for each in meta.topics.list()] == ["%RETRY%g", "a", "b"]
        assert meta.topics.delete("a") and not meta.topics.delete("a")
        assert "a" not in meta.topics and len(meta.topics) == 2
        assert meta.topics.get("a") is None
    with Metadata(root) as meta:
        assert meta.topics.names() == ["%RETRY%g", "b"]


@pytest.mark.parametrize("name", ["", "a@b", "a\0", "a\nb", "x" * 256, "\ud800", None])
def test_a_name_that_upstream_cannot_hold_is_refused(root, name):
    """Nothing is stored then."""
    with Metadata(root) as meta:
        with pytest.raises(BadArgument):
            meta.topics.put(TopicConfig(name))
        with pytest.raises(BadArgument):
            meta.offsets.commit(name, "t", 0, 1)
        with pytest.raises(BadArgument):
            meta.offsets.commit("g", name, 0, 1)
        assert len(meta.topics) == 0 and meta.offsets.all() == []


def test_a_value_that_upstream_cannot_hold_is_refused(root):
    """The member is named."""
    with Metadata(root) as meta:
        with pytest.raises(BadArgument, match="'perm' of 'a'"):
            meta.topics.put(TopicConfig("a", perm=2**31))
        with pytest.raises(BadArgument, match="'consumeEnable' of 'g'"):
            meta.groups.put(SubscriptionGroup("g", consume_enable=1))
        for bad in (-1, 2**63, True, "1", None):
            with pytest.raises(BadArgument, match="offset"):
                meta.offsets.commit("g", "t", 0, bad)
            with pytest.raises(BadArgument, match=r"queue|offset"):
                meta.offsets.commit("g", "t", bad, 2**63)
            with pytest.raises(BadArgument, match=r"level|offset"):
                meta.delay_offsets.commit(bad, -1)


def test_the_first_offsets_are_those_that_a_list_of_all_begins_with(root):
    with Metadata(root) as meta:
        with meta.batch():
            for n in range(60):
                meta.offsets.commit(f"g{n % 7}", ("t", "t-1", "tt", "T", "t%a")[n % 5], n % 4, n)
        for count in (0, 1, 17, 1000):
            found, total = meta.offsets.first(count)
            assert (found, total) == (meta.offsets.all()[:count], len(meta.offsets.all()))


def test_the_longest_names_have_room(root):
    """A retry topic of 255 bytes and its group are more than an LMDB key holds."""
    group = "g" * 248
    with Metadata(root) as meta:
        meta.topics.put(TopicConfig(f"%RETRY%{group}"))
        meta.offsets.commit(group, f"%RETRY%{group}", 65535, 2**63 - 1)
    with Metadata(root, readonly=True) as meta:
        assert meta.offsets.get(group, f"%RETRY%{group}", 65535) == 2**63 - 1


# ---- offsets ----


def test_an_offset_never_goes_back_by_itself(root):
    """An older commit that comes late changes nothing; a reset does."""
    with Metadata(root) as meta:
        assert meta.offsets.commit("g", "t", 0, 10)
        assert not meta.offsets.commit("g", "t", 0, 9)
        assert not meta.offsets.commit("g", "t", 0, 10)
        assert meta.offsets.get("g", "t", 0) == 10
        assert meta.offsets.commit("g", "t", 0, 3, reset=True)
        assert meta.delay_offsets.commit(1, 5) and not meta.delay_offsets.commit(1, 4)
        assert meta.delay_offsets.commit(1, 4, reset=True)
    with Metadata(root) as meta:
        assert meta.offsets.get("g", "t", 0) == 3
        assert meta.delay_offsets.get(1) == 4


NAMES = st.sampled_from(["a", "b", "%RETRY%a", "c d"])
COMMITS = st.tuples(NAMES, NAMES, st.integers(0, 3), st.integers(0, 50), st.booleans())


@settings(max_examples=40)
@given(st.lists(COMMITS, max_size=30))
def test_offsets_behave_as_a_dictionary_that_only_grows(tmp_path_factory, commits):
    """Any order of commits and resets leaves what a plain model has, in LMDB and in the file."""
    root, model = tmp_path_factory.mktemp("store"), {}
    with Metadata(root, sync=False) as meta:
        for group, topic, queue, offset, reset in commits:
            key = (group, topic, queue)
            moves = key not in model or offset > model[key] or (reset and offset != model[key])
            assert meta.offsets.commit(group, topic, queue, offset, reset=reset) is moves
            if moves:
                model[key] = offset
    for meta in (Metadata(root, readonly=True), Metadata(root)):
        with meta:
            assert {(o.group, o.topic, o.queue): o.offset for o in meta.offsets.all()} == model
    if model:
        table = json.loads((root / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
        flat = {(pair, int(q)): n for pair, queues in table.items() for q, n in queues.items()}
        assert flat == {(f"{t}@{g}", q): n for (g, t, q), n in model.items()}


def test_offsets_are_listed_and_deleted_by_group_and_topic(root):
    """Deleting needs a group or a topic."""
    with Metadata(root) as meta:
        for group in ("g1", "g2"):
            for topic in ("t1", "t2"):
                meta.offsets.commit(group, topic, 0, 1)
        assert [o.topic for o in meta.offsets.all(group="g1")] == ["t1", "t2"]
        assert [o.group for o in meta.offsets.all(topic="t2")] == ["g1", "g2"]
        assert meta.offsets.delete(group="g1", topic="t1") == 1
        assert meta.offsets.delete(group="g1") == 1
        assert meta.offsets.delete(topic="t9") == 0
        with pytest.raises(BadArgument):
            meta.offsets.delete()
    with Metadata(root) as meta:
        assert [(o.group, o.topic) for o in meta.offsets.all()] == [("g2", "t1"), ("g2", "t2")]


# ---- transactions ----


def test_a_batch_is_one_transaction(root):
    """However many changes are inside."""
    with Metadata(root) as meta:
        before = meta._env.info()["last_txnid"]
        with meta.batch() as same:
            assert same is meta
            fill(meta)
        assert meta._env.info()["last_txnid"] == before + 1


def test_a_batch_that_raises_changes_nothing(root):
    """Neither on the disk nor in memory."""
    with Metadata(root) as meta:
        fill(meta)
        before, version = content(meta), meta.version("offsets")
        with pytest.raises(KeyError), meta.batch():
            meta.topics.delete("orders")
            meta.offsets.commit("bill", "orders", 0, 1000)
            meta.offsets.commit("bill", "other", 0, 1)
            raise KeyError
        assert content(meta) == before and meta.version("offsets") == version
    with Metadata(root) as meta:
        assert content(meta) == before


def test_a_full_map_is_a_named_error(root, monkeypatch):
    """What was there stays, and what is small still fits."""
    monkeypatch.setattr(_database, "MAP_SIZE", 1 << 20)
    with Metadata(root) as meta:
        fill(meta)
        before = content(meta)
        with pytest.raises(DiskFull), meta.batch():
            for number in range(5000):
                meta.topics.put(TopicConfig(f"topic-{number}"))
        assert content(meta) == before
        meta.topics.put(TopicConfig("small"))


# ---- versions ----


def test_versions_compare_as_upstreams():
    """State version before counter before time."""
    assert DataVersion(1, 0, 0) > DataVersion(0, 9, 9) > DataVersion(0, 8, 10)


def test_each_change_is_a_new_version(root):
    """Of topics and groups every one, of offsets every so many
    (docs/internals/format.md#config-files)."""
    steps = {"consumerOffsetUpdateVersionStep": 3, "delayOffsetUpdateVersionStep": 2}
    with Metadata(root, load(None, steps)) as meta:
        for number in range(1, 7):
            meta.topics.put(TopicConfig(f"t{number}"))
            meta.topics.put(TopicConfig(f"t{number}"))  # nothing new
            meta.offsets.commit("g", "t", 0, number)
            meta.delay_offsets.commit(1, number)
        counters = [meta.version(name).counter for name in ("topics", "offsets", "delays")]
        assert counters == [6, 2, 3]
        assert meta.version("topics").timestamp > 1_600_000_000_000


# ---- built-in topics ----


def test_built_in_topics_are_the_java_brokers(golden):
    """Those of a 5.3.3 broker with the same cluster and name, member for member."""
    wanted = system_topics(load(None, {"brokerName": "broker-a"}))
    with Metadata(golden("normal-exit"), readonly=True) as meta:
        assert [meta.topics.get(each.name) for each in wanted] == wanted
        rest = set(meta.topics.names()) - {each.name for each in wanted}
        assert all("golden" in name for name in rest)


def test_built_in_topics_depend_on_the_settings():
    """A topic whose service is off is not made, or has no rights."""
    off = dict.fromkeys(
        ["autoCreateTopicEnable", "timerWheelEnable", "clusterTopicEnable", "brokerTopicEnable"],
        False,
    )
    chosen = {"traceTopicEnable": True, "brokerClusterName": "c", "brokerName": "b"}
    rows = {each.name: each for each in system_topics(load(None, off | chosen))}
    assert "TBW102" not in rows and "rmq_sys_wheel_timer" not in rows
    assert (rows["c"].perm, rows["b"].perm) == (1, 1)
    assert {"RMQ_SYS_TRACE_TOPIC", "c_REPLY_TOPIC", "rmq_sys_SYNC_BROKER_MEMBER_b"} < set(rows)


def test_built_in_topics_are_made_once(root, golden):
    """A store that has topics has those of its own broker, whose name may be another."""
    with Metadata(root) as meta:
        assert "TBW102" in meta.ensure_system_topics(load())
        assert meta.ensure_system_topics(load(None, {"brokerName": "other"})) == []
    with Metadata(golden("killed")) as meta:
        assert meta.ensure_system_topics(load()) == []


def test_a_topic_is_made_as_a_broker_would(root):
    """perm 6, defaultTopicQueueNums queues or as many as the queue id needs."""
    with Metadata(root, load(None, {"defaultTopicQueueNums": 4})) as meta:
        assert meta.ensure_topic("a") == TopicConfig("a", 4, 4, 6)
        assert meta.ensure_topic("b", 9) == TopicConfig("b", 10, 10, 6)
        assert meta.ensure_topic("%RETRY%g") == TopicConfig("%RETRY%g", 1, 1, 6)
        assert meta.ensure_topic("SCHEDULE_TOPIC_XXXX", 2).write_queue_nums == 18
        assert meta.version("topics").counter == 4
        meta.ensure_topic("a", 3)
        assert meta.version("topics").counter == 4
        assert meta.ensure_topic("a", 6).read_queue_nums == 7
        for bad in (-1, 65536):
            with pytest.raises(BadArgument):
                meta.ensure_topic("a", bad)


# ---- one writer ----


def test_a_second_writer_is_refused_in_the_same_process(root):
    """And the first one is none the worse."""
    with Metadata(root) as meta:
        with pytest.raises(StoreLocked):
            Metadata(root)
        fill(meta)
        assert other_process(root) == "StoreLocked"


def other_process(root):
    code = (
        "import sys\nfrom pystore.metadata import Metadata\n"
        "try:\n    Metadata(sys.argv[1])\nexcept Exception as e:\n    print(type(e).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, root], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_second_process_is_refused(root):
    """Until the first one closes."""
    meta = Metadata(root)
    assert other_process(root) == "StoreLocked"
    meta.close()
    assert other_process(root) == ""


def test_a_child_may_not_use_its_parents_metadata(root):
    """It gets a named error, may close it, and the parent goes on."""
    with Metadata(root) as meta:
        fill(meta)
        pid = os.fork()
        if pid == 0:
            try:
                for use in (lambda: meta.offsets.commit("g", "t", 0, 1), meta.topics.list):
                    with pytest.raises(UsedAfterFork):
                        use()
                meta.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        meta.offsets.commit("bill", "orders", 0, 42)
        assert other_process(root) == "StoreLocked"


def test_a_closed_one_says_so(root):
    """Closing twice is not a mistake."""
    meta = Metadata(root)
    meta.close()
    meta.close()
    uses = (
        meta.topics.list,
        lambda: meta.topics.put(TopicConfig("a")),
        lambda: meta.offsets.get("g", "t", 0),
        meta.export_json,
        meta.maybe_export,
        meta.import_json,
        meta.refresh,
    )
    for use in uses:
        with pytest.raises(StoreClosed):
            use()


# ---- readers ----


def test_a_reader_sees_a_writers_tables_and_changes_nothing(root):
    """Also in the writer's own process; later changes after refresh()."""
    with Metadata(root) as meta:
        fill(meta)
        with Metadata(root, readonly=True) as reader:
            assert content(reader) == content(meta)
            meta.offsets.commit("bill", "orders", 0, 50)
            assert reader.offsets.get("bill", "orders", 0) == 41
            before = listing(root)
            reader.refresh()
            assert reader.offsets.get("bill", "orders", 0) == 50
            for change in (
                lambda: reader.offsets.commit("g", "t", 0, 1),
                lambda: reader.topics.delete("orders"),
                lambda: reader.ensure_topic("a"),
                lambda: reader.ensure_system_topics(load()),
                reader.import_json,
                reader.export_json,
                reader.maybe_export,
            ):
                with pytest.raises(ReadOnly):
                    change()
            reader.close()
            assert listing(root) == before


def test_a_reader_beside_a_busy_writer_sees_whole_commits(root):
    """Both offsets of a batch move together, and never go back."""
    stop = threading.Event()

    def work(meta):
        number = 0
        while not stop.is_set():
            number += 1
            with meta.batch():
                meta.offsets.commit("g", "a", 0, number)
                meta.topics.put(TopicConfig(f"t{number % 50}", perm=number))
                meta.offsets.commit("g", "b", 0, number)

    with Metadata(root, sync=False) as meta:
        thread = threading.Thread(target=work, args=(meta,))
        thread.start()
        try:
            last = 0
            with Metadata(root, readonly=True) as reader:
                reads = 0
                while reads < 60 or not last:
                    reads += 1
                    reader.refresh()
                    a, b = reader.offsets.get("g", "a", 0), reader.offsets.get("g", "b", 0)
                    if reader.report == ():
                        assert a == b and (a or 0) >= last
                        last = a or 0
        finally:
            stop.set()
            thread.join()
        assert last > 0


def test_a_reader_needs_no_meta_folder(golden):
    """A Java broker's folder is read from its config files, and left as it is."""
    path = golden("killed")
    before = listing(path / "config")
    with Metadata(path, readonly=True) as reader:
        assert reader.topics.get("golden2_keys").read_queue_nums == 4
        assert reader.offsets.get("golden2-group", "golden2_plain", 3) == 23
        assert reader.delay_offsets.get(3) == 3
        assert {event.action for event in reader.report} == {"imported"}
    assert listing(path / "config") == before
    assert not (path / "meta").exists()


def test_a_reader_of_nothing_finds_nothing(root):
    """No folder is made for it."""
    with Metadata(root, readonly=True) as reader:
        assert reader.topics.list() == [] and reader.report == ()
    assert not root.exists()


# ---- the environment ----


def test_a_newer_layout_is_refused_untouched(root):
    """By writers and readers; another version of this library can read it."""
    Metadata(root).close()
    with lmdb.open(str(root / "meta"), max_dbs=16) as env, env.begin(write=True) as txn:
        txn.put(b"schema", b"2", db=env.open_db(b"info", txn=txn))
    for readonly in (False, True):
        before = (root / "meta" / "data.mdb").read_bytes()
        with pytest.raises(NewerLayout, match="layout 2") as caught:
            Metadata(root, readonly=readonly)
        assert caught.value.where == str(root / "meta")
        assert (root / "meta" / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("damage", [b"", b"x" * 8192, b"\0" * 8192])
def test_a_damaged_environment_gives_way_to_the_config_files(root, damage, caplog):
    """They are seconds older. A reader leaves the database alone, a writer moves it aside."""
    with Metadata(root) as meta:
        fill(meta)
    data = root / "meta" / "data.mdb"
    data.write_bytes(damage)
    with Metadata(root, readonly=True) as reader:
        assert reader.offsets.get("bill", "orders", 0) == 41
        assert damage == b"" or reader.report[0].file == "meta"
    with Metadata(root) as meta:
        assert meta.offsets.get("bill", "orders", 0) == 41
        assert damage == b"" or (meta.report[0].file, meta.report[0].action) == ("meta", "aside")
    if damage:
        assert "the config files count" in caplog.text
        (kept,) = (root / "aside").iterdir()
        assert (kept / "0001" / "data.mdb").read_bytes() == damage
        assert json.loads((kept / "manifest.jsonl").read_text())["file"] == "meta"


def test_a_damaged_database_of_another_process_is_left_alone(root):
    """Whoever holds it may write; nothing moves."""
    with Metadata(root) as meta:
        fill(meta)
    (root / "meta" / "data.mdb").write_bytes(b"x" * 8192)
    held = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", held, root / "meta" / "owner"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(StoreLocked):
            Metadata(root)
        other.communicate("")
    assert not (root / "aside").exists()


def test_a_damaged_row_is_named(root):
    """Nothing but a named error comes of a row that nobody here has written."""
    with Metadata(root) as meta:
        fill(meta)
    for table, key, value in (
        (b"topics", b"x", b"{}"),
        (b"topics", b"x", b"\xff"),
        (b"offsets", b"x" * 20, b"12345678"),
        (b"offsets", b"x", b""),
        (b"delays", b"x", b""),
        (b"info", b"print/topics.json", b'{"a":1}'),
        (b"info", b"version/topics", b"[]"),
        (b"info", b"schema", b"one"),
    ):
        with lmdb.open(str(root / "meta"), max_dbs=16) as env:
            db = env.open_db(table)
            with env.begin(write=True) as txn:
                old = txn.get(key, db=db)
                txn.put(key, value, db=db)
            with env.begin(write=True) as txn:
                pass
        with pytest.raises(RecordDamaged):
            _database.read_copy(root / "meta")
        with lmdb.open(str(root / "meta"), max_dbs=16) as env, env.begin(write=True) as txn:
            db = env.open_db(table, txn=txn)
            _ = txn.delete(key, db=db) if old is None else txn.put(key, old, db=db)
    Metadata(root).close()


# ---- upstream's files ----


@pytest.mark.parametrize("file", ["consumerOrderInfo.json", "messageRequestMode.json"])
def test_what_a_service_wrote_since_the_store_was_opened_is_not_undone(root, file):
    """By an export or by the close: the database only has what the open found."""
    path = root / "config" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b'{"table":{"a":{}}}')
    with Metadata(root) as meta:
        path.write_bytes(b'{"table":{"b":{}}}')
        meta.maybe_export(0)
        assert path.read_bytes() == b'{"table":{"b":{}}}'
    assert path.read_bytes() == b'{"table":{"b":{}}}'
    with Metadata(root) as meta:
        assert meta._state.raw[file] == b'{"table":{"b":{}}}'


@pytest.mark.parametrize("name", ["normal-exit", "killed"])
def test_a_golden_store_survives_both_directions(name, golden, tmp_path):
    """Import, export, import: equal; and the broker's own files are left alone meanwhile."""
    path = golden(name)
    before = listing(path / "config")
    with Metadata(path) as meta:
        assert sorted(event.file for event in meta.report if event.action == "imported") == sorted(
            [*FILES, "consumerFilter.json", "consumerOrderInfo.json"]
        )
        meta.export_json(tmp_path / "out")
        with Metadata(tmp_path / "other") as other:
            other.import_json(tmp_path / "out")
            assert other._state.parts == meta._state.parts
            assert other._state.raw == meta._state.raw
        assert meta.maybe_export(0) == []
    assert listing(path / "config") == before
    for file in FILES:
        ours = json.loads((tmp_path / "out" / file).read_bytes())
        theirs = javajson.loads(before[file][0])
        for value in (ours, theirs):  # upstream lists a group's topics in the order of a hash map
            for topics in value.get("groupTopicMap", {}).values():
                topics.sort()
        assert ours == theirs


MEMBERS = st.dictionaries(
    st.text(min_size=1).filter(lambda name: name not in {"", "topicName", "groupName"}),
    st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers()),
    max_size=3,
)
ROW_NAMES = st.text(st.characters(codec="utf-8", exclude_characters="@"), max_size=12)
INTS = st.integers(-(2**31), 2**31 - 1)
TOPICS = st.builds(
    TopicConfig,
    name=ROW_NAMES,
    read_queue_nums=INTS,
    write_queue_nums=INTS,
    perm=INTS,
    topic_filter_type=st.text(),
    topic_sys_flag=INTS,
    order=st.booleans(),
    attributes=st.dictionaries(st.text(), st.text(), max_size=2),
)
GROUPS = st.builds(
    SubscriptionGroup,
    name=ROW_NAMES,
    consume_enable=st.booleans(),
    retry_max_times=INTS,
    broker_id=st.integers(-(2**63), 2**63 - 1),
    group_retry_policy=MEMBERS,
    subscription_data_set=st.none() | st.lists(MEMBERS, max_size=2).map(tuple),
)


def known_members():
    rows = (configfiles._TOPIC, configfiles._GROUP)
    return {member for members in rows for member, _, _ in members}


def test_offsets_are_read_in_pieces_and_each_once(root, rng, monkeypatch):
    """Pieces end within a pair's queues, at its last one, and among pairs without any."""
    monkeypatch.setattr(_offsets, "_AT_ONCE", 3)
    monkeypatch.setattr(_database, "_ROWS_AT_ONCE", 2)
    prefixes = ("%LMQ%parent$", "plain-")
    rows = {
        f"{rng.choice(prefixes)}{n}@g": {q: rng.randrange(99) for q in range(rng.randrange(4))}
        for n in range(40)
    }
    rows["l" * 5000 + "@g"] = {0: 1}  # such a name has a page of its own
    file = root / "config" / "consumerOffset.json"
    write(file, configfiles.SECTIONS["offsets"].dumps(configfiles.Parts(rows)))
    with Metadata(root) as meta:
        names = [name for name, _ in meta._rows("offsets").items()]
        assert sorted(names) == sorted(rows)
        assert dict(meta._rows("offsets").items()) == rows
        found = [row for some in meta.offsets.blocks() for row in offset_rows(some)]
    assert sorted(found) == sorted(
        ("g", pair.removesuffix("@g"), queue, offset)
        for pair, queues in rows.items()
        for queue, offset in queues.items()
    )
    assert json.loads(file.read_bytes())["offsetTable"] == {
        pair: {str(q): offset for q, offset in queues.items()} for pair, queues in rows.items()
    }


def test_the_core_lays_offsets_out_as_all_other_files_are(root, rng):
    """Byte for byte, whatever names and numbers a foreign file has; half a surrogate pair has the
    whole file escaped, whoever brings it."""
    letters = 'a"\\\b\f\n\r\t\0\x1f /\x7f\x80é\u2028中\uffff😀@%'
    for half in ("", "row", "light", "extra"):
        rows = {
            rng.choice(("%LMQ%", "%LMQ", "")) + "".join(rng.choices(letters, k=rng.randrange(9))): {
                rng.choice((rng.randrange(-3, 3), rng.randrange(-(2**31), 2**31))): rng.choice(
                    (rng.randrange(99), rng.randrange(-(2**63), 2**63))
                )
                for _ in range(rng.randrange(5))
            }
            for _ in range(150 if half != "extra" else 0)
        }
        rows |= {"row": {"\udc00t@g": {0: 1}}, "light": {"%LMQ%\ud800": {0: 1}}}.get(half, {})
        if half != "extra":
            rows["中" * 5000 + "@10"] = {-(2**31): -(2**63), 2**31 - 1: 2**63 - 1}
            rows["t@9"] = rows["t@é"] = {}
        extra = {"zé": [1, {"a": "\n"}], "7": {}} | ({"b": "\ud800"} if half == "extra" else {})
        with Metadata(root, sync=False) as meta:
            with meta.batch():
                parts = configfiles.Parts(rows, DataVersion(1, 2, 3), extra)
                meta._replace("offsets", parts, meta._txn)
                meta._bump("offsets", meta._txn)
            wanted = configfiles.SECTIONS["offsets"].dumps(meta._state.parts["offsets"])
        found = (root / "config" / "consumerOffset.json").read_bytes()
        assert found == wanted
        assert found.isascii() == bool(half)
        with Metadata(root, readonly=True) as meta:
            assert meta._state.parts["offsets"].rows == rows


def test_config_files_that_say_all_of_it_are_not_written_again(root, tmp_path):
    """A clean end says so; one commit after it, and a file that is gone, are written."""
    with Metadata(root) as meta:
        fill(meta)
    with Metadata(root) as meta:
        assert meta.maybe_export() == [] and not meta._exported, "nothing was laid out"
        meta.offsets.commit("late", "orders", 0, 1)
        shutil.copytree(root, tmp_path / "killed")
    with Metadata(tmp_path / "killed") as meta:
        assert meta.maybe_export() == ["consumerOffset.json"]
    (root / "config" / "topics.json").unlink()
    with Metadata(root) as meta:
        assert meta.maybe_export() == ["topics.json"]


def test_groups_by_topic_leave_light_queues_out(root):
    with Metadata(root) as meta:
        meta.offsets.commit("g", "%LMQ%parent$child", 0, 1)
        meta.offsets.commit("g", "orders", 0, 2)
    file = json.loads((root / "config" / "consumerOffset.json").read_bytes())
    assert file["groupTopicMap"] == {"g": ["orders"]}


@settings(max_examples=60)
@given(
    st.lists(TOPICS, max_size=4),
    st.lists(GROUPS, max_size=4),
    MEMBERS.map(lambda found: {k: v for k, v in found.items() if k not in known_members()}),
    st.dictionaries(ROW_NAMES, st.dictionaries(INTS, st.integers(-(2**63), 2**63 - 1)), max_size=3),
)
def test_any_tables_survive_both_directions(tmp_path_factory, topics, groups, extra, offsets):
    """Whatever a file holds, members that nobody here knows included, comes back as it was."""
    folder = tmp_path_factory.mktemp("any")
    sections = configfiles.SECTIONS
    parts = {
        "topics": {each.name: dataclasses.replace(each, extra=extra) for each in topics},
        "groups": {each.name: dataclasses.replace(each, extra=extra) for each in groups},
        "offsets": {f"{name}@g": queues for name, queues in offsets.items()},
        "delays": next(iter(offsets.values()), {}),
    }
    top = {f"x-{name}": value for name, value in extra.items()}
    for name, rows in parts.items():
        state = configfiles.Parts(rows, DataVersion(1, 2, 3), dict(top))
        write(folder / "config" / sections[name].file, sections[name].dumps(state))
    with Metadata(folder, sync=False) as meta:
        crash(meta)
    with Metadata(folder, sync=False) as meta:
        assert meta.report == ()
        for name, rows in parts.items():
            assert meta._state.parts[name] == configfiles.Parts(rows, DataVersion(1, 2, 3), top)
        meta.export_json(folder / "out")
    for section in sections.values():
        first = (folder / "config" / section.file).read_bytes()
        assert (folder / "out" / section.file).read_bytes() == first


PLAIN, LIGHT = "consumerOffset.json", "lmqConsumerOffset.json"


def write_offsets(folder, file, written_s, table):
    write(folder / file, {"offsetTable": table})
    os.utime(folder / file, (written_s, written_s))


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("last, offset", [(PLAIN, 9), (LIGHT, 5)])
def test_both_files_of_offsets_say_what_the_table_says(root, killed, last, offset):
    """Of a group that both name, what was written last counts: for a Java broker that reads the
    other file, too, and after a kill before they are written."""
    write_offsets(root / "config", PLAIN, 20, {"t@both": {0: 9}, "t@plain": {0: 2}})
    write_offsets(root / "config", LIGHT, 10 if last == PLAIN else 30, {"t@both": {0: 5}})
    if killed:
        meta = Metadata(root)
        meta.offsets.commit("plain", "t", 0, 3)
        crash(meta)
    Metadata(root).close()
    wanted = {"t@both": {"0": offset}, "t@plain": {"0": 3 if killed else 2}}
    for file in (PLAIN, LIGHT):
        assert javajson.loads((root / "config" / file).read_bytes())["offsetTable"] == wanted


def test_a_file_of_light_offsets_alone_outlives_a_kill(root):
    """It was written by a Java broker while consumerOffset.json stayed as it was."""
    with Metadata(root) as meta:
        meta.offsets.commit("g", "t", 0, 1)
    write_offsets(root / "config", LIGHT, 30, {"t@g": {0: 7}})
    crash(Metadata(root))
    with Metadata(root) as meta:
        assert meta.offsets.get("g", "t", 0) == 7


def test_the_times_of_imported_files_are_those_of_their_folder(root, tmp_path):
    write_offsets(tmp_path / "from", PLAIN, 20, {"t@g": {0: 9}})
    write_offsets(tmp_path / "from", LIGHT, 10, {"t@g": {0: 5}})
    with Metadata(root) as meta:
        meta.import_json(tmp_path / "from")
        assert meta.offsets.get("g", "t", 0) == 9


def test_files_that_are_not_interpreted_are_kept_byte_for_byte(root, tmp_path):
    """Filters, pop state, request modes and static topics go through unchanged."""
    raw = {
        name: b'{ "table" :{"%s":{0:[1,2]}}}\n' % name.encode()
        for name in configfiles.RAW_FILES
        if name != "lmqConsumerOffset.json"  # which says what consumerOffset.json does
    }
    for name, data in raw.items():
        write(root / "config" / name, data)
    with Metadata(root) as meta:
        assert meta._state.raw == raw
        meta.export_json(tmp_path / "out")
    assert {name: (tmp_path / "out" / name).read_bytes() for name in raw} == raw
    (root / "config" / "consumerFilter.json").unlink()
    with Metadata(root):
        pass
    assert (root / "config" / "consumerFilter.json").read_bytes() == raw["consumerFilter.json"]


def test_a_file_of_4_9_is_read(root):
    """No attributes, no stateVersion, offsets without a version."""
    topic = {"topicName": "a", "perm": 6, "order": False, "attributes": None}
    version = {"counter": 3, "timatamp": 5}
    write(root / "config/topics.json", {"dataVersion": version, "topicConfigTable": {"a": topic}})
    write(root / "config/consumerOffset.json", b'{"offsetTable":{"a@g":{0:7}}}')
    with Metadata(root) as meta:
        assert meta.topics.get("a") == TopicConfig("a")
        assert meta.version("topics") == DataVersion(0, 3, 0)
        assert meta.offsets.get("g", "a", 0) == 7


def test_the_files_of_a_new_store_are_upstreams(root):
    """Names, members and the derived groupTopicMap of docs/internals/format.md#config-files."""
    with Metadata(root) as meta:
        fill(meta)
    config = root / "config"
    assert sorted(path.name for path in config.iterdir()) == sorted(FILES)
    offsets = json.loads((config / "consumerOffset.json").read_bytes())
    assert offsets["offsetTable"] == {"orders@bill": {"0": 41, "1": 39}}
    assert offsets["groupTopicMap"] == {"bill": ["orders"]}
    topics = json.loads((config / "topics.json").read_bytes())["topicConfigTable"]
    assert topics["orders"] == {
        "attributes": {"message.type": "FIFO"},
        "order": False,
        "perm": 6,
        "readQueueNums": 8,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "orders",
        "topicSysFlag": 0,
        "writeQueueNums": 8,
    }


# ---- when somebody else has written a file ----


def offsets_file(number):
    return {"dataVersion": {"counter": 1}, "offsetTable": {"orders@bill": {0: number}}}


def test_what_a_java_broker_wrote_is_imported(root):
    """Its file replaces the table, even where it goes back: messages were consumed there."""
    with Metadata(root) as meta:
        fill(meta)
    write(root / "config" / "consumerOffset.json", offsets_file(7))
    with Metadata(root) as meta:
        assert [(event.file, event.action) for event in meta.report] == [
            ("consumerOffset.json", "imported")
        ]
        assert [each.offset for each in meta.offsets.all()] == [7]
        assert meta.topics.get("orders") is not None
    with Metadata(root) as meta:
        assert meta.report == ()


def test_a_copied_folder_is_not_imported(root):
    """Equal content with other times is ours; what LMDB knows beyond the files stays."""
    meta = Metadata(root)
    fill(meta)
    meta.export_json()
    meta.offsets.commit("bill", "orders", 0, 99)
    crash(meta)
    for file in FILES:
        os.utime(root / "config" / file, (1, 1))
    with Metadata(root) as meta:
        assert meta.report == ()
        assert meta.offsets.get("bill", "orders", 0) == 99
    assert b"99" in (root / "config" / "consumerOffset.json").read_bytes()


TORN = b'{"offsetTable":{"orders@bill":{0:'


@pytest.mark.parametrize("torn", [TORN, None, b"", b'{"offsetTable":{"a@g":{"0":"x"}}}', b"[]"])
def test_a_torn_file_is_read_from_its_backup(root, torn):
    """Torn, missing, empty, or of the wrong types: upstream takes the .bak then."""
    if torn is not None:
        write(root / "config" / "consumerOffset.json", torn)
    write(root / "config" / "consumerOffset.json.bak", offsets_file(5))
    for readonly in (True, False):
        with Metadata(root, readonly=readonly) as meta:
            assert [event.action for event in meta.report] == ["backup"]
            assert meta.offsets.get("bill", "orders", 0) == 5
    assert b"5" in (root / "config" / "consumerOffset.json").read_bytes()


@pytest.mark.parametrize("torn", [TORN, b"", None])
def test_a_torn_file_without_a_backup_leaves_the_table(root, torn):
    """In a new store that is an empty one, which is said."""
    file = root / "config" / "consumerOffset.json"
    if torn is not None:
        write(file, torn)
    with Metadata(root) as meta:
        assert [event.action for event in meta.report] == ["kept"] * (torn is not None)
        assert meta.offsets.all() == []
        fill(meta)
    file.write_bytes(torn) if torn is not None else file.unlink()
    file.with_name(file.name + ".bak").unlink(missing_ok=True)
    with Metadata(root) as meta:
        assert [event.action for event in meta.report] == ["kept"]
        assert meta.offsets.get("bill", "orders", 0) == 41
    assert b"41" in file.read_bytes()


def test_an_older_backup_of_ours_does_not_roll_back(root):
    """The file is gone or torn, its .bak is our previous export: the table is newer."""
    file = root / "config" / "consumerOffset.json"
    for torn in (None, TORN):
        with Metadata(root) as meta:
            fill(meta)
            meta.export_json()
            newest = (meta.offsets.get("bill", "orders", 0) or 0) + 1
            meta.offsets.commit("bill", "orders", 0, newest)
        assert file.with_name(file.name + ".bak").exists()
        file.unlink() if torn is None else file.write_bytes(torn)
        with Metadata(root) as meta:
            assert [event.action for event in meta.report] == ["kept"]
            assert meta.offsets.get("bill", "orders", 0) == newest


@pytest.mark.parametrize("readonly", [True, False])
def test_a_torn_file_with_a_torn_backup_gives_way_to_the_database(root, readonly):
    """The table stays as it is; a writer moves the two aside before it writes the file again."""
    with Metadata(root) as meta:
        fill(meta)
    config = root / "config"
    write(config / "consumerOffset.json", TORN)
    write(config / "consumerOffset.json.bak", b"\0" * 100)
    before = listing(config)
    with Metadata(root, readonly=readonly) as meta:
        assert meta.offsets.get("bill", "orders", 0) == 41
        assert [(event.file, event.action) for event in meta.report] == [
            ("consumerOffset.json", "kept")
        ]
    if readonly:
        assert listing(config) == before
        return
    assert b"41" in (config / "consumerOffset.json").read_bytes()
    (kept,) = (root / "aside").iterdir()
    assert [(kept / name).read_bytes() for name in ("0001", "0002")] == [TORN, b"\0" * 100]


@pytest.mark.parametrize("file", ["subscriptionGroup.json", "consumerOffset.json"])
def test_what_nobody_else_has_is_a_named_error(root, file):
    """Without a database two torn files are the only source: nobody starts with none."""
    config = root / "config"
    write(config / file, TORN)
    write(config / f"{file}.bak", b"\0" * 100)
    before = listing(config)
    for _ in range(2):
        with pytest.raises(RecordDamaged) as caught:
            Metadata(root)
        assert caught.value.where == str(config / f"{file}.bak")
        assert listing(config) == before


def test_torn_topics_are_rebuilt_from_the_log(root):
    """Every topic that has messages is back, with as many queues as it needs."""
    with pystore.open(root, mappedFileSizeCommitLog=64 << 10) as store:
        store.put("orders", b"x", queue=5)
    shutil.rmtree(root / "meta")
    write(root / "config" / "topics.json", TORN)
    write(root / "config" / "topics.json.bak", TORN)
    with pystore.open(root) as store:
        assert [(e.file, e.action) for e in store.metadata.report][:1] == [
            ("topics.json", "rebuilt")
        ]
        row = store.metadata.topics.get("orders")
        assert row is not None
        assert row.write_queue_nums >= 6
        assert "topics.json" in [item.what for item in store.report.items]


def test_an_import_that_fails_changes_no_table(root, tmp_path):
    """All files or none, from any folder."""
    with Metadata(root) as meta:
        fill(meta)
        before = content(meta)
        write(tmp_path / "in" / "consumerOffset.json", offsets_file(7))
        write(tmp_path / "in" / "delayOffset.json", TORN)
        write(tmp_path / "in" / "delayOffset.json.bak", TORN)
        with pytest.raises(RecordDamaged):
            meta.import_json(tmp_path / "in")
        assert content(meta) == before
        (tmp_path / "in" / "delayOffset.json.bak").unlink()
        actions = {event.file: event.action for event in meta.import_json(tmp_path / "in")}
        assert actions == {"consumerOffset.json": "imported", "delayOffset.json": "kept"}
        assert meta.offsets.all()[0].offset == 7
        assert meta.delay_offsets.get(3) == 120
    assert b":7" in (root / "config" / "consumerOffset.json").read_bytes()


@pytest.mark.parametrize("name", ["topics.json", "topics.json.bak"])
def test_what_is_no_file_is_a_named_error(root, name):
    """A pipe in a file's place would be waited for without end, a folder cannot be read."""
    path = root / "config" / name
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    with pytest.raises(StoreIOError, match="not a regular file"):
        Metadata(root)
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreIOError):
        Metadata(root)


def test_hostile_names_are_kept_and_harm_nobody(root):
    """Names that no broker makes: empty, long, with separators or half a surrogate pair."""
    names = ["", "x" * 5000, "../../etc", "a@b@c", "\ud800", "\0"]
    table = {name: {"topicName": "liar"} for name in names}
    write(root / "config" / "topics.json", {"topicConfigTable": table})
    write(root / "config" / "consumerOffset.json", {"offsetTable": {n: {0: 1} for n in names}})
    for _ in range(2):
        with Metadata(root) as meta:
            assert sorted(meta.topics.names()) == sorted(names)
            assert len(meta.offsets.all()) == len(names)


# ---- exports ----


def test_only_files_that_changed_are_written(root):
    """A commit of an offset touches one file, and its previous content becomes the .bak."""
    with Metadata(root) as meta:
        fill(meta)
        assert sorted(meta.export_json()) == sorted(FILES)
        before = listing(root / "config")
        assert meta.export_json() == []
        meta.offsets.commit("bill", "orders", 0, 42)
        assert meta.export_json() == ["consumerOffset.json"]
    after = listing(root / "config")
    assert after["consumerOffset.json.bak"][0] == before["consumerOffset.json"][0]
    del after["consumerOffset.json.bak"], after["consumerOffset.json"]
    del before["consumerOffset.json"]
    assert after == before


def test_a_file_that_was_lost_is_written_again(root):
    """Also when its content would be the same."""
    with Metadata(root) as meta:
        fill(meta)
        meta.export_json()
        (root / "config" / "topics.json").unlink()
        assert meta.export_json() == ["topics.json"]


def test_a_torn_file_does_not_become_the_backup(root):
    """The .bak keeps the last whole content."""
    with Metadata(root) as meta:
        fill(meta)
        meta.export_json()
        meta.offsets.commit("bill", "orders", 0, 42)
        meta.export_json()
        backup = (root / "config" / "consumerOffset.json.bak").read_bytes()
        write(root / "config" / "consumerOffset.json", TORN)
        meta.offsets.commit("bill", "orders", 0, 43)
        meta.export_json()
    assert (root / "config" / "consumerOffset.json.bak").read_bytes() == backup


def test_exports_keep_upstreams_cadence(root):
    """Topics and groups at once, consumer offsets every 5 s, delay offsets every 10 s."""
    with Metadata(root) as meta:
        fill(meta)
        assert sorted(meta.maybe_export(100.0)) == sorted(FILES)
        written = []
        for second in range(1, 12):
            fill(meta)
            meta.topics.put(TopicConfig(f"t{second}"))
            meta.offsets.commit("bill", "orders", 0, 1000 + second)
            meta.delay_offsets.commit(3, 1000 + second)
            written.append((second, meta.maybe_export(100.0 + second)))
        assert all("topics.json" in files for _, files in written)
        assert [at for at, files in written if "consumerOffset.json" in files] == [5, 10]
        assert [at for at, files in written if "delayOffset.json" in files] == [10]
        # A clock that was set back does not stop them.
        assert "delayOffset.json" in meta.maybe_export(0.0)


def test_offsets_rest_longer_when_they_take_long(root, monkeypatch):
    """Twenty times what the last export took of a processor, and never at a clean stop."""
    seconds = iter(range(0, 1000, 2))
    monkeypatch.setattr(metadata.time, "thread_time", lambda: next(seconds))
    file, written = root / "config" / "consumerOffset.json", []
    with Metadata(root) as meta:
        for now in (100, 105, 139, 140, 145):
            meta.offsets.commit("bill", "orders", 0, now)
            written += [now] if meta.maybe_export(float(now)) else []
        assert written == [100, 140]
    assert json.loads(file.read_bytes())["offsetTable"] == {"orders@bill": {"0": 145}}


def test_what_a_killed_export_left_is_removed(root):
    """Temporary files lie in config/ only, with their own names."""
    with Metadata(root) as meta:
        fill(meta)
    config = root / "config"
    for name in ("topics.json.tmp", "topics.json.bak.tmp", "mine.tmp"):
        write(config / name, TORN)
    with Metadata(root):
        pass
    assert [path.name for path in config.glob("*.tmp")] == ["mine.tmp"]


class Fault:
    """Makes call number n of os.replace and os.fsync do something else."""

    def __init__(self, monkeypatch, at, action):
        self.calls = 0
        for name in ("replace", "fsync"):
            monkeypatch.setattr(os, name, self._wrap(getattr(os, name), at, action))

    def _wrap(self, real, at, action):
        def call(*args, **kwargs):
            self.calls += 1
            return action() if self.calls == at else real(*args, **kwargs)

        return call


def no_space():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def prepare(root):
    """A store whose files all have a .bak, with changes that are not exported yet."""
    meta = Metadata(root)
    fill(meta)
    meta.export_json()
    for number in (200, 300):
        meta.topics.put(TopicConfig(f"topic-{number}"))
        meta.offsets.commit("bill", "orders", 0, number)
        meta.delay_offsets.commit(3, number)
        if number == 200:
            meta.export_json()
    return meta


#: An export of three files: each .bak and file is synced and renamed, then the folder is synced.
CALLS = 13


@pytest.mark.parametrize("at", range(1, CALLS + 1))
def test_an_export_that_fails_leaves_whole_files(root, monkeypatch, at):
    """Whichever call fails: a named error, whole files, nothing goes back, the next succeeds."""
    with prepare(root) as meta:
        with monkeypatch.context() as patch:
            Fault(patch, at, no_space)
            with pytest.raises(DiskFull) as caught:
                meta.export_json()
            assert caught.value.errno == errno.ENOSPC
        assert not list((root / "config").glob("*.tmp"))
        for file in FILES:
            javajson.loads((root / "config" / file).read_bytes())
        assert meta.offsets.get("bill", "orders", 0) == 300
        crash(meta)
    with Metadata(root) as meta:
        assert meta.report == ()
        assert meta.offsets.get("bill", "orders", 0) == 300
        assert meta.delay_offsets.get(3) == 300
        assert "topic-300" in meta.topics
    assert b"300" in (root / "config" / "consumerOffset.json").read_bytes()


@pytest.mark.parametrize("at", range(1, CALLS + 2))
def test_an_export_that_is_killed_leaves_whole_files(root, monkeypatch, at):
    """Wherever the process dies: files and .bak are whole, the next open has the last commit."""
    prepare(root).close()
    pid = os.fork()
    if pid == 0:
        try:
            meta = Metadata(root)
            meta.topics.put(TopicConfig("topic-400"))
            meta.offsets.commit("bill", "orders", 0, 400)
            meta.delay_offsets.commit(3, 400)
            fault = Fault(monkeypatch, at, lambda: os._exit(9))
            meta.export_json()
            os._exit(0 if fault.calls == CALLS else 1)
        finally:
            os._exit(2)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == (9 if at <= CALLS else 0)
    for path in (root / "config").glob("*.json*"):
        if not path.name.endswith(".tmp"):
            javajson.loads(path.read_bytes())
    with Metadata(root, readonly=True) as reader:
        assert reader.offsets.get("bill", "orders", 0) == 400
    with Metadata(root) as meta:
        assert meta.report == ()
        assert meta.offsets.get("bill", "orders", 0) == 400
        assert meta.delay_offsets.get(3) == 400
        assert "topic-400" in meta.topics
    assert not list((root / "config").glob("*.tmp"))
    assert b"400" in (root / "config" / "consumerOffset.json").read_bytes()


def test_a_failed_export_at_close_still_closes(root, monkeypatch):
    """The error is reported, LMDB has everything, and the folder can be opened again."""
    meta = prepare(root)
    with monkeypatch.context() as patch:
        Fault(patch, 1, no_space)
        with pytest.raises(DiskFull):
            meta.close()
    meta.close()
    with Metadata(root) as again:
        assert again.offsets.get("bill", "orders", 0) == 300


def test_a_file_that_ends_before_its_last_page_takes_the_next_change(root):
    """Pages that one transaction took at the end and freed again are never written."""
    with pystore.open(root) as store:
        metadata = store.metadata
        for count in 200, 800:
            with metadata.batch():
                for number in range(count):
                    metadata.offsets.commit(f"group{number}", "orders" * 20, 0, 1)
                for number in range(count):
                    metadata.offsets.delete(f"group{number}")
        pages = metadata._env.info()["last_pgno"] + 1
        assert (metadata.path / "data.mdb").stat().st_size < pages * metadata._env.stat()["psize"]
        metadata.offsets.commit("readers", "orders", 0, 1)
    with pystore.open(root) as store:
        assert [each.group for each in store.metadata.offsets.all()] == ["readers"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_a_folder_without_rights_is_named(root):
    """Forbidden, with the path."""
    root.mkdir(mode=0o500)
    with pytest.raises(Forbidden) as caught:
        Metadata(root)
    assert str(root) in str(caught.value)
