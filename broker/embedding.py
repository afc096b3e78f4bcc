"""What clients in the broker's own process need: its routes, without a name server between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from broker.client.routes import Route, route_of_queues

if TYPE_CHECKING:
    from broker.broker import Broker

__all__ = ["RouteFinder"]


class RouteFinder:
    """Routes of one broker, for clients on any event loop of the process (``find_route``)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def __call__(self, topic: str) -> Route | None:
        """None for a topic that the broker does not have, or when it is stopped."""
        loop = self._broker.loop
        if loop is None or loop.is_closed():
            return None
        if loop is asyncio.get_running_loop():
            return self._look_up(topic)

        async def there() -> Route | None:
            return self._look_up(topic)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), loop))

    def _look_up(self, topic: str) -> Route | None:
        broker = self._broker
        if broker.loop is None:
            return None
        services = broker.services
        config = services.topics.get(topic)
        if config is None:
            return None
        return route_of_queues(
            topic, services.broker_name, broker.address, services.settings["brokerClusterName"],
            config.perm, config.read_queue_nums, config.write_queue_nums,
        )  # fmt: skip
