"""Messages that a consumer could not work on: back to the broker, to come again or as dead letters.

docs/internals/wire.md#send-back. When the broker of the message does not take it back, it goes to
the group's retry topic as an ordinary message, as upstream's clients do it.
"""

from __future__ import annotations

import time

from broker.client.errors import BrokerRefused, ClientError, RequestTimeout, Unreachable
from broker.client.member import Worker
from broker.client.message import ReceivedMessage
from broker.client.network import request_of
from broker.client.options import INNER_PRODUCER
from broker.client.sending import STORED, encoded
from broker.wire.codes import RequestCode
from broker.wire.static_topics import is_logical
from pystore.format.names import RETRY_PREFIX, TEMPLATE_TOPIC
from pystore.format.properties import MULTI_DISPATCH, MULTI_OFFSET

__all__ = ["give_back", "republish", "send_back"]

#: The first retry takes level 3, the second level 4, and so on.
FIRST_LEVEL = 3


async def give_back(consumer: Worker, message: ReceivedMessage, delay_level: int) -> None:
    """Sends a message back to the broker that it came from. Raises: ClientError."""
    fields = {
        "offset": message.physical_offset, "group": consumer.group, "delayLevel": delay_level,
        "originMsgId": message.message_id, "originTopic": message.queue.topic, "unitMode": False,
        "maxReconsumeTimes": consumer.settings.retries, "bname": message.queue.broker,
    }  # fmt: skip
    await consumer.network.request(
        consumer.broker_of(message.queue), RequestCode.CONSUMER_SEND_MSG_BACK, fields
    )


async def send_back(consumer: Worker, message: ReceivedMessage, delay_level: int) -> None:
    """Sends a message back to its broker, else to the group's retry topic. Raises: ClientError when
    no broker takes it."""
    again = FIRST_LEVEL + message.head.reconsume_times
    if is_logical(message.queue.broker):  # the broker that leads it may not have the message
        await republish(consumer, message, delay_level or again)
        return
    try:
        await give_back(consumer, message, delay_level)
    except (BrokerRefused, Unreachable, RequestTimeout):
        await republish(consumer, message, again)


async def republish(
    consumer: Worker, message: ReceivedMessage, delay_level: int, *, dead: bool = False
) -> None:
    """Sends a message to the group's retry topic, whose broker makes it a dead letter when it came
    too often, or is `dead`. Raises: ClientError."""
    head, most = message.head, 0 if dead else consumer.settings.retries
    topic = RETRY_PREFIX + consumer.group
    properties = dict(message.properties)
    origin = properties.get("ORIGIN_MESSAGE_ID") or message.offset_message_id
    properties |= {
        "ORIGIN_MESSAGE_ID": origin,
        "RETRY_TOPIC": properties.get("RETRY_TOPIC") or message.queue.topic,
        "RECONSUME_TIME": str(head.reconsume_times + 1),
        "MAX_RECONSUME_TIMES": str(most),
        "DELAY": str(delay_level),
    }
    for name in ("TRAN_MSG", "REAL_TOPIC", "REAL_QID", MULTI_DISPATCH, MULTI_OFFSET):
        properties.pop(name, None)
    fields = {
        "a": INNER_PRODUCER, "b": topic, "c": TEMPLATE_TOPIC, "d": 1, "e": 0,
        "f": head.sys_flag & 0x701,
        "g": time.time_ns() // 1_000_000, "h": head.flag, "i": encoded(properties),
        "j": head.reconsume_times + 1, "k": False, "l": most, "m": False,
    }  # fmt: skip
    body = bytes(message.body_view)
    failure: ClientError = Unreachable(f"no broker of {topic} is known")
    route = await consumer.network.route(topic)
    for queue in route.publish:
        fields["e"] = queue.queue
        address = route.address(route.broker(queue)) or ""
        try:
            answer = await consumer.network.exchange(
                address, request_of(RequestCode.SEND_MESSAGE_V2, fields, body), 5.0
            )
        except (Unreachable, RequestTimeout) as lost:
            failure = lost
            continue
        if answer.code in STORED:
            return
        failure = BrokerRefused(f"the retry of {message}", answer.code, answer.remark, address)
    raise failure
