"""Members of the controller are killed one by one: with a majority everything goes on; without one
the master acknowledges nothing and says so, what is safe is served, and nobody is elected; when
they are back all of it heals by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from clients import Client, History, Look
from faults import Faults
from waiting import BOUND_S
from world import Broker, World

from broker.services.replication.elected_role import ElectionRecord

__all__ = ["lose_controller"]

FENCED = "acknowledges nothing until it is"


async def holds(what: str, condition: Callable[[], object]) -> None:
    end = asyncio.get_running_loop().time() + BOUND_S
    while not condition():
        assert asyncio.get_running_loop().time() < end, f"in vain: {what}"
        await asyncio.sleep(0.1)


async def lose_controller(
    world: World, faults: Faults, look: Look, history: History, client: Client
) -> None:
    def acknowledged() -> int:
        return history.counts.get("acknowledged", 0)

    async def goes_on(what: str) -> None:
        wanted = acknowledged() + 50
        await holds(f"acknowledged sends {what}", lambda: acknowledged() >= wanted)

    await goes_on("with all members")
    faults.counts["kill_controller_member"] += 1
    world.controller[0].kill()
    before = await record_with(look, lambda record: record.master and len(record.in_sync) == 3)
    await goes_on("with two of three members")
    master = next(each for each in world.brokers if each.address == before.address)
    said = master.server.log.stat().st_size
    faults.counts["kill_controller_member"] += 1
    world.controller[1].kill()
    await holds("that the master says so", lambda: FENCED in told_since(master, said))
    count = acknowledged()
    await serves_what_is_safe(world, client)
    faults.counts["kill"] += 1
    master.kill()
    await asyncio.sleep(5)  # longer than a life: somebody could have been elected
    assert acknowledged() == count, "acknowledged without a controller"
    world.controller[1].start()
    # A master that was alone in sync just before comes back itself.
    after = await record_with(
        look, lambda record: record.epoch > before.epoch or record.in_sync == {before.master}
    )
    if after.epoch > before.epoch:
        assert after.master != before.master
        await goes_on("with another master")
    master.start()
    await record_with(look, lambda record: record.epoch > before.epoch)
    world.controller[0].start()


def told_since(broker: Broker, at: int) -> str:
    with broker.server.log.open("rb") as log:
        log.seek(at)
        return log.read().decode(errors="replace")


async def record_with(look: Look, condition: Callable[[ElectionRecord], object]) -> ElectionRecord:
    """What the controller has, once it answers and has that."""
    end = asyncio.get_running_loop().time() + BOUND_S
    while True:
        record = await look.now()
        if record is not None and condition(record):
            return record
        assert asyncio.get_running_loop().time() < end, f"in vain; the controller has {look.record}"
        await asyncio.sleep(0.1)


async def serves_what_is_safe(world: World, client: Client) -> None:
    """What was confirmed is read at the master and at the others."""
    for broker in world.brokers:
        for _ in range(100):
            if await client.read(broker.address, 0, 0):
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError(f"{broker.address} serves nothing")
