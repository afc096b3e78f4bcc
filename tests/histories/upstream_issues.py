"""What was found in Apache's controller mode, as scenes for brokers of either make: each ends with
brokers that are in sync again, and the history says what was lost, or served twice.

5663: a member is added to the in-sync set; the controller knows it, the master's answer is lost.
6662: a master is cut off together with one of its slaves. 7689: the master and the controller are
killed, and messages follow those that no slave has."""

from __future__ import annotations

import asyncio
import sys

from clients import Client, Look
from controller_loss import holds, record_with
from world import Broker, World

__all__ = ["SCENES"]


def step(what: str) -> None:
    """For whoever looks at a run that hangs."""
    print(f"{asyncio.get_running_loop().time():.1f} {what}", file=sys.stderr, flush=True)


async def scene_5663(world: World, look: Look, client: Client) -> None:
    master, (other, third) = _roles(world, look)
    third.kill()
    other.kill()
    await record_with(look, lambda record: len(record.in_sync) == 1)
    step("the master is alone")
    await _until_sent(client, master)
    # Requests of the master arrive, answers do not.
    other.start()
    for member in world.controller:
        world.cut(member.host, master.host, both=False)
    try:
        await asyncio.wait_for(record_with(look, lambda record: len(record.in_sync) == 2), 20)
    except TimeoutError:
        # A master that gets no answers asks for nothing (and acknowledges nothing).
        step("nobody was added")
        await client.send(master.address, 0)
        third.start()
        world.mend()
        return
    other.pause()
    step("one was added")
    for queue in range(4):
        await client.send(master.address, queue)
    master.kill()
    world.mend()
    other.go_on()
    await record_with(look, lambda record: record.address == other.address)
    step("it is the master")
    await _until_sent(client, other)
    master.start()
    third.start()


async def scene_6662(world: World, look: Look, client: Client) -> None:
    master, (beside, other) = _roles(world, look)
    await _until_sent(client, master)
    await record_with(look, lambda record: len(record.in_sync) == 3)
    for one in (master, beside):
        for far in (other, *world.controller):
            world.cut(one.host, far.host)
    for queue in range(4):
        await client.send(master.address, queue)
        for broker in (master, beside):
            await client.read(broker.address, queue, await _end_of(client, broker, queue) - 1)
    step(f"both are cut off: {look.record}")
    await record_with(look, lambda record: record.address == other.address)
    for queue in range(4):
        await client.send(master.address, queue)
        for broker in (master, beside):
            await client.read(broker.address, queue, await _end_of(client, broker, queue) - 1)
    await _until_sent(client, other)
    world.mend()


async def scene_7689(world: World, look: Look, client: Client) -> None:
    master, others = _roles(world, look)
    await _until_sent(client, master)
    for other in others:
        other.pause()
    await asyncio.gather(*(client.send(master.address, queue % 4) for queue in range(12)))
    master.kill()
    for member in world.controller:
        member.kill()
    for member in world.controller:
        member.start()
    master.start()
    # At once, whoever takes them.
    for queue in range(20):
        await client.send(master.address, queue % 4)
        await asyncio.sleep(0.2)
    for other in others:
        other.go_on()
    await record_with(look, lambda record: record.master is not None)


SCENES = {"5663": scene_5663, "6662": scene_6662, "7689": scene_7689}


def _roles(world: World, look: Look) -> tuple[Broker, list[Broker]]:
    """The master, and the others."""
    assert look.record is not None
    address = look.record.address
    master = next(each for each in world.brokers if each.address == address)
    return master, [each for each in world.brokers if each is not master]


async def _until_sent(client: Client, broker: Broker, count: int = 8) -> None:
    sent = [0]

    async def send() -> None:
        while sent[0] < count:
            sent[0] += await client.send(broker.address, sent[0] % 4)
            await asyncio.sleep(0.02)

    sending = asyncio.ensure_future(send())
    await holds(f"sends to {broker.address}", sending.done)
    await sending


async def _end_of(client: Client, broker: Broker, queue: int) -> int:
    return await client.end_of(broker.address, queue) or 1
