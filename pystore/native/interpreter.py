"""Refuses interpreters that the core was not made for, before it is loaded."""

from __future__ import annotations

import importlib
from typing import Any

__all__: list[str] = []

#: By version: 3.13 and later, before.
_MODULES = ("_interpreters", "_xxsubinterpreters")


def _number(found: Any) -> int:
    """Returns the number of an interpreter, from 3.13 on first of a tuple."""
    return int(found[0] if isinstance(found, tuple) else found)


def _refuse_subinterpreters() -> None:
    """Lets only one interpreter load the core. Raises: ImportError in any interpreter but the first
    of the process."""
    for name in _MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if _number(module.get_current()) != _number(module.get_main()):
            raise ImportError(
                "pystore cannot be used in a subinterpreter: its core and the threads of it belong"
                " to the process; import it in the main interpreter, or start a process of its own"
            )
        return


_refuse_subinterpreters()
