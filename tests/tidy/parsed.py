"""What the tests of the house style look at: files of the repository, each parsed once for all."""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pystore", "broker", "spark_ext", "pyspark_rocketmq", "pytest_rocketmq")


@cache
def files() -> tuple[Path, ...]:
    """What is in the repository or about to be: ignored files are nobody's style."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    paths = {ROOT / name for name in listed.split("\0") if name}
    return tuple(sorted(path for path in paths if path.is_file()))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def modules(*folders: str, kind: str = "py") -> tuple[Path, ...]:
    """The files of these packages, of all where none is named."""
    return tuple(
        path
        for folder in folders or PACKAGES
        for path in sorted((ROOT / folder).rglob(f"*.{kind}"))
    )


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of its tree."""
    return tuple(ast.walk(tree_of(path)))
