"""Request and reply over topics (docs/internals/wire.md#request-and-reply): the asking side waits
for the answer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.client.errors import BadAnswer, InvalidMessage, RequestTimeout, reading
from broker.client.message import ReceivedMessage
from broker.wire.command import Command
from broker.wire.handlers import Peer, Result
from pystore.format.compression import inflate
from pystore.format.names import REPLY_SUFFIX
from pystore.format.properties import parse_properties

__all__ = ["Reply", "Waiting", "reply_properties", "request_properties"]

_COMPRESSED = 1
CORRELATION = "CORRELATION_ID"


@dataclass(frozen=True, slots=True)
class Reply:
    """What a consumer answered to Producer.request().

    >>> from broker import Consumer, Message, Producer
    >>> with Producer("desk") as desk, Producer("shop") as shop:
    ...     result = shop.send(Message("questions", b"(makes the topic)"))
    ...     answer = lambda message: desk.reply(message, b"12 left")
    ...     with Consumer("desk", "questions", handler=answer):
    ...         shop.request(Message("questions", b"apples?"), timeout_s=300).body
    b'12 left'
    """

    body: bytes
    properties: Mapping[str, str] = field(default_factory=dict)


class Waiting:
    """The requests whose answer has not come, by correlation id."""

    def __init__(self) -> None:
        self._futures: dict[str, asyncio.Future[Reply]] = {}

    def add(self) -> tuple[str, asyncio.Future[Reply]]:
        key = secrets.token_hex(16)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._futures[key] = future
        return key, future

    async def result(self, key: str, future: asyncio.Future[Reply], timeout_s: float) -> Reply:
        """Waits for the reply and returns it. Raises: RequestTimeout."""
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise RequestTimeout(
                f"no consumer replied within {timeout_s:g} s; check that one is running and calls"
                " reply()"
            ) from None
        finally:
            self._futures.pop(key, None)

    def drop(self, key: str) -> None:
        self._futures.pop(key, None)

    def pushed(self, peer: Peer, command: Command) -> Result:
        """Takes PUSH_REPLY_MESSAGE_TO_CLIENT: the answer of a request."""
        properties = parse_properties(command.ext.get("properties", "").encode())
        future = self._futures.get(properties.get(CORRELATION, ""))
        if future is None or future.done():
            return command.reply(1, "nobody waits for this reply any more")
        body = bytes(command.body)
        flag = command.number("sysFlag", 0)
        if flag & _COMPRESSED:
            return _inflated(future, (flag >> 8) & 7, body, properties, peer, command)
        future.set_result(Reply(body, properties))
        return command.reply()


async def _inflated(
    future: asyncio.Future[Reply], kind: int, body: bytes, properties: Mapping[str, str],
    peer: Peer, command: Command,
) -> Command:  # fmt: skip
    """Inflates the body beside the event loop: a few bytes may become many."""
    try:
        with reading("a request, as a reply,", str(peer)):
            body = await asyncio.to_thread(inflate, kind, body)
    except BadAnswer as bad:
        if not future.done():
            future.set_exception(bad)
        raise
    if not future.done():  # the wait may have ended meanwhile
        future.set_result(Reply(body, properties))
    return command.reply()


def request_properties(key: str, client_id: str, timeout_s: float) -> dict[str, str]:
    return {CORRELATION: key, "REPLY_TO_CLIENT": client_id, "TTL": str(int(timeout_s * 1000))}


def reply_properties(message: ReceivedMessage) -> tuple[str, dict[str, str]]:
    """Makes topic and properties of the reply to a message. Raises: InvalidMessage when nobody
    waits for one."""
    given = message.properties
    cluster, key, client = (given.get(n) for n in ("CLUSTER", CORRELATION, "REPLY_TO_CLIENT"))
    if not cluster or not key or not client:
        raise InvalidMessage(f"{message} is not a request: nobody waits for a reply to it")
    found = {"MSG_TYPE": "reply", CORRELATION: key, "REPLY_TO_CLIENT": client}
    if ttl := given.get("TTL"):
        found["TTL"] = ttl
    return cluster + REPLY_SUFFIX, found
