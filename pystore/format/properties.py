"""Properties of a message: their encoded form, as records and frames hold it, to a dict and back.

``NAME 0x01 VALUE 0x02 ...`` in UTF-8. Java's ``.properties`` files are in
pystore/files/javaproperties.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from pystore.errors import PropertiesIllegal
from pystore.native import lib, utf8

__all__ = ["LITE_TOPIC", "MULTI_DISPATCH", "MULTI_OFFSET", "NAME_END", "PRIORITY", "PROPERTY_END",
           "checked", "encode_properties", "is_joined", "joined", "pair",
           "parse_properties"]  # fmt: skip

#: What ends a name, and what ends a value.
NAME_END, PROPERTY_END = chr(lib.PS_NAME_SEPARATOR), chr(lib.PS_PROPERTY_SEPARATOR)

#: Has the broker put a message into the queue of its level (csrc/format/messagetype.h).
PRIORITY = "_SYS_MSG_PRIORITY_"
#: Has the broker put a message into a lite topic, too (upstream MessageConst).
LITE_TOPIC = "__LITE_TOPIC"
#: The queues beside its own that a message is in, and its offsets there.
MULTI_DISPATCH, MULTI_OFFSET = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"


def pair(name: str, value: object) -> str:
    """Returns one property as text, for callers that join several and look at all of them at the
    end."""
    return f"{name}{NAME_END}{value}{PROPERTY_END}"


def joined(properties: Mapping[str, str]) -> str:
    """Returns all of them as text; is_joined tells whether their separators are right."""
    return "".join([f"{name}{NAME_END}{value}{PROPERTY_END}"
                    for name, value in properties.items()])  # fmt: skip


def is_joined(text: str, pairs: int) -> bool:
    """Says whether a text of so many properties holds no separator within one."""
    return text.count(NAME_END) == pairs and text.count(PROPERTY_END) == pairs


def parse_properties(raw: bytes) -> dict[str, str]:
    """Returns properties as upstream's parser reads them: the last of equal names wins, empty ones
    drop out.

    raw: ``NAME 0x01 VALUE 0x02 ...`` in UTF-8, the last separator optional
    (docs/internals/format.md#properties).
    """
    found = {}
    for part in raw.decode("utf-8", "replace").split(PROPERTY_END):
        name, separator, value = part.partition(NAME_END)
        if separator and name and value:
            found[name] = value
    return found


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Returns the encoded form of a mapping (docs/internals/format.md#properties).

    Raises: PropertiesIllegal when a name or value holds a separator, 0x01 or 0x02. Lengths and
    empty names are the store's own check.
    """
    return checked(joined(properties), len(properties))


def checked(text: str, pairs: int) -> bytes:
    """Returns the joined text of so many pairs as bytes. Raises: PropertiesIllegal."""
    if not is_joined(text, pairs):
        raise PropertiesIllegal("a property contains a separator (0x01 or 0x02)")
    return utf8(text, "a property")
