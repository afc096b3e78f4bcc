"""A docstring begins with what the function does: a verb in the third person, and its object.

Those of classes and properties, and comments of headers in C, begin with what it is that they
describe, not with the half of a sentence.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

import pytest
from parsed import PACKAGES, modules, name_of, nodes_of

VERB = re.compile(r"[A-Z][a-z]+s\b")
#: What ends like a verb and is none.
OTHERS = {
    "Access", "Address", "Addresses", "Always", "Brokers", "Browsers", "Bytes", "Classes",
    "Clients", "Clusters", "Columns", "Connections", "Expressions", "Folders", "Groups", "Halves",
    "Handlers", "Its", "Keys", "Messages", "Milliseconds", "Numbers", "Options", "Others",
    "Partitions", "Parts", "Paths", "Properties", "Queues", "Rows", "Seconds", "Settings", "This",
    "Times", "Topics",
}  # fmt: skip

#: Half of a sentence, which leaves open of what.
HALF = re.compile(r"(?:Of|As|Until|To|To be|In progress)\b")
C_COMMENT = re.compile(r"^/\*\s+(.{1,60})", re.MULTILINE)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_property(function: Function) -> bool:
    """A property is named by what it is."""
    names = {getattr(each, "attr", getattr(each, "id", "")) for each in function.decorator_list}
    return bool(names & {"property", "cached_property", "setter"})


def is_verb_of_the_program(function: Function) -> bool:
    """The help of a command says what to do."""
    if function.returns is None or ast.unparse(function.returns) != "int | None":
        return False
    first = function.args.args[:1]
    session = bool(first and first[0].annotation and "Session" in ast.unparse(first[0].annotation))
    return function.name == "run" or session


def without_verb(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yields line and first words of each docstring of a function that begins otherwise."""
    for node in nodes:
        if not isinstance(node, Function) or is_property(node):
            continue
        text = ast.get_docstring(node) or ""
        if is_verb_of_the_program(node):
            if (verb := VERB.match(text)) and verb[0] not in OTHERS:
                yield node.lineno, text[:60]
            continue
        if not text or (node.name == "__init__" and text.startswith("Raises: ")):
            continue  # the class says what it is made of
        verb = VERB.match(text)
        if verb is None or verb[0] in OTHERS or text.startswith("Raises:"):
            yield node.lineno, text[:60]


def half_sentences(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yields line and first words of each docstring of a class or property that is half of one."""
    for node in nodes:
        if isinstance(node, ast.ClassDef) or (isinstance(node, Function) and is_property(node)):
            text = ast.get_docstring(node) or ""
            if HALF.match(text):
                yield node.lineno, text[:60]


def test_what_describes_a_thing_says_which() -> None:
    found = [
        f"{name_of(path)}:{line} {words!r}"
        for path in modules(*PACKAGES)
        for line, words in half_sentences(nodes_of(path))
    ]
    found += [
        f"{name_of(path)} {words!r}"
        for path in modules("csrc", kind="h")
        for words in C_COMMENT.findall(path.read_text(encoding="utf-8"))
        if HALF.match(words)
    ]
    assert not found, "\n".join(found)


def test_docstrings_begin_with_a_verb() -> None:
    found = [
        f"{name_of(path)}:{line} {words!r}"
        for path in modules(*PACKAGES, "tools")
        for line, words in without_verb(nodes_of(path))
    ]
    assert not found, "\n".join(found)


def test_help_of_a_command_that_does_not_say_what_to_do_is_found() -> None:
    help_ = 'def run(s: Session) -> int | None:\n    """Shows a store."""'
    assert list(without_verb(ast.walk(ast.parse(help_))))


@pytest.mark.parametrize(
    "text",
    ["Whether it is there.", "Raises: Misuse.", "Of the topics.", "Messages of a queue.", "how"],
)
def test_what_begins_otherwise_is_found(text: str) -> None:
    assert list(without_verb(ast.walk(ast.parse(f'def f():\n    """{text}"""'))))


@pytest.mark.parametrize(
    "source",
    [
        'class C:\n    """Of one slave."""',
        'class C:\n    @property\n    def f(self):\n        """As it is."""',
    ],
)
def test_half_a_sentence_is_found(source: str) -> None:
    assert list(half_sentences(ast.walk(ast.parse(source))))


@pytest.mark.parametrize(
    "source",
    [
        'def f():\n    """Returns the data version. Raises: Misuse."""',
        'class C:\n    def __init__(self):\n        """Raises: Misuse."""',
        'class C:\n    @property\n    def size(self):\n        """The bytes of it."""',
        'def run(s: Session) -> int | None:\n    """Show a store."""',
    ],
)
def test_what_begins_well_is_left_alone(source: str) -> None:
    assert not list(without_verb(ast.walk(ast.parse(source))))
