"""A file per family of requests: the order of checks, and the answers."""

from __future__ import annotations

from broker.processors.admin_access import AccessProcessor
from broker.processors.admin_config import ConfigProcessor
from broker.processors.admin_groups import GroupProcessor
from broker.processors.admin_offsets import OffsetAdminProcessor
from broker.processors.admin_stats import StatisticsProcessor
from broker.processors.admin_topics import TopicProcessor
from broker.processors.admission import Admission
from broker.processors.assignment import AssignmentProcessor
from broker.processors.clients import ClientProcessor
from broker.processors.lite import LiteProcessor
from broker.processors.locks import LockProcessor
from broker.processors.lookup import LookupProcessor
from broker.processors.offsets import OffsetProcessor
from broker.processors.pop import PopProcessor
from broker.processors.popack import PopAckProcessor
from broker.processors.pull import PullProcessor
from broker.processors.recall import RecallProcessor
from broker.processors.relay import RelayProcessor
from broker.processors.replication import ReplicationProcessor
from broker.processors.reply import ReplyProcessor
from broker.processors.retry import RetryProcessor
from broker.processors.send import SendProcessor
from broker.processors.static_topics import StaticTopicProcessor
from broker.processors.transaction import TransactionProcessor
from broker.services.context import Services
from broker.wire.handlers import Handler

__all__ = ["all_handlers"]


def all_handlers(s: Services) -> dict[int, Handler]:
    """Returns the handler of every code that this broker serves; others are answered as not
    supported."""
    admission, lite = Admission(s), LiteProcessor(s)
    made: dict[int, Handler] = {}
    for processor in (
        SendProcessor(s, admission),
        RetryProcessor(s),
        ReplyProcessor(s, admission),
        TransactionProcessor(s),
        PullProcessor(s),
        PopProcessor(s),
        PopAckProcessor(s, lite),
        lite,
        OffsetProcessor(s),
        LookupProcessor(s),
        ClientProcessor(s),
        LockProcessor(s),
        RecallProcessor(s),
        RelayProcessor(s),
        AssignmentProcessor(s),
        TopicProcessor(s),
        GroupProcessor(s),
        StatisticsProcessor(s),
        ConfigProcessor(s),
        OffsetAdminProcessor(s),
        AccessProcessor(s),
        ReplicationProcessor(s),
    ):
        made.update(processor.handlers())
    made.update(StaticTopicProcessor(s, dict(made)).handlers())
    return made
