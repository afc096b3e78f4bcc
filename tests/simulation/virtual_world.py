"""A world on virtual time, from one seed: groups of brokers with disks, the streams between them,
a controller that each asks over a bad network, and what happens to all of them.

Faults: brokers are killed, lose their power and with it what was not synced, stand still (SIGSTOP);
pairs of them, and brokers and the controller, are cut off in both directions; connections break,
and each end notices in its own time. Clocks run apart by five percent. The brokers of half of the
groups acknowledge what their disks do not have yet (ASYNC_FLUSH). A third of the groups has one or
two members whose streams are Java's, and messages of up to 1 MB, which come in chunks.

After every step: each epoch has one master; a master that begins has every acknowledged message
that any broker of the in-sync set still has; no place of the log is ever served with two contents,
and no half of a message is served. What a Java-like master alone confirms is nobody's promise: by
default it says of its whole log that all have it.
After the last fault: a group heals by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from virtual_time import Clock, Events, Violation

from broker.services.controlled.in_sync import InSync
from broker.services.replication.epochs import Epoch, common_end, merge

__all__ = ["FAULTS", "Broker", "Group", "Link", "Log", "border_before"]

#: How far clocks run apart, in either direction.
CLOCKS = 0.05
#: Until an end of a broken connection knows of it.
NOTICED_S = 6.0
#: What happens to a group; twice: it happens twice as often.
FAULTS = [
    "kill", "kill", "power", "leave", "pause", "part", "controller", "break", "move", "heal",
    "heal",
]  # fmt: skip
#: A frame has so many entries at most.
FRAME = 6
#: What an entry has of its message: how many more of it follow. A message is an entry for each
#: 32 KiB, so the largest has 32.
LEFT_BITS = 5


def border_before(entries: Sequence[int], place: int) -> int:
    """The last place at or before this one that is within no message."""
    place = min(place, len(entries))
    while place and entries[place - 1] & ((1 << LEFT_BITS) - 1):
        place -= 1
    return place


@dataclass
class Log:
    """What a disk has: the entries of each message. synced: entries that a power cut leaves.
    checked: entries that are those that were served at their places."""

    entries: list[int] = field(default_factory=list)
    synced: int = 0
    epochs: list[Epoch] = field(default_factory=list)
    checked: int = 0

    def cut(self, at: int) -> None:
        del self.entries[at:]
        self.synced, self.checked = min(self.synced, at), min(self.checked, at)

    def restart(self, *, power: bool) -> None:
        if power:
            self.cut(self.synced)
        self.cut(border_before(self.entries, len(self.entries)))
        self.epochs = [each for each in self.epochs if each.start <= len(self.entries)]


class Link:
    """A connection of a slave to its master: what one end sends arrives in order, late, or not at
    all. A life that has ended hears nothing."""

    def __init__(self, slave: Broker, master: Broker) -> None:
        self.slave, self.master, self.events = slave, master, slave.group.events
        self._lives = {slave: slave.clock.life, master: master.clock.life}
        self._due = {slave: 0.0, master: 0.0}
        self.is_broken, self.is_pumping, self.is_open = False, False, False
        self.sent, self.told = 0, -1  # entries that were sent; the confirmed end that was said last
        self.acked = -1  # what the slave has, as its master knows
        self.epochs: list[Epoch] = []  # the master's, as it greeted

    def lives_at(self, end: Broker) -> bool:
        return end.clock.life == self._lives[end]

    def send(self, to: Broker, what: Callable[[], None]) -> None:
        chance, now = self.events.chance, self.events.now
        due = max(now + chance.random() * 0.02, self._due[to])
        self._due[to] = due

        def arrives() -> None:
            if not self.is_broken:
                what()

        if self.lives_at(to):
            self.events.at(due - now, arrives, to.clock)

    def cut(self) -> None:
        if self.is_broken:
            return
        self.is_broken = True
        for end in (self.slave, self.master):
            if self.lives_at(end):
                late = self.events.chance.uniform(0.01, NOTICED_S)
                end.clock.at(late, lambda end=end: self.notice(end))  # type: ignore[misc]

    def notice(self, end: Broker) -> None:
        if end is self.slave and end.link is self:
            end.link = None
            end.drop_half()
            end.on_lost()
        elif self in end.links:
            end.links.remove(self)


class Broker:
    """What of a broker is the same however its member is made: its disk, and both ends of the
    streams (csrc/ha). Members: model_members.py, real_members.py."""

    #: How the rules of the in-sync set are made: tests give wrong ones.
    make_rules: ClassVar[Callable[[int, frozenset[int]], InSync]] = InSync

    def __init__(self, group: Group, number: int) -> None:
        self.group, self.number, self.log = group, number, Log()
        rate = 1.0 + group.events.chance.uniform(-CLOCKS, CLOCKS)
        self.clock = Clock(group.events, rate)
        self.up = False
        #: On its disk (continuity.py): it may lack what it acknowledged.
        self.is_in_doubt = False
        #: Its streams are Java's: it reports chunks and what memory has, has no epoch of which it
        #: has nothing, and confirms its own end.
        self.is_like_java = False
        self.forget()

    def forget(self) -> None:
        """What memory had of one role."""
        self.epoch, self.is_master = 0, False
        self.required: frozenset[int] = frozenset()
        self.is_fenced = False
        self.confirmed = self.answered = 0  # what was confirmed to it, and what it acknowledged
        self.links: list[Link] = []  # of a master's slaves, the oldest first
        self.link: Link | None = None  # of a slave
        self.followed: Broker | None = None
        self.is_connecting = self.is_syncing = self.has_followed = False
        self.goal = 0  # of a slave: where the master's log ended when it was greeted

    @property
    def is_able(self) -> bool:
        """To be made the master by an operator, who looks."""
        return self.up and not self.is_in_doubt

    def start(self) -> None:
        self.up = True
        self.forget()
        if self.is_in_doubt:
            self.group.lose()  # the others of its set may have lost their power, too

    def stop(self, *, power: bool = False) -> None:
        # A Java-like member reports what its disk lacks, without doubts: its loss is left out.
        power = power and not self.is_like_java
        self.new_life()
        self.up = False
        self.log.restart(power=power)
        if power and not self.group.syncs:
            self.is_in_doubt = True
            self.group.lose()

    def leave(self, done: Callable[[], None]) -> None:
        """Stops as a broker does that is told to; done: called when it has."""
        self.stop()
        done()

    def pause(self, until: float) -> None:
        """Stands still until this time of the world."""
        self.clock.paused_until = until

    def new_life(self) -> None:
        """Its connections end, and nothing happens to it that was to."""
        self.clock.life += 1
        self.links, self.link = [], None
        for each in self.group.live_links():
            if self in (each.slave, each.master):
                each.cut()

    def reaches(self, other: Broker) -> bool:
        return self.up and other.up and not self.group.is_cut(self.number, other.number)

    def on_lost(self) -> None:
        """The connection to the master is over."""

    @property
    def has_caught_up(self) -> bool:
        """HaSlave.has_caught_up."""
        return self.link is not None and self.has_followed and len(self.log.entries) >= self.goal

    # ---- roles ----

    def begin_master(self, epoch: int, in_sync: frozenset[int]) -> None:
        """A new start over the store, as in each role."""
        self.group.check_begins(self, epoch)
        end = len(self.log.entries)
        self.epoch, self.is_master = epoch, True
        if not self.log.epochs or self.log.epochs[-1].epoch != epoch:
            self.log.epochs.append(Epoch(epoch, end))
        self.require(in_sync - {self.number})
        self.group.route(self)

    def follow(self, master: int | None) -> None:
        if self.link is not None:
            before, self.link = self.link, None
            before.cut()
        self.has_followed = False
        self.followed = self.group.brokers.get(master) if master is not None else None
        self._connect_soon(0.01)

    # ---- a master ----

    def require(self, required: frozenset[int], *, fenced: bool = False) -> int:
        """ps_ha_master_require."""
        if not self.required and not self.is_fenced and required:
            self.confirm()
        self.required, self.is_fenced = required, fenced
        self.confirm()
        return len(self.log.entries)

    def ends(self) -> dict[int, int]:
        """HaMaster.ends: of a broker that is connected twice, the newer connection counts."""
        return {each.slave.number: each.acked for each in self.links if each.acked >= 0}

    def send(self) -> bool:
        """A client sends a message. Returns whether it is in the log."""
        awake = self.up and self.group.events.now >= self.clock.paused_until
        if not awake or not self.is_master or self.is_fenced:
            return False
        self.log.entries += self.group.new_message()
        self._sync_soon()
        self.confirm()
        self._pump_all()
        return True

    def confirm(self) -> None:
        """ps_safe_copied: what all have who are required, and this disk."""
        if not self.is_master or self.is_fenced:
            return
        ends, end = self.ends(), min(self.confirmed, len(self.log.entries))
        if self.required <= ends.keys():
            own = self.log.synced if self.group.syncs else len(self.log.entries)
            had = min([own, *(ends[each] for each in self.required)])
            end = max(end, self.border_of(had))
        if end > self.answered:
            self.group.acknowledge(self, self.answered, end)
            self.answered, self.confirmed = end, max(self.confirmed, end)
            self._pump_all()
        self.group.serve(self, end)

    def _pump_all(self) -> None:
        for each in self.links:
            self._pump(each)

    def _pump(self, link: Link) -> None:
        """The next frame: messages, and how much is confirmed."""
        if link.is_pumping or not link.is_open:
            return
        if link.sent >= len(self.log.entries) and link.told >= self._end_to_tell():
            return
        link.is_pumping = True

        def pump() -> None:
            link.is_pumping = False
            if link.is_broken:
                return
            start = link.sent
            data = self.log.entries[start : start + self.group.events.chance.randrange(1, FRAME)]
            link.sent, link.told = start + len(data), self._end_to_tell()
            epoch, told = self.epoch, link.told
            link.send(link.slave, lambda: link.slave.take_frame(link, epoch, start, data, told))
            self._pump(link)

        self.clock.at(self.group.events.chance.uniform(0.001, 0.05), pump)

    def _end_to_tell(self) -> int:
        """allAckInSyncStateSet=false is Java's default."""
        return len(self.log.entries) if self.is_like_java else self.confirmed

    def take_hello(self, link: Link) -> None:
        if not self.is_master:
            link.cut()
            return
        epochs, end = list(self.log.epochs), len(self.log.entries)
        link.send(link.slave, lambda: link.slave.take_epochs(link, epochs, end))

    def take_begin(self, link: Link, end: int, acked: int) -> None:
        """The slave has `end` entries, `acked` of them on its disk."""
        if end > len(self.log.entries):
            link.cut()  # PS_HA_BEYOND
            return
        link.sent, link.is_open = end, True
        self.links.append(link)
        self.take_report(link, acked)
        self._pump(link)

    def take_report(self, link: Link, acked: int) -> None:
        link.acked = acked
        self.confirm()

    # ---- a slave ----

    def _connect_soon(self, delay: float) -> None:
        if not self.is_connecting:
            self.is_connecting = True
            self.clock.at(delay, self._connect)

    def _connect(self) -> None:
        self.is_connecting = False
        master = self.followed
        if master is None or self.is_master:
            return
        if self.link is None and self.reaches(master) and master.is_master:
            link = Link(self, master)
            self.link = link
            self.group.links.append(link)
            link.send(master, lambda: master.take_hello(link))
        self._connect_soon(1.0 if self.link is None else 3.0)

    def take_epochs(self, link: Link, epochs: list[Epoch], end: int) -> None:
        self.drop_half()
        ours = len(self.log.entries)
        at = common_end(self.log.epochs, ours, epochs, end) if ours else 0
        if at < 0:
            raise self.group.events.violated(f"{self} has no epoch in common with its master")
        if at < self.log.checked:
            raise self.group.events.violated(
                f"{self} cuts at {at} what was served up to {self.log.checked}"
            )
        self.log.cut(at)
        self.confirmed = min(self.confirmed, at)  # a store that is cut is opened again
        merged = merge(self.log.epochs, epochs, at)
        self.log.epochs = [e for e in merged if not self.is_like_java or e.start < at]
        link.epochs = epochs
        self.has_followed, self.goal = True, end
        acked = self._end_to_report()
        link.send(link.master, lambda: link.master.take_begin(link, at, acked))

    def take_frame(
        self, link: Link, epoch: int, start: int, data: list[int], confirmed: int
    ) -> None:
        if start != len(self.log.entries) or link.epochs[-1].epoch != epoch:
            link.cut()
            return
        self.log.entries += data
        if self.is_like_java and data:
            known = {each.epoch for each in self.log.epochs}
            self.log.epochs += [
                each
                for each in link.epochs
                if each.start < len(self.log.entries) and each.epoch not in known
            ]
        self._sync_soon()
        if self.is_like_java or not self.group.syncs:
            self._report(link, self._end_to_report())
        self.confirmed = max(self.confirmed, self.take_confirmed(confirmed))
        # What a Java-like master confirms, nobody but itself may have.
        shown = min(self.confirmed, len(self.log.entries))
        self.group.serve(self, shown, promised=not link.master.is_like_java)

    def take_confirmed(self, told: int) -> int:
        """What a slave makes of the end that its master confirms."""
        return self.border_of(told)

    def border_of(self, place: int) -> int:
        """What is made of a place that a peer reports."""
        return border_before(self.log.entries, place)

    def drop_half(self) -> None:
        """ps_follow_pause: half a message is not kept until the next connection, but by Java's."""
        if not self.is_like_java:
            self.log.cut(border_before(self.log.entries, len(self.log.entries)))

    def _end_to_report(self) -> int:
        entries = self.log.entries
        if self.is_like_java:
            return len(entries)
        return border_before(entries, self.log.synced if self.group.syncs else len(entries))

    # ---- the disk ----

    def _sync_soon(self) -> None:
        if self.is_syncing:
            return
        self.is_syncing = True
        chance = self.group.events.chance
        self.clock.at(0.002 if chance.random() < 0.7 else chance.uniform(0.02, 0.4), self._sync)

    def _sync(self) -> None:
        self.is_syncing = False
        self.log.synced = len(self.log.entries)
        link = self.link
        if self.is_master:
            self.confirm()
        elif link is not None and link.epochs and self.group.syncs:
            self._report(link, self._end_to_report())

    def _report(self, link: Link, end: int) -> None:
        link.send(link.master, lambda: link.master.take_report(link, end))

    def __repr__(self) -> str:
        return f"broker {self.number} of {self.group.name}"


class Group:
    """The brokers of one name, and what must hold of them. 0: the number of the controller in
    cuts."""

    def __init__(self, events: Events, name: str, fault_s: float = 4.0) -> None:
        """fault_s: between two faults, in the mean."""
        self.events, self.name, self._fault_s = events, name, fault_s
        self.brokers: dict[int, Broker] = {}
        self.links: list[Link] = []
        self.acknowledged: list[int] = []
        self.served: list[int] = []
        self.masters: dict[int, int] = {}
        #: Told of each new master.
        self.route: Callable[[Broker], None] = lambda master: None
        self.kinds: Sequence[str] = FAULTS
        self.faults: dict[str, int] = {}
        self.is_peaceful = False
        self.messages = 0
        #: SYNC_FLUSH of all brokers: an answer waits for the disk, and reports say what it has.
        self.syncs = events.chance.random() < 0.5
        self._cut: set[frozenset[int]] = set()
        self._is_mixed = False

    def make_like_java(self, count: int) -> None:
        """So many of its brokers, but for one at least; and messages are of 1 KB to 1 MB."""
        self._is_mixed = True
        for each in self.events.chance.sample(sorted(self.brokers), len(self.brokers) - 1)[:count]:
            self.brokers[each].is_like_java = True

    def new_message(self) -> list[int]:
        """Its entries."""
        self.messages += 1
        chunks = math.ceil(2 ** self.events.chance.uniform(-5, LEFT_BITS)) if self._is_mixed else 1
        return [self.messages << LEFT_BITS | left for left in range(chunks - 1, -1, -1)]

    def is_lossy(self) -> bool:
        """Whether this message of the controller's is lost."""
        return not self.is_peaceful and self.events.chance.random() < 0.05

    def _copies(self) -> int:
        """How often a request arrives."""
        if self.is_peaceful:
            return 1
        drawn = self.events.chance.random()
        return 0 if drawn < 0.05 else 1 + (drawn > 0.9)

    def to_controller(self, number: int, arrive: Callable[[], None]) -> None:
        """A request of this broker's arrives never, once or twice, late."""
        chance = self.events.chance
        for _ in range(0 if self.is_cut(0, number) else self._copies()):
            late = not self.is_peaceful and chance.random() < 0.05
            self.events.at(chance.uniform(0.001, 8.0 if late else 0.3), arrive)

    def from_controller(self, number: int, clock: Clock, hear: Callable[[], None]) -> bool:
        """Whether the answer to it arrives in this life of who asked."""
        if self.is_lossy() or self.is_cut(0, number):
            return False
        clock.at(self.events.chance.uniform(0.001, 0.5), hear)
        return True

    def move(self) -> None:
        """An operator hands mastership over."""

    def is_cut(self, one: int, other: int) -> bool:
        return frozenset({one, other}) in self._cut

    def master(self) -> Broker | None:
        """Of the newest epoch."""
        found = [each for each in self.brokers.values() if each.up and each.is_master]
        return max(found, key=lambda each: each.epoch, default=None)

    # ---- clients ----

    def send_each(self, pause_s: float) -> None:
        """A client that sends to whoever says that it is the master."""

        def send() -> None:
            self.events.at(self.events.chance.uniform(0.2, 1.8) * pause_s, send)
            for each in self.brokers.values():
                each.send()

        self.events.at(0.5, send)

    # ---- faults ----

    def fail_now_and_then(self) -> None:
        def fault() -> None:
            if self.is_peaceful:
                return
            self.events.at(self.events.chance.expovariate(1 / self._fault_s), fault)
            self._fault()

        self.events.at(5.0, fault)

    def _fault(self) -> None:
        chance = self.events.chance
        broker = chance.choice(list(self.brokers.values()))
        kind = chance.choice(self.kinds)
        if kind in ("kill", "power", "pause", "leave") and not broker.up:
            return
        self.faults[kind] = self.faults.get(kind, 0) + 1
        if kind in ("kill", "power"):
            broker.stop(power=kind == "power")
            most = chance.choice([1.0, 20.0])
            self.events.at(chance.uniform(0.1, most), lambda: self._start_again(broker))
        elif kind == "leave":
            broker.leave(lambda: self.events.at(5.0, lambda: self._start_again(broker)))
        elif kind == "pause":
            broker.pause(self.events.now + chance.uniform(0.5, 25.0))
        elif kind == "part":
            other = chance.choice(list(self.brokers))
            if other != broker.number:
                self.part(broker.number, other)
        elif kind == "controller":
            self.part(0, broker.number)
        elif kind == "move":
            self.move()
        elif kind == "break":
            for link in self.live_links():
                if chance.random() < 0.5:
                    link.cut()
        else:
            self._cut.clear()

    def _start_again(self, broker: Broker) -> None:
        if not broker.up:
            broker.pause(self.events.now)
            broker.start()

    def part(self, one: int, other: int) -> None:
        """These two, or a broker and the controller, do not reach each other any more."""
        pair = frozenset({one, other})
        self._cut.add(pair)
        for link in self.live_links():
            if {link.slave.number, link.master.number} == pair:
                link.cut()

    def live_links(self) -> list[Link]:
        self.links = [each for each in self.links if not each.is_broken]
        return self.links

    def heal(self) -> None:
        """No more faults: whoever is down starts."""
        self.is_peaceful = True
        self._cut.clear()
        for each in self.brokers.values():
            each.pause(self.events.now)
            self._start_again(each)

    # ---- what must hold ----

    def check_begins(self, broker: Broker, epoch: int) -> None:
        if self.masters.setdefault(epoch, broker.number) != broker.number:
            raise self.events.violated(f"epoch {epoch} of {self.name} has two masters")
        count = len(self.acknowledged)
        if broker.log.entries[:count] != self.acknowledged:
            raise self.events.violated(
                f"at {self.events.now:.2f} s {broker} begins epoch {epoch} without some of the"
                f" {count} acknowledged messages"
            )

    def in_sync(self) -> Iterable[int]:
        """What the controller has."""
        raise NotImplementedError

    def lose(self) -> None:
        """The power of a broker failed. What nobody of the set has any more is gone."""
        kept = max((self._common(self.brokers[each]) for each in self.in_sync()), default=0)
        if kept < len(self.acknowledged):
            del self.acknowledged[kept:], self.served[kept:]
            for each in self.brokers.values():
                each.confirmed = min(each.confirmed, kept)
                each.log.checked = min(each.log.checked, kept)

    def _common(self, broker: Broker) -> int:
        """How much of what was acknowledged it has."""
        pairs = enumerate(zip(broker.log.entries, self.acknowledged, strict=False))
        known = min(len(broker.log.entries), len(self.acknowledged))
        return next((at for at, (one, other) in pairs if one != other), known)

    def acknowledge(self, broker: Broker, begin: int, end: int) -> None:
        # What an epoch begins with is confirmed, too, though nobody was told.
        known = len(self.acknowledged)
        last = min(end, known)
        if broker.log.entries[begin:last] != self.acknowledged[begin:last]:
            raise self.events.violated(
                f"{broker} acknowledges another log up to {end} than there was"
            )
        self.acknowledged += broker.log.entries[known:end]

    def serve(self, broker: Broker, end: int, *, promised: bool = True) -> None:
        """promised: that all of the in-sync set have it."""
        log, known = broker.log, len(self.served)
        if border_before(log.entries, end) != end:
            raise self.events.violated(f"{broker} serves half of a message, up to {end}")
        if not promised:
            return
        begin, last = log.checked, min(end, known)
        if log.entries[begin:last] != self.served[begin:last]:
            raise self.events.violated(f"{broker} serves another log up to {end} than was served")
        self.served += log.entries[known:end]
        log.checked = max(begin, end)

    def check_healed(self) -> None:
        """After a minute of peace: one master, everybody in sync, and sends are acknowledged."""
        master = self.master()
        if master is None:
            raise self._unhealed(f"{self.name} has no master")
        end, left = len(master.log.entries), (1 << LEFT_BITS) - 1
        late = [each for each in master.log.entries[master.confirmed :] if not each & left]
        if len(late) > 20 or not master.confirmed:
            raise self._unhealed(f"{master} has confirmed {master.confirmed} of {end}")
        others = self.brokers.keys() - {master.number}
        if master.required != others:
            known = f"{sorted(master.required)}, not {sorted(others)}"
            raise self._unhealed(f"{master} waits for {known}")

    def _unhealed(self, how: str) -> Violation:
        return self.events.violated(f"{how}, a minute after the last fault")
