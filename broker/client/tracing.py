"""Message trace, as upstream's clients write it and its tools read it (TraceDataEncoder).

A record is fields with 0x01 between them and 0x02 at the end. Records gather for a moment and go as
one message to the trace topic, whose keys are the ids of the messages that they are about. A trace
that cannot be sent is logged and lost: it never holds up what it is about.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from broker.client.errors import ClientError
from broker.client.handling import RetryLater
from broker.client.ids import new_unique_key
from broker.client.message import Message, ReceivedMessage, SendResult
from broker.client.network import Network
from broker.client.sending import HALF, STORED, PreparedSend, SendRules, prepare
from broker.loop.safe_log import SafeLogger
from broker.wire.command import Command
from pystore.format.properties import parse_properties

__all__ = ["Tracer"]

log = SafeLogger("broker.client")

#: Records gather for so long, or until they are so large; more than so many are dropped.
GATHER_S = 1.0
GATHER_BYTES = 100_000
WAITING_MAX = 2048
DEFAULT_REGION = "DefaultRegion"
#: Ordinals of upstream's MessageType.
_NORMAL, _HALF, _DELAY = 0, 1, 3
_DELAYS = frozenset(("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"))
#: Of SubAfter: ordinals of upstream's ConsumeReturnType.
_SUCCESS, _EXCEPTION, _FAILED = 0, 2, 4


class Tracer:
    """Collects records of one client and sends them. kind: PRODUCE or CONSUME."""

    def __init__(self, network: Network, group: str, kind: str) -> None:
        self._network = network
        self._group = group
        self._topic = network.settings.trace_topic
        self._rules = SendRules(
            f"_INNER_TRACE_PRODUCER-{group}-{kind}", create_queues=1, compress_over=0
        )
        self._waiting: list[tuple[str, tuple[str, ...]]] = []
        self.dropped = 0

    def start(self) -> None:
        self._network.spawn(self._keep())

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(GATHER_S)
            await self.flush()

    async def flush(self) -> None:
        """Sends what has gathered; the client calls it before it closes."""
        while self._waiting:
            size, count = 0, 0
            for text, _ in self._waiting:
                size += len(text)
                if count and size > GATHER_BYTES:
                    break
                count += 1
            records, self._waiting = self._waiting[:count], self._waiting[count:]
            body = "".join(text for text, _ in records).encode("utf-8", "replace")
            keys = dict.fromkeys(key for _, keys in records for key in keys if key)
            try:
                await self._send(Message(self._topic, body, keys=list(keys)))
            except ClientError as failed:
                log.info("Cannot send %d trace records: %s", len(records), failed)

    async def _send(self, message: Message) -> None:
        outgoing = prepare(message, self._rules)
        route = await self._network.route(self._topic, create_queues=1)
        timeout = self._network.settings.request_timeout_s
        for queue in route.publish:
            command = outgoing.command(queue)
            address = route.master(route.broker(queue)) or ""
            if (await self._network.exchange(address, command, timeout)).code in STORED:
                return

    def _add(self, fields: tuple[object, ...], *keys: str) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self.dropped += 1
            return
        self._waiting.append(("\x01".join(map(_text, fields)) + "\x02", keys))

    # ---- what clients tell ----

    def sent(
        self,
        outgoing: PreparedSend,
        address: str,
        began: float,
        answer: Command | None,
        result: object,
    ) -> None:
        """Records that a message, or each of a batch, was stored, or (without answer) could not be.
        began: monotonic seconds. result: a SendResult, or a list of them."""
        region = DEFAULT_REGION
        if answer is not None:
            region = answer.ext.get("MSG_REGION", DEFAULT_REGION)
            if answer.ext.get("TRACE_ON", "true") == "false":
                return
        properties = parse_properties(outgoing.properties.encode("utf-8", "replace"))
        keys = properties.get("KEYS", "")
        kind = _HALF if outgoing.sys_flag & HALF else _NORMAL
        if not _DELAYS.isdisjoint(properties):
            kind = _DELAY
        cost_ms = int((time.monotonic() - began) * 1000)
        results = result if isinstance(result, list) else [result]
        for index, key in enumerate(outgoing.keys):
            known = results[index] if index < len(results) else None
            stored = known.offset_message_id if isinstance(known, SendResult) else ""
            self._add(
                (
                    "Pub", outgoing.born_ms, region, self._group, outgoing.topic, key,
                    properties.get("TAGS", ""), keys, address, len(outgoing.body), cost_ms, kind,
                    stored, answer is not None,
                ),
                key, *keys.split(),
            )  # fmt: skip

    def around(
        self, handler: Callable[[ReceivedMessage], Awaitable[object]]
    ) -> Callable[[ReceivedMessage], Awaitable[object]]:
        """Returns the handler, with a record before and one after each message."""

        async def traced(message: ReceivedMessage) -> object:
            if message.properties.get("TRACE_ON") == "false":
                return await handler(message)
            request, began = new_unique_key(), time.monotonic()
            self._before(message, request)
            code = _FAILED
            try:
                result = await handler(message)
                code = _SUCCESS
                return result
            except RetryLater:
                raise
            except Exception:
                code = _EXCEPTION
                raise
            finally:
                self._after(message, request, began, code)

        return traced

    def _before(self, message: ReceivedMessage, request: str) -> None:
        region = message.properties.get("MSG_REGION", DEFAULT_REGION)
        keys = " ".join(message.keys)
        self._add(
            (
                "SubBefore", _now_ms(), region, self._group, request, message.message_id,
                message.head.reconsume_times, keys,
            ),
            message.message_id, *message.keys,
        )  # fmt: skip

    def _after(self, message: ReceivedMessage, request: str, began: float, code: int) -> None:
        cost_ms = int((time.monotonic() - began) * 1000)
        self._add(
            (
                "SubAfter", request, message.message_id, cost_ms, code == _SUCCESS,
                " ".join(message.keys), code, _now_ms(), self._group,
            ),
            message.message_id, *message.keys,
        )  # fmt: skip


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
