"""Producer and consumers of RocketMQ, for any broker that speaks the remoting protocol.

The public names are those of :data:`__all__`; ``from broker import ...`` has them too. See
docs/client.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.lazy import lazily

if TYPE_CHECKING:
    from broker.client.admin import Admin, AsyncAdmin
    from broker.client.allocation import by_config, machine_room, machine_room_nearby
    from broker.client.blocking import Consumer, Producer, TransactionProducer
    from broker.client.consumer import AsyncConsumer
    from broker.client.credentials import Credentials
    from broker.client.errors import (
        AlreadyClosed,
        BadAnswer,
        BrokerRefused,
        ClientError,
        Forked,
        HandlerStuck,
        HookFailed,
        InvalidMessage,
        LiteQuotaExceeded,
        Misuse,
        NoRoute,
        NotStarted,
        OffsetFileFailed,
        RequestTimeout,
        SendFailed,
        TransactionNotStarted,
        Unreachable,
        WrongLoop,
    )
    from broker.client.handling import RetryLater
    from broker.client.lite import OffsetOption
    from broker.client.lite_blocking import LiteConsumer
    from broker.client.lite_consumer import AsyncLiteConsumer
    from broker.client.message import Message, MessageQueue, ReceivedMessage, SendResult, SendStatus
    from broker.client.options import RequestHook
    from broker.client.producer import AsyncProducer
    from broker.client.requests import Reply
    from broker.client.subscription import Sql
    from broker.client.transactions import (
        AsyncTransactionProducer,
        LocalState,
        Transaction,
        TransactionListener,
        TransactionResult,
    )

__all__ = [
    "Admin", "AlreadyClosed", "AsyncAdmin", "AsyncConsumer", "AsyncLiteConsumer",
    "AsyncProducer",
    "AsyncTransactionProducer", "BadAnswer", "BrokerRefused", "ClientError", "Consumer",
    "Credentials", "Forked", "HandlerStuck", "HookFailed", "InvalidMessage", "LiteConsumer",
    "LiteQuotaExceeded", "LocalState",
    "Message", "MessageQueue", "Misuse", "NoRoute",
    "NotStarted", "OffsetFileFailed", "OffsetOption", "Producer", "ReceivedMessage", "Reply",
    "RequestHook", "RequestTimeout", "RetryLater",
    "SendFailed", "SendResult", "SendStatus", "Sql", "Transaction", "TransactionListener",
    "TransactionNotStarted", "TransactionProducer", "TransactionResult", "Unreachable", "WrongLoop",
    "by_config", "machine_room", "machine_room_nearby",
]  # fmt: skip

#: The modules of this package that define them.
_NAMES = {
    "admin": "Admin AsyncAdmin",
    "allocation": "by_config machine_room machine_room_nearby",
    "blocking": "Consumer Producer TransactionProducer",
    "consumer": "AsyncConsumer",
    "credentials": "Credentials",
    "errors": (
        "AlreadyClosed BadAnswer BrokerRefused ClientError Forked HandlerStuck HookFailed "
        "InvalidMessage LiteQuotaExceeded Misuse NoRoute NotStarted OffsetFileFailed "
        "RequestTimeout SendFailed TransactionNotStarted Unreachable WrongLoop"
    ),
    "handling": "RetryLater",
    "lite": "OffsetOption",
    "lite_consumer": "AsyncLiteConsumer",
    "lite_blocking": "LiteConsumer",
    "message": "Message MessageQueue ReceivedMessage SendResult SendStatus",
    "options": "RequestHook",
    "producer": "AsyncProducer",
    "requests": "Reply",
    "subscription": "Sql",
    "transactions": (
        "AsyncTransactionProducer LocalState Transaction TransactionListener TransactionResult"
    ),
}
__getattr__, __dir__ = lazily(
    __name__,
    {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names.split()},
)
