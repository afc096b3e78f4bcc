"""The store's files in plain Python: written from the format alone, apart from the C core.

Tests compare the two, and whatever must look into a store without the core may use it too. It
reads (and encodes single records); it never changes a file. The formats: csrc/format/layout.h,
csrc/queues/consumequeue.c and csrc/index/indexfile.h.
"""

from __future__ import annotations

import ipaddress
import mmap
import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194

SYS_BORN_V6 = 0x10
SYS_STORE_V6 = 0x20
TRANSACTION_MASK = 0xC
TRANSACTION_PREPARED = 0x4
TRANSACTION_ROLLBACK = 0xC

NAME_END = b"\x01"
PROPERTY_END = b"\x02"
PROP_CRC_LEN = 20
UNIT_SIZE = 20
INDEX_HEADER = 40
INDEX_ENTRY = 20
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
# messageDelayLevel: 1s 5s 10s 30s 1m ... 10m 20m 30m 1h 2h
DELAY_LEVELS_MS = tuple(
    s * 1000
    for s in (1, 5, 10, 30, *(60 * minutes for minutes in (*range(1, 11), 20, 30, 60, 120)))
)

# What mmap and bytes have in common for the functions below.
Buffer = bytes | bytearray | memoryview | mmap.mmap


class NotARecord(ValueError):
    """No valid record stands at a place.

    `outcome` is the core's word for why (ps_rec_outcome_name).
    `size` is the totalSize found there when it can be known: for a blank, and for a "bad size".
    """

    def __init__(self, outcome: str, place: int, size: int = 0) -> None:
        super().__init__(f"{outcome} at {place}")
        self.outcome = outcome
        self.place = place
        self.size = size


@dataclass(slots=True)
class Record:
    """A record of the commit log; the fields of docs/internals/format.md#record."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: bytes
    properties: bytes

    @property
    def topic_name(self) -> str:
        """The topic as Java reads it."""
        return java_text(self.topic)

    @property
    def property_map(self) -> dict[str, str]:
        """The properties as upstream's parser sees them."""
        return parse_properties(self.properties)


@dataclass(slots=True, frozen=True)
class Unit:
    """A unit of a consume queue, and the queue offset that it stands at."""

    offset: int
    physical_offset: int
    size: int
    tags_code: int


@dataclass(slots=True)
class IndexFile:
    """An index file: its header, and lookups through its chains."""

    begin_timestamp: int
    end_timestamp: int
    begin_physical: int
    end_physical: int
    slots_used: int
    count: int
    slots: int
    data: bytes = field(repr=False)

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Key hash, physical offset, seconds since begin_timestamp, previous entry of the slot."""
        at = INDEX_HEADER + 4 * self.slots + INDEX_ENTRY * number
        return struct.unpack_from(">iqii", self.data, at)

    def find(self, key_hash: int, begin: int = 0, end: int = 2**63 - 1) -> Iterator[int]:
        """Physical offsets of the entries with this hash, the newest first."""
        at = INDEX_HEADER + 4 * (key_hash % self.slots)
        number = int.from_bytes(self.data[at : at + 4], "big", signed=True)
        while self.count > 1 and 0 < number <= self.count:
            found, physical, seconds, previous = self.entry(number)
            stored = self.begin_timestamp + 1000 * seconds
            if seconds < 0 or stored < begin:
                return
            if found == key_hash and stored <= end:
                yield physical
            if previous == number:
                return
            number = previous


# ---- text and hashes, as Java has them ----


def java_text(data: bytes) -> str:
    """What Java's decoder makes of UTF-8 bytes: one U+FFFD for each longest ill-formed part.

    Python differs in one case: an encoded surrogate (ED A0..BF xx) is one such part to Java, and
    so are its first two bytes when the third is missing.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    out: list[str] = []
    at = 0
    while at < len(data):
        step = _sequence_length(data, at)
        try:
            out.append(data[at : at + step].decode("utf-8"))
        except UnicodeDecodeError:
            out.append("\ufffd")
        at += step
    return "".join(out)


def _sequence_length(data: bytes, at: int) -> int:
    """Bytes of the character at a place, or of the ill-formed part there."""
    first = data[at]
    wanted = 2 if 0xC2 <= first < 0xE0 else 3 if 0xE0 <= first < 0xF0 else 4
    if first < 0xC2 or first > 0xF4:
        return 1
    low = {0xE0: 0xA0, 0xF0: 0x90}.get(first, 0x80)
    high = 0x8F if first == 0xF4 else 0xBF
    length = 1
    for byte in data[at + 1 : at + wanted]:
        if not low <= byte <= high:
            break
        length += 1
        low, high = 0x80, 0xBF
    return length


def utf16_units(text: str) -> tuple[int, ...]:
    """The UTF-16 code units of a text: Java's chars."""
    data = text.encode("utf-16-be", "surrogatepass")
    return struct.unpack(f">{len(data) // 2}H", data)


def java_hash(text: str | bytes) -> int:
    """String.hashCode, of a text or of the bytes that Java would decode to one."""
    h = 0
    for unit in utf16_units(java_text(text) if isinstance(text, bytes) else text):
        h = (31 * h + unit) & 0xFFFFFFFF
    return h - (1 << 32) if h >> 31 else h


def index_hash(topic: str, key: str) -> int:
    """The hash under which the index files a key; the value without an absolute one becomes 0."""
    h = abs(java_hash(f"{topic}#{key}"))
    return 0 if h >> 31 else h


def java_int(text: str) -> int | None:
    """Integer.parseInt of ASCII digits, None when it would throw."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()):
        return None
    value = int(text)
    return value if -(2**31) <= value < 2**31 else None


def tags_code(record: Record, levels: Sequence[int] | None = DELAY_LEVELS_MS) -> int:
    """What a unit carries for a record: the tag hash, or the deliver time of a delayed message."""
    properties = record.property_map
    if record.topic == SCHEDULE_TOPIC.encode() and levels is not None and "DELAY" in properties:
        level = min(java_int(properties["DELAY"]) or 0, len(levels))
        if level > 0:
            return record.store_timestamp + levels[level - 1]
    return java_hash(properties["TAGS"]) if "TAGS" in properties else 0


# ---- properties ----


def parse_properties(data: bytes | str) -> dict[str, str]:
    """Upstream's parser: parts without name, value or separator are dropped, the last name wins."""
    text = java_text(data) if isinstance(data, bytes) else data
    out: dict[str, str] = {}
    for part in text.split("\x02"):
        name, separator, value = part.partition("\x01")
        if name and separator and value:
            out[name] = value
    return out


def encode_properties(properties: Mapping[str, str] | Iterable[tuple[str, str]]) -> bytes:
    """NAME 0x01 VALUE 0x02 one after another, in the order given."""
    pairs = properties.items() if isinstance(properties, Mapping) else properties
    return b"".join(
        name.encode() + NAME_END + value.encode() + PROPERTY_END for name, value in pairs
    )


def crc_digits(value: int) -> bytes:
    """Ten decimal digits, the least significant first."""
    return f"{value:010d}"[::-1].encode()


def prop_crc_bytes(head: bytes) -> bytes:
    """The 20 bytes of the properties CRC after `head`, the record's bytes before them."""
    digits = crc_digits(zlib.crc32(head) & 0x7FFFFFFF)
    return b"__CRC32#" + NAME_END + digits + PROPERTY_END


# ---- hosts and ids ----


def host_bytes(address: str, port: int) -> bytes:
    """A host as on disk: 4 or 16 address bytes and the port."""
    return ipaddress.ip_address(address).packed + struct.pack(">i", port)


def host_text(host: bytes) -> str:
    """address:port, the address as Java's getHostAddress writes it: IPv6 in full, without zeros."""
    address = host[:-4]
    if len(address) == 16 and address[:12] == bytes(10) + b"\xff\xff":
        address = address[12:]  # InetAddress takes a mapped address for the IPv4 one that it is
    if len(address) == 4:
        text = ".".join(str(byte) for byte in address)
    else:
        text = ":".join(f"{group:x}" for group in struct.unpack(">8H", address))
    return f"{text}:{struct.unpack('>i', host[-4:])[0]}"


def offset_msg_id(record: Record) -> str:
    """The broker's message id: store host and physical offset in hex."""
    return (record.store_host + struct.pack(">q", record.physical_offset)).hex().upper()


# ---- records ----


def encode_record(
    topic: bytes,
    body: bytes,
    *,
    properties: bytes = b"",
    queue_id: int = 0,
    flag: int = 0,
    queue_offset: int = 0,
    physical_offset: int = 0,
    sys_flag: int = 0,
    born_timestamp: int = 0,
    born_host: bytes = host_bytes("127.0.0.1", 0),
    store_timestamp: int = 0,
    store_host: bytes = host_bytes("127.0.0.1", 10911),
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    prop_crc: bool = False,
) -> bytes:
    """The bytes of one record. Properties are encoded and written as they are, limits unchecked."""
    sys_flag &= ~(SYS_BORN_V6 | SYS_STORE_V6)
    sys_flag |= SYS_BORN_V6 if len(born_host) == 20 else 0
    sys_flag |= SYS_STORE_V6 if len(store_host) == 20 else 0
    long_topic = len(topic) > 127
    if prop_crc and properties and not properties.endswith(PROPERTY_END):
        properties += PROPERTY_END
    properties_len = len(properties) + (PROP_CRC_LEN if prop_crc else 0)
    middle = struct.pack(
        ">iiiqqiq",
        zlib.crc32(body) & 0x7FFFFFFF,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
    )
    rest = b"".join(
        (
            middle,
            born_host,
            struct.pack(">q", store_timestamp),
            store_host,
            struct.pack(">iqi", reconsume_times, prepared_transaction_offset, len(body)),
            body,
            struct.pack(">h" if long_topic else ">b", len(topic)),
            topic,
            struct.pack(">h", properties_len),
            properties,
        )
    )
    size = 8 + len(rest) + properties_len - len(properties)
    head = struct.pack(">iI", size, MAGIC_V2 if long_topic else MAGIC_V1) + rest
    return head + prop_crc_bytes(head) if prop_crc else head


def encode_blank(remaining: int) -> bytes:
    """The 8 bytes that close a file with `remaining` bytes left."""
    return struct.pack(">iI", remaining, MAGIC_BLANK)


def decode_record(data: Buffer, offset: int = 0, *, end: int | None = None) -> Record:
    """The record at an offset of the bytes, of which those from `end` on may not be read.

    Sizes are checked, sums are not (check_record does). NotARecord says what stands there instead.
    """
    available = (len(data) if end is None else end) - offset
    if available < 8:
        raise NotARecord("short", offset)
    size, magic = struct.unpack_from(">iI", data, offset)
    if magic == MAGIC_BLANK:
        raise NotARecord("blank", offset, size)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise NotARecord("end" if size == magic == 0 else "bad magic", offset)
    if size > available:
        raise NotARecord("short", offset, size)
    try:
        record = _parse(bytes(data[offset : offset + max(size, 0)]), magic)
    except (struct.error, IndexError, ValueError) as error:
        raise NotARecord("bad size", offset, size) from error
    return record


def _parse(data: bytes, magic: int) -> Record:
    """The record that fills `data` exactly; any exception means that its fields do not."""
    at = 8

    def number(code: str) -> int:
        nonlocal at
        value: int
        (value,) = struct.unpack_from(">" + code, data, at)
        at += struct.calcsize(">" + code)
        return value

    def part(length: int) -> bytes:
        nonlocal at
        if length < 0 or at + length > len(data):
            raise ValueError("a part runs past the record")
        at += length
        return data[at - length : at]

    body_crc, queue_id, flag = number("i"), number("i"), number("i")
    queue_offset, physical_offset, sys_flag = number("q"), number("q"), number("i")
    born_timestamp, born_host = number("q"), part(20 if sys_flag & SYS_BORN_V6 else 8)
    store_timestamp, store_host = number("q"), part(20 if sys_flag & SYS_STORE_V6 else 8)
    reconsume_times, prepared = number("i"), number("q")
    body = part(number("i"))
    topic = part(number("b" if magic == MAGIC_V1 else "h"))
    properties = part(number("h"))
    if at != len(data):
        raise ValueError("the parts do not fill the record")
    return Record(
        size=len(data),
        magic=magic,
        body_crc=body_crc,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
        body=body,
        topic=topic,
        properties=properties,
    )


def check_record(
    data: Buffer,
    offset: int = 0,
    *,
    end: int | None = None,
    place: int | None = None,
    prop_crc: bool | None = False,
) -> Record:
    """decode_record, then the sums, then whether it stands at physical offset `place`.

    prop_crc True: require the properties CRC instead of the body's; None: check it where there is
    one, beside the body's.
    """
    record = decode_record(data, offset, end=end)
    cut = offset + record.size - PROP_CRC_LEN
    carried = has_prop_crc(record.properties)
    if prop_crc is not False and carried:
        good = prop_crc_bytes(bytes(data[offset:cut])) == bytes(data[cut : cut + PROP_CRC_LEN])
    else:
        good = prop_crc is not True
    if not prop_crc and record.body:  # upstream does not look at the sum of an empty body
        good = good and zlib.crc32(record.body) & 0x7FFFFFFF == record.body_crc
    if not good:
        raise NotARecord("bad crc", offset, record.size)
    if place is not None and record.physical_offset != place:
        raise NotARecord("bad place", offset, record.size)
    return record


def has_prop_crc(properties: bytes) -> bool:
    """Whether the properties end in a properties CRC (with any digits)."""
    tail = properties[-PROP_CRC_LEN:]
    alone = len(properties) == PROP_CRC_LEN or properties[-PROP_CRC_LEN - 1 :][:1] == PROPERTY_END
    whole = len(tail) == PROP_CRC_LEN and tail.endswith(PROPERTY_END)
    return alone and whole and tail.startswith(b"__CRC32#\x01")


def iter_batch(payload: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Flag, body and properties of each item of a client's batch; ValueError when malformed."""
    at = 0
    while at < len(payload):
        try:
            flag, body_len = struct.unpack_from(">ii", payload, at + 12)
            (properties_len,) = struct.unpack_from(">h", payload, at + 20 + max(body_len, 0))
        except struct.error as error:
            raise ValueError(f"the item at {at} is cut") from error
        middle = at + 20 + body_len
        end = middle + 2 + properties_len
        if body_len < 0 or properties_len < 0 or end > len(payload):
            raise ValueError(f"the item at {at} is malformed")
        yield flag, payload[at + 20 : middle], payload[middle + 2 : end]
        at = end


# ---- files ----


@contextmanager
def mapped(path: Path) -> Iterator[Buffer]:
    """A file's bytes, mapped read-only."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def files_of(folder: Path) -> list[tuple[int, Path]]:
    """The files of a log or queue with their first offsets, in order; a last empty file is none."""
    found = sorted(
        (int(path.name), path)
        for path in folder.iterdir()
        if path.is_file() and len(path.name) == 20 and path.name.isdigit()
    )
    while found and found[-1][1].stat().st_size == 0:
        found.pop()
    return found


def iter_log(folder: Path, file_size: int | None = None) -> Iterator[tuple[int, Record]]:
    """Every valid record of a commit log with its place, up to the first invalid one.

    Body sums are checked, as recovery does. ValueError names a file that has not `file_size` bytes
    or does not follow the one before.
    """
    expected: int | None = None
    for first, path in files_of(folder):
        size = path.stat().st_size
        if file_size is not None and size != file_size:
            raise ValueError(f"{path} has {size} bytes, not {file_size}")
        if expected is not None and first != expected:
            raise ValueError(f"{path} does not start at {expected}")
        expected = first + size
        with mapped(path) as data:
            at = 0
            while True:
                try:
                    record = check_record(data, at)
                except NotARecord as stop:
                    if stop.outcome == "blank":
                        break
                    return
                yield first + at, record
                at += record.size


def iter_units(folder: Path, start: int = 0) -> Iterator[Unit]:
    """The units of one queue's folder from queue offset `start` on, up to its end.

    The end is the first unit without an offset or a size, as recovery has it. Units that only fill
    the first file up to a queue's start are among them.
    """
    for first, path in files_of(folder):
        with mapped(path) as data:
            for at in range(0, len(data) - UNIT_SIZE + 1, UNIT_SIZE):
                physical, size, code = struct.unpack_from(">qiq", data, at)
                if physical < 0 or size <= 0:
                    return
                if (first + at) // UNIT_SIZE >= start:
                    yield Unit((first + at) // UNIT_SIZE, physical, size, code)


def iter_queues(folder: Path) -> Iterator[tuple[str, int, Path]]:
    """Topic, queue id and folder of each queue below consumequeue/, in Java's order of topics."""
    if not folder.is_dir():
        return
    for topic in sorted(folder.iterdir(), key=lambda path: utf16_units(path.name)):
        if topic.is_dir():
            for queue in sorted(int(q.name) for q in topic.iterdir() if q.name.isdigit()):
                yield topic.name, queue, topic / str(queue)


def queue_min(units: Sequence[Unit], first_file_units: int, log_min: int) -> int:
    """How many leading units a queue no longer serves once the log starts at `log_min`."""
    if not units or units[-1].physical_offset < log_min:
        return len(units)
    head = units[:first_file_units]
    found = bisect_left(head, log_min, key=lambda unit: unit.physical_offset)
    return found if found < len(head) else 0


def read_index(path: Path, slots: int) -> IndexFile:
    """An index file; an impossible count reads as 1, an empty file."""
    data = path.read_bytes()
    begin, end, begin_physical, end_physical, used, count = struct.unpack_from(">qqqqii", data)
    return IndexFile(begin, end, begin_physical, end_physical, used, max(count, 1), slots, data)


def query_index(
    folder: Path,
    slots: int,
    topic: str,
    key: str,
    begin: int = 0,
    end: int = 2**63 - 1,
    most: int = 64,
) -> list[int]:
    """Physical offsets filed under topic#key, ascending, with those of keys of equal hash."""
    key_hash = index_hash(topic, key)
    found: list[int] = []
    for path in sorted((p for p in folder.iterdir() if p.name.isdigit()), reverse=True):
        index = read_index(path, slots)
        if begin <= index.end_timestamp and end >= index.begin_timestamp:
            found.extend(index.find(key_hash, begin, end))
        if index.begin_timestamp < begin or len(found) >= most:
            break
    return sorted(found[:most])


# ---- the lines of the reference's dump ----


def java_json(text: str) -> str:
    """A JSON string as the reference's programs write it: every unit beyond ASCII as \\uXXXX."""
    out = ['"']
    for unit in utf16_units(text):
        char = chr(unit)
        if char in '"\\':
            out.append("\\" + char)
        elif 32 <= unit <= 126:
            out.append(char)
        else:
            out.append(f"\\u{unit:04x}")
    out.append('"')
    return "".join(out)


def msg_line(place: int, record: Record) -> str:
    """The `msg` line of a record, as `reference dump` prints it."""
    pairs = sorted(record.property_map.items(), key=lambda pair: utf16_units(pair[0]))
    properties = ",".join(f"{java_json(name)}:{java_json(value)}" for name, value in pairs)
    fields = {
        "at": '"msg"',
        "phy": place,
        "size": record.size,
        "magic": record.magic,
        "topic": java_json(record.topic_name),
        "queue": record.queue_id,
        "queue_offset": record.queue_offset,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "born_ts": record.born_timestamp,
        "born_host": java_json(host_text(record.born_host)),
        "store_ts": record.store_timestamp,
        "store_host": java_json(host_text(record.store_host)),
        "reconsume": record.reconsume_times,
        "prepared_offset": record.prepared_transaction_offset,
        "body_crc": record.body_crc,
        "body_len": len(record.body),
        "body_crc32": f'"{zlib.crc32(record.body):08x}"',
        "props": "{" + properties + "}",
    }
    return "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}"


def cq_line(topic: str, queue: int, unit: Unit) -> str:
    """The `cq` line of a unit, as `reference dump` prints it."""
    return (
        f'{{"at":"cq","topic":{java_json(topic)},"queue":{queue},"offset":{unit.offset}'
        f',"phy":{unit.physical_offset},"size":{unit.size},"tags_code":{unit.tags_code}}}'
    )


def derive_units(
    log: Iterable[tuple[int, Record]], levels: Sequence[int] | None = DELAY_LEVELS_MS
) -> dict[tuple[str, int], list[Unit]]:
    """The units that the log implies, by topic and queue id: what a dispatcher has to write."""
    queues: dict[tuple[str, int], list[Unit]] = {}
    for place, record in log:
        if record.sys_flag & TRANSACTION_MASK in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK):
            continue
        unit = Unit(record.queue_offset, place, record.size, tags_code(record, levels))
        queues.setdefault((record.topic_name, record.queue_id), []).append(unit)
    return queues


def dump_lines(
    root: Path,
    commitlog_size: int | None = None,
    queue_size: int | None = None,
    *,
    derived: bool = False,
) -> Iterator[str]:
    """The `msg` and `cq` lines that `reference dump` prints for a store.

    The sizes are those of its arguments; None takes what the files have. The reference recovers the
    store first, this only reads: where the queues may lack units that the log implies (after a
    crash), `derived` takes all units from the log.
    """
    places = files_of(root / "commitlog")
    for place, record in iter_log(root / "commitlog", commitlog_size):
        yield msg_line(place, record)
    if derived:
        queues = derive_units(iter_log(root / "commitlog", commitlog_size))
        for topic, queue in sorted(queues, key=lambda name: (utf16_units(name[0]), name[1])):
            for unit in queues[topic, queue]:
                yield cq_line(topic, queue, unit)
        return
    log_min = places[0][0] if places else 0
    for topic, queue, folder in iter_queues(root / "consumequeue"):
        units = list(iter_units(folder))
        files = files_of(folder)
        size = queue_size if queue_size is not None else files[0][1].stat().st_size if files else 0
        for unit in units[queue_min(units, size // UNIT_SIZE, log_min) :]:
            yield cq_line(topic, queue, unit)
