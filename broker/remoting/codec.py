"""Frames to commands and back (spec remoting.md sections 1.1 to 1.3)."""

from __future__ import annotations

import json
import struct

from broker.remoting.command import BINARY, JSON, Command
from pystore._errors import BadFrame

__all__ = ["FRAME_MAX", "BadFrame", "decode", "encode", "frame_size"]

FRAME_MAX = 16 << 20

LANGUAGES = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP",
    "OMS", "RUST", "NODE_JS",
)  # fmt: skip


def frame_size(head: bytes | bytearray | memoryview, frame_max: int = FRAME_MAX) -> int:
    """Bytes of the frame that begins with `head`, 0 when head is too short to tell.

    Raises: BadFrame.
    """
    if len(head) < 4:
        return 0
    total: int = struct.unpack_from(">i", head)[0]
    if not 4 <= total <= frame_max - 4:
        raise BadFrame(f"a frame says it has {total} bytes, {frame_max} are allowed")
    return total + 4


def decode(frame: bytes | bytearray | memoryview) -> Command:
    """One whole frame. Raises: BadFrame."""
    data = bytes(frame)
    try:
        (word,) = struct.unpack_from(">I", data, 4)
        kind, length = word >> 24, word & 0xFFFFFF
        header, body = data[8 : 8 + length], data[8 + length :]
        if len(header) != length or kind not in (JSON, BINARY):
            raise BadFrame("the header is longer than the frame, or of an unknown kind")
        made = _from_json(header) if kind == JSON else _from_binary(header)
    except (struct.error, ValueError, KeyError, TypeError) as bad:
        raise BadFrame(str(bad)) from None
    made.body = body
    return made


def _from_json(header: bytes) -> Command:
    got = json.loads(header)
    ext = {k: v for k, v in (got.get("extFields") or {}).items() if v is not None}
    language = got.get("language")
    return Command(
        code=got["code"],
        ext=ext,
        remark=got.get("remark"),
        opaque=got.get("opaque", 0),
        flag=got.get("flag", 0),
        language=LANGUAGES.index(language) if language in LANGUAGES else 7,
        version=got.get("version", 0),
    )


def _from_binary(header: bytes) -> Command:
    code, language, version, opaque, flag, n = struct.unpack_from(">hBhiii", header)
    at = 17
    remark = header[at : at + n].decode() if n > 0 else None
    at += max(n, 0)
    (n,) = struct.unpack_from(">i", header, at)
    at += 4
    ext, end = {}, at + n
    while at < end:
        (k,) = struct.unpack_from(">h", header, at)
        name = header[at + 2 : at + 2 + k].decode()
        at += 2 + k
        (v,) = struct.unpack_from(">i", header, at)
        if v > 0:
            ext[name] = header[at + 4 : at + 4 + v].decode()
        at += 4 + v
    return Command(code, ext, b"", remark, opaque, flag, language, version, BINARY)


def encode(command: Command) -> bytes:
    """The frame, body included."""
    header = _to_json(command) if command.serialize == JSON else _to_binary(command)
    total = 4 + len(header) + len(command.body)
    return b"".join(
        (struct.pack(">iI", total, command.serialize << 24 | len(header)), header, command.body)
    )


def _to_json(command: Command) -> bytes:
    made: dict[str, object] = {
        "code": command.code,
        "extFields": command.ext,
        "flag": command.flag,
        "language": LANGUAGES[command.language],
        "opaque": command.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": command.version,
    }
    if command.remark is not None:
        made["remark"] = command.remark
    return json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode()


def _to_binary(command: Command) -> bytes:
    remark = (command.remark or "").encode()
    ext = bytearray()
    for name, value in command.ext.items():
        k, v = name.encode(), value.encode()
        if v:
            ext += struct.pack(">h", len(k)) + k + struct.pack(">i", len(v)) + v
    head = struct.pack(
        ">hBhiii",
        command.code,
        command.language,
        command.version,
        command.opaque,
        command.flag,
        len(remark),
    )
    return head + remark + struct.pack(">i", len(ext)) + bytes(ext)
