"""The last step of the demo: a broker in this process, and clients that talk to it over TCP."""

from __future__ import annotations

import asyncio
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import pandas as pd
from rich.table import Table

from broker import AsyncConsumer, AsyncProducer, Broker, Message, ReceivedMessage
from demo.brokers import command
from demo.terminal import console, rate

TOPIC = "flights"
QUEUES = 4
SENT = 20_000
AT_ONCE = 256
CARRIERS = ("UA", "US", "HA")
#: Delay levels of the demo, in seconds; a level late by more than this is late.
LEVELS_S = (1, 2)
LATE_MS = 500
LIMIT_S = 120


class Judge(Protocol):
    def same(self, what: str, store: object, pandas: object) -> str: ...


def run(flights: pd.DataFrame, judge: Judge) -> None:
    """Starts a broker with its name server, sends part of the flights, and reads them back."""
    with tempfile.TemporaryDirectory(prefix="broker-demo-") as made:
        folder = Path(made) / "live"
        levels = " ".join(f"{seconds}s" for seconds in LEVELS_S)
        began = time.perf_counter()
        settings = {"messageDelayLevel": levels, "recallMessageEnable": True}
        with Broker(folder, listenPort=0, with_namesrv=True, **settings) as broker:
            ms = (time.perf_counter() - began) * 1000
            console.print(
                f"  broker {broker.address} and name server {broker.namesrv_address} ready in"
                f" [bold]{ms:.0f} ms[/], over a new store."
            )
            broker.run(talk(broker, flights.head(SENT), judge))
            command(folder.parent, "info", "live", show=6)
            command(folder.parent, "timers", "ls", "live")
            command(folder.parent, "tail", "live", "%DLQ%demo", "--from", "earliest", "-n", "1")


async def talk(broker: Broker, flights: pd.DataFrame, judge: Judge) -> None:
    async with (
        broker.async_producer("demo", max_in_flight=AT_ONCE) as producer,
        asyncio.timeout(120),
    ):
        await by_tag(broker, producer, flights, judge)
        await delayed(broker, producer, judge)
        await timed(broker, producer, judge)
        await dead_letter(broker, producer, judge)


# ---- sends, and consumers that wait for them ----


async def by_tag(
    broker: Broker, producer: AsyncProducer, flights: pd.DataFrame, judge: Judge
) -> None:
    """Consumers of some carriers wait before the first flight is sent; every count is compared."""
    broker.create_topic(TOPIC, QUEUES)
    rows = list(enumerate(zip(flights["carrier"], flights["tailnum"], strict=True)))
    wanted = {c: [i for i, (of, _) in rows if of == c] for c in CARRIERS}
    readers = {
        carrier: asyncio.create_task(follow(broker, carrier, len(wanted[carrier])))
        for carrier in CARRIERS
    }
    await asyncio.sleep(0.1)
    began = time.perf_counter()
    for i, (carrier, tail) in rows:
        keys = tail if isinstance(tail, str) else ""
        await producer.submit(Message(TOPIC, str(i).encode(), carrier, keys))
    await producer.flush()
    seconds = time.perf_counter() - began
    table = Table("tag (carrier)", "received while sent", "pandas", "")
    for carrier, reader in readers.items():
        found = sorted(await reader)
        mark = judge.same(f"received of {carrier}", found, wanted[carrier])
        table.add_row(carrier, f"{len(found):,}", f"{len(wanted[carrier]):,}", mark)
    console.print(
        f"  {len(rows):,} flights sent, one request each, {AT_ONCE} on their way at a time:"
        f" [bold]{rate(len(rows), seconds)}[/], the client in Python and in this process."
    )
    console.print(table)


async def follow(broker: Broker, tag: str, count: int) -> list[int]:
    """So many messages with a tag."""
    found: list[int] = []
    async with broker.async_consumer(f"demo-{tag}", {TOPIC: tag}, start="first") as consumer:
        while len(found) < count:
            for message in await consumer.poll():
                found.append(int(message.body))
                consumer.ack(message)
    return found


# ---- messages that come later ----


async def delayed(broker: Broker, producer: AsyncProducer, judge: Judge) -> None:
    """One message a level: each arrives when it is due, not before."""
    broker.create_topic("delayed", 1)
    async with broker.async_consumer("demo-delayed", "delayed", start="first") as consumer:
        for level, seconds in enumerate(LEVELS_S, 1):
            sent = time.time()
            body = f"level {level}".encode()
            await producer.send(Message("delayed", body, delay_level=level))
            got = await anext(aiter(consumer))
            late = round((time.time() - sent - seconds) * 1000)
            on_time = 0 <= late <= LATE_MS
            what = f"delay level {level}, {late} ms late"
            mark = judge.same(what, (got.body, on_time), (body, True))
            console.print(f"  delay level {level}, {seconds} s: {late} ms after that, {mark}.")


async def timed(broker: Broker, producer: AsyncProducer, judge: Judge) -> None:
    """One for a certain millisecond, one that is recalled before its time, one for tomorrow."""
    broker.create_topic("timed", 1)
    async with broker.async_consumer("demo-timed", "timed", start="first") as consumer:
        due = datetime.now(UTC) + timedelta(milliseconds=1234)
        wrong = await producer.send(Message("timed", b"recalled", delay=timedelta(seconds=1)))
        await producer.send(Message("timed", b"in time", keys="today", delay=due))
        await producer.send(Message("timed", b"reminder", keys="tomorrow", delay=timedelta(days=1)))
        await producer.recall(wrong)
        got = await anext(aiter(consumer))
    due_ms = (due - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    late = got.store_timestamp - due_ms
    what = f"timer, {late} ms late"
    mark = judge.same(what, (got.body, 0 <= late <= LATE_MS), (b"in time", True))
    console.print(
        f"  a timer for {due:%H:%M:%S.%f}"[:-3] + f": stored {late} ms after that, {mark}; the one"
        " for a quarter of a second earlier was recalled and did not come."
    )


async def dead_letter(broker: Broker, producer: AsyncProducer, judge: Judge) -> None:
    """A consumer that cannot work with a message: it comes again, then lies with the dead."""
    await producer.send(Message("orders", b"nobody can read this"))
    async with broker.async_consumer("demo", "orders", start="first", max_retries=1) as consumer:
        first = await anext(aiter(consumer))
        began = time.time()
        await consumer.nack(first, delay_level=1)
        again = await anext(aiter(consumer))
        ms = round((time.time() - began) * 1000)
        await consumer.nack(again, delay_level=1)
    async with broker.async_consumer("demo-dead", start="first") as reader:
        await reader.assign(await reader.queues("%DLQ%demo"))
        dead = await first_of(reader)
    tries = [first.attempt, again.attempt, dead.attempt]
    mark = judge.same("retry and dead letter", (tries, dead.body), ([1, 2, 3], first.body))
    console.print(
        f"  sent back once: again after {ms} ms; sent back twice: among the dead letters, {mark}."
    )


async def first_of(consumer: AsyncConsumer) -> ReceivedMessage:
    while not (found := await consumer.poll()):
        pass
    return found[0]
