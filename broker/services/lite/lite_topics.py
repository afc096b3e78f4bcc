"""Lite topics of a broker: messages to the clients that subscribe, in order, each to one client of
a group; acknowledgements; where a group reads on; lite topics that expire.

Upstream: LiteEventDispatcher, PopLiteMessageProcessor, LiteSubscriptionRegistryImpl,
AbstractLiteLifecycleManager. Events, pops and acknowledgements are served by the core (csrc/lite);
here are decisions that are rare. What is out and not acknowledged is an ordered batch of the core
(csrc/pop), so that it survives a restart; upstream forgets it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)  # fmt: skip
from typing import Any, NamedTuple

from broker.hot.core import Core
from broker.hot.ordered import DONE, STALE, OrderedBatch, OrderedBatches
from broker.loop.safe_log import SafeLogger
from broker.loop.turns import Pieces
from broker.services.config import Config
from broker.services.groups import BIND_TOPIC, Groups
from broker.services.lite.kept import KeptClient, KeptSubscriptions
from broker.services.lite.names import CLIENT_MAX, parts_of, queue_of, queues_below
from broker.services.lite.registry import LiteClient, LiteRegistry
from broker.services.lite.start import asked_offset
from broker.services.offsets import ConsumerOffsets
from broker.services.topics import Topics
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import ONEWAY, Command, Refused
from broker.wire.handlers import Peer
from pystore.errors import StoreError
from pystore.files import FILE_MAX_BYTES
from pystore.meta.configfiles import SubscriptionGroup
from pystore.store.light_queues import LightQueue, LightQueues

__all__ = ["WILDCARD", "LiteChange", "LiteTopics", "is_lite"]

log = SafeLogger("broker.services.lite")

#: Attributes of groups.
_MODEL = "lite.sub.model"
_RESET_EXCLUDED = "lite.sub.reset.offset.exclusive"
_RESET_REMOVED = "lite.sub.reset.offset.unsubscribe"
_EVENTS = "lite.sub.client.max.event.cnt"
WILDCARD = "lite.sub.wildcard"
#: Attribute of topics: minutes.
EXPIRATION = "lite.topic.expiration"

#: A client that has not synchronized for so long is forgotten, as upstream's check has it.
_CLIENT_S = 180.0
#: Between two looks at clients that are gone, and at those whose events had no room.
_SWEEP_S = 10.0
#: Between two looks at messages that were sent without a lite topic.
_PLAIN_S = 60.0
#: Of the work that deletes what has expired: a piece, and what is between two of them. A send
#: waits for a piece, at the worst: the core's lock goes to who asks first when it is free.
_PIECE_S, _RESTS_S = 0.0002, 0.001
#: A client that has not polled for so long loses the events that wait for it.
_AWAY_MS = 10_000
#: So many clients there may be, however few subscriptions.
_CLIENTS_LEAST = 1000
#: Names that one call of the core takes.
_TOGETHER = 512


def is_lite(attributes: Mapping[str, str]) -> bool:
    """Returns whether a topic with these attributes has lite topics."""
    return attributes.get("message.type") == "LITE"


class LiteChange(NamedTuple):
    """What became of a change: `outcome` as broker.hot.ordered has it."""

    outcome: int
    invisible_ms: int


class LiteTopics:
    """The lite topics of a broker. It lives on the event loop."""

    def __init__(
        self,
        lights: LightQueues,
        config: Config,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        core: Core,
        batches: OrderedBatches,
        now_ms: Callable[[], int],
        kept: KeptSubscriptions,
    ) -> None:
        self.lights = lights
        self._kept, self._saved, self._born_ns = kept, 0, time.time_ns()
        self._config, self._topics, self._groups = config, topics, groups
        self._offsets, self._batches, self.now_ms = offsets, batches, now_ms
        self.registry = LiteRegistry(core)
        #: By group and id: where a client is told that it lost a lite topic.
        self._peers: dict[tuple[str, str], Peer] = {}
        #: Tells a client that another one has its lite topic: client, lite topic.
        self.on_excluded: Callable[[LiteClient, str], None] = self._tell_excluded
        #: Groups that have, or had, clients here.
        self._joined: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Writes the file of subscriptions; it ends by itself, as no write of it may outlive it.
        self._keeper: asyncio.Task[None] | None = None
        self._stops = asyncio.Event()
        self.is_on = False
        #: Messages of which the log has said that they came without a lite topic.
        self._told_plain = 0
        #: Lite topics that have expired.
        self.expired = 0
        #: Of a slave, monotonic: when its master last said that it still has the same clients.
        self._confirmed_s = 0.0

    # ---- life ----

    async def start(self) -> None:
        """Begins to serve, when there is a topic that has lite topics. Raises: StoreError."""
        if any(is_lite(row.attributes) for row in self._topics.all()):
            turns = Pieces()
            for _ in self._begin():
                await turns.next()

    def begin(self) -> None:
        """Serves lite topics from now on. Raises: StoreError."""
        if not self.is_on:
            for _ in self._begin():
                pass

    def _begin(self) -> Iterator[None]:
        """Begins, and has the clients of before a restart, until they come back or are gone for
        good: what they have to read waits for their first pop. All of them, before anybody
        subscribes. Raises: StoreError."""
        self.lights.begin()
        self.registry.begin()
        self.registry.expect(self._kept.names())
        self.is_on = True
        for _ in self._have(self._kept.read()):
            yield
        self._saved = self.registry.totals().changes
        for work in (self._expire_forever(), self._sweep_forever(), self._watch_forever()):
            self._run(work)
        self._keeper = asyncio.get_running_loop().create_task(self._keep_forever())

    def _have(self, rows: Iterable[KeptClient]) -> Iterator[KeptClient]:
        """Has clients as another broker, or this one before, had them, and yields the rows between
        its steps."""
        before: tuple[str, str] | None = None
        for row in rows:
            who = row.group, row.client_id
            self._joined.add(row.group)
            self.registry.join(*who, row.parent, self._event_room(row.group))
            if who != before:
                self.registry.begin_set(*who)
            at = 0
            while at < len(row.names):
                at = self.registry.add_below(*who, row.parent, row.names, at)
                yield row
            if row.wild:
                self.registry.add_wild(*who)
            before = who if row.more else None
            yield row
            while not row.more and self.registry.end_set(*who):
                yield row

    @property
    def kept_mark(self) -> str:
        """Says which subscriptions the file has."""
        return f"{self._born_ns}-{self._saved}"

    async def kept_piece(self, mark: str, begin: int | None) -> tuple[str, bytes, int]:
        """Returns what kept_mark is, the file from `begin` on, or from its own begin when `mark` is
        another one's, and where it goes on; 0: nowhere. None: all of the file. Raises: OSError."""
        most = FILE_MAX_BYTES if begin is None else 0
        while True:
            now = self.kept_mark
            at = begin or 0 if mark == now else 0
            found, following = await asyncio.to_thread(self._kept.piece, at, most)
            if now == self.kept_mark:
                return now, found, following

    async def take_over(self, clients: Iterable[KeptClient], *, all_there_are: bool) -> None:
        """Has clients as another broker of this name has them: a slave has its master's, and no
        others; a master that returns has those of the slave that acted, too. Raises:
        OutOfMemory, ValueError for a file of them that is malformed."""
        gone = {(each.group, each.client_id) async for each in self.registry.walk()}
        turns = Pieces()
        for client in self._have(clients):
            await turns.next()
            gone.discard((client.group, client.client_id))
        for who in gone if all_there_are else ():
            await turns.next()
            self._leave(*who)

    def confirm(self) -> None:
        """Notes that the master still has the clients that were taken over: they say what they
        subscribe to there, and not here."""
        self._confirmed_s = time.monotonic()

    async def _to_keep(self) -> AsyncGenerator[tuple[LiteClient, bytes, bool], None]:
        """Yields each client that subscribes to something, with the names of that, some at a time,
        and whether more of them follow. What comes meanwhile may be missing, and counts as a
        change."""
        async for client in self.registry.walk():
            if client.wild:
                yield client, b"", False
            elif client.queues:
                some, queues = b"", self.registry.queues(client.group, client.client_id)
                async with contextlib.aclosing(queues):
                    async for following in queues:
                        if some:
                            yield client, some, True
                        some = following
                yield client, some, False

    async def _keep_forever(self) -> None:
        """Keeps the file as the subscriptions are, until stop(), and then once more."""
        stops = False
        while not stops:
            # The more there is to write, the less often.
            pause = max(1.0, self.registry.totals().pairs / 50_000)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    stops = await self._stops.wait()
            changes = self.registry.totals().changes
            if changes == self._saved:
                continue
            try:
                async with contextlib.aclosing(self._to_keep()) as clients:
                    await self._kept.write(clients)
            except OSError as failed:
                log.warning("Cannot save subscriptions to lite topics now: %s", failed)
                continue
            self._saved = changes

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self.is_on:
            return
        self._stops.set()
        if self._keeper is not None:
            await asyncio.gather(self._keeper, return_exceptions=True)
        self.is_on = False
        self.registry.end()

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- groups and topics ----

    def bound_to(self, group: SubscriptionGroup | None) -> str:
        """Returns the topic whose lite topics a group reads; empty: it is not a group of
        lite topics."""
        return "" if group is None else group.attributes.get(BIND_TOPIC, "")

    def _attribute(self, group: str, name: str) -> str:
        found = self._groups.get(group)
        return "" if found is None else found.attributes.get(name, "")

    def is_wild(self, group: str) -> bool:
        found = self._groups.get(group)
        return found is not None and WILDCARD in found.attributes

    def _is_exclusive(self, group: str) -> bool:
        return self._attribute(group, _MODEL) == "Exclusive"

    def _event_room(self, group: str) -> int:
        return int(self._attribute(group, _EVENTS) or self._config["maxClientEventCount"])

    def groups_of(self, parent: str) -> list[str]:
        """Returns the groups that are bound to a topic."""
        return [
            each.name for each in self._groups.all() if each.attributes.get(BIND_TOPIC) == parent
        ]

    # ---- subscriptions ----

    def join(self, group: str, client_id: str, parent: str, peer: Peer | None = None) -> None:
        """Notes that a client is there. Raises: Refused for one too many, or for an id that is
        too long; OutOfMemory."""
        if self.registry.get(group, client_id) is None:
            self._check_new(client_id)
        self._joined.add(group)
        self.registry.join(group, client_id, parent, self._event_room(group))
        if peer is not None:
            self._peers[group, client_id] = peer

    def _check_new(self, client_id: str) -> None:
        """Checks that there may be another client: anybody can invent ids."""
        if len(client_id.encode()) > CLIENT_MAX:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"the client id has more than {CLIENT_MAX} bytes: {client_id:.80}",
            )
        most = max(int(self._config["maxLiteSubscriptionCount"]), _CLIENTS_LEAST)
        if self.registry.totals().clients >= most:
            raise Refused(
                ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"the broker has {most} clients of lite topics, one more is too many:"
                " maxLiteSubscriptionCount",
            )

    async def add(
        self, group: str, client_id: str, parent: str, names: Iterable[str],
        option: dict[str, Any] | None, peer: Peer | None,
    ) -> None:  # fmt: skip
        """Subscribes a client to lite topics beside those that it has. Raises: Refused,
        OutOfMemory."""
        self.join(group, client_id, parent, peer)
        queues = [queue_of(parent, name) for name in names]
        if option is None and not self._is_exclusive(group):
            await self._add_plain(group, client_id, queues)
        else:
            await self._add_each(group, client_id, queues, option)

    async def _add_plain(self, group: str, client_id: str, queues: Sequence[str]) -> None:
        turns = Pieces()
        for at in range(0, len(queues), _TOGETHER):
            await turns.next()
            self.registry.add(group, client_id, queues[at : at + _TOGETHER])

    async def _add_each(
        self, group: str, client_id: str, queues: Sequence[str], option: dict[str, Any] | None
    ) -> None:
        turns, exclusive = Pieces(), self._is_exclusive(group)
        for queue in queues:
            await turns.next()
            offset = asked_offset(self.lights, queue, option)
            if exclusive:
                self._exclude_others(group, client_id, queue)
            if offset is not None and offset != self._offsets.get(group, queue, 0):
                self._set_offset(group, queue, offset)
            self.registry.add(group, client_id, [queue])

    def _exclude_others(self, group: str, client_id: str, queue: str) -> None:
        for other in self.registry.subscribers(queue, group):
            if other.client_id != client_id:
                self._exclude(other, queue)

    def _exclude(self, client: LiteClient, queue: str) -> None:
        self.registry.remove(client.group, client.client_id, queue)
        if self._attribute(client.group, _RESET_EXCLUDED) == "true":
            self._set_offset(client.group, queue, 0)
        parts = parts_of(queue)
        if parts is not None:
            self.on_excluded(client, parts[1])

    def _tell_excluded(self, client: LiteClient, name: str) -> None:
        """Tells a client over the connection of its last subscription that a lite topic is another
        one's now."""
        peer = self._peers.get((client.group, client.client_id))
        if peer is not None and not peer.closed:
            ext = {"liteTopic": name, "consumerGroup": client.group, "clientId": client.client_id}
            peer.send(Command(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, ext, flag=ONEWAY))

    def _set_offset(self, group: str, queue: str, offset: int) -> None:
        """Has the group read on elsewhere; what is out is out no more."""
        self._batches.forget(queue, group, 0)
        self._offsets.commit(group, queue, 0, offset)

    async def remove(self, group: str, client_id: str, parent: str, names: Iterable[str]) -> None:
        """Unsubscribes a client from lite topics. One that was not known is from now on, as at
        Apache's. Raises: Refused, OutOfMemory."""
        self.join(group, client_id, parent)
        turns = Pieces()
        for name in names:
            await turns.next()
            queue = queue_of(parent, name)
            if self.registry.remove(group, client_id, queue):
                if self._attribute(group, _RESET_REMOVED) == "true":
                    self._set_offset(group, queue, 0)
                self.registry.give(group, queue)  # another client of the group may go on

    async def replace(
        self, group: str, client_id: str, parent: str, names: Iterable[str], peer: Peer | None
    ) -> None:
        """Has a client subscribe to these lite topics and no others. Raises: Refused,
        OutOfMemory, BadArgument for a client that has left meanwhile."""
        self.join(group, client_id, parent, peer)
        if self.is_wild(group):
            self.registry.add_wild(group, client_id)
            return
        queues, turns = [queue_of(parent, name) for name in names], Pieces()
        if self._is_exclusive(group):
            for queue in queues:
                await turns.next()
                self._exclude_others(group, client_id, queue)
        self.registry.begin_set(group, client_id)
        self.registry.add(group, client_id, queues)  # at once: no other set comes between
        while self.registry.end_set(group, client_id):
            await turns.next()

    def leave(self, client: LiteClient) -> None:
        """Forgets a client; what waited for it goes to others."""
        self._leave(client.group, client.client_id)

    def _leave(self, group: str, client_id: str) -> None:
        self._peers.pop((group, client_id), None)
        self.registry.leave(group, client_id)

    async def leave_group(self, group: str) -> None:
        """Forgets the clients of a group that is deleted, and answers their pops."""
        if group not in self._joined:
            return  # without a walk over all clients
        self._joined.discard(group)  # who joins from now on counts again
        async for client in self.registry.walk():
            if client.group == group:
                self.leave(client)

    async def walk(self, parent: str = "") -> AsyncIterator[LightQueue]:
        """Yields the queues of all lite topics, or of those of one topic, while others have their
        turns. What it yields may be deleted."""
        begin, turns, prefix = 0, Pieces(), queues_below(parent) if parent else ""
        while begin >= 0:
            found, begin = self.lights.some(begin)
            for each in found:
                await turns.next()
                if each.name.startswith(prefix):
                    yield each

    # ---- events ----

    def dispatch(self, client: LiteClient) -> None:
        """Has a client's pops look at all of its queues."""
        self.registry.dispatch(client.group, client.client_id)

    async def dispatch_again(self) -> None:
        """Makes events of all that there is to read."""
        async for client in self.registry.walk():
            self.dispatch(client)

    async def dispatch_group(self, group: str) -> None:
        async for client in self.registry.walk():
            if client.group == group:
                self.dispatch(client)

    async def _sweep_forever(self) -> None:
        """Forgets clients that are gone, takes events from those who do not poll, and looks again
        where events had no room."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            async for client in self.registry.walk():
                self._sweep(client)

    def _sweep(self, client: LiteClient) -> None:
        seen_s = max(client.updated, self._confirmed_s)
        if time.monotonic() - seen_s > _CLIENT_S and not client.polls:
            self.leave(client)
            return
        if client.overflowed and client.polls:
            self.dispatch(client)
        away = client.accessed_ms < self.now_ms() - _AWAY_MS
        if client.events and not client.polls and away:
            self.registry.hand_over(client.group, client.client_id)

    def look(self) -> None:
        """Looks at once for what has come back, after the clock was shifted."""
        if self.is_on:
            self.registry.look()

    # ---- acknowledgements ----

    @property
    def batches(self) -> int:
        """Ordered batches that are out, those of lite topics among them."""
        return len(self._batches)

    def ack(self, group: str, queue: str, pop_ms: int, offset: int) -> int:
        """Acknowledges a message of the batch that was popped then. Nothing is out of a batch that
        is over: its messages come again. Returns the outcome as broker.hot.ordered has it."""
        outcome = self._batches.ack((queue, group, 0), pop_ms, [offset])
        if outcome == DONE:
            self.registry.settle(group, queue)
        return outcome

    @property
    def noted_to(self) -> int:
        """Returns the end of the record in the log, of the last change of what is out; 0: those are
        not in the log."""
        return self._batches.noted_to

    def change(
        self, group: str, queue: str, pop_ms: int, offset: int, invisible_ms: int, suspend: bool
    ) -> LiteChange:
        """Makes a message visible again in so many ms, or with `suspend` all of its batch; that
        delivery then counts as none."""
        place, visible_ms = (queue, group, 0), self.now_ms() + invisible_ms
        made = visible_ms - pop_ms
        if suspend:
            old = self._batches.get(place)
            if old is None or old.pop_ms != pop_ms or offset not in old.offsets:
                return LiteChange(STALE, made)
            times = {each: old.times.get(each, 0) - 1 for each in old.offsets}
            self._batches.put(
                place,
                OrderedBatch(
                    old.attempt, pop_ms, made, old.offsets, times, {}, old.acked, old.used_ms
                ),
                note=True,
            )
            outcome = DONE
        else:
            outcome = self._batches.change(place, pop_ms, offset, visible_ms)
        if outcome == DONE:
            self.registry.settle(group, queue)
        return LiteChange(outcome, made)

    # ---- what goes ----

    async def delete(
        self, queues: Collection[str], groups: Collection[str], turns: Pieces, before_ms: int = 0
    ) -> int:
        """Deletes lite topics, and what the groups keep of them, but for those to which a message
        came since before_ms. Returns how many are gone. Raises: StoreError."""
        gone = 0
        async with self._offsets.forgetting(groups, queues, turns):
            for queue in queues:
                await turns.next()
                self.lights.make_room()  # not while network threads wait for the core
                gone += self.registry.delete(queue, groups, before_ms)
        return gone

    async def delete_below(self, parent: str) -> int:
        """Deletes all lite topics of a topic, and returns how many. A power failure may bring some
        of them back until the store is flushed. Raises: StoreError."""
        if not self.is_on:
            return 0
        groups, gone, turns, some = self.groups_of(parent), 0, Pieces(), list[str]()
        async for each in self.walk(parent):
            some.append(each.name)
            if len(some) == _TOGETHER:
                gone += await self.delete(some, groups, turns)
                some.clear()
        return gone + await self.delete(some, groups, turns)

    # ---- what nobody gets ----

    def plain_sends(self) -> dict[str, int]:
        """Returns how many messages were sent without a lite topic to topics of type LITE. They are
        stored, as Apache's brokers do, and groups of lite topics do not get them."""
        lites = (row.name for row in self._topics.all() if is_lite(row.attributes))
        return {name: count for name in lites if (count := self.registry.plain_sends(name))}

    def tell_plain(self) -> None:
        """Logs those that came since the last time."""
        found = self.plain_sends()
        count, self._told_plain = sum(found.values()) - self._told_plain, sum(found.values())
        if count > 0:
            most = max(found, key=found.__getitem__)
            log.warning(
                "%d messages came without a lite topic to topics of type LITE, %d in all to %.200s:"
                " groups of lite topics do not get them",
                count, found[most], most,
            )  # fmt: skip

    async def _watch_forever(self) -> None:
        while True:
            await asyncio.sleep(_PLAIN_S)
            self.tell_plain()

    # ---- what expires ----

    async def expire(self) -> int:
        """Deletes the lite topics whose last message is older than their topic says, and returns
        how many. Raises: StoreError."""
        before, turns = self.expired, Pieces(_PIECE_S, _RESTS_S)
        for row in list(self._topics.all()):
            while gone := await self._expire_some(row.name, turns):
                self.expired += gone
        return self.expired - before

    async def _expire_some(self, parent: str, turns: Pieces) -> int:
        """Deletes some of a topic's lite topics that are due, by what it says by now. 0: there are
        no more, or their last messages are such that nobody can read yet. Raises: StoreError."""
        row = self._topics.get(parent)
        says = row.attributes if row is not None and is_lite(row.attributes) else {}
        minutes = int(says.get(EXPIRATION, "-1"))
        now_ms, age_ms = self.now_ms(), max(minutes * 60_000, int(self._config["minLiteTTl"]))
        names = self.lights.expired(queues_below(parent), now_ms, age_ms) if minutes > 0 else []
        if not names:
            return 0
        return await self.delete(names, self.groups_of(parent), turns, now_ms - age_ms)

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(int(self._config["liteTtlCheckInterval"]) / 1000)
            try:
                gone = await self.expire()
            except StoreError as failed:
                log.warning("Cannot expire lite topics now: %s", failed)
                continue
            if gone:
                log.info("%d lite topics have expired", gone)
