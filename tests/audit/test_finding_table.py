"""The table of findings: typed fields, JSON, and sentences that are made where they are shown."""

from __future__ import annotations

import importlib
import json
import pickle
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from damages import Sample, copy, in_record, sample

import pystore
from pystore.audit import KINDS, describe, mend_command, verify
from pystore.audit.kinds import (
    DamagedRecordFinding,
    DoubleSegmentFinding,
    MissingUnitsFinding,
    QueueStrayFinding,
    RecordOutcome,
    UnreadableFinding,
)
from pystore.repair import plan

__all__ = ["copy", "sample"]  # fixtures
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module("gen_findings")
    finally:
        sys.path.remove(str(ROOT / "tools"))


def test_every_kind_has_a_class_of_its_name(generator: ModuleType):
    rows, _ = generator.parse((ROOT / "csrc/audit/findings.def").read_text(encoding="utf-8"))
    assert {row.name for row in rows} == KINDS.keys()


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ('PS_FINDING_OUTSIDE("x", ERROR, LOG, REPAIR, "at: plaice", "", "m", "j", "f")', "plaice"),
        ('PS_FINDING_OUTSIDE("x", BAD, LOG, REPAIR, "", "", "m", "j", "f")', "severity"),
        ('PS_FINDING_OUTSIDE("x", ERROR, LOG, REPAIR, "", "{at}", "m", "j", "f")', "lacks"),
        ('PS_FINDING_OUTSIDE("x", ERROR, LOG, REPAIR, "", "", "m", "", "f")', "what Java does"),
    ],
)
def test_a_malformed_row_is_refused(generator: ModuleType, bad: str, why: str):
    with pytest.raises(ValueError, match=why):
        generator.parse(bad)


def test_a_sentence_shows_the_fields():
    folder = MissingUnitsFinding(file="f", first_record=7, folder_missing=True)
    assert describe(folder) == (
        "the queue's folder is missing; the first record is at 7 of the log"
    )
    there = replace(folder, folder_missing=False, open_mends=True)
    assert describe(there) == "the first record is at 7 of the log; the next open mends it"
    assert describe(DoubleSegmentFinding(file="f", equal=False, first="g")) == "other bytes than g"
    names = tuple("abcdefg")
    assert describe(QueueStrayFinding(file="f", names=names)) == "a, b, c, d, e and 2 more"
    assert describe(UnreadableFinding(file="f", errno=5)) == "Input/output error"
    assert mend_command(there, "/data/store") == "pystore repair /data/store"


def test_a_finding_as_json_has_the_documented_fields(sample: Sample, copy: Path):
    page = (ROOT / "docs/damage.md").read_text(encoding="utf-8")
    part = page.partition("## A finding in JSON")[2]
    common = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", part, re.M)[:7]))
    in_record(4, b"\0")(sample, copy)
    for finding in verify(copy).findings:
        shown = json.loads(json.dumps(finding.as_dict()))
        assert list(shown) == [name for name in shown if name in common]
        listed = re.search(rf"^\| `{finding.kind}` \| [^|]+ \| (`\w+`: .*) \|$", part, re.M)
        fields = re.findall(r"`(\w+)`: ", listed[1]) if listed else []
        assert list(shown["details"]) == fields
        assert pickle.loads(pickle.dumps(finding)) == finding


def test_the_fields_are_those_of_the_core(sample: Sample, copy: Path):
    in_record(4, b"\0")(sample, copy)
    (found,) = [f for f in verify(copy).findings if isinstance(f, DamagedRecordFinding)]
    assert found.details == {"outcome": "BAD_MAGIC"}
    assert found.outcome is RecordOutcome.BAD_MAGIC


def test_the_words_of_findings_change_no_plan(
    sample: Sample, copy: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two records on one queue offset: which of them is kept is read from fields."""
    with pystore.Reader(copy) as reader:
        second = reader.message(sample.place)
    in_record(20, (second.queue_offset - 1).to_bytes(8, "big"))(sample, copy)
    before = [action.data for action in plan(copy).actions]
    for kind in {type(f) for f in verify(copy).findings}:
        said = replace(kind.about, details="x", meaning="x", java="x", fix="x")
        monkeypatch.setattr(kind, "about", said)
    assert before == [action.data for action in plan(copy).actions]
