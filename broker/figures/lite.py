"""Lite topics in numbers: sums that the core keeps at each message, commit and subscription,
however many lite topics there are. Upstream: LiteConsumerLagCalculator, which walks over all
offsets at each scrape, where a setting asks for it."""

from __future__ import annotations

from broker.loop.turns import Pieces
from broker.metrics.page import Page
from broker.services.context import Services

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
    for topic, count in lite.plain_sends().items():
        page.add("pystore_lite_plain_sends_total", count, topic=topic)
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
    liteLagLatencyMetricsEnable asks for it. The core keeps the times that it has looked up until
    the group moves on. Other work has its turn in between."""
    lite = s.lite
    if lite is None or not lite.is_on or not s.settings["liteLagLatencyMetricsEnable"]:
        return
    now_ms = lite.now_ms()
    for lag in lite.registry.lags():
        since_ms = await lite.registry.oldest_ms(lag.group, turns)
        page.add(
            "rocketmq_consumer_lag_latency_milliseconds",
            0 if since_ms is None else now_ms - since_ms, consumer_group=lag.group,
            is_retry="false", is_system="false", topic=lag.parent,
        )  # fmt: skip
