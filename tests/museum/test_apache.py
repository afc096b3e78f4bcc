"""The rows that `make museum-java` keeps: what Apache's own store and ours make of each damage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.museum import apache
from tests.museum.test_kinds import samples

__all__ = ["samples"]  # a fixture
PAGE = Path(__file__).parents[2] / "docs" / "damage.md"
BEGIN, END = "<!-- museum: begin -->\n", "<!-- museum: end -->\n"


def page_parts() -> tuple[str, str, str]:
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return text[:start], text[start:end], text[end:]


@pytest.mark.java
@pytest.mark.skipif("PS_MUSEUM_JAVA" not in os.environ, reason="minutes: `make museum-java`")
def test_apache_reads_every_kind(reference, samples, tmp_path):
    found = list(apache.rows(reference, samples, tmp_path))
    apache.write(found)
    before, _, after = page_parts()
    PAGE.write_text(before + apache.table(found) + after, encoding="utf-8")


def test_apache_keeps_no_message_that_ours_loses():
    assert [row for row in apache.read() if row["only_apache_keeps"]] == []


def test_the_rows_are_of_the_kinds_that_there_are():
    rows = [(row["store"], row["kind"]) for row in apache.read()]
    assert rows == [(kind.store, kind.name) for kind in apache.shown()]


def test_both_deliver_all_of_an_undamaged_store():
    sound = [row for row in apache.read() if row["what"] == "undamaged"]
    assert [row["apache"] for row in sound] == ["read"] * 4
    assert not any(row["apache_loses"] or row["open_loses"] for row in sound)


def test_a_repair_loses_no_undamaged_message():
    assert [row for row in apache.read() if row["repair_loses"]] == []


def test_the_page_shows_the_rows():
    assert page_parts()[1] == apache.table(apache.read())
