"""Timers found by their place, and changed by hand in a store that no broker holds.

A change is a record of the timer topic, as a broker would write it: nothing is edited in place.
docs/internals/timers.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from pystore.errors import BadArgument, NotFound
from pystore.format.names import TIMER_TOPIC
from pystore.store.timer_files import hand_over
from pystore.store.timers import ASKING, Timer, Timers, delete_mark, save_timers, slot_of

if TYPE_CHECKING:
    from pystore.store._messages import Message
    from pystore.store._reading import Base
    from pystore.store._store import Store

__all__ = ["Editor", "TimerMessage", "count_of", "find_timer", "plain_properties"]

#: What a delivery may be later than its slot says when the clock was set back.
_SET_BACK_MS = 1000
_OF_TIMERS = frozenset((*ASKING, "TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID", "TIMER_ROLL_TIMES"))


class TimerMessage(NamedTuple):
    """A timer with its record. topic, queue: where it goes. key: UNIQ_KEY, empty: none."""

    timer: Timer
    message: Message
    topic: str
    queue: int
    key: str


def plain_properties(message: Message) -> dict[str, str]:
    """Returns what the sender gave, without what makes it wait."""
    return {n: v for n, v in message.properties.items() if n not in _OF_TIMERS}


def find_timer(store: Base, timers: Timers, offset: int) -> TimerMessage | None:
    """Returns the timer whose record has this offset in the queue of the timer topic; None: none
    waits there."""
    try:
        batch = store.read(TIMER_TOPIC, 0, offset, max_messages=1)
    except NotFound:
        return None
    for message in batch:
        said = message.properties
        try:
            out_ms, queue = int(said["TIMER_OUT_MS"]), int(said["REAL_QID"])
        except (KeyError, ValueError):
            return None
        until = out_ms + store.settings["timerPrecisionMs"] + _SET_BACK_MS
        for timer in timers.each(out_ms, until):
            if timer.offset == offset and message.queue_offset == offset:
                return TimerMessage(
                    timer, message, said.get("REAL_TOPIC", ""), queue, message.uniq_key or ""
                )
    return None


class Editor:
    """The timers of a store opened for writing."""

    def __init__(self, store: Store, timers: Timers) -> None:
        self.store, self.timers = store, timers

    @classmethod
    @contextmanager
    def on(cls, store: Store) -> Iterator[Editor]:
        """Opens the set of timers; at the end it is saved, and handed over to Java, as at a
        broker's stop."""
        timers = Timers(store)
        try:
            yield cls(store, timers)
            timers.find("", "-", 0)  # reads what was put
            store.flush()
            save_timers(store, timers.capture()[0])
            end = store.range(TIMER_TOPIC, 0)[1]
            hand_over(store, timers, end, time.time_ns() // 1_000_000)
        finally:
            timers.close()

    def cancel(self, found: TimerMessage) -> None:
        """Takes the timer away: the message is not delivered, although its time may have passed
        meanwhile.

        Raises: BadArgument when it has no UNIQ_KEY; whatever ``put`` raises.
        """
        mark = delete_mark(found.topic, _named_key(found), found.timer.due_ms)
        self._put_waiting(found, b"0", mark, sys_flag=0)

    def reschedule(self, found: TimerMessage, due_ms: int) -> None:
        """Moves the timer: it is delivered then instead; a crash in between leaves both times,
        never none.

        Raises: BadArgument when it has no UNIQ_KEY; whatever ``put`` raises, TimerIllegal beyond
        timerMaxDelaySec among it.
        """
        m, key = found.message, _named_key(found)
        properties = plain_properties(m) | {"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": key}
        if slot_of(due_ms, self.store.settings["timerPrecisionMs"]) == found.timer.out_ms:
            # One of the same slot and key takes the other's place when it says that it repeats it.
            properties["TIMER_ROLL_TIMES"] = str(count_of(m.properties.get("TIMER_ROLL_TIMES")) + 1)
            self._put_waiting(found, bytes(m.raw_body), properties, m.sys_flag)
            return
        self._put(found, found.topic, found.queue, bytes(m.raw_body), properties, m.sys_flag)
        self.cancel(found)

    def _put_waiting(
        self, found: TimerMessage, body: bytes, properties: dict[str, str], sys_flag: int
    ) -> None:
        """Puts a record of the timer topic, with the slot of the one that was found."""
        place = {
            "TIMER_OUT_MS": str(found.timer.out_ms),
            "REAL_TOPIC": found.topic,
            "REAL_QID": str(found.queue),
        }
        self._put(found, TIMER_TOPIC, 0, body, properties | place, sys_flag)

    def _put(
        self,
        found: TimerMessage,
        topic: str,
        queue: int,
        body: bytes,
        properties: dict[str, str],
        sys_flag: int,
    ) -> None:
        m = found.message
        self.store.put_message(
            topic, body, properties=properties, queue=queue, flag=m.flag, sys_flag=sys_flag,
            reconsume_times=m.reconsume_times, born_timestamp=m.born_timestamp,
            born_host=m.born_host,
        )  # fmt: skip


def count_of(text: str | None) -> int:
    """Returns a number that a broker wrote, 0 when it did not."""
    good = text is not None and text.isascii() and text.isdecimal() and len(text) < 19
    return int(text) if good and text is not None else 0


def _named_key(found: TimerMessage) -> str:
    """Returns the UNIQ_KEY of a timer. Raises: BadArgument when it has none."""
    if not found.key:
        error = BadArgument(
            f"the timer at {found.timer.offset} has no UNIQ_KEY, which is what a recall names"
        )
        error.next_step = "send what may be recalled through a client, which gives it one"
        raise error
    return found.key
