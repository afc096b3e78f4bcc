"""How every verb that makes or mends a store shows what went in beside what came out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pystore.cli._session import Session

if TYPE_CHECKING:
    from pystore.repair.census import Balance

__all__ = ["show_balance"]


def show_balance(s: Session, balance: Balance) -> None:
    """Shows counts and checksums of input and output. The exit code is 5 when they differ without a
    reason that is named."""
    s.out.facts("records", balance.as_dict())
    s.damaged = s.damaged or not balance.good
