"""What a controller guarantees (controlled/controller.py), of etcd: a real one of one member."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from etcd_server import PROGRAM, Etcd, etcd
from waiting import until_async

from broker.services.controlled.controller import ControllerRefused, Heartbeat, LogDoubt
from broker.services.controlled.etcd import EtcdController, Gateway

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="etcd is not installed (etcd-server)")

STATE = Heartbeat(0, 0, 0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with etcd(tmp_path_factory.mktemp("etcd")) as made:
        yield made


class Group:
    """Brokers of one name."""

    def __init__(self, server: Etcd, folder: Path, name: str) -> None:
        self._server, self._folder, self._name = server, folder, name

    def controller(self, member: str, timeout_ms: int = 60_000) -> EtcdController:
        path = self._folder / f"{member}-brokerIdentity"
        gateway = Gateway(self._server.address)
        return EtcdController(gateway, "c", self._name, path, 0o644, timeout_ms)

    async def joined(
        self, member: str, timeout_ms: int = 60_000, doubt: LogDoubt | None = None
    ) -> tuple[EtcdController, int]:
        made = self.controller(member, timeout_ms)
        number = await made.number(f"{member}:1")
        await made.register(number, f"{member}:1", f"{member}:2", doubt)
        made.beat(number, STATE)
        return made, number

    async def pair(self, doubt: LogDoubt | None = None) -> tuple[EtcdController, EtcdController]:
        """Broker 1 was the master of both, and has started again; broker 2 is in the set."""
        one, _ = await self.joined("m1")
        other, _ = await self.joined("m2")
        await until_async(lambda: other._lease, "its lease")
        await one.change_set(await one.elect(1), frozenset({1, 2}))
        return (await self.joined("m1", doubt=doubt))[0], other


@pytest.fixture
def group(server: Etcd, tmp_path: Path, request: pytest.FixtureRequest) -> Group:
    return Group(server, tmp_path, request.node.name)


def run(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scene)


def test_a_number_belongs_to_one_broker_for_ever(group: Group) -> None:
    async def scene() -> None:
        numbers = await asyncio.gather(*(group.joined(f"m{n}") for n in range(4)))
        assert sorted(number for _, number in numbers) == [1, 2, 3, 4]
        assert await group.controller("m2").number("m2:1") == numbers[2][1]

    run(scene())


def test_of_those_who_ask_at_once_one_is_elected(group: Group) -> None:
    async def scene() -> None:
        members = [await group.joined(f"m{n}") for n in range(3)]
        found = await asyncio.gather(*(controller.elect(number) for controller, number in members))
        assert {(each.master, each.epoch) for each in found} == {(found[0].master, 1)}
        assert found[0].in_sync == {found[0].master}
        assert found[0].ha_address.endswith(":2")

    run(scene())


def test_who_is_not_in_sync_is_not_elected_and_who_is_has_a_new_epoch(group: Group) -> None:
    async def scene() -> None:
        one, first = await group.joined("m1")
        other, second = await group.joined("m2")
        third, last = await group.joined("m3")
        record = await one.elect(first)
        assert (await one.change_set(record, frozenset({first, second}))).set_number == 2
        await one.leave()
        assert (await other.look()).master is None
        assert (await third.elect(last)).master is None
        record = await other.elect(second)
        assert (record.master, record.epoch, record.in_sync) == (second, 2, {second})

    run(scene())


def test_a_master_that_lives_is_not_replaced(group: Group) -> None:
    async def scene() -> None:
        one, first = await group.joined("m1")
        other, second = await group.joined("m2")
        record = await one.change_set(await one.elect(first), frozenset({first, second}))
        assert await other.elect(second) == record

    run(scene())


def test_a_master_whose_lease_is_over_is_replaced(group: Group) -> None:
    async def scene() -> None:
        one, first = await group.joined("m1", timeout_ms=1000)
        other, second = await group.joined("m2")
        await one.change_set(await one.elect(first), frozenset({first, second}))

        async def replaced() -> bool:
            return (await other.elect(second)).master == second

        for _ in range(200):
            if await replaced():
                break
            await asyncio.sleep(0.1)
        assert (await one.look()).master == second

    run(scene())


def test_the_set_changes_for_who_knows_its_number_in_the_current_epoch(group: Group) -> None:
    async def scene() -> None:
        one, first = await group.joined("m1")
        _, second = await group.joined("m2")
        record = await one.elect(first)
        await one.change_set(record, frozenset({first, second}))
        with pytest.raises(ControllerRefused):
            await one.change_set(record, frozenset({first}))
        assert (await one.look()).in_sync == {first, second}

    run(scene())


def test_a_master_that_starts_again_gets_a_new_epoch_at_once(group: Group) -> None:
    async def scene() -> None:
        one, first = await group.joined("m1")
        await one.elect(first)
        again = group.controller("m1")
        assert (await again.elect(first)).epoch == 2

    run(scene())


def test_a_master_whose_lease_was_over_keeps_its_epoch_if_nobody_took_it(group: Group) -> None:
    async def scene() -> None:
        one, first = await group.joined("m1")
        before = await one.elect(first)
        await one.leave()
        assert (await one.look()).master is None
        assert await one.elect(first, before.epoch) == before

    run(scene())


def test_who_has_a_lease_and_no_key_is_not_elected_before_it_has_both(group: Group) -> None:
    async def scene() -> None:
        one, first = await group.joined("m1")
        await until_async(lambda: one._lease, "its lease")
        key = {"key": base64.b64encode(f"{one._key}/alive/{first}".encode()).decode()}
        await one._gateway.ask("kv/deleterange", key)
        assert (await one.elect(first)).epoch == 0
        record = await one.elect(first)
        assert (record.master, record.epoch) == (first, 1)

    run(scene())


def test_an_operator_moves_the_master_within_the_set(group: Group) -> None:
    async def scene() -> None:
        one, first = await group.joined("m1")
        other, second = await group.joined("m2")
        await until_async(lambda: other._lease, "its lease")
        with pytest.raises(ControllerRefused, match="not in sync"):
            await one.move(second)
        await one.change_set(await one.elect(first), frozenset({first, second}))
        assert (await one.move(second)).master == second

    run(scene())


def test_who_saw_the_master_go_succeeds_it_if_nothing_has_changed(group: Group) -> None:
    async def scene() -> None:
        one, first = await group.joined("m1")
        other, second = await group.joined("m2")
        third, last = await group.joined("m3")
        alone = await one.elect(first)
        assert (await other.succeed(second, alone)).master == first  # not in sync
        record = await one.change_set(alone, frozenset({first, second, last}))
        found = await asyncio.gather(other.succeed(second, record), third.succeed(last, record))
        assert {(each.master, each.epoch) for each in found} == {(found[0].master, 2)}
        assert found[0].master in (second, last)

    run(scene())


def test_a_master_that_may_lack_something_hands_over_to_a_member_that_lives(group: Group) -> None:
    async def scene() -> None:
        one, _ = await group.pair(LogDoubt(1, 700))
        record = await one.elect(1)
        assert (record.master, record.epoch, record.in_sync) == (2, 2, {2})

    run(scene())


def test_without_a_doubt_it_is_the_master_again(group: Group) -> None:
    async def scene() -> None:
        one, _ = await group.pair()
        assert (await one.elect(1)).master == 1

    run(scene())


def test_who_may_lack_something_waits_for_members_that_may_have_it(group: Group) -> None:
    async def scene() -> None:
        one, other = await group.pair(LogDoubt(1, 700))
        await other.leave()
        with pytest.raises(ControllerRefused, match=r"\[2\] of the in-sync set.*--accept-loss"):
            await one.elect(1)
        assert (await one.look()).master is None
        again, number = await group.joined("m2")
        assert (await again.elect(number)).master == number

    run(scene())


def test_of_a_set_in_doubt_the_longest_log_comes_first(group: Group) -> None:
    async def scene() -> None:
        one, other = await group.pair(LogDoubt(1, 700))
        await other.register(2, "m2:1", "m2:2", LogDoubt(1, 800))
        assert (await one.elect(1)).master == 2

    run(scene())


def test_of_a_set_in_doubt_the_newer_epoch_comes_before_the_longer_log(group: Group) -> None:
    async def scene() -> None:
        one, other = await group.pair(LogDoubt(2, 700))
        await other.register(2, "m2:1", "m2:2", LogDoubt(1, 800))
        assert (await one.elect(1)).master == 1

    run(scene())


def test_a_set_of_one_comes_back_whatever_it_lacks(group: Group) -> None:
    async def scene() -> None:
        one, first = await group.joined("m1")
        await one.elect(first)
        again, _ = await group.joined("m1", doubt=LogDoubt(1, 700))
        assert (await again.elect(first)).master == first

    run(scene())


def test_a_doubt_ends_once_the_member_vouches_in_the_epoch_that_is(group: Group) -> None:
    async def scene() -> None:
        one, other = await group.pair()
        record = await one.elect(1)
        record = await one.change_set(record, frozenset({1, 2}))
        await other.register(2, "m2:1", "m2:2", LogDoubt(1, 700))
        assert (await other.succeed(2, record)).master == 1
        with pytest.raises(ControllerRefused, match="has begun meanwhile"):
            await other.vouch(2, replace(record, epoch=1))
        await other.vouch(2, record)
        assert (await other.succeed(2, record)).master == 2

    run(scene())


def test_an_operator_moves_the_master_to_who_may_lack_something_if_nobody_else_is_there(
    group: Group,
) -> None:
    async def scene() -> None:
        one, other = await group.pair(LogDoubt(1, 700))
        await other.leave()
        with pytest.raises(ControllerRefused):
            await one.elect(1)
        with pytest.raises(ControllerRefused, match="accept-loss"):
            await one.move(1)
        again, _ = await group.joined("m2")
        await until_async(lambda: again._lease, "its lease")
        with pytest.raises(ControllerRefused, match="move it to 2"):
            await one.move(1, accepts_loss=True)
        await again.leave()
        assert (await one.move(1, accepts_loss=True)).master == 1

    run(scene())


def test_a_controller_that_is_gone_raises() -> None:
    with pytest.raises(OSError, match="etcd does not answer"):
        run(_look_at_nobody())


async def _look_at_nobody() -> None:
    controller = EtcdController(Gateway("etcd://127.0.0.1:1"), "c", "b", Path("none"), 0o644, 1000)
    await controller.look()
