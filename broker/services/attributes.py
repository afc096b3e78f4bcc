"""The attributes of topics and groups: what tools may set, and how they change what is there.
Upstream: AttributeUtil.alterCurrentAttributes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from broker.wire.codes import ResponseCode
from broker.wire.command import Refused

__all__ = ["Rule", "altered", "one_of", "whole_number"]

#: Returns what is wrong with a value, or "".
Rule = Callable[[str], str]


def one_of(*words: str) -> Rule:
    """Returns the rule of an attribute with these values; without any, every value is right."""
    return lambda value: f"value is not in set: {value:.60}" if words and value not in words else ""


def whole_number(low: int, high: int) -> Rule:
    """Returns the rule of a number from `low` to `high`, as Java's Long.parseLong reads it."""

    def problem(value: str) -> str:
        digits = value[1:] if value[:1] in ("+", "-") else value
        if not (digits.isdecimal() and len(digits) < 19 and low <= int(value) <= high):
            return f"value is not in range({low}, {high}): {value:.60}"
        return ""

    return problem


def altered(
    known: Mapping[str, Rule],
    changes: Iterable[tuple[str, str | None]],
    old: Mapping[str, str] | None,
    *,
    fixed: Iterable[str] = (),
) -> dict[str, str]:
    """Returns the attributes after these changes: ``+name`` and its value, ``-name`` and None.

    `old` is None while the topic or group is being made; `fixed` may not change afterwards.
    Raises: Refused with SYSTEM_ERROR."""
    made = dict(old or {})
    for signed, value in changes:
        sign, name = signed[:1], signed[1:]
        problem = ""
        if sign not in ("+", "-") or (sign == "+") != (value is not None):
            problem = f"'{signed:.80}' is neither +name=value nor -name"
        elif name not in known:
            problem = f"unsupported key: {name:.60}"
        elif old is None and sign == "-":
            problem = "only add attribute is supported while creating topic"
        elif old is not None and name in fixed:
            problem = f"attempt to update an unchangeable attribute: {name}"
        elif value is not None:
            problem = known[name](value)
        if problem:
            raise Refused(ResponseCode.SYSTEM_ERROR, problem)
        if value is not None:
            made[name] = value
        else:
            made.pop(name, None)
    return made
