"""The engine that an address names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from ssl import SSLContext

from broker.remoting.client import RemotingClient
from broker.services.controlled.apache import ApacheController
from broker.services.controlled.engine import Engine
from broker.services.controlled.etcd import SCHEME, EtcdEngine, Gateway
from broker.wire.command import Command

__all__ = ["engine_of"]


def engine_of(
    address: str,
    cluster: str,
    name: str,
    identity: Path,
    mode: int,
    timeout_ms: int,
    sign: Callable[[Command], None],
    tls: SSLContext | None,
) -> Engine:
    """address: as controllerAddr. identity: ``brokerIdentity`` of the broker, and mode of that
    file. timeout_ms: a broker that is silent for so long is dead. Raises: ValueError."""
    if address.startswith(SCHEME):
        return EtcdEngine(Gateway(address), cluster, name, identity, mode, timeout_ms)
    client = RemotingClient(tls=tls)
    return ApacheController(client, address, cluster, name, identity, mode, timeout_ms, sign)
