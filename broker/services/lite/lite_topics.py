"""Lite topics of a broker: messages to the clients that subscribe, in order, each to one client of
a group; acknowledgements; where a group reads on; lite topics that expire.

Upstream: LiteEventDispatcher, PopLiteMessageProcessor, LiteSubscriptionRegistryImpl,
AbstractLiteLifecycleManager. What is out and not acknowledged is an ordered batch of the core
(csrc/remoting), so that it survives a restart; upstream forgets it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from broker.hot.ordered import DONE, STALE, OrderedBatch, OrderedBatches
from broker.loop.safe_log import SafeLogger
from broker.loop.turns import Pieces
from broker.services.config import Config
from broker.services.groups import Groups
from broker.services.lite.kept import KeptSubscriptions
from broker.services.lite.names import parts_of, queue_of, queues_below
from broker.services.lite.registry import LiteClient, LiteRegistry
from broker.services.lite.start import asked_offset
from broker.services.offsets import ConsumerOffsets
from broker.services.topics import Topics
from broker.wire.codes import RequestCode
from broker.wire.command import ONEWAY, Command
from broker.wire.handlers import Peer
from pystore.errors import StoreClosed, StoreError
from pystore.lights import Lights
from pystore.meta.configfiles import SubscriptionGroup

__all__ = ["BIND_TOPIC", "WILDCARD", "LiteBatch", "LiteChange", "LiteTopics", "is_lite"]

log = SafeLogger("broker.services.lite")

#: Attributes of groups.
BIND_TOPIC = "lite.bind.topic"
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
#: A client that has not polled for so long loses the events that wait for it.
_AWAY_MS = 10_000
_BATCH_MAX = 64


def is_lite(attributes: Mapping[str, str]) -> bool:
    """Returns whether a topic with these attributes has lite topics."""
    return attributes.get("message.type") == "LITE"


class LiteBatch(NamedTuple):
    """What one lite topic gave to a pop: whole records, and how often each was popped before."""

    queue: str
    records: list[bytes]
    offsets: list[int]
    times: list[int]


class LiteChange(NamedTuple):
    """What became of a change: `outcome` as broker.hot.ordered has it."""

    outcome: int
    invisible_ms: int


class LiteTopics:
    """The lite topics of a broker. It lives on the event loop."""

    def __init__(
        self,
        lights: Lights,
        config: Config,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        batches: OrderedBatches,
        now_ms: Callable[[], int],
        kept: KeptSubscriptions,
    ) -> None:
        self.lights = lights
        self._kept, self._saved = kept, 0
        self._config, self._topics, self._groups = config, topics, groups
        self._offsets, self._batches, self.now_ms = offsets, batches, now_ms
        self.registry = LiteRegistry()
        #: Tells a client that another one has its lite topic: client, lite topic.
        self.on_excluded: Callable[[LiteClient, str], None] = _tell_excluded
        self._fd = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        #: By group and queue: when what is out comes back, in ms, and who sees to it.
        self._due: dict[tuple[str, str], tuple[int, asyncio.TimerHandle]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    # ---- life ----

    def start(self) -> None:
        """Begins to serve, when there is a topic that has lite topics. Raises: StoreError."""
        if any(is_lite(row.attributes) for row in self._topics.all()):
            self.begin()

    def begin(self) -> None:
        """Serves lite topics from now on. Raises: StoreError."""
        if self._fd >= 0:
            return
        self.lights.begin()
        self._loop = asyncio.get_running_loop()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop.add_reader(self._fd, self._news)
        self.lights.listen(self._fd)
        self._take_kept()
        for work in (self._expire_forever(), self._sweep_forever(), self._keep_forever()):
            self._run(work)

    @property
    def is_on(self) -> bool:
        return self._fd >= 0

    def _take_kept(self) -> None:
        """Has the clients of before a restart, until they come back or are gone for good: what
        they have to read waits for their first pop."""
        for group, client_id, parent, is_wild, names in self._kept.read():
            client = self.registry.made(group, client_id, parent)
            for name in names:
                self.registry.add(client, queue_of(parent, name))
            self.dispatch(client)
            if is_wild and self.registry.add_wild(client):
                self._run(self._dispatch_all(group, parent))
        self._saved = self.registry.changes

    def _text(self) -> bytes:
        wild = (client for clients in self.registry.wild.values() for client in clients)
        return self._kept.text(self.registry.all(), wild)

    async def _keep_forever(self) -> None:
        while not self._stopped:
            # The more there is to write, the less often.
            await asyncio.sleep(max(1.0, self.registry.pairs / 50_000))
            changes = self.registry.changes
            if changes == self._saved:
                continue
            try:
                await asyncio.to_thread(self._kept.write, self._text())
            except OSError as failed:
                log.warning("Subscriptions to lite topics are not kept just now: %s", failed)
                continue
            self._saved = changes

    async def stop(self) -> None:
        self._stopped = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _, handle in self._due.values():
            handle.cancel()
        if self.is_on and self.registry.changes != self._saved:
            with contextlib.suppress(OSError):
                self._kept.write(self._text())
        for client in self.registry.all():
            while client.polls:
                client.wake()
        if self._fd >= 0 and self._loop is not None:
            with contextlib.suppress(StoreClosed):
                self.lights.listen(-1)
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

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

    def _wild_groups(self, queue: str) -> set[str]:
        parts = parts_of(queue)
        return set() if parts is None else {
            each.group
            for each in self.registry.wild.get(parts[0], ())
        }  # fmt: skip

    # ---- subscriptions ----

    def add(
        self, group: str, client_id: str, parent: str, names: Iterable[str],
        option: dict[str, Any] | None, peer: Peer | None,
    ) -> None:  # fmt: skip
        """Subscribes a client to lite topics beside those that it has. Raises: Refused."""
        client = self.registry.made(group, client_id, parent)
        client.peer = peer
        for name in names:
            self._add_one(client, queue_of(parent, name), option)

    def _add_one(
        self, client: LiteClient, queue: str, option: dict[str, Any] | None = None
    ) -> None:
        offset = asked_offset(self.lights, queue, option)
        if self._is_exclusive(client.group):
            for other in self.registry.subscribers(queue, client.group):
                if other is not client:
                    self._exclude(other, queue)
        if offset is not None and offset != self._offsets.get(client.group, queue, 0):
            self._set_offset(client.group, queue, offset)
        if self.registry.add(client, queue) and self.lights.range(queue) is not None:
            self._give(queue, client.group)

    def _exclude(self, client: LiteClient, queue: str) -> None:
        self.registry.remove(client, queue)
        if self._attribute(client.group, _RESET_EXCLUDED) == "true":
            self._set_offset(client.group, queue, 0)
        parts = parts_of(queue)
        if parts is not None:
            self.on_excluded(client, parts[1])

    def _set_offset(self, group: str, queue: str, offset: int) -> None:
        """Has the group read on elsewhere; what is out is out no more."""
        self._batches.forget(queue, group, 0)
        self._undue(group, queue)
        self._offsets.commit(group, queue, 0, offset)

    def remove(self, group: str, client_id: str, parent: str, names: Iterable[str]) -> None:
        """Unsubscribes a client from lite topics."""
        client = self.registry.made(group, client_id, parent)
        for name in names:
            queue = queue_of(parent, name)
            if self.registry.remove(client, queue):
                if self._attribute(group, _RESET_REMOVED) == "true":
                    self._set_offset(group, queue, 0)
                self._give(queue, group)  # another client of the group may go on

    def replace(
        self, group: str, client_id: str, parent: str, names: Iterable[str], peer: Peer | None
    ) -> None:
        """Has a client subscribe to these lite topics and no others. Raises: Refused."""
        client = self.registry.made(group, client_id, parent)
        client.peer = peer
        if self.is_wild(group):
            if self.registry.add_wild(client):
                self._run(self._dispatch_all(group, parent))
            return
        wanted = {queue_of(parent, name) for name in names}
        for queue in client.queues - wanted:
            self.registry.remove(client, queue)
        for queue in wanted - client.queues:
            self._add_one(client, queue)

    def leave(self, client: LiteClient) -> None:
        """Forgets a client; what waited for it goes to others."""
        for queue in self.registry.drop(client):
            self._give(queue, client.group)

    # ---- events ----

    def _news(self) -> None:
        """Gives the queues that got messages to clients."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        try:
            while names := self.lights.news():
                for queue in names:
                    for group in {*self.registry.groups_at(queue), *self._wild_groups(queue)}:
                        self._give(queue, group)
        except StoreClosed:
            return

    def _give(self, queue: str, group: str) -> None:
        """Makes an event of a queue for one client of the group."""
        client = self.registry.choose(queue, group, self._event_room(group))
        if client is not None:
            client.events[queue] = None
            client.wake()

    async def _dispatch_all(self, group: str, parent: str) -> None:
        """Makes events of all lite topics of a topic in which a wildcard group has something to
        read."""
        begin, turns, prefix = 0, Pieces(), queues_below(parent)
        while begin >= 0:
            found, begin = self.lights.some(begin)
            for each in found:
                await turns.next()
                if each.name.startswith(prefix) and self._has_more(group, each.name, each.high):
                    self._give(each.name, group)

    def _has_more(self, group: str, queue: str, high: int) -> bool:
        return (self._offsets.get(group, queue, 0) or 0) < high

    def dispatch(self, client: LiteClient) -> None:
        """Makes events of all queues of a client in which there is something to read."""
        client.overflowed = False
        for queue in client.queues:
            found = self.lights.range(queue)
            if found is not None and self._has_more(client.group, queue, found[1]):
                self._give(queue, client.group)

    def dispatch_group(self, group: str) -> None:
        if self.is_wild(group):
            self._run(self._dispatch_all(group, self._attribute(group, BIND_TOPIC)))
            return
        for client in self.registry.of_group(group):
            self.dispatch(client)

    async def _sweep_forever(self) -> None:
        """Forgets clients that are gone, takes events from those who do not poll, and looks again
        where events had no room."""
        while not self._stopped:
            await asyncio.sleep(_SWEEP_S)
            now, now_ms = time.monotonic(), self.now_ms()
            for client in self.registry.all():
                if now - client.updated > _CLIENT_S and not client.polls:
                    self.leave(client)
                    continue
                if client.overflowed and len(client.events) < self._event_room(client.group):
                    self.dispatch(client)
                if client.events and not client.polls and client.accessed_ms < now_ms - _AWAY_MS:
                    self._hand_over(client)

    def _hand_over(self, client: LiteClient) -> None:
        """Gives the events of a client that does not poll to others, where there are any."""
        for queue in list(client.events):
            others = [
                each for each in self.registry.subscribers(queue, client.group)
                if each is not client and each.polls
            ]  # fmt: skip
            if others:
                del client.events[queue]
                others[0].events[queue] = None
                others[0].wake()

    # ---- popping ----

    def take(
        self, client: LiteClient, most: int, invisible_ms: int, attempt: str | None
    ) -> tuple[int, list[LiteBatch]]:
        """Hands out messages of the lite topics whose events wait for a client, `most` at most.
        Returns the time of the pop, and a batch a lite topic."""
        pop_ms = self.now_ms()
        client.accessed_ms = pop_ms
        found: list[LiteBatch] = []
        later: list[str] = []
        while most > 0 and client.events:
            queue = next(iter(client.events))
            del client.events[queue]
            batch, more = self._take_of(queue, client.group, most, pop_ms, invisible_ms, attempt)
            if batch is not None:
                found.append(batch)
                most -= len(batch.records)
            elif more:
                later.append(queue)
        for queue in later:
            client.events[queue] = None
        return pop_ms, found

    def _begin_at(self, group: str, queue: str, low: int, high: int) -> int:
        """Returns where a group reads on: a new one at the first message while the queue still has
        it, else at the last."""
        offset = self._offsets.get(group, queue, 0)
        if offset is None:
            offset = 0 if low == 0 else max(high - 1, 0)
            self._offsets.commit(group, queue, 0, offset)
        elif not low <= offset <= high:
            offset = min(max(offset, low), high)
            self._offsets.commit(group, queue, 0, offset)
        return offset

    def _take_of(
        self, queue: str, group: str, most: int, pop_ms: int, invisible_ms: int,
        attempt: str | None,
    ) -> tuple[LiteBatch | None, bool]:  # fmt: skip
        """Hands out the next batch of one queue. The second says whether to come back at once."""
        place = queue, group, 0
        out = self._batches.find(place, attempt)
        if out is not None and out[1] > pop_ms:
            self._due_at(group, queue, out[1])
            return None, False
        low, high = self.lights.range(queue) or (0, 0)
        offset = self._begin_at(group, queue, low, high)
        if offset >= high:
            return None, False
        old = self._batches.get(place) if out is not None else None
        done = _done(old)
        records: list[bytes] = []
        offsets: list[int] = []
        keep: list[int] = []
        acked = 0
        while len(records) < most and len(keep) < _BATCH_MAX:
            some = self.lights.read(queue, offset, min(_BATCH_MAX - len(keep), most + len(done)))
            if not some:
                break
            for each in some:
                if len(records) == most or len(keep) == _BATCH_MAX:
                    break
                offset = each.offset + 1
                if each.offset in done or not each.raw:
                    acked |= 1 << len(keep)
                else:
                    records.append(each.raw)
                    offsets.append(each.offset)
                keep.append(each.offset)
        if not records:
            if keep:  # all of them are damaged or acknowledged
                self._batches.forget(queue, group, 0)
                self._offsets.commit(group, queue, 0, offset)
                return None, offset < high
            return None, False
        same = old is not None and attempt is not None and old.attempt == attempt
        times = {each: _times(old, each, same) for each in keep}
        held, more = _held_back(old, keep[-1], _BATCH_MAX - len(keep))
        for left in held + more:
            times[left] = old.times.get(left, 0) if old is not None else 0
        keep = sorted(keep + held + more)
        acked |= sum(1 << i for i, offset in enumerate(keep) if offset in more)
        self._batches.put(
            place,
            OrderedBatch(
                attempt, pop_ms, invisible_ms, tuple(keep),
                {k: n for k, n in times.items() if n}, dict.fromkeys(held, pop_ms), acked, pop_ms,
            ),
            note=True,
        )  # fmt: skip
        self._due_at(group, queue, pop_ms + invisible_ms)
        return LiteBatch(queue, records, offsets, [times[each] for each in offsets]), False

    # ---- what comes back ----

    def _undue(self, group: str, queue: str) -> None:
        due = self._due.pop((group, queue), None)
        if due is not None:
            due[1].cancel()

    def _due_at(self, group: str, queue: str, at_ms: int) -> None:
        """Gives the queue to a client again when what is out comes back."""
        self._undue(group, queue)
        wait_s = max(0, at_ms - self.now_ms()) / 1000 + 0.001
        loop = asyncio.get_running_loop()
        self._due[group, queue] = at_ms, loop.call_later(wait_s, self._came_back, group, queue)

    def look(self) -> None:
        """Looks at once for what has come back, after the clock was shifted."""
        now_ms = self.now_ms()
        for place, (at_ms, handle) in list(self._due.items()):
            if at_ms <= now_ms:
                handle.cancel()
                self._came_back(*place)

    def _came_back(self, group: str, queue: str) -> None:
        self._due.pop((group, queue), None)
        self._give(queue, group)

    def _settled(self, group: str, queue: str) -> None:
        """Sees when a group may go on, after an acknowledgement or another invisible time."""
        out = self._batches.find((queue, group, 0))
        now_ms = self.now_ms()
        if out is not None and out[1] > now_ms:
            self._due_at(group, queue, out[1])
            return
        self._undue(group, queue)
        found = self.lights.range(queue)
        if found is not None and self._has_more(group, queue, found[1]):
            self._give(queue, group)

    def ack(self, group: str, queue: str, pop_ms: int, offset: int) -> int:
        """Acknowledges a message of the batch that was popped then. Nothing is out of a batch that
        is over: its messages come again. Returns the outcome as broker.hot.ordered has it."""
        if offset < (self._offsets.get(group, queue, 0) or 0):
            return STALE
        outcome = self._batches.ack((queue, group, 0), pop_ms, [offset])
        if outcome == DONE:
            self._settled(group, queue)
        return outcome

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
            self._settled(group, queue)
        return LiteChange(outcome, made)

    # ---- what goes ----

    def delete(self, queue: str, groups: Iterable[str]) -> None:
        """Deletes a lite topic, and what the groups keep of it. Raises: StoreError."""
        for client in [c for g in self.registry.groups_at(queue)
                       for c in self.registry.subscribers(queue, g)]:  # fmt: skip
            client.events.pop(queue, None)
        for group in groups:
            self._undue(group, queue)
            self._batches.forget(queue, group, 0)
            self._offsets.forget_now(group, queue)
        self.lights.delete(queue)

    async def delete_below(self, parent: str) -> None:
        """Deletes all lite topics of a topic. Raises: StoreError."""
        if not self.is_on:
            return
        begin, turns, prefix, groups = 0, Pieces(), queues_below(parent), self.groups_of(parent)
        while begin >= 0:
            found, begin = self.lights.some(begin)
            for each in found:
                await turns.next()
                if each.name.startswith(prefix):
                    self.delete(each.name, groups)
        await self._offsets.forget_on_disk()

    async def expire(self) -> int:
        """Deletes the lite topics whose last message is older than their topic says, and returns
        how many. Raises: StoreError."""
        now_ms, least = self.now_ms(), int(self._config["minLiteTTl"])
        ages = {
            row.name: max(minutes * 60_000, least)
            for row in self._topics.all()
            if is_lite(row.attributes)
            and (minutes := int(row.attributes.get(EXPIRATION, "-1"))) > 0
        }
        begin, count, turns = 0, 0, Pieces()
        bound: dict[str, list[str]] = {}
        while begin >= 0 and ages:
            found, begin = self.lights.some(begin)
            for each in found:
                await turns.next()
                parts = parts_of(each.name)
                age = ages.get(parts[0]) if parts is not None else None
                if parts is None or age is None or not each.last_ms:
                    continue
                if now_ms - each.last_ms > age and now_ms - self.lights.last_ms(each.name) > age:
                    if parts[0] not in bound:
                        bound[parts[0]] = self.groups_of(parts[0])
                    self.delete(each.name, bound[parts[0]])
                    count += 1
        if count:
            await self._offsets.forget_on_disk()
        return count

    async def _expire_forever(self) -> None:
        while not self._stopped:
            await asyncio.sleep(int(self._config["liteTtlCheckInterval"]) / 1000)
            try:
                gone = await self.expire()
            except StoreError as failed:
                log.warning("Lite topics do not expire just now: %s", failed)
                continue
            if gone:
                log.info("%d lite topics have expired", gone)


def _tell_excluded(client: LiteClient, name: str) -> None:
    """Tells a client over the connection of its last subscription that a lite topic is another
    one's now."""
    if client.peer is not None and not client.peer.closed:
        ext = {"liteTopic": name, "consumerGroup": client.group, "clientId": client.client_id}
        client.peer.send(Command(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, ext, flag=ONEWAY))


def _done(old: OrderedBatch | None) -> set[int]:
    """Returns the offsets of a batch that are acknowledged."""
    if old is None:
        return set()
    return {each for i, each in enumerate(old.offsets) if old.acked >> i & 1}


def _held_back(old: OrderedBatch | None, last: int, room: int) -> tuple[list[int], list[int]]:
    """Returns what a smaller batch than the old one leaves of it behind its `last` message: those
    that wait for the next pop, and those that are acknowledged, which they stay; no more of both
    than there is room for."""
    done = _done(old)
    if old is None or not done:
        return [], []
    left = [each for each in old.offsets if last < each <= max(done)][:room]
    return [each for each in left if each not in done], [each for each in left if each in done]


def _times(old: OrderedBatch | None, offset: int, same: bool) -> int:
    """Returns how often a message was popped before; the same attempt gets it once more, and that
    does not count."""
    if old is None or offset not in old.offsets:
        return 0
    return max(0, old.times.get(offset, 0) + (not same))
