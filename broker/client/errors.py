"""What a client raises. Every text says what was wrong and what to do next.

ClientError
├── Misuse              the client is used in a way that cannot work; nothing was sent
│   ├── NotStarted      before ``start()``, or outside ``with``
│   ├── AlreadyClosed   after ``close()``
│   ├── WrongLoop       from another event loop, or one that is closed
│   └── Forked          in a child process of the one that started the client
├── InvalidMessage      the message breaks a rule of the protocol; nothing was sent
├── NoRoute             no name server knows a broker for the topic
├── Unreachable         no name server, or no broker, can be reached (also a ConnectionError)
├── RequestTimeout      nobody answered in time (also a TimeoutError)
├── BrokerRefused       a broker answered with an error: ``code`` and ``remark``
├── LiteQuotaExceeded   more lite topics, or subscriptions to them, than a client or broker may have
├── BadAnswer           a server's answer cannot be read, or cannot be true
├── SendFailed          every attempt to send failed: ``attempts``
├── HandlerStuck        a handler did not return while the consumer was closed
├── HookFailed          a hook raised: the request was not sent
├── OffsetFileFailed    a broadcasting consumer's offsets cannot be read or kept (also an OSError)
└── TransactionNotStarted  the half message was stored unsafely and rolled back
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from broker.wire.codes import ResponseCode

__all__ = [
    "UNREADABLE",
    "AlreadyClosed",
    "Attempt",
    "BadAnswer",
    "BrokerRefused",
    "ClientError",
    "Forked",
    "HandlerStuck",
    "HookFailed",
    "InvalidMessage",
    "LiteQuotaExceeded",
    "Misuse",
    "NoRoute",
    "NotStarted",
    "OffsetFileFailed",
    "RequestTimeout",
    "SendFailed",
    "TransactionNotStarted",
    "Unreachable",
    "WrongLoop",
    "reading",
]  # fmt: skip


#: What reading a field or a body of an answer may end with.
UNREADABLE = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError)
#: Codes of refusals that come before anything is stored.
_BEFORE_STORING = frozenset(
    {
        ResponseCode.SYSTEM_BUSY, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST, ResponseCode.INVALID_PARAMETER, ResponseCode.FLOW_CONTROL,
    }
)  # fmt: skip
#: How remarks of a plain access list begin.
_DENIED = "org.apache.rocketmq.acl.common.AclException"


class ClientError(Exception):
    """The root of everything a client raises on its own.

    >>> from broker import Producer
    >>> from broker.client import ClientError
    >>> try:
    ...     Producer("orders-api", retries=-1)
    ... except ClientError as error:
    ...     type(error).__name__
    'Misuse'
    """


class Misuse(ClientError):
    """The client is used in a way that cannot work.

    >>> from broker import Producer
    >>> Producer("orders-api", compression="rar")
    Traceback (most recent call last):
    broker.client.errors.Misuse: there is no compression 'rar'; use one of zlib, lz4, zstd
    """


class NotStarted(Misuse):
    """The client is used before its start.

    >>> from broker import Message, Producer
    >>> Producer("orders-api").send(Message("orders", b"12 apples"))
    Traceback (most recent call last):
    broker.client.errors.NotStarted: the producer orders-api is not started; use it ...
    """


class AlreadyClosed(Misuse):
    """The client is used after its close.

    >>> from broker import Message, Producer
    >>> with Producer("orders-api") as producer:
    ...     pass
    >>> producer.send(Message("orders", b"12 apples"))
    Traceback (most recent call last):
    broker.client.errors.AlreadyClosed: the producer orders-api is closed; make a new one
    """


class WrongLoop(Misuse):
    """A client belongs to the event loop on which it was started.

    >>> import asyncio
    >>> from broker import AsyncProducer, Message
    >>> producer = AsyncProducer("orders-api")
    >>> with asyncio.Runner() as one, asyncio.Runner() as other:
    ...     started = one.run(producer.start())
    ...     try:
    ...         other.run(producer.send(Message("orders", b"12 apples")))
    ...     finally:
    ...         one.run(producer.close())
    Traceback (most recent call last):
    broker.client.errors.WrongLoop: the producer orders-api was started on another event loop; ...
    """


class Forked(Misuse):
    """A client does not survive a fork: its connections belong to the parent.

    >>> import os
    >>> from broker import Message, Producer
    >>> from broker.client import Forked
    >>> with Producer("orders-api") as producer:
    ...     child = os.fork()
    ...     if child == 0:
    ...         try:
    ...             producer.send(Message("orders", b"12 apples"))
    ...         except Forked:
    ...             os._exit(7)
    ...         os._exit(0)
    ...     os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    7
    """


class InvalidMessage(ClientError):
    """The message breaks a rule of the protocol.

    >>> from broker import Message, Producer
    >>> with Producer("orders-api") as producer:
    ...     producer.send(Message("orders", b""))
    Traceback (most recent call last):
    broker.client.errors.InvalidMessage: the message to orders has an empty body; brokers refuse it
    """


class NoRoute(ClientError):
    """No broker serves the topic. ``topic`` names it.

    >>> from broker import Consumer
    >>> with Consumer("billing") as consumer:
    ...     consumer.queues("no-such-topic")
    Traceback (most recent call last):
    broker.client.errors.NoRoute: no broker serves the topic no-such-topic; ...
    """

    def __init__(self, text: str, topic: str) -> None:
        super().__init__(text)
        self.topic = topic


class Unreachable(ClientError, ConnectionError):
    """No connection to a server, or it was cut before the answer.

    >>> from broker import Message, Producer
    >>> with Producer("orders-api", "127.0.0.1:1") as producer:
    ...     producer.send(Message("orders", b"12 apples"))
    Traceback (most recent call last):
    broker.client.errors.Unreachable: no name server answers (no connection to 127.0.0.1:1: ...
    """


class RequestTimeout(ClientError, TimeoutError):
    """A server did not answer in time. Whether it did the work is unknown.

    >>> from broker import Message, Producer
    >>> with Producer("orders-api") as producer:
    ...     producer.request(Message("nobody-listens", b"apples?"), timeout_s=0.1)
    Traceback (most recent call last):
    broker.client.errors.RequestTimeout: no consumer replied within 0.1 s; ...
    """


class BrokerRefused(ClientError):
    """A broker answered with an error.

    code: response code (ResponseCode). remark: the broker's text. address: who answered.

    >>> from broker import Message, Producer
    >>> from broker.client import SendFailed
    >>> with Producer("orders-api") as producer:
    ...     queue = producer.send(Message("orders", b"1 pear")).queue._replace(queue=99)
    ...     try:
    ...         producer.send(Message("orders", b"12 apples"), queue=queue)
    ...     except SendFailed as failed:
    ...         error = failed.attempts[0].error
    >>> type(error).__name__, error.code  # there is no such queue
    ('BrokerRefused', 29)
    """

    def __init__(self, what: str, code: int, remark: str | None, address: str) -> None:
        super().__init__(f"{what} was refused by {address}: code {code}, {remark or 'no remark'}")
        self.code = code
        self.remark = remark or ""
        self.address = address

    @property
    def denied(self) -> bool:
        """Says whether access control, or a permission, stands against the request."""
        return self.code == ResponseCode.NO_PERMISSION or self.remark.startswith(_DENIED)


class LiteQuotaExceeded(ClientError):
    """More lite topics than a broker may have, or more subscriptions to them than a client or a
    broker may have.

    >>> from broker.client import LiteQuotaExceeded
    >>> def join(consumer, session):
    ...     try:
    ...         consumer.subscribe(session)
    ...     except LiteQuotaExceeded:
    ...         ...  # leave finished sessions with unsubscribe(), or start another client
    """


class BadAnswer(ClientError):
    """A server answered with something that cannot be read, or that cannot be true. address: whose.

    >>> from broker.client import BadAnswer
    >>> raise BadAnswer("a pull of orders", ValueError("offset twelve"), "10.0.0.9:10911")
    Traceback (most recent call last):
    broker.client.errors.BadAnswer: 10.0.0.9:10911 gave an answer that cannot be used, to a pull ...
    """

    def __init__(self, what: str, bad: Exception, address: str) -> None:
        why = f"{bad} is missing" if isinstance(bad, KeyError) else bad
        super().__init__(
            f"{address} gave an answer that cannot be used, to {what}: {why!s:.300}; check that a"
            " RocketMQ broker or name server listens there, and its version"
        )
        self.address = address


@contextlib.contextmanager
def reading(what: str, address: str) -> Iterator[None]:
    """Wraps code that reads an answer. Raises: BadAnswer for what that code stumbles over."""
    try:
        yield
    except UNREADABLE as bad:
        raise BadAnswer(what, bad, address) from bad


class Attempt(NamedTuple):
    """One attempt to send. error: the reason why it failed."""

    broker: str
    address: str
    error: ClientError


class SendFailed(ClientError):
    """Every attempt to send a message failed. attempts: in order, with the error of each.

    >>> from broker import Message, Producer
    >>> from broker.client import SendFailed
    >>> with Producer("orders-api") as producer:
    ...     queue = producer.send(Message("orders", b"1 pear")).queue._replace(queue=99)
    ...     try:
    ...         producer.send(Message("orders", b"12 apples"), queue=queue)
    ...     except SendFailed as failed:
    ...         [attempt.error.code for attempt in failed.attempts]  # there is no such queue
    [29]
    """

    def __init__(self, topic: str, attempts: Sequence[Attempt]) -> None:
        last = attempts[-1].error if attempts else None
        refused = [a.error for a in attempts if isinstance(a.error, BrokerRefused)]
        tries = "one attempt" if len(attempts) == 1 else f"{len(attempts)} attempts"
        if refused and len(refused) == len(attempts) and all(each.denied for each in refused):
            text = f"{last}; it is not stored: check the credentials and what they may do"
        elif (
            refused
            and len(refused) == len(attempts)
            and all(each.code in _BEFORE_STORING for each in refused)
        ):
            text = (
                f"the message to {topic} was refused in {tries} and is not stored; the last: {last}"
            )
        else:
            text = (
                f"the message to {topic} was not acknowledged after {tries};"
                f" the last: {last}. It may have been stored nevertheless: consumers must bear"
                " repeats"
            )
        super().__init__(text)
        self.topic = topic
        self.attempts = tuple(attempts)


def send_failure(topic: str, attempts: Sequence[Attempt]) -> ClientError:
    """Returns the error of a message that no attempt has sent: LiteQuotaExceeded where the broker
    may have no further lite topic, else SendFailed."""
    failed, last = SendFailed(topic, attempts), attempts[-1].error
    if isinstance(last, BrokerRefused) and last.code == ResponseCode.LMQ_QUOTA_EXCEEDED:
        full = LiteQuotaExceeded(
            f"the broker {last.address} has as many lite topics as it may ({last.remark}): let some"
            " expire, or raise its maxLmqConsumeQueueNum"
        )
        full.__cause__ = failed
        return full
    return failed


class HandlerStuck(ClientError):
    """A handler was still running when ``close()`` stopped waiting for it.

    >>> import threading
    >>> from broker import Consumer, Message, Producer
    >>> begun, end = threading.Event(), threading.Event()
    >>> def handle(message):
    ...     begun.set()
    ...     end.wait()
    >>> with Producer("orders-api") as producer:
    ...     result = producer.send(Message("slow", b"work"))
    >>> consumer = Consumer("slow", "slow", start="first", handler=handle, stop_timeout_s=0.1)
    >>> with consumer:
    ...     ready = begun.wait(300)
    Traceback (most recent call last):
    broker.client.errors.HandlerStuck: ...
    >>> end.set()
    """


class HookFailed(ClientError):
    """A hook of the user's raised before a request, which was not sent. ``__cause__`` is what it
    raised.

    >>> from broker import Message, Producer
    >>> class Locked:
    ...     def before_request(self, address, request):
    ...         raise PermissionError("the key store is locked")
    ...     def after_response(self, address, request, response):
    ...         pass
    >>> with Producer("orders-api", hooks=[Locked()]) as producer:
    ...     producer.send(Message("orders", b"12 apples"))
    Traceback (most recent call last):
    broker.client.errors.HookFailed: the hook Locked raised PermissionError: the key store is ...
    """

    def __init__(self, hook: object, code: int, address: str, error: Exception) -> None:
        super().__init__(
            f"the hook {type(hook).__name__} raised {type(error).__name__}: {error}; the request"
            f" {code} to {address} was not sent"
        )


class OffsetFileFailed(ClientError, OSError):
    """The file of a broadcasting consumer's offsets cannot be read or written.

    >>> from broker import Consumer
    >>> Consumer("news", "orders", broadcast=True, offsets_folder="/dev/null").start()
    Traceback (most recent call last):
    broker.client.errors.OffsetFileFailed: the offsets of news cannot be read: ...
    """


class TransactionNotStarted(ClientError):
    """The half message was not stored safely (its send status says so), and was rolled back.

    >>> from broker.client import TransactionNotStarted
    >>> def order(producer, message):
    ...     try:
    ...         with producer.transaction(message):
    ...             ...  # local work
    ...     except TransactionNotStarted:
    ...         ...  # nothing was done: try again later
    """
