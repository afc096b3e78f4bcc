"""What `--check-conf` and `--strict` do for every server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from pystore.cli.verbs import Session
from pystore.configuration.problems import SettingProblem

__all__ = ["CheckConf", "Strict", "show_check"]

CheckConf = Annotated[
    bool,
    typer.Option(
        "--check-conf",
        help="Check the settings, print those that hold, and end; exit code 2: a start would fail.",
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse settings that a start would only warn about.")
]


def show_check(
    s: Session, rows: Sequence[tuple[str, object, str]], problems: Iterable[SettingProblem], *,
    strict: bool,
) -> int:  # fmt: skip
    """Shows settings, each with its value and where it stands, and what is wrong with them. Returns
    the exit code."""
    from broker.cli.doctor import show_findings
    from broker.doctor.settings import of_problems
    from pystore.audit import Severity

    if rows:
        s.out.table("settings", ("name", "value", "from"), rows)
    found = list(of_problems(problems, str(s.conf or "--set")))
    found.sort(key=lambda each: -each.severity)
    show_findings(s, found, places=True)
    refused = Severity.WARNING if strict else Severity.ERROR
    return 2 if any(each.severity >= refused for each in found) else 0
