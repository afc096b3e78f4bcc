"""Names of classes and modules: one meaning each, in all packages together; classes are nouns."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict

from parsed import ROOT, modules, nodes_of

#: Public names, which stay: two packages, or two rooms, have one each.
PUBLIC = {"Action", "Message", "Salvaged"}
#: Participles stand for a thing that they do not name; those without -ed:
IRREGULAR = "Found|Held|Kept|Left|Lost|Made|Read|Sent|Shown|Taken|Told|Written"
#: Of names of modules: by them alone two must not differ.
ENDINGS = ("s", "d", "ed", "ing")
SAYS_NOTHING = {"common", "helper", "helpers", "misc", "service", "util", "utils"}
PARTICIPLE = re.compile(rf"_?([A-Z][a-z]+)?([A-Z][a-z]*[^e]ed|{IRREGULAR})$")


@functools.cache
def classes() -> dict[str, list[tuple[str, frozenset[str]]]]:
    """Name -> where it is defined, and the names of its bases."""
    found = defaultdict(list)
    for path in modules():
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                bases = frozenset(ast.unparse(base).rpartition(".")[2] for base in node.bases)
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                found[node.name].append((where, bases))
    return dict(found)


def is_error(name: str) -> bool:
    """Errors are named for what happened."""
    if name.endswith(("Error", "Exception")):
        return True
    return any(is_error(base) for _, bases in classes().get(name, ()) for base in bases)


def test_a_name_stands_for_one_class() -> None:
    twice = {
        name: [where for where, _ in places]
        for name, places in classes().items()
        if len(places) > 1 and name not in PUBLIC
    }
    assert not twice, "\n".join(f"{name}: {', '.join(at)}" for name, at in sorted(twice.items()))


def test_classes_are_nouns() -> None:
    found = [
        f"{places[0][0]} {name}"
        for name, places in sorted(classes().items())
        if PARTICIPLE.match(name) and not is_error(name) and name not in PUBLIC
    ]
    assert not found, "\n".join(found)


def alike(names: set[str]) -> list[tuple[str, str]]:
    """Pairs that differ by an ending: which of engine and engines has the interface?"""
    stems = {name.lstrip("_") for name in names}
    return [(name, name + end) for name in sorted(stems) for end in ENDINGS if name + end in stems]


def test_modules_of_a_room_differ_by_more_than_an_ending() -> None:
    rooms = defaultdict(set)
    for path in modules():
        rooms[path.parent.relative_to(ROOT).as_posix()].add(path.stem)
    assert {room: pairs for room, names in rooms.items() if (pairs := alike(names))} == {}


def test_modules_are_named_for_what_they_hold() -> None:
    """gRPC calls a service what it serves; everywhere else the word could stand on any file."""
    found = [str(path.relative_to(ROOT)) for path in modules() if path.stem in SAYS_NOTHING]
    assert found == ["broker/grpc/service.py"]


def test_the_readers_find_what_they_look_for() -> None:
    assert alike({"escape", "escaped", "_row", "rows", "plan"}) == [
        ("escape", "escaped"), ("row", "rows"),
    ]  # fmt: skip
    assert PARTICIPLE.match("Salvaged") and PARTICIPLE.match("_Found")
    assert not PARTICIPLE.match("PulledRange") and not PARTICIPLE.match("Reader")
    assert is_error("SendFailed") and not is_error("Store")
