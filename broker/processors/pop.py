"""POP_MESSAGE, PEEK_MESSAGE, NOTIFICATION and POLLING_INFO (200050, 200052, 200054, 200055): the
checks in upstream's order, then what broker/services/pop finds (docs/internals/pop.md#requests)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from broker.processors.popack import after_disk, check_invisible, check_names
from broker.processors.refusals import put_refusal
from broker.processors.subscriptions import check_syntax
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import Command, Refused
from broker.remoting.handlers import Handler, Peer, host_text
from broker.services.context import Services
from broker.services.names import check_group
from broker.services.pop import Pop
from broker.services.pop.batches import Popped, PopRequest
from broker.services.pop.polling import Place
from broker.services.topics import READ
from pystore.errors import StoreError

__all__ = ["PopProcessor"]

_MOST = 32
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
        self._tasks: set[asyncio.Task[None]] = set()

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.POP_MESSAGE: self.pop,
            RequestCode.PEEK_MESSAGE: self.peek,
            RequestCode.NOTIFICATION: self.notify,
            RequestCode.POLLING_INFO: self.polling_info,
        }

    # ---- checks ----

    def _pop(self) -> Pop:
        pop = self.s.pop
        if pop is None or not pop.is_on:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, "POP needs timers, and timerWheelEnable is false"
            )
        return pop

    def _check_readable(self, what: str) -> None:
        if not self.s.settings["brokerPermission"] & READ:
            raise Refused(
                ResponseCode.NO_PERMISSION, f"the broker[{self.s.host}] {what} is forbidden"
            )

    def _check_place(self, peer: Peer, command: Command, what: str) -> tuple[str, int, str]:
        """Topic, queue and group. Raises: Refused."""
        s, topic, queue = self.s, command.text("topic"), command.number("queueId")
        config = s.topics.found(topic)
        if not config.perm & READ:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{topic}] {what} is forbidden")
        if not -1 <= queue < config.read_queue_nums:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue}] is illegal, topic:[{topic}] topicConfig.readQueueNums:"
                f"[{config.read_queue_nums}] consumer:[/{host_text(peer)}]",
            )
        name = command.text("consumerGroup")
        check_group(name)
        group = s.groups.found(name)
        if not group.consume_enable or s.groups.is_forbidden(name, topic):
            raise Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}")
        return topic, queue, name

    @staticmethod
    def _born(command: Command) -> int:
        return command.number("bornTime", 0) or time.time_ns() // 1_000_000

    def _check_age(self, born_ms: int, poll_ms: int) -> None:
        if time.time_ns() // 1_000_000 - born_ms - poll_ms > _LATE_MS:
            raise Refused(
                ResponseCode.POLLING_TIMEOUT,
                f"the broker[{self.s.host}] pop message is timeout too much",
            )

    def _request(self, peer: Peer, command: Command) -> PopRequest:
        """Raises: Refused."""
        self._check_readable("pop message")
        most = command.number("maxMsgNums")
        if most > _MOST:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self.s.host}] pop message's num is greater than {_MOST}",
            )
        self._pop()
        topic, queue, group = self._check_place(peer, command, "pop message")
        if most < 1:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"maxMsgNums {most} is less than 1")
        invisible_ms = command.number("invisibleTime")
        check_invisible(self.s, invisible_ms, least=1)
        check_names(self.s, topic, group)
        kind, expression = command.text("expType", "TAG"), command.text("exp", "")
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
            topic, group, queue, most, invisible_ms, command.number("initMode", 0) == 0, tags, sql,
            command.flag_of("order"), command.ext.get("attemptId") or None,
        )  # fmt: skip

    # ---- pop ----

    def pop(self, peer: Peer, command: Command) -> Command | None:
        if command.is_oneway:
            return None  # what nobody takes stays where it is
        try:
            born_ms, poll_ms = self._born(command), command.number("pollTime", 0)
            self._check_age(born_ms, poll_ms)
            request = self._request(peer, command)
        except Refused as refused:
            return command.reply(refused.code, refused.remark, _NOTHING)

        def told(found: Popped | StoreError) -> None:
            if isinstance(found, StoreError):
                refusal = put_refusal(found, self.s)
                peer.send(command.reply(refusal.code, refusal.remark, _NOTHING))
                return
            answer = self._answer(command, request, found)
            self._send(peer, command, answer, found.end)

        self._pop().receive(
            request, told, born_ms=born_ms, poll_ms=poll_ms, alive=lambda: not peer.closed
        )
        return None

    def _send(self, peer: Peer, command: Command, answer: Command, end: int) -> None:
        """Not before the disk has the check points, where puts wait for it."""
        wait = after_disk(self.s, end)
        if wait is None:
            peer.send(answer)
            return

        async def send() -> None:
            try:
                await wait
            except Refused as refused:
                peer.send(command.reply(refused.code, refused.remark, _NOTHING))
            else:
                peer.send(answer)

        task = asyncio.get_running_loop().create_task(send())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _answer(self, command: Command, request: PopRequest, found: Popped) -> Command:
        ext: dict[str, object] = {
            "popTime": found.pop_ms, "invisibleTime": found.invisible_ms,
            "reviveQid": found.revive_queue, "restNum": found.rest,
            "startOffsetInfo": ";".join(found.starts), "msgOffsetInfo": ";".join(found.offsets),
        }  # fmt: skip
        if request.order:
            ext["orderCountInfo"] = ";".join(found.counts)
        if found.records:
            key = f"{request.topic}@{request.group}"
            self.s.statistics.add("GROUP_GET_NUMS", key, len(found.records))
            self.s.statistics.add("GROUP_GET_SIZE", key, found.size)
            return command.reply(0, "FOUND", ext, b"".join(found.records))
        code = ResponseCode.POLLING_FULL if found.full else ResponseCode.POLLING_TIMEOUT
        return command.reply(code, _NO_MESSAGE, ext)

    # ---- looking ----

    def peek(self, peer: Peer, command: Command) -> Command:
        """The next messages, without taking them."""
        try:
            self._check_readable("peek message")
            topic, queue, group = self._check_place(peer, command, "peek message")
            most = command.number("maxMsgNums")
            if not 1 <= most <= _MOST:
                raise Refused(
                    ResponseCode.INVALID_PARAMETER, f"maxMsgNums {most} is not from 1 to {_MOST}"
                )
        except Refused as refused:
            return command.reply(refused.code, refused.remark, _NOTHING)
        records, rest = self._pop().peek(PopRequest(topic, group, queue, most, 0))
        ext = {**_NOTHING, "restNum": rest}
        if records:
            return command.reply(0, "FOUND", ext, b"".join(records))
        return command.reply(ResponseCode.PULL_NOT_FOUND, _NO_MESSAGE, ext)

    def notify(self, peer: Peer, command: Command) -> Command | None:
        """Whether there is something to pop, as soon as there is."""
        pop = self._pop()
        born_ms, poll_ms = self._born(command), command.number("pollTime", 0)
        self._check_readable("notification")
        topic, queue, group = self._check_place(peer, command, "notification")
        request = PopRequest(
            topic, group, queue, 1, 0, order=command.flag_of("order"),
            attempt=command.ext.get("attemptId") or None,
        )  # fmt: skip

        def told(has: bool, full: bool) -> None:
            peer.send(command.reply(0, _NO_REMARK, {"hasMsg": has, "pollingFull": full}))

        pop.notify(request, told, born_ms=born_ms, poll_ms=poll_ms, alive=lambda: not peer.closed)
        return None

    def polling_info(self, peer: Peer, command: Command) -> Command:
        """How many requests wait at exactly this place."""
        self._check_readable("polling info")
        topic, queue, group = self._check_place(peer, command, "polling info")
        count = self._pop().polling.count(Place(topic, group, queue))
        return command.reply(0, _NO_REMARK, {"pollingNum": count})
