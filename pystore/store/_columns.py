"""Columns of byte strings for the C core: from lists, Arrow arrays, or a buffer with offsets.

One crossing into C serves thousands of messages, so the point is to give C pointers to memory that
is there already, and to copy only when the input is a Python list.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

from pystore.errors import BadArgument
from pystore.native import ffi, utf8

__all__ = ["Column", "column_of", "int_array"]


@dataclass(slots=True)
class Column:
    """A ``ps_column`` and what keeps its memory alive.

    count: number of values. fill(c): sets a cdata ``ps_column`` field.
    """

    count: int
    _data: Any
    _offsets: Any
    _wide: bool
    _keep: Any

    def fill(self, c: Any) -> None:
        c.data = self._data
        if self._wide:
            c.offsets64 = ffi.cast("int64_t *", self._offsets)
        else:
            c.offsets32 = ffi.cast("int32_t *", self._offsets)


def _joined(values: Sequence[Any]) -> Column:
    """Joins a list of bytes, str or None (an empty value)."""
    try:
        data = b"".join(values)
    except TypeError:
        values = [_as_bytes(v) for v in values]
        data = b"".join(values)
    offsets = array("q", accumulate(chain((0,), map(len, values))))
    return Column(
        len(values), ffi.from_buffer(data), ffi.from_buffer(offsets), True, (data, offsets)
    )


def _as_bytes(value: object) -> bytes:
    if value is None:
        return b""
    if isinstance(value, str):
        return utf8(value, "a value")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise BadArgument(f"a column holds {type(value).__name__}, not bytes or str")


def _split(pair: tuple[Any, Any]) -> Column:
    """Takes (data, offsets): any contiguous byte buffer with int32 or int64 offsets, one more than
    values."""
    data, offsets = pair
    view = memoryview(offsets)
    if view.itemsize not in (4, 8) or view.format[-1:] not in "iqlnIQLN" or not view.contiguous:
        raise BadArgument("offsets must be a contiguous array of int32 or int64")
    numbers = view.cast("B").cast("i" if view.itemsize == 4 else "q")
    size = memoryview(data).nbytes
    if len(numbers) == 0:
        raise BadArgument("offsets must hold one number more than there are values")
    _check_offsets(offsets, numbers, size)
    raw = ffi.from_buffer(data)
    return Column(
        len(numbers) - 1, raw, ffi.from_buffer(offsets), view.itemsize == 8, (data, offsets)
    )


def _check_offsets(original: Any, numbers: memoryview, size: int) -> None:
    """Checks that offsets ascend and stay within the data, since C reads where they point."""
    if hasattr(original, "__array_interface__"):
        ascending = bool((original[1:] >= original[:-1]).all())
    else:
        ascending = all(a <= b for a, b in pairwise(numbers))
    if not ascending or numbers[0] < 0 or numbers[-1] > size:
        raise BadArgument(f"offsets must ascend from 0 or more to at most the data's {size} bytes")


def _arrow(value: Any) -> Column:
    """Takes a pyarrow Array or ChunkedArray of binary, string or their large forms, without a copy.
    Nulls count as empty values."""
    import pyarrow as pa

    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks() if value.num_chunks != 1 else value.chunk(0)
    kind = value.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        wide = False
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        wide = True
    else:
        raise BadArgument(f"an Arrow column of type {kind} cannot be stored: use binary or string")
    if value.null_count:
        value = value.fill_null("" if "string" in str(kind) else b"")
    _, offsets, data = value.buffers()
    step = 8 if wide else 4
    start = offsets.address + step * value.offset if offsets is not None else 0
    address = data.address if data is not None else 0
    if len(value) == 0 or not address:
        return _joined([b""] * len(value))
    return Column(
        len(value),
        ffi.cast("uint8_t *", address),
        ffi.cast("uint8_t *", start),
        wide,
        (value, offsets, data),
    )


def column_of(values: Any, what: str = "bodies") -> Column:
    """Returns the column of a list of bytes or str, an Arrow array, or a ``(data, offsets)`` pair.

    Raises: BadArgument for anything else.
    """
    if (
        isinstance(values, tuple)
        and len(values) == 2
        and not isinstance(values[0], (str, type(None)))
    ):
        try:
            memoryview(values[1])
        except TypeError:
            return _joined(values)
        if not isinstance(values[1], bytes):
            return _split(values)
    if type(values).__module__.startswith("pyarrow"):
        return _arrow(values)
    if isinstance(values, (list, tuple)):
        return _joined(values)
    if isinstance(values, Iterable) and not isinstance(values, (str, bytes, bytearray, memoryview)):
        return _joined(list(values))
    raise BadArgument(
        f"{what} must be a list of bytes, an Arrow array or (data, offsets),"
        f" not {type(values).__name__}"
    )


def int_array(values: Any, code: str, count: int, what: str) -> Any:
    """Returns a contiguous int32 (``i``) or int64 (``q``) array of `count` numbers as something
    with a buffer."""
    try:
        view = memoryview(values)
        if view.itemsize == array(code).itemsize and view.contiguous and view.format in "ilq":
            out: Any = values
        else:
            out = array(code, view.tolist())
    except TypeError:
        out = array(code, values)
    if memoryview(out).nbytes != count * array(code).itemsize:
        raise BadArgument(f"{what} must hold one number a message, {count} in all")
    return out
