"""How values are read from the command line and shown: sizes, times, text from hostile files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from pystore.errors import BadArgument

__all__ = [
    "Size",
    "When",
    "human_size",
    "iso",
    "named_values",
    "parse_time",
    "printable",
    "shown",
    "unreadable",
    "usage",
    "with_step",
]

_LAST_MS = 253_402_300_799_999  # end of the year 9999, the last that a datetime can hold


class Size(int):
    """A number of bytes; text shows it in binary units as well."""


class When(int):
    """Milliseconds since 1970; text shows it as a date, JSON adds ``<name>_iso``. -1: never."""


def human_size(n: int) -> str:
    """Returns a text such as ``1.7 MiB``."""
    value = float(n)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{n} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def iso(ms: int) -> str:
    """Returns ``2026-11-21T05:40:01.123Z``; the bare number when no calendar holds it."""
    if not 0 <= ms <= _LAST_MS:
        return str(ms)
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")[:23] + "Z"


def usage(text: str, next_step: str) -> BadArgument:
    """Makes the error of arguments that do not fit together."""
    error = BadArgument(text)
    error.next_step = next_step
    return error


def with_step(error: OSError, next_step: str) -> OSError:
    """Gives an error of the network or of the system what to do next, in its note; without one the
    kind of the error decides (pystore/cli/_app.py)."""
    error.add_note(next_step)
    return error


def unreadable(option: str, path: object, failed: OSError) -> BadArgument:
    """Makes the error of a file that an option names and that cannot be read."""
    why = failed.strerror or str(failed)
    return usage(f"{option} {path} cannot be read ({why})", "check the path and your rights on it")


def named_values(given: Iterable[str], option: str, example: str) -> dict[str, str]:
    """Reads each ``NAME=VALUE`` of an option that may be repeated. Raises: BadArgument."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise usage(f"{option} '{text}' is not NAME=VALUE", f"for example: {option} {example}")
        found[name] = value
    return found


def parse_time(text: str, option: str) -> int:
    """Returns milliseconds since 1970, from such a number or from ISO 8601.

    A time without a zone is UTC, as everything that is shown. Raises: BadArgument.
    """
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise usage(
            f"{option} '{text}' is not a time",
            "use milliseconds since 1970, or ISO 8601 such as 2026-11-21T05:40:00Z",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, round(moment.timestamp() * 1000))


def printable(text: str, keep: str = "") -> str:
    r"""Returns text with control characters as ``\xNN``: what lies in a store must not drive a
    terminal.

    keep: characters that pass although they are control characters.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape", "replace").decode()
        for c in text
    )


def shown(value: object) -> str:
    """Returns a value of a table or a list of facts as text."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Size):
        return human_size(value) if value < 1024 else f"{human_size(value)} ({int(value)})"
    if isinstance(value, When):
        return "-" if value < 0 else f"{iso(value)} ({int(value)})"
    if isinstance(value, float):
        return f"{value:,.3f}" if value < 100 else f"{value:,.0f}"
    if isinstance(value, (list, tuple)):
        return ", ".join(shown(v) for v in value) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{printable(str(k))}={shown(v)}" for k, v in value.items()) or "-"
    return printable(str(value))
