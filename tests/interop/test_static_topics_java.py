"""A static topic moves to another broker, and back, while a consumer reads it: between ours and
Apache's 5.5.0, where each message comes once, in the order of its logical queue; and behind
Apache's proxy, from which it is popped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "grpc"))

import launch
from caller import CODE, Caller, message
from proxies import proxy
from waiting import BOUND_S

from broker import AsyncAdmin, AsyncConsumer, AsyncProducer, Message
from broker.grpc.schema import pb

pytestmark = [pytest.mark.java, pytest.mark.long]

TOPIC, QUEUES, EACH = "logical", 2, 8
RESOURCE, GROUP = pb.Resource(name=TOPIC), pb.Resource(name="g")


@pytest.mark.parametrize("leaders", ["aba", "bab"], ids=["ours first", "apache first"])
async def test_a_static_topic_moves_between_both_makes(
    leaders: str, reference: Any, tmp_path: Path
) -> None:
    os.environ.setdefault("HEAP", "384m")
    seen: list[tuple[int, int, bytes]] = []
    wanted: list[tuple[int, int, bytes]] = []

    async def consume(names: str) -> None:
        async with AsyncConsumer("g", TOPIC, start="first", namesrv=names) as consumer:
            async for message in consumer:
                seen.append((message.queue.queue, message.queue_offset, message.body))

    with (
        launch.name_server("ours", tmp_path / "names") as names,
        launch.running("ours", tmp_path / "a", {"brokerName": "a"}, namesrv=names),
        launch.running("java", tmp_path / "b", {"brokerName": "b"}, "5.5.0", namesrv=names),
    ):
        async with AsyncAdmin(names) as admin, AsyncProducer("p", names) as producer:
            await admin.create_static_topic(TOPIC, queues=QUEUES, brokers=[leaders[0]])
            reading = asyncio.create_task(consume(names))
            for number, leader in enumerate(leaders):
                if number:
                    await admin.remap_static_topic(TOPIC, brokers=[leader])
                for n in range(EACH):
                    body = b"%d-%d" % (number, n)
                    sent = await producer.send(Message(TOPIC, body))
                    wanted.append((sent.queue.queue, sent.queue_offset, body))
            async with asyncio.timeout(BOUND_S):
                while len(seen) < len(wanted) and not reading.done():
                    await asyncio.sleep(0.1)
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
    assert sorted(seen) == sorted(wanted)
    for queue in range(QUEUES):
        offsets = [offset for number, offset, _ in seen if number == queue]
        assert offsets == sorted(offsets)


def pop_all(address: str, seen: Counter[bytes], done: threading.Event) -> None:
    """Pops and acknowledges, until it is done."""
    with Caller(address) as caller:
        caller.telemetry().subscribe("g", TOPIC)
        while not done.is_set():
            replies = caller.stream(
                "ReceiveMessage", group=GROUP, message_queue=pb.MessageQueue(topic=RESOURCE),
                filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
                batch_size=4, invisible_duration=pb.Duration(seconds=30),
                long_polling_timeout=pb.Duration(seconds=2),
            )  # fmt: skip
            found = [each.message for each in replies if each.HasField("message")]
            seen.update(each.body for each in found)
            entries = [
                pb.AckMessageEntry(
                    message_id=each.system_properties.message_id,
                    receipt_handle=each.system_properties.receipt_handle,
                )
                for each in found
            ]
            if entries:
                told = caller("AckMessage", group=GROUP, topic=RESOURCE, entries=entries)
                assert {each.status.code for each in told.entries} == {CODE.OK}


async def test_who_pops_by_apaches_proxy_follows_a_static_topic_of_ours(
    reference: Any, tmp_path: Path
) -> None:
    """The proxy does not know static topics: it asks each broker for its own queues, and sends are
    refused until they meet a logical queue that the broker leads. What it says of where a message
    is, is where those find it who read logical queues."""
    os.environ.setdefault("HEAP", "384m")
    seen: Counter[bytes] = Counter()
    #: By body, its offset in a logical queue.
    sent: dict[bytes, int] = {}
    found: dict[bytes, int] = {}
    done = threading.Event()

    def send(address: str, number: int) -> None:
        def is_taken(body: bytes) -> bool:
            answer = caller.send(message(TOPIC, body))
            if answer.status.code == CODE.OK:
                sent[body] = answer.entries[0].offset
            return body in sent

        with Caller(address) as caller:
            for n in range(EACH):
                body = b"%d-%d" % (number, n)
                launch.wait("a queue that is led", partial(is_taken, body))

    with (
        launch.name_server("ours", tmp_path / "names") as names,
        launch.running("ours", tmp_path / "a", {"brokerName": "a"}, namesrv=names),
        launch.running("ours", tmp_path / "b", {"brokerName": "b"}, namesrv=names),
        proxy("java", names, tmp_path / "proxy", version="5.5.0") as addresses,
    ):
        async with AsyncAdmin(names) as admin:
            await admin.create_group("g")
            await admin.create_static_topic(TOPIC, queues=QUEUES, brokers=["a"])
            launch.wait(
                "the topic", lambda: launch.ask(names, launch.ROUTE, {"topic": TOPIC})[0] == 0
            )
            consuming = asyncio.ensure_future(
                asyncio.to_thread(pop_all, addresses.grpc, seen, done)
            )
            try:
                for number, leader in enumerate("aba"):
                    if number:
                        made = await admin.remap_static_topic(TOPIC, brokers=[leader])
                        assert set(made.moved.values()) == {leader}
                    await asyncio.to_thread(send, addresses.grpc, number)
                async with asyncio.timeout(BOUND_S):
                    while set(seen) != set(sent) and not consuming.done():
                        await asyncio.sleep(0.1)
            finally:
                done.set()
                await consuming
        async with AsyncConsumer("h", TOPIC, start="first", namesrv=names) as consumer:
            async with asyncio.timeout(BOUND_S):
                async for each in consumer:
                    found[each.body] = each.queue_offset
                    if len(found) == len(sent):
                        break
    assert seen == Counter(sent.keys())
    assert found == sent
    assert max(sent.values()) > len(sent)  # they go on at a block of numbers after each move
