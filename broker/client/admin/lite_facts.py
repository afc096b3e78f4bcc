"""What an administrator is told of lite topics: the bodies of 200074 to 200078. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "LiteBrokerFacts", "LiteClientFacts", "LiteGroupFacts", "LiteLag", "LiteParentFacts",
    "LiteQueueLag",
    "LiteTopicFacts", "lite_broker_facts", "lite_client_facts", "lite_group_facts",
    "lite_parent_facts", "lite_topic_facts",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class LiteLag:
    """How far a group is behind in all lite topics of `topic`: messages after its offsets; in how
    many lite topics there are some; of how many it has read anything."""

    topic: str
    messages: int
    lite_topics: int
    read: int


@dataclass(frozen=True, slots=True)
class LiteBrokerFacts:
    """The lite topics of a broker (200074). store: kind of its light queues. topics_max: its limit;
    -1: none. batches: those that are out and not all acknowledged. offsets: how many the broker
    keeps. waiting: clients for which some lite topic has something. ttl_minutes: by topic; -1:
    never. groups: those bound to each topic. subscriptions_max: its limit; lags: by group;
    plain_sends: messages that came without a lite topic, by topic. The last three are what only
    brokers of this project say; None and nothing from others."""

    address: str
    store: str
    topics: int
    topics_max: int
    subscriptions: int
    batches: int
    offsets: int
    waiting: int
    ttl_minutes: Mapping[str, int]
    groups: Mapping[str, tuple[str, ...]]
    subscriptions_max: int | None
    lags: Mapping[str, LiteLag]
    plain_sends: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LiteParentFacts:
    """A topic of type LITE at one broker (200075). ttl_minutes: -1: its lite topics never expire.
    lite_topics: its own; all_lite_topics: those of all topics of the broker."""

    address: str
    topic: str
    ttl_minutes: int
    groups: tuple[str, ...]
    lite_topics: int
    all_lite_topics: int


@dataclass(frozen=True, slots=True)
class LiteTopicFacts:
    """A lite topic at one broker (200076). Its messages: from min_offset on, before max_offset.
    last_ms: when the last one was stored, ms since 1970; 0: none was. is_here: new messages come to
    this broker. subscribers: group and client; a client ``*`` reads all lite topics."""

    address: str
    topic: str
    lite_topic: str
    min_offset: int
    max_offset: int
    last_ms: int
    is_here: bool
    subscribers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class LiteClientFacts:
    """A client of a group at one broker (200077). count: lite topics that it subscribes to; -1: the
    broker does not know it. lite_topics: names, as many as were asked for. polled_ms: its last pop,
    ms since 1970; -1: none."""

    address: str
    client_id: str
    count: int
    lite_topics: tuple[str, ...]
    polled_ms: int


@dataclass(frozen=True, slots=True)
class LiteQueueLag:
    """Messages of one lite topic after a group's offset. since_ms: when the first of them was
    stored, ms since 1970; -1: not known."""

    lite_topic: str
    behind: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class LiteGroupFacts:
    """A group of lite topics at one broker (200078). behind: messages after its offsets; -1: the
    lite topic that was asked for is not there. since_ms: when the first of them was stored, ms
    since 1970; -1: not known. committed, end: of the lite topic that was asked for, None where the
    group has no offset. most: those with the most messages; oldest: those that wait longest, where
    the broker knows it."""

    address: str
    group: str
    topic: str
    behind: int
    since_ms: int
    committed: int | None
    end: int | None
    most: tuple[LiteQueueLag, ...]
    oldest: tuple[LiteQueueLag, ...]


def lite_broker_facts(address: str, body: Mapping[str, Any]) -> LiteBrokerFacts:
    """Reads the answer to 200074. Raises: what reading ends with (errors.UNREADABLE)."""
    return LiteBrokerFacts(
        address, str(body["storeType"]), int(body["currentLmqNum"]),
        int(body["maxLmqNum"]) if body.get("enableLmqQuota", True) else -1,
        int(body["liteSubscriptionCount"]), int(body["orderInfoCount"]),
        int(body["offsetTableSize"]), int(body["eventMapSize"]),
        {str(name): int(ttl) for name, ttl in (body.get("topicMeta") or {}).items()},
        {
            str(name): tuple(sorted(map(str, groups)))
            for name, groups in (body.get("groupMeta") or {}).items()
        },
        None if (most := body.get("maxLiteSubscriptionCount")) is None else int(most),
        {
            str(group): LiteLag(
                str(lag["parentTopic"]), int(lag["messages"]), int(lag["liteTopics"]),
                int(lag["read"]),
            )
            for group, lag in (body.get("groupLag") or {}).items()
        },
        {str(name): int(count) for name, count in (body.get("plainSends") or {}).items()},
    )  # fmt: skip


def lite_parent_facts(address: str, body: Mapping[str, Any]) -> LiteParentFacts:
    return LiteParentFacts(
        address, str(body["topic"]), int(body["ttl"]),
        tuple(sorted(map(str, body.get("groups") or ()))),
        int(body["liteTopicCount"]), int(body["lmqNum"]),
    )  # fmt: skip


def lite_topic_facts(address: str, body: Mapping[str, Any]) -> LiteTopicFacts:
    ends = body.get("topicOffset") or {}
    return LiteTopicFacts(
        address, str(body["parentTopic"]), str(body["liteTopic"]),
        int(ends.get("minOffset") or 0), int(ends.get("maxOffset") or 0),
        int(ends.get("lastUpdateTimestamp") or 0), bool(body["shardingToBroker"]),
        tuple(sorted((str(s["group"]), str(s["clientId"])) for s in body.get("subscriber") or ()
                     if s.get("group") is not None)),
    )  # fmt: skip


def lite_client_facts(address: str, body: Mapping[str, Any]) -> LiteClientFacts:
    queues = (str(queue) for queue in body.get("liteTopicSet") or ())
    return LiteClientFacts(
        address, str(body["clientId"]), int(body["liteTopicCount"]),
        tuple(sorted(queue.rpartition("$")[2] for queue in queues)), int(body["lastAccessTime"]),
    )  # fmt: skip


def _lags(rows: Any) -> tuple[LiteQueueLag, ...]:
    return tuple(
        LiteQueueLag(
            str(row["liteTopic"]), int(row["lagCount"]), int(row["earliestUnconsumedTimestamp"])
        )
        for row in rows or ()
    )


def lite_group_facts(address: str, body: Mapping[str, Any]) -> LiteGroupFacts:
    ends = body.get("liteTopicOffsetWrapper")
    return LiteGroupFacts(
        address, str(body["group"]), str(body["parentTopic"]), int(body["totalLagCount"]),
        int(body.get("earliestUnconsumedTimestamp", -1)),
        None if ends is None else int(ends["consumerOffset"]),
        None if ends is None else int(ends["brokerOffset"]),
        _lags(body.get("lagCountTopK")), _lags(body.get("lagTimestampTopK")),
    )  # fmt: skip
