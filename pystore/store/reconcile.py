"""The metadata is made to agree with the log, at an open and when a broker leads: topics that the
log alone has get rows, progress that stands beyond what is there is set back.

The log may have lost its end, be another one, or be gone, and the progress still be there: LMDB
syncs what a power failure took from the log, configuration files are copied without it, a master's
offsets arrive before its messages. New messages would take the queue offsets of those that are
gone, and whoever stands beyond them would never see them.

One rule for all who read queues: consumer groups, transactions and check points of POP, which keep
theirs as groups, and delay levels. What other services keep (pystore/store/pending_log.py,
csrc/store/timers.c, broker/services/pop) names the end of the log that it was made of; beyond that,
it is not believed, and the log is read.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby
from typing import Any

from pystore.errors import BadArgument, RecordDamaged
from pystore.format.names import LIGHT_PREFIX, SCHEDULE_TOPIC
from pystore.metadata import Metadata
from pystore.store._reading import Base
from pystore.store._report import Action, ReportItem
from pystore.store._results import QueueInfo

__all__ = ["learn_topics", "set_back", "set_back_progress"]

#: Queues of a group and topic that one line of the log names.
_A_LINE = 64

#: Topics that one line of the log names.
_NAMES = 10

_log = logging.getLogger("pystore")


class _Ends(dict[tuple[str, int], int]):
    """The next offset of each topic and queue, 0 of those that are not there."""

    def __init__(self, queues: Iterable[QueueInfo], light_end: Callable[[str], int | None]) -> None:
        super().__init__(((q.topic, q.queue), q.max_offset) for q in queues)
        self._light_end = light_end

    def get(self, key: tuple[str, int], default: Any = None) -> Any:
        found = super().get(key)
        if found is None and key[1] == 0:
            found = self._light_end(key[0])
        return default if found is None else found


def set_back(
    metadata: Metadata,
    queues: Iterable[QueueInfo],
    light_end: Callable[[str], int | None] = lambda topic: None,
    suspects: Callable[[bytes], bytes] = lambda blocks: blocks,
) -> list[ReportItem]:
    """Sets progress beyond the end of its queue back to that end, logs what it was, and returns
    what was changed. A queue that is not there has no record in the log: its next message has
    offset 0. light_end: the next offset of a light queue; None for another topic. suspects: drops
    from blocks of offsets (pystore/format/offset_blocks.py) those of light queues that may stay.

    Raises: DiskFull, StoreIOError; nothing was changed.
    """
    ends = _Ends(queues, light_end)
    beyond = metadata.offsets.beyond(ends, suspects)
    levels = [
        (level, offset, end)
        for level, offset in metadata.delay_offsets.all().items()
        if offset > (end := ends.get((SCHEDULE_TOPIC, level - 1), 0))
    ]
    if not beyond and not levels:
        return []
    with metadata.batch():
        for o, allowed in beyond:
            metadata.offsets.set_back(o.group, o.topic, o.queue, allowed)
        for level, _, end in levels:
            metadata.delay_offsets.commit(level, end, reset=True)
    for (group, topic), rows in groupby(beyond, lambda row: (row[0].group, row[0].topic)):
        changes = [f"queue {o.queue} from {o.offset} to {max(allowed, 0)}" for o, allowed in rows]
        for at in range(0, len(changes), _A_LINE):
            _log.warning(
                "%s: group %s stood past the end of %s: set back %s",
                metadata.root, group, topic, ", ".join(changes[at : at + _A_LINE]),
            )  # fmt: skip
    for level, offset, end in levels:
        _log.warning(
            "%s: delay level %d stood past the end of its queue: set back from %d to %d",
            metadata.root, level, offset, end,
        )  # fmt: skip
    return [
        _item(allowed, o.offset, "config/consumerOffset.json",
              f"group {o.group} stood past the end of {o.topic}/{o.queue}")
        for o, allowed in beyond
    ] + [
        _item(end, offset, "config/delayOffset.json",
              f"delay level {level} stood past the end of its queue")
        for level, offset, end in levels
    ]  # fmt: skip


def _item(allowed: int, was: int, what: str, why: str) -> ReportItem:
    end = max(allowed, 0)
    return ReportItem(Action.CLAMPED, end, was, was - end, what, why)


def learn_topics(store: Base, metadata: Metadata) -> None:
    """Makes rows for topics that the log has and the metadata lacks, as a crash may leave them,
    or a master that is gone; one whose messages are of lite topics is of type LITE. Java's
    folders of lite topics are no topics' own. Raises: StoreError."""
    lacking = []
    for q in store.queues():
        if q.topic.startswith(f"{LIGHT_PREFIX}$"):
            continue
        config = metadata.topics.get(q.topic)
        if config is None or config.write_queue_nums <= q.queue:
            lacking.append(q)
    if not lacking:
        return
    known = metadata.topics
    lites = {q.topic for q in lacking if q.topic not in known and _is_lite(store, q)}
    with metadata.batch():
        for q in lacking:
            # Damage in a record can name a topic that no configuration may have.
            with contextlib.suppress(BadArgument):
                row = metadata.ensure_topic(q.topic, q.queue)
                if q.topic in lites:
                    known.put(replace(row, attributes={"message.type": "LITE"}))
    names = sorted({q.topic for q in lacking})
    _log.warning(
        "%s: %d topic(s) with queues had no row for them; one was made: %s%s",
        store.path, len(names), ", ".join(names[:_NAMES]), ", ..." * (len(names) > _NAMES),
    )  # fmt: skip


def _is_lite(store: Base, q: QueueInfo) -> bool:
    """Says whether the last message of a queue is one of a lite topic. Raises: StoreError."""
    if q.max_offset <= q.min_offset:
        return False
    named = f"{LIGHT_PREFIX}${q.topic}$"
    with contextlib.suppress(RecordDamaged):
        for message in store.read(q.topic, q.queue, q.max_offset - 1, max_messages=1):
            return message.properties.get("INNER_MULTI_DISPATCH", "").startswith(named)
    return False


def set_back_progress(store: Base, metadata: Metadata) -> None:
    """Sets consumer offsets and progress of delay levels beyond the ends of their queues back,
    at the open, and when a store that followed another one leads.
    Raises: DiskFull, StoreIOError."""

    def light_end(topic: str) -> int | None:
        if not topic.startswith(LIGHT_PREFIX):
            return None
        return (store.lights.range(topic) or (0, 0))[1] if store.lights.is_on else 1 << 62

    found = set_back(metadata, store.queues(), light_end, store.lights.suspects)
    store.report = replace(store.report, items=(*store.report.items, *found))
