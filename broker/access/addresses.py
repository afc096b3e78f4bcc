"""Patterns of addresses in access lists, as ranges of numbers (docs/internals/access.md#addresses).

Every pattern names runs of adjacent addresses, so that a match is two comparisons a run.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import lru_cache

__all__ = [
    "NOBODY", "OWN_HOST", "Address", "Pattern", "address_of", "parse_networks", "parse_pattern",
    "parse_patterns", "runs_of",
]  # fmt: skip

#: As a setting's text.
OWN_HOST = "127.0.0.1;::1"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_EVERYBODY = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_V4_PARTS, _V6_PARTS = 4, 8


@dataclass(frozen=True, slots=True)
class Pattern:
    """text: as given. runs: (IP version, first, last), both inclusive."""

    text: str
    everybody: bool = False
    runs: tuple[tuple[int, int, int], ...] = ()

    def matches(self, address: Address | None) -> bool:
        """Says whether an address matches. address: None is one that could not be read; only a
        pattern for everybody matches it."""
        if self.everybody:
            return True
        if address is None:
            return False
        value, version = int(address), address.version
        return any(v == version and low <= value <= high for v, low, high in self.runs)


NOBODY = Pattern("")


@lru_cache(4096)
def address_of(host: str) -> Address | None:
    """Reads the address of a peer: without its scope, an IPv4 one that IPv6 carries as IPv4."""
    try:
        found = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


def parse_pattern(text: str) -> Pattern:
    """Reads one entry of a white list; a blank one matches nobody. Raises: ValueError."""
    text = text.strip()
    if not text:
        return NOBODY
    if text in _EVERYBODY:
        runs = ((4, 0, (1 << 32) - 1), (6, 0, (1 << 128) - 1))
        return Pattern(text, everybody=True, runs=runs)
    if text.endswith("}"):
        return Pattern(text, runs=tuple(_one(each) for each in _of_set(text)))
    if "," in text:
        return Pattern(text, runs=tuple(_one(each) for each in text.split(",")))
    if "*" in text or "-" in text:
        return Pattern(text, runs=(_range_v6(text) if ":" in text else _range_v4(text),))
    return Pattern(text, runs=(_one(text),))


def parse_patterns(text: str) -> list[Pattern]:
    """Reads addresses of a setting, separated by ';'. Raises: ValueError."""
    return [parse_pattern(each) for each in text.split(";")]


def runs_of(text: str) -> tuple[tuple[int, int, int], ...]:
    """Returns the runs of all of them. Raises: ValueError."""
    return tuple(run for each in parse_patterns(text) for run in each.runs)


def parse_networks(texts: list[str]) -> tuple[Pattern, ...]:
    """Reads addresses and CIDR networks of a policy. Raises: ValueError."""
    made = []
    for text in texts:
        network = ipaddress.ip_network(text, strict=False)
        low, high = int(network.network_address), int(network.broadcast_address)
        made.append(Pattern(text, runs=((network.version, low, high),)))
    return tuple(made)


def _one(text: str) -> tuple[int, int, int]:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"'{text}' is not an address") from None
    return address.version, int(address), int(address)


def _of_set(text: str) -> list[str]:
    """Returns the addresses of ``a.b.c.{5,7}``."""
    head, brace, rest = text.partition("{")
    if not brace or not head.endswith((".", ":")) or "{" in rest or "}" in rest[:-1]:
        raise ValueError(f"'{text}' is not a set: only the last part may be a list in braces")
    return [head + part.strip() for part in rest[:-1].split(",")]


def _number(text: str, base: int, most: int, whole: str) -> int:
    digits = "0123456789abcdef"[:base]
    if not text or len(text) > 4 or any(c not in digits for c in text.lower()):
        raise ValueError(f"'{text}' in '{whole}' is not a number")
    value = int(text, base)
    if value > most:
        raise ValueError(f"'{text}' in '{whole}' is over {most:#x}" if base == 16 else
                         f"'{text}' in '{whole}' is over {most}")  # fmt: skip
    return value


def _ends(part: str, base: int, most: int, whole: str) -> tuple[int, int]:
    """Returns the ends of ``*`` or ``a-b``."""
    if part == "*":
        return 0, most
    first, dash, last = part.partition("-")
    low, high = _number(first, base, most, whole), _number(last, base, most, whole)
    if not dash or low > high:
        raise ValueError(f"'{part}' in '{whole}' is not a range: the first number is the smaller")
    if not high:
        raise ValueError(f"'{part}' in '{whole}' is an empty range in upstream: write 0 alone")
    return low, high


def _run(head: list[int], ends: tuple[int, int], parts: int, bits: int) -> tuple[int, int, int]:
    """Returns the addresses that begin with `head` and a number of `ends`."""
    low = high = 0
    for number in head:
        low = high = low << bits | number
    left = (parts - len(head) - 1) * bits
    low, high = low << bits | ends[0], high << bits | ends[1]
    return (4 if bits == 8 else 6), low << left, (high + 1 << left) - 1


def _range_v4(text: str) -> tuple[int, int, int]:
    """Reads a range: the first of parts 2 to 4 that is one decides; what follows it is not looked
    at."""
    parts = [part.strip() for part in text.split(".")]
    if len(parts) > _V4_PARTS:
        raise ValueError(f"'{text}' has more than {_V4_PARTS} parts")
    for index, part in enumerate(parts[1:], 1):
        if part == "*" or "-" in part:
            head = [_number(each, 10, 255, text) for each in parts[:index]]
            return _run(head, _ends(part, 10, 255, text), _V4_PARTS, 8)
    raise ValueError(f"'{text}' has no range in its parts 2 to 4")


def _range_v6(text: str) -> tuple[int, int, int]:
    """Reads a final ``*``, a range ``a-b`` before it, or a range as the last of eight groups."""
    parts = text.split(":")
    star = parts[-1] == "*"
    rest = parts[:-1] if star else parts
    if len(parts) > _V6_PARTS or (not star and len(parts) < _V6_PARTS):
        raise ValueError(f"'{text}' is not eight groups, nor fewer and a final *")
    if not rest or (len(rest) == 1 and "-" in rest[0]):
        raise ValueError(f"'{text}' has a range in its first group")
    last = rest[-1]
    if "-" in last:
        head = [_number(each, 16, 0xFFFF, text) for each in rest[:-1]]
        return _run(head, _ends(last, 16, 0xFFFF, text), _V6_PARTS, 16)
    head = [_number(each, 16, 0xFFFF, text) for each in rest]
    return _run(head, (0, 0xFFFF), _V6_PARTS, 16)
