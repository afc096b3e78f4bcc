"""Whether a package of this distribution is the one that Python finds under its name.

``broker`` is a name that users give to files of their own; Python then finds that file first, and
says "'broker' is not a package" from deep inside.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from pystore.errors import BadArgument

__all__ = ["check_package", "shadowed"]


def shadowed(package: str) -> BadArgument | None:
    """Returns the error to raise when `package` of this distribution cannot be imported because
    another module has its name; None when it is the right one, or none is there at all."""
    ours = Path(__file__).resolve().parents[2] / package
    try:
        found = importlib.util.find_spec(package)
    except ValueError:  # a module that was made by hand and has no spec
        found = None
    if found is None or not ours.is_dir():
        return None
    origin = found.origin or next(iter(found.submodule_search_locations or ()), None)
    if origin is None or Path(origin).resolve().is_relative_to(ours):
        return None
    error = BadArgument(
        f"Python finds another module named '{package}' before the package of rocketmq-pystore",
        origin,
    )
    error.next_step = "rename that file, or take its folder off sys.path (PYTHONPATH)"
    return error


def check_package(package: str) -> None:
    """Checks that a package is ours. Raises: BadArgument that names the file, when another module
    shadows `package`."""
    error = shadowed(package)
    if error is not None:
        raise error
