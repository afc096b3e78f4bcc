"""Compressed bodies in full: zlib, LZ4 and Zstandard, told apart by bits of sysFlag."""

from __future__ import annotations

import zlib

__all__ = ["inflate"]

_LARGEST_BODY = 256 << 20  # a compressed body that claims more is taken for an attack


def inflate(kind: int, data: bytes | memoryview) -> bytes:
    """A compressed body in full.

    kind: bits 8 to 10 of sysFlag: 0 and 3 zlib, 1 LZ4 frame, 2 Zstandard
    (docs/internals/format.md#system-flag). Raises: ValueError when the bytes are no such stream,
    or inflate to more than 256 MiB.
    """
    if kind in (0, 3):
        stream = zlib.decompressobj()
        out = stream.decompress(data, _LARGEST_BODY)
        if not stream.eof:
            raise ValueError("the zlib stream is truncated or too large")
        return out
    if kind == 1:
        import lz4.frame

        reader = lz4.frame.LZ4FrameDecompressor()
        try:
            out = reader.decompress(data, max_length=_LARGEST_BODY)
        except RuntimeError as e:
            raise ValueError(f"bad LZ4 frame: {e}") from e
        if not reader.eof:
            raise ValueError("the LZ4 frame is truncated or too large")
        return bytes(out)
    if kind == 2:
        import zstandard

        try:
            with zstandard.ZstdDecompressor().stream_reader(bytes(data)) as source:
                out = source.read(_LARGEST_BODY)
        except zstandard.ZstdError as e:
            raise ValueError(f"bad Zstandard frame: {e}") from e
        return bytes(out)
    raise ValueError(f"unknown compression type {kind}")
