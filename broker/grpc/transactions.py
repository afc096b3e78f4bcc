"""EndTransaction, and what stands in a transaction's id.

The id says where the half message is, so that it can be decided however long the local work took,
after a restart and through any other instance of the service. Upstream keeps that in memory for
30 seconds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from broker.access.needs import AccessAction
from broker.grpc.brokers import Brokers, accepted
from broker.grpc.calls import Call, Handlers
from broker.grpc.checks import topic_of
from broker.grpc.schema import pb
from broker.grpc.status import Code, Problem, ok
from broker.wire.codes import RequestCode
from broker.wire.command import Command, texts
from pystore.meta.pending import Decision

__all__ = ["Ending", "Half", "half_of", "id_of"]

#: After the id of a half that a check brought: its decision is the answer to that check.
_CHECKED = "c"
_DIGITS = 16


class Half(NamedTuple):
    """A half message: `offset` is its place in the queue of halves, `place` that in the log of the
    broker, and `checked` says that a check named it."""

    message_id: str
    offset: int
    place: int
    broker: str
    checked: bool = False


def id_of(half: Half) -> str:
    """Returns the transaction's id, as clients keep it. Network threads write it, too
    (csrc/messaging/ending.c)."""
    tail = _CHECKED if half.checked else ""
    broker = half.broker.encode().hex()  # names have hyphens
    return f"{half.message_id}-{half.offset:x}-{half.place:x}-{broker}{'-' if tail else ''}{tail}"


def half_of(text: str) -> Half:
    """Returns the half that a transaction's id names. Raises: Problem for an id that this service
    has not given."""
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


_DECISIONS = {
    pb.TransactionResolution.COMMIT: Decision.COMMIT,
    pb.TransactionResolution.ROLLBACK: Decision.ROLLBACK,
}


class Ending:
    def __init__(self, broker: Brokers) -> None:
        self._broker = broker

    def handlers(self) -> Handlers:
        return {"EndTransaction": self.end}

    async def end(self, call: Call, request: Any) -> Any:
        """Answers with the broker's own verdict; upstream says OK before it has asked. What is
        plain a network thread carries out (csrc/messaging/ending.h)."""
        topic = topic_of(request.topic)
        await self._broker.check_topic(call, topic, AccessAction.PUB)
        asked = _asked(request)
        if asked is None:  # not known yet: the broker goes on asking
            return pb.EndTransactionResponse(status=ok())
        half, decision = asked
        answers = request.source == pb.TransactionSource.SOURCE_SERVER_CHECK
        ext: dict[str, object] = {
            "topic": topic, "producerGroup": topic, "tranStateTableOffset": half.offset,
            "commitLogOffset": half.place, "commitOrRollback": int(decision),
            "fromTransactionCheck": half.checked or answers, "msgId": half.message_id,
            "transactionId": half.message_id, "bname": half.broker,
        }  # fmt: skip
        command = Command(RequestCode.END_TRANSACTION, texts(ext))
        accepted(await self._broker.request(call, command, half.broker))
        return pb.EndTransactionResponse(status=ok())


def _asked(request: Any) -> tuple[Half, Decision] | None:
    """Returns the half and its decision, or None when there is no decision yet. Raises:
    Problem."""
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
    return (half, decision) if decision is not None else None
