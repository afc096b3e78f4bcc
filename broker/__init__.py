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
        AsyncConsumer,
        AsyncProducer,
        AsyncTransactionProducer,
        Consumer,
        Credentials,
        LocalState,
        Message,
        MessageQueue,
        Producer,
        ReceivedMessage,
        RetryLater,
        SendResult,
        SendStatus,
        Sql,
        Transaction,
        TransactionListener,
        TransactionProducer,
    )
    from broker.namesrv import NameServer

__all__ = [
    "AsyncConsumer", "AsyncProducer", "AsyncTransactionProducer", "Broker", "Consumer",
    "Credentials", "LocalState", "Message", "MessageQueue", "NameServer", "Producer",
    "ReceivedMessage", "RetryLater", "SendResult", "SendStatus", "Sql", "Transaction",
    "TransactionListener", "TransactionProducer",
]  # fmt: skip

#: Public name: the module that defines it.
_DEFINED_IN = {
    **dict.fromkeys(__all__, "broker.client"),
    "Broker": "broker.broker",
    "NameServer": "broker.namesrv",
}
__getattr__, __dir__ = lazily(__name__, _DEFINED_IN)
