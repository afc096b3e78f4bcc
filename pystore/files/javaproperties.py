"""Java's properties files: read, and edited so that all that a user wrote stays where it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

__all__ = ["edit_java_properties", "names_given_twice", "parse_java_properties"]

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNESCAPES = {char: letter for letter, char in _ESCAPES.items()}
_BLANK = " \t\f"
_EOL = re.compile(r"\r\n|\r|\n")


def _logical_lines(text: str) -> Iterator[tuple[int, int, str]]:
    """Joins lines with their continuations and leaves comments and blank ones out; also returns the
    numbers of the first and the last, from 1 on."""
    lines = _EOL.split(text)
    at = 0
    while at < len(lines):
        number, line = at + 1, lines[at].lstrip(_BLANK)
        at += 1
        if not line or line[0] in "#!":
            continue
        # An odd number of backslashes at the end: the last one continues the line.
        while (len(line) - len(line.rstrip("\\"))) % 2 == 1:
            more = lines[at].lstrip(_BLANK) if at < len(lines) else ""
            at += 1
            line = line[:-1] + more
        yield number, min(at, len(lines)), line


def _unescape(text: str) -> str:
    """Raises ValueError at a \\u that four hexadecimal digits do not follow."""
    if "\\" not in text:
        return text

    def one(match: re.Match[str]) -> str:
        what = match[1]
        if what[0] != "u":
            return _ESCAPES.get(what, what)
        if len(what) != 5:
            raise ValueError("\\u is not followed by four hexadecimal digits")
        return chr(int(what[1:], 16))

    plain = re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, text, flags=re.DOTALL)
    # Java's \u escapes are UTF-16 units: two of them may be one character.
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def parse_java_properties(text: str) -> dict[str, tuple[int, str]]:
    """Reads the text of a Java properties file as name: (line number, value), the last of equal
    names.

    Syntax of java.util.Properties.load: ``=``, ``:`` or white space between name and value; ``#``
    and ``!`` comments; a backslash at the end continues a line; ``\\uXXXX``, ``\\t``, ``\\n``,
    ``\\r``, ``\\f``. White space at the end of a value is dropped, as upstream
    does when it uses the value.

    Raises: ValueError with the line number, for a broken ``\\u`` escape.
    """
    return {name: (first, value) for name, first, _, value in _entries(text)}


def names_given_twice(text: str) -> dict[str, list[int]]:
    """Returns the lines of each name that a properties file has more than once. Raises: ValueError,
    as parse_java_properties."""
    lines: dict[str, list[int]] = {}
    for name, first, _, _ in _entries(text):
        lines.setdefault(name, []).append(first)
    return {name: found for name, found in lines.items() if len(found) > 1}


def _entries(text: str) -> Iterator[tuple[str, int, int, str]]:
    """Returns name, first and last line and value of each entry. Raises: ValueError with the line
    number."""
    for number, last, line in _logical_lines(text):
        match = re.match(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*", line, re.DOTALL)
        assert match is not None  # every part of the pattern may be empty
        try:
            yield _unescape(match[1]), number, last, _unescape(line[match.end() :]).strip()
        except (ValueError, UnicodeError) as bad:
            raise ValueError(f"line {number}: {bad}") from None


def edit_java_properties(text: str, changes: Mapping[str, str]) -> str:
    """Returns the text with other values: each in the place of its entry, new ones at the end, the
    rest as it was. Of equal names the last counts, so that one is changed.

    Raises: ValueError with the line number, as parse_java_properties.
    """
    places = {name: (first, last) for name, first, last, _ in _entries(text)}
    parts = re.split(f"({_EOL.pattern})", text)
    lines = ["".join(parts[i : i + 2]) for i in range(0, len(parts), 2)]
    eol = parts[1] if len(parts) > 1 else "\n"
    added = []
    for name, value in changes.items():
        entry = f"{_escaped(name, '=: ')}={_escaped(value, '')}{eol}"
        if name in places:
            first, last = places[name]
            lines[first - 1 : last] = [entry] + [""] * (last - first)
        else:
            added.append(entry)
    kept = "".join(lines)
    if added and kept and not kept.endswith(("\r", "\n")):
        kept += eol
    if added and kept.rstrip("\r\n").endswith("\\"):
        # A last line that would go on in the next one goes on in an empty one. After a lone CR an
        # LF would only make one end of line of the two.
        kept += "\r\n" if kept.endswith("\r") else eol
    return kept + "".join(added)


def _escaped(text: str, special: str) -> str:
    """Escapes a text so that Java reads it back in any encoding: what is not ASCII becomes UTF-16
    units."""
    special += "\\\t\n\r\f"
    made = "".join(f"\\{_UNESCAPES.get(c, c)}" if c in special else c for c in text)
    if made[:1] in ("#", "!", " "):
        made = "\\" + made
    units = made.encode("utf-16-be", "surrogatepass")
    pairs = (int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2))
    return "".join(chr(unit) if 32 <= unit < 127 else f"\\u{unit:04X}" for unit in pairs)
