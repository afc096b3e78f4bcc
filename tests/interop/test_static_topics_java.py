"""A static topic over a broker of ours and one of Apache's 5.5.0: it moves from one to the other,
and back, while a consumer reads it; each message comes once, in the order of its logical queue."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import launch
import pytest
from waiting import BOUND_S

from broker import AsyncAdmin, AsyncConsumer, AsyncProducer, Message

pytestmark = [pytest.mark.java, pytest.mark.long]

TOPIC, QUEUES, EACH = "logical", 2, 8


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
