"""Names of topics and groups to which upstream gives a meaning: the one table for Python.

Those that the core knows come from its own (csrc/format/names.h). Upstream: ``TopicValidator``,
``MixAll``, ``PopAckConstants``.
"""

from __future__ import annotations

from pystore.native import ffi, lib

__all__ = [
    "BENCHMARK_TOPIC",
    "DISCARD_TOPIC",
    "DLQ_PREFIX",
    "FILLER_TOPIC",
    "FILLER_TOPIC_SHORT",
    "HALF_TOPIC",
    "LIGHT_PREFIX",
    "OFFSET_MOVED_TOPIC",
    "OP_TOPIC",
    "REPLY_SUFFIX",
    "RETRY_PREFIX",
    "REVIVE_GROUP",
    "REVIVE_PREFIX",
    "SCHEDULE_TOPIC",
    "SELF_TEST_TOPIC",
    "SYNC_MEMBER_PREFIX",
    "SYSTEM_GROUP_PREFIX",
    "SYSTEM_PREFIX",
    "SYSTEM_TOPICS",
    "TEMPLATE_TOPIC",
    "TIMER_TOPIC",
    "TOOLS_GROUP",
    "TRACE_TOPIC",
    "TRANSACTION_GROUP",
    "is_internal_topic",
    "is_system_topic",
]


def _known(name: str) -> str:
    return bytes(ffi.string(getattr(lib, name))).decode()


#: Messages with a delay level wait here, in queue level - 1.
SCHEDULE_TOPIC = _known("PS_SCHEDULE_TOPIC")
#: Messages that wait for a time.
TIMER_TOPIC = _known("PS_TIMER_TOPIC")
#: Halves of transactions, which of them are decided, and those that were never decided.
HALF_TOPIC = _known("PS_HALF_TOPIC")
OP_TOPIC = _known("PS_OP_TOPIC")
DISCARD_TOPIC = _known("PS_DISCARD_TOPIC")
#: Of records that close over damage; the short one where there is no room.
FILLER_TOPIC = _known("PS_FILLER_TOPIC")
FILLER_TOPIC_SHORT = _known("PS_FILLER_TOPIC_SHORT")
#: What a group gets once more, and what it has given up. The group's name follows.
RETRY_PREFIX = _known("PS_RETRY_PREFIX")
DLQ_PREFIX = _known("PS_DLQ_PREFIX")
#: Light queues: those of lite topics, and others that a message names beside its topic.
LIGHT_PREFIX = _known("PS_LMQ_PREFIX")
#: Check points of POP. The cluster's name follows.
REVIVE_PREFIX = _known("PS_REVIVE_PREFIX")
#: The topic whose inherit bit lets clients make topics by sending to them.
TEMPLATE_TOPIC = "TBW102"
#: Answers to requests. The cluster's name precedes it.
REPLY_SUFFIX = "_REPLY_TOPIC"
#: What clients say of messages' ways.
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC = "BenchmarkTest"
#: Every topic of the system that upstream has added since 5.0.
SYSTEM_PREFIX = _known("PS_SYSTEM_PREFIX")
#: Members of a group of brokers. The broker's name follows.
SYNC_MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"

#: Topics of the system beside those with its prefix.
SYSTEM_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        DISCARD_TOPIC,
        TIMER_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        TEMPLATE_TOPIC,
        BENCHMARK_TOPIC,
        TRACE_TOPIC,
    }
)

#: Groups of the broker's own.
SYSTEM_GROUP_PREFIX = _known("PS_SYSTEM_GROUP_PREFIX")
#: The one that reads halves, and the one that reads check points of POP.
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
#: The one that upstream's tools read with.
TOOLS_GROUP = "TOOLS_CONSUMER"


def is_system_topic(name: str) -> bool:
    """Returns whether a topic is one of the system's own (upstream's ``isSystemTopic``)."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX)


def is_internal_topic(name: str) -> bool:
    """Returns whether no application sends to a topic by itself: one of the system's, one that a
    broker makes for a group's retries and dead letters, or the topic of replies."""
    return (
        is_system_topic(name)
        or name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        or name.endswith(REPLY_SUFFIX)
    )
