"""Networks that fail as networks do: what is acknowledged stays, and clients come back.

A relay stands between the clients and the broker. It can swallow everything without closing (a
half-open connection), be late, and cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time

import pytest
from listening import Listener
from loops import until
from ports import free_port
from waiting import BOUND_S

from broker import AsyncConsumer, AsyncProducer, Broker, Message, NameServer, Producer
from broker.client import NoRoute, RequestTimeout, SendFailed, Unreachable
from broker.client.routes import route_of_queues


class Relay:
    """A port of its own that passes bytes on to another."""

    def __init__(self, port):
        self._to = port
        self._listener = Listener(self._accept)
        self._writers = set()
        self.late_s = 0.0
        self.frozen = False
        self.accepted = self.swallowed = 0

    async def __aenter__(self):
        self.address = await self._listener.open()
        return self

    async def __aexit__(self, *_):
        self.cut()
        await self._listener.close()

    async def _accept(self, reader, writer):
        self.accepted += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        # Only connections of that time are frozen: a new one finds the way.
        frozen = [False]
        self._writers |= {writer, back}
        ways = (reader, back), (there, writer)
        try:
            await asyncio.gather(*(self._pass(*way, frozen) for way in ways))
        finally:
            back.transport.abort()

    async def _pass(self, source, sink, frozen):
        with contextlib.suppress(ConnectionError):
            while data := await source.read(1 << 16):
                frozen[0] = frozen[0] or self.frozen
                if frozen[0]:
                    self.swallowed += 1
                    continue
                if self.late_s:
                    await asyncio.sleep(self.late_s)
                sink.write(data)
        sink.close()

    def cut(self):
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def route(self, topic):
        return route_of_queues(topic, "b", self.address, "c", 6, 4, 4)


@contextlib.asynccontextmanager
async def relayed(folder, small):
    settings = small | {"listenPort": 0, "drain_s": 0.0, "brokerName": "b"}
    async with Broker(folder / "store", **settings) as broker:
        broker.create_topic("orders")
        async with Relay(broker.port) as relay:
            yield relay


async def test_a_half_open_connection_is_left(tmp_path, small):
    """No answer and no reset: the time for an answer ends it, and the next send goes through."""
    async with (
        relayed(tmp_path, small) as relay,
        AsyncProducer(find_route=relay.route, send_timeout_s=BOUND_S, retries=0) as producer,
    ):
        await producer.send(Message("orders", b"before"))
        # The answer to its first heartbeat would show that the broker is there.
        await producer.network.registered(relay.address)
        relay.frozen = True
        with pytest.raises(SendFailed) as failed:
            await producer.send(Message("orders", b"into the void"), timeout_s=0.5)
        assert isinstance(failed.value.attempts[0].error, RequestTimeout)
        relay.frozen, known = False, relay.accepted
        await producer.send(Message("orders", b"after"))
        assert relay.accepted > known


async def test_a_consumer_leaves_a_half_open_connection_by_its_heartbeat(tmp_path, small):
    options = {"heartbeat_s": 0.2, "request_timeout_s": 0.3, "start": "first"}
    async with (
        relayed(tmp_path, small) as relay,
        AsyncConsumer("g", "orders", find_route=relay.route, **options) as consumer,
    ):
        relay.frozen, known = True, relay.accepted
        await until(lambda: relay.swallowed)
        relay.frozen = False
        await until(lambda: relay.accepted > known)
        async with AsyncProducer(find_route=relay.route) as producer:
            await producer.send(Message("orders", b"x"))
        assert [m.body for m in await consumer.poll(BOUND_S)] == [b"x"]


async def test_a_late_broker_is_waited_for(tmp_path, small):
    async with (
        relayed(tmp_path, small) as relay,
        AsyncProducer(find_route=relay.route, send_timeout_s=BOUND_S) as producer,
    ):
        relay.late_s = 0.2
        began = time.monotonic()
        results = await asyncio.gather(
            *(producer.send(Message("orders", b"%d" % n)) for n in range(50))
        )
        assert len({(r.queue, r.queue_offset) for r in results}) == 50
        assert time.monotonic() - began > 0.2


async def test_what_is_acknowledged_survives_cut_connections(tmp_path, small):
    acknowledged, got = set(), set()
    async with relayed(tmp_path, small) as relay:
        options = {"find_route": relay.route, "send_timeout_s": 60.0, "retries": 20}
        async with AsyncProducer(**options) as producer:

            async def send(n):
                await producer.send(Message("orders", b"%d" % n))
                acknowledged.add(b"%d" % n)

            for first in range(0, 400, 100):
                sends = asyncio.gather(*(send(n) for n in range(first, first + 100)))
                await asyncio.sleep(0)
                relay.cut()
                await sends
        async with AsyncConsumer("g", "orders", find_route=relay.route, start="first") as consumer:
            async for message in consumer:
                got.add(message.body)
                if len(got) in (100, 200):
                    relay.cut()
                if got >= acknowledged:
                    break
    assert len(acknowledged) == 400


def test_clients_outlive_their_name_server(tmp_path, small):
    settings = small | {"listenPort": 0, "drain_s": 0.0}
    with contextlib.ExitStack() as undo:
        first, port = undo.enter_context(contextlib.ExitStack()), free_port()
        address = first.enter_context(NameServer.in_thread(listenPort=port)).address
        broker = Broker(tmp_path / "store", namesrvAddr=address, **settings)
        undo.enter_context(broker).create_topic("orders")
        options = {"route_poll_s": 0.1, "request_timeout_s": BOUND_S}
        producer = undo.enter_context(Producer("p", address, **options))
        producer.send(Message("orders", b"x"))
        first.close()
        with pytest.raises(Unreachable, match="no name server answers"):
            producer.queues("of-another-topic")
        for _ in range(5):
            time.sleep(0.1)
            producer.send(Message("orders", b"x"))
        undo.enter_context(NameServer.in_thread(listenPort=port))
        # It is reached, whether the broker has registered there again or it knows no topics yet.
        with contextlib.suppress(NoRoute):
            producer.queues("of-another-topic")


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_addresses_of_the_sixth_version(tmp_path, small):
    settings = small | {"listenPort": 0, "drain_s": 0.0, "brokerIP1": "::1", "with_namesrv": True}
    async with Broker(tmp_path / "store", **settings) as broker:
        assert broker.namesrv_address.startswith("[::1]:")
        async with AsyncProducer("p", broker.namesrv_address) as producer:
            sent = await producer.send(Message("orders", b"x"))
        async with AsyncConsumer(
            "g", "orders", namesrv=broker.namesrv_address, start="first"
        ) as consumer:
            (message,) = await consumer.poll(BOUND_S)
        assert message.offset_message_id == sent.offset_message_id
        assert len(message.offset_message_id) == 56
