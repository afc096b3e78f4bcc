"""A proxy: what it tells clients, which brokers it finds, and whether its settings go together."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.access.signature import Credentials
from broker.client.admin import AsyncAdmin
from broker.client.errors import BrokerRefused, ClientError
from broker.doctor.brokers import cluster_info, is_loopback
from broker.doctor.findings import Diagnosis, diagnosed
from broker.doctor.grpc_calls import ProxyCalls
from broker.doctor.reaching import ServerKind, can_connect, kind_of
from broker.remoting.client import RemotingClient, parse_address
from broker.services.names import is_system_topic
from broker.wire import mqjson
from broker.wire.codes import RequestCode
from broker.wire.command import Command
from broker.wire.handlers import address_text
from pystore.configuration.problems import SettingProblem
from pystore.format.names import DLQ_PREFIX, REPLY_SUFFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from broker.grpc.settings import ProxySettings

__all__ = ["check_proxy", "proxy_problems"]

#: Asked for where no topic is known: the answer is that there is none.
_NOBODYS = "pystore_doctor"


async def check_proxy(
    where: str, client: RemotingClient, *, servers: Sequence[str], cluster: str = "",
    tls: ssl.SSLContext | None = None, credentials: Credentials | None = None,
) -> AsyncIterator[Diagnosis]:  # fmt: skip
    """Examines a proxy. where: of its gRPC service. servers: its name servers, as far as they are
    known. cluster: the one it is for. Raises: OSError, TimeoutError."""
    known = _Known()
    for server in servers:
        kind, why = await kind_of(server, client)
        if kind is ServerKind.NAME_SERVER:
            await known.add(server, client)
        else:
            text = f"name server {server}: {why or f'it is a {kind.value}'}"
            yield diagnosed("name-server-silent", where, text)
    if cluster and known.servers and cluster not in known.clusters:
        there = ", ".join(sorted(known.clusters)) or "none"
        text = f"rocketMQClusterName={cluster}, its name servers know {there}"
        yield diagnosed("proxy-other-cluster", where, text)
    if known.servers and not known.masters:
        yield diagnosed("proxy-without-broker", where, "its name servers know no master")
        return
    calls = ProxyCalls(where, tls, credentials)
    async for found in _routes(where, calls, known):
        yield found
    async for found in _sizes(where, calls, known.masters, tls, credentials):
        yield found


class _Known:
    """What name servers know."""

    def __init__(self) -> None:
        self.servers: list[str] = []
        self.clusters: set[str] = set()
        self.masters: list[str] = []
        #: A topic of users, and the name server that has it.
        self.topic: tuple[str, str] | None = None

    async def add(self, server: str, client: RemotingClient) -> None:
        """Asks a broker for what the proxy is compared with. Raises: OSError, TimeoutError."""
        self.servers.append(server)
        info = await cluster_info(server, client)
        self.clusters |= set(info.get("clusterAddrTable") or {})
        for data in (info.get("brokerAddrTable") or {}).values():
            master = (data.get("brokerAddrs") or {}).get("0")
            if master is not None and master not in self.masters:
                self.masters.append(master)
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        answer = await client.request(server, Command(code))
        names = mqjson.loads(answer.body or b"{}").get("topicList") or ()
        others = set(self.clusters) | set(info.get("brokerAddrTable") or {})
        for name in names:
            if self.topic is None and _is_of_users(str(name)) and name not in others:
                self.topic = str(name), server


def _is_of_users(topic: str) -> bool:
    return (
        not is_system_topic(topic)
        and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        and not topic.endswith(REPLY_SUFFIX)
    )


async def _routes(where: str, calls: ProxyCalls, known: _Known) -> AsyncIterator[Diagnosis]:
    """Checks where the proxy sends clients, for a topic that there is or for any."""
    from broker.grpc.status import Code, name_of

    topic, server = known.topic or (_NOBODYS, "")
    reply = await calls.route(topic)
    code, text = reply.status.code, reply.status.message
    if code in (Code.UNAUTHORIZED, Code.FORBIDDEN):
        yield diagnosed("access-refused", where, text or name_of(code))
    elif code == Code.TOPIC_NOT_FOUND:
        if server:
            told = f"it knows no topic {topic}, which name server {server} has"
            yield diagnosed("proxy-elsewhere", where, told, namesrv=server)
    elif code != Code.OK:
        told = f"it answered {name_of(code)} when asked for a route: {text}"
        yield diagnosed("proxy-without-broker", where, told)
    told_addresses = {
        address_text((each.host, each.port))
        for queue in reply.message_queues
        for each in queue.broker.endpoints.addresses
    }
    for told in sorted(told_addresses):
        if parse_address(told) == parse_address(where):
            continue
        if is_loopback(told) and not is_loopback(where):
            failed = "that is the client's own host"
        else:
            failed = await can_connect(told)
        if failed:
            text = f"clients are told to come to {told}: {failed}"
            yield diagnosed("proxy-address", where, text)


async def _sizes(
    where: str, calls: ProxyCalls, masters: Sequence[str], tls: ssl.SSLContext | None,
    credentials: Credentials | None,
) -> AsyncIterator[Diagnosis]:  # fmt: skip
    """Checks what producers are told to keep to, beside what the brokers take."""
    if not masters:
        return
    most = (await calls.settings()).settings.publishing.max_body_size
    for master in masters if most else ():
        options: dict[str, Any] = {"credentials": credentials, "tls": tls or False}
        try:
            async with AsyncAdmin(broker=master, **options) as admin:
                taken = int((await admin.configuration()).get("maxMessageSize") or 0)
        except (BrokerRefused, ClientError):
            continue  # it may not be asked, or not from here
        if most < taken:
            text = f"maxMessageSize={most}, the broker at {master} takes {taken}"
            yield diagnosed("proxy-message-size", where, text, size=taken)


# ---- rmq-proxy.json ----


def proxy_problems(
    conf: Path, *, is_signed: bool = False
) -> tuple[ProxySettings, list[SettingProblem]]:
    """Returns settings as a proxy reads them, and what is wrong with them. is_signed: the proxy has
    credentials beside them."""
    from broker.grpc.settings import CLUSTER, ProxySettings

    made, problems = ProxySettings.look(conf, CLUSTER)
    where = str(conf)
    problems += [SettingProblem("", where, text, False, check) for check, text in _rules(made)]
    if (made.authenticate or made.authorize) and not made.credentials and not is_signed:
        text = "innerClientAuthenticationCredentials is not set"
        problems.append(SettingProblem("", where, text, False, "proxy-unsigned"))
    return made, problems


def _rules(s: ProxySettings) -> Iterator[tuple[str, str]]:
    """Yields the settings that do not go together: a check, and what it says of them."""
    ports = {"grpcServerPort": s.port, "remotingListenPort": s.remoting_port}
    if s.metrics != "DISABLE":
        ports["metricsPromExporterPort"] = s.metrics_port
    taken: dict[int, str] = {}
    for name, port in ports.items():
        other = taken.setdefault(port, name) if port else name
        if other != name:
            yield "proxy-ports-clash", f"{other}={port}, {name}={port}"
    yield from (("proxy-times-crossed", text) for text in _times(s))
    if s.body_max >= s.inbound_max:
        text = f"maxMessageSize={s.body_max}, grpcMaxInboundMessageSize={s.inbound_max}"
        yield "proxy-inbound-small", text
    if s.renew and s.renew_every_ms >= s.renew_ahead_ms:
        text = (
            f"renewSchedulePeriodMillis={s.renew_every_ms}, renewAheadTimeMillis={s.renew_ahead_ms}"
        )
        yield "proxy-renews-late", text
    if s.authorize and not s.authenticate:
        yield "rights-without-users", "authorizationEnabled=true, authenticationEnabled=false"


def _times(s: ProxySettings) -> Iterator[str]:
    rows = (
        ("minInvisibleTimeMillsForRecv", s.invisible_min_ms,
         "defaultInvisibleTimeMills", s.invisible_default_ms),
        ("defaultInvisibleTimeMills", s.invisible_default_ms,
         "maxInvisibleTimeMills", s.invisible_max_ms),
        ("grpcClientConsumerMinLongPollingTimeoutMillis", s.poll_min_ms,
         "grpcClientConsumerMaxLongPollingTimeoutMillis", s.poll_max_ms),
        ("grpcClientProducerBackoffInitialMillis", s.producer_backoff_ms,
         "grpcClientProducerBackoffMaxMillis", s.producer_backoff_max_ms),
    )  # fmt: skip
    for low, least, high, most in rows:
        if least > most:
            yield f"{low}={least}, {high}={most}"
