"""A running broker: its address, its name servers, its disk, its clock, its slaves."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from broker.client.admin import AsyncAdmin, BrokerFacts
from broker.client.errors import BrokerRefused, ClientError
from broker.doctor.findings import Diagnosis, diagnosed
from broker.doctor.reaching import ServerKind, can_connect, kind_of
from broker.loop.reasons import reason_of
from broker.remoting.client import RemotingClient, parse_address
from broker.wire import mqjson
from broker.wire.codes import RequestCode
from broker.wire.command import Command

__all__ = ["check_broker", "check_name_server", "cluster_info", "is_loopback", "safely"]

#: Seconds that two clocks may differ; what a broker says of its own has whole seconds.
_SKEW_S = 10.0
_SOON_H = 48.0
#: A put that one of a thousand takes, ms, that is slow.
_SLOW_MS = 200.0
#: Fewer puts say nothing of one in a thousand.
_PUTS_MIN = 1000
_RUNTIME = re.compile(r"(\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds")
_SIZE = re.compile(r"([\d.]+) ?([KMGTPE]?i?)B?")


def is_loopback(address: str) -> bool:
    """Whether host:port is of the host that asks."""
    host = parse_address(address)[0]
    return host.startswith("127.") or host in ("::1", "localhost")


async def check_broker(
    admin: AsyncAdmin, where: str, client: RemotingClient, namesrv: tuple[str, ...]
) -> AsyncIterator[Diagnosis]:
    """admin: asks this broker alone. namesrv: name servers that should know it, beside its own.
    Raises: ClientError."""
    try:
        facts, settings = await admin.broker(), await admin.configuration()
    except BrokerRefused as refused:
        yield diagnosed("access-refused", where, refused.remark or f"code {refused.code}")
        return
    name = settings.get("brokerName", "")
    async for found in _address(where, settings):
        yield found
    own = tuple(filter(None, (settings.get("namesrvAddr") or "").split(";")))
    if not own and not namesrv:
        yield diagnosed("no-name-server", where, "namesrvAddr is not set")
    for server in dict.fromkeys((*own, *namesrv)):
        async for found in _known_to(server, where, name, settings, client):
            yield found
    for found in (
        *_door(where, settings), *_clock(where, facts), *_disk(where, facts, settings),
        *_speed(where, facts),
    ):  # fmt: skip
        yield found
    if facts.entries.get("accessProblem"):
        yield diagnosed("access-file-broken", where, facts.entries["accessProblem"])
    async for found in _replication(admin, where, settings):
        yield found


# ---- where it is ----


def _advertised(settings: Mapping[str, str], where: str) -> str:
    host = settings.get("brokerIP1") or parse_address(where)[0]
    port = settings.get("listenPort", "10911")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _address(where: str, settings: Mapping[str, str]) -> AsyncIterator[Diagnosis]:
    """What it tells clients must reach it, from here at least."""
    told, asked = _advertised(settings, where), parse_address(where)[0]
    if parse_address(told) == parse_address(where):
        return
    if is_loopback(told) and not is_loopback(where):
        yield diagnosed("advertised-loopback", where, f"it advertises {told}", host=asked)
        return
    failed = await can_connect(told)
    if failed:
        text = f"it advertises {told}: {failed}"
        yield diagnosed("advertised-address", where, text, host=asked)


async def _known_to(
    server: str, where: str, name: str, settings: Mapping[str, str], client: RemotingClient
) -> AsyncIterator[Diagnosis]:
    kind, why = await kind_of(server, client)
    if kind is not ServerKind.NAME_SERVER:
        text = why or f"it is a {kind.value}"
        yield diagnosed("name-server-silent", where, f"name server {server}: {text}")
        return
    number, told = settings.get("brokerId", "0"), _advertised(settings, where)
    known = (await _registered(server, client)).get(name, {}).get(number)
    if known is None:
        text = f"name server {server} knows no broker {name} with id {number}"
        yield diagnosed("name-server-ignorant", where, text, namesrv=server)
    elif known != told:
        text = f"name server {server} has {name} with id {number} at {known}, not at {told}"
        yield diagnosed("name-taken", where, text)


async def cluster_info(server: str, client: RemotingClient) -> dict[str, Any]:
    """Returns the brokers and clusters that a name server knows. Raises: OSError, TimeoutError."""
    answer = await client.request(server, Command(RequestCode.GET_BROKER_CLUSTER_INFO))
    found: dict[str, Any] = mqjson.loads(answer.body or b"{}")
    return found


async def _registered(server: str, client: RemotingClient) -> dict[str, dict[str, str]]:
    """Addresses by id, by the name of the broker, as a name server knows them."""
    table = (await cluster_info(server, client)).get("brokerAddrTable") or {}
    return {name: dict(data.get("brokerAddrs") or {}) for name, data in table.items()}


# ---- how it is ----


def _door(where: str, settings: Mapping[str, str]) -> list[Diagnosis]:
    guarded = ("aclEnable", "authenticationEnabled", "authorizationEnabled")
    bound = settings.get("bindAddress") or "0.0.0.0"
    closed = bound.startswith("127.") or bound == "::1"
    if closed or any(settings.get(name) == "true" for name in guarded):
        return []
    return [diagnosed("open-door", where, f"it listens on {bound} without access control")]


def _clock(where: str, facts: BrokerFacts) -> list[Diagnosis]:
    """Its clock is when it booted, and how long it says that this is ago."""
    parts = _RUNTIME.search(facts.entries.get("runtime", ""))
    if parts is None or not facts.started_ms:
        return []
    days, hours, minutes, seconds = map(int, parts.groups())
    runs = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    skew = facts.started_ms / 1000 + runs - time.time()
    if abs(skew) <= _SKEW_S:
        return []
    way = "ahead of" if skew > 0 else "behind"
    return [diagnosed("clock-skew", where, f"its clock is {abs(skew):.0f} s {way} this one")]


def _bytes_of(text: str) -> float:
    """``12.3 GiB`` as bytes; 0 when it cannot be read."""
    found = _SIZE.match(text.strip())
    if found is None:
        return 0.0
    power = "KMGTPE".find(found[2][:1]) + 1 if found[2] else 0
    return float(found[1]) * float(1 << 10 * power)


def _disk(where: str, facts: BrokerFacts, settings: Mapping[str, str]) -> list[Diagnosis]:
    limit = float(settings.get("diskSpaceWarningLevelRatio") or 90)
    limit = limit / 100 if limit > 1 else limit
    if facts.disk_used >= limit:
        text = f"{facts.disk_used:.0%} of the disk are used, puts are refused from {limit:.0%} on"
        return [diagnosed("disk-full", where, text)]
    earliest = float(facts.entries.get("earliestMessageTimeStamp") or 0)
    seconds = time.time() - earliest / 1000
    if earliest <= 0 or seconds < 60:
        return []
    rate = (facts.log_max - facts.log_min) / seconds
    capacity = facts.entries.get("commitLogDirCapacity", "")
    free = _bytes_of(capacity.partition("Free : ")[2])
    whole = free / (1 - facts.disk_used) if facts.disk_used < 1 else 0.0
    room = (limit - facts.disk_used) * whole
    if rate > 0 and whole and room / rate / 3600 < _SOON_H:
        text = f"{limit:.0%} of the disk are used in {room / rate / 3600:.0f} h"
        return [diagnosed("disk-full-soon", where, f"{text}, at {rate / 1e6:.1f} MB/s")]
    return []


def _speed(where: str, facts: BrokerFacts) -> list[Diagnosis]:
    slow = float(facts.entries.get("putLatency999") or 0)
    puts = float(facts.entries.get("putMessageTimesTotal") or 0)
    if slow < _SLOW_MS or puts < _PUTS_MIN:
        return []
    return [diagnosed("slow-disk", where, f"one put of a thousand takes {slow:.0f} ms")]


async def _replication(
    admin: AsyncAdmin, where: str, settings: Mapping[str, str]
) -> AsyncIterator[Diagnosis]:
    role = settings.get("brokerRole", "ASYNC_MASTER")
    answer = await admin.network.exchange(where, Command(RequestCode.GET_BROKER_HA_STATUS), 3.0)
    if answer.code:  # 4.9 does not know it
        return
    said = mqjson.loads(answer.body or b"{}")
    needed = int(settings.get("inSyncReplicas") or 1) - 1
    in_sync = sum(bool(row.get("inSync")) for row in said.get("haConnectionInfo") or ())
    if role == "SYNC_MASTER" and in_sync < needed:
        text = f"{in_sync} slaves are in sync, sends wait for {needed}"
        yield diagnosed("no-slave", where, text)
    follows = said.get("haClientRuntimeInfo") or {}
    if role == "SLAVE" and (follows.get("problem") or not follows.get("masterAddr")):
        text = follows.get("problem") or "it has not found its master"
        yield diagnosed("slave-alone", where, text)


# ---- name servers ----


async def check_name_server(where: str, client: RemotingClient) -> AsyncIterator[Diagnosis]:
    """Whether it knows brokers, and whether these can be reached from here. Raises: OSError,
    TimeoutError."""
    table = await _registered(where, client)
    if not table:
        yield diagnosed("no-brokers", where, "no broker is registered")
    for name in sorted(table):
        addresses = table[name]
        if "0" not in addresses:
            yield diagnosed("no-master", where, f"of the broker {name} only slaves are registered")
        for number, address in sorted(addresses.items()):
            failed = await can_connect(address)
            if failed:
                text = f"the broker {name}, id {number}, at {address}: {failed}"
                yield diagnosed("broker-unreachable", where, text)


async def safely(found: AsyncIterator[Diagnosis], where: str) -> list[Diagnosis]:
    """What was found until a server went silent, and that it did."""
    made: list[Diagnosis] = []
    try:
        async for each in found:
            made.append(each)
    except (ClientError, OSError, TimeoutError) as failed:
        made.append(diagnosed("no-answer", where, reason_of(failed)))
    return made
