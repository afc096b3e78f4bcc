"""Settings that have no effect, that are refused, or that do not go together. No I/O but reading
the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from broker.doctor.findings import Diagnosis, diagnosed
from broker.services.config import served
from pystore.errors import BadArgument
from pystore.settings import NOT_SERVED, TABLE, Settings, load

__all__ = ["check_settings", "loaded"]

#: A pair of a check and what it says of settings; None: nothing.
Rule = tuple[str, Callable[[Settings], str | None]]

_MINUTE_MS = 60_000


def _is_loopback(address: str | None) -> bool:
    return address is not None and (address.startswith("127.") or address in ("::1", "localhost"))


def _ratios(s: Settings) -> str | None:
    cleans, refuses = s.clamped("diskMaxUsedSpaceRatio"), s.clamped("diskSpaceWarningLevelRatio")
    if cleans < refuses:
        return None
    return f"retention begins at {cleans} %, puts are refused from {refuses} % on"


def _message(s: Settings) -> str | None:
    most, segment = s["maxMessageSize"], s["mappedFileSizeCommitLog"]
    return f"maxMessageSize={most}, mappedFileSizeCommitLog={segment}" if most >= segment else None


def _bound(s: Settings) -> str | None:
    if "bindAddress" not in s.explicit or "brokerIP1" not in s.explicit:
        return None
    if _is_loopback(s["bindAddress"]) and not _is_loopback(s["brokerIP1"]):
        return f"bindAddress={s['bindAddress']}, brokerIP1={s['brokerIP1']}"
    return None


def _advertised(s: Settings) -> str | None:
    names = [each.rpartition(":")[0] for each in (s["namesrvAddr"] or "").split(";") if each]
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


#: A controller gives brokers their roles and ids.
_OF_ROLES = ("sync-alone", "slave-lost", "master-with-id")
_RULES: tuple[Rule, ...] = (
    ("ratios-crossed", _ratios),
    ("message-over-segment", _message),
    ("bound-elsewhere", _bound),
    ("advertised-loopback", _advertised),
    ("sync-alone", _alone),
    ("slave-lost", _lost),
    ("master-with-id", _master_id),
    ("ports-clash", _ports),
    ("rights-without-users", _rights),
    ("checks-give-up-early", _checks),
)


def loaded(conf: Path | None, given: Mapping[str, object]) -> Settings | BadArgument:
    """Reads settings as a broker does; what it would refuse is returned."""
    try:
        return served(load(conf, dict(given)))
    except BadArgument as refused:
        return refused


def check_settings(found: Settings | BadArgument, where: str) -> Iterator[Diagnosis]:
    """where: what they were read from."""
    if isinstance(found, BadArgument):
        yield diagnosed("refused-setting", found.where or where, found.text)
        return
    for name in sorted(found.explicit):
        row = TABLE[name]
        if row.used_by == "none" and name not in NOT_SERVED:
            yield diagnosed("no-effect", found.source(name), f"{name} has no effect here")
    for check, rule in _RULES:
        if check in _OF_ROLES and found["enableControllerMode"]:
            continue
        text = rule(found)
        if text is not None:
            yield diagnosed(check, where, text, host="ADDRESS")
