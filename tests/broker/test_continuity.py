"""Whether a broker still has all that it acknowledged (controlled/continuity.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.services.controlled import continuity
from broker.services.controlled.continuity import Continuity
from pystore import RecoveryMode

NEW, NORMAL, ABNORMAL = RecoveryMode.NEW, RecoveryMode.NORMAL, RecoveryMode.ABNORMAL


@pytest.fixture
def boots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file that says which boot of the host this is."""
    made = tmp_path / "boot_id"
    made.write_text("one\n")
    monkeypatch.setattr(continuity, "_BOOT", made)
    return made


async def life(
    folder: Path, found: RecoveryMode, *, synced: bool = False, new: bool = False
) -> Continuity:
    made = Continuity(folder / "brokerBoot", 0o600, new)
    await made.begin(found, synced)
    return made


async def test_a_broker_without_a_past_lacks_nothing(boots: Path, tmp_path: Path) -> None:
    assert (await life(tmp_path, NEW, new=True)).is_sure


async def test_a_store_that_was_emptied_lacks_what_its_broker_acknowledged(
    boots: Path, tmp_path: Path
) -> None:
    assert not (await life(tmp_path, NEW)).is_sure


@pytest.mark.parametrize(
    ("found", "synced", "same_boot", "sure"),
    [
        (NORMAL, False, True, True),
        (NORMAL, False, False, True),
        (ABNORMAL, False, True, True),
        (ABNORMAL, False, False, False),
        (ABNORMAL, True, False, True),
        (NEW, True, True, False),
    ],
)
async def test_what_survives_an_end(
    boots: Path, tmp_path: Path, found: RecoveryMode, synced: bool, same_boot: bool, sure: bool
) -> None:
    await life(tmp_path, NEW, synced=synced, new=True)
    if not same_boot:
        boots.write_text("two\n")
    assert (await life(tmp_path, found)).is_sure is sure


async def test_a_doubt_lasts_until_it_is_settled(boots: Path, tmp_path: Path) -> None:
    await life(tmp_path, NEW, new=True)
    boots.write_text("two\n")
    await life(tmp_path, ABNORMAL)
    assert not (await life(tmp_path, ABNORMAL)).is_sure  # killed before it had caught up
    last = await life(tmp_path, NORMAL)
    assert not last.is_sure
    await last.settle()
    assert (await life(tmp_path, ABNORMAL)).is_sure


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"boot": "one", "sure": 1})])
async def test_a_damaged_file_is_a_doubt(boots: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "brokerBoot").write_text(text)
    assert not (await life(tmp_path, NORMAL)).is_sure


async def test_a_host_that_does_not_name_its_boots_is_never_the_same(
    boots: Path, tmp_path: Path
) -> None:
    boots.unlink()
    await life(tmp_path, NEW, new=True)
    assert not (await life(tmp_path, ABNORMAL)).is_sure
