"""A process that meets a stranger: ``python -m tests.attack.met ADDRESS WHAT`` starts one of WHATS,
whose name server, and whatever that one names, is at the address. It speaks as served.py does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc.aio

import broker.join_controller
from broker import AsyncConsumer, AsyncProducer, Broker, Message
from broker.client.errors import ClientError
from broker.grpc.proxy import Proxy
from broker.grpc.schema import METHODS, SERVICE, Method, pb
from broker.services.controlled.controller import ControllerRefused
from pystore.errors import BadArgument
from tests.attack.served import serve

__all__ = ["WHATS"]

INNER = '{"accessKey":"inner","secretKey":"between-brokers"}'
ACCESS: dict[str, Any] = {
    "authenticationEnabled": True, "authorizationEnabled": True,
    "innerClientAuthenticationCredentials": INNER,
}  # fmt: skip
SMALL: dict[str, Any] = {
    "listenPort": 0, "bindAddress": "127.0.0.1", "brokerName": "b",
    "mappedFileSizeCommitLog": 1 << 20,
}  # fmt: skip


async def broker_of(names: str, folder: Path, **settings: Any) -> None:
    async with Broker(folder / "store", namesrvAddr=names, **SMALL | settings):
        await serve({}, [])


async def slave(names: str, folder: Path) -> None:
    await broker_of(names, folder, brokerRole="SLAVE", brokerId=1, enableSlaveActingMaster=True)


async def guarded_slave(names: str, folder: Path) -> None:
    await broker_of(names, folder, brokerRole="SLAVE", brokerId=1, **ACCESS)


async def master(names: str, folder: Path) -> None:
    await broker_of(
        names, folder, brokerRole="ASYNC_MASTER", haListenPort=0, enableSlaveActingMaster=True,
        brokerNotActiveTimeoutMillis=1000,
    )  # fmt: skip


async def _failing(start: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """It may not come up, if it says why."""
    try:
        await start()
    except (OSError, TimeoutError, ControllerRefused, BadArgument, ClientError) as failed:
        logging.getLogger(__name__).info("It does not start: %s", failed)
        await serve({}, [])


async def under_controller(names: str, folder: Path) -> None:
    broker.join_controller._WAIT_S = 1.0
    more: dict[str, Any] = {"enableControllerMode": True, "haListenPort": 0}
    await _failing(lambda: broker_of(names, folder, controllerAddr=names, **more))


async def under_etcd(names: str, folder: Path) -> None:
    broker.join_controller._WAIT_S = 1.0
    more: dict[str, Any] = {"enableControllerMode": True, "haListenPort": 0}
    await _failing(lambda: broker_of(names, folder, controllerAddr=f"etcd://{names}", **more))


async def proxy(names: str, folder: Path) -> None:
    async def started() -> None:
        async with Proxy(names, grpc_port=0, remoting_port=0, bind="127.0.0.1", drain_s=0.2) as it:
            calls = [asyncio.create_task(each) for each in (_calls(it.port), _relayed(it))]
            await serve({}, [])
            for task in calls:
                task.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    await _failing(started)


async def _calls(port: int) -> None:
    """Has a proxy ask for what a client wants: by itself it asks nobody."""
    topic, group = pb.Resource(name="T"), pb.Resource(name="g")
    every = pb.SubscriptionEntry(topic=topic, expression=pb.FilterExpression(expression="*"))
    subscribed = pb.Subscription(group=group, subscriptions=[every])
    settings = pb.Settings(client_type=pb.ClientType.SIMPLE_CONSUMER, subscription=subscribed)
    sent = pb.Message(topic=topic, body=b"x")
    sent.system_properties.message_id = "0" * 32
    queue = pb.MessageQueue(topic=topic, id=-1)
    asked = {
        "QueryRoute": {"topic": topic},
        "Telemetry": {"settings": settings},
        "QueryAssignment": {"topic": topic, "group": group},
        "SendMessage": {"messages": [sent]},
        "Heartbeat": {"group": group, "client_type": pb.ClientType.SIMPLE_CONSUMER},
        "ReceiveMessage": {"group": group, "message_queue": queue, "batch_size": 8},
    }
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        while True:
            for name, fields in asked.items():
                with contextlib.suppress(grpc.RpcError):
                    await _call(channel, METHODS[name], fields)


async def _call(channel: grpc.aio.Channel, method: Method, fields: dict[str, Any]) -> None:
    data = method.request(**fields).SerializeToString()
    with_name: dict[str, Any] = {"metadata": [("x-mq-client-id", "met")], "timeout": 1}
    path = f"/{SERVICE}/{method.name}"
    if method.streams_in:
        stream = channel.stream_stream(path)(**with_name)
        await stream.write(data)
        await stream.read()
        stream.cancel()
    elif method.streams_out:
        async for _ in channel.unary_stream(path)(data, **with_name):
            pass
    else:
        await channel.unary_unary(path)(data, **with_name)


async def _relayed(proxy: Proxy) -> None:
    """The same by a client of the remoting protocol."""
    async with AsyncProducer("p", namesrv=proxy.remoting_address, send_timeout_s=1) as producer:
        while True:
            with contextlib.suppress(ClientError):
                await producer.send(Message("T", b"x"))
            await asyncio.sleep(0.01)


async def clients(names: str, folder: Path) -> None:
    async def sends() -> None:
        async with AsyncProducer("p", namesrv=names, send_timeout_s=1) as producer:
            while True:
                with contextlib.suppress(ClientError):
                    await producer.send(Message("T", b"x"))
                await asyncio.sleep(0.01)

    async def consumes() -> None:
        while True:
            with contextlib.suppress(ClientError):
                async with AsyncConsumer("g", "T", namesrv=names, handler=lambda _: None):
                    await asyncio.Event().wait()
            await asyncio.sleep(0.1)

    tasks = [asyncio.create_task(sends()), asyncio.create_task(consumes())]
    await serve({}, [])
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


WHATS: dict[str, Callable[[str, Path], Coroutine[Any, Any, None]]] = {
    each.__name__: each
    for each in (slave, guarded_slave, master, under_controller, under_etcd, proxy, clients)
}

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(WHATS[sys.argv[2]](sys.argv[1], Path(made)))
