"""What the table of open transactions says of a half message."""

from __future__ import annotations

import pytest

from pystore.meta.pending import immunity_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, -2),
        ("", -2),
        ("60", 60),
        ("0", 0),
        ("-1", -1),
        ("x", -1),
        ("3000000000", (1 << 31) - 1),
        ("9" * 5000, -1),
        ("\ud800", -1),
    ],
)
def test_immunity_is_read_as_the_broker_reads_it(text: str | None, seconds: int) -> None:
    """5,000 digits once ended the reading of the log: Python converts at most 4,300."""
    assert immunity_of(text) == seconds
