"""What a store's reads lack is fetched from the tier and lent to it (csrc/store/tier.h), so that
its queues begin where the tier begins. Everything here may block, and is for threads."""

from __future__ import annotations

import contextlib
import logging
import threading
import zlib
from collections import Counter
from typing import NamedTuple

from pystore.cold.blocks import BlockCache
from pystore.cold.failures import TierDamaged, TierUnreachable
from pystore.cold.segment import checks_of, filled_excerpt
from pystore.cold.tier import Extent, QueueSpan, TierView
from pystore.cold.units import fetch_records, fetch_units, prepare_sums
from pystore.errors import NotFound
from pystore.format.records import Buffer
from pystore.format.units import UNIT, units_of
from pystore.native import ffi, lib, raise_error
from pystore.store._messages import Batch, GetStatus, Message
from pystore.store._store import Store

__all__ = ["PLACES", "PLACE_SIZE", "Lender", "Want", "place_for"]

_log = logging.getLogger("pystore")
#: Physical offsets from here on are places in the tier.
PLACES = int(lib.PS_TIER_PLACE)
#: Bits of a place within the log of its queue; above them stands which queue it may be.
_BITS, _QUEUES = 46, 0xFFFF
PLACE_SIZE = 1 << _BITS
#: Units that are lent at once, and bytes of records to who reads on.
_UNITS, _AHEAD = 4096, 4 << 20
#: What was lent may go before it is read, where many read.
_TRIES = 3


def place_for(topic: str, queue: int) -> int:
    """Returns what places in the log of a queue have added, so that a message's id leads there and
    never into the local log."""
    return PLACES | (zlib.crc32(f"{topic}/{queue}".encode()) & _QUEUES) << _BITS


class Want(NamedTuple):
    """What a read lacks from a queue offset on: `count` units and the bytes [low, high) of the
    queue's log, or units alone where high is 0. reads_on: it goes on where one before has ended."""

    topic: str
    queue: int
    offset: int
    low: int
    high: int
    count: int  # type: ignore[assignment]  # a field, where tuple has a method
    reads_on: bool


class Lender:
    """Lends what there is in a tier to a store. passes_over: records that come wrong twice are
    passed over by who reads; else nothing is lent until they come right."""

    def __init__(
        self, store: Store, tier: TierView, blocks: BlockCache, *, passes_over: bool = False
    ) -> None:
        self._store = store
        self.tier, self.blocks = tier, blocks
        self.passes_over = passes_over
        #: Records that were passed over.
        self.damaged = 0
        #: Held while something is lent, and while something is published.
        self._lock = threading.RLock()
        #: Queues of which there is something; how often each has come or gone: what was fetched
        #: before is of another life of its topic, and is not lent afterwards.
        self._there: set[tuple[str, int]] = set()
        self._lives: Counter[tuple[str, int]] = Counter()

    # ---- what there is ----

    def publish(self, topic: str, queue: int, span: QueueSpan | None) -> None:
        """Lets the store know what of a queue is in the tier: None, nothing. Raises: OutOfMemory,
        StoreClosed."""
        first, end = (0, 0) if span is None else (span.start, span.end)
        error = ffi.new("ps_error *")
        store, handle = self._store.c_handle(), self._store._made(topic)
        with self._lock:
            if (first < end) != ((topic, queue) in self._there):
                self._there ^= {(topic, queue)}
                self._lives[topic, queue] += 1
            if lib.ps_tier_begins(store, handle, queue, first, end, error) < 0:
                raise_error(error[0])

    def take(self) -> Want | None:
        """Returns what a read wants next, which does not block. Raises: StoreClosed."""
        raw = ffi.new("ps_tier_want *")
        if not lib.ps_tier_wants(self._store.c_handle(), raw):
            return None
        topic = ffi.unpack(raw.topic, raw.topic_len).decode()
        place = place_for(topic, raw.queue_id)
        low, high = (raw.low - place, raw.high - place) if raw.high else (0, 0)
        return Want(topic, raw.queue_id, raw.offset, low, high, raw.count, bool(raw.reads_on))

    def failed(self, why: str, for_ms: int) -> None:
        """Says why something does not come yet."""
        lib.ps_tier_failed(self._store.c_handle(), why.encode()[: lib.PS_TIER_WHY - 1], for_ms)

    def again(self, topic: str, queue: int) -> None:
        """Has whoever waits for something of a queue ask for it again. Raises: StoreError."""
        lib.ps_tier_again(self._store.c_handle(), self._store._made(topic), queue)

    # ---- lending ----

    def fulfil(self, want: Want) -> None:
        """Fetches what is wanted, and lends it. Raises: TierDamaged, also where it comes wrong
        twice, TierUnreachable, OutOfMemory, StoreClosed."""
        life = self._lives[want.topic, want.queue]
        extent = self._extent(want)
        if extent is None:  # it has gone meanwhile
            span = self.tier.span(want.topic, want.queue)
            with self._lock:
                if life == self._lives[want.topic, want.queue]:
                    self.publish(want.topic, want.queue, span)
        elif extent.first > want.offset:
            self._lend_hole(want, extent.first, life)
        else:
            self._lend_extent(want, extent, life)

    def _units(self, want: Want, extent: Extent, count: int) -> bytes:
        if want.high:
            prepare_sums(self.blocks, extent)
        return fetch_units(
            self.blocks, extent, want.offset, count, on=want.reads_on, strict=not self.passes_over
        )

    def _lend_extent(self, want: Want, extent: Extent, life: int) -> None:
        """Lends units, and records where some are wanted. What comes wrong may be right the next
        time."""
        count, high = want.count if want.high else _UNITS, want.high
        count = min(count, extent.end - want.offset)
        damaged = 0
        for again in (False, True):
            units = self._units(want, extent, count)
            if want.reads_on and not again and high and _is_dense(units, want.low, high):
                units = self._units(want, extent, min(_UNITS, extent.end - want.offset))
                units, high = _cut(units, want.low)
                count = len(units) // UNIT.size
            records, right = fetch_records(self.blocks, extent, want.low, high, on=want.reads_on)
            anyway = again and self.passes_over
            if right is not False or anyway:
                damaged = self._lend(want, units, records, life, covered=right, anyway=anyway)
                if right is not False and not damaged:
                    return
            for key in {extent.key, *(each.key for each in extent.log)}:
                self.blocks.forget(key)
        some = f"{damaged} of the records" if damaged else "records"
        what = f"{some} of {want.topic}/{want.queue} from {want.offset} on"
        if not self.passes_over:
            raise TierDamaged(f"{what} were damaged twice", extent.key)
        self.damaged += damaged
        if damaged:
            _log.warning("Skipped in the cold tier: %s were damaged twice: %s", what, extent.key)
        else:
            _log.warning("Read in the cold tier: %s failed checks twice: %s", what, extent.key)

    def _lend(
        self, want: Want, units: Buffer, records: Buffer, life: int, *, covered: bool | None,
        anyway: bool,
    ) -> int:  # fmt: skip
        """Returns how many records are damaged: then nothing was lent, but `anyway`. life: of the
        queue when the units were looked for. covered: as of ``checks_of``."""
        covered = covered and not self._store.settings.checkCRCOnRead
        checks = checks_of(summed=self.tier.summed, covered=covered)
        queue = want.topic, want.queue
        raw, keep = filled_excerpt(records, want.low, units, want.offset, queue, checks)
        error = ffi.new("ps_error *")
        store, place = self._store.c_handle(), place_for(*queue)
        handle = self._store._made(want.topic)
        with self._lock:
            if life != self._lives[queue]:
                return 0
            damaged: int = lib.ps_tier_lend(store, handle, raw, place, anyway, error)
        del keep
        if damaged < 0:
            raise_error(error[0])
        return damaged

    def _lend_hole(self, want: Want, end: int, life: int) -> None:
        error = ffi.new("ps_error *")
        store, topic = self._store.c_handle(), self._store._made(want.topic)
        with self._lock:
            if life != self._lives[want.topic, want.queue]:
                return
            if lib.ps_tier_hole(store, topic, want.queue, want.offset, end, error) < 0:
                raise_error(error[0])

    # ---- reading ----

    def read(self, topic: str, queue: int, offset: int, most: int) -> Batch:
        """Returns messages of a queue from an offset on, from wherever they are, within the bounds
        of an answer. Raises: TierDamaged, TierUnreachable, StoreError."""
        for _ in range(_TRIES):
            batch = self._store.read(topic, queue, offset, max_messages=most, transfer_limits=True)
            if batch.status not in (GetStatus.IN_TIER, GetStatus.TIER_BUSY):
                return batch
            want = Want(topic, queue, offset, 0, 0, 1, False)
            extent = self._extent(want)
            if extent is None or extent.first > offset:
                self.fulfil(want)
                continue
            units = self._units(want, extent, min(most, extent.end - offset))
            (low, size, _), *_ = units_of(units)
            units, high = _cut(units, low)
            count = max(1, len(units) // UNIT.size)
            self.fulfil(want._replace(low=low, high=max(high, low + size), count=count))
        error = TierUnreachable(f"what is lent of {topic}/{queue} is gone before it is read")
        error.next_step = "ask again later: many read the cold tier"
        raise error

    def message(self, topic: str, queue: int, offset: int) -> Message | None:
        """Returns the message of a queue offset, from wherever it is; None: there is none. Raises:
        TierDamaged, TierUnreachable, StoreError."""
        batch = self.read(topic, queue, offset, 1)
        return batch[0] if batch and batch[0].queue_offset == offset else None

    def units(self, topic: str, queue: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Returns units of a queue from an offset on, from wherever they are, with places in the
        tier. Raises: TierDamaged, TierUnreachable, StoreError."""
        place = place_for(topic, queue)
        found: list[tuple[int, int, int]] = []
        while len(found) < count:
            at, left = offset + len(found), count - len(found)
            if at >= self._store.range(topic, queue)[0]:
                with contextlib.suppress(NotFound):
                    found += self._store.units(topic, queue, at, left)
                break
            want = Want(topic, queue, at, 0, 0, 0, False)
            extent = self._extent(want)
            if extent is None or extent.first > at:
                break
            units = self._units(want, extent, min(left, extent.end - at))
            found += [(place + low, size, code) for low, size, code in units_of(units)]
        return found

    def _extent(self, want: Want) -> Extent | None:
        span = self.tier.span(want.topic, want.queue)
        end = span.end if span is not None else 0
        return next(self.tier.extents(want.topic, want.queue, want.offset, end), None)

    # ---- by place ----

    def bring(self, place: int) -> None:
        """Lends the message at a place, so that the store finds it there. Raises: NotFound,
        TierDamaged, TierUnreachable, OutOfMemory, StoreClosed."""
        at = place & (1 << _BITS) - 1
        for span in self.tier.spans():
            if place - at != place_for(span.topic, span.queue):
                continue
            want = self._want_at(span, at)
            if want is not None:
                self.fulfil(want)
                return
        raise NotFound("no message of the tier lies at this place", offset=place)

    def _want_at(self, span: QueueSpan, at: int) -> Want | None:
        """Returns the want of the message that begins at a byte of the queue's log."""
        topic, queue = span.topic, span.queue
        for extent in self.tier.extents(topic, queue, span.start, span.end):
            row = extent.row
            if row is not None and not row.base <= at < row.base + row.records:
                continue
            whole = Want(topic, queue, extent.first, 0, 0, 0, False)
            units = self._units(whole, extent, extent.count)
            for number, (low, size, _) in enumerate(units_of(units)):
                if low == at:
                    return Want(topic, queue, extent.first + number, at, at + size, 1, False)
        return None


def _is_dense(units: bytes, low: int, high: int) -> bool:
    """Says whether units lead to all of these bytes: nobody has filtered them."""
    return sum(size for _, size, _ in units_of(units)) == high - low


def _cut(units: bytes, low: int) -> tuple[bytes, int]:
    """Returns as many units as lead to so much as is lent to who reads on, and where that ends."""
    high, count = low, 0
    for at, size, _ in units_of(units):
        if at != high or (count and high + size - low > _AHEAD):
            break
        high, count = at + size, count + 1
    return units[: count * UNIT.size], high
