"""What each request needs, for the plain list and for policies
(docs/internals/access.md#what-a-request-needs).

Both tables follow upstream's, but for the requests that it lets through by oversight: those are
listed on the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace

from broker.access.needs import (
    AccessAction,
    AccessRequest,
    Need,
    ResourceKind,
    bare_group,
    topic_need,
)
from broker.processors.bodies import (
    BATCH_ACK,
    GROUP,
    GROUPS,
    LITE_SUBSCRIPTIONS,
    QUERY_ASSIGNMENT,
    QUEUES_OF_CLIENT,
    SET_MODE,
    TOPICS,
    heartbeat,
    read,
)
from broker.services.lite.names import topic_below
from broker.wire.codes import RequestCode as Code
from broker.wire.command import Command
from broker.wire.receipts import is_retry_of
from pystore import Store
from pystore.errors import StoreError
from pystore.format.names import (
    DLQ_PREFIX,
    HALF_TOPIC,
    LIGHT_PREFIX,
    REPLY_SUFFIX,
    RETRY_PREFIX,
)
from pystore.format.properties import LITE_TOPIC, MULTI_DISPATCH, parse_properties

__all__ = ["NeedsOfPlain", "NeedsOfPolicies", "TopicAt", "meant_topic", "topic_of"]

Needs = Iterable[Need]
Rule = Callable[[Command], Needs]
#: The topic of the message at an offset of the log, of a half message the one that it is meant for;
#: None: there is none, or none of halves where only a half is asked for.
TopicAt = Callable[[str, bool], str | None]

PUB, SUB, GET = AccessAction.PUB, AccessAction.SUB, AccessAction.GET
CREATE, UPDATE, DELETE = AccessAction.CREATE, AccessAction.UPDATE, AccessAction.DELETE


def topic_of(store: Store, offset: str, half: bool) -> str | None:
    """Returns the topic of the message at a log offset, as TopicAt has it."""
    try:
        message = store.message(int(offset))
    except (StoreError, ValueError, OverflowError):
        return None
    return meant_topic(message.topic, message.properties, half)


def meant_topic(topic: str, properties: Mapping[str, str], half: bool) -> str | None:
    """Returns the topic of a message that is stored under this one, as TopicAt has it."""
    if topic == HALF_TOPIC:
        return properties.get("REAL_TOPIC")
    return None if half else topic


# ---- rules over the fields of a header ----


def _topic(field: str, *actions: AccessAction) -> Rule:
    """Returns the need of a topic's field; an absent field asks for nothing."""

    def rule(command: Command) -> Needs:
        name = command.ext.get(field)
        return (topic_need(name, *actions),) if name else ()

    return rule


def _group(field: str, *actions: AccessAction) -> Rule:
    def rule(command: Command) -> Needs:
        name = command.ext.get(field)
        return (Need(ResourceKind.GROUP, bare_group(name), actions),) if name else ()

    return rule


def _all_of(*rules: Rule) -> Rule:
    def rule(command: Command) -> Needs:
        return [need for each in rules for need in each(command)]

    return rule


def _nothing(command: Command) -> Needs:
    return ()


# ---- rules over bodies ----


def _heartbeat(command: Command) -> Needs:
    for item in heartbeat(command)["consumerDataSet"]:
        yield Need(ResourceKind.GROUP, bare_group(item["groupName"]), (SUB,))
        for subscription in item["subscriptionDataSet"]:
            yield topic_need(subscription["topic"], SUB)


def _locks(command: Command) -> Needs:
    body = read(command, QUEUES_OF_CLIENT)
    yield Need(ResourceKind.GROUP, bare_group(body["consumerGroup"]), (SUB,))
    for topic in dict.fromkeys(queue.topic for queue in body["mqSet"]):
        yield topic_need(topic, SUB)


def _topics_made(command: Command) -> Needs:
    for item in read(command, TOPICS)["topicConfigList"]:
        yield Need(ResourceKind.TOPIC, item["topicName"], (CREATE,))


def _group_made(command: Command) -> Needs:
    name = read(command, GROUP)["groupName"]
    return (Need(ResourceKind.GROUP, bare_group(name), (CREATE, UPDATE)),)


def _groups_made(command: Command) -> Needs:
    for item in read(command, GROUPS)["groupConfigList"]:
        yield Need(ResourceKind.GROUP, bare_group(item["groupName"]), (CREATE, UPDATE))


def _assignment(command: Command) -> Needs:
    body = read(command, QUERY_ASSIGNMENT)
    yield Need(ResourceKind.GROUP, bare_group(body["consumerGroup"]), (SUB,))
    yield topic_need(body["topic"], SUB)


def _mode(command: Command) -> Needs:
    body = read(command, SET_MODE)
    yield Need(ResourceKind.GROUP, bare_group(body["consumerGroup"]), (UPDATE,))
    yield Need(ResourceKind.TOPIC, body["topic"], (UPDATE,))


def _sent(topic: str, properties: str) -> Rule:
    """Returns the needs of a send, by the fields that have its topic and its properties. Those may
    name light queues that the message is put into as well, for which upstream asks nothing. What
    is sent back still names them, and goes into none (csrc/format/multi.c)."""
    named = _topic(topic, PUB)

    def rule(command: Command) -> Needs:
        yield from named(command)
        text = command.ext.get(properties, "")
        if MULTI_DISPATCH not in text:
            return
        found = parse_properties(text.encode("utf-8", "surrogatepass"))
        if LITE_TOPIC in found or command.ext.get(topic, "").startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return
        for queue in found.get(MULTI_DISPATCH, "").split(","):
            if queue.startswith(LIGHT_PREFIX):
                yield topic_need(topic_below(queue), PUB)

    return rule


_SENDS: dict[int, Rule] = {
    Code.SEND_MESSAGE: _sent("topic", "properties"),
    **dict.fromkeys((Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE), _sent("b", "i")),
}


def _replies(cluster: str) -> dict[int, Rule]:
    """Returns the needs of replies, which reach whatever client they name: as those of sends, and
    Pub on the cluster's reply topic, to which every official client sends them."""

    def replied(topic: str, properties: str) -> Rule:
        sent = _sent(topic, properties)

        def rule(command: Command) -> Needs:
            yield from sent(command)
            if cluster:  # a proxy may have none
                yield topic_need(cluster + REPLY_SUFFIX, PUB)

        return rule

    return {
        Code.SEND_REPLY_MESSAGE: replied("topic", "properties"),
        Code.SEND_REPLY_MESSAGE_V2: replied("b", "i"),
    }


_CONSUMES = _all_of(_topic("topic", SUB), _group("consumerGroup", SUB))


def _pulled(command: Command) -> Needs:
    """Returns the needs of a pull. One of a light queue needs the topic that it is below."""
    if name := command.ext.get("topic"):
        yield topic_need(topic_below(name), SUB)
    yield from _group("consumerGroup", SUB)(command)


def _pop_needs(group: str, topic: str) -> Needs:
    """Returns the needs of a pop. A retry topic needs the group, and the topic whose messages it
    brings back."""
    of = is_retry_of(topic, bare_group(group))
    yield Need(ResourceKind.GROUP, bare_group(group), (SUB,))
    yield topic_need(of if of is not None else topic, SUB)


def _delivered(command: Command) -> Needs:
    """Returns the need of what was popped, by its topic or its retry topic."""
    group, topic = command.ext.get("consumerGroup"), command.ext.get("topic")
    return _pop_needs(group, topic) if group and topic else _CONSUMES(command)


def _batch_ack(command: Command) -> Needs:
    """Returns the needs of a batch of acknowledgements. Upstream looks at the header alone, which
    names nothing."""
    for item in read(command, BATCH_ACK)["acks"] if len(command.body) else ():
        yield from _pop_needs(item["c"], item["t"])


def _lite_subscriptions(command: Command) -> Needs:
    """Returns the needs of subscriptions to lite topics. Upstream asks nothing of the classic
    wire's."""
    for row in read(command, LITE_SUBSCRIPTIONS)["subscriptionSet"] if len(command.body) else ():
        yield from _pop_needs(row["group"], row["topic"])


_POPS: dict[int, Rule] = {
    **dict.fromkeys(
        (Code.POP_MESSAGE, Code.PEEK_MESSAGE, Code.NOTIFICATION, Code.POP_LITE_MESSAGE), _CONSUMES
    ),
    Code.LITE_SUBSCRIPTION_CTL: _lite_subscriptions,
    **dict.fromkeys((Code.ACK_MESSAGE, Code.CHANGE_MESSAGE_INVISIBLETIME), _delivered),
    Code.BATCH_ACK_MESSAGE: _batch_ack,
}


def _at(topic: str | None, action: AccessAction, offset: str) -> Need:
    """Returns the needs of the record at a log offset. The refusal is the same where there is none,
    and does not name its topic: nobody learns by it what others have stored."""
    shown = f"(of the message at {offset[:20]}, if there is one)"
    need = topic_need(topic or "", action)
    return replace(need, kind=ResourceKind.TOPIC if topic is None else need.kind, shown=shown)


def _of_half(topic_at: TopicAt) -> Rule:
    """Returns the needs of a half message. Upstream believes the request's own field, and asks for
    nothing when it is absent."""
    named = _topic("topic", PUB)

    def rule(command: Command) -> Needs:
        offset = command.ext.get("commitLogOffset", "")
        yield from named(command)
        yield _at(topic_at(offset, True), PUB, offset)

    return rule


def _of_message(topic_at: TopicAt, action: AccessAction) -> Rule:
    """Returns the needs of VIEW_MESSAGE_BY_ID, which names no topic; upstream lets anybody read any
    message by its offset."""
    named = _topic("topic", action)

    def rule(command: Command) -> Needs:
        offset = command.ext.get("offset", "")
        yield from named(command)
        yield _at(topic_at(offset, False), action, offset)

    return rule


def _read_by_group(topic_at: TopicAt, offset: str, group: str) -> Need:
    """Returns the need of a record that is handed to a group. A half message is handed to none, and
    one of the group's retry topic of POP is of the topic that it came from."""
    is_half = topic_at(offset, True) is not None
    topic = HALF_TOPIC if is_half else topic_at(offset, False)
    of = is_retry_of(topic, group) if topic is not None else None
    return _at(of if of is not None else topic, SUB, offset)


def _sent_back(topic_at: TopicAt) -> Rule:
    """Returns the needs of CONSUMER_SEND_MSG_BACK, which names no topic; upstream lets the group's
    retry topic be filled with any record of the log."""
    named = _group("group", SUB)

    def rule(command: Command) -> Needs:
        yield from named(command)
        group = bare_group(command.ext.get("group", ""))
        yield _read_by_group(topic_at, command.ext.get("offset", ""), group)

    return rule


def _offset_of(command: Command) -> str:
    """Returns the log offset in a request's offsetMsgId, which is read as Store.message_by_id reads
    it; empty when it is none."""
    try:
        raw = bytes.fromhex(command.ext.get("msgId", ""))
    except ValueError:
        return ""
    return str(int.from_bytes(raw[-8:], "big"))


_DIRECTLY = _all_of(_topic("topic", SUB), _group("consumerGroup", SUB))


def _consumed_directly(topic_at: TopicAt) -> Rule:
    """Returns the needs of CONSUME_MESSAGE_DIRECTLY: upstream looks at the topic that the request
    names, if any, and hands a client of the group whatever record it asks for."""

    def rule(command: Command) -> Needs:
        yield from _DIRECTLY(command)
        if command.ext.get("msgId"):
            group = bare_group(command.ext.get("consumerGroup", ""))
            yield _read_by_group(topic_at, _offset_of(command), group)

    return rule


def _resumed(topic_at: TopicAt) -> Rule:
    """Returns the needs of RESUME_CHECK_HALF_MESSAGE. The topic that it names is compared with the
    transaction's; older tools name none, and upstream then asks for nothing."""
    named = _topic("topic", UPDATE)

    def rule(command: Command) -> Needs:
        if command.ext.get("topic"):
            return named(command)
        offset = _offset_of(command)
        return (_at(topic_at(offset, True), UPDATE, offset),)

    return rule


def _by_place(topic_at: TopicAt, look: AccessAction) -> dict[int, Rule]:
    """Returns the needs of requests that name a record of the log. look: what reading that record
    needs."""
    return {
        Code.CONSUME_MESSAGE_DIRECTLY: _consumed_directly(topic_at),
        Code.CONSUMER_SEND_MSG_BACK: _sent_back(topic_at),
        Code.END_TRANSACTION: _of_half(topic_at),
        Code.RESUME_CHECK_HALF_MESSAGE: _resumed(topic_at),
        Code.VIEW_MESSAGE_BY_ID: _of_message(topic_at, look),
    }


def _topics_of_stats(command: Command) -> Needs:
    for name in command.ext.get("topicList", "").split(";"):
        if name:
            yield topic_need(name, GET)


# ---- the plain list ----

_PLAIN: dict[int, Rule] = {
    **_SENDS,
    **_POPS,
    Code.PULL_MESSAGE: _pulled,
    Code.LITE_PULL_MESSAGE: _pulled,
    Code.QUERY_MESSAGE: _topic("topic", SUB),
    Code.HEART_BEAT: _heartbeat,
    Code.UNREGISTER_CLIENT: _group("consumerGroup", SUB),
    Code.GET_CONSUMER_LIST_BY_GROUP: _group("consumerGroup", SUB),
    Code.UPDATE_CONSUMER_OFFSET: _CONSUMES,
    Code.LOCK_BATCH_MQ: _locks,
    Code.UNLOCK_BATCH_MQ: _locks,
    Code.TRIGGER_LITE_DISPATCH: _group("group", SUB),
    Code.RECALL_MESSAGE: _topic("topic", PUB),
    # A valid signature is enough, as in 4.9.7.
    **dict.fromkeys(
        (
            Code.QUERY_CONSUMER_OFFSET, Code.GET_ALL_TOPIC_CONFIG, Code.GET_BROKER_RUNTIME_INFO,
            Code.SEARCH_OFFSET_BY_TIMESTAMP, Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET,
            Code.GET_EARLIEST_MSG_STORETIME, Code.GET_ALL_CONSUMER_OFFSET,
            Code.GET_ALL_DELAY_OFFSET, Code.CHECK_CLIENT_CONFIG,
            Code.GET_BROKER_CLUSTER_ACL_INFO, Code.GET_TIMER_CHECK_POINT, Code.GET_TIMER_METRICS,
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Code.GET_TOPIC_STATS_INFO,
            Code.GET_CONSUMER_CONNECTION_LIST, Code.GET_PRODUCER_CONNECTION_LIST,
            Code.GET_CONSUME_STATS, Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            Code.QUERY_TOPIC_CONSUME_BY_WHO, Code.QUERY_CONSUME_TIME_SPAN,
            Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Code.GET_CONSUMER_RUNNING_INFO,
            Code.QUERY_CORRECTION_OFFSET, Code.VIEW_BROKER_STATS_DATA,
            Code.GET_BROKER_CONSUME_STATS, Code.QUERY_CONSUME_QUEUE, Code.GET_ALL_PRODUCER_INFO,
            Code.QUERY_TOPICS_BY_CONSUMER, Code.QUERY_SUBSCRIPTION_BY_CONSUMER,
            Code.GET_TOPIC_CONFIG, Code.GET_SUBSCRIPTIONGROUP_CONFIG, Code.QUERY_ASSIGNMENT,
            Code.GET_ALL_MESSAGE_REQUEST_MODE, Code.GET_BROKER_HA_STATUS, Code.AUTH_CREATE_USER,
            Code.AUTH_UPDATE_USER, Code.AUTH_DELETE_USER, Code.AUTH_GET_USER, Code.AUTH_LIST_USERS,
            Code.AUTH_CREATE_ACL, Code.AUTH_UPDATE_ACL, Code.AUTH_DELETE_ACL, Code.AUTH_GET_ACL,
            Code.AUTH_LIST_ACL, Code.POLLING_INFO, Code.POP_ROLLBACK,
            Code.GET_BROKER_LITE_INFO, Code.GET_PARENT_TOPIC_INFO, Code.GET_LITE_TOPIC_INFO,
            Code.GET_LITE_CLIENT_INFO, Code.GET_LITE_GROUP_INFO,
            # What these two say is not believed: the broker looks itself.
            Code.NOTIFY_MIN_BROKER_ID_CHANGE, Code.NOTIFY_BROKER_ROLE_CHANGED,
            Code.GET_BROKER_EPOCH_CACHE,
        ),
        _nothing,
    ),
}  # fmt: skip
#: Upstream: 17, 25, 200, 207, 215 alone.
_ADMIN = frozenset(
    {
        Code.UPDATE_AND_CREATE_TOPIC, Code.UPDATE_AND_CREATE_TOPIC_LIST,
        Code.UPDATE_AND_CREATE_STATIC_TOPIC,
        Code.DELETE_TOPIC_IN_BROKER, Code.UPDATE_BROKER_CONFIG, Code.GET_BROKER_CONFIG,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        Code.DELETE_SUBSCRIPTIONGROUP, Code.INVOKE_BROKER_TO_RESET_OFFSET,
        Code.CLONE_GROUP_OFFSET, Code.UPDATE_AND_GET_GROUP_FORBIDDEN,
        Code.SET_MESSAGE_REQUEST_MODE, Code.TRIGGER_DELETE_FILES, Code.DELETE_EXPIRED_COMMITLOG,
        Code.CLEAN_EXPIRED_CONSUMEQUEUE, Code.CLEAN_UNUSED_TOPIC, Code.CONSUME_MESSAGE_DIRECTLY,
        Code.RESUME_CHECK_HALF_MESSAGE, Code.UPDATE_ACL_CONFIG, Code.DELETE_ACL_CONFIG,
        Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, Code.GET_ACL_CONFIG, Code.EXCHANGE_BROKER_HA_INFO,
    }
)  # fmt: skip


class NeedsOfPlain:
    """What requests need by the plain list. Codes that nobody serves need only a valid signature:
    their senders are told that they are not supported."""

    def __init__(self, cluster: str, topic_at: TopicAt) -> None:
        self._rules: dict[int, Rule] = {
            **_PLAIN,
            **_replies(cluster),
            **_by_place(topic_at, SUB),
        }

    def __call__(self, command: Command) -> AccessRequest:
        """Says what a request needs. Raises: Refused for a body that cannot be read."""
        code = command.code
        rule = self._rules.get(code)
        needs = tuple(rule(command)) if rule is not None else ()
        return AccessRequest(code, needs, code in _ADMIN)

    def __contains__(self, code: int) -> bool:
        return code in self._rules or code in _ADMIN


# ---- policies ----


def _cluster(name: str, action: AccessAction) -> Rule:
    def rule(command: Command) -> Needs:
        return (Need(ResourceKind.CLUSTER, name, (action,)),)

    return rule


_POLICY: dict[int, Rule] = {
    **_SENDS,
    **_POPS,
    Code.GET_ROUTEINFO_BY_TOPIC: _topic("topic", PUB, SUB, GET),  # asked of proxies
    Code.RECALL_MESSAGE: _topic("topic", PUB),
    Code.PULL_MESSAGE: _pulled,
    Code.LITE_PULL_MESSAGE: _pulled,
    Code.GET_PARENT_TOPIC_INFO: _topic("topic", GET),
    Code.GET_LITE_TOPIC_INFO: _topic("parentTopic", GET),
    Code.GET_LITE_CLIENT_INFO: _all_of(_topic("parentTopic", GET), _group("group", GET)),
    Code.GET_LITE_GROUP_INFO: _group("group", GET),
    Code.TRIGGER_LITE_DISPATCH: _group("group", UPDATE),
    Code.POLLING_INFO: _all_of(_topic("topic", GET), _group("consumerGroup", GET)),
    Code.QUERY_MESSAGE: _topic("topic", SUB, GET),
    Code.HEART_BEAT: _heartbeat,
    Code.UNREGISTER_CLIENT: _group("consumerGroup", SUB),
    Code.GET_CONSUMER_LIST_BY_GROUP: _group("consumerGroup", SUB, GET),
    Code.QUERY_CONSUMER_OFFSET: _all_of(
        _topic("topic", SUB, GET), _group("consumerGroup", SUB, GET)
    ),
    Code.UPDATE_CONSUMER_OFFSET: _all_of(
        _topic("topic", SUB, UPDATE), _group("consumerGroup", SUB, UPDATE)
    ),
    Code.LOCK_BATCH_MQ: _locks,
    Code.UNLOCK_BATCH_MQ: _locks,
    Code.QUERY_ASSIGNMENT: _assignment,
    Code.SET_MESSAGE_REQUEST_MODE: _mode,
    Code.CHECK_CLIENT_CONFIG: _nothing,
    Code.UPDATE_AND_CREATE_TOPIC: _topic("topic", CREATE),
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: _topic("topic", CREATE, UPDATE),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _topics_made,
    Code.DELETE_TOPIC_IN_BROKER: _topic("topic", DELETE),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _group_made,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _groups_made,
    Code.DELETE_SUBSCRIPTIONGROUP: _group("groupName", DELETE),
    **dict.fromkeys(
        (
            Code.SEARCH_OFFSET_BY_TIMESTAMP, Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET,
            Code.GET_EARLIEST_MSG_STORETIME, Code.GET_TOPIC_STATS_INFO,
            Code.QUERY_TOPIC_CONSUME_BY_WHO, Code.GET_TOPIC_CONFIG,
        ),
        _topic("topic", GET),
    ),
    Code.GET_CONSUMER_CONNECTION_LIST: _group("consumerGroup", GET),
    Code.QUERY_TOPICS_BY_CONSUMER: _group("group", GET),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _group("group", GET),
    Code.GET_CONSUMER_RUNNING_INFO: _group("consumerGroup", GET),
    **dict.fromkeys(
        (
            Code.QUERY_SUBSCRIPTION_BY_CONSUMER, Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            Code.QUERY_CONSUME_TIME_SPAN,
        ),
        _all_of(_topic("topic", GET), _group("group", GET)),
    ),
    Code.QUERY_CONSUME_QUEUE: _all_of(_topic("topic", GET), _group("consumerGroup", GET)),
    Code.QUERY_CORRECTION_OFFSET: _all_of(_topic("topic", GET), _group("compareGroup", GET)),
    Code.GET_CONSUME_STATS: _all_of(
        _group("consumerGroup", GET), _topic("topic", GET), _topics_of_stats
    ),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _all_of(_group("group", UPDATE), _topic("topic", UPDATE)),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _all_of(_group("group", UPDATE), _topic("topic", UPDATE)),
    Code.CLONE_GROUP_OFFSET: _all_of(
        _group("srcGroup", GET), _group("destGroup", UPDATE), _topic("topic", UPDATE)
    ),
}  # fmt: skip
#: Requests that name a record, where there are none to look at.
_PLACELESS: dict[int, Rule] = {
    Code.CONSUME_MESSAGE_DIRECTLY: _DIRECTLY,
    Code.CONSUMER_SEND_MSG_BACK: _group("group", SUB),
    Code.END_TRANSACTION: _topic("topic", PUB),
    Code.RESUME_CHECK_HALF_MESSAGE: _topic("topic", UPDATE),
    Code.VIEW_MESSAGE_BY_ID: _topic("topic", GET),
}
#: Which look at or change the broker as a whole.
_CLUSTER: Mapping[AccessAction, tuple[int, ...]] = {
    GET: (
        Code.GET_BROKER_CONFIG, Code.GET_BROKER_RUNTIME_INFO, Code.GET_ALL_TOPIC_CONFIG,
        Code.GET_ALL_CONSUMER_OFFSET, Code.GET_ALL_DELAY_OFFSET,
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Code.GET_PRODUCER_CONNECTION_LIST,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Code.VIEW_BROKER_STATS_DATA,
        Code.GET_BROKER_CONSUME_STATS, Code.GET_ALL_PRODUCER_INFO,
        Code.GET_ALL_MESSAGE_REQUEST_MODE, Code.GET_BROKER_HA_STATUS, Code.GET_BROKER_EPOCH_CACHE,
        Code.AUTH_GET_USER, Code.AUTH_LIST_USERS, Code.AUTH_GET_ACL, Code.AUTH_LIST_ACL,
        Code.GET_BROKER_LITE_INFO,
    ),
    UPDATE: (
        Code.UPDATE_BROKER_CONFIG, Code.TRIGGER_DELETE_FILES, Code.DELETE_EXPIRED_COMMITLOG,
        Code.CLEAN_EXPIRED_CONSUMEQUEUE, Code.CLEAN_UNUSED_TOPIC,
        Code.AUTH_CREATE_USER, Code.AUTH_UPDATE_USER, Code.AUTH_DELETE_USER,
        Code.AUTH_CREATE_ACL, Code.AUTH_UPDATE_ACL, Code.AUTH_DELETE_ACL,
        Code.UPDATE_ACL_CONFIG, Code.DELETE_ACL_CONFIG, Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        Code.GET_ACL_CONFIG, Code.GET_BROKER_CLUSTER_ACL_INFO,
        Code.GET_TIMER_CHECK_POINT, Code.GET_TIMER_METRICS, Code.POP_ROLLBACK,
        Code.NOTIFY_MIN_BROKER_ID_CHANGE, Code.EXCHANGE_BROKER_HA_INFO,
        Code.NOTIFY_BROKER_ROLE_CHANGED,
    ),
}  # fmt: skip


class NeedsOfPolicies:
    """What requests need by users and policies. A code that stands in no table needs the right to
    change the cluster: what nobody thought of is for administrators."""

    def __init__(self, cluster: str, topic_at: TopicAt | None) -> None:
        """Makes the table. topic_at: None at a proxy, which looks at brokers' records."""
        self._rules: dict[int, Rule] = {
            **_POLICY,
            **_replies(cluster),
            **(_by_place(topic_at, GET) if topic_at is not None else _PLACELESS),
        }
        for action, codes in _CLUSTER.items():
            self._rules.update(dict.fromkeys(codes, _cluster(cluster, action)))
        self._unknown = _cluster(cluster, UPDATE)

    def __contains__(self, code: int) -> bool:
        return code in self._rules

    def __call__(self, command: Command) -> AccessRequest:
        """Says what a request needs. Raises: Refused for a body that cannot be read."""
        code = command.code
        return AccessRequest(code, tuple(self._rules.get(code, self._unknown)(command)))

    def looking(self, topic_at: TopicAt) -> NeedsOfPolicies:
        """Returns these needs, and those of the record that a request names."""
        made = copy(self)
        made._rules = self._rules | _by_place(topic_at, GET)
        return made
