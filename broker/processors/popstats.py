"""What upstream counts of POP, under its names (docs/metrics.md; upstream
ConsumerLagCalculator, PopMetricsManager)."""

from __future__ import annotations

import time
from collections.abc import Iterator

from broker.metrics.page import MetricSample, buckets
from broker.processors.offsets import store_time
from broker.processors.turns import Turns
from broker.services.context import Services
from broker.services.pop import Pop
from broker.services.pop.modes import POP
from broker.wire.receipts import retry_topic

__all__ = ["lag_samples", "pop_samples", "pops"]


async def pop_samples(s: Services) -> list[MetricSample]:
    """Returns the metrics of groups that pop, and of the revive topic. Other work has its turn
    between two queues."""
    found: list[MetricSample] = []
    pop, turns = s.pop, Turns()
    if pop is None or not pop.is_on:
        return found
    pairs = [(name, topic) for name, g in s.clients.consumers.items() for topic in g.subscriptions]
    for group, topic in pairs:
        await turns.next()
        if not pops(s, group, topic):
            continue
        retries = [retry_topic(group, topic, kind) for kind in pop.batches.looked_at]
        for names, is_retry in (([topic], False), (retries, True)):
            found += await _of_group(s, pop, turns, group, topic, names, is_retry)
    due_ms = pop.points.due_ms
    late_ms = max(0, pop.now_ms() - due_ms) if due_ms >= 0 else 0
    for queue in range(s.settings["reviveQueueNum"]):
        await turns.next()
        low, high = pop.log.range(queue)
        behind = high - max(pop.revive.done(queue), low)
        label = {"queue_id": str(queue)}
        found.append(MetricSample("rocketmq_pop_revive_lag_milliseconds", label, behind))
        found.append(MetricSample("rocketmq_pop_revive_latency_milliseconds", label, late_ms))
    found.append(MetricSample("rocketmq_pop_checkpoint_buffer_size", {}, len(pop.points)))
    found.append(MetricSample("rocketmq_pop_offset_buffer_size", {}, 0))
    for (topic, group), count in sorted(pop.revive.copies.items()):
        labels = {"consumer_group": group, "put_status": "PUT_OK", "topic": topic}
        found.append(MetricSample("rocketmq_pop_revive_retry_messages_total", labels, count))
    for (topic, group), count in sorted(pop.revive.ended.items()):
        labels = {
            "consumer_group": group,
            "queue_id": "-1",
            "revive_message_type": "CK",
            "topic": topic,
        }
        found.append(MetricSample("rocketmq_pop_revive_out_message_total", labels, count))
    found += buckets("rocketmq_pop_buffer_scan_time_consume_milliseconds", {}, [0] * 7, 0)
    return found


def pops(s: Services, group: str, topic: str) -> bool:
    """Returns whether a group that is connected pops a topic."""
    pop = s.pop
    if pop is None or not pop.is_on:
        return False
    mode = pop.modes.get(topic, group)
    return (
        (mode is not None and mode.mode == POP)
        or pop.waiting(topic, group) > 0
        or pop.in_flight(topic, group, -1) > 0
        or any(retry_topic(group, topic, kind) in s.topics for kind in pop.batches.looked_at)
    )


async def _of_group(
    s: Services, pop: Pop, turns: Turns, group: str, topic: str, names: list[str], is_retry: bool
) -> Iterator[MetricSample]:
    """Returns the samples of a group. names: those of the topic or of its retry topics."""
    ready = flying = 0
    oldest = now = time.time_ns() // 1_000_000
    for name in names:
        config = s.topics.get(name)
        for queue in range(config.read_queue_nums if config is not None else 0):
            await turns.next()
            low, high = s.store.span(name, queue)
            offset = s.offsets.get(group, name, queue)
            at = high if offset is None else max(offset, low)
            ready += max(0, high - at)
            flying += pop.in_flight(name, group, queue)
            since = store_time(s, name, queue, at) if at < high else -1
            if since >= 0:
                oldest = min(oldest, since)
    label = {
        "consumer_group": group,
        "is_retry": str(is_retry).lower(),
        "is_system": "false",
        "topic": topic,
    }
    return lag_samples(label, ready + flying, flying, ready, now - oldest, now - oldest)


def lag_samples(
    label: dict[str, str], lag: int, flying: int, ready: int, late_ms: int, queueing_ms: int
) -> Iterator[MetricSample]:
    """Returns the five metrics of a group's lag in a topic."""
    for name, value in (
        ("lag_messages", lag),
        ("lag_latency_milliseconds", late_ms),
        ("inflight_messages", flying),
        ("queueing_latency_milliseconds", queueing_ms),
        ("ready_messages", ready),
    ):
        yield MetricSample(f"rocketmq_consumer_{name}", label, value)
