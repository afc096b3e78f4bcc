"""The tier that a RocketMQ 5.5.0 wrote: read to the byte, taken over, and ours handed to it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import pystore
from pystore.cold.java import METADATA_FILE, hand_over
from pystore.cold.reader import ColdReader
from pystore.cold.restore import fetch
from pystore.cold.tier import Tier, new_tier, open_tier
from pystore.cold.upkeep import verify, verify_units
from pystore.format.units import UNIT

#: Of a local record the physical offset is another: the log of that broker begins here.
LOCAL = 131_072


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory, unpack_golden: Any) -> Path:
    store: Path = unpack_golden("tiered-posix", tmp_path_factory.mktemp("golden"))
    return store.parent


@pytest.fixture(scope="module")
def expected(golden_records: Any) -> dict[tuple[str, int, int], dict[str, Any]]:
    rows = golden_records("tiered-posix")
    return {(r["topic"], r["queue"], r["offset"]): r for r in rows if "offset" in r}


def seen(message: pystore.Message) -> dict[str, Any]:
    return {
        "bodyCrc": message.body_crc, "bodyLen": len(message.body), "storeSize": message.size,
        "tags": message.tags, "storeTime": message.store_timestamp,
        "bornTime": message.born_timestamp, "reconsume": message.reconsume_times,
        "preparedOffset": message.prepared_transaction_offset, "msgId": message.message_id,
        "properties": message.properties,
    }  # fmt: skip


def check(reader: ColdReader, expected: dict[Any, Any], *, places: bool) -> None:
    count = 0
    for queue in reader.queues():
        at = queue.min_offset
        while at < queue.max_offset:
            batch = reader.read(queue.topic, queue.queue, at, max_messages=7)
            assert batch
            for message in batch:
                wanted = expected[queue.topic, queue.queue, message.queue_offset]
                found = seen(message)
                assert found == {name: wanted[name] for name in found}
                if places and wanted["phys"] < LOCAL:
                    assert message.physical_offset == wanted["phys"]
                    assert message.offset_message_id == wanted["offsetMsgId"]
                count += 1
            at = batch.next_offset
    assert count == 364


def test_its_records_are_what_its_consumer_got(golden: Path, expected: dict[Any, Any]):
    reader = pystore.Reader(golden / "tier")
    assert isinstance(reader, ColdReader)
    with reader:
        check(reader, expected, places=True)
        assert [m.queue_offset for m in reader.query("t_keys", "order-1-3")] == [1]
        assert len(list(reader.messages())) == 364


def test_what_its_broker_appends_is_there_at_the_next_look(golden: Path, tmp_path: Path):
    (units,) = golden.rglob("tier/*/*/t_tx/0/CONSUME_QUEUE/*")
    whole = units.read_bytes()
    tier = tmp_path / "tier"
    shutil.copytree(golden / "tier", tier)
    grows = tier / units.relative_to(golden / "tier")
    grows.write_bytes(whole[: len(whole) // UNIT.size // 2 * UNIT.size])
    with ColdReader(tier) as reader:
        at = reader.read("t_tx", 0, 0).next_offset
        grows.write_bytes(whole)
        reader.refresh()
        rest = reader.read("t_tx", 0, at)
    assert (rest.next_offset, len(rest)) == (len(whole) // UNIT.size, rest.next_offset - at)


def test_a_file_of_units_is_read_in_pieces(
    golden: Path, expected: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
):
    """Upstream's leads to gigabytes of records."""
    monkeypatch.setattr("pystore.cold.tier._UNITS_AT_ONCE", 5)
    with ColdReader(golden / "tier") as reader:
        assert max(piece.end - piece.first for piece in reader.pieces()) == 5
        check(reader, expected, places=True)
        assert len(list(reader.messages())) == 364
        assert [m.queue_offset for m in reader.query("t_keys", "order-1-3")] == [1]


def test_it_is_taken_over(golden: Path, expected: dict[Any, Any], tmp_path: Path):
    with ColdReader(golden / "tier") as reader:
        assert fetch(reader, tmp_path / "cold").messages == 364
    with ColdReader(tmp_path / "cold") as reader:
        assert reader.tier.summed  # the sums of properties are right now
        check(reader, expected, places=False)
    audit = verify(new_tier(tmp_path / "cold", "DefaultCluster", "broker-a"))
    assert (audit.messages, audit.wrong) == (364, [])


def test_a_folder_that_is_no_queues_is_passed_over(golden: Path, tmp_path: Path):
    subprocess.run(["cp", "-r", golden / "tier", tmp_path], check=True)
    topic = tmp_path / "tier/212d6b50_DefaultCluster/broker-a/t_plain"
    for name in ("\N{SUPERSCRIPT TWO}", "9" * 200):
        subprocess.run(["cp", "-r", topic / "0", topic / name], check=True)
    with ColdReader(tmp_path / "tier") as reader, ColdReader(golden / "tier") as whole:
        assert reader.queues() == whole.queues()


@pytest.mark.parametrize("cut", [7, 100])
def test_a_torn_end_costs_what_was_torn_alone(golden: Path, tmp_path: Path, cut: int):
    """Upstream's consumers turn for ever at stray bytes, and at a log that is too short."""
    subprocess.run(["cp", "-r", golden / "tier", tmp_path], check=True)
    folder = tmp_path / "tier/212d6b50_DefaultCluster/broker-a/t_plain/0"
    last = max(folder.glob("COMMIT_LOG/*" if cut == 100 else "CONSUME_QUEUE/*"),
               key=lambda path: path.name[-20:])  # fmt: skip
    data = last.read_bytes()
    last.write_bytes(data[:-cut] if cut == 100 else data + b"\1" * cut)
    with ColdReader(tmp_path / "tier") as reader:
        at, found = 0, []
        while at < 90:
            batch = reader.read("t_plain", 0, at)
            assert batch.next_offset > at
            found += batch.offsets()
            at = batch.next_offset
    assert found == list(range(89 if cut == 100 else 90))


def test_metadata_for_rocketmq_names_every_segment(golden: Path, tmp_path: Path):
    with ColdReader(golden / "tier") as reader:
        fetch(reader, tmp_path / "cold")
    tier = open_tier(tmp_path / "cold")
    assert isinstance(tier, Tier)
    assert hand_over(tier, tmp_path / "store") == (29, 364)
    tables = json.loads((tmp_path / "store" / "config" / METADATA_FILE).read_bytes())
    root = tmp_path / "cold" / "212d6b50_DefaultCluster"
    for table, kind in (("commitLogFileSegmentTable", "COMMIT_LOG"),
                        ("consumeQueueFileSegmentTable", "CONSUME_QUEUE")):  # fmt: skip
        for path, segments in tables[table].items():
            files = {each.name[-20:]: each for each in (root / path / kind).iterdir()}
            ends = 0
            for base, segment in segments.items():
                assert files[f"{int(base):020d}"].stat().st_size == segment["size"]
                assert ends in (0, int(base))  # RocketMQ stitches neighbours together
                ends = int(base) + segment["size"]
            assert len(files) == len(segments)


def test_its_tier_is_checked_unit_by_unit(golden: Path, tmp_path: Path):
    (tier,) = (path.parent for path in golden.rglob("rmq_sys_INDEX"))
    with ColdReader(tier) as reader:
        audit = verify_units(reader)
        assert (audit.messages, audit.wrong) == (364, [])
        log = max(tier.rglob("COMMIT_LOG/*"), key=lambda path: path.stat().st_size)
        kept = log.read_bytes()
        try:
            log.write_bytes(kept[: len(kept) // 2])
            reader.refresh()
            assert len(verify_units(reader).wrong) == 1
        finally:
            log.write_bytes(kept)
