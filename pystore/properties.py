"""Properties of a message: their encoded form, as records and frames hold it, to a dict and back.

``NAME 0x01 VALUE 0x02 ...`` in UTF-8. Java's ``.properties`` files are pystore/javaproperties.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from pystore.errors import PropertiesIllegal
from pystore.native import utf8

__all__ = ["checked", "encode_properties", "parse_properties"]


def parse_properties(raw: bytes) -> dict[str, str]:
    """Properties as upstream's parser reads them: the last of equal names wins, empty ones drop
    out.

    raw: ``NAME 0x01 VALUE 0x02 ...`` in UTF-8, the last separator optional
    (docs/internals/format.md#properties).
    """
    found = {}
    for part in raw.decode("utf-8", "replace").split("\x02"):
        name, separator, value = part.partition("\x01")
        if separator and name and value:
            found[name] = value
    return found


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The encoded form of a mapping (docs/internals/format.md#properties).

    Raises: PropertiesIllegal when a name or value holds a separator, 0x01 or 0x02. Lengths and
    empty names are the store's own check.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    return checked(text, len(properties))


def checked(text: str, pairs: int) -> bytes:
    """The joined text of so many pairs as bytes: two counts find any separator too many."""
    if text.count("\x01") != pairs or text.count("\x02") != pairs:
        raise PropertiesIllegal("a property contains a separator (0x01 or 0x02)")
    return utf8(text, "a property")
