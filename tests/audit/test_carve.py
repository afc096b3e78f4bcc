"""Part of a store as a store of its own; two stores compared."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from damages import SEGMENT, SIZES, Sample, blank, in_record, poke, sample

import pystore
from pystore.audit import verify
from pystore.audit.diff import diff
from pystore.cli import main

__all__ = ["sample"]  # a fixture


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three topics, with everything that a carved message must keep."""
    with pystore.open(tmp_path / "source", **SIZES) as store:
        for i in range(40):
            store.put_message(
                topic=f"t{i % 3}", queue=i % 2, body=bytes([i]) * (i + 1), flag=i,
                properties={"UNIQ_KEY": f"{i:032X}", "KEYS": f"k{i}", "own": "\u00e9"},
                born_timestamp=1_700_000_000_000 + i, born_host=f"10.0.0.{i}:99",
                reconsume_times=i % 4,
            )  # fmt: skip
        packed = zlib.compress(b"long " * 1000)
        store.put_message(topic="t1", queue=0, body=packed, sys_flag=0x1 | 0x300)
    return tmp_path / "source"


def kept(path: Path) -> list[tuple[Any, ...]]:
    with pystore.Reader(path) as reader:
        return [
            (m.topic, m.queue, bytes(m.raw_body), m.flag, m.sys_flag, dict(m.properties),
             m.born_timestamp, m.born_host, m.reconsume_times)
            for m in reader.messages(check_crc=True)
        ]  # fmt: skip


def places(path: Path) -> list[tuple[int, int]]:
    with pystore.Reader(path) as reader:
        return [(m.physical_offset, m.store_timestamp) for m in reader.messages()]


def test_a_topic_keeps_everything_but_places(source: Path, tmp_path: Path):
    assert main(["carve", str(source), str(tmp_path / "out"), "--topic", "t1"]) == 0
    assert kept(tmp_path / "out") == [m for m in kept(source) if m[0] == "t1"]
    assert verify(tmp_path / "out").findings == []
    with pystore.Reader(tmp_path / "out") as out:
        assert [row.name for row in out.metadata.topics.list() if row.name[0] == "t"] == ["t1"]


def test_ranges_of_the_log_cut_at_records(source: Path, tmp_path: Path):
    low, high = places(source)[10][0], places(source)[30][0]
    options = ["--from", str(low - 1), "--to", str(high)]
    assert main(["carve", str(source), str(tmp_path / "out"), *options]) == 0
    assert kept(tmp_path / "out") == kept(source)[10:30]


def test_times_choose_by_store_time(source: Path, tmp_path: Path):
    moments = [stored for _, stored in places(source)]
    options = ["--begin", str(moments[5]), "--end", str(moments[20])]
    assert main(["carve", str(source), str(tmp_path / "out"), *options]) == 0
    inside = [m for m, t in zip(kept(source), moments, strict=True) if moments[5] <= t]
    inside = inside[: sum(moments[5] <= t <= moments[20] for t in moments)]
    assert kept(tmp_path / "out") == inside


def test_a_dry_run_counts_and_creates_nothing(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    assert main(["carve", str(source), str(out), "--topic", "t0", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["topics"] == {"t0": 14}
    assert not out.exists()


def refused(capsys: pytest.CaptureFixture[str]) -> int:
    """Where the damage is, as the last line says; lines of progress may come before it."""
    found: int = json.loads(capsys.readouterr().err.splitlines()[-1])["error"]["offset"]
    return found


def test_damage_in_the_range_leaves_no_store(sample: Sample, tmp_path: Path):
    copy = Path(shutil.copytree(sample.root, tmp_path / "store"))
    in_record(4, b"\0")(sample, copy)
    assert main(["carve", str(copy), str(tmp_path / "out")]) == 5
    assert not (tmp_path / "out").exists()
    assert main(["carve", str(copy), str(tmp_path / "out"), "--to", str(sample.place)]) == 0
    assert main(["carve", str(copy), str(tmp_path / "out")]) == 2  # it exists


@pytest.mark.parametrize("reach", [100, 0])
def test_records_after_a_blank_are_not_left_out(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str], reach: int
):
    """A blank ends its file. Whole records after one would be missing from OUT, or counted as
    missing by diff, and nobody would hear of it."""
    copy = Path(shutil.copytree(sample.root, tmp_path / "store"))
    poke(copy / sample.segment, sample.at, blank(reach or SEGMENT - sample.at))
    assert main(["carve", str(copy), str(tmp_path / "out"), "--json"]) == 5
    assert refused(capsys) == sample.place
    assert main(["diff", str(sample.root), str(copy)]) == 5
    with pystore.Reader(copy) as reader, pytest.raises(pystore.RecordDamaged):
        list(reader.messages())


def test_what_an_earlier_run_left_after_the_blank_is_no_damage(source: Path):
    """Bytes of a log that was longer once: whole records, older than those before the blank."""
    with pystore.open(source) as store:
        now = store.put("t0", b"x" * 2000, queue=0)
    log = source / "commitlog" / f"{0:020d}"
    data = log.read_bytes()
    at = now.physical_offset
    old = data[: int.from_bytes(data[:4], "big")]  # the first record, as if it stood there
    stale = at + 4096
    poke(log, at + now.size, blank(SEGMENT - at - now.size))
    poke(log, stale, old[:28] + stale.to_bytes(8, "big") + old[36:])
    with pystore.Reader(source) as reader:
        assert max(m.physical_offset for m in reader.messages()) == at


@pytest.mark.parametrize("data", [b"\xff", b"\x7f"])
def test_a_record_that_no_store_takes_is_damage(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes
):
    """A queue id that is out of range."""
    copy = Path(shutil.copytree(sample.root, tmp_path / "store"))
    in_record(12, data)(sample, copy)
    assert main(["carve", str(copy), str(tmp_path / "out"), "--json"]) == 5
    assert refused(capsys) == sample.place
    assert not (tmp_path / "out").exists()


def test_equal_stores_do_not_differ(source: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["diff", str(source), str(source), "--json"]) == 0
    seen = json.loads(capsys.readouterr().out)
    assert seen["diff"]["same"] is True
    assert seen["diff"]["records_in_a"] == 41


def test_messages_at_other_offsets_are_found_by_content(source: Path, tmp_path: Path):
    """The carved store begins later: places differ, the content that it lacks is what was cut."""
    out = tmp_path / "out"
    start = places(source)[6][0]
    assert main(["carve", str(source), str(out), "--from", str(start)]) == 0
    found = diff(source, out)
    assert not found.same
    assert found.content_only_in_b == []
    lacking = [(r.topic, r.queue, r.start, r.end) for r in found.content_only_in_a]
    assert lacking == [(f"t{t}", q, 0, 1) for t in range(3) for q in range(2)]
    assert sum(r.count for r in found.only_in_a) == 6
    assert main(["diff", str(source), str(out)]) == 1


def test_another_body_at_one_offset_is_a_change(source: Path, tmp_path: Path):
    other = Path(shutil.copytree(source, tmp_path / "other"))
    with pystore.Reader(source) as reader:
        m = next(m for m in reader.messages() if m.topic == "t2")
        at = m.physical_offset + 88  # the body of a record with IPv4 hosts
    poke(other / "commitlog" / f"{0:020d}", at, b"Z")
    found = diff(source, other)
    assert [(r.topic, r.queue, r.start, r.end) for r in found.changed] == [
        ("t2", m.queue, m.queue_offset, m.queue_offset + 1)
    ]
    assert found.only_in_a == found.only_in_b == []
