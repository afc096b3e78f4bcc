"""POP, transactions and gRPC over a failover: a master of ours under etcd is killed, and the next
one knows from the log what the old one had in memory. Nothing else is shared between two epochs."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "broker"))

import launch
from controllers import Controller, member_of
from etcd_server import PROGRAM, etcd
from popping import Popper
from proxies import proxy
from test_failover_kills import NAME, record_of
from waiting import BOUND_S, until_async

from broker import AsyncConsumer, AsyncProducer, AsyncTransactionProducer, LocalState, Message
from broker.client.errors import ClientError
from broker.remoting.client import RemotingClient

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(PROGRAM is None, reason="etcd is not installed (etcd-server)"),
]

SETTINGS: dict[str, Any] = {
    "controllerHeartBeatTimeoutMills": 3000, "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000, "transactionCheckMax": 1000,
}  # fmt: skip


INVISIBLE_MS = 20_000


@dataclass
class Pair:
    controller: str
    names: str
    peers: list[launch.Peer]

    def until_in_sync(self) -> None:
        launch.wait("both in sync", lambda: len(record_of(self.controller).in_sync) == 2)

    def kill_master(self) -> None:
        """And wait until the other one is it."""
        self.until_in_sync()
        before = record_of(self.controller)
        master = next(each for each in self.peers if each.broker == before.address)
        master.broker_server.kill()
        launch.wait(
            "another master",
            lambda: record_of(self.controller).address not in ("", before.address),
        )
        master.broker_server.start()


def record_of_now(pair: Pair) -> str:
    """The master's address, once it serves as one."""
    address = record_of(pair.controller).address
    launch.wait("the master", lambda: launch.ask(address, 1007)[2].count(b'"brokerId":0') == 1)
    return address


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with etcd(tmp_path / "etcd") as controller, launch.name_server("ours", tmp_path / "n") as names:
        under = Controller(names, controller.address, launch.Server([], tmp_path))
        made = Pair(controller.address, names, [])
        try:
            for number in range(2):
                folder = tmp_path / f"m{number}"
                made.peers.append(member_of("ours", under, folder, NAME, **SETTINGS))
                made.peers[-1].broker_server.start()
            made.until_in_sync()
            yield made
            made.until_in_sync()
        finally:
            codes = [peer.broker_server.stop() for peer in made.peers]
        assert codes == [0, 0]


async def send(names: str, topic: str, bodies: list[bytes]) -> None:
    """Each until it is acknowledged; a repeat has the same body."""
    async with AsyncProducer("p", names, send_timeout_s=5) as producer:
        for body in bodies:
            while True:
                try:
                    await producer.send(Message(topic, body))
                except (ClientError, OSError, TimeoutError):
                    await asyncio.sleep(0.1)
                    continue
                break


class Remote(Popper):
    """The same client, of a broker in another process."""

    def __init__(self, address: str, client: RemotingClient) -> None:
        self.broker = self
        self.address = address
        self.client = client


def test_what_was_popped_comes_again_and_what_was_acknowledged_does_not(pair: Pair) -> None:
    bodies = {b"%d" % n for n in range(40)}
    handles: dict[bytes, Any] = {}
    again: Counter[bytes] = Counter()

    async def pop_into(popper: Remote, found: Callable[[bytes, Any], None]) -> None:
        for handle, topic, body in await popper.handles(topic="pops", invisible=INVISIBLE_MS):
            found(body, (handle, topic))

    async def acks(popper: Remote, which: Iterable[bytes]) -> set[bytes]:
        """Those whose acknowledgement was answered with success, in time."""
        done = set()
        for body in which:
            handle, topic = handles[body]
            answer = await popper.ack(handle, topic=topic)
            if answer.code == 0 and time.time() * 1000 < handle.pop_ms + INVISIBLE_MS - 1000:
                done.add(body)
        return done

    async def scene() -> None:
        await send(pair.names, "pops", sorted(bodies))
        client = RemotingClient()
        old = Remote(await asyncio.to_thread(record_of_now, pair), client)
        end = time.monotonic() + BOUND_S
        while set(handles) != bodies and time.monotonic() < end:
            await pop_into(old, handles.__setitem__)
        assert set(handles) == bodies
        done = await acks(old, (body for body in bodies if int(body) % 4 == 0))
        assert done
        await asyncio.to_thread(pair.kill_master)
        new = Remote(await asyncio.to_thread(record_of_now, pair), client)
        # What the old master has handed out is acknowledged at the new one.
        done |= await acks(new, (body for body in bodies if int(body) % 4 == 1))
        quiet = time.monotonic() + 2 * INVISIBLE_MS / 1000

        def seen(body: bytes, _: Any) -> None:
            again[body] += 1

        while not bodies - done <= set(again) or time.monotonic() < quiet:
            assert time.monotonic() < end, f"{sorted(bodies - done - set(again))} do not come again"
            with contextlib.suppress(OSError, TimeoutError):
                await pop_into(new, seen)
            await asyncio.sleep(0.1)
        assert set(again) & done == set(), "acknowledged, and delivered again"
        await client.close()

    asyncio.run(scene())


def test_transactions_are_decided_once_in_the_next_epoch(pair: Pair) -> None:
    decided: dict[bytes, LocalState] = {}
    got: Counter[bytes] = Counter()

    def check(message: Any) -> LocalState:
        return decided.get(message.body, LocalState.UNKNOWN)

    async def handle(message: Any) -> None:
        got[message.body] += 1

    async def scene() -> None:
        await send(pair.names, "tx", [b"0"])  # there is the topic
        async with (
            AsyncTransactionProducer("tx", pair.names, check=check, send_timeout_s=5) as producer,
            AsyncConsumer("r", "tx", namesrv=pair.names, start="first", handler=handle),
        ):
            for n in range(1, 60):
                async with producer.transaction(Message("tx", b"%d" % n)) as tx:
                    if n % 3 == 1:
                        tx.rollback()
                    elif n % 3 == 2:
                        tx.leave_open()
            committed = {b"%d" % n for n in range(0, 60, 3)}
            await until_async(lambda: committed <= set(got), "what was committed at once")
            await asyncio.to_thread(pair.kill_master)
            for n in range(2, 60, 3):
                decided[b"%d" % n] = LocalState.ROLLBACK if n % 2 else LocalState.COMMIT
            committed |= {body for body, how in decided.items() if how is LocalState.COMMIT}
            await until_async(lambda: committed <= set(got), "what is committed later")
            await asyncio.sleep(8)  # several rounds of checks
            assert set(got) == committed
            assert set(got.values()) == {1}, got

    asyncio.run(scene())


def test_grpc_clients_go_on_through_a_proxy(pair: Pair, tmp_path: Path) -> None:
    rocketmq = pytest.importorskip("rocketmq")
    sent: list[str] = []
    got: set[str] = set()

    def configured(address: str) -> Any:
        return rocketmq.ClientConfiguration(address, rocketmq.Credentials(), request_timeout=5)

    def send_some(producer: Any, count: int) -> None:
        wanted = len(sent) + count
        number = 0
        while len(sent) < wanted:
            message = rocketmq.Message()
            message.topic, message.body = "grpc", f"{wanted}-{number}".encode()
            number += 1
            try:
                producer.send(message)
            except Exception:
                continue
            sent.append(message.body.decode())

    def receive_all(address: str) -> None:
        topics = {"grpc": rocketmq.FilterExpression()}
        consumer = rocketmq.SimpleConsumer(configured(address), "grpc-g", topics, 2)
        consumer.startup()

        def receive() -> bool:
            for message in consumer.receive(16, 15) or ():
                got.add(message.body.decode())
                consumer.ack(message)
            return set(sent) <= got

        try:
            launch.wait("all that was acknowledged", receive)
        finally:
            consumer.shutdown()

    asyncio.run(send(pair.names, "grpc", [b"made"]))
    with proxy("ours", pair.names, tmp_path / "proxy") as made:
        producer = rocketmq.Producer(configured(made.grpc), ("grpc",))
        producer.startup()
        try:
            for _ in range(2):
                send_some(producer, 50)
                pair.kill_master()
            send_some(producer, 50)
        finally:
            producer.shutdown()
        receive_all(made.grpc)
