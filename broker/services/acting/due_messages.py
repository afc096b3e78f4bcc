"""What is due in the log of a slave, and as what it goes to another broker: delay levels, timers,
open transactions, check points of POP (docs/internals/ha.md#acting-as-master)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping

from broker.hot.check_points import CheckPoint
from broker.services.acting.bridge import Copy
from broker.services.acting.escape_ledger import Origin
from broker.services.acting.escape_sender import EscapeSender
from broker.services.acting.pop_journal import PopJournal
from broker.services.context import Services
from broker.services.delivered import DeliverySearch
from broker.services.pop import Pop
from broker.services.pop.revive import DROPPED, FIRST_POP, first_pop
from pystore import Message
from pystore.errors import StoreError
from pystore.format.names import (
    HALF_TOPIC,
    REVIVE_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_GROUP,
)
from pystore.meta.pending import PendingHalf
from pystore.store.pending_log import find_pending

__all__ = ["CheckPointsDue", "HalvesDue", "LevelsDue", "Source", "TimersDue", "what_was_due"]

#: Messages that are on their way to other brokers at once.
_AT_ONCE = 32
#: Timers that other brokers are asked for: each costs a request.
_LOOKED_FOR_MAX = 100_000
#: A message that was popped and that nobody takes is tried again after so long.
_AGAIN_MS = 1000
#: The transaction's type in a system flag, and that of a half.
_TRANSACTION, _HALF = 0xC, 0x4


class Source(ABC):
    """Something that is due now and then. It lives on the event loop."""

    name = ""

    def __init__(self, s: Services, sender: EscapeSender) -> None:
        self._s, self._sender = s, sender

    @abstractmethod
    async def begin(self) -> None:
        """Finds what the master has not done. Raises: StoreError."""

    @abstractmethod
    async def round(self, now_ms: int) -> int:
        """Sends some of what is due, and returns how many those were. Raises: StoreError; OSError,
        TimeoutError, when some have not gone."""


def _message(s: Services, topic: str, queue: int, offset: int) -> Message | None:
    found = s.store.read(topic, queue, offset, max_messages=1)
    return found[0] if found and found[0].queue_offset == offset else None


def _copy(
    message: Message, topic: str, properties: Mapping[str, str], drop: Iterable[str],
    *, sys_flag: int | None = None, stored_in: str = "", like: str = "", more_tries: int = 0,
) -> Copy:  # fmt: skip
    dropped = frozenset(drop)
    return Copy(
        topic, {name: text for name, text in properties.items() if name not in dropped},
        bytes(message.raw_body), message.sys_flag if sys_flag is None else sys_flag, message.flag,
        message.born_timestamp, message.reconsume_times + more_tries, stored_in or topic, like,
    )  # fmt: skip


# ---- delay levels ----


class LevelsDue(Source):
    """The delay levels, each in its order: a message that does not go holds up its level alone."""

    name = "Delay levels"

    async def begin(self) -> None:
        kept = self._s.store.metadata.delay_offsets
        levels = range(1, len(self._s.store.settings.delay_levels_ms) + 1)
        self._at = {level: kept.get(level) or 0 for level in levels}
        self._delivered = await asyncio.to_thread(self._find_delivered)

    def _find_delivered(self) -> dict[int, set[int]]:
        store, ledger = self._s.store, self._sender.ledger

        def of_level(level: int, at: int) -> set[int]:
            def is_gone(offset: int) -> bool:
                return Origin(SCHEDULE_TOPIC, "", level - 1, offset) in ledger

            return DeliverySearch(store, level).find(at, is_gone)

        return {level: of_level(level, at) for level, at in self._at.items()}

    async def round(self, now_ms: int) -> int:
        before = dict(self._at)
        done = await asyncio.gather(
            *(self._level(level, now_ms) for level in self._at), return_exceptions=True
        )
        moved = [(level, at) for level, at in self._at.items() if at != before[level]]
        if moved:
            await asyncio.to_thread(self._keep, moved)
        for failed in done:
            if failed is not None:
                raise failed
        return len(moved)

    def _keep(self, rows: Iterable[tuple[int, int]]) -> None:
        self._sender.ledger.sync()
        metadata = self._s.store.metadata
        with metadata.batch():
            for level, at in rows:
                metadata.delay_offsets.commit(level, at, reset=True)

    async def _level(self, level: int, now_ms: int) -> None:
        store, queue = self._s.store, level - 1
        low, end = store.range(SCHEDULE_TOPIC, queue)
        at = self._at[level] = max(self._at[level], low)
        if at >= end:
            return
        delay_ms = store.settings.delay_levels_ms[level - 1]
        for _, _, due_ms in store.units(SCHEDULE_TOPIC, queue, at, _AT_ONCE):
            if now_ms < due_ms <= now_ms + delay_ms:  # a time beyond is of another clock: due now
                return
            message = _message(self._s, SCHEDULE_TOPIC, queue, at)
            topic = message.properties.get("REAL_TOPIC", "") if message is not None else ""
            if message is not None and topic and at not in self._delivered[level]:
                copy = _copy(message, topic, message.properties, ("DELAY",))
                await self._sender.send(Origin(SCHEDULE_TOPIC, "", queue, at), copy)
            at = self._at[level] = at + 1


# ---- timers ----


class TimersDue(Source):
    """The timers, in order of time. Those that the master delivered are known by the log."""

    name = "Timers"

    async def begin(self) -> None:
        self._after_ms = 0
        self._most = _AT_ONCE
        schedule = self._s.schedule
        if schedule is not None:
            await schedule.follow_timers()

    async def round(self, now_ms: int) -> int:
        schedule = self._s.schedule
        if schedule is None or schedule.timers is None:
            return 0
        rows = list(schedule.timers.timers.waiting(self._after_ms, now_ms, most=self._most))
        copies = []
        for row in rows:
            origin = Origin(TIMER_TOPIC, "", 0, row.offset)
            is_gone = origin in self._sender.ledger
            copy = None if is_gone else _copy_of_timer(self._s, row.offset, now_ms)
            if copy is not None:
                copies.append((origin, copy))
        await self._sender.send_all(copies)
        if len(rows) < self._most:
            self._most = _AT_ONCE
        elif rows[-1].due_ms - 1 > self._after_ms:
            self._after_ms = rows[-1].due_ms - 1  # more may be due in its millisecond
        else:
            self._most *= 2
        return len(copies)


def _copy_of_timer(s: Services, offset: int, now_ms: int) -> Copy | None:
    message = _message(s, TIMER_TOPIC, 0, offset)
    if message is None:
        return None
    said = message.properties
    topic = said.get("REAL_TOPIC", "")
    if not topic or topic.startswith(REVIVE_PREFIX):  # check points are looked at by themselves
        return None
    waited = {
        "TIMER_ENQUEUE_MS": str(message.store_timestamp), "TIMER_DEQUEUE_MS": str(now_ms),
    }  # fmt: skip
    return _copy(message, topic, said | waited, ("REAL_TOPIC", "REAL_QID"))


# ---- transactions ----


class HalvesDue(Source):
    """Halves that nobody has decided: another broker asks their producers."""

    name = "Transactions"

    async def begin(self) -> None:
        found = await asyncio.to_thread(find_pending, self._s.store, anew=True)
        self._rest = [found.rows[offset] for offset in sorted(found.rows)]
        self._end = found.half_next

    async def round(self, now_ms: int) -> int:
        late = [half for half in self._rest if self._is_late(half, now_ms)][:_AT_ONCE]
        copies = []
        for half in late:
            copy = _copy_of_half(self._s, half)
            if copy is not None:
                copies.append((Origin(HALF_TOPIC, "", 0, half.offset), copy))
        await self._sender.send_all(copies)
        gone = {half.offset for half in late}
        self._rest = [half for half in self._rest if half.offset not in gone]
        if late:  # what Java's master goes on from
            first = self._rest[0].root if self._rest else self._end
            self._s.core.commit_offset(TRANSACTION_GROUP, HALF_TOPIC, 0, first)
        return len(copies)

    def _is_late(self, half: PendingHalf, now_ms: int) -> bool:
        wait_ms = half.immunity_s * 1000 if half.immunity_s > 0 else 0
        timeout_ms = int(self._s.settings["transactionTimeOut"])
        return now_ms - half.store_ms >= max(wait_ms, timeout_ms)


def _copy_of_half(s: Services, half: PendingHalf) -> Copy | None:
    message = _message(s, HALF_TOPIC, 0, half.offset)
    if message is None:
        return None
    drop = (
        "REAL_TOPIC", "REAL_QID", "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES",
    )  # fmt: skip
    said = message.properties | {"TRAN_MSG": "true"}
    flag = message.sys_flag & ~_TRANSACTION | _HALF
    return _copy(message, half.topic, said, drop, sys_flag=flag, stored_in=HALF_TOPIC)


# ---- POP ----


class CheckPointsDue(Source):
    """Messages that were popped and not acknowledged: they come back through the retry topic of
    another broker."""

    name = "Messages that were popped"

    def __init__(self, s: Services, sender: EscapeSender, pops: PopJournal) -> None:
        super().__init__(s, sender)
        self._pops = pops

    async def begin(self) -> None:
        await self._pops.begin()

    async def round(self, now_ms: int) -> int:
        await self._pops.tidy()
        pop, sent, failed = self._s.pop, 0, None
        if pop is None or not self._s.settings["enableRemoteEscape"]:
            return 0
        for _ in range(_AT_ONCE):
            ck = pop.points.next_due()
            if ck is None or ck.due_ms > now_ms:
                break
            try:
                sent += await self._bring_back(pop, ck)
            except (OSError, TimeoutError) as error:
                failed = error
                pop.points.postpone(ck, now_ms + _AGAIN_MS)  # others need not wait for it
        if failed is not None:
            raise failed
        return sent

    async def _bring_back(self, pop: Pop, ck: CheckPoint) -> int:
        """Brings check points back that are over. Raises: OSError, TimeoutError, when some have not
        gone; StoreError."""
        offsets = ck.open_offsets()
        copies = [
            (Origin(ck.topic, ck.group, ck.queue, offset), copy)
            for offset in offsets
            if (copy := self._copy(ck, offset)) is not None
        ]
        await self._sender.send_all(copies)
        done = pop.points.acknowledge(ck, offsets)  # others were acknowledged meanwhile
        if done:
            pop.points.put_ack(ck, done)
        return len(copies)

    def _copy(self, ck: CheckPoint, offset: int) -> Copy | None:
        pop = self._s.pop
        assert pop is not None
        if not pop.revive.may_come_back(ck):
            return None
        try:
            message = _message(self._s, ck.topic, ck.queue, offset)
        except StoreError:
            return None
        if message is None:
            return None
        said = message.properties | {FIRST_POP: first_pop(ck, message)}
        target = pop.revive.target_name(ck)
        return _copy(message, target, said, DROPPED, like=ck.topic, more_tries=1)


# ---- what a slave of Java's may have sent ----


def what_was_due(s: Services) -> Iterator[tuple[Origin, Copy]]:
    """Returns, at a master, what a slave may have sent that tells nothing of it but the progress of
    levels. Raises: StoreError."""
    schedule, transactions = s.schedule, s.transactions
    if schedule is not None and schedule.timers is not None:
        now_ms = schedule.now_ms()
        for row in list(schedule.timers.timers.waiting(0, now_ms, most=_LOOKED_FOR_MAX)):
            copy = _copy_of_timer(s, row.offset, now_ms)
            if copy is not None:
                yield Origin(TIMER_TOPIC, "", 0, row.offset), copy
    for half in list(transactions.halves.all()) if transactions is not None else ():
        copy = _copy_of_half(s, half)
        if copy is not None:
            yield Origin(HALF_TOPIC, "", 0, half.offset), copy


def sources_of(s: Services, sender: EscapeSender, pops: PopJournal) -> Iterator[Source]:
    """Returns what is due, without enableRemoteEscape only what can be kept here."""
    if s.settings["enableRemoteEscape"]:
        for kind in (LevelsDue, TimersDue, HalvesDue):
            yield kind(s, sender)
    yield CheckPointsDue(s, sender, pops)
