"""Settings of the service, under the names of upstream's rmq-proxy.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pystore.setting_problems import SettingProblem, about_unknown, refuse
from pystore.upstream_settings import PROXY, UPSTREAM

__all__ = ["CLUSTER", "LOCAL", "ProxySettings"]

#: Values of proxyMode.
LOCAL, CLUSTER = "LOCAL", "CLUSTER"

_DAY_MS = 24 * 3600 * 1000
#: Names of members are upstream's, but for the style of Python.
_FILE_MAX = 1 << 20
_OF_CLUSTER = (
    "host", "namesrv", "cluster", "remoting_port", "remoting_host", "authenticate", "authorize",
    "credentials", "trusted", "metrics", "metrics_port", "metrics_host",
)  # fmt: skip
#: What may be said, as it is so here: upstream's classes, and that the proxy signs.
_SO_ANYWAY: dict[str, object] = {"enableAclRpcHookForClusterMode": True} | {
    f"{word}{kind}": f"org.apache.rocketmq.{place}{word.capitalize()}{kind}"
    for word in ("authentication", "authorization")
    for kind, place in (
        ("Provider", f"auth.{word}.provider.Default"), ("MetadataProvider", "proxy.auth.Proxy"),
    )
}  # fmt: skip


def _of(name: str, default: Any, *, shown: bool = True) -> Any:
    return field(default=default, metadata={"name": name}, repr=shown)


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """Every setting has an effect. Other names of upstream's are passed over with a warning,
    mistyped ones are refused (pystore/setting_problems.py)."""

    port: int = _of("grpcServerPort", 8081)
    mode: str = _of("proxyMode", "")
    # messages
    body_max: int = _of("maxMessageSize", 4 << 20)
    properties_max: int = _of("maxUserPropertySize", 16 << 10)
    property_count_max: int = _of("userPropertyMaxNum", 128)
    group_max: int = _of("maxMessageGroupSize", 64)
    refuse_empty_body: bool = _of("enableMessageBodyEmptyCheck", True)
    check_type: bool = _of("enableTopicMessageTypeCheck", True)
    delay_max_ms: int = _of("maxDelayTimeMills", _DAY_MS)
    recovery_max_s: int = _of("maxTransactionRecoverySecond", 3600)
    # producers
    producer_attempts: int = _of("grpcClientProducerMaxAttempts", 3)
    producer_backoff_ms: int = _of("grpcClientProducerBackoffInitialMillis", 10)
    producer_backoff_max_ms: int = _of("grpcClientProducerBackoffMaxMillis", 1000)
    producer_backoff_multiplier: int = _of("grpcClientProducerBackoffMultiplier", 2)
    # consumers
    receive_batch: int = _of("grpcClientConsumerLongPollingBatchSize", 32)
    poll_min_ms: int = _of("grpcClientConsumerMinLongPollingTimeoutMillis", 5000)
    poll_max_ms: int = _of("grpcClientConsumerMaxLongPollingTimeoutMillis", 20_000)
    invisible_min_ms: int = _of("minInvisibleTimeMillsForRecv", 10_000)
    invisible_max_ms: int = _of("maxInvisibleTimeMills", _DAY_MS // 2)
    invisible_default_ms: int = _of("defaultInvisibleTimeMills", 60_000)
    renew: bool = _of("enableProxyAutoRenew", True)
    renew_ahead_ms: int = _of("renewAheadTimeMillis", 10_000)
    renew_max_ms: int = _of("renewMaxTimeMillis", 3 * 3600 * 1000)
    renew_every_ms: int = _of("renewSchedulePeriodMillis", 5000)
    renew_tries: int = _of("maxRenewRetryTimes", 3)
    # connections
    inbound_max: int = _of("grpcMaxInboundMessageSize", 130 << 20)
    idle_ms: int = _of("grpcClientIdleTimeMills", 120_000)
    shutdown_s: int = _of("grpcShutdownTimeSeconds", 30)
    #: Clients are told to come back by the port that they used, where a container or a load
    #: balancer shows another one than ours.
    port_of_request: bool = _of("useEndpointPortFromRequest", False)
    # cluster mode
    #: PROM: metrics, /health and /ready by HTTP; DISABLE: none.
    metrics: str = _of("metricsExporterType", "DISABLE")
    metrics_port: int = _of("metricsPromExporterPort", 5557)
    #: Empty: localServeAddr, else every address.
    metrics_host: str = _of("metricsPromExporterHost", "")
    #: Where clients of the proxy reach it, for those that do not say whom they asked.
    host: str = _of("localServeAddr", "")
    #: Name servers, with ; between them.
    namesrv: str = _of("namesrvAddr", "")
    #: A proxy does not start before a broker of this cluster is registered.
    cluster: str = _of("rocketMQClusterName", "")
    #: For clients of the remoting protocol.
    remoting_port: int = _of("remotingListenPort", 8080)
    #: Where they reach the proxy; empty: localServeAddr, else where each came to.
    remoting_host: str = _of("remotingAccessAddr", "")
    #: The proxy asks a broker for users and policies, and decides by itself.
    authenticate: bool = _of("authenticationEnabled", False)
    authorize: bool = _of("authorizationEnabled", False)
    #: JSON: what the proxy signs with.
    credentials: str = _of("innerClientAuthenticationCredentials", "", shown=False)
    #: Ours: brokers that are believed about users without proof, separated by ;.
    trusted: str = _of("trustedBrokers", "")

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
        try:
            with open(path, "rb") as file:
                given = json.loads(file.read(_FILE_MAX + 1)[:_FILE_MAX])
            if not isinstance(given, dict):
                raise ValueError("it holds no object")
        except (ValueError, OSError, RecursionError) as bad:
            why = bad.strerror if isinstance(bad, OSError) else bad
            text = f"the proxy's settings cannot be read: {why}"
            return cls(), [SettingProblem("--proxy-conf", str(path), text)]
        return cls._taken(given, str(path), mode)

    @classmethod
    def from_names(cls, given: Mapping[str, object], source: str | None = None) -> ProxySettings:
        """Makes settings of names and values. Raises: BadArgument."""
        made, problems = cls._taken(given, source or "", "")
        refuse(problems)
        return made

    @classmethod
    def _taken(
        cls, given: Mapping[str, object], source: str, mode: str
    ) -> tuple[ProxySettings, list[SettingProblem]]:
        """Returns the settings and what is wrong with them. mode: that they are for; empty:
        either."""
        known = {each.metadata["name"]: each for each in fields(cls)}
        changes: dict[str, Any] = {}
        problems: list[SettingProblem] = []
        for name, value in given.items():
            each = known.get(name)
            if each is None:
                problems += _not_served(name, value, source)
                continue
            kind = type(each.default)
            if kind is str and isinstance(value, dict):
                value = json.dumps(value)  # as upstream's reader of JSON takes it
            if type(value) is not kind or (isinstance(value, int) and not 0 <= value < 1 << 62):
                said = json.dumps(value)[:60] if each.repr else ".."
                text = f"{name} is {said}, which is not {_WORDS[kind]}"
                problems.append(SettingProblem(name, source, text))
                continue
            fault = _out_of_range(name, value)
            if fault:
                problems.append(SettingProblem(name, source, f"{name} is {value}, {fault}"))
                continue
            changes[each.name] = value
            if mode == LOCAL and each.name in _OF_CLUSTER and value != each.default:
                problems.append(_of_a_proxy(name, source))
        said = changes.get("mode", "")
        if mode and said and said.upper() != mode:
            text = f"proxyMode {said:.40} is not supported here: use {mode}"
            problems.append(SettingProblem("proxyMode", source, text))
        return replace(cls(), **changes), problems


_PORTS = ("grpcServerPort", "remotingListenPort", "metricsPromExporterPort")


def _out_of_range(name: str, value: object) -> str:
    if name in _PORTS and isinstance(value, int) and value > 65535:
        return "which is not a port"
    if name == "metricsExporterType" and value not in ("PROM", "DISABLE"):
        return "a proxy knows PROM and DISABLE"
    return ""


def _of_a_proxy(name: str, source: str) -> SettingProblem:
    """Returns the problem of a proxy's setting in the file of a broker that serves gRPC itself."""
    text = f"{name} has no effect here: it is a setting of pystore proxy"
    if name in _PROMISES:
        text = f"{name} has no effect here: the broker says who is let in"
        return SettingProblem(name, source, text, mend=f"set {name} in broker.conf")
    return SettingProblem(name, source, text, False, "no-effect", "delete the line")


#: What would leave a door open if it were passed over.
_PROMISES = ("authenticationEnabled", "authorizationEnabled", "enableACL")


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
    if name in _PROMISES and value not in (False, None):
        text = f"{name} has no effect here: it would let everybody in"
        return [SettingProblem(name, source, text, mend="set authenticationEnabled instead")]
    if name in PROXY or name in UPSTREAM["AuthConfig"]:
        text = f"{name:.60} has no effect here"
        mend = "pass --tls FILE instead" if "tls" in name.lower() else "delete it"
        return [SettingProblem(name, source, text, False, "no-effect", mend)]
    known = [each.metadata["name"] for each in fields(ProxySettings)]
    found = about_unknown(name, source, [*known, *PROXY], {})
    return [replace(found, text=f"{found.text:.300}", mend="")]


_WORDS = {int: "a number from 0 on", bool: "true or false", str: "a text"}
