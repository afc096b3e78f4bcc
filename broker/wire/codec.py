"""Frames to commands and back: the C codec (csrc/wire) as Python calls it (docs/wire.md).

One call into C a frame. It hands all texts over in one run, a NUL after each, which Python cuts
faster than it could ask for them one by one.
"""

from __future__ import annotations

import struct
import threading
from itertools import chain
from time import monotonic
from typing import Any

from broker.wire.command import Command
from pystore.errors import BadFrame
from pystore.native import ffi, lib, raise_error

__all__ = ["FRAME_MAX", "BadFrame", "decode", "encode", "frame_size"]

FRAME_MAX = 16 << 20

#: The size of a frame is its reader's business (frame_size); here it only has to fit its own.
_NO_LIMIT = 1 << 40
_HEAD = struct.Struct("@11i")
_ROOM = 1 << 16
_NOTHING = b""


class _Box(threading.local):
    """What each thread reuses: the packed form, and room for headers of usual sizes."""

    def __init__(self) -> None:
        self.packed = ffi.new("ps_packed *")
        self.error = ffi.new("ps_error *")
        self.scratch = ffi.new("uint8_t[]", _ROOM)
        self.texts = ffi.new("uint8_t[]", _ROOM)
        self.head_view = memoryview(ffi.buffer(self.packed, _HEAD.size)).cast("B")
        self.texts_view = memoryview(ffi.buffer(self.texts, _ROOM)).cast("B")
        #: These, because one look at a threading.local costs less than five.
        self.all = (self.packed, self.error, self.scratch, self.texts, self.head_view)


_box = _Box()


def frame_size(head: bytes | bytearray | memoryview, frame_max: int = FRAME_MAX) -> int:
    """Returns the bytes of the frame that begins with `head`, or 0 when head is too short to tell.

    Raises: BadFrame."""
    if len(head) < 4:
        return 0
    total: int = int.from_bytes(head[:4], "big", signed=True)
    if not 4 <= total <= frame_max - 4:
        raise BadFrame(f"frame of {total} bytes exceeds the limit of {frame_max}")
    return total + 4


def decode(frame: bytes | bytearray | memoryview) -> Command:
    """Decodes one whole frame. Raises: BadFrame."""
    size = len(frame)
    packed, error, scratch, texts, head = _box.all
    view = _box.texts_view
    if size > _ROOM and int.from_bytes(frame[5:8], "big") > _ROOM:
        room = lib.PS_HEADER_MAX  # C refuses longer ones unread
        scratch, texts = ffi.new("uint8_t[]", room), ffi.new("uint8_t[]", room)
        view = memoryview(ffi.buffer(texts, room)).cast("B")
    raw = frame if type(frame) is bytes else ffi.from_buffer("uint8_t[]", frame)
    took = lib.ps_packed_decode(raw, size, _NO_LIMIT, scratch, texts, packed, error)
    if took != size or not size:
        if took < 0:
            raise_error(error)
        raise BadFrame(f"{size} bytes are not one complete frame")
    (
        serialize,
        code,
        language,
        version,
        opaque,
        flag,
        header_len,
        has_remark,
        count,
        length,
        nul,
    ) = _HEAD.unpack_from(head)
    remark = None
    if nul:
        parts = iter(_cut(packed, view, has_remark + 2 * count))
    else:
        parts = iter(str(view[:length], "utf-8").split("\0"))
    if has_remark:
        remark = next(parts)
    # After the last NUL stands an empty text, which zip drops for want of a partner.
    ext = dict(zip(parts, parts, strict=False))
    start = 8 + header_len
    body = _NOTHING if start == size else bytes(frame[start:])
    return Command(
        code, ext, body, remark, opaque, flag, language, version, serialize, came=monotonic()
    )


def _cut(packed: Any, view: memoryview, count: int) -> list[str]:
    """Returns the texts when one of them contains a NUL."""
    parts, start = [], 0
    for end in packed.ends[0:count]:
        parts.append(str(view[start:end], "utf-8"))
        start = end + 1
    return parts


def encode(command: Command) -> bytes:
    """Returns the frame, body included.

    Half of a surrogate pair becomes a question mark, as in Java. Raises: BadFrame for what a frame
    cannot hold: a number over 32 bits, a code or a name too large for a binary header, too many
    fields, a header over its limit."""
    packed, error, _, out, head = _box.all
    remark, ext, body = command.remark, command.ext, command.body
    count = len(ext)
    if count > lib.PS_FIELDS_MAX:
        raise BadFrame(f"a command has at most {lib.PS_FIELDS_MAX} fields, not {count}")
    parts = [] if remark is None else [remark]
    parts += chain.from_iterable(ext.items())
    joined = "\0".join(parts)
    nul = False
    if parts:
        if joined.count("\0") != len(parts) - 1:
            nul = True
            _set_ends(packed, parts)
        joined += "\0"
    texts = joined.encode("utf-8", "replace")
    try:
        _HEAD.pack_into(
            head,
            0,
            command.serialize,
            command.code,
            command.language,
            command.version,
            command.opaque,
            command.flag,
            0,
            remark is not None,
            count,
            len(texts),
            nul,
        )
    except struct.error as bad:
        raise BadFrame(f"a number of the command is out of range: {bad}") from None
    body_len = len(body)
    room = _ROOM
    size = lib.ps_packed_encode(packed, texts, body_len, out, room, error)
    if size > room:
        room = size
        out = ffi.new("uint8_t[]", room)
        size = lib.ps_packed_encode(packed, texts, body_len, out, room, error)
    if size < 0:
        raise_error(error)
    start: bytes = ffi.buffer(out, size)[:]
    return b"".join((start, body)) if body_len else start


def _set_ends(packed: Any, parts: list[str]) -> None:
    """Sets where each text ends once encoded, when a NUL in one of them keeps C from seeing it."""
    ends, at = [], 0
    for part in parts:
        at += len(part.encode("utf-8", "replace"))
        ends.append(at)
        at += 1
    packed.ends[0 : len(ends)] = ends
