"""Work that takes long for one turn of the event loop: cut into turns, or done beside it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from broker.remoting import mqjson
from broker.remoting.command import Command
from broker.remoting.turns import alone

__all__ = ["Turns", "reply_with"]

#: Seconds of work after which others have their turn, if more is asked than a turn has time for.
_A_TURN_S = 0.002


class Turns:
    """``await turns.next()`` between two pieces of work on the loop: others have their turn once
    this one took long enough."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    async def next(self) -> None:
        if time.monotonic() - self._began >= _A_TURN_S:
            await asyncio.sleep(0)
            self._began = time.monotonic()


@alone
async def reply_with(command: Command, made: Callable[[], object]) -> Command:
    """An answer whose JSON takes long to write. made: its value, called in a thread, so it must
    look at nothing that the loop changes meanwhile; an empty list stands for no body."""

    def written() -> bytes:
        value = made()
        return mqjson.dumps(value) if value != [] else b""

    return command.reply(body=await asyncio.to_thread(written))
