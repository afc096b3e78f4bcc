"""Messages that the server keeps invisible while their consumer works on them: those received with
auto_renew (docs/internals/grpc.md#renewal; upstream DefaultReceiptHandleManager).

Each is renewed some seconds before it would be visible again, longer each time, until it is
acknowledged, its client is gone, or renewMaxTimeMillis are over.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from broker.grpc.receipts import Receipt
from broker.grpc.settings import ProxySettings
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger

__all__ = ["Lost", "Renewals", "RenewedMessage"]

quiet = RateLimitedLogger(SafeLogger("broker.grpc"))

#: Invisible minutes, by how often a message was renewed; the last repeats.
_STEPS_MIN = (1, 3, 5, 10, 30, 60)
_MINUTE_MS = 60_000
#: A failed renewal is tried again so soon.
_AGAIN_MS = 1000
#: Of a client that is gone, messages are visible again so soon.
_GONE_MS = 1000
#: Renewals under way at once.
_AT_ONCE = 64


class Lost(Exception):
    """The delivery is over: it was acknowledged, or has come back."""


@dataclass(slots=True, eq=False)
class RenewedMessage:
    """One message in the hands of a client. receipt: its newest. attempts: deliveries before.
    busy: while it is being renewed."""

    client: str
    group: str
    topic: str
    receipt: Receipt
    attempts: int
    since_ms: int
    renewed: int = 0
    failed: int = 0
    due_ms: int = 0
    ended: bool = False
    busy: asyncio.Future[None] | None = None


Extend = Callable[[RenewedMessage, int], Awaitable[Receipt]]


class Renewals:
    """By group, topic and the handle that the client was given. Lives on the event loop.

    extend: makes a message invisible for so many ms from now on; Lost, or any other error for one
    that may be tried again. last_ms: the invisible time, by attempts, of a message that was held
    for too long.
    """

    def __init__(
        self, now_ms: Callable[[], int], extend: Extend, last_ms: Callable[[int], int],
        settings: ProxySettings,
    ) -> None:  # fmt: skip
        self._now_ms, self._extend, self._last_ms = now_ms, extend, last_ms
        self._settings = settings
        self._held: dict[tuple[str, str, str], RenewedMessage] = {}
        self._by_client: dict[str, dict[RenewedMessage, str]] = {}
        self._due: list[tuple[int, int, RenewedMessage]] = []
        self._turn = 0
        self._on_first: Callable[[], None] | None = None

    def on_first(self, told: Callable[[], None]) -> None:
        """Calls once. told: when the first message is held, now if one was."""
        self._on_first = told
        if self._turn:
            told()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, client: str, group: str, topic: str, receipt: Receipt, attempts: int) -> None:
        """Renews the message from now on."""
        held = RenewedMessage(client, group, topic, receipt, attempts, self._now_ms())
        given = receipt.text
        if self._turn == 0 and self._on_first is not None:
            self._on_first()
        self._held[group, topic, given] = held
        self._by_client.setdefault(client, {})[held] = given
        self._plan(held, receipt.expires_ms - self._settings.renew_ahead_ms)

    def _plan(self, held: RenewedMessage, due_ms: int) -> None:
        held.due_ms = due_ms
        self._turn += 1
        heapq.heappush(self._due, (due_ms, self._turn, held))
        if len(self._due) > 2 * len(self._held) + 1024:
            self._due = [each for each in self._due if self._is_current(each)]
            heapq.heapify(self._due)

    @staticmethod
    def _is_current(entry: tuple[int, int, RenewedMessage]) -> bool:
        return not entry[2].ended and entry[2].due_ms == entry[0]

    def held_by(self, client: str) -> int:
        """Returns how many messages a client has that are renewed."""
        return len(self._by_client.get(client, ()))

    async def newest(self, group: str, topic: str, given: str) -> Receipt | None:
        """Returns the handle that stands for the one that the client was given; None: it is not
        renewed."""
        held = self._held.get((group, topic, given))
        return await self._settled(held) if held is not None else None

    @staticmethod
    async def _settled(held: RenewedMessage) -> Receipt:
        """Returns its newest handle, once no renewal is under way."""
        if held.busy is not None:
            await asyncio.wait([held.busy])
        return held.receipt

    def release(self, group: str, topic: str, given: str) -> None:
        """Ends the renewal: the message is acknowledged, or its client takes care of it."""
        held = self._held.get((group, topic, given))
        if held is not None:
            self._drop(held)

    def _drop(self, held: RenewedMessage) -> None:
        held.ended = True
        of_client = self._by_client.get(held.client, {})
        given = of_client.pop(held, None)
        if given is not None:
            del self._held[held.group, held.topic, given]
        if not of_client:
            self._by_client.pop(held.client, None)

    # ---- renewing ----

    async def tick(self) -> None:
        """Renews what is due, every few seconds."""
        now, due = self._now_ms(), []
        while self._due and (self._due[0][0] <= now or not self._is_current(self._due[0])):
            entry = heapq.heappop(self._due)
            if self._is_current(entry):
                due.append(entry[2])
        for i in range(0, len(due), _AT_ONCE):
            await asyncio.gather(*(self._renew(held) for held in due[i : i + _AT_ONCE]))

    async def _renew(self, held: RenewedMessage) -> None:
        if held.ended:  # while others had their turn
            return
        held.busy = asyncio.get_running_loop().create_future()
        try:
            await self._renew_now(held)
        finally:
            held.busy.set_result(None)
            held.busy = None

    async def _renew_now(self, held: RenewedMessage) -> None:
        last = self._now_ms() - held.since_ms >= self._settings.renew_max_ms
        step = _STEPS_MIN[min(held.renewed, len(_STEPS_MIN) - 1)] * _MINUTE_MS
        invisible_ms = self._last_ms(held.attempts) if last else step
        try:
            receipt = await self._extend(held, invisible_ms)
        except Lost:
            self._drop(held)
            return
        except Exception as failed:  # noqa: BLE001 - tried again, then logged
            held.failed += 1
            if held.failed >= self._settings.renew_tries or last:
                quiet.warning(
                    "not renewed", "A message of %s is no longer renewed: %s", held.topic, failed
                )
                self._drop(held)
            elif not held.ended:
                self._plan(held, self._now_ms() + _AGAIN_MS)
            return
        held.receipt, held.failed = receipt, 0
        held.renewed += 1
        if last:
            self._drop(held)
        elif not held.ended:
            self._plan(held, receipt.expires_ms - self._settings.renew_ahead_ms)

    async def _let_go(self, held: RenewedMessage) -> None:
        """Makes it visible soon. Before the end of a renewal that is under way its handle would be
        the wrong one."""
        await self._settled(held)
        await self._extend(held, _GONE_MS)

    async def gone(self, client: str) -> None:
        """Lets go what a client held that is gone: it is visible again soon."""
        found = list(self._by_client.get(client, {}))
        for held in found:
            self._drop(held)
        for i in range(0, len(found), _AT_ONCE):
            part = found[i : i + _AT_ONCE]
            done = await asyncio.gather(
                *(self._let_go(held) for held in part), return_exceptions=True
            )
            for each in done:
                if isinstance(each, Exception) and not isinstance(each, Lost):
                    quiet.info(
                        "gone", "A message of a client that is gone stays invisible: %s", each
                    )
