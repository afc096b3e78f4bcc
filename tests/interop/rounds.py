"""A broker in this process whose rounds of checks a test drives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transacting import Clock

from broker.broker import Broker

__all__ = ["Rounds", "decisions_are_in", "timed"]


class Rounds(threading.Thread):
    """A simulated half minute, and a round of checks, again and again until told to stop."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        super().__init__()
        self.broker, self.clock = broker, clock
        self.over = threading.Event()
        self.reports: list[object] = []

    def run(self) -> None:
        async def one() -> object:
            service = self.broker.services.transactions
            service._next_round = float("inf")
            self.clock.pass_(30)
            service.configure()
            return await service.check()

        while not self.over.wait(0.3):
            self.reports.append(self.broker.run(one()))

    def end(self) -> None:
        self.over.set()
        if self.is_alive():
            self.join()


@contextmanager
def timed(store: Path, **settings: object) -> Iterator[tuple[Broker, Rounds]]:
    """A broker with a name server and a clock that only its rounds move; start the rounds when no
    decision is under way any more: one that comes late would be refused."""
    clock = Clock()
    with Broker(store, now_ms=clock, listenPort=0, with_namesrv=True, **settings) as broker:
        broker.services.transactions._next_round = float("inf")
        rounds = Rounds(broker, clock)
        try:
            yield broker, rounds
        finally:
            rounds.end()


def decisions_are_in(broker: Broker, halves: int, decisions: int) -> bool:
    """So many halves came, and so many of them are decided; their clients do not wait for that."""
    state = broker.services.transactions.halves.state()
    return state.halves >= halves and state.commits + state.rollbacks >= decisions
