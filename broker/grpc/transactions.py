"""EndTransaction, and what stands in a transaction's id.

The id says where the half message is, so that it can be decided however long the local work took,
after a restart and through any other instance of the service. Upstream keeps that in memory for
30 seconds.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from broker.access.needs import AccessAction
from broker.grpc.brokers import AtOnce, Brokers, accepted
from broker.grpc.calls import AtOnceHandlers, Call, Handlers
from broker.grpc.checks import topic_of
from broker.grpc.schema import METHODS, DecodeError, pb
from broker.grpc.status import Code, Problem, ok
from broker.wire.codes import RequestCode
from broker.wire.command import Command
from broker.wire.framer import EndTransaction
from pystore.pending import Decision

__all__ = ["Ending", "Half", "half_of", "id_of"]

#: After the id of a half that a check brought: its decision is the answer to that check.
_CHECKED = "c"
_DIGITS = 16


class Half(NamedTuple):
    """A half message. offset: in the queue of halves. place: in the log of this broker. checked: a
    check named it."""

    message_id: str
    offset: int
    place: int
    broker: str
    checked: bool = False


def id_of(half: Half) -> str:
    """The transaction's id, as clients keep it."""
    tail = _CHECKED if half.checked else ""
    broker = half.broker.encode().hex()  # names have hyphens
    return f"{half.message_id}-{half.offset:x}-{half.place:x}-{broker}{'-' if tail else ''}{tail}"


def half_of(text: str) -> Half:
    """Raises: Problem for an id that this service has not given."""
    parts = text.split("-")
    checked = parts[-1] == _CHECKED
    if checked:
        parts.pop()
    *name, offset, place, broker = parts if len(parts) > 3 else ("", "", "", "")
    if not (0 < len(offset) <= _DIGITS and 0 < len(place) <= _DIGITS):
        offset = place = "?"
    try:
        at = bytes.fromhex(broker).decode()
        made = Half("-".join(name), int(offset, 16), int(place, 16), at, checked)
    except ValueError:
        raise Problem(
            Code.INVALID_TRANSACTION_ID,
            f"the transaction id {text:.80} was not given by this service",
        ) from None
    if max(made.offset, made.place) >> 63 or min(made.offset, made.place) < 0:
        raise Problem(Code.INVALID_TRANSACTION_ID, f"the transaction id {text:.80} is out of range")
    return made


#: The reply for a decision that was carried out.
_ENDED: bytes = pb.EndTransactionResponse(status=ok()).SerializeToString()
_DECISIONS = {
    pb.TransactionResolution.COMMIT: Decision.COMMIT,
    pb.TransactionResolution.ROLLBACK: Decision.ROLLBACK,
}


class Ending:
    def __init__(self, broker: Brokers) -> None:
        self._broker = broker

    def handlers(self) -> Handlers:
        return {"EndTransaction": self.end}

    def at_once(self) -> AtOnceHandlers:
        if not isinstance(self._broker, AtOnce):
            return {}
        return {"EndTransaction": partial(self._end_at_once, self._broker)}

    def _end_at_once(self, broker: AtOnce, call: Call, data: bytes) -> bytes | None:
        """The reply when the core carries it out, as nearly always."""
        try:
            request = METHODS["EndTransaction"].parse(data)
        except DecodeError:
            return None
        asked = _asked(request)
        return _ENDED if asked is not None and broker.end_at_once(call, asked[1]) else None

    async def end(self, call: Call, request: Any) -> Any:
        """The broker's own verdict is the answer; upstream says OK before it has asked."""
        await self._broker.check_topic(call, topic_of(request.topic), AccessAction.PUB)
        asked = _asked(request)
        if asked is None:  # not known yet: the broker goes on asking
            return pb.EndTransactionResponse(status=ok())
        half, end = asked
        ext = {
            "topic": end.topic, "producerGroup": end.group, "tranStateTableOffset": str(end.offset),
            "commitLogOffset": str(end.place), "commitOrRollback": str(end.decision),
            "fromTransactionCheck": "true" if end.from_check else "false", "msgId": half.message_id,
            "transactionId": half.message_id, "bname": half.broker,
        }  # fmt: skip
        command = Command(RequestCode.END_TRANSACTION, ext)
        accepted(await self._broker.request(call, command, half.broker))
        return pb.EndTransactionResponse(status=ok())


def _asked(request: Any) -> tuple[Half, EndTransaction] | None:
    """The half and its decision; None: there is none yet. Raises: Problem."""
    topic = topic_of(request.topic)
    if not request.transaction_id.strip():
        raise Problem(Code.INVALID_TRANSACTION_ID, "transaction id cannot be blank")
    half = half_of(request.transaction_id)
    if request.message_id and request.message_id != half.message_id:
        raise Problem(
            Code.INVALID_TRANSACTION_ID,
            f"the transaction is that of the message {half.message_id:.80}, not of"
            f" {request.message_id:.80}",
        )
    decision = _DECISIONS.get(request.resolution)
    if decision is None:
        return None
    checked = half.checked or request.source == pb.TransactionSource.SOURCE_SERVER_CHECK
    return half, EndTransaction(topic, topic, half.offset, half.place, int(decision), checked)
