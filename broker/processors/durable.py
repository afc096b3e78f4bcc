"""Answers that wait for the disk: with flushDiskType=SYNC_FLUSH no record is acknowledged before a
sync has covered it. They wait in one list with what the core answers (csrc/log/safe.h)."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import Any

from broker.processors.refusals import put_refusal
from broker.services.context import Services
from broker.services.groups import Groups
from broker.services.topics import Topics
from broker.wire.codes import ResponseCode
from broker.wire.command import Command, Refused
from pystore import PutStatus
from pystore.errors import StoreError

__all__ = [
    "DISK_IS_LATE", "LOG_FAILED", "SLAVES_ARE_LATE", "after_disk", "once_durable", "settled",
]  # fmt: skip

#: What a client is told whose records are not safe. The core says the same (csrc/sends/sent.c).
DISK_IS_LATE = "the record was not synced in time"
SLAVES_ARE_LATE = "too few slaves have the record in time"
#: The same for the core alone, after any other outcome: the broker's log says more.
LOG_FAILED = "the record was put, and is not safe: the log takes no more"


def after_disk(s: Services, end: int) -> Awaitable[None] | None:
    """Waits until the log is on the disk up to `end`, or returns None when nobody waits for that.

    Raises: Refused when it is not on the disk in time."""
    if not s.core.must_wait(end):
        return None

    async def wait() -> None:
        try:
            status = await s.core.safe(end)
        except StoreError as failed:
            raise put_refusal(failed, s) from failed
        if status is PutStatus.FLUSH_DISK_TIMEOUT:
            raise Refused(ResponseCode.FLUSH_DISK_TIMEOUT, DISK_IS_LATE)
        if status is PutStatus.FLUSH_SLAVE_TIMEOUT:
            raise Refused(ResponseCode.FLUSH_SLAVE_TIMEOUT, SLAVES_ARE_LATE)

    return wait()


def once_durable(
    s: Services, end: int, answer: Command
) -> Command | Coroutine[Any, Any, Command | None]:
    """Returns the answer to a request that has stored records up to `end` of the log."""
    wait = after_disk(s, end)
    if wait is None:
        return answer

    async def answered() -> Command:
        await wait
        return answer

    return answered()


async def settled(s: Services, rows: Topics | Groups) -> None:
    """Waits until what a tool has changed of them is on the disk, and, as a send does, until slaves
    that are in sync have it. Raises: Refused."""
    try:
        await rows.settled()
    except StoreError as failed:
        raise Refused(
            ResponseCode.SYSTEM_ERROR, f"kept in memory, and not on the disk yet: {failed.text}"
        ) from None
    if s.replication is not None:
        await s.replication.told()
