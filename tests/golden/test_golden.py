"""Stores of the Java broker, read and recovered by us: we must see in them what Java sees."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
import storeview

import pystore

NAMES = ("normal-exit", "killed")


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def assert_same(expected, got):
    assert storeview.explain(expected, got) == ""


def test_reader_sees_what_java_sees(name, golden, golden_records):
    """A Reader on the folder as the Java broker left it shows what Java shows after recovery."""
    with pystore.Reader(golden(name)) as reader:
        got = storeview.view(reader)
    assert_same(storeview.of_dump(golden_records(name)), got)


def test_command_line_prints_what_java_prints(name, golden):
    """``pystore dump --json`` of the folder as it was left is Java's dump, byte for byte."""
    records = Path(__file__).with_name(f"{name}.records.jsonl.xz")
    with lzma.open(records, "rt", encoding="utf-8") as text:
        expected = [line.rstrip("\n") for line in text if not line.startswith('{"at":"key"')]
    assert storeview.cli_dump(golden(name)) == expected


def test_reader_changes_nothing(name, golden):
    """A Reader leaves every byte of the folder alone, a crashed broker's too."""
    path = golden(name)
    before = storeview.folder_hash(path)
    with pystore.Reader(path) as reader:
        assert reader.report.mode is pystore.RecoveryMode.READ
        for q in reader.queues():
            reader.read(q.topic, q.queue, q.min_offset)
    assert before == storeview.folder_hash(path)


def test_recovered_store_shows_what_java_sees(name, golden, golden_records):
    """The open store and, after its close, a Reader show what Java shows."""
    path = golden(name)
    with pystore.open(path) as store:
        open_view = storeview.view(store)
    expected = storeview.of_dump(golden_records(name))
    assert_same(expected, open_view)
    with pystore.Reader(path) as reader:
        assert_same(expected, storeview.view(reader))
        assert not reader.info().abort_present


def test_second_open_finds_nothing_to_do(name, golden):
    """Open and close leave a cleanly closed store: the next open cuts and writes nothing."""
    path = golden(name)
    pystore.open(path).close()
    with pystore.open(path) as store:
        report = store.report
    assert report.mode is pystore.RecoveryMode.NORMAL
    work = (report.units_written, report.units_cut, report.entries_written, report.entries_cut)
    assert (*work, report.bytes_cut) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("kind", [pystore.Reader, pystore.open])
def test_every_key_is_found(name, kind, golden, golden_records):
    """UNIQ_KEY and each token of KEYS of every message lead to it through the index."""
    expected = {}
    for line in golden_records(name):
        if line["at"] == "msg":
            for key in storeview.keys_of(line["props"]):
                expected.setdefault((line["topic"], key), []).append(line["phy"])
    with kind(golden(name)) as store:
        got = {
            (topic, key): [m.physical_offset for m in store.query(topic, key)]
            for topic, key in expected
        }
    assert expected == got


def test_every_acknowledged_message_is_there(name, golden, golden_ledger):
    """Each offset message id that a client was told leads to the message it had sent."""
    ledger = [line for line in golden_ledger(name) if line.get("offset_msg_id", "null") != "null"]
    assert len(ledger) > 300
    with pystore.Reader(golden(name)) as reader:
        for line in ledger:
            for message_id in line["offset_msg_id"].split(","):
                m = reader.message_by_id(message_id)
                assert message_id == m.offset_message_id
                if line["kind"] == "batch":
                    continue
                assert line.get("keys") == m.properties.get("KEYS")
                assert line.get("tags") == m.tags
                assert line["body_len"] == len(m.body)
                if line["topic"] == m.topic:
                    assert (line["queue"], line["queue_offset"]) == (m.queue, m.queue_offset)


def test_report_of_a_clean_store(golden, golden_records):
    """Recovery of a cleanly stopped store says so, and that it cut and wrote nothing."""
    limits = next(line for line in golden_records("normal-exit") if line["at"] == "store")
    with pystore.open(golden("normal-exit")) as store:
        report = store.report
    assert report.mode is pystore.RecoveryMode.NORMAL
    assert (limits["min_phy"], limits["max_phy"]) == (report.log_min, report.log_max)
    assert (report.units_written, report.units_cut, report.bytes_cut) == (0, 0, 0)


def test_report_of_a_killed_store(golden, golden_records):
    """Recovery of a killed store names its mode and the limits that Java finds."""
    limits = next(line for line in golden_records("killed") if line["at"] == "store")
    with pystore.open(golden("killed")) as store:
        report = store.report
    assert report.mode is pystore.RecoveryMode.ABNORMAL
    assert (limits["min_phy"], limits["max_phy"]) == (report.log_min, report.log_max)
    assert report.units_written >= 2  # the two that are missing in queue 1 of golden2_burst
    kept = [item for item in report.items if item.action is pystore.Action.KEPT]
    assert [(report.scanned_from, report.log_max)] == [
        (max(item.start, report.scanned_from), item.end) for item in kept
    ]
    assert report.records > 0


def test_reading_queue_by_queue(name, golden, golden_records):
    """Reading each queue from its start yields its records in order of their units."""
    by_place = {line["phy"]: line for line in golden_records(name) if line["at"] == "msg"}
    queues = {}
    for line in golden_records(name):
        if line["at"] == "cq":
            queues.setdefault((line["topic"], line["queue"]), []).append(line["phy"])
    with pystore.Reader(golden(name)) as reader:
        for (topic, queue), places in queues.items():
            messages = storeview.everything(reader, topic, queue)
            got = [storeview.message_facts(m) for m in messages]
            assert [by_place[p] for p in places] == got


def test_compressed_bodies_inflate(name, golden, golden_records, golden_ledger):
    """Bodies that the Java client compressed inflate to what it had sent."""
    sent = {n["keys"]: n for n in golden_ledger(name) if n["kind"] in ("compressed", "large")}
    flagged = [n for n in golden_records(name) if n["at"] == "msg" and n["sys_flag"] & 1]
    assert sorted(sent) == sorted(n["props"]["KEYS"] for n in flagged)
    with pystore.Reader(golden(name)) as reader:
        for line in flagged:
            was = sent[line["props"]["KEYS"]]
            body = bytes(reader.message(line["phy"]).body)
            assert was["body_len"] == len(body)
            assert was["kind"] == "large" or set(body) <= set(b"abcdefgh \n")


def test_writing_goes_on(name, golden, golden_records):
    """Puts into a Java store follow its last record and its queue offsets."""
    path = golden(name)
    expected = storeview.of_dump(golden_records(name))
    topic, queue = next((n["topic"], n["queue"]) for n in reversed(expected) if n["at"] == "cq")
    count = sum(n["at"] == "cq" and (n["topic"], n["queue"]) == (topic, queue) for n in expected)
    with pystore.open(path) as store:
        end = store.report.log_max
        put = store.put(topic, b"ours", queue=queue, keys="ours-1")
        assert (end, count) == (put.physical_offset, put.queue_offset)
        assert [bytes(m.body) for m in store.read(topic, queue, put.queue_offset)] == [b"ours"]
    with pystore.Reader(path) as reader:
        assert [put.physical_offset] == [m.physical_offset for m in reader.query(topic, "ours-1")]
