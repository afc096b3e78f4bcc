"""The cold tier's part of a broker over a bare store, a round at a time; and what is where."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pystore
from broker.services.cold.cold import Cold
from broker.services.config import Config
from pystore.cold.manifest import Manifest
from pystore.cold.tier import Tier, new_tier

NAMES = "c1", "broker-a"
SEGMENT = 64 << 10


def opened(path: Any, **settings: Any) -> pystore.Store:
    return pystore.open(path, mappedFileSizeCommitLog=SEGMENT, cleanResourceInterval=0, **settings)


def cold_of(store: pystore.Store, root: object, epoch: int = 0, **settings: Any) -> Cold:
    """Returns the part of a master. reserve: hours of topics that have their own."""
    reserve = settings.pop("reserve", {})
    given = {
        "tieredStoreFilePath": str(root),
        "tieredUploadWaitMillis": 0,
        "tieredUploadRateMax": 0,
    }
    made = Cold(
        store,
        Config(store.settings.replaced(**given | settings)),
        SimpleNamespace(  # type: ignore[arg-type]
            get=lambda topic: SimpleNamespace(
                attributes={"reserve.time": reserve[topic]} if topic in reserve else {}
            )
        ),
        *NAMES,
        epoch,
    )
    made.lead()
    return made


def settle(cold: Cold, store: pystore.Store) -> None:
    """Rounds until what is in the store now is out."""
    store.flush()
    end = store.info().log_max
    while cold.behind.out_to < end:
        cold.round()


def bodies_of(reader: pystore.Reader | pystore.Store, topic: str) -> dict[tuple[int, int], bytes]:
    """Returns the bodies of a topic by queue and offset; an offset that comes twice is an error."""
    found: dict[tuple[int, int], bytes] = {}
    for q in reader.queues(topic):
        at = q.min_offset
        while at < q.max_offset:
            batch = reader.read(topic, q.queue, at, max_messages=1000)
            for m in batch:
                assert (q.queue, m.queue_offset) not in found
                found[q.queue, m.queue_offset] = bytes(m.body)
            assert batch.next_offset > at, batch.status
            at = batch.next_offset
    return found


def tier_of(root: object) -> Tier:
    return new_tier(str(root), *NAMES)


def manifest_of(root: object, topic: str, queue: int = 0) -> Manifest:
    return tier_of(root).manifest(topic, queue)


class FailingObjects:
    """An object store whose calls fail when `fails` says so: before they have an effect, or after
    it, as when an answer is lost."""

    CALLS = frozenset({"get", "put_new", "find", "delete"})

    def __init__(self, objects: Any, fails: Callable[[], str]) -> None:
        """Wraps a store. fails: returns "" for a call that succeeds, else when it fails."""
        self._objects, self._fails = objects, fails

    def __getattr__(self, name: str) -> Any:
        from pystore.cold.failures import TierUnreachable

        found = getattr(self._objects, name)
        if name not in self.CALLS:
            return found

        def call(*args: Any, **more: Any) -> Any:
            fails = self._fails()
            if fails == "before":
                raise TierUnreachable("the store is away", name)
            done = found(*args, **more)
            if fails:
                raise TierUnreachable("the answer was lost", name)
            return done

        return call
