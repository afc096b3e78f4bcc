"""The codec of frames a second time, in Python alone: the twin that the one in C is compared with.

It says what the format is in as few lines as it can (docs/wire.md), and is slow. Nothing of the
product imports it.
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any

from broker.wire.command import BINARY, JSON, Command
from pystore.errors import BadFrame

FIELDS_MAX = 256
HEADER_MAX = 1 << 20
DEPTH_MAX = 32

LANGUAGES = ["JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER"]
LANGUAGES += ["HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS"]
OTHER = LANGUAGES.index("OTHER")


def decode(frame: bytes) -> Command:
    """One whole frame. Raises: BadFrame."""
    try:
        total, word = struct.unpack_from(">iI", frame)
        kind, length = word >> 24, word & 0xFFFFFF
        need(total + 4 == len(frame) and length <= total - 4, "lengths")
        need(length <= HEADER_MAX and kind in (JSON, BINARY), "header")
        header = frame[8 : 8 + length]
        made = from_json(header) if kind == JSON else from_binary(header)
    except (struct.error, ValueError, RecursionError) as bad:
        raise BadFrame(str(bad)) from None
    made.body = frame[8 + length :]
    return made


def need(claim: bool, what: str) -> None:
    if not claim:
        raise BadFrame(what)


# ---- JSON ----


class Number(str):
    """A number as it is written."""


class Pairs(list[tuple[str, Any]]):
    """An object with all its members, repeated ones too."""


def no_constant(word: str) -> None:
    raise BadFrame(word)  # NaN and the like, which Python reads and JSON does not have


def lone(text: str) -> str:
    """Halves of surrogate pairs become what Java writes for them."""
    return re.sub("[\ud800-\udfff]", "?", text)


def scalar(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    need(value is None or isinstance(value, str), "a text")
    return None if value is None else lone(value)


def int32(value: Any, default: int) -> int:
    if value is None:
        return default
    need(isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,10}", value) is not None, "a number")
    need(len(value) <= 10 + value.startswith("-"), "a number")
    need(-(1 << 31) <= int(value) < 1 << 31, "a number")
    return int(value)


def check_depth(value: Any, left: int) -> None:
    need(left >= 0 or not isinstance(value, list), "depth")
    if isinstance(value, list):
        for member in value:
            check_depth(member[1] if isinstance(value, Pairs) else member, left - 1)


def fields(pairs: Any) -> dict[str, str]:
    need(isinstance(pairs, Pairs), "extFields")
    last = {lone(name): scalar(value) for name, value in pairs}
    return {name: value for name, value in last.items() if value is not None}


def from_json(header: bytes) -> Command:
    # Only the blanks of JSON: Python's own parser takes a byte order mark too.
    got = json.JSONDecoder(
        object_pairs_hook=Pairs,
        parse_int=Number,
        parse_float=Number,
        parse_constant=no_constant,
        strict=False,
    ).decode(header.decode())
    need(isinstance(got, Pairs), "an object")
    made, seen = Command(0, version=0), 0
    for name, value in got:
        match lone(name):
            case "code" | "flag" | "opaque" | "version" as number:
                setattr(made, number, int32(value, getattr(made, number)))
            case "remark":
                text = scalar(value)
                made.remark = made.remark if text is None else text
            case "language" if value is not None:
                known = value in LANGUAGES and not isinstance(value, Pairs | Number)
                made.language = LANGUAGES.index(value) if known else OTHER
                check_depth(value, DEPTH_MAX - 1)
            case "extFields" if value is not None:
                made.ext = fields(value)
                seen += len(value)
                need(seen <= FIELDS_MAX, "extFields")
            case _:
                check_depth(value, DEPTH_MAX - 1)
    return made


def json_text(text: str) -> str:
    """As fastjson 1.2.83 writes it."""
    short = {
        '"': '\\"',
        "\\": "\\\\",
        "\b": "\\b",
        "\t": "\\t",
        "\n": "\\n",
        "\f": "\\f",
        "\r": "\\r",
    }
    wide = '[\x00-\x1f\x7f-\x9f\u2028\u2029"\\\\]'

    def one(match: re.Match[str]) -> str:
        return short.get(match.group()) or f"\\u{ord(match.group()):04X}"

    return f'"{re.sub(wide, one, lone(text))}"'


def to_json(command: Command) -> bytes:
    ext = ",".join(f"{json_text(name)}:{json_text(value)}" for name, value in command.ext.items())
    known = 0 <= command.language < len(LANGUAGES)
    remark = "" if command.remark is None else f',"remark":{json_text(command.remark)}'
    return (
        f'{{"code":{command.code},"extFields":{{{ext}}},"flag":{command.flag}'
        f',"language":"{LANGUAGES[command.language if known else OTHER]}"'
        f',"opaque":{command.opaque}{remark}'
        f',"serializeTypeCurrentRPC":"JSON","version":{command.version}}}'
    ).encode()


# ---- binary ----


def take(data: bytes, at: int, form: str) -> tuple[bytes, int]:
    """The bytes after a length of that form, and where they end."""
    (size,) = struct.unpack_from(form, data, at)
    at += struct.calcsize(form)
    need(0 <= size <= len(data) - at, "a length")
    return data[at : at + size], at + size


def from_binary(header: bytes) -> Command:
    code, language, version, opaque, flag = struct.unpack_from(">hBhii", header)
    remark, at = take(header, 13, ">i")
    packed, _ = take(header, at, ">i")
    pairs, at = [], 0
    while at < len(packed):
        name, at = take(packed, at, ">h")
        value, at = take(packed, at, ">i")
        pairs.append((name.decode(), value.decode()))
    need(len(pairs) <= FIELDS_MAX, "extFields")
    ext = {name: value for name, value in dict(pairs).items() if value}
    return Command(code, ext, b"", remark.decode() or None, opaque, flag, language, version, BINARY)


def to_binary(command: Command) -> bytes:
    remark = lone(command.remark or "").encode()
    ext = bytearray()
    for name, value in command.ext.items():
        k, v = lone(name).encode(), lone(value).encode()
        ext += struct.pack(">h", len(k)) + k + struct.pack(">i", len(v)) + v
    head = (command.code, command.language, command.version, command.opaque, command.flag)
    return (
        struct.pack(">hBhii", *head)
        + struct.pack(">i", len(remark))
        + remark
        + struct.pack(">i", len(ext))
        + bytes(ext)
    )


def encode(command: Command) -> bytes:
    """The frame, body included. Raises: BadFrame."""
    need(len(command.ext) <= FIELDS_MAX, "extFields")
    try:
        header = to_json(command) if command.serialize == JSON else to_binary(command)
    except struct.error as bad:
        raise BadFrame(str(bad)) from None
    total = 4 + len(header) + len(command.body)
    return struct.pack(">iI", total, command.serialize << 24 | len(header)) + header + command.body
