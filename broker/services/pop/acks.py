"""Acknowledgements, and other invisible times (docs/internals/pop.md#acknowledging; upstream
AckMessageProcessor, ChangeInvisibleTimeProcessor)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.hot.popped import CheckPoint, CheckPoints, Key
from broker.services.offsets import ConsumerOffsets
from broker.services.pop.order import OrderedBatch, OrderTable
from broker.services.pop.records import ReviveLog
from broker.wire.receipts import ORDER_QUEUE, Handle

__all__ = ["Acks", "Change", "Outcome"]


class Outcome(enum.Enum):
    """What became of an acknowledgement. DONE: it counts. STALE: the message was acknowledged
    before, it came too late, or it names a delivery that never was. UNKNOWN: the ordered batch does
    not have this offset."""

    DONE = enum.auto()
    STALE = enum.auto()
    UNKNOWN = enum.auto()


_WORST = (Outcome.UNKNOWN, Outcome.STALE, Outcome.DONE)


@dataclass(frozen=True, slots=True)
class Change:
    """The delivery after its invisible time was changed. `end` is the end of the records in the
    log, 0 when none was put."""

    outcome: Outcome
    pop_ms: int = 0
    invisible_ms: int = 0
    revive_queue: int = 0
    end: int = 0


class Acks:
    """Acknowledges and changes invisible times, of check points or of the batches of ordered
    groups."""

    def __init__(
        self,
        offsets: ConsumerOffsets,
        points: CheckPoints,
        order: OrderTable,
        log: ReviveLog,
        now_ms: Callable[[], int],
        added: Callable[[int], None],
        unblocked: Callable[[str, str, int], None],
    ) -> None:
        """added: told when a new check point ends. unblocked: told topic, group and queue when the
        next batch of an ordered queue may be popped."""
        self._offsets, self._points, self._order, self._log = offsets, points, order, log
        self._now_ms, self._added, self._unblocked = now_ms, added, unblocked

    def ack(
        self, topic: str, group: str, handle: Handle, offsets: Sequence[int]
    ) -> tuple[Outcome, int]:
        """Acknowledges these offsets of the handle's batch. Returns the end of the record in the
        log, or 0 when none was put.

        Raises: what putting raises; nothing counts then."""
        if handle.is_order:
            return self._ack_order(topic, group, handle, offsets), 0
        end = self._points.ack(_key(topic, group, handle), offsets)
        return (Outcome.DONE if end else Outcome.STALE), end

    def change(
        self, topic: str, group: str, handle: Handle, offset: int, invisible_ms: int
    ) -> Change:
        """Makes a message invisible for this long from now on. Raises: what putting raises; the old
        delivery stands then."""
        now = self._now_ms()
        if handle.is_order:
            return self._change_order(topic, group, handle, offset, now + invisible_ms)
        ck = self._points.get(_key(topic, group, handle))
        if ck is None or offset not in ck.open_offsets():
            return Change(Outcome.STALE)
        while Key(topic, group, ck.queue, offset, now) in self._points:
            now += 1  # the clock may stand still, and this is what tells deliveries apart
        new = CheckPoint(
            topic, group, ck.queue, offset, now, invisible_ms, ck.revive_queue, (offset,)
        )
        # The new one first: a crash between them brings the message back once more, and loses none.
        self._log.open(new)
        self._added(new.due_ms)
        end = self._points.ack(ck.key, [offset])
        return Change(Outcome.DONE, now, invisible_ms, ck.revive_queue, end)

    # ---- in order ----

    def _batch(self, topic: str, group: str, handle: Handle) -> OrderedBatch | None:
        batch = self._order.get((topic, group, handle.queue))
        return batch if batch is not None and batch.pop_ms == handle.pop_ms else None

    def _is_past(self, topic: str, group: str, queue: int, offset: int) -> bool:
        return offset < (self._offsets.get(group, topic, queue) or 0)

    def _ack_order(self, topic: str, group: str, handle: Handle, offsets: Sequence[int]) -> Outcome:
        batch, outcomes = self._batch(topic, group, handle), set()
        for offset in offsets:
            if batch is None or self._is_past(topic, group, handle.queue, offset):
                outcomes.add(Outcome.STALE)
            elif offset not in batch.offsets:
                outcomes.add(Outcome.UNKNOWN)
            else:
                batch.acked |= 1 << batch.offsets.index(offset)
                outcomes.add(Outcome.DONE)
        if batch is not None and Outcome.DONE in outcomes:
            self._note(topic, group, handle.queue, batch)
        return min(outcomes, key=_WORST.index, default=Outcome.DONE)

    def _note(self, topic: str, group: str, queue: int, batch: OrderedBatch) -> None:
        """Notes that the group continues after what is acknowledged."""
        following = max(batch.next_offset(), self._offsets.get(group, topic, queue) or 0)
        self._offsets.commit(group, topic, queue, following)
        self._order.note((topic, group, queue), following)
        if not batch.blocked_until(None, self._now_ms()):
            self._unblocked(topic, group, queue)

    def _change_order(
        self, topic: str, group: str, handle: Handle, offset: int, visible_ms: int
    ) -> Change:
        if self._is_past(topic, group, handle.queue, offset):
            return Change(Outcome.STALE)
        batch = self._batch(topic, group, handle)
        if batch is None:
            return Change(Outcome.STALE)
        if offset not in batch.offsets:
            return Change(Outcome.UNKNOWN)
        batch.visible_ms[offset] = visible_ms
        self._note(topic, group, handle.queue, batch)
        return Change(Outcome.DONE, batch.pop_ms, visible_ms - batch.pop_ms, ORDER_QUEUE)


def _key(topic: str, group: str, handle: Handle) -> Key:
    return Key(topic, group, handle.queue, handle.start, handle.pop_ms)
