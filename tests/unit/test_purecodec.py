"""The pure-Python codec against the format's examples, itself, and a Java broker's stores."""

from __future__ import annotations

import json
import lzma
import random
import struct
import tarfile
from pathlib import Path

import pytest

from tests import purecodec as pure

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
COMMITLOG_SIZE = 4 << 20
QUEUE_SIZE = 6000
INDEX_SLOTS = 512

VECTOR = bytes.fromhex(
    "0000006c daa320a7 3610a686 00000003 00000000 0000000000000007 0000000000000000 00000000"
    "0000018bcfe56800 0a00000100009c40 0000018bcfe5687b 0a00000200002a9f 00000000"
    "0000000000000000 00000005 68656c6c6f 02 5431 000a 54414753 01 54616741 02"
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The golden stores, without the large empty files of the timer."""
    out: dict[str, Path] = {}
    for name in ("normal-exit", "killed"):
        folder = tmp_path_factory.mktemp(name)
        with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
            wanted = [m for m in archive if "/timer" not in m.name]
            archive.extractall(folder, members=wanted, filter="data")
        out[name] = folder / "store"
    return out


def lines_of(name: str) -> list[str]:
    with lzma.open(GOLDEN / name, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def facts_of(name: str, at: str) -> list[str]:
    start = f'{{"at":"{at}"'
    return [line for line in lines_of(f"{name}.records.jsonl.xz") if line.startswith(start)]


def random_bytes(rng: random.Random, most: int) -> bytes:
    return rng.randbytes(rng.randrange(most + 1))


def random_fields(rng: random.Random) -> dict[str, object]:
    return {
        "topic": random_bytes(rng, 255),
        "body": random_bytes(rng, 300),
        "properties": random_bytes(rng, 100),
        "queue_id": rng.randrange(-(2**31), 2**31),
        "flag": rng.randrange(-(2**31), 2**31),
        "queue_offset": rng.randrange(-(2**63), 2**63),
        "physical_offset": rng.randrange(-(2**63), 2**63),
        "sys_flag": rng.randrange(-(2**31), 2**31),
        "born_timestamp": rng.randrange(-(2**63), 2**63),
        "born_host": rng.randbytes(rng.choice((8, 20))),
        "store_timestamp": rng.randrange(-(2**63), 2**63),
        "store_host": rng.randbytes(rng.choice((8, 20))),
        "reconsume_times": rng.randrange(-(2**31), 2**31),
        "prepared_transaction_offset": rng.randrange(-(2**63), 2**63),
    }


def encode(fields: dict[str, object], **more: object) -> bytes:
    return pure.encode_record(**{**fields, **more})  # type: ignore[arg-type]


# ---- records ----


def test_example_encodes() -> None:
    """Encoding the fields of the format's example gives its 108 bytes."""
    record = pure.encode_record(
        b"T1",
        b"hello",
        properties=pure.encode_properties({"TAGS": "TagA"}),
        queue_id=3,
        queue_offset=7,
        born_timestamp=1700000000000,
        born_host=pure.host_bytes("10.0.0.1", 40000),
        store_timestamp=1700000000123,
        store_host=pure.host_bytes("10.0.0.2", 10911),
    )
    assert record == VECTOR


def test_example_decodes() -> None:
    """Decoding the format's example gives its fields, its message id and its tag hash."""
    record = pure.check_record(VECTOR, place=0)
    assert (record.queue_id, record.queue_offset, record.topic_name) == (3, 7, "T1")
    assert (record.body, record.property_map) == (b"hello", {"TAGS": "TagA"})
    assert pure.host_text(record.born_host) == "10.0.0.1:40000"
    assert pure.offset_msg_id(record) == "0A00000200002A9F0000000000000000"
    assert pure.tags_code(record) == 2598919


def test_round_trip(rng: random.Random) -> None:
    """Decoding what was encoded gives every field back, whatever its value."""
    for _ in range(300):
        fields = random_fields(rng)
        record = pure.decode_record(b"xx" + encode(fields) + b"yy", 2)
        hosts = pure.SYS_BORN_V6 | pure.SYS_STORE_V6
        assert record.sys_flag & ~hosts == int(str(fields.pop("sys_flag"))) & ~hosts
        assert {name: getattr(record, name) for name in fields} == fields


def test_long_topics_are_v2() -> None:
    """A topic over 127 bytes makes a V2 record, one byte longer; any other stays V1."""
    short, long = pure.encode_record(b"t" * 127, b""), pure.encode_record(b"t" * 128, b"")
    assert pure.decode_record(short).magic == pure.MAGIC_V1
    assert pure.decode_record(long).magic == pure.MAGIC_V2
    assert len(long) == len(short) + 2


def test_cut_records_are_short(rng: random.Random) -> None:
    """A record of which any byte is missing at the end is short, never wrong."""
    data = encode(random_fields(rng))
    for end in range(len(data)):
        with pytest.raises(pure.NotARecord) as caught:
            pure.decode_record(data, end=end)
        assert caught.value.outcome == "short"


def test_flipped_bits_are_seen_or_harmless(rng: random.Random) -> None:
    """No flipped bit makes the decoder fail in another way than by NotARecord."""
    data = encode(random_fields(rng), prop_crc=True)
    for _ in range(2000):
        broken = bytearray(data)
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        with pytest.raises(pure.NotARecord):
            pure.check_record(broken, prop_crc=True)
        try:
            record = pure.decode_record(broken)
        except pure.NotARecord:
            continue
        assert record.size == len(broken)


@pytest.mark.parametrize(
    ("head", "outcome"),
    [
        (bytes(8), "end"),
        (struct.pack(">iI", 77, pure.MAGIC_BLANK), "blank"),
        (struct.pack(">iI", 0, pure.MAGIC_V1), "bad size"),
        (struct.pack(">iI", -5, pure.MAGIC_V2), "bad size"),
        (struct.pack(">iI", 90, pure.MAGIC_V1), "bad size"),
        (struct.pack(">iI", 500, pure.MAGIC_V1), "short"),
        (struct.pack(">iI", 100, 0), "bad magic"),
        (b"", "short"),
    ],
)
def test_outcomes(head: bytes, outcome: str) -> None:
    """What stands in a record's place is named as the C core names it."""
    data = head + bytes(200) if head else head
    with pytest.raises(pure.NotARecord) as caught:
        pure.decode_record(data)
    assert caught.value.outcome == outcome


def test_misplaced_record() -> None:
    """A record that stands elsewhere than it says is refused only when its place is asked for."""
    assert pure.check_record(VECTOR).physical_offset == 0
    with pytest.raises(pure.NotARecord, match="bad place"):
        pure.check_record(VECTOR, place=4096)


def test_body_sum() -> None:
    """A changed body fails its sum, and the sum of an empty body is not looked at."""
    changed = bytearray(VECTOR)
    changed[90] ^= 1
    with pytest.raises(pure.NotARecord, match="bad crc"):
        pure.check_record(changed)
    empty = bytearray(pure.encode_record(b"T", b""))
    empty[8:12] = b"\x01\x02\x03\x04"
    assert pure.check_record(empty).body == b""


# ---- properties ----


def test_crc_digits_are_reversed() -> None:
    """The digits of a properties CRC stand least significant first, padded at the right."""
    assert pure.crc_digits(859220991) == b"1990229580"
    assert pure.crc_digits(1) == b"1000000000"


def test_prop_crc_covers_all_before() -> None:
    """A properties CRC is the record's end, follows a separator and covers every byte before it."""
    data = pure.encode_record(b"T", b"body", properties=b"a\x01b", prop_crc=True)
    record = pure.check_record(data, prop_crc=True)
    assert record.properties[:4] == b"a\x01b\x02"
    assert record.property_map["__CRC32#"].encode() == data[-11:-1]
    for at in range(len(data) - 20):
        broken = bytearray(data)
        broken[at] ^= 0x40
        with pytest.raises(pure.NotARecord):
            pure.check_record(broken, prop_crc=True)


def test_records_without_prop_crc() -> None:
    """A missing properties CRC is refused where it is required and passed over where it is not."""
    assert pure.check_record(VECTOR, prop_crc=None).size == 108
    with pytest.raises(pure.NotARecord, match="bad crc"):
        pure.check_record(VECTOR, prop_crc=True)


def test_parser_drops_what_upstream_drops() -> None:
    """Parts without name, value or separator are dropped, and the last of equal names wins."""
    text = "\x02x\x02=\x01\x02\x01v\x02k\x01v\x02k\x01w\x01z\x02kk\x01y"
    assert pure.parse_properties(text) == {"k": "w\x01z", "kk": "y"}


@pytest.mark.parametrize("tail", [b"", b"\x02"])
def test_last_separator_is_optional(tail: bytes) -> None:
    """Properties mean the same with and without the last 0x02."""
    assert pure.parse_properties(b"a\x01b\x02c\x01d" + tail) == {"a": "b", "c": "d"}


# ---- hashes and text ----


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("polygenelubricants", -(2**31)),
        ("標籤", 873835),
        ("😀", 1772899),
    ],
)
def test_java_hash(text: str, value: int) -> None:
    """String.hashCode runs over UTF-16 units in 32 bits, from text and from its bytes alike."""
    assert pure.java_hash(text) == pure.java_hash(text.encode()) == value


def test_index_hash() -> None:
    """Keys are hashed after their topic; the value without an absolute one becomes 0."""
    assert pure.index_hash("OrderTopic", "K1001") == 1448203977
    assert pure.java_hash("polygenelubricants") == -(2**31)
    assert min(pure.index_hash("t", str(n)) for n in range(2000)) >= 0


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0", "\ufffd"),
        (b"\xed\xa0A", "\ufffdA"),
        (b"\xe0\x80\x80", "\ufffd" * 3),
        (b"\xe4\xb8", "\ufffd"),
        (b"\xf0\x90\x80A", "\ufffdA"),
        (b"\xf4\x90\x80\x80", "\ufffd" * 4),
        (b"\xf5\x80", "\ufffd" * 2),
        (b"\xc0\xafz", "\ufffd" * 2 + "z"),
        (b"a\xffb", "a\ufffdb"),
    ],
)
def test_ill_formed_bytes(data: bytes, text: str) -> None:
    """Ill-formed UTF-8 becomes as many U+FFFD as Java 17 makes of it."""
    assert pure.java_text(data) == text


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("10.0.0.1", "10.0.0.1:9"),
        ("::1", "0:0:0:0:0:0:0:1:9"),
        ("2001:db8::a0b:c", "2001:db8:0:0:0:0:a0b:c:9"),
        ("::ffff:10.0.0.1", "10.0.0.1:9"),
    ],
)
def test_host_text(address: str, text: str) -> None:
    """Addresses are written as Java's getHostAddress does: in full, mapped ones as IPv4."""
    assert pure.host_text(pure.host_bytes(address, 9)) == text


def test_java_json() -> None:
    """Everything beyond printable ASCII is a \\uXXXX escape of one UTF-16 unit."""
    assert pure.java_json('a"\\\x1f\x7fé😀') == '"a\\"\\\\\\u001f\\u007f\\u00e9\\ud83d\\ude00"'


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"TAGS": "TagA", "DELAY": "3"}, 1_000_000 + 10_000),
        ({"DELAY": "99"}, 1_000_000 + 7_200_000),
        ({"TAGS": "TagA", "DELAY": "0"}, 2598919),
        ({"TAGS": "TagA", "DELAY": "x"}, 2598919),
        ({}, 0),
    ],
)
def test_tags_code_of_delayed_messages(properties: dict[str, str], code: int) -> None:
    """In SCHEDULE_TOPIC_XXXX a unit carries the deliver time, without a level the tag hash."""
    encoded = pure.encode_properties(properties)
    data = pure.encode_record(
        b"SCHEDULE_TOPIC_XXXX", b"", properties=encoded, store_timestamp=1_000_000
    )
    assert pure.tags_code(pure.decode_record(data)) == code


# ---- batches and files ----


def test_batch_items() -> None:
    """A client's batch is its items one after another; a cut or negative length is refused."""
    item = bytes(12) + struct.pack(">ii", 5, 3) + b"one" + struct.pack(">h", 2) + b"pp"
    assert list(pure.iter_batch(item + item)) == [(5, b"one", b"pp")] * 2
    for end in range(1, len(item)):
        with pytest.raises(ValueError, match="the item at 0"):
            list(pure.iter_batch(item[:end]))
    with pytest.raises(ValueError, match="malformed"):
        list(pure.iter_batch(item[:16] + b"\xff\xff\xff\xff" + item[20:]))


def log_file(size: int, first: int, bodies: list[bytes], blank: bool) -> bytes:
    data = b""
    for body in bodies:
        data += pure.encode_record(b"T", body, physical_offset=first + len(data))
    if blank:
        data += pure.encode_blank(size - len(data))
    return data + bytes(size - len(data))


def test_log_rolls_at_a_blank(tmp_path: Path) -> None:
    """A blank leads to the next file; the log ends at the first place without a record."""
    (tmp_path / f"{0:020d}").write_bytes(log_file(512, 0, [b"a", b"b"], blank=True))
    (tmp_path / f"{512:020d}").write_bytes(log_file(512, 512, [b"c"], blank=False))
    (tmp_path / f"{1024:020d}").write_bytes(log_file(512, 1024, [b"never"], blank=False))
    found = [(place, record.body) for place, record in pure.iter_log(tmp_path, 512)]
    assert found == [(0, b"a"), (93, b"b"), (512, b"c")]
    with pytest.raises(ValueError, match="has 512 bytes, not 1024"):
        list(pure.iter_log(tmp_path, 1024))
    (tmp_path / f"{512:020d}").unlink()
    with pytest.raises(ValueError, match="does not start at 512"):
        list(pure.iter_log(tmp_path))


def test_units_end_at_zero(tmp_path: Path) -> None:
    """Units are read across files up to the first one without a size."""
    units = [struct.pack(">qiq", 100 * n, 50, -n) for n in range(1, 5)]
    (tmp_path / f"{0:020d}").write_bytes(b"".join(units[:3]))
    (tmp_path / f"{60:020d}").write_bytes(units[3] + bytes(40))
    found = list(pure.iter_units(tmp_path, 1))
    assert [unit.offset for unit in found] == [1, 2, 3]
    assert found[-1] == pure.Unit(3, 400, 50, -4)


def test_queue_min() -> None:
    """A queue serves from the first unit on that the log still holds."""
    units = [pure.Unit(n, 100 * n, 50, 0) for n in range(5)]
    assert pure.queue_min(units, 5, 0) == 0
    assert pure.queue_min(units, 5, 150) == 2
    assert pure.queue_min(units, 5, 401) == 5


# ---- what Apache RocketMQ wrote ----


@pytest.mark.parametrize("name", ["normal-exit", "killed"])
def test_golden_messages(stores: dict[str, Path], name: str) -> None:
    """The records of a golden store are those that Apache's own store sees in it."""
    log = pure.iter_log(stores[name] / "commitlog", COMMITLOG_SIZE)
    assert [pure.msg_line(place, record) for place, record in log] == facts_of(name, "msg")


@pytest.mark.parametrize("name", ["normal-exit", "killed"])
def test_golden_records_encode_to_their_bytes(stores: dict[str, Path], name: str) -> None:
    """Encoding the fields of any golden record gives the bytes that the Java broker wrote."""
    for first, path in pure.files_of(stores[name] / "commitlog"):
        data = path.read_bytes()
        for place, record in pure.iter_log(stores[name] / "commitlog"):
            if not first <= place < first + len(data):
                continue
            again = pure.encode_record(
                record.topic,
                record.body,
                properties=record.properties,
                queue_id=record.queue_id,
                flag=record.flag,
                queue_offset=record.queue_offset,
                physical_offset=place,
                sys_flag=record.sys_flag,
                born_timestamp=record.born_timestamp,
                born_host=record.born_host,
                store_timestamp=record.store_timestamp,
                store_host=record.store_host,
                reconsume_times=record.reconsume_times,
                prepared_transaction_offset=record.prepared_transaction_offset,
            )
            assert again == data[place - first : place - first + record.size]


def test_golden_dump(stores: dict[str, Path]) -> None:
    """A store that was closed well gives the reference's msg and cq lines in their order."""
    wanted = facts_of("normal-exit", "msg") + facts_of("normal-exit", "cq")
    assert list(pure.dump_lines(stores["normal-exit"], COMMITLOG_SIZE, QUEUE_SIZE)) == wanted


@pytest.mark.parametrize("name", ["normal-exit", "killed"])
def test_golden_units_follow_from_the_log(stores: dict[str, Path], name: str) -> None:
    """The log alone implies every unit that Apache's store has after its recovery."""
    wanted = facts_of(name, "msg") + facts_of(name, "cq")
    assert list(pure.dump_lines(stores[name], derived=True)) == wanted


def test_killed_store_lacks_two_units(stores: dict[str, Path]) -> None:
    """The queues of the killed store, as they lie, lack the last two units of one queue."""
    found = set(pure.dump_lines(stores["killed"]))
    missing = [json.loads(line) for line in facts_of("killed", "cq") if line not in found]
    places = [(line["topic"], line["queue"], line["offset"]) for line in missing]
    assert places == [("golden2_burst", 1, 1211), ("golden2_burst", 1, 1212)]


@pytest.mark.parametrize("name", ["normal-exit", "killed"])
def test_golden_index(stores: dict[str, Path], name: str) -> None:
    """A key is found through the index as often as Apache's store finds it."""
    keys = [json.loads(line) for line in facts_of(name, "key")]
    assert keys
    for key in keys:
        found = pure.query_index(stores[name] / "index", INDEX_SLOTS, key["topic"], key["key"])
        assert len(found) == key["found"]


@pytest.mark.parametrize(("name", "count"), [("normal-exit", 444), ("killed", 333)])
def test_golden_acknowledged_messages_are_there(
    stores: dict[str, Path], name: str, count: int
) -> None:
    """Every message that the broker acknowledged stands where its answer said."""
    ids = {pure.offset_msg_id(r) for _, r in pure.iter_log(stores[name] / "commitlog")}
    ledger = [json.loads(line) for line in lines_of(f"{name}.ledger.jsonl.xz")]
    told = [line["offset_msg_id"] for line in ledger if line.get("status") == "SEND_OK"]
    # The client's answer to a transaction has no such id.
    told = [one for group in told if group != "null" for one in group.split(",")]
    assert len(told) == count
    assert [one for one in told if one not in ids] == []
