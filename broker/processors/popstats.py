"""What upstream counts of POP, under its names (docs/metrics.md#pop; upstream
ConsumerLagCalculator, PopMetricsManager)."""

from __future__ import annotations

import time
from collections.abc import Iterator

from broker.processors.offsets import store_time
from broker.processors.turns import Turns
from broker.services.context import Services
from broker.services.pop import Pop
from broker.services.pop.modes import POP
from broker.wire.receipts import retry_topic

__all__ = ["pop_samples"]


async def pop_samples(s: Services) -> dict[str, float]:
    """Returns names and labels as an exporter prints them, with the values. Other work has its turn
    between two queues."""
    found: dict[str, float] = {}
    pop, turns = s.pop, Turns()
    if pop is None or not pop.is_on:
        return found
    for group, topic in list(_popped(s, pop)):
        retries = [retry_topic(group, topic, kind) for kind in pop.batches.looked_at]
        for names, is_retry in (([topic], False), (retries, True)):
            found |= await _of_group(s, pop, turns, group, topic, names, is_retry)
    for queue in range(s.settings["reviveQueueNum"]):
        await turns.next()
        low, high = pop.log.range(queue)
        behind = high - max(pop.revive.done(queue), low)
        found[f'rocketmq_pop_revive_lag_milliseconds{{queue_id="{queue}"}}'] = behind
    due_ms = pop.points.due_ms
    late_ms = max(0, pop.now_ms() - due_ms) if due_ms >= 0 else 0
    found["rocketmq_pop_revive_latency_milliseconds"] = late_ms
    found["rocketmq_pop_checkpoint_buffer_size"] = len(pop.points)
    for (topic, group), count in sorted(pop.revive.copies.items()):
        label = f'consumer_group="{group}",put_status="PUT_OK",topic="{topic}"'
        found[f"rocketmq_pop_revive_retry_messages_total{{{label}}}"] = count
    return found


def _popped(s: Services, pop: Pop) -> Iterator[tuple[str, str]]:
    """Returns group and topic of those that are connected and pop."""
    for name, group in s.clients.consumers.items():
        for topic in group.subscriptions:
            mode = pop.modes.get(topic, name)
            waits = any(place.group == name for place in pop.polling.places(topic))
            if (
                (mode is not None and mode.mode == POP)
                or waits
                or pop.in_flight(topic, name, -1) > 0
            ):
                yield name, topic


async def _of_group(
    s: Services, pop: Pop, turns: Turns, group: str, topic: str, names: list[str], is_retry: bool
) -> dict[str, float]:
    """Returns the samples of a group; `names` are those of the topic or of its retry topics."""
    ready = flying = 0
    oldest = now = time.time_ns() // 1_000_000
    for name in names:
        config = s.topics.get(name)
        for queue in range(config.read_queue_nums if config is not None else 0):
            await turns.next()
            low, high = s.store.range(name, queue)
            offset = s.offsets.get(group, name, queue)
            at = high if offset is None else max(offset, low)
            ready += max(0, high - at)
            flying += pop.in_flight(name, group, queue)
            since = store_time(s, name, queue, at) if at < high else -1
            if since >= 0:
                oldest = min(oldest, since)
    label = (
        f'{{consumer_group="{group}",is_retry="{str(is_retry).lower()}",is_system="false"'
        f',topic="{topic}"}}'
    )
    return {
        f"rocketmq_consumer_lag_messages{label}": ready + flying,
        f"rocketmq_consumer_lag_latency_milliseconds{label}": now - oldest,
        f"rocketmq_consumer_inflight_messages{label}": flying,
        f"rocketmq_consumer_queueing_latency_milliseconds{label}": now - oldest,
        f"rocketmq_consumer_ready_messages{label}": ready,
    }
