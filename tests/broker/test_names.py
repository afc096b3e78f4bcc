"""The public names of the package `broker`, and a module of the user's that has the same name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import broker

ROOT = Path(__file__).resolve().parents[2]


def python(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the interpreter with `path` before everything else."""
    places = [str(p) for p in (path, ROOT) if p is not None]
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120,
        cwd=path, env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
    )  # fmt: skip


def test_public_names_are_there():
    """Each name of __all__ can be imported from the package."""
    from broker import Broker, NameServer

    assert Broker.__module__ == "broker.broker"
    assert NameServer.__module__ == "broker.namesrv.server"
    for name in broker.__all__:
        assert getattr(broker, name) is not None
        assert name in dir(broker)


def test_import_alone_loads_nothing_heavy():
    """`import broker` imports no module of the broker until a name is asked for."""
    done = python("-c", "import sys, broker; print([m for m in sys.modules if 'broker.' in m])")
    assert done.stdout.strip() == "[]", done.stderr


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(broker, "Brokers")
