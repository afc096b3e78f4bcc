"""Settings that a start takes although nobody can serve them so, or that do not go together. No
I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from broker.services.setting_forms import servers_of
from broker.wire.codec import FRAME_MAX
from pystore.configuration.problems import SettingProblem
from pystore.settings import Settings

__all__ = ["RULES", "Rule", "at_odds"]


@dataclass(frozen=True, slots=True)
class Rule:
    """check: its name. names: the settings that it is about. of: what it says of settings; None:
    nothing. why: why that matters. mend: what mends it. is_grave: nobody can be served so."""

    check: str
    names: tuple[str, ...]
    of: Callable[[Settings], str | None]
    why: str
    mend: str
    is_grave: bool = True


_MINUTE_MS = 60_000
_CLIENT_BEAT_S = 30
#: Bytes of a frame around a body: the header, and properties.
_AROUND = 64 << 10


def _is_loopback(address: str | None) -> bool:
    return address is not None and (address.startswith("127.") or address in ("::1", "localhost"))


def _ratios(s: Settings) -> str | None:
    cleans, refuses = s.clamped("diskMaxUsedSpaceRatio"), s.clamped("diskSpaceWarningLevelRatio")
    if s["cleanFileForciblyEnable"]:
        cleans = min(cleans, s.clamped("diskSpaceCleanForciblyRatio"))
    if cleans < refuses:
        return None
    return f"retention begins at {cleans} %, puts are refused from {refuses} % on"


def _message(s: Settings) -> str | None:
    most, segment = s["maxMessageSize"], s["mappedFileSizeCommitLog"]
    if "maxMessageSize" not in s.explicit:  # nobody has promised so large a message
        return None
    return f"maxMessageSize={most}, mappedFileSizeCommitLog={segment}" if most >= segment else None


def _bound(s: Settings) -> str | None:
    if "bindAddress" not in s.explicit or "brokerIP1" not in s.explicit:
        return None
    if _is_loopback(s["bindAddress"]) and not _is_loopback(s["brokerIP1"]):
        return f"bindAddress={s['bindAddress']}, brokerIP1={s['brokerIP1']}"
    return None


def _advertised(s: Settings) -> str | None:
    names = [each.rpartition(":")[0] for each in servers_of(s["namesrvAddr"])]
    if not _is_loopback(s["brokerIP1"]) or all(map(_is_loopback, names)):
        return None
    return f"brokerIP1={s['brokerIP1']} is registered with name servers on other hosts"


def _alone(s: Settings) -> str | None:
    if s["brokerRole"] == "SYNC_MASTER" and s["inSyncReplicas"] == 1:
        return "brokerRole=SYNC_MASTER, inSyncReplicas=1"
    return None


def _lost(s: Settings) -> str | None:
    if s["brokerRole"] == "SLAVE" and not s["namesrvAddr"] and not s["haMasterAddress"]:
        return "brokerRole=SLAVE, neither namesrvAddr nor haMasterAddress"
    return None


def _master_id(s: Settings) -> str | None:
    if s["brokerRole"] != "SLAVE" and s["brokerId"] != 0:
        return f"brokerRole={s['brokerRole']}, brokerId={s['brokerId']}"
    return None


def _ports(s: Settings) -> str | None:
    port, slaves = s["listenPort"], s["haListenPort"]
    if "haListenPort" in s.explicit and slaves and slaves in (port, port - 2):
        return f"haListenPort={slaves}, listenPort={port} (old clients: {port - 2})"
    return None


def _rights(s: Settings) -> str | None:
    if s["authorizationEnabled"] and not s["authenticationEnabled"]:
        return "authorizationEnabled=true, authenticationEnabled=false"
    return None


def _checks(s: Settings) -> str | None:
    in_all = s["transactionTimeOut"] + s["transactionCheckMax"] * s["transactionCheckInterval"]
    if in_all < _MINUTE_MS:
        return (
            f"transactionCheckMax={s['transactionCheckMax']} checks,"
            f" {s['transactionCheckInterval']} ms apart"
        )
    return None


def _reserved(s: Settings) -> str | None:
    if s["fileReservedTime"] == 0 and s["cleanResourceInterval"]:
        return f"fileReservedTime=0, deleteWhen={s['deleteWhen']}"
    return None


def _delays(s: Settings) -> str | None:
    longest, hours = max(s.delay_levels_ms, default=0), s["fileReservedTime"]
    if not 0 < hours * 3_600_000 <= longest:
        return None
    return f"messageDelayLevel has a level of {longest / 3_600_000:g} h, fileReservedTime={hours}"


def _permission(s: Settings) -> str | None:
    wanting = {2: "nobody can read", 4: "nobody can send"}.get(s["brokerPermission"] & 6)
    if s["brokerPermission"] & 6 == 6:
        return None
    return f"brokerPermission={s['brokerPermission']}: {wanting or 'nobody can send or read'}"


def _nowhere(s: Settings) -> str | None:
    told = s["brokerIP1"].strip("[]")
    return f"brokerIP1={told}" if told in ("0.0.0.0", "::", "*") else None


def _frame(s: Settings) -> str | None:
    if s["maxMessageSize"] + _AROUND <= FRAME_MAX:
        return None
    return f"maxMessageSize={s['maxMessageSize']}, a frame has {FRAME_MAX} bytes at most"


def _silence(s: Settings) -> str | None:
    """Returns what is wrong with the times of silence. Who is silent for too long is gone, and
    whoever sends a heartbeat is silent between two."""
    acting = s["enableSlaveActingMaster"]
    for name, beat, beats in (
        ("serverChannelMaxIdleTimeSeconds", _CLIENT_BEAT_S, "clients send a heartbeat every 30 s"),
        ("channelExpiredTimeout", _CLIENT_BEAT_S * 1000, "clients send a heartbeat every 30 s"),
        ("haHousekeepingInterval", s["haSendHeartbeatInterval"], "haSendHeartbeatInterval="),
        (
            "brokerNotActiveTimeoutMillis", s["brokerHeartbeatInterval"] if acting else 0,
            "brokerHeartbeatInterval=",
        ),
    ):  # fmt: skip
        if 0 < s[name] <= beat:
            return f"{name}={s[name]}, {beats}{beat if beats.endswith('=') else ''}"
    return None


def _later(s: Settings) -> str | None:
    until = s["startAcceptSendRequestTimeStamp"]
    if until <= time.time_ns() // 1_000_000:
        return None
    return f"startAcceptSendRequestTimeStamp={until}: nothing can be sent before"


def _is_own(s: Settings, address: str, port: int) -> bool:
    """Says whether an address is a port of this broker."""
    host, _, number = address.rpartition(":")
    mine = {s["brokerIP1"], s["brokerIP2"], s["bindAddress"]} - {None, "", "0.0.0.0"}
    return number == str(port) and (host in mine or _is_loopback(host))


def _own_slave(s: Settings) -> str | None:
    master = s["haMasterAddress"] or ""
    port = s["haListenPort"] or s["listenPort"] + 1
    if s["brokerRole"] == "SLAVE" and _is_own(s, master, port):
        return f"haMasterAddress={master} is this broker's own port for slaves"
    return None


def _own_names(s: Settings) -> str | None:
    for server in servers_of(s["namesrvAddr"]):
        if _is_own(s, server, s["listenPort"]):
            return f"namesrvAddr={server} is this broker's own port"
    return None


def _undecided(s: Settings) -> str | None:
    in_all = s["transactionTimeOut"] + s["transactionCheckMax"] * s["transactionCheckInterval"]
    hours = s["fileReservedTime"]
    if not 0 < hours * 3_600_000 <= in_all:
        return None
    return f"a transaction is asked about for {in_all / 3_600_000:g} h, fileReservedTime={hours}"


def _measured(s: Settings) -> str | None:
    if s["metricsExporterType"] == "OTLP_GRPC" and not s["metricsGrpcExporterTarget"]:
        return "metricsExporterType=OTLP_GRPC, metricsGrpcExporterTarget is not set"
    return None


#: A controller gives brokers their roles and ids.
_OF_ROLES = ("sync-alone", "slave-lost", "master-with-id")
# fmt: off
RULES: tuple[Rule, ...] = (
    Rule(
        "ratios-crossed", ("diskMaxUsedSpaceRatio", "diskSpaceWarningLevelRatio"), _ratios,
        "puts are refused before retention frees anything",
        "set diskMaxUsedSpaceRatio below diskSpaceWarningLevelRatio"),
    Rule(
        "message-over-segment", ("maxMessageSize", "mappedFileSizeCommitLog"), _message,
        "such a message fits into no segment", "set maxMessageSize below mappedFileSizeCommitLog"),
    Rule(
        "message-over-frame", ("maxMessageSize",), _frame,
        "such a message fits into no frame, and its connection is closed",
        "set maxMessageSize to 16 MiB less 64 KiB, or less"),
    Rule(
        "bound-elsewhere", ("bindAddress", "brokerIP1"), _bound,
        "clients are sent to an address nobody listens at",
        "set bindAddress=0.0.0.0, or to the address of brokerIP1"),
    Rule(
        "advertised-nowhere", ("brokerIP1",), _nowhere,
        "clients are sent to an address that is nobody's",
        "set brokerIP1 to an address that clients reach"),
    Rule(
        "sync-alone", ("brokerRole",), _alone,
        "SYNC_MASTER waits for no slave with inSyncReplicas=1", "set inSyncReplicas=2",
        is_grave=False),
    Rule(
        "slave-lost", ("brokerRole",), _lost, "a slave finds its master by a name server",
        "set namesrvAddr, or haMasterAddress"),
    Rule(
        "master-with-id", ("brokerId",), _master_id, "clients send to brokerId 0 only",
        "set brokerId=0"),
    Rule(
        "ports-clash", ("haListenPort",), _ports, "the second of two ports cannot be opened",
        "set haListenPort to another port"),
    Rule(
        "rights-without-users", ("authorizationEnabled",), _rights,
        "rights are checked, but nobody is asked who he is", "set authenticationEnabled=true"),
    Rule(
        "checks-give-up-early",
        ("transactionCheckMax", "transactionCheckInterval", "transactionTimeOut"), _checks,
        "transactions are discarded before their producers had a minute to answer",
        "raise transactionCheckMax or transactionCheckInterval", is_grave=False),
    Rule(
        "reserved-nothing", ("fileReservedTime",), _reserved,
        "each full segment is deleted at the next deleteWhen, whether it was consumed or not",
        "set fileReservedTime to hours, 72 by default", is_grave=False),
    Rule(
        "delay-over-retention", ("messageDelayLevel", "fileReservedTime"), _delays,
        "a segment may go while messages of it are delayed", "raise fileReservedTime",
        is_grave=False),
    Rule(
        "transactions-over-retention",
        ("transactionCheckMax", "transactionCheckInterval", "transactionTimeOut",
         "fileReservedTime"), _undecided,
        "the segment of a half message may go before its transaction is decided",
        "raise fileReservedTime", is_grave=False),
    Rule(
        "follows-itself", ("haMasterAddress",), _own_slave,
        "a slave of itself has nothing to follow",
        "set haMasterAddress to its master's, or delete it"),
    Rule(
        "registers-at-itself", ("namesrvAddr",), _own_names,
        "a broker does not answer for a name server, so clients find no route to it",
        "set namesrvAddr to a name server's port, 9876 by default"),
    Rule(
        "metrics-nowhere", ("metricsExporterType",), _measured,
        "figures are collected, and sent to nobody", "set metricsGrpcExporterTarget"),
    Rule(
        "half-open", ("brokerPermission",), _permission,
        "name servers leave out of routes what is not permitted", "set brokerPermission=6",
        is_grave=False),
    Rule(
        "silence-too-short",
        ("serverChannelMaxIdleTimeSeconds", "channelExpiredTimeout", "haHousekeepingInterval",
         "brokerNotActiveTimeoutMillis"), _silence,
        "whoever is well is taken for gone between two heartbeats",
        "set the first above the second"),
    Rule(
        "sends-later", ("startAcceptSendRequestTimeStamp",), _later,
        "producers are refused until then", "delete startAcceptSendRequestTimeStamp",
        is_grave=False),
)
# fmt: on

#: Said of a running broker, too, in the same words (broker/doctor/findings.py).
_LOOPBACK = Rule(
    "advertised-loopback", ("brokerIP1",), _advertised,
    "clients on other hosts, and in other containers, are sent to themselves",
    "set brokerIP1 to an address that clients reach",
)  # fmt: skip


def at_odds(settings: Settings) -> Iterator[SettingProblem]:
    """Yields what is worth a warning, each at the first line that is given of its settings."""
    for rule in (*RULES, _LOOPBACK):
        if rule.check in _OF_ROLES and settings["enableControllerMode"]:
            continue
        text = rule.of(settings)
        if text is not None:
            name = next((each for each in rule.names if each in settings.explicit), rule.names[0])
            where = settings.source(name)
            yield SettingProblem(name, where, text, False, rule.check, rule.mend, rule.why)
