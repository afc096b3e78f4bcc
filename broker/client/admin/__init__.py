"""The administrator's client: topics, groups, offsets, messages and dead letters of any broker."""

from __future__ import annotations

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

__all__ = [
    "REDRIVEN_FROM", "Admin", "AsyncAdmin", "BrokerFacts", "BrokerPlace", "ConnectedClient",
    "GroupMembers", "OffsetMove", "QueueEnds", "QueueLag", "RedriveReport", "TopicFacts",
]  # fmt: skip
