"""The requests that real clients and tools sent to the real broker, sent to ours.

Every request of tests/golden/wire-5.3.3.jsonl.xz that went to port 10911 is fed, in the order of
the answers and on connections of its own as in the capture, to a fresh broker. Code, names of the
fields and names of the JSON members of each answer are those of Apache RocketMQ 5.3.3; values too
where they do not depend on time, place or chance. Pulls are sent without waiting for messages, and
their answers not compared, since they hang on the moment. Left out are timers, which this broker
does not serve yet, and whatever names a record by its place in the log, which moves without them:
ends of transactions among it, and what is asked of their topic.
"""

from __future__ import annotations

import asyncio
import json
import lzma
import os
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from fakes import send_command
from loops import Wire, run

from broker.broker import Broker
from broker.wire import codec, mqjson
from broker.wire.codes import RequestCode
from broker.wire.command import Command

GOLDEN = Path(__file__).parents[1] / "golden" / "wire-5.3.3.jsonl.xz"
PORT = 10911
#: SEND in both versions, as batch.
SENDS = (10, 310, 320)
PULL = 11
#: Ends of transactions, records by their place.
LEFT_OUT = (37, 33, 36)
#: Topics whose messages this broker refuses or keeps elsewhere.
ELSEWHERE = ("_tx", "_timer", "RMQ_SYS_TRANS", "TRANS_CHECK", "rmq_sys", "DLQ", "RETRY", "SCHEDULE")
#: Fields whose values are those of a moment, an address or a place in the log.
CHANCE = {"msgId", "indexLastUpdatePhyoffset", "indexLastUpdateTimestamp", "version"}


@pytest.fixture(scope="module")
def frames():
    with lzma.open(GOLDEN, "rt") as text:
        rows = [json.loads(line) for line in text]
    return [row for row in rows if row["port"] == PORT]


def whole(row):
    """The command of a frame; the capture cuts long bodies, which are filled up."""
    data = bytes.fromhex(row["hex"])
    return codec.decode(data + bytes(4 + int.from_bytes(data[:4], "big") - len(data)))


def exchanges(frames):
    """(connection, request, answer) in the order of the answers; one-way requests have none."""
    asked = {}
    for row in frames:
        key = row["conn"], row["opaque"]
        if row["flag"] & 1 == 0 and row["from"] == "client":
            if row["flag"] & 2:
                yield row["conn"], whole(row), None
            else:
                asked[key] = row
        elif row["flag"] & 1 and row["from"] == "server":
            yield row["conn"], whole(asked.pop(key)), row
    # Pulls that were still held.
    assert all(row["code"] == 11 for row in asked.values())


def served(request):
    """Whether this broker is to answer it as the real one did."""
    ext = request.ext
    if request.code in LEFT_OUT or request.code == 317:
        return False
    if request.code in SENDS and "TRAN_MSG" in ext.get("i", ""):
        return True
    named = [ext.get(name, "") for name in ("topic", "statsKey", "consumerGroup", "b")]
    return not any(part in name for part in ELSEWHERE for name in named)


async def ask(wire, request):
    """The answer; requests of the broker that come meanwhile are passed over."""
    wire.write(request)
    while True:
        answer = await wire.answer()
        if answer.is_response and answer.opaque == request.opaque:
            return answer


def shape(value):
    """Names of members, all the way down; of maps by queue, and of lists, what they hold."""
    if isinstance(value, dict):
        if value and all(isinstance(key, mqjson.MessageQueue) for key in value):
            return ("by queue", shape(next(iter(value.values()))))
        return {key: shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value and isinstance(value[0], dict) else []
    return type(value).__name__ if value is not None else "absent"


def check(request, ours, real):
    about = f"request {request.code} {request.ext}"
    assert real.code == ours.code, f"{about}: {ours.remark}"
    assert set(real.ext) == set(ours.ext), about
    # Java puts half messages back when it checks them, so the next one lies further on.
    chance = CHANCE | ({"queueOffset"} if "TRAN_MSG" in request.ext.get("i", "") else set())
    for name in set(real.ext) - chance:
        assert real.ext[name] == ours.ext[name], f"{about}: {name}"
    if request.code in (12, 26, 28, 207, 300) or not real.body:
        assert bool(real.body) == bool(ours.body), about
        return
    real_body, our_body = mqjson.loads(real.body), mqjson.loads(ours.body)
    assert shape(real_body) == shape(our_body), about
    if request.code in (38, 351):
        assert real_body == our_body, about
    if request.code == 202:
        assert offsets(real_body) == offsets(our_body), about
    if request.code == 222:  # by a time that was later than all messages then
        assert real_body["offsetTable"].keys() == our_body["offsetTable"].keys(), about


def offsets(table):
    return {q: (row["minOffset"], row["maxOffset"]) for q, row in table["offsetTable"].items()}


async def replay(frames, broker):
    seen = {}
    async with AsyncExitStack() as stack:
        wires = {}
        for conn, request, row in exchanges(frames):
            if conn not in wires:
                wires[conn] = await stack.enter_async_context(await Wire.to(broker.port))
            wire = wires[conn]
            if row is None:
                if served(request):
                    wire.write(request)
                    # An answer to what follows says that it was read.
                    await ask(wire, Command(RequestCode.GET_MIN_OFFSET, PING, opaque=1 << 30))
                continue
            if request.code == PULL:
                request.ext["sysFlag"] = str(int(request.ext["sysFlag"]) & ~2)
                await ask(wire, request)
            elif served(request):
                answer = await ask(wire, request)
                if request.code == STATISTICS and not whole(row).code:
                    # Of a delayed message, which the real broker had time to deliver.
                    while answer.code:
                        await asyncio.sleep(0.05)
                        answer = await ask(wire, request)
                check(request, answer, whole(row))
                seen[request.code] = seen.get(request.code, 0) + 1
    return seen


STATISTICS = 315
PING = {"topic": "BenchmarkTest", "queueId": "0"}


def test_answers_are_those_of_the_real_broker(frames, tmp_path, small):
    async def scenario():
        settings = small | {"mappedFileSizeCommitLog": 8 << 20, "brokerName": "broker-a"}
        async with Broker(tmp_path / "store", listenPort=0, **settings) as broker:
            return await replay(frames, broker)

    seen = run(scenario())
    assert seen.keys() >= {12, 14, 17, 26, 28, 30, 31, 34, 35, 38, 200, 202, 203, 204, 207, 208}
    assert seen.keys() >= {215, 222, 300, 310, 315, 320, 351}


def test_runtime_info_has_every_key_of_the_real_one(frames, tmp_path, small):
    """Tools print what is there, and stumble over what is not. No topic adds keys of its own, not
    even one with transactions."""

    def keys(body):
        return {
            key.partition("_/")[0]
            for key in mqjson.loads(body)["table"]
            if not key.startswith("scheduleMessageOffset_")
        }

    real = next(whole(row) for _, request, row in exchanges(frames) if request.code == 28 and row)

    half = send_command("paid", properties={"UNIQ_KEY": "U", "TRAN_MSG": "true", "PGROUP": "p"})

    async def scenario():
        # A busy machine makes any request a slow one, which the broker would tell of.
        settings = small | {"loopHeldWarnMillis": 600_000}
        broker = Broker(tmp_path / "store", listenPort=0, **settings)
        async with broker, await Wire.to(broker.port) as wire:
            assert (await wire.ask(half)).code == 0
            return await wire.ask(Command(RequestCode.GET_BROKER_RUNTIME_INFO, opaque=2))

    # What the doctor and the page ask for of a broker of ours.
    ours = {"getMessageSizeTotal", "mappingsMax", "openFilesMax"}
    assert keys(real.body) == keys(run(scenario()).body) - ours


async def one(tmp_path, settings, code):
    """The answer of a fresh broker to a request without fields."""
    broker = Broker(tmp_path / "store", listenPort=0, **settings)
    async with broker, await Wire.to(broker.port) as wire:
        return await wire.ask(Command(code, opaque=1))


def test_config_has_every_name_of_the_real_one(frames, tmp_path, small, monkeypatch):
    def values(body):
        return dict(line.split("=", 1) for line in bytes(body).decode().splitlines() if line)

    row = next(row for _, request, row in exchanges(frames) if request.code == 26 and row)
    real = bytes.fromhex(row["hex"])[200:].decode().splitlines()[1:-1]  # the capture cuts it
    monkeypatch.setenv("ROCKETMQ_HOME", "/opt/rocketmq")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)  # as there

    async def scenario():
        return await one(tmp_path, small, RequestCode.GET_BROKER_CONFIG)

    ours = values(run(scenario()).body)
    assert len(real) > 20 and not {line.partition("=")[0] for line in real} - ours.keys()
    store = tmp_path / "store"
    assert ours.items() >= {
        "storePathRootDir": str(store), "storePathCommitLog": str(store / "commitlog"),
        "brokerIP2": ours["brokerIP1"], "rocketmqHome": "/opt/rocketmq",
        "sendMessageThreadPoolNums": "2", "pullMessageThreadPoolNums": "20",
        "queryMessageThreadPoolNums": "10", "endTransactionThreadPoolNums": "12",
    }.items()  # fmt: skip
