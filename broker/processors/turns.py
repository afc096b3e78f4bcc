"""Work that takes long for one turn of the event loop: cut into turns, or done beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.loop.turns import Pieces as Turns
from broker.loop.turns import alone
from broker.wire import mqjson
from broker.wire.command import Command

__all__ = ["Turns", "reply_with"]


@alone
async def reply_with(command: Command, made: Callable[[], object]) -> Command:
    """Answers with JSON that takes long to write. made: returns its value and is called in a
    thread, so it must look at nothing that the loop changes meanwhile; an empty list stands for no
    body."""

    def written() -> bytes:
        value = made()
        return mqjson.dumps(value) if value != [] else b""

    return command.reply(body=await asyncio.to_thread(written))
