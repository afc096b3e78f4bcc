"""Compressed bodies in full: zlib, LZ4 and Zstandard, told apart by bits of sysFlag."""

from __future__ import annotations

import ctypes
import zlib

__all__ = ["inflate", "zlib_addresses"]

_LARGEST_BODY = 256 << 20  # a compressed body that claims more is taken for an attack


def inflate(kind: int, data: bytes | memoryview, most: int = _LARGEST_BODY) -> bytes:
    """Returns a compressed body in full.

    kind: bits 8 to 10 of sysFlag: 0 and 3 zlib, 1 LZ4 frame, 2 Zstandard
    (docs/internals/format.md#system-flag). Raises: ValueError when the bytes are no such stream,
    or inflate to more than `most` bytes.
    """
    if kind in (0, 3):
        return _zlib(data, most)
    if kind == 1:
        return _lz4(data, most)
    if kind == 2:
        return _zstd(data, most)
    raise ValueError(f"unknown compression type {kind}")


def zlib_addresses() -> tuple[int, int, int, int] | None:
    """Returns the addresses of zlib's ``inflateInit2_``, ``inflate`` and ``inflateEnd`` and of the
    text of its version, as the interpreter's own module has them linked; None when that does not
    show them, as in one that was linked statically."""
    try:
        library = ctypes.CDLL(getattr(zlib, "__file__", None))
        first, *others = (
            ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
            for name in ("zlibVersion", "inflateInit2_", "inflate", "inflateEnd")
        )
    except (OSError, AttributeError):
        return None
    version = ctypes.CFUNCTYPE(ctypes.c_void_p)(first)()
    init, inflates, end = others
    return init, inflates, end, int(version or 0)


def _zlib(data: bytes | memoryview, most: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        out = stream.decompress(data, most)
    except zlib.error as e:
        raise ValueError(f"bad zlib stream: {e}") from e
    if not stream.eof:
        raise ValueError("the zlib stream is truncated or too large")
    return out


def _lz4(data: bytes | memoryview, most: int) -> bytes:
    import lz4.frame

    reader = lz4.frame.LZ4FrameDecompressor()
    try:
        out = reader.decompress(data, max_length=most)
    except RuntimeError as e:
        raise ValueError(f"bad LZ4 frame: {e}") from e
    if not reader.eof:
        raise ValueError("the LZ4 frame is truncated or too large")
    return bytes(out)


def _zstd(data: bytes | memoryview, most: int) -> bytes:
    import zstandard

    data = bytes(data)
    try:
        claimed = zstandard.get_frame_parameters(data).content_size
        if zstandard.CONTENTSIZE_UNKNOWN != claimed > most:  # it would get that much room
            raise ValueError(f"the Zstandard frame claims {claimed} bytes, which is too large")
        # A stream reader would return the half of a frame that was cut, and say nothing.
        return zstandard.ZstdDecompressor().decompress(
            data, max_output_size=most, allow_extra_data=True
        )
    except zstandard.ZstdError as e:
        raise ValueError(f"bad Zstandard frame, truncated or too large: {e}") from e
