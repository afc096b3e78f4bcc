"""Builds the C core (csrc/) into pystore/_core.abi3.so; everything else stands in pyproject.toml.

One wheel serves every Python from 3.11 on, since the extension keeps to the limited API.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext


class BuildExt(build_ext):
    """Compiles the C files side by side: setuptools alone takes one after the other."""

    def build_extension(self, ext: Any) -> None:
        compiler = self.compiler
        compile_one = compiler.compile

        def compile_all(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                done = list(pool.map(lambda source: compile_one([source], **options), sources))
            return [path for paths in done for path in paths]

        compiler.compile = compile_all
        try:
            super().build_extension(ext)
        finally:
            compiler.compile = compile_one


# `make setup` installs the package editable without the core, which `make build` then compiles.
modules = [] if os.environ.get("PS_SKIP_EXT") == "1" else ["pystore/_build.py:ffi"]

setup(
    cffi_modules=modules,
    cmdclass={"build_ext": BuildExt},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
