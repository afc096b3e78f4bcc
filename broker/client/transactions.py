"""Transactional messages: a half message, local work, commit or rollback
(docs/internals/services.md#transactions).

A broker that does not hear how a transaction ended asks any producer of the group: check() answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, Unpack, runtime_checkable

from broker.client.errors import (
    ClientError,
    HookFailed,
    InvalidMessage,
    Misuse,
    TransactionNotStarted,
    reading,
)
from broker.client.ids import offset_id_of
from broker.client.message import Message, MessageQueue, ReceivedMessage, SendResult, SendStatus
from broker.client.network import request_of
from broker.client.producer import AsyncProducer, ProducerOptions
from broker.client.progress import QueueProgress
from broker.client.records import BadRecord, received
from broker.client.routes import Route
from broker.client.sending import HALF, prepare, result_of, without_namespace
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.wire.codes import RequestCode
from broker.wire.command import ONEWAY, Command
from broker.wire.handlers import Handler, Peer
from pystore.format.names import HALF_TOPIC

__all__ = [
    "AsyncTransactionProducer", "Check", "LocalState", "Transaction", "TransactionListener",
    "TransactionResult", "check_listener", "state_of", "text_of",
]  # fmt: skip

log = SafeLogger("broker.client")
quiet = RateLimitedLogger(SafeLogger("broker.client"))

#: Checks at once, and how many may wait for that; the broker repeats what is dropped.
CHECKS_AT_ONCE = 4
CHECKS_WAITING_MAX = 2000
REMARK_MAX = 1000


class LocalState(enum.Enum):
    """How local work ended. UNKNOWN: the broker asks later.

    >>> from broker import LocalState
    >>> done = {"17"}
    >>> def check(message):  # of a TransactionProducer
    ...     return LocalState.COMMIT if set(message.keys) <= done else LocalState.UNKNOWN
    """

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class Transaction:
    """A half message that a broker has stored. It commits when the ``with`` block ends normally.

    >>> from broker import LocalState, Message, TransactionProducer
    >>> with TransactionProducer("stock-tx", check=lambda message: LocalState.ROLLBACK) as producer:
    ...     with producer.transaction(Message("stock", b"12 apples")) as tx:
    ...         tx.rollback()  # there are none
    >>> tx.state
    <LocalState.ROLLBACK: 12>
    """

    def __init__(self, message: Message, result: SendResult) -> None:
        self.message = message
        self.send_result = result
        self.state = LocalState.COMMIT

    @property
    def transaction_id(self) -> str:
        """The message's unique key; a check brings it as ``message.transaction_id``."""
        return self.send_result.message_id

    def rollback(self) -> None:
        """Has the message not delivered, although the block ends normally."""
        self.state = LocalState.ROLLBACK

    def leave_open(self) -> None:
        """Leaves the transaction undecided at the end of the block: the broker will ask check()."""
        self.state = LocalState.UNKNOWN


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """send_result: of the half message. state: what the broker was told.

    >>> from broker import LocalState, Message, TransactionProducer
    >>> class Booking:
    ...     def execute(self, transaction, argument):
    ...         return LocalState.COMMIT
    ...     def check(self, message):
    ...         return LocalState.UNKNOWN
    >>> with TransactionProducer("hotel-tx", listener=Booking()) as producer:
    ...     producer.send_in_transaction(Message("hotel", b"room 3")).state.name
    'COMMIT'
    """

    send_result: SendResult
    state: LocalState


@runtime_checkable
class TransactionListener(Protocol):
    """Local work of send_in_transaction(), and the answer to checks. Both may be coroutines in an
    AsyncTransactionProducer. An exception in execute() leaves the transaction open.

    >>> from broker import LocalState, Message, TransactionProducer
    >>> class Payment:
    ...     def __init__(self):
    ...         self.paid = set()  # a table of a database in earnest
    ...     def execute(self, transaction, argument):
    ...         self.paid.add(transaction.transaction_id)
    ...         return LocalState.COMMIT
    ...     def check(self, message):
    ...         known = message.transaction_id in self.paid
    ...         return LocalState.COMMIT if known else LocalState.ROLLBACK
    >>> with TransactionProducer("pay-tx", listener=Payment()) as producer:
    ...     producer.send_in_transaction(Message("payments", b"12")).send_result.status.name
    'SEND_OK'
    """

    def execute(
        self, transaction: Transaction, argument: object
    ) -> LocalState | Awaitable[LocalState | None] | None: ...

    def check(self, message: ReceivedMessage) -> LocalState | Awaitable[LocalState | None] | None:
        """Says whether the local work of the message was done. It must look at something durable:
        the process that did the work may be gone."""


Check = Callable[[ReceivedMessage], "LocalState | Awaitable[LocalState | None] | None"]


class AsyncTransactionProducer(AsyncProducer):
    """Sends messages that are delivered only if local work succeeds.

    listener: for send_in_transaction(). check: for transaction() alone, in the listener's place.

    >>> import asyncio
    >>> from broker import AsyncTransactionProducer, LocalState, Message
    >>> stored = set()  # a table of a database in earnest
    >>> async def check(message):
    ...     known = message.transaction_id in stored
    ...     return LocalState.COMMIT if known else LocalState.UNKNOWN
    >>> async def main():
    ...     async with AsyncTransactionProducer("orders-tx", check=check) as producer:
    ...         async with producer.transaction(Message("orders", b"12 apples")) as tx:
    ...             stored.add(tx.transaction_id)
    ...         return tx.state.name
    >>> asyncio.run(main())
    'COMMIT'
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        *,
        listener: TransactionListener | None = None,
        check: Check | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Raises: Misuse without listener and check, InvalidMessage (an illegal group)."""
        check_listener(listener, check)
        super().__init__(group, namesrv, **options)
        self._listener = listener
        asked = listener.check if listener is not None else check
        assert asked is not None
        self._check: Check = asked
        self._checks = asyncio.Semaphore(CHECKS_AT_ONCE)
        #: Checks that are not answered yet.
        self.checks_waiting = 0

    async def start(self) -> Self:
        """Starts as AsyncProducer.start() does. Registers with every broker that can hold half
        messages, so that transactions of a producer that is gone are checked before this one
        sends."""
        await super().start()
        self.network.follow(HALF_TOPIC)
        return self

    # ---- sending ----

    async def send_in_transaction(
        self, message: Message, argument: object = None
    ) -> TransactionResult:
        """Stores the half message, runs the listener's execute(), and tells the broker.

        execute() is not run, and the message rolled back, when the half message was stored unsafely
        (a status other than SEND_OK). Raises: as send(), Misuse without a listener.
        """
        if self._listener is None:
            raise Misuse("send_in_transaction() needs a listener; use 'with transaction(message)'")
        tx = await self.begin(message)
        if tx.send_result.status is not SendStatus.SEND_OK:
            return await self.end(tx, LocalState.ROLLBACK)
        remark = None
        try:
            told = self._listener.execute(tx, argument)
            state = state_of("execute()", await told if inspect.isawaitable(told) else told)
        except Exception as error:
            log.exception("Local work of %s failed", tx.transaction_id)
            state, remark = LocalState.UNKNOWN, text_of(error)
        return await self.end(tx, state, remark)

    @contextlib.asynccontextmanager
    async def transaction(self, message: Message) -> AsyncIterator[Transaction]:
        """Stores the half message; the block does the local work. Leaving it normally commits, an
        exception rolls back.

        Raises: as send(); TransactionNotStarted when it was stored unsafely.
        """
        tx = await self.begin(message)
        await refuse_unsafe(self, tx)
        try:
            yield tx
        except BaseException as error:
            await self.end(tx, LocalState.ROLLBACK, text_of(error))
            raise
        await self.end(tx, tx.state)

    async def begin(self, message: Message) -> Transaction:
        """Stores a half message; end() must follow. Raises: as send()."""
        self.network.check()
        if isinstance(message, Message) and message.waits:
            raise InvalidMessage("a message in a transaction has no delay; brokers ignore it")
        extra = {"TRAN_MSG": "true", "PGROUP": self.group}
        outgoing = prepare(message, self._rules, extra=extra, sys_flag=HALF)
        await self._introduce(await self._sender.route(outgoing.topic))
        async with self._sender.slots:
            result = await self._sender.deliver(outgoing, self._sender.any_queue, None, result_of)
        with reading(f"the half message to {outgoing.topic}", result.queue.broker):
            offset_id_of(result.offset_message_id)  # without it no end can be told
        return Transaction(message, result)

    async def _introduce(self, route: Route) -> None:
        """Registers with the broker, which can only ask producers that it has heard of."""
        masters = route.addresses(masters_only=True)
        await asyncio.gather(*map(self.network.registered, masters))

    async def end(
        self, tx: Transaction, state: LocalState, remark: str | None = None
    ) -> TransactionResult:
        """Tells the broker the decision. When that fails, the broker asks check() later."""
        command = request_of(RequestCode.END_TRANSACTION, self._ending(tx, state))
        command.remark = remark
        try:
            await self.network.oneway(await self._broker_of(tx), command)
        except ClientError as failed:
            log.warning(
                "%s of %s did not reach the broker, which will ask: %s", state.name,
                tx.transaction_id, failed,
            )  # fmt: skip
        return TransactionResult(tx.send_result, state)

    async def end_confirmed(self, tx: Transaction, state: LocalState) -> None:
        """Ends a transaction as end() does, but waits for the broker's answer. Raises:
        BrokerRefused (the half message is gone, or was ended otherwise), NoRoute, Unreachable,
        RequestTimeout."""
        self.network.check()
        address = await self._broker_of(tx)
        await self.network.request(address, RequestCode.END_TRANSACTION, self._ending(tx, state))

    def _ending(self, tx: Transaction, state: LocalState) -> dict[str, object]:
        result = tx.send_result
        return {
            "topic": self._full(tx.message.topic), "producerGroup": self.group,
            "tranStateTableOffset": result.queue_offset,
            "commitLogOffset": offset_id_of(result.offset_message_id).offset,
            "commitOrRollback": state.value, "fromTransactionCheck": False,
            "msgId": result.message_id, "transactionId": result.transaction_id,
            "bname": result.queue.broker,
        }  # fmt: skip

    async def _broker_of(self, tx: Transaction) -> str:
        return self._sender.master(
            await self._sender.route(self._full(tx.message.topic)), tx.send_result.queue
        )

    # ---- checks ----

    def _handlers(self) -> dict[int, Handler]:
        return super()._handlers() | {RequestCode.CHECK_TRANSACTION_STATE: self._asked}

    def _asked(self, peer: Peer, command: Command) -> None:
        queue = MessageQueue(command.ext.get("topic", ""), command.ext.get("bname", ""), 0)
        shown = lambda topic: without_namespace(topic, self._rules.namespace)  # noqa: E731
        try:
            (message,) = received(bytes(command.body), QueueProgress(queue, 0, shown))
            message.progress.queue = queue._replace(
                topic=message.stored_topic, queue=message.head.queue
            )
        except (BadRecord, ValueError) as bad:
            quiet.warning("unread", "Cannot read a check: %s", bad)
            return
        if message.properties.get("PGROUP") != self.group:
            quiet.warning(
                "other group",
                "Got a check for the group %s, which is not ours",
                message.properties.get("PGROUP"),
            )
        elif self.checks_waiting >= CHECKS_WAITING_MAX:
            quiet.warning("too many", "%d checks are waiting: dropped one more", CHECKS_WAITING_MAX)
        else:
            self.checks_waiting += 1
            self.network.spawn(self._answer(peer, command, message))

    async def _answer(self, peer: Peer, command: Command, message: ReceivedMessage) -> None:
        remark = None
        try:
            async with self._checks:
                told = self._check(message)
                state = state_of("check()", await told if inspect.isawaitable(told) else told)
        except Exception as error:
            log.exception("Check of %s failed", message.transaction_id)
            state, remark = LocalState.UNKNOWN, text_of(error)
        finally:
            self.checks_waiting -= 1
        ext = command.ext
        fields = {
            "topic": message.queue.topic, "producerGroup": self.group,
            "tranStateTableOffset": ext.get("tranStateTableOffset"),
            "commitLogOffset": ext.get("commitLogOffset"),
            "commitOrRollback": state.value, "fromTransactionCheck": True,
            "msgId": message.message_id, "transactionId": ext.get("transactionId"),
            "bname": ext.get("bname"),
        }  # fmt: skip
        answer = request_of(RequestCode.END_TRANSACTION, fields)
        answer.remark = remark
        answer.flag |= ONEWAY
        try:
            self.network.before(str(peer), answer)
        except HookFailed as failed:
            log.warning("%s stays open; the broker asks again: %s", message.transaction_id, failed)
            return
        peer.send(answer)


async def refuse_unsafe(producer: AsyncTransactionProducer, tx: Transaction) -> None:
    """Rolls back a half message that is stored unsafely. Raises: TransactionNotStarted, after a
    rollback, when the half is stored unsafely."""
    status = tx.send_result.status
    if status is not SendStatus.SEND_OK:
        await producer.end(tx, LocalState.ROLLBACK)
        raise TransactionNotStarted(
            f"the half message to {tx.message.topic} was stored unsafely ({status.name}) and is"
            " rolled back; try again"
        )


def check_listener(listener: object, check: object) -> None:
    """Checks what answers the broker's checks. Raises: Misuse unless it is one of the two, and can
    be asked."""
    if (listener is None) == (check is None):
        raise Misuse(
            "a transaction producer needs either a listener, or check=, a function that says"
            " whether a message's local work was done: brokers ask when they hear nothing"
        )
    if check is not None and not callable(check):
        raise Misuse(f"check is {type(check).__name__}; pass a function")
    for name in ("execute", "check") if listener is not None else ():
        if not callable(getattr(listener, name, None)):
            raise Misuse(
                f"the listener is {type(listener).__name__}, which has no method {name}(); see"
                " TransactionListener"
            )


def state_of(what: str, told: object) -> LocalState:
    """Returns what a user's function decided; None stands for LocalState.UNKNOWN. Raises:
    Misuse."""
    if told is None:
        return LocalState.UNKNOWN
    if not isinstance(told, LocalState):
        raise Misuse(f"{what} returned {told!r:.80}; return a LocalState, or None")
    return told


def text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:REMARK_MAX]
