"""Pages that list what there is list all of it, and nothing else."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@cache
def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    return listed.stdout.decode().split("\0")


def files(pattern: str) -> set[str]:
    """The first group of the pattern, of each tracked file that it matches."""
    return {found[1] for name in tracked() if (found := re.fullmatch(pattern, name))}


def extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"]) - {"bench", "demo", "dev"}


#: Page: what its rows begin with, and what there is.
LISTS: dict[str, tuple[str, Callable[[], set[str]]]] = {
    "docs/README.md": (r"\[([\w-]+\.md)\]", lambda: files(r"docs/([\w-]+\.md)") - {"README.md"}),
    "docs/internals/README.md": (
        r"\[([\w-]+\.md)\]", lambda: files(r"docs/internals/([\w-]+\.md)") - {"README.md"}
    ),
    "tests/README.md": (r"`(\w+)/`", lambda: files(r"tests/(\w+)/.+")),
    "README.md": (r"`([a-z]+)`", extras),
}  # fmt: skip


@pytest.mark.parametrize("page", LISTS)
def test_a_page_lists_what_there_is(page: str) -> None:
    entry, there = LISTS[page]
    text = (ROOT / page).read_text(encoding="utf-8")
    if page == "README.md":
        text = text.partition("| extra | adds |")[2].partition("\n\n")[0]
    rows = [row.split("|") for row in re.findall(r"^\|.*\|$", text, re.M)]
    # In a page of parts, the second cell holds the link, and the first only where a part begins.
    first = [cells[2 if page == "docs/README.md" else 1] for cells in rows]
    assert {name for cell in first for name in re.findall(entry, cell)} == there()
