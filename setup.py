"""Builds the C core (csrc/) into pystore/_core.abi3.so; everything else stands in pyproject.toml.

One wheel serves every Python from 3.11 on, since the extension keeps to the limited API.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from setuptools import Extension, setup
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
compiled = os.environ.get("PS_SKIP_EXT") != "1"
put = Extension(
    "pystore._put",
    ["pystore/_put.c"],
    depends=["csrc/pystore.h"],
    include_dirs=["csrc"],
    define_macros=[("Py_LIMITED_API", "0x030b0000")],
    py_limited_api=True,
    extra_compile_args=["-std=gnu11", "-O3", "-Wall", "-Wextra", "-Wno-missing-field-initializers"],
)

setup(
    cffi_modules=["pystore/_build.py:ffi"] if compiled else [],
    ext_modules=[put] if compiled else [],
    cmdclass={"build_ext": BuildExt},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
