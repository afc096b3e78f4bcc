"""What is not acknowledged in time comes back through the retry topic: when, whether and through
which one is decided here, and the core carries it out (csrc/pop/poprevive.c,
docs/internals/pop.md#coming-back; upstream PopReviveService)."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from broker.hot.check_points import CheckPoint, CheckPoints, Key
from broker.hot.core import Core
from broker.loop.safe_log import SafeLogger
from broker.services.config import Config
from broker.services.groups import Groups
from broker.services.offsets import ConsumerOffsets
from broker.services.pop.records import ReviveLog
from broker.services.topics import Topics
from broker.wire.command import Refused
from broker.wire.receipts import RETRY_V1, RETRY_V2, is_retry_of, retry_topic
from pystore import Message, Store
from pystore.format.names import RETRY_PREFIX, REVIVE_GROUP
from pystore.store.timers import ASKING

__all__ = ["DROPPED", "FIRST_POP", "Revive", "first_pop"]

log = SafeLogger("broker.pop")

#: How long messages come back before other work has its turn, and for how long one call of the
#: core goes on, which holds it.
_TURN_S = 0.002
_PIECE_NS = 1_000_000
#: Check points that come due one after the other are looked at in batches so far apart, each of
#: which wakes those who wait once. The first after a pause is looked at at once.
_GATHER_S = 0.010
#: Messages of a retry topic that are read at once.
_AT_ONCE = 256
#: The wall clock may jump, and timers do not see it.
_LOOK_AGAIN_S = 5.0
#: A copy that could not be written is tried again.
_RETRY_MS = 1000
#: Records of one revive queue that are looked through in one round of progress.
_PROGRESS = 2048
#: Properties of a delivery, which a copy must not have, at a slave that acts, too: it would wait
#: once more, or name a handle that is over.
DROPPED = ("POP_CK", *ASKING)
FIRST_POP = "1ST_POP_TIME"


class Revive:
    """Brings messages back when their time is over, and moves the progress of the revive topic."""

    def __init__(
        self,
        store: Store,
        core: Core,
        config: Config,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        points: CheckPoints,
        revive_log: ReviveLog,
        now_ms: Callable[[], int],
        came_back: Callable[[str, str, int], None],
        is_behind: Callable[[], bool],
    ) -> None:
        """Takes what comes back. came_back: told topic and group of messages that can be popped
        again, and the end of their copies in the log. is_behind: whether timers are late, so that
        check points may still be on their way to the revive topic."""
        self._store, self._core, self._config = store, core, config
        self._topics, self._groups, self._offsets = topics, groups, offsets
        self._points, self._log = points, revive_log
        self._now_ms, self._came_back, self._is_behind = now_ms, came_back, is_behind
        self._handle: asyncio.TimerHandle | asyncio.Handle | None = None
        self._at_ms = 0
        self._running = False
        self._failing = False
        #: When something came back last, by the monotonic clock.
        self._last_s = -math.inf
        #: Since the start: messages that came back; those that were gone, or have nowhere to go.
        self.revived = 0
        self.dropped = 0
        #: Of those that came back: how many, by topic and group.
        self.copies: Counter[tuple[str, str]] = Counter()
        #: Check points whose time was over, by topic and group.
        self.ended: Counter[tuple[str, str]] = Counter()

    def start(self) -> None:
        self._running = True
        self.look()

    def stop(self) -> None:
        self._running = False
        if self._handle is not None:
            self._handle.cancel()

    # ---- when ----

    def expect(self, due_ms: int) -> None:
        """Notes that a check point was added that ends then."""
        if self._handle is None or due_ms < self._at_ms:
            self.look()

    def look(self) -> None:
        """Looks now, since the clock was set, or something came that ends before everything
        else."""
        if not self._running:
            return
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        ck = self._points.next_due()
        if ck is None:
            return
        loop = asyncio.get_running_loop()
        self._at_ms = ck.due_ms
        wait_s = (ck.due_ms - self._now_ms()) / 1000
        if wait_s > 0:  # what is due by now has waited for a turn of the loop alone
            wait_s = max(wait_s, self._last_s + _GATHER_S - time.monotonic())
            self._handle = loop.call_later(min(wait_s, _LOOK_AGAIN_S), self._round)
        else:
            self._handle = loop.call_soon(self._round)

    def _round(self) -> None:
        self._handle = None
        if not self._core.leads:
            self._handle = asyncio.get_running_loop().call_later(_RETRY_MS / 1000, self._round)
            return
        now, end_s = self._now_ms(), time.monotonic() + _TURN_S
        back: dict[tuple[str, str], int] = {}
        while (ck := self._points.next_due()) is not None and ck.due_ms <= now:
            end = self._bring_back(ck, now)
            if end:
                back[ck.topic, ck.group] = end
            if time.monotonic() >= end_s:
                break
        for (topic, group), end in back.items():
            self._came_back(topic, group, end)
        self._last_s = time.monotonic()
        self.look()

    # ---- bringing back ----

    def _bring_back(self, first: CheckPoint, now: int) -> int:
        """Has the core bring back what is due of the first check point's topic and group. Returns
        the end of the last copy in the log, or 0 when none was put."""
        topic, group = first.topic, first.group
        again_ms = self._now_ms() + _RETRY_MS
        try:
            target = self._target(first) if self.may_come_back(first) else None
        except Refused as refused:
            self._points.postpone(first, again_ms)
            self._note_failure(topic, refused.remark)
            return 0
        done = self._points.revive(
            topic, group, target, now_ms=now, again_ms=again_ms, turn_ns=_PIECE_NS
        )
        if done.damaged is not None:
            self._store.read(topic, *done.damaged, max_messages=1)  # which logs it
        name = is_retry_of(topic, group) or topic
        self.revived += done.copies
        self.dropped += done.gone
        if done.ended:
            self.ended[name, group] += done.ended
        if done.copies:
            self.copies[name, group] += done.copies
        self._note_failure(topic, done.failed)
        return done.end

    def _note_failure(self, topic: str, failed: object) -> None:
        """Logs the first failure, and when nothing fails any more; None means that nothing did."""
        if failed is not None and not self._failing:
            log.error("Messages of %s cannot be brought back now: %s", topic, failed)
        elif failed is None and self._failing:
            log.info("Messages are brought back again")
        self._failing = failed is not None

    def may_come_back(self, ck: CheckPoint) -> bool:
        """Returns whether topic and group are still there."""
        return ck.topic in self._topics and self._groups.get(ck.group) is not None

    # ---- after a crash ----

    def copied(
        self, open_ones: Iterable[CheckPoint], places: Mapping[Key, int]
    ) -> list[tuple[CheckPoint, list[int]]]:
        """Returns offsets of check points whose copy is in the log already: whoever wrote it was
        killed before it could say so. places: the log offsets of the records of check points.

        Raises: StoreError."""
        now = self._now_ms()
        late = [ck for ck in open_ones if ck.due_ms <= now]
        found = []
        for name in {target for ck in late for target in self._targets(ck)}:
            waiting = [ck for ck in late if name in self._targets(ck)]
            since = min(places[ck.key] for ck in waiting)
            copies = self._copies(name, since)
            for ck in waiting if copies else ():
                done = [each for each in ck.open_offsets() if self._is_among(copies, ck, each)]
                if done:
                    found.append((ck, done))
        return found

    def _targets(self, ck: CheckPoint) -> list[str]:
        """Returns where copies of it may be, whatever the setting was."""
        if ck.topic.startswith(RETRY_PREFIX):
            return [ck.topic]
        return [retry_topic(ck.group, ck.topic, kind) for kind in (RETRY_V1, RETRY_V2)]

    def _copies(self, name: str, since: int) -> Counter[object]:
        """Returns what was put into a retry topic from this log offset on."""
        found: Counter[object] = Counter()
        low, at = self._store.range(name, 0)
        while at > low:
            begin = max(at - _AT_ONCE, low)
            batch = self._store.read(name, 0, begin, max_messages=at - begin)
            for message in batch:
                if message.queue_offset < at and message.physical_offset >= since:
                    found[_identity(message, 0, message.properties.get(FIRST_POP))] += 1
            if not batch or batch[0].physical_offset < since:
                break
            at = begin
        return found

    def _is_among(self, copies: Counter[object], ck: CheckPoint, offset: int) -> bool:
        """Returns whether the copy of the message was among them, and removes it."""
        found = self._store.read(ck.topic, ck.queue, offset, max_messages=1)
        if not found or found[0].queue_offset != offset:
            return False
        message = found[0]
        like = _identity(message, 1, first_pop(ck, message))
        if not copies[like]:
            return False
        copies[like] -= 1
        return True

    # ---- copies ----

    def _target(self, ck: CheckPoint) -> str:
        """Returns the retry topic, made when it is missing."""
        name = self.target_name(ck)
        if name != ck.topic and name not in self._topics:
            self._topics.built_in(name)
            self._offsets.commit(ck.group, name, 0, 0)
        return name

    def target_name(self, ck: CheckPoint) -> str:
        """Returns the topic that its messages come back through."""
        if ck.topic.startswith(RETRY_PREFIX):
            return ck.topic
        second = self._config["enableRetryTopicV2"] or self._is_others(ck.group, ck.topic)
        return retry_topic(ck.group, ck.topic, RETRY_V2 if second else RETRY_V1)

    def _is_others(self, group: str, topic: str) -> bool:
        """Returns whether the retry topic of the first kind is somebody else's, too: that of
        another group, or of another group and topic. Neither is to get the other's messages."""
        name = f"{group}_{topic}"
        if self._groups.get(name) is not None:
            return True
        places = (at for at, letter in enumerate(name) if letter == "_" and at != len(group))
        return any(
            self._groups.get(name[:at]) is not None and name[at + 1 :] in self._topics
            for at in places
        )

    # ---- progress ----

    def done(self, queue: int) -> int:
        """Returns the next offset of a revive queue that is not done with: upstream keeps the last
        one that is, and nothing before the first."""
        kept = self._offsets.get(REVIVE_GROUP, self._log.topic, queue)
        return 0 if kept is None else kept + 1

    def commit_progress(self) -> None:
        """Moves the progress of each revive queue up to its first open check point."""
        if self._is_behind():
            return
        now, config = self._now_ms(), self._topics.get(self._log.topic)
        for queue in range(config.read_queue_nums if config is not None else 0):
            low, high = self._log.range(queue)
            begin = max(self.done(queue), low)
            if begin >= high:
                continue
            end = high
            if self._points.is_any_stored(queue, now):
                end = self._first_open(queue, begin, high)
            if end > begin:
                self._offsets.commit(REVIVE_GROUP, self._log.topic, queue, end - 1)

    def _first_open(self, queue: int, begin: int, high: int) -> int:
        for offset, key in self._log.check_points(queue, begin, _PROGRESS):
            if key in self._points:
                return offset
        return min(high, begin + _PROGRESS)


def first_pop(ck: CheckPoint, message: Message) -> str:
    """Returns when the message was popped for the first time."""
    said = message.properties.get(FIRST_POP)
    return str(ck.pop_ms) if said is None or message.reconsume_times == 0 else said


def _identity(message: Message, more_tries: int, first_pop: str | None) -> object:
    """Returns what a message and its copy have in common."""
    return (
        message.properties.get("UNIQ_KEY"), message.born_timestamp,
        message.reconsume_times + more_tries, first_pop, bytes(message.raw_body),
    )  # fmt: skip
