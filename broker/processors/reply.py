"""SEND_REPLY_MESSAGE (324, 325): a consumer's reply is pushed to the producer that asked.

Spec remoting.md 2.2. It is stored as well, unless storeReplyMessageEnable is off.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import Any

from broker.processors.sending import Sender, SendRequest, host_text, put_code
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import Command, Refused, texts
from broker.remoting.handlers import Handler, Peer
from broker.services.context import Services
from pystore.properties import encode_properties

__all__ = ["ReplyProcessor"]

_PUSH_S = 10.0


class ReplyProcessor:
    def __init__(self, s: Services, sender: Sender) -> None:
        self.s = s
        self.sender = sender

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.reply,
        }

    def reply(self, peer: Peer, command: Command) -> Command | Coroutine[Any, Any, Command]:
        try:
            request = SendRequest.of(command)
            config, _ = self.sender.check(request)
        except Refused as refused:
            return command.reply(refused.code, refused.remark, self.sender.answer_fields())
        return self._reply(peer, command, request, self.sender.choose_queue(request, config))

    async def _reply(
        self, peer: Peer, command: Command, request: SendRequest, queue: int
    ) -> Command:
        self.sender.stamp(request.properties)
        code, remark = await self._push(peer, request)
        ext = self.sender.answer_fields()
        if not self.s.settings["storeReplyMessageEnable"]:
            ext |= {"msgId": "0", "queueId": 0, "queueOffset": 0}
            return command.reply(code, remark, ext)
        try:
            result = await self.sender.put(
                request, request.topic, queue, request.properties, host_text(peer)
            )
        except Refused as refused:
            # The requester has its answer, or not: that is what counts here.
            ext |= {"msgId": "0", "queueId": 0, "queueOffset": 0}
            return command.reply(code, remark or refused.remark, ext)
        self.s.statistics.put(request.topic, 1, result.size)
        ext |= {
            "msgId": result.message_id,
            "queueId": queue,
            "queueOffset": result.queue_offset,
            "transactionId": request.properties.get("UNIQ_KEY"),
        }
        return command.reply(code or put_code(result.status), remark, ext)

    async def _push(self, peer: Peer, request: SendRequest) -> tuple[int, str | None]:
        """Sends it on; the code and remark for the replier."""
        client = request.properties.get("REPLY_TO_CLIENT")
        if not client:
            return (
                ResponseCode.SYSTEM_ERROR,
                "reply message properties[REPLY_TO_CLIENT] is null",
            )
        channel = self.s.clients.producer_channel(client)
        if channel is None:
            return (
                ResponseCode.SYSTEM_ERROR,
                f"push reply message fail, channel of <{client:.200}> not found.",
            )
        now = time.time_ns() // 1_000_000
        properties = request.properties | {"PUSH_REPLY_TIME": str(now)}
        ext = {
            "producerGroup": request.group,
            "topic": request.topic,
            "defaultTopic": request.template,
            "defaultTopicQueueNums": request.template_queues,
            "queueId": request.queue,
            "sysFlag": request.sys_flag,
            "bornTimestamp": request.born_timestamp,
            "flag": request.flag,
            "properties": encode_properties(properties).decode(),
            "reconsumeTimes": request.reconsume_times,
            "unitMode": request.unit,
            "bornHost": host_text(peer),
            "storeHost": self.s.address,
            "storeTimestamp": now,
        }
        push = Command(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, texts(ext), body=bytes(request.body)
        )
        try:
            answer = await channel.peer.request(push, _PUSH_S)
        except (OSError, TimeoutError) as failed:
            problem = f"push reply message to {client:.200} fail: {failed}"
            return ResponseCode.SYSTEM_ERROR, problem
        if answer.code != ResponseCode.SUCCESS:
            return ResponseCode.SYSTEM_ERROR, f"push reply message to {client:.200} fail."
        return ResponseCode.SUCCESS, None
