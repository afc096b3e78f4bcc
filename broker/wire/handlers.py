"""What serves a request: the type of it, and the table of codes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from broker.wire.command import Command
from broker.wire.decision import AskedSend, PutDecision, PutOutcome

__all__ = ["Handler", "Handlers", "Peer", "Result", "address_text", "host_text"]


class Peer(Protocol):
    """The other end of a connection, as a processor sees it (broker/remoting/connection.py)."""

    #: (address, port) of the other end; behind a proxy that says so, the client's.
    address: tuple[str, int]
    #: (address, port) of our end.
    local: tuple[str, int]
    closed: bool
    #: Free for services: what they keep about this peer.
    state: dict[str, Any]

    @property
    def busy(self) -> bool:
        """Returns whether it does not read what was written to it, so that more would only wait."""

    def send(self, command: Command) -> None:
        """Writes a frame: an answer, or a request that nobody waits for. It is dropped once
        closed."""

    def push(self, frames: bytes) -> None:
        """Writes requests that nobody waits for and that are encoded already. They are dropped once
        closed."""

    async def request(self, command: Command, timeout: float) -> Command:
        """Sends a request of ours, whose opaque is set here, and waits for the answer.

        Raises: TimeoutError, ConnectionError."""

    def serve_raw(self, command: Command) -> bool:
        """Gives a pull back to the core, which now may serve it, and returns whether it did."""

    def keep_heartbeat(self, opaque: int, says_changed: bool) -> None:
        """Lets the core answer repeats of the heartbeat with this number, which Python has served,
        until forget_heartbeat. says_changed: IS_SUB_CHANGE of the answers."""

    def forget_heartbeat(self) -> None:
        """Makes its next heartbeat come up to Python."""

    @property
    def heartbeat_at(self) -> float:
        """Returns when the core last answered a heartbeat of it, in monotonic seconds; 0 means
        never."""

    def know(self) -> None:
        """Notes that access control has let a request of it in: its frames may be larger from now
        on."""

    def read_send(self, command: Command) -> AskedSend:
        """Returns what a send asks for. Raises: BadFrame."""

    def decide(self, command: Command, decision: PutDecision) -> PutOutcome | None:
        """Has the core carry out what was decided on a send, and answer it. None means that the
        connection is closed, and nothing was done.

        Raises: what putting raises; nothing is put then, and nothing answered."""

    def close(self) -> None: ...


Result = Command | Awaitable[Command | None] | None
#: Answers a request. None: no answer, or one that comes later by Peer.send. Synchronous ones are
#: preferred: no task is made. Raises Refused for an error answer; anything else it raises is logged
#: and answered as SYSTEM_ERROR.
Handler = Callable[[Peer, Command], Result]
Handlers = Mapping[int, Handler]


def host_text(peer: Peer) -> str:
    """Returns the address of a connection, as a record's born host."""
    return address_text(peer.address)


def address_text(address: tuple[str, int | str]) -> str:
    """Returns ``host:port``, or ``[v6]:port``."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
