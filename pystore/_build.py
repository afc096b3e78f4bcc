"""Tells cffi how to build pystore._core (API mode, limited API) from csrc/.

The declarations are not repeated here: they are the region of csrc/pystore.h between its two marks.
Run by setuptools through setup.py, never imported by the package.
"""

from __future__ import annotations

import os
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
FLAGS = ["-std=gnu11", "-O3", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"]


def declarations(header: str) -> str:
    """The text of the header between the cdef marks."""
    begin, end = "/* cdef begin */", "/* cdef end */"
    if header.count(begin) != 1 or header.count(end) != 1:
        raise ValueError(f"csrc/pystore.h must hold one '{begin}' and one '{end}'")
    return header.partition(begin)[2].partition(end)[0]


def relative(pattern: str) -> list[str]:
    """Paths below the project's root: setuptools refuses absolute ones."""
    return sorted(path.relative_to(ROOT).as_posix() for path in CSRC.glob(pattern))


def make_ffi() -> FFI:
    flags = [*FLAGS, "-Werror"] if os.environ.get("PS_WERROR") == "1" else FLAGS
    made = FFI()
    made.cdef(declarations((CSRC / "pystore.h").read_text(encoding="utf-8")))
    made.set_source(
        "pystore._core",
        '#include "pystore.h"\n',
        sources=relative("*.c"),
        depends=[*relative("*.h"), *relative("*.def")],
        include_dirs=["csrc"],
        define_macros=[("Py_LIMITED_API", "0x030b0000")],
        py_limited_api=True,
        extra_compile_args=flags,
        extra_link_args=["-pthread"],
    )
    return made


ffi = make_ffi()
