"""The house style as tests. A failure lists every place, as path:line: one run is enough."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from parsed import PACKAGES, ROOT, files, nodes_of

COLUMNS_MAX = 100
FUNCTION_LINES_MAX = 60
FOLDERS_WITHOUT_README = {"build", "dist"}

BANNED_EVERYWHERE = r"strcpy|strcat|sprintf|vsprintf|gets"
BANNED_IN_CORE = (
    BANNED_EVERYWHERE + r"|abort|exit|assert|printf|vprintf|fprintf|vfprintf|puts|perror"
)
#: System calls that only csrc/files/io.c makes; rooms that may all the same: base maps a page of
#: its own, tests play the other process.
FILE_CALLS = (
    "open|pread|pwrite|fsync|fdatasync|ftruncate|fallocate|mmap|munmap|msync|rename|unlink|mkdir"
    "|rmdir|stat|fstat|lstat|access|lseek|opendir|readdir|closedir|fcntl|syncfs|posix_fadvise"
    "|statvfs"
)
ROOMS_WITH_IO = ("base", "tests")


def with_suffix(*suffixes: str, below: str = "") -> list[Path]:
    return [p for p in files() if p.suffix in suffixes and p.is_relative_to(ROOT / below)]


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def place(path: Path, line: int, what: str = "") -> str:
    return f"{path.relative_to(ROOT)}:{line} {what}".rstrip()


def complain(places: list[str]) -> None:
    if places:
        pytest.fail("\n".join(places), pytrace=False)


# ---- C ----

C_NOISE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', re.DOTALL)
C_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)


def blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def c_code(text: str) -> str:
    """The text with comments, strings and directives blanked out, every line where it was."""
    return C_DIRECTIVE.sub(blank, C_NOISE.sub(blank, text))


def c_functions(text: str) -> Iterator[tuple[int, int]]:
    """First and last line of each function body, counted by braces."""
    code = c_code(text)
    depth = 0
    start: int | None = None
    for match in re.finditer(r"[{}]", code):
        line = code.count("\n", 0, match.start()) + 1
        if match.group() == "{":
            if depth == 0 and code[: match.start()].rstrip().endswith(")"):
                start = line
            depth += 1
        else:
            depth -= 1
            if depth == 0 and start is not None:
                yield start, line
                start = None
    if depth != 0:
        raise ValueError("braces do not pair; an #if that opens one must close it too")


def too_long(text: str) -> list[tuple[int, str]]:
    """Functions over the limit without a mark `tidy: long` that gives its reason."""
    lines = text.splitlines()
    found = []
    for first, last in c_functions(text):
        count = last - first + 1
        body = "\n".join(lines[max(first - 2, 0) : last])
        if count > FUNCTION_LINES_MAX and not re.search(r"tidy: long\W+\w+ \w+", body):
            found.append((first, f"function of {count} lines"))
    return found


def banned(text: str, names: str) -> list[tuple[int, str]]:
    code = c_code(text)
    return [
        (code.count("\n", 0, match.start()) + 1, match.group(1))
        for match in re.finditer(rf"\b({names})\s*\(", code)
    ]


def test_c_functions_are_short():
    complain(
        [
            place(path, line, what)
            for path in with_suffix(".c", ".h", below="csrc")
            for line, what in too_long(read(path))
        ]
    )


STATIC = re.compile(r"^static\s+[\w\s*]*?\b([a-z0-9]+)\([^;{}]*\)\s*\{", re.MULTILINE)


def test_functions_of_c_name_their_topic():
    """In a backtrace stands their name alone: a verb says of whom nothing."""
    places = []
    for path in with_suffix(".c", ".h", below="csrc"):
        if path.is_relative_to(ROOT / "csrc" / "tests"):
            continue
        code = c_code(read(path))
        places += [
            place(path, code.count("\n", 0, match.start()) + 1, match[1])
            for match in STATIC.finditer(code)
        ]
    complain(places)


def test_c_makes_no_banned_calls():
    places = []
    for path in with_suffix(".c", ".h", below="csrc"):
        in_tests = path.is_relative_to(ROOT / "csrc" / "tests")
        names = BANNED_EVERYWHERE if in_tests else BANNED_IN_CORE
        places += [place(path, line, f"calls {what}") for line, what in banned(read(path), names)]
    complain(places)


def past_the_table(text: str) -> list[tuple[int, str]]:
    """System calls on files that are made directly. Not read, write and close: eventfds and
    sockets have those."""
    code = c_code(text)
    return [
        (code.count("\n", 0, match.start()) + 1, match.group(1))
        for match in re.finditer(rf"(?<![\w.>])({FILE_CALLS})\s*\(", code)
    ]


def test_c_touches_files_through_the_table():
    core = [p for p in with_suffix(".c", ".h", below="csrc") if p.parent.name not in ROOMS_WITH_IO]
    core = [p for p in core if p.name != "io.c"]
    complain(
        [place(path, line, what) for path in core for line, what in past_the_table(read(path))]
    )


def test_checker_of_the_table_finds_a_direct_call():
    assert past_the_table("io->fsync(io, fd);\nint x = fsync(fd);") == [(2, "fsync")]


def test_c_knows_nothing_of_python():
    complain(
        [
            place(path, number)
            for path in with_suffix(".c", ".h", ".def", below="csrc")
            for number, line in enumerate(read(path).splitlines(), 1)
            if re.search(r"#\s*include.*Python\.h", line)
        ]
    )


# ---- Python ----


@cache
def seen_in(path: Path) -> tuple[list[int], list[tuple[int, str, int]]]:
    """Lines of bare excepts, and functions. Trees of tests are not kept: few look at them."""
    if path.relative_to(ROOT).parts[0] in PACKAGES:
        nodes = nodes_of(path)
    else:
        nodes = tuple(statements(ast.parse(read(path))))
    bare = [n.lineno for n in nodes if isinstance(n, ast.ExceptHandler) and n.type is None]
    return bare, list(python_functions(nodes))


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yields every statement, and every `except` and `case`; none of the many more expressions."""
    inside: list[ast.AST] = [tree]
    while inside:
        node = inside.pop()
        yield node
        for part in ("body", "handlers", "orelse", "finalbody", "cases"):
            below = getattr(node, part, ())
            if type(below) is list:  # that of a lambda is an expression
                inside += below


def test_no_bare_except():
    complain(
        [
            place(path, line, "bare except")
            for path in with_suffix(".py")
            for line in seen_in(path)[0]
        ]
    )


def python_functions(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str, int]]:
    """(line, name, lines) of each function; its docstring is not counted, as comments before a
    function of C are not."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            count = node.end_lineno - node.lineno + 1
            first = node.body[0]
            if ast.get_docstring(node, clean=False) is not None:
                count -= (first.end_lineno or first.lineno) - first.lineno + 1
            yield node.lineno, node.name, count


def test_python_functions_are_short():
    complain(
        [
            place(path, line, f"{name} has {count} lines")
            for path in with_suffix(".py")
            for line, name, count in seen_in(path)[1]
            if count > FUNCTION_LINES_MAX
        ]
    )


# ---- both ----


def test_lines_fit():
    complain(
        [
            place(path, number, f"{len(line)} columns")
            for path in with_suffix(".py", ".pyi", ".c", ".h", ".def")
            for number, line in enumerate(read(path).splitlines(), 1)
            if len(line) > COLUMNS_MAX
        ]
    )


def test_no_tabs_or_trailing_spaces_in_code():
    complain(
        [
            place(path, number)
            for path in with_suffix(".py", ".pyi", ".c", ".h", ".def")
            for number, line in enumerate(read(path).splitlines(), 1)
            if "\t" in line or line != line.rstrip()
        ]
    )


@pytest.mark.parametrize(
    "tool",
    [
        "gen_errors.py",
        "gen_findings.py",
        "gen_cli_doc.py",
        "gen_codes.py",
        "gen_cold_costs.py",
        "gen_logs.py",
        "gen_metrics.py",
        "gen_board.py",
        "gen_settings_doc.py",
        "gen_setting_types.py",
    ],
)
def test_generated_files_follow_from_their_source(tool):
    result = subprocess.run(
        [sys.executable, ROOT / "tools" / tool, "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


# ---- documents ----

FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL)
#: ``[NAME]: target`` at the end of a page, for its ``[NAME][]``.
LINK_BY_NAME = re.compile(r"^\[[^\]\n]+\]: +(\S+)$", re.MULTILINE)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
# A path that says where somebody worked, not where a reader's file lies.
MACHINE_PATH = re.compile(r"(?<![\w./~$}-])/(?:work|tmp|root)(?![\w-]|\.\w)")


def prose(text: str) -> str:
    """A document with code blocks and inline code blanked out: no links stand in them."""
    return re.sub(r"`[^`\n]*`", blank, FENCE.sub(blank, text))


def slugs(text: str) -> set[str]:
    """Anchors of a document's headings, made as the usual renderers make them."""
    found: set[str] = set()
    for title in re.findall(r"^#{1,6}\s+(.*?)\s*#*$", FENCE.sub(blank, text), re.MULTILINE):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        slug = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        count = 0
        while (name := f"{slug}-{count}" if count else slug) in found:
            count += 1
        found.add(name)
    found.update(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    return found


def broken_link(path: Path, target: str) -> str | None:
    """Why a link of the document leads nowhere; None when it leads somewhere or outside."""
    if re.match(r"[a-z][a-z0-9+.-]*:", target):
        return None
    name, _, anchor = target.partition("#")
    if name.startswith("/"):
        return "not relative"
    aim = (path.parent / name).resolve() if name else path
    if not aim.is_relative_to(ROOT):
        return "leads out of the repository"
    if not aim.exists():
        return "no such file"
    if anchor and aim.suffix == ".md" and anchor not in slugs(read(aim)):
        return "no such heading"
    return None


def test_links_in_documents_resolve():
    places = []
    for path in with_suffix(".md"):
        text = prose(read(path))
        for match in (*LINK.finditer(text), *LINK_BY_NAME.finditer(text)):
            why = broken_link(path, match.group(1))
            if why:
                line = text.count("\n", 0, match.start()) + 1
                places.append(place(path, line, f"{match.group(1)}: {why}"))
    complain(places)


#: Characters of a row of a table as they are shown: more wrap to a block that nobody reads at 80
#: columns.
ROW_MAX = 165
SHOWN_LINK = re.compile(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")


def shown_length(row: str) -> int:
    """Of the text in a row's cells: links by their text, without what marks it up."""
    text = re.sub(r"`|\*\*", "", SHOWN_LINK.sub(r"\1", row))
    return sum(len(cell.strip()) for cell in re.split(r"(?<!\\)\|", text))


def test_tables_fit_a_terminal():
    places = []
    for path in with_suffix(".md"):
        for number, line in enumerate(FENCE.sub(blank, read(path)).splitlines(), 1):
            if line.startswith("|") and (length := shown_length(line)) > ROW_MAX:
                places.append(place(path, number, f"a row of {length} characters"))
    complain(places)


def test_rows_count_what_is_shown():
    assert shown_length("| [a](b/c.md) | `x` **y** | [d][] | e\\|f |") == 1 + 3 + 1 + 4


def test_documents_name_no_path_of_a_machine():
    complain(
        [
            place(path, number, match.group())
            for path in with_suffix(".md")
            for number, line in enumerate(read(path).splitlines(), 1)
            for match in MACHINE_PATH.finditer(line)
        ]
    )


def test_every_top_folder_has_a_readme():
    names = {path.relative_to(ROOT).parts[0] for path in files() if path.parent != ROOT}
    folders = sorted(n for n in names if not n.startswith(".") and n not in FOLDERS_WITHOUT_README)
    missing = [name for name in folders if not (ROOT / name / "README.md").is_file()]
    complain([f"{name}/README.md is missing" for name in missing])


#: Packages and tools: every directory of theirs has a README that names every file in it.
ROOMS = ("pystore", "broker", "spark_ext", "pyspark_rocketmq", "tools")


@cache
def by_folder() -> dict[Path, set[str]]:
    """Names of the Python files of each folder that has any."""
    found: dict[Path, set[str]] = {}
    for path in files():
        if path.suffix == ".py":
            found.setdefault(path.parent, set()).add(path.name)
    return found


def unnamed(folder: Path, readme: str) -> list[str]:
    """Python files and rooms of a directory that its README does not name."""
    names = sorted(by_folder().get(folder, set()) - {"__init__.py"})
    names += sorted(f"{room.name}/" for room in by_folder() if room.parent == folder)
    return [name for name in names if not re.search(rf"(?<![\w.]){re.escape(name)}", readme)]


def test_readmes_of_packages_name_every_file():
    folders = {p.parent for room in ROOMS for p in files() if p.is_relative_to(ROOT / room)}
    places = []
    for folder in sorted(folders):
        readme = folder / "README.md"
        if not readme.is_file():
            places.append(f"{readme.relative_to(ROOT)} is missing")
            continue
        places += [
            f"{readme.relative_to(ROOT)} does not name {name}"
            for name in unnamed(folder, read(readme))
        ]
    complain(places)


# ---- the checkers themselves ----


def test_checker_of_readmes_finds_a_file():
    assert "test_tidy.py" in unnamed(ROOT / "tests" / "tidy", "my_test_tidy.py `test_words.py`")
    assert "test_words.py" not in unnamed(ROOT / "tests" / "tidy", "`test_words.py`")


def test_checker_counts_lines_of_a_function():
    body = "    x = 1; /* } */\n" * FUNCTION_LINES_MAX
    text = f'struct s {{\n int a;\n}};\nint f(int x) {{\n{body}    s = "}}";\n}}\n'
    assert too_long(text) == [(4, f"function of {FUNCTION_LINES_MAX + 3} lines")]
    marked = text.replace("x = 1;", "x = 1; // tidy: long, one table of cases", 1)
    assert too_long(marked) == []
    assert too_long(text.replace("x = 1;", "x = 1; // tidy: long", 1)) != []


def test_checker_counts_lines_of_python():
    text = 'def f(\n    x,\n):\n    """One\n    two."""\n    return x\n'
    assert list(python_functions(ast.walk(ast.parse(text)))) == [(1, "f", 4)]


def test_checker_sees_calls_but_not_words():
    text = '/* abort() */ "printf("; snprintf(a); my_assert(x); static_assert(1); assert (x);'
    assert banned(text, BANNED_IN_CORE) == [(1, "assert")]
    assert banned("\nstrcpy(a, b);", BANNED_EVERYWHERE) == [(2, "strcpy")]


def test_checker_of_links_knows_good_from_bad():
    page = ROOT / "tests" / "README.md"
    assert broken_link(page, "../csrc/README.md") is None
    assert broken_link(page, "../csrc/README.md#csrc-the-data-plane") is None
    assert broken_link(page, "#tests") is None
    assert broken_link(page, "mailto:someone") is None
    assert broken_link(page, "nowhere.md") == "no such file"
    assert broken_link(page, "#nowhere") == "no such heading"
    assert broken_link(page, "../../elsewhere.md") == "leads out of the repository"


@pytest.mark.parametrize("text", ["see /tmp/x", "`/root/store`", "in /work."])
def test_checker_of_paths_finds_them(text):
    assert MACHINE_PATH.search(text)


@pytest.mark.parametrize("text", ["store/tmp/x", "$HOME/work/x", "/data/store", "./tmp/x"])
def test_checker_of_paths_leaves_others_alone(text):
    assert not MACHINE_PATH.search(text)


def test_names_of_test_files_are_unique() -> None:
    """pytest imports them by their bare names: of two that are equal the second is not run."""
    names = sorted(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [a for a, b in itertools.pairwise(names) if a == b] == []
