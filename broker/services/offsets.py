"""Consumer offsets. While a broker runs the core's table is the truth, since a pull commits there
at no cost; this loads it at the start and brings what changed into the metadata."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from itertools import islice

from broker.hot.core import Core
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.loop.turns import Pieces
from broker.wire.receipts import is_retry_of
from pystore import Store
from pystore.errors import StoreError
from pystore.format.names import RETRY_PREFIX
from pystore.format.offset_blocks import OffsetRow

__all__ = ["ConsumerOffsets", "hot_bytes", "is_young", "place_of"]

log = SafeLogger(__name__)
_quiet = RateLimitedLogger(log)

#: Offsets that are written together: whoever needs the metadata waits so long, and LMDB keeps the
#: memory of the pages that they lie in, two of them each, and their places free in its file.
_BATCH = 1 << 10

_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def hot_bytes(ratio: int) -> int:
    """Returns how long the hot part of the log is, which ends with the log. ratio: the value of
    accessMessageInMemoryMaxRatio."""
    return _MEMORY * ratio // 100


def _is_own(topic: str, group: str) -> bool:
    return topic == RETRY_PREFIX + group or is_retry_of(topic, group) is not None


def place_of(store: Store, topic: str, queue: int, offset: int) -> int | None:
    """Returns the physical offset of the message at a queue offset; None: there is none that can be
    read. The store is not asked for one beyond its queue: its error looks for the nearest name
    among all topics."""
    low, high = store.range(topic, queue)
    if not low <= offset < high:
        return None
    try:
        units = store.units(topic, queue, offset, 1)
    except StoreError:
        return None
    return units[0][0] if units else None


def is_young(store: Store, topic: str, queue: int) -> bool:
    """Returns whether a queue still has its first message and that lies in the hot part of the log
    (docs/internals/wire.md#first-offset)."""
    first = place_of(store, topic, queue, 0)
    hot = hot_bytes(store.settings["accessMessageInMemoryMaxRatio"])
    return first is not None and bool(store.info().log_max - first <= hot)


class ConsumerOffsets:
    """The next offset of each group, topic and queue."""

    def __init__(self, store: Store, core: Core) -> None:
        self._store = store
        self._metadata = store.metadata
        self._core = core
        #: Queues and their offsets, by group and topic.
        self._unsaved: dict[tuple[str, str], dict[int, int]] = {}
        #: Whether records of the log move offsets too (those of POP): the end of the log up to
        #: which they have is kept beside them then.
        self.is_marked = False
        #: Of a slave: the end of the log up to which its master's offsets are known; None: they are
        #: its own.
        self.known_to: int | None = None
        #: What they rest on beside the log is brought to the disk by this, in any thread.
        self.before_write: Callable[[], None] | None = None
        self._writing = asyncio.Lock()

    def start(self) -> None:
        """Fills the core's table. Upstream stores whatever is committed, and takes a negative one
        for none."""
        stored = self._metadata.offsets
        none, why = self._core.load_offsets(stored.blocks(), stored.pairs())
        if none:
            log.warning("%d consumer offsets count as none, as %.600r", none, why)

    def get(self, group: str, topic: str, queue: int) -> int | None:
        return self._core.offset(group, topic, queue)

    def pulled(self, group: str, topic: str, queue: int) -> int | None:
        """Returns where the group's last pull ended, or the committed offset when that is
        higher."""
        return self._core.pulled_offset(group, topic, queue)

    def all(self, group: str | None = None, topic: str | None = None) -> Iterable[OffsetRow]:
        """Returns the offsets of now; they may be read later, and on any thread."""
        return self._core.offsets(group, topic)

    def topics_of(self, group: str) -> set[str]:
        return {topic for _, topic in self._core.consumed(group=group)}

    async def topics_by_group(self) -> dict[str, set[str]]:
        """Returns the topics of every group, light queues left out, in one pass that lets others
        have their turn."""
        found: dict[str, set[str]] = {}
        pieces = Pieces()
        for group, topic in self._core.consumed(light=False):
            await pieces.next()
            found.setdefault(group, set()).add(topic)
        return found

    def groups_of(self, topic: str) -> set[str]:
        return {group for group, _ in self._core.consumed(topic=topic)}

    def commit(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Commits an offset, which may go backwards, as clients may do; it is ignored while a reset
        is pending."""
        self._core.commit_offset(group, topic, queue, offset)

    def reset(self, group: str, topic: str, queue: int, target: int) -> None:
        """Resets an offset now, and for the consumer with its next pull."""
        self._core.commit_offset(group, topic, queue, target)
        self._core.reset_offset(group, topic, queue, target)

    @contextlib.asynccontextmanager
    async def forgetting(
        self, groups: Collection[str], queues: Iterable[str], turns: Pieces
    ) -> AsyncIterator[None]:
        """Forgets what groups have of light queues on the disk, before the block has the core
        forget it: a crash in between leaves no offset of a queue that is gone, which would skip
        messages of a new one of its name. What the core still has after the block is written again.
        Raises: StoreError."""
        async with self._writing:
            have = list[tuple[str, str]]()
            for pair in ((group, queue) for queue in queues for group in groups):
                await turns.next()
                if self._core.offset(*pair, 0) is not None:
                    have.append(pair)
            if have:
                await asyncio.to_thread(self._metadata.offsets.delete_pairs, have)
            try:
                yield
            finally:
                for pair in have:
                    self._unsaved.pop(pair, None)
                    offset = self._core.offset(*pair, 0)
                    if offset is not None:
                        self._unsaved[pair] = {0: offset}

    async def delete(self, group: str | None = None, topic: str | None = None) -> None:
        """Deletes the offsets of a group, of a topic, or of both together. Records from before do
        not move an offset that comes after it, even if the same name is used again. Of a group
        those in its own retry topics stay, as these do: if it is made again, what it acknowledged
        there does not come once more. Raises: StoreError."""
        async with self._writing:  # what is written meanwhile would stay
            await self._persist()
            mark = self._mark_now()
            while self._take(begin=True):
                pass  # of the time that the last write took
            if group is not None and topic is None:
                await self._delete_group(group)
            else:
                self._core.delete_offsets(group, topic)
                for key in list(self._unsaved):
                    if group in (None, key[0]) and topic in (None, key[1]):
                        del self._unsaved[key]
                await asyncio.to_thread(self._metadata.offsets.delete, group, topic)
            await self._write_taken(mark)

    async def _delete_group(self, group: str) -> None:
        """Deletes a group's offsets, of which there may be a million in lite topics."""
        here, pieces = self._core.consumed(group=group), Pieces()

        def all_topics() -> list[str]:
            found = {topic for _, topic in here}
            found.update(each.topic for each in self._metadata.offsets.all(group))
            return [each for each in found if not _is_own(each, group)]

        topics = iter(await asyncio.to_thread(all_topics))
        while some := [(group, topic) for topic in islice(topics, _BATCH)]:
            for pair in some:
                await pieces.next()
                self._core.delete_offsets(*pair)
                self._unsaved.pop(pair, None)
            await asyncio.to_thread(self._metadata.offsets.delete_pairs, some)

    # ---- to the disk ----

    def _mark_now(self) -> int:
        """Returns the end of the log up to which all records are in the offsets of now: others put
        records and move offsets meanwhile."""
        return self._log_end() if self.known_to is None else self.known_to

    def _take(self, *, begin: bool) -> bool:
        """Takes some of what has changed; False: no more of this round has."""
        rows = self._core.take_changed_offsets(begin=begin)
        for group, topic, queues in rows:
            self._unsaved.setdefault((group, topic), {}).update(queues)
        return bool(rows)

    def _is_full(self) -> bool:
        return sum(map(len, self._unsaved.values())) >= _BATCH

    async def persist(self) -> None:
        """Brings what changed to the disk; what could not be written stays for the next time."""
        refused = self._core.take_refused_offsets()
        if refused:
            _quiet.warning(
                "offsets",
                "%d times there was no room for another consumer offset: maxOffsetsPerBroker",
                refused,
            )
        async with self._writing:
            await self._persist()

    async def _persist(self) -> None:
        """Writes the offsets. Many groups may have moved at once: they are taken in pieces, and
        written in batches. The mark comes with the last."""
        if self._unsaved:  # an older round failed
            await self._write_taken(None)
        mark, pieces = self._mark_now(), Pieces()
        more = self._take(begin=True)
        while more:
            await pieces.next()
            more = self._take(begin=False)
            if more and self._is_full():
                await self._write_taken(None)
        if self._unsaved:
            await self._write_taken(mark)

    async def _write_taken(self, mark: int | None) -> None:
        """Writes what was taken. What it rests on lies before the end of the log."""
        rows, self._unsaved = self._unsaved, {}
        try:
            await asyncio.to_thread(self._write, rows, mark, self._log_end())
        except BaseException:
            for pair, queues in self._unsaved.items():  # what came meanwhile is newer
                rows.setdefault(pair, {}).update(queues)
            self._unsaved = rows
            raise

    def persist_now(self) -> None:
        """Writes what changed at the very end, when nothing else runs."""
        mark = self._mark_now()
        while self._take(begin=True):
            if self._is_full():
                self._write(self._unsaved, None, self._log_end())
                self._unsaved = {}
        rows, self._unsaved = self._unsaved, {}
        if rows:
            self._write(rows, mark, self._log_end())

    def _log_end(self) -> int:
        return self._store.info().log_max

    def _write(
        self, rows: Mapping[tuple[str, str], Mapping[int, int]], mark: int | None, end: int
    ) -> None:
        """Writes offsets, and the mark, if this completes it. What the offsets rest on lies before
        `end`, and is on the disk before they are: so a message that was sent back, popped or
        revived is not passed over after a power failure because its copy is gone and the offset is
        not."""
        sync = self.before_write
        if sync is not None:
            sync()
        if self._store.info().log_flushed < end:
            self._store.flush()
        with self._metadata.batch():
            if self.is_marked and mark is not None:
                self._metadata.set_offsets_mark(mark)
            # A name that no file could hold came from a hostile client, and goes with it.
            self._metadata.offsets.set_many(rows)
