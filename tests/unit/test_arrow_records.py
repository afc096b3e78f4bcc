"""Rows of records that are given in the place of a store."""

from __future__ import annotations

import gc
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pystore
from pystore.cold.failures import TierUnreachable
from pystore.errors import BadArgument
from pystore.store import _arrow

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


def records_of(path: Path, bodies: list[bytes], sys_flag: int = 0) -> bytes:
    """Returns records of a store of their own."""
    with pystore.open(path) as store:
        for body in bodies:
            store.put("t", body, queue=0, sys_flag=sys_flag)
        return b"".join(bytes(m.record) for m in store.messages())


def test_pieces_of_records_follow_each_other(tmp_path: Path):
    pieces = [records_of(tmp_path / f"{n}", [b"%d" % n] * n) for n in (1, 2, 3)]
    given = [pieces[0], b"", bytearray(pieces[1]), memoryview(pieces[2])]
    stream = pystore.ArrowStream(None, None, None, records=given, columns=["body"])
    for _ in range(2):  # each time from the first one on
        assert table(stream).column("body").to_pylist() == [b"1", b"2", b"2", b"3", b"3", b"3"]
    assert stream.stats.rows == 6


def test_records_at_the_same_places_are_inflated_by_themselves(tmp_path: Path):
    compressed = 1 | 3 << 8  # zlib
    pieces = [
        records_of(tmp_path / text, [zlib.compress(text.encode() * 100)], compressed)
        for text in ("ab", "cd")
    ]
    stream = pystore.ArrowStream(None, None, None, records=pieces, columns=["body"])
    assert table(stream).column("body").to_pylist() == [b"ab" * 100, b"cd" * 100]


def test_a_piece_that_does_not_come_ends_the_stream_by_its_error(tmp_path: Path):
    def pieces() -> Iterator[bytes]:
        yield records_of(tmp_path / "one", [b"first"])
        raise TierUnreachable("a piece is away", "s3://bucket")

    stream = pystore.ArrowStream(None, None, None, records=pieces(), columns=["body"])
    reader = pa.RecordBatchReader.from_stream(stream)
    assert reader.read_next_batch().column("body").to_pylist() == [b"first"]
    with pytest.raises(OSError, match="a piece is away: s3://bucket"):
        reader.read_next_batch()


def test_a_piece_is_let_go_of_with_the_next_and_with_the_stream(tmp_path: Path):
    data = records_of(tmp_path / "one", [b"first"])
    made: list[Any] = []
    most = []

    class Piece(bytearray):
        """That a weak reference can be to."""

    def pieces() -> Iterator[Piece]:
        for _ in range(5):
            piece = Piece(data)
            made.append(weakref.ref(piece))
            yield piece
            del piece
            most.append(sum(each() is not None for each in made))

    stream = pystore.ArrowStream(None, None, None, records=pieces(), columns=["body"])
    reader = pa.RecordBatchReader.from_stream(stream)
    for batch in reader:
        assert batch.num_rows == 5
    del reader, batch, stream
    gc.collect()
    assert most == [0] * 5
    assert [each() for each in made] == [None] * 5


def test_a_stream_that_fails_says_why_and_is_let_go_of():
    stream = pystore.ArrowStream(None, None, None, records=b"Z" * 200)
    with pytest.raises(OSError, match="cannot be read"):
        pa.table(stream)
    assert not _arrow._FEEDS
