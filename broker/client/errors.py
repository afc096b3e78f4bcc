"""What a client raises. Every text says what was wrong and what to do next.

ClientError
├── Misuse              the client is used in a way that cannot work; nothing was sent
│   ├── NotStarted      before ``start()``, or outside ``with``
│   ├── AlreadyClosed   after ``close()``
│   ├── WrongLoop       from another event loop, or one that is closed
│   └── Forked          in a child process of the one that started the client
├── InvalidMessage      the message breaks a rule of the protocol; nothing was sent
├── NoRoute             no name server knows a broker for the topic
├── Unreachable         no name server, or no broker, can be reached (also a ConnectionError)
├── RequestTimeout      nobody answered in time (also a TimeoutError)
├── BrokerRefused       a broker answered with an error: ``code`` and ``remark``
├── SendFailed          every attempt to send failed: ``attempts``
├── HandlerStuck        a handler did not return while the consumer was closed
└── TransactionNotStarted  the half message was stored unsafely and rolled back
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = [
    "AlreadyClosed", "Attempt", "BrokerRefused", "ClientError", "Forked", "HandlerStuck",
    "InvalidMessage", "Misuse", "NoRoute", "NotStarted", "RequestTimeout", "SendFailed",
    "TransactionNotStarted", "Unreachable", "WrongLoop",
]  # fmt: skip


class ClientError(Exception):
    """The root of everything a client raises on its own."""


class Misuse(ClientError):
    """The client is used in a way that cannot work."""


class NotStarted(Misuse):
    """The client is used before its start."""


class AlreadyClosed(Misuse):
    """The client is used after its close."""


class WrongLoop(Misuse):
    """A client belongs to the event loop on which it was started."""


class Forked(Misuse):
    """A client does not survive a fork: its connections belong to the parent."""


class InvalidMessage(ClientError):
    """The message breaks a rule of the protocol."""


class NoRoute(ClientError):
    """No broker serves the topic. ``topic`` names it."""

    def __init__(self, text: str, topic: str) -> None:
        super().__init__(text)
        self.topic = topic


class Unreachable(ClientError, ConnectionError):
    """No connection to a server, or it was cut before the answer."""


class RequestTimeout(ClientError, TimeoutError):
    """A server did not answer in time. Whether it did the work is unknown."""


class BrokerRefused(ClientError):
    """A broker answered with an error.

    code: response code (ResponseCode). remark: the broker's text. address: who answered.
    """

    def __init__(self, what: str, code: int, remark: str | None, address: str) -> None:
        super().__init__(f"{what} was refused by {address}: code {code}, {remark or 'no remark'}")
        self.code = code
        self.remark = remark or ""
        self.address = address


class Attempt(NamedTuple):
    """One attempt to send. error: what it ended with."""

    broker: str
    address: str
    error: ClientError


class SendFailed(ClientError):
    """Every attempt to send a message failed. attempts: in order, with the error of each."""

    def __init__(self, topic: str, attempts: Sequence[Attempt]) -> None:
        last = attempts[-1].error if attempts else None
        super().__init__(
            f"the message to {topic} was not acknowledged after {len(attempts)} attempts;"
            f" the last: {last}. It may have been stored nevertheless: consumers must bear repeats"
        )
        self.topic = topic
        self.attempts = tuple(attempts)


class HandlerStuck(ClientError):
    """A handler was still running when ``close()`` stopped waiting for it."""


class TransactionNotStarted(ClientError):
    """The half message was not stored safely (its send status says so), and was rolled back."""
