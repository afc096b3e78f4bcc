"""Committed offsets that a crash has left past the end of their queues."""

from __future__ import annotations

from collections.abc import Mapping

from pystore._report import Action, ReportItem
from pystore.metadata import Metadata
from pystore.names import SCHEDULE_TOPIC

__all__ = ["clamp_offsets"]


def clamp_offsets(metadata: Metadata, ends: Mapping[tuple[str, int], int]) -> list[ReportItem]:
    """Sets offsets past the end of their queue back to that end; returns what was changed.

    ends: topic and queue id to the next offset of the queue, once recovery is done: a queue that is
    not there has no record in the log, and its next message has offset 0. A power failure may take
    messages that were consumed and keep the offset, which LMDB syncs; new messages would then take
    the offsets of those, and the group would never see them.

    Raises: DiskFull, StoreIOError; nothing was changed.
    """
    found: list[ReportItem] = []
    with metadata.batch():
        for o in metadata.offsets.all():
            end = ends.get((o.topic, o.queue), 0)
            if o.offset <= end:
                continue
            metadata.offsets.commit(o.group, o.topic, o.queue, end, reset=True)
            why = f"group {o.group} stood past the end of {o.topic}/{o.queue}"
            found.append(_item(end, o.offset, "config/consumerOffset.json", why))
        for level, offset in metadata.delay_offsets.all().items():
            end = ends.get((SCHEDULE_TOPIC, level - 1), 0)
            if offset <= end:
                continue
            metadata.delay_offsets.commit(level, end, reset=True)
            why = f"delay level {level} stood past the end of its queue"
            found.append(_item(end, offset, "config/delayOffset.json", why))
    return found


def _item(end: int, offset: int, what: str, why: str) -> ReportItem:
    return ReportItem(Action.CLAMPED, end, offset, offset - end, what, why)
