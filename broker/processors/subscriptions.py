"""Whether a filter expression may be used here, asked at a pull and by CHECK_CLIENT_CONFIG."""

from __future__ import annotations

from broker.services.context import Services
from broker.wire.codes import ResponseCode
from broker.wire.command import Refused
from pystore.errors import StoreError
from pystore.filter.sql92 import check_work, compiled

__all__ = ["check_expression", "check_syntax"]


def check_expression(s: Services, kind: str, expression: str) -> None:
    """Checks the kind of an expression. Raises: Refused with SYSTEM_ERROR for a kind that is off,
    with SUBSCRIPTION_PARSE_FAILED for a malformed expression."""
    if kind in ("", "TAG"):
        return
    if kind != "SQL92":
        raise Refused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"parse the consumer's subscription failed: {kind:.40} is neither TAG nor SQL92",
        )
    if not s.settings["enablePropertyFilter"]:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {kind}:"
            " enablePropertyFilter is false",
        )
    check_syntax(expression)


def check_syntax(expression: str, *, whole: bool = False) -> None:
    """Checks the syntax of an SQL92 filter. Raises: Refused with SUBSCRIPTION_PARSE_FAILED."""
    try:
        check_work(compiled(expression, whole=whole))
    except StoreError as bad:
        raise Refused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"parse the consumer's subscription failed: {bad.text}",
        ) from None
