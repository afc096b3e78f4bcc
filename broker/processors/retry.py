"""CONSUMER_SEND_MSG_BACK (36): a message that a consumer could not work with comes again later, or
goes to the dead letters (docs/internals/wire.md#send-back)."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from broker.loop.turns import alone
from broker.processors.admission import V3_4_9
from broker.processors.durable import once_durable
from broker.processors.offsets import bring, is_place
from broker.processors.refusals import put_refusal
from broker.services.context import Services
from broker.services.hooks import ConsumeContext
from broker.services.topics import WRITE
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.decision import QUEUE_ANY, PutDecision, Role
from broker.wire.handlers import Handler, Peer, host_text
from pystore import Message
from pystore.errors import StoreError

__all__ = ["RetryProcessor"]

#: The level of the first retry is this plus the number of tries so far: 10 s, 30 s, 1 m and on.
_FIRST_LEVEL = 3
_LEVEL_MAX = (1 << 31) - 1


class RetryProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(
        self, peer: Peer, command: Command
    ) -> Command | Coroutine[Any, Any, Command | None]:
        limit = None
        if command.version >= V3_4_9 and command.ext.get("maxReconsumeTimes"):
            limit = command.number("maxReconsumeTimes")
        offset = command.number("offset")
        if is_place(self.s, offset):
            return self._back_from_tier(peer, command, offset, limit)
        return self._back(peer, command, offset, limit)

    @alone
    async def _back_from_tier(
        self, peer: Peer, command: Command, place: int, limit: int | None
    ) -> Command | None:
        await bring(self.s, place)
        done = self._back(peer, command, place, limit)
        return done if isinstance(done, Command) else await done

    def _back(
        self, peer: Peer, command: Command, offset: int, limit: int | None
    ) -> Command | Coroutine[Any, Any, Command | None]:
        end = self.put_back(
            host_text(peer),
            command.text("group"),
            offset,
            command.number("delayLevel", 0),
            limit=limit,
            unit=command.flag_of("unitMode"),
        )
        # The client commits its offset past the message next, which then is nowhere but here.
        return once_durable(self.s, end, command.reply())

    def put_back(
        self,
        who: str,
        name: str,
        offset: int,
        level: int,
        *,
        limit: int | None = None,
        unit: bool = False,
    ) -> int:
        """Puts the message at a log offset again for the group. Below level 0, or after `limit`
        tries (None for the group's limit), it goes to the dead letters. Returns the end of the
        record that this puts, or 0 without one. Raises: Refused."""
        group = self.s.groups.get(name)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}"
            )
        if not self.s.settings["brokerPermission"] & WRITE:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self.s.host}] sending message is forbidden",
            )
        if group.retry_queue_nums <= 0:
            return 0
        retry = self.s.topics.retry_topic(name, group.retry_queue_nums, unit=unit)
        if not retry.perm & WRITE:
            raise Refused(
                ResponseCode.NO_PERMISSION, f"the topic[{retry.name}] sending message is forbidden"
            )
        try:
            message = self.s.store.message(offset)
        except StoreError as failed:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}: {failed.text}"
            ) from failed
        tries = group.retry_max_times if limit is None else limit
        dead = level < 0 or message.reconsume_times >= tries
        return self._put_again(who, name, retry.name, message, level, dead)

    def _put_again(
        self, who: str, group: str, retry: str, message: Message, level: int, dead: bool
    ) -> int:
        context = None
        if self.s.consume_hooks:
            context = ConsumeContext(group, message.topic, message.queue, who, size=message.size)
            self.s.consume_hooks.before(context)
        if dead:
            topic = self.s.topics.dead_letter_topic(group).name
            decision = PutDecision(topic=topic, queue=0, level=0)
        else:
            level = min(level or _FIRST_LEVEL + message.reconsume_times, _LEVEL_MAX)
            decision = PutDecision(topic=retry, queue=QUEUE_ANY, level=level)
        decision.role = Role.PLAIN
        # Of an earlier delay or transaction; the delay that follows writes its own.
        decision.drop = ("REAL_TOPIC", "REAL_QID")
        decision.add = self._said_of(message, dead)
        try:
            sent = self.s.core.put_again(message.physical_offset, decision, more_tries=1)
        except StoreError as failed:
            raise put_refusal(failed, self.s) from failed
        self._count(group, message.topic, dead)
        if context is not None:
            context.success = True
            context.status = "SEND_BACK_TO_DLQ" if dead else "SEND_BACK"
            self.s.consume_hooks.after(context)
        return sent.end

    @staticmethod
    def _said_of(message: Message, dead: bool) -> dict[str, str]:
        """Returns the properties that tell where it came from, which are kept over repeats."""
        properties = message.properties
        said = {"WAIT": "false"}
        if "RETRY_TOPIC" not in properties:
            said["RETRY_TOPIC"] = message.topic
        if "ORIGIN_MESSAGE_ID" not in properties:
            said["ORIGIN_MESSAGE_ID"] = message.offset_message_id
        return said | {"DELAY": "0"} if dead else said

    def _count(self, group: str, topic: str, dead: bool) -> None:
        self.s.statistics.add("SNDBCK_PUT_NUMS", f"{topic}@{group}")
        if dead:
            self.s.statistics.add("DLQ_PUT_NUMS", f"{topic}@{group}")
