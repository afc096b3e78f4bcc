"""A member with the broker's own code: GroupMember, SetKeeper, InSync and EtcdController run on an
event loop of virtual time, before a simulated etcd. What they stand on is virtual_world.py's: its
disk and streams in place of the store and csrc/ha."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from virtual_etcd import Etcd, Gateway
from virtual_time import Clock, Events, VirtualLoop, VirtualTime
from virtual_world import Broker, Group

from broker.services.controlled import member, set_keeper
from broker.services.controlled.etcd import EtcdController
from broker.services.controlled.in_sync import InSync
from broker.services.replication.elected_role import ElectedRole

__all__ = ["RealGroup", "RealMember", "on_virtual_time", "real_group"]

#: controllerHeartBeatTimeoutMills, and what the in-sync set goes by.
DEAD_MS = 10_000
SETTINGS = {
    "minInSyncReplicas": 1, "haMaxTimeSlaveNotCatchup": 15_000, "flushDiskType": "ASYNC_FLUSH",
}  # fmt: skip
#: In which a member has stopped.
STOP_S = 10.0
#: Messages that a slave may lack and be invited: an entry of a log here is a byte of one there.
NEAR = 3


@contextmanager
def on_virtual_time(groups: Sequence[RealGroup], rules: type[InSync] = InSync) -> Iterator[None]:
    """The modules of the members ask their loop for the time, and the world whether anybody listens
    at an address."""

    async def refuses(address: str) -> bool:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return await groups[int(address.split(":")[0])].refuses(loop, int(address.split(":")[1]))

    told = logging.getLogger("broker.controlled")
    with (
        mock.patch.object(member, "time", VirtualTime),
        mock.patch.object(member, "_refuses", refuses),
        mock.patch.object(set_keeper, "time", VirtualTime),
        mock.patch.object(set_keeper, "_NEAR_BYTES", NEAR),
        mock.patch.object(set_keeper, "InSync", rules),
        mock.patch.object(told, "disabled", True),
    ):
        yield


class RealMember(Broker):
    group: RealGroup

    def __init__(self, group: RealGroup, number: int) -> None:
        super().__init__(group, number)
        self.address = f"{group.index}:{number}"
        #: Of its process, which lives on when its role changes.
        self._process = Clock(group.events, self.clock.rate)
        self.loop = VirtualLoop(self._process)
        self._services: Any = None

    # ---- a process ----

    def start(self) -> None:
        super().start()
        self.loop = VirtualLoop(self._process)
        self.loop.spawn(self._run())

    async def _run(self) -> None:
        gateway: Any = Gateway(self.group.etcd, self.group, self.number, self._process)
        controller = EtcdController(gateway, "c", self.group.name, Path("none"), 0o600, DEAD_MS)
        continuity: Any = _Continuity(self)
        self._services = self._new_services()
        self.member = member.GroupMember(
            controller, ElectedRole(self.number), self._become, lambda _: None,
            lambda: self._services, DEAD_MS, continuity,
        )  # fmt: skip
        self.member.start()

    def stop(self, *, power: bool = False) -> None:
        super().stop(power=power)
        self._process.life += 1
        self.loop.end()

    def leave(self, done: Callable[[], None]) -> None:
        """Its member stops within the time that its controller may take for an answer."""
        loop, is_late, told_s = self.loop, True, self.group.events.now

        async def leave() -> None:
            nonlocal is_late
            await self.member.stop()
            is_late = False
            if self.loop is loop and self.up:
                self.stop()
            done()

        def late() -> None:
            if not is_late or self.loop is not loop or not self.up:
                return
            if self.clock.paused_until > told_s:
                self.group.events.at(STOP_S, late)
            else:
                raise self.group.events.violated(
                    f"{self} was told to stop at {told_s:.2f} s, and has not"
                )

        loop.spawn(leave())
        self._process.at(STOP_S, late)

    def pause(self, until: float) -> None:
        super().pause(until)
        self._process.paused_until = until

    def on_lost(self) -> None:
        self.loop.call_soon(self.member.lost)

    async def _become(self, wanted: ElectedRole) -> None:
        """Broker._become: everything over the store begins again."""
        assert wanted.record is not None
        self._services = None
        self.new_life()
        self.log.restart(power=False)
        self.forget()
        await asyncio.sleep(self.group.events.chance.uniform(0.005, 0.5))
        if wanted.is_master:
            self.begin_master(wanted.epoch, wanted.record.in_sync)
        else:
            self.follow(_number(wanted.record.ha_address))
        self._services = self._new_services()

    # ---- Services, Replication, HaMaster, HaSlave ----

    def _new_services(self) -> Any:
        made = SimpleNamespace(
            master=None, slave=None, confirmed=lambda: self.confirmed,
            last_epoch=lambda: self.log.epochs[-1].epoch if self.log.epochs else -1,
            follow=lambda address, ha: self.follow(_number(ha)),
        )  # fmt: skip
        if self.is_master:
            made.master = SimpleNamespace(
                ends=self.ends, end=lambda: len(self.log.entries), require=self._require
            )
        else:
            made.slave = _Slave(self)
        store = SimpleNamespace(
            info=lambda: SimpleNamespace(log_max=len(self.log.entries)),
            report=SimpleNamespace(mode=None),
        )
        return SimpleNamespace(
            address=self.address, ha_address=f"{self.address}:ha", settings=SETTINGS,
            replication=made, store=store,
        )  # fmt: skip

    def _require(self, required: frozenset[int], *, refuses: bool, fenced: bool) -> int:
        return self.require(required, fenced=fenced)


class _Slave:
    def __init__(self, broker: RealMember) -> None:
        self._broker = broker

    @property
    def follows(self) -> bool:
        return self._broker.link is not None

    @property
    def has_followed(self) -> bool:
        return self._broker.has_followed

    @property
    def has_caught_up(self) -> bool:
        return self._broker.has_caught_up


class _Continuity:
    """In place of the broker's own, whose file is the virtual disk's."""

    def __init__(self, broker: RealMember) -> None:
        self._broker = broker

    @property
    def is_sure(self) -> bool:
        return not self._broker.is_in_doubt

    async def begin(self, found: object, synced: bool) -> None: ...

    async def settle(self) -> None:
        self._broker.is_in_doubt = False


def _number(address: str) -> int | None:
    """Of ``GROUP:NUMBER:ha``; None: not known."""
    return int(address.split(":")[1]) if address else None


class RealGroup(Group):
    def __init__(self, events: Events, name: str, index: int, fault_s: float = 4.0) -> None:
        super().__init__(events, name, fault_s)
        self.etcd, self.index = Etcd(events), index

    def in_sync(self) -> Iterable[int]:
        found = self.etcd.value(f"/rocketmq/c/{self.name}")
        return json.loads(found)["in_sync"] if found else ()

    def move(self) -> None:
        """pystore ha move, at a member that is up."""
        able = [each for each in self.brokers.values() if each.is_able]
        if not able:
            return
        who = self.events.chance.choice(able)
        assert isinstance(who, RealMember)
        gateway: Any = Gateway(self.etcd, self, who.number, Clock(self.events))
        controller = EtcdController(gateway, "c", self.name, Path("none"), 0o600, DEAD_MS)
        operator = VirtualLoop(Clock(self.events))

        async def move() -> None:
            try:
                await controller.move(who.number)
            except (member.ControllerRefused, OSError, TimeoutError, ValueError):
                return

        operator.spawn(move())

    async def refuses(self, asker: VirtualLoop, number: int) -> bool:
        """Whether nobody listens at this broker, as `asker` finds."""
        who = next(each for each in self.brokers.values() if getattr(each, "loop", 0) is asker)
        target = self.brokers[number]
        if self.is_cut(who.number, number) or self.events.now < target.clock.paused_until:
            await asyncio.sleep(0.2)
            return False
        await asyncio.sleep(0.001)
        return not target.up


def real_group(
    events: Events, name: str = "one", members: int = 3, fault_s: float = 4.0, index: int = 0
) -> RealGroup:
    group = RealGroup(events, name, index, fault_s)
    group.brokers = {n: RealMember(group, n) for n in range(1, members + 1)}
    for each in group.brokers.values():
        each.start()
    return group
