"""RECALL_MESSAGE (370): a timer is recalled before it is due; GET_TIMER_CHECK_POINT (60) and
GET_TIMER_METRICS (61). docs/internals/timers.md; upstream RecallMessageProcessor."""

from __future__ import annotations

import struct
import time
from collections.abc import Coroutine
from typing import Any

from broker.processors.durable import once_durable
from broker.processors.refusals import always, check_leads, put_refusal
from broker.services.context import Services
from broker.services.topics import WRITE
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer
from pystore.errors import BadArgument, StoreError, TimerIllegal
from pystore.store.timers import RecallHandle, Timers, delete_mark

__all__ = ["RecallProcessor"]

_CHECKPOINT = struct.Struct(">7q")


class RecallProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s

    def handlers(self) -> dict[int, Handler]:
        region = {"MSG_REGION": self.s.settings["regionId"]}
        return {
            RequestCode.RECALL_MESSAGE: always(region, self.recall),
            RequestCode.GET_TIMER_CHECK_POINT: self.check_point,
            RequestCode.GET_TIMER_METRICS: self.metrics,
        }

    # ---- recall ----

    def recall(self, peer: Peer, command: Command) -> Command | Coroutine[Any, Any, Command | None]:
        """Recalls a timer. It checks in upstream's order, and then whether the message still waits,
        which upstream does not look at."""
        self._check_may()
        topic = command.ext.get("topic") or ""
        handle = self._check_handle(topic, command.ext.get("recallHandle") or "")
        timer = self._timers().find(topic, handle.key, handle.out_ms)
        if timer is None:
            late = handle.out_ms + 1 <= self._now_ms()
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                "recall failed, timestamp invalid"
                if late
                else "recall failed, no such message waits: it was delivered or recalled before",
            )
        mark = delete_mark(topic, handle.key, timer.due_ms)
        if group := command.ext.get("producerGroup"):
            mark["PGROUP"] = group
        try:
            put = self.s.store.put_message(
                topic, b"0", tags="_RECALL_TAG_", properties=mark, queue=0, block=False
            )
        except TimerIllegal as late:  # it became due since it was found
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid"
            ) from late
        except StoreError as failed:
            raise put_refusal(failed, self.s) from failed
        schedule = self.s.schedule
        assert schedule is not None
        schedule.look_at_timers()
        region = str(self.s.settings["regionId"])
        answer = command.reply(ext={"msgId": handle.key, "MSG_REGION": region})
        return once_durable(self.s, put.physical_offset + put.size, answer)

    def _check_may(self) -> None:
        settings = self.s.settings
        if not settings["recallMessageEnable"]:
            raise Refused(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        starts = settings["startAcceptSendRequestTimeStamp"]
        writable = settings["brokerPermission"] & WRITE
        if (starts and time.time() * 1000 < starts) or not (
            writable or settings["allowRecallWhenBrokerNotWriteable"]
        ):
            raise Refused(
                ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available"
            )
        check_leads(self.s)

    def _check_handle(self, topic: str, text: str) -> RecallHandle:
        """Checks a recall handle and returns it. Raises: Refused."""
        wrong = ResponseCode.ILLEGAL_OPERATION
        if not topic:
            raise Refused(wrong, "recall failed, the request names no topic")
        if self.s.topics.get(topic) is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic}] not exist"
            )
        try:
            handle = RecallHandle.parse(text)
        except BadArgument as bad:
            raise Refused(wrong, bad.text) from bad
        if handle.topic != topic:
            raise Refused(wrong, "recall failed, topic not match")
        if handle.broker != self.s.broker_name:
            raise Refused(wrong, "recall failed, broker service not available")
        most = self.s.settings["timerMaxDelaySec"] * 1000
        if handle.out_ms < 0 or handle.out_ms + 1 - self._now_ms() >= most:
            raise Refused(wrong, "recall failed, timestamp invalid")
        return handle

    def _now_ms(self) -> int:
        schedule = self.s.schedule
        return schedule.now_ms() if schedule is not None else time.time_ns() // 1_000_000

    def _timers(self) -> Timers:
        schedule = self.s.schedule
        if schedule is None or schedule.timers is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled, timerWheelEnable is false",
            )
        return schedule.timers.timers

    # ---- what mqadmin asks ----

    def check_point(self, peer: Peer, command: Command) -> Command:
        """Returns the 56 bytes of upstream's timercheck."""
        schedule = self.s.schedule
        if schedule is None or schedule.timers is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
        offset, now = schedule.timers.metrics.offset, schedule.now_ms()
        return command.reply(body=_CHECKPOINT.pack(now, 0, offset, offset, 0, now, 0))

    def metrics(self, peer: Peer, command: Command) -> Command:
        """Returns how many timers wait for each topic."""
        schedule = self.s.schedule
        if schedule is None or schedule.timers is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, "The timer message store is null")
        now = schedule.now_ms()
        body = {
            "dataVersion": {"counter": 0, "stateVersion": 0, "timestamp": now},
            "timingCount": {
                tally.topic: {"count": tally.waiting, "timeStamp": now}
                for tally in schedule.timers.timers.tallies()
            },
        }
        return command.reply(body=mqjson.dumps(body))
