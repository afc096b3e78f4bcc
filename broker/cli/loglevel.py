"""The option ``--log-level`` of the verbs that serve."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

__all__ = ["LogLevel", "LogLevelOption"]


class LogLevel(enum.StrEnum):
    """Levels that lines are written at (docs/logs.md); nothing is written at another one."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


LogLevelOption = Annotated[
    LogLevel,
    typer.Option(
        "--log-level",
        case_sensitive=False,
        help="Write log lines of this level and above to standard error.",
    ),
]
