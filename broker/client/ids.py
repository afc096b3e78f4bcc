"""Identifiers: unique keys of messages, offset ids, client ids (docs/internals/wire.md#ids)."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import time
from collections.abc import Iterator
from typing import NamedTuple

__all__ = [
    "OffsetId",
    "client_id",
    "key_source",
    "local_address",
    "new_unique_key",
    "new_unique_keys",
    "offset_id_of",
]  # fmt: skip


class OffsetId(NamedTuple):
    """What an offset message id says: the address of a broker, and a place in its log."""

    host: str
    port: int
    offset: int


def offset_id_of(text: str) -> OffsetId:
    """Decodes an offset id of 32 (IPv4) or 56 (IPv6) hexadecimal digits. Raises: ValueError."""
    raw = bytes.fromhex(text)
    if len(raw) not in (16, 28):
        raise ValueError(f"'{text}' is not an offset message id")
    family = socket.AF_INET if len(raw) == 16 else socket.AF_INET6
    address = socket.inet_ntop(family, raw[:-12])
    port, offset = int.from_bytes(raw[-12:-8], "big"), int.from_bytes(raw[-8:], "big")
    return OffsetId(address, port, offset)


def local_address() -> str:
    """Returns the address of this machine that others most likely see; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def client_id(instance_name: str | None, unit_name: str | None = None) -> str:
    """Returns ``address@instance[@unit]``, as brokers and tools show it. instance_name: None makes
    one that no other client has."""
    name = instance_name or f"{os.getpid()}#{time.monotonic_ns()}{secrets.token_hex(2)}"
    made = f"{local_address()}@{name}"
    return f"{made}@{unit_name}" if unit_name else made


#: Fewer than the numbers of four hexadecimal digits, so that none comes twice in a millisecond.
_AT_ONCE = 30_000


class _Keys:
    """Makes unique keys of the address, process id and a random number of the process, of the
    milliseconds since the month began, and of a counter."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        address = socket.inet_aton(local_address())
        pid = (os.getpid() & 0xFFFF).to_bytes(2, "big")
        self.prefix = (address + pid + secrets.token_bytes(4)).hex().upper()
        self.count = itertools.count(secrets.randbelow(1 << 16))
        self.month_ms = 0
        self.next_month_ms = 0
        self.now_ms = 0
        self.start = ""  # of the keys of this millisecond

    def new(self) -> str:
        now_ms = time.time_ns() // 1_000_000
        if now_ms != self.now_ms:
            self._enter_moment(now_ms)
        return f"{self.start}{next(self.count) & 0xFFFF:04X}"

    def source(self) -> tuple[str, Iterator[int]]:
        """Returns what keys of this moment begin with, and the numbers whose last 16 bits end
        them."""
        return self.new()[:-4], self.count

    def new_many(self, count: int) -> list[str]:
        """Returns so many keys. A run of _AT_ONCE has one time, and takes longer than a millisecond
        to make."""
        if not count:
            return []
        start, count_on = self.source()
        numbers = itertools.islice(count_on, min(count, _AT_ONCE))
        made = [f"{start}{number & 0xFFFF:04X}" for number in numbers]
        if count > _AT_ONCE:
            made += self.new_many(count - _AT_ONCE)
        return made

    def _enter_moment(self, now_ms: int) -> None:
        if not self.month_ms <= now_ms < self.next_month_ms:
            self._enter_month(now_ms)
        since = (now_ms - self.month_ms) & 0xFFFFFFFF
        self.start = f"{self.prefix}{since:08X}"
        self.now_ms = now_ms  # last: another thread may look

    def _enter_month(self, now_ms: int) -> None:
        at = time.localtime(now_ms / 1000)
        year, month = (at.tm_year, at.tm_mon + 1) if at.tm_mon < 12 else (at.tm_year + 1, 1)
        self.month_ms = int(time.mktime((at.tm_year, at.tm_mon, 1, 0, 0, 0, 0, 0, -1))) * 1000
        self.next_month_ms = int(time.mktime((year, month, 1, 0, 0, 0, 0, 0, -1))) * 1000


_keys = _Keys()
os.register_at_fork(after_in_child=_keys.restart)

#: A new value for the property UNIQ_KEY.
new_unique_key = _keys.new
#: So many of them.
new_unique_keys = _keys.new_many
#: What to make at most _AT_ONCE of them from at once.
key_source = _keys.source
