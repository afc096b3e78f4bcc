"""Dead letters: listed, and sent again to those who could not work with them.

A redriven message names the dead letter that it was made of (``REDRIVEN_FROM``), and keeps its id.
So what a redrive has done is seen in the target itself: a run that was killed is run again, finds
what is there by the index of the target, and sends the rest. Nothing else is kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from broker.client.admin.messages import MessageAdmin, is_unreadable
from broker.client.checks import check_count, check_seconds
from broker.client.errors import BrokerRefused, Misuse, NoRoute, RequestTimeout, Unreachable
from broker.client.ids import offset_id_of
from broker.client.message import ReceivedMessage
from broker.client.network import request_of
from broker.client.options import INNER_PRODUCER
from broker.client.queries import messages_of_broker
from broker.client.sending import STORED, encoded
from broker.wire.codes import RequestCode, ResponseCode
from pystore.format.names import DLQ_PREFIX, RETRY_PREFIX, TEMPLATE_TOPIC

__all__ = ["REDRIVEN_FROM", "DeadLetterAdmin", "Outcome", "RedriveReport"]

#: The property that names the dead letter which a message was made of: its offset id.
REDRIVEN_FROM = "REDRIVEN_FROM"
#: Letters that are looked up and sent at the same time.
_AT_ONCE = 64
#: Copies of one message that a lookup sees: a broker answers with no more.
_COPIES = 64
#: Before each repeat of what was not answered.
_PAUSES_S = (0.1, 0.5, 2.0, 5.0)
_BUSY = (ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL, ResponseCode.SERVICE_NOT_AVAILABLE)
#: What belongs to the ways that the message went before.
_DROPPED = (
    "DELAY", "WAIT", "TRAN_MSG", "REAL_TOPIC", "REAL_QID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES",
    "MIN_OFFSET", "MAX_OFFSET", "1ST_POP_TIME", "POP_CK", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC",
    "TIMER_DELAY_MS", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES",
    "PGROUP", "__transactionId__", "__CRC32#",
)  # fmt: skip

#: What became of a dead letter: sent now; sent by a run before; would be sent (a dry run).
Outcome = Literal["sent", "already", "planned"]


@dataclass(slots=True)
class RedriveReport:
    """What a redrive did. seen: dead letters that were looked at. chosen: those that the filter
    let pass. sent: now. already: found in the target, from a run before. planned: what a dry run
    would send. target: where they went; empty for several."""

    group: str
    target: str
    seen: int = 0
    chosen: int = 0
    sent: int = 0
    already: int = 0
    planned: int = 0

    @property
    def taken(self) -> int:
        """How many count towards the most that may be sent."""
        return self.sent + self.planned


class DeadLetterAdmin(MessageAdmin):
    """Dead letters of a group."""

    async def dead_letters(
        self, group: str, *, begin_ms: int = 0, end_ms: int = (1 << 63) - 1
    ) -> AsyncIterator[ReceivedMessage]:
        """Goes through the dead letters of a group, those that died in a span of time. There may be
        none. Raises: ClientError."""
        try:
            async for letter in self.messages(DLQ_PREFIX + group, begin_ms=begin_ms, end_ms=end_ms):
                yield letter
        except NoRoute:
            return
        except BrokerRefused as refused:
            if is_unreadable(refused):
                raise Misuse(
                    f"the broker lets nobody read {DLQ_PREFIX}{group}, as older ones make it;"
                    f" allow it: pystore admin topic create '{DLQ_PREFIX}{group}' --queues 1"
                    " --perm rw"
                ) from refused
            raise

    async def redrive(
        self, group: str, *, to: str = "retry",
        wanted: Callable[[ReceivedMessage], bool] | None = None,
        begin_ms: int = 0, end_ms: int = (1 << 63) - 1, most: int = 0, rate: float = 0.0,
        dry_run: bool = False, again: bool = False,
        told: Callable[[ReceivedMessage, Outcome], None] | None = None,
    ) -> RedriveReport:  # fmt: skip
        """Sends the dead letters of a group again. They stay where they are.

        to: ``"retry"`` gives them to this group alone, with all its retries; ``"topic"`` sends each
        to the topic that it came from, for all groups; else the name of a topic. wanted: a filter.
        begin_ms, end_ms: when they died. most: send at most so many; 0: all. rate: messages a
        second; 0: as fast as it goes. dry_run: says what would be sent. again: also those that were
        redriven before. told: is called for each chosen letter.

        A letter that was redriven to the same target before is found there and not sent twice. One
        that was sent in the last instant before a kill may be sent twice, when the target's index
        does not show it yet. Raises: Misuse for a group that no broker has, NoRoute, ClientError.
        """
        self.network.check()
        check_count("most", most, 0)
        check_seconds("rate", rate)
        await self._check_group(group)
        report = RedriveReport(group, _target_of(group, to))
        driver = _Driver(self, report, to, rate, dry_run, again, told)
        batch: list[ReceivedMessage] = []
        async for letter in self.dead_letters(group, begin_ms=begin_ms, end_ms=end_ms):
            report.seen += 1
            if wanted is not None and not wanted(letter):
                continue
            batch.append(letter)
            room = most - report.taken if most else _AT_ONCE
            if len(batch) >= min(room, _AT_ONCE):
                await driver.work_on(batch)
                batch = []
                if most and report.taken >= most:
                    return report
        await driver.work_on(batch)
        return report

    async def _check_group(self, group: str) -> None:
        """Checks that there is such a group. Raises: Misuse for one that no broker has, and whose
        messages never died; ClientError."""
        for address in await self._masters():  # one row; brokers may have tens of thousands
            if await self._topic_json(address, DLQ_PREFIX + group) is not None:
                return
        if group not in await self.group_table():
            raise Misuse(f"no broker has the group {group}, or dead letters of it; see groups()")

    async def address_of(self, letter: ReceivedMessage) -> str:
        """Returns the address of the broker that has a message. Raises: NoRoute, ClientError."""
        if self._broker is not None:
            return self._broker
        for place in await self.cluster():
            if place.name == letter.queue.broker and place.id == 0:
                return place.address
        raise NoRoute(f"the broker {letter.queue.broker} has no master now", letter.queue.topic)


def _target_of(group: str, to: str) -> str:
    return {"retry": RETRY_PREFIX + group, "topic": ""}.get(to, to)


class _Driver:
    """Sends letters, some at once, no faster than it may."""

    def __init__(
        self, admin: DeadLetterAdmin, report: RedriveReport, to: str, rate: float, dry_run: bool,
        again: bool, told: Callable[[ReceivedMessage, Outcome], None] | None,
    ) -> None:  # fmt: skip
        self._admin = admin
        self._report = report
        self._to = to
        self._rate = rate
        self._dry = dry_run
        self._again = again
        self._told = told
        self._addresses: dict[str, str] = {}
        self._began = time.monotonic()

    async def work_on(self, letters: Sequence[ReceivedMessage]) -> None:
        """Sends a batch of letters to where they belong. Raises: ClientError, after the others of
        the batch are through."""
        for letter in letters:
            if letter.queue.broker not in self._addresses:
                found = await self._admin.address_of(letter)
                self._addresses[letter.queue.broker] = found
        done = await asyncio.gather(*map(self._one, letters), return_exceptions=True)
        failed = [each for each in done if isinstance(each, BaseException)]
        for letter, outcome in zip(letters, done, strict=True):
            if isinstance(outcome, BaseException):
                continue
            self._report.chosen += 1
            self._report.sent += outcome == "sent"
            self._report.already += outcome == "already"
            self._report.planned += outcome == "planned"
            if self._told is not None:
                self._told(letter, outcome)
        if failed:
            raise failed[0]
        await self._pace()

    async def _pace(self) -> None:
        if self._rate > 0:
            due = self._began + self._report.sent / self._rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _one(self, letter: ReceivedMessage) -> Outcome:
        """Tries again what was not answered: a broker that is busy for some seconds is not to end
        the redrive of a hundred thousand."""
        target, look = self._target(letter), not self._again
        for pause in (*_PAUSES_S, None):
            try:
                if look and await self._was_sent(letter, target):
                    return "already" if pause == _PAUSES_S[0] else "sent"
                if self._dry:
                    return "planned"
                await self._send(letter, target, letter.message_id)
                return "sent"
            except (RequestTimeout, Unreachable, BrokerRefused) as failed:
                busy = not isinstance(failed, BrokerRefused) or failed.code in _BUSY
                if pause is None or not busy:
                    raise
                await asyncio.sleep(pause)
                look = True  # it may have been stored nevertheless
        raise AssertionError("unreachable")

    def _target(self, letter: ReceivedMessage) -> str:
        """Returns the topic that a letter goes to. Raises: Misuse for a letter that does not say
        where it came from."""
        if self._to != "topic":
            return self._report.target
        said = letter.properties
        origin = said.get("RETRY_TOPIC") or said.get("DLQ_ORIGIN_TOPIC")
        if not origin:
            raise Misuse(
                f"the dead letter {letter.offset_message_id} does not say which topic it came"
                " from; name the topic"
            )
        return origin

    async def _was_sent(self, letter: ReceivedMessage, target: str) -> bool:
        """Looks in the target for a message made of this letter."""
        copies = await messages_of_broker(
            self._admin.network, letter.queue.broker, self._addresses[letter.queue.broker], target,
            letter.message_id, _COPIES,
        )  # fmt: skip
        origin = letter.offset_message_id
        return any(copy.properties.get(REDRIVEN_FROM) == origin for copy in copies)

    async def _send(self, letter: ReceivedMessage, target: str, message_id: str) -> None:
        head, origin = letter.head, letter.offset_message_id
        properties = {k: v for k, v in letter.properties.items() if k not in _DROPPED}
        properties |= {REDRIVEN_FROM: origin, "UNIQ_KEY": message_id, "WAIT": "true"}
        if not target.startswith(RETRY_PREFIX):
            for name in ("RETRY_TOPIC", "ORIGIN_MESSAGE_ID"):
                properties.pop(name, None)
        fields = {
            "a": INNER_PRODUCER, "b": target, "c": TEMPLATE_TOPIC, "d": 1, "e": -1,
            "f": head.sys_flag & 0x701, "g": head.born_ms, "h": head.flag,
            "i": encoded(properties), "j": 0, "k": False, "m": False,
        }  # fmt: skip
        address, code = self._addresses[letter.queue.broker], RequestCode.SEND_MESSAGE_V2
        answer = await self._admin.network.exchange(
            address, request_of(code, fields, bytes(letter.body_view)),
            self._admin.network.settings.request_timeout_s,
        )  # fmt: skip
        if answer.code not in STORED:
            what = f"the dead letter {origin}"
            raise BrokerRefused(what, answer.code, answer.remark, address)
        if message_id != origin and _is_older(answer.ext.get("msgId", ""), letter):
            # The broker deduplicates (idempotentProduceWindow), and took it for the message that
            # the letter was: it goes under the letter's own id.
            await self._send(letter, target, origin)


def _is_older(stored: str, letter: ReceivedMessage) -> bool:
    """Says whether the place that a broker answered lies before the letter's, in the same log."""
    try:
        place = offset_id_of(stored)
    except ValueError:
        return False
    return place.offset < letter.physical_offset
