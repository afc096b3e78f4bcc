"""Settings of the service, under the names of upstream's rmq-proxy.json."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from broker.access.addresses import OWN_HOST, parse_patterns
from pystore.configuration.problems import SettingProblem, about_text, about_unknown, refuse
from pystore.configuration.rows import Setting, convert, rows_of, setting_field
from pystore.configuration.upstream import NAMESRV, PROXY, UPSTREAM
from pystore.settings import TABLE as BROKERS

__all__ = ["CLUSTER", "LOCAL", "TABLE", "ProxySettings"]

#: Values of proxyMode.
LOCAL, CLUSTER = "LOCAL", "CLUSTER"

_DAY_MS = 24 * 3600 * 1000
_FILE_MAX = 1 << 20
#: What may be said, as it is so here: upstream's classes, and that the proxy signs.
_SO_ANYWAY: dict[str, object] = {"enableAclRpcHookForClusterMode": True} | {
    f"{word}{kind}": f"org.apache.rocketmq.{place}{word.capitalize()}{kind}"
    for word in ("authentication", "authorization")
    for kind, place in (
        ("Provider", f"auth.{word}.provider.Default"), ("MetadataProvider", "proxy.auth.Proxy"),
    )
}  # fmt: skip


def _port(name: str, default: int, meaning: str, **more: Any) -> Any:
    return _of(name, default, meaning, unit="port", high=65535, **more)


def _of(name: str, default: Any, meaning: str, **more: Any) -> Any:
    columns: dict[str, Any] = {"used_by": "grpc", "at_start": True, "high": (1 << 62) - 1} | more
    return setting_field(name, default, meaning, **columns)


def _live(name: str, default: Any, meaning: str, **more: Any) -> Any:
    """Returns a field that every call looks at, so that a file that is read again may change it."""
    return _of(name, default, meaning, at_start=False, **more)


def _of_proxy(name: str, default: Any, meaning: str, **more: Any) -> Any:
    """Returns a field of what `pystore proxy` alone reads."""
    return _of(name, default, meaning, used_by="proxy", **more)


# A row takes a line or two: it is read as a table.
# fmt: off
@dataclass(slots=True)
class ProxySettings:
    """Every setting has an effect. Other names of upstream's are passed over with a warning,
    mistyped ones are refused (pystore/configuration/problems.py). Names of members are upstream's,
    but for the style of Python."""

    port: int = _port("grpcServerPort", 8081, "port for gRPC; 0 takes a free one")
    mode: str = _of("proxyMode", "", "CLUSTER for `pystore proxy`, LOCAL for a broker; or left out")
    # messages
    body_max: int = _of("maxMessageSize", 4 << 20, "most of a body", unit="bytes")
    properties_max: int = _of(
        "maxUserPropertySize", 16 << 10, "most of a message's properties in all", unit="bytes")
    property_count_max: int = _of("userPropertyMaxNum", 128, "most properties of a message")
    group_max: int = _of(
        "maxMessageGroupSize", 64, "longest message group, the key of its order", unit="bytes")
    lite_max: int = _of("maxLiteTopicSize", 64, "longest lite topic", unit="bytes")
    refuse_empty_body: bool = _of(
        "enableMessageBodyEmptyCheck", True, "a message without a body is refused")
    check_type: bool = _live(
        "enableTopicMessageTypeCheck", True, "a message of another type than its topic is refused")
    delay_max_ms: int = _of(
        "maxDelayTimeMills", _DAY_MS, "how far ahead a delivery may be", unit="ms")
    recovery_max_s: int = _of(
        "maxTransactionRecoverySecond", 3600, "most that a transaction's first check may wait",
        unit="s")
    # producers
    producer_attempts: int = _live(
        "grpcClientProducerMaxAttempts", 3, "told to clients: attempts of a send")
    producer_backoff_ms: int = _live(
        "grpcClientProducerBackoffInitialMillis", 10, "told to clients: the first pause", unit="ms")
    producer_backoff_max_ms: int = _live(
        "grpcClientProducerBackoffMaxMillis", 1000, "told to clients: the longest pause", unit="ms")
    producer_backoff_multiplier: int = _live(
        "grpcClientProducerBackoffMultiplier", 2, "told to clients: each pause is so much longer")
    # consumers
    receive_batch: int = _live(
        "grpcClientConsumerLongPollingBatchSize", 32, "most messages of a receive")
    poll_min_ms: int = _live(
        "grpcClientConsumerMinLongPollingTimeoutMillis", 5000, "least wait of a receive", unit="ms")
    poll_max_ms: int = _live(
        "grpcClientConsumerMaxLongPollingTimeoutMillis", 20_000, "longest wait of a receive",
        unit="ms")
    invisible_min_ms: int = _live(
        "minInvisibleTimeMillsForRecv", 10_000, "least invisible time of a receive", unit="ms")
    invisible_max_ms: int = _live(
        "maxInvisibleTimeMills", _DAY_MS // 2, "longest invisible time", unit="ms")
    invisible_default_ms: int = _live(
        "defaultInvisibleTimeMills", 60_000, "invisible time that is extended by itself", unit="ms")
    renew: bool = _live(
        "enableProxyAutoRenew", True, "what a push consumer holds is extended by itself")
    renew_ahead_ms: int = _live(
        "renewAheadTimeMillis", 10_000, "so long before the end it is extended", unit="ms")
    renew_max_ms: int = _live(
        "renewMaxTimeMillis", 3 * 3600 * 1000, "and for so long at most", unit="ms")
    renew_every_ms: int = _live(
        "renewSchedulePeriodMillis", 5000, "between two looks for what ends", unit="ms")
    renew_tries: int = _live("maxRenewRetryTimes", 3, "tries of an extension that fails")
    lite_held: int = _live(
        "maxLiteRenewNumPerChannel", 100, "messages of lite topics that a client holds before it is"
        " refused more")
    lite_rate: int = _live(
        "maxSyncLiteSubscriptionRate", 5000, "requests that subscribe to lite topics, of all"
        " clients a second")
    # connections
    inbound_max: int = _of(
        "grpcMaxInboundMessageSize", 130 << 20, "a larger call is refused", unit="bytes")
    idle_ms: int = _of(
        "grpcClientIdleTimeMills", 120_000, "a connection unused for so long is closed", unit="ms")
    shutdown_s: int = _of(
        "grpcShutdownTimeSeconds", 30, "a stop waits for calls in progress", unit="s")
    port_of_request: bool = _live(
        "useEndpointPortFromRequest", False, "clients are told to come back by the port that they"
        " used, where a container or a load balancer shows another one")
    # pystore proxy alone
    metrics: str = _of_proxy(
        "metricsExporterType", "DISABLE", "PROM: metrics, `/health` and `/ready` by HTTP",
        choices=("PROM", "DISABLE"))
    metrics_port: int = _port(
        "metricsPromExporterPort", 5557, "their port", used_by="proxy")
    metrics_host: str = _of_proxy(
        "metricsPromExporterHost", "", "their address; default: localServeAddr, else every one")
    host: str = _of_proxy(
        "localServeAddr", "", "where clients reach the proxy, for those that do not say whom they"
        " asked")
    namesrv: str = _of_proxy(
        "namesrvAddr", "", "name servers, with ; between them, where `-n` does not say")
    cluster: str = _of_proxy(
        "rocketMQClusterName", "", "the proxy does not start before a broker of this cluster is"
        " registered")
    remoting_port: int = _port(
        "remotingListenPort", 8080, "for [remoting clients](#remoting-clients)", used_by="proxy")
    remoting_host: str = _of_proxy(
        "remotingAccessAddr", "", "where those reach the proxy; default: localServeAddr, else where"
        " each came to")
    authenticate: bool = _of_proxy(
        "authenticationEnabled", False, "the proxy asks a broker for users, and decides by itself",
        because="the broker says who is let in")
    authorize: bool = _of_proxy(
        "authorizationEnabled", False, "the same with policies",
        because="the broker says who is let in")
    credentials: str = _of_proxy(
        "innerClientAuthenticationCredentials", "", "JSON: what the proxy signs with",
        is_secret=True)
    trusted: str = _of_proxy(
        "trustedBrokers", "", "ours: brokers that are believed about users without proof, separated"
        " by ;")
    proxies: str = _of_proxy(
        "trustedProxies", OWN_HOST, "ours: proxies whose PROXY header says where a client is,"
        " separated by ;; *: all", check=parse_patterns)
    # fmt: on

    @classmethod
    def read(cls, path: Path, mode: str = LOCAL) -> ProxySettings:
        """Reads rmq-proxy.json. mode: that they are for. Raises: BadArgument for a file that is not
        rmq-proxy.json, or whose settings are refused, all of them at once."""
        made, problems = cls.look(path, mode)
        refuse(problems)
        return made

    @classmethod
    def look(cls, path: Path, mode: str = LOCAL) -> tuple[ProxySettings, list[SettingProblem]]:
        """Reads as read() does, but returns what is wrong with all of them, what is only passed
        over as well."""
        counts: Counter[str] = Counter()

        def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            counts.update(name for name, _ in pairs)
            return dict(pairs)

        try:
            with open(path, "rb") as file:
                data = file.read(_FILE_MAX + 1)[:_FILE_MAX]
            given = json.loads(data, object_pairs_hook=members)
            if not isinstance(given, dict):
                raise ValueError("it holds no object")
        except (ValueError, OSError, RecursionError) as bad:
            why = bad.strerror if isinstance(bad, OSError) else bad
            text = f"the proxy's settings cannot be read: {why}"
            return cls(), [SettingProblem("--proxy-conf", str(path), text)]
        made, problems = cls._taken(given, str(path), mode)
        problems += [
            SettingProblem(name, str(path), f"{name} is given {count} times; the last holds", False,
                           "given-twice", "delete the others")
            for name, count in counts.items() if count > 1
        ]  # fmt: skip
        return made, problems

    def take(self, made: ProxySettings) -> tuple[frozenset[str], frozenset[str]]:
        """Takes over what a file, read again, has otherwise. Returns the names that hold now, and
        those that only a start takes over."""
        changed = {
            name
            for name, (attribute, _) in TABLE.items()
            if getattr(made, attribute) != getattr(self, attribute)
        }
        later = {name for name in changed if TABLE[name][1].at_start}
        for name in changed - later:
            setattr(self, TABLE[name][0], getattr(made, TABLE[name][0]))
        return frozenset(changed - later), frozenset(later)

    @classmethod
    def _taken(
        cls, given: Mapping[str, object], source: str, mode: str
    ) -> tuple[ProxySettings, list[SettingProblem]]:
        """Returns the settings and what is wrong with them. mode: that they are for."""
        changes: dict[str, Any] = {}
        problems: list[SettingProblem] = []
        for name, value in given.items():
            if name not in TABLE:
                problems += _not_served(name, value, source)
                continue
            attribute, row = TABLE[name]
            if row.type == "String" and isinstance(value, dict):
                value = json.dumps(value)  # as upstream's reader of JSON takes it
            fault = _fault(row, value)
            if fault:
                problems.append(SettingProblem(name, source, fault))
                continue
            changes[attribute] = value
            if mode == LOCAL and row.used_by == "proxy" and value != row.default:
                problems.append(_of_a_proxy(row, source))
        said = changes.get("mode", "")
        if said and said.upper() != mode:
            text = f"proxyMode {said:.40} is not supported here: use {mode}"
            problems.append(SettingProblem("proxyMode", source, text))
        return replace(cls(), **changes), problems


#: (attribute, row) by name.
TABLE: dict[str, tuple[str, Setting]] = rows_of(ProxySettings)


def _fault(row: Setting, value: object) -> str:
    """Returns what is wrong with a value of the file; empty: nothing. A text is not taken for a
    number: JSON has both."""
    said = ".." if row.is_secret else json.dumps(value)[:60]
    if type(value) is not type(row.default):
        return f"{row.name} is {said}, which is not {_WORDS[row.type]}"
    try:
        made = convert(row, value)
    except ValueError as bad:
        return f"{row.name} is {said}: {bad}"
    hint = about_text(made) if isinstance(made, str) and not row.is_secret else ""
    return f"{row.name} is {said}: {hint}" if hint else ""


def _of_a_proxy(row: Setting, source: str) -> SettingProblem:
    """Returns the problem of a proxy's setting in the file of a broker that serves gRPC itself."""
    name = row.name
    if row.because:  # passed over, it would leave a door open
        text = f"{name} has no effect here: {row.because}"
        return SettingProblem(name, source, text, mend=f"set {name} in broker.conf")
    text = f"{name} has no effect here: it is a setting of pystore proxy"
    return SettingProblem(name, source, text, False, "no-effect", "delete the line")


def _not_served(name: str, value: object, source: str) -> list[SettingProblem]:
    """Returns what is to be said of a setting that has no member here."""
    if name in _SO_ANYWAY:
        if value == _SO_ANYWAY[name]:
            return []
        text = (
            f"{name} cannot be {json.dumps(value)[:200]} here: leave it out, or say"
            f" {json.dumps(_SO_ANYWAY[name])}"
        )
        return [SettingProblem(name, source, text)]
    if name == "enableACL" and value not in (False, None):
        text = f"{name} has no effect here: it would let everybody in"
        return [SettingProblem(name, source, text, mend="set authenticationEnabled instead")]
    if name in PROXY or name in UPSTREAM["AuthConfig"]:
        text = f"{name:.60} has no effect here"
        mend = "pass --tls FILE instead" if "tls" in name.lower() else "delete it"
        return [SettingProblem(name, source, text, False, "no-effect", mend)]
    others = {"broker": BROKERS, "name server": NAMESRV}
    found = about_unknown(name, source, [*TABLE, *PROXY], {}, others)
    return [replace(found, text=f"{found.text:.300}", mend="")]


_WORDS = {"int": "a number from 0 on", "boolean": "true or false", "String": "a text"}
