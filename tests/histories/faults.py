"""What happens to the brokers, their controller and the links between them, by a seed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

from clients import FAILURES, Look
from world import Broker, World

from broker.services.controlled.controller import ControllerRefused

__all__ = ["Faults"]


class Faults:
    """One or two at a time; each is mended before the next one."""

    def __init__(self, world: World, look: Look, seed: int, longest_s: float = 10.0) -> None:
        self._world, self._look = world, look
        self._chance, self._longest_s = random.Random(seed), longest_s
        self.counts: Counter[str] = Counter()
        self.told: list[str] = []

    def kinds(self) -> list[tuple[int, Callable[[float], Awaitable[str]]]]:
        """Each with its weight."""
        clock = 2 if self._world.fakes_clocks else 0
        return [
            (5, self.kill), (1, self.kill_all), (4, self.pause), (3, self.cut_from_controller),
            (3, self.cut_from_peers), (3, self.cut_off), (3, self.cut_one_way),
            (clock, self.set_clock), (2, self.fill_disk), (2, self.kill_controller_member),
            (1, self.kill_controller), (1, self.pause_controller_member),
            (2, self.cut_controller_member), (2, self.move),
        ]  # fmt: skip

    async def run(self, over: Callable[[], bool], between: Callable[[], Awaitable[None]]) -> None:
        """between: called between two of them."""
        weights, works = zip(*self.kinds(), strict=True)
        while not over():
            chosen = self._chance.choices(works, weights, k=self._chance.choice((1, 1, 1, 2)))
            length = self._chance.choice((0.3, 1.0, 1.0)) * self._longest_s
            await asyncio.gather(
                *(self._one(work, self._chance.uniform(0.1, length)) for work in chosen)
            )
            self._mend()
            await asyncio.sleep(self._chance.uniform(0.2, 0.6 * self._longest_s))
            await between()

    async def _one(self, work: Callable[[float], Awaitable[str]], length_s: float) -> None:
        self.counts[work.__name__] += 1
        at = asyncio.get_running_loop().time()
        what = await work(length_s)
        self.told.append(f"{at:.2f} {work.__name__} {what} for {length_s:.1f} s")

    def _mend(self) -> None:
        self._world.mend()
        for broker in self._world.brokers:
            broker.go_on()
            broker.empty_disk()
            broker.start()
        for member in self._world.controller:
            member.go_on()
            member.start()

    def mend(self) -> None:
        """All, clocks too."""
        self._mend()
        for broker in self._world.brokers:
            broker.set_clock(0)

    def _broker(self) -> Broker:
        """The master is more likely."""
        record, brokers = self._look.record, self._world.brokers
        masters = [each for each in brokers if record and each.address == record.address]
        return self._chance.choice(masters * 3 + brokers)

    # ---- brokers ----

    async def kill(self, length_s: float) -> str:
        broker = self._broker()
        broker.kill()
        await asyncio.sleep(self._chance.choice((0.0, length_s)))
        broker.start()
        return broker.host.address

    async def kill_all(self, length_s: float) -> str:
        for broker in self._world.brokers:
            broker.kill()
        await asyncio.sleep(length_s / 4)
        order = list(self._world.brokers)
        self._chance.shuffle(order)
        for broker in order:
            broker.start()
            await asyncio.sleep(self._chance.uniform(0, 1))
        return "all"

    async def pause(self, length_s: float) -> str:
        broker = self._broker()
        broker.pause()
        await asyncio.sleep(length_s)
        broker.go_on()
        return broker.host.address

    async def set_clock(self, _: float) -> str:
        broker = self._broker()
        seconds = self._chance.choice((-3600, -61, -3, 3, 61, 3600))
        broker.set_clock(seconds)
        await asyncio.sleep(self._chance.uniform(1, 4))  # and it stays so
        return f"{broker.host.address} {seconds:+d} s"

    async def fill_disk(self, length_s: float) -> str:
        broker = self._broker()
        await asyncio.to_thread(broker.fill_disk)
        await asyncio.sleep(length_s)
        broker.empty_disk()
        return broker.host.address

    async def move(self, _: float) -> str:
        record = self._look.record
        others = sorted((record.in_sync if record else frozenset()) - {record and record.master})
        if not others:
            return "nobody"
        number = self._chance.choice(others)
        try:
            await asyncio.wait_for(self._look.controller.move(number), 5)  # type: ignore[arg-type]
        except (*FAILURES, ControllerRefused) as failed:
            return f"to {number}: {failed}"
        return f"to {number}"

    # ---- links ----

    async def cut_from_controller(self, length_s: float) -> str:
        broker = self._broker()
        for member in self._world.controller:
            self._world.cut(broker.host, member.host)
        return await self._until_mended(broker, length_s)

    async def cut_from_peers(self, length_s: float) -> str:
        broker = self._broker()
        for other in self._world.brokers:
            if other is not broker:
                self._world.cut(broker.host, other.host)
        return await self._until_mended(broker, length_s)

    async def cut_off(self, length_s: float) -> str:
        """From all but its clients, which may be cut off, too."""
        broker, clients = self._broker(), self._chance.random() < 0.3
        for other in self._world.hosts:
            if other is not broker.host and (clients or other is not self._world.clients):
                self._world.cut(broker.host, other)
        return await self._until_mended(broker, length_s)

    async def cut_one_way(self, length_s: float) -> str:
        broker = self._broker()
        for other in self._world.hosts:
            if other is not broker.host and self._chance.random() < 0.5:
                pair = [broker.host, other]
                self._chance.shuffle(pair)
                self._world.cut(*pair, both=False)
        return await self._until_mended(broker, length_s)

    async def _until_mended(self, broker: Broker, length_s: float) -> str:
        await asyncio.sleep(length_s)
        self._world.mend()
        return broker.host.address

    # ---- the controller ----

    async def kill_controller_member(self, length_s: float) -> str:
        member = self._chance.choice(self._world.controller)
        member.kill()
        await asyncio.sleep(length_s)
        member.start()
        return member.host.address

    async def kill_controller(self, length_s: float) -> str:
        for member in self._world.controller:
            member.kill()
        await asyncio.sleep(length_s)
        for member in self._world.controller:
            member.start()
        return "all"

    async def pause_controller_member(self, length_s: float) -> str:
        member = self._chance.choice(self._world.controller)
        member.pause()
        await asyncio.sleep(length_s)
        member.go_on()
        return member.host.address

    async def cut_controller_member(self, length_s: float) -> str:
        member = self._chance.choice(self._world.controller)
        for other in self._world.hosts:
            if other is not member.host and other is not self._world.clients:
                self._world.cut(member.host, other)
        await asyncio.sleep(length_s)
        self._world.mend()
        return member.host.address
