"""The controller that an address names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from ssl import SSLContext

from broker.remoting.client import RemotingClient
from broker.services.controlled.apache import ApacheController
from broker.services.controlled.controller import Controller
from broker.services.controlled.etcd import EtcdController, Gateway
from broker.services.etcd_address import SCHEME, SCHEME_TLS
from broker.wire.command import Command

__all__ = ["controller_of"]

#: Of the time after which a broker is dead: a silent member of etcd must not cost all of it.
_PATIENCE, _PATIENCE_S, _PATIENCE_MAX_S = 0.1, 0.25, 2.0


def controller_of(
    address: str,
    cluster: str,
    name: str,
    identity: Path,
    mode: int,
    timeout_ms: int,
    sign: Callable[[Command, str], None],
    tls: SSLContext | None,
) -> Controller:
    """Makes the controller that a setting names. address: as controllerAddr. identity:
    ``brokerIdentity`` of the broker, and mode of that file. timeout_ms: a broker that is silent for
    so long is dead. tls: None: plain text, but for ``etcds://``. Raises: ValueError."""
    if address.startswith((SCHEME, SCHEME_TLS)):
        patience_s = min(max(timeout_ms / 1000 * _PATIENCE, _PATIENCE_S), _PATIENCE_MAX_S)
        gateway = Gateway(address, tls, patience_s)
        return EtcdController(gateway, cluster, name, identity, mode, timeout_ms)
    client = RemotingClient(tls=tls)
    return ApacheController(client, address, cluster, name, identity, mode, timeout_ms, sign)
