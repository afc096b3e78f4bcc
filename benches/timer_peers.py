"""Timers of our broker and of Apache's, by one program, in the same run.

    python -m benches timer_peers [--peers ours,5.3.3] [--rounds 2] [--keep FILE]

insert: the official Java client's plain sends and sends for a time in six hours, in turn. delivery
error: timers of the Python client, so many due a second, their store time against the time asked
for, by the broker's clock. burst: timers due in one millisecond, until the last is stored; and what
one Python client sends meanwhile, beside what it sent in the seconds before. restart: the broker is
killed with SIGKILL while the timers of `insert` wait, until it takes a message. Every peer has its
default settings.
"""

from __future__ import annotations

import asyncio
import time

import uvloop

from benches import harness
from benches.brokers import Peer, peer_of
from benches.harness import Figure, Given, Row
from broker import AsyncConsumer, AsyncProducer, Message

BODY = b"x" * 100
WARM_S, MEASURE_S = 8, 4
#: Timers are all sent before the first is due; a slow machine and Apache's broker want time.
AHEAD_MS = 15_000
#: Seconds of plain sends before the burst; the first do not count.
BEFORE_S, FIRST_S = 4, 2
TOO_SLOW = "timers were due before all were sent: the machine is too slow"


def insert(peer: Peer) -> list[Figure]:
    rates = {
        mode: peer.load(mode, f"insert-{mode}", 64, 128, WARM_S, MEASURE_S)["per_s"]
        for mode in ("send", "timed")
    }
    return [
        ("plain sends of the Java client, 64 threads", "/s", False, rates["send"]),
        ("timed sends of it", "/s", False, rates["timed"]),
        ("timed sends to plain ones", " x", False, rates["timed"] / rates["send"]),
    ]


async def put(producer: AsyncProducer, topic: str, times: list[int]) -> None:
    for due in times:
        await producer.submit(Message(topic, BODY, deliver_at_ms=due, properties={"DUE": str(due)}))
    await producer.flush()


async def lateness(peer: Peer, topic: str, count: int) -> list[int]:
    """Milliseconds of each after its time, sorted, once all have come."""
    late: list[int] = []
    async with AsyncConsumer(f"g-{topic}", topic, namesrv=peer.namesrv, start="first") as consumer:
        async for batch in consumer.batches():
            late += [
                int(m.store_timestamp) - int(m.properties["DUE"])
                for m in batch
                if "DUE" in m.properties
            ]
            if len(late) >= count:
                return sorted(late)
    raise AssertionError("the consumer ended")


async def spread(peer: Peer, rate: int, seconds: int) -> list[Figure]:
    topic, count = f"spread-{time.time_ns()}", rate * seconds
    async with AsyncProducer("timers", peer.namesrv) as producer:
        await producer.send(Message(topic, BODY))
        await asyncio.sleep(1)
        first = time.time_ns() // 1_000_000 + AHEAD_MS
        await put(producer, topic, [first + i * 1000 // rate for i in range(count)])
        sent_ms = time.time_ns() // 1_000_000
    late = await lateness(peer, topic, count)
    if sent_ms > first:
        raise SystemExit(TOO_SLOW)
    name = f"{rate} due a second, stored after their time"
    return [
        (f"{name}, earliest", " ms", True, late[0]),
        (f"{name}, p50", " ms", True, late[len(late) // 2]),
        (f"{name}, p99", " ms", True, late[len(late) * 99 // 100]),
    ]


async def burst(peer: Peer, count: int) -> list[Figure]:
    topic, sent_at = f"burst-{time.time_ns()}", []
    async with AsyncProducer("timers", peer.namesrv) as producer:
        for name in (topic, "beside"):
            await producer.send(Message(name, BODY))
        await asyncio.sleep(1)
        due = time.time_ns() // 1_000_000 + AHEAD_MS + count // 3
        await put(producer, topic, [due] * count)
        if time.time_ns() // 1_000_000 > due - BEFORE_S * 1000:
            raise SystemExit(TOO_SLOW)
        while time.time_ns() // 1_000_000 < due - BEFORE_S * 1000:
            await asyncio.sleep(0.01)

        stop = asyncio.Event()

        async def send() -> None:
            while not stop.is_set():
                await producer.send(Message("beside", BODY))
                sent_at.append(time.time_ns() // 1_000_000)

        work = [asyncio.create_task(send()) for _ in range(64)]
        late: list[int] = []
        while not late:
            # The consumer starts when all is over, so that it takes nothing from the burst.
            await asyncio.sleep(max(0.0, due / 1000 + BEFORE_S + 4 - time.time()))
            stop.set()
            await asyncio.gather(*work)
            late = await lateness(peer, topic, count)
    last = max(late[-1], 1)
    before = sum(due - (BEFORE_S - FIRST_S) * 1000 <= at < due for at in sent_at)
    during = sum(due <= at < due + last for at in sent_at)
    plain = before / (BEFORE_S - FIRST_S)
    name = f"{count} due in one millisecond"
    return [
        (f"{name}, until the last is stored", " s", True, last / 1000),
        (f"{name}, earliest", " ms", True, late[0]),
        ("plain sends beside these, to those before", " x", False, during / last * 1000 / plain),
    ]


def restart(peer: Peer) -> list[Figure]:
    memory = peer.anonymous_mb()
    assert peer.broker is not None
    peer.broker.kill()
    peer.broker.wait()
    return [
        ("anonymous memory with what waits", " MB", True, memory),
        ("start after SIGKILL, to the first message", " s", True, peer.start_broker()),
    ]


def bench(given: Given) -> list[Row]:
    figures = harness.Figures("100 B")
    for _ in range(given.rounds):
        for name in given.peers:
            with peer_of(name) as peer:
                peer.start_broker()
                figures.note(name, insert(peer))
                figures.note(name, uvloop.run(spread(peer, given.rate, given.seconds)))
                figures.note(name, uvloop.run(burst(peer, given.together)))
                figures.note(name, restart(peer))
    return figures.rows
