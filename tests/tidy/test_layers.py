"""The rooms of csrc/: no arrow points up, none goes round, neither in includes nor in calls."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"

#: The floor of each room; the picture stands in csrc/README.md. Rooms on one floor do not know each
#: other.
FLOOR = {
    "base": 0,
    "format": 1,
    "files": 1,
    "messaging": 2,
    "wire": 2,
    "log": 2,
    "timers": 2,
    "queues": 2,
    "index": 2,
    "light": 2,
    "filter": 2,
    "store": 3,
    "audit": 3,
    "derive": 3,
    "flat": 3,
    "http2": 3,
    "scan": 4,
    "ha": 4,
    "core": 4,
    "tables": 5,
    "waits": 6,
    "transactions": 6,
    "sends": 7,
    "pop": 8,
    "lite": 9,
    "remoting": 10,
    "net": 11,
}

_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
_NOT_CODE = re.compile(r'/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', re.DOTALL)
#: A function that other files may call begins at the line's start and is not static.
_DEFINED = re.compile(
    r"^(?!static|typedef|struct \w+ \{|enum|union|else|return)[a-z][\w \t*]*?\b(\w+)"
    r"\([^;{}]*\) \{$",
    re.MULTILINE,
)
#: So are the inline functions of a header, and macros that call one.
_INLINE = re.compile(r"^static inline [^;{}]*?\b(\w+)\([^;{}]*\) \{$", re.MULTILINE)
_MACRO = re.compile(r"^#define (\w+)\b((?:.*\\\n)*.*)$", re.MULTILINE)
_WORD = re.compile(r"\b[A-Za-z]\w*\b")


@cache
def code(path: Path) -> str:
    """The file without comments and strings, but with its includes."""
    text = path.read_text(encoding="utf-8")
    includes = "\n".join(f'#include "{name}"' for name in _INCLUDE.findall(text))
    return includes + "\n" + _NOT_CODE.sub(" ", text)


def sources() -> list[Path]:
    return [path for room in FLOOR for path in sorted((CSRC / room).glob("*.[ch]"))]


def name_of(path: Path) -> str:
    return path.relative_to(CSRC).as_posix()


def stem(name: str) -> str:
    return name.rpartition(".")[0]


@cache
def definitions() -> dict[str, str]:
    """Function, or macro of a header that calls one -> the file that defines it."""
    found: dict[str, str] = {}
    for path in sources():
        pattern = _DEFINED if path.suffix == ".c" else _INLINE
        found.update(dict.fromkeys(pattern.findall(code(path)), name_of(path)))
    calling = {
        name: name_of(path)
        for path in sources()
        if path.suffix == ".h"
        for name, body in _MACRO.findall(code(path))
        if any(word in found for word in _WORD.findall(body))
    }
    return found | calling


@cache
def arrows() -> frozenset[tuple[str, str, str]]:
    """(from, to, why) between files, of includes and of calls."""
    found = set()
    defined = definitions()
    for path in sources():
        here = name_of(path)
        for name in _INCLUDE.findall(code(path)):
            if "/" in name:
                found.add((here, name, f"includes {name}"))
        # A header may declare what several files define: only what it calls inline counts.
        body = code(path) if path.suffix == ".c" else inline(code(path))
        for word in set(_WORD.findall(body)):
            if word in defined:
                found.add((here, defined[word], f"calls {word}"))
    # A file and the header of its name are one thing: only what the header calls inline is an
    # arrow, since others call it there.
    return frozenset(
        (a, b, why)
        for a, b, why in found
        if stem(a) != stem(b) or (a.endswith(".h") and b.endswith(".c"))
    )


def inline(header: str) -> str:
    """The bodies of the header's inline functions and of its macros."""
    functions = re.findall(r"^static inline [^;{]*\{\n.*?^\}", header, re.M | re.S)
    return "\n".join([*functions, *(body for _, body in _MACRO.findall(header))])


def room(name: str) -> str:
    return name.partition("/")[0]


def circle(edges: Iterable[tuple[str, str]]) -> list[str]:
    """One circle of the graph, or nothing."""
    after: dict[str, set[str]] = {}
    for a, b in edges:
        after.setdefault(a, set()).add(b)
    done: set[str] = set()

    def walk(at: str, way: list[str]) -> list[str]:
        if at in way:
            return [*way[way.index(at) :], at]
        if at in done:
            return []
        for to in sorted(after.get(at, ())):
            if found := walk(to, [*way, at]):
                return found
        done.add(at)
        return []

    for start in sorted(after):
        if found := walk(start, []):
            return found
    return []


def test_every_room_has_a_floor() -> None:
    rooms = {path.name for path in CSRC.iterdir() if path.is_dir()} - {"tests"}
    assert rooms == set(FLOOR)


def test_no_arrow_points_up() -> None:
    wrong = sorted(
        f"{a} {why} ({b})"
        for a, b, why in arrows()
        if room(a) != room(b) and FLOOR[room(a)] <= FLOOR[room(b)]
    )
    assert wrong == []


@pytest.mark.parametrize("name", FLOOR)
def test_no_circle_within_a_room(name: str) -> None:
    edges = {(a, b) for a, b, _ in arrows() if room(a) == room(b) == name}
    found = circle(edges)
    steps = list(pairwise(found))
    assert found == [], [why for step in steps for a, b, why in arrows() if (a, b) == step]


def members() -> list[tuple[str, str]]:
    """(prefix, struct) of structs that all members of begin with one, in headers of all rooms."""
    found = []
    for path in sources():
        structs = re.findall(r"struct (ps_\w+) \{\n(.*?)\n\}", code(path), re.S)
        for struct, body in structs if path.suffix == ".h" else []:
            names = re.findall(r"(\w+)(?:\[[^]]*\])*(?:,[^;]*)?;", body)
            prefixes = {name[:3] for name in names}
            if len(prefixes) == 1 and re.fullmatch("[a-z]{2}_", min(prefixes)):
                found.append((min(prefixes), struct))
    return found


def test_a_prefix_of_members_belongs_to_one_struct() -> None:
    found = members()
    assert {("co_", "ps_core"), ("ca_", "ps_call"), ("an_", "ps_call_answer")} <= set(found)
    wrong = {
        prefix: {struct for other, struct in found if other == prefix}
        for prefix, _ in found
        if len({struct for other, struct in found if other == prefix}) > 1
    }
    assert wrong == {}


def test_the_reader_sees_calls_and_circles() -> None:
    """What the other tests rest on: a known call is seen, and a circle found."""
    assert ("store/put.c", "log/flusher.c", "calls ps_flusher_wait") in arrows()
    assert ("log/append.h", "log/allocator.c", "calls ps_allocator_ask") in arrows()  # inline
    assert ("core/lock.h", "core/lock.c", "calls ps_core_enter") in arrows()
    assert ("remoting/pull.c", "core/lock.h", "calls PS_CORE_HELD") in arrows()  # by a macro
    assert definitions()["ps_utf8_valid"] == "format/utf8.c"
    assert circle([("a", "b"), ("b", "c"), ("c", "a")]) == ["a", "b", "c", "a"]
    assert circle([("a", "b"), ("a", "c"), ("b", "c")]) == []


def test_every_room_says_what_it_is() -> None:
    for name in FLOOR:
        page = (CSRC / name / "README.md").read_text(encoding="utf-8")
        files = {path.name for path in (CSRC / name).glob("*.*") if path.name != "README.md"}
        assert {file for file in files if f"`{file}`" not in page} == set(), name
