"""Idempotent produce over sockets (docs/transactions.md): a message that comes again is answered
with the place of the first one. What the core does by itself: csrc/tests/test_dedup.c."""

from __future__ import annotations

import asyncio
import functools
import signal
import subprocess
import sys
import textwrap

import pytest
from fakes import send_command
from held import Disk
from loops import Wire, run
from transacting import COMMIT, HALF, ROLLBACK, transacting
from transacting import scenario as scenario_of
from waiting import until_async

from broker.services.hooks import SendMessageHook
from broker.wire.command import Command
from pystore import Reader
from pystore.errors import BadArgument

ON = {"idempotentProduceWindow": 1000}


scenario = functools.partial(scenario_of, **ON)


def plain(key, body=b"b", topic="orders", **fields):
    properties = fields.pop("properties", {})
    return send_command(topic, body, properties={"UNIQ_KEY": key} | properties, **fields)


def place(answer):
    assert answer.code == 0, answer.remark
    return tuple(answer.ext[name] for name in ("msgId", "queueId", "queueOffset"))


class Nothing(SendMessageHook):
    """Makes every send come up to Python."""


@pytest.mark.parametrize("hooked", [False, True])
@scenario()
async def test_repeat_gets_the_place_of_the_first(t, hooked):
    if hooked:
        t.broker.add_send_hook(Nothing())
    p = await t.producer()
    first = place(await p.ask(plain("k", e=1)))
    for queue in (1, 2):
        again = await p.ask(plain("k", e=queue))
        assert place(again) == first
        assert again.ext["transactionId"] == "k"
    assert t.texts("orders") == [b"b"]
    assert t.broker.services.once.state().repeats == 2


@scenario()
async def test_what_no_queue_shows_is_no_first(t):
    """A client may say that its message is a rollback. Whether the dispatcher has passed it makes
    no difference to what comes again."""
    p = await t.producer()
    places = {place(await p.ask(plain("k", f=12))) for _ in range(50)}
    assert len(places) == 50
    assert t.broker.services.once.state().repeats == 0


@scenario(idempotentProduceWindow=0)
async def test_it_is_off_unless_asked_for(t):
    p = await t.producer()
    assert place(await p.ask(plain("k"))) != place(await p.ask(plain("k")))


@scenario(idempotentProduceTopics="orders, bills")
async def test_it_holds_for_the_topics_that_are_named(t):
    p = await t.producer()
    for topic, times in (("orders", 1), ("bills", 1), ("clicks", 2)):
        await p.ask(plain("k", topic=topic))
        await p.ask(plain("k", topic=topic))
        assert len(t.bodies(topic)) == times


@scenario(idempotentProduceKey="KEYS")
async def test_business_keys_are_taken_when_asked_for(t):
    p = await t.producer()
    first = place(await p.ask(plain("a", properties={"KEYS": "order-1"})))
    assert place(await p.ask(plain("b", properties={"KEYS": "order-1"}))) == first
    assert place(await p.ask(plain("c"))) != place(await p.ask(plain("c")))


@pytest.mark.parametrize("hooked", [False, True])
@scenario()
async def test_half_that_comes_again_is_the_same_half(t, hooked):
    if hooked:
        t.broker.add_send_hook(Nothing())
    p = await t.producer()
    half = await p.half(key="k", e=2)
    assert await p.half(key="k", e=2) == half
    assert (await p.end(half, COMMIT)).code == 0
    assert await p.half(key="k", e=2) == half
    assert (await p.end(half, COMMIT)).code == 0
    assert t.texts("orders") == [b"hello"]
    assert len(t.bodies(HALF)) == 1


@scenario(idempotentProduceKey="KEYS")
async def test_after_a_rollback_the_key_is_free(t):
    p = await t.producer()
    order = {"properties": {"KEYS": "order-1"}}
    first = await p.half(key="a", **order)
    await p.end(first, ROLLBACK)
    second = await p.half(key="b", **order)
    assert second.offset != first.offset
    assert (await p.end(second, COMMIT)).code == 0
    assert t.texts("orders") == [b"hello"]


@scenario(messageDelayLevel="1s 2s")
async def test_delivery_of_a_delayed_message_is_no_repeat(t):
    p = await t.producer()
    first = place(await p.ask(plain("k", properties={"DELAY": "1"})))
    assert place(await p.ask(plain("k", properties={"DELAY": "1"}))) == first
    await until_async(lambda: t.texts("orders"))
    await asyncio.sleep(1.2)
    assert t.texts("orders") == [b"b"]
    assert place(await p.ask(plain("k"))) == first


@scenario()
async def test_messages_that_are_sent_back_are_never_repeats(t):
    p = await t.producer()
    at = int(place(await p.ask(plain("k")))[0][-16:], 16)
    await p.ask(
        Command(34, {}, b'{"clientID":"c","consumerDataSet":[{"groupName":"G","consumeType":'
                b'"CONSUME_PASSIVELY","messageModel":"CLUSTERING","subscriptionDataSet":[]}],'
                b'"producerDataSet":[]}')
    )  # fmt: skip
    for _ in range(2):  # to the dead letters, at once
        back = {"offset": str(at), "group": "G", "delayLevel": "-1", "originMsgId": "k"}
        assert (await p.ask(Command(36, back))).code == 0
    assert len(t.bodies("%DLQ%G")) == 2
    # What a client sends to a retry topic itself, with the same key.
    for _ in range(2):
        assert (await p.ask(plain("k", topic="%RETRY%G"))).code == 0
    assert len(t.bodies("%RETRY%G")) == 2


async def test_what_was_deleted_with_its_topic_is_no_first(tmp_path, small):
    async with transacting(tmp_path / "s", small, **ON) as t:
        p = await t.producer()
        await p.ask(plain("k"))
        await p.ask(plain("other"))
        assert (await p.ask(Command(215, {"topic": "orders"}))).code == 0
        assert place(await p.ask(plain("k")))[2] == "0"
        assert t.texts("orders") == [b"b"]
    async with transacting(tmp_path / "s", small, **ON) as t:
        p = await t.producer()
        await p.ask(plain("k"))
        await p.ask(plain("other"))
        assert len(t.bodies("orders")) == 2


async def test_repeat_waits_until_the_first_is_on_the_disk(tmp_path, small, monkeypatch):
    disk = Disk(monkeypatch)

    async with transacting(tmp_path / "s", small | ON, flushDiskType="SYNC_FLUSH") as t:
        p, other = await t.producer(), await t.producer(client="p2")
        await p.ask(plain("made"))
        for hooked in (False, True):
            if hooked:
                t.broker.add_send_hook(Nothing())
            with disk.held(t.broker) as core:
                sends = [
                    asyncio.ensure_future(each.ask(plain(f"k{hooked}"))) for each in (p, other)
                ]
                while core.waiting < 2 and not any(each.done() for each in sends):
                    await asyncio.sleep(0.001)
                assert not any(each.done() for each in sends)
                disk.let_go()
                first, again = await asyncio.gather(*sends)
            assert place(first) == place(again)


@pytest.mark.parametrize("hooked", [False, True])
async def test_batch_that_comes_again_is_answered_whole(tmp_path, small, hooked):
    def item(key):
        text = f"UNIQ_KEY\1{key}\2".encode()
        return (
            (23 + len(text)).to_bytes(4, "big") + bytes(12) + b"\0\0\0\1b"
            + len(text).to_bytes(2, "big") + text
        )  # fmt: skip

    async with transacting(tmp_path / "s", small | ON) as t:
        if hooked:
            t.broker.add_send_hook(Nothing())
        p = await t.producer()
        await p.ask(plain("made"))
        body = item("a") + item("b")
        first = place(await p.ask(plain("batch", body, m="true")))
        assert place(await p.ask(plain("batch", body, m="true", e=2))) == first
        assert len(t.bodies("orders")) == 3


@scenario()
async def test_only_a_start_takes_the_settings_over(t):
    with pytest.raises(BadArgument, match="only at a start"):
        t.broker.services.settings.update({"idempotentProduceWindow": "7"})


def test_no_window_beyond_what_a_core_can_hold(tmp_path):
    from broker.broker import Broker

    with pytest.raises(BadArgument, match="idempotentProduceWindow"):
        Broker(tmp_path, idempotentProduceWindow=(1 << 24) + 1)


def test_restart_forgets_nothing(tmp_path, small):
    async def first_life():
        async with transacting(tmp_path / "s", small, **ON) as t:
            p = await t.producer()
            places = [place(await p.ask(plain(f"k{i}"))) for i in range(50)]
            half = await p.half(key="open")
            done = await p.half(key="done")
            await p.end(done, COMMIT)
            return places, half

    async def second_life(places, half):
        async with transacting(tmp_path / "s", small, **ON) as t:
            p = await t.producer()
            assert [place(await p.ask(plain(f"k{i}")))[1:] for i in range(50)] == [
                each[1:] for each in places
            ]
            assert await p.half(key="open") == half
            await p.half(key="done")
            assert len(t.bodies("orders")) == 51
            assert len(t.bodies(HALF)) == 2

    run(second_life(*run(first_life())))


SERVE = textwrap.dedent("""
    import sys
    from broker.broker import Broker
    settings = dict(listenPort=0, idempotentProduceWindow=1000, mappedFileSizeCommitLog=1 << 20)
    with Broker(sys.argv[1], **settings) as broker:
        print(broker.port, flush=True)
        sys.stdin.read()
""")


def test_kill_amid_sends_leaves_each_message_once(tmp_path, rng):
    """The client does not know what was stored, and sends everything again."""
    count = 500

    def serve():
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(tmp_path / "s")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return process, int(process.stdout.readline())

    async def send_all(port, told, enough):
        wire = await Wire.to(port)
        for i in range(count):
            command = plain(f"k{i}", e=i % 4)
            command.opaque = i
            wire.write(command)
        for _ in range(enough):
            answer = await wire.answer()
            assert told.setdefault(answer.opaque, place(answer)[1:]) == place(answer)[1:]
        wire.close()

    told = {}
    for _ in range(3):
        process, port = serve()
        with process:
            run(send_all(port, told, rng.randrange(count)))
            process.send_signal(signal.SIGKILL)
    process, port = serve()
    with process:  # its end of input is the broker's end
        run(send_all(port, told, count))
    with Reader(tmp_path / "s") as reader:
        found = [m.properties["UNIQ_KEY"] for q in reader.queues("orders")
                 for m in reader.read("orders", q.queue, 0, max_messages=count)]  # fmt: skip
    assert sorted(found) == sorted(f"k{i}" for i in range(count))
