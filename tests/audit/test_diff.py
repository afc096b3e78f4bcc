"""`pystore diff`: what it calls the same, and where two logs part."""

from __future__ import annotations

import shutil

import pytest

import pystore
from pystore.audit.diff import diff
from pystore.repair import undo


@pytest.fixture
def pair(tmp_path, small):
    """Two copies of a store of ten messages, and the places of these."""
    with pystore.open(tmp_path / "a", **small) as store:
        places = [store.put("T", b"body", queue=0, keys="key").physical_offset for _ in range(10)]
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    return tmp_path / "a", tmp_path / "b", places


def test_copies_are_the_same_and_part_nowhere(pair):
    a, b, _ = pair
    found = diff(a, b)
    assert found.same and found.parts_at is None


def test_a_flipped_byte_of_a_property_is_found_and_placed(pair):
    a, b, places = pair
    (log,) = (b / "commitlog").glob("*0")
    data = bytearray(log.read_bytes())
    at = data.index(b"key", places[6])
    data[at] ^= 1
    log.write_bytes(data)
    found = diff(a, b)
    assert not found.same and found.parts_at == places[6]
    assert [(r.start, r.end) for r in found.changed] == [(6, 7)]


def test_a_longer_log_parts_where_the_shorter_ends(pair, small):
    a, b, _ = pair
    with pystore.open(b, **small) as store:
        place = store.put("T", b"more", queue=0).physical_offset
    assert diff(a, b).parts_at == diff(b, a).parts_at == place


def test_an_undo_without_a_repair_speaks_of_no_topic(pair):
    with pytest.raises(pystore.NotFound) as refused:
        undo(pair[0])
    assert "no repair has changed this store" in str(refused.value)
