"""What becomes of a message that was handed out: it is acknowledged, stays invisible for longer, or
goes to the dead letters of its group. Each is a request to the broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from broker.grpc.receipts import Receipt
from broker.grpc.status import Code, Problem, of_response
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, texts

__all__ = ["Ask", "FoundMessage", "ack", "change", "dead_letter", "to_consume"]

#: Sends a request to the broker. Raises: Problem.
Ask = Callable[[Command], Awaitable[Command]]

#: The broker knows no such delivery: it is over, or the handle is not one of ours.
_OVER = (ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL)


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message to hand out. record: as it is stored. attempts: deliveries before."""

    record: memoryview
    receipt: Receipt
    attempts: int


def to_consume(group: str, topic: str) -> Command:
    """Returns a request that needs the right to consume the topic as this group."""
    return Command(RequestCode.PULL_MESSAGE, {"topic": topic, "consumerGroup": group})


async def ack(ask: Ask, group: str, topic: str, receipt: Receipt) -> None:
    """Acknowledges a message. Raises: Problem."""
    await _asked(ask, RequestCode.ACK_MESSAGE, _named(group, topic, receipt))


async def change(
    ask: Ask, group: str, topic: str, receipt: Receipt, invisible_ms: int, *, suspend: bool = False
) -> Receipt:
    """Changes the invisible time and returns the handle from now on. suspend: of all of a lite
    topic's batch, and this delivery does not count. Raises: Problem; with INVALID_RECEIPT_HANDLE
    the delivery is over."""
    ext = _named(group, topic, receipt) | {"invisibleTime": invisible_ms}
    if suspend:
        ext["suspend"] = True
    said = await _asked(ask, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)
    try:
        pop_ms, invisible_ms = int(said["popTime"]), int(said["invisibleTime"])
    except (KeyError, ValueError) as bad:
        raise Problem(Code.INTERNAL_SERVER_ERROR, f"the broker's answer lacks {bad}") from None
    if not pop_ms:  # of an ordered group, and acknowledged before
        raise Problem(Code.INVALID_RECEIPT_HANDLE, "the message was acknowledged")
    return receipt.renewed(pop_ms, invisible_ms)


async def dead_letter(ask: Ask, group: str, topic: str, message_id: str, receipt: Receipt) -> None:
    """Puts it into the dead letters, then acknowledges it. Raises: Problem."""
    ext = {
        "group": group, "offset": receipt.physical, "delayLevel": -1, "originMsgId": message_id,
        "originTopic": topic, "maxReconsumeTimes": 0, "unitMode": False,
    }  # fmt: skip
    await _asked(ask, RequestCode.CONSUMER_SEND_MSG_BACK, ext)
    await ack(ask, group, topic, receipt)


def _named(group: str, topic: str, receipt: Receipt) -> dict[str, object]:
    handle = receipt.handle
    ext: dict[str, object] = {
        "consumerGroup": group, "topic": receipt.topic_of(group, topic), "queueId": handle.queue,
        "offset": handle.offset, "extraInfo": handle.text,
    }  # fmt: skip
    if receipt.lite:
        ext["liteTopic"] = receipt.lite
    return ext


async def _asked(ask: Ask, code: int, ext: Mapping[str, object]) -> Mapping[str, str]:
    answer = await ask(Command(code, texts(ext)))
    if answer.code == ResponseCode.SUCCESS:
        return answer.ext
    if answer.code in _OVER:
        raise Problem(Code.INVALID_RECEIPT_HANDLE, answer.remark or "")
    raise Problem(of_response(answer.code), answer.remark or "")
