"""Settings that are refused, have no effect, or do not go together: what a start would say of them
(broker/start_checks.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from broker.doctor.findings import Diagnosis, diagnosed
from broker.start_checks import read_start
from pystore.configuration.problems import SettingProblem
from pystore.errors import BadArgument
from pystore.settings import Settings

__all__ = ["loaded", "of_problems"]


def loaded(
    conf: Path | None, given: Mapping[str, object]
) -> tuple[Settings | None, list[SettingProblem]]:
    """Reads settings as a broker does, and returns what it would say of them. None: the file cannot
    be read."""
    try:
        return read_start(conf, given)
    except BadArgument as refused:
        return None, [SettingProblem("", refused.where or "", refused.text)]


def of_problems(problems: Iterable[SettingProblem], where: str) -> Iterator[Diagnosis]:
    """Yields a diagnosis of each problem. where: what the settings were read from."""
    for each in problems:
        yield diagnosed(each.check, each.place or where, each.text, own=each.mend)
