"""The tier of one broker, opened once: what is out there, as whoever serves reads may ask at once.

Manifests are kept in memory. A look, in a thread, lists them again and fetches those that have
changed; until the first one has succeeded nothing is known, and nothing local may go.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from pystore import QueueInfo, Store
from pystore.cold.failures import NotATier, TierDamaged
from pystore.cold.manifest import Manifest, Seam
from pystore.cold.push import continues
from pystore.cold.tier import QueueSpan, Tier, new_tier, refuse_upstreams, span_of
from pystore.files import make_folders, read_file, write_whole

__all__ = ["TierHandle"]

log = SafeLogger("broker.cold")
_quiet = RateLimitedLogger(log)

#: Of queues that the store does not have, so many are told.
_DAMAGED_MAX = 1000
#: A topic whose deletion was asked for is gone by then, or that failed.
_SOON_S = 60.0
#: A file of the store, with the address at which it has something in a tier.
MARK = "tieredStore.txt"


class TierHandle:
    """The tier at an address, or none of it as long as nobody could reach it.

    Calls that fetch something are for threads; `span` and `spans` fetch nothing, wait for nobody
    and may be called anywhere."""

    def __init__(self, store: Store, address: str, cluster: str, broker: str) -> None:
        self.address = address
        self._store = store
        self._names = cluster, broker
        self._looking = threading.Lock()
        self._spans: dict[tuple[str, int], QueueSpan] = {}
        #: Of the manifests that these were taken from: a look fetches later ones alone. Manifests
        #: of very many queues do not stay in memory.
        self._seams: dict[tuple[str, int], Seam] = {}
        #: Topics that were deleted, and whose queues in the tier are of before; when that was seen,
        #: on the monotonic clock.
        self.hidden: dict[str, float] = {}
        self._deleted: dict[str, int] = {}
        #: Queues whose manifests could not be read at the last look, and why: others go on.
        self.damaged: dict[tuple[str, int], str] = {}
        #: Queues that end in the tier before they begin here, and what is in neither.
        self.gaps: dict[tuple[str, int], str] = {}
        #: The latest epoch in which a queue was written to, as of the last look.
        self.epoch = 0
        self.tier: Tier | None = None
        #: Why the tier could not be looked at the last time; None: it could.
        self.trouble: Exception | None = None
        #: time.monotonic() of the last look that succeeded; None: there was none.
        self.looked_s: float | None = None
        #: The store says that something is out.
        self._marked = False
        #: Called in the thread that looked, after a look that succeeded.
        self.on_look: list[Callable[[], None]] = []
        #: Called with topic and queue whose span is another one, in whatever thread.
        self.on_note: list[Callable[[str, int], None]] = []

    # ---- what is out there ----

    def span(self, topic: str, queue: int) -> QueueSpan | None:
        """Returns what the tier has of a queue; None: nothing that is known of, or of a topic that
        was deleted since."""
        return None if topic in self.hidden else self._spans.get((topic, queue))

    def spans(self) -> list[QueueSpan]:
        return [each for each in list(self._spans.values()) if each.topic not in self.hidden]

    def hide(self, topic: str) -> None:
        """Hides a topic that is deleted, whose name may be used again at once."""
        self.hidden[topic] = time.monotonic()
        self._tell_of(topic)

    def show(self, topic: str) -> None:
        """Shows a topic again: nothing of before is in the tier any more."""
        if self.hidden.pop(topic, None) is not None:
            self._tell_of(topic)

    def _tell_of(self, topic: str) -> None:
        for place in [each for each in list(self._spans) if each[0] == topic]:
            for told in self.on_note:
                told(*place)

    def queues_of(self, topic: str) -> list[int]:
        """Returns the queues that the tier knows of a topic, whether it is hidden or not."""
        tier = self.tier
        return [] if tier is None else [queue for name, queue in tier.queues() if name == topic]

    def note(self, manifest: Manifest) -> None:
        """Takes over a manifest that this broker has written."""
        place = manifest.topic, manifest.queue
        if manifest.is_empty:
            self._spans.pop(place, None)
        else:
            self._spans[place] = span_of(manifest)
        self._seams[place] = manifest.seam
        for told in self.on_note:
            told(*place)

    def manifest(self, topic: str, queue: int) -> Manifest | None:
        """Returns the manifest of a queue; None: it cannot be read, which the next look asks again.
        Raises: TierUnreachable."""
        assert self.tier is not None
        return self._manifest_of(self.tier, topic, queue)

    def _manifest_of(self, tier: Tier, topic: str, queue: int) -> Manifest | None:
        if (topic, queue) in self.damaged:
            return None
        try:
            return tier.manifest(topic, queue)
        except TierDamaged as wrong:
            self._note_damage((topic, queue), wrong)
            return None

    def _note_damage(self, place: tuple[str, int], wrong: TierDamaged) -> None:
        """Leaves a queue alone. What of it is no longer here may be there: whoever reads it waits,
        and is not sent on to the first local message."""
        self._seams.pop(place, None)
        local = [q for q in self._store.queues(place[0]) if q.queue == place[1]]
        if local or len(self.damaged) < _DAMAGED_MAX:
            self.damaged[place] = wrong.text
        _quiet.warning("manifest", "A queue of the cold tier is left alone: %s", wrong)
        if place not in self._spans and local and local[0].min_offset > 0:
            self._spans[place] = QueueSpan(*place, 0, local[0].min_offset, -1, -1, 0, 0)
            for told in self.on_note:
                told(*place)

    # ---- looking ----

    def look(self) -> Tier:
        """Lists the manifests, and fetches those that are new. Raises: NotATier for an address
        where somebody else's tier lies, TierUnreachable, TierDamaged, BadArgument."""
        with self._looking:
            try:
                tier = self._listed()
                self._take_over(tier)
                self._hide_past(tier, self._store.deletions())
            except Exception as failed:
                if self.trouble is None:
                    log.warning("Cannot look at the cold tier %s: %s", self.address, failed)
                self.trouble = failed
                raise
            if self.trouble is not None:
                log.info("The cold tier %s can be looked at again", self.address)
            self.tier, self.trouble, self.looked_s = tier, None, time.monotonic()
        for told in self.on_look:
            told()
        return tier

    def _take_over(self, tier: Tier) -> None:
        """Fetches manifests that are new. Raises: StoreError."""
        begins = {(q.topic, q.queue): q.min_offset for q in self._store.queues()}
        self._check_mark(bool(tier.queues() or tier.floors))
        self._seams = {place: seam for place, seam in self._seams.items() if tier.has(*place)}
        self.damaged, gaps, epoch = {}, {}, 0
        for place, found in tier.load_each(known=self._seams):
            if isinstance(found, TierDamaged):
                self._note_damage(place, found)
            else:
                self.note(found)
        for place in tier.queues():
            seam = self._seams.get(place)
            if seam is not None and seam.end < begins.get(place, 0):
                tier.seek(*place)  # the listing may be old
                made = self._manifest_of(tier, *place)
                if made is not None:
                    self.note(made)
                seam = self._seams.get(place)
            if seam is None:
                continue
            epoch = max(epoch, seam.epoch)
            if 0 < seam.end < begins.get(place, 0):
                gaps[place] = self._gap(place, seam.end, begins[place])
        self.gaps, self.epoch = gaps, epoch

    def _check_mark(self, there: bool) -> None:
        """Notes in the store that something is out, and refuses an address where that is gone: an
        empty folder is what a mount leaves behind. Raises: NotATier, StoreError."""
        mark, said = self._store.path / "config" / MARK, f"{self.address}\n".encode()
        if self._marked:
            return
        marked = read_file(mark) == said
        self._marked = marked and there
        if marked and not there:
            error = NotATier("messages of this store were written out to it, and it is empty",
                             self.address)  # fmt: skip
            error.next_step = f"mount it, or bring it back; to start over there, delete {mark}"
            raise error
        if there and not marked:
            mode = self._store.settings.file_mode
            make_folders(mark.parent, mode)
            write_whole(mark, said, mode=mode)
            self._marked = True

    def _gap(self, place: tuple[str, int], end: int, begin: int) -> str:
        topic, queue = place
        text = f"offsets {end} to {begin - 1} of {topic}/{queue} are neither here nor in the tier"
        if place not in self.gaps:
            log.warning("The cold tier was set back, or a full disk cut the log: %s", text)
        return text

    def _listed(self) -> Tier:
        if self.tier is None:
            return self._opened()
        self.tier.refresh()
        return self.tier

    def _opened(self) -> Tier:
        tier = new_tier(self.address, *self._names)
        refuse_upstreams(tier.objects)
        return tier

    def see_deletions(self) -> None:
        """Hides topics that were deleted since the last look, by whomever. Raises: StoreError."""
        deleted = self._store.deletions()
        if self.tier is not None and deleted != self._deleted:
            with self._looking:
                self._hide_past(self.tier, deleted)

    def _hide_past(self, tier: Tier, deleted: dict[str, int]) -> None:
        """Hides queues of topics that were deleted, unless they are of after that. A topic that is
        about to be deleted stays hidden for a while."""
        now_s = time.monotonic()
        for topic, queue in tier.queues():
            past = topic in deleted and topic not in self.hidden
            found = self._manifest_of(tier, topic, queue) if past else None
            if found is not None and not self.is_present(found):
                self.hide(topic)
        for topic, since_s in list(self.hidden.items()):
            if topic not in deleted and self._store.queues(topic) and now_s > since_s + _SOON_S:
                self.show(topic)
        self._deleted = deleted

    def is_present(self, manifest: Manifest) -> bool:
        """Says whether a queue of the tier is the one that the store has, of a topic that was
        deleted once. Raises: StoreError."""
        if manifest.is_empty:
            return True
        found = [q for q in self._store.queues(manifest.topic) if q.queue == manifest.queue]
        return bool(found) and continues(self._store, manifest, found[0])

    def is_same(self, info: QueueInfo) -> bool:
        """Says whether a queue of the store is the one of the tier, as far as that can be read.
        Raises: StoreError."""
        seam = self._seams.get((info.topic, info.queue))
        return seam is not None and continues(self._store, seam, info)
