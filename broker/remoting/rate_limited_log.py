"""Log lines that repeat: each kind is written once a minute, with the number of those left out."""

from __future__ import annotations

import logging
import time

__all__ = ["RateLimitedLogger"]

PAUSE_S = 60.0
#: More kinds than this are a kind that has a name of its own each time; then all are forgotten.
KINDS_MAX = 1000


class RateLimitedLogger:
    """Writes to a logger, each kind of line at most once in PAUSE_S."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._kinds: dict[object, list[float]] = {}

    def log(
        self, level: int, kind: object, text: str, *args: object, error: BaseException | None = None
    ) -> None:
        """kind: what makes two lines the same. error: its traceback is written with the line."""
        now = time.monotonic()
        seen = self._kinds.get(kind)
        if seen is not None and now < seen[0] + PAUSE_S:
            seen[1] += 1
            return
        if len(self._kinds) >= KINDS_MAX:
            self._kinds.clear()
        self._kinds[kind] = [now, 0]
        if seen is not None and seen[1]:
            text, args = text + " (%d more since the last line)", (*args, int(seen[1]))
        self._logger.log(level, text, *args, exc_info=error)

    def warning(self, kind: object, text: str, *args: object) -> None:
        self.log(logging.WARNING, kind, text, *args)

    def error(self, kind: object, error: BaseException, text: str, *args: object) -> None:
        self.log(logging.ERROR, kind, text, *args, error=error)
