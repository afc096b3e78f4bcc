"""The server and the client of the remoting protocol, over real sockets."""

from __future__ import annotations

import asyncio

from loops import Wire, run, serving

from broker.remoting.client import RemotingClient
from broker.remoting.command import BINARY, JSON, Command, Refused

ECHO, FAIL, REFUSE, LATER = 1, 2, 3, 4


def echo(peer, command):
    return command.reply(0, ext=command.ext, body=command.body)


def fail(peer, command):
    raise ValueError("no such thing")


def refuse(peer, command):
    raise Refused(16, "not allowed")


async def later(peer, command):
    await asyncio.sleep(0.01)
    return command.reply(0, "later")


HANDLERS = {ECHO: echo, FAIL: fail, REFUSE: refuse, LATER: later}


def test_an_answer_carries_opaque_and_encoding_of_its_request():
    async def work():
        async with serving(HANDLERS) as server, await Wire.to(server.port) as wire:
            for serialize in (JSON, BINARY):
                asked = Command(ECHO, {"a": "ä"}, b"body", opaque=-77, serialize=serialize)
                answer = await wire.ask(asked)
                assert (answer.code, answer.opaque, answer.serialize) == (0, -77, serialize)
                assert (answer.ext, bytes(answer.body)) == ({"a": "ä"}, b"body")
                assert answer.is_response and answer.version == 479

    run(work())


def test_the_client_asks_and_is_told_errors():
    async def work():
        async with serving(HANDLERS) as server, RemotingClient() as client:
            at = f"127.0.0.1:{server.port}"
            answer = await client.request(at, Command(ECHO, {"k": "v"}, b"x" * 100_000))
            assert answer.code == 0 and len(answer.body) == 100_000
            answer = await client.request(at, Command(REFUSE))
            assert (answer.code, answer.remark) == (16, "not allowed")
            answer = await client.request(at, Command(FAIL))
            assert (answer.code, answer.remark) == (1, "ValueError: no such thing")
            answer = await client.request(at, Command(4711))
            assert (answer.code, answer.remark) == (3, " request type 4711 not supported")
            answer = await client.request(at, Command(LATER))
            assert (answer.code, answer.remark) == (0, "later")

    run(work())
