"""Makes the tables and the sections of docs/cli.md from the commands themselves; what comes before
them on the page is by hand.

python tools/gen_cli_doc.py           writes it
python tools/gen_cli_doc.py --check   changes nothing, exits 1 when it is stale
"""

from __future__ import annotations

import re
import sys
from typing import Any

import generated

from pystore.cli._app import EXIT_CODES, command_of
from pystore.cli._verbs import all_verbs

PAGE = generated.ROOT / "docs" / "cli.md"

#: Options that every verb has, and the words of those that ask a cluster: each has its own table.
_COMMON = frozenset({"--conf", "--set", "--json", "--help"})
_ASKING = ("admin", "top")
_TYPES = {"str": "TEXT", "int": "N", "int range": "N", "float range": "NUMBER", "path": "FILE"}
#: What is code in a sentence: JSON, an option, a name with two kinds of letters, a pattern.
_CODE = re.compile(
    r"`[^`]*`|\{\S*\}|(?<![\w`/.-])(?:--?[a-z][a-z-]*|[a-z]+[A-Z]\w*|\w+_\w+|STORE/[\w-]+)(?![\w(])"
    r"(?:\.\w+)?(?:=\w+)?|[\w/:%.-]*\*[\w./=,-]*\w|[\w/:%.-]*\*"
)
_WORDS = frozenset({"gRPC"})
_PAGE = re.compile(r"\bdocs/((?:internals/)?[\w-]+\.md)\b")


def command(name: str) -> Any:
    """Returns click's command of a verb."""
    found: Any = command_of()
    for word in name.split():
        found = found.commands[word]
    return found


def _as_code(found: re.Match[str]) -> str:
    return found[0] if found[0] in _WORDS or found[0][0] == "`" else f"`{found[0]}`"


def marked(text: str, *, cell: bool = False) -> str:
    """Returns a text of the help as Markdown."""
    made = _PAGE.sub(r"[\1](\1)", _CODE.sub(_as_code, text))
    return made.replace("|", "\\|") if cell else made


def row_of(parameter: Any) -> str:
    """Returns the row of an argument or an option."""
    kind = parameter.type.name.lower()
    metavar = parameter.metavar or (kind == "choice" and "TEXT") or _TYPES.get(kind, "")
    if parameter.param_type_name == "argument":
        said = f"`{metavar or parameter.human_readable_name}`"
    else:
        short_first = sorted(parameter.opts, key=lambda each: each.startswith("--"))
        said = ", ".join(f"`{each}`" for each in short_first)
        if not parameter.is_flag:
            said += f" {metavar.upper()}"
        if parameter.secondary_opts:
            said += "; " + ", ".join(f"`{each}`" for each in parameter.secondary_opts)
    words = marked(parameter.help or "", cell=True)
    given = parameter.default
    if given not in (None, False, "", 0) and not callable(given) and not parameter.is_flag:
        shown = getattr(given, "value", given)
        words += f" Default: {shown}."
    escaped = said.replace("|", "\\|")
    return f"| {escaped} | {words} |"


def table_of(parameters: list[Any]) -> list[str]:
    """Returns the table of these arguments and options; nothing, if there are none."""
    rows = [row_of(each) for each in parameters]
    return ["", "| argument or option | meaning |", "|---|---|", *rows] if rows else []


def names_of(parameter: Any) -> set[str]:
    return {each for each in parameter.opts if each.startswith("--")}


def section_of(name: str, asking: frozenset[str]) -> list[str]:
    """Returns the lines of a verb's section."""
    made = command(name)
    left_out = _COMMON | (asking if name.split()[0] in _ASKING else frozenset())
    prose = made.help.split("\b")[0].strip()
    rows = [
        each
        for each in made.params
        if not names_of(each) & left_out and not getattr(each, "hidden", False)
    ]
    if rows and rows[0].param_type_name == "argument" and rows[0].name == "store":
        rows = rows[1:]
    return ["", f"## {name}", "", *marked(prose).splitlines(), *table_of(rows)]


def tables() -> dict[str, list[str]]:
    """Returns the generated parts of the page by the names of their marks."""
    asking = {each.name: each for each in command("admin cluster").params}
    asked = [each for each in asking.values() if not names_of(each) & _COMMON]
    names = frozenset(name for each in asked for name in names_of(each))
    verbs = [line for verb in all_verbs() for line in section_of(verb.name, names)]
    codes = [f"| {code} | {why} |" for code, why in EXIT_CODES.items()]
    return {
        "codes": ["| code | meaning |", "|---|---|", *codes],
        "asking": table_of(asked)[1:],
        "verbs": [*verbs[1:], ""],
    }


if __name__ == "__main__":
    sys.exit(generated.main({PAGE: generated.with_tables(PAGE, tables())}, __doc__, sys.argv[1:]))
