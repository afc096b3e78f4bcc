"""Whether the index of a store leads to tags, too, as its own entries tell."""

from __future__ import annotations

import os
from pathlib import Path

from pystore.audit.layout import Layout, record_of
from pystore.files.quiet import open_quietly
from pystore.native import lib
from pystore.settings import Settings

__all__ = ["with_own_tags"]

_NAME = "indexTagsEnable"
_HEADER, _SLOT, _ENTRY, _COUNT_AT = 40, 4, 20, 36
_LOOKED, _TELLING = 64, 4  # entries of each file, and how many of them belong to records with tags


def with_own_tags(settings: Settings, layout: Layout) -> Settings:
    """Returns the settings with tags in the index where the store's has them: RocketMQ 5.5.0 puts
    them, and an index that is made again keeps them. An open decides by the same entries
    (csrc/store/recover.c)."""
    if settings[_NAME] or not any(_has_tags(layout, *each) for each in reversed(layout.index)):
        return settings
    return settings.replaced(**{_NAME: "true"})


def _has_tags(layout: Layout, path: Path, slots: int, limit: int) -> bool:
    told = 0
    try:
        with open_quietly(path) as file:
            fd = file.fileno()
            count = int.from_bytes(os.pread(fd, 4, _COUNT_AT), "big", signed=True)
            last = min(count, limit) - 1
            first = max(1, last - _LOOKED + 1)
            at = _HEADER + slots * _SLOT + first * _ENTRY
            data = os.pread(fd, max(0, last - first + 1) * _ENTRY, at)
    except OSError:
        return False
    for at in range(len(data) - _ENTRY, -1, -_ENTRY):
        said = _tells(layout, data[at : at + _ENTRY])
        told += said >= 0
        if said > 0 or told >= _TELLING:
            return said > 0
    return False


def _tells(layout: Layout, entry: bytes) -> int:
    """Returns 1 for an entry of its record's tags, 0 for another of a record with tags, else -1."""
    hash_ = int.from_bytes(entry[:4], "big", signed=True)
    physical = int.from_bytes(entry[4:12], "big", signed=True)
    data, _ = record_of(layout, physical) or (b"", None)
    return int(lib.ps_audit_tells_of_tags(data, len(data), hash_))
