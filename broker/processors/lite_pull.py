"""Pulls of light queues: 11 and 361 with `liteTopic`, or with the name of the queue as topic.
Clients of lite topics pop; these pulls are of tools and of programs by hand, so Python serves them,
with the outcomes of other pulls (docs/internals/wire.md#outcome-of-a-pull)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from broker.services.clients import Subscription
from broker.services.context import Services
from broker.services.lite.names import queue_of
from broker.wire.codes import ResponseCode
from broker.wire.command import Command
from pystore.filter.sql92 import compiled, matches
from pystore.format.names import LIGHT_PREFIX
from pystore.format.records import record_head

__all__ = ["LightPulls", "light_queue"]

#: Of a pull's sysFlag: it commits an offset; it waits for a message.
_COMMITS, _WAITS = 1, 2
#: Messages of one answer, as upstream's maxTransferCountOnMessageInMemory.
_MESSAGES_MAX = 32
#: Between two looks of a pull that waits, and how many may wait: others are answered at once.
_LOOK_S, _HELD_MAX = 0.1, 1000


def light_queue(command: Command) -> str:
    """Returns the light queue that a pull is of; empty: of none."""
    topic, name = command.text("topic"), command.ext.get("liteTopic") or ""
    if name.strip():
        return queue_of(topic, name)
    return topic if topic.startswith(LIGHT_PREFIX) else ""


class _LightBatch(NamedTuple):
    """What a pull has found: messages, their records, and where the next one begins."""

    code: int
    remark: str
    next: int
    messages: int = 0
    body: bytes = b""


def _filter_of(sub: Subscription) -> Callable[[bytes], bool]:
    """Returns what says whether a record is wanted."""
    if not sub.is_tag:
        expression = compiled(sub.expression, whole=False)

        def by_properties(raw: bytes) -> bool:
            head = record_head(raw)
            at = head.properties_at
            return matches(expression, raw[at : at + head.properties_len])

        return by_properties
    wanted = sub.wanted()
    if wanted is None:
        return lambda raw: True
    tags = {tag.encode() for tag in wanted}

    def by_tag(raw: bytes) -> bool:
        head = record_head(raw)
        return head.tags_len >= 0 and raw[head.tags_at : head.tags_at + head.tags_len] in tags

    return by_tag


class LightPulls:
    """Serves pulls of light queues that were found right."""

    def __init__(self, s: Services) -> None:
        self.s = s
        self._held = 0

    async def pull(
        self, command: Command, group: str, queue: str, sub: Subscription
    ) -> tuple[Command, int]:
        """Serves one, as soon as there is a message or its time is over. Returns the answer, and
        how many messages it has."""
        offset, flag = command.number("queueOffset"), command.number("sysFlag", 0)
        most = min(max(command.number("maxMsgNums"), 1), _MESSAGES_MAX)
        wanted = _filter_of(sub)
        if flag & _COMMITS:
            self._commit(group, queue, command.number("commitOffset", -1))
        found = self._find(queue, offset, most, wanted)
        if found.code == ResponseCode.PULL_NOT_FOUND and flag & _WAITS and self._held < _HELD_MAX:
            self._held += 1
            try:
                end = monotonic() + self._wait_s(command)
                while found.code == ResponseCode.PULL_NOT_FOUND and monotonic() < end:
                    await asyncio.sleep(_LOOK_S)
                    found = self._find(queue, offset, most, wanted)
            finally:
                self._held -= 1
        low, high = self.s.store.lights.range(queue) or (0, 0)
        ext = {
            "suggestWhichBrokerId": 0, "groupSysFlag": 0, "nextBeginOffset": found.next,
            "maxOffset": high, "minOffset": low, "topicSysFlag": 0,
        }  # fmt: skip
        return command.reply(found.code, found.remark, ext, found.body), found.messages

    def _wait_s(self, command: Command) -> float:
        settings = self.s.settings
        if not settings["longPollingEnable"]:
            return int(settings["shortPollingTimeMills"]) / 1000
        return min(max(command.number("suspendTimeoutMillis", 0), 0), 120_000) / 1000

    def _commit(self, group: str, queue: str, offset: int) -> None:
        """Commits in the light queue itself; upstream does it in the parent's queue."""
        if (
            offset >= 0
            and self.s.settings["brokerRole"] != "SLAVE"
            and self.s.core.may_commit(group, queue, 0)
        ):
            self.s.offsets.commit(group, queue, 0, offset)

    def _find(
        self, queue: str, offset: int, most: int, wanted: Callable[[bytes], bool]
    ) -> _LightBatch:
        lights, code = self.s.store.lights, ResponseCode
        ends = lights.range(queue)
        if ends is None:
            moved = code.PULL_OFFSET_MOVED if offset else code.PULL_NOT_FOUND
            return _LightBatch(moved, "NO_MATCHED_LOGIC_QUEUE", 0)
        low, high = ends
        if offset < low:
            return _LightBatch(code.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", low)
        if offset == high:
            return _LightBatch(code.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", offset)
        if offset > high:
            return _LightBatch(code.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", high)
        rows = lights.read(queue, offset, most)
        if not rows:
            return _LightBatch(code.PULL_NOT_FOUND, "OFFSET_FOUND_NULL", offset)
        # One that is damaged has no bytes, and is passed over.
        good = [row.raw for row in rows if row.raw and wanted(row.raw)]
        end = rows[-1].offset + 1
        if not good:
            return _LightBatch(code.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", end)
        return _LightBatch(code.SUCCESS, "FOUND", end, len(good), b"".join(good))
