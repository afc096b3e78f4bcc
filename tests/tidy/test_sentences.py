"""Sentences made for people are shown and never read again: no decision hangs on their wording.

Sentences are what an exception says of itself, what a finding or a diagnosis says, the remark of an
answer, a line of a log. A walk over each function knows where they come from (an ``except``, an
annotation, a name that only they have) and follows them through local names; it refuses whatever
looks inside: a search, a split, a comparison, a conversion. Showing, joining and cutting to a
length, or to the first line, are no looks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

import pytest
from parsed import ROOT, scopes, scopes_of
from test_one_place import product

#: Attributes that are sentences, whatever has them.
SENTENCES = {"meaning", "next_step", "java", "fix", "remark", "strerror"}
#: Attributes that are sentences of an exception, a finding or a record of a log.
OF_SPEAKERS = {"text", "args", "msg", "message", "reason", "mend", "why", "exc_text"}
#: Calls that make a sentence.
MAKERS = {"describe", "mend_command", "strerror", "getMessage", "format_exc", "format_exception"}
#: Annotations whose values speak in sentences.
SPEAKER = re.compile(r"\b(?:\w*(?:Error|Exception)|\w*Finding|Diagnosis|LogRecord)\b")
#: Methods that look inside, and those whose result is still the sentence.
LOOKS = {
    "split", "rsplit", "splitlines", "partition", "rpartition", "startswith", "endswith", "find",
    "rfind", "index", "rindex", "count", "removeprefix", "removesuffix", "isdigit",
}  # fmt: skip
KEEPS = {"strip", "lstrip", "rstrip", "lower", "upper", "casefold", "replace", "encode", "decode"}
PATTERNS = {"match", "search", "fullmatch", "findall", "finditer", "sub", "split"}
NUMBERS = {"int", "float", "ord"}
#: A part of the line, by file: sentences of somebody else, who gives nothing better.
ALLOWED = {
    # Java answers a refusal of its ACL 1.0 with the code of any error, and the exception's class.
    "broker/client/errors.py": r"_DENIED",
    # Spark hands on what an executor raised as text, nothing else.
    "spark_ext/jobs/frame.py": r"str\(failed\)",
}

_TELLING = (
    ast.ExceptHandler, ast.arg, ast.Call, ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For,
    ast.comprehension,
)  # fmt: skip
C_LOOK = re.compile(
    r"\b(?:str(?:str|n?cmp|n?casecmp|r?chr|tok|tol+|spn|cspn|pbrk)|mem(?:mem|cmp)|sscanf|ato[il])"
    r"\s*\([^;]*?(?:\b(?:e|error|why|err)(?:->|\.)text|\bremark\b|strerror)"
)
C_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


class _Walk:
    """One function, or the body of a module: which names speak, which hold sentences."""

    def __init__(self, speakers: set[str], sentences: set[str]) -> None:
        self.speakers, self.sentences = set(speakers), set(sentences)

    def is_speaker(self, node: ast.expr | None) -> bool:
        return isinstance(node, ast.Name) and node.id in self.speakers

    def is_sentence(self, node: ast.expr | None) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self.sentences
        if isinstance(node, ast.Attribute):
            of_speaker = node.attr in OF_SPEAKERS and self.is_speaker(node.value)
            return of_speaker or node.attr in SENTENCES
        if isinstance(node, ast.Subscript):
            return self.is_sentence(node.value)
        if isinstance(node, ast.JoinedStr):
            parts = (part.value for part in node.values if isinstance(part, ast.FormattedValue))
            return any(self.is_speaker(part) or self.is_sentence(part) for part in parts)
        if isinstance(node, ast.BoolOp):
            return any(map(self.is_sentence, node.values))
        if isinstance(node, ast.BinOp):
            return self.is_sentence(node.left) or self.is_sentence(node.right)
        if isinstance(node, ast.IfExp):
            return self.is_sentence(node.body) or self.is_sentence(node.orelse)
        return isinstance(node, ast.Call) and self._is_made(node)

    def _is_made(self, call: ast.Call) -> bool:
        name = _name(call.func)
        if name in MAKERS:
            return True
        if isinstance(call.func, ast.Attribute) and name in KEEPS:
            return self.is_sentence(call.func.value)
        told = [arg for arg in call.args if self.is_speaker(arg) or self.is_sentence(arg)]
        return name in ("str", "repr", "string") and bool(told)

    def learn(self, node: ast.AST) -> bool:
        """Returns whether a name is new."""
        before = len(self.speakers) + len(self.sentences)
        if isinstance(node, ast.ExceptHandler) and node.name:
            self.speakers.add(node.name)
        elif isinstance(node, ast.arg) and node.annotation is not None:
            if SPEAKER.search(ast.unparse(node.annotation)):
                self.speakers.add(node.arg)
        elif isinstance(node, ast.Call) and _name(node.func) == "isinstance":
            if isinstance(node.args[0], ast.Name) and SPEAKER.search(ast.unparse(node.args[1])):
                self.speakers.add(node.args[0].id)
        elif isinstance(node, ast.For | ast.comprehension):
            if isinstance(node.target, ast.Name) and _name(node.iter) in ("findings", "errors"):
                self.speakers.add(node.target.id)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    self._assigned(target.id, node.value)
        return len(self.speakers) + len(self.sentences) > before

    def _assigned(self, name: str, value: ast.expr | None) -> None:
        if self.is_sentence(value):
            self.sentences.add(name)
        if self.is_speaker(value) or (
            isinstance(value, ast.Call) and _name(value.func) == "exception"
        ):
            self.speakers.add(name)

    def looks(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            name, given = _name(node.func), [*node.args, *(k.value for k in node.keywords)]
            of = node.func.value if isinstance(node.func, ast.Attribute) else None
            line_end = [getattr(arg, "value", None) for arg in node.args] == ["\n"]
            if name in LOOKS and self.is_sentence(of) and not line_end:
                return True
            return name in PATTERNS | NUMBERS and any(map(self.is_sentence, given))
        if isinstance(node, ast.Compare):
            if all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
                return False
            return any(map(self.is_sentence, [node.left, *node.comparators]))
        if isinstance(node, ast.Match):
            return self.is_sentence(node.subject)
        return isinstance(node, ast.For | ast.comprehension) and self.is_sentence(node.iter)


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def looks_in(scopes: Iterable[tuple[ast.AST, list[ast.AST]]]) -> list[int]:
    """Returns the lines of Python source, by its scopes, that look into a sentence."""
    found: list[int] = []
    for _, nodes in scopes:
        walk = _Walk(set(), set())
        telling = [node for node in nodes if isinstance(node, _TELLING)]
        while sum(walk.learn(node) for node in telling):
            pass  # a name may be assigned from one that is learnt further down
        found += [node.lineno for node in nodes if walk.looks(node) and hasattr(node, "lineno")]
    return sorted(found)


def looks_in_c(text: str) -> list[int]:
    """Returns the lines of C source that look into a sentence."""
    code = C_COMMENT.sub(lambda m: "\n" * m[0].count("\n"), text)
    return [code.count("\n", 0, m.start()) + 1 for m in C_LOOK.finditer(code)]


@pytest.mark.parametrize(
    "look",
    [
        "def f(finding: Finding):\n    return int(finding.text.split()[-4])",
        "def f(x):\n    return x.next_step.startswith('restore')",
        "def f(x):\n    return 'folder is missing' in describe(x)",
        "try:\n    g()\nexcept OSError as error:\n    full = 'No space' in str(error)",
        "try:\n    g()\nexcept OSError as error:\n    said = f'{error}'\n    said.lower() == 'x'",
        "def f(why: StoreError):\n    what = why.text\n    return re.search('at (.*)', what)",
        "def f(answer):\n    return answer.remark == 'no route'",
        "def f(audit):\n    return [f for f in audit.findings if 'at' in f.text]",
        "def f(record: LogRecord):\n    return record.getMessage().partition(':')",
    ],
)
def test_a_look_into_a_sentence_is_found(look: str) -> None:
    assert looks_in(scopes(ast.parse(look)))


@pytest.mark.parametrize(
    "use",
    [
        "def f(finding: Finding):\n    print(describe(finding)[:80])",
        "def f(error: StoreError):\n    raise Closed(f'it broke: {error.text}')",
        "def f(error: OSError):\n    return error.errno == 2 and error.strerror is not None",
    ],
)
def test_what_shows_a_sentence_is_no_look(use: str) -> None:
    assert not looks_in(scopes(ast.parse(use)))


def test_a_look_of_c_is_found() -> None:
    assert looks_in_c('if (strstr(e->text, "full") != NULL) return 1;')
    assert not looks_in_c('return ps_fail(e, code, errno, 0, where, "%s", why.text);')


def test_no_code_looks_into_a_sentence_for_people() -> None:
    found = []
    for path in product():
        text = (ROOT / path).read_text(encoding="utf-8")
        lines = text.splitlines()
        is_python = path.suffix == ".py"
        for number in looks_in(scopes_of(ROOT / path)) if is_python else looks_in_c(text):
            allowed = ALLOWED.get(path.as_posix())
            if allowed is None or not re.search(allowed, lines[number - 1]):
                found.append(f"{path}:{number}: {lines[number - 1].strip()}")
    assert not found, "\n".join(found)
