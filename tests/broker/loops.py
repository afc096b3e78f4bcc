"""Runs a test's coroutine on uvloop, and a raw client that can say anything."""

from __future__ import annotations

import asyncio
import socket
import struct

import uvloop
from waiting import BOUND_S, until_async

from broker.wire import codec
from broker.wire.command import Command

__all__ = ["Wire", "run", "serving", "until"]

until = until_async
#: A LoopThread for run() to use in the place of a loop of its own; others may run things there.
target = None


def run(coro):
    """The coroutine's result. Nothing may be left running in its loop."""
    if target is not None:
        return target.run(coro, 2 * BOUND_S)

    async def bounded():
        async with asyncio.timeout(2 * BOUND_S):
            result = await coro
        for _ in range(3):
            await asyncio.sleep(0)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, f"tasks are left: {left}"
        return result

    return uvloop.run(bounded())


class Wire:
    """A client's socket, to be used on the loop."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, port, **options):
        return cls(*await asyncio.open_connection("127.0.0.1", port, **options))

    def write(self, *sent):
        """Bytes, or commands."""
        for each in sent:
            self.writer.write(codec.encode(each) if isinstance(each, Command) else each)

    async def frame(self):
        head = await self.reader.readexactly(4)
        return head + await self.reader.readexactly(struct.unpack(">i", head)[0])

    async def answer(self):
        return codec.decode(await self.frame())

    async def ask(self, command):
        self.write(command)
        return await self.answer()

    async def closed(self):
        """Waits for the other side to close; what it still sent."""
        try:
            return await self.reader.read()
        except OSError:  # a reset, also one that came before our own end
            return b""

    def close(self):
        self.writer.close()

    @property
    def socket(self) -> socket.socket:
        return self.writer.get_extra_info("socket")

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.close()


def serving(handlers, **options):
    """A server on a free port of this machine."""
    from broker.remoting.server import RemotingServer

    return RemotingServer(handlers, host="127.0.0.1", **options)
