"""The delay levels of a store, as its own queues tell them where nobody gives its settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from operator import itemgetter

from pystore.audit.layout import File, Layout, record_of
from pystore.files.quiet import open_quietly
from pystore.format.names import SCHEDULE_TOPIC
from pystore.format.units import NO_RECORD, units_of
from pystore.settings import Settings

__all__ = ["with_own_levels"]

_NAME = "messageDelayLevel"
_UNITS = 16  # of each file that are looked at


def with_own_levels(settings: Settings, layout: Layout) -> Settings:
    """Returns the settings with the levels of the broker that wrote the store, where they name
    none.

    The code of a unit of a delay queue is the time at which its message is due, the level's delay
    after it was stored. The level's delay is what most of a queue's units say, two at least."""
    if _NAME in settings.explicit:
        return settings
    levels = list(settings.delay_levels_ms)
    usual = tuple(levels)
    for topic, queue in layout.queues:
        if topic != SCHEDULE_TOPIC:
            continue
        delays = Counter(_delays(layout, layout.queues[topic, queue]))
        delay, count = max(delays.items(), key=itemgetter(1), default=(0, 0))
        if count > max(1, delays.total() // 2) and delay > 0 and delay % 1000 == 0:
            levels += levels[-1:] * (queue + 1 - len(levels))
            levels[queue] = delay
    if tuple(levels) == usual:
        return settings
    return settings.replaced(**{_NAME: " ".join(f"{ms // 1000}s" for ms in levels)})


def _delays(layout: Layout, files: list[File]) -> Iterator[int]:
    """Returns what units say of their level's delay, in ms."""
    for file in files:
        with suppress(OSError), open_quietly(file.path) as opened:
            data = opened.read(layout.queue_file_size)
            units = [u for u in units_of(data)
                     if u[0] >= layout.log_min and 0 < u[1] != NO_RECORD]  # fmt: skip
            for physical, _, due in units[:: len(units) // _UNITS + 1]:
                stored = _store_time(layout, physical)
                if stored is not None:
                    yield due - stored


def _store_time(layout: Layout, physical: int) -> int | None:
    """Returns the store time of the record there, in ms."""
    found = record_of(layout, physical)
    return None if found is None or found[1].physical_offset != physical else found[1].store_ms
