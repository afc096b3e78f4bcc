"""Asks brokers for what their own queues hold: the parts of logical queues. The own broker is asked
over a connection in memory, others over the network, with ``lo=false``: then the numbers of the
request are those of the broker's queues (upstream's RpcClientImpl)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from broker.remoting.connection import Connection, Endpoint, Limits
from broker.remoting.loopback import join
from broker.wire.command import Command
from broker.wire.framer import FramerFactory
from broker.wire.handlers import Handlers

__all__ = ["FindRoute", "NoSuchBroker", "PhysicalQueues"]

#: Addresses of brokers are asked for again after so many seconds, and after a failure.
_ROUTE_S = 30.0

#: Asks the broker at this address within so many seconds. Raises: OSError, TimeoutError.
AskAt = Callable[[str, Command, float], Awaitable[Command]]
#: A topic's route; None: no name server answers. As Registration.route.
FindRoute = Callable[[str], Awaitable[Mapping[str, Any] | None]]


class NoSuchBroker(OSError):
    """No master of that name is in the topic's route."""


class PhysicalQueues:
    """Lives on the event loop."""

    def __init__(self, broker: str, route: FindRoute, ask: AskAt) -> None:
        """Takes who is asked. broker: the name of this one."""
        self._broker, self._route, self._ask = broker, route, ask
        self._known: dict[str, tuple[float, dict[str, str]]] = {}
        self._near: Endpoint | None = None
        self._far: Endpoint | None = None
        self._own: Connection | None = None

    def serve(self, handlers: Handlers, framer: FramerFactory) -> None:
        """Takes the handlers of the own broker, which ask nobody for rights: whoever asks here was
        let in."""
        never = Limits(idle_s=0)
        self._far = Endpoint(handlers, never, framer)
        self._near = Endpoint({}, never, None)

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
        for end in (self._near, self._far):
            if end is not None:
                end.wheel.close()
        self._near = self._far = self._own = None

    async def ask(self, broker: str, command: Command, timeout_s: float) -> Command:
        """Returns the answer of a broker, by its name. Raises: NoSuchBroker; OSError,
        TimeoutError."""
        if broker == self._broker:
            return await self._connection().request(command, timeout_s)
        topic = command.ext["topic"]
        address = await self._address(topic, broker)
        try:
            return await self._ask(address, command, timeout_s)
        except (OSError, TimeoutError):
            self._known.pop(topic, None)
            raise

    def _connection(self) -> Connection:
        if self._near is None or self._far is None:
            raise ConnectionError("the broker is closed")
        if self._own is None or not self._own.open:
            self._own = Connection(self._near)
            join(self._own, Connection(self._far), ("127.0.0.1", 0))
        return self._own

    async def _address(self, topic: str, broker: str) -> str:
        since, found = self._known.get(topic, (0.0, {}))
        if broker not in found or time.monotonic() - since > _ROUTE_S:
            route = await self._route(topic) or {}
            found = {
                row["brokerName"]: str(address)
                for row in route.get("brokerDatas") or ()
                if (address := (row["brokerAddrs"] or {}).get("0"))
            }
            self._known[topic] = time.monotonic(), found
        if broker not in found:
            raise NoSuchBroker(f"no master of {broker} is in the route of {topic}")
        return found[broker]
