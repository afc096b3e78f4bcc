"""What a user's project does with the clients: read by a strict type checker, never run."""
# ruff: noqa: F841, SIM117

import asyncio

from broker import (
    AsyncConsumer,
    AsyncProducer,
    AsyncTransactionProducer,
    Broker,
    Consumer,
    LocalState,
    Message,
    MessageQueue,
    ReceivedMessage,
    SendResult,
    Sql,
    TransactionProducer,
)


def check(message: ReceivedMessage) -> LocalState:
    return LocalState.COMMIT


def handle(message: ReceivedMessage) -> None:
    body: bytes = message.body
    tags: str | None = message.tags


def plain() -> None:
    with Broker("store", listenPort=0) as broker, broker.producer(retries=1) as producer:
        result: SendResult = producer.send(Message("t", b"x", keys=["a"]), key="a")
        queue: MessageQueue = result.queue
        results: list[SendResult] = producer.send_batch([Message("t", b"x")])
        broker.consumer("g", {"t": Sql("a > 1")}, handler=handle, start="first")
    with TransactionProducer("g", check=check) as tx, tx.transaction(Message("t", b"x")) as t:
        t.rollback()
    with Consumer("g", "t", namesrv="h:1", strategy="AVG") as consumer:
        for message in consumer:
            handle(message)


async def main() -> None:
    async with AsyncProducer("g", namespace="n", tls=True) as producer:
        result: SendResult = await producer.send(Message("t", b"x"))
        later: asyncio.Future[SendResult] = await producer.submit(Message("t", b"x"))
    async with AsyncTransactionProducer("g", check=check) as tx:
        async with tx.transaction(Message("t", b"x")) as t:
            t.leave_open()
    async with AsyncConsumer("g", ["t"], start=5) as consumer:
        async for message in consumer:
            await consumer.nack(message)
        async for batch in consumer.batches():
            consumer.ack(*batch)
