"""How far consumers are behind, and who is connected: one pass over all groups, now and then, in
pieces; a scrape takes what the last pass has found. Upstream: ConsumerLagCalculator, which walks
all groups five times at each scrape.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping

from broker.figures.connections import add_connections, is_system_label
from broker.figures.lite import add_lite_lags, add_lite_latencies
from broker.loop.lifetime import end_tasks
from broker.loop.turns import Pieces
from broker.metrics.page import MetricSample, Page
from broker.processors.offsets import store_time
from broker.processors.popstats import lag_samples, pop_samples, pops
from broker.services.context import Services
from pystore.format.names import RETRY_PREFIX

__all__ = ["Lag"]

#: Seconds between two passes; a pass may take this part of the time.
EVERY_S, PART = 5.0, 0.05


class Lag:
    """The figures of all groups, renewed while it runs."""

    def __init__(self, services: Services, common: Mapping[str, str], most: int) -> None:
        """Takes what a page begins with. common: labels of every sample. most: how many series a
        metric has."""
        self._s = services
        self._common, self._most = common, most
        self._task: asyncio.Task[None] | None = None
        #: What the last pass has found, as a scrape has it.
        self.text = b""
        self.left_out = 0
        self._taken = 0.0

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._taken if self._taken else 0.0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        await end_tasks(self._task)

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            await self.take()
            took = time.monotonic() - began
            await asyncio.sleep(max(EVERY_S, took / PART))

    async def take(self) -> None:
        """Takes a pass over all groups."""
        page, turns = Page(self._common, self._most), Pieces()
        pairs = [
            (name, topic)
            for name, group in self._s.clients.consumers.items()
            for topic in group.subscriptions
            if not topic.startswith(RETRY_PREFIX)
        ]
        connected = set(pairs)
        popping: dict[str, bool] = {}
        for name, topic in pairs:
            await turns.next()
            does_pop = pops(self._s, name, topic)
            popping[name] = popping.get(name, False) or does_pop
            if not does_pop:
                page.extend(await self._of_pair(name, topic, turns))
        # Upstream has no lag of a group that is not connected, which is behind most of all.
        for name, topics in (await self._s.offsets.topics_by_group()).items():
            for topic in topics:
                if (name, topic) in connected or topic.startswith(RETRY_PREFIX):
                    continue
                if is_system_label(topic, name) == "false":
                    await turns.next()
                    page.extend(await self._of_pair(name, topic, turns))
        add_lite_lags(page, self._s)
        await add_lite_latencies(page, self._s, turns)
        await add_connections(page, self._s, popping, turns)
        for sample in await pop_samples(self._s):
            page.extend((sample,))
            await turns.next()
        self.text = await asyncio.to_thread(page.text)
        self.left_out, self._taken = page.left_out, time.monotonic()

    async def _of_pair(self, group: str, topic: str, turns: Pieces) -> Iterator[MetricSample]:
        """Returns the samples of a group that pulls a topic. A queue of which it has not committed
        anything counts as caught up, as upstream has it."""
        s, config = self._s, self._s.topics.get(topic)
        ready = flying = 0
        late = queueing = now = time.time_ns() // 1_000_000
        for queue in range(config.write_queue_nums if config is not None else 0):
            await turns.next()
            low, high = s.store.span(topic, queue)
            committed = s.offsets.get(group, topic, queue)
            if committed is None:
                continue
            at = min(max(committed, low), high)
            pulled = min(max(s.offsets.pulled(group, topic, queue) or 0, at), high)
            flying += pulled - at
            ready += high - pulled
            late = min(late, _since(s, topic, queue, at, high, now))
            queueing = min(queueing, _since(s, topic, queue, pulled, high, now))
        label = {
            "consumer_group": group,
            "is_retry": "false",
            "is_system": is_system_label(topic, group),
            "topic": topic,
        }
        return lag_samples(label, ready + flying, flying, ready, now - late, now - queueing)


def _since(s: Services, topic: str, queue: int, at: int, high: int, now: int) -> int:
    """Returns when the message at `at` was stored; now, if there is none."""
    found = store_time(s, topic, queue, at) if at < high else -1
    return found if found >= 0 else now
