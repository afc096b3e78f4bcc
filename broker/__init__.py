"""Apache RocketMQ's broker and name server in one small Python process, over :mod:`pystore`.

from broker import Broker

with Broker("/data/store", listenPort=0) as broker:
    print(broker.address)

The names below are imported when they are first asked for: ``import broker`` alone costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.lazy import lazily

if TYPE_CHECKING:
    from broker.broker import Broker
    from broker.client import (
        Admin,
        AlreadyClosed,
        AsyncAdmin,
        AsyncConsumer,
        AsyncLiteConsumer,
        AsyncProducer,
        AsyncTransactionProducer,
        BadAnswer,
        BrokerRefused,
        ClientError,
        Consumer,
        Credentials,
        Forked,
        HandlerStuck,
        HookFailed,
        InvalidMessage,
        LiteConsumer,
        LiteQuotaExceeded,
        LocalState,
        Message,
        MessageQueue,
        Misuse,
        NoRoute,
        NotStarted,
        OffsetFileFailed,
        OffsetOption,
        Producer,
        ReceivedMessage,
        RequestTimeout,
        RetryLater,
        SendFailed,
        SendResult,
        SendStatus,
        Sql,
        Transaction,
        TransactionListener,
        TransactionNotStarted,
        TransactionProducer,
        Unreachable,
        WrongLoop,
    )
    from broker.namesrv import NameServer

__all__ = [
    "Admin", "AlreadyClosed", "AsyncAdmin", "AsyncConsumer", "AsyncLiteConsumer",
    "AsyncProducer", "AsyncTransactionProducer", "BadAnswer", "Broker", "BrokerRefused",
    "ClientError", "Consumer", "Credentials", "Forked", "HandlerStuck", "HookFailed",
    "InvalidMessage", "LiteConsumer", "LiteQuotaExceeded", "LocalState", "Message", "MessageQueue",
    "Misuse", "NameServer", "NoRoute", "NotStarted", "OffsetFileFailed", "OffsetOption", "Producer",
    "ReceivedMessage", "RequestTimeout", "RetryLater", "SendFailed", "SendResult", "SendStatus",
    "Sql", "Transaction", "TransactionListener", "TransactionNotStarted", "TransactionProducer",
    "Unreachable", "WrongLoop",
]  # fmt: skip

#: Public name: the module that defines it.
_DEFINED_IN = {
    **dict.fromkeys(__all__, "broker.client"),
    "Broker": "broker.broker",
    "NameServer": "broker.namesrv",
}
__getattr__, __dir__ = lazily(__name__, _DEFINED_IN)
