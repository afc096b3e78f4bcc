"""What the first page of a cluster shows: rates of the last quarter hour, totals, what the doctor
finds. It is asked in the background; no request waits for it longer than a moment."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.client.admin.facts import whole_of
from broker.client.errors import ClientError
from broker.client.rates import Look
from broker.doctor import examine_network
from broker.doctor.findings import Diagnosis
from broker.loop.lifetime import end_tasks
from broker.services.names import is_system_group
from broker.web.cached import CachedAnswer
from broker.web.cluster_facts import ClusterFacts
from broker.web.drawing import RatePlot, plot_of
from broker.web.rows import Examination, LagTotal
from broker.wire import mqjson
from broker.wire.codes import RequestCode
from broker.wire.command import Command

if TYPE_CHECKING:
    from broker.client.admin import BrokerFacts
    from broker.client.credentials import Credentials

__all__ = ["ClusterOverview", "RateSample", "byte_rate"]

#: Between two looks at rates, and how many are kept: a quarter of an hour. A look at a large
#: cluster takes long; the next one is so many times later.
_STEP_S, _SAMPLES, _RESTS = 5.0, 180, 4.0
#: How long what the doctor found is taken for the present, and how old it may be shown.
_EXAMINED_S, _EXAMINED_MAX_S = 60.0, 3600.0
#: Brokers that the doctor looks at, and how long at each.
_BROKERS, _PATIENCE_S = 20, 60.0
#: So many topics of dead letters are counted: each costs requests.
_DEAD = 200
#: What brokers count of bytes in, and brokers of ours of bytes out.
_IN, _OUT = "putMessageSizeTotal", "getMessageSizeTotal"


@dataclass(frozen=True, slots=True)
class RateSample:
    """when: seconds of a steady clock. came, went: messages a second. came_bytes, went_bytes: bytes
    a second; of the first look nobody knows them, and they are 0."""

    when: float
    came: float
    went: float
    came_bytes: float
    went_bytes: float


def byte_rate(before: Look | None, now: Look, entry: str) -> float:
    """Returns the bytes a second by which an entry grew between two looks. A broker that started
    meanwhile counts from its start."""
    if before is None or now.when <= before.when:
        return 0.0
    old = {each.address: whole_of(each.entries.get(entry, "")) for each in before.brokers}
    new = {each.address: whole_of(each.entries.get(entry, "")) for each in now.brokers}
    grown = [size - old[where] if size >= old[where] else size
             for where, size in new.items() if where in old]  # fmt: skip
    return sum(grown) / (now.when - before.when)


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
        await end_tasks(self._sampling)
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
                sum(each.get_rate for each in look.brokers),
                byte_rate(self._before, look, _IN), byte_rate(self._before, look, _OUT),
            )
        )  # fmt: skip
        self._before = look

    def plots(self) -> tuple[RatePlot, RatePlot]:
        """Returns plots of messages, and of bytes. Apache's brokers do not count bytes out."""
        kept = list(self.samples)
        times = [each.when for each in kept]
        sizes: dict[str, Sequence[float]] = {"came": [each.came_bytes for each in kept]}
        if self._before is not None and all(_OUT in b.entries for b in self._before.brokers):
            sizes["went"] = [each.went_bytes for each in kept]
        return plot_of(times, {
            "came": [each.came for each in kept], "went": [each.went for each in kept],
        }), plot_of(times, sizes, binary=True)  # fmt: skip

    # ---- totals ----

    async def _names(self) -> tuple[int, int]:
        """Returns topics and groups of users. Raises: ClientError."""
        topics = sum(each.kind == "messages" for each in await self._facts.topics.get())
        groups = sum(not is_system_group(name) for name in await self._facts.configs.get())
        return topics, groups

    async def _lag(self) -> LagTotal:
        """Returns what waits for groups of users. Raises: ClientError."""
        behind: dict[str, int] = {}
        for each in await self._facts.lags.get():
            behind[each.group] = behind.get(each.group, 0) + each.behind
        return LagTotal.of(behind)

    async def _dead(self) -> tuple[int | None]:
        """Returns the dead letters of all groups; None where too many groups have any. Raises:
        ClientError."""
        topics = [each for each in await self._facts.topics.get() if each.kind == "dead letters"]
        if len(topics) > _DEAD:
            return (None,)
        found = await asyncio.gather(*(self._facts.walker.topic(each.name) for each in topics))
        return (sum(each.messages for each in found),)

    async def _waiting(self) -> tuple[int | None, int | None]:
        """Returns delayed messages, and open transactions; None where a broker does not count them.
        Raises: ClientError."""
        looks = (await self._facts.brokers.get()).brokers
        timers, halves = zip(
            (0, 0), *await asyncio.gather(*map(self._waiting_at, looks)), strict=True
        )
        return _sum(timers), _sum(halves)

    async def _waiting_at(self, look: BrokerFacts) -> tuple[int | None, int | None]:
        """Returns the same of one broker."""
        wheel, table = await asyncio.gather(
            self._metrics(look.address, "timers"), self._metrics(look.address, "transactions")
        )
        levels = sum(
            _level(text) for name, text in look.entries.items()
            if name.startswith("scheduleMessageOffset_")
        )  # fmt: skip
        pending = None if wheel is None else levels + int(wheel.get("rocketmq_timer_pending", 0))
        halves = None if table is None else sum(
            int(value) for name, value in table.items() if name.startswith("rocketmq_half_messages")
        )  # fmt: skip
        return pending, halves

    async def _metrics(self, address: str, of: str) -> Mapping[str, float] | None:
        """Returns the metrics of a broker; none of a broker of Apache's, which passes over what is
        asked for. Raises: ClientError."""
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        answer = await self._facts.walker.network.request(address, code, {"metrics": of})
        table = mqjson.loads(answer.body or b"{}").get("table") or {}
        return None if "brokerVersion" in table else table

    async def _replicas(self) -> dict[str, str]:
        """Returns what each master says of its slaves, by address. Raises: ClientError."""
        masters = list((await self._facts.masters()).values())
        said = await asyncio.gather(*map(self._replicas_of, masters))
        return {where: text for where, text in zip(masters, said, strict=True) if text}

    async def _replicas_of(self, where: str) -> str:
        """Returns what one master says of its slaves. Raises: ClientError."""
        answer = await self._facts.walker.network.exchange(
            where, Command(RequestCode.GET_BROKER_HA_STATUS), 3.0
        )
        if answer.code:  # 4.9 does not know it
            return ""
        rows = mqjson.loads(answer.body or b"{}").get("haConnectionInfo") or ()
        in_sync = sum(bool(row.get("inSync")) for row in rows)
        return f"{in_sync} of {len(rows)} in sync" if rows else "none"

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


def _sum(counts: Sequence[int | None]) -> int | None:
    """Returns a sum, None where one of the numbers is."""
    known = [each for each in counts if each is not None]
    return sum(known) if len(known) == len(counts) else None


def _level(text: str) -> int:
    """Returns how many wait of "delivered,end"."""
    done, _, end = text.partition(",")
    return max(0, int(end) - int(done)) if done.isdigit() and end.isdigit() else 0
