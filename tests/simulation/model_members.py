"""A member that decides as member.py and set_keeper.py do, and a controller that guarantees what
controller.py says and no more: in few steps, so that a million seeds can be run. The rules of the
in-sync set and of forks are the broker's own (in_sync.py, epochs.py). The members' own code runs in
real_members.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from virtual_time import Events
from virtual_world import Broker, Group

__all__ = ["ModelController", "ModelMember", "model_group"]

#: Seconds, by the clock of who counts: until a master is fenced, until the controller holds a
#: broker for dead, until a slave is late.
LEASE_S, DEAD_S, LATE_S = 6.0, 10.0, 15.0
#: Messages that a slave may lack and be invited.
NEAR = 3


@dataclass(frozen=True)
class ElectionRecord:
    master: int | None = None
    epoch: int = 0
    in_sync: frozenset[int] = frozenset()
    number: int = 0


class ModelController:
    """What controller.py says that one guarantees."""

    def __init__(self, events: Events) -> None:
        self._events, self.record = events, ElectionRecord()
        self.heard: dict[int, float] = {}
        #: Of each member that said so: the boot in which it did, and epoch and end of its log;
        #: None: it has none any more.
        self.doubts: dict[int, tuple[int, tuple[int, int] | None]] = {}
        #: Refuses a set with a dead broker, as Apache's controller does.
        self._is_strict = events.chance.random() < 0.5

    def _is_dead(self, number: int | None) -> bool:
        return self._events.now - self.heard.get(number or 0, -1e9) > DEAD_S

    def look(self, alive: int | None = None) -> ElectionRecord:
        """A master that is dead is none. alive: who says by this that it is."""
        if alive is not None:
            self.heard[alive] = self._events.now
        now = self.record
        return replace(now, master=None) if now.master and self._is_dead(now.master) else now

    def note(self, who: int, boot: int, doubt: tuple[int, int] | None) -> None:
        """What comes late from an earlier boot says nothing."""
        if boot >= self.doubts.get(who, (0, None))[0]:
            self.doubts[who] = boot, doubt

    def vouch(self, who: int, boot: int, seen: ElectionRecord) -> ElectionRecord | None:
        """None: refused."""
        if (seen.master, seen.epoch) != (self.record.master, self.record.epoch):
            return None
        self.note(who, boot, None)
        return self.record

    def elect(self, who: int, held: int) -> ElectionRecord:
        """held: the epoch of which the asker is the master, without an end in between."""
        self.heard[who] = self._events.now
        old = self.record
        free = old.master in (None, who) or self._is_dead(old.master)
        if not free or (old.master == who and old.epoch == held):
            return old
        able = self._first(old.in_sync if old.epoch else frozenset({who}))
        able = [n for n in able if not self._is_dead(n)]
        if able:
            self._crown(who if who in able else self._events.chance.choice(able))
        elif old.master == who:  # and waits for those who come before it
            self.record = replace(old, master=None)
        return self.look()

    def _first(self, among: frozenset[int]) -> list[int]:
        """Those without a doubt, else whose log is the longest."""
        doubts = {n: self.doubts.get(n, (0, None))[1] for n in among}
        sure = sorted(n for n, doubt in doubts.items() if doubt is None)
        longest = max((doubt for doubt in doubts.values() if doubt is not None), default=None)
        return sure or sorted(n for n, doubt in doubts.items() if doubt == longest)

    def succeed(self, who: int, seen: ElectionRecord) -> ElectionRecord:
        """Whether the old master is dead is the asker's word."""
        now = self.record
        may = who in now.in_sync and self.doubts.get(who, (0, None))[1] is None
        if (seen.master, seen.epoch) == (now.master, now.epoch) and may:
            self._crown(who)
        return self.record

    def move(self, able: Iterable[int]) -> None:
        """By an operator, to anybody of the set who is able to."""
        able = sorted(self.record.in_sync.intersection(able))
        if able:
            self._crown(self._events.chance.choice(able))

    def _crown(self, who: int) -> None:
        old = self.record
        self.doubts[who] = self.doubts.get(who, (0, None))[0], None
        self.record = ElectionRecord(who, old.epoch + 1, frozenset({who}), old.number + 1)

    def change_set(self, asked: ElectionRecord, wanted: frozenset[int]) -> ElectionRecord | None:
        now = self.record
        if (asked.master, asked.epoch, asked.number) != (now.master, now.epoch, now.number):
            return None
        if self._is_strict and any(map(self._is_dead, wanted - now.in_sync)):
            return None
        self.record = replace(now, in_sync=wanted, number=now.number + 1)
        return self.record


class ModelMember(Broker):
    group: ModelGroup
    boots = 0

    def forget(self) -> None:
        super().forget()
        self.record, self.heard_s, self.is_busy = ElectionRecord(), self.clock.time(), False
        self.rules = self.make_rules(self.number, frozenset())

    def start(self) -> None:
        super().start()
        self.former: int | None = None
        self.is_silent = True
        self.boots += 1
        self.clock.at(0.1, self._turn)

    def on_lost(self) -> None:
        self.clock.at(0.1, self._saw_go)

    # ---- member.py ----

    def _turn(self) -> None:
        """Once a second."""
        self.clock.at(1.0, self._turn)
        if self.is_master and self.clock.time() - self.heard_s > LEASE_S:
            self.require(self.rules.required, fenced=True)
        asked_s = self.clock.time()

        def looked(record: ElectionRecord | None) -> None:
            if record is None:
                return
            if self.former is None:
                self.former = record.epoch
            mine = record.master == self.number and record.epoch <= self.former
            if record.master is not None and not mine:
                looked_again(record)
                return
            held = self.epoch if self.is_master else -1
            self.group.ask(self, lambda e: e.elect(self.number, held), looked_again)

        def looked_again(record: ElectionRecord | None) -> None:
            if record is None:
                return
            self.heard_s = max(self.heard_s, asked_s)
            self.is_silent = record.master == self.number and record.epoch <= (self.former or 0)
            if not self.is_silent:
                self._take(record)
                self._end_doubt(record)

        alive, boot = None if self.is_silent else self.number, self.boots
        doubt = (self.last_epoch(), len(self.log.entries)) if self.is_in_doubt else None

        def look(controller: ModelController) -> ElectionRecord:
            controller.note(self.number, boot, doubt)
            return controller.look(alive)

        self.group.ask(self, look, looked)

    def last_epoch(self) -> int:
        return self.log.epochs[-1].epoch if self.log.epochs else -1

    def _end_doubt(self, record: ElectionRecord) -> None:
        if self.is_master:
            self.is_in_doubt = False
        elif self.is_in_doubt and self.has_caught_up and record.epoch == self.record.epoch:
            boot = self.boots

            def vouched(found: ElectionRecord | None) -> None:
                if found is not None and self.boots == boot:
                    self.is_in_doubt = False

            self.group.ask(self, lambda e: e.vouch(self.number, boot, record), vouched)

    def _saw_go(self) -> None:
        """The master that this broker has followed does not listen any more."""
        master, record = self.followed, self.record
        if master is None or not self.has_followed or self.link is not None or master.up:
            return
        if self.number in record.in_sync and not self.group.is_cut(self.number, master.number):
            self.group.ask(self, lambda e: e.succeed(self.number, record), self._heard)

    def _heard(self, record: ElectionRecord | None) -> None:
        if record is not None and not self.is_silent:
            self._take(record)

    def _take(self, record: ElectionRecord) -> None:
        if record.epoch < self.record.epoch or record.master is None:
            return
        if record.epoch == self.record.epoch:
            if record.number < self.record.number:
                return
            is_new, self.record = record.number > self.record.number, record
            if self.is_master and self.rules.asked is None:
                self.rules.answered(record.in_sync, is_new=is_new)
            if self.is_master:
                self._keep_set()
            return
        # A new start over the store, whichever role it is.
        former, silent, heard_s = self.former, self.is_silent, self.heard_s
        self.new_life()
        self.log.restart(power=False)
        self.forget()
        self.former, self.is_silent, self.heard_s = former, silent, heard_s
        self.record = record
        if record.master == self.number:
            self.rules = self.make_rules(self.number, record.in_sync)
            self.begin_master(record.epoch, record.in_sync)
        else:
            self.follow(record.master)
        self.clock.at(0.1, self._turn)

    # ---- set_keeper.py ----

    def _require(self) -> int:
        fenced = self.clock.time() - self.heard_s > LEASE_S
        return self.require(self.rules.required, fenced=fenced)

    def _keep_set(self) -> None:
        rules, ends, end = self.rules, self.ends(), len(self.log.entries)
        for number in rules.invite(ends, end, NEAR):
            rules.invited(number, 0)
            rules.invited(number, self._require())
        asks = rules.next_request(ends, end, self.clock.time(), LATE_S)
        self._require()
        if not asks or self.is_busy:
            return
        asked, record = rules.asked, self.record
        assert asked is not None
        self.is_busy = True

        def answered(found: ElectionRecord | None) -> None:
            if found is not None:
                settle(found)
            else:  # refused
                self.group.ask(self, lambda e: e.look(), settle, lost=nothing)

        def settle(found: ElectionRecord | None) -> None:
            self.is_busy = False
            if found is None or found.epoch != self.record.epoch:
                return
            if found.number >= self.record.number:
                self.record = found
                rules.answered(found.in_sync, is_new=found.number > record.number)
                self._require()

        def nothing() -> None:
            self.is_busy = False

        self.group.ask(self, lambda e: e.change_set(record, asked), answered, lost=nothing)


class ModelGroup(Group):
    def __init__(self, events: Events, name: str, fault_s: float = 4.0) -> None:
        super().__init__(events, name, fault_s)
        self.controller = ModelController(events)

    def in_sync(self) -> Iterable[int]:
        return self.controller.record.in_sync

    def move(self) -> None:
        self.controller.move(each.number for each in self.brokers.values() if each.is_able)

    def ask(
        self,
        broker: Broker,
        work: Callable[[ModelController], ElectionRecord | None],
        done: Callable[[ElectionRecord | None], None] | None = None,
        lost: Callable[[], None] | None = None,
    ) -> None:
        """Arrives never, once or twice, late; its answer may be lost, or later than who asks waits:
        then `lost`."""
        life, answered = broker.clock.life, False

        def arrive() -> None:
            nonlocal answered
            found = work(self.controller)
            if not answered and done is not None and broker.clock.life == life:
                answered = self.from_controller(broker.number, broker.clock, lambda: done(found))

        self.to_controller(broker.number, arrive)

        def give_up() -> None:
            nonlocal answered
            if not answered and lost is not None:
                answered = True  # the connection is closed: what still comes is not heard
                lost()

        if lost is not None:
            broker.clock.at(3.0, give_up)


def model_group(
    events: Events,
    name: str = "one",
    members: int = 3,
    fault_s: float = 4.0,
    make: type[ModelMember] = ModelMember,
) -> ModelGroup:
    group = ModelGroup(events, name, fault_s)
    group.brokers = {n: make(group, n) for n in range(1, members + 1)}
    for each in group.brokers.values():
        each.start()
    return group
