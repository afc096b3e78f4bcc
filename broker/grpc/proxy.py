"""A proxy before a cluster: the gRPC service over brokers that name servers know, and a relay for
clients of the remoting protocol. The composition root of cluster mode, in a server process as in a
test.

async with Proxy("127.0.0.1:9876", grpc_port=0) as proxy: ...
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from broker.access.addresses import runs_of
from broker.access.signature import Credentials
from broker.client.options import ClientSettings, name_servers
from broker.grpc.cluster import ClusterBrokers
from broker.grpc.figures import ProxyFigures
from broker.grpc.relay import Relay
from broker.grpc.service import GrpcService
from broker.grpc.settings import CLUSTER, ProxySettings
from broker.loop.lifetime import Stopping
from broker.loop.passed_over import Reloaded, reload_settings, warn_of
from broker.loop.safe_log import SafeLogger
from broker.metrics.endpoint import MetricsEndpoint
from broker.remoting.certificates import Certificates
from broker.remoting.connection import Limits
from broker.remoting.server import listening_socket
from broker.remoting.tls import TlsSettings
from broker.services.policy_access import user_of_setting
from broker.wire.handlers import address_text
from pystore.configuration.problems import SettingProblem, refuse
from pystore.errors import BadArgument

__all__ = ["ROUTE_POLL_S", "Proxy"]

log = SafeLogger("broker.grpc")

#: As upstream's proxy.
ROUTE_POLL_S = 20.0


class Proxy(Stopping):
    """namesrv: name servers, ``host:port``; None: namesrvAddr of conf, else NAMESRV_ADDR. conf: an
    rmq-proxy.json. grpc_port, remoting_port: over those of conf; 0: a free one. tls: of the ports.
    client: settings of what it asks brokers and name servers: TLS, credentials."""

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        conf: str | os.PathLike[str] | None = None,
        grpc_port: int | None = None,
        remoting_port: int | None = None,
        bind: str = "0.0.0.0",
        tls: TlsSettings | None = None,
        client: ClientSettings | None = None,
        drain_s: float = 3.0,
    ) -> None:
        """Raises: BadArgument, Misuse."""
        self._conf = Path(conf) if conf is not None else None
        self.settings, self._problems = ProxySettings(), list[SettingProblem]()
        if conf is not None:
            self.settings, self._problems = ProxySettings.look(Path(conf), CLUSTER)
            refuse(self._problems)
        self._client = _signing(client, self.settings)
        self.servers = name_servers(namesrv or self.settings.namesrv or None, self._client)
        self._grpc_port = self.settings.port if grpc_port is None else grpc_port
        own = self.settings.remoting_port
        self._remoting_port = own if remoting_port is None else remoting_port
        self._bind = bind
        self._tls = tls if tls is not None else TlsSettings()
        self._certificates = Certificates(self._tls)
        self._drain_s = drain_s
        self._undo = contextlib.AsyncExitStack()
        self.service: GrpcService[ClusterBrokers] | None = None
        self.relay: Relay | None = None
        #: Of the metrics, /health and /ready; 0: there is none.
        self.metrics_port = 0

    @property
    def port(self) -> int:
        """That it listens on, once started."""
        return self.service.port if self.service is not None else self._grpc_port

    @property
    def address(self) -> str:
        """``host:port`` for clients on this machine, or of localServeAddr."""
        return _joined(self.settings.host, self.port)

    @property
    def remoting_address(self) -> str:
        """The same for clients of the remoting protocol: their name server, so to speak."""
        port = self.relay.port if self.relay is not None else self._remoting_port
        return _joined(self.settings.remoting_host or self.settings.host, port)

    async def start(self) -> None:
        """Opens the ports. Raises: OSError for a port that is taken; BadArgument, ClientError when
        rocketMQClusterName is given and the name server does not know it."""
        warn_of(self._problems)
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        sock = listening_socket(self._bind, self._grpc_port)
        self._undo.callback(sock.close)
        other = listening_socket(self._bind, self._remoting_port)
        self._undo.callback(other.close)
        brokers = partial(
            ClusterBrokers, servers=self.servers, settings=self._client, conf=self.settings
        )
        limits = Limits(proxies=runs_of(self.settings.proxies))
        service = GrpcService(brokers, self.settings, sock, limits=limits, tls=self._tls)
        self._undo.push_async_callback(service.broker.stop)
        await service.broker.start(self.settings.cluster)
        self._undo.push_async_callback(service.stop, self._drain_s)
        await service.start()
        relay = Relay(
            service.broker, self.settings, other, limits=limits, tls=self._tls,
            certificates=self._certificates,
        )  # fmt: skip
        self._undo.push_async_callback(relay.stop, self._drain_s)
        await relay.start()
        self._certificates.start()
        self._undo.push_async_callback(self._certificates.stop)
        self.service, self.relay = service, relay
        await self._serve_metrics(service, relay)
        log.info("Proxy is ready at %s and %s", self.address, self.remoting_address)

    async def _serve_metrics(self, service: GrpcService[ClusterBrokers], relay: Relay) -> None:
        """Opens the port of metrics. Raises: BadArgument, OSError for a port that is taken."""
        conf = self.settings
        if conf.metrics == "DISABLE":
            return
        sock = listening_socket(conf.metrics_host or conf.host or self._bind, conf.metrics_port)
        self._undo.callback(sock.close)
        figures = ProxyFigures(service, relay, conf.cluster)
        figures.start()
        self._undo.callback(figures.stop)
        made = MetricsEndpoint(sock, figures)
        self._undo.push_async_callback(made.stop)
        await made.start()
        self.metrics_port = made.port

    def reload(self) -> None:
        """Reads the files of its certificate again, and its settings, on its loop. What has changed
        there holds from now on; what only a start takes over is logged, and so is a file that
        cannot be used."""
        self._certificates.read_again()
        reload_settings(self._conf, self._read_settings)

    def _read_settings(self) -> Reloaded:
        assert self._conf is not None
        made, problems = ProxySettings.look(self._conf, CLUSTER)
        refuse(problems)
        return problems, *self.settings.take(made)

    async def stop(self) -> None:
        """Answers calls in progress, then ends. Harmless when repeated."""
        undo, self._undo = self._undo, contextlib.AsyncExitStack()
        await undo.aclose()
        self.service = self.relay = None
        await asyncio.sleep(0)


def _signing(client: ClientSettings | None, conf: ProxySettings) -> ClientSettings:
    """Returns the settings of what the proxy asks, with its credentials. Raises: BadArgument."""
    made = client if client is not None else ClientSettings(route_poll_s=ROUTE_POLL_S)
    name = "innerClientAuthenticationCredentials"
    if conf.credentials:
        if made.credentials is not None:
            raise BadArgument(f"{name} and credentials of its own exclude each other")
        user = user_of_setting(name, conf.credentials, ("accessKey", "secretKey"))
        made = replace(made, credentials=Credentials(user.name, user.password))
    if (conf.authenticate or conf.authorize) and made.credentials is None:
        raise BadArgument(
            "authenticationEnabled and authorizationEnabled let the proxy ask brokers for users:"
            f" it needs the credentials of a Super, {name}"
        )
    return made


def _joined(host: str, port: int) -> str:
    return address_text(((host or "127.0.0.1").strip("[]"), port))
