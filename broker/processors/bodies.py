"""Bodies of requests: their shapes, and how a processor reads one."""

from __future__ import annotations

from typing import Any

from broker.remoting.codes import ResponseCode
from broker.remoting.command import Command, Refused
from broker.remoting.jsonbody import (
    BOOLEAN,
    INT,
    LONG,
    MESSAGE_QUEUE,
    OBJECT,
    TEXT,
    Member,
    Shape,
    enum,
    listed,
    mapping,
    required,
)

__all__ = [
    "BATCH_ACK",
    "CLIENT_CONFIG",
    "CONSUMER_STATUS",
    "GROUP",
    "GROUPS",
    "HEARTBEAT",
    "QUERY_ASSIGNMENT",
    "QUEUES_OF_CLIENT",
    "SET_MODE",
    "TOPIC",
    "TOPICS",
    "read",
]

#: Of one heartbeat: groups of a client, and topics of a group. Clients have a handful of each.
GROUPS_MAX, SUBSCRIPTIONS_MAX = 1024, 1024

_MODEL = enum("BROADCASTING", "CLUSTERING")

_SUBSCRIPTION = Shape(
    topic=required(TEXT),
    subString=Member(TEXT, "*"),
    tagsSet=listed(TEXT),
    codeSet=listed(INT),
    subVersion=Member(LONG, 0),
    expressionType=Member(TEXT, "TAG"),
    classFilterMode=Member(BOOLEAN, False),
)
_CONSUMER = Shape(
    groupName=required(TEXT),
    consumeType=Member(
        enum("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP"), "CONSUME_PASSIVELY"
    ),
    messageModel=Member(_MODEL, "CLUSTERING"),
    consumeFromWhere=Member(
        enum(
            "CONSUME_FROM_LAST_OFFSET",
            "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
            "CONSUME_FROM_MIN_OFFSET",
            "CONSUME_FROM_MAX_OFFSET",
            "CONSUME_FROM_FIRST_OFFSET",
            "CONSUME_FROM_TIMESTAMP",
        ),
        "CONSUME_FROM_LAST_OFFSET",
    ),
    subscriptionDataSet=listed(_SUBSCRIPTION, SUBSCRIPTIONS_MAX),
    unitMode=Member(BOOLEAN, False),
)
#: HeartbeatData (34).
HEARTBEAT = Shape(
    clientID=required(TEXT),
    heartbeatFingerprint=Member(INT, 0),
    withoutSub=Member(BOOLEAN, False),
    consumerDataSet=listed(_CONSUMER, GROUPS_MAX),
    producerDataSet=listed(Shape(groupName=required(TEXT)), GROUPS_MAX),
)
#: CheckClientRequestBody (46).
CLIENT_CONFIG = Shape(
    subscriptionData=Shape(expressionType=Member(TEXT, "TAG"), subString=Member(TEXT, ""))
)
#: LockBatchRequestBody (41), UnlockBatchRequestBody (42).
QUEUES_OF_CLIENT = Shape(
    consumerGroup=required(TEXT), clientId=required(TEXT), mqSet=listed(MESSAGE_QUEUE)
)
#: QueryAssignmentRequestBody (400).
QUERY_ASSIGNMENT = Shape(
    topic=required(TEXT),
    consumerGroup=required(TEXT),
    clientId=required(TEXT),
    strategyName=Member(TEXT, "AVG"),
    messageModel=Member(_MODEL, "CLUSTERING"),
)
#: SetMessageRequestModeRequestBody (401).
SET_MODE = Shape(
    topic=required(TEXT),
    consumerGroup=required(TEXT),
    mode=Member(enum("PULL", "POP"), "PULL"),
    popShareQueueNum=Member(INT, 0),
)
_ACKS_MAX = 4096
#: BatchAckMessageRequestBody (200151). b: Base64 of a bit for each offset from so on.
BATCH_ACK = Shape(
    brokerName=TEXT,
    acks=listed(
        Shape(
            c=required(TEXT),
            t=required(TEXT),
            r=Member(TEXT, "0"),
            so=Member(LONG, -1),
            q=Member(INT, -1),
            rq=Member(INT, -1),
            pt=Member(LONG, -1),
            it=Member(LONG, 0),
            b=Member(TEXT, ""),
        ),
        _ACKS_MAX,
    ),
)
#: TopicConfig.
TOPIC = Shape(
    topicName=required(TEXT),
    readQueueNums=INT,
    writeQueueNums=INT,
    perm=INT,
    topicFilterType=enum("SINGLE_TAG", "MULTI_TAG"),
    topicSysFlag=INT,
    order=BOOLEAN,
    attributes=mapping(TEXT),
)
#: CreateTopicListRequestBody (18).
TOPICS = Shape(topicConfigList=listed(TOPIC))
#: SubscriptionGroupConfig (200).
GROUP = Shape(
    groupName=required(TEXT),
    consumeEnable=BOOLEAN,
    consumeFromMinEnable=BOOLEAN,
    consumeBroadcastEnable=BOOLEAN,
    consumeMessageOrderly=BOOLEAN,
    retryQueueNums=INT,
    retryMaxTimes=INT,
    groupRetryPolicy=OBJECT,
    brokerId=LONG,
    whichBrokerWhenConsumeSlowly=LONG,
    notifyConsumerIdsChangedEnable=BOOLEAN,
    groupSysFlag=INT,
    consumeTimeoutMinute=INT,
    subscriptionDataSet=Member(lambda value: value if isinstance(value, list) else None),
    attributes=mapping(TEXT),
)
#: SubscriptionGroupList (225).
GROUPS = Shape(groupConfigList=listed(GROUP))
#: GetConsumerStatusBody, which a client answers (221).
CONSUMER_STATUS = Shape(messageQueueTable=Member(mapping(LONG), {}))


def read(command: Command, shape: Shape) -> dict[str, Any]:
    """The body, every member of the shape in it. Raises: Refused that names what is wrong."""
    try:
        return shape.loads(command.body)
    except ValueError as problem:
        raise Refused(
            ResponseCode.SYSTEM_ERROR, f"the body of request {command.code}: {problem}"
        ) from None
