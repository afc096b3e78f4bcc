"""Servers of tests on a loop, of which nothing is left once they are closed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

__all__ = ["Listener", "listening"]

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Listener:
    """A port that hands each connection to `serve`, and closes it when that returns.

    At its end all of them are closed, whatever the other side does, also those that the loop has
    accepted and nobody has begun to serve. What is left open fails another test, whenever the
    garbage collector comes across it.
    """

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._socket: socket.socket | None = None
        self._tasks = set[asyncio.Task[None]]()
        self._writers = set[asyncio.StreamWriter]()

    async def open(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listens; returns the address."""
        # Not asyncio's server: what that has accepted, but not begun when it is closed, stays open.
        self._socket = socket.create_server((host, port))
        self._socket.setblocking(False)
        self._begin(self._accept(self._socket))
        return "{}:{}".format(*self._socket.getsockname())

    async def close(self) -> None:
        """Ends the port and every connection. It may be opened again."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        await asyncio.sleep(0)  # then transports say that they are closed

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(listening)
            self._begin(self._serve_one(connection))

    async def _serve_one(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        self._writers.add(writer)
        try:
            await self._serve(reader, writer)
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def listening(serve: Serve, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """The address of a Listener, which is closed at the end."""
    listener = Listener(serve)
    try:
        yield await listener.open(host, port)
    finally:
        await listener.close()
