"""What a master delivered of a delay level after it last wrote how far it was: the copies are in
its log, which its slave has, too, and it itself when it was killed and returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from pystore import Message, Store
from pystore.names import SCHEDULE_TOPIC

__all__ = ["DeliverySearch"]

#: Messages of a level that are looked at together. A level keeps its order: when none of them was
#: delivered, none of those behind them was.
_BATCH = 1024
#: A clock that is set back by less does not hide a copy: it is looked for from the due time on.
_SET_BACK_MS = 5000


class DeliverySearch:
    """Of one level."""

    def __init__(self, store: Store, level: int) -> None:
        self._store, self._queue = store, level - 1
        self._delay_ms = store.settings.delay_levels_ms[level - 1]
        #: The copies in each queue that messages of the level go to.
        self._copies: dict[tuple[str, int], Counter[object]] = {}

    def find(self, start: int, is_gone: Callable[[int], bool]) -> set[int]:
        """Returns the offsets of what was delivered, of the messages from this offset on; those
        that name no topic, and are passed over, are among them. is_gone: whether the message at an
        offset went to another broker. Raises: StoreError."""
        store, found = self._store, set[int]()
        low, end = store.range(SCHEDULE_TOPIC, self._queue)
        at = max(start, low)
        while at < end:
            batch = store.read(SCHEDULE_TOPIC, self._queue, at, max_messages=_BATCH)
            done = {each.queue_offset for each in batch if self._takes_copy(each)}
            found |= done
            is_behind = done or any(is_gone(each.queue_offset) for each in batch)
            if batch.next_offset <= at or not is_behind:
                break
            at = batch.next_offset
        return found

    def _takes_copy(self, message: Message) -> bool:
        """Whether there is a copy of the message, which is no other's then."""
        topic, number = place = _place_of(message.properties)
        if not topic:
            return True
        if place not in self._copies:
            due_ms = message.store_timestamp + self._delay_ms
            since_ms = max(message.store_timestamp, due_ms - _SET_BACK_MS)
            self._copies[place] = self._identities(topic, number, since_ms)
        copies, like = self._copies[place], _identity(message)
        if copies[like] <= 0:
            return False
        copies[like] -= 1
        return True

    def _identities(self, topic: str, queue: int, since_ms: int) -> Counter[object]:
        store = self._store
        found: Counter[object] = Counter()
        low, end = store.range(topic, queue)
        at = max(low, store.offset_at(topic, queue, since_ms)) if end > low else end
        while at < end:
            batch = store.read(topic, queue, at, max_messages=_BATCH)
            found.update(_identity(message) for message in batch)
            if batch.next_offset <= at:
                break
            at = batch.next_offset
        return found


def _place_of(properties: Mapping[str, str]) -> tuple[str, int]:
    number = properties.get("REAL_QID", "")
    return properties.get("REAL_TOPIC", ""), int(number) if number.isdigit() else -1


def _identity(message: Message) -> object:
    """What a message and its copy have in common."""
    return (
        message.uniq_key, message.born_timestamp, message.reconsume_times, message.body_crc,
    )  # fmt: skip
