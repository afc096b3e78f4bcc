"""Putting: what is stored of a message, and what is refused with nothing changed."""

from __future__ import annotations

import array
import asyncio
import struct
import threading
import time
import zlib

import numpy as np
import purecodec
import pyarrow as pa
import pytest
import storeview
from faulty import faulty
from storeview import everything
from waiting import BOUND_S

import pystore
from pystore import MessageIllegal

LONG_RETRY = "%RETRY%" + "g" * 200


@pytest.fixture
def store(store_path, small):
    with pystore.open(store_path, **small) as store:
        yield store


def only(batch):
    assert len(batch) == 1
    return batch[0]


def records(store):
    """Every record, decoded by the pure-Python codec from the raw bytes."""
    return [purecodec.check_record(bytes(m.record)) for m in store.messages()]


# ---- one message ----


def test_result_tells_the_place(store):
    """The result of a put names queue, offsets, size and time of the record in the log."""
    before = int(time.time() * 1000)
    first = store.put("orders", b"one", queue=2)
    second = store.put("orders", b"two", queue=2)
    assert (first.queue, first.queue_offset, first.physical_offset) == (2, 0, 0)
    assert (second.queue_offset, second.physical_offset) == (1, first.size)
    assert first.status is pystore.PutStatus.PUT_OK
    assert before <= first.store_timestamp <= second.store_timestamp <= time.time() * 1000
    m = store.message(second.physical_offset)
    assert (m.size, m.store_timestamp) == (second.size, second.store_timestamp)
    assert m.offset_message_id == second.message_id
    assert store.message_by_id(second.message_id).physical_offset == second.physical_offset


def test_every_field_reaches_the_record(store):
    """Body, tags, keys, properties, flag and the rare fields come back as they were put."""
    put = store.put(
        "orders",
        b"\x00body\xff",
        tags="标签",
        keys=["a", "键"],
        properties={"amount": "17", "注": "ü"},
        queue=3,
        flag=-7,
        reconsume_times=4,
        born_timestamp=1_700_000_000_000,
        born_host="10.0.0.1:40000",
        prepared_transaction_offset=99,
    )
    r = only(records(store))
    assert r.property_map == {"TAGS": "标签", "KEYS": "a 键", "amount": "17", "注": "ü"}
    assert (r.body, r.flag, r.queue_id, r.reconsume_times) == (b"\x00body\xff", -7, 3, 4)
    assert (r.born_timestamp, r.prepared_transaction_offset) == (1_700_000_000_000, 99)
    assert r.born_host == purecodec.host_bytes("10.0.0.1", 40000)
    assert (r.magic, r.physical_offset, r.size) == (purecodec.MAGIC_V1, 0, put.size)
    m = store.message(0)
    assert (m.tags, m.keys, m.born_host) == ("标签", ["a", "键"], "10.0.0.1:40000")


def test_vector_of_the_format(store_path, small):
    """The record of the format's test vector is stored byte for byte, but for its store time."""
    with pystore.open(store_path, **small, brokerIP1="10.0.0.2") as store:
        for _ in range(7):
            store.put("T1", b"", queue=3)
        put = store.put(
            "T1",
            b"hello",
            tags="TagA",
            queue=3,
            born_timestamp=1_700_000_000_000,
            born_host="10.0.0.1:40000",
        )
        record = bytearray(store.message(put.physical_offset).record)
        unit = store.units("T1", 3, 7)[0]
    assert unit == (put.physical_offset, 108, 2598919)
    record[28:36] = bytes(8)
    record[56:64] = struct.pack(">q", 1_700_000_000_123)
    assert record.hex() == (
        "0000006cdaa320a73610a686000000030000000000000000000000070000000000000000"
        "000000000000018bcfe568000a00000100009c400000018bcfe5687b0a00000200002a9f"
        "0000000000000000000000000000000568656c6c6f025431000a54414753015461674102"
    )


@pytest.mark.parametrize(
    "body",
    [b"bytes", "ünicode", bytearray(b"array"), memoryview(b"xview")[1:], array.array("i", [1, 2])],
    ids=["bytes", "text", "bytearray", "memoryview", "array"],
)
def test_body_of_any_kind(store, body):
    """A body may be bytes, text or any contiguous buffer."""
    put = store.put("orders", body)
    expected = body.encode() if isinstance(body, str) else bytes(memoryview(body))
    assert bytes(store.message(put.physical_offset).body) == expected


def test_empty_body_is_legal(store):
    """An empty body is stored, with a CRC of 0."""
    put = store.put("orders", b"", keys="k")
    m = store.message(put.physical_offset)
    assert (bytes(m.body), m.body_crc) == (b"", 0)


def test_queues_in_turn(store):
    """Puts without a queue go round the topic's queues."""
    queues = [store.put("orders", b"x").queue for _ in range(8)]
    count = len(set(queues))
    assert count > 1
    assert queues == [i % count for i in range(8)]


def test_wait_false_is_a_property(store):
    """wait=False is stored as upstream's WAIT=false."""
    store.put("orders", b"x", wait=False)
    assert only(records(store)).property_map == {"WAIT": "false"}


@pytest.mark.parametrize(
    ("tags", "code"),
    [
        ("TagA", 2598919),
        ("polygenelubricants", -2147483648),
        ("標籤", 873835),
        ("😀", 1772899),
        (None, 0),
        ("", 0),
    ],
)
def test_tags_code(store, tags, code):
    """The unit carries Java's hash of the tags, over UTF-16 units, sign-extended."""
    store.put("orders", b"x", tags=tags, queue=0)
    assert only(store.units("orders", 0))[2] == code


def test_long_retry_topic_is_version_2(store):
    """A %RETRY% topic of more than 127 bytes gets a record with a two-byte topic length."""
    store.put(LONG_RETRY, b"x", queue=0)
    r = only(records(store))
    assert (r.magic, r.topic_name) == (purecodec.MAGIC_V2, LONG_RETRY)
    assert store.topics() == [LONG_RETRY]


def test_ipv6_hosts(store_path, small):
    """IPv6 hosts take 16 bytes and set their bits; message ids are 56 digits then."""
    with pystore.open(store_path, **small, brokerIP1="fe80::1") as store:
        put = store.put("orders", b"x", born_host="[2001:db8::5]:77")
        m = store.message(put.physical_offset)
        assert m.sys_flag & 0x30 == 0x30
        assert m.born_host == "2001:db8:0:0:0:0:0:5:77"
        assert m.store_host == "fe80:0:0:0:0:0:0:1:10911"
        assert len(put.message_id) == 56
        assert store.message_by_id(put.message_id).queue_offset == 0
        assert only(records(store)).body == b"x"


def test_sys_flag_bits_of_hosts_are_the_stores_own(store):
    """The bits for IPv6 hosts follow the hosts, whatever the caller's sys_flag says."""
    put = store.put("orders", b"x", sys_flag=0x30)
    assert store.message(put.physical_offset).sys_flag & 0x30 == 0


def test_delay_level(store):
    """A delayed message waits in SCHEDULE_TOPIC_XXXX, its unit holding the time it is due."""
    put = store.put("orders", b"x", delay_level=3, queue=1, tags="t")
    r = only(records(store))
    assert (r.topic_name, r.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
    assert r.property_map == {"TAGS": "t", "DELAY": "3", "REAL_TOPIC": "orders", "REAL_QID": "1"}
    assert store.units("SCHEDULE_TOPIC_XXXX", 2)[0][2] == put.store_timestamp + 10_000
    assert store.put("orders", b"y", delay_level=18).queue == 17


def test_transaction_types(store):
    """Prepared and rolled back records get queue offset 0 and no unit; committed ones a unit."""
    store.put("orders", b"plain", queue=0)
    store.put("orders", b"prepared", queue=0, sys_flag=0x4)
    store.put("orders", b"rollback", queue=0, sys_flag=0xC)
    store.put("orders", b"commit", queue=0, sys_flag=0x8)
    assert [r.queue_offset for r in records(store)] == [0, 0, 0, 1]
    assert [bytes(m.body) for m in store.read("orders", 0, 0)] == [b"plain", b"commit"]


def test_property_crc(store_path, small):
    """enabledAppendPropCRC ends each record with the CRC of all its other bytes."""
    with pystore.open(store_path, **small, enabledAppendPropCRC=True) as store:
        store.put("orders", b"x", keys="k")
        store.put("orders", b"y")
        store.put_many("orders", [b"z"] * 3, properties=[{"a": "b"}, None, {"c": "d"}])
        for m in store.messages():
            purecodec.check_record(bytes(m.record), prop_crc=True)
    with pystore.open(store_path, forceVerifyPropCRC=True) as store:
        assert len(list(store.messages())) == 5


def test_segments_roll(store_path, small):
    """A record that does not fit with 8 bytes to spare goes to the next file, after a blank."""
    with pystore.open(store_path, **small) as store:
        puts = [store.put("orders", bytes(100_000), queue=0) for _ in range(25)]
        assert store.info().log_files >= 3
        size = small["mappedFileSizeCommitLog"]
        assert all(p.physical_offset // size == (p.physical_offset + p.size) // size for p in puts)
        assert [m.physical_offset for m in store.messages()] == [p.physical_offset for p in puts]
    log = list(purecodec.iter_log(store_path / "commitlog"))
    assert [place for place, _ in log] == [p.physical_offset for p in puts]


@pytest.mark.parametrize("spare", [0, 7, 8, 9])
def test_end_of_a_segment_to_the_byte(store_path, small, spare):
    """With 8 bytes left after it a record still fits; with fewer it goes to the next file."""
    size = small["mappedFileSizeCommitLog"]
    with pystore.open(store_path, **small) as store:
        first = store.put("T", bytes(size // 2), queue=0)
        overhead = first.size - size // 2
        second = store.put("T", bytes(size - first.size - overhead - spare), queue=0)
        third = store.put("T", b"", queue=0)
    assert second.physical_offset == (first.size if spare >= 8 else size)
    assert third.physical_offset == (size if spare >= 8 else size + second.size)
    log = list(purecodec.iter_log(store_path / "commitlog"))
    assert [place for place, _ in log] == [p.physical_offset for p in (first, second, third)]
    with pystore.open(store_path) as store:
        assert [m.physical_offset for m in store.messages()] == [place for place, _ in log]


# ---- refusals ----

KIB = 1024
REFUSED = {
    "body too large": (pystore.MessageIllegal, ("T", bytes(4 * KIB * KIB + 1)), {}),
    "topic empty": (pystore.TopicIllegal, ("", b"x"), {}),
    "topic with a space": (pystore.TopicIllegal, ("a b", b"x"), {}),
    "topic with a slash": (pystore.TopicIllegal, ("../../etc", b"x"), {}),
    "topic with a dot": (pystore.TopicIllegal, ("a.b", b"x"), {}),
    "topic with NUL": (pystore.TopicIllegal, ("a\0b", b"x"), {}),
    "topic beyond ASCII": (pystore.TopicIllegal, ("主题", b"x"), {}),
    "topic of 128 bytes": (pystore.TopicIllegal, ("t" * 128, b"x"), {}),
    "retry topic of 256 bytes": (pystore.TopicIllegal, ("%RETRY%" + "g" * 249, b"x"), {}),
    "queue -1": (pystore.QueueIllegal, ("T", b"x"), {"queue": -1}),
    "queue 65536": (pystore.QueueIllegal, ("T", b"x"), {"queue": 65536}),
    "queue of 31 bits": (pystore.QueueIllegal, ("T", b"x"), {"queue": 2**31 - 1}),
    "properties of 32 KiB": (
        pystore.PropertiesSizeExceeded,
        ("T", b"x"),
        {"properties": {"p": "v" * 32765}},
    ),
    "value with 0x01": (pystore.PropertiesIllegal, ("T", b"x"), {"properties": {"p": "a\x01b"}}),
    "value with 0x02": (pystore.PropertiesIllegal, ("T", b"x"), {"properties": {"p": "a\x02b"}}),
    "name with 0x01": (pystore.PropertiesIllegal, ("T", b"x"), {"properties": {"p\x01": "b"}}),
    "name with 0x02": (pystore.PropertiesIllegal, ("T", b"x"), {"properties": {"\x02p": "b"}}),
    "name empty": (pystore.PropertiesIllegal, ("T", b"x"), {"properties": {"": "b"}}),
    "tags with 0x02": (pystore.PropertiesIllegal, ("T", b"x"), {"tags": "a\x02KEYS\x01b"}),
    "keys with a property": (pystore.PropertiesIllegal, ("T", b"x"), {"keys": "a\x02q\x01b"}),
    "value with a property": (
        pystore.PropertiesIllegal,
        ("T", b"x"),
        {"properties": {"p": "a\x02q\x01b"}},
    ),
    "keys with 0x01": (pystore.PropertiesIllegal, ("T", b"x"), {"keys": "a\x01b"}),
    "malformed host": (pystore.BadArgument, ("T", b"x"), {"born_host": "nowhere:1"}),
    "body of a wrong type": (pystore.BadArgument, ("T", 17), {}),
    "delay level -1": (pystore.BadArgument, ("T", b"x"), {"delay_level": -1}),
    "delay level 19": (pystore.BadArgument, ("T", b"x"), {"delay_level": 19}),
}


def file_hashes(root):
    """Hashes of what holds messages; `config` and `meta` may gain a topic by being asked for it."""
    return {
        name: content
        for name, content in storeview.folder_hash(root).items()
        if name.partition("/")[0] in ("commitlog", "consumequeue", "index")
    }


@pytest.fixture(scope="module")
def refusing(tmp_path_factory):
    path = tmp_path_factory.mktemp("refusing") / "store"
    sizes = {
        "mappedFileSizeCommitLog": 8 << 20,
        "mappedFileSizeConsumeQueue": 6000,
        "maxHashSlotNum": 512,
        "maxIndexNum": 1024,
    }
    with pystore.open(path, **sizes) as store:
        store.put("T", b"before", keys="k", queue=0)
        store.flush()
        yield store


@pytest.mark.parametrize("name", REFUSED)
def test_refused_put_changes_nothing(refusing, name):
    """A put that is refused says why, and no byte of log, queues and index has changed."""
    kind, args, options = REFUSED[name]
    before, info = file_hashes(refusing.path), refusing.info()
    with pytest.raises(kind) as caught:
        refusing.put(*args, **options)
    assert str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert refusing.info().log_max == info.log_max
    assert file_hashes(refusing.path) == before
    assert refusing.topics() == ["T"]


def test_refused_put_leaves_no_topic_behind(store_path, small):
    """A refused put makes neither a queue folder nor a topic in the metadata."""
    with pystore.open(store_path, **small) as store:
        for name, (_, args, options) in REFUSED.items():
            with pytest.raises(pystore.StoreError):
                store.put(*args, **options)
                pytest.fail(name)
        assert store.topics() == []
        assert "../../etc" not in {str(t) for t in store.topics()}
    assert not any((store_path / "consumequeue").glob("*"))


def test_largest_of_everything_is_taken(store_path, small):
    """The limits themselves are legal: 4 MiB of body, 127 bytes of topic, 32767 of properties."""
    sizes = small | {"mappedFileSizeCommitLog": 8 << 20}
    with pystore.open(store_path, **sizes) as store:
        body = bytes(4 << 20)
        put = store.put("t" * 127, body, properties={"p": "v" * 32764}, queue=65535)
        m = store.message(put.physical_offset)
        assert (len(m.body), len(m.raw_properties)) == (4 << 20, 32767)
        assert len(store.put("%RETRY%" + "g" * 248, b"x").message_id) == 32


def test_record_larger_than_a_file_is_refused(store, small):
    """A record that no file can hold is refused, and smaller ones go on being stored."""
    with pytest.raises(pystore.StoreError):
        store.put("T", bytes(small["mappedFileSizeCommitLog"]))
    assert store.put("T", b"x").physical_offset == 0


def test_max_message_size_is_a_setting(store_path, small):
    """maxMessageSize limits the body to the byte."""
    with pystore.open(store_path, **small, maxMessageSize=1000) as store:
        store.put("T", bytes(1000))
        with pytest.raises(pystore.MessageIllegal):
            store.put("T", bytes(1001))


# ---- many messages ----


def offsets_of(bodies, kind):
    return np.cumsum([0, *map(len, bodies)]).astype(kind)


BODIES = [b"one", b"", b"three" * 100, "vier ü".encode()]
COLUMNS = {
    "list": lambda: list(BODIES),
    "tuple of bytes": lambda: tuple(BODIES),
    "generator": lambda: iter(BODIES),
    "list of views": lambda: [memoryview(b) for b in BODIES],
    "int64 offsets": lambda: (b"".join(BODIES), offsets_of(BODIES, np.int64)),
    "int32 offsets": lambda: (b"".join(BODIES), offsets_of(BODIES, np.int32)),
    "array offsets": lambda: (
        bytearray(b"".join(BODIES)),
        array.array("q", offsets_of(BODIES, np.int64).tolist()),
    ),
    "offsets that begin later": lambda: (
        b"???" + b"".join(BODIES),
        offsets_of(BODIES, np.int64) + 3,
    ),
    "numpy data": lambda: (
        np.frombuffer(b"".join(BODIES), np.uint8),
        offsets_of(BODIES, np.int64),
    ),
    "arrow binary": lambda: pa.array(BODIES, pa.binary()),
    "arrow large binary": lambda: pa.array(BODIES, pa.large_binary()),
    "arrow string": lambda: pa.array([b.decode() for b in BODIES], pa.string()),
    "arrow large string": lambda: pa.array([b.decode() for b in BODIES], pa.large_string()),
    "arrow sliced": lambda: pa.array([b"zz", b"", *BODIES, b"tail"], pa.binary()).slice(2, 4),
    "arrow chunked": lambda: pa.chunked_array([BODIES[:1], BODIES[1:]], pa.binary()),
    "arrow null": lambda: pa.array([BODIES[0], None, *BODIES[2:]], pa.large_binary()),
    "arrow sliced null": lambda: pa.array([b"q", BODIES[0], None, *BODIES[2:]]).slice(1),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_put_many_takes_columns(store, kind):
    """Bodies may come as a list, as data with offsets, or as an Arrow array, sliced or not."""
    result = store.put_many("T", COLUMNS[kind](), queue=1)
    assert (result.status, result.count) == (pystore.PutStatus.PUT_OK, 4)
    assert [bytes(m.body) for m in store.read("T", 1, 0)] == BODIES
    assert list(result.queue_offsets) == [0, 1, 2, 3]
    assert list(result.physical_offsets) == [m.physical_offset for m in store.messages()]
    assert result.last_physical_end == store.info().log_max


@pytest.mark.parametrize("kind", ["list", "arrow", "offsets"])
def test_put_many_columns_of_tags_and_keys(store, kind):
    """Tags, keys and properties may be columns; an empty value leaves the property out."""
    make = {
        "list": lambda v: v,
        "arrow": lambda v: pa.array(v, pa.string()),
        "offsets": lambda v: (
            "".join(x or "" for x in v).encode(),
            offsets_of([(x or "").encode() for x in v], np.int32),
        ),
    }[kind]
    store.put_many(
        "T",
        [b"1", b"2", b"3"],
        tags=make(["a", None, "标"]),
        keys=make(["k1 k2", "", "k3"]),
        properties=[{"p": "1"}, None, {"q": "2"}],
        queues=np.array([2, 0, 2], np.int32),
        born_timestamps=np.array([1000, 2000, 3000], np.int64),
        flag=5,
    )
    assert [r.property_map for r in records(store)] == [
        {"TAGS": "a", "KEYS": "k1 k2", "p": "1"},
        {},
        {"TAGS": "标", "KEYS": "k3", "q": "2"},
    ]
    assert [(r.queue_id, r.queue_offset) for r in records(store)] == [(2, 0), (0, 0), (2, 1)]
    assert [r.born_timestamp for r in records(store)] == [1000, 2000, 3000]
    assert {r.flag for r in records(store)} == {5}
    assert [bytes(m.body) for m in store.query("T", "k3")] == [b"3"]


def test_put_many_common_values(store):
    """One text or mapping for all messages is stored in each."""
    store.put_many("T", [b"1", b"2"], tags="t", keys="k", properties={"p": "v"}, wait=False)
    common = {"TAGS": "t", "KEYS": "k", "p": "v", "WAIT": "false"}
    assert [r.property_map for r in records(store)] == [common, common]


def test_put_many_takes_a_flag_for_each_message(store):
    store.put_many("T", [b"a", b"b", b"c"], queue=0, flag=9, flags=array.array("i", [3, 1, 2]))
    assert [m.flag for m in store.read("T", 0, 0)] == [3, 1, 2]


def test_put_many_in_turn(store_path, small):
    """Without a queue the messages go round the topic's queues, from call to call and from open to
    open: else those of small batches would all be in the first queue."""
    for counts in ((3, 1, 0, 7), (2, 1), (9,)):
        with pystore.open(store_path, **small) as store:
            for count in counts:
                store.put_many("T", [b"x"] * count)
            queues = [r.queue_id for r in records(store)]
            store.put("T", b"x")
    assert 1 < len(set(queues)) < len(queues)
    assert queues == [i % len(set(queues)) for i in range(3 + 1 + 7 + 1 + 2 + 1 + 1 + 9)]


def test_put_many_over_segments(store):
    """Many messages may span several files; each record stays within one."""
    n = 30_000
    result = store.put_many("T", [b"%d" % i for i in range(n)], queue=0)
    assert store.info().log_files > 2
    assert list(result.queue_offsets) == list(range(n))
    assert [bytes(m.body) for m in everything(store, "T", 0)] == [b"%d" % i for i in range(n)]


def test_put_many_of_nothing(store):
    """No messages are stored of an empty column."""
    result = store.put_many("T", [], queue=0)
    assert (result.count, list(result.queue_offsets)) == (0, [])
    assert store.info().log_max == 0


BAD_MANY = {
    "offsets descend": lambda: {"bodies": (b"abc", np.array([0, 3, 1]))},
    "offsets beyond the data": lambda: {"bodies": (b"abc", np.array([0, 4]))},
    "offsets negative": lambda: {"bodies": (b"abc", np.array([-1, 2]))},
    "offsets descend, array": lambda: {"bodies": (b"abc", array.array("q", [0, 3, 1]))},
    "no offsets": lambda: {"bodies": (b"abc", np.array([], np.int64))},
    "offsets of floats": lambda: {"bodies": (b"abc", np.array([0.0, 1.0]))},
    "offsets of 16 bits": lambda: {"bodies": (b"abc", np.array([0, 1], np.int16))},
    "offsets with a stride": lambda: {"bodies": (b"abcd", np.array([0, 9, 1, 9, 2])[::2])},
    "fewer tags": lambda: {"tags": ["a"]},
    "more keys": lambda: {"keys": ["a", "b", "c"]},
    "fewer properties": lambda: {"properties": [{"a": "b"}]},
    "fewer queues": lambda: {"queues": np.array([0], np.int32)},
    "fewer times": lambda: {"born_timestamps": np.array([0])},
    "bodies of numbers": lambda: {"bodies": [1, 2]},
    "bodies as bytes": lambda: {"bodies": b"abc"},
    "bodies as text": lambda: {"bodies": "abc"},
    "arrow integers": lambda: {"bodies": pa.array([1, 2])},
    "one too large": lambda: {"bodies": [b"x", bytes((4 << 20) + 1)]},
    "one tag with 0x01": lambda: {"tags": ["a", "b\x01c"]},
    "one tag with a property": lambda: {"tags": ["a", "b\x02q\x01c"]},
    "a common tag with a property": lambda: {"tags": "b\x02q\x01c"},
    "common properties with another": lambda: {"properties": {"p": "b\x02q\x01c"}},
    "a mapping with another property": lambda: {"properties": [{}, {"p": "b\x02q\x01c"}]},
    "one negative queue": lambda: {"queues": np.array([0, -1], np.int32)},
    "one absurd queue": lambda: {"queues": np.array([0, 1 << 20], np.int32)},
    "a queue of -5": lambda: {"queue": -5},
    "properties too long": lambda: {"properties": [{}, {"p": "v" * 32766}]},
    "properties not encoded": lambda: {"properties": [b"a\x01b\x02", b"\x01\x01\x02"]},
}


@pytest.mark.parametrize("name", BAD_MANY)
def test_refused_put_many_stores_nothing(refusing, name):
    """One bad message among many: all are refused, and nothing has changed."""
    options = BAD_MANY[name]()
    bodies = options.pop("bodies", [b"x", b"y"])
    before = file_hashes(refusing.path)
    with pytest.raises((pystore.MessageIllegal, pystore.BadArgument)):
        refusing.put_many("T", bodies, **options)
    assert file_hashes(refusing.path) == before


# ---- a client's batch ----


def batch_payload(items):
    """The body of a client's batch: (flag, body, properties) each."""
    out = b""
    for flag, body, properties in items:
        rest = struct.pack(">ii", flag, len(body)) + body
        rest += struct.pack(">h", len(properties)) + properties
        out += struct.pack(">iii", 12 + len(rest), 0, 0) + rest
    return out


ITEMS = [
    (1, b"one", b"KEYS\x01b1\x02UNIQ_KEY\x01U1\x02"),
    (0, b"", b""),
    (7, b"three", b"TAGS\x01t"),
]


def test_put_batch_splits(store):
    """Each item of a batch becomes a record, with its own flag and the batch's properties."""
    result = store.put_batch("T", batch_payload(ITEMS), queue=2, properties={"UNIQ_KEY": "B"})
    assert (result.count, list(result.queue_offsets)) == (3, [0, 1, 2])
    got = records(store)
    assert [(r.flag, r.body) for r in got] == [(1, b"one"), (0, b""), (7, b"three")]
    assert [r.body_crc for r in got] == [zlib.crc32(r.body) & 0x7FFFFFFF for r in got]
    assert [r.property_map for r in got] == [
        {"KEYS": "b1", "UNIQ_KEY": "B"},
        {"UNIQ_KEY": "B"},
        {"TAGS": "t", "UNIQ_KEY": "B"},
    ]
    assert result.last_physical_end == store.info().log_max
    assert [bytes(m.body) for m in store.query("T", "B")] == [b"one", b"", b"three"]


def test_put_batch_rolls_as_a_whole(store, small):
    """A batch that does not fit into the rest of a file goes to the next one, all of it."""
    size = small["mappedFileSizeCommitLog"]
    first = store.put("T", bytes(size - 1000), queue=0)
    result = store.put_batch("T", batch_payload([(0, bytes(300), b"")] * 4), queue=0)
    places = [r.physical_offset for r in records(store)]
    assert places[0] == first.physical_offset
    assert places[1] == size
    assert (result.count, len(places)) == (4, 5)


@pytest.mark.parametrize(
    "payload",
    [
        b"short",
        batch_payload(ITEMS)[:-1],
        batch_payload(ITEMS) + b"\0" * 5,
        batch_payload([(0, b"x", b"")])[:16] + struct.pack(">i", -1) + b"\0\0",
        batch_payload([(0, b"x", b"")])[:16] + struct.pack(">i", 2**31 - 1) + b"\0\0",
        batch_payload([(0, b"x", b"")])[:21] + struct.pack(">h", -1),
        batch_payload([(0, b"x", b"\x01\x02")]) + b"\xff" * 40,
    ],
    ids=["short", "cut", "tail", "negative body", "huge body", "negative properties", "garbage"],
)
def test_malformed_batch_is_refused(refusing, payload):
    """A batch that is cut or has a wrong length anywhere is refused whole."""
    before = file_hashes(refusing.path)
    with pytest.raises(pystore.MessageIllegal):
        refusing.put_batch("T", payload)
    assert file_hashes(refusing.path) == before


def test_empty_batch(refusing):
    """A batch without items is refused, or stores nothing."""
    before = refusing.info().log_max
    with pytest.raises(pystore.StoreError):
        refusing.put_batch("T", b"")
    assert refusing.info().log_max == before


def test_batch_on_a_retry_topic_is_refused(refusing):
    """Upstream takes no batch for a %RETRY% topic; no more do we."""
    with pytest.raises(pystore.MessageIllegal):
        refusing.put_batch("%RETRY%g", batch_payload(ITEMS))


def test_batch_over_the_message_limit_is_refused(refusing):
    """The whole body of a batch may have maxMessageSize bytes."""
    with pytest.raises(pystore.MessageIllegal):
        refusing.put_batch("T", batch_payload([(0, bytes(1 << 20), b"")] * 5))


# ---- durability ----


def test_sync_flush_returns_with_the_disk(store_path, small):
    """With SYNC_FLUSH everything put is on the disk when put returns."""
    with pystore.open(store_path, **small, flushDiskType="SYNC_FLUSH") as store:
        for i in range(20):
            put = store.put("T", b"%d" % i)
            assert put.status is pystore.PutStatus.PUT_OK
            assert store.info().log_flushed >= put.physical_offset + put.size
        many = store.put_many("T", [b"x"] * 100)
        assert store.info().log_flushed >= many.last_physical_end
        batch = store.put_batch("T", batch_payload(ITEMS))
        assert store.info().log_flushed >= batch.last_physical_end


class SlowSyncs(pystore.Store):
    """A store whose syncs take at least 20 ms, however fast the disk: puts pile up meanwhile."""

    def _io(self):
        table = faulty.ps_io_faulty_new()  # never freed, since views may outlive a test
        faulty.ps_io_faulty_slow(table, 1 << 4 | 1 << 5 | 1 << 10, 20)  # of csrc/tests/faulty_io.h
        return table


def test_wait_false_does_not_wait(store_path, small):
    """wait=False returns before the sync, which comes later by itself."""
    with SlowSyncs(store_path, **small, flushDiskType="SYNC_FLUSH") as store:
        started = store.info().fsyncs
        for _ in range(2000):
            put = store.put("T", b"x", wait=False)
        assert store.info().fsyncs - started < 1000
        assert store.wait_flushed(put.physical_offset + put.size)


def test_group_commit(store_path, small):
    """64 threads of synchronous puts share syncs: far fewer syncs than puts."""
    with SlowSyncs(store_path, **small, flushDiskType="SYNC_FLUSH") as store:
        before = store.info()
        statuses = []

        def work():
            statuses.extend(store.put("T", b"x" * 100).status for _ in range(20))

        threads = [threading.Thread(target=work) for _ in range(64)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        after = store.info()
    assert statuses == [pystore.PutStatus.PUT_OK] * 1280
    assert after.puts - before.puts == 1280
    assert (after.puts - before.puts) / (after.fsyncs - before.fsyncs) > 4


def test_put_async_shares_syncs(store_path, small):
    """Awaiting puts share syncs, and each is on the disk when its await ends."""

    async def one(store, i):
        put = await store.put_async("T", b"%d" % i, keys=f"k{i}")
        assert store.info().log_flushed >= put.physical_offset + put.size
        return put

    async def all_of(store):
        return await asyncio.gather(*(one(store, i) for i in range(500)))

    with SlowSyncs(store_path, **small, flushDiskType="SYNC_FLUSH") as store:
        before = store.info().fsyncs
        puts = asyncio.run(all_of(store))
        assert {p.status for p in puts} == {pystore.PutStatus.PUT_OK}
        assert len({p.physical_offset for p in puts}) == 500
        assert store.info().fsyncs - before < 125


def test_put_async_raises_like_put(store):
    """put_async raises what put raises, at its await."""

    async def bad():
        await store.put_async("a b", b"x")

    with pytest.raises(pystore.TopicIllegal):
        asyncio.run(bad())


def test_async_flush_comes_by_itself(store_path, small):
    """With ASYNC_FLUSH the flusher brings everything to the disk within its thorough interval."""
    settings = {"flushIntervalCommitLog": 20, "flushCommitLogThoroughInterval": 100}
    with pystore.open(store_path, **small, **settings) as store:
        put = store.put("T", b"x")
        assert store.wait_flushed(put.physical_offset + put.size, timeout=BOUND_S)


def test_flush_brings_everything_to_disk(store):
    """After flush() nothing is left to sync, and the checkpoint says so."""
    put = store.put("T", b"x")
    store.flush()
    info = store.info()
    assert info.log_flushed == info.log_max == put.size
    assert info.checkpoint[0] >= put.store_timestamp > 0


def test_puts_count(store):
    """info() counts what was put, and where the log ends."""
    put = [store.put("T", b"x") for _ in range(10)][-1]
    store.put_many("T", [b"y"] * 5)
    info = store.info()
    assert info.puts == 15
    assert info.log_max > put.physical_offset + put.size
    assert info.store_timestamp_max >= put.store_timestamp


def test_batch_stores_what_comes_one_by_one(store_path, small):
    """Messages put one by one into a batch are all stored, in order, with what each carries."""
    with pystore.open(store_path, **small) as store:
        with store.batch("T", size=7, queue=0) as batch:
            for i in range(20):
                batch.put(b"%d" % i, tags="odd" if i % 2 else None, keys=f"k{i}")
            assert batch.stored == 14
        assert batch.stored == 20
        messages = list(store.read("T", 0, 0))
        assert [bytes(m.body) for m in messages] == [b"%d" % i for i in range(20)]
        assert [m.tags for m in messages] == [None, "odd"] * 10
        assert len(store.query("T", "k13")) == 1


def test_batch_ended_by_an_exception_keeps_what_was_flushed(store_path, small):
    """An exception in the block drops what was not flushed yet, and nothing else."""
    with pystore.open(store_path, **small) as store:
        with pytest.raises(KeyError), store.batch("T", size=4, queue=0) as batch:
            for i in range(6):
                batch.put(b"%d" % i)
            raise KeyError
        assert store.range("T", 0) == (0, 4)


@pytest.mark.parametrize("more", [{}, {"delay_level": 1}, {"born_timestamp": 1}])
def test_no_record_says_that_it_holds_a_batch(store, more):
    """Apache's recovery would cut the log off before one whose numbers it cannot read."""
    inner = {"INNER_BASE": "x", "INNER_NUM": "y"}
    with pytest.raises(MessageIllegal, match="INNER_NUM"):
        store.put("t", b"x", properties={"a": "b"} | inner, **more)
    with pytest.raises(MessageIllegal, match="INNER_NUM"):
        store.put_many("t", [b"x", b"y"], properties=[{}, inner])
    assert store.range("t", 0) == (0, 0)
    store.put("t", b"x", queue=0, properties={"MY_INNER_NUM": "1"}, **more)
