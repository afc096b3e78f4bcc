"""One damage, one finding: each case changes a copy of a store and names what verify must say."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from damages import CASES, QUEUE, WARNINGS, Sample, copy, in_record, poke, sample

import pystore
from pystore.audit import Severity, verify
from pystore.audit.kinds import DamagedRecordFinding, RecordOutcome

__all__ = ["copy", "sample"]  # fixtures


@pytest.mark.parametrize(("damage", "kinds"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_damage_is_named(
    sample: Sample, copy: Path, damage: Callable[[Sample, Path], object], kinds: set[str]
):
    damage(sample, copy)
    audit = verify(copy)
    assert kinds <= set(audit.counts()), audit.findings
    assert not audit.sound


@pytest.mark.parametrize(
    ("damage", "kind"), [c[1:] for c in WARNINGS], ids=[c[0] for c in WARNINGS]
)
def test_what_hides_nothing_is_a_warning(
    sample: Sample, copy: Path, damage: Callable[[Sample, Path], object], kind: str
):
    damage(sample, copy)
    audit = verify(copy)
    assert {f.kind for f in audit.findings} == {kind}, audit.findings
    assert audit.findings[0].severity is Severity.WARNING


def test_a_topic_of_impossible_queues_is_named(sample: Sample, copy: Path):
    """No broker serves it, and no repair knows how many it had."""
    topics = '{"topicConfigTable":{"orders":{"topicName":"orders","writeQueueNums":99999}}}'
    (copy / "config/topics.json").write_text(topics)
    (found,) = verify(copy).errors
    assert (found.kind, found.names) == ("config-value", ("orders with 99999 queues",))


def test_one_damaged_record_costs_one_record(sample: Sample, copy: Path):
    whole = verify(sample.root).records
    in_record(4, b"\0")(sample, copy)
    audit = verify(copy)
    assert audit.records == whole - 1
    (found,) = [f for f in audit.findings if f.kind == "damaged-record"]
    assert found.start == sample.place
    assert isinstance(found, DamagedRecordFinding)
    assert found.outcome is RecordOutcome.BAD_MAGIC


@pytest.mark.parametrize(("old", "new"), [(b"0A", b"0\x01"), (b"red", b"r\xe5d")])
def test_flipped_bits_in_properties_may_be_told(store_path: Path, old: bytes, new: bytes):
    """A UNIQ_KEY with a wrong digit, and a text that is not UTF-8; other keys are anybody's."""
    with pystore.open(store_path, mappedFileSizeCommitLog=64 << 10) as store:
        store.put("T", b"x", properties={"UNIQ_KEY": "my own key, 32 characters long.."})
        store.put("T", b"x", properties={"UNIQ_KEY": "0A" * 16, "colour": "red"})
    assert verify(store_path).findings == []
    log = store_path / "commitlog" / f"{0:020d}"
    data = log.read_bytes()
    poke(log, data.index(old), new)
    (found,) = [f for f in verify(store_path).findings if f.kind == "suspect-properties"]
    assert found.count == 1


def test_a_missing_unit_names_its_message(sample: Sample, copy: Path):
    poke(copy / QUEUE, 100, bytes(40))
    (found,) = [f for f in verify(copy).findings if f.kind == "missing-units"]
    assert (found.topic, found.queue, found.start, found.end, found.count) == ("orders", 0, 5, 7, 2)


def test_a_queue_whose_topic_nobody_knows_was_deleted(sample: Sample, copy: Path):
    shutil.rmtree(copy / "consumequeue/orders")
    shutil.rmtree(copy / "meta")
    with pystore.Reader(sample.root) as reader:
        name = reader.queues()[0].topic
    assert name == "orders"
    (copy / "config/topics.json").write_text('{"topicConfigTable":{"other":{"topicName":"other"}}}')
    (copy / "consumequeue/other/0").mkdir(parents=True)
    audit = verify(copy)
    assert "missing-units" not in audit.counts()
