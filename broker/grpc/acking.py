"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue
(docs/internals/grpc.md#receipt-handles)."""

from __future__ import annotations

from functools import partial
from typing import Any

from broker.grpc.brokers import Brokers
from broker.grpc.calls import Call, Handlers
from broker.grpc.checks import check_invisible, group_of, topic_of
from broker.grpc.deliveries import ack, change, dead_letter, to_consume
from broker.grpc.messages import millis
from broker.grpc.receipts import Receipt
from broker.grpc.renewal import Renewals
from broker.grpc.schema import pb
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Code, Problem, ok, overall, status
from broker.processors.turns import Turns

__all__ = ["Acking"]

#: Of one call, as of one request of the remoting protocol (bodies.py).
_ENTRIES_MAX = 1024


class Acking:
    """A handle that was renewed stands for its newest."""

    def __init__(self, broker: Brokers, settings: ProxySettings, renewals: Renewals) -> None:
        self._broker, self._settings, self._renewals = broker, settings, renewals

    def handlers(self) -> Handlers:
        return {
            "AckMessage": self.ack,
            "ChangeInvisibleDuration": self.change,
            "ForwardMessageToDeadLetterQueue": self.forward,
        }

    async def ack(self, call: Call, request: Any) -> Any:
        topic, group = topic_of(request.topic), group_of(request.group)
        if not request.entries:
            raise Problem(Code.BAD_REQUEST, "no message to acknowledge")
        if len(request.entries) > _ENTRIES_MAX:
            raise Problem(
                Code.BAD_REQUEST,
                f"{len(request.entries)} messages to acknowledge, {_ENTRIES_MAX} are allowed",
            )
        reply, turns, refused = pb.AckMessageResponse(), Turns(), None
        try:
            await self._broker.check(call, to_consume(group, topic))
        except Problem as problem:
            refused = problem
        for entry in request.entries:
            await turns.next()
            try:
                if refused is not None:
                    raise refused
                await self._ack(call, group, topic, entry)
                how = ok()
            except Problem as problem:
                how = problem.status()
            reply.entries.append(
                pb.AckMessageResultEntry(
                    message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=how
                )
            )
        reply.status.CopyFrom(status(overall(each.status for each in reply.entries).code))
        return reply

    async def _ack(self, call: Call, group: str, topic: str, entry: Any) -> None:
        given = entry.receipt_handle
        receipt = await self._newest(group, topic, entry)
        self._check_open(receipt)
        await ack(
            partial(self._broker.request, call, broker=receipt.handle.broker), group, topic, receipt
        )
        self._renewals.release(group, topic, given)

    async def change(self, call: Call, request: Any) -> Any:
        """Changes the invisible time. The reply has a handle even with an error: clients store it,
        whatever the status is."""
        given = request.receipt_handle
        try:
            given = await self._change(call, request)
            how = ok()
        except Problem as problem:
            how = problem.status()
        return pb.ChangeInvisibleDurationResponse(status=how, receipt_handle=given)

    async def _change(self, call: Call, request: Any) -> str:
        topic, group, given = (
            topic_of(request.topic),
            group_of(request.group),
            request.receipt_handle,
        )
        await self._broker.check(call, to_consume(group, topic))
        invisible_ms = millis(request.invisible_duration)
        check_invisible(invisible_ms, 0, self._settings)
        receipt = await self._newest(group, topic, request)
        self._check_open(receipt)
        ask = partial(self._broker.request, call, broker=receipt.handle.broker)
        suspend = bool(receipt.lite) and request.suspend
        changed = await change(ask, group, topic, receipt, invisible_ms, suspend=suspend)
        self._renewals.release(group, topic, given)
        return changed.text

    async def forward(self, call: Call, request: Any) -> Any:
        """Forwards a message to the dead letters. A handle whose time is over is taken: its message
        would come again, and clients try this without end."""
        topic, group, given = (
            topic_of(request.topic),
            group_of(request.group),
            request.receipt_handle,
        )
        await self._broker.check(call, to_consume(group, topic))
        receipt = await self._newest(group, topic, request)
        if receipt.physical < 0:
            raise Problem(Code.INVALID_RECEIPT_HANDLE, "commit log offset is empty")
        await self._check_place(group, topic, receipt)
        ask = partial(self._broker.request, call, broker=receipt.handle.broker)
        await dead_letter(ask, group, topic, request.message_id, receipt)
        self._renewals.release(group, topic, given)
        return pb.ForwardMessageToDeadLetterQueueResponse(status=ok())

    # ---- handles ----

    async def _newest(self, group: str, topic: str, request: Any) -> Receipt:
        """Returns the handle that a renewal has made last. Of one that Apache's proxy has made, the
        request says which lite topic it is of. Raises: Problem."""
        held = await self._renewals.newest(group, topic, request.receipt_handle)
        if held is not None:
            return held
        try:
            found = Receipt.parse(request.receipt_handle)
        except ValueError as bad:
            raise Problem(Code.INVALID_RECEIPT_HANDLE, str(bad)) from None
        return found if found.lite else found._replace(lite=request.lite_topic)

    def _check_open(self, receipt: Receipt) -> None:
        if receipt.expires_ms <= self._broker.now_ms():
            raise Problem(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired")

    async def _check_place(self, group: str, topic: str, receipt: Receipt) -> None:
        """Checks a handle, which may not name a record of somebody else's."""
        if not await self._broker.holds(receipt.topic_of(group, topic), receipt):
            raise Problem(
                Code.INVALID_RECEIPT_HANDLE,
                f"look message by offset failed, {receipt.physical}: the message of this handle is"
                " not there",
            )
