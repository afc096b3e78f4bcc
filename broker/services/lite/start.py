"""Where a group begins to read a lite topic: without an offset, and by the options of a client."""

from __future__ import annotations

from typing import Any

from broker.wire.command import Refused
from pystore.store.light_queues import LightQueues

__all__ = ["asked_offset", "offset_at_time"]

#: Of POLICY.
_LAST, _MIN, _MAX = range(3)


def offset_at_time(lights: LightQueues, queue: str, at_ms: int) -> int:
    """Returns the offset of the first message that was stored at this time or later; the end of the
    queue when there is none."""
    low, high = lights.range(queue) or (0, 0)
    while low < high:
        middle = (low + high) // 2
        found = lights.read(queue, middle, 1)
        if not found or found[0].offset >= high or found[0].store_timestamp >= at_ms:
            high = middle
        else:
            low = found[0].offset + 1
    return low


def asked_offset(lights: LightQueues, queue: str, option: dict[str, Any] | None) -> int | None:
    """Returns the offset that a client asks to begin at; None: it leaves the group where it is.

    TAIL_N means the last n messages, and TIMESTAMP the first one from a time on; upstream counts
    back from the committed offset, and ignores a time. Raises: Refused for a type that is none."""
    if option is None:
        return None
    kind, value = option.get("type"), option.get("value", 0)
    if not isinstance(value, int):
        value = -1
    low, high = lights.range(queue) or (0, 0)
    if kind == "POLICY":
        return {_MIN: 0, _MAX: high}.get(value)
    if kind == "OFFSET":
        return value if value >= 0 else None
    if kind == "TAIL_N":
        return max(low, high - value) if value >= 0 else None
    if kind == "TIMESTAMP":
        return offset_at_time(lights, queue, value) if value >= 0 else None
    raise Refused(
        1,
        "java.lang.NullPointerException: Cannot invoke"
        ' "org.apache.rocketmq.common.lite.OffsetOption$Type.ordinal()" because the return value of'
        ' "org.apache.rocketmq.common.lite.OffsetOption.getType()" is null',
    )
