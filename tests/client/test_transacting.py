"""Transactions, and requests that wait for a reply."""

from __future__ import annotations

import asyncio

import pytest
from loops import run, until
from waiting import BOUND_S

from broker import (
    AsyncConsumer,
    AsyncProducer,
    AsyncTransactionProducer,
    Broker,
    LocalState,
    Message,
    TransactionProducer,
)
from broker.client import InvalidMessage, Misuse, RequestTimeout

COMMIT, ROLLBACK, UNKNOWN = LocalState.COMMIT, LocalState.ROLLBACK, LocalState.UNKNOWN


def unasked(message):
    raise AssertionError("no check was expected")


class Listener:
    """Does what the test says, and remembers."""

    def __init__(self, state):
        self.state = state
        self.executed = []

    def execute(self, transaction, argument):
        self.executed.append((transaction.transaction_id, argument))
        if isinstance(self.state, Exception):
            raise self.state
        return self.state

    def check(self, message):
        return COMMIT


async def bodies(server, topic, count):
    async with AsyncConsumer(
        f"reader-{topic}", topic, namesrv=server.namesrv, start="first"
    ) as consumer:
        found = []
        async with asyncio.timeout(BOUND_S):
            while len(found) < count:
                found += await consumer.poll(1.0)
        found += await consumer.poll(0.3)
        return [m.body for m in found]


async def test_a_block_commits_and_an_exception_rolls_back(server, name):
    topic = name("topic")
    async with AsyncTransactionProducer(name("g"), server.namesrv, check=unasked) as producer:
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message(topic, b"fails")):
                raise ZeroDivisionError
        async with producer.transaction(Message(topic, b"withdrawn")) as tx:
            tx.rollback()
        async with producer.transaction(Message(topic, b"done")) as tx:
            assert len(tx.transaction_id) == 32
    assert await bodies(server, topic, 1) == [b"done"]


def test_the_blocking_twin_works_alike(server, name):
    topic = name("topic")
    with TransactionProducer(name("g"), server.namesrv, check=unasked) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction(Message(topic, b"fails")):
            raise ZeroDivisionError
        with producer.transaction(Message(topic, b"done")):
            pass
    listener = Listener(COMMIT)
    with TransactionProducer(name("h"), server.namesrv, listener=listener) as producer:
        done = producer.send_in_transaction(Message(topic, b"too"), 17)
    assert done.state is COMMIT
    assert listener.executed == [(done.send_result.message_id, 17)]
    assert sorted(run(bodies(server, topic, 2))) == [b"done", b"too"]


@pytest.mark.parametrize(
    ("local", "told"),
    [(COMMIT, COMMIT), (ROLLBACK, ROLLBACK), (UNKNOWN, UNKNOWN), (None, UNKNOWN),
     (ValueError("x"), UNKNOWN)],
)  # fmt: skip
async def test_what_a_listener_says_is_what_the_broker_is_told(server, name, local, told):
    async with AsyncTransactionProducer(
        name("g"), server.namesrv, listener=Listener(local)
    ) as producer:
        done = await producer.send_in_transaction(Message(name("topic"), b"x"))
    assert done.state is told


async def test_misuse_of_transactions_is_named(server):
    with pytest.raises(Misuse, match="either a listener"):
        AsyncTransactionProducer("g", server.namesrv)
    async with AsyncTransactionProducer("g", server.namesrv, check=unasked) as producer:
        with pytest.raises(Misuse, match="needs a listener"):
            await producer.send_in_transaction(Message("t", b"x"))
        with pytest.raises(InvalidMessage, match="no delay"):
            await producer.begin(Message("t", b"x", delay_level=1))


async def test_a_consumer_replies_to_a_request(server, name):
    topic = name("topic")
    async with AsyncProducer("answers", server.namesrv) as answers:

        async def handle(message):
            await answers.reply(message, message.body.upper())

        async with AsyncProducer("asks", server.namesrv) as asks:
            await asks.send(Message(topic, b"not a request"))
            async with AsyncConsumer(
                name("g"), topic, namesrv=server.namesrv, handler=handle
            ) as consumer:
                await until(lambda: len(consumer.assignment) > 4)
                replies = await asyncio.gather(
                    *(asks.request(Message(topic, b"q%d" % n), 20) for n in range(5))
                )
    assert [r.body for r in replies] == [b"Q%d" % n for n in range(5)]


async def test_a_request_that_nobody_answers_says_so(server, name):
    async with AsyncProducer("asks", server.namesrv) as asks:
        with pytest.raises(RequestTimeout, match="no consumer replied"):
            await asks.request(Message(name("topic"), b"q"), 0.5)
        assert not asks._replies._futures


async def test_a_producer_of_a_topic_that_it_made_is_known_to_the_broker(tmp_path, small):
    """One send creates the topic; nothing else is sent, and checks find the producer."""
    settings = small | {"listenPort": 0, "drain_s": 0.0, "with_namesrv": True}
    async with Broker(tmp_path / "store", **settings) as broker:
        names, check = broker.namesrv_address, lambda message: None
        async with AsyncTransactionProducer("tx", names, check=check) as producer:
            await producer.send(Message("made-by-a-send", b"x"))
            await until(lambda: broker.services.clients.producers.get("tx"))


async def test_a_producer_that_sends_nothing_settles_what_a_dead_one_left(tmp_path, small):
    """docs/transactions.md: bring a producer of the group back, and the next round settles it."""
    settings = small | {
        "listenPort": 0, "drain_s": 0.0, "with_namesrv": True,
        "transactionTimeOut": 100, "transactionCheckInterval": 100,
    }  # fmt: skip
    asked = asyncio.Event()

    def check(message):
        asked.set()
        return COMMIT

    async with Broker(tmp_path / "store", **settings) as broker:
        names = broker.namesrv_address
        first = AsyncTransactionProducer("tx", names, check=lambda message: None)
        async with first:
            await first.begin(Message("left-open", b"x"))
        await until(lambda: not broker.services.clients.producers.get("tx"))
        async with (
            AsyncTransactionProducer("tx", names, check=check),
            asyncio.timeout(BOUND_S),
        ):
            await asked.wait()
            await until(lambda: not broker.services.transactions.halves.state().open)
