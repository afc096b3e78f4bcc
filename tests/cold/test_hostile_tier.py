"""Manifests and objects that somebody else has written or damaged: named, and bounded."""

from __future__ import annotations

import json
import os
import shutil
import struct
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystore
from pystore.cold.failures import NotATier, TierDamaged, TierUnreachable
from pystore.cold.manifest import (
    MANIFEST_MAX,
    ROWS_A_PAGE,
    ROWS_MAX,
    crc_of,
    parse_manifest,
    with_sum,
)
from pystore.cold.objects import FolderObjects, open_objects
from pystore.cold.places import broker_folder, object_name
from pystore.cold.push import push
from pystore.cold.reader import ColdReader
from pystore.cold.restore import restore, salvage
from pystore.cold.tier import Tier, brokers_at, new_tier, open_tier
from pystore.cold.upkeep import WRONG_MAX, TierAudit, collect, remove, verify
from pystore.format.units import UNIT
from pystore.native import lib

HUGE = (1 << 62) - 1
ROW = {"base": 0, "size": 1, "records": 2, "first": 3, "count": 4, "keys": 5, "crc": 8}


@pytest.fixture
def tier(filled: Path, tmp_path: Path) -> Tier:
    tier = new_tier(tmp_path / "cold", "c1", "broker-a")
    with pystore.Reader(filled) as store:
        push(store, tier, topics=["orders"], segment_bytes=8 << 10)
    return tier


def manifest_file(tier: Tier) -> Path:
    return Path(tier.objects.address, "rmq_sys_MANIFEST/orders/0", f"{1:020d}")


def edit(tier: Tier, change: Callable[[Any], Any]) -> None:
    path = manifest_file(tier)
    value = json.loads(path.read_bytes())
    del value["crc"]
    path.write_bytes(with_sum(json.dumps(change(value) or value).encode()))


def set_row(number: int, name: str, value: Any) -> Callable[[Any], Any]:
    return lambda manifest: manifest["rows"][number].__setitem__(ROW[name], value)


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "count": (set_row(0, "count", HUGE), "do not add up"),
    "keys": (set_row(0, "keys", 1 << 40), "do not add up"),
    "size": (set_row(1, "size", 1 << 50), "do not add up"),
    "negative": (set_row(0, "base", -1), "-1 is not a valid number"),
    "fraction": (set_row(0, "first", 1.5), "1.5 is not a valid number"),
    "truth": (set_row(0, "first", True), "True is not a valid number"),
    "text": (set_row(0, "first", "../../etc"), "is not a valid number"),
    "overlap": (set_row(1, "first", 0), "lies within another"),
    "short row": (lambda m: m["rows"].append([1]), "a manifest is wrong"),
    "rows": (lambda m: m.update(rows=7), "a manifest is wrong"),
    "end": (lambda m: m.update(end=HUGE), "its segments end at offset"),
    "low": (lambda m: m.update(low=HUGE), "it begins at offset"),
    "next": (lambda m: m.update(next_base=0), "would begin within the last"),
    "format": (lambda m: m.update(format=5), "it has format 5"),
    "topic": (lambda m: m.update(topic="../x"), "of another queue"),
    "list": (lambda m: [m], "a manifest is wrong"),
    "pages": (lambda m: m.update(pages=[[1] * 9] * 20_000), "it has 20000 pages"),
    "page": (lambda m: m.update(pages=[[1, HUGE, 1, 1, 0, 1, 0, 1, 1]]), "cannot be"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_manifest_that_cannot_be_is_named(tier: Tier, change: str):
    edit(tier, CHANGES[change][0])
    reader = ColdReader(tier.objects.address)
    with pytest.raises(TierDamaged, match=CHANGES[change][1]):
        reader.read("orders", 0, 0)
    assert len(reader.read("orders", 1, 0)) > 0  # others' queues are there
    assert any(CHANGES[change][1] in text for text in verify(open_own(tier)).wrong)
    # What cannot be read keeps its objects.
    assert collect(open_own(tier), grace_s=-1) == (0, 0)


def open_own(tier: Tier) -> Tier:
    found = open_tier(tier.objects.address)
    assert isinstance(found, Tier)
    return found


def test_a_wrong_byte_anywhere_in_a_manifest_is_found(tier: Tier):
    data = manifest_file(tier).read_bytes()
    for at in range(len(data)):
        wrong = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(TierDamaged):
            parse_manifest(wrong, "orders", 0, 1, "there")


def test_manifests_of_the_formats_before_are_read(tier: Tier):
    made = json.loads(manifest_file(tier).read_bytes())
    del made["crc"]
    first, *later = (json.dumps(made | {"format": number}).encode() for number in (1, 2, 3))
    for data in first, *map(with_sum, later):
        assert parse_manifest(data, "orders", 0, 1, "there").end > 0


def test_a_manifest_that_came_wrong_is_asked_for_again(tier: Tier, monkeypatch: pytest.MonkeyPatch):
    get, came = FolderObjects.get, iter([True])

    def wrong_once(self: Any, key: str, start: int, end: int) -> bytes:
        data = bytes(get(self, key, start, end))
        return data[::-1] if "MANIFEST" in key and next(came, False) else data

    monkeypatch.setattr(FolderObjects, "get", wrong_once)
    assert open_own(tier).manifest("orders", 0).end > 0
    assert next(came, None) is None


@pytest.mark.parametrize("data", [b"", b"{", b"\xff" * 50, b"[" * 100_000, b"null"])
def test_what_is_not_a_manifest_is_named(tier: Tier, data: bytes):
    manifest_file(tier).write_bytes(data)
    with pytest.raises(TierDamaged, match="a manifest is wrong"):
        ColdReader(tier.objects.address).read("orders", 0, 0)


def test_a_huge_manifest_takes_no_memory(tier: Tier):
    with manifest_file(tier).open("r+b") as file:
        file.truncate(100 * MANIFEST_MAX)
    tracemalloc.start()
    with pytest.raises(TierDamaged, match="a manifest has 419430400 bytes"):
        ColdReader(tier.objects.address).read("orders", 0, 0)
    assert tracemalloc.get_traced_memory()[1] < MANIFEST_MAX
    tracemalloc.stop()


def test_a_name_that_leads_out_of_the_tier_is_refused(tmp_path: Path):
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "cold").mkdir()
    for address in (str(tmp_path / "cold"), "memory:///outside"):
        objects = open_objects(address)
        for key in ("../secret", "a/../../secret", "/etc/passwd", "a//b", ""):
            with pytest.raises(TierDamaged, match="leads out of the tier"):
                objects.get(key, 0, 6)
            with pytest.raises(TierDamaged, match="leads out of the tier"):
                objects.put_new(key, b"x")
    (tmp_path / "cold" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "cold" / "folder").symlink_to(tmp_path)
    folder = open_objects(tmp_path / "cold")
    with pytest.raises(pystore.StoreError):
        folder.get("link", 0, 6)
    with pytest.raises(TierDamaged, match="a link stands in the place of a folder"):
        folder.get("folder/secret", 0, 6)
    with pytest.raises(TierDamaged, match="a link stands in the place of a folder"):
        folder.put_new("folder/new", b"x")


def damaged(tier: Tier, change: Callable[[bytearray], Any]) -> str:
    """Damages the first segment of orders/0; returns its name."""
    path = Path(tier.objects.address, tier.key_of("orders", 0, 0))
    data = bytearray(path.read_bytes())
    path.write_bytes(change(data) or data)
    return path.name


def test_a_flipped_bit_costs_one_message_and_is_found(tier: Tier):
    name = damaged(tier, lambda data: data.__setitem__(100, data[100] ^ 1))
    with ColdReader(tier.objects.address) as reader:
        batch = reader.read("orders", 0, 0)
        assert (batch.damaged, batch.first_damaged, batch.offsets()[0]) == (1, 0, 1)
        with pytest.raises(TierDamaged, match=r"another CRC than its manifest says"):
            list(reader.messages())
    assert [name in text for text in verify(tier).wrong] == [True]


def test_an_object_that_is_cut_is_named_and_not_read_as_less(tier: Tier):
    name = damaged(tier, lambda data: data[: len(data) // 2])
    with ColdReader(tier.objects.address) as reader, pytest.raises(TierDamaged, match="bytes from"):
        reader.read("orders", 0, 0)
    assert [name in text for text in verify(tier, quick=True).wrong] == [True]


def test_an_object_that_is_gone_is_named(tier: Tier):
    Path(tier.objects.address, tier.key_of("orders", 0, 0)).unlink()
    with ColdReader(tier.objects.address) as reader, pytest.raises(TierDamaged, match="missing"):
        reader.read("orders", 0, 0)
    audit = verify(tier)
    assert len(audit.wrong) == 1
    assert "are lost" in audit.wrong[0]
    remove(tier, "orders", 0)
    assert verify(open_own(tier)).wrong == []


def test_no_more_is_fetched_for_a_unit_than_tells_that_it_leads_nowhere(tmp_path: Path):
    """RocketMQ's own tier has no sums of units: each may claim a record of 64 MiB. One that leads
    to a large record has it read."""
    tier = new_tier(tmp_path / "cold", "c1", "broker-a")
    with pystore.open(tmp_path / "store", maxMessageSize=4 << 20) as store:
        size = store.put("orders", bytes(2 << 20)).size
        store.flush()
        push(store, tier)
    root = Path(tier.objects.address)
    shutil.rmtree(root / "rmq_sys_MANIFEST")
    (segment,) = (root / "orders/0/COMMIT_LOG").iterdir()
    log = segment.with_name(object_name(0))
    log.write_bytes(segment.read_bytes()[:size])
    os.truncate(log, 1 << 30)
    units = root / "orders/0/CONSUME_QUEUE" / object_name(0)
    units.parent.mkdir(exist_ok=True)
    strange = [UNIT.pack(n << 20, 60 << 20, 0) for n in range(3, 100)]
    units.write_bytes(UNIT.pack(0, size, 0) + b"".join(strange))
    with ColdReader(tmp_path / "cold") as reader:
        found, at = [], 0
        while at < 98:
            batch = reader.read("orders", 0, at)
            found += [len(each.body) for each in batch]
            at = batch.next_offset
        assert (found, reader.info().damaged_reads) == ([2 << 20], 97)
        assert reader._blocks.fetched < 400 << 20


def test_strangers_objects_stay(tier: Tier):
    """Of what does not have one of our names nothing is deleted, nor read."""
    name = Path(tier.key_of("orders", 0, 0)).name
    whole = manifest_file(tier).read_bytes()
    strangers = [f"rmq_sys_MANIFEST/orders/007/{9:020d}", f"rmq_sys_MANIFEST/orders/x/{1:020d}",
                 f"rmq_sys_MANIFEST/orders/0/{(1 << 62):020d}", "/".join("abcdefghi"),
                 f"orders/\N{SUPERSCRIPT TWO}/COMMIT_LOG/{name}",
                 "rmq_sys_MANIFEST/orders/\N{SUPERSCRIPT TWO}/page-1",
                 "notes.txt", "orders/0/COMMIT_LOG/zzz", "orders/0/INDEX/x", "a/b/c/d",
                 "rmq_sys_MANIFEST/orders/0/readme"]  # fmt: skip
    for key in strangers:
        tier.objects.put_new(key, whole)
    Path(tier.objects.address, "rmq_sys_MANIFEST", "\udcff", "0").mkdir(parents=True)
    Path(tier.objects.address, "rmq_sys_MANIFEST", "\udcff", "0", f"{1:020d}").write_bytes(whole)
    assert collect(tier, grace_s=-1)[0] == 0
    with ColdReader(tier.objects.address) as reader:
        assert len(reader.read("orders", 0, 0)) > 0
        assert {topic for topic, _ in reader.tier.queues()} == {"orders"}
    assert verify(open_own(tier)).wrong == []


def test_where_nothing_is_there_is_said(tmp_path: Path):
    for address in ("memory:///nothing/at/all", "memory:///nothing"):
        with pytest.raises(NotATier, match="no cold tier there"):
            pystore.Reader(address)
    (tmp_path / "empty").mkdir()
    with pytest.raises(pystore.NotAStore):
        pystore.Reader(tmp_path / "empty")


def test_a_topic_with_a_damaged_manifest_can_be_taken_away(tier: Tier, filled: Path):
    """And what is written out after that comes after what was there."""
    edit(tier, CHANGES["rows"][0])
    with pytest.raises(TierDamaged):
        remove(open_own(tier), "orders", before=1)
    assert remove(open_own(tier), "orders") > 0
    with pystore.Reader(filled) as store:
        push(store, open_own(tier), topics=["orders"])
    assert verify(open_own(tier)).wrong == []
    with ColdReader(tier.objects.address) as reader:
        assert reader.range("orders", 0) == (0, 150)


def test_offsets_without_end_are_no_room_of_a_log(tier: Tier, tmp_path: Path):
    """A restore makes room for what is missing, and not for what nobody can have had."""
    far = 1 << 61

    def moved(m: Any) -> None:
        for row in m["rows"]:
            row[ROW["first"]] += far
        m["end"] += far

    edit(tier, moved)
    with ColdReader(tier.objects.address) as reader, pytest.raises(TierDamaged):
        restore(reader, tmp_path / "made", segment_bytes=64 << 10)
    assert not (tmp_path / "made").exists()


def test_a_salvage_passes_over_an_offset_that_cannot_be(tmp_path: Path):
    with pystore.open(tmp_path / "plain") as store:  # no sum of properties covers the offset
        for _ in range(9):
            store.put("orders", b"x", queue=0)
        tier = new_tier(tmp_path / "other", "c1", "broker-a")
        push(store, tier)
    far_offset = 1 << 60
    first = tier.manifest("orders", 0).rows[0]
    path = Path(tier.objects.address, tier.key_of("orders", 0, 0))
    at = UNIT.unpack_from(path.read_bytes(), first.records + UNIT.size)[0] + lib.PS_AT_QUEUE_OFFSET
    damaged(tier, lambda data: struct.pack_into(">q", data, at, far_offset))
    edit(tier, CHANGES["rows"][0])
    done = salvage(tier.objects.address, tmp_path / "made", segment_bytes=64 << 10)
    assert ("orders", 0, far_offset, far_offset + 1) in done.lost
    assert done.messages == 8


def key_table(base: int, entries: Iterable[tuple[int, int]]) -> bytes:
    """A table of keys with its sums, as csrc/flat/flat.h says."""
    keys, table = list(entries), b""
    for first in range(0, len(keys), lib.PS_FLAT_KEYS):
        block = b"".join(
            struct.pack(">II", *each) for each in keys[first : first + lib.PS_FLAT_KEYS]
        )
        table += block + struct.pack(">I", crc_of(struct.pack(">qI", base, first) + block))
    return table


def test_a_table_of_keys_that_lies_is_named(tmp_path: Path):
    def lie(data: bytearray) -> None:
        row = tier.manifest("orders", 0).rows[0]
        entries = ((crc_of(b"none"), number % row.count) for number in range(row.keys))
        start = row.records + row.count * UNIT.size
        data[start : row.sums_at] = key_table(row.base, entries)

    with pystore.open(tmp_path / "many") as store:
        for number in range(200):
            store.put("orders", b"x", queue=0, keys=f"k{number}")
        tier = new_tier(tmp_path / "other", "c1", "broker-a")
        push(store, tier)
    damaged(tier, lie)
    with (
        ColdReader(tier.objects.address) as reader,
        pytest.raises(TierDamaged, match="keys are not those of its messages"),
    ):
        reader.query("orders", "none")


NAMES = ["a", "a!", "a-b", "a0", "b", "ünter"]


def test_folders_are_those_that_hold_something(root: str):
    objects = open_objects(root)
    assert (list(objects.folders()), objects.has("a")) == ([], False)
    for name in NAMES:
        for number in range(3):
            objects.put_new(f"{name}/c/{number}", b"x")
    objects.put_new("a1", b"beside them")
    assert sorted(objects.folders()) == NAMES
    assert list(objects.folders("a/")) == ["c"]
    assert [objects.has(name) for name in ("a", "a/c", "a1", "no")] == [True, True, False, False]


def test_of_folders_without_end_a_bounded_number_is_asked_for(
    root: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pystore.cold.objects.FOLDERS_MAX", 3)
    monkeypatch.setattr("pystore.cold.tier.FOLDERS_MAX", 3)
    objects = open_objects(root)
    for name in NAMES:
        objects.put_new(f"{name}/c", b"x")
    assert len(list(objects.folders())) == 4
    with pytest.raises(NotATier, match="more than 3 folders"):
        brokers_at(objects)


def test_a_root_of_many_brokers_is_looked_through_with_few_listings(
    root: str, monkeypatch: pytest.MonkeyPatch
):
    objects = open_objects(root)
    names = sorted({*(f"broker-{n}" for n in range(60)), "broker-1/x", "broker-1-", "broker-1.a"})
    for name in names:
        objects.put_new(f"{broker_folder('c1', name)}/rmq_sys_MANIFEST/t/0/{1:020d}", b"x")
    asked: list[str] = []
    find = objects.find
    monkeypatch.setattr(
        objects, "find", lambda prefix, after="": asked.append(prefix) or find(prefix, after)
    )
    found = [each.broker for each in brokers_at(objects)]
    assert sorted(found) == sorted({name.partition("/")[0] for name in names})
    assert len(asked) < 30


def test_folders_that_take_too_long_to_list_are_looked_for_one_by_one(
    root: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pystore.cold.objects._ONE_BY_ONE", 1)
    monkeypatch.setattr("pystore.cold.objects._FOLDERS_S", 0.0)
    objects = open_objects(root)
    for name in "abc":
        objects.put_new(f"{name}/c", b"x")
    assert list(objects.folders()) == ["a", "b", "c"]


def test_a_tier_of_many_topics_is_opened_without_their_names(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tier = new_tier(tmp_path / "cold", "c1", "broker-a")
    with pystore.Reader(filled) as store:
        push(store, tier)
    monkeypatch.setattr("pystore.cold.objects.FOLDERS_MAX", 1)
    monkeypatch.setattr("pystore.cold.tier.FOLDERS_MAX", 1)
    assert open_own(tier).queues() == tier.queues()
    assert open_tier(tmp_path / "cold").broker == "broker-a"


def test_a_wrong_byte_of_the_keys_hides_no_message(tier: Tier):
    row = tier.manifest("orders", 0).rows[0]
    data = Path(tier.objects.address, tier.key_of("orders", 0, 0)).read_bytes()
    with ColdReader(tier.objects.address) as reader:
        key = reader.read("orders", 0, 0)[0].keys[0]
        entry = data.index(struct.pack(">II", crc_of(key.encode()), 0), row.records)
        for at in range(entry, entry + 8):
            damaged(tier, lambda data, at=at: data.__setitem__(at, data[at] ^ 1))
            assert [m.queue_offset for m in reader.query("orders", key)] == [0]
            damaged(tier, lambda data, at=at: data.__setitem__(at, data[at] ^ 1))


def make_older(tier: Tier, *, key_sums: bool) -> None:
    """Makes a segment one without sums of records, as they were written once."""

    def change(data: bytearray) -> None:
        row = tier.manifest("orders", 0).rows[0]
        start = row.records + row.count * UNIT.size
        block = lib.PS_FLAT_KEYS * lib.PS_FLAT_KEY
        table = data[start : row.sums_at]
        keys = b"".join(
            table[at : at + block][: row.keys * lib.PS_FLAT_KEY]
            for at in range(0, len(table), block + lib.PS_FLAT_SUM)
        )[: row.keys * lib.PS_FLAT_KEY]
        tail = data[-lib.PS_FLAT_TAIL :]
        data[start:] = (table if key_sums else keys) + tail
        end = len(data) - lib.PS_FLAT_TAIL
        struct.pack_into(">I", data, end + 24, crc_of(data[row.records : end + 24]))
        struct.pack_into(">I", data, end + 28, len(data) - row.records)
        edit(tier, set_row(0, "size", len(data)))
        edit(tier, set_row(0, "crc", crc_of(data)))

    damaged(tier, change)


def arrow_bodies(address: str) -> list[bytes]:
    with ColdReader(address) as reader:
        found = pa.RecordBatchReader.from_stream(reader.arrow("orders", 0, columns=["body"]))
        return [body for batch in found for body in batch.column("body").to_pylist()]


@pytest.mark.parametrize("key_sums", [True, False])
def test_a_segment_without_sums_of_records_is_checked_whole(
    tier: Tier, key_sums: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pystore.cold.objects._MAPPED", 1)
    before = arrow_bodies(tier.objects.address)
    make_older(tier, key_sums=key_sums)
    row = open_own(tier).manifest("orders", 0).rows[0]
    assert row.sums_at == row.size - lib.PS_FLAT_TAIL
    assert row.has_key_sums == key_sums
    assert verify(open_own(tier)).wrong == []
    assert arrow_bodies(tier.objects.address) == before
    damaged(tier, lambda data: data.__setitem__(50, data[50] ^ 1))
    with pytest.raises(OSError, match=r"another CRC than its manifest says.*COMMIT_LOG"):
        arrow_bodies(tier.objects.address)


@pytest.mark.parametrize("part", ["record", "unit", "sum", "tail"])
def test_arrow_gives_no_row_of_wrong_bytes(tier: Tier, part: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pystore.cold.objects._MAPPED", 1)
    row = tier.manifest("orders", 0).rows[0]
    at = {"record": 50, "unit": row.records + 3, "sum": row.sums_at, "tail": row.size - 1}[part]
    damaged(tier, lambda data: data.__setitem__(at, data[at] ^ 1))
    with pytest.raises(OSError, match=r"another CRC than .* says.*COMMIT_LOG"):
        arrow_bodies(tier.objects.address)


def test_a_query_in_a_segment_without_sums_of_keys_is_checked_by_all_of_it(tier: Tier):
    """Segments were written without them once."""
    with ColdReader(tier.objects.address) as reader:
        key = reader.read("orders", 0, 0)[0].keys[0]
    make_older(tier, key_sums=False)
    assert verify(open_own(tier)).wrong == []
    row = open_own(tier).manifest("orders", 0).rows[0]
    assert not row.has_key_sums
    for wrong in (None, row.size - lib.PS_FLAT_TAIL - 8, row.size - lib.PS_FLAT_TAIL - 4):
        if wrong is not None:
            damaged(tier, lambda data, at=wrong: data.__setitem__(at, data[at] ^ 1))
        with ColdReader(tier.objects.address) as reader:
            assert [m.queue_offset for m in reader.query("orders", key)] == [0]


def test_of_very_many_faults_the_first_are_told_and_the_rest_counted(tier: Tier):
    audit = TierAudit()
    for number in range(WRONG_MAX + 5):
        audit.note(str(number))
    assert (len(audit.wrong), audit.more) == (WRONG_MAX, 5)


def test_a_listing_out_of_order_is_refused(tier: Tier):
    """A check that took it for one in order would call sound segments lost."""
    sound = tier.objects.find
    tier.objects.find = lambda *a, **k: reversed(list(sound(*a, **k)))
    with pytest.raises(TierUnreachable, match="a listing has"):
        verify(tier)


def test_a_manifest_of_many_small_segments_is_one_that_can_be_read(tmp_path: Path):
    """A change adds a page of rows at most."""
    with pystore.open(tmp_path / "store") as store:
        for _ in range(3000):
            store.put("orders", b"x" * 400, queue=0)
        push(store, new_tier(tmp_path / "cold", "c1", "broker-a"), segment_bytes=1024)
    with ColdReader(tmp_path / "cold") as reader:
        assert sum(len(batch) for batch in reader.batches()) == 3000
        manifest = reader.tier.manifest("orders", 0)  # type: ignore[attr-defined]
        assert manifest.segments > 1000 and len(manifest.rows) <= ROWS_MAX + ROWS_A_PAGE
