"""The requests that the real clients sent to the real name server, sent to ours.

Every request of tests/golden/wire-5.3.3.jsonl.xz that went to port 9876 is fed, in the order of
the answers and on connections of its own as in the capture, to a fresh name server; code, remark,
fields and JSON of each answer are compared with Apache RocketMQ 5.3.3's. What cannot be equal:

- lists that upstream takes out of hash tables are compared as sets (206, 304);
- GET_NAMESRV_CONFIG shows paths of the machine, and ours settings of metrics and trustedProxies,
  which are left out;
- UNREGISTER_BROKER is applied by upstream a moment later, in a batch; ours at once;
- four registrations are cut in the capture and left out; they repeat what single ones had said;
- bodies of 106 have quoted keys where upstream has none: both are read with the same parser.
"""

from __future__ import annotations

import json
import lzma
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from loops import Wire, run

from broker.namesrv import NameServer
from broker.wire import codec
from broker.wire.command import Command
from pystore.files import javajson

GOLDEN = Path(__file__).parents[1] / "golden" / "wire-5.3.3.jsonl.xz"


@pytest.fixture(scope="module")
def frames():
    with lzma.open(GOLDEN, "rt") as text:
        rows = [json.loads(line) for line in text]
    return [row for row in rows if row["port"] == 9876]


def pairs(frames):
    """Each request that is whole, with the real answer to it, in the order of the answers.

    Two requests may have been on their way at once; the answers tell which was served first.
    """
    asked = {}
    for row in frames:
        key = row["conn"], row["opaque"]
        if row["from"] == "client":
            assert key not in asked
            asked[key] = row
        else:
            request = asked.pop(key)
            if request["whole"]:
                yield request, bytes.fromhex(request["hex"]), bytes.fromhex(row["hex"])
    assert not asked


def comparable(code, command):
    """What of an answer must be equal."""
    body = bytes(command.body)
    if code == 319:
        lines = dict(line.split("=", 1) for line in body.decode().splitlines())
        paths = ("rocketmqHome", "kvConfigPath", "configStorePath", "listenPort")
        value = {
            name: text
            for name, text in lines.items()
            if name not in paths and not name.startswith("metrics") and name != "trustedProxies"
        }
    else:
        value = javajson.loads(body) if body else None
    if code in (206, 304):
        assert len(set(value["topicList"])) == len(value["topicList"])
        value["topicList"] = sorted(value["topicList"])
    return command.code, command.remark, command.flag, command.version, command.ext, value


def test_every_answer_is_the_real_ones(frames):
    async def work():
        count = 0
        async with AsyncExitStack() as stack:
            names = NameServer(listenPort=0, bindAddress="0.0.0.0")  # which 319 tells
            await stack.enter_async_context(names)
            wires = {}
            for row, asked, real in pairs(frames):
                if row["conn"] not in wires:
                    wire = await stack.enter_async_context(await Wire.to(names.port))
                    wires[row["conn"]] = wire
                wire = wires[row["conn"]]
                wire.write(asked)
                ours, theirs = await wire.answer(), codec.decode(real)
                assert ours.opaque == row["opaque"]
                where = f"request {row['code']} at {row['t']} on connection {row['conn']}"
                assert comparable(row["code"], ours) == comparable(row["code"], theirs), where
                count += 1
        return count

    assert run(work()) == 278


async def test_routes_are_the_real_ones_byte_by_byte(frames):
    """One broker has one order: then even the bytes are those of fastjson."""
    async with (
        NameServer(listenPort=0) as names,
        await Wire.to(names.port) as wire,
    ):
        for row, asked, real in pairs(frames):
            wire.write(asked)
            ours = await wire.answer()
            if row["code"] == 105 and ours.code == 0:
                assert bytes(ours.body) == bytes(codec.decode(real).body)


async def test_damaged_requests_harm_nobody_else(frames, rng, caplog):
    """Real requests with some bytes changed: an answer or a closed connection, never more."""
    async with NameServer(listenPort=0) as names, await Wire.to(names.port) as calm:
        requests = [asked for _, asked, _ in pairs(frames)]
        for _ in range(400):
            data = bytearray(rng.choice(requests))
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(4, len(data))] = rng.choice((0, 34, 44, 48, 125, 255))
            async with await Wire.to(names.port) as wire:
                wire.write(bytes(data), bytes(rng.randbytes(rng.randint(0, 40))))
                wire.writer.write_eof()
                await wire.closed()
        for _ in range(50):
            async with await Wire.to(names.port) as wire:
                wire.write(rng.randbytes(rng.randint(1, 3000)))
                wire.writer.write_eof()
                await wire.closed()
        assert (await calm.ask(Command(106))).code == 0
    failed = [r for r in caplog.records if r.exc_info and r.exc_info[0] is not None]
    assert not failed, [(r.getMessage(), r.exc_info[1]) for r in failed]
