"""Builds the C core (csrc/) into pystore/native/_core.abi3.so, and three modules beside it;
everything else stands in pyproject.toml.

One wheel serves every Python from 3.11 on, since the extension keeps to the limited API.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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


def by_hand(
    name: str, *depends: str, sources: Sequence[str] = (), libraries: Sequence[str] = ()
) -> Extension:
    """A module whose calls into C are too frequent for cffi. sources: linked into it, and into
    nothing else."""
    return Extension(
        name,
        [f"{name.replace('.', '/')}.c", *sources],
        depends=["csrc/pystore.h", *depends],
        libraries=list(libraries),
        include_dirs=["csrc"],
        define_macros=[("Py_LIMITED_API", "0x030b0000")],
        py_limited_api=True,
        extra_compile_args=[
            "-std=gnu11", "-O3", "-g1", "-Wall", "-Wextra", "-Wno-missing-field-initializers",
            "-Wformat", "-Werror=format-security",  # as the Python of Debian asks for
            "-fvisibility=hidden",
        ],
    )  # fmt: skip


def http2(pattern: str) -> list[str]:
    rooms = Path("csrc/http2"), Path("csrc/messaging")
    return sorted(path.as_posix() for room in rooms for path in room.glob(pattern))


#: What csrc/http2 stands on.
BELOW_HTTP2 = [
    "csrc/base/clock.c", "csrc/base/crc.c", "csrc/base/md5.c", "csrc/format/javanum.c",
    "csrc/format/litename.c", "csrc/format/messagetype.c", "csrc/format/record.c",
    "csrc/format/utf8.c",
]  # fmt: skip


def has_nghttp2() -> bool:
    """Whether the compiler finds the header of the library that the gRPC service needs."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    words = [*compiler, "-E", "-include", "nghttp2/nghttp2.h", "-x", "c", os.devnull]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


by_hands = [
    by_hand("pystore.native._put"),
    by_hand(
        "broker.client._messages",
        "csrc/remoting/inprocess.h",
        "csrc/base/bytes.h",
        "csrc/format/property.h",
    ),
]
if has_nghttp2():
    by_hands.append(
        by_hand(
            "broker.grpc._http2",
            *http2("*.h"),
            sources=[*http2("*.c"), *BELOW_HTTP2],
            libraries=["nghttp2"],
        )
    )
elif compiled:
    print("without the gRPC service: nghttp2's header (libnghttp2-dev) is missing", file=sys.stderr)

setup(
    cffi_modules=["pystore/native/_build.py:ffi"] if compiled else [],
    ext_modules=by_hands if compiled else [],
    cmdclass={"build_ext": BuildExt},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
