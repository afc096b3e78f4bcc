"""Sentences made for people are shown and never read again: no decision hangs on their wording.

Sentences are what an exception says of itself, what a finding or a diagnosis says, the remark of an
answer, a line of a log. A walk over each module knows where they come from (an ``except``, an
annotation, a name that only they have) and follows them through names, attributes and what its
functions return; it refuses whatever looks inside: a search, a split, a comparison, a conversion, a
table by sentences. Showing, joining and cutting to a length, or to the first line, are not looks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache

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
#: Names and attributes that speak, whoever gave them; with an s, what has several.
SPEAKING = re.compile(r"(?:\w*_)?(?:error|exc|exception|failure|finding|diagnosis|__cause__)")
SEVERAL = re.compile(r"(?:\w*_)?(?:error|exception|failure|finding|diagnose)s|verify|diagnose")
#: Names of lines that somebody logged, and keys of sentences in JSON.
LOGGED = re.compile(r"(?:\w*_)?log_line")
KEYS = {"text", "remark"}
#: Methods that look inside, and those whose result is still the sentence.
LOOKS = {
    "split", "rsplit", "splitlines", "partition", "rpartition", "startswith", "endswith", "find",
    "rfind", "index", "rindex", "count", "removeprefix", "removesuffix", "isdigit", "__contains__",
}  # fmt: skip
KEEPS = {"strip", "lstrip", "rstrip", "lower", "upper", "casefold", "replace", "encode", "decode"}
#: What looks into what it is given.
PATTERNS = {
    "match", "search", "fullmatch", "findall", "finditer", "sub", "split", "fnmatch", "fnmatchcase",
    "get", "int", "float", "ord",
}  # fmt: skip
SPOKEN = {"str", "repr", "string", "format", "formatException"}
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
#: What holds a sentence in C: an error, its text under another name, a remark.
C_ERROR = re.compile(r"\bps_error \*?(\w+)")
C_ALIAS = r"\bchar \*(\w+) = (?:\w+(?:->|\.))*(?:%s)(?![\w(])"
C_LOOK = (
    r"\b(?:str(?:n?cmp|n?casecmp|(?:case)?str|r?chr|tok|tol+|spn|cspn|pbrk)|mem(?:mem|cmp)|sscanf"
    r"|ato[il]|ps_slice_(?!of)\w+)\s*\([^;]*?(?:%s)|(?:%s)\[[^\]]+\] [=!]= (?!'\\0')"
)
C_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


class _Walk:
    """One function, or the body of a module: which names speak, which hold sentences.

    told: what the module knows: functions that return a sentence, attributes that speak."""

    def __init__(self, told: set[str]) -> None:
        self.speakers: set[str] = set()
        self.sentences: set[str] = set()
        self.told = told

    def is_speaker(self, node: ast.expr | None) -> bool:
        if isinstance(node, ast.Subscript):
            return isinstance(node.value, ast.Call) and _name(node.value.func) == "exc_info"
        if isinstance(node, ast.Call):
            return _name(node.func) == "exception"
        name = _name(node)
        if isinstance(node, ast.Attribute) and name in self.told:
            return True
        return name in self.speakers or _speaks(name)

    def is_sentence(self, node: ast.expr | None) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self.sentences or LOGGED.fullmatch(node.id) is not None
        if isinstance(node, ast.Attribute):
            of_speaker = node.attr in OF_SPEAKERS and self.is_speaker(node.value)
            return of_speaker or node.attr in SENTENCES
        if isinstance(node, ast.Subscript):
            return getattr(node.slice, "value", None) in KEYS or self.is_sentence(node.value)
        if isinstance(node, ast.JoinedStr):
            parts = (part.value for part in node.values if isinstance(part, ast.FormattedValue))
            return any(map(self._tells, parts))
        if isinstance(node, ast.BoolOp):
            return any(map(self.is_sentence, node.values))
        if isinstance(node, ast.BinOp):
            return self.is_sentence(node.left) or self._tells(node.right)
        if isinstance(node, ast.IfExp):
            return self.is_sentence(node.body) or self.is_sentence(node.orelse)
        return isinstance(node, ast.Call) and self._is_made(node)

    def _tells(self, node: ast.expr) -> bool:
        several = node.elts if isinstance(node, ast.Tuple) else [node]
        return any(self.is_speaker(each) or self.is_sentence(each) for each in several)

    def _is_made(self, call: ast.Call) -> bool:
        name = _name(call.func)
        if name in MAKERS or (isinstance(call.func, ast.Name) and name in self.told):
            return True
        if isinstance(call.func, ast.Attribute):
            if name in KEEPS:
                return self.is_sentence(call.func.value)
            if name == "__str__":
                return self.is_speaker(call.func.value)
        return name in SPOKEN and any(map(self._tells, call.args))

    def learn(self, node: ast.AST) -> bool:
        """Returns whether a name is new."""
        before = len(self.speakers) + len(self.sentences) + len(self.told)
        if isinstance(node, ast.ExceptHandler) and node.name:
            self.speakers.add(node.name)
        elif isinstance(node, ast.arg) and node.annotation is not None:
            if SPEAKER.search(ast.unparse(node.annotation)):
                self.speakers.add(node.arg)
        elif isinstance(node, ast.Call) and _name(node.func) == "isinstance":
            if isinstance(node.args[0], ast.Name) and SPEAKER.search(ast.unparse(node.args[1])):
                self.speakers.add(node.args[0].id)
        elif isinstance(node, ast.For | ast.comprehension):
            of = node.iter.func if isinstance(node.iter, ast.Call) else node.iter
            if isinstance(node.target, ast.Name) and SEVERAL.fullmatch(_name(of)):
                self.speakers.add(node.target.id)
            elif isinstance(node.target, ast.Name) and LOGGED.fullmatch(_name(of)[:-1]):
                self.sentences.add(node.target.id)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                self._assigned(target, node.value)
        return len(self.speakers) + len(self.sentences) + len(self.told) > before

    def _assigned(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for each, of in zip(target.elts, value.elts, strict=False):
                self._assigned(each, of)
        elif isinstance(target, ast.Attribute) and self.is_speaker(value):
            self.told.add(target.attr)
        elif isinstance(target, ast.Name):
            if self.is_sentence(value):
                self.sentences.add(target.id)
            if self.is_speaker(value):
                self.speakers.add(target.id)

    def looks(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            name, given = _name(node.func), [*node.args, *(k.value for k in node.keywords)]
            of = node.func.value if isinstance(node.func, ast.Attribute) else None
            line_end = [getattr(arg, "value", None) for arg in node.args] == ["\n"]
            if name in LOOKS and self.is_sentence(of) and not line_end:
                return True
            return name in PATTERNS and any(map(self.is_sentence, given))
        if isinstance(node, ast.Subscript):
            return self.is_sentence(node.slice)
        if isinstance(node, ast.Compare):
            if all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
                return False
            return any(map(self.is_sentence, [node.left, *node.comparators]))
        if isinstance(node, ast.Match):
            return self.is_sentence(node.subject)
        if isinstance(node, ast.comprehension) and not node.ifs:
            return False
        return isinstance(node, ast.For | ast.comprehension) and self.is_sentence(node.iter)


def _name(node: ast.expr | None) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@cache
def _speaks(name: str) -> bool:
    return SPEAKING.fullmatch(name) is not None


def looks_in(scopes: Iterable[tuple[ast.AST, list[ast.AST]]]) -> list[int]:
    """Returns the lines of Python source, by its scopes, that look into a sentence."""
    told: set[str] = set()
    walks = [(_Walk(told), scope, nodes) for scope, nodes in scopes]
    known = -1
    while known < len(told):
        known = len(told)
        for walk, scope, nodes in walks:
            telling = [node for node in nodes if isinstance(node, _TELLING)]
            while sum(walk.learn(node) for node in telling):
                pass  # a name may be assigned from one that is learnt further down
            if any(walk.is_sentence(node.value) for node in nodes if isinstance(node, ast.Return)):
                told.add(scope.name)
    return sorted(
        (node.iter if isinstance(node, ast.comprehension) else node).lineno
        for walk, _, nodes in walks
        for node in nodes
        if walk.looks(node)
    )


def looks_in_c(text: str) -> list[int]:
    """Returns the lines of C source that look into a sentence."""
    code = C_COMMENT.sub(lambda m: "\n" * m[0].count("\n"), text)
    errors = "|".join({"e", "error", "why", "err", *C_ERROR.findall(code)})
    told = rf"\b(?:\w+_)?(?:{errors})(?:->|\.)text\b|\b(?:\w+_)?remark\b|\b\w*strerror\w*\("
    told += "".join(rf"|\b{name}\b" for name in re.findall(C_ALIAS % told, code))
    return [code.count("\n", 0, m.start()) + 1 for m in re.finditer(C_LOOK % (told, told), code)]


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
        "def f(log_lines):\n    return [line for line in log_lines if line.startswith('lost')]",
        "def f(task):\n    return 'timed out' in '%s: %s' % (task, task.exception())",
        "def f(folder):\n    return [x for x in folder.verify() if 'torn' in x.text]",
        "def f(row):\n    return TABLE[row['text']]",
        "def said(e: StoreError):\n    return e.text\ndef f(e):\n    return said(e).split()[1]",
        "def f(x, e: StoreError):\n    x.was = e\ndef g(x):\n    return str(x.was).find('at')",
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
    assert looks_in_c('ps_error was;\nif (!strncasecmp(was.text, "full", 4)) return 1;')
    assert looks_in_c("const char *said = st->st_error.text;\nif (said[0] == 'f') return 1;")
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
