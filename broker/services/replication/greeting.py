"""What a slave and its master tell each other before the log is sent, under a controller: whose
epochs began where (docs/internals/ha.md#under-a-controller). Upstream: AutoSwitchHAConnection."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from broker.remoting.client import parse_address
from broker.services.replication.epochs import Epoch

__all__ = [
    "ClosedUnheard", "MasterGreeting", "SlaveGreeting", "connected", "greet_master", "greet_slave",
]  # fmt: skip

#: Upstream's states of a connection.
_HANDSHAKE = 1
#: state, syncFromLastFile, asyncLearner, id
_SLAVE = struct.Struct(">ihhq")
#: state, bytes of the list, end of the log, last epoch
_MASTER = struct.Struct(">iiqi")
_EPOCH = struct.Struct(">iq")
#: In place of syncFromLastFile, where masters of Java's look for 1 alone: this slave has compared
#: the epochs of both logs whenever it reports something.
_COMPARES = 2
_CONNECT_S = 3.0
#: Upstream's handshake is over after so long.
_S = 5.0
_EPOCHS_MAX = 4096


class ClosedUnheard(ConnectionError):
    """The other end closed the connection before it sent anything."""


@dataclass(frozen=True, slots=True)
class SlaveGreeting:
    """number: the slave's, as its controller gave it. learner: it is never to be waited for.
    compares: what it reports is this log, as those of Java's may not be."""

    number: int
    learner: bool
    compares: bool


@dataclass(frozen=True, slots=True)
class MasterGreeting:
    """end: of the master's log."""

    end: int
    epochs: list[Epoch]


async def connected(address: str) -> socket.socket:
    """Returns a connection that does not block. Raises: OSError, TimeoutError, ValueError."""
    loop = asyncio.get_running_loop()
    host, port = parse_address(address)
    async with asyncio.timeout(_CONNECT_S):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, number, _, at = found[0]
        made = socket.socket(family, kind, number)
        made.setblocking(False)
        try:
            await loop.sock_connect(made, at)
        except BaseException:
            made.close()
            raise
    return made


async def greet_slave(sock: socket.socket, epochs: Sequence[Epoch], end: int) -> SlaveGreeting:
    """Does the master's part. Raises: OSError, TimeoutError, ValueError for something else than a
    slave's greeting."""
    async with asyncio.timeout(_S):
        state, begins, learner, number = _SLAVE.unpack(await _read(sock, _SLAVE.size))
        if state != _HANDSHAKE or number < 0:
            raise ValueError(f"state {state} of slave {number} is not a greeting")
        rows = b"".join(_EPOCH.pack(*each) for each in epochs)
        last = epochs[-1].epoch if epochs else -1
        data = _MASTER.pack(_HANDSHAKE, len(rows), end, last) + rows
        await asyncio.get_running_loop().sock_sendall(sock, data)
    return SlaveGreeting(number, learner != 0, begins == _COMPARES)


async def greet_master(sock: socket.socket, number: int, learner: bool = False) -> MasterGreeting:
    """Does the slave's part. learner: it is never to be waited for. Raises: ClosedUnheard, OSError,
    TimeoutError, ValueError."""
    async with asyncio.timeout(_S):
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(sock, _SLAVE.pack(_HANDSHAKE, _COMPARES, learner, number))
            head = await _read(sock, 1)
        except ConnectionError as closed:
            raise ClosedUnheard(str(closed)) from closed
        head += await _read(sock, _MASTER.size - 1)
        state, size, end, _ = _MASTER.unpack(head)
        if state != _HANDSHAKE or size % _EPOCH.size or not 0 <= size <= _EPOCHS_MAX * _EPOCH.size:
            raise ValueError(f"state {state} with {size} bytes of epochs does not greet a slave")
        epochs = [Epoch(*row) for row in _EPOCH.iter_unpack(await _read(sock, size))]
    return MasterGreeting(end, epochs)


async def _read(sock: socket.socket, size: int) -> bytes:
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < size:
        piece = await loop.sock_recv(sock, size - len(data))
        if not piece:
            raise ConnectionError("the connection was closed in the middle of a greeting")
        data += piece
    return data
