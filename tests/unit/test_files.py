"""Files replaced as a whole: what a crash leaves, what is synced, that nobody does it by hand."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from pystore.files import whole_file, write_whole

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """fsync and replace in the order in which they happen, a folder's fsync named so."""
    seen: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(fd: int) -> None:
        seen.append("fsync folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "fsync file")
        fsync(fd)

    def replaced(source: Path, target: Path) -> None:
        seen.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    return seen


def test_order_of_a_replacement(tmp_path: Path, calls: list[str]) -> None:
    write_whole(tmp_path / "a", b"new")
    assert calls == ["fsync file", "replace", "fsync folder"]
    assert (tmp_path / "a").read_bytes() == b"new"


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), whole_file(path) as file:
        file.write(b"new")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_rights_stay(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    path.chmod(0o600)
    write_whole(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_power_failure_does_not_take_the_start_of_a_stream(
    tmp_path: Path, calls: list[str]
) -> None:
    """spark_ext remembers where a stream began; the rename is synced, and so is a new folder."""
    from spark_ext.stream import _remember

    _remember(tmp_path / "state" / "start.json", {"t": 1})
    assert calls == ["fsync file", "replace", "fsync folder", "fsync folder"]


def test_broadcast_offsets_are_synced(tmp_path: Path, calls: list[str]) -> None:
    from broker.client.broadcast import OffsetFile

    OffsetFile(tmp_path / "offsets.json", "g").save()
    assert calls == ["fsync file", "replace", "fsync folder"]


def test_nobody_else_renames() -> None:
    """Write-then-rename by hand forgets one of its three syncs sooner or later."""
    by_hand = re.compile(r"os\.(replace|rename)\(|\b(temporary|tmp|new)\.(replace|rename)\(")
    found = [
        str(path.relative_to(ROOT))
        for package in ("pystore", "broker", "spark_ext", "pyspark_rocketmq")
        for path in sorted((ROOT / package).rglob("*.py"))
        if by_hand.search(path.read_text(encoding="utf-8"))
        or re.search(r"Path\([^()]*\)\.replace\(", path.read_text(encoding="utf-8"))
    ]
    assert found == ["pystore/files/__init__.py"]
