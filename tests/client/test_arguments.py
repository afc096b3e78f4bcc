"""Wrong arguments to every call, and code of the user's that raises: named errors with the way out,
and what runs in the background goes on."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import logging
import math

import pytest
from loops import until

from broker import (
    AsyncConsumer,
    AsyncLiteConsumer,
    AsyncProducer,
    Broker,
    Consumer,
    LiteConsumer,
    LocalState,
    Message,
    OffsetOption,
    Producer,
    RetryLater,
    TransactionProducer,
)
from broker.client import HookFailed, InvalidMessage, Misuse, OffsetFileFailed
from broker.client.blocking import MessageReceiver
from broker.client.receiving import AsyncMessageReceiver
from pystore.errors import BadArgument

NOT_A_TEXT = (None, b"bytes", 5, math.nan, [], {})
NOT_A_COUNT = (None, "5", 0, -1, math.nan, 1.5, True, 1 << 70)
NOT_A_TIME = (None, "5", b"5", math.nan, [], True)
NOT_A_QUEUE = (None, "orders", 5, [], ("orders", "broker-a"))
NOT_AN_OFFSET = (None, "5", -1, math.nan, 1.5, True, 1 << 70)
NOT_A_MESSAGE = (None, "text", b"x", 5, Message("orders", b"x"))


class Idle:
    """A listener whose execute() says what it is given."""

    def execute(self, transaction, argument):
        return argument

    def check(self, message):
        return None


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A broker in this process, with a topic of one queue and three messages."""
    small = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 6000}
    folder = tmp_path_factory.mktemp("arguments")
    with Broker(folder / "store", listenPort=0, drain_s=0.0, **small) as broker:
        broker.create_topic("orders", queues=1)
        with broker.producer() as producer:
            producer.send_batch([Message("orders", b"x")] * 3)
        yield broker


def all_refused(call, wrong, kinds=(Misuse, InvalidMessage)):
    """Each of these arguments, with a text that says more than the type."""
    for value in wrong:
        with pytest.raises(kinds) as refused:
            call(value)
        assert len(str(refused.value)) > 20, value


def test_wrong_settings_are_refused_where_they_are_given():
    for kind in (Producer, Consumer):
        all_refused(lambda v, kind=kind: kind(v, namesrv="a:1", namespace="n"), NOT_A_TEXT)
        for name in ("hooks", "find_route", "connector"):
            wrong = ("text", [5]) if name == "hooks" else ("text", 5)
            all_refused(lambda v, k=kind, n=name: k("g", namesrv="a:1", **{n: v}), wrong)
    all_refused(lambda v: Producer("g", "a:1", message_max=v), NOT_A_COUNT)
    consumer = {
        "strategy": ([], {}, "NONE"), "poll_wait_s": (math.nan, math.inf, -2),
        "auto_commit_s": (math.nan, -1), "stop_timeout_s": (math.nan,),
        "start": (True, 1 << 70, -1, 1.5, dt.datetime.min, "later"),
        "pull_batch": NOT_A_COUNT,
    }  # fmt: skip
    for name, wrong in consumer.items():
        all_refused(lambda v, n=name: Consumer("g", namesrv="a:1", **{n: v}), wrong)
    pops = {"namesrv": "a:1", "mode": "pop"}
    all_refused(lambda v: Consumer("g", invisible_s=v, **pops), (math.nan, math.inf, 0, "5"))
    all_refused(lambda v: Consumer("g", [v], namesrv="a:1"), (None, b"x", 5, [], "", "a b", "ä"))
    all_refused(lambda v: TransactionProducer("g", "a:1", check=v), ("text", 5))
    all_refused(lambda v: TransactionProducer("g", "a:1", listener=v), ("text", object()))
    all_refused(RetryLater, ("the database is away", None, -2, 1.5, True))


def test_wrong_arguments_of_a_producer_are_refused(made):
    with made.producer() as producer:
        sent = producer.send(Message("orders", b"x"))
        all_refused(producer.send, ("text", None, b"x"))
        for name, wrong in {
            "flag": (None, "", "5", math.nan, 1 << 31), "wait_stored": (None, 0, "no"),
            "body": (None, "text", bytearray(b"x"), b""), "topic": NOT_A_TEXT,
        }.items():  # fmt: skip
            for way in (producer.send, lambda m: producer.send_batch([m]), producer.send_oneway):
                all_refused(
                    lambda v, n=name, way=way: way(
                        Message(**{"topic": "orders", "body": b"x", n: v})
                    ),
                    wrong,
                )
        all_refused(producer.recall, (None, sent.message_id, sent))
        all_refused(lambda v: producer.request(Message("orders", b"x"), v), NOT_A_TIME)
        all_refused(lambda v: producer.request(Message("orders", b"x"), v), (0, -1, math.inf))
        all_refused(lambda v: producer.reply(v, b"x"), NOT_A_MESSAGE)
        all_refused(producer.queues, (*NOT_A_TEXT, "a b", ""))


def test_wrong_arguments_of_a_consumer_are_refused(made):
    with made.consumer("lite") as consumer:
        (queue,) = consumer.queues("orders")
        all_refused(consumer.queues, (*NOT_A_TEXT, "a b", ""))
        all_refused(consumer.assign, (None, "text", queue, [queue, None], 5))
        all_refused(lambda v: consumer.assign({queue: v}), NOT_AN_OFFSET)
        consumer.assign({queue: 0})
        for name in ("committed", "min_offset", "max_offset", "position"):
            all_refused(getattr(consumer, name), NOT_A_QUEUE)
        for name in ("pause", "resume"):
            all_refused(getattr(consumer, name), ("text", queue, 5, [None]))
        all_refused(lambda v: consumer.seek(v, 0), NOT_A_QUEUE)
        all_refused(lambda v: consumer.seek(queue, v), NOT_AN_OFFSET)
        all_refused(lambda v: consumer.offset_at(queue, v), (None, "5", math.nan, 1 << 70))
        all_refused(consumer.poll, NOT_A_TIME)
        all_refused(lambda v: consumer.poll(0, v), NOT_A_COUNT)
        all_refused(lambda v: next(consumer.batches(v)), NOT_A_COUNT)
        messages = consumer.poll(300)
        all_refused(consumer.ack, NOT_A_MESSAGE)
        with pytest.raises(Misuse, match="write a star"):
            consumer.ack(messages)
        all_refused(consumer.nack, NOT_A_MESSAGE)
        all_refused(lambda v: consumer.nack(messages[0], v), (None, "1", -2, 1.5, 1 << 40))


NOT_A_LITE_TOPIC = (*NOT_A_TEXT[1:], "", " ", "a b", "a,b", "a$b", "a/b", "ä", "x" * 65)


def test_wrong_arguments_about_lite_topics_are_refused(made):
    with made.producer() as producer:
        for value in NOT_A_LITE_TOPIC:
            for way in (producer.send, lambda m: producer.send_batch([m]), producer.send_oneway):
                all_refused(lambda v, way=way: way(Message("orders", b"x", lite_topic=v)), [value])
        lite = Message("orders", b"x", lite_topic="a")
        all_refused(lambda v: producer.send(lite, **v), [{"key": "k"}, {"queue": 5}])
        all_refused(producer.send_batch, [[lite]])
        for others in ({"priority": 1}, {"delay_level": 1}, {"deliver_at_ms": 5}):
            all_refused(producer.send, [Message("orders", b"x", lite_topic="a", **others)])
    for method, wrong in {
        "of_offset": NOT_AN_OFFSET, "of_tail_n": NOT_A_COUNT,
        "of_timestamp": (None, "5", -1, 1.5, True, dt.datetime(2026, 1, 1)),
    }.items():  # fmt: skip
        all_refused(getattr(OffsetOption, method), wrong)
    for name, wrong in {
        "pull_batch": NOT_A_COUNT, "sync_s": (0, math.nan, "5"), "on_taken_over": ("text", 5),
        "invisible_s": (math.nan, math.inf, 0, "5"), "handler": ("text", 5),
    }.items():  # fmt: skip
        all_refused(lambda v, n=name: LiteConsumer("g", "t", "a:1", **{n: v}), wrong)
    all_refused(lambda v: LiteConsumer("g", v, "a:1"), (*NOT_A_TEXT, "a b", ""))
    all_refused(lambda v: LiteConsumer("g", "t", "a:1", mode=v), ["pop"])
    consumer = LiteConsumer("g", "t", "a:1")
    for call in (consumer.subscribe, consumer.unsubscribe, consumer.nack, consumer.reject):
        all_refused(call, ["a"])  # not started


def test_wrong_arguments_to_what_is_popped_are_refused(made):
    with made.consumer("pop", "orders", mode="pop", start="first") as consumer:
        message = consumer.poll(300)[0]
        all_refused(lambda v: consumer.extend(v, 1), NOT_A_MESSAGE)
        all_refused(lambda v: consumer.extend(message, v), (*NOT_A_TIME, 0, -1, math.inf))
        all_refused(consumer.nack, NOT_A_MESSAGE)


TWINS = [
    (twin, name)
    for twin, other in (
        (Producer, AsyncProducer),
        (Consumer, AsyncConsumer),
        (LiteConsumer, AsyncLiteConsumer),
        (MessageReceiver, AsyncMessageReceiver),
    )
    for name in sorted({*vars(twin)} & {*vars(other)})
    if not name.startswith("_") and name not in ("start", "submit", "batches")
]


@pytest.mark.parametrize(("twin", "name"), TWINS, ids=lambda each: getattr(each, "__name__", each))
def test_twins_take_and_return_the_same(twin, name):
    mine, theirs = getattr(twin, name), getattr(globals()[f"Async{twin.__name__}"], name)
    if callable(mine):
        signatures = [inspect.signature(each, eval_str=True) for each in (mine, theirs)]
        assert signatures[0] == signatures[1]
        assert not inspect.iscoroutinefunction(mine)
        assert mine.__qualname__ == f"{twin.__name__}.{name}"
    assert mine.__doc__


async def test_batches_of_nothing_do_not_hold_the_loop(made):
    async with made.async_consumer("none", "orders", start="first") as consumer:
        for most in (0, -1):
            with pytest.raises(Misuse, match="max_messages"):
                async for _ in consumer.batches(most):
                    pass


def test_what_a_listener_returns_is_a_state_or_nothing(made):
    find = made.producer()._twin.network.settings.find_route
    with TransactionProducer("tx", find_route=find, listener=Idle()) as producer:
        for told in (True, "COMMIT", 8):
            assert producer.send_in_transaction(Message("orders", b"x"), told).state is (
                LocalState.UNKNOWN
            )
        all_refused(producer.send_in_transaction, (None, "text", b"x"))


class Moody:
    """A hook that raises while it is angry."""

    def __init__(self):
        self.angry = False
        self.codes = []

    def before_request(self, address, request):
        if self.angry:
            raise PermissionError("the key store is locked")
        self.codes.append(request.code)

    def after_response(self, address, request, response):
        raise ValueError("cannot count")


async def test_a_hook_that_raises_for_a_while_ends_nothing(made, caplog):
    """Neither heartbeats nor rebalancing, pulls nor commits: they go on when it does not."""
    caplog.set_level(logging.CRITICAL, "broker.client")
    hook, seen = Moody(), []

    async def handle(message):
        seen.append(message.body)

    options = {"hooks": [hook], "heartbeat_s": 0.02}
    async with (
        made.async_consumer(
            "moody", "orders", handler=handle, start="first", auto_commit_s=0.02,
            rebalance_s=0.02, **options,
        ),
        made.async_producer(**options) as producer,
    ):  # fmt: skip
        await until(lambda: len(seen) >= 3)
        await producer.send(Message("orders", b"before"))
        hook.angry = True
        with pytest.raises(HookFailed, match="Moody raised PermissionError") as failed:
            await producer.send(Message("orders", b"x"))
        assert isinstance(failed.value.__cause__, PermissionError)
        await asyncio.sleep(0.2)
        hook.angry, hook.codes = False, []
        result = await producer.send(Message("orders", b"after"))
        await until(lambda: b"after" in seen)
        await until(lambda: {34, 38, 15} <= set(hook.codes))
        assert result.queue_offset


def test_a_strategy_that_raises_is_told_and_asked_again(made, caplog):
    angry = [True]

    def strategy(queues, members, own):
        if angry[0]:
            raise KeyError("no such room")
        return queues

    with made.consumer(
        "rooms", "orders", strategy=strategy, start="first", rebalance_s=0.05
    ) as consumer:
        assert consumer.assignment == frozenset()
        assert "no such room" in caplog.text
        angry[0] = False
        assert consumer.poll(300)


async def test_offsets_that_cannot_be_kept_are_told_and_kept_later(made, tmp_path, caplog):
    """A disk that is full for a while does not end the commits of a broadcasting consumer."""
    folder = tmp_path / "offsets"
    options = {"broadcast": True, "offsets_folder": str(folder), "start": "first"}
    with pytest.raises(OffsetFileFailed, match="name another offsets_folder"):
        made.consumer("b", "orders", **(options | {"offsets_folder": "/dev/null"})).start()
    folder.write_text("in the way of the folder")

    caplog.set_level(logging.INFO, "broker.client")
    broken = made.async_consumer("late", "orders", auto_commit_s=0.02, **options)
    with pytest.raises(OSError):  # for whoever expects what disks give
        await broken.start()
    folder.unlink()
    async with made.async_consumer("late", "orders", auto_commit_s=0.02, **options) as consumer:
        folder.write_text("in the way again")
        consumer.ack(*await consumer.poll(300))
        await until(lambda: "cannot be kept" in caplog.text)
        folder.unlink()
        await until(lambda: (folder / "late" / "offsets.json").exists())


def test_a_consumer_without_a_topic_says_so(made):
    with made.consumer("no-topic") as consumer:
        with pytest.raises(Misuse, match="has no topic"):
            consumer.poll(0.1)
        consumer.subscribe("orders")
        consumer.poll(0.0)


def test_name_servers_may_follow_the_topics_of_a_consumer():
    assert Consumer("billing", "orders", "127.0.0.1:9876").group == "billing"


def test_a_delay_level_that_brokers_do_not_have_is_refused(made):
    with made.producer() as producer, pytest.raises(InvalidMessage, match="levels 1 to 18"):
        producer.send(Message("orders", b"x", delay_level=19))
    with made.producer(delay_levels=20) as producer:
        producer.send(Message("orders", b"x", delay_level=19))


def test_a_topic_of_a_broker_in_this_process_has_arguments_of_the_right_types(made):
    with pytest.raises(BadArgument, match="queues is str"):
        made.create_topic("other", queues="4")
    with pytest.raises(BadArgument, match="name is NoneType"):
        made.create_topic(None)
