"""What pages say of a running cluster, asked through the administrator's client. What costs a
broker work is kept for some seconds, so that many visitors are one."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from broker.client.admin import AsyncAdmin, BrokerPlace, QueueLag
from broker.client.admin.facts import GroupMembers, QueueEnds, queue_ends
from broker.client.errors import ClientError, Misuse, NoRoute, reading
from broker.client.ids import offset_id_of
from broker.client.message import MessageQueue
from broker.client.queries import messages_of_broker
from broker.client.rates import Look
from broker.client.routes import parse_route
from broker.loop.lifetime import end_tasks
from broker.web.cached import CachedAnswer, CachedAnswers, known_soon
from broker.web.records import RecordView
from broker.web.rows import KINDS_OF_TOPICS, GroupRow, TopicRow, kind_of
from broker.wire import mqjson
from broker.wire.codes import RequestCode
from broker.wire.handlers import address_text
from pystore.format.names import DLQ_PREFIX
from pystore.meta.configfiles import SubscriptionGroup, group_from_json

__all__ = ["ClusterFacts", "Placed"]

#: Between two looks for the plots, how many are kept, and how long nobody may watch.
_STEP_S, _LOOKS, _WATCHED_S = 2.0, 150, 30.0
#: Lags of a large cluster cost brokers much: the next look is so many times later as one took.
_RESTS = 4.0
#: Groups of a topic that are shown.
_GROUPS = 20
#: Messages that a key finds, of each broker.
_FOUND = 32
#: A broker's name, and a message of it.
Placed = tuple[str, RecordView]


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
        #: By topic: its queues, and the messages in them.
        self.counts_of = CachedAnswers(self._counts_of)
        #: Producers by group, and who consumes for a group; nobody is an answer, too.
        self.producers = CachedAnswer(admin.all_producers)
        self.members_of = CachedAnswers(self._members_of)
        self.looks: deque[Look] = deque(maxlen=_LOOKS)
        self._watching: asyncio.Task[None] | None = None
        self._watched = 0.0

    async def close(self) -> None:
        await end_tasks(self._watching)
        for kept in (
            self.places, self.topics, self.groups, self.brokers, self.lags, self.configs,
            self.groups_of, self.lags_of, self.counts_of, self.producers, self.members_of,
        ):  # fmt: skip
            await kept.close()
        await self.admin.close()
        await self.walker.close()

    def forget_lags(self) -> None:
        """Forgets the lags, since they have changed."""
        for kept in (self.lags, self.groups, self.groups_of, self.lags_of):
            kept.forget()

    async def _topics(self) -> list[TopicRow]:
        """Returns all topics, from a name server by name alone: what each broker has of tens of
        thousands takes a second."""
        queues: dict[str, int | None] = {}
        if self.of_broker:
            queues = {each.name: each.read_queue_nums for each in await self.admin.topics()}
        else:
            queues = dict.fromkeys(await self.admin.topic_names())
        places = await self.places.get()
        own = {name for place in places for name in (place.cluster, place.name)}
        return await asyncio.to_thread(_topic_rows, queues, own)

    async def with_counts(
        self, rows: Sequence[TopicRow], wait_s: float
    ) -> tuple[list[TopicRow], bool]:
        """Returns the rows of one page with their queues and messages, as far as these are counted
        in time, and whether more is to come."""
        known, more = await self._soon_of({row.name: row.name for row in rows}, wait_s)
        return [
            row if (of := known[row.name]) is None else replace(row, queues=of[0], messages=of[1])
            for row in rows
        ], more

    async def with_dead(
        self, rows: Sequence[GroupRow], wait_s: float
    ) -> tuple[list[GroupRow], bool]:
        """Returns the same of groups and their dead letters. Raises: ClientError."""
        there = {each.name for each in await self.topics.get() if each.kind == "dead letters"}
        topics = {row.name: DLQ_PREFIX + row.name for row in rows}
        asked = {name: topic for name, topic in topics.items() if topic in there}
        known, more = await self._soon_of(asked, wait_s)
        return [
            replace(row, dead=0 if row.name not in asked else of and of[1])
            for row in rows for of in (known.get(row.name),)
        ], more  # fmt: skip

    async def _soon_of(
        self, topics: Mapping[str, str], wait_s: float
    ) -> tuple[dict[str, tuple[int, int] | None], bool]:
        """Returns what is known in time of topics, by any names; None also of one that went
        meanwhile, and of one that nobody may ask for."""
        return await known_soon({
            name: (self.counts_of.of(topic), wait_s) for name, topic in topics.items()
        })  # fmt: skip

    async def _counts_of(self, topic: str) -> tuple[int, int]:
        """Returns the number of queues, and of the messages in them. Raises: NoRoute,
        ClientError."""
        if self.of_broker:
            masters = list((await self.masters()).values())
        else:
            code = RequestCode.GET_ROUTEINFO_BY_TOPIC
            answer = await self.admin.network.ask_servers(code, {"topic": topic})
            if answer.code:
                raise NoRoute(f"no broker serves the topic {topic}", topic)
            with reading(code.name, "the name server"):
                masters = sorted(parse_route(answer.body, topic).addresses(masters_only=True))
        ends = [
            each for found in await asyncio.gather(*(self._ends_at(at, topic) for at in masters))
            for each in found
        ]  # fmt: skip
        return len(ends), sum(each.count for each in ends)

    async def _ends_at(self, address: str, topic: str) -> list[QueueEnds]:
        code = RequestCode.GET_TOPIC_STATS_INFO
        answer = await self.admin.network.request(address, code, {"topic": topic})
        with reading(code.name, address):
            return queue_ends(mqjson.loads(answer.body or b"{}"))

    async def _groups_of(self, topic: str) -> list[tuple[str, int | None]]:
        names = (await self.admin.groups_of(topic))[:_GROUPS]
        lags = await asyncio.gather(*(self.walker.lag(group, topic) for group in names))
        return [
            (group, sum(lag.behind for lag in of_group))
            for group, of_group in zip(names, lags, strict=True)
        ]

    async def _lags_of(self, group: str) -> list[QueueLag]:
        return await self.walker.lag(group)

    async def _members_of(self, group: str) -> tuple[GroupMembers | None]:
        return (await self.admin.members(group),)

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
        """Returns all groups by name, and not how far they are. Raises: ClientError."""
        return [GroupRow(name, None, None, None) for name in sorted(await self.configs.get())]

    async def group(self, name: str) -> SubscriptionGroup | None:
        """Returns the settings of a group; None: it has none. Raises: ClientError."""
        found = (await self.configs.get()).get(name)
        with reading("GET_ALL_SUBSCRIPTIONGROUP_CONFIG", "a broker"):
            return group_from_json(name, found) if found is not None else None

    async def check_group(self, name: str) -> None:
        """Checks that a group is known: one that a visitor made up is not asked for. Those that
        have no settings are known by what they have committed, which costs much more. Raises:
        NoRoute, ClientError."""
        if name in await self.configs.get():
            return
        if not any(each.name == name for each in await self.groups.get()):
            raise NoRoute(f"there is no group {name}", name)

    async def masters(self) -> dict[str, str]:
        """Returns addresses by broker name. Raises: ClientError."""
        return {each.name: each.address for each in await self.places.get() if each.id == 0}

    async def address_of(self, broker: str) -> str:
        """Returns the address of a broker. Raises: Misuse for one that is not of this cluster:
        nobody may be asked whom a visitor names."""
        known = await self.masters()
        if broker not in known:
            raise Misuse(f"no master is named {broker!r:.100}")
        return known[broker]

    # ---- messages ----

    async def read(self, queue: MessageQueue, offset: int, most: int) -> list[RecordView]:
        """Returns messages of a queue from an offset on. Raises: ClientError."""
        address = await self.address_of(queue.broker)
        end = min(await self.admin.offset_of(address, queue, "last"), offset + most)
        return [
            RecordView(bytes(message.record))
            async for message in self.admin.read(address, queue, offset, end)
        ]

    async def by_key(self, topic: str, key: str) -> list[Placed]:
        """Returns the messages with a key, or with a client's id. Raises: ClientError."""
        masters = await self.masters()
        by_broker = await asyncio.gather(*(
            messages_of_broker(self.admin.network, broker, address, topic, key, _FOUND)
            for broker, address in masters.items()
        ))  # fmt: skip
        return [
            (broker, RecordView(bytes(message.record)))
            for broker, messages in zip(masters, by_broker, strict=True)
            for message in messages
        ]

    async def by_id(self, text: str) -> list[Placed]:
        """Returns the message of an offset id, which names a broker of this cluster. Raises:
        Misuse, ClientError."""
        try:
            place = offset_id_of(text)
        except ValueError:
            raise Misuse("this is not an offset id; with the topic, try it as a key") from None
        address = address_text((place.host, place.port))
        for each in await self.places.get():
            if each.address == address:
                found = await self.admin.message(text)
                return [(each.name, RecordView(bytes(found.record)))] if found is not None else []
        raise Misuse(f"the id names {address}, which is not of this cluster")

    async def by_time(self, topic: str, ms: int) -> list[tuple[str, int, int, RecordView | None]]:
        """Returns of each queue the first message stored then or later. Raises: ClientError."""
        found: list[tuple[str, int, int, RecordView | None]] = []
        for ends in (await self.admin.topic(topic)).queues:
            address = await self.address_of(ends.queue.broker)
            at = await self.admin.offset_of(address, ends.queue, ms)
            views = await self.read(ends.queue, at, 1)
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
        """Returns what is there now. A broker that does not answer is a problem and not the end."""
        look = await self._brokers()
        try:
            look.lags = await self.walker.all_lags()
        except ClientError as failed:
            look.problems.append(str(failed))
        return look

    async def _brokers(self) -> Look:
        """Returns the same without lags, which every group of a large cluster costs."""
        look = Look(time.monotonic())
        places: list[BrokerPlace] = []
        try:
            places = await self.admin.cluster()
        except ClientError as failed:
            look.problems.append(str(failed))
        masters = [place.address for place in places if place.id == 0]
        for found in await asyncio.gather(
            *(self.admin.broker(each) for each in masters), return_exceptions=True
        ):
            if isinstance(found, ClientError):
                look.problems.append(str(found))
            elif isinstance(found, BaseException):
                raise found
            else:
                look.brokers.append(found)
        return look


def _topic_rows(queues: Mapping[str, int | None], own: set[str]) -> list[TopicRow]:
    """Returns the rows of topics. own: names of the cluster and of brokers, which are topics,
    too."""
    by_kind: dict[str, list[TopicRow]] = {kind: [] for kind in KINDS_OF_TOPICS}
    for name, count in queues.items():
        kind = "system" if name in own else kind_of(name)
        by_kind[kind].append(TopicRow(name, kind, count, None))
    return [row for rows in by_kind.values() for row in rows]


def _group_rows(names: set[str], lags: Iterable[QueueLag]) -> list[GroupRow]:
    by_group: dict[str, list[QueueLag]] = {}
    for each in lags:
        by_group.setdefault(each.group, []).append(each)
    return [
        GroupRow.of(name, by_group.get(name, ()), None) for name in sorted(names | by_group.keys())
    ]
