"""The in-sync set, kept by the master of an epoch: who is waited for, and what the controller is
asked."""

from __future__ import annotations

import asyncio
import time

from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.services.config import Config
from broker.services.controlled.controller import Controller, ControllerRefused
from broker.services.controlled.in_sync import InSync, MemberSeen
from broker.services.replication.elected_role import ElectionRecord
from broker.services.replication.master import HaMaster

__all__ = ["SetKeeper"]

log = SafeLogger("broker.controlled")
quiet = RateLimitedLogger(log)

#: A slave that lacks less is waited for from then on, and soon has all. So does one that lacks no
#: more than was put in a round, or a steady load would keep it out for good.
_NEAR_BYTES = 1 << 20


class SetKeeper:
    """Keeps the set of one master in one epoch. `fenced`: the controller was not reached for the
    lease: nothing is acknowledged until it is."""

    def __init__(
        self,
        controller: Controller,
        master: HaMaster,
        record: ElectionRecord,
        me: int,
        config: Config,
    ) -> None:
        self._controller, self._master, self._config = controller, master, config
        self.record = record
        self.rules = InSync(me, record.in_sync)
        self.fenced = False
        self._near, self._end_before = _NEAR_BYTES, master.end()

    def require(self) -> int:
        """Answers wait for whom they must. Returns from where on in the log."""
        held = self.rules.held
        refuses = self.fenced or len(held) < self._config["minInSyncReplicas"]
        return self._master.require(self.rules.required, refuses=refuses, fenced=self.fenced)

    def fence(self, on: bool) -> None:
        if on != self.fenced:
            self.fenced = on
            if on:
                log.warning("The controller is not reached: this master acknowledges nothing until"
                            " it is (epoch %d)", self.record.epoch)  # fmt: skip
            else:
                log.info("The controller is reached again: sends are acknowledged")
            self.require()

    def saw(self, record: ElectionRecord) -> None:
        """Takes what the controller has, of this epoch."""
        if not is_older(record, self.record) and record != self.record:
            is_new, self.record = is_older(self.record, record), record
            if self.rules.asked is None:
                self.rules.answered(record.in_sync, is_new=is_new)
                self.require()

    def members(self) -> list[MemberSeen]:
        """Returns who is how far, and why somebody is not in the set."""
        late_s = self._config["haMaxTimeSlaveNotCatchup"] / 1000
        return self.rules.members(
            self._master.ends(), self._master.end(), self._near, time.monotonic(), late_s
        )

    async def round(self) -> None:
        """Asks the controller for the set that is right now. Raises: OSError, TimeoutError,
        ValueError."""
        rules, ends, end = self.rules, self._master.ends(), self._master.end()
        self._near = max(_NEAR_BYTES, end - self._end_before)
        self._end_before = end
        for number in rules.invite(ends, end, self._near):
            rules.invited(number, 0)
            rules.invited(number, self.require())
        late_s = self._config["haMaxTimeSlaveNotCatchup"] / 1000
        if not rules.next_request(ends, end, time.monotonic(), late_s):
            self.require()
            return
        self.require()
        asked, before = rules.asked, self.record
        assert asked is not None
        settles = asked == before.in_sync and not self._controller.renumbers
        try:
            found = await self._controller.change_set(before, asked)
            log.info("In sync are %s now (epoch %d)", sorted(found.in_sync), found.epoch)
        except ControllerRefused as refused:
            if not settles:
                quiet.warning(
                    "refused", "The in-sync set stays %s: %s", sorted(rules.held), refused
                )
            found = await self._controller.look()
        if is_older(found, self.record):  # something newer was seen meanwhile: the next round asks
            return
        self.record = found
        rules.answered(found.in_sync, is_new=settles or is_older(before, found))
        self.require()
        await asyncio.sleep(0)


def is_older(one: ElectionRecord, other: ElectionRecord) -> bool:
    """Says whether the controller had this record before the other one."""
    return (one.epoch, one.set_number) < (other.epoch, other.set_number)
