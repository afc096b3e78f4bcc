"""Requests of ours on one connection, until their answers come."""

from __future__ import annotations

from typing import Protocol

from broker.wire.command import Command
from broker.wire.framer import SendWaiter

__all__ = ["Outstanding", "Waiter"]

OPAQUE_MAX = 0x7FFFFFFF


class Waiter(Protocol):
    """Takes an answer: a future, or what behaves like one."""

    def done(self) -> bool: ...

    def set_result(self, result: Command, /) -> None: ...

    def set_exception(self, exception: Exception, /) -> None: ...


class EitherWaiter(Waiter, SendWaiter, Protocol):
    """A waiter that takes the answer in either form."""


class Outstanding:
    """The waiters by the opaque of their request. The opaques are counted here, for each
    connection.

    `sends` are those that take an answer without a Command."""

    __slots__ = ("_opaque", "_waiting", "sends")

    def __init__(self) -> None:
        self._opaque = 0
        self._waiting: dict[int, Waiter] = {}
        self.sends: dict[int, EitherWaiter] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self.sends)

    def next_opaque(self) -> int:
        self._opaque = self._opaque % OPAQUE_MAX + 1
        return self._opaque

    def add(self, command: Command, waiter: Waiter) -> int:
        """Sets the command's opaque, and returns it."""
        command.opaque = opaque = self.next_opaque()
        self._waiting[opaque] = waiter
        return opaque

    def add_send(self, waiter: EitherWaiter) -> int:
        """Returns the opaque that its request must have."""
        self._opaque = opaque = self._opaque % OPAQUE_MAX + 1
        self.sends[opaque] = waiter
        return opaque

    def forget(self, opaque: int) -> None:
        self._waiting.pop(opaque, None)
        self.sends.pop(opaque, None)

    def fail(self, opaque: int, error: Exception) -> None:
        """Gives the error to a waiter, unless it has its answer."""
        waiter = self._waiting.get(opaque) or self.sends.get(opaque)
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def settle(self, answer: Command) -> None:
        """Gives an answer to its waiter; one that comes too late, or that nobody asked for, is
        dropped."""
        opaque = answer.opaque
        waiter = self._waiting.pop(opaque, None) or self.sends.pop(opaque, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)

    def end(self, error: Exception) -> None:
        """Gives the error to every waiter, since the connection is closed."""
        for opaque in [*self._waiting, *self.sends]:
            self.fail(opaque, error)
        self._waiting.clear()
        self.sends.clear()
