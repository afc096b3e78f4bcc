"""Which checks are made of what. Entry of the room."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

from broker.access.signature import Credentials
from broker.client.admin import AsyncAdmin
from broker.doctor.brokers import check_broker, check_name_server, safely
from broker.doctor.certificates import check_certificate
from broker.doctor.environment import ABOUT_SILENCE, check_environment
from broker.doctor.findings import Diagnosis, diagnosed
from broker.doctor.folder import check_folder
from broker.doctor.groups import check_groups
from broker.doctor.lite import check_lite_topics
from broker.doctor.proxies import check_proxy, proxy_problems
from broker.doctor.reaching import ServerKind, kind_of, speaks_tls
from broker.doctor.settings import of_problems
from broker.remoting.client import RemotingClient
from broker.services.setting_forms import servers_of

__all__ = ["examine_folder", "examine_network"]


def examine_folder(
    path: Path, conf: Path | None = None, given: Mapping[str, object] | None = None
) -> list[Diagnosis]:
    """Checks a store and its machine. conf, given: settings of its broker. Changes nothing."""
    return _sorted(list(check_folder(path, conf, given or {})))


async def examine_network(
    address: str | None, *, namesrv: str | None = None, credentials: Credentials | None = None,
    tls: ssl.SSLContext | None = None, late_s: float = 60.0, pause_s: float = 1.0,
    proxy_conf: Path | None = None,
) -> tuple[str, list[Diagnosis]]:  # fmt: skip
    """Checks the server at an address, or without one the environment of a client. namesrv: name
    servers that should know a broker, or that a proxy asks; for an environment, instead of
    NAMESRV_ADDR. late_s: how long messages and transactions may wait. pause_s: between two looks at
    consumers. proxy_conf: the rmq-proxy.json of a proxy. Returns what was looked at, and what was
    found. Raises: ValueError for a malformed address, OSError for a file that cannot be read."""
    names = tuple(servers_of(namesrv))
    async with RemotingClient(tls=tls) as client:
        if address is None:
            found = await safely(check_environment(namesrv, client), "environment")
            return "client", _sorted(found)
        kind, why = await kind_of(address, client, tls)
        shown: list[Diagnosis] = []
        if kind is ServerKind.TLS or (tls is not None and kind not in ABOUT_SILENCE):
            shown = await safely(check_certificate(address, tls), address)
        elif kind not in ABOUT_SILENCE and await speaks_tls(address):
            shown = await safely(check_certificate(address, None, only_dates=True), address)
        if kind in ABOUT_SILENCE:
            if tls is None or not shown:
                shown.append(diagnosed(ABOUT_SILENCE[kind], address, why or kind.value))
            return kind.value, _sorted(shown)
        if kind is ServerKind.NAME_SERVER:
            found = await safely(check_name_server(address, client), address)
        elif kind is ServerKind.BROKER:
            options = {"credentials": credentials, "tls": tls or False}
            async with AsyncAdmin(broker=address, **options) as admin:  # type: ignore[arg-type]
                found = await safely(check_broker(admin, address, client, names), address)
                if all(each.check != "access-refused" for each in found):
                    found += await safely(check_groups(admin, address, late_s, pause_s), address)
                    found += await safely(check_lite_topics(admin, address), address)
        else:
            found = await _of_proxy(address, client, names, proxy_conf, tls, credentials)
    return kind.value, _sorted(shown + found)


async def _of_proxy(
    where: str, client: RemotingClient, names: tuple[str, ...], conf: Path | None,
    tls: ssl.SSLContext | None, credentials: Credentials | None,
) -> list[Diagnosis]:  # fmt: skip
    made: list[Diagnosis] = []
    cluster = ""
    if conf is not None:
        settings, problems = proxy_problems(conf, is_signed=credentials is not None)
        made += of_problems(problems, str(conf))
        cluster = settings.cluster
        names = names or tuple(servers_of(settings.namesrv))
    checks = check_proxy(
        where, client, servers=names, cluster=cluster, tls=tls, credentials=credentials
    )
    return made + await safely(checks, where)


def _sorted(found: list[Diagnosis]) -> list[Diagnosis]:
    """Returns the worst first."""
    return sorted(found, key=lambda each: -each.severity)
