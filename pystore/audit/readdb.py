"""Reads a copy of a store's metadata database for the audit, in a process of its own.

A damaged database can end the process that looks into it, since LMDB maps it. So ``python -m
pystore.audit.readdb FOLDER`` does, and the audit reads the JSON object that it prints.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pystore._metadb import read_copy
from pystore.errors import StoreError

__all__ = ["read"]


def read(meta: Path) -> dict[str, Any]:
    """Topics and offsets of the database in folder `meta`, or why it cannot be read."""
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
    }


if __name__ == "__main__":
    print(json.dumps(read(Path(sys.argv[1]))))
