"""What comments and pages cite is in the repository: pages, their headings, files and functions."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from parsed import ROOT, files, name_of

INTERNALS = ROOT / "docs" / "internals"
CITATION = re.compile(r"\bdocs/([\w/-]+\.md)#([\w-]+)")
#: A sheet that is nowhere in the repository, by chapter and verse.
ELSEWHERE = re.compile(
    r"\b[Ss]pec:? (sections?\b|traps?\b|(store|remoting|services)\.md)"
    r"|\((spec:|sections? \d)"
    r"|\b(store|remoting|services)\.md (\d|[a-k]\.\d|\([a-k]\)|part |section)"
    r"|(?<![\w.])\((?:[a-k]|[0-36-9])\.\d{1,2}\)"
)


@cache
def sources() -> dict[str, str]:
    kinds = (".py", ".c", ".h", ".def", ".md", ".toml", ".go", ".java")
    return {
        name_of(path): path.read_text(encoding="utf-8", errors="replace")
        for path in files()
        if path.suffix in kinds and path != Path(__file__)
    }


@cache
def anchors(page: str) -> frozenset[str]:
    """Anchors of a page's headings, as its renderers make them."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    heads = re.findall(r"^#+ (.+)$", text, re.M)
    return frozenset(re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads)


def test_every_cited_heading_is_there() -> None:
    found = []
    count = 0
    for name, text in sources().items():
        for page, anchor in CITATION.findall(text):
            count += 1
            if not (ROOT / "docs" / page).is_file() or anchor not in anchors(page):
                found.append(f"{name}: docs/{page}#{anchor}")
    assert not found, "\n".join(found)
    assert count > 80


def test_nothing_cites_a_sheet_that_is_not_here() -> None:
    found = [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1} {match[0]}"
        for name, text in sources().items()
        for match in ELSEWHERE.finditer(text)
    ]
    assert not found, "\n".join(found)


def test_answers_name_files_and_functions_that_are_there() -> None:
    """Below each question of docs/internals/README.md: links to files, each with functions that it
    defines."""
    text = (INTERNALS / "README.md").read_text(encoding="utf-8")
    answers = re.findall(r"^\*\*(.+?\?)\*\* [^-]*?\n((?:- .+\n)+)", text, re.M)
    assert len(answers) == text.count("?**") >= 22
    for question, places in answers:
        named = re.findall(r"\[[^\]]+\]\(([^)]+)\)((?:,? `[\w.]+`)+)", places)
        assert len(named) == places.count("\n"), question
        assert not missing(named), question


def test_the_page_names_all_that_answers_system_busy() -> None:
    """What clients do with the code, and tools, is not an answer."""
    page = sources()["docs/internals/README.md"]
    places = page.partition("**What is answered with SYSTEM_BUSY")[2].partition("\n\n")[0]
    answering = {
        name for name, text in sources().items()
        if name.startswith("broker/") and not name.startswith(("broker/client/", "broker/wire/"))
        and "ResponseCode.SYSTEM_BUSY" in text
    }  # fmt: skip
    assert set(re.findall(r"\(\.\./\.\./(\S+)\)", places)) == answering


def missing(named: list[tuple[str, str]]) -> list[str]:
    """Of (link, functions in backquotes): the files that are not there, and the functions that
    their files do not define."""
    found = []
    for link, functions in named:
        path = (INTERNALS / link).resolve()
        if not path.is_file():
            found.append(link)
            continue
        code = path.read_text(encoding="utf-8")
        for function in re.findall(r"`([\w.]+)`", functions):
            name = function.rpartition(".")[2]
            defined = rf"^[ \t]*(async )?def {name}\(|^(?!\s)[^;\n]*\b{name}\([^;]*?\{{"
            if not re.search(defined, code, re.M | re.S):
                found.append(f"{link} `{function}`")
    return found


def test_files_that_pages_name_are_there() -> None:
    """A file renamed leaves pages behind that send readers nowhere."""
    there = [f"/{name}" for name in (*sources(), "tests/tidy/test_citations.py")]
    found = []
    for page, text in sources().items():
        if page.endswith(".md") and not page.startswith(("CHANGELOG", "changelog.d/")):
            named = set(re.findall(r"`([\w./-]+\.(?:py|c|h))`", text)) - {"Python.h"}
            found += [
                f"{page}: {name}" for name in sorted(named)
                if not any(each.endswith(f"/{name}") for each in there)
            ]  # fmt: skip
    assert not found, "\n".join(found)


def test_tables_name_functions_that_are_there() -> None:
    """In tables of docs/internals: a link to a file of code and, after a comma, its functions."""
    count = 0
    found = []
    for page in sorted(INTERNALS.glob("*.md")):
        rows = re.findall(r"^\|.*$", page.read_text(encoding="utf-8"), re.M)
        for row in rows:
            named = re.findall(r"\[[^\]]+\]\(([^)]+\.[ch])\)((?:, `[a-z_]\w+`)+)", row)
            count += len(named)
            found += [f"{page.name}: {each}" for each in missing(named)]
    assert not found, "\n".join(found)
    assert count > 5


def test_every_header_that_a_comment_names_is_there() -> None:
    """A header renamed leaves comments behind that lead nowhere."""
    headers = {Path(name).name for name in sources() if name.endswith(".h")}
    found = []
    for name, text in sources().items():
        if not name.startswith("csrc/") or not name.endswith((".c", ".h")):
            continue
        for comment in re.findall(r"/\*.*?\*/", text, re.S):
            named = {Path(path).name for path in re.findall(r"\b[\w/]+\.h\b", comment)}
            found += [f"{name}: {header}" for header in sorted(named - headers)]
    assert not found, "\n".join(found)
