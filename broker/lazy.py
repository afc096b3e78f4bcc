"""Packages whose public names are imported when somebody asks for them: what a process does not
use costs its start nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping

__all__ = ["lazily"]


def lazily(
    package: str, defined_in: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Returns ``__getattr__`` and ``__dir__`` of a package. defined_in: the module that defines a
    public name, by the name."""
    names = vars(sys.modules[package])

    def find(name: str) -> object:
        module = defined_in.get(name)
        if module is None:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value: object = getattr(importlib.import_module(module), name)
        names[name] = value
        return value

    return find, lambda: sorted({*names, *defined_in})
