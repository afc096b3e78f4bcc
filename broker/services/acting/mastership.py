"""A master that slaves may act for makes sure, all the time, that none does. One that reaches
neither a name server that knows it nor a slave may have a successor already: it delivers nothing,
serves no pops and decides no transactions, until it has asked the slaves what they did
(docs/replication.md#a-slave-that-acts-as-master)."""

from __future__ import annotations

import asyncio
import math
import time

from broker.loop.lifetime import end_tasks
from broker.loop.safe_log import SafeLogger
from broker.services.acting.bridge import AskAt
from broker.services.acting.taking_back import TakingBack
from broker.services.context import Services
from broker.services.duties import BrokerRole
from broker.services.replication.master import HaMaster
from pystore.errors import StoreError

__all__ = ["Mastership"]

log = SafeLogger("broker.acting")

#: Parts of brokerNotActiveTimeoutMillis, which is how long a slave waits at least before it acts:
#: after the first one nothing is done any more that a slave may do, after the other one the slaves
#: are asked before it is done again.
_PAUSED, _CUT_OFF = 0.25, 0.6
#: Two looks: with a short timeout the first part is so long, if that is not half of it.
_PAUSED_S = 2.0
#: Heartbeats of a slave that may be missing.
_BEATS = 2
_RETRY_S = 1.0
#: Slaves that say by themselves that they acted.
_TOLD_MAX = 16


class Mastership:
    """The mastership of one broker. It lives on the event loop. cut_offs: since the start."""

    def __init__(self, s: Services, master: HaMaster, ask: AskAt) -> None:
        self._s, self._master = s, master
        self._taking = TakingBack(s, ask)
        self._sure_at = time.monotonic()
        #: Of the log, at the look before.
        self._end_before = 0
        #: Addresses of slaves, as a name server last knew them, and whether one answers now.
        self._slaves: set[str] = set()
        self._is_named = False
        self._told: set[str] = set()
        self._reached = asyncio.Event()
        self._round: asyncio.Task[None] | None = None
        self._away: asyncio.Task[None] | None = None
        self._is_started = False
        self.cut_offs = 0
        s.core.lead_until(0)  # clients that know the address come before the slaves are asked

    @property
    def is_away(self) -> bool:
        return self._away is not None and not self._away.done()

    def start(self) -> None:
        """Looks for slaves from now on: until now they were asked."""
        self._sure_at = time.monotonic()
        self._is_started = True
        self._lead()

    async def stop(self) -> None:
        tasks = self._round, self._away
        self._round = self._away = None
        await end_tasks(*tasks)
        self._s.core.lead_until(math.inf)

    @property
    def _patience_s(self) -> float:
        return float(self._s.settings["brokerNotActiveTimeoutMillis"]) / 1000

    def _lead(self) -> None:
        patience_s = self._patience_s
        pause_s = max(_PAUSED * patience_s, min(_PAUSED_S, patience_s / 2))
        self._s.core.lead_until(self._sure_at + pause_s)

    def look(self) -> None:
        """Looks who follows this master, and whether slaves have acted: a job, every second. It
        does not wait for name servers: one may be slow."""
        if not self._s.registration.servers:  # no slave acts that has none either
            self._s.core.lead_until(math.inf)
            return
        if self._round is None or self._round.done():
            self._round = asyncio.get_running_loop().create_task(self._ask_names())
        now, before = time.monotonic(), self._sure_at
        if self._is_followed():
            self._sure_at = now
            self._reached.set()
        if self.is_away:
            return
        if self._told:
            self._leave(f"slaves acted: {', '.join(sorted(self._told))}")
        elif now - before > _CUT_OFF * self._patience_s:
            self._leave("neither a name server that knows this master nor a slave was reached for"
                        f" {now - before:.0f} s")  # fmt: skip
        else:
            self._lead()

    async def _ask_names(self) -> None:
        asked = time.monotonic()
        try:
            members = await self._s.registration.members()
        except (OSError, TimeoutError, ValueError):
            self._is_named = False
            return
        self._slaves = {at for number, at in members.items() if number}
        self._is_named = True
        self._reached.set()
        if self.is_away:
            return
        if 0 not in members:
            self._s.registration.again()
        elif asked - self._sure_at <= _CUT_OFF * self._patience_s:  # else the next look leaves
            self._sure_at = max(self._sure_at, asked)
            self._lead()

    def _is_followed(self) -> bool:
        """Says whether a slave was heard just now, and has the log as it was at the look before."""
        self._master.look()
        end, self._end_before = self._end_before, self._master.end()
        silent_ms = _BEATS * int(self._s.settings["haSendHeartbeatInterval"])
        return any(
            each.is_within(1, end) and each.silent_ms <= silent_ms for each in self._master.slaves
        )

    def hint(self, address: str) -> None:
        """Takes the word of a slave that it acted, and that nobody has asked it what it did."""
        if len(self._told) < _TOLD_MAX:
            self._told.add(address)
        if not self._is_started:
            return  # the next look leaves
        if not self.is_away:
            self._leave(f"the slave at {address} acted")
        self._reached.set()

    # ---- away ----

    def _leave(self, why: str) -> None:
        self._reached.clear()
        self._s.core.lead_until(0)
        log.warning("A slave may act in this master's place, which pauses until it has asked: %s",
                    why)  # fmt: skip
        self.cut_offs += 1
        self._away = asyncio.get_running_loop().create_task(self._stay_away())

    async def _stay_away(self) -> None:
        s, duties = self._s, self._s.duties
        assert duties is not None
        s.registration.rests = True  # who registers has asked: slaves take its offsets then
        await duties.change_role(BrokerRole.CUT_OFF)
        s.core.notify_all()  # who waits here goes elsewhere
        while not await self._has_asked():
            await asyncio.sleep(_RETRY_S)
        self.start()
        await duties.change_role(BrokerRole.MASTER)
        s.registration.rests = False
        s.registration.again()
        s.core.notify_all()
        log.info("This master does all its duties again")

    async def _has_asked(self) -> bool:
        await self._reached.wait()
        self._reached.clear()
        told, self._told = self._told, set()
        try:
            await self._taking.run(lambda: told if self._is_named else told | self._slaves)
        except StoreError as failed:
            log.error("Cannot take over what slaves did in this master's place; will retry: %s",
                      failed)  # fmt: skip
            self._told |= told
            self._reached.set()
            return False
        return True
