"""How log lines look, for people and for programs, and at which level each part writes them.

A line that is written while a request is served names its connection and its opaque, by which the
client's own log can be found.
"""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import NamedTuple

from pystore.settings import log_levels

__all__ = ["JsonLines", "ServedRequest", "TextLines", "apply_levels", "served_request"]


class ServedRequest(NamedTuple):
    """The request that is served now: address of the connection, opaque and code."""

    connection: str
    opaque: int
    code: int


served_request: ContextVar[tuple[tuple[str, int], int, int] | None] = ContextVar(
    "served_request", default=None
)


def _served() -> ServedRequest | None:
    found = served_request.get()
    if found is None:
        return None
    (host, port), opaque, code = found
    return ServedRequest(f"{host}:{port}", opaque, code)


class TextLines(logging.Formatter):
    """Lines for people: time, level, logger, message, and the request that was served."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line, served = super().formatMessage(record), _served()
        if served is None:
            return line
        return f"{line} [{served.connection} #{served.opaque} code {served.code}]"


class JsonLines(logging.Formatter):
    """Lines for programs: an object each, with time (UTC), level, logger, message, and where they
    are known error (the traceback), connection, opaque and code."""

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        error = record.exc_text or (
            self.formatException(record.exc_info) if record.exc_info else None
        )
        if error:
            found["error"] = error
        served = _served()
        if served is not None:
            found |= served._asdict()
        return json.dumps(found)


#: Loggers whose level was set by apply_levels.
_applied: set[str] = set()


def apply_levels(text: str | None) -> None:
    """Gives loggers their levels, and those that had one by an earlier call and have none now
    back to the ones above them. Raises: ValueError, and nothing changes."""
    wanted = log_levels(text or "")
    for name in _applied - wanted.keys():
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, level in wanted.items():
        logging.getLogger(name).setLevel(level)
    _applied.clear()
    _applied.update(wanted)
