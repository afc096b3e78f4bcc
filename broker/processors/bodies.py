"""Bodies of requests: their shapes, and how a processor reads one."""

from __future__ import annotations

import asyncio
from typing import Any

from broker.loop.turns import alone
from broker.wire.codes import ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Handlers, Peer, Result
from broker.wire.jsonbody import (
    BOOLEAN,
    INT,
    LONG,
    MESSAGE_QUEUE,
    OBJECT,
    TEXT,
    JsonMember,
    Shape,
    enum,
    listed,
    mapping,
    required,
)

__all__ = [
    "ANY",
    "BATCH_ACK",
    "CLIENT_CONFIG",
    "CONSUMER_STATUS",
    "GROUP",
    "GROUPS",
    "HEARTBEAT",
    "LITE_SUBSCRIPTIONS",
    "QUERY_ASSIGNMENT",
    "QUEUES_OF_CLIENT",
    "SET_MODE",
    "TOPIC",
    "TOPICS",
    "LongBody",
    "beside",
    "check_size",
    "heartbeat",
    "read",
]

#: Bytes of a body of JSON: of any; of one that is not strict, which takes longer; of one that is
#: read within a turn of the event loop.
BODY_MAX, LAX_MAX, AT_ONCE = 512 << 10, 64 << 10, 8 << 10
#: Of one heartbeat: groups of a client, and topics of a group. Clients have a handful of each.
GROUPS_MAX, SUBSCRIPTIONS_MAX = 1024, 1024
#: Of one heartbeat in all.
SUBSCRIPTIONS_OF_CLIENT = 4096
#: Lite topics of one client in one request.
LITE_TOPICS_MAX = 16_384
#: Of one request: queues that a client locks, and topics or groups that a tool makes.
LOCKS_MAX, MADE_MAX = 8192, 4096

_MODEL = enum("BROADCASTING", "CLUSTERING")

_SUBSCRIPTION = Shape(
    topic=required(TEXT),
    subString=JsonMember(TEXT, "*"),
    tagsSet=listed(TEXT, nulls=True),
    codeSet=listed(INT, nulls=True),
    subVersion=JsonMember(LONG, 0),
    expressionType=JsonMember(TEXT, "TAG"),
    classFilterMode=JsonMember(BOOLEAN, False),
)
_CONSUMER = Shape(
    groupName=required(TEXT),
    consumeType=JsonMember(
        enum("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP"), "CONSUME_PASSIVELY"
    ),
    messageModel=JsonMember(_MODEL, "CLUSTERING"),
    consumeFromWhere=JsonMember(
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
    unitMode=JsonMember(BOOLEAN, False),
)
#: HeartbeatData (34).
HEARTBEAT = Shape(
    clientID=required(TEXT),
    heartbeatFingerprint=JsonMember(INT, 0),
    withoutSub=JsonMember(BOOLEAN, False),
    consumerDataSet=listed(_CONSUMER, GROUPS_MAX),
    producerDataSet=listed(Shape(groupName=required(TEXT)), GROUPS_MAX),
)
#: CheckClientRequestBody (46).
CLIENT_CONFIG = Shape(
    subscriptionData=Shape(
        topic=JsonMember(TEXT, ""),
        expressionType=JsonMember(TEXT, "TAG"),
        subString=JsonMember(TEXT, ""),
    )
)
#: LockBatchRequestBody (41), UnlockBatchRequestBody (42).
QUEUES_OF_CLIENT = Shape(
    consumerGroup=required(TEXT),
    clientId=required(TEXT),
    mqSet=listed(MESSAGE_QUEUE, LOCKS_MAX),
)
#: QueryAssignmentRequestBody (400).
QUERY_ASSIGNMENT = Shape(
    topic=required(TEXT),
    consumerGroup=required(TEXT),
    clientId=required(TEXT),
    strategyName=JsonMember(TEXT, "AVG"),
    messageModel=JsonMember(_MODEL, "CLUSTERING"),
)
#: SetMessageRequestModeRequestBody (401).
SET_MODE = Shape(
    topic=required(TEXT),
    consumerGroup=required(TEXT),
    mode=JsonMember(enum("PULL", "POP"), "PULL"),
    popShareQueueNum=JsonMember(INT, 0),
)
_ACKS_MAX = 1024
#: BatchAckMessageRequestBody (200151). b: Base64 of a bit for each offset from so on.
BATCH_ACK = Shape(
    brokerName=TEXT,
    acks=listed(
        Shape(
            c=required(TEXT),
            t=required(TEXT),
            r=JsonMember(TEXT, "0"),
            so=JsonMember(LONG, -1),
            q=JsonMember(INT, -1),
            rq=JsonMember(INT, -1),
            pt=JsonMember(LONG, -1),
            it=JsonMember(LONG, 0),
            b=JsonMember(TEXT, ""),
        ),
        _ACKS_MAX,
    ),
)
#: LiteSubscriptionCtlRequestBody (200071).
LITE_SUBSCRIPTIONS = Shape(
    subscriptionSet=listed(
        Shape(
            action=TEXT,
            clientId=JsonMember(TEXT, ""),
            group=JsonMember(TEXT, ""),
            topic=JsonMember(TEXT, ""),
            liteTopicSet=listed(TEXT, LITE_TOPICS_MAX),
            offsetOption=OBJECT,
            version=JsonMember(LONG, 0),
        ),
        SUBSCRIPTIONS_MAX,
    )
)
#: Whatever it says.
ANY = Shape.of_any()
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
TOPICS = Shape(topicConfigList=listed(TOPIC, MADE_MAX))
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
    subscriptionDataSet=JsonMember(lambda value: value if isinstance(value, list) else None),
    attributes=mapping(TEXT),
)
#: SubscriptionGroupList (225).
GROUPS = Shape(groupConfigList=listed(GROUP, MADE_MAX))
#: GetConsumerStatusBody, which a client answers (221).
CONSUMER_STATUS = Shape(messageQueueTable=JsonMember(mapping(LONG), {}))


class LongBody(Exception):
    """Raised for a body that takes too long to be read within a turn of the event loop."""

    def __init__(self, command: Command, shape: Shape) -> None:
        super().__init__(f"the body of request {command.code} is to be read beside the loop")
        self._command, self._shape = command, shape

    def read(self) -> None:
        """Reads the body, so that read() has it from now on. Raises: Refused."""
        self._command.value = _parsed(self._command, self._shape)


def read(command: Command, shape: Shape) -> dict[str, Any]:
    """Returns the body with every member of the shape. Raises: Refused, which names what is wrong;
    LongBody for beside() to catch."""
    if command.value is None:
        if len(command.body) > AT_ONCE:
            raise LongBody(command, shape)
        command.value = _parsed(command, shape)
    value: dict[str, Any] = command.value
    return value


def _parsed(command: Command, shape: Shape) -> dict[str, Any]:
    check_size(command, BODY_MAX)
    try:
        return shape.loads(command.body, LAX_MAX)
    except ValueError as problem:
        raise Refused(
            ResponseCode.SYSTEM_ERROR, f"the body of request {command.code}: {problem}"
        ) from None


def check_size(command: Command, most: int) -> None:
    """Checks that a body has at most `most` bytes. Raises: Refused."""
    if len(command.body) > most:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"the body of request {command.code} has {len(command.body)} bytes, {most} are allowed",
        )


def heartbeat(command: Command) -> dict[str, Any]:
    """Reads the body of HEARTBEAT. Raises: Refused, LongBody."""
    body = read(command, HEARTBEAT)
    count = sum(len(item["subscriptionDataSet"]) for item in body["consumerDataSet"])
    if count > SUBSCRIPTIONS_OF_CLIENT:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"a heartbeat has {count} subscriptions, {SUBSCRIPTIONS_OF_CLIENT} are allowed",
        )
    return body


def beside(handlers: Handlers) -> dict[int, Handler]:
    """Returns the same handlers; when a body is long, it is read in a thread, and the handler is
    called once more after that."""
    return {code: _beside(handler) for code, handler in handlers.items()}


def _beside(handler: Handler) -> Handler:
    def call(peer: Peer, command: Command) -> Result:
        try:
            return handler(peer, command)
        except LongBody as long:
            return _later(handler, peer, command, long)

    return call


@alone
async def _later(handler: Handler, peer: Peer, command: Command, long: LongBody) -> Command | None:
    await asyncio.to_thread(long.read)
    answer = handler(peer, command)
    return answer if answer is None or isinstance(answer, Command) else await answer
