"""Requests that wait for the news of messages: by topic, group and queue, each answered in time
(docs/internals/pop.md#long-polling; upstream PopLongPollingService)."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator
from typing import NamedTuple

from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger

__all__ = ["FULL", "PARKED", "TOO_LATE", "Polling", "PopWaiter", "WaitingPlace"]

quiet = RateLimitedLogger(SafeLogger("broker.pop"))

#: What became of a request that was to be parked.
PARKED, FULL, TOO_LATE = "parked", "full", "too late"
#: An answer leaves so long before its client gives up.
_MARGIN_MS = 50
_LOOK_AGAIN_S = 5.0


class WaitingPlace(NamedTuple):
    """Where a request waits; `queue` -1 stands for any of the topic."""

    topic: str
    group: str
    queue: int


class PopWaiter:
    """A request that waits. `resume` tries again and returns whether it was answered; with `last`
    it has to be. Those of one place find the same."""

    __slots__ = ("alive", "deadline_ms", "done", "place", "resume")

    def __init__(
        self,
        place: WaitingPlace,
        deadline_ms: int,
        resume: Callable[[bool], bool],
        alive: Callable[[], bool],
    ) -> None:
        self.place, self.deadline_ms = place, deadline_ms
        self.resume, self.alive = resume, alive
        self.done = False


_Entry = tuple[int, int, PopWaiter]


class Polling:
    """All that waits for one kind of request. It lives on the event loop.

    `limits` are the most requests at one place, the most places, and the most requests
    altogether."""

    def __init__(
        self, now_ms: Callable[[], int], limits: Callable[[], tuple[int, int, int]]
    ) -> None:
        self._now_ms = now_ms
        self._limits = limits
        self._places: dict[WaitingPlace, list[_Entry]] = {}
        #: Places by topic.
        self._topics: dict[str, set[WaitingPlace]] = {}
        self._ends: list[_Entry] = []
        self._count = 0
        self._turn = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def places(self, topic: str) -> list[WaitingPlace]:
        """Returns where requests wait for this topic."""
        return list(self._topics.get(topic, ()))

    # ---- parking ----

    def deadline(self, born_ms: int, poll_ms: int) -> int:
        """Returns when a request is to be answered; its own clock may be wrong by any amount."""
        now = self._now_ms()
        return min(born_ms, now) + min(max(poll_ms, 0), 1 << 40) - _MARGIN_MS

    def park(self, waiter: PopWaiter) -> str:
        at_place, places, total = self._limits()
        found = self._places.get(waiter.place)
        if self._count >= total or (found is None and len(self._places) >= places):
            return FULL
        if self._now_ms() > waiter.deadline_ms:
            return TOO_LATE
        if len(found or ()) >= at_place and sum(not w.done for _, _, w in found or ()) >= at_place:
            return FULL
        self._add(waiter)
        return PARKED

    def _add(self, waiter: PopWaiter) -> None:
        self._turn += 1
        entry = waiter.deadline_ms, self._turn, waiter
        heapq.heappush(self._places.setdefault(waiter.place, []), entry)
        self._topics.setdefault(waiter.place.topic, set()).add(waiter.place)
        heapq.heappush(self._ends, entry)
        self._count += 1
        if len(self._ends) > 2 * self._count + 1024:
            self._ends = [each for each in self._ends if not each[2].done]
            heapq.heapify(self._ends)
        self._arm()

    def _take(self, place: WaitingPlace) -> PopWaiter | None:
        """Returns the one that ends first."""
        heap = self._places.get(place, [])
        found = None
        while heap and found is None:
            waiter = heapq.heappop(heap)[2]
            if waiter.alive() and not waiter.done:
                found = waiter
            else:
                self._end(waiter)
        if not heap:
            self._forget(place)
        return found

    def _forget(self, place: WaitingPlace) -> None:
        self._places.pop(place, None)
        places = self._topics.get(place.topic)
        if places is not None:
            places.discard(place)
            if not places:
                del self._topics[place.topic]

    def _end(self, waiter: PopWaiter) -> None:
        if not waiter.done:
            waiter.done = True
            self._count -= 1

    # ---- waking ----

    def wake(self, place: WaitingPlace, *, all_of_them: bool = False) -> bool:
        """Lets one request try again; returns whether one was answered. `all_of_them` stands for as
        many as find something."""
        answered = False
        while (waiter := self._take(place)) is not None:
            self._end(waiter)
            if not self._resume(waiter, last=False):
                waiter.done = False
                self._add(waiter)
                return answered
            answered = True
            if not all_of_them:
                return True
        return answered

    @staticmethod
    def _resume(waiter: PopWaiter, *, last: bool) -> bool:
        """Returns whether it was answered; one that fails is not asked again, and holds up
        nobody."""
        try:
            return waiter.resume(last)
        except Exception as failed:  # noqa: BLE001 - logged
            quiet.error(
                type(failed), failed, "A request that waits for %s failed", waiter.place.topic
            )
            return True

    def wake_all(self) -> None:
        """Answers everything, since the broker stops."""
        for waiter in list(self._all()):
            self._end(waiter)
            self._resume(waiter, last=True)
        self._places, self._topics, self._ends = {}, {}, []
        if self._timer is not None:
            self._timer.cancel()

    def _all(self) -> Iterator[PopWaiter]:
        for heap in self._places.values():
            yield from (waiter for _, _, waiter in heap if not waiter.done)

    # ---- the end of waiting ----

    def _arm(self) -> None:
        while self._ends and self._ends[0][2].done:
            heapq.heappop(self._ends)
        if not self._ends or (self._timer is not None and self._timer_ms <= self._ends[0][0]):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = self._ends[0][0]
        wait_s = max(0.0, (self._timer_ms - self._now_ms()) / 1000)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(min(wait_s, _LOOK_AGAIN_S), self.expire)

    def expire(self) -> None:
        """Answers what has waited long enough."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        now = self._now_ms()
        while self._ends and (self._ends[0][2].done or self._ends[0][0] <= now):
            waiter = heapq.heappop(self._ends)[2]
            if waiter.done:
                continue
            self._end(waiter)
            if waiter.alive():
                self._resume(waiter, last=True)
            heap = self._places.get(waiter.place, [])
            while heap and heap[0][2].done:
                heapq.heappop(heap)
            if not heap:
                self._forget(waiter.place)
        self._arm()
