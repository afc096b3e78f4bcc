"""SEND_MESSAGE, its version 2, and batches (10, 310, 320), as far as they come up to Python.

Order of checks and codes: spec remoting.md 8.1, services.md part k.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from broker.processors.sending import (
    Sender,
    SendRequest,
    delay_level,
    host_text,
    put_code,
    refused_put,
)
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import Command, Refused
from broker.remoting.dedup import First
from broker.remoting.handlers import Handler, Peer
from broker.services.context import Services
from broker.services.hooks import SendContext, message_type
from broker.services.names import RETRY
from broker.services.topics import Topics
from pystore import PutResult, PutStatus
from pystore.errors import StoreError
from pystore.pending import HALF_TOPIC

__all__ = ["SendProcessor"]

#: MQVersion.V3_4_9: clients from it on say how often a message is tried again.
V3_4_9 = 121
_TX_BITS = 12
_GROUP_MAX = 255
#: What the broker says of a half, and nobody else.
_OF_HALVES = frozenset(
    {
        "REAL_TOPIC",
        "REAL_QID",
        "__transactionId__",
        "TRANSACTION_CHECK_TIMES",
        "TRAN_PREPARED_QUEUE_OFFSET",
    }
)
_TIMER = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
_TIMER_MAX_MS = 3 * 24 * 3600 * 1000


@dataclass(slots=True)
class _Target:
    """Where a message really goes."""

    topic: str
    queue: int


class SendProcessor:
    """Serves sends that the core has handed on."""

    def __init__(self, s: Services) -> None:
        self.s = s
        self.sender = Sender(s)

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send,
        }

    def send(
        self, peer: Peer, command: Command
    ) -> Command | Coroutine[Any, Any, Command | None] | None:
        context: SendContext | None = None
        try:
            request = SendRequest.of(command)
            if self.s.send_hooks:
                context = self._context(peer, request)
                self.s.send_hooks.before(context)
            config, _ = self.sender.check(request)
            if context is None and self.s.topics.is_hot(config) and peer.serve_raw(command):
                return None
            if not request.body:
                raise Refused(
                    ResponseCode.MESSAGE_ILLEGAL, "the message is illegal: its body is empty"
                )
            queue = self.sender.choose_queue(request, config)
        except Refused as refused:
            return self._refuse(command, refused, context)
        work = self._batch if request.batch else self._single
        return self._guarded(work(peer, command, request, queue, context), command, context)

    async def _guarded(
        self,
        work: Coroutine[Any, Any, Command],
        command: Command,
        context: SendContext | None,
    ) -> Command:
        try:
            return await work
        except Refused as refused:
            return self._refuse(command, refused, context)

    def _refuse(self, command: Command, refused: Refused, context: SendContext | None) -> Command:
        answer = command.reply(refused.code, refused.remark, self.sender.answer_fields())
        self._after(context, answer)
        return answer

    # ---- one message ----

    async def _single(
        self,
        peer: Peer,
        command: Command,
        request: SendRequest,
        queue: int,
        context: SendContext | None,
    ) -> Command:
        properties = request.properties
        target = _Target(request.topic, queue)
        if request.topic.startswith(RETRY):
            self._redirect(command, request, properties, target)
        self.sender.stamp(properties)
        self._refuse_unready(request, properties)
        key = self.sender.key_of(target.topic, properties)
        first = self.sender.first_of(target.topic, key)
        if first is not None:
            return await self._repeat(command, properties, first, context)
        if self._is_half(request, properties):
            result = await self._half(request, target, properties, host_text(peer), key)
            stored = HALF_TOPIC
        else:
            result = await self.sender.put(
                request, target.topic, target.queue, properties, host_text(peer), key
            )
            stored = "SCHEDULE_TOPIC_XXXX" if delay_level(properties) else target.topic
        if result.status is PutStatus.PUT_OK:
            self.s.statistics.put(stored, 1, result.size)
        return self._answer(
            command, context, result.status, msgId=result.message_id, queueId=queue,
            queueOffset=result.queue_offset, transactionId=properties.get("UNIQ_KEY"),
        )  # fmt: skip

    async def _repeat(
        self,
        command: Command,
        properties: dict[str, str],
        first: First,
        context: SendContext | None,
    ) -> Command:
        """Answers with the place of the message that is there already. Raises: Refused."""
        status = await self.sender.safe(first.end, wait=properties.get("WAIT") != "false")
        return self._answer(
            command, context, status, msgId=self.sender.message_id(first.physical_offset),
            queueId=first.queue, queueOffset=first.queue_offset,
            transactionId=properties.get("UNIQ_KEY"),
        )  # fmt: skip

    def _answer(
        self, command: Command, context: SendContext | None, status: PutStatus, **fields: object
    ) -> Command:
        answer = command.reply(put_code(status), ext=self.sender.answer_fields() | fields)
        self._after(context, answer)
        return answer

    def _redirect(
        self,
        command: Command,
        request: SendRequest,
        properties: dict[str, str],
        target: _Target,
    ) -> None:
        """A message that was tried too often goes to the dead letters (6.4). Raises: Refused."""
        name = request.topic.removeprefix(RETRY)
        group = self.s.groups.find(name)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {name}. Make it with mqadmin updateSubGroup.",
            )
        most = group.retry_max_times
        if command.version >= V3_4_9 and request.max_reconsume >= 0:
            most = request.max_reconsume
        if request.reconsume_times > most or self.s.locks.is_orderly(name):
            dead: Topics = self.s.topics
            target.topic, target.queue = dead.dead_letter_topic(name).name, 0
            properties["DELAY"] = "0"

    @staticmethod
    def _is_half(request: SendRequest, properties: dict[str, str]) -> bool:
        """Clients older than 4.6.1 let the property slip into their retries, which are delayed."""
        retried = request.reconsume_times > 0 and delay_level(properties) > 0
        return properties.get("TRAN_MSG", "").lower() == "true" and not retried

    async def _half(
        self,
        request: SendRequest,
        target: _Target,
        properties: dict[str, str],
        born_host: str,
        key: str,
    ) -> PutResult:
        """Stores a half message (a.3). Raises: Refused."""
        transactions = self.s.transactions
        if transactions is None or self.s.settings["rejectTransactionMessage"]:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self.s.host}] sending transaction message is forbidden",
            )
        group = properties.get("PGROUP", "")
        if not group or len(group.encode()) > _GROUP_MAX:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                "a half message names its producer group in PGROUP, with at most"
                f" {_GROUP_MAX} bytes",
            )
        if transactions.full:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"{transactions.halves.state().open} transactions are open; new ones are"
                " refused until some are decided. See `pystore tx ls`.",
            )
        properties = {k: v for k, v in properties.items() if k not in _OF_HALVES}
        properties |= {
            "__transactionId__": properties["UNIQ_KEY"],
            "REAL_TOPIC": target.topic,
            "REAL_QID": str(target.queue),
        }
        body = request.body if isinstance(request.body, bytes) else bytes(request.body)
        try:
            result, _ = transactions.put_half(
                body, properties, flag=request.flag, sys_flag=request.sys_flag & ~_TX_BITS,
                reconsume_times=request.reconsume_times,
                born_timestamp=request.born_timestamp, born_host=born_host,
            )  # fmt: skip
            self.sender.remember(target.topic, key, result.physical_offset)
            return await self.sender.durable(result, wait=properties.get("WAIT") != "false")
        except StoreError as failed:
            raise refused_put(failed, self.s) from failed

    def _refuse_unready(self, request: SendRequest, properties: dict[str, str]) -> None:
        """Timers are not served yet. Raises: Refused."""
        asked = [name for name in _TIMER if name in properties]
        if not asked or delay_level(properties) > 0 or "TIMER_OUT_MS" in properties:
            return
        when = properties[asked[0]]
        if not when.lstrip("-").isdigit():
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                "timer message illegal, the delay time should not be bigger than the max delay"
                f" {_TIMER_MAX_MS}ms; or if set del msg, the delay time should be bigger than the"
                f" current time: {asked[0]} is not a number",
            )
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            "accurate timer message is not enabled, timerWheelEnable is false: use a delay level",
        )

    # ---- a batch ----

    async def _batch(
        self,
        peer: Peer,
        command: Command,
        request: SendRequest,
        queue: int,
        context: SendContext | None,
    ) -> Command:
        properties = request.properties
        problem = ""
        if request.topic.startswith(RETRY):
            problem = f"batch request does not support retry group {request.topic}"
        elif request.sys_flag & 12 or properties.get("TRAN_MSG") == "true":
            problem = "batch request does not support transactions"
        elif delay_level(properties) > 0:
            problem = "batch request does not support delayed messages"
        if problem:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, problem)
        batch_id = properties.get("UNIQ_KEY")
        self.sender.stamp(properties)
        if batch_id is None:
            del properties["UNIQ_KEY"]
        status, queue, first, ids, size = await self.sender.put_batch(
            request, queue, properties, host_text(peer)
        )
        if status is PutStatus.PUT_OK and size:
            self.s.statistics.put(request.topic, len(ids), size)
        return self._answer(
            command, context, status, msgId=",".join(ids), queueId=queue, queueOffset=first,
            transactionId=batch_id,
        )  # fmt: skip

    # ---- hooks ----

    def _context(self, peer: Peer, request: SendRequest) -> SendContext:
        return SendContext(
            producer_group=request.group,
            topic=request.topic,
            queue=request.queue,
            client_address=host_text(peer),
            born_timestamp=request.born_timestamp,
            properties=request.properties,
            body_length=len(request.body),
            message_type=message_type(request.properties),
        )

    def _after(self, context: SendContext | None, answer: Command) -> None:
        if context is None:
            return
        context.code, context.remark = answer.code, answer.remark
        context.message_id = answer.ext.get("msgId", "")
        context.queue_offset = int(answer.ext.get("queueOffset", -1))
        context.queue = int(answer.ext.get("queueId", context.queue))
        self.s.send_hooks.after(context)
