"""What a client of HTTP/2 and gRPC writes and reads, by hand: for the doctor, and for benches and
tests whose client is to cost little, or to break rules.

Frames: RFC 9113, 4.1 and 6. Headers: RFC 7541, 6.2.2, each in full, as one that is not remembered.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

__all__ = [
    "ACK", "BEGIN", "CONTINUATION", "DATA", "END_HEADERS", "END_STREAM", "GOAWAY", "HEADERS",
    "PING", "PREFACE", "RST_STREAM", "SETTINGS", "WINDOW_UPDATE", "Frame", "FrameReader", "call",
    "frame", "grpc_message", "header", "text",
]  # fmt: skip

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0, 1, 3, 4, 6, 7, 8, 9
)  # fmt: skip
#: Flags: the first is of DATA and HEADERS, the second of SETTINGS and PING.
END_STREAM, ACK, END_HEADERS, _PADDED = 1, 1, 4, 8


class Frame(NamedTuple):
    """A frame: kind and flags as above, and its stream."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def data(self) -> bytes:
        """The payload of DATA without its padding."""
        padded = self.flags & _PADDED
        return self.payload[1 : len(self.payload) - self.payload[0]] if padded else self.payload

    @property
    def ends(self) -> bool:
        """Whether its stream ends: with it, or because it is reset."""
        last = self.kind in (DATA, HEADERS) and self.flags & END_STREAM
        return self.kind == RST_STREAM or bool(last)

    @property
    def answer(self) -> bytes:
        """What a client writes for it: the acknowledgement of SETTINGS or PING, or nothing."""
        if self.kind not in (SETTINGS, PING) or self.flags & ACK:
            return b""
        return frame(self.kind, ACK, 0, self.payload if self.kind == PING else b"")


class FrameReader:
    """Takes bytes as they come, and has the frames in them."""

    def __init__(self) -> None:
        self._part = b""

    def feed(self, data: bytes) -> list[Frame]:
        """Returns the frames that end with these bytes."""
        data, at, frames = self._part + data, 0, []
        while len(data) - at >= 9:
            end = at + 9 + int.from_bytes(data[at : at + 3], "big")
            if end > len(data):
                break
            stream = int.from_bytes(data[at + 5 : at + 9], "big")
            frames.append(Frame(data[at + 3], data[at + 4], stream, data[at + 9 : end]))
            at = end
        self._part = data[at:]
        return frames


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Encodes a frame; any kind and any payload, whether they go together or not."""
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags))
    return head + struct.pack(">I", stream) + payload


#: How a client begins that leaves all settings as they are.
BEGIN = PREFACE + frame(SETTINGS, 0, 0)


def header(name: str, value: str) -> bytes:
    """Encodes a header."""
    return b"\0" + text(name.encode()) + text(value.encode())


def text(value: bytes) -> bytes:
    """Encodes a text of HPACK that is not compressed, its length with a prefix of seven bits."""
    if len(value) < 127:
        return bytes((len(value),)) + value
    made, rest = bytearray((127,)), len(value) - 127
    while rest >= 128:
        made.append(rest & 127 | 128)
        rest >>= 7
    return bytes(made) + bytes((rest,)) + value


def call(
    stream: int,
    path: str,
    more: Mapping[str, str],
    *,
    authority: str = "localhost",
    scheme: str = "http",
    flags: int = END_HEADERS,
    encoded: bytes = b"",
) -> bytes:
    """Encodes HEADERS of a gRPC call. more: headers of this call; encoded: others, as they are to
    stand in the frame."""
    headers = {
        ":method": "POST", ":scheme": scheme, ":path": path, ":authority": authority,
        "content-type": "application/grpc", "te": "trailers", **more,
    }  # fmt: skip
    block = b"".join(header(name, value) for name, value in headers.items())
    return frame(HEADERS, flags, stream, block + encoded)


def grpc_message(data: bytes) -> bytes:
    """Returns a message as gRPC writes it into DATA, not compressed."""
    return b"\0" + struct.pack(">I", len(data)) + data
