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

__all__ = ["read_access", "read_meta"]


def read_meta(meta: Path) -> dict[str, Any]:
    """Topics and offsets of the database in folder `meta`, and the files that it has read or
    written; or why it cannot be read."""
    try:
        state = read_copy(meta)
    except StoreError as error:
        return {"error": error.text}
    if state is None:
        return {}
    offsets = state.parts["offsets"].rows
    return {
        "topics": sorted(state.parts["topics"].rows),
        "offsets": [
            [pair, queue, offset]
            for pair, rows in offsets.items()
            for queue, offset in rows.items()
        ],
        "known": {file: print_.main for file, print_ in state.prints.items()},
    }


def read_access(access: Path) -> dict[str, Any]:
    """Users and policies of the database in folder `access`, as their copy has them (``copy``), or
    why they cannot be read."""
    try:
        accessfiles.check_file(access / "data.mdb")
        tables = accessfiles.Tables(access, readonly=True)
        try:
            return {"copy": tables.read().to_file().decode()}
        finally:
            tables.close()
    except StoreError as error:
        return {"error": error.text}
    except (lmdb.Error, OSError, ValueError, RecursionError) as error:
        return {"error": str(error)}
