"""What this package raises. Spark shows the last line of a Python error, so each is one
sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["BadOption", "BadSchema", "DataLoss", "SinkError", "SourceError", "nearest"]


class SourceError(Exception):
    """The root of this package's errors."""


class BadOption(SourceError, ValueError):
    """An option of a reader or a writer is unknown or out of its range."""


class BadSchema(SourceError, ValueError):
    """A column has a name or a type that the format does not have."""


class DataLoss(SourceError, RuntimeError):
    """Messages that the query was to read no longer exist, or cannot be read."""


class SinkError(SourceError, RuntimeError):
    """Messages could not be put into the store; the text says what is visible of them."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns ``; did you mean 'x'?`` for the known name nearest to this one, or nothing."""
    lower = {k.lower(): k for k in known}
    found = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    return f"; did you mean '{lower[found[0]]}'?" if found else ""
