"""A broker under a controller (controlled/member.py), with a controller of the test's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from waiting import until_async

from broker.services.controlled.continuity import Continuity
from broker.services.controlled.controller import Heartbeat, LogDoubt
from broker.services.controlled.member import GroupMember
from broker.services.replication.elected_role import ElectedRole, ElectionRecord
from pystore import RecoveryMode

OURS = ElectionRecord(1, "h:1", "h:2", 1, frozenset({1}), 1)


class FakeController:
    def __init__(self) -> None:
        self.beats = 0
        self.record = ElectionRecord(None, "", "", 0, frozenset(), 0)

    async def register(
        self, number: int, address: str, ha_address: str, doubt: LogDoubt | None
    ) -> None: ...

    async def look(self) -> ElectionRecord:
        return self.record

    async def elect(self, number: int, held: int) -> ElectionRecord:
        self.record = OURS
        return OURS

    def beat(self, number: int, state: Heartbeat) -> None:
        self.beats += 1

    async def leave(self) -> None: ...


def broker() -> Any:
    replication = SimpleNamespace(
        master=None, slave=None, last_epoch=lambda: 0, confirmed=lambda: 0
    )
    store = SimpleNamespace(
        info=lambda: SimpleNamespace(log_max=0), report=SimpleNamespace(mode=RecoveryMode.NEW)
    )
    return SimpleNamespace(
        address="h:1", ha_address="h:2", replication=replication, store=store,
        settings={"flushDiskType": "ASYNC_FLUSH"},
    )  # fmt: skip


async def test_who_changes_its_role_for_long_is_alive(tmp_path: Path) -> None:
    controller, s, done = FakeController(), broker(), asyncio.Event()

    async def become(elected: ElectedRole) -> None:
        before = controller.beats
        await until_async(lambda: controller.beats > before, "a beat meanwhile")
        done.set()

    member: GroupMember = GroupMember(
        controller,
        ElectedRole(1),
        become,
        lambda elected: None,
        lambda: s,
        60_000,
        Continuity(tmp_path / "brokerBoot", 0o600, is_new=True),  # type: ignore[arg-type]
    )
    member.start()
    await done.wait()
    await member.stop()


async def test_a_stop_that_comes_with_a_notice_is_not_lost(tmp_path: Path) -> None:
    """asyncio.wait_for of Python 3.11 loses a cancel that comes with the result."""

    async def never(elected: ElectedRole) -> None: ...

    controller: Any = FakeController()
    kept = Continuity(tmp_path / "brokerBoot", 0o600, is_new=True)
    member = GroupMember(
        controller, ElectedRole(1), never, lambda elected: None, lambda: None, 60_000, kept
    )
    for turns in range(6):
        member.start()
        await asyncio.sleep(0.01)
        member.hint()
        for _ in range(turns):
            await asyncio.sleep(0)
        await member.stop()
