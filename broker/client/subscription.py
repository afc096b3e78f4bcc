"""What a consumer subscribes to, and the heartbeat that says so
(docs/internals/wire.md#heartbeats). No I/O."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from broker.client.errors import Misuse
from pystore.format.javahash import java_hash

__all__ = ["TopicSubscription", "Topics", "heartbeat_body", "parse_topics"]

#: A topic, several, or topics with the expression for each: tags as ``a || b``, ``*``, or Sql.
Topics = "str | Iterable[str] | Mapping[str, str | Sql]"


class Sql(str):
    """An SQL92 expression over properties, for a broker with ``enablePropertyFilter``.

    >>> from broker import Consumer, Message, Producer, Sql
    >>> with Producer("orders-api") as producer:
    ...     for region in ("us", "eu"):
    ...         message = Message("sales", region.encode(), properties={"region": region})
    ...         result = producer.send(message)
    >>> with Consumer("europe", {"sales": Sql("region = 'eu'")}, start="first") as consumer:
    ...     next(iter(consumer)).body
    b'eu'
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f'Sql("{self}")'


@dataclass(frozen=True, slots=True)
class TopicSubscription:
    """A topic, and which of its messages are wanted. tags: None for all of them. version: ms, the
    newer wins."""

    topic: str
    expression: str = "*"
    kind: str = "TAG"
    tags: frozenset[str] | None = None
    version: int = 0

    @classmethod
    def of(cls, topic: str, expression: str = "*") -> TopicSubscription:
        """Makes the subscription to a topic. Raises: Misuse for a blank topic or SQL expression."""
        if not isinstance(topic, str) or not topic.strip():
            raise Misuse("a subscription needs the name of a topic")
        if not isinstance(expression, str):
            raise Misuse(
                f"the expression for {topic} is {expression!r}; pass tags, '*' or Sql(...)"
            )
        version = time.time_ns() // 1_000_000
        if isinstance(expression, Sql):
            if not expression.strip():
                raise Misuse(f"the SQL expression for {topic} is blank; subscribe to '*' instead")
            return cls(topic, str(expression), "SQL92", None, version)
        parts = frozenset(p.strip() for p in expression.split("||") if p.strip())
        if not parts or "*" in parts:
            return cls(topic, "*", "TAG", None, version)
        return cls(topic, expression, "TAG", parts, version)

    def as_json(self) -> dict[str, object]:
        tags = sorted(self.tags or ())
        return {
            "classFilterMode": False,
            "codeSet": [java_hash(tag) for tag in tags],
            "expressionType": self.kind,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": tags,
            "topic": self.topic,
        }


def parse_topics(given: str | Iterable[str] | Mapping[str, str]) -> dict[str, str]:
    """Returns expressions by topic. Raises: Misuse."""
    if isinstance(given, str):
        return {given: "*"}
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, Iterable):
        raise Misuse(f"topics are {given!r}; pass a name, several, or a mapping to expressions")
    topics = list(given)
    if not all(isinstance(topic, str) for topic in topics):
        raise Misuse(f"topics are {given!r:.80}; their names are texts")
    return dict.fromkeys(topics, "*")


def heartbeat_body(
    client_id: str,
    producer_groups: Sequence[str] = (),
    consumer: Mapping[str, object] | None = None,
) -> bytes:
    """Returns the body of a heartbeat. consumer: of consumer_data(); None for a client that only
    sends."""
    body = {
        "clientID": client_id,
        "consumerDataSet": [] if consumer is None else [consumer],
        "heartbeatFingerprint": 0,
        "producerDataSet": [{"groupName": group} for group in producer_groups],
        "withoutSub": False,
    }
    return json.dumps(body, separators=(",", ":")).encode()


def consumer_data(
    group: str,
    subscriptions: Iterable[TopicSubscription],
    *,
    broadcast: bool,
    start: str,
) -> dict[str, object]:
    """Makes the part of a heartbeat that is about a consumer."""
    return {
        "consumeFromWhere": start,
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": "BROADCASTING" if broadcast else "CLUSTERING",
        "subscriptionDataSet": [s.as_json() for s in subscriptions],
        "unitMode": False,
    }
