"""ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME (200051, 200151, 200053)
(docs/internals/pop.md#requests)."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from broker.processors.bodies import BATCH_ACK, read
from broker.processors.durable import once_durable
from broker.processors.lite import LiteProcessor
from broker.processors.poprules import PopRules
from broker.processors.refusals import always
from broker.services.context import Services
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer, Result, host_text
from broker.wire.receipts import NORMAL, Handle, retry_topic
from pystore.format.names import RETRY_PREFIX

__all__ = ["PopAckProcessor"]

#: Bytes of the bits of a batch: filters may lie between its messages.
_BITS_MAX = 8192
_BATCH_MAX = 64
_NO_REMARK = "not set any response code"
_UNCHANGED = {"popTime": 0, "invisibleTime": 0, "reviveQid": 0}


class PopAckProcessor:
    def __init__(self, s: Services, lite: LiteProcessor) -> None:
        self.s, self._lite = s, lite
        self._rules = PopRules(s)

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.ACK_MESSAGE: self.ack,
            RequestCode.BATCH_ACK_MESSAGE: self.batch_ack,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: always(_UNCHANGED, self.change),
        }

    @staticmethod
    def _delivery(command: Command) -> tuple[str, str, Handle]:
        """Returns topic, group and the delivery that is meant. Raises: Refused."""
        topic, queue = command.text("topic"), command.number("queueId")
        offset, group = command.number("offset"), command.text("consumerGroup")
        try:
            handle = Handle.parse(command.text("extraInfo"))
        except ValueError as bad:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, str(bad)) from None
        return topic, group, handle._replace(queue=queue, offset=offset)

    # ---- requests ----

    def ack(self, peer: Peer, command: Command) -> Result:
        if name := self._lite.named(command):
            return self._lite.ack(peer, command, name)
        end = self._rules.ack(host_text(peer), *self._delivery(command))
        return once_durable(self.s, end, command.reply())

    def batch_ack(self, peer: Peer, command: Command) -> Result:
        body = read(command, BATCH_ACK) if len(command.body) else {"acks": ()}
        if not body["acks"]:
            return command.reply(ResponseCode.NO_MESSAGE)
        end = 0
        for each in body["acks"]:
            end = max(end, self._ack_one(each))
        return once_durable(self.s, end, command.reply())

    def _ack_one(self, said: dict[str, Any]) -> int:
        """Acknowledges one batch; what it names and is not there is passed over. The end of its
        record."""
        topic, group, kind = said["t"], said["c"], said["r"]
        if kind != NORMAL and not topic.startswith(RETRY_PREFIX):
            topic = retry_topic(group, topic, kind)
        if topic not in self.s.topics:
            return 0
        low, high = self.s.store.span(topic, said["q"]) if said["q"] >= 0 else (0, 0)
        offsets = [said["so"] + bit for bit in _bits(said["b"])]
        wanted = [each for each in offsets if low <= each < high]
        if not wanted:
            return 0
        handle = Handle(said["so"], said["pt"], said["it"], said["rq"], kind, "", said["q"], -1)
        acks = self._rules.pop().acks
        return self._rules.put(lambda: acks.ack(topic, group, handle, wanted))[1]

    def change(self, peer: Peer, command: Command) -> Result:
        if name := self._lite.named(command):
            return self._lite.change(peer, command, name)
        invisible_ms = command.number("invisibleTime")
        made = self._rules.change(host_text(peer), *self._delivery(command), invisible_ms)
        ext = {
            "popTime": made.pop_ms, "invisibleTime": made.invisible_ms,
            "reviveQid": made.revive_queue,
        }  # fmt: skip
        return once_durable(self.s, made.end, command.reply(0, _NO_REMARK, ext))


def _bits(text: str) -> list[int]:
    """Returns the numbers of the bits that are set. Raises: Refused."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raw = bytes(_BITS_MAX + 1)
    bits = int.from_bytes(raw, "little") if len(raw) <= _BITS_MAX else -1
    if bits < 0 or bits.bit_count() > _BATCH_MAX:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the bits of a batch are Base64 of at most {_BITS_MAX} bytes, and at most"
            f" {_BATCH_MAX} of them are set",
        )
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found
