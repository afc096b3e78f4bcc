"""JSON bodies read by tables, as the parser of upstream's brokers reads them (fastjson 1.2.83).

Clients write the same body in many ways: the Java client enums by name, the C++ client by ordinal;
Go numbers in quotes; members may be missing, null, unknown, or spelled in another case. What each
of these means was seen on a running 5.3.3 broker:

| given | where | becomes |
|---|---|---|
| null, or nothing | a member | the default |
| number, true, object | text | its JSON text |
| text of digits, 1.7, true | number | the number, 1, 1; "" and "null" the default |
| "true", 1, "false", 0 | true or false | that |
| "broadcasting", 0 | enum | the name, whatever its case, or the one with this ordinal |
| "NOBODY" | enum | the default |
| object | list of objects | a list with this one |
| "group_name", "Topic" | name of a member | groupName, topic |

A number out of its range, an ordinal that no name has and a value of another kind are errors.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from broker.wire import mqjson

__all__ = [
    "BOOLEAN",
    "INT",
    "LONG",
    "MESSAGE_QUEUE",
    "OBJECT",
    "TEXT",
    "JsonMember",
    "Kind",
    "Shape",
    "each",
    "enum",
    "listed",
    "mapping",
    "required",
]

#: A member's value as it is used; None: none was given. Raises: ValueError that says what is wrong.
Kind = Callable[[Any], Any]

_TRUE = {"true", "1", "t", "y"}
_FALSE = {"false", "0", "f", "n"}


def _shown(value: object) -> str:
    return reprlib.repr(value)[:60]


def TEXT(value: Any) -> str | None:
    if type(value) is str:
        return value
    if value is None:
        return None
    return mqjson.dumps(value).decode("utf-8", "surrogatepass")


def _integer(low: int, high: int) -> Kind:
    def read(value: Any) -> int | None:
        if type(value) is not int:
            value = _as_integer(value)
        if value is not None and not low <= value <= high:
            raise ValueError(f"{_shown(value)} is not from {low} to {high}")
        return value  # type: ignore[no-any-return]

    return read


def _as_integer(value: Any) -> int | None:
    if value is None or value in ("", "null"):
        return None
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return int(value)
    if isinstance(value, str) and len(value) <= 32 and value.isascii():
        try:
            return int(value) if "_" not in value else _no_number(value)
        except ValueError:
            pass
    return _no_number(value)


def _no_number(value: object) -> int:
    raise ValueError(f"{_shown(value)} is not a number")


INT = _integer(-(1 << 31), (1 << 31) - 1)
LONG = _integer(-(1 << 63), (1 << 63) - 1)


def BOOLEAN(value: Any) -> bool | None:
    if type(value) is bool or value is None:
        return value
    if isinstance(value, int):
        return value == 1
    if isinstance(value, str):
        word = value.lower()
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
        if word in ("", "null"):
            return None
    raise ValueError(f"{_shown(value)} is neither true nor false")


def OBJECT(value: Any) -> dict[Any, Any] | None:
    if value is None or isinstance(value, dict):
        return value
    raise ValueError(f"{_shown(value)} is not an object")


def enum(*names: str) -> Kind:
    """Reads one of these names, which are in the order of upstream's class, so that an ordinal has
    its name."""
    by_text = {name.lower(): name for name in names}

    def read(value: Any) -> str | None:
        if isinstance(value, str):
            return by_text.get(value.lower())
        if value is None:
            return None
        if type(value) is int and 0 <= value < len(names):
            return names[value]
        raise ValueError(f"{_shown(value)} is not one of {', '.join(names)}, 0 to {len(names) - 1}")

    return read


class _MisfitItem(ValueError):
    """What is wrong with an item of a list, after its number in brackets."""


def each(kind: Kind, most: int = 0, nulls: bool = False) -> Kind:
    """Reads a list, of at most `most` entries; 0 sets no limit. nulls: it may have null, which
    becomes None; else that is an error, since readers count on a value."""

    def read(value: Any) -> list[Any] | None:
        if value is None:
            return None
        if isinstance(kind, Shape) and isinstance(value, dict):
            value = [value]
        if not isinstance(value, list):
            raise ValueError(f"{_shown(value)} is not a list")
        if most and len(value) > most:
            raise ValueError(f"it has {len(value)} items, {most} are allowed")
        made = []
        for at, one in enumerate(value):
            try:
                item = kind(one)
                if item is None and not nulls:
                    raise ValueError("it has no value")
                made.append(item)
            except ValueError as bad:
                raise _MisfitItem(f"[{at}]: {bad}") from None
        return made

    return read


def mapping(kind: Kind) -> Kind:
    """Reads an object whose keys are data: texts, or message queues."""

    def read(value: Any) -> dict[Any, Any] | None:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ValueError(f"{_shown(value)} is not an object")
        made = {}
        for key, one in value.items():
            try:
                made[key] = kind(one)
            except ValueError as bad:
                raise ValueError(f"{_shown(key)}: {bad}") from None
        return made

    return read


class JsonMember(NamedTuple):
    """One member of an object. `default` counts when it is not given, or null; if it is `needed`,
    that is an error, and so is an empty text."""

    kind: Kind
    default: Any = None
    needed: bool = False


def required(kind: Kind) -> JsonMember:
    return JsonMember(kind, needed=True)


def listed(kind: Kind, most: int = 0, nulls: bool = False) -> JsonMember:
    """Returns the member of a list that is empty when it is not given. most, nulls: as of each."""
    return JsonMember(each(kind, most, nulls), ())


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


#: The members that bodies have beside those we read are the same in each; longer names, which are
#: no upstream's, are not kept.
_plain_again, _KEPT_MAX = lru_cache(1024)(_plain), 64


class Shape:
    """The members of one object, by upstream's names; itself a Kind, so that shapes nest.

    ``Shape(groupName=required(TEXT), retryMaxTimes=Member(INT, 16))(value)`` is a dict that has
    every member; unknown ones are left out.
    """

    def __init__(self, **members: JsonMember | Kind) -> None:
        self._takes_all = False
        self._members = {
            name: one if isinstance(one, JsonMember) else JsonMember(one)
            for name, one in members.items()
        }
        self._defaults = {
            name: MappingProxyType(one.default) if isinstance(one.default, dict) else one.default
            for name, one in self._members.items()
        }
        self._needed = [name for name, one in self._members.items() if one.needed]
        self._spelled = {_plain(name): name for name in self._members}

    @classmethod
    def of_any(cls) -> Shape:
        """Reads an object as it is."""
        made = cls()
        made._takes_all = True
        return made

    def __call__(self, value: Any) -> dict[str, Any]:
        """Reads a value. Raises: ValueError that names the member."""
        if not isinstance(value, Mapping):
            raise ValueError(f"{_shown(value)} is not an object")
        if self._takes_all:
            return dict(value)
        made = dict(self._defaults)
        for given, one in value.items():
            name = given if given in self._members else self._other_spelling(given, value)
            if name is None or one is None:
                continue
            try:
                found = self._members[name].kind(one)
            except ValueError as bad:
                colon = "" if isinstance(bad, _MisfitItem) else ": "
                raise ValueError(f"{name}{colon}{bad}") from None
            if found is not None:
                made[name] = found
        for name in self._needed:
            if made[name] is None or made[name] == "":
                raise ValueError(f"{name} is missing")
        return made

    def _other_spelling(self, given: object, value: Mapping[Any, Any]) -> str | None:
        """Returns the member that a name of another case means; one that is spelled right comes
        first."""
        if not isinstance(given, str):
            return None
        plain = _plain_again if len(given) <= _KEPT_MAX else _plain
        name = self._spelled.get(plain(given))
        return None if name in value else name

    def loads(
        self, data: bytes | bytearray | memoryview, lax_max: int | None = None
    ) -> dict[str, Any]:
        """Reads a whole body. lax_max: as of mqjson.loads. Raises: ValueError that says what is
        wrong, and where."""
        try:
            return self(mqjson.loads(data, lax_max))
        except ValueError as bad:
            problem = str(bad)
        # Without the frames of the first error, that hold all that was read: what a thread raises
        # stays until the garbage collector comes.
        raise ValueError(problem)


_QUEUE = Shape(
    topic=required(TEXT), brokerName=JsonMember(TEXT, ""), queueId=JsonMember(INT, 0)
)  # fmt: skip


def MESSAGE_QUEUE(value: Any) -> mqjson.MessageQueue:
    found = _QUEUE(value)
    return mqjson.MessageQueue(found["topic"], found["brokerName"], found["queueId"])
