"""An open with paranoidRecovery mends what a plain open does not look at."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from damages import CASES, WARNINGS, Sample, copy, sample
from test_repair import in_log, in_queues

import pystore
from pystore.audit import verify

__all__ = ["copy", "sample"]  # fixtures

DAMAGE = {name: damage for name, damage, _ in (*CASES, *WARNINGS)}
#: Damage of derived files that a plain open of a cleanly closed store leaves as it is.
UNSEEN = (
    "unit size", "unit place", "unit tags", "zero unit", "units swapped",
    "index hash", "index slot",
)  # fmt: skip


@pytest.mark.parametrize("name", UNSEEN)
def test_what_a_plain_open_leaves_is_mended(sample: Sample, copy: Path, name: str):
    DAMAGE[name](sample, copy)
    with pystore.open(copy) as store:
        assert store.mended is None
    assert verify(copy).findings != []
    with pystore.open(copy, paranoidRecovery=True) as store:
        assert [action.do for action in store.mended.actions] == ["rebuild"]
        assert store.mended.after.sound
    assert verify(copy).findings == []
    assert in_queues(copy) == in_log(copy)


def test_a_sound_store_is_opened_as_it_is(copy: Path, caplog: pytest.LogCaptureFixture):
    seen = []
    with (
        caplog.at_level(logging.WARNING),
        pystore.open(
            copy, {"paranoidRecovery": "true"}, progress=lambda *facts: seen.append(facts)
        ) as store,
    ):
        assert store.mended.actions == []
    assert seen
    assert caplog.records == []
    assert not list(copy.glob("repair-*"))


def test_a_new_store_is_made(tmp_path: Path):
    with pystore.open(tmp_path / "new", paranoidRecovery=True) as store:
        store.put("T", b"x")
        assert store.mended.actions == []


def test_without_the_check_the_setting_is_refused(tmp_path: Path):
    with pytest.raises(pystore.BadArgument, match=r"pystore\.open"):
        pystore.Store(tmp_path / "new", paranoidRecovery=True)
    assert not (tmp_path / "new").exists()
