"""Who decides which broker of a name is the master: a controller that keeps one record a name, and
changes it by consensus. Apache's is one (apache.py), etcd another (etcd.py); the address
says which (controllerAddr).

What a controller guarantees, and all that its members rely on:

1. Changes of the record of a name happen one after the other, and none is undone by a crash.
2. An epoch has one master. Each election has a higher epoch than all before.
3. A new master is elected from the in-sync set alone, while the old one is dead or has left, or at
   the word of an operator or of a member that saw it go (`succeed`); the set is then the new master
   alone, or has what it had. An old master that lives nevertheless acknowledges nothing more: it
   waits for the new one, which is in its set. A member with a doubt comes after all members without
   one (`LogDoubt`).
4. The set changes only at the request of the master of the current epoch, who knows the current
   number of the set; each change gives the set a new number. A request that was refused has no
   effect; one without an answer may have, as long as that number is the current one.
5. A number belongs to one broker for ever.
6. What `look` returns was the record at some time after it was asked.

What members rely on nothing for: clocks that agree, heartbeats that arrive, notices that do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from broker.services.replication.elected_role import ElectionRecord

__all__ = ["NO_EPOCH", "Controller", "ControllerRefused", "Heartbeat", "LogDoubt"]

#: Of who is the master of none.
NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """How far a member is, by which a controller may choose among those of the set. Bytes of the
    log."""

    epoch: int
    end: int
    confirmed: int


@dataclass(frozen=True, slots=True)
class LogDoubt:
    """A member may lack what it had acknowledged in a former life (continuity.py), and has the log
    up to byte `end`, in this epoch. It lasts until the member has caught up with a master, or is
    the master."""

    epoch: int
    end: int


class ControllerRefused(Exception):
    """The controller answered, and said no: nothing has changed."""


class Controller(Protocol):
    """The controller that one broker asks. Every method raises OSError, TimeoutError or ValueError
    when there is no usable answer, and ControllerRefused.

    renumbers: asked for the set that it has, it gives that a new number; one that does not refuses,
    and has by then carried out, or never will, what it was asked before.
    """

    renumbers: bool

    async def number(self, address: str) -> int:
        """Returns the number of this broker, which is reached at `address`: the one that it has
        kept, else a new one, for ever."""

    async def register(
        self, number: int, address: str, ha_address: str, doubt: LogDoubt | None
    ) -> None:
        """Says where this broker is, and whether it may lack something, before it asks for anything
        else or follows anybody."""

    async def vouch(self, number: int, record: ElectionRecord) -> None:
        """Ends the doubt: this broker has all that the master of this record had after the doubt
        was registered."""

    async def look(self) -> ElectionRecord: ...

    async def elect(self, number: int, held: int = NO_EPOCH) -> ElectionRecord:
        """Asks for an election: this broker would be the master. held: the epoch of which it is
        the master, and has been without an end in between; a controller may leave it that one. With
        a doubt it makes another one the master, or is refused, while others come before it."""

    async def move(self, number: int, accepts_loss: bool = False) -> ElectionRecord:
        """Makes another broker of the set the master, for an operator. accepts_loss: also one with
        a doubt, if nobody is alive that comes before it."""

    async def succeed(self, number: int, record: ElectionRecord) -> ElectionRecord:
        """Asks for the succession, for a member that had followed the master of this record and
        finds nobody at its address any more: it would be the master, if the record has not changed.
        A controller that notices by itself may leave that alone."""

    async def change_set(self, record: ElectionRecord, in_sync: frozenset[int]) -> ElectionRecord:
        """Writes another set, for the master, if the record has not changed."""

    def beat(self, number: int, state: Heartbeat) -> None:
        """Says that this broker is alive. Does not wait, and does not raise."""

    async def leave(self) -> None: ...
