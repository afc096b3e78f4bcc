"""Lite topics of a running broker."""

from __future__ import annotations

from collections.abc import AsyncIterator

from broker.client.admin import AsyncAdmin, LiteBrokerFacts
from broker.client.errors import BrokerRefused
from broker.doctor.findings import Diagnosis, diagnosed
from broker.services.groups import BIND_TOPIC

__all__ = ["check_lite_topics"]

#: Of a limit: what is more is soon refused.
_NEAR_RATIO = 0.9


async def check_lite_topics(admin: AsyncAdmin, where: str) -> AsyncIterator[Diagnosis]:
    """Examines the lite topics of a broker, and the groups that read them. admin: asks this broker
    alone. Raises: ClientError."""
    bound = {
        each.name: topic
        for each in await admin.groups()
        if (topic := each.attributes.get(BIND_TOPIC))
    }
    parents = {
        each.name for each in await admin.topics() if each.attributes.get("message.type") == "LITE"
    }
    for group, topic in sorted(bound.items()):
        if topic not in parents:
            text = f"{group} is bound to {topic}, which is not a topic of type LITE here"
            yield diagnosed("lite-group-unbound", where, text, group=group, topic=topic)
    if not parents:
        return
    try:
        (facts,) = await admin.lite_brokers()
    except BrokerRefused:  # older than 5.5
        return
    for found in _limits(facts, where):
        yield found
    for topic, count in sorted(facts.plain_sends.items()):
        text = f"{count} messages came to {topic} without a lite topic since the broker started"
        yield diagnosed("lite-topic-missing", where, text, topic=topic)
    for topic in sorted(parents):
        (parent,) = await admin.lite_parent(topic)
        read = sum(lag.read for lag in facts.lags.values() if lag.topic == topic)
        unread = parent.lite_topics - read
        if not parent.groups and parent.lite_topics:
            text = f"{parent.lite_topics} lite topics of {topic}, and no group is bound to it"
            yield diagnosed("lite-topics-unread", where, text, topic=topic)
        elif facts.lags and unread > 0:
            text = f"no group has read anything of {unread} lite topics of {topic}, or more"
            yield diagnosed("lite-topics-unread", where, text, topic=topic)


def _limits(facts: LiteBrokerFacts, where: str) -> list[Diagnosis]:
    found = []
    for count, most, what, setting in (
        (facts.topics, facts.topics_max, "lite topics", "maxLmqConsumeQueueNum"),
        (
            facts.subscriptions, facts.subscriptions_max or -1, "subscriptions",
            "maxLiteSubscriptionCount",
        ),
    ):  # fmt: skip
        if most >= 0 and count >= most * _NEAR_RATIO:
            text = f"it has {count} {what}; {setting} is {most}"
            found.append(diagnosed("lite-quota-near", where, text, setting=setting))
    return found
