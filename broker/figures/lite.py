"""Lite topics in numbers: sums that the core keeps at each message, commit and subscription,
however many lite topics there are. Upstream: LiteConsumerLagCalculator, which walks over all
offsets at each scrape, where a setting asks for it."""

from __future__ import annotations

from broker.loop.turns import Pieces
from broker.metrics.page import Page
from broker.services.context import Services
from broker.services.lite.names import topic_below

__all__ = ["add_lite", "add_lite_lags", "add_lite_latencies"]


def add_lite(page: Page, s: Services) -> None:
    lite, settings = s.lite, s.settings
    if lite is None or not lite.is_on:
        return
    quota = int(settings["maxLmqConsumeQueueNum"]) if settings["enableLmqQuota"] else 0
    totals = lite.registry.totals()
    page.add("pystore_lite_topics", lite.lights.count)
    page.add("pystore_lite_topics_max", quota)
    page.add("pystore_lite_topics_expired_total", lite.expired)
    page.add("pystore_lite_names_skipped_total", lite.lights.skipped)
    page.add("pystore_lite_clients", totals.clients)
    page.add("pystore_lite_clients_overflowed", totals.overflowed)
    page.add("pystore_lite_subscriptions", totals.pairs)
    page.add("pystore_lite_subscriptions_max", int(settings["maxLiteSubscriptionCount"]))
    page.add("pystore_lite_events", totals.events)
    page.add("pystore_lite_polls", totals.polls)
    for lag in lite.registry.lags():
        place = {"consumer_group": lag.group, "topic": lag.parent}
        page.add("pystore_lite_topics_behind", lag.queues, **place)


def add_lite_lags(page: Page, s: Services) -> None:
    """Adds how far groups are behind, of those of lite topics."""
    if s.lite is None or not s.lite.is_on:
        return
    for lag in s.lite.registry.lags():
        label = {
            "consumer_group": lag.group, "is_retry": "false", "is_system": "false",
            "topic": lag.parent,
        }  # fmt: skip
        page.add("rocketmq_consumer_lag_messages", lag.messages, **label)
        page.add("rocketmq_consumer_ready_messages", lag.messages, **label)


async def add_lite_latencies(page: Page, s: Services, turns: Pieces) -> None:
    """Adds how old the oldest message is that a group of lite topics has not read yet, where
    liteLagLatencyMetricsEnable asks for it: a pass over all lite topics, which reads a message of
    each in which a group is behind. Other work has its turn in between."""
    lite = s.lite
    if lite is None or not lite.is_on or not s.settings["liteLagLatencyMetricsEnable"]:
        return
    now_ms = lite.now_ms()
    oldest: dict[tuple[str, str], int] = {}
    behind: dict[str, list[str]] = {}
    for lag in lite.registry.lags():
        oldest[lag.parent, lag.group] = now_ms
        if lag.queues:
            behind.setdefault(lag.parent, []).append(lag.group)
    if behind:
        async for queue in lite.walk():
            parent = topic_below(queue.name)
            for group in behind.get(parent, ()):
                offset = s.offsets.get(group, queue.name, 0)
                if offset is None or offset >= queue.high:
                    continue
                await turns.next()
                if found := lite.lights.read(queue.name, max(offset, queue.low), 1):
                    since_ms = found[0].store_timestamp or now_ms  # 0: it is damaged
                    oldest[parent, group] = min(oldest[parent, group], since_ms)
    for (parent, group), since_ms in oldest.items():
        page.add(
            "rocketmq_consumer_lag_latency_milliseconds", now_ms - since_ms, consumer_group=group,
            is_retry="false", is_system="false", topic=parent,
        )  # fmt: skip
