"""Which checks are made of what. Entry of the room."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

from broker.access.signature import Credentials
from broker.client.admin import AsyncAdmin
from broker.doctor.brokers import check_broker, check_name_server, safely
from broker.doctor.environment import ABOUT_SILENCE, check_environment
from broker.doctor.findings import Diagnosis, diagnosed
from broker.doctor.folder import check_folder
from broker.doctor.groups import check_groups
from broker.doctor.reaching import ServerKind, kind_of
from broker.remoting.client import RemotingClient

__all__ = ["examine_folder", "examine_network"]


def examine_folder(
    path: Path, conf: Path | None = None, given: Mapping[str, object] | None = None
) -> list[Diagnosis]:
    """Checks a store and its machine. conf, given: settings of its broker. Changes nothing."""
    return _sorted(list(check_folder(path, conf, given or {})))


async def examine_network(
    address: str | None, *, namesrv: str | None = None, credentials: Credentials | None = None,
    tls: ssl.SSLContext | None = None, late_s: float = 60.0, pause_s: float = 1.0,
) -> tuple[str, list[Diagnosis]]:  # fmt: skip
    """Checks the server at an address, or without one the environment of a client. namesrv: name
    servers that should know a broker; for an environment, instead of NAMESRV_ADDR. late_s: how long
    messages and transactions may wait. pause_s: between two looks at consumers. Returns what was
    looked at, and what was found. Raises: ValueError for a malformed address."""
    async with RemotingClient(tls=tls) as client:
        if address is None:
            found = await safely(check_environment(namesrv, client), "environment")
            return "client", _sorted(found)
        kind, why = await kind_of(address, client, tls)
        if kind in ABOUT_SILENCE:
            return kind.value, [diagnosed(ABOUT_SILENCE[kind], address, why or kind.value)]
        if kind is ServerKind.NAME_SERVER:
            found = await safely(check_name_server(address, client), address)
        elif kind is ServerKind.BROKER:
            names = tuple(filter(None, (namesrv or "").split(";")))
            options = {"credentials": credentials, "tls": tls or False}
            async with AsyncAdmin(broker=address, **options) as admin:  # type: ignore[arg-type]
                found = await safely(check_broker(admin, address, client, names), address)
                if all(each.check != "access-refused" for each in found):
                    found += await safely(check_groups(admin, address, late_s, pause_s), address)
        else:
            found = []
    return kind.value, _sorted(found)


def _sorted(found: list[Diagnosis]) -> list[Diagnosis]:
    """The worst first."""
    return sorted(found, key=lambda each: -each.severity)
