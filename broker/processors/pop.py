"""POP_MESSAGE, PEEK_MESSAGE, NOTIFICATION and POLLING_INFO (200050, 200052, 200054, 200055): the
checks in upstream's order, then what broker/services/pop finds (docs/internals/pop.md#requests)."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from broker.loop.turns import alone
from broker.processors.offsets import messages_at, span_of
from broker.processors.poprules import BATCH_MAX, PopRules
from broker.processors.refusals import always, put_refusal
from broker.processors.turns import Turns
from broker.services.context import Services
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer, host_text
from pystore.errors import StoreError

__all__ = ["PopProcessor"]

#: A request that is so late, ms, is not served: its client has given up.
_LATE_MS = 500
#: What upstream says when it sets no remark.
_NO_REMARK = "not set any response code"
_NO_MESSAGE = "NO_MESSAGE_IN_QUEUE"
#: Clients read these from every answer.
_NOTHING: Mapping[str, object] = {"popTime": 0, "invisibleTime": 0, "reviveQid": 0, "restNum": 0}


class PopProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s
        self._rules = PopRules(s)

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.POP_MESSAGE: always(_NOTHING, self.pop),
            RequestCode.PEEK_MESSAGE: always(_NOTHING, self.peek),
            RequestCode.NOTIFICATION: always({"hasMsg": False, "pollingFull": False}, self.notify),
            RequestCode.POLLING_INFO: always({"pollingNum": 0}, self.polling_info),
            RequestCode.POP_ROLLBACK: self.rollback,
        }

    # ---- checks ----

    def _place(self, peer: Peer, command: Command, what: str) -> tuple[str, int, str]:
        """Returns topic, queue (-1: all) and group. Raises: Refused."""
        topic, queue = command.text("topic"), command.number("queueId")
        group = command.text("consumerGroup")
        self._rules.check_place(topic, queue, group, what, host_text(peer))
        return topic, max(-1, queue), group

    def _check_age(self, born_ms: int, poll_ms: int) -> None:
        """Refuses what comes late. born_ms: 0: the client does not say."""
        now_ms = time.time_ns() // 1_000_000
        passed_ms = now_ms - (born_ms or now_ms) - poll_ms
        # As upstream's: the ends of the type wrap around, and are not late.
        if (passed_ms + (1 << 63)) % (1 << 64) - (1 << 63) > _LATE_MS:
            raise Refused(
                ResponseCode.POLLING_TIMEOUT,
                f"the broker[{self.s.host}] pop message is timeout too much",
            )

    def _check_request(self, peer: Peer, command: Command) -> None:
        """Checks a pop. Raises: Refused."""
        self._rules.request(
            host_text(peer),
            topic=command.text("topic"),
            group=command.text("consumerGroup"),
            queue=command.number("queueId"),
            most=command.number("maxMsgNums"),
            invisible_ms=command.number("invisibleTime"),
            from_min=command.number("initMode", 0) == 0,
            kind=command.text("expType", "TAG"),
            expression=command.text("exp", ""),
            order=command.flag_of("order"),
            attempt=command.ext.get("attemptId") or None,
        )

    # ---- pop ----

    def pop(self, peer: Peer, command: Command) -> Command | None:
        """Checks a request that the core has handed on, and has it served there."""
        if command.is_oneway:
            return None  # what nobody takes stays where it is
        self._check_age(command.number("bornTime", 0), command.number("pollTime", 0))
        self._check_request(peer, command)
        self.s.clients.publish_own(command.text("consumerGroup"), command.text("topic"))
        self._give_back(peer, command, "pop")
        return None

    def _give_back(self, peer: Peer, command: Command, what: str) -> None:
        """Has the core serve it. Raises: Refused."""
        try:
            served = peer.serve_raw(command)
        except StoreError as failed:
            raise put_refusal(failed, self.s) from failed
        if not served:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the {what} request has an invalid field")

    # ---- looking ----

    def peek(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        """Answers with the next messages, without taking them."""
        self._rules.check_readable("peek message")
        topic, queue, group = self._place(peer, command, "peek message")
        most = command.number("maxMsgNums")
        if not 1 <= most <= BATCH_MAX:
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"maxMsgNums {most} is not from 1 to {BATCH_MAX}"
            )
        return self._peek(command, group, topic, self._rules.pop().batches.queues(topic, queue))

    @alone
    async def _peek(
        self, command: Command, group: str, topic: str, queues: Sequence[int]
    ) -> Command:
        most, turns = command.number("maxMsgNums"), Turns()
        records: list[bytes] = []
        rest = 0
        for queue in queues:
            await turns.next()
            low, high = span_of(self.s, topic, queue)
            offset = self.s.offsets.get(group, topic, queue)
            at = low if offset is None else offset
            rest += max(high - at, 0)
            if len(records) < most:
                found = await messages_at(self.s, topic, queue, at, most - len(records))
                records += [bytes(message.record) for message in found]
        ext = {**_NOTHING, "restNum": rest}
        if records:
            return command.reply(0, "FOUND", ext, b"".join(records))
        return command.reply(ResponseCode.PULL_NOT_FOUND, _NO_MESSAGE, ext)

    def notify(self, peer: Peer, command: Command) -> Command | None:
        """Checks a request that asks whether there is something to pop, and has it served in the
        core."""
        if command.is_oneway:
            return None
        self._rules.pop()
        for name in ("bornTime", "pollTime"):
            command.number(name, 0)
        self._rules.check_readable("notification")
        self._place(peer, command, "notification")
        self._give_back(peer, command, "notification")
        return None

    def polling_info(self, peer: Peer, command: Command) -> Command:
        """Answers how many requests wait at exactly this place."""
        self._rules.check_readable("polling info")
        topic, queue, group = self._place(peer, command, "polling info")
        count = self._rules.pop().waiting(topic, group, queue)
        return command.reply(0, _NO_REMARK, {"pollingNum": count})

    def rollback(self, peer: Peer, command: Command) -> Command:
        """Does nothing: check points go from RocksDB to the revive topic, where all of ours are
        anyway."""
        return command.reply()
