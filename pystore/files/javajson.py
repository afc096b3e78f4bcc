"""Upstream's configuration JSON: read both of its forms, write the one that every version reads.

Upstream writes maps with integer keys without quotes (``{0:5,1:7}``), which no strict parser takes
(docs/internals/format.md#config-files). :func:`loads` takes that and the strict form;
:func:`dumps` writes quoted keys, which 4.9, 5.3 and 5.5 all read.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

__all__ = ["Members", "around", "dumps", "loads"]

#: Deeper than any file of upstream's (6); what is deeper is hostile, and would exhaust the stack.
MAX_DEPTH = 64

# A string, whole, so that nothing inside one is taken for a key; or an integer key. A string
# without an end runs to the end of the text, which keeps the scan linear; the parser refuses it.
_TOKEN = re.compile(
    r"""  "(?: [^"\\]++ | \\. )*+ (?: " | \\?\Z )
        | (?P<before> [{,]\s*+ ) (?P<key> -?[0-9]++ ) (?P<after> \s*+: ) """,
    re.VERBOSE | re.DOTALL,
)


def _quote_key(match: re.Match[str]) -> str:
    key = match["key"]
    return match[0] if key is None else f'{match["before"]}"{key}"{match["after"]}'


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is out of range")
    return value


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for each in level:
            if isinstance(each, dict):
                below.extend(each.values())
            elif isinstance(each, list):
                below.extend(each)
        if not below:
            return
        level = below
    raise ValueError(f"nested deeper than {MAX_DEPTH} levels")


_NUMBER = re.compile(r"-?[0-9]{1,20}").fullmatch
#: Members that are laid out together.
_AT_ONCE = 1 << 12
#: Where the line of a member of the whole file begins.
_MEMBER = "\n\t"
_INTEGERS = frozenset((int,))
_STRICT: dict[str, Any] = {"parse_constant": _no_constant, "parse_float": _finite}


def loads(data: bytes | str) -> Any:
    """Returns the value that a configuration file holds; every key of an object is a str.

    data: UTF-8 bytes or text. Of equal keys the last one wins, as upstream has it.

    Raises: ValueError that says what is wrong and in which line: not UTF-8, empty, torn, followed
    by anything but white space, nested deeper than :data:`MAX_DEPTH`.
    """
    if isinstance(data, bytes):
        data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode() if isinstance(data, bytes) else data
    except UnicodeDecodeError as bad:
        raise ValueError(f"byte {bad.start} is not valid UTF-8") from None
    if not text.strip():
        raise ValueError("it is empty")
    try:
        try:
            value = json.loads(text, **_STRICT)
        except json.JSONDecodeError:
            value = json.loads(_TOKEN.sub(_quote_key, text), **_STRICT)
    except json.JSONDecodeError as bad:
        raise ValueError(f"line {bad.lineno}: {bad.msg}") from None
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None
    _check_depth(value)
    return value


def _sorted(texts: dict[str, Any]) -> list[str]:
    """Sorts integer keys by number, before all others by text."""
    numbers = dict.fromkeys(filter(_NUMBER, texts))
    others = [key for key in texts if key not in numbers]
    return [*sorted(numbers, key=lambda key: (int(key), key)), *sorted(others)]


def _text(value: object, line: str, encode: Callable[[object], str]) -> str:
    """Lays a value out whose first line begins as `line` does. The library, which indents in
    Python, takes seconds for a million offsets."""
    if type(value) is int:
        return repr(value)
    inner, ends = line + "\t", "{}" if isinstance(value, dict | Members) else "[]"
    if isinstance(value, Members):
        items = _pieces(value, inner, encode)
        if not items:
            return ends
    elif not isinstance(value, dict | list | tuple) or not value:
        return encode(value)
    elif not isinstance(value, dict):
        items = [_text(each, inner, encode) for each in value]
    elif _INTEGERS.issuperset(map(type, value)) and _INTEGERS.issuperset(
        map(type, value.values())
    ):  # a queue and its offset
        items = [f'"{key}":{each}' for key, each in sorted(value.items())]
    else:
        texts = {str(key): each for key, each in value.items()}
        items = [f"{encode(key)}:{_text(texts[key], inner, encode)}" for key in _sorted(texts)]
    return f"{ends[0]}{inner}{f',{inner}'.join(items)}{line}{ends[1]}"


@dataclass(frozen=True, slots=True)
class Members:
    """Members of an object that are asked for as they are written, and keep their order: there may
    be a million."""

    each: Callable[[], Iterator[tuple[str, Any]]]


def _pieces(given: Members, line: str, encode: Callable[[object], str]) -> list[str]:
    texts = (f"{encode(key)}:{_text(value, line, encode)}" for key, value in given.each())
    return [f",{line}".join(some) for some in iter(lambda: list(islice(texts, _AT_ONCE)), [])]


def around(value: dict[str, Any], member: str, *, escaped: bool) -> tuple[bytes, bytes]:
    """Returns what dumps() writes of an object before and behind the value of a member, which need
    not be at hand. escaped: what is not ASCII. Raises: UnicodeEncodeError for half a surrogate
    pair, unless escaped; as dumps()."""
    encode = json.JSONEncoder(ensure_ascii=escaped, allow_nan=False).encode
    keys = _sorted({**value, member: None})
    before, behind = (
        [f"{encode(key)}:{_text(value[key], _MEMBER, encode)}" for key in some]
        for some in (keys[: keys.index(member)], keys[keys.index(member) + 1 :])
    )
    head = f",{_MEMBER}".join([*before, f"{encode(member)}:"])
    tail = "".join(f",{_MEMBER}{each}" for each in behind)
    return f"{{{_MEMBER}{head}".encode(), f"{tail}\n}}".encode()


def dumps(value: object) -> bytes:
    """Returns a configuration file in upstream's layout: tabs, no space after colons, keys sorted,
    UTF-8.

    value: dicts with str or int keys, lists, str, int, float, bool, None. Integer keys are quoted
    and sorted by number. :class:`Members` keep their order.
    Raises: ValueError for NaN and infinities, TypeError for other types.
    """
    form: dict[str, Any] = {"allow_nan": False}
    try:
        return _text(value, "\n", json.JSONEncoder(ensure_ascii=False, **form).encode).encode()
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can carry
        return _text(value, "\n", json.JSONEncoder(ensure_ascii=True, **form).encode).encode()
