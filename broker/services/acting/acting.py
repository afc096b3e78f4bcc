"""When a slave acts as master, and what it does then (docs/replication.md; upstream
BrokerController.onMinBrokerChange). Acting means that its duties are on that send what is due to
other brokers, and nothing else: its log stays the master's."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from dataclasses import replace
from typing import Any

from broker.loop.lifetime import end_tasks
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.services.acting.bridge import AskAt, Bridge
from broker.services.acting.due_messages import Source, sources_of
from broker.services.acting.escape_ledger import EscapeLedger
from broker.services.acting.escape_sender import EscapeSender
from broker.services.acting.pop_journal import PopJournal
from broker.services.context import Services
from broker.services.duties import BrokerRole
from broker.services.replication.slave import HaSlave
from broker.wire.codes import RequestCode
from broker.wire.command import Command
from pystore.errors import StoreError

__all__ = ["Acting"]

log = SafeLogger("broker.acting")
quiet = RateLimitedLogger(log)

#: Looks, a second apart, that must find the master gone.
_LOOKS = 2
#: How long a master has to register, once it has asked for what was done in its place.
_YIELD_S = 20.0
#: From one look at what is due to the next, and after a failure.
_PAUSE_S, _RETRY_S = 0.1, 1.0
#: More versions than a master makes between two looks of its slave.
_VERSIONS_AHEAD = 1 << 16
#: How long what is on its way to another broker has at the end.
_DRAIN_S = 2.0


class Acting:
    """What one slave does in its master's place. It lives on the event loop."""

    def __init__(self, s: Services, slave: HaSlave, ask: AskAt) -> None:
        """Raises: OSError."""
        self._s, self._slave = s, slave
        self.ledger = EscapeLedger(
            s.store.path / "config" / "escaped.jsonl", s.store.settings.file_mode
        )
        self.ledger.load(lambda topic, queue: s.store.range(topic, queue)[1])
        self.pops = PopJournal(s, self.ledger)
        self._ask = ask
        self._paying: asyncio.Task[None] | None = None
        bridge = Bridge(s.broker_name, int(s.settings["brokerId"]), s.registration.route, ask)
        self.sender = EscapeSender(bridge, self.ledger)
        self.sender.careful = s.settings["totalReplicas"] > 2
        self._gone = 0
        self._yields_until = 0.0
        self._closed_at = -1
        self._acted = bool(self.ledger) or bool(self.pops)
        #: The master that returned knows what was done here, so that its own offsets are the right
        #: ones, or this is that long ago.
        self._is_told, self._told_until = not self._acted, math.inf
        #: The master that is followed knows that there is something to ask for.
        self._has_hinted = False
        self._hinting: asyncio.Task[None] | None = None
        self._owes = bool(self.pops)
        assert s.replication is not None
        s.replication.is_held = self._holds
        self._looking: asyncio.Task[None] | None = None
        self._changing: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ends = asyncio.Event()

    @property
    def is_on(self) -> bool:
        return self._s.duties is not None and self._s.duties.role is BrokerRole.ACTING

    # ---- when ----

    def hint(self) -> None:
        """Asks the name server, which has news, or so somebody says who need not be believed."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self.look())

    async def look(self) -> None:
        """Looks whether the master is gone, and no broker of a smaller id is there: a job, every
        second."""
        try:
            members = await self._s.registration.members()
        except (OSError, TimeoutError, ValueError) as failed:
            quiet.warning("no members", "Who is there of this broker's name is unknown: %s",
                          failed)  # fmt: skip
            members = None
        self._forget()
        if members is not None and members.keys() - {0, int(self._s.settings["brokerId"])}:
            self.sender.careful = True
        if members is not None and 0 in members:
            self._yields_until = 0.0
            self._is_told = self._is_told or not self.is_on
            self._pay()
        if self._slave.follows or (members is not None and not self._is_first(members)):
            self._gone = 0
        elif members is not None and self._is_over():
            self._gone += 1
        self._hint_master()
        acts = self._gone >= _LOOKS and time.monotonic() >= self._yields_until
        self._become(BrokerRole.ACTING if acts else BrokerRole.SLAVE)

    def _is_over(self) -> bool:
        """Says whether the master is dead, or has had time to notice that it is cut off."""
        patience_s = int(self._s.settings["brokerNotActiveTimeoutMillis"]) / 1000
        slave = self._slave
        return slave.refused or time.monotonic() - slave.heard_at >= patience_s

    def _hint_master(self) -> None:
        """Tells a master that was never gone, or to which no name server showed this slave, that it
        acted."""
        replication, follows = self._s.replication, self._slave.follows
        running = self._hinting is not None and not self._hinting.done()
        if not follows or self.is_on:
            self._has_hinted, self._told_until = False, math.inf
        elif math.isinf(self._told_until):
            self._told_until = time.monotonic() + _YIELD_S
        owes = self._acted or bool(self.ledger) or bool(self.pops)
        asked = time.monotonic() < self._yields_until  # a moment ago: it takes it
        if follows and owes and self._closed_at < 0 and not (asked or self._has_hinted or running):
            assert replication is not None
            self._hinting = asyncio.get_running_loop().create_task(
                self._hint(replication.master_address)
            )

    async def _hint(self, address: str) -> None:
        ext = {"acted": self._s.address}
        try:
            await self._ask(address, Command(RequestCode.EXCHANGE_BROKER_HA_INFO, ext))
            self._has_hinted = True
        except (OSError, TimeoutError, ValueError) as failed:
            quiet.warning("not told", "The master does not hear that this slave acted: %s",
                          failed)  # fmt: skip

    def _holds(self) -> bool:
        """Returns whether this slave keeps what it did until the master has asked for it."""
        late = self._slave.follows and time.monotonic() > self._told_until
        return self.is_on or not (self._is_told or late)

    def _is_first(self, members: dict[int, str]) -> bool:
        own = int(self._s.settings["brokerId"])
        return own in members and own == min(members)

    def _become(self, role: BrokerRole) -> None:
        duties = self._s.duties
        running = self._changing is not None and not self._changing.done()
        if duties is None or duties.role is role or running:
            return
        if role is BrokerRole.ACTING:
            log.warning("The master is gone: this slave does what is due in its place")
        else:
            log.info("This slave no longer acts as master")
        self._changing = asyncio.get_running_loop().create_task(duties.change_role(role))

    async def give_way(self) -> list[list[Any]]:
        """Ends acting, for the master that returns. Returns what has been sent, as rows of Origin;
        nothing follows it."""
        self._gone = 0
        self._yields_until = self._told_until = time.monotonic() + _YIELD_S
        if self._changing is not None:
            await asyncio.wait({self._changing})
        self._become(BrokerRole.SLAVE)
        if self._changing is not None:
            await self._changing
        await self.sender.settle()
        await self.pops.go_on()
        if self._acted:
            await asyncio.to_thread(self._lead)
            self._acted = False
        return [list(origin) for origin in self.ledger]

    def _lead(self) -> None:
        """Raises versions for a master of Java's, which takes over what has a later one than its
        own; this slave knows that as it was some seconds before the end. Raises: StoreError."""
        metadata = self._s.store.metadata
        for name in ("offsets", "delays"):
            version = metadata.version(name)
            later = replace(version.bumped(), counter=version.counter + _VERSIONS_AHEAD)
            metadata.raise_version(name, later)

    async def popped(self, start: int) -> dict[str, Any]:
        """Returns what was popped and acknowledged here, from this row on, after give_way().
        Raises: OSError."""
        rows, more = await self.pops.rows(start)
        pop = self._s.pop
        order = pop.order.text().decode() if pop is not None and start == 0 else ""
        return {"pops": rows, "popsMore": more, "order": order}

    def owe_java(self) -> None:
        """Owes a master of Java's that returns what was popped here: it gets that once it serves.
        Raises: OSError."""
        self.pops.owe_java()
        self._owes = bool(self.pops)

    def _pay(self) -> None:
        running = self._paying is not None and not self._paying.done()
        if self._owes and self._slave.follows and not self.is_on and not running:
            self._paying = asyncio.get_running_loop().create_task(self._pay_java())

    async def _pay_java(self) -> None:
        replication = self._s.replication
        assert replication is not None
        try:
            await self.pops.pay(self._ask, replication.master_address)
            self._owes = False
        except (OSError, TimeoutError, ValueError) as failed:
            quiet.warning("owed", "The master does not take what was popped here: %s",
                          failed)  # fmt: skip

    def taken(self, end: int) -> None:
        """Notes that the master has closed what was sent, in its log up to `end`: what has gone is
        forgotten once that is here. Raises: OSError."""
        self._closed_at, self._is_told, self._owes = end, True, False
        self.pops.taken(end)

    def _forget(self) -> None:
        if 0 <= self._closed_at <= self._s.store.info().log_max and not self.is_on:
            self._closed_at = -1
            try:
                self.ledger.forget()
                self.pops.forget()
            except OSError as failed:
                log.warning("Cannot delete the list of what has gone: %s", failed)

    # ---- the duty ----

    def start(self) -> None:
        self._acted, self._is_told = True, False
        self._closed_at = -1  # it gets longer, and some of it may not be closed here
        self._ends = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._work(source))
            for source in sources_of(self._s, self.sender, self.pops)
        ]

    async def stop(self) -> None:
        self._ends.set()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_DRAIN_S)
            await end_tasks(*late)
        self._tasks = []
        self.ledger.close()
        self.pops.end()

    async def _work(self, source: Source) -> None:
        begun = failing = False
        while not self._ends.is_set():
            pause_s = _PAUSE_S
            try:
                if not begun:
                    await source.begin()
                    begun = True
                if await source.round(self._now_ms()):
                    pause_s = 0.0
                if failing:
                    log.info("%s: what is due goes to other brokers again", source.name)
                failing = False
            except (OSError, TimeoutError, StoreError) as failed:
                if not failing:
                    log.warning("%s: what is due does not go to another broker now: %s",
                                source.name, failed)  # fmt: skip
                failing, pause_s = True, _RETRY_S
            except Exception:
                log.exception("%s: cannot send what is due", source.name)
                pause_s = _RETRY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._ends.wait()

    def _now_ms(self) -> int:
        schedule = self._s.schedule
        return schedule.now_ms() if schedule is not None else time.time_ns() // 1_000_000
