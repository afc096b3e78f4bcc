"""SEND_REPLY_MESSAGE (324, 325): a consumer's reply is pushed to the producer that asked.

docs/internals/wire.md#request-and-reply. It is stored as well, unless storeReplyMessageEnable is
off.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import Any

from broker.processors.admission import Admission, SendRequest
from broker.processors.refusals import put_refusal
from broker.services.context import Services
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused, texts
from broker.wire.decision import PutDecision, Role
from broker.wire.handlers import Handler, Peer, host_text
from pystore.errors import StoreError
from pystore.format.properties import encode_properties

__all__ = ["ReplyProcessor"]

_PUSH_S = 10.0


class ReplyProcessor:
    def __init__(self, s: Services, admission: Admission) -> None:
        self.s = s
        self._admission = admission

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.reply,
        }

    def reply(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command | None] | None:
        try:
            request = SendRequest(command, peer.read_send(command))
            self._admission.check(request)
        except Refused as refused:
            peer.decide(command, PutDecision.refusal(refused.code, refused.remark))
            return None
        return self._reply(peer, command, request)

    async def _reply(self, peer: Peer, command: Command, request: SendRequest) -> Command | None:
        code, remark = await self._push(peer, request)
        if self.s.settings["storeReplyMessageEnable"]:
            decision = PutDecision(code=code, remark=remark, role=Role.PLAIN)
            self._admission.identify(request.asked, decision)
            try:
                peer.decide(command, decision)
            except StoreError as failed:
                # The requester has its answer, or not: that is what counts here.
                remark = remark or put_refusal(failed, self.s).remark
            else:
                return None
        settings = self.s.settings
        ext = {"MSG_REGION": settings["regionId"], "TRACE_ON": settings["traceOn"]}
        return command.reply(code, remark, ext | {"msgId": "0", "queueId": 0, "queueOffset": 0})

    async def _push(self, peer: Peer, request: SendRequest) -> tuple[int, str | None]:
        """Sends a reply on, and returns code and remark for the replier."""
        properties, asked = request.properties(), request.asked
        client = properties.get("REPLY_TO_CLIENT")
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
        properties["PUSH_REPLY_TIME"] = str(now)
        ext = {
            "producerGroup": request.group,
            "topic": request.topic,
            "defaultTopic": request.template,
            "defaultTopicQueueNums": asked.template_queues,
            "queueId": asked.queue,
            "sysFlag": asked.sys_flag,
            "bornTimestamp": asked.born_timestamp,
            "flag": asked.flag,
            "properties": encode_properties(properties).decode(),
            "reconsumeTimes": asked.reconsume_times,
            "unitMode": asked.unit,
            "bornHost": host_text(peer),
            "storeHost": self.s.address,
            "storeTimestamp": now,
        }
        push = Command(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, texts(ext), body=bytes(request.command.body)
        )
        try:
            answer = await channel.peer.request(push, _PUSH_S)
        except (OSError, TimeoutError) as failed:
            problem = f"push reply message to {client:.200} fail: {failed}"
            return ResponseCode.SYSTEM_ERROR, problem
        if answer.code != ResponseCode.SUCCESS:
            return ResponseCode.SYSTEM_ERROR, f"push reply message to {client:.200} fail."
        return ResponseCode.SUCCESS, None
