"""What a row of a table of settings is, and how a file and its values are read by it.

Entry points: :class:`Setting` (a row), :func:`read_conf` (a properties file), :func:`convert` and
:func:`convert_of_file` (a value). The tables: pystore/settings.py (store and broker),
broker/namesrv/settings.py, broker/grpc/settings.py (proxy), broker/remoting/tls.py.
"""

from __future__ import annotations

import codecs
import math
import operator
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pystore.configuration.problems import SettingProblem, about_text
from pystore.errors import BadArgument
from pystore.files.javaproperties import names_given_twice, parse_java_properties

__all__ = [
    "INT_MAX",
    "INT_MIN",
    "LONG_MAX",
    "LONG_MIN",
    "Setting",
    "Value",
    "convert",
    "convert_of_file",
    "read_conf",
    "row_of",
    "rows_of",
    "setting_field",
    "shown",
]

Value = int | float | bool | str | None

INT_MAX = 2**31 - 1
INT_MIN = -(2**31)
LONG_MAX = 2**63 - 1
LONG_MIN = -(2**63)
#: A settings file is a few kilobytes; what is larger is another file, and is not read into memory.
_CONF_MAX_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of a table of settings: a store's and broker's, a name server's, a proxy's, or TLS.

    name: upstream's. type: int, long, boolean, double or String. default: upstream's, or this
    store's where upstream takes it from the machine; None when there is none. origin: the
    upstream class, or the version when only another version than 5.3.3 has it. used_by: "store",
    "metadata", "broker" (read by the broker alone; it reads some of the others, too), "namesrv",
    "proxy" (of cluster mode alone), "grpc" (a broker that serves gRPC reads it, too), "tls" or
    "none" (accepted so that one file serves both, without effect). field: the ps_conf field it goes
    into.
    low, high: range of a number, both inclusive. choices: the allowed texts. clamp: values outside
    are moved to this range when used, as upstream does (docs/internals/format.md#retention).
    encode: value to field, for one number. at_start: only a start takes it over, since a
    connection, a record, a name server or the C core has been told already. is_secret: it holds a
    password and is never shown. only: the one value that is true of a store that is written to,
    and of its broker; because: why any other is refused. by_broker: a broker takes others, too; a
    store without one refuses them. by_request: who may change it by a request: "" whoever has the
    right; "own host": without access control only a client on this host, since a stranger could
    stop the broker with it, empty it or lead its clients elsewhere; "nobody". with_controller:
    True: it has no effect without a controller; False: it has none under one. of_sync_master: it
    has no effect on an asynchronous master. for_readers: it changes what a reader sees. form: what
    broker/services/setting_forms.py asks of a text.
    """

    name: str
    type: str
    default: Value
    origin: str
    used_by: str
    unit: str = ""
    meaning: str = ""
    field: str | None = None
    low: int = INT_MIN
    high: int = INT_MAX
    choices: tuple[str, ...] = ()
    clamp: tuple[int, int] | None = None
    check: Callable[[str], object] | None = None
    encode: Callable[[Any], int] | None = None
    at_start: bool = False
    is_secret: bool = False
    only: Value = None
    because: str = ""
    by_broker: bool = False
    by_request: str = ""
    with_controller: bool | None = None
    of_sync_master: bool = False
    for_readers: bool = False
    form: str = ""


def row_of(name: str, default: Value, meaning: str = "", **more: Any) -> Setting:
    """Returns a row whose type is that of its default. more: columns of Setting; a number is from 0
    on, and a row is read by nobody, unless they say otherwise."""
    kind = {bool: "boolean", int: "int", str: "String"}.get(type(default), "String")
    columns: dict[str, Any] = {"type": kind, "origin": "", "used_by": "none", "low": 0} | more
    return Setting(name=name, default=default, meaning=meaning, **columns)


def setting_field(name: str, default: Any, meaning: str = "", **more: Any) -> Any:
    """Returns a field of a dataclass of settings, with its row (:func:`row_of`) in its metadata;
    a secret is not in the repr of its settings."""
    row = row_of(name, default, meaning, **more)
    return field(default=default, repr=not row.is_secret, metadata={"row": row})


def rows_of(settings: type) -> dict[str, tuple[str, Setting]]:
    """Returns (attribute, row) by the names of a dataclass's settings."""
    found = [(each.name, each.metadata["row"]) for each in fields(settings) if each.metadata]
    return {row.name: (attribute, row) for attribute, row in found}


# ---- files ----


def read_conf(path: Path) -> tuple[dict[str, tuple[int, str]], list[SettingProblem]]:
    """Reads a properties file. Returns its entries by name, with their lines, and what another
    reader takes from it otherwise. Text that is not UTF-8 is Latin-1, as Java reads it. Raises:
    BadArgument for a file that cannot be read, or that has a broken line."""
    try:
        with path.open("rb") as file:
            data = file.read(_CONF_MAX_BYTES + 1)
    except OSError as failed:
        raise BadArgument(
            f"cannot read the settings ({failed.strerror})", where=str(path)
        ) from failed
    if len(data) > _CONF_MAX_BYTES:
        raise BadArgument(f"the settings file is larger than {_CONF_MAX_BYTES} bytes", str(path))
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # as PowerShell writes it
        raise BadArgument("the settings file is UTF-16, of which nobody reads a name: save it as"
                          " UTF-8", where=str(path))  # fmt: skip
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")  # what Java reads such a file as
    try:
        found = parse_java_properties(text)
        twice = names_given_twice(text)
    except ValueError as bad:
        raise BadArgument(str(bad), where=str(path)) from None
    problems = []
    first = min(found, key=lambda name: found[name][0], default="")
    if data.startswith(codecs.BOM_UTF8) and first and found[first][0] == 1:
        text = "Apache's reader takes the byte order mark for a part of the first name, and passes"
        problems.append(
            SettingProblem(
                first, f"{path}:1", f"{text} over {first}", False, "byte-order-mark",
                "save the file as UTF-8 without a mark",
            )
        )  # fmt: skip
    for name, lines in twice.items():
        shown = ", ".join(map(str, lines))
        problems.append(
            SettingProblem(
                name, f"{path}:{lines[-1]}", f"{name} is given in lines {shown}; the last holds",
                False, "given-twice", "delete the other lines",
            )
        )  # fmt: skip
    return found, problems


# ---- values ----


def _integer(value: object) -> int:
    if isinstance(value, str):
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", value.strip()):
            percent = re.fullmatch(r"([0-9]{1,19}) ?%", value.strip())
            hint = f"; write {percent[1]} alone" if percent else ""
            raise ValueError(f"it is not an integer{hint}")
        return int(value)
    if isinstance(value, bool):
        raise ValueError("expected a number, not true or false")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError("it is not an integer") from None


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError("it is not true or false")


def _text(value: object) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise ValueError("it is not text")
    if "\0" in value:
        raise ValueError("it contains a NUL character")
    return value.strip()


def convert(row: Setting, value: object) -> Value:
    """Converts a value to the type of its row. Raises: ValueError that says what is wrong with it,
    as part of a sentence."""
    result: Value
    if row.type in ("int", "long"):
        number = _integer(value)
        if not row.low <= number <= row.high:
            raise ValueError(f"it is not between {row.low} and {row.high}")
        result = number
    elif row.type == "boolean":
        result = _boolean(value)
    elif row.type == "double":
        try:
            result = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise ValueError("it is not a number") from None
        if not math.isfinite(result):
            raise ValueError("it is not a finite number")
    else:
        result = _text(value)
        if row.choices and result not in row.choices:
            raise ValueError(f"it is not one of {', '.join(row.choices)}")
    if row.check is not None:
        row.check(result)  # type: ignore[arg-type]
    return result


def convert_of_file(row: Setting, value: object) -> Value:
    """Converts the value of a line in a file. Raises: ValueError, for quotes, comments and
    placeholders in it as well."""
    hint = about_text(str(value).strip()) if not row.is_secret else ""
    try:
        made = convert(row, value)
    except ValueError as bad:
        raise ValueError(f"{bad}; {hint}" if hint else str(bad)) from None
    if hint:
        raise ValueError(hint)
    is_path = row.unit in ("path", "paths")
    if is_path and os.name == "posix" and re.match(r"[A-Za-z]:[\\/]", str(made)):
        raise ValueError("it is a path of Windows, and here a name in the present directory")
    if row.unit == "paths" and ";" in str(made):
        raise ValueError("folders are separated by ',', and ';' is part of a name")
    return made


def shown(value: Value) -> str:
    """Returns a value as a file holds it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
