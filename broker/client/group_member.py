"""What the members of all groups have, whatever they consume: their names, and how they end."""

from __future__ import annotations

import asyncio

from broker.client.errors import ClientError, Misuse, Unreachable
from broker.client.handling import Handling
from broker.client.message import MessageQueue
from broker.client.network import Network
from broker.client.options import checked_group
from broker.client.ready import ReadyMessages
from broker.client.sending import without_namespace

__all__ = ["ConsumerGroupMember"]


class ConsumerGroupMember:
    """A member of a consumer group: it is closed once, and whoever closes it meanwhile waits."""

    network: Network
    ready: ReadyMessages
    handling: Handling | None

    def __init__(self, group: str, namespace: str) -> None:
        """Raises: InvalidMessage (an illegal group)."""
        self.namespace = namespace
        self.group = checked_group(group, namespace)
        self._stopping = False
        self._closed_event: asyncio.Event | None = None

    def shown(self, topic: str) -> str:
        """Returns a topic without the namespace."""
        return without_namespace(topic, self.namespace)

    @property
    def client_id(self) -> str:
        """How brokers and tools show this client."""
        return self.network.client_id

    def broker_of(self, queue: MessageQueue, broker_id: int = 0) -> str:
        """Returns the address of the queue's broker with this id, else of its master, else of any.
        Raises: Unreachable."""
        route = self.network.known_route(queue.topic)
        broker = route.broker(queue) if route is not None else queue.broker
        address = route.address(broker, broker_id) if route is not None else None
        if address is None:
            raise Unreachable(f"no address of the broker {broker} is known")
        return address

    def check_iterable(self) -> None:
        """Checks that messages may be asked for. Raises: NotStarted, Misuse."""
        self.network.check()
        if self.handling is not None:
            raise Misuse("this consumer has a handler, which gets the messages; do not iterate too")

    # ---- the end ----

    async def close(self) -> None:
        """Lets handlers finish, and leaves the group. Raises: as AsyncConsumer.close()."""
        if self._stopping:
            await self.closed()
            return
        if self.network.started:
            self.network.check()
        self._stopping = True
        try:
            self.ready.close()
            stuck = await self._wind_up()
        finally:
            self._let_go()
            self.ready.clear()
            await self.network.close([("consumerGroup", self.group)])
            if self._closed_event is not None:
                self._closed_event.set()
        if stuck is not None:
            raise stuck

    async def _wind_up(self) -> ClientError | None:
        """Ends what is under way. Returns what the handlers have to say of it."""
        raise NotImplementedError

    def _let_go(self) -> None:
        """Takes note that nothing is its own any more, however the end went."""

    async def closed(self) -> None:
        """Waits until close() has ended. Returns at once before start()."""
        if self._closed_event is not None:
            await self._closed_event.wait()
