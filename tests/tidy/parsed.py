"""Python files of the product, each parsed once for all tests of the house style."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pystore", "broker", "spark_ext", "pyspark_rocketmq", "pytest_rocketmq")


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
