"""What the first page of a cluster shows: rates of the last quarter hour, totals, what the doctor
finds. It is asked in the background; no request waits for it longer than a moment."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.client.errors import ClientError
from broker.client.rates import Look
from broker.doctor import examine_network
from broker.doctor.findings import Diagnosis
from broker.web.cluster_facts import CachedAnswer, ClusterFacts
from broker.web.drawing import RatePlot, plot_of
from broker.web.rows import is_system_group
from broker.wire import mqjson
from broker.wire.codes import RequestCode
from broker.wire.command import Command

if TYPE_CHECKING:
    from broker.client.credentials import Credentials

__all__ = ["ClusterOverview", "Examination", "RateSample", "byte_rate"]

#: Between two looks at rates, and how many are kept: a quarter of an hour. A look at a large
#: cluster takes long; the next one is so many times later.
_STEP_S, _SAMPLES, _RESTS = 5.0, 180, 4.0
#: How long what the doctor found is taken for the present, and how old it may be shown.
_EXAMINED_S, _EXAMINED_MAX_S = 60.0, 3600.0
#: Brokers that the doctor looks at, and how long at each.
_BROKERS, _PATIENCE_S = 20, 60.0
#: So many topics of dead letters are counted: each costs a request.
_DEAD = 200


@dataclass(frozen=True, slots=True)
class RateSample:
    """when: seconds of a steady clock. came, went: messages a second. came_bytes: bytes a second;
    of the first look nobody knows it, and it is 0."""

    when: float
    came: float
    went: float
    came_bytes: float


@dataclass(frozen=True, slots=True)
class Examination:
    """What the doctor found. when_ms: ms since 1970. skipped: brokers that it did not look at."""

    when_ms: int
    findings: list[Diagnosis] = field(default_factory=list)
    skipped: int = 0


def byte_rate(before: Look | None, now: Look) -> float:
    """Bytes a second that were put between two looks. A broker that started meanwhile counts from
    its start."""
    if before is None or now.when <= before.when:
        return 0.0
    old = {each.address: _put_bytes(each.entries) for each in before.brokers}
    new = {each.address: _put_bytes(each.entries) for each in now.brokers}
    grown = [size - old[where] if size >= old[where] else size
             for where, size in new.items() if where in old]  # fmt: skip
    return sum(grown) / (now.when - before.when)


def _put_bytes(entries: Mapping[str, str]) -> int:
    text = entries.get("putMessageSizeTotal", "")
    return int(text) if text.isascii() and text.isdigit() else 0


class ClusterOverview:
    """Looks at the rates as long as it runs; at everything else when a visitor asks.

    namesrv: of the cluster; empty: one broker is asked."""

    def __init__(
        self, facts: ClusterFacts, namesrv: str, credentials: Credentials | None,
        tls: ssl.SSLContext | bool,
    ) -> None:  # fmt: skip
        self._facts, self._namesrv = facts, namesrv
        self._credentials = credentials
        self._tls = tls if isinstance(tls, ssl.SSLContext) else None
        self.samples: deque[RateSample] = deque(maxlen=_SAMPLES)
        self.names = CachedAnswer(self._names)
        self.lag = CachedAnswer(self._lag)
        self.dead = CachedAnswer(self._dead)
        self.waiting = CachedAnswer(self._waiting)
        self.replicas = CachedAnswer(self._replicas)
        self.examined = CachedAnswer(self._examine, _EXAMINED_S, _EXAMINED_MAX_S)
        self._before: Look | None = None
        self._sampling: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._sampling = asyncio.ensure_future(self._sample())

    async def close(self) -> None:
        if self._sampling is not None:
            self._sampling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sampling
        for kept in (
            self.names, self.lag, self.dead, self.waiting, self.replicas, self.examined
        ):  # fmt: skip
            await kept.close()

    async def _sample(self) -> None:
        while True:
            began = time.monotonic()
            with contextlib.suppress(ClientError):
                self.take(await self._facts.brokers.get())
            await asyncio.sleep(max(_STEP_S, _RESTS * (time.monotonic() - began)))

    def take(self, look: Look) -> None:
        """Keeps the rates of a look; the same look twice is one."""
        if self._before is not None and look.when <= self._before.when:
            return
        self.samples.append(
            RateSample(
                look.when, sum(each.put_rate for each in look.brokers),
                sum(each.get_rate for each in look.brokers), byte_rate(self._before, look),
            )
        )  # fmt: skip
        self._before = look

    def plots(self) -> tuple[RatePlot, RatePlot]:
        """Of messages, and of bytes."""
        kept = list(self.samples)
        times = [each.when for each in kept]
        came, went = [each.came for each in kept], [each.went for each in kept]
        return (
            plot_of(times, {"came": came, "went": went}),
            plot_of(times, {"came": [each.came_bytes for each in kept]}),
        )

    # ---- totals ----

    async def _names(self) -> tuple[int, int]:
        """Topics and groups of users. Raises: ClientError."""
        topics = sum(each.kind == "messages" for each in await self._facts.topics.get())
        groups = sum(not is_system_group(name) for name in await self._facts.configs.get())
        return topics, groups

    async def _lag(self) -> int:
        """Messages that wait for groups of users. Raises: ClientError."""
        return sum(
            each.behind for each in await self._facts.lags.get() if not is_system_group(each.group)
        )

    async def _dead(self) -> int | None:
        """Dead letters of all groups; None where too many groups have any. Raises: ClientError."""
        topics = [each for each in await self._facts.topics.get() if each.kind == "dead letters"]
        if len(topics) > _DEAD:
            return None
        return sum([(await self._facts.walker.topic(each.name)).messages for each in topics])

    async def _waiting(self) -> tuple[int | None, int | None]:
        """Delayed messages, and open transactions; None where a broker does not count them. Raises:
        ClientError."""
        timers: int | None = 0
        halves: int | None = 0
        for look in (await self._facts.brokers.get()).brokers:
            levels = sum(
                _level(text) for name, text in look.entries.items()
                if name.startswith("scheduleMessageOffset_")
            )  # fmt: skip
            wheel = await self._metrics(look.address, "timers")
            pending = wheel.get("rocketmq_timer_pending", 0) if wheel is not None else None
            timers = None if timers is None or pending is None else timers + levels + int(pending)
            table = await self._metrics(look.address, "transactions")
            halves = None if halves is None or table is None else halves + sum(
                int(value) for name, value in table.items()
                if name.startswith("rocketmq_half_messages")
            )  # fmt: skip
        return timers, halves

    async def _metrics(self, address: str, of: str) -> Mapping[str, float] | None:
        """None of a broker of Apache's, which passes over what is asked for. Raises:
        ClientError."""
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        answer = await self._facts.walker.network.request(address, code, {"metrics": of})
        table = mqjson.loads(answer.body or b"{}").get("table") or {}
        return None if "brokerVersion" in table else table

    async def _replicas(self) -> dict[str, str]:
        """What each master says of its slaves, by address. Raises: ClientError."""
        found = {}
        for where in (await self._facts.masters()).values():
            answer = await self._facts.walker.network.exchange(
                where, Command(RequestCode.GET_BROKER_HA_STATUS), 3.0
            )
            if answer.code:  # 4.9 does not know it
                continue
            rows = mqjson.loads(answer.body or b"{}").get("haConnectionInfo") or ()
            in_sync = sum(bool(row.get("inSync")) for row in rows)
            found[where] = f"{in_sync} of {len(rows)} in sync" if rows else "none"
        return found

    # ---- what needs attention ----

    async def _examine(self) -> Examination:
        """Asks the doctor about the name server and the masters, one after the other. Raises:
        ClientError."""
        masters = list((await self._facts.masters()).values())
        names = self._namesrv or None
        found: list[Diagnosis] = []
        skipped = max(0, len(masters) - _BROKERS)
        for where in filter(None, (names, *masters[:_BROKERS])):
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    _, some = await examine_network(
                        where, namesrv=names if where != names else None,
                        credentials=self._credentials, tls=self._tls,
                    )  # fmt: skip
            except (TimeoutError, OSError, ValueError):
                skipped += 1
            else:
                found += some
        found.sort(key=lambda each: -each.severity)
        return Examination(time.time_ns() // 1_000_000, found, skipped)


def _level(text: str) -> int:
    """How many wait of "delivered,end"."""
    done, _, end = text.partition(",")
    return max(0, int(end) - int(done)) if done.isdigit() and end.isdigit() else 0
