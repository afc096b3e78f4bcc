"""What a controller has of a broker name (controlled/controller.py), and what a broker is by it,
from one change of its role to the next."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ElectedRole", "ElectionRecord"]


@dataclass(frozen=True, slots=True)
class ElectionRecord:
    """What the controller has of a name. master: number of the master, None: there is none.
    address: of its main port; ha_address: of its port for slaves, empty: name servers know it.
    epoch: of the last election. in_sync: numbers of those of whom one may become the master;
    set_number: rises with each change of them."""

    master: int | None
    address: str
    ha_address: str
    epoch: int
    in_sync: frozenset[int]
    set_number: int


@dataclass(frozen=True, slots=True)
class ElectedRole:
    """number: of this broker. record: by which it is what it is; None: nothing is known yet, and
    it follows nobody."""

    number: int
    record: ElectionRecord | None = None

    @property
    def is_master(self) -> bool:
        return self.record is not None and self.record.master == self.number

    def is_same_as(self, other: ElectedRole) -> bool:
        """Says whether it takes no new start to become the other one."""
        return self.is_master == other.is_master and (
            not self.is_master or self.epoch == other.epoch
        )

    @property
    def epoch(self) -> int:
        return self.record.epoch if self.record is not None else 0
