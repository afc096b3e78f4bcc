"""Expressions of tags, as consumers write them."""

from __future__ import annotations

from typing import Any

from pystore.native import ffi, lib, utf8

__all__ = ["tag_set"]


def tag_set(tags: str) -> tuple[Any, int, bytes]:
    """Returns hashes, count and texts joined by 0x00 of an expression ``A || B``; none for
    ``*``."""
    names = [utf8(t, "a tag") for t in (part.strip() for part in tags.split("||")) if t]
    if not names or b"*" in names:
        return ffi.NULL, 0, b""
    codes = sorted(lib.ps_java_hash(0, n, len(n)) for n in names)
    return ffi.new("int32_t[]", codes), len(names), b"\0".join(names)
