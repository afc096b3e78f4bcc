"""Reads a copy of a database of a store for the audit.

LMDB maps the copy, and a page that it does not survive would end the process: so every page is
checked first (pystore/_metapages.py), as by every open of a store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmdb

from pystore import accessfiles
from pystore._metadb import read_copy
from pystore.errors import StoreError
from pystore.quiet import copy_quietly, memory_file

__all__ = ["read_access", "read_meta"]

_ACCESS_MAX = 1 << 30  # several times what the database may grow to


def read_meta(meta: Path) -> dict[str, Any]:
    """Returns topics and offsets of the database in folder `meta`, and the files that it has read
    or written; or what is wrong with it. Raises: OSError."""
    try:
        state = read_copy(meta)
    except OSError:
        raise
    except StoreError as error:
        return {"error": error.text}
    if state is None:
        return {}
    return {
        "topics": sorted(state.parts["topics"].rows),
        "offsets": state.parts["offsets"].rows,
        "known": {file: (print_.main, print_.bak) for file, print_ in state.prints.items()},
    }


def read_access(access: Path) -> dict[str, Any]:
    """Returns users and policies of the database in folder `access`, as their copy has them
    (``copy``), or what is wrong with it. Raises: OSError."""
    try:
        with memory_file() as (copy, path):
            copy_quietly(access / "data.mdb", copy, _ACCESS_MAX)
            accessfiles.check_file(path, shown=access / "data.mdb")
            tables = accessfiles.Tables(path, readonly=True)
            try:
                return {"copy": tables.read().to_file().decode()}
            finally:
                tables.close()
    except (lmdb.Error, ValueError, RecursionError) as error:
        return {"error": error.text if isinstance(error, StoreError) else str(error)}
