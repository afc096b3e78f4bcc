"""The lines that a start, and a file that is read again, write about settings that are passed over
or at odds. Broker, name server and proxy say it alike."""

from __future__ import annotations

from collections.abc import Iterable

from broker.loop.safe_log import SafeLogger
from pystore.configuration.problems import SettingProblem

__all__ = ["warn_of"]

log = SafeLogger("broker.settings")

#: Settings that get a line of their own; a file of Apache's may have hundreds.
_LINES_MAX = 20


def warn_of(problems: Iterable[SettingProblem]) -> None:
    told = list(problems)
    for each in told[:_LINES_MAX]:
        text = f"{each.text}: {each.why}" if each.why else each.text
        log.warning("Setting: %s (%s)", text, each.where or "default")
    if len(told) > _LINES_MAX:
        rest = ", ".join(each.name for each in told[_LINES_MAX:])
        log.warning("And %d settings more: %s", len(told) - _LINES_MAX, rest)
