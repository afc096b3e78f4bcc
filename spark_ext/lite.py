"""Lite topics: where their messages lie, out of their light queues."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from pystore.format.names import LIGHT_PREFIX

if TYPE_CHECKING:
    import pystore

__all__ = ["LightPlaces", "is_light", "light_places"]

#: Messages that are read at a time.
_TOGETHER = 64


class LightPlaces(NamedTuple):
    """Messages of lite topics: sizes by queue of the topic, and offset there. since: from this byte
    of the log on these are all; None: nowhere. damaged: byte of the log at which one lies that
    cannot be read; -1: none does."""

    places: dict[int, dict[int, int]]
    since: int | None
    damaged: int


class _LightMessage(NamedTuple):
    """offset: in the light queue. place: in the log. queue, at: of the topic, and offset there.
    size: 0: it is damaged, and the latter are not known."""

    offset: int
    place: int
    queue: int
    at: int
    size: int


def is_light(topic: str) -> bool:
    """Says whether this is a folder that a Java broker has for a lite topic."""
    return topic.startswith(f"{LIGHT_PREFIX}$")


def light_places(reader: pystore.Reader, topic: str, names: Iterable[str]) -> LightPlaces:
    """Finds the messages of lite topics of a topic. Raises: what reading raises."""
    places: dict[int, dict[int, int]] = {}
    since: int | None = 0
    damaged = -1
    for name in sorted(names):
        first: int | None = None
        for m in _messages(reader, f"{LIGHT_PREFIX}${topic}${name}"):
            if m.size:
                places.setdefault(m.queue, {})[m.at] = m.size
            elif damaged < 0:
                damaged = m.place
            if first is None:
                # What was before an offset that is not the first left the log with it. Before the
                # first one an earlier life of the lite topic may lie, which has ended.
                first = m.place if m.offset == 0 else 0
        since = None if since is None or first is None else max(since, first)
    return LightPlaces(places, since if damaged < 0 else None, damaged)


def _messages(reader: pystore.Reader, name: str) -> Iterable[_LightMessage]:
    ends = reader.lights.range(name)
    if ends is not None:
        yield from _of_shared_files(reader, name, ends[0])
    elif reader.queues(name):
        yield from _of_folder(reader, name)


def _of_shared_files(reader: pystore.Reader, name: str, at: int) -> Iterable[_LightMessage]:
    while rows := reader.lights.read(name, at, _TOGETHER):
        for row in rows:
            queue = int.from_bytes(row.raw[12:16], "big", signed=True)
            offset = int.from_bytes(row.raw[20:28], "big")
            yield _LightMessage(row.offset, row.physical_offset, queue, offset, len(row.raw))
        at = rows[-1].offset + 1


def _of_folder(reader: pystore.Reader, name: str) -> Iterable[_LightMessage]:
    for queue in reader.queues(name):
        at = queue.min_offset
        while at < queue.max_offset:
            units = reader.units(name, queue.queue, at, _TOGETHER)
            if not units:
                return
            for place, size, _ in units:
                m = reader.message(place)
                yield _LightMessage(at, place, m.queue, m.queue_offset, size)
                at += 1
