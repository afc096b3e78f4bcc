"""What the tests of the house style share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Syntax trees are a million objects without a circle: the garbage collector, which goes
    through them again and again, takes three times as long as the parser."""
    gc.disable()
    yield
    gc.enable()
