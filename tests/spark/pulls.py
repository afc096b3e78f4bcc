"""One plan read in both ways: from the files, and as a host does that does not see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_ext import schema
from spark_ext.batch import read_part
from spark_ext.errors import SourceError
from spark_ext.options import parse_read
from spark_ext.plan import plan

__all__ = ["both_ways"]


def both_ways(store: Path, namesrv: str, elsewhere: Path, **given: str) -> tuple[Any, Any]:
    """The rows of the files, and those that were pulled. elsewhere: where there is no store."""
    pull = {"fallback": "pull", "nameServer": namesrv}
    options = parse_read({"path": str(store), **pull, **given}, streaming=False)
    nullable = tuple(null for _, null in schema.COLUMNS.values())
    layout = schema.ColumnLayout(tuple(schema.COLUMNS), nullable, options.properties)
    parts = plan(options)
    alone = options._replace(network=None)
    files = [batch for part in parts for batch in read_part(part, layout, alone)]
    for part in parts:
        part.path = str(elsewhere)
    with pytest.raises(SourceError, match=elsewhere.name):
        list(read_part(parts[0], layout, alone))
    pulled = [batch for part in parts for batch in read_part(part, layout, options)]
    return pa.Table.from_batches(files), pa.Table.from_batches(pulled)
