"""Tells cffi how to build pystore.native._core (API mode, limited API) from csrc/.

The declarations are not repeated here: they are the regions of the public headers between their
two marks.
Run by setuptools through setup.py, never imported by the package.
"""

from __future__ import annotations

import os
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
#: Each may use the types of those before it.
HEADERS = (
    "format/layout.h",
    "format/names.h",
    "format/record.h",
    "format/fields.h",
    "format/litename.h",
    "format/offsetblock.h",
    "files/notes.h",
    "files/checkpoint.h",
    "pystore.h",
    "store/lights.h",
    "filter/sql92.h",
    "wire/command.h",
    "wire/packed.h",
    "wire/signature.h",
    "wire/client.h",
    "core/remoting.h",
    "core/metrics.h",
    "remoting/exposition.h",
    "remoting/inprocess.h",
    "tables/heartbeats.h",
    "tables/access.h",
    "tables/lags.h",
    "core/decision.h",
    "transactions/transaction.h",
    "sends/dedup.h",
    "pop/popcheckpoint.h",
    "pop/poporder.h",
    "lite/lite.h",
    "net/net.h",
    "ha/ha.h",
    "audit/audit.h",
    "derive/derive.h",
    "flat/flat.h",
)
NOT_CORE = ("tests", "http2")
#: -g1, after the -g of Python: lines are all that a stack needs, for a fifth less time.
FLAGS = ["-std=gnu11", "-O3", "-g1", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"]


def declarations(name: str) -> str:
    """Returns the text of the header between the cdef marks."""
    begin, end = "/* cdef begin */", "/* cdef end */"
    header = (CSRC / name).read_text(encoding="utf-8")
    if header.count(begin) != 1 or header.count(end) != 1:
        raise ValueError(f"csrc/{name} must hold one '{begin}' and one '{end}'")
    return header.partition(begin)[2].partition(end)[0]


def relative(*patterns: str) -> list[str]:
    """Returns paths below the project's root: setuptools refuses absolute ones."""
    found = [path for pattern in patterns for path in CSRC.glob(pattern)]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def make_ffi() -> FFI:
    flags = [*FLAGS, "-Werror"] if os.environ.get("PS_WERROR") == "1" else FLAGS
    made = FFI()
    for name in HEADERS:
        made.cdef(declarations(name))
    made.set_source(
        "pystore.native._core",
        "".join(f'#include "{name}"\n' for name in HEADERS),
        # http2/ belongs to broker.grpc alone: setup.py.
        sources=[path for path in relative("*/*.c") if path.split("/")[1] not in NOT_CORE],
        depends=relative("*.h", "*/*.h", "*/*.def"),
        include_dirs=["csrc"],
        define_macros=[("Py_LIMITED_API", "0x030b0000")],
        py_limited_api=True,
        extra_compile_args=flags,
        extra_link_args=["-pthread", "-ldl"],
    )
    return made


ffi = make_ffi()
