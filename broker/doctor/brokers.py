"""A running broker: its address, its name servers, its disk, its clock, its slaves."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from broker.client.admin import AsyncAdmin, BrokerFacts
from broker.client.admin.facts import tier_figures
from broker.client.errors import BrokerRefused, ClientError
from broker.doctor.findings import Diagnosis, diagnosed
from broker.doctor.folder import FILES_MIN, disk_room
from broker.doctor.reaching import ServerKind, kind_of, why_no_broker
from broker.loop.reasons import reason_of
from broker.remoting.client import RemotingClient, parse_address
from broker.services.setting_forms import about_server, servers_of
from broker.services.setting_rules import at_odds
from broker.wire import mqjson
from broker.wire.codes import RequestCode
from broker.wire.command import Command
from broker.wire.handlers import address_text
from pystore.settings import TABLE, read_settings

__all__ = ["check_broker", "check_name_server", "cluster_info", "is_loopback", "safely"]

#: Seconds that two clocks may differ; what a broker says of its own has whole seconds.
_SKEW_S = 10.0
#: Of fileReservedTime: what has waited for the tier for longer is late.
_LATE_RATIO = 0.5
#: Brokers whose clocks are compared at a name server.
_CLOCKS_MAX = 64
#: A put that one of a thousand takes, ms, that is slow.
_SLOW_MS = 200.0
#: Fewer puts say nothing of one in a thousand.
_PUTS_MIN = 1000
_RUNTIME = re.compile(r"(\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds")
_SIZE = re.compile(r"([\d.]+) ?([KMGTPE]?i?)B?")


def is_loopback(address: str) -> bool:
    """Says whether host:port is of the host that asks."""
    host = parse_address(address)[0]
    return host.startswith("127.") or host in ("::1", "localhost")


async def check_broker(
    admin: AsyncAdmin, where: str, client: RemotingClient, namesrv: tuple[str, ...]
) -> AsyncIterator[Diagnosis]:
    """Examines a broker. admin: asks this broker alone. namesrv: name servers that should know it,
    beside its own. Raises: ClientError."""
    try:
        facts, settings = await admin.broker(), await admin.configuration()
    except BrokerRefused as refused:
        yield diagnosed("access-refused", where, refused.remark or f"code {refused.code}")
        return
    name = settings.get("brokerName", "")
    async for found in _address(where, settings, client):
        yield found
    own = servers_of(settings.get("namesrvAddr"))
    if not own and not namesrv:
        yield diagnosed("no-name-server", where, "namesrvAddr is not set")
    for server in dict.fromkeys((*own, *namesrv)):
        fault = about_server(server)
        if fault is not None:
            yield diagnosed("name-server-address", where, f"namesrvAddr: {fault[0]}")
            continue
        async for found in _known_to(server, where, name, settings, client):
            yield found
    for found in (
        *_door(where, settings), *_clock(where, facts), *_disk(where, facts, settings),
        *_tier(where, facts, settings), *_speed(where, facts), *_limits(where, facts, settings),
        *_rules(where, settings),
    ):  # fmt: skip
        yield found
    if facts.entries.get("accessProblem"):
        yield diagnosed("access-file-broken", where, facts.entries["accessProblem"])
    async for found in _replication(admin, where, settings):
        yield found


# ---- where it is ----


def _advertised(settings: Mapping[str, str], where: str) -> str:
    host = settings.get("brokerIP1") or parse_address(where)[0]
    return address_text((host, settings.get("listenPort", "10911")))


async def _address(
    where: str, settings: Mapping[str, str], client: RemotingClient
) -> AsyncIterator[Diagnosis]:
    """Checks that what it tells clients reaches it, from here at least."""
    told, asked = _advertised(settings, where), parse_address(where)[0]
    if parse_address(told) == parse_address(where):
        return
    if is_loopback(told) and not is_loopback(where):
        yield diagnosed("advertised-loopback", where, f"it advertises {told}", host=asked)
        return
    failed = await why_no_broker(told, client)
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
    info = await cluster_info(server, client)
    known = _registered(info).get(name, {}).get(number)
    own = settings.get("brokerClusterName", "")
    others = _alone(info).get(own)
    if others and known is not None:
        text = f"name server {server}: it alone is of cluster {own}, the others are of {others}"
        yield diagnosed("other-cluster", where, text, cluster=others)
    if known is None:
        text = f"name server {server} knows no broker {name} with id {number}"
        yield diagnosed("name-server-ignorant", where, text, namesrv=server)
    elif known != told:
        text = f"name server {server} has {name} with id {number} at {known}, not at {told}"
        yield diagnosed("name-taken", where, text)
    for rival in _rivals(info).get((name, number), ()) if known == told else ():
        text = f"{rival} registers as {name} with id {number} at name server {server}, too"
        yield diagnosed("name-taken", where, text)


async def cluster_info(server: str, client: RemotingClient) -> dict[str, Any]:
    """Returns the brokers and clusters that a name server knows. Raises: OSError, TimeoutError."""
    answer = await client.request(server, Command(RequestCode.GET_BROKER_CLUSTER_INFO))
    found: dict[str, Any] = mqjson.loads(answer.body or b"{}")
    return found


def _registered(info: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Returns the addresses by id, by the name of the broker, as a name server knows them."""
    table = info.get("brokerAddrTable") or {}
    return {name: dict(data.get("brokerAddrs") or {}) for name, data in table.items()}


def _rivals(info: Mapping[str, Any]) -> dict[tuple[str, str], list[str]]:
    """Returns who registers with a name and an id that another holds, as our name servers say."""
    table: dict[str, dict[str, list[str]]] = info.get("brokerRivalTable") or {}
    return {(name, number): of for name, ids in table.items() for number, of in ids.items()}


def _alone(info: Mapping[str, Any]) -> dict[str, str]:
    """Returns the clusters of one broker beside a single one of more, which is the value."""
    table: dict[str, Any] = info.get("clusterAddrTable") or {}
    large = [name for name, brokers in table.items() if len(brokers) > 1]
    if len(large) != 1:
        return {}
    return {name: large[0] for name, brokers in table.items() if len(brokers) == 1}


# ---- how it is ----


def _door(where: str, settings: Mapping[str, str]) -> list[Diagnosis]:
    guarded = ("aclEnable", "authenticationEnabled", "authorizationEnabled")
    bound = settings.get("bindAddress") or "0.0.0.0"
    closed = bound.startswith("127.") or bound == "::1"
    if closed or any(settings.get(name) == "true" for name in guarded):
        return []
    return [diagnosed("open-door", where, f"it listens on {bound} without access control")]


#: Rules of settings that hold for any broker that runs; the others are seen at work here.
_OF_RUNNING = frozenset({
    "ratios-crossed", "message-over-frame", "advertised-nowhere", "sync-alone", "master-with-id",
    "rights-without-users", "checks-give-up-early", "reserved-nothing", "half-open",
    "silence-too-short", "sends-later", "delay-over-retention", "transactions-over-retention",
    "registers-at-itself", "metrics-nowhere",
})  # fmt: skip


def _rules(where: str, settings: Mapping[str, str]) -> list[Diagnosis]:
    """Returns what its settings say, ours or Java's, by the rules that a start goes by."""
    told = {name: text for name, text in settings.items() if name in TABLE}
    made, _ = read_settings(told)
    return [
        diagnosed(each.check, where, each.text, own=each.mend)
        for each in at_odds(made)
        if each.check in _OF_RUNNING
    ]


def _limits(where: str, facts: BrokerFacts, settings: Mapping[str, str]) -> list[Diagnosis]:
    """Checks the limits of its process, where it says them."""
    made = []
    files = int(facts.entries.get("openFilesMax") or 0)
    if 0 < files < FILES_MIN:
        made.append(diagnosed("few-files", where, f"it may open {files} files"))
    most, wanted = int(facts.entries.get("mappingsMax") or 0), settings.get("mappedFilesMax")
    if 0 < most < int(wanted or 0) * 1.2:
        text = f"mappedFilesMax={wanted}, {most} mappings are allowed"
        made.append(diagnosed("few-mappings", where, text))
    return made


def _clock(where: str, facts: BrokerFacts) -> list[Diagnosis]:
    """Checks its clock, which is when it booted, and how long it says that this is ago."""
    skew = _skew_s(facts.entries.get("runtime", ""), facts.started_ms)
    if skew is None or abs(skew) <= _SKEW_S:
        return []
    way = "ahead of" if skew > 0 else "behind"
    return [diagnosed("clock-skew", where, f"its clock is {abs(skew):.0f} s {way} this one")]


def _skew_s(runtime: str, started_ms: float) -> float | None:
    """Returns how far a clock is ahead of this one; None: its broker does not say."""
    parts = _RUNTIME.search(runtime)
    if parts is None or not started_ms:
        return None
    days, hours, minutes, seconds = map(int, parts.groups())
    runs = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return started_ms / 1000 + runs - time.time()


def _bytes_of(text: str) -> float:
    """Returns ``12.3 GiB`` as bytes; 0 when it cannot be read."""
    found = _SIZE.match(text.strip())
    if found is None:
        return 0.0
    power = "KMGTPE".find(found[2][:1]) + 1 if found[2] else 0
    return float(found[1]) * float(1 << 10 * power)


def _disk(where: str, facts: BrokerFacts, settings: Mapping[str, str]) -> Iterator[Diagnosis]:
    limit = float(settings.get("diskSpaceWarningLevelRatio") or 90)
    limit = limit / 100 if limit > 1 else limit
    earliest = float(facts.entries.get("earliestMessageTimeStamp") or 0)
    seconds, log = time.time() - earliest / 1000, facts.log_max - facts.log_min
    free = _bytes_of(facts.entries.get("commitLogDirCapacity", "").partition("Free : ")[2])
    used, is_known = facts.disk_used, earliest > 0 and seconds >= 60 and free > 0
    whole = free / (1 - used) if is_known and used < 1 else 1.0
    rate = log / seconds if is_known else 0.0
    reserved = float(settings.get("fileReservedTime") or 72)
    return disk_room(where, (used * whole, whole), limit, log, rate, reserved)


def _tier(where: str, facts: BrokerFacts, settings: Mapping[str, str]) -> list[Diagnosis]:
    """Checks what is said of a cold tier, if there is one."""
    made, tier = [], tier_figures(facts.entries)
    if tier is None:
        return []
    if tier.problem:
        made.append(diagnosed("tier-unreachable", where, tier.problem))
    hours = tier.late_s / 3600
    reserved = float(settings.get("fileReservedTime") or 72)
    if hours > reserved * _LATE_RATIO:
        text = f"the oldest message that is not in the tier is {hours:.0f} h old"
        made.append(diagnosed("tier-behind", where, f"{text}, fileReservedTime is {reserved:g} h"))
    limit = float(settings.get("diskMaxUsedSpaceRatio") or 75) / 100
    if facts.disk_used > limit and tier.behind > (facts.log_max - facts.log_min) / 2:
        text = (
            f"{facts.disk_used:.0%} of the disk are used, and {tier.behind / 1e9:.1f} GB of the log"
        )
        made.append(diagnosed("tier-holds-disk", where, f"{text} are not in the cold tier"))
    return made


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
    """Checks whether it knows brokers, and whether these can be reached from here. Raises: OSError,
    TimeoutError."""
    info = await cluster_info(where, client)
    table = _registered(info)
    if not table:
        yield diagnosed("no-brokers", where, "no broker is registered")
    for cluster, others in sorted(_alone(info).items()):
        text = f"one broker is of cluster {cluster}, the others are of {others}"
        yield diagnosed("other-cluster", where, text, cluster=others)
    for (name, number), rivals in sorted(_rivals(info).items()):
        of = " and ".join((table.get(name, {}).get(number, ""), *rivals))
        yield diagnosed("name-taken", where, f"{of} register as {name} with id {number}")
    for name in sorted(table):
        addresses = table[name]
        if "0" not in addresses:
            yield diagnosed("no-master", where, f"of the broker {name} only slaves are registered")
        for number, address in sorted(addresses.items()):
            failed = await why_no_broker(address, client)
            if failed:
                text = f"the broker {name}, id {number}, at {address}: {failed}"
                yield diagnosed("broker-unreachable", where, text)
    every = [address for named in table.values() for address in named.values()]
    async for found in _clocks(where, every, client):
        yield found


async def _clocks(
    where: str, addresses: Sequence[str], client: RemotingClient
) -> AsyncIterator[Diagnosis]:
    """Compares the clocks of brokers beside each other: who may not ask one is not told of it."""
    skews: dict[str, float] = {}
    for address in addresses[:_CLOCKS_MAX]:
        with contextlib.suppress(OSError, TimeoutError, ValueError, LookupError, TypeError):
            command = Command(RequestCode.GET_BROKER_RUNTIME_INFO)
            answer = await client.request(address, command)
            table = mqjson.loads(answer.body or b"{}").get("table") or {}
            skew = _skew_s(str(table["runtime"]), float(table["bootTimestamp"]))
            if skew is not None:
                skews[address] = skew
    if not skews:
        return
    behind, ahead = min(skews, key=skews.__getitem__), max(skews, key=skews.__getitem__)
    apart = skews[ahead] - skews[behind]
    if apart > _SKEW_S:
        text = f"the clock of {ahead} is {apart:.0f} s ahead of that of {behind}"
        yield diagnosed("clock-skew", where, text)


async def safely(found: AsyncIterator[Diagnosis], where: str) -> list[Diagnosis]:
    """Returns what was found until a server went silent, and that it did."""
    made: list[Diagnosis] = []
    try:
        async for each in found:
            made.append(each)
    except (ClientError, OSError, TimeoutError) as failed:
        check = "late-answer" if _is_late(failed) else "no-answer"
        made.append(diagnosed(check, where, reason_of(failed)))
    return made


def _is_late(failed: BaseException) -> bool:
    """Says whether somebody was there, who did not answer in time."""
    cause: BaseException | None = failed
    while cause is not None and not isinstance(cause, TimeoutError):
        cause = cause.__cause__
    return cause is not None
