"""Whoever listens where etcd is expected answers anything, or without end."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from listening import listening

from broker import Broker
from broker.services.controlled.etcd import EtcdController, Gateway
from broker.services.replication.elected_role import ElectionRecord

OK = b"HTTP/1.0 200 OK\r\n\r\n"
MIB = 1 << 20


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def found(value: Any, key: str = "/rocketmq/c/b", leases: Any = ()) -> dict[str, Any]:
    """An answer of a transaction with this value of the group's key."""
    row = {"key": b64(key), "value": b64(value), "mod_revision": "7"}
    ranges = [{"response_range": {"kvs": each}} for each in ([row], list(leases))]
    return {"succeeded": True, "responses": ranges}


SHAPES: list[Any] = [
    {}, [], 7, None, "x", {"responses": None}, {"responses": []}, {"responses": [1, 2]},
    {"responses": [{}, {"response_range": 5}]}, {"responses": {"0": {}}},
    {"responses": [{"response_range": {"kvs": [{"key": "!!"}]}}, {}]},
    {"responses": [{"response_range": {"kvs": [{"key": b64("x"), "value": "/w=="}]}}, {}]},
    found("{"), found("[]"), found('{"epoch": "x"}'), found('{"master": [1]}'),
    found('{"in_sync": [null]}'), found('{"brokers": {"x": {}}}'), found('{"brokers": {"1": 5}}'),
    found('{"brokers": {"1": null}}'), found('{"later": 1}'), found("[" * 50_000),
    found("{}", leases=[{"key": b64("/rocketmq/c/b/alive/x")}]),
    found("{}", leases=[{"key": b64("/rocketmq/c/b/alive/" + "9" * 5000)}]),
    found("{}", leases=[{"key": 7}]),
]  # fmt: skip


@contextlib.asynccontextmanager
async def answering(
    answer: Callable[[asyncio.StreamWriter], Any],
) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read(4096)
            made = answer(writer)
            if asyncio.iscoroutine(made):
                await made
            else:
                writer.write(made)
                await writer.drain()

    async with listening(serve) as address:
        yield f"etcd://{address}"


async def every_request(address: str, folder: Path) -> list[BaseException]:
    """What a broker asks etcd; what each raised."""
    controller = EtcdController(Gateway(address), "c", "b", folder / "identity", 0o644, 3000)
    raised: list[BaseException] = []
    record = ElectionRecord(1, "h:1", "h:2", 1, frozenset({1}), 1)
    for ask in (
        controller.number("h:1"), controller.register(1, "h:1", "h:2", None), controller.look(),
        controller.elect(1), controller.move(1), controller.succeed(1, record),
        controller.change_set(record, frozenset({1})),
    ):  # fmt: skip
        try:
            await ask
        except Exception as failed:  # which it is, is the question
            raised.append(failed)
    await controller.leave()
    return raised


@pytest.mark.parametrize("number", range(len(SHAPES)))
async def test_an_answer_of_another_shape_is_named(number: int, tmp_path: Path) -> None:
    data = OK + json.dumps(SHAPES[number]).encode()
    async with answering(lambda _: data) as address:
        for each in await every_request(address, tmp_path):
            assert isinstance(each, OSError | TimeoutError) or type(each).__name__ == (
                "ControllerRefused"
            ), repr(each)


@pytest.mark.parametrize(
    "data", [b"", b"\r\n\r\n", b"HTTP/1.0 200 OK", OK, OK + b"[" * 100_000, OK + b"\xff\xfe{}"]
)
async def test_what_is_no_answer_is_named(data: bytes, tmp_path: Path) -> None:
    async with answering(lambda _: data) as address:
        raised = await every_request(address, tmp_path)
        assert raised and all(isinstance(each, OSError) for each in raised)


async def _without_end(writer: asyncio.StreamWriter) -> None:
    writer.write(OK)
    while not writer.is_closing():
        writer.write(b" " * MIB)
        await writer.drain()


async def test_an_answer_without_end_takes_little_memory() -> None:
    async with answering(_without_end) as address:
        tracemalloc.start()
        try:
            with pytest.raises(OSError, match="answers more than 4 MB"):
                await Gateway(address).ask("kv/txn", {})
            assert tracemalloc.get_traced_memory()[1] < 24 * MIB  # the other end's among them
        finally:
            tracemalloc.stop()


async def test_a_member_that_answers_nonsense_is_passed_over(tmp_path: Path) -> None:
    good = OK + json.dumps(found("{}")).encode()
    async with answering(lambda _: OK + b"[]") as bad, answering(lambda _: good) as fine:
        gateway = Gateway(f"{bad},{fine.removeprefix('etcd://')}")
        controller = EtcdController(gateway, "c", "b", tmp_path / "identity", 0o644, 3000)
        assert (await controller.look()).master is None


async def test_a_broker_that_meets_nonsense_at_its_start_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.join_controller._WAIT_S", 0.0)
    async with answering(lambda _: OK + b"{}") as address:
        broker = Broker(
            tmp_path / "s", listenPort=0, bindAddress="127.0.0.1", enableControllerMode=True,
            controllerAddr=address, namesrvAddr="127.0.0.1:1", haListenPort=0,
        )  # fmt: skip
        with pytest.raises(OSError, match="no responses"):
            await broker.start()
