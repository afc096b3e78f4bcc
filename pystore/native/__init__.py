"""The C core as Python sees it: the loaded library, checked once, and its errors as exceptions.

Everything that calls into C goes through ``lib`` and ``ffi`` of this module, but for ``Store.put``,
whose call is written by hand (pystore/native/_put.c). Both let go of the GIL around every call.
"""

from __future__ import annotations

from typing import Any, NoReturn

from pystore import errors
from pystore.base import store_error
from pystore.native import interpreter  # noqa: F401 - it refuses to be imported
from pystore.native._core import ffi, lib

__all__ = ["address_of", "ffi", "lib", "raise_error", "text_of", "utf8", "view_of"]

#: What this package was written against: raised together with ``PS_ABI`` in csrc/pystore.h.
ABI = 9

_SIZED = ("ps_conf", "ps_report", "ps_info", "ps_view", "ps_put_result", "ps_scan")


def _check_library() -> None:
    """Refuses a compiled core that does not belong to these Python files.

    Raises: ImportError naming what differs; rebuilding (``make build``) mends it.
    """
    if lib.ps_abi() != ABI:
        raise ImportError(f"the compiled core has ABI {lib.ps_abi()}, not {ABI}: run `make build`")
    for which, name in enumerate(_SIZED):
        if lib.ps_struct_size(which) != ffi.sizeof(name):
            raise ImportError(f"struct {name} differs between C and Python: run `make build`")


_check_library()


def address_of(pointer: Any) -> int:
    """Returns the address in a cdata pointer, for code that takes no cdata."""
    return int(ffi.cast("uintptr_t", pointer))


def text_of(chars: Any) -> str:
    """Returns a C string as str; bytes that are not UTF-8 are shown escaped."""
    text: bytes = ffi.string(chars)
    return text.decode("utf-8", "backslashreplace")


def view_of(owner: Any, segment: Any) -> memoryview:
    """Returns a read-only view on mapped bytes (``ps_segment_view``) that keeps their owner alive.

    cffi's gc gives a new pointer whose destructor holds the owner: the buffer holds the pointer,
    and each slice of the view holds the buffer.
    """
    kept = ffi.gc(ffi.cast("uint8_t *", segment.map), lambda _: owner)
    return memoryview(ffi.buffer(kept, segment.size)).toreadonly()


def raise_error(error: Any, code: int | None = None) -> NoReturn:
    """Raises the exception of a ``ps_error``.

    error: cdata ``ps_error`` (not a pointer). code: overrides the one inside when that is 0.
    """
    raise store_error.make(
        int(error.code) or int(code or 0),
        text_of(error.text),
        text_of(error.where),
        int(error.offset),
        int(error.pid),
        int(error.sys_errno),
    )


def utf8(text: str, what: str) -> bytes:
    """Returns the text as stored. Raises: BadArgument for a lone surrogate, which is not valid
    text."""
    try:
        return text.encode()
    except UnicodeEncodeError as e:
        raise errors.BadArgument(
            f"{what} is not valid Unicode: {e.reason} at character {e.start}"
        ) from None
