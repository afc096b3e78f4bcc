"""POP of one broker: consumers ask the broker for messages, not for queues, and acknowledge each of
them. docs/internals/pop.md; upstream PopMessageProcessor, PopBufferMergeService.

Pops and acknowledgements are the core's; the rest runs on the event loop. What is known stands in
the log; offsets and the batches of ordered groups are brought to the disk every few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from broker.hot.check_points import ANYWHERE, MARGIN_MS, CheckPoint, CheckPoints, CorePopRules
from broker.hot.core import Core
from broker.hot.ordered import QueuePlace
from broker.loop.safe_log import SafeLogger
from broker.services.config import Config
from broker.services.groups import Groups
from broker.services.offsets import ConsumerOffsets, hot_bytes
from broker.services.pop import kept
from broker.services.pop.acks import Acks
from broker.services.pop.batches import Batches, PopOutcome, PopRequest, longest_retry_topic
from broker.services.pop.modes import RequestModes
from broker.services.pop.order import OrderTable
from broker.services.pop.records import CheckPointScan, ReviveLog, revive_topic
from broker.services.pop.revive import Revive
from broker.services.schedule import Schedule
from broker.services.topics import READ, Topics
from broker.wire.receipts import NORMAL, RETRY_V1, is_retry_of, retry_topic
from pystore import Store
from pystore.errors import StoreError
from pystore.filter.sql92 import WORK_MAX
from pystore.store import hosting
from pystore.store.timers import Timers

__all__ = ["Pop"]

log = SafeLogger("broker.pop")

#: Timers that are later than this have check points on their way.
_BEHIND_MS = 500

#: How long filters may pass over messages in one try; the rest is for the next one.
_FILTERING_MS = 10

#: Messages that their consumer did not get are visible again so soon.
_BACK_MS = 1000

#: The longest that a request waits.
_POLL_MAX_MS = 1 << 40

#: Records that are put before others have their turn.
_A_TURN = 64

#: What a request that asked for messages is told: what was found, or why none can be handed out.
Told = Callable[[PopOutcome | StoreError], None]


class Pop:
    """What a broker does for consumers that pop. It lives on the event loop.

    `receive` and `acks` are for processors of any protocol. Requests that wait are the core's."""

    def __init__(
        self,
        store: Store,
        core: Core,
        config: Config,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        schedule: Schedule,
    ) -> None:
        self._store, self._core, self._config = store, core, config
        self._topics, self._groups, self._offsets = topics, groups, offsets
        self._schedule = schedule
        topic = revive_topic(config["brokerClusterName"])
        self.points = CheckPoints(core, topic)
        folder, mode = store.path / "config", store.settings.file_mode
        self.order = OrderTable(core, folder / "consumerOrderInfo.json", mode)
        self.modes = RequestModes(folder / "messageRequestMode.json", mode)
        self._kept = folder / "popCheckPoints.json"
        #: It is known what is open.
        self._found = False
        self.log = ReviveLog(store, topic, self.points, str(config["brokerName"]))
        self.batches = Batches(config, topics)
        self.revive = Revive(
            store, core, config, topics, groups, offsets, self.points, self.log, self.now_ms,
            self._came_back, self._is_behind,
        )  # fmt: skip
        self.acks = Acks(
            self.points, self.order.batches, self.log, self.now_ms, self.revive.expect
        )  # fmt: skip
        self._stopping = False
        core.on_pop_due, core.on_popped = self.revive.expect, self._popped
        #: By the number of a wait in the core: who is told what it has found.
        self._told: dict[int, Told] = {}
        self._last_wait = 0
        self._tasks: set[asyncio.Task[None]] = set()
        offsets.is_marked = True

    def now_ms(self) -> int:
        """Returns the clock of invisible times, which is that of the timers."""
        return self._schedule.now_ms()

    @property
    def is_on(self) -> bool:
        return bool(self._config["timerWheelEnable"])

    def _end_of(self, topic: str, queue: int) -> int:
        return self._store.range(topic, queue)[1]

    # ---- life ----

    async def start(self, timers: Timers | None) -> None:
        """Finds what is open. It comes before anybody is served, and before the first timer is
        delivered.

        Raises: StoreError."""
        self._go_on(self.order.load(self._end_of))
        self.modes.load()
        if timers is None:
            return
        self.replay_order(self._store.metadata.offsets_mark())
        await self._find(timers)
        self._found = True

    def replay_order(self, since: int) -> None:
        """Has the ordered batches as the master had them whose log this is. since: the log offset
        up to which they are known. Raises: StoreError."""
        self._go_on(self.order.replay(self.log.order_changes(since), self._end_of))

    def _go_on(self, noted: Mapping[QueuePlace, int]) -> None:
        self.go_on_at({(group, topic, q): at for (topic, group, q), at in noted.items()})

    async def _find(self, timers: Timers) -> None:
        """Finds what is open. Raises: StoreError."""
        since, end = self._store.metadata.offsets_mark(), self._store.info().log_max
        known = await asyncio.to_thread(self._take_kept, end)
        if known is not None:
            for ck in known:
                self.points.add(ck)
            return
        if since > end:  # the log lost its end with the power
            log.warning(
                "Consumer offsets are of a log up to %d, this one ends at %d: all check points"
                " are looked for", since, end,
            )  # fmt: skip
            since = 0
            await asyncio.to_thread(self._store.metadata.set_offsets_mark, end)
        found = await asyncio.to_thread(self.log.find, timers, self.revive.done, since)
        for ck in found.open:
            self.points.add(ck)
            if (ck.group, ck.topic, ck.queue) in found.popped:
                self._groups.find(ck.group)  # the crash may have undone that it was made
        self.go_on_at(found.popped)
        for ck, offsets in await asyncio.to_thread(self.revive.copied, found.open, found.places):
            self.points.put_ack(ck, offsets)
            self.points.acknowledge(ck, offsets)
        if found.records:
            log.info(
                "%d check points are open, found in %d records", len(found.open), found.records
            )

    def find_open(self, timers: Timers, since: int) -> CheckPointScan:
        """Returns what is open in the log of a slave, which knows it by nothing else; in any
        thread. since: the log offset up to which consumer offsets are known. Raises: StoreError."""
        found = self.log.find(timers, self.revive.done, since)
        for ck, offsets in self.revive.copied(found.open, found.places):
            for offset in offsets:
                ck.acked |= 1 << ck.offsets.index(offset)
        found.open = [ck for ck in found.open if ck.open]
        return found

    def _take_kept(self, end: int) -> list[CheckPoint] | None:
        try:
            return kept.take(self._kept, end)
        except OSError as bad:
            log.warning("%s is not read, so the log is asked: %s", self._kept, bad)
            return None

    def go_on_at(self, offsets: Mapping[tuple[str, str, int], int]) -> None:
        """Continues at offsets that moved just before a crash, by (group, topic, queue); nobody
        gets what was handed out already. One beyond the queue is of a topic that was deleted since,
        or of messages that a power failure took with it."""
        for (group, topic, queue), offset in offsets.items():
            high = self._end_of(topic, queue)
            if offset > high:
                log.info(
                    "Group %s does not go on at %d of %s, queue %d, as its pops say: the queue"
                    " ends at %d", group, offset, topic, queue, high,
                )  # fmt: skip
            elif (self._offsets.get(group, topic, queue) or 0) < offset:
                self._offsets.commit(group, topic, queue, offset)

    def serve(self) -> None:
        """Lets the core serve pops by itself from now on. Raises: StoreError."""
        self._publish()
        self._config.changed.append(lambda _: self._publish())

    def _publish(self) -> None:
        """Publishes what the core needs to know to serve pops by itself. Raises: StoreError."""
        config = self._config
        count, bounded = config["reviveQueueNum"], config["enablePopMessageThreshold"]
        ratio = self._store.settings["accessMessageInMemoryMaxRatio"]
        hosting.learn_queue(self._store, self.log.topic, count - 1)
        self.points.serve_pops(
            CorePopRules(
                on=self.is_on and bool(config["brokerPermission"] & READ),
                revive_queues=count,
                retry_v1=RETRY_V1 in self.batches.looked_at,
                retry_percent=config["popFromRetryProbability"],
                ranked_retry_percent=config["popFromRetryProbabilityForPriority"],
                lowest_first=not config["priorityOrderAsc"],
                retries_ranked=config["priorityRetriesInTurn"],
                age_ms=config["priorityAgeingMs"],
                retry_as_stored=config["popResponseReturnActualRetryTopic"],
                name_max=longest_retry_topic(config),
                invisible_max_ms=config["timerMaxDelaySec"] * 1000,
                in_flight_max=config["popInflightMessageThreshold"] if bounded else None,
                open_max=config["maxOpenCheckPoints"],
                bytes_max=config["maxTransferBytesOnMessageInMemory"],
                young_bytes=hot_bytes(ratio) if config["initPopOffsetByCheckMsgInMem"] else None,
                filter_work=WORK_MAX,
                filter_ms=_FILTERING_MS,
                at_place_max=config["popPollingSize"],
                waiting_max=-1 if self._stopping else config["maxPopPollingSize"],
                places_max=config["popPollingMapSize"],
            )
        )

    def stop(self) -> None:
        """Answers what waits; nothing waits any more."""
        self._stopping = True
        self._publish()
        self._core.notify_all()
        self._core.on_pop_due = None

    async def save_order(self) -> None:
        """Writes the batches that are out. Raises: OSError, StoreError."""
        await self.order.save(self._offsets.persist)

    def save_now(self) -> None:
        """Saves at the very end. Raises: OSError, StoreError."""
        self.order.save_now()
        if self._found:
            store = self._store
            try:
                kept.keep(self._kept, self.points, store.info().log_max, store.settings.file_mode)
            except OSError as bad:
                log.warning(
                    "%s is not written, so the next start asks the log: %s", self._kept, bad
                )

    def tick(self) -> None:
        """Runs every reviveInterval."""
        self.order.expire(self.now_ms())
        self.revive.commit_progress()

    def look(self) -> None:
        """Looks again after the clock was set."""
        self.revive.look()

    def _is_behind(self) -> bool:
        timers = self._schedule.timers
        if timers is None or timers.last is None:
            return True
        return 0 <= timers.last.next_ms < self.now_ms() - _BEHIND_MS

    # ---- popping ----

    def receive(
        self,
        request: PopRequest,
        told: Told,
        *,
        born_ms: int,
        poll_ms: int,
    ) -> int:
        """Reports once what was found: now, or when there is something, at the latest poll_ms after
        born_ms. Returns the number of a wait for leave(), or 0."""
        now = self.now_ms()
        left_ms = -1
        if poll_ms > 0 and not self._stopping:  # its own clock may be wrong by any amount
            left_ms = min(born_ms, now) + min(poll_ms, _POLL_MAX_MS) - MARGIN_MS - now
        self._last_wait += 1
        number = self._last_wait
        try:
            found = self.points.pop(
                request.topic, request.group, request.queue, most=request.most,
                invisible_ms=request.invisible_ms, from_min=request.from_min,
                filter_by=request.sql or request.tags, sql=request.sql is not None,
                order=request.order, attempt=request.attempt, wait_ms=left_ms, number=number,
            )  # fmt: skip
        except StoreError as failed:
            told(failed)
            return 0
        if found is None:
            self._told[number] = told
            return number
        raw, due_ms = found
        if due_ms:
            self.revive.expect(due_ms)
        told(PopOutcome.of(raw))
        return 0

    def leave(self, number: int) -> None:
        """Ends a wait whose outcome nobody listens for."""
        if self._told.pop(number, None) is not None:
            self.points.leave(number)

    def _popped(self, number: int, group: str, topic: str, raw: Any) -> None:
        told = self._told.pop(number, None)
        popped = PopOutcome.of(raw)
        if told is not None:
            told(popped)
        else:
            self.give_back(group, topic, popped)

    def give_back(self, group: str, topic: str, popped: PopOutcome) -> None:
        """Makes messages visible again soon: their consumer did not get them."""
        for _, handle, _ in popped.deliveries(""):
            name = topic if handle.retry == NORMAL else retry_topic(group, topic, handle.retry)
            try:
                self.acks.change(name, group, handle, handle.offset, _BACK_MS)
            except StoreError as failed:
                log.info("A message of %s stays invisible: %s", name, failed)

    # ---- waiting ----

    def _came_back(self, topic: str, group: str, end: int) -> None:
        """Wakes those who wait for messages that can be popped again: of the topic itself, or of
        its retry topic. They lie in the log up to `end`; readers see them once they are safe."""
        if self._core.must_wait(end):
            task = asyncio.get_running_loop().create_task(self._wake_later(topic, group, end))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._wake_group(topic, group)

    async def _wake_later(self, topic: str, group: str, end: int) -> None:
        with contextlib.suppress(StoreError):
            await self._core.safe(end)
        if not self._stopping:
            self._wake_group(topic, group)

    def _wake_group(self, topic: str, group: str) -> None:
        self.points.wake(is_retry_of(topic, group) or topic, group)

    # ---- asking ----

    def waiting(self, topic: str = "", group: str | None = None, queue: int = ANYWHERE) -> int:
        """Returns how many requests wait for messages at this place: `queue` -1 stands for any
        queue, ANYWHERE for all of the topic. Without a group it counts all."""
        return self.points.waiting(topic, group, queue)

    def in_flight(self, topic: str, group: str, queue: int) -> int:
        """Returns how many messages the group has popped that are neither acknowledged nor back."""
        return self.points.in_flight(topic, group, queue)

    def forget(self, *, topic: str | None = None, group: str | None = None) -> asyncio.Task[None]:
        """Forgets a topic or a group that was deleted: at once nothing of it comes back any more.
        After what this returns nothing comes back after a restart either, even if the same names
        are used again; that raises StoreError, and goes on whether anybody waits for it or not."""
        self.order.batches.forget(topic, group)
        ended = []
        for ck in [each for each in self.points if _is_of(each, topic, group)]:
            ended.append((ck, self.points.acknowledge(ck, ck.offsets)))
        task = asyncio.get_running_loop().create_task(self._put_ends(ended))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.warning("What was popped of what is deleted may come back: %s", task.exception())

    async def _put_ends(self, ended: list[tuple[CheckPoint, list[int]]]) -> None:
        for i, (ck, offsets) in enumerate(ended):
            if i % _A_TURN == _A_TURN - 1:
                await asyncio.sleep(0)
            self.points.put_ack(ck, offsets)


def _is_of(ck: CheckPoint, topic: str | None, group: str | None) -> bool:
    return topic in (None, ck.topic) and group in (None, ck.group)
