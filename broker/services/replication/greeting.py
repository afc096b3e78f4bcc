"""What a slave and its master tell each other before the log is sent, under a controller: whose
epochs began where (docs/internals/ha.md#under-a-controller). Upstream: AutoSwitchHAConnection."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from broker.services.replication.epochs import Epoch

__all__ = ["ClosedUnheard", "MasterGreeting", "SlaveGreeting", "greet_master", "greet_slave"]

#: Upstream's states of a connection.
_HANDSHAKE = 1
#: state, syncFromLastFile, asyncLearner, id
_SLAVE = struct.Struct(">ihhq")
#: state, bytes of the list, end of the log, last epoch
_MASTER = struct.Struct(">iiqi")
_EPOCH = struct.Struct(">iq")
#: Upstream's handshake is over after so long.
_S = 5.0
_EPOCHS_MAX = 4096


class ClosedUnheard(ConnectionError):
    """The other end closed the connection before it sent anything."""


@dataclass(frozen=True, slots=True)
class SlaveGreeting:
    """number: the slave's, as its controller gave it. learner: it is never to be waited for."""

    number: int
    learner: bool


@dataclass(frozen=True, slots=True)
class MasterGreeting:
    """end: of the master's log."""

    end: int
    epochs: list[Epoch]


async def greet_slave(sock: socket.socket, epochs: Sequence[Epoch], end: int) -> SlaveGreeting:
    """Does the master's part. Raises: OSError, TimeoutError, ValueError for something else than a
    slave's greeting."""
    async with asyncio.timeout(_S):
        state, _, learner, number = _SLAVE.unpack(await _read(sock, _SLAVE.size))
        if state != _HANDSHAKE or number < 0:
            raise ValueError(f"state {state} of slave {number} is not a greeting")
        rows = b"".join(_EPOCH.pack(*each) for each in epochs)
        last = epochs[-1].epoch if epochs else -1
        data = _MASTER.pack(_HANDSHAKE, len(rows), end, last) + rows
        await asyncio.get_running_loop().sock_sendall(sock, data)
    return SlaveGreeting(number, learner != 0)


async def greet_master(sock: socket.socket, number: int) -> MasterGreeting:
    """Does the slave's part. Raises: ClosedUnheard, OSError, TimeoutError, ValueError."""
    async with asyncio.timeout(_S):
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(sock, _SLAVE.pack(_HANDSHAKE, 0, 0, number))
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
