"""Rows of records that are given in the place of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pystore
from pystore.errors import BadArgument

pa = pytest.importorskip("pyarrow")


def table(stream: pystore.ArrowStream) -> Any:
    return pa.RecordBatchReader.from_stream(stream).read_all()


@pytest.mark.parametrize("filtering", [{}, {"tags": "a"}, {"sql": "TAGS = 'a'"}, {"tags": "*"}])
def test_records_make_the_rows_of_their_store(store_path: Path, small: Any, filtering: Any):
    with pystore.open(store_path, **small) as store:
        for i in range(100):
            store.put("t", b"%d" % i, queue=0, tags="ab"[i % 2], keys=["k"])
        records = b"".join(bytes(m.record) for m in store.messages())
        columns = list(pystore.COLUMNS)
        wanted = table(store.arrow("t", 0, columns=columns, **filtering))
        stream = pystore.ArrowStream(
            None, None, None, records=records, columns=columns, **filtering
        )
    assert table(stream).equals(wanted)  # the store is closed by now


def test_a_damaged_record_is_named_or_counted(store_path: Path, small: Any):
    with pystore.open(store_path, **small) as store:
        for body in (b"first", b"second", b"third"):
            store.put("t", body, queue=0)
        records = b"".join(bytes(m.record) for m in store.messages())
    records = records.replace(b"second", b"sECond")
    with pytest.raises(OSError, match="cannot be read: bad crc"):
        table(pystore.ArrowStream(None, None, None, records=records, check_crc=True))
    stream = pystore.ArrowStream(
        None, None, None, records=records, check_crc=True, skip_damaged=True
    )
    assert table(stream).column("body").to_pylist() == [b"first", b"third"]
    assert stream.stats.skipped == 1


def test_records_and_a_store_exclude_each_other(store_path: Path, small: Any):
    with pystore.open(store_path, **small) as store, pytest.raises(BadArgument, match="either a"):
        pystore.ArrowStream(store, None, None, records=b"")
    with pytest.raises(BadArgument, match="either a store or records"):
        pystore.ArrowStream(None, None, None)
    with pytest.raises(BadArgument, match="not by topic: 't'"):
        pystore.ArrowStream(None, "t", 0, records=b"")
    assert table(pystore.ArrowStream(None, None, None, records=b"")).num_rows == 0
