"""Whether a tier has all that a store has: then the store may go, as a segment of it may by
retention."""

from __future__ import annotations

from collections.abc import Mapping

from broker.services.cold.handle import TierHandle
from pystore import QueueInfo, Store
from pystore.cold.ahead import in_order
from pystore.cold.blocks import BlockCache
from pystore.cold.places import is_kept
from pystore.cold.reader import ColdReader
from pystore.cold.tier import Tier

__all__ = ["lacks"]

#: Queues that are looked at side by side, and bytes of blocks meanwhile.
_AT_ONCE, _BLOCKS = 16, 24 << 20


def lacks(store: Store, handle: TierHandle, deleted: Mapping[str, int]) -> str:
    """Says which queue of a store the tier does not have to its end, or has with another message
    there; empty: none. deleted: topics whose messages before a place of the log do not count. Of
    what the tier has deleted by its own time the last message is not compared. Raises:
    StoreError."""
    tier = handle.look()
    reader = ColdReader.over(tier, BlockCache(tier.objects, _BLOCKS))
    end = store.info().log_max
    queues = [
        q for q in store.queues()
        if is_kept(q.topic, tier.cluster, tier.broker) and deleted.get(q.topic, -1) < end
    ]  # fmt: skip

    def compare(info: QueueInfo) -> str:
        return _difference(store, tier, reader, info)

    return next((found for _, found in in_order(compare, queues, _AT_ONCE) if found), "")


def _difference(store: Store, tier: Tier, reader: ColdReader, info: QueueInfo) -> str:
    topic, queue, last = info.topic, info.queue, info.max_offset - 1
    manifest = tier.manifest(topic, queue)
    if manifest.end <= last:
        return f"offsets {max(manifest.end, info.min_offset)} to {last} of {topic}/{queue}"
    if not max(manifest.start, info.min_offset) <= last:
        return ""
    # By its place: under a controller reads of queues show nothing before a master is followed.
    ours = [store.message(place) for place, *_ in store.units(topic, queue, last, 1)]
    theirs = reader.read(topic, queue, last, max_messages=1)
    both = [[(m.store_timestamp, m.body_crc) for m in each] for each in (ours, theirs)]
    return "" if both[0] == both[1] else f"message {last} of {topic}/{queue}"
