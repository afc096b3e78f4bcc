"""What brokers and tools ask a consumer (docs/internals/wire.md#server-to-client)."""

from __future__ import annotations

import time

from broker.client.member import Member
from broker.client.queries import placed
from broker.wire import mqjson
from broker.wire.codes import RequestCode
from broker.wire.command import Command
from broker.wire.handlers import Handler, Peer
from broker.wire.mqjson import MessageQueue

__all__ = ["consumer_handlers"]


def consumer_handlers(consumer: Member) -> dict[int, Handler]:
    """Returns handlers of the requests that brokers send to consumers."""

    def reset(peer: Peer, command: Command) -> None:
        table = mqjson.loads(command.body).get("offsetTable") or {}
        wanted = {q: int(offset) for q, offset in table.items() if isinstance(q, MessageQueue)}
        consumer.network.spawn(_reset(consumer, wanted))

    def status(peer: Peer, command: Command) -> Command:
        topic = command.ext.get("topic")
        table = {
            queue: progress.commit_offset
            for queue, progress in consumer.progress.items()
            if queue.topic == topic
        }
        return command.reply(body=mqjson.dumps({"messageQueueTable": table}))

    def running_info(peer: Peer, command: Command) -> Command:
        return command.reply(body=mqjson.dumps(_running_info(consumer)))

    return {
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET: reset,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: status,
        RequestCode.GET_CONSUMER_RUNNING_INFO: running_info,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: lambda peer, command: _directly(consumer, command),
    }


async def _reset(consumer: Member, offsets: dict[MessageQueue, int]) -> None:
    """Continues our queues where a tool has moved the group."""
    for queue, offset in offsets.items():
        if queue in consumer.progress:
            await consumer.seek(queue, offset)
    await consumer.commit()


def _running_info(consumer: Member) -> dict[str, object]:
    """Returns ConsumerRunningInfo, as consumerStatus of the admin tool reads it."""
    settings = consumer.settings
    queues = {
        queue: {
            "cachedMsgCount": progress.pending,
            "cachedMsgMaxOffset": progress.next_offset,
            "cachedMsgMinOffset": progress.commit_offset,
            "cachedMsgSizeInMiB": 0,
            "commitOffset": progress.commit_offset,
            "droped": progress.dropped,
            "lastConsumeTimestamp": 0,
            "lastLockTimestamp": 0,
            "lastPullTimestamp": 0,
            "locked": progress.locked_until > 0,
            "transactionMsgCnt": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }
        for queue, progress in consumer.progress.items()
    }
    return {
        "mqTable": queues,
        "mqPopTable": {},
        "properties": {
            "PROP_CLIENT_VERSION": "V5_3_3",
            "PROP_CONSUME_ORDERLY": str(settings.orderly).lower(),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_NAMESERVER_ADDR": "",
            "PROP_THREADPOOL_CORE_SIZE": str(settings.concurrency),
            "PROP_CONSUMER_START_TIMESTAMP": str(time.time_ns() // 1_000_000),
        },
        "statusTable": {},
        "subscriptionSet": [s.as_json() for s in consumer.subscriptions.values()],
        "userConsumerInfo": {},
    }


async def _directly(consumer: Member, command: Command) -> Command:
    """Has one message consumed here and now, for a tool. Its offset does not count."""
    began = time.monotonic()
    messages = placed(bytes(command.body), command.ext.get("brokerName", ""), consumer.shown)
    result, remark = await consumer.consume_directly(messages[0])
    spent_ms = int((time.monotonic() - began) * 1000)
    body = {
        "order": consumer.settings.orderly,
        "autoCommit": True,
        "consumeResult": result,
        "remark": remark,
        "spentTimeMills": spent_ms,
    }
    return command.reply(body=mqjson.dumps(body))
