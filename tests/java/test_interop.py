"""Stores that we wrote, judged by Apache RocketMQ: its own store code, its broker, its clients."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import purecodec
import pytest
import storeview
from ports import free_port
from waiting import until

import pystore

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).resolve().parents[1] / "interop"))
import storewriter
from admin import Admin

pytestmark = [pytest.mark.java, pytest.mark.slow]

SIZES = {
    "mappedFileSizeCommitLog": 6 << 20,
    "mappedFileSizeConsumeQueue": 6000,
    "maxHashSlotNum": 512,
    "maxIndexNum": 1024,
}
HOUR_S = 3600


def copy(path, name):
    """A copy of a store, files as sparse as they were."""
    target = path.parent / name
    subprocess.run(["cp", "-a", "--sparse=always", path, target], check=True)
    return target


def look_crashed(path):
    """An abort file and an empty checkpoint: whoever opens it must check the whole log again."""
    (path / "abort").write_text("")
    (path / "checkpoint").write_bytes(bytes(4096))


def seen(path, **settings):
    with pystore.Reader(path, **settings) as reader:
        return storeview.view(reader)


def all_keys(view):
    """Every (topic, key) of a view whose message the index holds."""
    return sorted(
        {
            (line["topic"], key)
            for line in view
            if line["at"] == "msg" and line["sys_flag"] & 0xC != 0xC
            for key in storeview.keys_of(line["props"])
        }
    )


class Case:
    """A store we wrote, what we see in it, and what Java is to be asked."""

    def __init__(self, reference, path, expected, settings=None, keys=(), acknowledged=()):
        self.expected = expected
        folders = {k: v for k, v in (settings or {}).items() if k == "storePathCommitLog"}
        self.printed = storeview.cli_dump(path, **folders)
        self.acknowledged = acknowledged
        self.keys = list(keys)
        self.found = {}
        log_min = expected[0]["phy"]
        for topic, key in self.keys:  # entries of deleted messages stay in their file
            places = purecodec.query_index(path / "index", 512, topic, key)
            self.found[topic, key] = sum(place >= log_min for place in places)
        self.job = reference.job(path, SIZES | (settings or {}), self.keys)


def build_all_kinds(tmp, reference, seed):
    path = tmp / "all"
    with pystore.open(path, **SIZES) as store:
        storewriter.fill(store, seed, 600)
        info = store.info()
        assert info.log_files >= 3
        assert info.index_files >= 4
    expected = seen(path)
    yield (
        "every kind, clean",
        Case(reference, copy(path, "all-clean"), expected, keys=all_keys(expected)),
    )
    checked = copy(path, "all-checked")
    look_crashed(checked)
    yield "every kind, log checked from its beginning", Case(reference, checked, expected)
    bare = copy(path, "all-bare")
    look_crashed(bare)
    shutil.rmtree(bare / "consumequeue")
    shutil.rmtree(bare / "index")
    yield "every kind, queues built by Java from our log", Case(reference, bare, expected)
    with pystore.open(path) as store:  # retention: the log begins later, some queues in between
        old = time.time() - 73 * HOUR_S
        os.utime(path / "commitlog" / f"{0:020d}", (old, old))
        assert store.clean().log_files == 1
    expected = seen(path)
    yield (
        "log that begins later",
        Case(reference, copy(path, "all-later"), expected, keys=all_keys(expected)),
    )
    shutil.rmtree(path / "consumequeue")
    look_crashed(path)
    pystore.open(path, **SIZES).close()
    assert seen(path) == expected
    yield (
        "log that begins later, queues rebuilt by us",
        Case(reference, copy(path, "all-rebuilt"), expected),
    )


def build_variants(tmp, reference, seed):
    for name, settings in (
        ("IPv6 store host", {"brokerIP1": "::1"}),
        ("IPv6 store host written out", {"brokerIP1": "2001:db8::ff00:42", "listenPort": 1}),
        ("property CRC", {"enabledAppendPropCRC": True}),
    ):
        path = tmp / name.replace(" ", "-")
        with pystore.open(path, **SIZES, **settings) as store:
            storewriter.fill(store, seed, 60, large=False)
        expected = seen(path)
        look_crashed(path)
        java = {"enabledAppendPropCRC": True, "forceVerifyPropCRC": True} if "CRC" in name else {}
        yield name, Case(reference, path, expected, java)
    path = tmp / "folders"
    dirs = ",".join(str(tmp / f"disk{i}") for i in (1, 2, 3))
    with pystore.open(path, **SIZES, storePathCommitLog=dirs) as store:
        storewriter.fill(store, seed, 400)
    expected = seen(path, storePathCommitLog=dirs)
    assert all(any(Path(d).iterdir()) for d in dirs.split(","))
    yield (
        "several commit log folders",
        Case(
            reference, path, expected, {"storePathCommitLog": dirs}, keys=all_keys(expected)[::20]
        ),
    )


def killed_writer(path, settings, seed, count):
    """Runs a writer until it is killed, when it has acknowledged so many; all of them, a list
    each."""
    writer = subprocess.Popen(
        [sys.executable, storewriter.__file__, str(path), json.dumps(settings), str(seed)],
        stdout=subprocess.PIPE,
        text=True,
    )
    acknowledged = [json.loads(writer.stdout.readline()) for _ in range(count)]
    writer.kill()
    rest = writer.communicate()[0]
    acknowledged += [json.loads(line) for line in rest.splitlines(True) if line.endswith("\n")]
    return acknowledged


def build_killed(tmp, reference, seed):
    rng = random.Random(seed)
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        path = tmp / f"killed-{flush}"
        settings = SIZES | {"flushDiskType": flush}
        acknowledged = killed_writer(path, settings, seed, rng.randrange(300, 1200))
        assert (path / "abort").exists()
        expected = seen(path)
        yield (
            f"killed, {flush}",
            Case(reference, copy(path, f"{path.name}-java"), expected, acknowledged=acknowledged),
        )
        with pystore.open(path) as store:
            store.put("after", b"recovery", keys="after")
        expected = seen(path)
        yield (
            f"killed, {flush}, recovered by us",
            Case(
                reference, path, expected, keys=all_keys(expected)[::5], acknowledged=acknowledged
            ),
        )


NAMES = [
    "every kind, clean",
    "every kind, log checked from its beginning",
    "every kind, queues built by Java from our log",
    "log that begins later",
    "log that begins later, queues rebuilt by us",
    "IPv6 store host",
    "IPv6 store host written out",
    "property CRC",
    "several commit log folders",
    "killed, ASYNC_FLUSH",
    "killed, ASYNC_FLUSH, recovered by us",
    "killed, SYNC_FLUSH",
    "killed, SYNC_FLUSH, recovered by us",
]


@pytest.fixture(scope="module")
def judged(reference, tmp_path_factory, seed):
    """Every case with what Java says about it, from one run of Java."""
    tmp = tmp_path_factory.mktemp("interop")
    cases = {}
    for build in (build_all_kinds, build_variants, build_killed):
        cases.update(build(tmp, reference, seed))
    dumps = reference.dumps(tmp / "java", [case.job for case in cases.values()])
    yield {name: pair for name, *pair in zip(cases, cases.values(), dumps, strict=True)}
    shutil.rmtree(tmp)


@pytest.fixture(params=NAMES)
def case(request, judged):
    return judged[request.param]


def test_java_sees_what_we_see(case):
    """Apache's store shows each of our records and units as we do, and none besides."""
    ours, java = case
    assert java[0]["loaded"] is True
    assert storeview.explain(ours.expected, storeview.of_dump(java)) == ""


def test_command_line_prints_what_java_prints(case):
    """``pystore dump --json``, taken before Java opened the folder, has Java's lines."""
    ours, java = case
    expected = [line for line in java if line["at"] != "key"]
    got = [json.loads(line) for line in ours.printed]
    assert got[0] == expected[0]
    assert storeview.explain(storeview.of_dump(expected), storeview.of_dump(got)) == ""


def test_java_finds_every_key_through_our_index(case):
    """Apache's index lookup finds as many messages under each key as our index files hold."""
    ours, java = case
    got = {(k["topic"], k["key"]): k["found"] for k in java if k["at"] == "key"}
    assert got == ours.found
    assert all(got.values())


def test_java_sees_every_acknowledged_message(case):
    """What was acknowledged before the kill is in Apache's dump, at its place."""
    ours, java = case
    there = {
        (m["topic"], m["queue"], m["queue_offset"], m["phy"], m["body_crc32"])
        for m in java
        if m["at"] == "msg"
    }
    for topic, queue, queue_offset, physical, crc in ours.acknowledged:
        real = "SCHEDULE_TOPIC_XXXX" if topic == "delayed" else topic
        assert (real, queue, queue_offset, physical, f"{crc:08x}") in there


def test_we_see_the_same_after_java(case):
    """After Apache's store has recovered and closed the folder we open it with nothing lost."""
    ours, _ = case
    folders = {k: v for k, v in ours.job.settings.items() if k == "storePathCommitLog"}
    with pystore.open(ours.job.store, **folders) as store:
        assert store.report.mode is pystore.RecoveryMode.NORMAL
        assert storeview.explain(ours.expected, storeview.view(store)) == ""
        store.put("plain", b"ours again")


# ---- a Java broker on our folder ----


@pytest.fixture(scope="module")
def served(reference, tmp_path_factory):
    """A store of ours after a Java broker has served it, was written into and stopped cleanly."""
    folder = tmp_path_factory.mktemp("broker")
    namesrv, broker = free_port(), free_port()
    ports = {"RMQ_NAMESRV_PORT": str(namesrv), "RMQ_BROKER_PORT": str(broker)}
    ours = SIZES | {"brokerIP1": "127.0.0.1", "listenPort": broker}
    topics = ["plain", "keys", "hosts", "compressed", "batch", "many"]
    path = folder / "store"
    with pystore.open(path, **ours) as store:
        storewriter.fill(store, 1, 120, large=False)
    with pystore.Reader(path) as reader:
        before = storeview.view(reader)
        bodies = {m.physical_offset: bytes(m.body) for m in reader.messages()}
    settings = [f"{name}={value}" for name, value in SIZES.items()]
    address = f"127.0.0.1:{namesrv}"
    try:
        started = reference.run(
            "start", folder, *settings, HEAP="512m", RMQ_SETTLE_S="0", **ports
        ).stdout
        assert "boot success" in started
        visit = reference.run("visit", address, 40, *topics).stdout
        with closing(Admin(address, folder)) as admin:
            status = admin("topicStatus", "-t", "keys")
            # The tool waits six seconds for its answer, and a busy machine may take longer.
            by_key = until(lambda: admin("queryMsgByKey", "-t", "keys", "-k", "order-17").strip())
    finally:
        reference.run("stop", folder, check=False)
    facts = [json.loads(line) for line in visit.splitlines() if line.startswith("{")]
    yield path, before, bodies, topics, facts, status, by_key
    shutil.rmtree(folder)


def test_java_client_reads_our_messages(served):
    """An official client pulls every message of our topics from a Java broker on our folder."""
    _, before, bodies, topics, facts, _, _ = served
    assert not [f for f in facts if f["at"] == "bad"]
    got = sorted(
        (f["topic"], f["queue"], f["queue_offset"], f["phy"], f["tags"], f["keys"], f["body_len"])
        for f in facts
        if f["at"] == "got"
    )
    expected = sorted(
        (
            m["topic"],
            m["queue"],
            m["queue_offset"],
            m["phy"],
            m["props"].get("TAGS", "null"),
            m["props"].get("KEYS", "null"),
            len(bodies[m["phy"]]),
        )
        for m in before
        if m["at"] == "msg" and m["topic"] in topics
    )
    assert got == expected


def test_java_client_finds_our_messages(served):
    """Lookups by key and by offset message id through the Java broker lead to our messages."""
    _, _, _, _, facts, _, _ = served
    keys = [f for f in facts if f["at"] == "key"]
    ids = [f for f in facts if f["at"] == "id"]
    assert len(keys) == len(ids) > 10
    assert all(f["found"] >= 1 for f in keys)
    assert all(f["asked"] == f["phy"] for f in ids)


def test_mqadmin_shows_our_topic(served):
    """mqadmin shows the limits of our queues, and finds a message by its key."""
    _, before, _, _, _, status, by_key = served
    ends = {}
    for u in before:
        if u["at"] == "cq" and u["topic"] == "keys":
            ends[u["queue"]] = u["offset"] + 1
    rows = [line.split() for line in status.splitlines() if line.startswith("broker-a")]
    shown = {int(r[1]): (int(r[2]), int(r[3])) for r in rows}
    for queue, end in ends.items():
        low, high = shown[queue]
        assert low == 0
        assert end <= high <= end + 40
    assert sum(high for _, high in shown.values()) == sum(ends.values()) + 40
    assert storewriter.uniq(17) in by_key


def test_store_comes_back_from_java(served):
    """After the Java broker's clean stop we see all that was ours and all that it acknowledged."""
    path, before, _, _, facts, _, _ = served
    work = copy(path, "back")
    with pystore.open(work) as store:
        assert store.report.mode is pystore.RecoveryMode.NORMAL
        after = storeview.view(store)
        lines = {json.dumps(line, sort_keys=True) for line in after}
        missing = [n for n in before if json.dumps(n, sort_keys=True) not in lines]
        assert missing == []
        sent = [f for f in facts if f["at"] == "sent"]
        assert len(sent) == 240
        for f in sent:
            assert f["status"] == "SEND_OK"
            m = store.message_by_id(f["offset_msg_id"])
            assert (m.topic, m.queue, m.queue_offset) == (
                f["topic"],
                f["queue"],
                f["queue_offset"],
            )
            assert m.uniq_key == f["msg_id"]
            assert len(m.body) == f["body_len"]
            assert len(store.query(f["topic"], f["keys"].split()[0])) == 1
        ours = sum(n["at"] == "msg" and n["topic"] in {f["topic"] for f in sent} for n in before)
        now = sum(n["at"] == "msg" and n["topic"] in {f["topic"] for f in sent} for n in after)
        assert now == ours + 240
        store.put("keys", b"and on", queue=0)
