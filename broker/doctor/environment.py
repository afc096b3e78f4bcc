"""The environment of a client: what it would ask, and with which credentials."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

from broker.client.credentials import KEY, SECRET, credentials_of_environment
from broker.client.errors import Misuse
from broker.doctor.brokers import check_name_server, safely
from broker.doctor.findings import Diagnosis, diagnosed
from broker.doctor.reaching import ServerKind, kind_of
from broker.remoting.client import RemotingClient
from broker.services.setting_forms import about_server

__all__ = ["ABOUT_SILENCE", "check_environment"]

_WHERE = "environment"
#: What a server that is not what it should be means.
ABOUT_SILENCE = {
    ServerKind.SILENT: "no-answer",
    ServerKind.NO_SUCH_HOST: "host-unknown",
    ServerKind.TLS: "tls-only",
    ServerKind.UNKNOWN: "not-rocketmq",
}


async def check_environment(
    namesrv: str | None, client: RemotingClient
) -> AsyncIterator[Diagnosis]:
    """Examines the environment of a client. namesrv: instead of NAMESRV_ADDR."""
    for found in _credentials():
        yield found
    given = namesrv if namesrv is not None else os.environ.get("NAMESRV_ADDR", "")
    addresses = [each.strip().removeprefix("http://") for each in given.split(";")]
    addresses = [each for each in addresses if each]
    if not addresses:
        yield diagnosed("no-address", _WHERE, "NAMESRV_ADDR is not set")
    for address in addresses:
        fault = about_server(address)
        if fault is not None:
            yield diagnosed("bad-address", _WHERE, f"{address}: {fault[0]}")
            continue
        kind, why = await kind_of(address, client)
        if kind is ServerKind.NAME_SERVER:
            for found in await safely(check_name_server(address, client), address):
                yield found
        elif kind in ABOUT_SILENCE:
            yield diagnosed(ABOUT_SILENCE[kind], address, why or kind.value)
        else:
            yield diagnosed("broker-as-name-server", address, f"it is a {kind.value}")


def _credentials() -> Iterator[Diagnosis]:
    try:
        credentials_of_environment()
    except Misuse:
        missing = SECRET if os.environ.get(KEY) else KEY
        yield diagnosed("half-credentials", _WHERE, f"{missing} is not set")
