"""What pages say of a running cluster, asked through the administrator's client. What costs a
broker work is kept for some seconds, so that many visitors are one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

from broker.client.admin import AsyncAdmin, BrokerPlace, QueueLag
from broker.client.errors import ClientError, Misuse, NoRoute
from broker.client.ids import offset_id_of
from broker.client.message import MessageQueue
from broker.client.queries import messages_of_broker
from broker.client.rates import Look
from broker.web.records import RecordView
from broker.web.rows import KINDS_OF_TOPICS, GroupRow, LagRow, TopicRow, kind_of

__all__ = ["CachedAnswer", "ClusterFacts", "Placed"]

_T = TypeVar("_T")
#: How long an answer is taken for the present, and how old it may be shown while a newer one is
#: under way.
_FRESH_S, _STALE_S = 5.0, 60.0
#: Between two looks for the plots, how many are kept, and how long nobody may watch.
_STEP_S, _LOOKS, _WATCHED_S = 2.0, 150, 30.0
#: Lags of a large cluster cost brokers much: the next look is so many times later as one took.
_RESTS = 4.0
#: Messages that a key finds, of each broker.
_FOUND = 32
#: A broker's name, and a message of it.
Placed = tuple[str, RecordView]


class CachedAnswer(Generic[_T]):
    """An answer that is asked for again when it is old; meanwhile the old one is shown."""

    def __init__(self, ask: Callable[[], Awaitable[_T]]) -> None:
        self._ask = ask
        self._value: _T | None = None
        self._when = float("-inf")
        self._asking: asyncio.Task[_T] | None = None
        self._forgotten = 0

    async def get(self) -> _T:
        """Raises: ClientError."""
        age = time.monotonic() - self._when
        if self._value is not None and age < _FRESH_S:
            return self._value
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._renew())
            self._asking.add_done_callback(_ended)
        if self._value is not None and age < _STALE_S:
            return self._value
        return await asyncio.shield(self._asking)

    async def soon(self, wait_s: float) -> _T | None:
        """Returns None when it takes longer; the question goes on. Raises: ClientError."""
        asking = asyncio.ensure_future(self.get())
        await asyncio.wait({asking}, timeout=wait_s)
        if asking.done():
            return asking.result()
        asking.cancel()
        return None

    async def _renew(self) -> _T:
        before = self._forgotten
        value = await self._ask()
        if before == self._forgotten:
            self._value, self._when = value, time.monotonic()
            return value
        return await self._renew()

    def forget(self) -> None:
        """The next one who asks waits for what is there then, also where a question is under
        way."""
        self._when = float("-inf")
        self._forgotten += 1

    async def close(self) -> None:
        """Ends a question that is under way."""
        if self._asking is not None:
            self._asking.cancel()
            with contextlib.suppress(asyncio.CancelledError, ClientError):
                await self._asking


def _ended(asking: asyncio.Task[Any]) -> None:
    """Whoever waits is told why it failed; where the old answer was shown, the next one asks
    again."""
    if not asking.cancelled():
        asking.exception()


class ClusterFacts:
    """admin, walker: started. What takes a broker long is asked by the walker, which has a
    connection of its own: a broker answers one long question of a connection after the other."""

    def __init__(self, admin: AsyncAdmin, walker: AsyncAdmin) -> None:
        self.admin, self.walker = admin, walker
        self.places = CachedAnswer(admin.cluster)
        self.topics = CachedAnswer(self._topics)
        self.brokers = CachedAnswer(self._brokers)
        self.lags = CachedAnswer(walker.all_lags)
        self.configs = CachedAnswer(admin.groups)
        self.groups = CachedAnswer(self._groups)
        self.looks: deque[Look] = deque(maxlen=_LOOKS)
        self._watching: asyncio.Task[None] | None = None
        self._watched = 0.0

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        for kept in (self.places, self.topics, self.groups, self.brokers, self.lags, self.configs):
            await kept.close()
        await self.admin.close()
        await self.walker.close()

    def forget_lags(self) -> None:
        """They have changed."""
        self.lags.forget()
        self.groups.forget()

    async def _topics(self) -> list[TopicRow]:
        found = [
            TopicRow(each.name, kind_of(each.name), each.read_queue_nums, None)
            for each in await self.admin.topics()
        ]
        return sorted(found, key=lambda topic: KINDS_OF_TOPICS.index(topic.kind))

    async def _groups(self) -> list[GroupRow]:
        names = {each.name for each in await self.configs.get()}
        return await asyncio.to_thread(_group_rows, names, await self.lags.get())

    async def groups_soon(self, wait_s: float) -> list[GroupRow] | None:
        """Returns None when it is not known in time how far they are. Raises: ClientError."""
        await self.configs.get()  # before brokers are busy with the other question
        return await self.groups.soon(wait_s)

    async def group_names(self) -> list[GroupRow]:
        """All of them by name, and not how far they are. Raises: ClientError."""
        return [GroupRow(each.name, None, None, None) for each in await self.configs.get()]

    async def check_group(self, name: str) -> None:
        """Raises: NoRoute, ClientError: a group that a visitor made up is not asked for. Those that
        have no settings are known by what they have committed, which costs much more."""
        if any(each.name == name for each in await self.configs.get()):
            return
        if not any(each.name == name for each in await self.groups.get()):
            raise NoRoute(f"there is no group {name}", name)

    async def masters(self) -> dict[str, str]:
        """Addresses by broker name. Raises: ClientError."""
        return {each.name: each.address for each in await self.places.get() if each.id == 0}

    async def address_of(self, broker: str) -> str:
        """Raises: Misuse for a broker that is not of this cluster: nobody may be asked whom a
        visitor names."""
        known = await self.masters()
        if broker not in known:
            raise Misuse(f"no master is named {broker!r:.100}")
        return known[broker]

    # ---- messages ----

    async def read(
        self, topic: str, broker: str, queue: int, offset: int, most: int
    ) -> list[RecordView]:
        """Messages of a queue from an offset on. Raises: ClientError."""
        address, place = await self.address_of(broker), MessageQueue(topic, broker, queue)
        end = min(await self.admin.offset_of(address, place, "last"), offset + most)
        return [
            RecordView(bytes(message.record))
            async for message in self.admin.read(address, place, offset, end)
        ]

    async def by_key(self, topic: str, key: str) -> list[Placed]:
        """Those with a key, or with a client's id. Raises: ClientError."""
        found: list[Placed] = []
        for broker, address in (await self.masters()).items():
            messages = await messages_of_broker(
                self.admin.network, broker, address, topic, key, _FOUND
            )
            found += [(broker, RecordView(bytes(message.record))) for message in messages]
        return found

    async def by_id(self, text: str) -> list[Placed]:
        """By an offset id, which names a broker of this cluster. Raises: Misuse, ClientError."""
        try:
            place = offset_id_of(text)
        except ValueError:
            raise Misuse("this is not an offset id; with the topic, try it as a key") from None
        host = f"[{place.host}]" if ":" in place.host else place.host
        for each in await self.places.get():
            if each.address == f"{host}:{place.port}":
                found = await self.admin.message(text)
                return [(each.name, RecordView(bytes(found.record)))] if found is not None else []
        raise Misuse(f"the id names {host}:{place.port}, which is not of this cluster")

    async def by_time(self, topic: str, ms: int) -> list[tuple[str, int, int, RecordView | None]]:
        """Of each queue the first message stored then or later. Raises: ClientError."""
        found: list[tuple[str, int, int, RecordView | None]] = []
        for ends in (await self.admin.topic(topic)).queues:
            address = await self.address_of(ends.queue.broker)
            at = await self.admin.offset_of(address, ends.queue, ms)
            views = await self.read(topic, ends.queue.broker, ends.queue.queue, at, 1)
            found.append((ends.queue.broker, ends.queue.queue, at, views[0] if views else None))
        return found

    # ---- rates ----

    def watch(self) -> None:
        """Has the cluster looked at every two seconds or less often, as long as somebody
        watches."""
        self._watched = time.monotonic()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        self.looks.clear()
        while time.monotonic() - self._watched < _WATCHED_S:
            began = time.monotonic()
            self.looks.append(await self.look())
            await asyncio.sleep(max(_STEP_S, _RESTS * (time.monotonic() - began)))

    async def look(self) -> Look:
        """What is there now. A broker that does not answer is a problem and not the end."""
        look = await self._brokers()
        try:
            look.lags = await self.walker.all_lags()
        except ClientError as failed:
            look.problems.append(str(failed))
        return look

    async def _brokers(self) -> Look:
        """The same without lags, which every group of a large cluster costs."""
        look = Look(time.monotonic())
        places: list[BrokerPlace] = []
        try:
            places = await self.admin.cluster()
        except ClientError as failed:
            look.problems.append(str(failed))
        for place in places:
            if place.id == 0:
                try:
                    look.brokers.append(await self.admin.broker(place.address))
                except ClientError as failed:
                    look.problems.append(str(failed))
        return look


def _group_rows(names: set[str], lags: Iterable[QueueLag]) -> list[GroupRow]:
    by_group: dict[str, list[LagRow]] = {}
    for each in lags:
        by_group.setdefault(each.group, []).append(lag_row(each))
    return [
        GroupRow.of(name, by_group.get(name, ()), None) for name in sorted(names | by_group.keys())
    ]


def lag_row(lag: QueueLag) -> LagRow:
    """As the pages show it."""
    queue = lag.queue
    return LagRow(queue.topic, queue.broker, queue.queue, lag.committed, lag.end)
