"""SQL92 message filters: compiled in C, once an expression."""

from __future__ import annotations

from typing import Any

from pystore.errors import ExpressionIllegal
from pystore.native import ffi, lib, raise_error, utf8

__all__ = ["WORK_MAX", "check_work", "compiled", "matches"]


def compiled(sql: str, *, whole: bool = True) -> Any:
    """Returns the ``ps_sql92`` of an expression.

    whole: where upstream would stop reading in the midst and ignore the rest, which no caller
    means, it is refused: ``a LIKE 'x'`` would be ``a``. False for a broker, whose clients are used
    to it.

    Raises: ExpressionIllegal with the position, counted in characters from 1; BadArgument.
    """
    raw = utf8(sql, "the SQL92 filter")
    error = ffi.new("ps_error *")
    made = lib.ps_sql92_compile(raw, len(raw), error)
    if made == ffi.NULL:
        raise_error(error)
    made = ffi.gc(made, lib.ps_sql92_free)
    unread = lib.ps_sql92_unread(made)
    if whole and unread >= 0:
        at = len(raw[:unread].decode())
        raise ExpressionIllegal(
            f"position {at + 1}: expected AND, OR or the end, not {sql[at : at + 40]!r}"
        )
    return made


#: Bytes that one evaluation may look at, and all of one turn of reading together.
WORK_MAX: int = lib.PS_SQL92_WORK_MAX


def check_work(expression: Any) -> None:
    """Checks what an expression costs. Raises: ExpressionIllegal for an expression that costs a
    broker too much."""
    work = lib.ps_sql92_work(expression, lib.PS_PROPERTIES_MAX)
    if work > WORK_MAX:
        raise ExpressionIllegal(
            f"the expression may look at {work} bytes of one message, {WORK_MAX} are"
            " allowed: use fewer CONTAINS"
        )


def matches(expression: Any, properties: bytes) -> bool:
    """Returns whether an expression is true of a record's properties, encoded as they are stored.
    Any number of threads may ask."""
    return bool(lib.ps_sql92_match(expression, properties, len(properties)))
