"""A broker under a controller: it says that it is alive, learns who is the master, and becomes what
it is to be. In a new role everything over the store begins again: of what one epoch had in memory
the next one has nothing but who consumed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.reasons import reason_of
from broker.loop.safe_log import SafeLogger
from broker.remoting.client import parse_address
from broker.services.context import Services
from broker.services.controlled.continuity import Continuity
from broker.services.controlled.controller import (
    NO_EPOCH,
    Controller,
    ControllerRefused,
    Heartbeat,
    LogDoubt,
)
from broker.services.controlled.set_keeper import SetKeeper
from broker.services.replication.elected_role import ElectedRole, ElectionRecord
from pystore.errors import StoreError

__all__ = ["GroupMember"]

log = SafeLogger("broker.controlled")
quiet = RateLimitedLogger(log)

_PAUSE_S = 1.0
#: The same for a while after the connection to the master broke: a notice may be lost.
_SOON_S, _SOON_FOR_S = 0.1, 3.0
#: A round that takes so many lives is stuck: somebody else shall be the master.
_STUCK = 2.0
#: How long a host has to say that nobody listens there.
_REFUSED_S = 0.2
#: Of the time after which a controller holds a broker for dead: the rest is for clocks that run
#: apart, and for the controller's own look at them.
_LEASE = 0.6


class GroupMember:
    """One broker in its group, from start to end. It lives on the event loop."""

    def __init__(
        self,
        controller: Controller,
        elected: ElectedRole,
        become: Callable[[ElectedRole], Awaitable[None]],
        keep: Callable[[ElectedRole], None],
        services: Callable[[], Services | None],
        timeout_ms: int,
        continuity: Continuity,
    ) -> None:
        """Takes the callbacks. become: serves in another role. keep: what it is from its next start
        on. services: of the broker as it is now; None: it is being started. timeout_ms: after it
        the controller holds a broker for dead."""
        self._controller, self.elected, self._services = controller, elected, services
        self._become, self._keep_role, self._continuity = become, keep, continuity
        self._lease_s, self._stuck_s = (timeout_ms / 1000 * each for each in (_LEASE, _STUCK))
        #: When it asked for the record that it goes by, and when the controller answered last.
        self._heard_s = self._answered_s = time.monotonic()
        self._news = asyncio.Event()
        self._lost_s = -_SOON_FOR_S
        self._tasks: list[asyncio.Task[None]] = []
        #: What the controller is told of this broker every second; None: it is silent.
        self._beat: Heartbeat | None = None
        self._becoming: asyncio.Future[None] | None = None
        self._registered = self._has_begun = False
        #: The epoch when this life of the broker began: it is nobody's any more.
        self._former: int | None = None
        self.keeper: SetKeeper | None = None
        self.problem = "nothing is known yet"

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(each) for each in (self._run(), self._stay_alive())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._becoming is not None:
            await asyncio.wait({self._becoming})
        await self._controller.leave()

    def hint(self) -> None:
        """Asks the controller now: somebody says that there is news, who need not be believed."""
        self._news.set()

    def lost(self) -> None:
        """Looks at once: the connection to the master is over, and it may have ended."""
        self._lost_s = time.monotonic()
        self.hint()

    def members(self) -> list[dict[str, object]]:
        """Returns the members of the group, as its master sees them; nothing of a slave."""
        seen = self.keeper.members() if self.keeper is not None else ()
        return [
            {"brokerId": each.number, "slaveAckOffset": each.end, "inSync": each.in_sync,
             "why": each.why}
            for each in seen
        ]  # fmt: skip

    # ---- the loop ----

    async def _run(self) -> None:
        while True:
            try:
                await self._turn()
            except ControllerRefused as refused:
                self._registered = False
                self._tell("refused", refused)
            except (OSError, TimeoutError, ValueError) as failed:
                self._tell("not reached", reason_of(failed))
            except Exception:
                log.exception("A round of the controller failed")
            soon = time.monotonic() - self._lost_s < _SOON_FOR_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SOON_S if soon else _PAUSE_S):
                    await self._news.wait()
            self._news.clear()

    async def _stay_alive(self) -> None:
        """Sends heartbeats beside the rounds, which may take long: a broker that is busy is alive,
        and a master that does not reach its controller is fenced in time."""
        next_s = 0.0
        while True:
            now, s = time.monotonic(), self._services()
            if self.keeper is not None and now - self._heard_s > self._lease_s:
                self.keeper.fence(True)
            if self._beat is not None and next_s <= now < self._answered_s + self._stuck_s:
                next_s = now + _PAUSE_S
                with contextlib.suppress(StoreError):  # it is closed just now: as it was
                    self._beat = self._state(s) or self._beat
                self._controller.beat(self.elected.number, self._beat)
            await asyncio.sleep(min(_PAUSE_S, self._lease_s) / 4)

    def _tell(self, kind: str, problem: object) -> None:
        self.problem = str(problem)
        quiet.warning(kind, "The controller that elects masters: %s", problem)

    async def _turn(self) -> None:
        s = self._services()
        if s is None or s.replication is None:
            return
        asked_s = time.monotonic()
        async with asyncio.timeout(self._lease_s):
            record = await self._ask(s)
        self._heard_s, self.problem = asked_s, ""
        if self._is_of_former_life(record):
            record = await self._controller.elect(self.elected.number)
        if self._is_of_former_life(record):
            self._tell("former life", f"epoch {record.epoch} is of a former life of this broker:"
                       " it waits until the controller has noticed the end")  # fmt: skip
            return
        self._show_alive(s)
        await self._take(record)
        await self._end_doubt(record)
        if self.keeper is not None:
            self.keeper.fence(False)
            async with asyncio.timeout(self._lease_s):
                await self.keeper.round()

    def _show_alive(self, s: Services) -> None:
        """Shows that this broker is alive from now on."""
        self._beat = self._beat or self._state(s)
        if self._beat is not None:
            self._controller.beat(self.elected.number, self._beat)

    async def _ask(self, s: Services) -> ElectionRecord:
        if not self._registered:
            await self._register(s)
        record, gone = await asyncio.gather(self._controller.look(), self._saw_go(s))
        self._answered_s = time.monotonic()
        if self._former is None:
            self._former = record.epoch
        if record.master is None:
            self._show_alive(s)
            held = self.elected.epoch if self.elected.is_master else NO_EPOCH
            record = await self._controller.elect(self.elected.number, held)
        elif gone and record.epoch == self.elected.epoch and self.elected.number in record.in_sync:
            log.info("Nobody is at %s any more: this broker would be the master", record.address)
            record = await self._controller.succeed(self.elected.number, record)
        return record

    async def _register(self, s: Services) -> None:
        if not self._has_begun:
            synced = s.settings["flushDiskType"] == "SYNC_FLUSH"
            await self._continuity.begin(s.store.report.mode, synced)
            self._has_begun = True
        state = self._state(s) if not self._continuity.is_sure else None
        doubt = LogDoubt(state.epoch, state.end) if state is not None else None
        await self._controller.register(self.elected.number, s.address, s.ha_address, doubt)
        self._registered = True

    async def _end_doubt(self, record: ElectionRecord) -> None:
        """Ends the doubt once this broker has all that was acknowledged, or is the one that says
        what that is."""
        s, of = self._services(), self.elected.record
        if self._continuity.is_sure or s is None or s.replication is None or of is None:
            return
        if (of.master, of.epoch) != (record.master, record.epoch):
            return
        if not self.elected.is_master:
            if s.replication.slave is None or not s.replication.slave.has_caught_up:
                return
            await self._controller.vouch(self.elected.number, record)
        await self._continuity.settle()

    async def _saw_go(self, s: Services) -> bool:
        """Says whether the master that this broker has followed, in the epoch that it knows, has
        ended. It does not listen, which a master that starts or is cut off does not show to who has
        followed it."""
        slave = s.replication.slave if s.replication is not None else None
        record = self.elected.record
        if slave is None or record is None or not record.address:
            return False
        if slave.follows or not slave.has_followed:
            return False
        return await _refuses(record.address) and await _refuses(record.address)

    def _is_of_former_life(self, record: ElectionRecord) -> bool:
        """Says whether this broker led in a former life. A master that has started again may have
        lost the end of its log, and slaves may have it: in one epoch there would be two messages at
        one place (as in apache/rocketmq#7689). So it is silent until the controller elects
        somebody, and has a new epoch if it is this broker."""
        former = self._former if self._former is not None else -1
        return record.master == self.elected.number and record.epoch <= former

    async def _take(self, record: ElectionRecord) -> None:
        """Becomes what the record says."""
        wanted = ElectedRole(self.elected.number, record)
        if record.epoch < self.elected.epoch:
            return  # of before
        if self.elected.record is None or not wanted.is_same_as(self.elected):
            await self._change(wanted)
        elif self.keeper is not None:
            self.keeper.saw(record)
        elif wanted.record != self.elected.record:
            self._follow(wanted)
        if self.keeper is None and wanted.is_master:
            self._keep(record)

    async def _change(self, wanted: ElectedRole) -> None:
        assert wanted.record is not None
        role = "the master" if wanted.is_master else f"a slave of {wanted.record.address or 'none'}"
        log.info("This broker (%d) is %s in epoch %d", wanted.number, role, wanted.epoch)
        if wanted.is_master or self.elected.is_master:
            self.keeper = None
            # Half a start is none: who stops the broker waits for its end.
            self._becoming = asyncio.ensure_future(self._become(wanted))
            await asyncio.shield(self._becoming)
            self.elected = wanted
            self._registered = False  # a master has a port for slaves
            self.hint()  # who waits for that, or to be in sync, need not wait for the next round
        else:
            self._follow(wanted)

    def _follow(self, wanted: ElectedRole) -> None:
        """Follows another master, or the same one, as the same slave."""
        s, before = self._services(), self.elected.record
        self.elected = wanted
        self._keep_role(wanted)
        record = wanted.record
        if s is None or s.replication is None or record is None:
            return
        if before is None or _where(before) != _where(record):
            s.replication.follow(record.address, record.ha_address)

    def _keep(self, record: ElectionRecord) -> None:
        s = self._services()
        if s is not None and s.replication is not None and s.replication.master is not None:
            self.keeper = SetKeeper(
                self._controller, s.replication.master, record, self.elected.number, s.settings
            )

    @staticmethod
    def _state(s: Services | None) -> Heartbeat | None:
        """Returns what a heartbeat says. Raises: StoreError."""
        if s is None or s.replication is None:
            return None
        return Heartbeat(s.replication.last_epoch(), s.store.info().log_max,
                         s.replication.confirmed())  # fmt: skip


async def _refuses(address: str) -> bool:
    """Says whether nobody listens there, at a host that answers."""
    try:
        async with asyncio.timeout(_REFUSED_S):
            _, writer = await asyncio.open_connection(*parse_address(address))
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    return False


def _where(record: ElectionRecord) -> tuple[str, str, int]:
    """Returns what a slave connects for."""
    return record.address, record.ha_address, record.epoch
