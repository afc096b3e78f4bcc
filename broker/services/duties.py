"""What a broker does by itself: duties, which begin and end while it runs.

A duty belongs to a role: those of the master rest while the broker is a slave. Which duties there
are stands in one table (duty_table.py); who starts one is :class:`Duties`, and nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from broker.loop.safe_log import SafeLogger

__all__ = ["BrokerRole", "Duties", "Duty", "PeriodicJob"]

log = SafeLogger(__name__)

_STEP_S = 1.0

#: Something to be done: at once, or as long as the coroutine runs that it returns.
Work = Callable[[], object]


class BrokerRole(enum.Enum):
    """The role of a broker among those of its name."""

    MASTER = "master"
    SLAVE = "slave"
    #: A master that a slave may act for just now: it does what no slave does.
    CUT_OFF = "master that is cut off"
    #: A slave that does a master's duties while there is none.
    ACTING = "acting master"


def _nothing() -> None:
    """Does nothing: a duty that has only jobs begins and ends with it."""


@dataclass(frozen=True, slots=True)
class PeriodicJob:
    """Work that a duty repeats. When `work` is a coroutine, it does not begin again before it
    has ended. `pause_s` is the time from one run to the next, at least a second. `changed`
    returns whether there is anything to do; so an idle broker does not begin a task a second for
    nothing."""

    what: str
    work: Work
    pause_s: Callable[[], float]
    changed: Callable[[], bool] = lambda: True


class _Running:
    """A job of a duty that is on. A failure is logged, and the job runs again when it is due."""

    __slots__ = ("due_s", "job", "task")

    def __init__(self, job: PeriodicJob) -> None:
        self.job = job
        self.due_s = asyncio.get_running_loop().time() + job.pause_s()
        self.task: asyncio.Task[None] | None = None

    def tick(self, now_s: float) -> None:
        if self.due_s > now_s:
            return
        # From now, not from when it was due: after a long sleep it runs once.
        self.due_s = now_s + max(self.job.pause_s(), _STEP_S) - _STEP_S / 2
        if self.task is not None and not self.task.done():
            return
        try:
            if not self.job.changed():
                return
            done = self.job.work()
        except Exception:
            log.exception("Cannot do the job: %s", self.job.what)
            return
        if inspect.isawaitable(done):
            self.task = asyncio.get_running_loop().create_task(self._finish(done))

    async def _finish(self, work: Awaitable[object]) -> None:
        try:
            await work
        except Exception:
            log.exception("Cannot do the job: %s; will retry", self.job.what)


class Duty:
    """Something that a broker does beside serving requests. `begin` and `end` are what starting and
    stopping it does beside its jobs, and may be coroutines. Starting it twice, or stopping it when
    it is off, does nothing."""

    __slots__ = ("_begin", "_end", "_jobs", "_running", "is_on", "name", "role")

    def __init__(
        self,
        name: str,
        role: BrokerRole | None,
        *jobs: PeriodicJob,
        begin: Work = _nothing,
        end: Work = _nothing,
    ) -> None:
        """Names a duty. role: the role whose duty it is; None means every broker's."""
        self.name, self.role = name, role
        self._jobs, self._begin, self._end = jobs, begin, end
        self._running: list[_Running] = []
        self.is_on = False

    async def start(self) -> None:
        """Starts the duty. Raises: whatever `begin` raises; then the duty is not on."""
        if self.is_on:
            return
        self.is_on = True
        try:
            await _done(self._begin())
        except BaseException:
            self.is_on = False
            raise
        self._running = [_Running(job) for job in self._jobs]

    async def stop(self) -> None:
        """Stops the duty; when this returns, nothing of it goes on. Raises: whatever `end`
        raises."""
        if not self.is_on:
            return
        self.is_on = False
        tasks = [each.task for each in self._running if each.task is not None]
        self._running = []
        if tasks:
            await asyncio.wait(tasks)
        await _done(self._end())

    def tick(self, now_s: float) -> None:
        """Runs the jobs that are due on the clock of the loop."""
        for each in self._running:
            each.tick(now_s)


async def _done(result: object) -> None:
    if inspect.isawaitable(result):
        await result


class Duties:
    """The duties of one broker, and the one timer of their jobs. They live on the broker's loop."""

    def __init__(self, table: Iterable[Duty], role: BrokerRole = BrokerRole.MASTER) -> None:
        """Takes the table. table: has the duties in the order in which they start; they stop in the
        opposite order."""
        self._table = {duty.name: duty for duty in table}
        self.role = role
        #: Told of each change of role, between the last stop and the first start.
        self.on_role: list[Callable[[BrokerRole], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._changing = asyncio.Lock()

    def __getitem__(self, name: str) -> Duty:
        return self._table[name]

    @property
    def names(self) -> list[str]:
        """Returns the names in the order of the table."""
        return list(self._table)

    async def start(self) -> None:
        """Starts the duties of the role. Raises: what starting one raises."""
        async with self._changing:
            await self._start_those_of_role()
            self._arm()

    async def stop(self) -> None:
        """Stops all duties, whatever one of them raises. Raises: the last exception of theirs."""
        async with self._changing:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            await self._stop(self._table.values())

    async def change_role(self, role: BrokerRole) -> None:
        """Stops the duties that the role does not have, then starts those that it has. Nothing that
        they do is lost or done twice. Raises: what stopping or starting one raises."""
        async with self._changing:
            if self._timer is None or role is self.role:
                return
            await self._stop(duty for duty in self._table.values() if duty.role is self.role)
            self.role = role
            for told in self.on_role:
                told(role)
            await self._start_those_of_role()

    async def _start_those_of_role(self) -> None:
        for duty in self._table.values():
            if duty.role in (None, self.role):
                await duty.start()

    @staticmethod
    async def _stop(duties: Iterable[Duty]) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for duty in duties:
                stack.push_async_callback(duty.stop)

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_STEP_S, self._tick)

    def _tick(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for duty in self._table.values():
            duty.tick(now_s)
        self._arm()
