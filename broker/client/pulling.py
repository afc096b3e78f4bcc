"""Pulls one queue for as long as it is ours (docs/internals/wire.md#pull)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import TYPE_CHECKING

from broker.client.errors import BrokerRefused, ClientError
from broker.client.message import ReceivedMessage
from broker.client.network import request_of
from broker.client.progress import QueueProgress
from broker.client.records import BadRecord, received
from broker.client.subscription import Subscription
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import Command

if TYPE_CHECKING:
    from broker.client.consumer import AsyncConsumer

__all__ = ["pull_forever"]

log = logging.getLogger("broker.client")

#: Bits of a pull's sysFlag.
SUSPEND, SUBSCRIPTION = 2, 4
#: How much longer than the broker holds a pull its answer may take.
GRACE_S = 15.0
FLOW_CONTROL_S = 0.02
BACKOFF_S = (0.2, 3.0)


async def pull_forever(consumer: AsyncConsumer, progress: QueueProgress) -> None:
    """Until it is cancelled. Failures are logged, and tried again slower and slower."""
    pause = BACKOFF_S[0]
    subscription = consumer.subscriptions.get(progress.queue.topic)
    if subscription is None:
        subscription = Subscription(progress.queue.topic)
    while True:
        await _room(consumer, progress)
        try:
            await _pull_once(consumer, progress, subscription)
            pause = BACKOFF_S[0]
        except (ClientError, BadRecord) as failed:
            log.info("Cannot pull from %s; will retry: %s", progress.queue, failed)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, BACKOFF_S[1])
            await _refresh(consumer, progress)


async def _refresh(consumer: AsyncConsumer, progress: QueueProgress) -> None:
    with contextlib.suppress(ClientError):
        await consumer.network.route(progress.queue.topic, fresh=True)


async def _room(consumer: AsyncConsumer, progress: QueueProgress) -> None:
    """Until there is room for what the next pull may bring, and no pause."""
    most = consumer.settings.buffer_messages
    while progress.paused or progress.pending >= most:
        await _woken(progress)


async def _woken(progress: QueueProgress) -> None:
    """Until something about the queue has changed."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    progress.wake = lambda: None if future.done() else future.set_result(None)
    try:
        await future
    finally:
        progress.wake = None


async def _pull_once(
    consumer: AsyncConsumer, progress: QueueProgress, subscription: Subscription
) -> None:
    queue, settings, epoch = progress.queue, consumer.settings, progress.epoch
    fields = {
        "consumerGroup": consumer.group, "topic": queue.topic, "queueId": queue.queue,
        "queueOffset": progress.next_offset, "maxMsgNums": settings.pull_batch,
        "sysFlag": SUSPEND | SUBSCRIPTION, "commitOffset": 0,
        "suspendTimeoutMillis": int(settings.poll_wait_s * 1000),
        "subscription": subscription.expression, "subVersion": subscription.version,
        "expressionType": subscription.kind, "bname": queue.broker,
    }  # fmt: skip
    address = consumer.broker_of(queue)
    answer = await consumer.network.exchange(
        address, request_of(RequestCode.PULL_MESSAGE, fields), settings.poll_wait_s + GRACE_S
    )
    while progress.paused:  # it began while the pull was held
        await _woken(progress)
    if progress.dropped or progress.epoch != epoch:
        return
    if answer.code == ResponseCode.SUCCESS:
        _found(consumer, progress, subscription, answer)
    elif answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
        progress.pulled((), int(answer.ext["nextBeginOffset"]))
    elif answer.code == ResponseCode.PULL_OFFSET_MOVED:
        offset = int(answer.ext["nextBeginOffset"])
        log.warning(
            "%s: offset %d no longer exists; continuing at %d", queue,
            progress.next_offset, offset,
        )  # fmt: skip
        progress.reset(offset)
    elif answer.code == ResponseCode.FLOW_CONTROL:
        await asyncio.sleep(FLOW_CONTROL_S)
    else:
        raise BrokerRefused(f"pulling {queue}", answer.code, answer.remark, address)


def _found(
    consumer: AsyncConsumer, progress: QueueProgress, subscription: Subscription, answer: Command
) -> None:
    messages = received(memoryview(answer.body).toreadonly(), progress)
    after = int(answer.ext["nextBeginOffset"])
    if subscription.tags is not None:  # brokers compare hashes, which may collide
        messages = [m for m in messages if m.tags in subscription.tags]
    first = progress.next_offset
    messages = _unseen(messages, first)
    progress.pulled([m.queue_offset for m in messages], after)
    if messages:
        consumer.arrived(messages)


def _unseen(messages: list[ReceivedMessage], first: int) -> list[ReceivedMessage]:
    if messages and messages[0].queue_offset < first:
        return [m for m in messages if m.queue_offset >= first]
    return messages
