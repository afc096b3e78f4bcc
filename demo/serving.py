"""The last step of the demo: a broker in this process, and clients that talk to it over TCP."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Protocol

import pandas as pd
from rich.table import Table

from broker import Broker
from demo.brokers import command
from demo.client import Client, Received
from demo.terminal import console, rate

TOPIC = "flights"
QUEUES = 4
SENT = 20_000
AT_ONCE = 256
CARRIERS = ("UA", "US", "HA")
#: Delay levels of the demo, in seconds; a level late by more than this is late.
LEVELS_S = (1, 2)
LATE_MS = 500


class Judge(Protocol):
    def same(self, what: str, store: object, pandas: object) -> str: ...


def run(flights: pd.DataFrame, judge: Judge) -> None:
    """Starts a broker with its name server, sends part of the flights, and reads them back."""
    with tempfile.TemporaryDirectory(prefix="broker-demo-") as made:
        folder = Path(made) / "live"
        levels = " ".join(f"{seconds}s" for seconds in LEVELS_S)
        began = time.perf_counter()
        with Broker(folder, listenPort=0, with_namesrv=True, messageDelayLevel=levels) as broker:
            ms = (time.perf_counter() - began) * 1000
            console.print(
                f"  broker {broker.address} and name server {broker.namesrv_address} ready in"
                f" [bold]{ms:.0f} ms[/], over a new store."
            )
            broker.run(talk(broker.address, flights.head(SENT), judge))
            command(folder.parent, "info", "live", show=6)
            command(folder.parent, "tail", "live", "%DLQ%demo", "--from", "earliest", "-n", "1")


async def talk(address: str, flights: pd.DataFrame, judge: Judge) -> None:
    client = Client(address, "demo")
    try:
        await by_tag(client, flights, judge)
        await delayed(client, judge)
        await dead_letter(client, judge)
    finally:
        await client.close()


# ---- sends, and pulls that wait for them ----


async def by_tag(client: Client, flights: pd.DataFrame, judge: Judge) -> None:
    """Consumers of some carriers wait before the first flight is sent; every count is compared."""
    await client.send(TOPIC, b"first", TAGS="first")  # makes the topic
    last = [len(range(q, len(flights), QUEUES)) for q in range(QUEUES)]
    last[0] += 1
    readers = {
        carrier: asyncio.gather(*(follow(client, carrier, q, last[q]) for q in range(QUEUES)))
        for carrier in CARRIERS
    }
    await asyncio.sleep(0.1)
    began = time.perf_counter()
    rows = list(enumerate(zip(flights["carrier"], flights["tailnum"], strict=True)))
    for at in range(0, len(rows), AT_ONCE):
        await asyncio.gather(
            *(
                client.send(TOPIC, str(i).encode(), i % QUEUES, TAGS=carrier, KEYS=tail)
                for i, (carrier, tail) in rows[at : at + AT_ONCE]
            )
        )
    seconds = time.perf_counter() - began
    table = Table("tag (carrier)", "received while sent", "pandas", "")
    for carrier, reader in readers.items():
        found = sorted(int(body) for bodies in await reader for body in bodies)
        wanted = [i for i, (of, _) in rows if of == carrier]
        mark = judge.same(f"received of {carrier}", found, wanted)
        table.add_row(carrier, f"{len(found):,}", f"{len(wanted):,}", mark)
    console.print(
        f"  {len(rows):,} flights sent, one request each, {AT_ONCE} on their way at a time:"
        f" [bold]{rate(len(rows), seconds)}[/], the client in Python and in this process."
    )
    console.print(table)


async def follow(client: Client, tags: str, queue: int, last: int) -> list[bytes]:
    """The bodies with a tag in a queue up to an offset, by pulls that wait."""
    found: list[bytes] = []
    at = 0
    while at < last:
        got, at = await client.pull(TOPIC, queue, at, tags, wait_ms=1000)
        found += [message.body for message in got]
    return found


# ---- messages that come later ----


async def next_of(client: Client, topic: str, offset: int = 0, queue: int = 0) -> Received:
    """The message at an offset, once it is there."""
    while True:
        got, _ = await client.pull(topic, queue, offset)
        if got:
            return got[0]


async def delayed(client: Client, judge: Judge) -> None:
    """One message a level: each arrives when it is due, not before."""
    for level, seconds in enumerate(LEVELS_S, 1):
        sent_ms = time.time_ns() // 1_000_000
        await client.send("delayed", f"level {level}".encode(), DELAY=level)
        got = await next_of(client, "delayed", level - 1)
        late = got.got_ms - sent_ms - seconds * 1000
        on_time = 0 <= late <= LATE_MS
        mark = judge.same(
            f"delay level {level}, {late} ms late", (got.body, on_time), (b"level %d" % level, True)
        )
        console.print(f"  delay level {level}, {seconds} s: received {late} ms after that, {mark}.")


async def dead_letter(client: Client, judge: Judge) -> None:
    """A consumer that cannot work with a message: it comes again, then lies with the dead."""
    await client.send("orders", b"nobody can read this")
    first = await next_of(client, "orders")
    await client.send_back(first, 1, most=1)
    again = await next_of(client, f"%RETRY%{client.group}")
    await client.send_back(again, 1, most=1)
    dead = await next_of(client, f"%DLQ%{client.group}")
    tries = [first.tries, again.tries, dead.tries]
    mark = judge.same("retry and dead letter", (tries, dead.body), ([0, 1, 2], first.body))
    console.print(
        f"  sent back once: again after {again.got_ms - first.got_ms} ms; sent back twice:"
        f" among the dead letters, {mark}."
    )
