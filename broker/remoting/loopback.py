"""A connection within one event loop: bytes go from one Connection to the other, without a socket.

What a client writes is served before its write returns, and the answers are delivered then, too.
What the server writes of its own accord arrives in the next turn of the loop: in the middle of its
work a server must not find itself called again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Iterable
from typing import Any

from broker.loop.safe_log import SafeLogger
from broker.remoting.connection import Connection

__all__ = ["join"]

log = SafeLogger("broker.remoting")

_numbers = itertools.count()
#: Ports that nobody listens on: records name the client's.
_PORTS = 49152, 16384


def join(
    client: Connection,
    server: asyncio.BufferedProtocol,
    address: tuple[str, int],
    own: tuple[str, int] | None = None,
) -> None:
    """Connects the two, which are on the running loop. `address` is the server's; `own` is the
    client's, where it stands for somebody else."""
    if own is None:
        own = ("127.0.0.1", _PORTS[0] + next(_numbers) % _PORTS[1])
    wire = _Wire(asyncio.get_running_loop())
    wire.near, wire.far = near, far = (
        _End(wire, client, own, address), _End(wire, server, address, own)
    )  # fmt: skip
    near.other, far.other = far, near
    wire.server = server if isinstance(server, Connection) else None
    server.connection_made(far)
    client.connection_made(near)
    if isinstance(server, Connection):
        client.near = _Near(wire, client, server)


class _Near:
    """The near side of a connection within the process; it satisfies Near (connection.py)."""

    __slots__ = ("_client", "_server", "_wire")

    def __init__(self, wire: _Wire, client: Connection, server: Connection) -> None:
        self._wire = wire
        self._client = client
        self._server = server

    def direct(self) -> tuple[int, int] | None:
        wire, client = self._wire, self._client
        # Not before what the client has written, nor in the middle of a delivery.
        if wire.far.inbox or wire.delivering or wire.near.closing or client.parts:
            return None
        client.touch()
        return self._server.direct()

    def sent(self, answered: bool) -> None:
        if answered:
            self._client.reads += 1
        self._server.sent_directly(answered)


class _Wire:
    """Both ends, and whether bytes are being delivered at the moment."""

    near: _End
    far: _End
    server: Connection | None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.delivering = self._due = self._ended = False

    def written(self, to: _End) -> None:
        if self.delivering:
            return
        server = self.server
        if to is self.far and server is not None and not server.reading:
            self._deliver()
        else:
            self.soon()

    def soon(self) -> None:
        if not self._due and not self._ended:
            self._due = True
            self.loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._due = False
        if self.delivering:
            return
        self.delivering = True
        try:
            far, near = self.far, self.near
            while (far.inbox and far.deliver()) or (near.inbox and near.deliver()):
                pass
        finally:
            self.delivering = False
        if (near.closing and not far.waiting) or (far.closing and not near.waiting):
            self.end()

    def end(self) -> None:
        if self._ended:
            return
        self._ended = True
        for end in (self.near, self.far):
            end.closing = True
            end.drop()
            self.loop.call_soon(end.protocol.connection_lost, None)


class _End(asyncio.Transport):
    """The transport of one Connection; `waiting` are the bytes that it has not read yet."""

    other: _End

    def __init__(
        self, wire: _Wire, protocol: asyncio.BufferedProtocol, own: tuple[str, int],
        peer: tuple[str, int],
    ) -> None:  # fmt: skip
        super().__init__({"sockname": own, "peername": peer})
        self._wire = wire
        self.protocol = protocol
        self.closing = False
        self.waiting = 0
        self.inbox: deque[bytes | memoryview] = deque()
        self._stopped = self.held = False
        self._high, self._low = 64 << 10, 16 << 10

    # ---- reading ----

    def deliver(self) -> bool:
        """Gives what has come to the protocol, and returns whether anything had."""
        if self._stopped:
            return False
        data = self.inbox.popleft()
        size = count = len(data)
        try:
            room = memoryview(self.protocol.get_buffer(size))
            if len(room) < size:
                count, view = len(room), memoryview(data)
                self.inbox.appendleft(view[count:])
                data = view[:count]
            room[:count] = data
            self.waiting -= count
            self.protocol.buffer_updated(count)
        except Exception:
            log.exception("A connection within the process failed")
            self.abort()
        if self.other.held:
            self.other.look()
        return True

    def pause_reading(self) -> None:
        self._stopped = True

    def resume_reading(self) -> None:
        self._stopped = False
        self._wire.soon()

    def drop(self) -> None:
        self.inbox.clear()
        self.waiting = 0

    # ---- writing ----

    def write(self, data: Any) -> None:
        if self.closing or not data:
            return
        other = self.other
        copied = bytes(data)  # those who write may use the same room again
        other.inbox.append(copied)
        other.waiting += len(copied)
        self._wire.written(other)
        if other.waiting:
            self.look()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def look(self) -> None:
        """Tells the protocol whether enough waits to be read at the other end."""
        unread = self.other.waiting
        if not self.held and unread > self._high:
            self.held = True
            self.protocol.pause_writing()
        elif self.held and unread <= self._low:
            self.held = False
            self.protocol.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 << 10 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self.other.waiting

    # ---- the end ----

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        """Closes; what was written is still delivered."""
        self.closing = True
        self._wire.soon()

    def abort(self) -> None:
        self._wire.end()
