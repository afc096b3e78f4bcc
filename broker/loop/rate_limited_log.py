"""Log lines that repeat: each kind is written once a minute, with the number of those left out."""

from __future__ import annotations

import logging
import time

from broker.loop.safe_log import SafeLogger

__all__ = ["RateLimitedLogger"]

PAUSE_S = 60.0
#: Beyond so many kinds, all others are of one kind.
KINDS_MAX = 1000
_OTHERS = object()


class RateLimitedLogger:
    """Writes to a logger, each kind of line at most once in PAUSE_S. A kind contains nothing that a
    peer chooses, since the peer would choose how much is written."""

    def __init__(self, logger: SafeLogger) -> None:
        self._logger = logger
        self._kinds: dict[object, list[float]] = {}

    def log(
        self, level: int, kind: object, text: str, *args: object,
        error: BaseException | None = None, depth: int = 1, at_once: bool = False,
    ) -> None:  # fmt: skip
        """Logs a line. Lines with the same `kind` count as the same. The traceback of `error` is
        written with the line; `depth` is as of SafeLogger.log. at_once: it is written whatever was
        before: for what changes, by a caller that itself bounds how often."""
        now = time.monotonic()
        if kind not in self._kinds and len(self._kinds) >= KINDS_MAX:
            kind = _OTHERS
        seen = self._kinds.get(kind)
        if seen is not None and now < seen[0] + PAUSE_S and not at_once:
            seen[1] += 1
            return
        self._kinds[kind] = [now, 0]
        if seen is not None and seen[1]:
            text, args = text + " (%d more since the last line)", (*args, int(seen[1]))
        self._logger.log(level, text, *args, exc_info=error, depth=depth + 1)

    def info(self, kind: object, text: str, *args: object) -> None:
        self.log(logging.INFO, kind, text, *args, depth=2)

    def warning(self, kind: object, text: str, *args: object, at_once: bool = False) -> None:
        self.log(logging.WARNING, kind, text, *args, depth=2, at_once=at_once)

    def error(self, kind: object, error: BaseException, text: str, *args: object) -> None:
        self.log(logging.ERROR, kind, text, *args, error=error, depth=2)
