"""The Python client beside the official Java client, on our broker, in turns.

    python -m benches client [--rounds 3] [--seconds 5] [--keep FILE]

Each work is a process of its own, warm when the measured time begins. Processor time is that of the
whole client process in the measured time, over the messages of that time: the same for both makes.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benches import harness
from benches.brokers import Peer, peer_of
from benches.harness import ROOT, Given, Row, command_of
from broker import AsyncConsumer, AsyncProducer, Broker, Message

BODY, IN_FLIGHT, BATCH, LIST, WARM_S = b"x" * 128, 64, 16, 1000, 2.0
#: Name of the work, unit, what is aimed at, mode of the Java program.
WORKS = {
    "send": ("messages/s", 40_000, ("send", 64, 128)),
    "batch": ("messages/s", 250_000, ("batch", 64, 128)),
    "handler": ("messages/s", 250_000, None),
    "batches": ("messages/s", 500_000, None),
    "in-process": ("messages/s", 100_000, None),
    "in-process lists": ("messages/s", 600_000, None),
}
SENT = "bench-py-batch"
#: Messages a second of the row that counts the time from send to receipt.
RATE = 1000
#: Of that row: turns of each client a round, seconds of one, and of those before it that let the
#: client, which has slept since its last turn, get going again.
TURNS, TURN_S, AGAIN_S = 5, 2, 0.5
#: A virtual machine compiles what it runs first.
JAVA_WARM_S = max(1, int(15 * harness.SCALE))
WAITS = ("send to receipt, median", "send to receipt, p99", "of it: the loop was late, p99")


# ---- in the process that works ----


async def send(namesrv: str, seconds: float) -> tuple[int, float, float]:
    """Messages, seconds, and seconds of processor time."""
    async with AsyncProducer("bench", namesrv, max_in_flight=IN_FLIGHT) as producer:
        message = Message("bench-py", BODY)
        await producer.send(message)
        for limit in (WARM_S, seconds):
            used, began, count = time.process_time(), time.perf_counter(), 0
            while time.perf_counter() - began < limit:
                for _ in range(100):
                    await producer.submit(message)
                count += 100
            await producer.flush()
            spent, used = time.perf_counter() - began, time.process_time() - used
        return count, spent, used


async def batch(namesrv: str, seconds: float) -> tuple[int, float, float]:
    async with AsyncProducer("bench", namesrv, max_in_flight=IN_FLIGHT) as producer:
        messages = [Message(SENT, BODY)] * BATCH
        await producer.send(messages[0])
        for limit in (WARM_S, seconds):
            used, began, counts = time.process_time(), time.perf_counter(), [0] * IN_FLIGHT

            async def work(n: int, end: float, counts: list[int] = counts) -> None:
                while time.perf_counter() < end:
                    await producer.send_batch(messages)
                    counts[n] += BATCH

            await asyncio.gather(*(work(n, began + limit) for n in range(IN_FLIGHT)))
            spent, used = time.perf_counter() - began, time.process_time() - used
        return sum(counts), spent, used


async def handler(namesrv: str, seconds: float) -> tuple[int, float, float]:
    """The backlog that `batch` left, to an async handler."""
    count = 0

    async def handle(message: Any) -> None:
        nonlocal count
        count += 1

    async with AsyncConsumer(
        f"bench-{time.time_ns()}", SENT, namesrv=namesrv, start="first", handler=handle,
        buffer_messages=5000,
    ):  # fmt: skip
        return await _watched(lambda: count, seconds)


async def batches(namesrv: str, seconds: float) -> tuple[int, float, float]:
    count = 0

    async def take(consumer: AsyncConsumer) -> None:
        nonlocal count
        async for found in consumer.batches():
            count += len(found)

    async with AsyncConsumer(
        f"bench-{time.time_ns()}", SENT, namesrv=namesrv, start="first", buffer_messages=5000
    ) as consumer:
        task = asyncio.create_task(take(consumer))
        try:
            return await _watched(lambda: count, seconds)
        finally:
            task.cancel()


async def in_process(namesrv: str, seconds: float) -> tuple[int, float, float]:
    """Awaited one by one, by a producer of a broker in this process, whose work counts, too."""

    async def work(producer: AsyncProducer) -> int:
        await producer.send(Message(SENT, BODY))
        return 1

    return await _beside(work, seconds)


async def in_process_lists(namesrv: str, seconds: float) -> tuple[int, float, float]:
    messages = [Message(SENT, BODY)] * LIST

    async def work(producer: AsyncProducer) -> int:
        return len(await producer.send_batch(messages))

    return await _beside(work, seconds)


async def _beside(
    work: Callable[[AsyncProducer], Awaitable[int]], seconds: float
) -> tuple[int, float, float]:
    harness.SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=harness.SCRATCH) as folder:
        async with Broker(f"{folder}/store", listenPort=0) as broker:
            broker.create_topic(SENT)
            async with broker.async_producer() as producer:
                for limit in (WARM_S, seconds):
                    used, began, count = time.process_time(), time.perf_counter(), 0
                    while time.perf_counter() - began < limit:
                        count += await work(producer)
                    spent, used = time.perf_counter() - began, time.process_time() - used
                return count, spent, used


class Ticks:
    """When each of RATE messages a second is due, by a timer of the kernel: those of event loops
    are exact to a millisecond only, and a sender that waits for its own loop would not notice the
    messages that it did not send meanwhile."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self._gap_s = 1 / RATE
        self._file = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        self._begin = time.perf_counter()
        gap_ns = 1_000_000_000 // RATE
        libc.timerfd_settime(self._file, 0, struct.pack("@4q", 0, gap_ns, 0, gap_ns), None)
        self._expired = self._given = 0
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._file, self._read)

    def _read(self) -> None:
        self._expired += int.from_bytes(os.read(self._file, 8), sys.byteorder)
        self._news.set()

    async def next(self) -> float:
        """Waits for it: a time of perf_counter()."""
        while self._given == self._expired:
            self._news.clear()
            await self._news.wait()
        self._given += 1
        return self._begin + self._given * self._gap_s

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._file)
        os.close(self._file)


async def receipt(namesrv: str, seconds: float) -> None:
    """Takes a turn for each line on stdin, once it is warm: RATE messages a second for so long.
    Prints milliseconds from when a message is due to its receipt, median and 99th percentile, and
    by how much the event loop was late to send it, 99th percentile."""
    found: list[float] = []
    late: list[float] = []

    async def handle(message: Any) -> None:
        found.append(time.perf_counter() - float(message.properties["T"]))

    async def rounds(limit: float) -> None:
        ticks = Ticks()
        found.clear()
        late.clear()
        for _ in range(int(limit * RATE)):
            due = await ticks.next()
            late.append(time.perf_counter() - due)
            await producer.submit(Message(topic, BODY, properties={"T": str(due)}))
        ticks.close()

    topic = f"bench-receipt-{time.time_ns()}"
    async with AsyncProducer("bench", namesrv) as producer:
        await producer.send(Message(topic, BODY, properties={"T": "0"}))
        async with AsyncConsumer(topic, topic, namesrv=namesrv, start="first", handler=handle):
            while not found:
                await asyncio.sleep(0.01)
            await rounds(WARM_S)
            while await asyncio.to_thread(sys.stdin.readline):
                await rounds(AGAIN_S)
                await rounds(seconds)
                await asyncio.sleep(0.2)  # what is under way still comes
                print(json.dumps(_percentiles(found, late)), flush=True)


def _percentiles(found: list[float], late: list[float]) -> tuple[float, float, float]:
    found.sort()
    late.sort()
    p99 = found[len(found) * 99 // 100]
    return found[len(found) // 2] * 1e3, p99 * 1e3, late[len(late) * 99 // 100] * 1e3


def fixture() -> float:
    """Seconds from nothing to the first consumed message, broker and client in this process;
    the best of five, for the imports are done once."""
    harness.SCRATCH.mkdir(parents=True, exist_ok=True)
    best = float("inf")
    for _ in range(5):
        with tempfile.TemporaryDirectory(dir=harness.SCRATCH) as folder:
            began = time.perf_counter()
            with Broker(f"{folder}/store", listenPort=0) as broker:
                with broker.producer() as producer:
                    producer.send(Message("first", BODY))
                with broker.consumer("first", "first", start="first") as consumer:
                    assert next(iter(consumer)).body == BODY
                    best = min(best, time.perf_counter() - began)
    return best


async def _watched(count: Callable[[], int], seconds: float) -> tuple[int, float, float]:
    """Until the time is over, or nothing comes any more: up to the last message."""
    used, began = time.process_time(), time.perf_counter()
    last = (0, 1.0, 0.0)
    while time.perf_counter() - began < seconds:
        await asyncio.sleep(0.01)
        now = time.perf_counter() - began
        if count() != last[0]:
            last = (count(), now, time.process_time() - used)
        elif last[0] and now - last[1] > 0.5:
            break
    return last


# ---- in turns ----


def ours(peer: Peer, work: str, seconds: float) -> tuple[float, float]:
    """Messages a second, and microseconds of processor time a message."""
    count, spent, used = in_own_process(peer, work, seconds)
    return count / spent, used / max(count, 1) * 1e6


def java(peer: Peer, mode: tuple[Any, ...], seconds: float) -> tuple[float, float]:
    name, threads, size = mode
    more = (BATCH,) if name == "batch" else ()
    said = peer.load(name, f"bench-java-{name}", threads, size, JAVA_WARM_S, int(seconds), *more)
    return said["per_s"], said["client_cpu_s"] / max(said["messages"], 1) * 1e6


#: What runs in a process of its own.
PROCESSES: dict[str, Callable[..., Any]] = {
    "send": send, "batch": batch, "handler": handler, "batches": batches,
    "in-process": in_process, "in-process lists": in_process_lists, "receipt": receipt,
    "fixture": fixture,
}  # fmt: skip


def _own_process(peer: Peer, work: str, seconds: float) -> subprocess.Popen[str]:
    words = command_of(PROCESSES[work], *(() if work == "fixture" else (peer.namesrv, seconds)))
    return subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def in_own_process(peer: Peer, work: str, seconds: float) -> Any:
    with _own_process(peer, work, seconds) as process:
        said = process.communicate()[0]
    return json.loads(said)


def waits(peer: Peer, turns: int) -> dict[str, list[tuple[float, ...]]]:
    """Median and 99th percentile of both makes, in milliseconds, for each turn; see receipt() for
    the third.

    Both processes are there and warm all the time, and take short turns: whatever else the machine
    and its disk do meanwhile meets both, and one that sends is alone with the broker.
    """
    found: dict[str, list[tuple[float, ...]]] = {"Python": [], "Java": []}
    topic = f"bench-java-turns-{time.time_ns()}"
    with (
        peer.start_load("turns", topic, 4, 128, JAVA_WARM_S, TURN_S, BATCH, RATE) as java,
        _own_process(peer, "receipt", TURN_S) as python,
    ):
        os.sync()  # what other rows have written
        for _ in range(turns):
            found["Python"].append(tuple(_take_turn(python)))
            said = _take_turn(java)
            found["Java"].append((said["p50_us"] / 1e3, said["p99_us"] / 1e3))
        for process in (python, java):
            process.communicate()
    return found


def _take_turn(process: subprocess.Popen[str]) -> Any:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def java_start() -> float:
    """Seconds until a Java name server and broker have taken their first message."""
    began = time.perf_counter()
    with peer_of("5.3.3") as peer:
        peer.start_broker()
        return time.perf_counter() - began


def measure(rounds: int, seconds: float) -> list[Row]:
    found: dict[tuple[str, str, str], list[float]] = {}
    with peer_of("ours") as peer:
        peer.start_broker()
        for _ in range(rounds):
            for work, (unit, _, mode) in WORKS.items():
                results = {"Python": ours(peer, work, seconds)}
                if mode is not None:
                    results["Java"] = java(peer, mode, seconds)
                for make, (rate, cpu) in results.items():
                    found.setdefault((work, make, unit), []).append(rate)
                    found.setdefault((work, make, "µs of processor"), []).append(cpu)
            began = in_own_process(peer, "fixture", seconds)
            found.setdefault(("start to first consumed message", "Python", "s"), []).append(began)
        for make, turns in waits(peer, TURNS * rounds).items():
            for name, values in zip(WAITS, zip(*turns, strict=True), strict=False):
                found[name, make, "ms"] = list(values)  # Java has no loop
    found["start to first stored message", "Java broker", "s"] = [java_start()]
    return [
        Row(
            work, "128 bytes", make, unit, values,
            target=_target(work, make, unit),
            smaller=unit != "messages/s",
        )
        for (work, make, unit), values in found.items()
    ]  # fmt: skip


def _target(work: str, make: str, unit: str) -> float | None:
    if work == "start to first consumed message":
        return 0.05
    return float(WORKS[work][1]) if make == "Python" and unit == "messages/s" else None


def bench(given: Given) -> list[Row]:
    return measure(given.rounds, given.seconds)
