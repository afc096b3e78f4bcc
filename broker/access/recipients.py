"""Whom a request is signed for: the addresses that a binding names (signature.py)."""

from __future__ import annotations

import re

from broker.access.addresses import address_of
from broker.wire.handlers import address_text

__all__ = ["recipients_of", "without_scope"]

#: An address as it may stand in a binding.
_PLAIN = re.compile(r"[0-9A-Za-z.:_%\[\]-]{1,255}")


def without_scope(address: tuple[str, int]) -> str:
    """Returns the address of a socket as ``host:port``; an IPv4 one that IPv6 carries is itself."""
    host, port = address
    found = address_of(host)
    return address_text((host if found is None else str(found), port))


def recipients_of(address: str, connected: tuple[str, int] | None) -> tuple[str, ...]:
    """Returns what a request is signed for: the address that was asked for, and the one that it led
    to, None where there is no connection yet. A name server may have said the first: one that is
    more than an address is left out."""
    there = without_scope(connected) if connected is not None else ""
    found = [each for each in dict.fromkeys((address, there)) if _PLAIN.fullmatch(each)]
    return tuple(found) or ("?",)
