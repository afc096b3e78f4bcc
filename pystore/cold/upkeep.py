"""Checking a tier, taking things away from it, and collecting what no manifest names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pystore.cold.ahead import in_order
from pystore.cold.failures import TierDamaged
from pystore.cold.listing import by_queue
from pystore.cold.manifest import Manifest, Row, page_key
from pystore.cold.objects import StoredObject
from pystore.cold.places import (
    LOG,
    MANIFESTS,
    Floor,
    base_of,
    floor_of,
    manifest_key,
    split_manifest,
)
from pystore.cold.reader import ColdReader
from pystore.cold.segment import check_segment, excerpt, units_of_row
from pystore.cold.tier import Tier, open_tier
from pystore.native import ffi

__all__ = ["SegmentWork", "TierAudit", "check_segments", "collect", "expired_below", "remove",
           "set_epoch", "verify", "verify_units", "wrong_with"]  # fmt: skip

#: What no manifest names may belong to a writer that is about to write its manifest, and what an
#: older manifest names to a reader that has not looked for a newer one.
GRACE_S = 86_400
#: So much of what is wrong is told.
WRONG_MAX = 1000
_AT_ONCE = 8
#: A queue's log that reaches further keeps its last manifest: each queue that has none begins where
#: the floor is, and no log may reach beyond 2^46.
_FLOOR_MAX = 1 << 44
_FAR = 1 << 62


@dataclass(slots=True)
class TierAudit:
    """What was checked, and what is wrong: the first WRONG_MAX of it. more: how much else is.
    orphans: objects that no manifest names, and their bytes."""

    queues: int = 0
    segments: int = 0
    messages: int = 0
    bytes: int = 0
    orphans: int = 0
    orphan_bytes: int = 0
    wrong: list[str] = field(default_factory=list)
    more: int = 0

    def note(self, wrong: str) -> None:
        if len(self.wrong) < WRONG_MAX:
            self.wrong.append(wrong)
        else:
            self.more += 1


class SegmentWork(NamedTuple):
    """A segment that is to be checked. size: of the object that is there; None: there is none."""

    topic: str
    queue: int
    row: Row
    size: int | None


def verify(
    tier: Tier, *, quick: bool = False, progress: Callable[[int, int], None] | None = None,
    run: Callable[[Iterator[SegmentWork]], Iterator[tuple[SegmentWork, str]]] | None = None,
) -> TierAudit:  # fmt: skip
    """Checks every manifest and every segment: its CRC, and each record by its unit. Of what is
    there no more than a queue's segments are in memory at once.

    quick: only that segments are there with the right size. progress: called with queues done, and
    queues in all. run: yields each with what `wrong_with` says of it, for tasks elsewhere. Raises:
    TierUnreachable, also where a listing is not in order."""
    audit, total = TierAudit(), len(tier.queues())

    def work() -> Iterator[SegmentWork]:
        for place, objects in by_queue(tier.objects):
            yield from _work_of(tier, place, objects, audit)
            if progress is not None:
                progress(audit.queues, total)

    def size(each: SegmentWork) -> int:
        return 0 if quick else each.row.size

    def check(each: SegmentWork) -> str:
        return wrong_with(tier, each, quick=quick)

    for each, wrong in (
        run(work()) if run is not None else in_order(check, work(), _AT_ONCE, size=size)
    ):
        audit.segments += 1
        audit.messages += each.row.count
        audit.bytes += each.row.size
        if wrong:
            audit.note(wrong)
    return audit


def _work_of(
    tier: Tier, place: tuple[str, int] | None, objects: Iterator[StoredObject], audit: TierAudit
) -> Iterator[SegmentWork]:
    """Yields the segments of a queue, and counts objects that its manifest does not name."""
    rows: dict[str, Row] = {}
    named: set[str] = set()
    if place is not None and tier.has(*place):
        audit.queues += 1
        try:
            manifest = tier.manifest(*place, keep=False)
            rows = {tier.key_of(*place, row.base): row for row in tier.rows(manifest, 0, _FAR)}
            named = _metadata_keys(manifest)
        except TierDamaged as failed:
            audit.note(str(failed))
            return  # what it names is not known
    for found in objects:
        row = rows.pop(found.key, None)
        if row is not None and place is not None:
            yield SegmentWork(*place, row, found.size)
        elif found.key not in named and floor_of(found.key) is None:
            audit.orphans += 1
            audit.orphan_bytes += found.size
    for row in rows.values():
        assert place is not None
        yield SegmentWork(*place, row, None)


def _metadata_keys(manifest: Manifest) -> set[str]:
    topic, queue = manifest.topic, manifest.queue
    keys = {page_key(topic, queue, page.number) for page in manifest.pages}
    return keys | {manifest_key(topic, queue, manifest.version)}


def verify_units(
    reader: ColdReader, progress: Callable[[int, int], None] | None = None
) -> TierAudit:
    """Checks a tier without manifests, as upstream writes it: that every unit leads to the record
    it says. Of a queue what comes before the first damage is counted. Raises: TierUnreachable."""
    audit = TierAudit()
    spans = reader.spans()
    for span in spans:
        audit.queues += 1
        audit.segments += span.segments
        audit.bytes += span.size
        try:
            for batch in reader.batches(topic=span.topic, queue=span.queue):
                audit.messages += len(batch)
        except TierDamaged as failed:
            audit.note(f"{span.topic}/{span.queue}: {failed}")
        if progress is not None:
            progress(audit.queues, len(spans))
    return audit


def check_segments(address: str, work: list[SegmentWork]) -> list[str]:
    """Returns what `wrong_with` says of each, in another process than the audit's."""
    tier = open_tier(address)
    assert isinstance(tier, Tier)
    return [wrong_with(tier, each) for each in work]


def wrong_with(tier: Tier, work: SegmentWork, *, quick: bool = False) -> str:
    """Says what is wrong with a segment; nothing where it is sound."""
    row = work.row
    key = tier.key_of(work.topic, work.queue, row.base)
    if work.size != row.size:
        there = "is not there" if work.size is None else f"has {work.size} bytes, not {row.size}"
        return f"{key} {there}: offsets {row.first} to {row.end - 1} are lost"
    if quick:
        return ""
    try:
        data = tier.objects.get(key, 0, row.size)
        check_segment(data, row, key)
    except TierDamaged as failed:
        return str(failed)
    place = work.topic, work.queue
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
    beginning on. None: all, and what is made under this name begins at offset 0; this takes away a
    damaged manifest, too, which counts as one.

    Raises: TierTaken, TierUnreachable, TierDamaged."""
    taken = 0
    for name, number in tier.queues():
        if name != topic or queue not in (None, number):
            continue
        try:
            manifest = tier.manifest(name, number, fresh=True)
        except TierDamaged:
            if before is not None:
                raise
            tier.publish(tier.after_damaged(name, number, epoch))
            taken += 1
            continue
        later = max(epoch, manifest.epoch)
        if before is None:
            taken += manifest.segments
            if not manifest.is_empty:
                tier.publish(manifest.emptied(later, tier.writer))
            continue
        low = expired_below(tier, manifest, before)
        if low > manifest.start:
            kept = manifest.kept_from(low, later, tier.writer)
            taken += manifest.segments - kept.segments
            tier.publish(kept)
    return taken


def set_epoch(tier: Tier, epoch: int) -> int:
    """Lets a writer of an epoch write to queues that have a manifest of a later one; returns how
    many. For where no later master is left: a controller that began anew, a stranger. Raises:
    TierTaken, TierUnreachable, TierDamaged."""
    count = 0
    for place in tier.queues():
        manifest = tier.manifest(*place, fresh=True)
        if manifest.epoch > epoch:
            version = manifest.version + 1
            tier.publish(manifest._replace(version=version, epoch=epoch, writer=tier.writer))
            count += 1
    return count


def expired_below(tier: Tier, manifest: Manifest, before: int) -> int:
    """Returns the queue offset at which the first segment begins whose newest message was stored at
    `before`, in ms, or later. Raises: TierUnreachable, TierDamaged."""
    first = manifest.start
    for page in manifest.pages:
        if page.time_max >= before:
            break
        first = page.end
    for row in tier.rows(manifest, first, _FAR):
        if row.time_max >= before:
            break
        first = row.end
    return first


# ---- what no manifest names ----


def collect(tier: Tier, grace_s: float = GRACE_S) -> tuple[int, int]:
    """Deletes what nobody needs that is older than `grace_s`; returns how many objects, and their
    bytes: what no newest manifest names, left by writers that were killed, taken away by `remove`,
    and older versions of manifests; at last the manifest of a queue that was deleted, once it is
    alone. What cannot be read keeps everything of its queue. Raises: TierUnreachable.

    A manifest that is deleted said at which version and byte its queue goes on. So the floor of
    queues without one is raised first, above it, and the manifest stays until that is as old as
    `grace_s`, too: whoever has listed neither has looked longer ago than that."""
    tier.refresh()
    began_s = time.monotonic()
    count = size = 0

    def is_old(age_s: float) -> bool:
        # Whoever wrote it had the grace before manifests were listed.
        return age_s >= grace_s + time.monotonic() - began_s

    settled = Floor()
    for floor, age_s in tier.floors.items():
        settled = settled.over(*floor) if is_old(age_s) else settled
    wanted = tier.floor
    for place, objects in by_queue(tier.objects):
        if place is None:
            continue
        work = _Leftovers(tier, place, objects, is_old)
        for found in work:
            tier.objects.delete([found.key])
            count, size = count + 1, size + found.size
        last = work.last
        if last is not None and last.next_base <= _FLOOR_MAX:
            if settled.covers(last.version, last.next_base):
                tier.objects.delete([manifest_key(*place, last.version)])
                tier.forget(*place)
                count, size = count + 1, size + work.last_size
            else:
                wanted = wanted.over(last.version, last.next_base)
    if wanted != tier.floor:
        tier.set_floor(wanted)
    past = [floor for floor in tier.floors if floor != settled and settled.covers(*floor)]
    if settled in tier.floors:
        tier.objects.delete(floor.key for floor in past)
        count += len(past)
    return count, size


class _Leftovers:
    """Yields the objects of a queue that nobody needs. last, last_size: the manifest, of a queue
    that is empty, that is all there is of it, and its bytes, once everything was yielded."""

    def __init__(
        self, tier: Tier, place: tuple[str, int], objects: Iterator[StoredObject],
        is_old: Callable[[float], bool],
    ) -> None:  # fmt: skip
        self._tier, self._place = tier, place
        self._objects, self._is_old = objects, is_old
        self.last: Manifest | None = None
        self.last_size = 0

    def __iter__(self) -> Iterator[StoredObject]:
        keys: set[str] | None = None
        kept: list[StoredObject] = []
        others = False
        for found in self._objects:
            if not self._is_old(found.age_s) or not _is_ours(found.key):
                others = True
                continue
            if keys is None:
                keys = _named(self._tier, *self._place)
                if keys is None:
                    return
            if found.key in keys:
                kept = [*kept[:1], found]
            else:
                others = True
                yield found
        if len(kept) == 1 and not others:
            manifest = self._tier.manifest(*self._place)
            alone = kept[0].key == manifest_key(*self._place, manifest.version)
            if alone and manifest.is_empty:
                self.last, self.last_size = manifest, kept[0].size


def _is_ours(key: str) -> bool:
    """Says whether an object of a queue has the name of a segment, a manifest or a page."""
    parts = key.split("/")
    if len(parts) != 4:
        return False
    if parts[0] == MANIFESTS:
        return parts[3].startswith("page-") or split_manifest(key) is not None
    return parts[2] == LOG and base_of(parts[3]) is not None


def _named(tier: Tier, topic: str, queue: int) -> set[str] | None:
    """Returns the keys that a queue's newest manifest needs; None: it cannot be read."""
    tier.seek(topic, queue)  # what an old listing does not have would go
    try:
        manifest = tier.manifest(topic, queue, fresh=not tier.has(topic, queue))
        rows = tier.rows(manifest, 0, _FAR)
        return {tier.key_of(topic, queue, row.base) for row in rows} | _metadata_keys(manifest)
    except TierDamaged:
        return None
