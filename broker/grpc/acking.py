"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue
(docs/internals/grpc.md#receipt-handles)."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import Any

from broker.grpc._http2 import read_acks
from broker.grpc.brokers import AtOnce, Brokers
from broker.grpc.calls import AtOnceHandlers, Call, Handlers
from broker.grpc.checks import check_invisible, group_of, topic_of
from broker.grpc.deliveries import ack, change, dead_letter, to_consume
from broker.grpc.messages import millis
from broker.grpc.receipts import Receipt
from broker.grpc.renewal import Renewals
from broker.grpc.schema import pb
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Code, Problem, ok, overall, status
from broker.processors.durable import after_disk
from broker.processors.poprules import PopRules
from broker.processors.turns import Turns
from broker.wire.codes import RequestCode
from broker.wire.command import Refused
from broker.wire.receipts import Handle

__all__ = ["Acking"]

#: Groups with their topics whose names are remembered as good.
_KNOWN_MAX = 4096
#: Of one call, as of one request of the remoting protocol (bodies.py).
_ENTRIES_MAX = 1024


class Acking:
    """A handle that was renewed stands for its newest."""

    def __init__(self, broker: Brokers, settings: ProxySettings, renewals: Renewals) -> None:
        self._broker, self._settings, self._renewals = broker, settings, renewals
        self._known: set[tuple[str, str]] = set()
        self._turn: _Turn | None = None

    def handlers(self) -> Handlers:
        return {
            "AckMessage": self.ack,
            "ChangeInvisibleDuration": self.change,
            "ForwardMessageToDeadLetterQueue": self.forward,
        }

    def at_once(self) -> AtOnceHandlers:
        if not isinstance(self._broker, AtOnce):
            return {}
        return {"AckMessage": partial(self._ack_at_once, self._broker)}

    def _ack_at_once(self, broker: AtOnce, call: Call, data: bytes) -> _Ack | None:
        """A ticket for the reply that all entries count. What is wrong with one of them the usual
        way says, to which those that were acknowledged here are acknowledged, too."""
        asked = read_acks(data)
        if asked is None:
            return None
        group, topic, entries, reply = asked
        self._check_names(group, topic)
        rules = broker.pop_rules(call, RequestCode.ACK_MESSAGE, topic, group)
        named = []
        for given, physical, fields in entries:
            receipt = self._renewals.newest_now(group, given)
            if receipt is False:
                return None
            if receipt is None:
                receipt = Receipt(Handle._make(fields), physical)
            self._check_open(receipt)
            named.append((receipt.topic_of(group, topic), receipt.handle))
        if self._turn is None:
            self._turn = _Turn(self, rules)
        return self._turn.take(call.host, group, named, [given for given, *_ in entries], reply)

    def _settle(self, turn: _Turn) -> None:
        """Acknowledges what a turn has brought: those of one batch are one record in the log, as
        official clients acknowledge each message by a call of its own."""
        if self._turn is turn:
            self._turn = None
        groups: dict[str, list[_Ack]] = {}
        for each in turn.acks:
            groups.setdefault(each.group, []).append(each)
        for group, acks in groups.items():
            named = [one for each in acks for one in each.named]
            try:
                end = turn.rules.ack_all(acks[0].who, group, named)
            except Refused:
                continue
            for each in acks:
                each.done, each.end = True, end
                for given in each.given:
                    self._renewals.release(group, given)

    def _check_names(self, group: str, topic: str) -> None:
        """Raises: Problem for names that clients may not use."""
        if (group, topic) not in self._known:
            topic_of(pb.Resource(name=topic))
            group_of(pb.Resource(name=group))
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known.add((group, topic))

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
                await self._ack(call, group, topic, entry.receipt_handle)
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

    async def _ack(self, call: Call, group: str, topic: str, given: str) -> None:
        receipt = await self._newest(group, given)
        self._check_open(receipt)
        await ack(
            partial(self._broker.request, call, broker=receipt.handle.broker), group, topic, receipt
        )
        self._renewals.release(group, given)

    async def change(self, call: Call, request: Any) -> Any:
        """The reply has a handle even with an error: clients store it, whatever the status is."""
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
        receipt = await self._newest(group, given)
        self._check_open(receipt)
        ask = partial(self._broker.request, call, broker=receipt.handle.broker)
        changed = await change(ask, group, topic, receipt, invisible_ms)
        self._renewals.release(group, given)
        return changed.text

    async def forward(self, call: Call, request: Any) -> Any:
        """A handle whose time is over is taken: its message would come again, and clients try this
        without end."""
        topic, group, given = (
            topic_of(request.topic),
            group_of(request.group),
            request.receipt_handle,
        )
        await self._broker.check(call, to_consume(group, topic))
        receipt = await self._newest(group, given)
        if receipt.physical < 0:
            raise Problem(Code.INVALID_RECEIPT_HANDLE, "commit log offset is empty")
        await self._check_place(group, topic, receipt)
        ask = partial(self._broker.request, call, broker=receipt.handle.broker)
        await dead_letter(ask, group, topic, request.message_id, receipt)
        self._renewals.release(group, given)
        return pb.ForwardMessageToDeadLetterQueueResponse(status=ok())

    # ---- handles ----

    async def _newest(self, group: str, given: str) -> Receipt:
        """Raises: Problem."""
        held = await self._renewals.newest(group, given)
        if held is not None:
            return held
        try:
            return Receipt.parse(given)
        except ValueError as bad:
            raise Problem(Code.INVALID_RECEIPT_HANDLE, str(bad)) from None

    def _check_open(self, receipt: Receipt) -> None:
        if receipt.expires_ms <= self._broker.now_ms():
            raise Problem(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired")

    async def _check_place(self, group: str, topic: str, receipt: Receipt) -> None:
        """A handle may not name a record of somebody else's."""
        if not await self._broker.holds(receipt.topic_of(group, topic), receipt):
            raise Problem(
                Code.INVALID_RECEIPT_HANDLE,
                f"look message by offset failed, {receipt.physical}: the message of this handle is"
                " not there",
            )


class _Turn:
    """The acknowledgements of one turn of the event loop."""

    def __init__(self, acking: Acking, rules: PopRules) -> None:
        self._acking, self.rules = acking, rules
        self.acks: list[_Ack] = []
        self._settled = False

    def take(
        self, who: str, group: str, named: list[tuple[str, Handle]], given: list[str], reply: bytes
    ) -> _Ack:
        made = _Ack(self, who, group, named, given, reply)
        self.acks.append(made)
        return made

    def settle(self) -> None:
        if not self._settled:
            self._settled = True
            self._acking._settle(self)


class _Ack:
    """A Ticket. who: address of the client. named: topic and handle of each entry; given: its
    handle as the client has it. done: all count; end: of their records in the log."""

    __slots__ = ("_turn", "done", "end", "given", "group", "named", "reply", "who")

    def __init__(
        self, turn: _Turn, who: str, group: str, named: list[tuple[str, Handle]], given: list[str],
        reply: bytes,
    ) -> None:  # fmt: skip
        self._turn, self.who, self.group = turn, who, group
        self.named, self.given, self.reply = named, given, reply
        self.done, self.end = False, 0

    def redeem(self) -> bytes | Coroutine[Any, Any, bytes] | None:
        self._turn.settle()
        if not self.done:
            return None
        wait = after_disk(self._turn.rules.s, self.end)
        return self.reply if wait is None else _later(wait, self.reply)


async def _later(wait: Awaitable[None], reply: bytes) -> bytes:
    await wait
    return reply
