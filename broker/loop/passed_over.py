"""The lines that a start, and a file that is read again, write about settings that are passed over
or at odds. Broker, name server and proxy say it alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from broker.loop.safe_log import SafeLogger
from pystore.configuration.problems import SettingProblem
from pystore.errors import StoreError

__all__ = ["Reloaded", "reload_settings", "warn_of"]

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
        log.warning("%d more settings: %s", len(told) - _LINES_MAX, rest)


#: What reading a file again returns: what was passed over, the names that hold now, and those that
#: only a start takes over.
Reloaded = tuple[Iterable[SettingProblem], frozenset[str], frozenset[str]]


def reload_settings(conf: str | Path | None, read: Callable[[], Reloaded]) -> None:
    """Reads a file of settings again. conf: None: there is none. read: raises StoreError for one
    that cannot be used, and changes nothing then. What comes of it is logged."""
    if conf is None:
        log.info("There is no settings file to read again")
        return
    try:
        problems, now, later = read()
    except StoreError as bad:
        log.error("Kept the settings of before, since the file cannot be used: %s", bad)
        return
    log.info("Read %s again; changed: %s", conf, ", ".join(sorted(now)) or "-")
    warn_of(problems)
    if later:
        log.warning("Only a start takes over: %s", ", ".join(sorted(later)))
