"""The options of the verbs that serve which say what is logged, how and where (docs/logs.md)."""

from __future__ import annotations

import enum
import logging
import logging.handlers
import sys
from pathlib import Path
from typing import Annotated

import typer

from broker.loop.log_lines import JsonLines, TextLines

__all__ = [
    "LogFileOption", "LogFormat", "LogFormatOption", "LogLevel", "LogLevelOption", "LogOptions",
]  # fmt: skip

#: Bytes of a log file before the next begins, and how many old ones are kept.
_FILE_BYTES, _FILES = 100 << 20, 5


class LogLevel(enum.StrEnum):
    """Levels that lines are written at (docs/logs.md); nothing is written at another one."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


class LogFormat(enum.StrEnum):
    """How lines look: text for people, or an object of JSON each."""

    TEXT = "text"
    JSON = "json"


LogLevelOption = Annotated[
    LogLevel,
    typer.Option(
        "--log-level",
        case_sensitive=False,
        help="Write log lines of this level and above to standard error.",
    ),
]
LogFormatOption = Annotated[
    LogFormat,
    typer.Option("--log-format", help="Log lines for people, or one JSON object a line."),
]
LogFileOption = Annotated[
    Path | None,
    typer.Option(
        "--log-file", metavar="FILE",
        help="Write log lines to this file, kept up to 100 MiB, with five older ones beside it.",
    ),
]  # fmt: skip


class LogOptions:
    """What was asked for. file: None: standard error."""

    def __init__(
        self, level: str, form: LogFormat = LogFormat.TEXT, file: Path | None = None
    ) -> None:
        self.level, self.form, self.file = LogLevel(level.upper()), form, file

    def begin(self) -> None:
        """Sets up ``logging``, unless somebody has done so. Raises: OSError for the file."""
        handler: logging.Handler = logging.StreamHandler(sys.stderr)
        if self.file is not None:
            handler = logging.handlers.RotatingFileHandler(
                self.file, maxBytes=_FILE_BYTES, backupCount=_FILES, encoding="utf-8"
            )
        handler.setFormatter(JsonLines() if self.form is LogFormat.JSON else TextLines())
        logging.basicConfig(level=self.level.value, handlers=[handler])
