"""A broker's tier: its queues, their manifests, and what upstream's POSIX provider wrote.

Both are read as extents: runs of units, and the pieces of the queue's log that they lead into.
"""

from __future__ import annotations

import os
import secrets
from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

from pystore.cold.failures import NotATier, TierDamaged, TierTaken, TierUnreachable
from pystore.cold.manifest import (
    MANIFEST_MAX,
    Manifest,
    ManifestPage,
    Row,
    page_key,
    page_of,
    parse_manifest,
    parse_page,
    spilled,
)
from pystore.cold.objects import FolderObjects, ObjectStore, StoredObject, address_of, open_objects
from pystore.cold.places import (
    INDEX_TOPIC,
    LOG,
    MANIFESTS,
    UNITS,
    base_of,
    broker_folder,
    cluster_of,
    manifest_key,
    object_name,
    queue_folder,
    queue_of,
    split_manifest,
)
from pystore.format.units import UNIT

__all__ = ["BrokerTier", "Extent", "JavaTier", "Place", "QueueSpan", "Tier", "TierView",
           "find_brokers", "is_tier", "new_tier", "open_tier", "refuse_upstreams",
           "span_of"]  # fmt: skip

#: Store times of anything.
ALL_TIMES = 0, (1 << 63) - 1
#: Manifests of many queues are fetched by so many threads.
_AT_ONCE = 16
#: A file of upstream's units leads to gigabytes of records: so many of them are an extent.
_UNITS_AT_ONCE = 1 << 16


class QueueSpan(NamedTuple):
    """What of a queue is there: offsets [start, end), store times in ms (-1: unknown), objects and
    their bytes."""

    topic: str
    queue: int
    start: int
    end: int
    time_min: int
    time_max: int
    segments: int
    size: int


class Place(NamedTuple):
    """A piece of a queue's log in an object: its bytes [base, base + size) begin the object. whole:
    bytes of the object."""

    key: str
    base: int
    size: int
    whole: int


class Extent(NamedTuple):
    """Units of dense offsets. key, at: the object that holds them, and where. whole: its bytes.
    log: where records lie, sorted. row: the segment that all of this is; None in upstream's
    tier."""

    first: int
    count: int  # type: ignore[assignment]  # a field, where tuple has a method
    key: str
    at: int
    whole: int
    log: tuple[Place, ...]
    row: Row | None
    time_min: int
    time_max: int

    @property
    def end(self) -> int:
        return self.first + self.count


class BrokerTier(NamedTuple):
    """A broker found below an address. folder: relative to it. cluster, broker: empty where the
    address does not tell."""

    cluster: str
    broker: str
    folder: str


# ---- finding ----


def find_brokers(objects: ObjectStore) -> list[BrokerTier]:
    """Returns the brokers whose tiers lie below an address: of a root, a cluster or a broker."""
    names = objects.folders()
    above, _, last = objects.address.replace("\\", "/").rpartition("/")
    if _is_broker(objects, names):
        cluster = cluster_of(above.rpartition("/")[2])
        return [BrokerTier(cluster or "", last if cluster else "", "")]
    own = cluster_of(last)
    if own is not None:
        return [BrokerTier(own, name, name) for name in names]
    return [
        BrokerTier(cluster, name, f"{folder}/{name}")
        for folder in names
        if (cluster := cluster_of(folder)) is not None
        for name in objects.folders(f"{folder}/")
    ]


def _is_broker(objects: ObjectStore, names: list[str]) -> bool:
    if MANIFESTS in names or INDEX_TOPIC in names:
        return True
    if any(cluster_of(name) is not None for name in names):
        return False
    for topic in names[:3]:
        for queue in objects.folders(f"{topic}/")[:1]:
            if queue_of(queue) is not None and LOG in objects.folders(f"{topic}/{queue}/"):
                return True
    return False


def is_tier(path: str | os.PathLike[str]) -> bool:
    """Says whether a folder of this host holds a tier: of a root, a cluster or a broker; not where
    it cannot be read."""
    try:
        return bool(find_brokers(FolderObjects(Path(path))))
    except TierUnreachable:
        return False


def open_tier(path: str | os.PathLike[str]) -> Tier | JavaTier:
    """Opens the tier of the one broker at an address or folder. Raises: NotATier naming the brokers
    where there are several, TierUnreachable, BadArgument."""
    objects = open_objects(path)
    found = find_brokers(objects)
    if not found:
        raise NotATier("no cold tier there", address_of(path))
    if len(found) > 1:
        error = NotATier(f"{len(found)} brokers' tiers lie there", address_of(path))
        error.next_step = "name one: " + ", ".join(sorted(each.folder for each in found)[:5])
        raise error
    one = found[0]
    below = objects.below(one.folder)
    if MANIFESTS in below.folders():
        return Tier(below, one.cluster, one.broker)
    return JavaTier(below, one.cluster, one.broker)


def refuse_upstreams(objects: ObjectStore) -> None:
    """Refuses to write where upstream's own tier of a broker lies, whose writer knows nothing of
    ours. Raises: NotATier, TierUnreachable."""
    folders = objects.folders()
    if MANIFESTS not in folders and _is_broker(objects, folders):
        error = NotATier("RocketMQ's own tier lies there", objects.address)
        error.next_step = "name another place, and copy it there with: pystore cold fetch"
        raise error


def new_tier(path: str | os.PathLike[str], cluster: str, broker: str) -> Tier:
    """Opens the tier of a broker to write to it; its folder is made with the first object. path: of
    the root."""
    return Tier(open_objects(path).below(broker_folder(cluster, broker)), cluster, broker)


class TierView(Protocol):
    """What a reader asks of either tier."""

    objects: ObjectStore
    cluster: str
    broker: str
    #: Whether the sums of properties are right.
    summed: bool

    def refresh(self) -> None: ...

    def spans(self, topic: str | None = None) -> list[QueueSpan]: ...

    def queues(self) -> list[tuple[str, int]]: ...

    def span(self, topic: str, queue: int) -> QueueSpan | None: ...

    def extents(
        self, topic: str, queue: int, first: int, end: int, times: tuple[int, int] = ALL_TIMES
    ) -> Iterator[Extent]:
        """Yields what there is of offsets [first, end). times: store times in ms, inclusive, of
        which it may leave out others where it knows them."""


# ---- ours ----


class Tier:
    """The tier that we write."""

    summed = True

    def __init__(self, objects: ObjectStore, cluster: str, broker: str) -> None:
        self.objects = objects
        self.cluster, self.broker = cluster, broker
        self._listed: dict[tuple[str, int], tuple[int, int]] = {}
        self._known: dict[tuple[str, int], Manifest] = {}
        self._pages: dict[str, tuple[Row, ...]] = {}
        #: Of this process's manifests, so that a request sent twice finds its own.
        self.writer = secrets.randbits(62)
        self.refresh()

    def refresh(self) -> None:
        """Looks which manifests are the newest: one listing."""
        newest: dict[tuple[str, int], tuple[int, int]] = {}
        for found in self.objects.find(f"{MANIFESTS}/"):
            self._note(found, newest)
        self._listed = newest

    @staticmethod
    def _note(found: StoredObject, newest: dict[tuple[str, int], tuple[int, int]]) -> None:
        named = split_manifest(found.key)
        if named is not None:
            topic, queue, version = named
            if version > newest.get((topic, queue), (0, 0))[0]:
                newest[topic, queue] = version, found.size

    def queues(self) -> list[tuple[str, int]]:
        """Returns topic and queue of every manifest, sorted."""
        return sorted(self._listed)

    def manifest(self, topic: str, queue: int, *, fresh: bool = False) -> Manifest:
        """Returns the newest manifest of a queue; an empty one where there is none. fresh: looks
        for a newer one first. Raises: TierDamaged, TierUnreachable."""
        place = topic, queue
        if fresh:
            known = self._listed.get(place)
            after = manifest_key(topic, queue, known[0]) if known else ""
            newest = {place: known} if known else {}
            for found in self.objects.find(f"{MANIFESTS}/{queue_folder(topic, queue)}/", after):
                self._note(found, newest)
            if place in newest:
                self._listed[place] = newest[place]
        listed = self._listed.get(place)
        if listed is None:
            return Manifest(topic, queue)
        held = self._known.get(place)
        if held is not None and held.version == listed[0]:
            return held
        key = manifest_key(topic, queue, listed[0])
        where = f"{self.objects.address}/{key}"
        if listed[1] > MANIFEST_MAX:
            raise TierDamaged(f"a manifest has {listed[1]} bytes", where)
        data = bytes(self.objects.get(key, 0, listed[1]))
        self._known[place] = found_now = parse_manifest(data, topic, queue, listed[0], where)
        return found_now

    def known(self, topic: str, queue: int) -> Manifest | None:
        """Returns the manifest of a queue that was fetched last, without a request."""
        return self._known.get((topic, queue))

    def load_all(self, topic: str | None = None) -> list[Manifest]:
        """Returns every queue's manifest, or those of a topic, fetched side by side."""
        wanted = [place for place in self.queues() if topic in (None, place[0])]
        with ThreadPoolExecutor(_AT_ONCE, "pystore-manifests") as pool:
            return list(pool.map(lambda place: self.manifest(*place), wanted))

    def spans(self, topic: str | None = None) -> list[QueueSpan]:
        return [span_of(each) for each in self.load_all(topic) if each.end or each.segments]

    def span(self, topic: str, queue: int) -> QueueSpan | None:
        found = self.manifest(topic, queue)
        return span_of(found) if found.end or found.segments else None

    def rows(
        self, manifest: Manifest, first: int, end: int, times: tuple[int, int] = ALL_TIMES
    ) -> Iterator[Row]:
        """Yields the segments that reach into offsets [first, end), in their order. times: store
        times in ms, inclusive: pages without one are not fetched."""
        first = max(first, manifest.low)
        for page in manifest.pages:
            timed = page.time_max >= times[0] and page.time_min <= times[1]
            if timed and page.end > first and page.first < end:
                rows = self._page(manifest.topic, manifest.queue, page)
                yield from (row for row in rows if row.end > first and row.first < end)
        at = bisect_right(manifest.rows, first, key=lambda row: row.end)
        for row in manifest.rows[at:]:
            if row.first >= end:
                return
            yield row

    def _page(self, topic: str, queue: int, page: ManifestPage) -> tuple[Row, ...]:
        key = page_key(topic, queue, page.number)
        rows = self._pages.get(key)
        if rows is None:
            data = bytes(self.objects.get(key, 0, page.size))
            rows = parse_page(data, page, f"{self.objects.address}/{key}")
            self._pages[key] = rows
        return rows

    def extents(
        self, topic: str, queue: int, first: int, end: int, times: tuple[int, int] = ALL_TIMES
    ) -> Iterator[Extent]:
        manifest = self.manifest(topic, queue)
        for row in self.rows(manifest, first, end, times):
            key = self.key_of(topic, queue, row.base)
            log = (Place(key, row.base, row.records, row.size),)
            yield Extent(row.first, row.count, key, row.records, row.size, log, row,
                         row.time_min, row.time_max)  # fmt: skip

    @staticmethod
    def key_of(topic: str, queue: int, base: int) -> str:
        """Returns the key of a segment."""
        return f"{queue_folder(topic, queue)}/{LOG}/{object_name(base)}"

    def publish(self, manifest: Manifest) -> Manifest:
        """Makes a version the newest; returns it as it stands. Its segments are there already.
        Raises: TierTaken where another writer was first, TierUnreachable."""
        topic, queue = manifest.topic, manifest.queue
        manifest, older = spilled(manifest)
        if older:
            page, data = page_of(older, secrets.randbits(62))
            self._put_once(page_key(topic, queue, page.number), data, manifest)
            manifest = manifest._replace(pages=(*manifest.pages, page))
        data = manifest.encoded()
        self._put_once(manifest_key(topic, queue, manifest.version), data, manifest)
        self._listed[topic, queue] = manifest.version, len(data)
        self._known[topic, queue] = manifest
        return manifest

    def _put_once(self, key: str, data: bytes, manifest: Manifest) -> None:
        if not self.objects.put_new(key, data):
            raise TierTaken(
                f"another writer has made version {manifest.version} of"
                f" {manifest.topic}/{manifest.queue}",
                self.objects.address,
            )


def span_of(m: Manifest) -> QueueSpan:
    """Returns what a manifest says is there of its queue."""
    return QueueSpan(m.topic, m.queue, m.start, m.end, *m.times, m.segments, m.size)


# ---- upstream's ----


class _JavaQueue(NamedTuple):
    units: tuple[Place, ...]
    log: tuple[Place, ...]


class JavaTier:
    """The tree of upstream's POSIX provider, without its metadata, which lies elsewhere: names give
    kind and base, units the rest."""

    #: It leaves the sums of properties as they were for the local offset.
    summed = False

    def __init__(self, objects: ObjectStore, cluster: str, broker: str) -> None:
        self.objects = objects
        self.cluster, self.broker = cluster, broker
        self._queues: dict[tuple[str, int], _JavaQueue] = {}
        self.refresh()

    def refresh(self) -> None:
        found: dict[tuple[str, int], dict[str, list[Place]]] = {}
        for each in self.objects.find(""):
            parts = each.key.split("/")
            if len(parts) != 4 or parts[0] == INDEX_TOPIC or parts[2] not in (LOG, UNITS):
                continue
            queue, base = queue_of(parts[1]), base_of(parts[3])
            if queue is not None and base is not None:
                kinds = found.setdefault((parts[0], queue), {LOG: [], UNITS: []})
                kinds[parts[2]].append(Place(each.key, base, each.size, each.size))
        self._queues = {
            place: _JavaQueue(
                tuple(sorted(kinds[UNITS], key=lambda p: p.base)),
                tuple(sorted(kinds[LOG], key=lambda p: p.base)),
            )
            for place, kinds in found.items()
        }

    def queues(self) -> list[tuple[str, int]]:
        return sorted(self._queues)

    def spans(self, topic: str | None = None) -> list[QueueSpan]:
        found = (self.span(*place) for place in self.queues() if topic in (None, place[0]))
        return [each for each in found if each is not None]

    def span(self, topic: str, queue: int) -> QueueSpan | None:
        known = self._queues.get((topic, queue))
        if known is None:
            return None
        extents = list(self.extents(topic, queue, 0, 1 << 62))
        start = extents[0].first if extents else 0
        end = extents[-1].end if extents else 0
        size = sum(place.size for place in (*known.units, *known.log))
        return QueueSpan(topic, queue, start, end, -1, -1, len(known.log), size)

    def extents(
        self, topic: str, queue: int, first: int, end: int, times: tuple[int, int] = ALL_TIMES
    ) -> Iterator[Extent]:
        known = self._queues.get((topic, queue), _JavaQueue((), ()))
        for place in known.units:
            # A torn tail is cut to whole units.
            base, count = place.base // UNIT.size, place.size // UNIT.size
            for skipped in range(0, count, _UNITS_AT_ONCE):
                start, some = base + skipped, min(count - skipped, _UNITS_AT_ONCE)
                if start + some > first and start < end:
                    at = skipped * UNIT.size
                    yield Extent(start, some, place.key, at, place.whole, known.log, None, -1, -1)
