"""Apache's controller (controlled/apache.py), with one of the test's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.services.controlled import apache
from broker.services.controlled.apache import ApacheController
from broker.services.controlled.controller import ControllerRefused, Heartbeat, LogDoubt
from broker.wire import mqjson
from broker.wire.codes import RequestCode
from broker.wire.command import Command

STATE = Heartbeat(0, 0, 0)


class FakeController:
    """Of a group without a master, with these brokers in sync; in place of a client."""

    def __init__(self, in_sync: list[int]) -> None:
        self.asked: list[int] = []
        self._body = mqjson.dumps({"syncStateSet": in_sync, "syncStateSetEpoch": 1})

    async def request(self, address: str, command: Command, timeout_s: float) -> Command:
        self.asked.append(command.code)
        return Command(0, {"controllerLeaderAddress": address, "masterEpoch": "1"}, self._body)

    async def oneway(self, address: str, command: Command) -> None:
        self.asked.append(command.code)

    async def close(self) -> None: ...


def controller(fake: Any, folder: Path) -> ApacheController:
    return ApacheController(
        fake, "h:1", "c", "b", folder / "id", 0o600, 1000, lambda command, address: None
    )


async def asked_of(folder: Path, in_sync: list[int], doubt: LogDoubt | None) -> set[int]:
    """What broker 1 asks when there is no master: 1002 to be elected, 904 that it is alive."""
    fake = FakeController(in_sync)
    one = controller(fake, folder)
    await one.register(1, "h:1", "h:2", doubt)
    await one.look()
    one.beat(1, STATE)
    for task in list(one._beats):
        await task
    if doubt is not None and len(in_sync) > 1:
        with pytest.raises(ControllerRefused, match=r"\[2\] may have it"):
            await one.elect(1)
    else:
        await one.elect(1)
    return {RequestCode.CONTROLLER_ELECT_MASTER, RequestCode.BROKER_HEARTBEAT} & set(fake.asked)


@pytest.mark.parametrize(
    ("in_sync", "doubt", "asks"),
    [([1, 2], None, True), ([1, 2], LogDoubt(1, 700), False), ([1], LogDoubt(1, 700), True)],
)
async def test_who_may_lack_something_seems_dead_while_others_may_have_it(
    tmp_path: Path, in_sync: list[int], doubt: LogDoubt | None, asks: bool
) -> None:
    assert bool(await asked_of(tmp_path, in_sync, doubt)) == asks


async def test_who_may_lack_something_is_elected_if_nobody_came_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apache, "_YIELDS", 0.0)
    fake = FakeController([1, 2])
    one = controller(fake, tmp_path)
    await one.register(1, "h:1", "h:2", LogDoubt(1, 700))
    await one.look()
    with pytest.raises(ControllerRefused):
        await one.elect(1)
    await one.elect(1)
    assert RequestCode.CONTROLLER_ELECT_MASTER in fake.asked


async def test_who_has_caught_up_is_alive(tmp_path: Path) -> None:
    fake = FakeController([1, 2])
    one = controller(fake, tmp_path)
    await one.register(1, "h:1", "h:2", LogDoubt(1, 700))
    await one.vouch(1, await one.look())
    one.beat(1, STATE)
    for task in list(one._beats):
        await task
    assert RequestCode.BROKER_HEARTBEAT in fake.asked
