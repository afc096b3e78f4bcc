"""What is wrong with settings: each problem with its place, all of a file at once.

Entry points: :class:`SettingProblem`, :func:`refuse` (raises for all errors of a list at once),
:func:`about_unknown` (a name that no version has: a mistyped one, or one of a guide) and
:func:`about_text` (quotes, comments and placeholders in a value).

Upstream passes over a name that it does not know, in silence. A file of the wild must start here as
well as there, and a mistyped name must not pass: what is nearly the name of a setting is an error,
anything else is passed over with a warning.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

from pystore.errors import BadArgument

__all__ = [
    "BadSettings",
    "SettingProblem",
    "about_text",
    "about_unknown",
    "mistyped",
    "nearest",
    "refuse",
    "strictly",
]

#: What stands for another text in templates and shells, which nothing that reads settings fills in.
_PLACEHOLDER = re.compile(
    r"\$\{[^}]*\}|\{\{.*\}\}|^<[^<>]*>$|(^|[,;/:])\s*\$[A-Za-z_]|(^|[,;])\s*~(/|$)"
)
#: Chinese keyboards have them; to a reader they are letters of the name.
_FULL_WIDTH_SIGN = re.compile("[\uff1d\uff1a]")

#: From this likeness on a name is a mistyped one (difflib's ratio of the two in lower case).
_NEAR = 0.8


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """name: the setting. where: ``path:line``, ``keyword``, or empty. text: what is wrong, as a
    sentence without its place. is_error: nothing starts with it. check: the kind of problem, as
    `pystore doctor` names it. mend: what mends it, where this can be said; else empty.
    why: why it matters, where the text does not say it."""

    name: str
    where: str
    text: str
    is_error: bool = True
    check: str = "refused-setting"
    mend: str = ""
    why: str = ""

    @property
    def place(self) -> str:
        """The line of a file; empty: a keyword, or nothing that was written."""
        return "" if self.where in ("", "keyword", "conf", "default") else self.where


class BadSettings(BadArgument):
    """Settings that nothing starts with: all of them. Next: correct the lines. all_found: these,
    and what was only passed over."""

    def __init__(
        self, problems: tuple[SettingProblem, ...], all_found: tuple[SettingProblem, ...] = ()
    ) -> None:
        self.problems, self.all_found = problems, all_found or problems
        if len(problems) == 1:
            (only,) = problems
            super().__init__(only.text, only.place or None)
            self.next_step = only.mend or self.next_step
            return
        super().__init__(
            f"{len(problems)} settings are refused:" + "".join(map(_line_of, problems)) + "\n"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.problems, self.all_found))


def _line_of(problem: SettingProblem) -> str:
    place = f"{problem.place}: " if problem.place else ""
    mend = f" \u2014 {problem.mend}" if problem.mend else ""
    return f"\n  {place}{problem.text}{mend}"


def refuse(problems: Iterable[SettingProblem]) -> None:
    """Refuses the problems of a start. Raises: BadSettings, if any of the problems is an error."""
    found = tuple(problems)
    errors = tuple(each for each in found if each.is_error)
    if errors:
        raise BadSettings(errors, found)


def strictly(problems: Iterable[SettingProblem]) -> list[SettingProblem]:
    """Returns the problems as errors, all of them."""
    return [replace(each, is_error=True) for each in problems]


# ---- names ----


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns the known name that is most like this one; empty: none is."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=cutoff)
    likeness = difflib.SequenceMatcher(b=name.lower())

    def order(each: str) -> tuple[float, str]:
        likeness.set_seq1(each)
        return -likeness.ratio(), each

    return by_lower[min(near, key=order)] if near else ""


def mistyped(name: str, known: Iterable[str]) -> str:
    """Returns the known name that this one is meant to be: it differs in few letters, in case, or
    in the order of its words. Empty: none."""
    names = list(known)
    words = _words(name)
    for each in names:
        if _words(each) == words:
            return each
    return nearest(name, names, _NEAR)


def _words(name: str) -> list[str]:
    return sorted(part.lower() for part in re.findall(r"[A-Z]*[a-z0-9]+|[A-Z]+", name))


def about_unknown(
    name: str,
    where: str,
    known: Iterable[str],
    guides: Mapping[str, str],
    others: Mapping[str, Container[str]],
) -> SettingProblem:
    """Returns what becomes of a line whose name is not a setting. known: names of settings. guides:
    names that files have although nothing reads them, and what to know of each. others: names of
    settings of other programs, by these."""
    elsewhere = [whose for whose, names in others.items() if name in names]
    if elsewhere and name not in guides:
        text = f"{name}: it is a setting of a {elsewhere[0]}, and has no effect here"
        mend = f"write it to the settings of the {elsewhere[0]}"
        return SettingProblem(name, where, text, False, "unknown-setting", mend)
    if name in guides:
        text = f"{name}: no version of RocketMQ reads it; {guides[name]}"
        return SettingProblem(name, where, text, False, "unknown-setting", "delete the line")
    names = set(known)
    typed = _FULL_WIDTH_SIGN.split(name)[0].strip()
    if typed != name and typed in names:
        text = f"'{name}' is not a setting: the sign behind {typed} is a full-width one"
        return SettingProblem(name, where, text, mend=f"write {typed}=, with the sign of ASCII")
    meant = mistyped(name, [*names, *guides])
    if meant in names:
        text = f"'{name}' is not a setting; the nearest name is '{meant}'"
        return SettingProblem(name, where, text, mend=f"write {meant}, or delete the line")
    if meant:
        text = f"'{name}' is not a setting; neither is '{meant}': {guides[meant]}"
        return SettingProblem(name, where, text, mend="delete the line")
    text = f"{name}: no version of RocketMQ reads it; it is passed over"
    return SettingProblem(name, where, text, False, "unknown-setting", "delete the line")


# ---- values ----


def about_text(text: str) -> str:
    """Returns why a value of a file cannot be meant as it stands there; empty: it can. A properties
    file has no quotes, no comments behind a value and no variables."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return "the quotes are part of the value: leave them out"
    if re.search(r"\s(#|//)", text):
        return "what follows the value is part of it: a comment stands on a line of its own"
    if _PLACEHOLDER.search(text):
        return "it is a placeholder that nobody has filled in"
    return ""
