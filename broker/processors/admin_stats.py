"""What a broker has done and holds, for tools: 28, 202, 208, 303, 315, 317, 321, 907."""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from broker.loop.turns import alone
from broker.metrics.page import Entries, named
from broker.processors.offsets import ask_tier, is_cold, queue_id, stored_at
from broker.processors.popstats import pop_samples
from broker.processors.turns import Turns, reply_with
from broker.services.broker_metrics import (
    add_access,
    add_deduplication,
    add_store,
    add_tier,
    add_timers,
)
from broker.services.context import Services
from broker.services.replication.status import ha_status
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import VERSION, Command, Refused
from broker.wire.handlers import Handler, Peer
from broker.wire.mqjson import MessageQueue
from pystore.errors import NotFound
from pystore.meta.configfiles import TopicConfig

__all__ = ["StatisticsProcessor"]

_VERSION_NAME = "V5_3_3"
_UNITS_MAX = 4096
_MAP_COUNT = Path("/proc/sys/vm/max_map_count")
#: Pools that a Java broker has; here everything runs on one loop, and nothing waits.
_POOLS = {"send": 10000, "pull": 100000, "litePull": 100000, "query": 20000, "ack": 100000}


Work = Coroutine[Any, Any, Command]


def _bytes(count: int) -> str:
    """Returns a size as upstream's MixAll.humanReadableByteCount does."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 6)
    return f"{count / (1 << 10 * power):.1f} {'KMGTPE'[power - 1]}iB"


#: Entries of timers, also where there are none.
_TIMERS = (
    "timerCongestNum", "timerDequeueTps", "timerEnqueueTps", "timerOffsetBehind", "timerReadBehind",
)  # fmt: skip
#: How an entry is written that is not just the metric's number; timerReadBehind is in seconds.
_WRITTEN: dict[str, Callable[[Any], object]] = {
    "remainHowManyDataToFlush": _bytes,
    "timerDequeueTps": "{:.1f}".format,
    "timerEnqueueTps": "{:.1f}".format,
    "timerReadBehind": lambda ms: ms // 1000,
}


class StatisticsProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime,
            RequestCode.GET_TOPIC_STATS_INFO: self.topic,
            RequestCode.GET_CONSUME_STATS: self.consumption,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_span,
            RequestCode.VIEW_BROKER_STATS_DATA: self.view,
            RequestCode.GET_BROKER_CONSUME_STATS: self.all_consumption,
            RequestCode.QUERY_CONSUME_QUEUE: self.units,
            RequestCode.GET_BROKER_HA_STATUS: self.replication,
        }

    def _queue(self, topic: str, queue: int) -> MessageQueue:
        return MessageQueue(topic, self.s.broker_name, queue)

    # ---- topics ----

    def topic(self, peer: Peer, command: Command) -> Work:
        return self._topic(command, self.s.topics.found(command.text("topic")))

    @alone
    async def _topic(self, command: Command, config: TopicConfig) -> Command:
        turns, table = Turns(), {}
        for queue in range(max(config.read_queue_nums, config.write_queue_nums)):
            await turns.next()
            low, high = self.s.store.span(config.name, queue)
            last = await stored_at(self.s, config.name, queue, high - 1) if high > low else 0
            table[self._queue(config.name, queue)] = {
                "lastUpdateTimestamp": max(last, 0),
                "maxOffset": high,
                "minOffset": low,
            }
        tps = self.s.statistics.tps("TOPIC_PUT_NUMS")(config.name)
        return await reply_with(command, lambda: {"offsetTable": table, "topicPutTps": tps})

    def time_span(self, peer: Peer, command: Command) -> Work:
        topic, group = command.text("topic"), command.text("group")
        return self._time_span(command, self.s.topics.found(topic), group)

    @alone
    async def _time_span(self, command: Command, config: TopicConfig, group: str) -> Command:
        topic, turns, spans = config.name, Turns(), []
        for queue in range(config.write_queue_nums):
            await turns.next()
            low, high = self.s.store.span(topic, queue)
            first = await stored_at(self.s, topic, queue, low) if high > low else -1
            last = await stored_at(self.s, topic, queue, high - 1) if high > low else -1
            offset = self.s.offsets.get(group, topic, queue) or 0
            consumed = await stored_at(self.s, topic, queue, offset - 1) if offset > 0 else first
            delay = 0
            if offset < high:
                since = await stored_at(self.s, topic, queue, max(offset, low))
                delay = max(0, time.time_ns() // 1_000_000 - since)
            spans.append(
                {
                    "consumeTimeStamp": consumed,
                    "delayTime": delay,
                    "maxTimeStamp": last,
                    "messageQueue": self._queue(topic, queue),
                    "minTimeStamp": first,
                }
            )
        return await reply_with(command, lambda: {"consumeTimeSpanSet": spans})

    def units(self, peer: Peer, command: Command) -> Command | Work:
        topic, queue = command.text("topic"), queue_id(command)
        index = max(0, command.number("index", 0))
        count = max(1, min(command.number("count", 10), _UNITS_MAX))
        low, high = self.s.store.span(topic, queue)
        if topic not in self.s.topics or high <= 0:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{queue}@{topic:.260} is not exist!")
        index = max(index, low)
        if is_cold(self.s, topic, queue, index):
            return self._cold_units(command, index, count)
        try:
            found = self.s.store.units(topic, queue, index, count)
        except NotFound:
            found = []
        return self._show_units(command, index, found)

    @alone
    async def _cold_units(self, command: Command, index: int, count: int) -> Command:
        topic, queue = command.text("topic"), queue_id(command)
        found = await ask_tier(self.s, lambda lender, _: lender.units(topic, queue, index, count))
        shown = self._show_units(command, index, found)
        return shown if isinstance(shown, Command) else await shown

    def _show_units(
        self, command: Command, index: int, found: list[tuple[int, int, int]]
    ) -> Command | Work:
        topic, queue = command.text("topic"), queue_id(command)
        low, high = self.s.store.span(topic, queue)
        if not found:
            text = f"Index {index} of {queue}@{topic:.260} is not exist!"
            return command.reply(ResponseCode.SUCCESS, text)
        wanted = self._filter(command.text("consumerGroup", ""), topic)
        return reply_with(
            command,
            lambda: {
                "maxQueueIndex": high,
                "minQueueIndex": low,
                # Upstream evaluates a filter for units with a bit map, which it does not write.
                "queueData": [
                    {"eval": False, "physicOffset": at, "physicSize": size, "tagsCode": tag}
                    for at, size, tag in found
                ],
                **wanted,
            },
        )

    def _filter(self, name: str, topic: str) -> dict[str, Any]:
        """Returns what the group wants of the topic; filterData is a text, JSON within JSON."""
        if not name:
            return {}
        group = self.s.clients.consumers.get(name)
        sub = group.subscriptions.get(topic) if group is not None else None
        if sub is None:
            return {"filterData": f"{name}@{topic} is not online!"}
        data = None
        if not sub.is_tag:
            data = {
                "bornTime": sub.version,
                "clientVersion": sub.version,
                "consumerGroup": name,
                "dead": False,
                "deadTime": 0,
                "expression": sub.expression,
                "expressionType": sub.kind,
                "topic": topic,
            }
        text = json.dumps(data, indent="\t", separators=(",", ":"), ensure_ascii=False)
        return {"filterData": text, "subscriptionData": sub.as_json()}

    # ---- groups ----

    async def _offsets(
        self, group: str, config: TopicConfig, turns: Turns
    ) -> dict[MessageQueue, dict[str, int]]:
        """Returns OffsetWrapper of each queue of a topic that can be read."""
        table = {}
        # Tools look for the newest part of a logical queue that has an offset.
        static = self.s.static is not None and config.name in self.s.static.table
        for queue in range(config.read_queue_nums):
            await turns.next()
            low, high = self.s.store.span(config.name, queue)
            committed = self.s.offsets.get(group, config.name, queue)
            offset = max(0, committed or 0)
            there = low < offset <= high
            last = await stored_at(self.s, config.name, queue, offset - 1) if there else 0
            flight = self.s.pop.in_flight(config.name, group, queue) if self.s.pop else 0
            table[self._queue(config.name, queue)] = {
                "brokerOffset": high,
                "consumerOffset": -1 if static and committed is None else max(offset - flight, 0),
                "lastTimestamp": max(last, 0),
                "pullOffset": max(offset, self.s.offsets.pulled(group, config.name, queue) or 0),
            }
        return table

    async def _consumed(self, group: str, topics: Iterable[str], turns: Turns) -> list[TopicConfig]:
        """Returns the topics that count: those that exist, and that the group subscribes to while
        it is online."""
        online = self.s.clients.consumers.get(group)
        found = []
        for topic in sorted(topics):
            await turns.next()
            config = self.s.topics.get(topic)
            gone = online is not None and online.subscriptions and topic not in online.subscriptions
            if config is not None and not gone:
                found.append(config)
        return found

    def consumption(self, peer: Peer, command: Command) -> Work:
        group = command.text("consumerGroup")
        named = command.text("topicList", "") or command.text("topic", "")
        topics = set(filter(None, named.split(";"))) or self.s.offsets.topics_of(group)
        return self._consumption(command, group, topics)

    @alone
    async def _consumption(self, command: Command, group: str, topics: set[str]) -> Command:
        turns, table = Turns(), {}
        tps, of = 0.0, self.s.statistics.tps("GROUP_GET_NUMS")
        for config in await self._consumed(group, topics, turns):
            table.update(await self._offsets(group, config, turns))
            tps += of(f"{config.name}@{group}")
        return await reply_with(command, lambda: {"consumeTps": tps, "offsetTable": table})

    @alone
    async def all_consumption(self, peer: Peer, command: Command) -> Command:
        only_ordered = command.flag_of("isOrder")
        turns, total, flight, listed = Turns(), 0, 0, []
        topics, tps = (
            await self.s.offsets.topics_by_group(),
            self.s.statistics.tps("GROUP_GET_NUMS"),
        )
        for group in self.s.groups.all():
            await turns.next()
            stats = []
            wanted = topics.get(group.name, ())
            for config in await self._consumed(group.name, wanted, turns):
                if only_ordered and not config.order:
                    continue
                table = await self._offsets(group.name, config, turns)
                done = [max(w["consumerOffset"], 0) for w in table.values()]
                total += sum(w["brokerOffset"] for w in table.values()) - sum(done)
                flight += sum(w["pullOffset"] for w in table.values()) - sum(done)
                rate = tps(f"{config.name}@{group.name}")
                stats.append({"consumeTps": rate, "offsetTable": table})
            listed.append({group.name: stats})
        body = {
            "brokerAddr": self.s.address,
            "consumeStatsList": listed,
            "totalDiff": total,
            "totalInflightDiff": flight,
        }
        return await reply_with(command, lambda: body)

    # ---- the broker ----

    def replication(self, peer: Peer, command: Command) -> Command:
        """Answers who has what of the log; under a controller also, in a member that Java's tools
        skip, who is in sync and why not."""
        gap = self.s.settings["haMaxGapNotInSync"]
        body = ha_status(self.s.replication, self.s.store.info().log_max, gap)
        if self.s.member is not None:
            body["members"] = self.s.member.members()
        return command.reply(body=mqjson.dumps(body))

    def view(self, peer: Peer, command: Command) -> Command:
        name, key = command.text("statsName"), command.text("statsKey")
        found = self.s.statistics.view(name, key)
        if found is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"The stats <{name:.60}> <{key:.300}> not exist"
            )
        return command.reply(body=mqjson.dumps(found))

    def runtime(self, peer: Peer, command: Command) -> Command | Work:
        """Returns what upstream's brokers say, with as many entries however many topics there are.
        A field that only `pystore tx stats` and `pystore timers stats` send asks for metrics
        instead."""
        asked = command.text("metrics", "")
        if asked == "pop":
            return self._pop_metrics(command)
        if asked:
            return command.reply(body=mqjson.dumps({"table": self._metrics(asked)}))
        table = {
            **self._fixed(),
            **self._counters(),
            **self._disk(),
            **self._schedule(),
            **self._guarded(),
            **self._of_metrics(),
        }
        return command.reply(body=mqjson.dumps({"table": {k: str(v) for k, v in table.items()}}))

    @alone
    async def _pop_metrics(self, command: Command) -> Command:
        table = named(await pop_samples(self.s))
        return await reply_with(command, lambda: {"table": table})

    def _metrics(self, of: str) -> dict[str, Any]:
        """Returns the metrics that are asked for. Raises: Refused where there are none."""
        if of == "transactions":
            return named(self.s.transactions.metrics.samples()) if self.s.transactions else {}
        if of != "timers":
            raise Refused(ResponseCode.SYSTEM_ERROR, f"there are no metrics of <{of:.60}>")
        schedule = self.s.schedule
        if schedule is None or schedule.timers is None:
            return {}
        return named(schedule.timers.metrics.samples(schedule.now_ms()))

    def _of_metrics(self) -> dict[str, Any]:
        """Returns the entries that are metrics, too: one table says which (metrics/table.py)."""
        entries = Entries()
        for add in (add_store, add_timers, add_deduplication, add_access, add_tier):
            add(entries, self.s)
        found: dict[str, float] = dict.fromkeys(_TIMERS, 0) | entries.values
        return {
            name: _WRITTEN[name](value) if name in _WRITTEN else value
            for name, value in found.items()
        }

    def _fixed(self) -> dict[str, Any]:
        """Returns who we are, and entries for what this broker does not have: pools and pages."""
        seconds = max(0, time.time_ns() // 1_000_000 - self.s.started_ms) // 1000
        days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
        table: dict[str, Any] = {
            "EndTransactionQueueSize": 0,
            "EndTransactionThreadPoolQueueCapacity": 100000,
            "bootTimestamp": self.s.started_ms,
            "brokerActive": "true",
            "brokerVersion": VERSION,
            "brokerVersionDesc": _VERSION_NAME,
            "pageCacheLockTimeMills": 0,
            "remainTransientStoreBufferNumbs": (1 << 31) - 1,
            "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]",
            "startAcceptSendRequestTimeStamp": self.s.settings["startAcceptSendRequestTimeStamp"],
        }
        for pool, capacity in _POOLS.items():
            table[f"{pool}ThreadPoolQueueSize"] = 0
            table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = 0
            table[f"{pool}ThreadPoolQueueCapacity"] = capacity
        return table

    def _guarded(self) -> dict[str, Any]:
        """Returns our own entries: limits of the process, requests that held the event loop, by
        code, and what is wrong with the files of access control."""
        table: dict[str, Any] = {
            "openFilesMax": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        }
        with contextlib.suppress(OSError, ValueError):
            table["mappingsMax"] = int(_MAP_COUNT.read_text())
        dog, access = self.s.watchdog, self.s.access
        if dog is not None and dog.counts:
            table["loopHeldRequests"] = dict(sorted(dog.counts.items()))
            table["loopHeldLongestMillis"] = dog.longest_ms
        if access is not None and access.plain is not None:
            table["accessProblem"] = access.plain.problem
        if self.s.cold is not None:
            table["tieredProblem"] = self.s.cold.problem
        return table

    def _counters(self) -> dict[str, Any]:
        s = self.s.statistics
        sums, got_bytes = s.sums_and_bytes()
        info = self.s.store.info()
        table: dict[str, Any] = {}
        for way, name in (("Put", "BROKER_PUT_NUMS"), ("Get", "BROKER_GET_NUMS")):
            yesterday, today = s.mornings.get(name, (0, 0))
            table[f"msg{way}TotalYesterdayMorning"] = yesterday
            table[f"msg{way}TotalTodayMorning"] = today
            table[f"msg{way}TotalTodayNow"] = sums[name]
        size = info.log_max - self.s.store.report.log_max
        times = s.put_times
        return table | {
            "dispatchMaxBuffer": 0,
            "getFoundTps": s.rates("FOUND", sums["FOUND"]),
            "getMessageEntireTimeMax": times.get_max_ms,
            "getMessageSizeTotal": got_bytes,  # ours
            "getMissTps": s.rates("MISS", sums["MISS"]),
            "getTotalTps": s.rates("FOUND_AND_MISS", sums["FOUND_AND_MISS"]),
            "getTransferredTps": s.rates("BROKER_GET_NUMS", sums["BROKER_GET_NUMS"]),
            "putLatency99": f"{times.within_ms(0.99):.2f}",
            "putLatency999": f"{times.within_ms(0.999):.2f}",
            "putMessageAverageSize": size / info.puts if info.puts else 0.0,
            "putMessageDistributeTime": times.distribution(),
            "putMessageEntireTimeMax": times.put_max_ms,
            "putMessageSizeTotal": size,
            "putMessageTimesTotal": info.puts,
            "putTps": s.rates("BROKER_PUT_NUMS", sums["BROKER_PUT_NUMS"]),
        }

    def _disk(self) -> dict[str, Any]:
        store = self.s.store
        info = store.info()
        table: dict[str, Any] = {
            "earliestMessageTimeStamp": info.store_timestamp_min,
        }
        worst = 0.0
        for folder in store.settings.commitlog_dirs(store.path):
            used = shutil.disk_usage(folder)
            # As the core decides by (retention.c): what is kept for the system is neither.
            whole = used.used + used.free
            ratio = round(used.used / whole, 2) if whole else 0.0
            worst = max(worst, ratio)
            table[f"commitLogDiskRatio_{folder}"] = ratio
            table["commitLogDirCapacity"] = (
                f"Total : {_bytes(used.total)}, Free : {_bytes(used.free)}."
            )
        return table | {"commitLogDiskRatio": worst, "consumeQueueDiskRatio": worst}

    def _schedule(self) -> dict[str, Any]:
        if self.s.schedule is None:
            return {}
        return {
            f"scheduleMessageOffset_{level}": f"{delivered},{high}"
            for level, (delivered, high) in self.s.schedule.progress().items()
            if high
        }
