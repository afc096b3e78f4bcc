"""A model of failover: members, the engine, a network, disks, on virtual time, from one seed. The
rules of the in-sync set, of forks and of epochs are the broker's own code (in_sync.py, epochs.py);
members and streams are models of member.py, set_keeper.py and csrc/ha. Requests to the engine are
lost, repeated, late and out of order, their answers lost; connections break; members are killed and
cut off; a power cut loses what was not synced.

After every step: each epoch has one master; a master that begins has every acknowledged message;
no place of the log is ever served with two contents."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from broker.services.controlled.in_sync import InSync
from broker.services.replication.epochs import Epoch, common_end, merge

__all__ = ["Violation", "World"]

LEASE_S, DEAD_S, LATE_S = 6.0, 10.0, 15.0


class Violation(AssertionError):
    """What must hold does not."""


@dataclass
class Record:
    master: int | None = None
    epoch: int = 0
    in_sync: frozenset[int] = frozenset()
    number: int = 0


class Engine:
    """What engine.py says that one guarantees, and no more."""

    def __init__(self, world: World) -> None:
        self.world, self.record = world, Record()
        self.heard: dict[int, float] = {}

    def is_dead(self, number: int) -> bool:
        return self.world.now - self.heard.get(number, -1e9) > DEAD_S

    def look(self) -> Record:
        return self.record

    def elect(self, who: int) -> Record:
        old = self.record
        if old.master is not None and not self.is_dead(old.master):
            return old
        able = [n for n in old.in_sync if not self.is_dead(n)] or ([who] if not old.epoch else [])
        if able:
            master = who if who in able else self.world.chance.choice(able)
            number = old.number + 1
            self.record = Record(master, old.epoch + 1, frozenset({master}), number)
        return self.record

    def change_set(self, asked: Record, wanted: frozenset[int]) -> Record | None:
        now = self.record
        if (asked.master, asked.epoch, asked.number) != (now.master, now.epoch, now.number):
            return None
        if any(self.is_dead(n) for n in wanted - now.in_sync):
            return None
        self.record = Record(now.master, now.epoch, wanted, now.number + 1)
        return self.record


@dataclass
class Log:
    """What a disk has. synced: entries that a power cut leaves."""

    entries: list[int] = field(default_factory=list)
    synced: int = 0
    epochs: list[Epoch] = field(default_factory=list)

    def restart(self, *, power: bool) -> None:
        if power:
            del self.entries[self.synced :]
        self.epochs = [each for each in self.epochs if each.start <= len(self.entries)]


class Node:
    def __init__(self, world: World, number: int) -> None:
        self.world, self.number, self.log = world, number, Log()
        self.life = 0  # rises with each end: answers to what a former life asked are nobody's
        self.up = False
        self.rules: InSync | None = None
        self.former: int | None = None
        self.silent = True
        self.reset()

    def reset(self) -> None:
        self.record = Record()
        self.reported: dict[int, int] = {}  # by a master: what each connected slave has
        self.master: tuple[int, int] | None = None  # by a slave: connected to, and its life
        self.confirmed, self.heard_s, self.fenced, self.busy = 0, self.world.now, False, False
        self.rules = None

    # ---- life ----

    def start(self) -> None:
        self.up, self.former = True, None
        self.reset()
        self.world.after(0.1, self.turn, self.life)

    def stop(self, *, power: bool = False) -> None:
        self.up = False
        self.life += 1
        self.rules = None
        self.log.restart(power=power)

    def turn(self) -> None:
        """Once a second: member.py."""
        self.world.after(1.0, self.turn, self.life)
        asked_s, life = self.world.now, self.life
        if not self.silent:
            self.world.to_engine(self, lambda e: e.heard.__setitem__(self.number, self.world.now))

        def looked(record: Record | None) -> None:
            if life != self.life or record is None:
                return
            if self.former is None:
                self.former = record.epoch
            if record.master is None or self.world.chance.random() < 0.3:
                self.world.to_engine(self, lambda e: e.elect(self.number), looked_again)
            looked_again(record)

        def looked_again(record: Record | None) -> None:
            if life == self.life and record is not None:
                self.heard_s = max(self.heard_s, asked_s)
                self.silent = record.master == self.number and record.epoch <= self.former
                if not self.silent:
                    self.take(record)

        self.world.to_engine(self, lambda e: e.look(), looked)
        if self.rules is not None:
            self.fenced = self.world.now - self.heard_s > LEASE_S
            self.keep_set()

    def take(self, record: Record) -> None:
        if record.epoch < self.record.epoch or record.master is None:
            return
        if record.epoch == self.record.epoch:
            rules = self.rules
            if rules is not None and rules.asked is None and record.number >= self.record.number:
                self.record = record
                rules.answered(record.in_sync)
            return
        # A new start over the store, whichever role it is.
        self.life += 1
        self.log.restart(power=False)
        heard_s = self.heard_s
        self.reset()
        self.heard_s, self.record = heard_s, record
        if record.master == self.number:
            self.world.check_begins(self, record)
            end = len(self.log.entries)
            if not self.log.epochs or self.log.epochs[-1].epoch != record.epoch:
                self.log.epochs.append(Epoch(record.epoch, end))
            self.confirmed = end if record.in_sync == {self.number} else 0
            self.rules = self.world.make_rules(self.number, record.in_sync)
        self.world.after(0.1, self.turn, self.life)
        self.world.after(0.05, self.stream, self.life)

    # ---- the master ----

    def keep_set(self) -> None:
        """set_keeper.py."""
        rules, end, life = self.rules, len(self.log.entries), self.life
        assert rules is not None
        for number in rules.invite(self.reported, end, 3):
            rules.invited(number, 0)
            rules.invited(number, end)
        asks = rules.next_request(self.reported, end, self.world.now, LATE_S)
        self.confirm()
        if not asks or self.busy:
            return
        asked, record = rules.asked, self.record
        assert asked is not None
        self.busy = True

        def answered(found: Record | None) -> None:
            if life != self.life:
                return
            self.busy = False
            if found is not None:
                settle(found)
            else:
                self.world.to_engine(self, lambda e: e.look(), settle, lost=nothing)

        def settle(found: Record | None) -> None:
            if life == self.life and found is not None and found.epoch == self.record.epoch:
                self.record = found
                rules.answered(found.in_sync)
                self.confirm()

        def nothing() -> None:
            if life == self.life:
                self.busy = False

        self.world.to_engine(self, lambda e: e.change_set(record, asked), answered, lost=nothing)

    def put(self, message: int) -> None:
        if self.rules is not None and not self.fenced:
            self.log.entries.append(message)
            self.confirm()

    def confirm(self) -> None:
        """ps_safe_copied: what all have who are required, and this disk."""
        assert self.rules is not None
        required = self.rules.required
        if self.fenced or not required <= self.reported.keys():
            return
        ends = [self.reported[n] for n in required]
        end = min([self.log.synced, *ends])
        if end > self.confirmed:
            self.world.acknowledge(self, self.confirmed, end)
            self.confirmed = end
        self.world.serve(self, self.confirmed)

    # ---- the slave ----

    def stream(self) -> None:
        """Follows, in steps: a greeting, then frames and reports."""
        self.world.after(self.world.chance.uniform(0.02, 0.4), self.stream, self.life)
        if self.world.chance.random() < 0.7:
            self.log.synced = len(self.log.entries)
        if self.record.master in (None, self.number):
            if self.rules is not None:
                self.confirm()
            return
        master = self.world.nodes[self.record.master]
        if not self.world.connected(self, master) or master.rules is None:
            master.reported.pop(self.number, None)
            self.master = None
            return
        if self.master != (master.number, master.life):
            if not self.greet(master):
                return
            self.master = master.number, master.life
        count = self.world.chance.randrange(6)
        start = len(self.log.entries)
        self.log.entries += master.log.entries[start : start + count]
        if self.world.chance.random() < 0.7:
            self.log.synced = len(self.log.entries)
        master.reported[self.number] = self.log.synced
        master.confirm()
        self.confirmed = max(self.confirmed, min(master.confirmed, len(self.log.entries)))
        self.world.serve(self, self.confirmed)

    def greet(self, master: Node) -> bool:
        end = len(self.log.entries)
        theirs, their_end = master.log.epochs, len(master.log.entries)
        at = common_end(self.log.epochs, end, theirs, their_end) if end else 0
        if at < 0:
            raise Violation(f"{self.number} has no epoch in common with its master")
        del self.log.entries[at:]
        self.log.synced = min(self.log.synced, at)
        self.log.epochs = merge(self.log.epochs, theirs, at)
        master.reported[self.number] = self.log.synced
        return True


class World:
    """members: how many; make_rules: of a master's in-sync set."""

    def __init__(
        self, seed: int, members: int = 3, make_rules: Callable[..., InSync] = InSync
    ) -> None:
        self.chance, self.make_rules = random.Random(seed), make_rules
        self.now, self.steps = 0.0, 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.nodes = {n: Node(self, n) for n in range(1, members + 1)}
        self.cut: set[frozenset[int]] = set()  # pairs that do not reach each other; 0: the engine
        self.engine = Engine(self)
        self.acknowledged: list[int] = []
        self.served: list[int] = []
        self.reigns: dict[int, int] = {}

    # ---- time and network ----

    def at(self, delay: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay, next(self._order), what))

    def after(self, delay: float, what: Callable[[], None], life: int) -> None:
        """For as long as the node lives that asked."""
        node: Node = what.__self__  # type: ignore[attr-defined]

        def do() -> None:
            if node.up and node.life == life:
                what()

        self.at(delay, do)

    def connected(self, one: Node, other: Node) -> bool:
        pair = frozenset({one.number, other.number})
        return one.up and other.up and pair not in self.cut and self.chance.random() > 0.01

    def to_engine(
        self,
        node: Node,
        work: Callable[[Engine], object],
        done: Callable[[Record | None], None] | None = None,
        lost: Callable[[], None] | None = None,
    ) -> None:
        """Arrives never, once or twice, late; its answer may be lost: then `lost`."""
        chance, reached = self.chance, frozenset({0, node.number}) not in self.cut
        copies = 0 if not reached or chance.random() < 0.05 else 1 + (chance.random() < 0.1)
        answered = False

        def arrive() -> None:
            nonlocal answered
            found = work(self.engine)
            if answered or done is None or chance.random() < 0.05:
                return
            answered = True
            self.at(chance.uniform(0.001, 0.5), lambda: done(found))  # type: ignore[arg-type]

        for _ in range(copies):
            late = chance.random() < 0.05
            self.at(chance.uniform(0.001, 8.0 if late else 0.3), arrive)
        if lost is not None:
            self.at(3.0, lambda: None if answered else lost())

    # ---- faults ----

    def fault(self) -> None:
        self.at(self.chance.expovariate(1 / 4.0), self.fault)
        node = self.chance.choice(list(self.nodes.values()))
        kind = self.chance.choice(["kill", "power", "kill", "part", "engine", "heal", "heal"])
        if kind in ("kill", "power") and node.up:
            node.stop(power=kind == "power")
            self.at(self.chance.uniform(0.1, 20.0), lambda: None if node.up else node.start())
        elif kind == "part":
            other = self.chance.choice(list(self.nodes))
            if other != node.number:
                self.cut.add(frozenset({node.number, other}))
        elif kind == "engine":
            self.cut.add(frozenset({0, node.number}))
        elif kind == "heal":
            self.cut.clear()

    # ---- what must hold ----

    def check_begins(self, node: Node, record: Record) -> None:
        if self.reigns.setdefault(record.epoch, node.number) != node.number:
            raise Violation(f"epoch {record.epoch} has two masters")
        if node.log.entries[: len(self.acknowledged)] != self.acknowledged:
            raise Violation(
                f"at {self.now:.2f} s {node.number} begins epoch {record.epoch} without some of"
                f" the {len(self.acknowledged)} acknowledged messages"
            )

    def acknowledge(self, node: Node, begin: int, end: int) -> None:
        # What an epoch begins with is confirmed, too, though nobody was told.
        for at in range(min(begin, len(self.acknowledged)), end):
            message = node.log.entries[at]
            if at < len(self.acknowledged):
                if self.acknowledged[at] != message:
                    raise Violation(f"two messages are acknowledged at {at}")
            else:
                self.acknowledged.append(message)

    def serve(self, node: Node, end: int) -> None:
        known = len(self.served)
        if node.log.entries[: min(end, known)] != self.served[:end]:
            raise Violation(f"{node.number} serves another log up to {end} than was served")
        self.served += node.log.entries[known:end]

    def run(self, seconds: float) -> World:
        messages = itertools.count()

        def send() -> None:
            self.at(self.chance.uniform(0.05, 0.4), send)
            for node in self.nodes.values():
                if node.up and node.rules is not None:
                    node.put(next(messages))

        for node in self.nodes.values():
            node.start()
        self.at(0.5, send)
        self.at(5.0, self.fault)
        while self._queue and self._queue[0][0] < seconds:
            self.now, _, what = heapq.heappop(self._queue)
            what()
            self.steps += 1
        return self
