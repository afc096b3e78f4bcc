"""Settings that producers and consumers share, and hooks around requests."""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypedDict

from broker.client.credentials import Credentials, credentials_of_environment
from broker.client.errors import Misuse
from broker.client.routes import Route
from broker.client.sending import check_name
from broker.remoting.client import Connector, parse_address
from broker.remoting.tls import client_context
from broker.wire.command import Command
from pystore.format.names import TRACE_TOPIC

__all__ = [
    "ClientOptions",
    "ClientSettings",
    "MetricsRegistry",
    "RequestHook",
    "client_context",
    "name_servers",
]

#: A topic to its route; None when nobody serves it.
FindRoute = Callable[[str], Awaitable[Route | None]]

GROUP_MAX = 255
#: Numbers on the wire are of 32 bits.
INT_MAX = (1 << 31) - 1
#: The producer group that every client of upstream's has beside its own.
INNER_PRODUCER = "CLIENT_INNER_PRODUCER"


class MetricsRegistry(Protocol):
    """A ``CollectorRegistry`` of prometheus_client."""

    def register(self, collector: Any) -> None: ...


class RequestHook(Protocol):
    """Called around every request to brokers and name servers (upstream's RPCHook).

    before_request may change ``request.ext``. An exception there ends the request: HookFailed. One
    of after_response is logged, since the request is done.

    >>> from broker import Message, Producer
    >>> class Counting:
    ...     codes = []
    ...     def before_request(self, address, request):
    ...         self.codes.append(request.code)
    ...     def after_response(self, address, request, response):
    ...         pass
    >>> with Producer("orders-api", hooks=[Counting()]) as producer:
    ...     result = producer.send(Message("orders", b"12 apples"))
    >>> 310 in Counting.codes  # RequestCode.SEND_MESSAGE_V2
    True
    """

    def before_request(self, address: str, request: Command) -> None: ...

    def after_response(self, address: str, request: Command, response: Command) -> None: ...


class ClientOptions(TypedDict, total=False):
    """Keyword arguments of every producer and consumer: the fields of ClientSettings."""

    instance_name: str | None
    unit_name: str | None
    namespace: str
    tls: ssl.SSLContext | bool
    hooks: Sequence[RequestHook]
    credentials: Credentials | None
    request_timeout_s: float
    heartbeat_s: float
    route_poll_s: float
    find_route: FindRoute | None
    connector: Connector | None
    trace: bool
    trace_topic: str
    spans: bool
    metrics: MetricsRegistry | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """instance_name: makes the client id; by default one that no other client has. unit_name:
    appended to it. namespace: put before topics and groups. tls: True trusts any certificate, as
    upstream's clients; a context of your own verifies. hooks: called around every request, in
    order. credentials: every request is signed with them, after the hooks; by default those of the
    environment (credentials.py). request_timeout_s: for one answer. heartbeat_s, route_poll_s: how
    often brokers hear of us, and name servers are asked. find_route: knows routes in the place of
    name servers. connector: makes connections without a socket, as Broker.producer() has it. trace:
    what is sent, and what handlers get, is written to trace_topic, where upstream's tools look for
    it. spans: of OpenTelemetry, for the same (telemetry.py). metrics: a registry of
    prometheus_client, in which sends and handlers are counted (client_metrics.py)."""

    instance_name: str | None = None
    unit_name: str | None = None
    namespace: str = ""
    tls: ssl.SSLContext | bool = False
    hooks: Sequence[RequestHook] = ()
    credentials: Credentials | None = None
    request_timeout_s: float = 3.0
    heartbeat_s: float = 30.0
    route_poll_s: float = 30.0
    find_route: FindRoute | None = None
    connector: Connector | None = None
    trace: bool = False
    trace_topic: str = TRACE_TOPIC
    spans: bool = False
    metrics: MetricsRegistry | None = None

    def __post_init__(self) -> None:
        check_settings(self, more_than_0=("request_timeout_s", "heartbeat_s", "route_poll_s"))
        if not isinstance(self.tls, bool | ssl.SSLContext):
            raise Misuse(f"tls is {type(self.tls).__name__}; pass True or an ssl.SSLContext")
        if not isinstance(self.credentials, Credentials | None):
            raise Misuse("credentials are not Credentials(access_key, secret_key)")
        for hook in self.hooks:
            for name in ("before_request", "after_response"):
                if not callable(getattr(hook, name, None)):
                    raise Misuse(f"the hook {hook!r} has no method {name}(); see RequestHook")
        for name in ("find_route", "connector"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise Misuse(f"{name} is {given!r}; pass a function")
        object.__setattr__(self, "credentials", self.credentials or credentials_of_environment())

    def tls_context(self) -> ssl.SSLContext | None:
        if isinstance(self.tls, ssl.SSLContext):
            return self.tls
        return client_context() if self.tls else None


#: What a field of settings may hold, by its annotation; others are checked where they are used.
_KINDS: Mapping[str, tuple[type, ...]] = {
    "int": (int,), "float": (int, float), "str": (str,), "bool": (bool,),
    "str | None": (str, type(None)), "Sequence[RequestHook]": (Sequence,),
}  # fmt: skip


def check_settings(
    settings: object, at_least: Mapping[str, int] | None = None, more_than_0: Sequence[str] = ()
) -> None:
    """Checks the types of all fields, and the least values of some. Raises: Misuse."""
    for field in fields(settings):  # type: ignore[arg-type]
        kinds, value = _KINDS.get(str(field.type)), getattr(settings, field.name)
        if kinds is not None and (
            not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
        ):
            raise Misuse(f"{field.name} is {value!r}, which is not {field.type!s}")
        if kinds == (int,) and value > INT_MAX:
            raise Misuse(f"{field.name} is {value}; it is at most {INT_MAX}")
    for name, least in (at_least or {}).items():
        if not getattr(settings, name) >= least:  # nor NaN
            raise Misuse(f"{name} is {getattr(settings, name)}; it is at least {least}")
    for name in more_than_0:
        if not getattr(settings, name) > 0:
            raise Misuse(f"{name} is {getattr(settings, name)}; it is more than 0")


def name_servers(given: str | Sequence[str] | None, settings: ClientSettings) -> tuple[str, ...]:
    """Returns the ``host:port`` texts, of one text with ; between them, of several, or of
    NAMESRV_ADDR.

    Raises: Misuse when there is none, or one that is malformed.
    """
    if settings.find_route is not None:
        return ()
    if given is None:
        given = os.environ.get("NAMESRV_ADDR", "")
    parts = given.split(";") if isinstance(given, str) else given
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise Misuse(f"namesrv is {given!r}; write for example '127.0.0.1:9876'")
    found = tuple(p.strip().removeprefix("http://") for p in parts if p.strip())
    if not found:
        raise Misuse(
            "no name server is given: pass namesrv='host:9876', or set the environment variable"
            " NAMESRV_ADDR"
        )
    for address in found:
        try:
            parse_address(address)
        except ValueError:
            raise Misuse(
                f"the name server '{address}' is not host:port; write for example 127.0.0.1:9876"
            ) from None
    return found


def checked_group(group: str, namespace: str) -> str:
    """Returns the full name of a group. Raises: InvalidMessage."""
    from broker.client.sending import with_namespace

    full = with_namespace(group, namespace)
    check_name("group", full, GROUP_MAX)
    return full
