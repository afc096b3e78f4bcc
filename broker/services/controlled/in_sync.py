"""Which brokers a master waits for, and which it wants its controller to have in the in-sync set.
No clock, no I/O: the simulation runs it, too (tests/simulation).

A message is acknowledged when every broker has it that could be elected: those of the controller's
set, those that the controller was asked to add, whatever it said, and those that it may have been
asked to. A refusal settles nothing: the same may have been asked before without an answer, or
arrive twice, and be carried out later. Only a set with a new number makes an end of it. So who is
added acknowledges before the controller is asked (apache/rocketmq#5663 acknowledged by the old set
meanwhile), and who is removed counts until the controller has answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["InSync", "MemberSeen"]

#: A member that was whole so recently is not said to be late: it is looked at once a second.
_RECENT_S = 3.0


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """A broker of the group, as its master sees it. end: what it has of the log; None: it is not
    connected. why: it is not in the in-sync set, or may soon be out; empty: all is well."""

    number: int
    end: int | None
    in_sync: bool
    why: str


@dataclass
class InSync:
    """The in-sync set of one master in one epoch. me: its number. held: what the controller has,
    as far as is known."""

    me: int
    held: frozenset[int]
    #: Asked of the controller, without an answer yet.
    asked: frozenset[int] | None = None
    #: Of requests that the controller has refused.
    doubted: frozenset[int] = frozenset()
    #: Who is to be added: how much of the log each must have before the controller is asked.
    joining: dict[int, int] = field(default_factory=dict)
    #: When each member had all of the log last.
    _caught_up_s: dict[int, float] = field(default_factory=dict)
    #: Of who is behind: the end of the log that it has yet to reach, and when that was the end.
    _goals: dict[int, tuple[int, float]] = field(default_factory=dict)

    @property
    def required(self) -> frozenset[int]:
        """Those who must have a message before it is acknowledged, beside the master."""
        asked = self.asked or frozenset()
        return (self.held | asked | self.doubted | self.joining.keys()) - {self.me}

    def invite(self, ends: Mapping[int, int], end: int, near: int) -> list[int]:
        """Returns who may be added. ends: what each connected slave has; end: of the log; near: who
        lacks less will soon have all. The caller requires them all, then calls `invited`."""
        return sorted(
            number
            for number, has in ends.items()
            if number not in self.held and number not in self.joining and end - has <= near
        )

    def invited(self, number: int, end: int) -> None:
        """Notes a guest, which is required from byte `end` of the log on."""
        self.joining[number] = end

    def next_request(self, ends: Mapping[int, int], end: int, now_s: float, late_s: float) -> bool:
        """Says whether there is something to ask of the controller now: then `asked` is what.
        late_s: who has not caught up for so long is out. A guest that is gone, or late, is not
        asked for."""
        for number in self.held | self.joining.keys():
            self._see(number, ends.get(number, -1), end, now_s)
        late = {n for n in self.held | self.joining.keys() if self._is_late(n, now_s, late_s)}
        gone = {n for n in self.joining if n not in ends}
        if self.asked is None:
            for number in gone | (late & self.joining.keys()):
                self._forget(number)
        if self.asked is not None:
            return True  # it may have been asked already, and be asked again
        ready = {n for n, from_ in self.joining.items() if ends[n] >= from_}
        wanted = (self.held - late - self._absent(ends, now_s, late_s)) | ready | {self.me}
        if wanted == self.held and not self.doubted:
            return False
        self.asked = wanted
        return True

    def _see(self, number: int, has: int, end: int, now_s: float) -> None:
        """Notes who has caught up. Under a steady load nobody ever has all that is there. Who has
        what was there a while ago was whole then (as Kafka's ISR has it)."""
        goal, goal_s = self._goals.get(number, (end, now_s))
        if number == self.me or has >= end or number not in self._caught_up_s:
            self._caught_up_s[number] = now_s
        elif has >= goal:
            self._caught_up_s[number] = goal_s
        elif number in self._goals:
            return
        self._goals[number] = end, now_s

    def _is_late(self, number: int, now_s: float, late_s: float) -> bool:
        return number != self.me and now_s - self._caught_up_s[number] > late_s

    def _absent(self, ends: Mapping[int, int], now_s: float, late_s: float) -> set[int]:
        """Returns who is out for not being connected: it keeps answers waiting, so it is out much
        earlier."""
        return {
            n for n in self.held
            if n != self.me and n not in ends and now_s - self._caught_up_s[n] > late_s / 10
        }  # fmt: skip

    def answered(self, held: frozenset[int], *, is_new: bool) -> None:
        """Takes the set that the controller has. is_new: its number is higher than that of the last
        request, so that whatever was asked before has happened, or never will."""
        if is_new:
            self.doubted = frozenset()
        else:
            self.doubted |= self.asked or frozenset()
        self.held, self.asked = held, None
        for number in held & self.joining.keys():
            del self.joining[number]

    def _forget(self, number: int) -> None:
        del self.joining[number]
        self._caught_up_s.pop(number, None)
        self._goals.pop(number, None)

    # ---- for tools ----

    def members(
        self, ends: Mapping[int, int], end: int, near: int, now_s: float, late_s: float
    ) -> list[MemberSeen]:
        """Returns everybody that this master knows of, with the arguments of `invite` and
        `next_request`."""
        known = {self.me} | self.held | ends.keys() | self.joining.keys() | self._caught_up_s.keys()
        seen = []
        for number in sorted(known):
            has = end if number == self.me else ends.get(number)
            held = number in self.held
            why = ""
            if number != self.me:
                late = now_s - self._caught_up_s.get(number, now_s)
                why = self._risk(number, has, end, late, late_s) if held else (
                    self._absence(number, has, end, near))  # fmt: skip
            seen.append(MemberSeen(number, has, held, why))
        return seen

    def _risk(self, number: int, has: int | None, end: int, late: float, late_s: float) -> str:
        """Returns why a member may soon be out."""
        if self.asked is not None and number not in self.asked:
            return "it is late: the controller is asked to remove it"
        if has is None:
            return f"not connected for {late:.0f} s; out after {late_s / 10:.1f} s"
        if has < end and late > _RECENT_S:
            return f"behind for {late:.0f} s; out after {late_s:.0f} s"
        return ""

    def _absence(self, number: int, has: int | None, end: int, near: int) -> str:
        """Returns why a broker is not in the set."""
        if has is None:
            return "not connected"
        if self.asked is not None and number in self.asked:
            return "the controller is asked to add it"
        if number in self.joining:
            lacks = max(0, self.joining[number] - has)
            return f"waited for already; the controller is asked once it has {lacks} bytes more"
        if end - has > near:
            return f"too far behind: invited below {near} bytes"
        return "invited in the next round"
