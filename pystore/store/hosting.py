"""What a program that hosts services over a store asks of it, such as a broker: delivery of delay
levels, queues of a store that follows another one, retention that heeds a cold tier.

A program that puts and reads needs none of it; its calls are methods of Store (_store.py). Each
function raises StoreClosed and UsedAfterFork besides what it names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from pystore.base.store_error import StoreError
from pystore.native import ffi, lib
from pystore.settings import RETENTION, Settings, fill
from pystore.store._results import DueDelivery
from pystore.store._store import Store

__all__ = [
    "begin_queues",
    "clean_by_itself",
    "delete_queues",
    "deliver_due",
    "ended_queues",
    "follow_deletions",
    "is_settled",
    "keep_beyond",
    "learn_queue",
    "log_resident",
    "retain",
]


def learn_queue(store: Store, topic: str, queue: int) -> None:
    """Tells the metadata of a queue to which a message was put through C. Raises:
    StoreError."""
    if queue >= store._topic(topic).queues:
        store._settle(topic, queue)


def deliver_due(
    store: Store, level: int, offset: int, *, most: int = 512, now_ms: int = 0
) -> DueDelivery:
    """Puts messages of a delay level to their topics, from queue offset `offset` of it on, as
    far as they are due. most: messages of this call. now_ms: 0 for the clock.

    Raises: DiskFull and whatever else ``put`` raises; what was delivered before it stays so,
    and ``offset`` of the exception's ``delivery`` says where to go on.
    """
    error, raw = ffi.new("ps_error *"), ffi.new("ps_due *")
    rc = lib.ps_deliver_due(store.c_handle(), level, offset, now_ms, most, raw, error)
    done = DueDelivery(raw.next_offset, raw.next_ms, raw.delivered, raw.skipped, raw.end)
    if rc < 0:
        try:
            store._fail(error)
        except StoreError as failed:
            failed.delivery = done  # type: ignore[attr-defined]
            raise
    return done


def delete_queues(store: Store, topic: str) -> None:
    """Deletes the queues of a topic alone, for a broker, which keeps topics and offsets by itself.
    Raises: DiskFull, StoreIOError."""
    store._delete_queues(topic)


def follow_deletions(store: Store, deleted: Mapping[str, int]) -> bool:
    """Deletes queues as the master did whose log this store follows: units of records below go,
    and those after it count from 0. deleted: as `deletions` returns them there. Returns whether
    the log has come so far for all of them; ask again if not. Raises: BadArgument, DiskFull,
    StoreClosed."""
    known, error, whole = store.deletions(), ffi.new("ps_error *"), True
    for topic, below in deleted.items():
        if known.get(topic, 0) >= below:
            continue
        handle = store._made(topic)
        code = lib.ps_topic_follow_deletion(store.c_handle(), handle, below, error)
        if code < 0:
            store._fail(error)
        whole = whole and code > 0
    return whole


def ended_queues(store: Store) -> dict[str, dict[int, int]]:
    """Returns, by topic and queue, the ends of queues all of whose messages retention has
    deleted. Raises: StoreClosed."""
    found: dict[str, dict[int, int]] = {}
    for q in store.queues():
        if q.min_offset == q.max_offset > 0:
            found.setdefault(q.topic, {})[q.queue] = q.max_offset
    return found


def begin_queues(store: Store, ends: Mapping[str, Mapping[int, int]]) -> None:
    """Has queues of a store that follows go on at these offsets, by topic and queue, and brings
    that to the disk. All that the master's queues had lies before its log. Raises: BadArgument
    where the log has begun, DiskFull, StoreIOError, StoreClosed."""
    error = ffi.new("ps_error *")
    for topic, queues in ends.items():
        handle = store._made(topic)
        for queue, offset in queues.items():
            if lib.ps_follow_queue(store.c_handle(), handle, queue, offset, error) < 0:
                store._fail(error)
    store.flush()


def clean_by_itself(store: Store, on: bool) -> None:
    """Sets whether segments that expire are deleted by themselves, as they are from the start
    on. If not, they stay until clean() or until it is on again."""
    lib.ps_store_clean_by_itself(store.c_handle(), on)


def keep_beyond(store: Store, end: int | None, *, lets_go: bool = False) -> None:
    """Lets retention delete only segments that end at or before byte `end` of the log, for a
    broker that writes messages out elsewhere (docs/cold.md); None: any. lets_go: those after
    it, too, where the disk is fuller than diskSpaceCleanForciblyRatio."""
    lib.ps_store_out_to(store.c_handle(), (1 << 63) - 1 if end is None else end, lets_go)


def is_settled(store: Store, end: int) -> bool:
    """Says whether the log below byte `end` is on this disk and, where slaves are waited for,
    with enough of them: no change of master takes it back."""
    return bool(lib.ps_settled(store.c_handle(), end))


def retain(store: Store, settings: Settings) -> None:
    """Follows the retention of these settings from the next round on: RETENTION of
    pystore.settings names those it takes; the others stay."""
    rules, keep = fill(ffi, settings, os.fspath(store.path))
    error = ffi.new("ps_error *")
    if lib.ps_store_retain(store.c_handle(), rules, error) < 0:
        store._fail(error)
    del keep
    taken = {name: settings[name] for name in RETENTION}
    store.settings = store.settings.replaced(**taken)


def log_resident(store: Store) -> tuple[int, int]:
    """Returns how many bytes of the commit log are mapped, and how many of these are in memory,
    estimated from a sample. It takes a millisecond. Raises: StoreClosed."""
    mapped, resident = ffi.new("int64_t *"), ffi.new("int64_t *")
    if lib.ps_store_log_resident(store.c_handle(), mapped, resident) < 0:
        raise store._why_closed()
    return mapped[0], resident[0]
