"""What import-linter's contracts (pyproject.toml, `make lint`) cannot see: private names and
attributes of other packages, imports written as text, who loads the compiled core."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from parsed import PACKAGES, ROOT, modules, name_of, nodes_of
from waiting import BOUND_S

from tools.render_api import MODULES

#: Methods of every named tuple, whose names begin with an underscore by its own rule.
NAMED_TUPLE = {"_replace", "_asdict", "_fields", "_make"}
Nodes = Iterable[ast.AST]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_imports(package: str, nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Private modules and names that a file imports from another package of ours."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{each.name}" for each in node.names]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        else:
            continue
        for name in names:
            first, *others = name.split(".")
            if first in PACKAGES and first != package and any(map(is_private, others)):
                yield node.lineno, name


def defined(nodes: Nodes) -> Iterator[str]:
    """Names that a file gives to something: functions, classes, variables, attributes, slots."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def private_attributes(nodes: Nodes) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            yield node.lineno, node.attr


@functools.cache
def names_of(package: str) -> set[str]:
    """What the files of a package define, and what its modules in C do, by their stubs."""
    files = modules(package) + modules(package, kind="pyi")
    return {name for path in files for name in defined(nodes_of(path))}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_private_import_of_another_package(package: str) -> None:
    found = [
        f"{name_of(path)}:{line} imports {name}"
        for path in modules(package)
        for line, name in private_imports(package, nodes_of(path))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_private_attribute_of_another_package(package: str) -> None:
    """A private attribute that the package defines nowhere, and another of ours does, is theirs."""
    theirs = set().union(*(names_of(each) for each in PACKAGES if each != package))
    theirs -= names_of(package) | NAMED_TUPLE
    found = [
        f"{name_of(path)}:{line} uses .{name}"
        for path in modules(package)
        for line, name in private_attributes(nodes_of(path))
        if name in theirs
    ]
    assert not found, "\n".join(found)


def test_the_tests_above_see_what_they_look_for() -> None:
    source = "from pystore._lib import x\nfrom pystore import _y\nstore._put(1)\n"
    nodes = list(ast.walk(ast.parse(source)))
    assert list(private_imports("broker", nodes)) == [(1, "pystore._lib.x"), (2, "pystore._y")]
    assert list(private_imports("pystore", nodes)) == []
    assert list(private_attributes(nodes)) == [(3, "_put")]


def test_pystore_names_no_other_package_as_text() -> None:
    """An import by its name as text would hide an arrow that points up."""
    pattern = re.compile(r"""["'](broker|spark_ext|pyspark_rocketmq)\.[a-z_.:]+["']""")
    found = [
        f"{name_of(path)}: {match[0]}"
        for path in modules("pystore")
        for match in pattern.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_the_root_of_pystore_holds_what_is_public() -> None:
    """All else is in a room. The pages of the API show the modules of the root, and leave rooms out
    by name."""
    there = {path.stem for path in (ROOT / "pystore").glob("*.*") if path.suffix != ".md"}
    rooms = {path.parent.name for path in (ROOT / "pystore").glob("*/__init__.py")}
    shown = {name.partition(".")[2] for name in MODULES if name.startswith("pystore.")}
    hidden = {name.partition(".")[2] for name in MODULES if name.startswith("!pystore.")}
    assert there - {"__init__", "py"} == shown - rooms
    assert rooms == shown & rooms | hidden


def test_only_native_loads_the_core() -> None:
    """The check that core and Python files belong together is in pystore/native/__init__.py."""
    found = [
        name_of(path)
        for path in modules()
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom) and node.module == "pystore.native._core"
    ]
    assert found == ["pystore/native/__init__.py"]


def test_contracts_break_when_an_import_breaks_them(tmp_path: Path) -> None:
    """The contract of ours finds a private import, and passes without one."""
    done = subprocess.run(
        [sys.executable, "-c", SELF_CHECK],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
    )
    assert done.stdout.split() == ["True", "False"], done.stderr


SELF_CHECK = """
import grimp
from tools.contracts import PrivateContract
graph = grimp.build_graph("pystore", "broker", cache_dir=None)
contract = PrivateContract("private", {}, {})
print(contract.check(graph, False).kept)
graph.add_import(importer="broker.broker", imported="pystore.store._store", line_number=1,
                 line_contents="from pystore.store._store import Store")
print(contract.check(graph, False).kept)
"""
