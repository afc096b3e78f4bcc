"""What every generator does with the files it makes: write them, or say which ones are stale."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["ROOT", "main", "with_tables"]

ROOT = Path(__file__).resolve().parent.parent


def with_tables(page: Path, tables: Mapping[str, list[str]]) -> str:
    """Returns a page with these lines between the marks of each name; the rest is by hand.

    Raises: ValueError for a page without the marks."""
    text = page.read_text(encoding="utf-8")
    for name, lines in tables.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        head, found, rest = text.partition(begin)
        if not found or end not in rest:
            raise ValueError(f"{page.relative_to(ROOT)} lacks the marks of {name}")
        text = head + begin + "\n".join(lines) + "\n" + end + rest.partition(end)[2]
    return text


def main(outputs: Mapping[Path, str], usage: str | None, arguments: list[str]) -> int:
    """Writes the files; with ``--check`` changes nothing and returns 1 when one is stale."""
    if arguments not in ([], ["--check"]):
        print(usage, file=sys.stderr)
        return 2
    if arguments:
        stale = [
            path
            for path, text in outputs.items()
            if not path.exists() or path.read_text(encoding="utf-8") != text
        ]
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: run {sys.argv[0]}", file=sys.stderr)
        return 1 if stale else 0
    for path, text in outputs.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0
