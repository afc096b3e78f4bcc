"""What a consumer that pops may ask for, whatever protocol it speaks: the checks in upstream's
order, then acknowledgements and other invisible times (docs/internals/pop.md#requests)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from broker.processors.refusals import check_hands_out, illegal_queue, put_refusal
from broker.processors.subscriptions import check_syntax
from broker.services.context import Services
from broker.services.names import check_group
from broker.services.pop import Pop
from broker.services.pop.acks import Change, Outcome
from broker.services.pop.batches import PopRequest, longest_retry_topic
from broker.services.topics import READ
from broker.wire.codes import ResponseCode
from broker.wire.command import Refused
from broker.wire.receipts import NORMAL, Handle, retry_topic
from pystore.errors import StoreError
from pystore.format.names import RETRY_PREFIX

__all__ = ["BATCH_MAX", "PopRules"]

_T = TypeVar("_T")

#: Messages of one request.
BATCH_MAX = 32
_INT32_MIN = -(1 << 31)


class PopRules:
    """The rules of requests of POP. `who` is the address of the client, for remarks. Every method
    raises Refused."""

    def __init__(self, s: Services) -> None:
        self.s = s

    # ---- popping ----

    def pop(self) -> Pop:
        pop = self.s.pop
        if pop is None or not pop.is_on:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, "POP needs timers, and timerWheelEnable is false"
            )
        check_hands_out(self.s)
        return pop

    def check_readable(self, what: str) -> None:
        if not self.s.settings["brokerPermission"] & READ:
            raise Refused(
                ResponseCode.NO_PERMISSION, f"the broker[{self.s.host}] {what} is forbidden"
            )

    def check_place(self, topic: str, queue: int, group: str, what: str, who: str) -> None:
        s, config = self.s, self.s.topics.found(topic)
        if not config.perm & READ:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{topic}] {what} is forbidden")
        if not _INT32_MIN <= queue < config.read_queue_nums:
            raise illegal_queue(ResponseCode.INVALID_PARAMETER, config, queue, f"/{who}")
        check_group(group)
        found = s.groups.found(group)
        if not found.consume_enable or s.groups.is_forbidden(group, topic):
            raise Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")

    def request(
        self,
        who: str,
        *,
        topic: str,
        group: str,
        queue: int,
        most: int,
        invisible_ms: int,
        from_min: bool,
        kind: str,
        expression: str,
        order: bool,
        attempt: str | None,
    ) -> PopRequest:
        """Returns the request; `kind` and `expression` are those of the filter."""
        self.check_readable("pop message")
        if most > BATCH_MAX:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self.s.host}] pop message's num is greater than {BATCH_MAX}",
            )
        self.pop()
        self.check_place(topic, queue, group, "pop message", who)
        if most < 1:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"maxMsgNums {most} is less than 1")
        self._check_invisible(invisible_ms, least=1)
        self._check_names(topic, group)
        sql = tags = None
        if kind == "SQL92":
            check_syntax(expression, whole=True)
            sql = expression
        elif kind != "TAG":
            raise Refused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {kind:.40} is neither TAG nor SQL92",
            )
        elif expression.strip() not in ("", "*"):
            tags = expression
        return PopRequest(
            topic, group, queue, most, invisible_ms, from_min, tags, sql, order, attempt
        )

    def _check_invisible(self, invisible_ms: int, *, least: int) -> None:
        most = self.s.settings["timerMaxDelaySec"] * 1000
        if not least <= invisible_ms < most:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime {invisible_ms} is not from {least} to {most - 1} ms"
                " (timerMaxDelaySec)",
            )

    def _check_names(self, topic: str, group: str) -> None:
        """Checks the names of topic and group, whose retry topic has to be storable."""
        name = retry_topic(group, topic, NORMAL)
        longest = longest_retry_topic(self.s.settings)
        if len(name) > longest and not topic.startswith(RETRY_PREFIX):
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"the retry topic {name:.260} would be longer than {longest} bytes: use shorter"
                " names for topic and group",
            )

    # ---- deliveries ----

    def ack(self, who: str, topic: str, group: str, handle: Handle) -> int:
        """Acknowledges handle.offset of the topic, which may be a retry topic. Returns the end of
        the record in the log, or 0 when none was put."""
        self._check_delivery(who, topic, handle, end_is_bad=False)
        acks = self.pop().acks
        outcome, end = self.put(lambda: acks.ack(topic, group, handle, [handle.offset]))
        if outcome is Outcome.UNKNOWN:
            raise self._unknown(topic, group, handle)
        return end

    def change(self, who: str, topic: str, group: str, handle: Handle, invisible_ms: int) -> Change:
        """Makes handle.offset of the topic invisible for so long from now on."""
        self._check_delivery(who, topic, handle, end_is_bad=True)
        self._check_invisible(invisible_ms, least=0)
        acks = self.pop().acks
        made = self.put(lambda: acks.change(topic, group, handle, handle.offset, invisible_ms))
        if made.outcome is Outcome.UNKNOWN:
            raise self._unknown(topic, group, handle)
        if made.outcome is Outcome.STALE and not handle.is_order:
            raise Refused(
                ResponseCode.NO_MESSAGE,
                f"the receipt handle is no longer valid: message {handle.offset} of"
                f" {topic}@{handle.queue} was acknowledged, or has come back",
            )
        return made

    def put(self, put: Callable[[], _T]) -> _T:
        try:
            return put()
        except StoreError as failed:
            raise put_refusal(failed, self.s) from failed

    def _check_delivery(self, who: str, topic: str, handle: Handle, *, end_is_bad: bool) -> None:
        config, queue, offset = self.s.topics.found(topic), handle.queue, handle.offset
        if not 0 <= queue < config.read_queue_nums:
            raise illegal_queue(ResponseCode.MESSAGE_ILLEGAL, config, queue, f"/{who}")
        low, high = self.s.store.span(topic, queue)
        if offset < low or offset > high or (end_is_bad and offset == high):
            raise Refused(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{topic}@{queue}, commit:{offset}, store:{low}~{high}",
            )

    def _unknown(self, topic: str, group: str, handle: Handle) -> Refused:
        batch = self.pop().order.batches.find((topic, group, handle.queue))
        commit = self.s.offsets.get(group, topic, handle.queue)
        begins = batch[0] if batch is not None else -1
        return Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"offset is illegal, key:{topic}@{group}@{handle.queue}, old:{begins},"
            f" commit:{commit}, next:-1, {handle.offset} is not in the batch that is out",
        )
