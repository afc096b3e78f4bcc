"""Static topics of one broker: their mappings, who is asked for what, and the clean-up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from broker.loop.reasons import reason_of
from broker.loop.safe_log import SafeLogger
from broker.services.config import Config
from broker.services.static_topics.physical import FindRoute, PhysicalQueues
from broker.services.static_topics.table import MappingTable
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command
from broker.wire.jsonbody import OBJECT, Shape
from broker.wire.mqjson import MessageQueue
from broker.wire.static_topics import Parts, TopicMapping, leaders_of, logical_broker, parse_mapping
from pystore.files import javajson

__all__ = ["StaticTopics"]

log = SafeLogger(__name__)

_STATS = Shape(offsetTable=OBJECT)
_CONFIG = Shape(mappingDetail=OBJECT)


class StaticTopics:
    """Lives on the event loop."""

    def __init__(
        self, table: MappingTable, queues: PhysicalQueues, route: FindRoute, settings: Config
    ) -> None:
        self.table = table
        self.queues = queues
        self._route = route
        self._settings = settings
        self._turn = 0

    def next_of(self, led: Sequence[int]) -> int:
        """Returns one of these queues, in turn."""
        self._turn += 1
        return led[self._turn % len(led)]

    @property
    def _forward_s(self) -> float:
        return float(self._settings["forwardTimeout"]) / 1000

    def of(self, command: Command, topic: str) -> TopicMapping | None:
        """Returns the mapping that a request has to be translated by. None: its topic has none, or
        it comes from a broker that has translated it."""
        found = self.table.get(topic)
        if found is None or command.ext.get("lo", "").lower() == "false":
            return None
        return found

    async def ask(
        self, broker: str, code: int, ext: Mapping[str, object], wait_s: float = 0.0
    ) -> Command:
        """Asks a broker by its name, in the numbers of its own queues. wait_s: how long it may wait
        for messages. Raises: OSError, TimeoutError."""
        made = {name: str(value) for name, value in ext.items()}
        made["lo"], made["bname"] = "false", broker
        return await self.queues.ask(broker, Command(code, made), self._forward_s + wait_s)

    # ---- the clean-up (upstream TopicQueueMappingCleanService) ----

    def is_time_to_clean(self) -> bool:
        """Returns whether there is something to look at, at an hour of deleteWhen."""
        hours = self._settings.current.delete_hours
        return bool(self.table.all()) and bool(hours >> time.localtime().tm_hour & 1)

    async def clean(self) -> int:
        """Takes away what nobody needs any more: of queues that are led here, the oldest part once
        it is empty, and queues that two others have led since. Returns the number of queues that
        changed. Raises: StoreError."""
        changed = 0
        for mapping in self.table.all():
            try:
                new = await self._without_empty(mapping)
                new = await self._without_passed_on(new, await self._route(mapping.topic) or {})
            except (OSError, TimeoutError, ValueError) as failed:
                log.info("Cannot clean %s; will retry: %s", mapping.topic, reason_of(failed))
                continue
            if new is not mapping and self.table.get(mapping.topic) is mapping:
                changed += sum(
                    new.queues.get(queue) != parts for queue, parts in mapping.queues.items()
                )
                self.table.put(new)
        if changed:
            await self.table.settled()
            log.info("%d logical queues have fewer parts than before", changed)
        return changed

    async def _without_empty(self, mapping: TopicMapping) -> TopicMapping:
        """Returns it without oldest parts that are empty. Raises: OSError, TimeoutError,
        ValueError."""
        # The offset of a part is decided by the end of the one before it, which stays until then.
        old = {
            q: parts
            for q in mapping.led()
            if len(parts := mapping.queues[q]) > 1 and parts[1].is_decided
        }
        holders = sorted({parts[0].broker for parts in old.values()})
        answers = await asyncio.gather(*(self._ends(mapping.topic, each) for each in holders))
        ends: dict[MessageQueue, tuple[int, int]] = {}
        for each in answers:
            ends |= each
        left: dict[int, Parts] = {}
        for queue, parts in old.items():
            oldest = MessageQueue(mapping.topic, parts[0].broker, parts[0].queue)
            low, high = ends.get(oldest, (0, -1))
            if low == high:
                left[queue] = parts[1:]
        return mapping.with_queues({**mapping.queues, **left}) if left else mapping

    async def _ends(self, topic: str, broker: str) -> dict[MessageQueue, tuple[int, int]]:
        """Returns the ends of the queues that a broker has of a topic. Raises: OSError,
        TimeoutError, ValueError."""
        answer = await self.ask(broker, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        if answer.code != ResponseCode.SUCCESS:
            raise OSError(f"{broker} answered {answer.code} {answer.remark}")
        table = _STATS.loads(answer.body)["offsetTable"] or {}
        return {
            queue: (int(row["minOffset"]), int(row["maxOffset"]))
            for queue, row in table.items()
            if isinstance(queue, MessageQueue)
        }

    async def _without_passed_on(
        self, mapping: TopicMapping, route: Mapping[str, Any]
    ) -> TopicMapping:
        """Returns it without queues that two others have led since. Raises: OSError, TimeoutError,
        ValueError."""
        passed_on = {
            q: parts[-1].broker
            for q, parts in mapping.queues.items()
            if parts[-1].broker != mapping.broker
        }
        if not passed_on:
            return mapping
        leaders = leaders_of((route.get("topicQueueMappingByBroker") or {}).values())
        name = logical_broker(mapping.scope)
        brokers = {row["brokerName"] for row in route.get("brokerDatas") or ()}
        known: dict[str, TopicMapping | None] = {}
        gone = []
        for queue, next_leader in passed_on.items():
            leader = leaders.get((name, queue), "")
            if leader not in brokers or leader == next_leader:
                continue
            if leader not in known:
                known[leader] = await self._mapping_at(mapping.topic, leader)
            there = known[leader]
            if (
                there is not None
                and (there.total, there.epoch) == (mapping.total, mapping.epoch)
                and there.leads(queue)
            ):
                gone.append(queue)
        if not gone:
            return mapping
        return mapping.with_queues({q: p for q, p in mapping.queues.items() if q not in gone})

    async def _mapping_at(self, topic: str, broker: str) -> TopicMapping | None:
        """Returns the mapping that a broker has. Raises: OSError, TimeoutError, ValueError."""
        ext = {"topic": topic, "lo": "true", "bname": broker}
        asked = Command(RequestCode.GET_TOPIC_CONFIG, ext)
        answer = await self.queues.ask(broker, asked, self._forward_s)
        if answer.code != ResponseCode.SUCCESS:
            raise OSError(f"{broker} answered {answer.code} {answer.remark}")
        row = _CONFIG(javajson.loads(bytes(answer.body)))["mappingDetail"]
        return None if row is None else parse_mapping(row)
