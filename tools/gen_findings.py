"""Makes the findings of Python and of the manual from csrc/audit/findings.def, their one table.

    python tools/gen_findings.py           writes pystore/audit/kinds.py, tables of docs/damage.md
    python tools/gen_findings.py --check   changes nothing, exits 1 when one of them is stale

The head of the table says what a row holds.
"""

from __future__ import annotations

import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import generated
from gen_errors import quoted, tokens, unquote

TABLE = generated.ROOT / "csrc" / "audit" / "findings.def"
MODULE = generated.ROOT / "pystore" / "audit" / "kinds.py"
PAGE = generated.ROOT / "docs" / "damage.md"

#: Type of the table: that of Python, that of JSON.
TYPES = {
    "place": ("int", "number: a byte of the log"),
    "offset": ("int", "number: a queue offset"),
    "bytes": ("int", "number of bytes"),
    "ms": ("int", "number of milliseconds"),
    "number": ("int", "number"),
    "errno": ("int", "number: errno of the system"),
    "flag": ("bool", "true or false"),
    "text": ("str", "text"),
    "names": ("tuple[str, ...]", "list of texts"),
    "places": ("tuple[tuple[str, int], ...]", "list of pairs: a topic, a byte of the log"),
}
FIELD = re.compile(r"(\w+): (\w+)(\?)?(?: = (value|physical|outcome))?")
USED = re.compile(r"\{(\w+)")
SEVERITIES = ("INFO", "WARNING", "ERROR")
PLACES = {"LOG": "log", "QUEUE": "queue", "INDEX": "index", "LIGHT": "light", "FILE": "file",
          "NOWHERE": ""}  # fmt: skip
MENDS = ("REPAIR", "OPEN", "ITSELF", "OPERATOR", "NOTHING")


@dataclass(frozen=True, slots=True)
class Field:
    """A typed field of a finding; `core` is the field of ps_finding that has it, or is empty."""

    name: str
    kind: str
    optional: bool
    core: str

    @property
    def annotation(self) -> str:
        made = TYPES[self.kind][0] if self.kind in TYPES else self.kind
        return f"{made} | None = None" if self.optional else made


@dataclass(frozen=True, slots=True)
class Word:
    """A value of an enumeration."""

    kind: str
    name: str
    value: int
    words: str


@dataclass(frozen=True, slots=True)
class Row:
    """A kind of finding; `code` is 0 for one that the core does not find."""

    code: int
    name: str
    severity: str
    where: str
    mend: str
    fields: tuple[Field, ...]
    details: str
    meaning: str
    java: str
    fix: str

    @property
    def cls(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("-")) + "Finding"


def calls(text: str) -> list[tuple[str, list[str]]]:
    """Returns the macros of the table with their arguments; neighbouring strings are joined, as in
    C."""
    found: list[tuple[str, list[str]]] = []
    for kind, value in tokens(text):
        if (kind, value) in (("mark", "("), ("mark", ")")):
            continue
        if kind == "name" and value.startswith("PS_FINDING"):
            found.append((value, [""]))
        elif kind == "mark":
            found[-1][1].append("")
        else:
            found[-1][1][-1] += unquote(value) if kind == "string" else value
    return found


def fields_of(text: str, words: set[str]) -> tuple[Field, ...]:
    made = []
    for each in filter(None, text.split("; ")):
        match = FIELD.fullmatch(each)
        if match is None or match[2] not in words | TYPES.keys():
            raise ValueError(f"findings.def: cannot read the field {each!r}")
        made.append(Field(match[1], match[2], bool(match[3]), match[4] or ""))
    return tuple(made)


def parse(text: str) -> tuple[list[Row], list[Word]]:
    """Returns the table's rows and words, in order; ValueError names what is wrong with one."""
    rows: list[Row] = []
    words: list[Word] = []
    for macro, given in calls(text):
        if macro == "PS_FINDING_WORD":
            words.append(Word(given[0], given[1], int(given[2]), given[3]))
            continue
        code = int(given[1]) if macro == "PS_FINDING" else 0
        name, severity, where, mend, fields, *texts = given[2:] if code else given
        made = fields_of(fields, {word.kind for word in words})
        rows.append(Row(code, name, severity, where, mend, made, *texts))
        check(rows[-1])
    names, codes = [row.name for row in rows], [row.code for row in rows if row.code]
    if len(set(names)) < len(names) or len(set(codes)) < len(codes):
        raise ValueError("findings.def: a name or a code is used twice")
    return rows, words


def check(row: Row) -> None:
    if row.severity not in SEVERITIES or row.where not in PLACES or row.mend not in MENDS:
        raise ValueError(f"findings.def: {row.name}: unknown severity, place or mend")
    if not all((row.meaning, row.java, row.fix)):
        raise ValueError(f"findings.def: {row.name} needs a meaning, what Java does, and a mend")
    known = {field.name for field in row.fields} | {"start", "end", "count"}
    if set(USED.findall(row.details)) - known:
        raise ValueError(f"findings.def: {row.name}: the details name a field that it lacks")


# ---- pystore/audit/kinds.py ----

HEAD = '''# Generated by tools/gen_findings.py from csrc/audit/findings.def. Do not edit.
"""Every kind of finding: a class with typed fields, and what is known of all of that kind."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from pystore.audit.findings import Finding, Kind, Mend, Severity, Words
'''
TAIL = """

#: By code of the core (PS_FIND_ in csrc/audit/findings.def).
BY_CODE: dict[int, type[Finding]] = {{
{codes}
}}
_FOUND_BY_PYTHON: tuple[type[Finding], ...] = (
{others}
)
#: By name.
KINDS: dict[str, Kind] = {{
    found.about.name: found.about for found in (*BY_CODE.values(), *_FOUND_BY_PYTHON)
}}
"""


def enum_text(kind: str, words: list[Word]) -> str:
    lines = ["", "", f"class {kind}(Words, enum.Enum):", f'    """{ENUM_DOCS[kind]}"""', ""]
    lines += [f"    {word.name} = {word.value}, {quoted(word.words)}" for word in words]
    return "\n".join(lines) + "\n"


ENUM_DOCS = {
    "RecordOutcome": "Why no record stands at a place of the log.",
    "StrayReason": "Why a file does not belong where it is.",
    "LightFault": "What is wrong with a slot of the files of light queues.",
    "FileFault": "What is wrong with a file beside log, queues and index.",
}


def class_text(row: Row) -> str:
    lines = ["", "", "@dataclass(frozen=True, slots=True, kw_only=True)"]
    lines += [f"class {row.cls}(Finding):"]
    about = [quoted(row.name), f"Severity.{row.severity}", quoted(PLACES[row.where]),
             f"Mend.{row.mend}", quoted(row.details), quoted(row.meaning), quoted(row.java),
             quoted(row.fix)]  # fmt: skip
    lines += ["    about: ClassVar[Kind] = Kind("]
    lines += [f"        {line}" for each in about for line in _fitted(each)]
    lines += ["    )"]
    source = {field.name: field for field in row.fields if field.core}
    if source:
        pairs = ", ".join(f"{quoted(name)}: ({quoted(field.core)}, {converter(field)})"
                          for name, field in source.items())  # fmt: skip
        lines += [f"    from_core: ClassVar = {{{pairs}}}"]
    lines += [f"    {field.name}: {field.annotation}" for field in row.fields]
    return "\n".join(lines) + "\n"


def _fitted(literal: str) -> list[str]:
    """Returns an argument of at most 100 columns, or neighbouring strings in parentheses."""
    if len(literal) <= 90:
        return [literal + ","]
    pieces = textwrap.wrap(literal[1:-1], 80, drop_whitespace=False)
    return ["(", *(f'    "{piece}"' for piece in pieces), "),"]


def converter(field: Field) -> str:
    return TYPES[field.kind][0] if field.kind in TYPES else f"{field.kind}.of"


def module_text(rows: list[Row], words: list[Word]) -> str:
    kinds = list(dict.fromkeys(word.kind for word in words))
    made = [HEAD, *(enum_text(kind, [w for w in words if w.kind == kind]) for kind in kinds)]
    made += [class_text(row) for row in rows]
    made.append(TAIL.format(
        codes="\n".join(f"    {row.code}: {row.cls}," for row in rows if row.code),
        others="\n".join(f"    {row.cls}," for row in rows if not row.code),
    ))  # fmt: skip
    return "".join(made)


# ---- docs/damage.md ----


def kinds_table(rows: list[Row]) -> list[str]:
    lines = ["| kind | severity | what it means, what is lost | Apache RocketMQ | what mends it |",
             "|---|---|---|---|---|"]  # fmt: skip
    for row in rows:
        fix = re.sub(r"pystore [a-z]+ STORE(?: --[a-z-]+)?", r"`\g<0>`", row.fix)
        lines.append(f"| `{row.name}` | {row.severity} | {row.meaning} | {row.java} | {fix} |")
    return lines


def fields_table(rows: list[Row], words: list[Word]) -> list[str]:
    lines = ["| kind | `start`, `end`, `count` | fields of `details` |", "|---|---|---|"]
    counts = {"LOG": "bytes of the log", "QUEUE": "queue offsets", "INDEX": "numbers of entries",
              "LIGHT": "slots",
              "FILE": "bytes of the file", "NOWHERE": "none"}  # fmt: skip
    for row in rows:
        if row.fields:
            fields = "; ".join(f"`{field.name}`: {json_type(field)}" for field in row.fields)
            lines.append(f"| `{row.name}` | {counts[row.where]} | {fields} |")
    lines += ["", "| word | value | meaning |", "|---|---|---|"]
    lines += [f"| {word.kind} | `{word.name}` | {word.words} |" for word in words]
    return lines


def json_type(field: Field) -> str:
    made = TYPES[field.kind][1] if field.kind in TYPES else f"a {field.kind}"
    return f"{made}, or null" if field.optional else made


def page_text(rows: list[Row], words: list[Word]) -> str:
    tables = {"kinds": kinds_table(rows), "fields": fields_table(rows, words)}
    return generated.with_tables(PAGE, tables)


def outputs() -> dict[Path, str]:
    """Returns what each generated file must hold."""
    rows, words = parse(TABLE.read_text(encoding="utf-8"))
    return {MODULE: module_text(rows, words), PAGE: page_text(rows, words)}


if __name__ == "__main__":
    sys.exit(generated.main(outputs(), __doc__, sys.argv[1:]))
