"""Messages as the command line shows them: the fields of a dump, JSON with the body, lines of text.

The ``msg`` and ``cq`` lines are byte for byte those of the reference's dump (the real Java store),
so that the two can be compared with ``diff``.
"""

from __future__ import annotations

import base64
import string
import struct
import zlib
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Any

from pystore._errors import RecordDamaged
from pystore._messages import Message
from pystore.cli._values import iso, printable

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

_PREVIEW = 60
_HEX_WIDTH = 16
_PLAIN = frozenset(string.printable) - frozenset('"\\\t\n\r\x0b\x0c')


def java_order(name: str) -> bytes:
    """Sorts as Java's String does: by UTF-16 code units, not by code points."""
    return name.encode("utf-16-be", "surrogatepass")


def java_string(text: str) -> str:
    r"""A JSON string as the reference writes it: ``\uXXXX`` for each unit below 32 or above 126."""
    if _PLAIN.issuperset(text):
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


def _properties_json(message: Message) -> str:
    pairs = _sorted_properties(message).items()
    return "{" + ",".join(f"{_cached_string(k)}:{java_string(v)}" for k, v in pairs) + "}"


def _crc32(message: Message) -> str:
    return f"{zlib.crc32(message.raw_body):08x}"


def _body_len(message: Message) -> int:
    return len(message.raw_body)


def _number(get: Callable[[Message], Any]) -> tuple[Callable[[Message], Any], Callable[..., str]]:
    return get, lambda m: str(get(m))


def _name(get: Callable[[Message], Any]) -> tuple[Callable[[Message], Any], Callable[..., str]]:
    """Texts that come again and again."""
    return get, lambda m: _cached_string(get(m))


#: Fields of a ``msg`` line, in its order: the value, and its JSON.
FIELDS: dict[str, tuple[Callable[[Message], Any], Callable[[Message], str]]] = {
    "phy": _number(attrgetter("physical_offset")),
    "size": _number(attrgetter("size")),
    "magic": _number(attrgetter("magic")),
    "topic": _name(attrgetter("topic")),
    "queue": _number(attrgetter("queue")),
    "queue_offset": _number(attrgetter("queue_offset")),
    "flag": _number(attrgetter("flag")),
    "sys_flag": _number(attrgetter("sys_flag")),
    "born_ts": _number(attrgetter("born_timestamp")),
    "born_host": _name(attrgetter("born_host")),
    "store_ts": _number(attrgetter("store_timestamp")),
    "store_host": _name(attrgetter("store_host")),
    "reconsume": _number(attrgetter("reconsume_times")),
    "prepared_offset": _number(attrgetter("prepared_transaction_offset")),
    "body_crc": _number(attrgetter("body_crc")),
    "body_len": _number(_body_len),
    "body_crc32": (_crc32, lambda m: f'"{_crc32(m)}"'),
    "props": (_sorted_properties, _properties_json),
}

_ENCODERS = tuple((f',"{name}":', encode) for name, (_, encode) in FIELDS.items())


def msg_line(message: Message) -> str:
    """The ``msg`` line of the reference's dump."""
    parts = ['{"at":"msg"']
    for name, encode in _ENCODERS:
        parts.append(name)
        parts.append(encode(message))
    parts.append("}")
    return "".join(parts)


def cq_line(topic: str, queue: int, offset: int, unit: tuple[int, int, int]) -> str:
    """The ``cq`` line of the reference's dump. unit: physical offset, size, tags code."""
    physical, size, tags = unit
    return (
        f'{{"at":"cq","topic":{_cached_string(topic)},"queue":{queue},"offset":{offset}'
        f',"phy":{physical},"size":{size},"tags_code":{tags}}}'
    )


def message_record(message: Message, *, stored: bool = False) -> dict[str, object]:
    """A message for JSON: the fields of a ``msg`` line, its ids and its body.

    stored: the body as it lies on the disk, compressed or not; else inflated. A body that does not
    inflate comes as it lies there, with ``body_error``. ``body_encoding`` is utf-8 or base64.
    """
    record: dict[str, object] = {"at": "msg"}
    for name, (get, _) in FIELDS.items():
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
    """A body for people: text where it is text, else a hex dump."""
    try:
        return printable(bytes(body).decode(), keep="\n\t")
    except UnicodeDecodeError:
        return hex_dump(body)


def hex_dump(body: bytes | memoryview) -> str:
    """Lines of offset, 16 bytes and their letters."""
    lines = []
    for at in range(0, len(body), _HEX_WIDTH):
        part = bytes(body[at : at + _HEX_WIDTH])
        letters = "".join(chr(b) if 32 <= b < 127 else "." for b in part)
        lines.append(f"{at:08x}  {part.hex(' '):<{3 * _HEX_WIDTH - 1}}  {letters}")
    return "\n".join(lines)


def _preview(message: Message) -> str:
    """The beginning of the body on one line."""
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
    """A message on one line: when, where, tags, keys, body."""
    properties = message.properties
    tags, keys = properties.get("TAGS", ""), properties.get("KEYS", "")
    return "  ".join(
        (
            iso(message.store_timestamp),
            printable(f"{message.topic}/{message.queue}@{message.queue_offset}"),
            *([f"tags={printable(tags)}"] if tags else []),
            *([f"keys={printable(keys)}"] if keys else []),
            _preview(message),
        )
    )
