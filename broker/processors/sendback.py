"""CONSUMER_SEND_MSG_BACK (36): a message that a consumer could not work with comes again later, or
goes to the dead letters (spec remoting.md 6.4, services.md d.1)."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from typing import Any

from broker.processors.send import V3_4_9
from broker.processors.sending import Sender, SendRequest, host_text, refused_put
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import Command, Refused
from broker.remoting.handlers import Handler, Peer
from broker.services.context import Services
from broker.services.hooks import ConsumeContext
from broker.services.topics import WRITE
from pystore import Message, PutStatus
from pystore.configfiles import SubscriptionGroup, TopicConfig
from pystore.errors import StoreError

__all__ = ["SendBackProcessor"]

#: The level of the first retry is this plus the number of tries so far: 10 s, 30 s, 1 m and on.
_FIRST_LEVEL = 3


class SendBackProcessor:
    def __init__(self, s: Services, sender: Sender) -> None:
        self.s = s
        self.sender = sender

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(
        self, peer: Peer, command: Command
    ) -> Command | Coroutine[Any, Any, Command | None]:
        name = command.text("group")
        group = self.s.groups.get(name)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}"
            )
        if not self.s.settings["brokerPermission"] & WRITE:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self.s.host}] sending message is forbidden",
            )
        if group.retry_queue_nums <= 0:
            return command.reply()
        retry = self.s.topics.retry_topic(
            name, group.retry_queue_nums, unit=command.flag_of("unitMode")
        )
        if not retry.perm & WRITE:
            raise Refused(
                ResponseCode.NO_PERMISSION, f"the topic[{retry.name}] sending message is forbidden"
            )
        offset = command.number("offset")
        try:
            message = self.s.store.message(offset)
        except StoreError as failed:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}: {failed.text}"
            ) from failed
        return self._again(peer, command, group, retry, message)

    def _limit(self, command: Command, group: SubscriptionGroup) -> int:
        if command.version >= V3_4_9 and command.ext.get("maxReconsumeTimes"):
            return command.number("maxReconsumeTimes")
        return group.retry_max_times

    async def _again(
        self,
        peer: Peer,
        command: Command,
        group: SubscriptionGroup,
        retry: TopicConfig,
        message: Message,
    ) -> Command:
        context = None
        if self.s.consume_hooks:
            context = ConsumeContext(
                group.name, message.topic, message.queue, host_text(peer), size=message.size
            )
            self.s.consume_hooks.before(context)
        level = command.number("delayLevel", 0)
        dead = level < 0 or message.reconsume_times >= self._limit(command, group)
        properties = message.properties
        properties.setdefault("RETRY_TOPIC", message.topic)
        properties.setdefault("ORIGIN_MESSAGE_ID", message.offset_message_id)
        properties["WAIT"] = "false"
        if dead:
            topic, queue = self.s.topics.dead_letter_topic(group.name).name, 0
            properties["DELAY"] = "0"
        else:
            topic, queue = retry.name, random.randrange(max(1, retry.write_queue_nums))
            properties["DELAY"] = str(level or _FIRST_LEVEL + message.reconsume_times)
        # Of an earlier delay or transaction; the delay that follows writes its own.
        for name in ("REAL_TOPIC", "REAL_QID", "POP_CK"):
            properties.pop(name, None)
        status = await self._put(group.name, topic, queue, properties, message)
        self._count(group.name, message.topic, dead)
        if context is not None:
            context.success = status is PutStatus.PUT_OK
            context.status = "SEND_BACK_TO_DLQ" if dead else "SEND_BACK"
            self.s.consume_hooks.after(context)
        if status is not PutStatus.PUT_OK:
            return command.reply(ResponseCode.SYSTEM_ERROR, status.value)
        return command.reply()

    async def _put(
        self, group: str, topic: str, queue: int, properties: dict[str, str], message: Message
    ) -> PutStatus:
        request = SendRequest(
            group=group, topic=topic, template="", template_queues=0, queue=queue,
            sys_flag=message.sys_flag & ~12, born_timestamp=message.born_timestamp,
            flag=message.flag, properties=properties,
            reconsume_times=message.reconsume_times + 1, unit=False, max_reconsume=-1,
            batch=False, body=bytes(message.raw_body),
        )  # fmt: skip
        try:
            result = await self.sender.put(request, topic, queue, properties, message.born_host)
        except StoreError as failed:
            raise refused_put(failed, self.s) from failed
        return result.status

    def _count(self, group: str, topic: str, dead: bool) -> None:
        self.s.statistics.add("SNDBCK_PUT_NUMS", f"{topic}@{group}")
        if dead:
            self.s.statistics.add("DLQ_PUT_NUMS", f"{topic}@{group}")
