"""The gRPC service, put together: which methods there are, and who serves them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

from broker.grpc.acking import Acking
from broker.grpc.brokers import Brokers, InProcess
from broker.grpc.calls import Handlers
from broker.grpc.clients import ClientMethods, GrpcClients, retry_ms
from broker.grpc.deliveries import change
from broker.grpc.links import HotCalls
from broker.grpc.lite import LiteMethods
from broker.grpc.receipts import Receipt
from broker.grpc.receiving import Receiving
from broker.grpc.renewal import Lost, Renewals, RenewedMessage
from broker.grpc.routes import RouteMethods
from broker.grpc.sending import Sending
from broker.grpc.server import GrpcServer
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Code, Problem
from broker.grpc.telemetry_commands import TelemetryCommands
from broker.grpc.transactions import Ending
from broker.loop.lifetime import end_tasks
from broker.remoting.connection import Limits
from broker.remoting.tls import TlsSettings
from broker.wire.handlers import Handlers as BrokerHandlers

__all__ = ["GrpcService"]


_Made = TypeVar("_Made", bound=Brokers)


class GrpcService(Generic[_Made]):
    """brokers: makes those that it stands before; what they ask clients goes to these handlers.
    sock: bound. limits: of a client's connection. core: of the broker in this process (ps_core)."""

    def __init__(
        self,
        brokers: Callable[[BrokerHandlers], _Made],
        settings: ProxySettings,
        sock: socket.socket,
        *,
        limits: Limits,
        tls: TlsSettings,
        core: Any = None,
    ) -> None:
        self.port: int = sock.getsockname()[1]
        self.clients = GrpcClients()
        self.broker = brokers(TelemetryCommands(self.clients).handlers())
        self._settings = settings
        self.renewals = Renewals(self.broker.now_ms, self._extend, retry_ms, settings)
        self.clients.dropped = lambda client: self._spawn(self.renewals.gone(client.client_id))
        self.clients.left = lambda client: self._spawn(self._lite.left(client))
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = GrpcServer(
            self._methods(settings),
            settings,
            sock,
            tls=tls,
            connections_max=limits.connections_max,
            proxies=limits.proxies,
            gone=self._gone,
            check=self.broker.check_name,
            is_known=self.broker.is_known,
            hot=self._hot(core),
        )

    def _hot(self, core: Any) -> HotCalls | None:
        broker: Brokers = self.broker
        if core is None or not isinstance(broker, InProcess):
            return None
        return HotCalls(
            core, self._sending.plain, self.renewals, self.clients, self._settings,
            broker.expect, broker.popped,
        )  # fmt: skip

    def _methods(self, settings: ProxySettings) -> Handlers:
        """Returns the methods, of one class for each group of methods; whoever adds a group names
        it here."""
        broker, clients = self.broker, self.clients
        routes = RouteMethods(broker, settings, self.port)
        self._sending = Sending(broker, settings)
        self._lite = LiteMethods(broker, clients, settings)
        self._client_methods = ClientMethods(broker, clients, settings, self._lite.arrived)
        self._receiving = Receiving(broker, clients, settings, routes, self.renewals)
        self._acking = Acking(broker, settings, self.renewals)
        made: dict[str, Callable[..., object]] = {}
        for group in (
            routes,
            self._sending,
            Ending(broker),
            self._client_methods,
            self._lite,
            self._receiving,
            self._acking,
        ):
            made.update(group.handlers())
        return made

    def take(self, made: ProxySettings) -> tuple[frozenset[str], frozenset[str]]:
        """Takes over what a file, read again, has otherwise. Returns the names that hold now, and
        those that only a start takes over. Raises: OutOfMemory."""
        now, later = self._settings.take(made)
        self._server.settings_changed()
        broker: Brokers = self.broker
        if now and isinstance(broker, InProcess):
            broker.forget_taken()
        return now, later

    async def start(self) -> None:
        await self._server.start()
        self._spawn(self._renew())

    @property
    def client_count(self) -> int:
        """Returns how many clients have sent their settings."""
        return len(self.clients)

    @property
    def renewal_count(self) -> int:
        """Returns of how many messages the invisible time is lengthened."""
        return len(self.renewals)

    @property
    def connection_count(self) -> int:
        return self._server.connection_count

    def call_times(self) -> dict[str, tuple[list[int], float]]:
        """Returns of each method that was called, answered calls by how long they took, and the
        seconds of all."""
        return self._server.times()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- messages that clients hold ----

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._settings.renew_every_ms / 1000)
            await self.renewals.tick()

    async def _extend(self, held: RenewedMessage, invisible_ms: int) -> Receipt:
        ask = partial(self.broker.request_own, broker=held.receipt.handle.broker)
        try:
            return await change(ask, held.group, held.topic, held.receipt, invisible_ms)
        except Problem as problem:
            if problem.code == Code.INVALID_RECEIPT_HANDLE:
                raise Lost from None
            raise

    def _gone(self, address: tuple[str, int]) -> None:
        for client_id in self.broker.gone(address):
            self.clients.drop(client_id)

    async def stop(self, drain_s: float) -> None:
        """Answers calls in progress for drain_s at most, then closes everything. Clients come back,
        so they stay subscribed."""
        self.clients.left = lambda client: None
        self._client_methods.leave()
        await self._server.stop(drain_s)
        await self._receiving.stop()
        await end_tasks(*self._tasks)
        self.broker.close()
        for _ in range(3):  # the loop tells each connection of its end in its next turns
            await asyncio.sleep(0)
