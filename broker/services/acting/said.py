"""What a slave says that it did in its master's place (906), read before any of it is believed: it
may be anybody who has registered as a slave."""

from __future__ import annotations

import asyncio
from typing import Any

from broker.services.acting.escape_ledger import Origin
from broker.wire.jsonbody import BOOLEAN, TEXT, JsonMember, Shape, listed

__all__ = ["read_said"]

_QUEUES_MAX, _OFFSETS_MAX = 65_536, 1 << 62
#: Bytes that are read on the loop.
_AT_ONCE = 16 << 10


def _origin(value: Any) -> Origin:
    """Reads an origin. Raises: ValueError."""
    if not isinstance(value, list) or len(value) != 4:
        raise ValueError(f"{value!r:.80} is not [topic, group, queue, offset]")
    topic, group, queue, offset = value
    if (
        not isinstance(topic, str)
        or not isinstance(group, str)
        or type(queue) is not int
        or type(offset) is not int
        or not 0 <= queue < _QUEUES_MAX
        or not 0 <= offset < _OFFSETS_MAX
    ):
        raise ValueError(f"{value!r:.200} is not a place in the log")
    return Origin(topic, group, queue, offset)


def _row(value: Any) -> list[Any]:
    """Reads a row. Raises: ValueError."""
    if not isinstance(value, list) or len(value) < 2 or not isinstance(value[0], str):
        raise ValueError(f"{value!r:.80} is not [kind, what..]")
    return value


_SAID = Shape(
    escaped=listed(_origin), pops=listed(_row), popsMore=JsonMember(BOOLEAN, False),
    order=JsonMember(TEXT, ""),
)  # fmt: skip


async def read_said(body: bytes) -> dict[str, Any]:
    """Returns what a slave has said; a long body is read beside the loop. Raises: ValueError that
    says what is wrong."""
    if len(body) <= _AT_ONCE:
        return _SAID.loads(body)
    return await asyncio.to_thread(_SAID.loads, body)
