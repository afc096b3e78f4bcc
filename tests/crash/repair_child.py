"""Repairs stores on a disk that forgets (volatile.c), in a process each, until their power is cut.

Preloaded with the disk. Each line of its input is one life, JSON: what (a name of :data:`VERBS`),
store, kept and seed (the disk's), cut (the number of the call before which the power fails, 0:
never). Its answer is a line, too: "cut", "done N" after N calls, or "failed".
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from pystore.repair import rebuild, repair, undo

VERBS = {
    "repair": repair,
    "undo": undo,
    "rebuild": lambda store: rebuild(store, metadata=True),
}
#: As volatile.c ends a process.
CUT = 95


def live(what: str, store: str, kept: str, seed: int, cut: int) -> None:
    disk = ctypes.CDLL(None)
    disk.disk_begin.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int64]
    disk.disk_calls.restype = ctypes.c_int64
    disk.disk_begin(os.fsencode(store), os.fsencode(kept), seed, cut)
    VERBS[what](Path(store))
    os.write(1, b"done %d\n" % disk.disk_calls())


def life(given: dict[str, Any]) -> None:
    child = os.fork()
    if child == 0:
        try:
            live(**given)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 0:
        os.write(1, b"cut\n" if code == CUT else b"failed\n")


for line in sys.stdin:
    life(json.loads(line))
