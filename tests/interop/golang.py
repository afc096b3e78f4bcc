"""RocketMQ 5's official Go client: its module as a folder in which programs can be built."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["build", "module"]

MODULE = "github.com/apache/rocketmq-clients/golang/v5"
VERSION = "v5.1.4"


def module(folder: Path) -> Path:
    """A copy of the module that may be changed. Skips where it cannot be fetched."""
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    fetched = subprocess.run(
        ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"],
        capture_output=True, text=True, cwd=folder,
    )  # fmt: skip
    found = re.search(r'"Dir": "([^"]+)"', fetched.stdout)
    if found is None:
        pytest.skip(f"{MODULE} cannot be fetched: {fetched.stderr[-300:]}")
    tree = folder / "module"
    shutil.copytree(found[1], tree, copy_function=shutil.copy)
    subprocess.run(["chmod", "-R", "u+w", tree], check=True)
    return tree


def build(tree: Path, package: str, program: Path) -> None:
    """package: its folder in the module."""
    subprocess.run(
        ["go", "build", "-o", program, f"./{package}"],
        cwd=tree, check=True, env={**os.environ, "GOFLAGS": "-mod=mod"},
    )  # fmt: skip
