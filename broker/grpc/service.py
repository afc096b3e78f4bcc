"""The gRPC service of one broker, put together: which methods there are, and who serves them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from broker.grpc.calls import Handlers
from broker.grpc.clients import ClientMethods, Clients
from broker.grpc.local import LocalBroker
from broker.grpc.questions import Questions
from broker.grpc.routes import Routes
from broker.grpc.sending import Sending
from broker.grpc.server import GrpcServer
from broker.grpc.settings import ProxySettings
from broker.grpc.transactions import Ending
from broker.remoting.connection import Connection, Limits
from broker.remoting.framer import FramerFactory
from broker.remoting.handlers import Handlers as BrokerHandlers
from broker.remoting.tls import TlsSettings
from broker.services.context import Services

__all__ = ["GrpcService"]


class GrpcService:
    """sock: bound. handlers: of the broker's requests, without access control. limits: of a
    connection to the broker. closed: told of each client that is gone."""

    def __init__(
        self,
        services: Services,
        settings: ProxySettings,
        sock: socket.socket,
        *,
        handlers: BrokerHandlers,
        framer: FramerFactory,
        limits: Limits,
        closed: Callable[[Connection], None],
        tls: TlsSettings,
    ) -> None:
        self.port: int = sock.getsockname()[1]
        self.clients = Clients()
        asked = Questions(self.clients).handlers()
        self.broker = LocalBroker(services, handlers, asked, framer, limits, closed)
        self._server = GrpcServer(
            self._methods(settings),
            settings,
            sock,
            tls=tls,
            connections_max=limits.connections_max,
            trusts=limits.proxies,
            gone=self.broker.gone,
        )

    def _methods(self, settings: ProxySettings) -> Handlers:
        """One class for each group of methods; whoever adds a group names it here."""
        broker, clients = self.broker, self.clients
        made: dict[str, Callable[..., object]] = {}
        for group in (
            Routes(broker, settings, self.port),
            Sending(broker, settings),
            Ending(broker),
            ClientMethods(broker, clients, settings),
        ):
            made.update(group.handlers())
        return made

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, drain_s: float) -> None:
        """Answers calls in progress for drain_s at most, then closes everything."""
        await self._server.stop(drain_s)
        self.broker.close()
        for _ in range(3):  # the loop tells each connection of its end in its next turns
            await asyncio.sleep(0)
