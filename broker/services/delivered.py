"""What was delivered of a delay level after a master last wrote how far it was: the copies are in
its log. That is looked through by a slave that acts, and by a broker that becomes the master: it
was killed itself, or the one before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from broker.loop.safe_log import SafeLogger
from pystore import Message, Store
from pystore.errors import StoreError
from pystore.format.names import SCHEDULE_TOPIC

__all__ = ["DeliverySearch", "close_level", "close_levels"]

log = SafeLogger("broker.schedule")

#: Messages of a level that are looked at together. A level keeps its order: when none of them was
#: delivered, none of those behind them was.
_BATCH = 1024
#: A clock that is set back by less does not hide a copy: it is looked for from the due time on.
_SET_BACK_MS = 5000


def close_levels(store: Store) -> None:
    """Has the progress of each level after what was delivered, unless a clean end has noted it. A
    level that cannot be read goes on from what is written. In any thread. Raises: StoreError, when
    the progress cannot be written."""
    if store.metadata.delays_known():
        return
    for level in range(1, len(store.settings.delay_levels_ms) + 1):
        try:
            close_level(store, level)
        except StoreError as failed:
            log.warning("What was delivered of delay level %d is unknown, and may come twice: %s",
                        level, failed)  # fmt: skip


def close_level(store: Store, level: int, gone: Collection[int] = ()) -> None:
    """Ends a level. gone: offsets of messages that went to other brokers. What this one delivered
    lies between them, when it was away more than once. Raises: StoreError."""
    kept = store.metadata.delay_offsets
    at = before = max(kept.get(level) or 0, min(gone, default=0))
    done = DeliverySearch(store, level).find(at, gone.__contains__) | set(gone)
    while at in done:
        at += 1
    if at > before or gone:
        kept.commit(level, at, reset=True)


class DeliverySearch:
    """The search of one level."""

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
        """Returns whether there is a copy of the message; no other message has it then."""
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
    """Returns what a message and its copy have in common."""
    return (
        message.uniq_key, message.born_timestamp, message.reconsume_times, message.body_crc,
    )  # fmt: skip
