"""Acknowledgements, and other invisible times (docs/internals/pop.md#acknowledging; upstream
AckMessageProcessor, ChangeInvisibleTimeProcessor)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.hot.check_points import CheckPoint, CheckPoints, Key
from broker.hot.ordered import DONE, STALE, UNKNOWN, OrderedBatches
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


_OF_ORDER = {DONE: Outcome.DONE, STALE: Outcome.STALE, UNKNOWN: Outcome.UNKNOWN}


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
        points: CheckPoints,
        ordered: OrderedBatches,
        log: ReviveLog,
        now_ms: Callable[[], int],
        added: Callable[[int], None],
    ) -> None:
        """Takes the tables. added: told when a new check point ends."""
        self._points, self._ordered, self._log = points, ordered, log
        self._now_ms, self._added = now_ms, added

    def ack(
        self, topic: str, group: str, handle: Handle, offsets: Sequence[int]
    ) -> tuple[Outcome, int]:
        """Acknowledges these offsets of the handle's batch. Returns the end of the record in the
        log, or 0 when none was put.

        Raises: what putting raises; nothing counts then."""
        if handle.is_order:
            place = topic, group, handle.queue
            outcome = _OF_ORDER[self._ordered.ack(place, handle.pop_ms, offsets)]
            return outcome, self._ordered.noted_to
        end = self._points.ack(_key(topic, group, handle), offsets)
        return (Outcome.DONE if end else Outcome.STALE), end

    def change(
        self, topic: str, group: str, handle: Handle, offset: int, invisible_ms: int
    ) -> Change:
        """Makes a message invisible for this long from now on. Raises: what putting raises; the old
        delivery stands then."""
        now = self._now_ms()
        if handle.is_order:
            place, visible_ms = (topic, group, handle.queue), now + invisible_ms
            outcome = self._ordered.change(place, handle.pop_ms, offset, visible_ms)
            if outcome != DONE:
                return Change(_OF_ORDER[outcome])
            made_ms, end = visible_ms - handle.pop_ms, self._ordered.noted_to
            return Change(Outcome.DONE, handle.pop_ms, made_ms, ORDER_QUEUE, end)
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


def _key(topic: str, group: str, handle: Handle) -> Key:
    return Key(topic, group, handle.queue, handle.start, handle.pop_ms)
