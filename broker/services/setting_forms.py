"""Values that have a form: hosts, addresses, names that become topics, lists. No I/O: whether an
address exists, a file is there or a port is free, broker/start_checks.py asks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from broker.access.addresses import parse_patterns
from broker.remoting.client import parse_address
from broker.services.etcd_address import SCHEME, SCHEME_TLS, parse_etcd
from broker.services.names import is_legal
from pystore.configuration.problems import SettingProblem, about_text
from pystore.settings import TABLE, Settings, without_password

__all__ = ["about_server", "malformed", "servers_of"]

#: Of a name that stands in a topic of the broker's own, whose longest has 127 bytes.
_NAME_MAX = 96

#: Returns what is wrong with a value, and what mends it; None: nothing.
Fault = tuple[str, str] | None


def malformed(settings: Settings) -> Iterator[SettingProblem]:
    """Yields the settings whose values have not the form of their row."""
    for name in settings.explicit:
        check, value = _FORMS.get(TABLE[name].form), settings[name]
        if check is None or value is None:
            continue
        if name == "metricsLabel" and settings["metricsExporterType"] == "DISABLE":
            continue
        fault = check(value)
        if fault is not None:
            why, mend = fault
            text = f"{name} = {without_password(value)!r}: {why}"
            yield SettingProblem(name, settings.source(name), text, mend=mend)


def _about_name(text: str) -> Fault:
    if not is_legal(text):
        return "a name has letters, digits, '%', '|', '_' and '-' alone", "write another name"
    if len(text) > _NAME_MAX:
        return f"it is longer than {_NAME_MAX} characters", "write a shorter name"
    return None


def _about_topic(text: str) -> Fault:
    if not is_legal(text) or len(text) > 127:
        return "it is not the name of a topic", "write RMQ_SYS_TRACE_TOPIC, or delete the line"
    return None


def _about_host(text: str) -> Fault:
    if not text:
        return None
    hint = about_text(text)
    if hint:
        return hint, "write the address alone"
    if re.search(r"[\s/;,@]", text):
        return "it is not one address or host name", "write the address alone"
    if re.fullmatch(r"[^:\[\]]+:[0-9]+|\[.*\]:[0-9]+", text):
        return "it has a port", "write the address alone; ports have settings of their own"
    if text in ("0.0.0.0", "::", "[::]", "*"):
        return None
    try:
        text.encode("idna")
    except UnicodeError:
        return "it is neither an address nor a host name", "write the address alone"
    return None


# ---- servers ----


def servers_of(text: str | None) -> list[str]:
    """Returns the parts of a list of servers, ``host:port;host:port``."""
    return [part.strip() for part in (text or "").split(";") if part.strip()]


def about_server(text: str) -> Fault:
    """Returns what is wrong with one ``host:port``."""
    mend = "write HOST:PORT, with ; between several"
    hint = about_text(text)
    if hint:
        return hint, mend
    if "," in text:
        return "a comma separates no servers", mend
    if "://" in text:
        return f"'{text}' has a scheme", mend
    try:
        host, port = parse_address(text)
    except ValueError as bad:
        return str(bad), mend
    if not port:
        return f"'{text}' has no port", mend
    if _about_host(host) is not None:
        return f"'{host}' is neither an address nor a host name", mend
    return None


def _about_servers(text: str) -> Fault:
    hint = about_text(text)
    if hint:
        return hint, "write HOST:PORT, with ; between several"
    return next(filter(None, map(about_server, servers_of(text))), None)


def _about_controllers(text: str) -> Fault:
    if not text.startswith((SCHEME, SCHEME_TLS)):
        return _about_servers(text)
    try:
        parse_etcd(text)
    except ValueError as bad:
        return str(bad), "write etcd://HOST:PORT,HOST:PORT"
    return None


def _about_tier(text: str) -> Fault:
    """Refuses secrets: an address goes into logs and answers."""
    scheme, found, rest = text.partition("://")
    if not found:
        return None
    mend = "write s3://BUCKET/PREFIX, gs://.., az://.., or a folder"
    if scheme not in ("s3", "s3a", "gs", "az", "abfs", "abfss", "memory"):
        return f"'{scheme}' is not a kind of object store", mend
    if "@" in rest.partition("/")[0] and not scheme.startswith("abfs"):
        return "credentials do not belong into an address", (
            "leave them to the environment, as AWS_ACCESS_KEY_ID, or to the role of the machine"
        )
    if "?" in rest or "#" in rest:
        return "an address has no parameters", mend
    return None if rest.strip("/") else ("it names no bucket", mend)


# ---- lists ----


def _about_patterns(text: str) -> Fault:
    try:
        parse_patterns(text)
    except ValueError as bad:
        return str(bad), "write addresses, with ; between them"
    return None


def _about_directories(text: str) -> Fault:
    if text and not text.strip(", "):
        return "it names no directory", "write directories, with , between them"
    return None


def _about_labels(text: str) -> Fault:
    from broker.metrics.labels import labels_of

    try:
        labels_of(text)
    except ValueError as bad:
        return str(bad), "write name:value, with , between them"
    return None


#: By the column "form" of a row.
_FORMS: dict[str, Callable[[str], Fault]] = {
    "name": _about_name,
    "topic": _about_topic,
    "host": _about_host,
    "server": lambda text: about_server(text) if text.strip() else None,
    "servers": _about_servers,
    "controllers": _about_controllers,
    "patterns": _about_patterns,
    "directories": _about_directories,
    "labels": _about_labels,
    "tier": _about_tier,
}
