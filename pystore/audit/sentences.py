"""What is said of a finding to people. Nothing reads these sentences again."""

from __future__ import annotations

import os
import re
from typing import Any

from pystore.audit.findings import Finding, Words

__all__ = ["describe", "mend_command"]

#: ``{field}``, ``{field?words}`` when it has a value, or is true, ``{field!words}`` when not.
_PART = re.compile(r"\{(\w+)(?:([?!])((?:[^{}]|\{\w+\})*))?\}")
_SHOWN = 5  # of a list


def describe(finding: Finding) -> str:
    """Returns the details of one finding as a sentence, empty when its kind says it all."""

    def part(match: re.Match[str]) -> str:
        name, sign, words = match.groups()
        value = getattr(finding, name)
        if sign is None:
            return _shown(name, value)
        there = value is not None and value is not False
        return _PART.sub(part, words) if there == (sign == "?") else ""

    text = _PART.sub(part, finding.about.details)
    if not finding.open_mends:
        return text
    return f"{text}; the next open mends it" if text else "the next open mends it"


def mend_command(finding: Finding, path: str) -> str:
    """Returns what mends a finding of the store at `path`."""
    return finding.fix.replace("STORE", path)


def _shown(name: str, value: Any) -> str:
    if name == "errno":
        return os.strerror(value)
    if isinstance(value, Words):
        return value.words
    if not isinstance(value, tuple):
        return str(value)
    some = [each if isinstance(each, str) else f"{each[0]} before {each[1]} of the log"
            for each in value[:_SHOWN]]  # fmt: skip
    more = f" and {len(value) - _SHOWN} more" if len(value) > _SHOWN else ""
    return ", ".join(some) + more
