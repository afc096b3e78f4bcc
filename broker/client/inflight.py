"""Sends under way: how many there may be, and the quick way of one that needs no task.

A send whose route is known and whose connection is open is written at once; its answer settles the
user's future directly. Whatever does not go well goes on in ``Sender.deliver``.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

from broker.client._messages import send_plain, send_prepared
from broker.client.credentials import SigningHook
from broker.client.errors import BadAnswer
from broker.client.message import Message, MessageQueue, SendResult
from broker.client.routes import Route
from broker.client.sending import STORED, Answer, PreparedSend, answer_of, fixed_fields
from broker.remoting.connection import Connection
from broker.wire import codec
from broker.wire.command import BINARY, Command
from pystore.native import address_of, ffi, lib, raise_error

__all__ = ["InFlight", "Lane", "Slots", "Target"]

#: Bytes that a lane encodes into: at first, and at most after a larger message.
ROOM, ROOM_KEPT = 4096, 1 << 20


class Slots:
    """A bound on the sends under way; those that wait for one are served in order."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._idle: list[asyncio.Future[None]] = []

    @property
    def taken(self) -> int:
        return self._count - self._free

    def try_acquire(self) -> bool:
        """Takes a slot if one is free, and says whether it did."""
        if self.free:
            self._free -= 1
            return True
        return False

    @property
    def free(self) -> bool:
        """Says whether try_acquire() would succeed."""
        return self._free > 0 and not self._waiting

    async def acquire(self) -> None:
        if self.try_acquire():
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        except BaseException:  # cancelled, or a coroutine that nobody resumes was closed
            if not future.cancel() and not future.cancelled():  # it was given, and nobody uses it
                self.release()
            raise

    def release(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        self._free += 1
        if self._idle and self._free == self._count:
            for future in self._idle:
                if not future.done():
                    future.set_result(None)
            self._idle.clear()

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()

    async def all_free(self) -> None:
        """Waits until no send is under way."""
        while self.taken:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(future)
            await future


class InFlight:
    """One send that waits for its answer: what a connection treats as its waiter."""

    __slots__ = (
        "_owner", "_result", "connection", "finished", "future", "outgoing", "reads", "start",
        "target",
    )  # fmt: skip

    def __init__(
        self,
        owner: Owner,
        outgoing: PreparedSend,
        target: Target,
        connection: Connection,
        start: float,
        future: asyncio.Future[Any],
        result: Callable[[PreparedSend, MessageQueue, Answer], object],
    ) -> None:
        self._owner = owner
        self._result = result
        self.finished = False
        self.outgoing = outgoing
        self.target = target
        self.connection = connection
        self.start = start
        self.reads = connection.reads
        self.future = future

    def done(self) -> bool:
        return self.finished

    def sent(self, code: int, queue: int, offset: int, ids: str, transaction: str) -> None:
        if not self.finished:
            self.settle(Answer(code, queue, offset, ids, transaction))

    def set_result(self, answer: Command) -> None:
        """Settles the send by an answer that had to be decoded: mostly one that refuses."""
        if answer.code not in STORED:
            self.finished = True
            self._owner.refused(self, answer)
            return
        try:
            read = answer_of(answer, self.target.queue, self.target.address)
        except BadAnswer as bad:
            self.set_exception(bad)
        else:
            self.settle(read)

    def settle(self, answer: Answer) -> None:
        self.finished = True
        if answer.code not in STORED:
            self._owner.refused(self, Command(answer.code))
            return
        future = self.future
        if not future.done():
            future.set_result(self._result(self.outgoing, self.target.queue, answer))
        self._owner.stored(self)

    def set_exception(self, error: Exception) -> None:
        """Ends the send: the connection is gone, or the answer did not come in time."""
        self.finished = True
        self._owner.lost(self, error)

    @property
    def result(self) -> Callable[[PreparedSend, MessageQueue, Answer], object]:
        """Makes the user's result of an answer."""
        return self._result


class Owner(Protocol):
    """What a send needs of the producer that it belongs to."""

    def stored(self, sending: InFlight) -> None: ...

    def refused(self, sending: InFlight, answer: Command) -> None: ...

    def lost(self, sending: InFlight, error: Exception) -> None: ...


class Target(NamedTuple):
    """A queue that messages can be written to now, the broker that serves it, and the part of its
    requests that stays."""

    queue: MessageQueue
    broker: str
    address: str
    base: bytes


class Lane:
    """The queues of one topic in turn, for requests of one kind, encoded and signed in C.

    route: what it was made of; another route makes another lane. signing: must have a signer.
    """

    __slots__ = (
        "_body_max", "_count", "_error", "_next", "_out", "_room", "_signer", "_signer_at",
        "_targets", "_topic", "route",
    )  # fmt: skip

    def __init__(self, route: Route, outgoing: PreparedSend, signing: SigningHook | None) -> None:
        self.route = route
        self._signer = signing.signer if signing is not None else ffi.NULL
        self._signer_at = address_of(self._signer)
        rules = outgoing.rules
        self._topic = outgoing.topic
        self._body_max = rules.message_max  # without compression
        if rules.compress_over:
            self._body_max = min(rules.message_max, rules.compress_over - 1)
        signed = signing.fields if signing is not None else {}
        self._targets: list[Target] = []
        for queue in route.publish:
            broker = route.broker(queue)
            address = route.master(broker)
            fields = fixed_fields(outgoing.rules, outgoing.topic, queue, outgoing.batch)
            if address is not None:
                frame = codec.encode(Command(outgoing.code, signed | fields, serialize=BINARY))
                self._targets.append(Target(queue, broker, address, frame))
        self._count = len(self._targets)
        self._next = random.randrange(1 << 16)
        self._room = ROOM
        self._out = ffi.new("uint8_t[]", ROOM)
        self._error = ffi.new("ps_error *")

    def next(self) -> Target | None:
        """Returns the next queue that has a master, or None when none has one."""
        if not self._count:
            return None
        self._next = at = self._next + 1
        return self._targets[at % self._count]

    def send_plain(
        self, at: tuple[int, int], target: Target, opaque: int, message: Message, key: str
    ) -> SendResult | Literal[False] | None:
        """Sends a message straight to the core of a broker in this process, which is `at` these
        addresses; see _messages.send_plain."""
        return send_plain(
            at, self._signer_at, target.base, opaque, message, self._topic, self._body_max, key,
            target.queue,
        )  # fmt: skip

    def send_prepared(
        self, at: tuple[int, int], target: Target, opaque: int, outgoing: PreparedSend
    ) -> Answer | Literal[False] | None:
        """Sends any request as send_plain() does."""
        found = send_prepared(
            at, self._signer_at, target.base, opaque, outgoing.sys_flag, outgoing.flag,
            outgoing.born_ms, outgoing.properties.encode("utf-8", "replace"), outgoing.body,
        )  # fmt: skip
        return Answer(*found) if found else found

    def frame(self, target: Target, outgoing: PreparedSend, opaque: int) -> bytes:
        """Returns the frame of a send. Raises: BadFrame."""
        base, body = target.base, outgoing.body
        properties = outgoing.properties.encode("utf-8", "replace")
        while True:
            size = lib.ps_client_send(
                base, len(base), opaque, outgoing.sys_flag, outgoing.flag, outgoing.born_ms,
                properties, len(properties), body, len(body), self._signer, self._out, self._room,
                self._error,
            )  # fmt: skip
            if size <= self._room:
                break
            self._room, self._out = size, ffi.new("uint8_t[]", size)
        if size < 0:
            raise_error(self._error[0], size)
        made: bytes = ffi.buffer(self._out, size)[:]
        if self._room > ROOM_KEPT:
            self._room, self._out = ROOM, ffi.new("uint8_t[]", ROOM)
        return made
