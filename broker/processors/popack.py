"""ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME (200051, 200151, 200053)
(docs/internals/pop.md#requests)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Any

from broker.processors.bodies import BATCH_ACK, read
from broker.processors.refusals import put_refusal
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import Command, Refused
from broker.remoting.handlers import Handler, Peer, Result, host_text
from broker.remoting.receipts import NORMAL, Handle, retry_topic
from broker.services.context import Services
from broker.services.pop import Pop
from broker.services.pop.acks import Outcome
from pystore import PutStatus
from pystore.errors import StoreError

__all__ = ["PopAckProcessor", "after_disk", "check_invisible", "check_names"]

#: Bytes of the bits of a batch: filters may lie between its messages.
_BITS_MAX = 8192
_BATCH_MAX = 64
_NO_REMARK = "not set any response code"


def after_disk(s: Services, end: int) -> Awaitable[None] | None:
    """Waits until the log is on the disk up to `end`; None: nobody waits for that.

    Raises: Refused, when it is not in time.
    """
    if not end or s.settings["flushDiskType"] != "SYNC_FLUSH":
        return None

    async def wait() -> None:
        try:
            status = await s.store.durable(end)
        except StoreError as failed:
            raise put_refusal(failed, s) from failed
        if status is PutStatus.FLUSH_DISK_TIMEOUT:
            raise Refused(
                ResponseCode.FLUSH_DISK_TIMEOUT, "the disk did not take the record in time"
            )

    return wait()


def check_invisible(s: Services, invisible_ms: int, *, least: int) -> None:
    """Raises: Refused for a time that no message may stay invisible."""
    most = s.settings["timerMaxDelaySec"] * 1000
    if not least <= invisible_ms < most:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"invisibleTime {invisible_ms} is not from {least} to {most - 1} ms (timerMaxDelaySec)",
        )


def check_names(s: Services, topic: str, group: str) -> None:
    """Raises: Refused when the retry topic of the two could not be stored."""
    name = retry_topic(group, topic, NORMAL)
    longest = 255 if s.settings["autoMessageVersionOnTopicLen"] else 127
    if len(name) > longest and not topic.startswith("%RETRY%"):
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"the retry topic {name:.260} would be longer than {longest} bytes: use shorter names"
            " for topic and group",
        )


class PopAckProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.ACK_MESSAGE: self.ack,
            RequestCode.BATCH_ACK_MESSAGE: self.batch_ack,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self.change,
        }

    def _pop(self) -> Pop:
        if self.s.pop is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, "POP is not served")
        return self.s.pop

    # ---- checks ----

    def _delivery(
        self, peer: Peer, command: Command, *, end_is_bad: bool
    ) -> tuple[str, str, Handle]:
        """Topic, group and the delivery that is meant. Raises: Refused."""
        topic, queue = command.text("topic"), command.number("queueId")
        config = self.s.topics.found(topic)
        if not 0 <= queue < config.read_queue_nums:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{queue}] is illegal, topic:[{topic}] topicConfig.readQueueNums:"
                f"[{config.read_queue_nums}] consumer:[/{host_text(peer)}]",
            )
        offset = command.number("offset")
        low, high = self.s.store.range(topic, queue)
        if offset < low or offset > high or (end_is_bad and offset == high):
            raise Refused(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{topic}@{queue}, commit:{offset}, store:{low}~{high}",
            )
        group = command.text("consumerGroup")
        try:
            handle = Handle.parse(command.text("extraInfo"))
        except ValueError as bad:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, str(bad)) from None
        return topic, group, handle._replace(queue=queue, offset=offset)

    def _unknown(self, topic: str, group: str, handle: Handle) -> Refused:
        batch = self._pop().order.get((topic, group, handle.queue))
        commit = self.s.offsets.get(group, topic, handle.queue)
        begins = batch.offsets[0] if batch is not None else -1
        return Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"offset is illegal, key:{topic}@{group}@{handle.queue}, old:{begins},"
            f" commit:{commit}, next:-1, {handle.offset} is not in the batch that is out",
        )

    def _put(self, put: Callable[[], Any]) -> Any:
        """Raises: Refused for what could not be put."""
        try:
            return put()
        except StoreError as failed:
            raise put_refusal(failed, self.s) from failed

    def _reply(self, answer: Command, end: int) -> Result:
        wait = after_disk(self.s, end)
        if wait is None:
            return answer

        async def later() -> Command:
            await wait
            return answer

        return later()

    # ---- requests ----

    def ack(self, peer: Peer, command: Command) -> Result:
        topic, group, handle = self._delivery(peer, command, end_is_bad=False)
        acks = self._pop().acks
        outcome, end = self._put(lambda: acks.ack(topic, group, handle, [handle.offset]))
        if outcome is Outcome.UNKNOWN:
            raise self._unknown(topic, group, handle)
        return self._reply(command.reply(), end)

    def batch_ack(self, peer: Peer, command: Command) -> Result:
        body = read(command, BATCH_ACK) if len(command.body) else {"acks": ()}
        if not body["acks"]:
            return command.reply(ResponseCode.NO_MESSAGE)
        end = 0
        for each in body["acks"]:
            end = max(end, self._ack_one(each))
        return self._reply(command.reply(), end)

    def _ack_one(self, said: dict[str, Any]) -> int:
        """One batch; what it names and is not there is passed over. The end of its record."""
        topic, group, kind = said["t"], said["c"], said["r"]
        if kind != NORMAL and not topic.startswith("%RETRY%"):
            topic = retry_topic(group, topic, kind)
        if topic not in self.s.topics:
            return 0
        low, high = self.s.store.range(topic, said["q"]) if said["q"] >= 0 else (0, 0)
        offsets = [said["so"] + bit for bit in _bits(said["b"])]
        wanted = [each for each in offsets if low <= each < high]
        if not wanted:
            return 0
        handle = Handle(said["so"], said["pt"], said["it"], said["rq"], kind, "", said["q"], -1)
        acks = self._pop().acks
        end: int = self._put(lambda: acks.ack(topic, group, handle, wanted))[1]
        return end

    def change(self, peer: Peer, command: Command) -> Result:
        topic, group, handle = self._delivery(peer, command, end_is_bad=True)
        invisible_ms = command.number("invisibleTime")
        check_invisible(self.s, invisible_ms, least=0)
        acks = self._pop().acks
        made = self._put(lambda: acks.change(topic, group, handle, handle.offset, invisible_ms))
        if made.outcome is Outcome.UNKNOWN:
            raise self._unknown(topic, group, handle)
        if made.outcome is Outcome.STALE and not handle.is_order:
            raise Refused(
                ResponseCode.NO_MESSAGE,
                f"the receipt handle is not valid any more: message {handle.offset} of"
                f" {topic}@{handle.queue} was acknowledged, or has come back",
            )
        ext = {
            "popTime": made.pop_ms, "invisibleTime": made.invisible_ms,
            "reviveQid": made.revive_queue,
        }  # fmt: skip
        return self._reply(command.reply(0, _NO_REMARK, ext), made.end)


def _bits(text: str) -> list[int]:
    """Numbers of the bits that are set. Raises: Refused."""
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
