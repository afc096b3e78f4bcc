"""Messages by key and by id: QUERY_MESSAGE (12) and VIEW_MESSAGE_BY_ID (33)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.loop.turns import alone
from broker.processors.offsets import ask_tier, bring, is_place
from broker.services.context import Services
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer
from pystore import Batch, Message
from pystore.errors import StoreError

if TYPE_CHECKING:
    from pystore.cold.lending import Lender
    from pystore.cold.reader import ColdReader

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
        return self._query(command, find, min(count, _MOST))

    @alone
    async def _query(self, command: Command, find: partial[Batch], count: int) -> Command:
        # Index files may have to come from the disk.
        found = await asyncio.to_thread(self._found, find) if count else []
        if len(found) < count and self.s.cold is not None:
            found = [*await self._in_tier(find, count - len(found)), *found]
        body = self._records(found)
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

    @staticmethod
    def _found(find: partial[Batch]) -> list[Message]:
        return list(find())

    async def _in_tier(self, find: partial[Batch], count: int) -> list[Message]:
        """Returns what else has the key, and is in the cold tier alone. Raises: Refused."""
        store = self.s.store

        def question(lender: Lender, tier: ColdReader) -> list[Message]:
            (topic, key), options = find.args, find.keywords
            found = tier.query(topic, key, begin=options["begin"], end=options["end"])
            cold = [m for m in found if m.queue_offset < store.range(topic, m.queue)[0]]
            lent = [lender.message(topic, m.queue, m.queue_offset) for m in cold[-count:]]
            return [each for each in lent if each is not None]

        return await ask_tier(self.s, question)

    def _records(self, found: Iterable[Message]) -> bytes:
        parts: list[bytes] = []
        size = 0
        for message in found:
            size += message.size
            if parts and size > _BYTES_MAX:
                break
            parts.append(bytes(message.record))
        return b"".join(parts)

    def view(self, peer: Peer, command: Command) -> Command | Coroutine[Any, Any, Command]:
        offset = command.number("offset")
        if is_place(self.s, offset):
            return self._view_in_tier(peer, command, offset)
        return self._view(peer, command, offset)

    @alone
    async def _view_in_tier(self, peer: Peer, command: Command, place: int) -> Command:
        await bring(self.s, place)
        return self._view(peer, command, place)

    def _view(self, peer: Peer, command: Command, offset: int) -> Command:
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
