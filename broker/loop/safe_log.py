"""Loggers for lines that hold what others have sent: names, remarks, errors.

Whatever goes into a line is cut, and no character of it begins another line or speaks to a
terminal.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any

from broker.loop.reasons import reason_of

__all__ = ["SafeLogger", "WholeText", "shown"]

#: Characters of one value, lines of one traceback.
_TEXT_MAX = 500
_LINES_MAX = 200


class WholeText:
    """A text that is not cut: one that is long by itself, not by a peer's choice."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def shown(value: object) -> str:
    """Returns a text for one line of a log: shortened, unless it is a WholeText, with every
    character that is not printable escaped. An error without a text is shown by its kind."""
    if isinstance(value, WholeText):
        text = value.text
    elif (
        len(text := reason_of(value) if isinstance(value, BaseException) else str(value))
        > _TEXT_MAX
    ):
        text = f"{text[:_TEXT_MAX]}.. ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class SafeLogger:
    """A logger whose arguments are passed through shown(). Lines of a traceback are set off by a
    bar, since the text of an error may have lines of its own."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def log(
        self, level: int, text: str, *args: object, exc_info: bool | BaseException | None = None,
        depth: int = 1,
    ) -> None:  # fmt: skip
        """Logs a line; `depth` counts the calls between this one and the line that logs."""
        logger = self._logger
        if not logger.isEnabledFor(level):
            return
        error = sys.exc_info()[1] if exc_info is True else exc_info or None
        about: Any = (type(error), error, error.__traceback__) if error is not None else None
        file, line, function, _ = logger.findCaller(stacklevel=depth + 1)
        values = tuple(each if isinstance(each, int | float) else shown(each) for each in args)
        record = logger.makeRecord(
            logger.name, level, file, line, text, values, about, func=function
        )
        if error is not None:
            record.exc_text = _traceback(error)
        logger.handle(record)

    def info(self, text: str, *args: object) -> None:
        self.log(logging.INFO, text, *args, depth=2)

    def warning(self, text: str, *args: object) -> None:
        self.log(logging.WARNING, text, *args, depth=2)

    def error(self, text: str, *args: object, exc_info: BaseException | None = None) -> None:
        self.log(logging.ERROR, text, *args, exc_info=exc_info, depth=2)

    def exception(self, text: str, *args: object) -> None:
        """Logs a line with the traceback of the error that is handled."""
        self.log(logging.ERROR, text, *args, exc_info=True, depth=2)


def _traceback(error: BaseException) -> str:
    lines = "".join(traceback.format_exception(error)).splitlines()
    if len(lines) > _LINES_MAX:
        half = _LINES_MAX // 2
        lines[half:-half] = [f"({len(lines) - 2 * half} lines)"]
    return "\n".join(f"  | {shown(line)}" for line in lines)
