"""Messages by key and by id: QUERY_MESSAGE (12) and VIEW_MESSAGE_BY_ID (33)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from broker.loop.turns import alone
from broker.services.context import Services
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer
from pystore import Batch
from pystore.errors import StoreError

__all__ = ["LookupProcessor"]

_MOST = 64
#: The answer stays well within a frame.
_BYTES_MAX = 12 << 20


class LookupProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.QUERY_MESSAGE: self.query, RequestCode.VIEW_MESSAGE_BY_ID: self.view}

    def query(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        topic, key = command.text("topic"), command.text("key")
        count = command.number("maxNum", 32)
        if count < 0:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"maxNum {count} is negative")
        if command.flag_of("_UNIQUE_KEY_QUERY"):
            count = int(self.s.settings["defaultQueryMaxNum"])
        # Of 5.5.0's types, K and U lead to the same keys; `lastKey` pages through another index.
        tags = command.text("indexType", "") == "T"
        begin = max(0, command.number("beginTimestamp", 0))
        end = command.number("endTimestamp", (1 << 63) - 1)
        find = partial(
            self.s.store.query, topic, key, begin=begin, end=end, tags=tags,
            max_messages=min(count, _MOST),
        )  # fmt: skip
        return self._query(command, find, count)

    @alone
    async def _query(self, command: Command, find: Callable[[], Batch], count: int) -> Command:
        # Index files may have to come from the disk.
        body = await asyncio.to_thread(self._records, find) if count else b""
        info = self.s.store.info()
        ext = {
            "indexLastUpdatePhyoffset": info.dispatched,
            "indexLastUpdateTimestamp": info.checkpoint[2],
        }
        if count == 0:  # upstream has looked at no file of the index then
            ext = dict.fromkeys(ext, 0)
        if body:
            return command.reply(ext=ext, body=body)
        return command.reply(
            ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct", ext
        )

    def _records(self, find: Callable[[], Batch]) -> bytes:
        parts: list[bytes] = []
        size = 0
        for message in find():
            size += message.size
            if parts and size > _BYTES_MAX:
                break
            parts.append(bytes(message.record))
        return b"".join(parts)

    def view(self, peer: Peer, command: Command) -> Command:
        offset = command.number("offset")
        try:
            record = bytes(self.s.store.message(offset).record)
        except StoreError as failed:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"can not find message by the offset, {offset}: {failed.text}",
            ) from failed
        if "replicaDigest" in command.ext and self.s.replication is not None:
            self.s.replication.take_proof(peer.address[0], offset, record, command.ext)
        return command.reply(body=record)
