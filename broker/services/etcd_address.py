"""The address of an etcd cluster, as controllerAddr has it."""

from __future__ import annotations

from urllib.parse import unquote

from broker.remoting.client import parse_address

__all__ = ["SCHEME", "SCHEME_TLS", "parse_etcd"]

#: In plain text, and by TLS.
SCHEME, SCHEME_TLS = "etcd://", "etcds://"


def parse_etcd(addresses: str) -> tuple[list[tuple[str, int]], str, str]:
    """Reads ``etcd://host:port,host:port``, or ``etcds://`` for TLS; before the hosts
    ``user:password@``, percent-encoded. Returns the members, the user and the password. Raises:
    ValueError."""
    rest = addresses.partition("://")[2]
    known, _, hosts = rest.rpartition("@")
    parts = hosts.replace(";", ",").split(",")
    members = [parse_address(part.strip()) for part in parts if part.strip()]
    if not members:
        raise ValueError(f"'{addresses}' names no member of etcd")
    user, _, password = map(unquote, known.partition(":"))
    return members, user, password
