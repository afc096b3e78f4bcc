"""What the tests of the house style look at: files of the repository, each parsed once for all."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
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
    return tuple(node for scope, own in scopes_of(path) for node in (scope, *own))


@cache
def scopes_of(path: Path) -> tuple[tuple[ast.AST, list[ast.AST]], ...]:
    return tuple(scopes(tree_of(path)))


def scopes(tree: ast.Module) -> Iterator[tuple[ast.AST, list[ast.AST]]]:
    """Yields each function, and the module, with the nodes that are its own: names of contexts and
    operators, which have no place and are a third of all, are left out."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        scope = waiting.pop()
        own: list[ast.AST] = []
        inside = _children(scope)
        while inside:
            node = inside.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                waiting.append(node)
            else:
                own.append(node)
                inside += _children(node)
        yield scope, own


_MARKS = (ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop)


def _children(node: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if type(value) is list:
            found += [each for each in value if isinstance(each, ast.AST)]
        elif isinstance(value, ast.AST) and not isinstance(value, _MARKS):
            found.append(value)
    return found
