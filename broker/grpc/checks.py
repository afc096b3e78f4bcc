"""What a client may ask for: names, sizes and times, in upstream's order
(docs/internals/grpc.md#limits)."""

from __future__ import annotations

import time
from typing import Any

from broker.grpc.messages import RESERVED, millis
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Code, Problem
from broker.services.groups import BIND_TOPIC
from broker.services.lite.names import name_problem
from broker.services.names import check_group, check_topic, is_system_topic
from broker.wire.command import Refused
from pystore.format.names import SYSTEM_GROUP_PREFIX
from pystore.meta.configfiles import SubscriptionGroup

__all__ = [
    "check_binding", "check_invisible", "check_lite_topic", "check_message", "check_topics_equal",
    "group_of", "quota_of", "topic_of",
]  # fmt: skip

#: Beside those of services/names: upstream's POP check points.
_SYSTEM_TOPICS = frozenset(("CHECKPOINT_TOPIC",))
_SECONDS_MAX = 1 << 40
#: Attribute of groups, and its value where they do not have it.
_QUOTA, _QUOTA_DEFAULT = "lite.sub.client.quota", 2000


def topic_of(resource: Any) -> str:
    """Returns the topic's name. Namespaces are part of names, as Apache's proxy has it. Raises:
    Problem."""
    name: str = resource.name
    try:
        check_topic(name)
    except Refused as refused:
        raise Problem(Code.ILLEGAL_TOPIC, refused.remark) from None
    if is_system_topic(name) or name in _SYSTEM_TOPICS:
        raise Problem(Code.ILLEGAL_TOPIC, "cannot access system topic")
    return name


def group_of(resource: Any) -> str:
    """Returns the consumer group's name. Raises: Problem."""
    name: str = resource.name
    try:
        check_group(name)
    except Refused as refused:
        raise Problem(Code.ILLEGAL_CONSUMER_GROUP, refused.remark) from None
    if name.startswith(SYSTEM_GROUP_PREFIX):
        raise Problem(Code.ILLEGAL_CONSUMER_GROUP, "cannot use system consumer group")
    return name


def check_invisible(invisible_ms: int, least_ms: int, limits: ProxySettings) -> None:
    """Checks an invisible time. Raises: Problem for a time that no message may stay invisible."""
    if invisible_ms < least_ms:
        raise Problem(
            Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {least_ms}"
        )
    if invisible_ms > limits.invisible_max_ms:
        raise Problem(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"the invisibleTime is too large. max is {limits.invisible_max_ms}",
        )


def check_lite_topic(name: str, most: int) -> None:
    """Checks the name of a lite topic, of `most` bytes. Raises: Problem."""
    if problem := name_problem(name, most):
        raise Problem(Code.ILLEGAL_LITE_TOPIC, problem)


def quota_of(group: SubscriptionGroup) -> int:
    """Returns how many lite topics a client of the group may subscribe to."""
    asked = int(group.attributes.get(_QUOTA, _QUOTA_DEFAULT))
    return min(asked, 2**31 - 1)  # which is what the schema can say


def check_binding(
    name: str, group: SubscriptionGroup | None, topics: list[str], *, is_lite: bool
) -> None:
    """Checks that a group of lite topics is consumed by clients of these, from the topic that it is
    bound to, and no other group is. Raises: Problem."""
    bound = group.attributes.get(BIND_TOPIC, "") if group is not None else ""
    if group is None and is_lite:
        raise Problem(Code.ILLEGAL_CONSUMER_GROUP, f"group not found: {name}")
    if is_lite and not bound:
        raise Problem(Code.ILLEGAL_CONSUMER_GROUP, f"regular group cannot use LITE mode: {name}")
    if bound and not is_lite:
        raise Problem(Code.ILLEGAL_CONSUMER_GROUP, f"lite group must use LITE mode: {name}")
    others = [topic for topic in topics if topic != bound]
    if is_lite and others:
        raise Problem(
            Code.ILLEGAL_TOPIC,
            f"lite group {name} is expected to bind topic {bound}, but actual is {others[0]}",
        )


def check_topics_equal(messages: Any) -> str:
    """Returns the one topic of a send. Raises: Problem."""
    if not messages:
        raise Problem(Code.MESSAGE_CORRUPTED, "no message to send")
    topic = topic_of(messages[0].topic)
    if any(each.topic != messages[0].topic for each in messages):
        raise Problem(Code.MESSAGE_CORRUPTED, "all message should have same topic")
    return topic


def check_message(message: Any, limits: ProxySettings) -> None:
    """Checks one message of a send. Raises: Problem."""
    system = message.system_properties
    _check_body(len(message.body), limits)
    _check_properties(message, limits)
    if system.tag:
        _check_text("tag", system.tag, Code.ILLEGAL_MESSAGE_TAG)
        if "|" in system.tag:
            raise Problem(Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")
    for key in system.keys:
        _check_text("key", key, Code.ILLEGAL_MESSAGE_KEY)
    if not system.message_id.strip():
        raise Problem(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    if _has_control(system.message_id):
        raise Problem(Code.ILLEGAL_MESSAGE_ID, "message id cannot contain control character")
    _check_times(system, limits)
    if system.HasField("message_group") and system.message_group:
        _check_text("message group", system.message_group, Code.ILLEGAL_MESSAGE_GROUP)
        if len(system.message_group.encode()) >= limits.group_max:
            raise Problem(
                Code.ILLEGAL_MESSAGE_GROUP,
                f"message group exceed the max size {limits.group_max}",
            )
    if system.lite_topic:
        check_lite_topic(system.lite_topic, limits.lite_max)
    if system.HasField("priority") and system.priority < 0:
        raise Problem(Code.BAD_REQUEST, f"priority {system.priority} is negative")
    if _has_control(system.trace_context):
        raise Problem(Code.BAD_REQUEST, "trace context cannot contain control character")
    if _has_control(system.born_host):
        raise Problem(Code.BAD_REQUEST, "born host cannot contain control character")


def _check_body(size: int, limits: ProxySettings) -> None:
    if not size and limits.refuse_empty_body:
        raise Problem(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if size > limits.body_max:
        raise Problem(
            Code.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {limits.body_max}"
        )


def _check_properties(message: Any, limits: ProxySettings) -> None:
    given, system = message.user_properties, message.system_properties
    if len(given) > limits.property_count_max:
        raise Problem(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"too many user properties, max is {limits.property_count_max}",
        )
    size = len(system.tag.encode()) + sum(len(key.encode()) for key in system.keys)
    for name, value in given.items():
        problem = ""
        if name in RESERVED or name.startswith("TIMER_"):
            problem = f"property is used by system: {name:.128}"
        elif not name:
            problem = "the key of property cannot be empty"
        elif _has_control(name):
            problem = "the key of property cannot contain control character"
        elif _has_control(value):
            problem = "the value of property cannot contain control character"
        if problem:
            raise Problem(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, problem)
        size += len(name.encode()) + len(value.encode())
    if size > limits.properties_max:
        raise Problem(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max is {limits.properties_max}",
        )


def _check_times(system: Any, limits: ProxySettings) -> None:
    if not 0 <= system.born_timestamp.seconds < _SECONDS_MAX:
        raise Problem(Code.BAD_REQUEST, f"{system.born_timestamp.seconds} s is not a time of birth")
    if system.HasField("orphaned_transaction_recovery_duration"):
        seconds = system.orphaned_transaction_recovery_duration.seconds
        if not 0 <= seconds <= limits.recovery_max_s:
            raise Problem(
                Code.BAD_REQUEST,
                f"the recovery time of an orphaned transaction is {seconds} s; from 0 to"
                f" {limits.recovery_max_s} s are allowed",
            )
    if system.HasField("delivery_timestamp"):
        at = system.delivery_timestamp
        if not 0 <= at.seconds < _SECONDS_MAX:
            raise Problem(Code.ILLEGAL_DELIVERY_TIME, f"{at.seconds} s is not a delivery time")
        if millis(at) > time.time_ns() // 1_000_000 + limits.delay_max_ms:
            raise Problem(
                Code.ILLEGAL_DELIVERY_TIME,
                f"the max delay time of message is too large, max is {limits.delay_max_ms}",
            )


def _check_text(what: str, text: str, code: int) -> None:
    if not text.strip():
        raise Problem(code, f"{what} cannot be the char sequence of whitespace")
    if _has_control(text):
        raise Problem(code, f"{what} cannot contain control character")


def _has_control(text: str) -> bool:
    """Says whether it holds a character below blank, or 127 to 159, as Java sees them."""
    return not text.isprintable() and any(c < " " or "\x7f" <= c < "\xa0" for c in text)
