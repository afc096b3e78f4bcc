"""What pages say of a running cluster, asked through the administrator's client. What costs a
broker work is kept for some seconds, so that many visitors are one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from broker.client.admin import AsyncAdmin, BrokerPlace, QueueLag
from broker.client.errors import ClientError, Misuse, NoRoute, reading
from broker.client.ids import offset_id_of
from broker.client.message import MessageQueue
from broker.client.queries import messages_of_broker
from broker.client.rates import Look
from broker.client.routes import parse_route
from broker.web.records import RecordView
from broker.web.rows import KINDS_OF_TOPICS, GroupRow, LagRow, TopicRow, kind_of
from broker.wire.codes import RequestCode
from pystore.configfiles import SubscriptionGroup, group_from_json

__all__ = ["CachedAnswer", "ClusterFacts", "Placed"]

_T = TypeVar("_T")
#: How long an answer is taken for the present, and how old it may be shown while a newer one is
#: under way.
_FRESH_S, _STALE_S = 5.0, 60.0
#: The first of these for what is asked for one topic or one group.
_FRESH_OF_ONE_S = 1.0
#: Between two looks for the plots, how many are kept, and how long nobody may watch.
_STEP_S, _LOOKS, _WATCHED_S = 2.0, 150, 30.0
#: Lags of a large cluster cost brokers much: the next look is so many times later as one took.
_RESTS = 4.0
#: Topics and groups of which the lags are kept, and groups of a topic.
_NAMES, _GROUPS = 64, 20
#: Messages that a key finds, of each broker.
_FOUND = 32
#: A broker's name, and a message of it.
Placed = tuple[str, RecordView]


class CachedAnswer(Generic[_T]):
    """An answer that is asked for again when it is old; meanwhile the old one is shown."""

    def __init__(
        self, ask: Callable[[], Awaitable[_T]], fresh_s: float | None = None,
        stale_s: float = _STALE_S,
    ) -> None:  # fmt: skip
        """fresh_s: how long it is taken for the present. stale_s: how old it may be shown."""
        self._ask = ask
        self._fresh_s, self._stale_s = fresh_s, stale_s
        self._value: _T | None = None
        self._when = float("-inf")
        self._asking: asyncio.Task[_T] | None = None
        self._forgotten = 0

    async def get(self) -> _T:
        """Raises: ClientError."""
        value, is_fresh = self._known()
        if value is not None and is_fresh:
            return value
        asking = self._question()
        return value if value is not None else await asyncio.shield(asking)

    async def soon(self, wait_s: float) -> _T | None:
        """Returns what is there now; if that is not known in time, what was there before, and None
        where nothing is known. The question goes on. Raises: ClientError."""
        value, is_fresh = self._known()
        if value is not None and is_fresh:
            return value
        asking = self._question()
        await asyncio.wait({asking}, timeout=wait_s)
        if not asking.done() or (value is not None and asking.exception() is not None):
            return value
        return asking.result()

    def _known(self) -> tuple[_T | None, bool]:
        """Returns what may be shown, and whether it is of the present."""
        age = time.monotonic() - self._when
        is_fresh = age < (_FRESH_S if self._fresh_s is None else self._fresh_s)
        return (self._value if is_fresh or age < self._stale_s else None), is_fresh

    def _question(self) -> asyncio.Task[_T]:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._renew())
            self._asking.add_done_callback(_ended)
        return self._asking

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


class CachedAnswers(Generic[_T]):
    """The same by name, of those names that were asked for last."""

    def __init__(self, ask: Callable[[str], Awaitable[_T]]) -> None:
        self._ask = ask
        self._kept: dict[str, CachedAnswer[_T]] = {}

    def of(self, name: str) -> CachedAnswer[_T]:
        found = self._kept.pop(name, None)
        if found is None:
            found = CachedAnswer(partial(self._ask, name), _FRESH_OF_ONE_S)
            if len(self._kept) >= _NAMES:
                del self._kept[next(iter(self._kept))]
        self._kept[name] = found
        return found

    def forget(self) -> None:
        for kept in self._kept.values():
            kept.forget()

    async def close(self) -> None:
        for kept in self._kept.values():
            await kept.close()


def _ended(asking: asyncio.Task[Any]) -> None:
    """Whoever waits is told why it failed; where the old answer was shown, the next one asks
    again."""
    if not asking.cancelled():
        asking.exception()


class ClusterFacts:
    """admin, walker: started. What takes a broker long is asked by the walker, which has a
    connection of its own: a broker answers one long question of a connection after the other.
    of_broker: they ask one broker, and no name server."""

    def __init__(self, admin: AsyncAdmin, walker: AsyncAdmin, *, of_broker: bool = False) -> None:
        self.admin, self.walker = admin, walker
        self.of_broker = of_broker
        self.places = CachedAnswer(admin.cluster)
        self.topics = CachedAnswer(self._topics)
        self.brokers = CachedAnswer(self._brokers)
        self.lags = CachedAnswer(walker.all_lags)
        #: By the name of a group.
        self.configs = CachedAnswer(admin.group_table)
        self.groups = CachedAnswer(self._groups)
        #: By topic: its groups, and how many messages each is behind. By group: its queues.
        self.groups_of = CachedAnswers(self._groups_of)
        self.lags_of = CachedAnswers(self._lags_of)
        self.looks: deque[Look] = deque(maxlen=_LOOKS)
        self._watching: asyncio.Task[None] | None = None
        self._watched = 0.0

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        for kept in (
            self.places, self.topics, self.groups, self.brokers, self.lags, self.configs,
            self.groups_of, self.lags_of,
        ):  # fmt: skip
            await kept.close()
        await self.admin.close()
        await self.walker.close()

    def forget_lags(self) -> None:
        """They have changed."""
        for kept in (self.lags, self.groups, self.groups_of, self.lags_of):
            kept.forget()

    async def _topics(self) -> list[TopicRow]:
        """All of them, from a name server by name alone: what each broker has of tens of thousands
        takes a second."""
        queues: dict[str, int | None] = {}
        if self.of_broker:
            queues = {each.name: each.read_queue_nums for each in await self.admin.topics()}
        else:
            queues = dict.fromkeys(await self.admin.topic_names())
        return await asyncio.to_thread(_topic_rows, queues)

    async def with_queues(self, rows: Sequence[TopicRow]) -> list[TopicRow]:
        """Returns the rows of one page with the queues that routes name. Raises: ClientError."""
        return await asyncio.gather(*map(self._with_queues, rows))

    async def _with_queues(self, row: TopicRow) -> TopicRow:
        if row.queues is not None:
            return row
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        answer = await self.admin.network.ask_servers(code, {"topic": row.name})
        if answer.code:  # it has gone meanwhile
            return row
        with reading(code.name, "the name server"):
            return replace(row, queues=len(parse_route(answer.body, row.name).read))

    async def _groups_of(self, topic: str) -> list[tuple[str, int | None]]:
        names = (await self.admin.groups_of(topic))[:_GROUPS]
        lags = await asyncio.gather(*(self.walker.lag(group, topic) for group in names))
        return [
            (group, sum(lag.behind for lag in of_group))
            for group, of_group in zip(names, lags, strict=True)
        ]

    async def _lags_of(self, group: str) -> list[LagRow]:
        return [lag_row(lag) for lag in await self.walker.lag(group)]

    async def groups_of_soon(
        self, topic: str, wait_s: float
    ) -> tuple[bool, list[tuple[str, int | None]]]:
        """Returns whether it is known how far the groups of a topic are, and those groups. Raises:
        ClientError."""
        found = await self.groups_of.of(topic).soon(wait_s)
        if found is not None:
            return True, found
        return False, [(name, None) for name in (await self.admin.groups_of(topic))[:_GROUPS]]

    async def _groups(self) -> list[GroupRow]:
        names = set(await self.configs.get())
        return await asyncio.to_thread(_group_rows, names, await self.lags.get())

    async def groups_soon(self, wait_s: float) -> list[GroupRow] | None:
        """Returns None when it is not known in time how far they are. Raises: ClientError."""
        began = time.monotonic()
        await self.configs.get()  # before brokers are busy with the other question
        return await self.groups.soon(max(0.0, wait_s - (time.monotonic() - began)))

    async def group_names(self) -> list[GroupRow]:
        """All of them by name, and not how far they are. Raises: ClientError."""
        return [GroupRow(name, None, None, None) for name in sorted(await self.configs.get())]

    async def group(self, name: str) -> SubscriptionGroup | None:
        """Returns the settings of a group; None: it has none. Raises: ClientError."""
        found = (await self.configs.get()).get(name)
        with reading("GET_ALL_SUBSCRIPTIONGROUP_CONFIG", "a broker"):
            return group_from_json(name, found) if found is not None else None

    async def check_group(self, name: str) -> None:
        """Raises: NoRoute, ClientError: a group that a visitor made up is not asked for. Those that
        have no settings are known by what they have committed, which costs much more."""
        if name in await self.configs.get():
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


def _topic_rows(queues: Mapping[str, int | None]) -> list[TopicRow]:
    by_kind: dict[str, list[TopicRow]] = {kind: [] for kind in KINDS_OF_TOPICS}
    for name, count in queues.items():
        kind = kind_of(name)
        by_kind[kind].append(TopicRow(name, kind, count, None))
    return [row for rows in by_kind.values() for row in rows]


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
