"""Checking a tier, taking things away from it, and collecting what no manifest names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pystore.cold.failures import TierDamaged
from pystore.cold.manifest import Manifest, Row, page_key
from pystore.cold.objects import StoredObject
from pystore.cold.places import LOG, MANIFESTS, base_of, manifest_key, queue_of, split_manifest
from pystore.cold.segment import check_segment, excerpt, units_of_row
from pystore.cold.tier import Tier
from pystore.native import ffi

__all__ = ["TierAudit", "collect", "expired_below", "orphans", "remove", "verify"]

#: What no manifest names may belong to a writer that is about to write its manifest, and what an
#: older manifest names to a reader that has not looked for a newer one.
GRACE_S = 86_400
_AT_ONCE = 8


@dataclass(slots=True)
class TierAudit:
    """What was checked, and what is wrong. orphans: objects that no manifest names, and their
    bytes."""

    queues: int = 0
    segments: int = 0
    messages: int = 0
    bytes: int = 0
    orphans: int = 0
    orphan_bytes: int = 0
    wrong: list[str] = field(default_factory=list)


def verify(
    tier: Tier, *, quick: bool = False, progress: Callable[[int, int], None] | None = None
) -> TierAudit:
    """Checks every manifest and every segment: its CRC, and each record by its unit. quick: only
    that segments are there with the right size. Raises: TierUnreachable."""
    audit = TierAudit()
    sizes = {found.key: found.size for found in tier.objects.find("")}
    named = set()
    work: list[tuple[Manifest, Row]] = []
    for topic, queue in tier.queues():
        audit.queues += 1
        try:
            manifest = tier.manifest(topic, queue)
            rows = list(tier.rows(manifest, 0, 1 << 62))
        except TierDamaged as failed:
            audit.wrong.append(str(failed))
            continue
        named |= {manifest_key(topic, queue, manifest.version)}
        named |= {page_key(topic, queue, page.number) for page in manifest.pages}
        work += [(manifest, row) for row in rows]
    with ThreadPoolExecutor(_AT_ONCE, "pystore-verify") as pool:
        found = pool.map(lambda each: _wrong_with(tier, each[0], each[1], sizes, quick), work)
        for (manifest, row), wrong in zip(work, found, strict=True):
            audit.segments += 1
            audit.messages += row.count
            audit.bytes += row.size
            named.add(tier.key_of(manifest.topic, manifest.queue, row.base))
            if wrong:
                audit.wrong.append(wrong)
            if progress is not None:
                progress(audit.segments, len(work))
    for key, size in sizes.items():
        if key not in named:
            audit.orphans += 1
            audit.orphan_bytes += size
    return audit


def _wrong_with(
    tier: Tier, manifest: Manifest, row: Row, sizes: dict[str, int], quick: bool
) -> str:
    """Says what is wrong with a segment; nothing where it is sound."""
    key = tier.key_of(manifest.topic, manifest.queue, row.base)
    size = sizes.get(key)
    if size != row.size:
        there = "is not there" if size is None else f"has {size} bytes, not {row.size}"
        return f"{key} {there}: offsets {row.first} to {row.end - 1} are lost"
    if quick:
        return ""
    try:
        data = tier.objects.get(key, 0, row.size)
        check_segment(data, row, key)
    except TierDamaged as failed:
        return str(failed)
    place = manifest.topic, manifest.queue
    options = ffi.new("ps_read_options *")
    options.max_messages = row.count
    options.max_bytes = row.size
    batch = excerpt(memoryview(data)[: row.records], row.base, units_of_row(data, row), row.first,
                    place, options)  # fmt: skip
    if len(batch) == row.count:
        return ""
    return f"{key}: {row.count - len(batch)} records are damaged, the first at offset" \
           f" {batch.first_damaged}"  # fmt: skip


# ---- taking away ----


def remove(
    tier: Tier, topic: str, queue: int | None = None, *, before: int | None = None, epoch: int = 0
) -> int:
    """Takes segments of a topic out of its manifests; returns how many. Their objects go with the
    next `collect` after a day.

    before: a store time in ms: only segments whose newest message is older, from the queue's
    beginning on. None: all, and what is made under this name begins at offset 0.

    Raises: TierTaken, TierUnreachable, TierDamaged."""
    taken = 0
    for name, number in tier.queues():
        if name != topic or queue not in (None, number):
            continue
        manifest = tier.manifest(name, number, fresh=True)
        later = max(epoch, manifest.epoch)
        if before is None:
            taken += manifest.segments
            if manifest.end or manifest.segments:
                tier.publish(manifest.emptied(later, tier.writer))
            continue
        low = expired_below(tier, manifest, before)
        if low > manifest.start:
            kept = manifest.kept_from(low, later, tier.writer)
            taken += manifest.segments - kept.segments
            tier.publish(kept)
    return taken


def expired_below(tier: Tier, manifest: Manifest, before: int) -> int:
    """Returns the queue offset at which the first segment begins whose newest message was stored at
    `before`, in ms, or later. Raises: TierUnreachable, TierDamaged."""
    first = manifest.start
    for page in manifest.pages:
        if page.time_max >= before:
            break
        first = page.end
    for row in tier.rows(manifest, first, 1 << 62):
        if row.time_max >= before:
            break
        first = row.end
    return first


# ---- what no manifest names ----


def orphans(tier: Tier, grace_s: float = GRACE_S) -> Iterator[StoredObject]:
    """Yields the objects that no newest manifest names and that are older than `grace_s`: left by
    writers that were killed, taken away by `remove`, and older versions of manifests. What cannot
    be read keeps everything of its queue. Raises: TierUnreachable."""
    listed = list(tier.objects.find(""))  # first: what is written afterwards is not in it
    tier.refresh()
    named: dict[tuple[str, int], set[str] | None] = {}
    for found in listed:
        place = _queue_of(found.key)
        if place is None or found.age_s < grace_s:
            continue
        if place not in named:
            named[place] = _named(tier, *place)
        keys = named[place]
        if keys is not None and found.key not in keys:
            yield found


def _queue_of(key: str) -> tuple[str, int] | None:
    """Returns topic and queue of a segment, a manifest or a page; None for what is not ours."""
    parts = key.split("/")
    if len(parts) != 4:
        return None
    if parts[0] == MANIFESTS:
        topic, queue = parts[1], queue_of(parts[2])
        ours = parts[3].startswith("page-") or split_manifest(key) is not None
    else:
        topic, queue = parts[0], queue_of(parts[1])
        ours = parts[2] == LOG and base_of(parts[3]) is not None
    return (topic, queue) if ours and queue is not None else None


def _named(tier: Tier, topic: str, queue: int) -> set[str] | None:
    """Returns the keys that a queue's newest manifest needs; None: it cannot be read, or there is
    none."""
    try:
        manifest = tier.manifest(topic, queue)
        rows = list(tier.rows(manifest, 0, 1 << 62))
    except TierDamaged:
        return None
    keys = {tier.key_of(topic, queue, row.base) for row in rows}
    keys |= {page_key(topic, queue, page.number) for page in manifest.pages}
    return keys | {manifest_key(topic, queue, manifest.version)}


def collect(tier: Tier, grace_s: float = GRACE_S) -> tuple[int, int]:
    """Deletes orphans; returns how many, and their bytes. Raises: TierUnreachable."""
    count = size = 0
    for found in orphans(tier, grace_s):
        tier.objects.delete([found.key])
        count += 1
        size += found.size
    return count, size
