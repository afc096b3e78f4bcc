"""The administrator's client: topics, groups, offsets, messages and dead letters of any broker."""

from __future__ import annotations

from broker.client.admin.access import AccessRight, AccessUser
from broker.client.admin.admin import Admin, AsyncAdmin
from broker.client.admin.deadletters import REDRIVEN_FROM, RedriveReport
from broker.client.admin.facts import (
    BrokerFacts,
    BrokerPlace,
    ConnectedClient,
    GroupMembers,
    OffsetMove,
    QueueEnds,
    QueueLag,
    TopicFacts,
)
from broker.client.admin.lite_facts import (
    LiteBrokerFacts,
    LiteClientFacts,
    LiteGroupFacts,
    LiteLag,
    LiteParentFacts,
    LiteQueueLag,
    LiteTopicFacts,
)
from broker.client.admin.static_plan import StaticTopicFacts
from broker.client.admin.traces import TraceStep

__all__ = [
    "REDRIVEN_FROM", "AccessRight", "AccessUser", "Admin", "AsyncAdmin", "BrokerFacts",
    "BrokerPlace", "ConnectedClient", "GroupMembers", "LiteBrokerFacts", "LiteClientFacts",
    "LiteGroupFacts", "LiteLag", "LiteParentFacts", "LiteQueueLag", "LiteTopicFacts", "OffsetMove",
    "QueueEnds", "QueueLag", "RedriveReport", "StaticTopicFacts", "TopicFacts", "TraceStep",
]  # fmt: skip
