"""What Python programs would pick instead, each with its own server: acknowledged messages.

    python -m benches clients [--rounds 3] [--seconds 5] [--only OURS,...] [--keep FILE]

One process sends messages of 128 bytes, 64 of them waiting for their acknowledgement at any time;
processor time is counted in the same window, of the client's process and of the server's. The
libraries are optional (`make bench-clients` installs them into .venv); a peer whose library or
server cannot be had is left out, and the reason printed.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from benches import grpc_work
from benches.brokers import peer_of
from benches.harness import ROOT, Figures, Given, Row, command_of
from benches.peer_servers import Missing, Server, kafka, nats, redis
from broker import AsyncProducer, Message

BODY, IN_FLIGHT, WARM_S = b"x" * 128, 64, 2.0
Send = Callable[[], Awaitable[object]]


async def counted(send: Send, seconds: float) -> int:
    """Acknowledged sends of IN_FLIGHT tasks; prints where the measured window begins and ends."""
    count, measuring, end = 0, False, time.perf_counter() + WARM_S + seconds

    async def work() -> None:
        nonlocal count
        while time.perf_counter() < end:
            await send()
            count += measuring

    tasks = [asyncio.create_task(work()) for _ in range(IN_FLIGHT)]
    await asyncio.sleep(WARM_S)
    measuring = True
    _mark()
    await asyncio.sleep(seconds)
    measuring = False
    _mark()
    await asyncio.gather(*tasks)
    return count


def _mark() -> None:
    print(json.dumps([time.perf_counter(), time.process_time()]), flush=True)


# ---- a client each ----


async def ours(address: str, seconds: float) -> int:
    async with AsyncProducer("bench", address, max_in_flight=2 * IN_FLIGHT) as producer:
        message = Message("bench", BODY)
        await producer.send(message)
        return await counted(lambda: producer.send(message), seconds)


async def nats_py(address: str, seconds: float) -> int:
    import nats

    connection = await nats.connect(f"nats://{address}")
    stream = connection.jetstream()
    await stream.add_stream(name="bench", subjects=["bench"])
    count = await counted(lambda: stream.publish("bench", BODY), seconds)
    await connection.close()
    return count


async def redis_py(address: str, seconds: float) -> int:
    from redis.asyncio import Redis

    host, _, port = address.partition(":")
    connection = Redis(host=host, port=int(port), max_connections=IN_FLIGHT)
    fields: Any = {"body": BODY}
    count = await counted(lambda: connection.xadd("bench", fields), seconds)
    await connection.aclose()
    return count


async def aiokafka(address: str, seconds: float) -> int:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(bootstrap_servers=address, acks="all")
    await producer.start()
    try:
        await producer.send_and_wait("bench", BODY)
        return await counted(lambda: producer.send_and_wait("bench", BODY), seconds)
    finally:
        await producer.stop()


async def confluent_kafka(address: str, seconds: float) -> int:
    """Its own threads and callbacks, no event loop: for those who need none."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "acks": "all"})
    producer.produce("bench", BODY)  # makes the topic
    producer.flush()

    def send(done: Callable[[bool], None]) -> None:
        producer.produce("bench", BODY, on_delivery=lambda error, _: done(error is None))

    try:
        return await called_back(send, seconds, lambda: producer.poll(0.01))
    finally:
        producer.flush()


async def rocketmq_5(address: str, seconds: float) -> int:
    """The official client of RocketMQ 5: its own threads and futures, no event loop."""
    from rocketmq import ClientConfiguration, Credentials, Message, Producer

    def message() -> Message:
        made = Message()
        made.topic, made.body = "bench", BODY
        return made

    producer = Producer(ClientConfiguration(address, Credentials()), ("bench",))
    producer.startup()
    producer.send(message())

    def send(done: Callable[[bool], None]) -> None:
        future = producer.send_async(message())
        future.add_done_callback(lambda ended: done(ended.exception() is None))

    try:
        return await called_back(send, seconds, lambda: time.sleep(0.0002))
    finally:
        producer.shutdown()


async def called_back(
    send: Callable[[Callable[[bool], None]], None], seconds: float, wait: Callable[[], object]
) -> int:
    """As counted(), for a client that calls back: send(done) in a thread, IN_FLIGHT at any time.
    wait: for callbacks, while all are under way."""
    free, acknowledged, stop = threading.Semaphore(IN_FLIGHT), [0], threading.Event()

    def done(stored: bool) -> None:
        acknowledged[0] += stored
        free.release()

    def work() -> None:
        while not stop.is_set():
            while not free.acquire(blocking=False):
                wait()
            send(done)

    thread = threading.Thread(target=work)
    thread.start()
    await asyncio.sleep(WARM_S)
    before = acknowledged[0]
    _mark()
    await asyncio.sleep(seconds)
    count = acknowledged[0] - before
    _mark()
    stop.set()
    thread.join()
    return count


@contextmanager
def our_broker() -> Iterator[Server]:
    with peer_of("ours") as peer:
        peer.start_broker()
        assert peer.broker is not None
        yield Server(peer.namesrv, peer.broker.pid)


@contextmanager
def grpc_of(make: str) -> Iterator[Server]:
    """Our broker's gRPC service, or Apache's proxy with its broker."""
    with grpc_work.peer_of(make) as peer:
        peer.start_broker()
        grpc_work.until_it_takes(peer)  # a name server learns of a topic some time later
        assert peer.broker is not None
        yield Server(peer.endpoint, peer.broker.pid)


PEERS: dict[str, tuple[Any, Callable[[str, float], Coroutine[Any, Any, int]]]] = {
    "this client, this broker": (our_broker, ours),
    "nats-py, NATS JetStream": (nats, nats_py),
    "redis-py, Redis Streams": (redis, redis_py),
    "aiokafka, Kafka": (kafka, aiokafka),
    "confluent-kafka, Kafka": (kafka, confluent_kafka),
    "rocketmq-python-client, Apache's proxy": (partial(grpc_of, "5.3.3"), rocketmq_5),
    "rocketmq-python-client, this broker": (partial(grpc_of, "ours"), rocketmq_5),
}


# ---- in turns ----


async def work(name: str, address: str, seconds: float) -> list[int]:
    """What one client does, in a process of its own."""
    return [await PEERS[name][1](address, seconds)]


def run(name: str, server: Server, seconds: float) -> tuple[float, float, float]:
    """Messages a second; microseconds of processor time a message, of client and of server."""
    with subprocess.Popen(
        command_of(work, name, server.address, seconds),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    ) as client:  # fmt: skip
        assert client.stdout is not None
        marks: list[tuple[list[float], float]] = []
        for line in client.stdout:
            marks.append((json.loads(line), server.cpu_s()))
        assert client.stderr is not None
        said = client.stderr.read()
    if client.returncode or len(marks) != 3:
        raise Missing(said.strip().splitlines()[-1] if said.strip() else "its client ended")
    (begin, at_begin), (end, at_end), (count, _) = marks
    messages = max(1, int(count[0]))
    return (
        messages / (end[0] - begin[0]),
        (end[1] - begin[1]) / messages * 1e6,
        (at_end - at_begin) / messages * 1e6,
    )


def measure(rounds: int, seconds: float, only: Sequence[str]) -> list[Row]:
    figures = Figures("128 bytes, 64 in flight")
    for _ in range(rounds):
        for name, (make, _) in PEERS.items():
            if only and not any(each in name for each in only):
                continue
            try:
                with make() as server:
                    rate, client, served = run(name, server, seconds)
            except Missing as why:
                print(f"left out: {name}: {why}", file=sys.stderr)
                continue
            for unit, value in (
                ("messages/s", rate), ("µs of the client", client), ("µs of the server", served)
            ):  # fmt: skip
                smaller = unit != "messages/s"
                figures.add("send, acknowledged", name, unit, value, smaller=smaller)
    return figures.rows


def bench(given: Given) -> list[Row]:
    return measure(given.rounds, given.seconds, given.only)
