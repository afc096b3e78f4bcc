"""Messages as the command line shows them: the fields of a dump, JSON with the body, lines of text.

The ``msg`` and ``cq`` lines are byte for byte those of the reference's dump (the real Java store),
so that the two can be compared with ``diff``.
"""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Any

from pystore.cli._values import iso, printable
from pystore.errors import RecordDamaged
from pystore.format.properties import parse_properties
from pystore.format.records import record_head
from pystore.native import lib
from pystore.store._messages import Message
from pystore.store._messages import _host_text as host_text

__all__ = [
    "FIELDS",
    "cq_line",
    "hex_dump",
    "java_order",
    "java_string",
    "message_lines",
    "message_record",
    "msg_line",
    "shown_body",
]

_BORN_HOST = int(lib.PS_AT_BORN_HOST)
_PREVIEW = 60
_HEX_WIDTH = 16
#: What a JSON string holds escaped; 1 and 2 separate properties, a second 1 belongs to the value.
_TO_ESCAPE = re.compile(rb'["\\\x00\x03-\x1f\x7f]|\x01[^\x02]*\x01')


def java_order(name: str) -> bytes:
    """Sorts as Java's String does: by UTF-16 code units, not by code points."""
    return name.encode("utf-16-be", "surrogatepass")


def java_string(text: str) -> str:
    """Writes a JSON string as the reference does: ``\\uXXXX`` for each unit below 32 or above
    126."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    parts = ['"']
    for (unit,) in struct.iter_unpack(">H", java_order(text)):
        if unit in (0x22, 0x5C):
            parts.append("\\" + chr(unit))
        elif 32 <= unit <= 126:
            parts.append(chr(unit))
        else:
            parts.append(f"\\u{unit:04x}")
    parts.append('"')
    return "".join(parts)


_cached_string = lru_cache(1024)(java_string)


def _sorted_properties(message: Message) -> dict[str, str]:
    properties = message.properties
    return {name: properties[name] for name in sorted(properties, key=java_order)}


def _crc32(message: Message) -> str:
    return f"{zlib.crc32(message.raw_body):08x}"


def _body_len(message: Message) -> int:
    return len(message.raw_body)


#: Fields of a ``msg`` line by name, in its order.
FIELDS: dict[str, Callable[[Message], Any]] = {
    "phy": attrgetter("physical_offset"),
    "size": attrgetter("size"),
    "magic": attrgetter("magic"),
    "topic": attrgetter("topic"),
    "queue": attrgetter("queue"),
    "queue_offset": attrgetter("queue_offset"),
    "flag": attrgetter("flag"),
    "sys_flag": attrgetter("sys_flag"),
    "born_ts": attrgetter("born_timestamp"),
    "born_host": attrgetter("born_host"),
    "store_ts": attrgetter("store_timestamp"),
    "store_host": attrgetter("store_host"),
    "reconsume": attrgetter("reconsume_times"),
    "prepared_offset": attrgetter("prepared_transaction_offset"),
    "body_crc": attrgetter("body_crc"),
    "body_len": _body_len,
    "body_crc32": _crc32,
    "props": _sorted_properties,
}


def msg_line(m: Message) -> str:
    """Returns the ``msg`` line of the reference's dump: the values of FIELDS, in one pass over the
    record.

    A dump asks for every field of millions of messages, so the record is taken apart in one call
    instead of attribute by attribute.
    """
    view = m.record
    r, head = bytes(view), record_head(view)
    born_host = _host(r[_BORN_HOST : head.born_host_end])
    store_host = _host(r[head.host_at : head.host_at + head.host_len])
    body_crc32 = zlib.crc32(view[head.body_start : head.body_end])
    topic = _topic(r[head.topic_at : head.topic_at + head.topic_len])
    properties = _properties_json(r[head.properties_at :])
    return (
        f'{{"at":"msg","phy":{head.physical_offset},"size":{head.end},"magic":{head.magic}'
        f',"topic":{topic},"queue":{head.queue},"queue_offset":{head.queue_offset}'
        f',"flag":{head.flag},"sys_flag":{head.sys_flag},"born_ts":{head.born_ms}'
        f',"born_host":{born_host},"store_ts":{head.store_ms},"store_host":{store_host}'
        f',"reconsume":{head.reconsume_times},"prepared_offset":{head.prepared_offset}'
        f',"body_crc":{head.body_crc},"body_len":{head.body_end - head.body_start}'
        f',"body_crc32":"{body_crc32:08x}","props":{properties}}}'
    )


@lru_cache(4096)
def _host(raw: bytes) -> str:
    """Returns the JSON of a host field; few hosts fill a store."""
    return f'"{host_text(memoryview(raw))}"'


@lru_cache(4096)
def _topic(raw: bytes) -> str:
    return java_string(raw.decode("utf-8", "replace"))


def _properties_json(raw: bytes) -> str:
    properties = parse_properties(raw)
    # Names and values without a letter to escape, and most are such, need no look one by one.
    if raw.isascii() and not _TO_ESCAPE.search(raw):
        pairs = [f'"{name}":"{properties[name]}"' for name in sorted(properties)]
    else:
        names = sorted(properties, key=java_order)
        pairs = [f"{java_string(name)}:{java_string(properties[name])}" for name in names]
    return "{" + ",".join(pairs) + "}"


def cq_line(topic: str, queue: int, offset: int, unit: tuple[int, int, int]) -> str:
    """Writes the ``cq`` line of the reference's dump. unit: physical offset, size, tags code."""
    physical, size, tags = unit
    return (
        f'{{"at":"cq","topic":{_cached_string(topic)},"queue":{queue},"offset":{offset}'
        f',"phy":{physical},"size":{size},"tags_code":{tags}}}'
    )


def message_record(message: Message, *, stored: bool = False) -> dict[str, object]:
    """Returns a message for JSON: the fields of a ``msg`` line, its ids and its body.

    stored: the body as it lies on the disk, compressed or not; else inflated. A body that does not
    inflate comes as it lies there, with ``body_error``. ``body_encoding`` is utf-8 or base64.
    """
    record: dict[str, object] = {"at": "msg"}
    for name, get in FIELDS.items():
        record[name] = get(message)
    record["msg_id"] = message.message_id
    record["offset_msg_id"] = message.offset_message_id
    body: bytes | memoryview = message.raw_body
    if not stored:
        try:
            body = message.body
        except RecordDamaged as error:
            record["body_error"] = error.text
    try:
        record["body"], record["body_encoding"] = bytes(body).decode(), "utf-8"
    except UnicodeDecodeError:
        record["body"] = base64.b64encode(body).decode()
        record["body_encoding"] = "base64"
    return record


def shown_body(body: bytes | memoryview) -> str:
    """Returns a body for people: text where it is text, else a hex dump."""
    try:
        return printable(bytes(body).decode(), keep="\n\t")
    except UnicodeDecodeError:
        return hex_dump(body)


def hex_dump(body: bytes | memoryview) -> str:
    """Writes lines of offset, 16 bytes and their letters."""
    lines = []
    for at in range(0, len(body), _HEX_WIDTH):
        part = bytes(body[at : at + _HEX_WIDTH])
        letters = "".join(chr(b) if 32 <= b < 127 else "." for b in part)
        lines.append(f"{at:08x}  {part.hex(' '):<{3 * _HEX_WIDTH - 1}}  {letters}")
    return "\n".join(lines)


def _preview(message: Message) -> str:
    """Returns the beginning of the body on one line."""
    try:
        body = message.body
    except RecordDamaged as error:
        return f"<{error.text}>"
    head = bytes(body[: 4 * _PREVIEW])
    if len(body) > len(head):
        # The cut may have split a character; dropping up to three bytes mends that.
        head = head[: len(head) - next((n for n in range(4) if _is_text(head[: len(head) - n])), 0)]
    if not _is_text(head):
        return f"<{len(body)} bytes>"
    text = printable(head.decode())
    return text if len(text) <= _PREVIEW else text[:_PREVIEW] + "\u2026"


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def message_lines(message: Message) -> str:
    """Writes a message on one line: when, where, lite topic, tags, keys, body."""
    properties = message.properties
    tags, keys = properties.get("TAGS", ""), properties.get("KEYS", "")
    lite = properties.get("__LITE_TOPIC", "")
    return "  ".join(
        (
            iso(message.store_timestamp),
            printable(f"{message.topic}/{message.queue}@{message.queue_offset}"),
            *([f"lite={printable(lite)}"] if lite else []),
            *([f"tags={printable(tags)}"] if tags else []),
            *([f"keys={printable(keys)}"] if keys else []),
            _preview(message),
        )
    )
