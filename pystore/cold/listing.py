"""What lies in a tier, queue by queue, as it comes out of listings: however much there is."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator

from pystore.cold.failures import TierUnreachable
from pystore.cold.objects import ObjectStore, StoredObject
from pystore.cold.places import MANIFESTS, is_topic, queue_of

__all__ = ["by_queue"]


def by_queue(
    objects: ObjectStore,
) -> Iterator[tuple[tuple[str, int] | None, Iterator[StoredObject]]]:
    """Yields queues, each with its segments and manifests, which must be taken before the next
    queue; None with what cannot be of a queue. Raises: TierUnreachable, also where a listing is not
    in order."""
    # What is beside the manifests comes before them, and after them.
    beside = itertools.chain(
        itertools.takewhile(lambda each: each.key < MANIFESTS, objects.find("")),
        objects.find("", after=f"{MANIFESTS}/{chr(0x10FFFF)}"),
    )
    manifests = objects.find(f"{MANIFESTS}/")
    both = heapq.merge(_ordered(beside), _ordered(manifests), key=_own_name)
    for (topic, queue), found in itertools.groupby(both, key=_folders):
        number = queue_of(queue)
        yield None if number is None or not is_topic(topic) else (topic, number), found


def _own_name(found: StoredObject) -> str:
    """Returns the key below the tier or below its manifests: of both a queue's names follow each
    other."""
    return found.key.removeprefix(f"{MANIFESTS}/")


def _folders(found: StoredObject) -> tuple[str, str]:
    topic, _, rest = _own_name(found).partition("/")
    return topic, rest.partition("/")[0]


def _ordered(listing: Iterable[StoredObject]) -> Iterator[StoredObject]:
    before = ""
    for found in listing:
        if found.key < before:
            raise TierUnreachable(f"a listing has {found.key!r} after {before!r}")
        before = found.key
        yield found
