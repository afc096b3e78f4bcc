"""A broker's tier: its queues, their manifests, and what upstream's POSIX provider wrote.

Both are read as extents: runs of units, and the pieces of the queue's log that they lead into.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from sys import intern
from typing import Generic, NamedTuple, Protocol, TypeVar

from pystore.cold.ahead import in_order
from pystore.cold.failures import NotATier, TierDamaged, TierTaken, TierUnreachable
from pystore.cold.manifest import (
    MANIFEST_MAX,
    PAGES_MAX,
    Manifest,
    ManifestPage,
    Row,
    Seam,
    page_key,
    page_of,
    parse_manifest,
    parse_page,
    spilled,
)
from pystore.cold.objects import (
    FOLDERS_MAX,
    FolderObjects,
    ObjectStore,
    StoredObject,
    open_objects,
)
from pystore.cold.places import (
    INDEX_TOPIC,
    LOG,
    MANIFESTS,
    NUMBER_MAX,
    UNITS,
    Floor,
    base_of,
    broker_folder,
    cluster_of,
    floor_of,
    is_topic,
    manifest_key,
    object_name,
    queue_folder,
    queue_of,
    split_manifest,
)
from pystore.format.units import UNIT

__all__ = ["BrokerTier", "Extent", "JavaTier", "Place", "QueueSpan", "Recent", "Tier", "TierView",
           "brokers_at", "is_tier", "new_tier", "open_tier", "refuse_upstreams",
           "span_of"]  # fmt: skip

#: Store times of anything.
ALL_TIMES = 0, (1 << 63) - 1
#: So many folders are named to whoever has not named the right one.
_NAMED = 5
#: Folders in which something of a broker is looked for: RocketMQ's topics have no common name.
_LOOKED_INTO = 3
#: Manifests of many queues are fetched by so many threads.
_AT_ONCE = 16
#: A file of upstream's units leads to gigabytes of records: so many of them are an extent.
_UNITS_AT_ONCE = 1 << 16
#: Of such a file: upstream's own bound is 100 MB (tieredStoreConsumeQueueMaxSize).
_UNITS_MAX = 1 << 30
#: Bits that a manifest's size has in what is known of it.
_SIZE_BITS, _SIZE_MAX = 32, (1 << 32) - 1
#: Of manifests that are kept: 80,000 quiet queues', or those of 1,300 busy ones. In memory they
#: take three times as much.
_KEPT_BYTES = 48 << 20
#: Seconds after which a writer looks again before it makes a manifest: a quarter of a day, after
#: which a collector deletes what was said of queues that are no more.
_LOOKED_S = 21_600.0
#: Bytes of a queue's log that a broker can serve.
_LOG_MAX = 1 << 46
_K = TypeVar("_K")
_V = TypeVar("_V")


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


def _find_brokers(objects: ObjectStore) -> Iterator[BrokerTier]:
    above, _, last = objects.address.replace("\\", "/").rpartition("/")
    if _is_broker(objects):
        cluster = cluster_of(above.rpartition("/")[2])
        yield BrokerTier(cluster or "", last if cluster else "", "")
        return
    own = cluster_of(last)
    for folder in _named(objects):
        cluster = own or cluster_of(folder)
        if own is not None:
            yield BrokerTier(own, folder, folder)
        elif cluster is not None:
            for name in _named(objects, f"{folder}/"):
                yield BrokerTier(cluster, name, f"{folder}/{name}")


def _named(objects: ObjectStore, prefix: str = "") -> Iterator[str]:
    """Yields the folders below a prefix. Raises: NotATier where there are too many."""
    for number, name in enumerate(objects.folders(prefix)):
        if number == FOLDERS_MAX:
            error = NotATier(f"more than {FOLDERS_MAX} folders lie there", objects.address)
            error.next_step = "name the folder or prefix of one broker"
            raise error
        yield name


def _is_broker(objects: ObjectStore) -> bool:
    # By name: of topics, which lie beside them, there may be any number.
    if objects.has(MANIFESTS) or objects.has(INDEX_TOPIC):
        return True
    names = list(islice(objects.folders(), _LOOKED_INTO))
    if any(cluster_of(name) is not None for name in names):
        return False
    return _has_queue(objects, names, LOG)


def _has_queue(objects: ObjectStore, topics: Iterable[str], kind: str) -> bool:
    """Says whether the first queue of one of the topics has files of a kind."""
    return any(
        queue_of(queue) is not None and objects.has(f"{topic}/{queue}/{kind}")
        for topic in topics
        for queue in islice(objects.folders(f"{topic}/"), 1)
    )


def brokers_at(objects: ObjectStore) -> list[BrokerTier]:
    """Returns the brokers whose tiers lie below an address: of a root, a cluster or a broker.
    Raises: NotATier where there is none, or too much, TierUnreachable."""
    found = sorted(_find_brokers(objects), key=lambda each: each.folder)
    if not found:
        error = NotATier("no cold tier there", objects.address)
        names = ", ".join(islice(objects.folders(), _NAMED))
        error.next_step = "name the folder or prefix that was written to" + (
            f"; below this one lie: {names}" if names else ""
        )
        raise error
    return found


def is_tier(path: str | os.PathLike[str]) -> bool:
    """Says whether a folder of this host holds a tier: of a root, a cluster or a broker; not where
    it cannot be read."""
    try:
        return next(_find_brokers(FolderObjects(Path(path))), None) is not None
    except (TierUnreachable, NotATier):
        return False


def open_tier(path: str | os.PathLike[str]) -> Tier | JavaTier:
    """Opens the tier of the one broker at an address or folder. Raises: NotATier naming the brokers
    where there are several, TierUnreachable, BadArgument."""
    objects = open_objects(path)
    found = brokers_at(objects)
    if len(found) > 1:
        error = NotATier(f"{len(found)} brokers' tiers lie there", objects.address)
        error.next_step = "name one: " + ", ".join(each.folder for each in found[:_NAMED])
        raise error
    one = found[0]
    below = objects.below(one.folder)
    if below.has(MANIFESTS):
        return Tier(below, one.cluster, one.broker)
    return JavaTier(below, one.cluster, one.broker)


def refuse_upstreams(objects: ObjectStore) -> None:
    """Refuses to write where upstream's own tier of a broker lies, whose writer knows nothing of
    ours. Segments alone are not upstream's, which has units beside them: a writer of ours was
    killed before its first manifest. Raises: NotATier, TierUnreachable."""
    if objects.has(MANIFESTS):
        return
    topics = islice(objects.folders(), _LOOKED_INTO)
    if objects.has(INDEX_TOPIC) or _has_queue(objects, topics, UNITS):
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

    def each_span(self, topics: Collection[str] = ()) -> Iterator[QueueSpan | TierDamaged]:
        """Yields what there is of every queue, or of topics', or what is wrong with its manifest.
        Raises: TierUnreachable."""

    def spans(self, topic: str | None = None) -> list[QueueSpan]: ...

    def queues(self) -> list[tuple[str, int]]: ...

    def span(self, topic: str, queue: int) -> QueueSpan | None: ...

    def extents(
        self, topic: str, queue: int, first: int, end: int, times: tuple[int, int] = ALL_TIMES
    ) -> Iterator[Extent]:
        """Yields what there is of offsets [first, end). times: store times in ms, inclusive, of
        which it may leave out others where it knows them."""


# ---- ours ----


class Recent(Generic[_K, _V]):
    """What was made of objects last: no more of it than so many bytes of these."""

    def __init__(self, room: int) -> None:
        self._room, self._bytes = room, 0
        self._lock = threading.Lock()
        self._held: OrderedDict[_K, tuple[_V, int]] = OrderedDict()

    def get(self, key: _K) -> _V | None:
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key][0]

    def drop(self, key: _K) -> None:
        with self._lock:
            self._bytes -= self._held.pop(key, (None, 0))[1]

    def put(self, key: _K, value: _V, size: int) -> None:
        with self._lock:
            self._bytes += size - self._held.pop(key, (value, 0))[1]
            self._held[key] = value, size
            while self._bytes > self._room and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1][1]


def _listed(version: int, size: int) -> int:
    return version << _SIZE_BITS | min(size, _SIZE_MAX)


class Tier:
    """The tier that we write."""

    summed = True

    def __init__(self, objects: ObjectStore, cluster: str, broker: str) -> None:
        self.objects = objects
        self.cluster, self.broker = cluster, broker
        #: Version and size of each queue's newest manifest, in one number: of a million queues.
        self._listed: dict[tuple[str, int], int] = {}
        #: Queues whose newest manifest the last listing lacked.
        self._doubted: set[tuple[str, int]] = set()
        #: Queues whose newest manifest was seen, and says that there is nothing.
        self._emptied: set[tuple[str, int]] = set()
        #: Where queues begin that have no manifest, and the objects that say so: how old each was
        #: when they were listed, seconds.
        self.floor, self.floors = Floor(), dict[Floor, float]()
        self._known: Recent[tuple[str, int], Manifest] = Recent(_KEPT_BYTES)
        self._pages: Recent[str, tuple[Row, ...]] = Recent(_KEPT_BYTES // 4)
        #: Of this process's manifests, so that a request sent twice finds its own.
        self.writer = secrets.randbits(62)
        self.refresh()

    def refresh(self) -> None:
        """Looks which manifests are the newest: one listing. One that lacks what was there before
        is old, or the object store was set back: `manifest` then asks by name, and says which."""
        newest: dict[tuple[str, int], int] = {}
        floors: dict[Floor, float] = {}
        self._looked_s = time.monotonic()
        for found in self.objects.find(f"{MANIFESTS}/"):
            floor = floor_of(found.key)
            if floor is not None:
                floors[floor] = found.age_s
                self.floor = self.floor.over(*floor)
            self._note(found, newest)
        self.floors = floors
        lacked = {place for place, known in self._listed.items() if newest.get(place, 0) < known}
        collected = {place for place in lacked & self._emptied - newest.keys()
                     if self._listed[place] >> _SIZE_BITS <= self.floor.version}  # fmt: skip
        self._emptied -= collected
        for place in collected:
            self._known.drop(place)
        self._doubted = lacked - collected
        for place in self._doubted:
            newest[place] = self._listed[place]
            self._known.drop(place)
        self._listed = newest

    def seek(self, topic: str, queue: int) -> None:
        """Asks by name for manifests that are newer than what was listed: a listing may be old.
        Raises: TierUnreachable."""
        place = topic, queue
        known = self._listed.get(place)
        for version in (0, self.floor.version) if known is None else (known >> _SIZE_BITS,):
            key = manifest_key(topic, queue, version + 1)
            while (size := self.objects.size_of(key)) is not None:
                version += 1
                self._listed[place] = _listed(version, size)
                key = manifest_key(topic, queue, version + 1)

    @staticmethod
    def _note(found: StoredObject, newest: dict[tuple[str, int], int]) -> None:
        named = split_manifest(found.key)
        if named is not None:
            topic, queue, version = named
            place = intern(topic), queue
            newest[place] = max(newest.get(place, 0), _listed(version, found.size))

    def queues(self) -> list[tuple[str, int]]:
        """Returns topic and queue of every manifest, sorted."""
        return sorted(self._listed)

    def has(self, topic: str, queue: int) -> bool:
        """Says whether a manifest of the queue was listed."""
        return (topic, queue) in self._listed

    def manifest(
        self, topic: str, queue: int, *, fresh: bool = False, keep: bool = True
    ) -> Manifest:
        """Returns the newest manifest of a queue; an empty one where there is none. fresh: looks
        for a newer one first. keep: for who asks again. Raises: TierDamaged, TierUnreachable."""
        place = topic, queue
        if fresh:
            known = self._listed.get(place)
            after = manifest_key(topic, queue, known >> _SIZE_BITS) if known else ""
            newest = {place: known} if known else {}
            for found in self.objects.find(f"{MANIFESTS}/{queue_folder(topic, queue)}/", after):
                self._note(found, newest)
            if place in newest:
                self._listed[place] = newest[place]
        listed = self._listed.get(place)
        if listed is None:
            return Manifest(topic, queue, self.floor.version, next_base=self.floor.base)
        version, size = listed >> _SIZE_BITS, listed & _SIZE_MAX
        held = self._known.get(place)
        if held is not None and held.version == version:
            return held
        key = manifest_key(topic, queue, version)
        where = f"{self.objects.address}/{key}"
        if size > MANIFEST_MAX:
            raise TierDamaged(f"a manifest has {size} bytes", where)
        try:
            made = self._asked_twice(
                key, size, lambda data: parse_manifest(data, topic, queue, version, where)
            )
        except TierDamaged:
            if self.objects.size_of(key) is not None:
                raise
            error = TierDamaged("a manifest that was there is gone", where)
            error.next_step = "see whether the object store was set back, or its keys were deleted"
            raise error from None
        self._note_empty(made)
        if keep:
            self._known.put(place, made, size)
        return made

    def _note_empty(self, made: Manifest) -> None:
        place = made.topic, made.queue
        (self._emptied.add if made.is_empty else self._emptied.discard)(place)

    def forget(self, topic: str, queue: int) -> None:
        """Takes over that the last manifest of an empty queue was deleted."""
        self._listed.pop((topic, queue), None)
        self._known.drop((topic, queue))
        self._emptied.discard((topic, queue))

    def set_floor(self, floor: Floor) -> None:
        """Has queues without a manifest begin there, once everybody who writes has looked. Raises:
        TierUnreachable."""
        self.objects.put_new(floor.key, b"")
        self.floor = self.floor.over(*floor)

    def _look_again(self, manifest: Manifest) -> None:
        """Looks again where that was long ago: by now a collector may have deleted what told of
        another writer. Raises: TierTaken, TierUnreachable."""
        if time.monotonic() - self._looked_s < _LOOKED_S:
            return
        self.refresh()
        place = manifest.topic, manifest.queue
        listed = self._listed.get(place)
        version = self.floor.version if listed is None else listed >> _SIZE_BITS
        if place in self._doubted or manifest.version != version + 1:
            raise TierTaken(
                f"{manifest.topic}/{manifest.queue} has version {version}, and this writer was to"
                f" make {manifest.version}",
                self.objects.address,
            )

    def after_damaged(self, topic: str, queue: int, epoch: int) -> Manifest:
        """Returns the version after one that cannot be read: of an empty queue, whose segments come
        after all that are there. Raises: TierUnreachable."""
        version = self._listed[topic, queue] >> _SIZE_BITS
        ends = [0]
        for found in self.objects.find(f"{queue_folder(topic, queue)}/{LOG}/"):
            base = base_of(found.key.rpartition("/")[2])
            if base is not None and base + found.size <= _LOG_MAX:
                ends.append(base + found.size)
        return Manifest(topic, queue, version + 1, epoch, self.writer, next_base=max(ends))

    def known(self, topic: str, queue: int) -> Manifest | None:
        """Returns the manifest of a queue that was fetched last, without a request."""
        return self._known.get((topic, queue))

    def load_each(
        self, topics: Collection[str] = (), *, known: Mapping[tuple[str, int], Seam] | None = None
    ) -> Iterator[tuple[tuple[str, int], Manifest | TierDamaged]]:
        """Yields topic and queue, and the manifest or what is wrong with it, of every queue or of
        topics', fetched side by side. known: versions that are left out. Raises:
        TierUnreachable."""

        def load(place: tuple[str, int]) -> Manifest | TierDamaged:
            try:
                return self.manifest(*place)
            except TierDamaged as wrong:
                return wrong

        def is_wanted(place: tuple[str, int]) -> bool:
            seam = None if known is None else known.get(place)
            listed = self._listed[place] >> _SIZE_BITS
            old = seam is None or seam.version != listed or place in self._doubted
            return old and (not topics or place[0] in topics)

        wanted = filter(is_wanted, self.queues())
        return in_order(load, wanted, _AT_ONCE)

    def load_all(self, topic: str | None = None) -> Iterator[Manifest]:
        """Yields every queue's manifest, or those of a topic. Raises: TierDamaged,
        TierUnreachable."""
        for _, found in self.load_each(() if topic is None else (topic,)):
            if isinstance(found, TierDamaged):
                raise found
            yield found

    def each_span(self, topics: Collection[str] = ()) -> Iterator[QueueSpan | TierDamaged]:
        for _, found in self.load_each(topics):
            if isinstance(found, TierDamaged):
                yield found
            elif not found.is_empty:
                yield span_of(found)

    def spans(self, topic: str | None = None) -> list[QueueSpan]:
        return [span_of(each) for each in self.load_all(topic) if not each.is_empty]

    def span(self, topic: str, queue: int) -> QueueSpan | None:
        found = self.manifest(topic, queue)
        return None if found.is_empty else span_of(found)

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
            where = f"{self.objects.address}/{key}"
            rows = self._asked_twice(key, page.size, lambda data: parse_page(data, page, where))
            self._pages.put(key, rows, page.size)
        return rows

    def _asked_twice(self, key: str, size: int, parse: Callable[[bytes], _V]) -> _V:
        """Returns what is made of an object: what came may have been wrong, and not what is there.
        Raises: TierDamaged, TierUnreachable."""
        try:
            return parse(bytes(self.objects.get(key, 0, size)))
        except TierDamaged:
            return parse(bytes(self.objects.get(key, 0, size)))

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
        self._look_again(manifest)
        topic, queue = manifest.topic, manifest.queue
        manifest, older = spilled(manifest)
        if manifest.version > NUMBER_MAX or len(manifest.pages) + bool(older) > PAGES_MAX:
            error = TierDamaged(f"{topic}/{queue} has as many versions or pages as there can be")
            error.next_step = "a stranger wrote the last version: delete that object"
            raise error
        if older:
            page, data = page_of(older, secrets.randbits(62))
            self._put_once(page_key(topic, queue, page.number), data, manifest)
            manifest = manifest._replace(pages=(*manifest.pages, page))
        data = manifest.encoded()
        try:
            self._put_once(manifest_key(topic, queue, manifest.version), data, manifest)
        except TierTaken:
            self.seek(topic, queue)  # or an old listing would lead here again
            raise
        self._listed[topic, queue] = _listed(manifest.version, len(data))
        self._known.put((topic, queue), manifest, len(data))
        self._note_empty(manifest)
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
            if queue is not None and base is not None and is_topic(parts[0]):
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

    def each_span(self, topics: Collection[str] = ()) -> Iterator[QueueSpan | TierDamaged]:
        for place in self.queues():
            try:
                span = self.span(*place) if not topics or place[0] in topics else None
            except TierDamaged as wrong:
                yield wrong
            else:
                if span is not None:
                    yield span

    def spans(self, topic: str | None = None) -> list[QueueSpan]:
        found = (self.span(*place) for place in self.queues() if topic in (None, place[0]))
        return [each for each in found if each is not None]

    def span(self, topic: str, queue: int) -> QueueSpan | None:
        known = self._queues.get((topic, queue))
        if known is None:
            return None
        spans = [offsets for each in known.units if (offsets := _offsets_of(each))]
        start, end = (spans[0].start, spans[-1].stop) if spans else (0, 0)
        size = sum(place.size for place in (*known.units, *known.log))
        return QueueSpan(topic, queue, start, end, -1, -1, len(known.log), size)

    def extents(
        self, topic: str, queue: int, first: int, end: int, times: tuple[int, int] = ALL_TIMES
    ) -> Iterator[Extent]:
        known = self._queues.get((topic, queue), _JavaQueue((), ()))
        for place in known.units:
            offsets = _offsets_of(place)
            low, high = max(first, offsets.start), min(end, offsets.stop)
            first = max(first, high)  # each offset once, whatever files say
            for start in range(low, high, _UNITS_AT_ONCE):
                some = min(high - start, _UNITS_AT_ONCE)
                at = (start - offsets.start) * UNIT.size
                yield Extent(start, some, place.key, at, place.whole, known.log, None, -1, -1)


def _offsets_of(units: Place) -> range:
    """Returns the queue offsets of a file of units; a torn tail is cut to whole ones. Raises:
    TierDamaged."""
    if units.size > _UNITS_MAX:
        raise TierDamaged(f"RocketMQ writes no file of units with {units.size} bytes", units.key)
    first = units.base // UNIT.size
    return range(first, first + units.size // UNIT.size)
